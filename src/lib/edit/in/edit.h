/*
 * From the index of a file and what its tensors become to the pieces of the new file, of which as
 * many as possible stay where they are. Nothing is written. One thread at a time.
 */
#ifndef SL_EDIT_H
#define SL_EDIT_H

#include "file_edit.h"
#include "index.h"

/** A tensor of the new file, in its order. */
struct sl_edit_item {
    const struct sl_tensor *old;    /* of the index; NULL: a new one, behind all that were there */
    const struct sl_tensor *tensor; /* its new form; NULL: it stays */
    const uint8_t *data;            /* of tensor: its bytes, row by row; not of a meta one */
};
/** A plan. */
struct sl_edit {
    struct sl_index *index; /* of one object; not encrypted */
    const struct sl_edit_item *items;
    size_t count;
    struct sl_file_piece *pieces;
    size_t piece_count, piece_capacity;
    uint64_t seal; /* as of struct sl_file_content */
};

/**
 * Plan it. index, items and what they point to are borrowed until the release; pieces point there
 * or into memory of the index. SL_E_FORMAT with the format's code for a tensor that cannot be
 * written; SL_E_USAGE: objects of this format, or this one, are not changed but written anew.
 */
int sl_edit_plan(struct sl_edit *edit, struct sl_err *err);
void sl_edit_release(struct sl_edit *edit);

/** Plans of one format each; sl_edit_plan() chooses. SL_E_FORMAT, SL_E_USAGE, SL_E_NO_SPACE. */
int sl_edit_safetensors(struct sl_edit *edit, struct sl_err *err);
int sl_edit_tensorizer(struct sl_edit *edit, struct sl_err *err);
int sl_edit_pytorch(struct sl_edit *edit, struct sl_err *err);

/**
 * Add the next piece of the new file (for formats). Neighbours in the present file become one
 * piece.
 *
 * @data    `bytes` bytes, borrowed until sl_edit_release(); NULL: they are the present file's.
 * @from    where they begin there; without meaning for data.
 * @bytes   0: nothing is added.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_edit_add(struct sl_edit *edit, const uint8_t *data, uint64_t from, uint64_t bytes,
                struct sl_err *err);
/** For formats: the data of a tensor that is new: what was given, or zeros of a meta tensor,
 * which are the index's. NULL: SL_E_NO_SPACE. */
const uint8_t *sl_edit_data(struct sl_edit *edit, const struct sl_edit_item *item,
                            struct sl_err *err);

#endif

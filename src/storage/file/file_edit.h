/*
 * A local file that is changed where it lies, so that a crash leaves what it was or what it shall
 * be, and never a mix: a service for who edits (lib/edit), and for who reads or completes. It
 * knows no format. One editor at a time, of one thread; what is done to files blocks.
 *
 * What changes is written to a journal beside the file first (.NAME.sluice-edit). Then eight bytes
 * of the file, without which no reader takes it for a model, are overwritten by a mark: from here
 * on the new content counts. The changes follow, and at last the eight bytes as they shall be. The
 * next editor completes what one before left, or throws its journal away where the mark is not
 * there; readers write nothing. Where more of the file would move, it has another name, or its file
 * system cannot prove whose a journal is, a new file is written beside it (.NAME.sluice-new) and
 * renamed to its name.
 *
 * Editors exclude each other by .NAME.sluice-lock, which only those can open who may write the
 * file: no reader can hold it.
 */
#ifndef SL_FILE_EDIT_H
#define SL_FILE_EDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"

/** The next bytes of the new content: data, or, if that is NULL, bytes of the present file. */
struct sl_file_piece {
    uint64_t bytes;
    const uint8_t *data;
    uint64_t from;
};
enum { SL_FILE_SEAL_BYTES = 8 };
/** All of it. Everything is borrowed. */
struct sl_file_content {
    const struct sl_file_piece *pieces;
    size_t count;
    /* Where the eight bytes are: in the present file, and in the new one. The last of them is not
     * 0xff, and with 0xff there no reader takes the file for a model. */
    uint64_t seal;
    bool copy; /* a new file in any case: who has the present one open or mapped keeps it */
};

struct sl_file_edit;
/**
 * Lock a file, or what a link leads to, and complete what an editor before left. path is copied.
 * SL_E_NOT_FOUND, SL_E_AUTH; SL_E_USAGE, code "busy": somebody else is changing it; SL_E_NO_SPACE;
 * SL_E_INTEGRITY: what was left is damaged.
 */
int sl_file_edit_open(const char *path, struct sl_file_edit **edit, struct sl_err *err);
/** Nothing more of it. NULL is fine. */
void sl_file_edit_free(struct sl_file_edit *edit);
SL_AUTO_DEFINE(sl_file_edit)
/** The file itself, behind links; borrowed. */
const char *sl_file_edit_path(const struct sl_file_edit *edit);
/**
 * Give the file its new content. Pieces that stay where they are are not written; if all others
 * are data, the file is changed in place. SL_E_INTEGRITY, code "changed": somebody wrote to it
 * since it was opened. SL_E_NO_SPACE: it is as it was, unless the message says that it is to be
 * completed.
 */
int sl_file_edit_commit(struct sl_file_edit *edit, const struct sl_file_content *content,
                        struct sl_err *err);

/**
 * For readers of an opened file, which is not written to: SL_E_INTEGRITY, code "changed", if it is
 * between two contents. Whatever else lies at the journal's name is warned of and keeps nobody out.
 */
int sl_file_edit_check(int fd, struct sl_err *err);

#endif

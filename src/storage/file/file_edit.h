/*
 * A local file that is changed where it lies, so that a crash leaves what it was or what it shall
 * be, and never a mix. One editor at a time, of one thread; what is done to files blocks.
 *
 * What changes is written to a journal beside the file first (.NAME.sluice-edit). Then eight bytes
 * of the file, without which no reader takes it for a model, are overwritten by a mark of this
 * journal: from here on the new content counts. The changes follow, and at last the eight bytes as
 * they shall be. Whoever opens the file through this layer and finds a journal completes it, or
 * throws it away where the mark is not there. Where more of the file would move, a new file is
 * written beside it (.NAME.sluice-new) and renamed to its name.
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
    uint64_t seal; /* where the eight bytes are: in the present file, and in the new one */
    bool copy;     /* a new file in any case: who has the present one open or mapped keeps it */
};

struct sl_file_edit;
/**
 * Lock a file, or what a link leads to, and complete what an editor before left. path is copied.
 * SL_E_NOT_FOUND, SL_E_AUTH; SL_E_USAGE, code "busy": somebody else is changing it; SL_E_NO_SPACE.
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
 * since it was opened. SL_E_NO_SPACE: it is as it was, unless the message says
 * that the next one who opens it completes it.
 */
int sl_file_edit_commit(struct sl_file_edit *edit, const struct sl_file_content *content,
                        struct sl_err *err);

/**
 * For readers of an opened file: was a change of it begun and not completed? 0: no. 1: it was, and
 * is complete now: open it again. -1: SL_E_INTEGRITY, code "changed": somebody is changing it;
 * SL_E_AUTH: it cannot be completed from here. mend false: nothing is written, and it is -1.
 */
int sl_file_edit_check(int fd, bool mend, struct sl_err *err);
/** Is it the name of a journal or of a new file that is not complete? */
bool sl_file_edit_is_own(const char *name);

#endif

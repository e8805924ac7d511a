/* A pickle written anew, with other values at some places and all else as it was. */
#ifndef SL_EDIT_PICKLE_H
#define SL_EDIT_PICKLE_H

#include "buf.h"
#include "index.h"

enum { SL_EDIT_PICKLE_BYTES_MAX = 8 * 1024 * 1024 /* each takes up to a hundred of memory */ };

/** A change of one key of a dict. */
struct sl_edit_pickle_change {
    const struct sl_path_part *path; /* keys from the outermost dict on */
    unsigned path_count;
    bool fresh;           /* it is not there yet: the outermost dict gets it */
    const uint8_t *value; /* opcodes that push it, without memo; NULL: the key goes */
    size_t value_bytes;
};
/**
 * The pickle with these changes, appended to out. It was read by sl_pickle_read() before, without a
 * failure. SL_E_USAGE: a path does not lead through dicts whose items are set one by one.
 * SL_E_FORMAT: it is too long, or nested too deep.
 */
int sl_edit_pickle(const void *data, size_t bytes, const struct sl_edit_pickle_change *changes,
                   size_t count, struct sl_buf *out, struct sl_err *err);

#endif

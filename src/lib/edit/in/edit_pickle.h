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
 * Write a pickle anew with other values at some places.
 *
 * @data     `bytes` bytes, at most SL_EDIT_PICKLE_BYTES_MAX, which sl_pickle_read() has read
 *           without a failure.
 * @changes  `count` of them.
 * @out      the new pickle is appended; after a failure perhaps a part of it.
 * @return   0, or -1: SL_E_USAGE: a path does not lead through dicts whose items are set one by
 *           one; SL_E_FORMAT: it is too long, nested too deep, or has opcodes that cannot be
 *           changed.
 */
int sl_edit_pickle(const void *data, size_t bytes, const struct sl_edit_pickle_change *changes,
                   size_t count, struct sl_buf *out, struct sl_err *err);

#endif

/* Bytes packed by zstd as they come, and handed on. A packer belongs to one thread at a time and
 * does no I/O of its own. */
#ifndef SL_PACKER_H
#define SL_PACKER_H

#include <stddef.h>

#include "err.h"
#include "mem.h"

/** Where the packed bytes go: 0, or -1 with err, which ends the packing. */
struct sl_packer_output {
    int (*put)(void *arg, const void *data, size_t bytes, struct sl_err *err);
    void *arg;
};

struct sl_packer;
/** One frame, with a checksum. The output is copied, its arg borrowed. SL_E_NO_SPACE. */
struct sl_packer *sl_packer_new(const struct sl_packer_output *output, struct sl_err *err);
void sl_packer_free(struct sl_packer *packer);
SL_AUTO_DEFINE(sl_packer)
/** More bytes. -1: what put() says, or SL_E_NO_SPACE. */
int sl_packer_write(struct sl_packer *packer, const void *data, size_t bytes, struct sl_err *err);
/** The last one came: hand on the rest. -1, as above. */
int sl_packer_end(struct sl_packer *packer, struct sl_err *err);

#endif

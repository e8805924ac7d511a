/*
 * Decryption where it lands: pieces of encrypted tensors that were copied to a GPU as they came are
 * decrypted in place and checked there, so their plaintext is never on the host.
 */
#ifndef SL_GPU_OPENER_H
#define SL_GPU_OPENER_H

#include "gpu.h"
#include "index.h"

enum { SL_OPENER_PIECE_BYTES_MAX = 16 * 1024 * 1024 };

struct sl_gpu_opener;
/** For pieces of at most so many bytes. Any thread but the GPU's; blocks. SL_E_GPU if this build
 * has no kernels for this GPU. */
struct sl_gpu_opener *sl_gpu_opener_new(struct sl_gpu *gpu, uint64_t piece_bytes,
                                        struct sl_err *err);
void sl_gpu_opener_free(struct sl_gpu_opener *opener);
SL_AUTO_DEFINE(sl_gpu_opener)
/** Whole pieces of a tensor, from number `first` on, that lie at a device's address. */
struct sl_opener_pieces {
    const struct sl_tensor *tensor;
    uint64_t first, address, bytes;
    const void *subject; /* the caller's, with `flag` */
    bool flag;
};
/** Events of the opener, called by the GPU's thread. */
struct sl_opener_events {
    /** Pieces [first, first + count) of those, in order: all good, or all bad. What lies where a
     * piece was bad is nobody's. -1 is a failure. */
    int (*report)(void *arg, const struct sl_opener_pieces *of, uint64_t first, uint64_t count,
                  bool good, struct sl_err *err);
    /** All of them were reported. */
    void (*opened)(void *arg);
    /** The driver failed, or report() did; nothing is told after it. */
    void (*failed)(void *arg, const struct sl_err *why);
    void *arg;
};
/** Before anything is opened. Borrowed until it is stopped. */
void sl_gpu_opener_bind(struct sl_gpu_opener *opener, const struct sl_opener_events *events);
/** Have them opened: begun now or behind others, and told later. The GPU's thread alone; does not
 * wait. SL_E_GPU, SL_E_NO_SPACE; nothing is told after a failure. */
int sl_gpu_opener_open(struct sl_gpu_opener *opener, const struct sl_opener_pieces *pieces,
                       struct sl_err *err);
/** Nobody is told any more, and nothing is under way when it returns. Any thread but the GPU's. */
void sl_gpu_opener_stop(struct sl_gpu_opener *opener);

#endif

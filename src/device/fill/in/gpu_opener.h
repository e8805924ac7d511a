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
/** Told of pieces [first, first + count) of the tensor, in order: all good, or all bad. */
struct sl_opener_verdicts {
    int (*report)(void *arg, uint64_t first, uint64_t count, bool good, struct sl_err *err);
    void *arg;
};
/**
 * Open whole pieces of a tensor, from number `first` on, that lie at a device's address. Waits
 * until they are plaintext and checked: well under a millisecond for a few MiB, beside copies under
 * way. What lies where a piece was bad is nobody's. The GPU's thread alone. -1: the driver failed,
 * or `told` did.
 */
int sl_gpu_opener_open(struct sl_gpu_opener *opener, const struct sl_tensor *tensor, uint64_t first,
                       uint64_t address, uint64_t bytes, const struct sl_opener_verdicts *verdicts,
                       struct sl_err *err);

#endif

/*
 * What a run of pieces takes (MACs in, verdicts out, what the kernels need in between) lies in a
 * small allocation of its own on the device, so runs are cut to a bounded number of pieces. They
 * have a stream of their own: waiting for it waits for no copy.
 */
#include "gpu_opener.h"

#include <string.h>

#include "crypt.h"
#include "gpu_kernels.h"
#include "gpu_task.h"

enum {
    RUN_PIECES = 32,
    VERDICTS_AT = 0,
    MACS_AT = RUN_PIECES * sizeof(uint32_t),
    SCRATCH_AT = MACS_AT + RUN_PIECES * SL_MAC_BYTES,
};

struct sl_gpu_opener {
    struct sl_gpu *gpu;
    struct sl_kernels *kernels;
    struct sl_cuda_stream *stream;
    struct sl_gpu_memory work;
    uint8_t *pinned; /* MACS_AT and VERDICTS_AT, as on the device */
    bool acquired;
};

/* ---- opening; the GPU's thread --------------------------------------------------------------- */

static int report(const struct sl_gpu_opener *opener, uint64_t first, uint64_t count,
                  const struct sl_opener_verdicts *verdicts, struct sl_err *err)
{
    const uint32_t *found = (const uint32_t *)(const void *)(opener->pinned + VERDICTS_AT);
    for (uint64_t done = 0; done < count;) {
        uint64_t end = done + 1;
        bool good = found[done] == SL_KERNEL_BOX_GOOD;
        while (end < count && (found[end] == SL_KERNEL_BOX_GOOD) == good)
            end++;
        if (verdicts->report(verdicts->arg, first + done, end - done, good, err) < 0)
            return -1;
        done = end;
    }
    return 0;
}

/* At most RUN_PIECES. */
static int open_run(struct sl_gpu_opener *opener, const struct sl_tensor *tensor, uint64_t first,
                    uint64_t address, uint64_t bytes, uint64_t count,
                    const struct sl_opener_verdicts *verdicts, struct sl_err *err)
{
    struct sl_gpu *gpu = opener->gpu;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    const struct sl_crypt *crypt = tensor->crypt;
    const struct sl_kernel_box box = {.key = tensor->key,
                                      .nonce = crypt->nonce,
                                      .first = first,
                                      .data = address,
                                      .bytes = bytes,
                                      .piece_bytes = crypt->piece_bytes,
                                      .piece_count = count,
                                      .macs = opener->work.address + MACS_AT,
                                      .verdicts = opener->work.address + VERDICTS_AT,
                                      .scratch = opener->work.address + SCRATCH_AT};
    memcpy(opener->pinned + MACS_AT, crypt->macs + first * SL_MAC_BYTES, count * SL_MAC_BYTES);
    memset(opener->pinned + VERDICTS_AT, 0, count * sizeof(uint32_t));
    if (sl_gpu_check(
            gpu,
            cuda->copy_to_device(opener->work.address, opener->pinned, SCRATCH_AT, opener->stream),
            err, "copy MACs") < 0 ||
        sl_kernels_open(opener->kernels, opener->stream, &box, err) < 0 ||
        sl_gpu_check(gpu,
                     cuda->copy_to_host(opener->pinned, box.verdicts, count * sizeof(uint32_t),
                                        opener->stream),
                     err, "copy verdicts") < 0 ||
        sl_gpu_check(gpu, cuda->stream_synchronize(opener->stream), err, "decrypt") < 0)
        return -1;
    return report(opener, first, count, verdicts, err);
}

int sl_gpu_opener_open(struct sl_gpu_opener *opener, const struct sl_tensor *tensor, uint64_t first,
                       uint64_t address, uint64_t bytes, const struct sl_opener_verdicts *verdicts,
                       struct sl_err *err)
{
    uint64_t piece = tensor->crypt->piece_bytes;
    for (uint64_t done = 0; done < bytes;) {
        uint64_t part = SL_MIN(bytes - done, RUN_PIECES * piece);
        uint64_t count = part / piece + (part % piece != 0);
        if (open_run(opener, tensor, first + done / piece, address + done, part, count, verdicts,
                     err) < 0)
            return -1;
        done += part;
    }
    return 0;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_opener *opener = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    void *pinned = NULL;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    opener->acquired = true;
    opener->kernels = sl_gpu_kernels(gpu, err);
    if (!opener->kernels ||
        sl_gpu_check(gpu, cuda->stream_create(&opener->stream, SL_CUDA_STREAM_NON_BLOCKING), err,
                     "make a stream") < 0 ||
        sl_gpu_check(gpu, cuda->host_alloc(&pinned, SCRATCH_AT, SL_CUDA_HOST_PORTABLE), err,
                     "pin %d bytes of host memory", SCRATCH_AT) < 0)
        return -1;
    opener->pinned = pinned;
    return 0;
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_opener *opener = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    (void)err;
    if (opener->stream) {
        cuda->stream_synchronize(opener->stream);
        cuda->stream_destroy(opener->stream);
    }
    if (opener->pinned)
        cuda->host_free(opener->pinned);
    if (opener->acquired)
        sl_gpu_release(gpu);
    return 0;
}

struct sl_gpu_opener *sl_gpu_opener_new(struct sl_gpu *gpu, uint64_t piece_bytes,
                                        struct sl_err *err)
{
    if (sl_kernels_check(sl_gpu_device(gpu), err) < 0)
        return NULL;
    SL_AUTO(sl_gpu_opener) opener = sl_alloc(sizeof(*opener), err);
    if (!opener)
        return NULL;
    opener->gpu = gpu;
    opener->work = (struct sl_gpu_memory)SL_GPU_MEMORY_INIT;
    uint64_t scratch = sl_kernels_box_scratch(RUN_PIECES * piece_bytes, piece_bytes, RUN_PIECES);
    if (sl_gpu_memory_make(gpu, sl_gpu_round(gpu, SCRATCH_AT + scratch), &opener->work, err) < 0 ||
        sl_gpu_call(gpu, make_task, opener, false, err) < 0)
        return NULL;
    return sl_steal(&opener);
}

void sl_gpu_opener_free(struct sl_gpu_opener *opener)
{
    if (!opener)
        return;
    sl_gpu_call(opener->gpu, free_task, opener, true, NULL);
    sl_gpu_memory_release(opener->gpu, &opener->work);
    free(opener);
}

/*
 * A GPU of this process and the thread that alone works with it.
 *
 * What needs the driver is a task that the thread runs; so a context is current where it must be,
 * and no lock is ever held across CUDA. The context, hundreds of MiB of the device, is there only
 * while something uses it, and as long after that as sl_gpu_set_warm() says: memory that was made
 * lives on as a descriptor alone.
 *
 * Errors are SL_E_GPU, and SL_E_NO_SPACE where the device's memory is full. When the driver says
 * that the context is lost nothing of this GPU works any more in this process, which the error
 * says.
 *
 * Any thread but the GPU's own; what is a task waits for that thread: hold, unhold and all that
 * have to do with memory.
 */
#ifndef SL_GPU_H
#define SL_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda.h"
#include "mem.h"

struct sl_gpu;

/** The GPU with this ordinal, and its thread. Blocks for the driver's start, which may take
 * seconds. SL_E_GPU: no driver, too old, no such device. */
struct sl_gpu *sl_gpu_open(int ordinal, struct sl_err *err);
/** Nothing uses it any more. Blocks until its thread has ended. NULL is fine. */
void sl_gpu_free(struct sl_gpu *gpu);
SL_AUTO_DEFINE(sl_gpu)
/** How many GPUs this process sees; starts the driver. SL_E_GPU. */
int sl_gpu_count(int *count, struct sl_err *err);

/** Does anybody wait for a driver at this moment, and for which GPU's? *ordinal -1: it is about
 * none yet. Any thread; never blocks. */
bool sl_gpu_is_waited_for(int *ordinal);

/** So long after their last use the context, pinned memory and kernels stay for the next, unless
 * the GPU is lost; 0, as opened: not at all. What is older goes soon. Never blocks. */
void sl_gpu_set_warm(struct sl_gpu *gpu, uint64_t ns);

/** Is it lost for this process, as the driver said? *why (may be NULL) tells. Any thread; never
 * blocks. */
bool sl_gpu_is_lost(struct sl_gpu *gpu, struct sl_err *why);

/** Its description, set by the opening; borrowed. */
const struct sl_cuda_device *sl_gpu_device(const struct sl_gpu *gpu);
/** Bytes rounded up to what its memory comes in; 0: that is too much. */
uint64_t sl_gpu_round(const struct sl_gpu *gpu, uint64_t bytes);
/** Memory of the device now, whoever uses it. */
int sl_gpu_memory(struct sl_gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes,
                  struct sl_err *err);

/** Keep the context for more than one thing, which is quicker, and let go of it. */
int sl_gpu_hold(struct sl_gpu *gpu, struct sl_err *err);
void sl_gpu_unhold(struct sl_gpu *gpu);

/* ---- memory that others can have ------------------------------------------------------------ */

/** A piece of device memory, mapped for writing here, and its descriptor. */
struct sl_gpu_memory {
    uint64_t address; /* of the device; 0: not mapped here */
    uint64_t handle;
    uint64_t bytes;
    int fd; /* for importers; it alone keeps the memory; -1: none */
};
/* clang-format off */
#define SL_GPU_MEMORY_INIT {.fd = -1}
/* clang-format on */
/** bytes as sl_gpu_round() says; what is in it is not known. On failure nothing remains. */
int sl_gpu_memory_make(struct sl_gpu *gpu, uint64_t bytes, struct sl_gpu_memory *memory,
                       struct sl_err *err);
/** It is full: from now on only the descriptor keeps it, for closing by whoever has it. */
void sl_gpu_memory_unmap(struct sl_gpu *gpu, struct sl_gpu_memory *memory);
/** Unmap and close. */
void sl_gpu_memory_release(struct sl_gpu *gpu, struct sl_gpu_memory *memory);
/** Is it memory of this GPU, and exactly so much? SL_E_INTEGRITY, and as above. The descriptor
 * stays the caller's. */
int sl_gpu_memory_check(struct sl_gpu *gpu, int fd, uint64_t bytes, struct sl_err *err);

#endif

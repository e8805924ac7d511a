/* Kernels in a GPU's context: loaded by the first who wants them, and there for all others as long
 * as the context is. */
#ifndef SL_GPU_KERNELS_H
#define SL_GPU_KERNELS_H

#include "gpu_task.h"
#include "kernels.h"

/** The GPU's thread, which has acquired the context; borrowed until it is released. NULL as
 * sl_kernels_load(). */
struct sl_kernels *sl_gpu_kernels(struct sl_gpu *gpu, struct sl_err *err);

#endif

/* The context frees them: they are what sluice keeps beside it. */
#include "gpu_kernels.h"

static void free_kernels(void *kernels)
{
    sl_kernels_free(kernels);
}

struct sl_kernels *sl_gpu_kernels(struct sl_gpu *gpu, struct sl_err *err)
{
    struct sl_kernels *kernels = sl_gpu_beside(gpu);
    if (kernels)
        return kernels;
    kernels = sl_kernels_load(sl_gpu_driver(gpu), sl_gpu_device(gpu), err);
    if (kernels)
        sl_gpu_set_beside(gpu, kernels, free_kernels);
    return kernels;
}

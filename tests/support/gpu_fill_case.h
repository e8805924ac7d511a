/* What tests of fills of a GPU with kernels share: the fake driver's first GPU, an image of kernels
 * that it takes, and a folder. */
#ifndef SL_GPU_FILL_CASE_H
#define SL_GPU_FILL_CASE_H

#include "fill_case.h"
#include "gpu.h"
#include "scratch.h"
#include "use_fake_cuda.h"

extern struct gpu_fill_case {
    const struct fake_cuda_control *fake; /* main() sets it: use_fake_cuda() */
    struct sl_gpu *gpu;
    char directory[SL_SCRATCH_PATH_BYTES];
    int scratch;
} gpu_fill;

/** The GPU as the driver shows it now, with nothing measured of it; fills go there. */
void gpu_fill_open(void);
void gpu_fill_setup(void);
/** Fails the test if anything of the driver is left. */
void gpu_fill_teardown(void);
/** Load with each allocation failing in turn, until none does: nothing is left each time. prepare
 * sees each load's spec. */
void gpu_fill_fail_allocations(const char *uri, const char *more,
                               void (*prepare)(struct sl_spec *spec));

#endif

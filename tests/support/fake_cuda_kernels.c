/*
 * The kernels that the fake driver knows: those of kernels.def, from the same source as the
 * device's (fake_cuda_rows.c, which is compiled into the fake).
 */
#include <stdlib.h>

#include "fake_cuda.h"
#include "fake_cuda_rows.h"
#include "kernel_args.h"

static void run(const char *name, const unsigned grid[3], const unsigned block[3], void **params)
{
    const struct fake_cuda_row *kernel = fake_cuda_row_find(name);
    if (!kernel || grid[1] != 1 || grid[2] != 1 || block[1] != 1 || block[2] != 1 ||
        fake_cuda_row_launch(kernel, grid[0], block[0], params[0]) < 0)
        abort(); /* a device would not run it either */
}

#define SL_KERNEL(name, args_type, shared_type, thread_count, phase_count)                         \
    static void run_##name(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, \
                           void **params)                                                          \
    {                                                                                              \
        (void)shared_bytes;                                                                        \
        _Static_assert(sizeof(struct args_type) <= FAKE_PARAM_BYTES_MAX, "the fake keeps it");     \
        run("sl_" #name, grid, block, params);                                                     \
    }
#include "kernels.def"
#undef SL_KERNEL

const struct fake_kernel fake_kernels[] = {
#define SL_KERNEL(name, args_type, shared_type, thread_count, phase_count)                         \
    {"sl_" #name, thread_count, 1, {sizeof(struct args_type)}, run_##name},
#include "kernels.def"
#undef SL_KERNEL
    {0},
};

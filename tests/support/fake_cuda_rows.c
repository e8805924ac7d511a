/*
 * A block's threads take turns within each phase of a kernel: since they wait for each other
 * between phases only, that is one of the orders in which a GPU could run them.
 */
#include "fake_cuda_rows.h"

#include <stdlib.h>
#include <string.h>

#include "kernel_box.h"
#include "kernel_cast.h"
#include "kernel_crc.h"
#include "kernel_gather.h"

#define SL_KERNEL(name, args_type, shared_type, thread_count, phase_count)                         \
    static void run_##name(const void *args, void *shared, uint64_t block, uint64_t blocks)        \
    {                                                                                              \
        for (int phase = 0; phase < (phase_count); phase++)                                        \
            for (uint32_t thread = 0; thread < (thread_count); thread++) {                         \
                struct sl_where where = {thread, thread_count, block, blocks};                     \
                sl_##name##_phase(args, shared, &where, phase);                                    \
            }                                                                                      \
    }
#include "kernels.def"
#undef SL_KERNEL

static const struct fake_cuda_row kernels[] = {
#define SL_KERNEL(name, args_type, shared_type, thread_count, phase_count)                         \
    {"sl_" #name, sizeof(struct args_type), thread_count, sizeof(struct shared_type), run_##name},
#include "kernels.def"
#undef SL_KERNEL
};

const struct fake_cuda_row *fake_cuda_row_at(size_t number)
{
    return number < sizeof(kernels) / sizeof(*kernels) ? &kernels[number] : NULL;
}

const struct fake_cuda_row *fake_cuda_row_find(const char *name)
{
    for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
        if (strcmp(kernels[i].name, name) == 0)
            return &kernels[i];
    return NULL;
}

int fake_cuda_row_launch(const struct fake_cuda_row *kernel, uint64_t blocks, unsigned threads,
                         const void *args)
{
    if (threads != kernel->threads)
        return -1;
    void *shared = malloc(kernel->shared_bytes);
    if (!shared)
        return -1;
    for (uint64_t block = 0; block < blocks; block++) {
        memset(shared, 0xa5, kernel->shared_bytes); /* as on a device: never zeros to rely on */
        kernel->run(args, shared, block, blocks);
    }
    free(shared);
    return 0;
}

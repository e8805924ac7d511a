/* Between the files of the launcher. Threads and errors are those of kernels.h; nothing blocks. */
#ifndef SL_KERNELS_LAUNCH_H
#define SL_KERNELS_LAUNCH_H

#include "kernel_args.h"
#include "kernels.h"

enum sl_kernel {
#define SL_KERNEL(name, args_type, shared_type, thread_count, phase_count) SL_KERNEL_##name,
#include "kernels.def"
#undef SL_KERNEL
    SL_KERNEL_COUNT
};

/** Set when it was loaded. */
struct sl_kernels {
    const struct sl_cuda *cuda;
    unsigned multiprocessors;
    struct sl_cuda_module *module;
    struct sl_cuda_function *functions[SL_KERNEL_COUNT];
};

/** Threads of a block of this kernel. */
unsigned sl_kernel_threads(enum sl_kernel kernel);
/** `args` is the kernel's own struct, copied by the driver. blocks: 1 to INT32_MAX.
 * SL_E_GPU. */
int sl_kernel_launch(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                     enum sl_kernel kernel, uint64_t blocks, const void *args, struct sl_err *err);
/** Blocks for `jobs` threads that each take several if there are many: enough to keep every
 * multiprocessor busy. */
uint64_t sl_kernel_blocks(const struct sl_kernels *kernels, enum sl_kernel kernel, uint64_t jobs);
/** Do [a, a + a_bytes) and [b, b + b_bytes) share a byte? */
bool sl_kernel_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes);
/** Zeros to [at, at + bytes) on the stream. SL_E_GPU. */
int sl_kernel_zero(struct sl_kernels *kernels, struct sl_cuda_stream *stream, uint64_t at,
                   uint64_t bytes, struct sl_err *err);

#endif

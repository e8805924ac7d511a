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
/**
 * Put a kernel on the stream.
 *
 * @kernel  which of kernels.def.
 * @blocks  1 to INT32_MAX, of sl_kernel_threads() threads.
 * @args    the kernel's own struct; copied by the driver.
 * @return  0, or -1 with SL_E_GPU.
 */
int sl_kernel_launch(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                     enum sl_kernel kernel, uint64_t blocks, const void *args, struct sl_err *err);
/** Blocks for `jobs` threads that each take several if there are many: enough to keep every
 * multiprocessor busy. */
uint64_t sl_kernel_blocks(const struct sl_kernels *kernels, enum sl_kernel kernel, uint64_t jobs);
/**
 * Tell whether two ranges share a byte.
 *
 * @a, a_bytes  the one.
 * @b, b_bytes  the other; an empty one inside of the first counts, too.
 */
bool sl_kernel_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes);
/**
 * Put zeros into a range, on the stream.
 *
 * @stream     on which it is done.
 * @at, bytes  the range; may be empty.
 * @return     0, or -1 with SL_E_GPU.
 */
int sl_kernel_zero(struct sl_kernels *kernels, struct sl_cuda_stream *stream, uint64_t at,
                   uint64_t bytes, struct sl_err *err);

#endif

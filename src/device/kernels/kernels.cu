/* The kernels of kernels.def for GPUs: what their families' headers do, phase by phase. */
#include "kernel_box.h"
#include "kernel_cast.h"
#include "kernel_crc.h"
#include "kernel_gather.h"

#if defined(__CUDACC__)
#define SL_X(what)       (what).x
#define SL_BOUNDS(count) __launch_bounds__(count)
#define SL_THREAD        SL_X(threadIdx)
#define SL_BLOCK         SL_X(blockIdx)
#define SL_BLOCKS        SL_X(gridDim)
#else /* clang without NVIDIA's headers */
#define SL_BOUNDS(count) __attribute__((launch_bounds(count)))
#define SL_THREAD        __nvvm_read_ptx_sreg_tid_x()
#define SL_BLOCK         __nvvm_read_ptx_sreg_ctaid_x()
#define SL_BLOCKS        __nvvm_read_ptx_sreg_nctaid_x()
#endif

#define SL_KERNEL(name, args_type, shared_type, thread_count, phase_count)                         \
    extern "C" __global__ void SL_BOUNDS(thread_count) sl_##name(const struct args_type args)      \
    {                                                                                              \
        __shared__ struct shared_type shared;                                                      \
        struct sl_where where = {(uint32_t)SL_THREAD, thread_count, (uint64_t)SL_BLOCK,            \
                                 (uint64_t)SL_BLOCKS};                                             \
        SL_UNROLL                                                                                  \
        for (int phase = 0; phase < phase_count; phase++) {                                        \
            if (phase > 0)                                                                         \
                __syncthreads();                                                                         \
            sl_##name##_phase(&args, &shared, &where, phase);                                      \
        }                                                                                          \
    }
#include "kernels.def"

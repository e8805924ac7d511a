/*
 * Tests of kernels: a (fake) GPU with a stream and memory on it. Device memory of the fake driver
 * is memory of the process, so tests look at it directly once the stream has passed.
 */
#ifndef SL_KERNEL_CASE_H
#define SL_KERNEL_CASE_H

#include "kernels.h"
#include "use_fake_cuda.h"

enum { GPU_MEMORY_MAX = 8 };

struct gpu_case {
    const struct sl_cuda *cuda;
    struct sl_cuda_device device;
    struct sl_cuda_context *context;
    struct sl_cuda_stream *stream;
    struct sl_kernels *kernels;
    struct gpu_memory {
        uint64_t address, bytes, handle;
    } memory[GPU_MEMORY_MAX];
    unsigned memory_count;
};

/** Device 0, with kernels: those of the build, or, without a compiler, none but their names. */
void gpu_open(struct gpu_case *gpu);
/** Everything is given back. */
void gpu_close(struct gpu_case *gpu);
/** As gpu_open(), without loading kernels. */
void gpu_open_bare(struct gpu_case *gpu);
/** At least so many bytes, to be read and written; behind the last one nothing is mapped. */
uint8_t *gpu_memory(struct gpu_case *gpu, uint64_t bytes);
/** The last bytes of memory: reading on from their end would crash. */
uint8_t *gpu_tail(const struct gpu_case *gpu, unsigned memory, uint64_t bytes);
/** Wait for all that was asked for. */
void gpu_wait(struct gpu_case *gpu);

static inline uint64_t gpu_address(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

/** Numbers that are the same in every run. */
uint64_t gpu_pick(uint64_t below);
void gpu_random(void *data, size_t bytes);

#endif

/* Device memory as slabs have it: created, mapped, made accessible; and given back in turn. */
#include "kernel_case.h"

#include <check.h>
#include <string.h>

#include "fake_images.h"

static uint64_t random_state = 88172645463325252u;

uint64_t gpu_pick(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

void gpu_random(void *data, size_t bytes)
{
    uint8_t *at = data;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        gpu_pick(1);
        memcpy(at, &random_state, 8);
    }
    gpu_pick(1);
    memcpy(at, &random_state, bytes);
}

static void done(int result)
{
    ck_assert_int_eq(result, 0);
}

void gpu_open_bare(struct gpu_case *gpu)
{
    struct sl_cuda_err err = {0};
    memset(gpu, 0, sizeof(*gpu));
    gpu->cuda = sl_cuda_open(&err);
    ck_assert_msg(gpu->cuda != NULL, "%s", err.message);
    done(sl_cuda_device(gpu->cuda, 0, &gpu->device, &err));
    done(gpu->cuda->primary_retain(&gpu->context, gpu->device.handle));
    done(gpu->cuda->set_current(gpu->context));
    done(gpu->cuda->stream_create(&gpu->stream, SL_CUDA_STREAM_NON_BLOCKING));
}

void gpu_open(struct gpu_case *gpu)
{
    static const uint8_t nothing[] = "\x7f"
                                     "ELF";
    static const struct sl_kernel_image names_only = {"sm_80", 80, true, nothing, nothing + 4};
    struct sl_err err = SL_ERR_INIT;
    size_t count;
    sl_kernel_images(&count);
    if (count == 0)
        fake_images_set(&names_only, 1);
    gpu_open_bare(gpu);
    gpu->kernels = sl_kernels_load(gpu->cuda, &gpu->device, &err);
    ck_assert_msg(gpu->kernels != NULL, "%s", err.message);
}

void gpu_close(struct gpu_case *gpu)
{
    sl_kernels_free(gpu->kernels);
    done(gpu->cuda->stream_destroy(gpu->stream));
    for (unsigned i = 0; i < gpu->memory_count; i++) {
        struct gpu_memory *memory = &gpu->memory[i];
        done(gpu->cuda->mem_unmap(memory->address, memory->bytes));
        done(gpu->cuda->address_free(memory->address, 2 * memory->bytes));
        done(gpu->cuda->mem_release(memory->handle));
    }
    done(gpu->cuda->primary_release(gpu->device.handle));
}

/* Twice the addresses, of which the first half is mapped. */
uint8_t *gpu_memory(struct gpu_case *gpu, uint64_t bytes)
{
    ck_assert_uint_lt(gpu->memory_count, GPU_MEMORY_MAX);
    const struct sl_cuda *cuda = gpu->cuda;
    struct gpu_memory *memory = &gpu->memory[gpu->memory_count++];
    struct sl_cuda_prop prop = sl_cuda_shareable(gpu->device.ordinal);
    struct sl_cuda_access access = {prop.location, SL_CUDA_READ_WRITE};
    uint64_t grain = gpu->device.granularity;
    memory->bytes = (bytes + grain - 1) / grain * grain;
    done(cuda->mem_create(&memory->handle, memory->bytes, &prop, 0));
    done(cuda->address_reserve(&memory->address, 2 * memory->bytes, grain, 0, 0));
    done(cuda->mem_map(memory->address, memory->bytes, 0, memory->handle, 0));
    done(cuda->mem_set_access(memory->address, memory->bytes, &access, 1));
    return (uint8_t *)(uintptr_t)memory->address;
}

uint8_t *gpu_tail(const struct gpu_case *gpu, unsigned memory, uint64_t bytes)
{
    const struct gpu_memory *of = &gpu->memory[memory];
    ck_assert_uint_le(bytes, of->bytes);
    return (uint8_t *)(uintptr_t)(of->address + of->bytes - bytes);
}

void gpu_wait(struct gpu_case *gpu)
{
    done(gpu->cuda->stream_synchronize(gpu->stream));
}

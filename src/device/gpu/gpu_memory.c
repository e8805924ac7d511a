/*
 * Device memory behind a descriptor. It is made and exported first, then mapped for whoever fills
 * it. A mapping and a handle are given back as soon as it is full: the descriptor keeps the memory
 * by itself, so it goes when the last process has closed and unmapped it, without a call of ours.
 */
#include <fcntl.h>
#include <unistd.h>

#include "gpu_parts.h"

uint64_t sl_gpu_round(const struct sl_gpu *gpu, uint64_t bytes)
{
    uint64_t step = gpu->device.granularity;
    return bytes <= UINT64_MAX - step ? (bytes + step - 1) / step * step : 0;
}

/* ---- how much there is ---------------------------------------------------------------------- */

struct amounts {
    size_t free_bytes, total_bytes;
};

static int ask_memory(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct amounts *amounts = arg;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    int result = gpu->cuda->mem_info(&amounts->free_bytes, &amounts->total_bytes);
    sl_gpu_release(gpu);
    return sl_gpu_check(gpu, result, err, "ask for the free memory");
}

int sl_gpu_memory(struct sl_gpu *gpu, uint64_t *free_bytes, uint64_t *total_bytes,
                  struct sl_err *err)
{
    struct amounts amounts = {0};
    if (sl_gpu_call(gpu, ask_memory, &amounts, false, err) < 0)
        return -1;
    *free_bytes = amounts.free_bytes;
    *total_bytes = amounts.total_bytes;
    return 0;
}

/* ---- make ----------------------------------------------------------------------------------- */

static void unmap(struct sl_gpu *gpu, struct sl_gpu_memory *memory)
{
    const struct sl_cuda *cuda = gpu->cuda;
    if (memory->address) {
        cuda->mem_unmap(memory->address, memory->bytes);
        cuda->address_free(memory->address, memory->bytes);
    }
    if (memory->handle)
        cuda->mem_release(memory->handle);
    memory->address = memory->handle = 0;
}

/* The handle, at an address where it can be written. */
static int map(struct sl_gpu *gpu, struct sl_gpu_memory *memory, struct sl_err *err)
{
    const struct sl_cuda *cuda = gpu->cuda;
    const struct sl_cuda_access access = {
        .location = {SL_CUDA_LOCATION_DEVICE, gpu->device.ordinal}, .flags = SL_CUDA_READ_WRITE};
    unsigned long long bytes = memory->bytes;
    uint64_t address = 0;
    if (sl_gpu_check(gpu, cuda->address_reserve(&address, memory->bytes, 0, 0, 0), err,
                     "reserve %llu bytes of addresses", bytes) < 0)
        return -1;
    if (sl_gpu_check(gpu, cuda->mem_map(address, memory->bytes, 0, memory->handle, 0), err,
                     "map %llu bytes", bytes) < 0) {
        cuda->address_free(address, memory->bytes);
        return -1;
    }
    memory->address = address;
    return sl_gpu_check(gpu, cuda->mem_set_access(address, memory->bytes, &access, 1), err,
                        "get access to %llu bytes", bytes);
}

/* How much there was is part of the answer to a full device. */
static int report_full(struct sl_gpu *gpu, uint64_t bytes, struct sl_err *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    if (err->kind == SL_E_NO_SPACE && gpu->cuda->mem_info(&free_bytes, &total_bytes) == 0)
        sl_wrap(err, "%llu bytes are wanted and %zu of %zu free", (unsigned long long)bytes,
                free_bytes, total_bytes);
    return -1;
}

static int make(struct sl_gpu *gpu, struct sl_gpu_memory *memory, struct sl_err *err)
{
    const struct sl_cuda *cuda = gpu->cuda;
    const struct sl_cuda_prop prop = sl_cuda_shared(&gpu->device);
    unsigned long long bytes = memory->bytes;
    if (sl_gpu_check(gpu, cuda->mem_create(&memory->handle, memory->bytes, &prop, 0), err,
                     "take %llu bytes", bytes) < 0) {
        memory->handle = 0;
        return report_full(gpu, memory->bytes, err);
    }
    int fd = -1;
    if (sl_gpu_check(gpu, cuda->mem_export(&fd, memory->handle, SL_CUDA_HANDLE_FD, 0), err,
                     "export %llu bytes", bytes) < 0)
        return -1;
    memory->fd = fd;
    fcntl(fd, F_SETFD, FD_CLOEXEC); /* no driver says whether it is */
    return map(gpu, memory, err);
}

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_memory *memory = arg;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    if (make(gpu, memory, err) == 0)
        return 0; /* the context stays as long as it is mapped */
    unmap(gpu, memory);
    sl_gpu_release(gpu);
    return -1;
}

int sl_gpu_memory_make(struct sl_gpu *gpu, uint64_t bytes, struct sl_gpu_memory *memory,
                       struct sl_err *err)
{
    struct sl_gpu_memory made = {.bytes = bytes, .fd = -1};
    if (sl_gpu_call(gpu, make_task, &made, false, err) < 0) {
        sl_autoclose_(&made.fd);
        return -1;
    }
    *memory = made;
    return 0;
}

static int unmap_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    (void)err;
    unmap(gpu, arg);
    sl_gpu_release(gpu);
    return 0;
}

void sl_gpu_memory_unmap(struct sl_gpu *gpu, struct sl_gpu_memory *memory)
{
    if (memory->handle)
        sl_gpu_call(gpu, unmap_task, memory, true, NULL);
}

void sl_gpu_memory_release(struct sl_gpu *gpu, struct sl_gpu_memory *memory)
{
    sl_gpu_memory_unmap(gpu, memory);
    if (memory->fd >= 0)
        close(memory->fd);
    memory->fd = -1;
}

/* ---- of others ------------------------------------------------------------------------------ */

struct claim {
    int fd;
    uint64_t bytes;
};

/* The driver tells no size of a handle. It is what can be mapped while one granule more cannot: of
 * a driver that maps more than there is nothing is believed. */
static bool is_all_there_is(const struct sl_gpu *gpu, const struct sl_gpu_memory *memory)
{
    const struct sl_cuda *cuda = gpu->cuda;
    uint64_t more = memory->bytes + gpu->device.granularity, address = 0;
    if (cuda->address_reserve(&address, more, 0, 0, 0) != 0)
        return false;
    bool is_mapped = cuda->mem_map(address, more, 0, memory->handle, 0) == 0;
    if (is_mapped)
        cuda->mem_unmap(address, more);
    cuda->address_free(address, more);
    return !is_mapped;
}

static int check_claim(struct sl_gpu *gpu, const struct claim *claim, struct sl_err *err)
{
    struct sl_gpu_memory memory = {.bytes = claim->bytes, .fd = -1};
    struct sl_cuda_prop prop = {0};
    if (gpu->cuda->mem_import(&memory.handle, (void *)(intptr_t)claim->fd, SL_CUDA_HANDLE_FD) != 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "the received descriptor is not memory of cuda:%d, or of a GPU that the "
                       "daemon cannot see",
                       gpu->device.ordinal);
    bool here = gpu->cuda->mem_prop(&prop, memory.handle) == 0 &&
                prop.location.type == SL_CUDA_LOCATION_DEVICE &&
                prop.location.id == gpu->device.ordinal;
    struct sl_err why = SL_ERR_INIT;
    int mapped = here ? map(gpu, &memory, &why) : -1;
    bool all = mapped == 0 && is_all_there_is(gpu, &memory);
    unmap(gpu, &memory);
    if (!here)
        return sl_fail(err, SL_E_INTEGRITY, "the received memory does not belong to cuda:%d",
                       gpu->device.ordinal);
    if (mapped < 0)
        return sl_fail(err, SL_E_INTEGRITY, "a slab is not as large as its index says: %.400s",
                       why.message);
    if (!all)
        return sl_fail(err, SL_E_INTEGRITY,
                       "a slab is larger than its index says, or the driver of cuda:%d maps more "
                       "than there is: then load the model again instead",
                       gpu->device.ordinal);
    return 0;
}

static int check_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    int result = check_claim(gpu, arg, err);
    sl_gpu_release(gpu);
    return result;
}

int sl_gpu_memory_check(struct sl_gpu *gpu, int fd, uint64_t bytes, struct sl_err *err)
{
    struct claim claim = {fd, bytes};
    if (bytes == 0 || bytes != sl_gpu_round(gpu, bytes))
        return sl_fail(err, SL_E_INTEGRITY,
                       "a slab of %llu bytes is not a multiple of the %llu that memory of cuda:%d "
                       "comes in",
                       (unsigned long long)bytes, (unsigned long long)gpu->device.granularity,
                       gpu->device.ordinal);
    return sl_gpu_call(gpu, check_task, &claim, false, err);
}

/*
 * What sluice expects of a driver beyond what its documentation says, and what things cost that a
 * load does once: contexts, pinned memory, slabs.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu_check.h"

enum { GRAINS = 4 };
static const uint64_t MIB = 1 << 20;

static void rule(const char *what, double value, const char *unit)
{
    gpu_row("rules", what, value, unit, "", GPU_MEASURED);
}

/* ---- rules ----------------------------------------------------------------------------------- */

static int export(const struct gpu_check *check, const struct gpu_area *area)
{
    struct stat status = {0};
    char what[96];
    int fd;
    gpu_must(check, check->cuda->mem_export(&fd, area->handle, SL_CUDA_HANDLE_FD, 0), "export");
    fstat(fd, &status);
    snprintf(what, sizeof(what), "a descriptor: mode %o; bytes", (unsigned)status.st_mode);
    rule(what, (double)status.st_size, "bytes");
    rule("a descriptor is closed on exec as it comes", (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0, "");
    return fd;
}

/* The result of mapping so many bytes of it. */
static int try_map(const struct gpu_check *check, uint64_t handle, uint64_t bytes)
{
    uint64_t address;
    gpu_must(check, check->cuda->address_reserve(&address, bytes, 0, 0, 0), "reserve addresses");
    int result = check->cuda->mem_map(address, bytes, 0, handle, 0);
    if (result == 0)
        gpu_must(check, check->cuda->mem_unmap(address, bytes), "unmap memory");
    check->cuda->address_free(address, bytes);
    return result;
}

static void try_import(const struct gpu_check *check, int fd, uint64_t bytes)
{
    struct sl_cuda_prop prop = {0};
    uint64_t handle;
    gpu_must(check, check->cuda->mem_import(&handle, (void *)(uintptr_t)fd, SL_CUDA_HANDLE_FD),
             "import");
    bool here = check->cuda->mem_prop(&prop, handle) == 0 &&
                prop.location.type == SL_CUDA_LOCATION_DEVICE &&
                prop.location.id == check->device.ordinal;
    gpu_claim("rules", "imported memory tells the GPU as this process counts", here, "it does");
    gpu_claim("rules", "imported memory is mapped whole", try_map(check, handle, bytes) == 0,
              "result 0");
    int larger = try_map(check, handle, 2 * bytes);
    gpu_row("rules", "a map of more than there is", larger, "result", "an error",
            larger ? GPU_OK : GPU_FAIL);
    rule("a map of less than there is", try_map(check, handle, bytes / 2), "result");
    check->cuda->mem_release(handle);
}

static void try_access(const struct gpu_check *check, const struct gpu_area *area)
{
    struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, check->device.ordinal}, SL_CUDA_READ};
    rule("taking the right to write away from a mapping",
         check->cuda->mem_set_access(area->address, area->bytes, &access, 1), "result");
    access.flags = SL_CUDA_READ_WRITE;
    rule("giving it back", check->cuda->mem_set_access(area->address, area->bytes, &access, 1),
         "result");
}

void gpu_check_rules(struct gpu_check *check)
{
    struct gpu_area area;
    gpu_must(check,
             gpu_area_make(check, GRAINS * check->device.granularity, &area) < 0
                 ? SL_CUDA_OUT_OF_MEMORY
                 : 0,
             "take memory");
    int fd = export(check, &area);
    try_import(check, fd, area.bytes);
    try_access(check, &area);
    close(fd);
    gpu_area_free(check, &area);
    gpu_check_unmapping(check);
}

/* ---- costs ----------------------------------------------------------------------------------- */

static void cost(const char *what, double seconds, const char *unit)
{
    gpu_row("costs", what, seconds * (*unit == 'u' ? 1e6 : 1e3), unit, "", GPU_MEASURED);
}

static void time_context(struct gpu_check *check)
{
    const struct sl_cuda *cuda = check->cuda;
    cuda->stream_destroy(check->stream);
    cuda->set_current(NULL);
    double begin = gpu_now(), now;
    gpu_must(check, cuda->primary_release(check->device.handle), "release the context");
    now = gpu_now(), cost("destroying a context", now - begin, "ms"), begin = now;
    gpu_must(check, cuda->primary_retain(&check->context, check->device.handle), "make a context");
    cost("making a context", gpu_now() - begin, "ms");
    gpu_must(check, cuda->set_current(check->context), "make the context current");
    gpu_must(check, cuda->stream_create(&check->stream, SL_CUDA_STREAM_NON_BLOCKING), "a stream");
}

/* As much as a load pins. */
static void time_pinning(const struct gpu_check *check)
{
    void *pinned;
    double begin = gpu_now(), now;
    gpu_must(check, check->cuda->host_alloc(&pinned, 129 * MIB, SL_CUDA_HOST_PORTABLE), "pin");
    now = gpu_now(), cost("pinning 129 MiB", now - begin, "ms"), begin = now;
    check->cuda->host_free(pinned);
    cost("letting go of them", gpu_now() - begin, "ms");
}

/* Made, exported, mapped and given back as loads do. */
static void time_slab(const struct gpu_check *check)
{
    const struct sl_cuda *cuda = check->cuda;
    const struct sl_cuda_prop prop = sl_cuda_shared(&check->device);
    const struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, check->device.ordinal},
                                          SL_CUDA_READ_WRITE};
    uint64_t bytes = gpu_size(check, 512 * MIB, 2 * MIB), handle, address;
    int fd;
    double begin = gpu_now(), now;
    gpu_must(check, cuda->mem_create(&handle, bytes, &prop, 0), "take memory");
    now = gpu_now(), cost("a slab: taking its memory", now - begin, "us"), begin = now;
    gpu_must(check, cuda->mem_export(&fd, handle, SL_CUDA_HANDLE_FD, 0), "export memory");
    now = gpu_now(), cost("a slab: exporting it", now - begin, "us"), begin = now;
    gpu_must(check, cuda->address_reserve(&address, bytes, 0, 0, 0), "reserve addresses");
    gpu_must(check, cuda->mem_map(address, bytes, 0, handle, 0), "map memory");
    now = gpu_now(), cost("a slab: mapping it", now - begin, "us"), begin = now;
    gpu_must(check, cuda->mem_set_access(address, bytes, &access, 1), "set access");
    now = gpu_now(), cost("a slab: access to it", now - begin, "us"), begin = now;
    gpu_must(check, cuda->mem_unmap(address, bytes), "unmap memory");
    cuda->address_free(address, bytes);
    cuda->mem_release(handle);
    cost("a slab: letting go of it", gpu_now() - begin, "us");
    close(fd);
}

void gpu_check_costs(struct gpu_check *check)
{
    time_context(check);
    time_pinning(check);
    time_slab(check);
    time_slab(check); /* the first of a process may cost more */
}

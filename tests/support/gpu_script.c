/* Memory of the fake driver is a file behind its descriptor, so a test fills it without a copy of
 * the driver's. */
#include "gpu_script.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool_words.h"

enum { COUNT = GPU_SCRIPT_COUNT };

static const uint64_t shape[] = {COUNT}, two[] = {2}, none[] = {0};
static const uint64_t box[] = {2, 3}, apart[] = {4, 1};

/* Two slabs on the GPU, one on the host. */
static const struct sl_pool_item items[] = {
    {"a", "F32", 1, SL_WIRE_TENSOR, 1, shape, NULL, 1, 4, 0, 256, 4 * COUNT},
    {"b", "F32", 1, SL_WIRE_TENSOR, 1, shape, NULL, 1, 4, 1, 0, 4 * COUNT},
    {"config.json", "", 11, SL_WIRE_FILE, 1, two, NULL, 1, 1, 2, 0, 2},
    {"none", "F32", 4, SL_WIRE_TENSOR, 1, none, NULL, 1, 4, 0, 0, 0},
    {"half", "BF16", 4, SL_WIRE_TENSOR, 1, two, NULL, 1, 2, 0, 8192, 4},
    {"strided", "F32", 7, SL_WIRE_TENSOR, 2, box, apart, 1, 4, 0, 12288, 28},
};
static const struct sl_pool_item files[] = {
    {"one", "", 3, SL_WIRE_FILE, 1, two, NULL, 1, 1, 0, 0, 2},
    {"two", "", 3, SL_WIRE_FILE, 1, two, NULL, 1, 1, 1, 0, 2},
};

void gpu_script_add(struct pool_script *script, const struct sl_cuda *cuda, int ordinal,
                    uint64_t bytes)
{
    struct sl_cuda_device device;
    struct sl_wire_index_slab *slab = &script->slabs[script->slab_count];
    const struct sl_cuda_prop prop = sl_cuda_shareable(ordinal);
    int *fd = &script->fds[script->slab_count++];
    uint64_t handle;
    ck_assert_int_eq(sl_cuda_device(cuda, ordinal, &device, NULL), 0);
    ck_assert_int_eq(cuda->mem_create(&handle, bytes, &prop, 0), 0);
    ck_assert_int_eq(cuda->mem_export(fd, handle, SL_CUDA_HANDLE_FD, 0), 0);
    ck_assert_int_eq(cuda->mem_release(handle), 0);
    *slab = (struct sl_wire_index_slab){.bytes = bytes, .kind = SL_WIRE_SLAB_DEVICE};
    memcpy(slab->device, device.uuid, sizeof(slab->device));
}

static void add_device_slab(struct pool_script *script, const struct sl_cuda *cuda, int ordinal,
                            uint64_t bytes, uint64_t at, float value)
{
    gpu_script_add(script, cuda, ordinal, bytes);
    int fd = fake_cuda_file(script->fds[script->slab_count - 1]);
    for (uint64_t i = 0; i < COUNT; i++)
        ck_assert_int_eq(pwrite(fd, &value, sizeof(value), (off_t)(at + i * sizeof(value))),
                         sizeof(value));
    close(fd);
}

static void add_host_slab(struct pool_script *script, const char *text)
{
    int fd = memfd_create("slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
    script->fds[script->slab_count] = fd;
    script->slabs[script->slab_count++] =
        (struct sl_wire_index_slab){.bytes = strlen(text), .kind = SL_WIRE_SLAB_MEMFD};
}

static void start(struct pool_script *script, const struct sl_pool_item *list, uint32_t count)
{
    script->items = list;
    script->item_count = count;
    pool_script_start(script);
    for (uint32_t i = 0; i < count; i++)
        sl_word_set(&script->page->words[i], SL_WORD_READY);
    sl_word_set(&script->page->state, SL_WIRE_READY);
}

void gpu_script_start(struct pool_script *script, const struct sl_cuda *cuda, int ordinal)
{
    add_device_slab(script, cuda, ordinal, GPU_SCRIPT_GRANULE, 256, 1);
    add_device_slab(script, cuda, ordinal, 2 * GPU_SCRIPT_GRANULE, 0, 2);
    add_host_slab(script, "{}");
    start(script, items, sizeof(items) / sizeof(*items));
}

void gpu_script_start_on_host(struct pool_script *script)
{
    add_host_slab(script, "{}");
    add_host_slab(script, "[]");
    start(script, files, sizeof(files) / sizeof(*files));
}

/* ---- what is expected ----------------------------------------------------------------------- */

void gpu_script_expect(const void *data, float value)
{
    for (uint64_t i = 0; i < COUNT; i++)
        ck_assert_float_eq(((const float *)data)[i], value);
}

bool gpu_script_is_writable(const void *data)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false, writable = false;
    while (!found && fgets(line, sizeof(line), file)) {
        char *rest;
        uintptr_t from = strtoull(line, &rest, 16), to = strtoull(rest + 1, &rest, 16);
        found = from <= (uintptr_t)data && (uintptr_t)data < to;
        writable = found && rest[2] == 'w';
    }
    fclose(file);
    ck_assert(found);
    return writable;
}

void gpu_script_check_held(const struct fake_cuda_control *fake)
{
    struct fake_cuda_counts counts;
    fake->counts(&counts);
    ck_assert_uint_eq(counts.handles + counts.mappings + counts.reservations, 0);
    ck_assert_uint_eq(counts.contexts + counts.host_buffers + counts.left, 0);
}

const char *const gpu_script_calls[] = {
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceTotalMem",
    "cuDeviceGetAttribute",
    "cuMemGetAllocationGranularity",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuMemImportFromShareableHandle",
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemHostRegister",
    "cuCtxSynchronize",
    "cuMemExportToShareableHandle",
    NULL,
};

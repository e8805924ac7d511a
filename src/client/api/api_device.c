/*
 * Memory of a GPU has no address of its own: what was imported or made is mapped into a range that
 * was reserved, and may be used once access to it was set. A mapping holds its own reference to the
 * memory, so an imported handle is released as soon as it is mapped.
 *
 * The driver asks for a context here and there, and a library must not change the one that its
 * caller has current: each function below borrows the thread for the device's primary context.
 *
 * The driver does not wait for work before it unmaps or unpins what that work reads, and a fault is
 * the end of the caller's own context: so whoever takes memory away waits first.
 */
#include "api_device.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "pool_link.h"

int sl_api_device_fail(const struct sl_cuda_err *err, struct sluice_error *error)
{
    bool full = err->result == SL_CUDA_OUT_OF_MEMORY;
    return sl_api_fail(error, full ? SLUICE_NO_SPACE : SLUICE_GPU, "%s", err->message);
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* What the thread had. Its failure leaves the thread as it was. */
static int enter(const struct sl_api_device *device, struct sl_cuda_context **before,
                 struct sl_cuda_err *err)
{
    const struct sl_cuda *cuda = device->cuda;
    *before = NULL;
    if (cuda->get_current(before) != 0)
        *before = NULL;
    return sl_cuda_check(cuda, cuda->set_current(device->context), err, "use cuda:%d",
                         device->info.ordinal);
}

static void leave(const struct sl_api_device *device, struct sl_cuda_context *before)
{
    device->cuda->set_current(before);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* A context that is lost waits for nothing any more. */
static void wait_for_context(const struct sl_cuda *cuda, struct sl_cuda_context *context)
{
    if (cuda->set_current(context) == 0)
        cuda->synchronize();
}

/* Contexts that nobody has made do no work; to retain one would make it. */
static void wait_for_device(const struct sl_cuda *cuda, int handle)
{
    struct sl_cuda_context *context;
    unsigned flags;
    int active = 0;
    if (cuda->primary_state(handle, &flags, &active) != 0 || !active ||
        cuda->primary_retain(&context, handle) != 0)
        return;
    wait_for_context(cuda, context);
    cuda->primary_release(handle);
}

void sl_api_device_settle(const struct sl_api_device *device, bool everywhere)
{
    const struct sl_cuda *cuda = device->cuda;
    struct sl_cuda_context *before;
    int count = 0, handle;
    if (!cuda || enter(device, &before, NULL) < 0)
        return;
    cuda->synchronize();
    if (before && before != device->context)
        wait_for_context(cuda, before);
    if (everywhere)
        cuda->device_count(&count);
    for (int i = 0; i < count; i++)
        if (i != device->info.ordinal && cuda->device_get(&handle, i) == 0)
            wait_for_device(cuda, handle);
    leave(device, before);
}

/* ---- devices --------------------------------------------------------------------------------- */

static int open_with(struct sl_api_device *device, const struct sl_cuda *cuda, int ordinal,
                     struct sl_cuda_err *err)
{
    struct sl_cuda_context *context = NULL;
    if (sl_cuda_device(cuda, ordinal, &device->info, err) < 0 ||
        sl_cuda_check(cuda, cuda->primary_retain(&context, device->info.handle), err,
                      "open a context on cuda:%d", ordinal) < 0)
        return -1;
    device->context = context;
    device->cuda = cuda;
    return 0;
}

int sl_api_device_open(struct sl_api_device *device, int ordinal, struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    const struct sl_cuda *cuda = sl_cuda_open(&err);
    memset(device, 0, sizeof(*device));
    return cuda && open_with(device, cuda, ordinal, &err) == 0 ? 0
                                                               : sl_api_device_fail(&err, error);
}

int sl_api_device_open_current(struct sl_api_device *device, struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    struct sl_cuda_context *current = NULL;
    int handle = 0, found = 0, count = 0;
    const struct sl_cuda *cuda = sl_cuda_open(&err);
    memset(device, 0, sizeof(*device));
    if (!cuda || sl_cuda_device_count(cuda, &count, &err) < 0)
        return sl_api_device_fail(&err, error);
    bool has = cuda->get_current(&current) == 0 && current && cuda->current_device &&
               cuda->current_device(&handle) == 0;
    for (int ordinal = 0; has && ordinal < count; ordinal++) {
        int other;
        if (cuda->device_get(&other, ordinal) == 0 && other == handle)
            found = ordinal;
    }
    return open_with(device, cuda, found, &err) == 0 ? 0 : sl_api_device_fail(&err, error);
}

void sl_api_device_close(struct sl_api_device *device)
{
    if (device->cuda)
        device->cuda->primary_release(device->info.handle);
    device->cuda = NULL;
}

void sl_api_device_text(const struct sl_api_device *device, char text[SL_API_DEVICE_TEXT_BYTES])
{
    size_t used = (size_t)snprintf(text, SL_API_DEVICE_TEXT_BYTES, "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        used += (size_t)snprintf(text + used, SL_API_DEVICE_TEXT_BYTES - used, "%s%02x",
                                 dash ? "-" : "", device->info.uuid[i]);
    }
}

uint64_t sl_api_device_round(const struct sl_api_device *device, uint64_t bytes)
{
    uint64_t mask = device->info.granularity - 1;
    return bytes > INT64_MAX - mask ? 0 : (bytes + mask) & ~mask;
}

/* ---- mapping --------------------------------------------------------------------------------- */

static int reserve(const struct sl_api_device *device, uint64_t bytes, uint64_t *address,
                   struct sl_cuda_err *err)
{
    *address = 0;
    return sl_cuda_check(device->cuda, device->cuda->address_reserve(address, bytes, 0, 0, 0), err,
                         "reserve addresses for %llu bytes of cuda:%d", (unsigned long long)bytes,
                         device->info.ordinal);
}

static int map_at(const struct sl_api_device *device, uint64_t handle, uint64_t address,
                  uint64_t bytes, struct sl_cuda_err *err)
{
    return sl_cuda_check(device->cuda, device->cuda->mem_map(address, bytes, 0, handle, 0), err,
                         "map %llu bytes of cuda:%d", (unsigned long long)bytes,
                         device->info.ordinal);
}

static int allow(const struct sl_api_device *device, uint64_t address, uint64_t bytes, int flags,
                 struct sl_cuda_err *err)
{
    const struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, device->info.ordinal}, flags};
    return sl_cuda_check(device->cuda, device->cuda->mem_set_access(address, bytes, &access, 1),
                         err, "get access to %llu bytes of cuda:%d", (unsigned long long)bytes,
                         device->info.ordinal);
}

/* ---- a model of others ----------------------------------------------------------------------- */

int sl_api_range_reserve(const struct sl_api_device *device, struct sl_api_range *range,
                         uint64_t bytes, struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    struct sl_cuda_context *before;
    if (enter(device, &before, &err) < 0)
        return sl_api_device_fail(&err, error);
    int done = reserve(device, bytes, &range->address, &err);
    leave(device, before);
    if (done < 0)
        return sl_api_device_fail(&err, error);
    range->bytes = bytes;
    return 0;
}

static int import(const struct sl_api_device *device, int fd, uint64_t address, uint64_t bytes,
                  struct sl_cuda_err *err)
{
    const struct sl_cuda *cuda = device->cuda;
    uint64_t handle;
    if (sl_cuda_check(cuda, cuda->mem_import(&handle, (void *)(uintptr_t)fd, SL_CUDA_HANDLE_FD),
                      err, "import a slab of the pool on cuda:%d", device->info.ordinal) < 0)
        return -1;
    int done = map_at(device, handle, address, bytes, err);
    cuda->mem_release(handle);
    return done;
}

int sl_api_range_map(const struct sl_api_device *device, struct sl_api_range *range, int fd,
                     uint64_t bytes, void **map, struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    struct sl_cuda_context *before;
    uint64_t address = range->address + range->mapped;
    if (enter(device, &before, &err) < 0)
        return sl_api_device_fail(&err, error);
    int done = import(device, fd, address, bytes, &err);
    leave(device, before);
    if (done < 0)
        return sl_api_device_fail(&err, error);
    range->mapped += bytes;
    *map = (void *)(uintptr_t)address;
    return 0;
}

int sl_api_range_allow(const struct sl_api_device *device, const struct sl_api_range *range,
                       struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    struct sl_cuda_context *before;
    if (enter(device, &before, &err) < 0)
        return sl_api_device_fail(&err, error);
    int done = allow(device, range->address, range->mapped, SL_CUDA_READ, &err);
    leave(device, before);
    return done < 0 ? sl_api_device_fail(&err, error) : 0;
}

void sl_api_range_release(const struct sl_api_device *device, struct sl_api_range *range)
{
    struct sl_cuda_context *before;
    if (!range->bytes)
        return;
    bool entered = enter(device, &before, NULL) == 0;
    if (range->mapped)
        device->cuda->mem_unmap(range->address, range->mapped);
    device->cuda->address_free(range->address, range->bytes);
    if (entered)
        leave(device, before);
    *range = (struct sl_api_range){0};
}

/* ---- memory of our own ----------------------------------------------------------------------- */

/* Addresses for this memory, with access to it. */
static int place(const struct sl_api_device *device, uint64_t handle, uint64_t bytes,
                 uint64_t *address, struct sl_cuda_err *err)
{
    if (reserve(device, bytes, address, err) < 0)
        return -1;
    if (map_at(device, handle, *address, bytes, err) == 0) {
        if (allow(device, *address, bytes, SL_CUDA_READ_WRITE, err) == 0)
            return 0;
        device->cuda->mem_unmap(*address, bytes);
    }
    device->cuda->address_free(*address, bytes);
    return -1;
}

static int make(const struct sl_api_device *device, uint64_t bytes, uint64_t *handle,
                uint64_t *address, struct sl_cuda_err *err)
{
    const struct sl_cuda *cuda = device->cuda;
    const struct sl_cuda_prop prop = sl_cuda_shared(&device->info);
    if (sl_cuda_check(cuda, cuda->mem_create(handle, bytes, &prop, 0), err,
                      "take %llu bytes of cuda:%d", (unsigned long long)bytes,
                      device->info.ordinal) < 0)
        return -1;
    if (place(device, *handle, bytes, address, err) == 0)
        return 0;
    cuda->mem_release(*handle);
    return -1;
}

int sl_api_device_make(const struct sl_api_device *device, uint64_t bytes, uint64_t *handle,
                       void **map, struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    struct sl_cuda_context *before;
    uint64_t address = 0;
    if (enter(device, &before, &err) < 0)
        return sl_api_device_fail(&err, error);
    int done = make(device, bytes, handle, &address, &err);
    leave(device, before);
    *map = (void *)(uintptr_t)address;
    return done < 0 ? sl_api_device_fail(&err, error) : 0;
}

/* Twice, since the depositor may hold pointers into it. */
static int map_again(const struct sl_api_device *device, uint64_t handle, uint64_t address,
                     uint64_t bytes, struct sl_cuda_err *err)
{
    const struct sl_cuda *cuda = device->cuda;
    int result = cuda->mem_map(address, bytes, 0, handle, 0);
    if (result)
        result = cuda->mem_map(address, bytes, 0, handle, 0);
    return sl_cuda_check(cuda, result, err,
                         "map %llu bytes of cuda:%d again, so that the deposit's memory cannot be "
                         "used any more",
                         (unsigned long long)bytes, device->info.ordinal);
}

/* Access to memory that is mapped. A driver may refuse to take rights away from a live mapping:
 * then it is mapped anew, at the same addresses, since what is there was told to others. */
static int make_read_only(const struct sl_api_device *device, uint64_t handle, uint64_t address,
                          uint64_t bytes, struct sl_cuda_err *err)
{
    const struct sl_cuda *cuda = device->cuda;
    const struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, device->info.ordinal},
                                          SL_CUDA_READ};
    int result = cuda->mem_set_access(address, bytes, &access, 1);
    bool is_refused = result == SL_CUDA_INVALID_VALUE || result == SL_CUDA_NOT_SUPPORTED;
    if (is_refused && cuda->mem_unmap(address, bytes) == 0) {
        if (map_again(device, handle, address, bytes, err) < 0)
            return -1;
        result = cuda->mem_set_access(address, bytes, &access, 1);
        if (result) /* the depositor may go on with what it has */
            allow(device, address, bytes, SL_CUDA_READ_WRITE, NULL);
    }
    return sl_cuda_check(cuda, result, err, "make memory of cuda:%d read-only",
                         device->info.ordinal);
}

/* Of this context; the device's is current again. */
static int wait_for_caller(const struct sl_api_device *device, struct sl_cuda_context *context,
                           struct sl_cuda_err *err)
{
    const struct sl_cuda *cuda = device->cuda;
    int result = cuda->set_current(context);
    if (sl_cuda_check(cuda, result ? result : cuda->synchronize(), err,
                      "wait for the work of the context that the thread has") < 0)
        return -1;
    return sl_cuda_check(cuda, cuda->set_current(device->context), err, "use cuda:%d",
                         device->info.ordinal);
}

static int share(const struct sl_api_device *device, struct sl_cuda_context *before,
                 uint64_t handle, void *map, uint64_t bytes, int *fd, struct sl_cuda_err *err)
{
    const struct sl_cuda *cuda = device->cuda;
    if (before && before != device->context && wait_for_caller(device, before, err) < 0)
        return -1;
    if (sl_cuda_check(cuda, cuda->synchronize(), err, "wait for what cuda:%d is doing",
                      device->info.ordinal) < 0 ||
        make_read_only(device, handle, (uintptr_t)map, bytes, err) < 0 ||
        sl_cuda_check(cuda, cuda->mem_export(fd, handle, SL_CUDA_HANDLE_FD, 0), err,
                      "export memory of cuda:%d", device->info.ordinal) < 0)
        return -1;
    fcntl(*fd, F_SETFD, FD_CLOEXEC); /* no driver says whether it is */
    return 0;
}

int sl_api_device_share(const struct sl_api_device *device, uint64_t handle, void *map,
                        uint64_t bytes, int *fd, struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    struct sl_cuda_context *before;
    if (enter(device, &before, &err) < 0)
        return sl_api_device_fail(&err, error);
    int done = share(device, before, handle, map, bytes, fd, &err);
    leave(device, before);
    return done < 0 ? sl_api_device_fail(&err, error) : 0;
}

void sl_api_device_unmap(const struct sl_api_device *device, void *map, uint64_t bytes)
{
    struct sl_cuda_context *before;
    bool entered = enter(device, &before, NULL) == 0;
    device->cuda->mem_unmap((uintptr_t)map, bytes);
    device->cuda->address_free((uintptr_t)map, bytes);
    if (entered)
        leave(device, before);
}

void sl_api_device_drop(const struct sl_api_device *device, uint64_t handle)
{
    device->cuda->mem_release(handle);
}

/* ---- the host's memory ----------------------------------------------------------------------- */

int sl_api_device_register(const struct sl_api_device *device, void *map, uint64_t bytes,
                           struct sluice_error *error)
{
    enum { FLAGS = SL_CUDA_HOST_PORTABLE | SL_CUDA_HOST_REGISTER_READ_ONLY };
    struct sl_cuda_err err = {0};
    struct sl_cuda_context *before;
    if (!device->info.registers_read_only)
        return sl_api_fail(error, SLUICE_GPU,
                           "cuda:%d pins no memory that is mapped to be read (its driver says so): "
                           "copy by sluice_copy(), which stages",
                           device->info.ordinal);
    if (enter(device, &before, &err) < 0)
        return sl_api_device_fail(&err, error);
    int done = sl_cuda_check(device->cuda, device->cuda->host_register(map, bytes, FLAGS), &err,
                             "register %llu bytes of the host with cuda:%d",
                             (unsigned long long)bytes, device->info.ordinal);
    leave(device, before);
    return done < 0 ? sl_api_device_fail(&err, error) : 0;
}

void sl_api_device_unregister(const struct sl_api_device *device, void *map)
{
    struct sl_cuda_context *before;
    bool entered = enter(device, &before, NULL) == 0;
    device->cuda->host_unregister(map);
    if (entered)
        leave(device, before);
}

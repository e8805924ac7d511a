/*
 * Memory of a GPU as the place of a read. What the driver copies from memory that is not pinned it
 * copies itself first, with the caller waiting; here two pinned pieces take turns: one is filled
 * while the other is on its way. Work is on a stream of its own, of the GPU's primary context.
 */
#include "read_device.h"

#include <pthread.h>
#include <string.h>

#include "api_device.h"
#include "thread.h"

enum { PIECE_BYTES = 4 * 1024 * 1024, PIECES = 2 };

struct sl_read_device {
    struct sl_api_device gpu;
    pthread_mutex_t lock; /* of all below, while somebody copies */
    struct sl_cuda_stream *stream;
    uint8_t *pinned; /* PIECES of them */
    struct sl_cuda_event *events[PIECES];
};

static int fail(const struct sl_cuda_err *why, struct sl_err *err)
{
    bool full = why->result == SL_CUDA_OUT_OF_MEMORY;
    return sl_fail(err, full ? SL_E_NO_SPACE : SL_E_GPU, "%s", why->message);
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* The caller's context, which is given back by leave(). */
static int enter(const struct sl_read_device *device, struct sl_cuda_context **before,
                 struct sl_cuda_err *why)
{
    const struct sl_cuda *cuda = device->gpu.cuda;
    *before = NULL;
    if (cuda->get_current(before) != 0)
        *before = NULL;
    return sl_cuda_check(cuda, cuda->set_current(device->gpu.context), why, "use cuda:%d",
                         device->gpu.info.ordinal);
}

static void leave(const struct sl_read_device *device, struct sl_cuda_context *before)
{
    device->gpu.cuda->set_current(before);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int fill(struct sl_read_device *device, struct sl_cuda_err *why)
{
    enum { EVENT = SL_CUDA_EVENT_DISABLE_TIMING | SL_CUDA_EVENT_BLOCKING_SYNC };
    const struct sl_cuda *cuda = device->gpu.cuda;
    void *pinned = NULL;
    if (sl_cuda_check(cuda, cuda->stream_create(&device->stream, SL_CUDA_STREAM_NON_BLOCKING), why,
                      "make a stream") < 0 ||
        sl_cuda_check(cuda, cuda->host_alloc(&pinned, PIECES * PIECE_BYTES, SL_CUDA_HOST_PORTABLE),
                      why, "pin %d bytes", PIECES * PIECE_BYTES) < 0)
        return -1;
    device->pinned = pinned;
    for (int i = 0; i < PIECES; i++)
        if (sl_cuda_check(cuda, cuda->event_create(&device->events[i], EVENT), why,
                          "make an event") < 0)
            return -1;
    return 0;
}

static void release(struct sl_read_device *device)
{
    const struct sl_cuda *cuda = device->gpu.cuda;
    struct sl_cuda_context *before;
    if (enter(device, &before, NULL) < 0)
        return;
    if (device->stream)
        cuda->stream_synchronize(device->stream);
    for (int i = 0; i < PIECES; i++)
        if (device->events[i])
            cuda->event_destroy(device->events[i]);
    if (device->pinned)
        cuda->host_free(device->pinned);
    if (device->stream)
        cuda->stream_destroy(device->stream);
    leave(device, before);
}

void sl_read_device_close(struct sl_read_device *device)
{
    if (!device)
        return;
    if (device->gpu.cuda)
        release(device);
    sl_api_device_close(&device->gpu);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static enum sl_err_kind kind_of(const struct sluice_error *error)
{
    return error->kind == SLUICE_NO_SPACE ? SL_E_NO_SPACE
           : error->kind == SLUICE_USAGE  ? SL_E_USAGE
                                          : SL_E_GPU;
}

static int open_gpu(struct sl_read_device *device, const char *name, struct sl_err *err)
{
    struct sluice_error error;
    struct sl_cuda_err why = {0};
    struct sl_cuda_context *before;
    if (sl_api_device_open_named(&device->gpu, name, &error) < 0)
        return sl_fail(err, kind_of(&error), "%s", error.message);
    if (enter(device, &before, &why) < 0)
        return fail(&why, err);
    int done = fill(device, &why);
    leave(device, before);
    return done < 0 ? fail(&why, err) : 0;
}

struct sl_read_device *sl_read_device_open(const char *name, struct sl_err *err)
{
    if (!sl_api_device_named(name)) {
        sl_fail(err, SL_E_USAGE, "tensors cannot be read onto '%s': name a GPU, such as cuda:0",
                name);
        return NULL;
    }
    struct sl_read_device *device = sl_alloc(sizeof(*device), err);
    if (!device)
        return NULL;
    pthread_mutex_init(&device->lock, NULL);
    if (open_gpu(device, name, err) == 0)
        return device;
    sl_read_device_close(device);
    return NULL;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static int send(struct sl_read_device *device, int piece, uint64_t to, const uint8_t *from,
                uint64_t bytes, struct sl_cuda_err *why)
{
    const struct sl_cuda *cuda = device->gpu.cuda;
    uint8_t *pinned = device->pinned + (size_t)piece * PIECE_BYTES;
    if (sl_cuda_check(cuda, cuda->event_synchronize(device->events[piece]), why,
                      "wait for a copy to a GPU") < 0)
        return -1;
    memcpy(pinned, from, bytes);
    if (sl_cuda_check(cuda, cuda->copy_to_device(to, pinned, bytes, device->stream), why,
                      "copy %llu bytes to a GPU", (unsigned long long)bytes) < 0)
        return -1;
    return sl_cuda_check(cuda, cuda->event_record(device->events[piece], device->stream), why,
                         "record an event");
}

/* from NULL: zeros. Whatever happens, nothing is on its way in the end. */
static int put(struct sl_read_device *device, uint64_t to, const uint8_t *from, uint64_t bytes,
               struct sl_cuda_err *why)
{
    const struct sl_cuda *cuda = device->gpu.cuda;
    int done = 0, piece = 0;
    if (!from)
        done = sl_cuda_check(cuda, cuda->set_bytes(to, 0, bytes, device->stream), why,
                             "fill %llu bytes of a GPU", (unsigned long long)bytes);
    for (uint64_t at = 0; from && at < bytes && done == 0; at += PIECE_BYTES, piece = !piece)
        done =
            send(device, piece, to + at, from + at, SL_MIN(bytes - at, (uint64_t)PIECE_BYTES), why);
    int ended = cuda->stream_synchronize(device->stream);
    return done < 0 ? done : sl_cuda_check(cuda, ended, why, "wait for a copy to a GPU");
}

static int put_there(struct sl_read_device *device, void *to, const uint8_t *from, uint64_t bytes,
                     struct sl_err *err)
{
    struct sl_cuda_err why = {0};
    struct sl_cuda_context *before;
    SL_LOCKED(&device->lock);
    if (enter(device, &before, &why) < 0)
        return fail(&why, err);
    int done = bytes ? put(device, (uint64_t)(uintptr_t)to, from, bytes, &why) : 0;
    leave(device, before);
    return done < 0 ? fail(&why, err) : 0;
}

int sl_read_device_copy(struct sl_read_device *device, void *to, const void *from, uint64_t bytes,
                        struct sl_err *err)
{
    return put_there(device, to, from, bytes, err);
}

int sl_read_device_zero(struct sl_read_device *device, void *to, uint64_t bytes, struct sl_err *err)
{
    return put_there(device, to, NULL, bytes, err);
}

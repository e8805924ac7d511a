/*
 * What the fake driver does later: each stream is a thread that takes one thing after another from
 * its list, waits a moment, and does it. So a source that is written anew before its event has come
 * spoils the copy, as it would on a device.
 */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_cuda_parts.h"

struct sl_cuda_event {
    uint64_t wanted, done; /* records asked for, records that have come */
    unsigned users;        /* entries of lists that name it */
    bool destroyed;
    struct sl_cuda_context *context;
};
enum work_kind { COPY, SET, RECORD, WAIT, LAUNCH };
struct work {
    enum work_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    bool spoiled;
    int value;
    struct sl_cuda_event *event;
    uint64_t record;
    const struct fake_kernel *kernel;
    unsigned grid[3], block[3], shared_bytes;
    uint64_t params[FAKE_PARAMS_MAX][FAKE_PARAM_BYTES_MAX / 8];
    struct work *next;
};
struct sl_cuda_stream {
    pthread_t thread;
    struct work *first, **last;
    bool busy, ends;
    struct sl_cuda_context *context;
    struct sl_cuda_stream *next;
};
struct sl_cuda_module {
    struct sl_cuda_context *context;
};
struct sl_cuda_function {
    struct fake_kernel kernel;
};

static struct sl_cuda_stream *streams;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER; /* anything of any stream */

/* ---- a stream's thread ---------------------------------------------------------------------- */

static void launch(struct work *work)
{
    void *params[FAKE_PARAMS_MAX];
    for (unsigned i = 0; i < work->kernel->param_count; i++)
        params[i] = work->params[i];
    work->kernel->run(work->grid, work->block, work->shared_bytes, params);
}

static void forget_event(struct sl_cuda_event *event)
{
    if (event->destroyed && !event->users)
        free(event);
}

/* Without the lock: copies and kernels touch memory that only they may touch. */
static void carry_out(struct work *work)
{
    if (fake.delay_us)
        usleep(fake.delay_us);
    if (work->kind == COPY)
        memcpy(work->to, work->from, work->bytes);
    else if (work->kind == SET)
        memset(work->to, work->value, work->bytes);
    else if (work->kind == LAUNCH)
        launch(work);
    if (work->spoiled)
        *(uint8_t *)work->to ^= 1;
}

/* With the lock. */
static void count(struct work *work)
{
    struct sl_cuda_event *event = work->event;
    fake.counts.copies += work->kind == COPY;
    fake.counts.copied_bytes += work->kind == COPY ? work->bytes : 0;
    fake.counts.launches += work->kind == LAUNCH;
    if (work->kind == RECORD)
        event->done = work->record > event->done ? work->record : event->done;
    if (event) {
        event->users--;
        forget_event(event);
    }
    free(work);
}

static void *run_stream(void *arg)
{
    struct sl_cuda_stream *stream = arg;
    pthread_mutex_lock(&fake.lock);
    for (;;) {
        while (!stream->first && !stream->ends)
            pthread_cond_wait(&moved, &fake.lock);
        struct work *work = stream->first;
        if (!work)
            break;
        stream->busy = true;
        stream->first = work->next;
        if (!stream->first)
            stream->last = &stream->first;
        while (fake.held)
            pthread_cond_wait(&fake.unheld, &fake.lock);
        while (work->kind == WAIT && work->event->done < work->record)
            pthread_cond_wait(&moved, &fake.lock);
        if (work->kind != WAIT && work->kind != RECORD) {
            pthread_mutex_unlock(&fake.lock);
            carry_out(work);
            pthread_mutex_lock(&fake.lock);
        }
        count(work);
        stream->busy = false;
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

static bool is_idle(const struct sl_cuda_stream *stream)
{
    return !stream->first && !stream->busy;
}

void fake_drain(void)
{
    pthread_mutex_lock(&fake.lock);
    for (const struct sl_cuda_stream *at = streams; at;) {
        if (is_idle(at)) {
            at = at->next;
            continue;
        }
        pthread_cond_wait(&moved, &fake.lock);
        at = streams; /* the list may have changed */
    }
    pthread_mutex_unlock(&fake.lock);
}

/* ---- streams -------------------------------------------------------------------------------- */

static bool is_stream(const struct sl_cuda_stream *stream)
{
    const struct sl_cuda_stream *at = streams;
    while (at && at != stream)
        at = at->next;
    return at;
}

int cuStreamCreate(struct sl_cuda_stream **out, unsigned flags)
{
    FAKE_ENTER("cuStreamCreate", FAKE_CONTEXT);
    if (!out || flags > 1)
        return SL_CUDA_INVALID_VALUE;
    struct sl_cuda_stream *stream = calloc(1, sizeof(*stream));
    stream->last = &stream->first;
    stream->context = fake_current();
    pthread_mutex_lock(&fake.lock);
    stream->context->things++;
    fake.counts.streams++;
    stream->next = streams;
    streams = stream;
    pthread_create(&stream->thread, NULL, run_stream, stream);
    pthread_mutex_unlock(&fake.lock);
    *out = stream;
    return 0;
}

/* What is on its way is done first, as on a device. */
int cuStreamDestroy_v2(struct sl_cuda_stream *stream)
{
    int result = fake_enter("cuStreamDestroy", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    if (!is_stream(stream)) {
        pthread_mutex_unlock(&fake.lock);
        return SL_CUDA_INVALID_HANDLE;
    }
    stream->ends = true;
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&fake.lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&fake.lock);
    struct sl_cuda_stream **at = &streams;
    while (*at != stream)
        at = &(*at)->next;
    *at = stream->next;
    stream->context->things--;
    fake.counts.streams--;
    pthread_mutex_unlock(&fake.lock);
    free(stream);
    return result;
}

int cuStreamSynchronize(struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuStreamSynchronize", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    bool known = is_stream(stream);
    while (known && !is_idle(stream))
        pthread_cond_wait(&moved, &fake.lock);
    int result = fake.sticky;
    pthread_mutex_unlock(&fake.lock);
    return known ? result : SL_CUDA_INVALID_HANDLE;
}

/* With the lock; takes a copy of what is given. */
static int enqueue(struct sl_cuda_stream *stream, const struct work *given)
{
    if (!is_stream(stream))
        return SL_CUDA_INVALID_HANDLE;
    struct work *work = malloc(sizeof(*work));
    *work = *given;
    work->next = NULL;
    if (work->event)
        work->event->users++;
    *stream->last = work;
    stream->last = &work->next;
    pthread_cond_broadcast(&moved);
    return 0;
}

/* ---- copies --------------------------------------------------------------------------------- */

static int copy(struct sl_cuda_stream *stream, const struct work *work, uint64_t device_to,
                uint64_t device_from)
{
    int result = SL_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    const void *host = device_from == 0 ? work->from : device_to == 0 ? work->to : NULL;
    bool pinned = !host || fake_is_pinned(host, work->bytes);
    if ((!device_to || fake_is_mapped(device_to, work->bytes, SL_CUDA_READ_WRITE)) &&
        (!device_from || fake_is_mapped(device_from, work->bytes, SL_CUDA_READ)))
        result = work->bytes ? enqueue(stream, work) : 0;
    fake.counts.unpinned += !pinned;
    pthread_mutex_unlock(&fake.lock);
    if (result == 0 && !pinned)
        result = cuStreamSynchronize(stream); /* it is staged, and the caller waits */
    return result;
}

static bool is_to_be_spoiled(size_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    bool spoiled = fake.spoil_times && bytes >= fake.spoil_bytes;
    fake.spoil_times -= spoiled;
    pthread_mutex_unlock(&fake.lock);
    return spoiled;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuMemcpyHtoDAsync", FAKE_CONTEXT);
    const struct work work = {.kind = COPY,
                              .to = (void *)(uintptr_t)to,
                              .from = from,
                              .bytes = bytes,
                              .spoiled = is_to_be_spoiled(bytes)};
    return to && from ? copy(stream, &work, to, 0) : SL_CUDA_INVALID_VALUE;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuMemcpyDtoHAsync", FAKE_CONTEXT);
    const struct work work = {
        .kind = COPY, .to = to, .from = (const void *)(uintptr_t)from, .bytes = bytes};
    return to && from ? copy(stream, &work, 0, from) : SL_CUDA_INVALID_VALUE;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuMemcpyDtoDAsync", FAKE_CONTEXT);
    const struct work work = {.kind = COPY,
                              .to = (void *)(uintptr_t)to,
                              .from = (const void *)(uintptr_t)from,
                              .bytes = bytes};
    return to && from ? copy(stream, &work, to, from) : SL_CUDA_INVALID_VALUE;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuMemsetD8Async", FAKE_CONTEXT);
    const struct work work = {
        .kind = SET, .to = (void *)(uintptr_t)to, .bytes = bytes, .value = value};
    pthread_mutex_lock(&fake.lock);
    int result = fake_is_mapped(to, bytes, SL_CUDA_READ_WRITE) ? enqueue(stream, &work)
                                                               : SL_CUDA_INVALID_VALUE;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* ---- events --------------------------------------------------------------------------------- */

int cuEventCreate(struct sl_cuda_event **out, unsigned flags)
{
    FAKE_ENTER("cuEventCreate", FAKE_CONTEXT);
    if (!out || flags > 7)
        return SL_CUDA_INVALID_VALUE;
    struct sl_cuda_event *event = calloc(1, sizeof(*event));
    event->context = fake_current();
    pthread_mutex_lock(&fake.lock);
    event->context->things++;
    fake.counts.events++;
    pthread_mutex_unlock(&fake.lock);
    *out = event;
    return 0;
}

int cuEventDestroy_v2(struct sl_cuda_event *event)
{
    int result = fake_enter("cuEventDestroy", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    event->context->things--;
    fake.counts.events--;
    event->destroyed = true;
    forget_event(event);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuEventRecord(struct sl_cuda_event *event, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuEventRecord", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    const struct work work = {.kind = RECORD, .event = event, .record = event->wanted + 1};
    int result = enqueue(stream, &work);
    event->wanted += result == 0;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuEventQuery(struct sl_cuda_event *event)
{
    FAKE_ENTER("cuEventQuery", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    int result = event->done < event->wanted ? SL_CUDA_NOT_READY : 0;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuEventSynchronize(struct sl_cuda_event *event)
{
    FAKE_ENTER("cuEventSynchronize", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    uint64_t wanted = event->wanted;
    while (event->done < wanted)
        pthread_cond_wait(&moved, &fake.lock);
    int result = fake.sticky;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuEventElapsedTime(float *ms, struct sl_cuda_event *begin, struct sl_cuda_event *end)
{
    FAKE_ENTER("cuEventElapsedTime", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    bool ready = begin->done == begin->wanted && end->done == end->wanted;
    *ms = fake.elapsed_ms;
    pthread_mutex_unlock(&fake.lock);
    return ready ? 0 : SL_CUDA_NOT_READY;
}

int cuStreamWaitEvent(struct sl_cuda_stream *stream, struct sl_cuda_event *event, unsigned flags)
{
    FAKE_ENTER("cuStreamWaitEvent", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    const struct work work = {.kind = WAIT, .event = event, .record = event->wanted};
    int result = flags ? SL_CUDA_INVALID_VALUE : enqueue(stream, &work);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* ---- kernels -------------------------------------------------------------------------------- */

int cuModuleLoadData(struct sl_cuda_module **out, const void *image)
{
    static const uint8_t fatbin[] = {0x50, 0xed, 0x55, 0xba}, cubin[] = {0x7f, 'E', 'L', 'F'};
    FAKE_ENTER("cuModuleLoadData", FAKE_CONTEXT);
    if (!out || !image)
        return SL_CUDA_INVALID_VALUE;
    if (memcmp(image, fatbin, 4) != 0 && memcmp(image, cubin, 4) != 0 &&
        memcmp(image, "//", 2) != 0 && memcmp(image, ".ver", 4) != 0)
        return SL_CUDA_INVALID_IMAGE;
    struct sl_cuda_module *module = calloc(1, sizeof(*module));
    module->context = fake_current();
    pthread_mutex_lock(&fake.lock);
    module->context->things++;
    fake.counts.modules++;
    pthread_mutex_unlock(&fake.lock);
    *out = module;
    return 0;
}

int cuModuleUnload(struct sl_cuda_module *module)
{
    int result = fake_enter("cuModuleUnload", FAKE_CONTEXT);
    fake_drain();
    pthread_mutex_lock(&fake.lock);
    module->context->things--;
    fake.counts.modules--;
    pthread_mutex_unlock(&fake.lock);
    free(module);
    return result;
}

int cuModuleGetFunction(struct sl_cuda_function **function, struct sl_cuda_module *module,
                        const char *name)
{
    FAKE_ENTER("cuModuleGetFunction", FAKE_CONTEXT);
    for (const struct fake_kernel *at = fake_kernels; module && at->name; at++)
        if (strcmp(at->name, name) == 0) {
            *function = (struct sl_cuda_function *)(uintptr_t)at; /* its first member */
            return 0;
        }
    return SL_CUDA_NOT_FOUND;
}

int cuLaunchKernel(struct sl_cuda_function *function, unsigned grid_x, unsigned grid_y,
                   unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared_bytes, struct sl_cuda_stream *stream, void **params,
                   void **extra)
{
    FAKE_ENTER("cuLaunchKernel", FAKE_CONTEXT);
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (!function || !grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535 ||
        !threads || threads > 1024 || shared_bytes > 48 * 1024 || extra)
        return SL_CUDA_INVALID_VALUE;
    struct work work = {.kind = LAUNCH,
                        .kernel = &function->kernel,
                        .grid = {grid_x, grid_y, grid_z},
                        .block = {block_x, block_y, block_z},
                        .shared_bytes = shared_bytes};
    for (unsigned i = 0; i < work.kernel->param_count; i++)
        memcpy(work.params[i], params[i], work.kernel->param_bytes[i]);
    pthread_mutex_lock(&fake.lock);
    int result = enqueue(stream, &work);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

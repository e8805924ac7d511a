/*
 * What the fake driver does later: each stream is a thread that takes one thing after another from
 * its list, waits a moment, and does it. So a source that is written anew too early spoils the
 * copy, as on a device; one that is gone by then is a fault, after which every call of the process
 * fails.
 */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fake_cuda_parts.h"

struct sl_cuda_event {
    uint64_t wanted, done; /* records asked for, records that have come */
    unsigned users;        /* entries of lists that name it */
    struct sl_cuda_context *context;
    bool destroyed;
};
struct work {
    enum { COPY, SET, RECORD, WAIT, LAUNCH } kind;
    void *to;
    const void *from;
    size_t bytes;
    bool device_to, device_from, pinned,
        spoiled; /* as `to` and `from` were when it was asked for */
    struct sl_cuda_event *event;
    uint64_t asked_ns, record;
    const struct fake_kernel *kernel;
    int value;
    unsigned grid[3], block[3], shared_bytes;
    uint64_t params[FAKE_PARAMS_MAX][FAKE_PARAM_BYTES_MAX / 8];
    struct work *next;
};
struct sl_cuda_stream {
    pthread_t thread;
    struct work *first, **last;
    unsigned flags;
    bool busy, ends, gone; /* gone: its thread is at its end */
    unsigned waiters;      /* calls that wait for it: it stays while there are any */
    struct sl_cuda_context *context;
    struct sl_cuda_stream *next;
};

static struct sl_cuda_stream *streams, *ended; /* ended: destroyed, with work yet to do */

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

/* Is what it is to touch still there? With the lock. */
static bool is_reachable(const struct work *work, const struct sl_cuda_stream *stream)
{
    int device = stream->context->device;
    const void *host = work->device_to ? work->from : work->to;
    if (work->kind != COPY && work->kind != SET)
        return true;
    if (work->device_to &&
        !fake_is_mapped((uintptr_t)work->to, work->bytes, device, SL_CUDA_READ_WRITE))
        return false;
    if (work->device_from &&
        !fake_is_mapped((uintptr_t)work->from, work->bytes, device, SL_CUDA_READ))
        return false;
    return !work->pinned || fake_is_pinned(host, work->bytes);
}

/* Without the lock: copies and kernels touch memory that only they may touch. */
static void carry_out(struct work *work)
{
    if (work->kind == COPY && !fake.copies_nothing)
        memcpy(work->to, work->from, work->bytes);
    else if (work->kind == SET && !fake.copies_nothing)
        memset(work->to, work->value, work->bytes);
    else if (work->kind == LAUNCH)
        launch(work);
    if (work->spoiled)
        *(uint8_t *)work->to ^= 1;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Until the link has carried it: copies follow one another, and what a thread oversleeps costs the
 * next one nothing. With the lock, which is let go of meanwhile. */
static void take_the_link(const struct work *work)
{
    enum { COPY_NS = 5500 }; /* what any copy takes */
    uint64_t begin = work->asked_ns > fake.link_free_ns ? work->asked_ns : fake.link_free_ns;
    uint64_t end = fake.link_free_ns = begin + COPY_NS + work->bytes * 1000 / fake.link_mbps;
    const struct timespec at = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
    pthread_mutex_unlock(&fake.lock);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    pthread_mutex_lock(&fake.lock);
}

/* With the lock, which is let go of meanwhile. */
static void perform(struct work *work, const struct sl_cuda_stream *stream)
{
    unsigned delay_us = fake.link_mbps ? 0 : fake.delay_us;
    if (fake.link_mbps && work->kind == COPY)
        take_the_link(work);
    pthread_mutex_unlock(&fake.lock);
    if (delay_us)
        usleep(delay_us);
    pthread_mutex_lock(&fake.lock);
    if (fake_lost(stream->context->device))
        return;
    if (!is_reachable(work, stream)) {
        fake.lost[stream->context->device] = SL_CUDA_ILLEGAL_ADDRESS;
        return;
    }
    fake.touching++;
    pthread_mutex_unlock(&fake.lock);
    carry_out(work);
    pthread_mutex_lock(&fake.lock);
    fake.touching--;
}

void fake_untouched(void)
{
    while (fake.touching)
        pthread_cond_wait(&fake.moved, &fake.lock);
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
            pthread_cond_wait(&fake.moved, &fake.lock);
        struct work *work = stream->first;
        if (!work)
            break;
        stream->busy = true;
        stream->first = work->next;
        if (!stream->first)
            stream->last = &stream->first;
        while (fake.held || (fake.kernels_held && work->kind == LAUNCH))
            pthread_cond_wait(&fake.unheld, &fake.lock);
        while (work->kind == WAIT && work->event->done < work->record)
            pthread_cond_wait(&fake.moved, &fake.lock);
        if (work->kind != WAIT && work->kind != RECORD)
            perform(work, stream);
        count(work);
        stream->busy = false;
        pthread_cond_broadcast(&fake.moved);
    }
    stream->gone = true;
    pthread_cond_broadcast(&fake.moved);
    pthread_mutex_unlock(&fake.lock);
    return NULL;
}

static bool is_idle(const struct sl_cuda_stream *stream)
{
    return !stream->first && !stream->busy;
}

static bool is_any_busy(const struct sl_cuda_stream *list, const struct sl_cuda_context *context)
{
    for (const struct sl_cuda_stream *at = list; at; at = at->next)
        if ((!context || at->context == context) && !is_idle(at))
            return true;
    return false;
}

bool fake_is_busy(const struct sl_cuda_context *context)
{
    return is_any_busy(streams, context) || is_any_busy(ended, context);
}

/* Streams that were destroyed and have nothing to do any more. With the lock. */
static void bury(void)
{
    for (struct sl_cuda_stream **at = &ended; *at;) {
        struct sl_cuda_stream *stream = *at;
        if (!stream->gone || stream->waiters) {
            at = &stream->next;
            continue;
        }
        *at = stream->next;
        pthread_join(stream->thread, NULL); /* all that it does is to end */
        free(stream);
    }
}

static bool has_ended(const struct sl_cuda_context *context)
{
    for (const struct sl_cuda_stream *at = ended; at; at = at->next)
        if (!context || at->context == context)
            return true;
    return false;
}

/* Threads of streams that have nothing to do any more end. With the lock. */
static void await_ended(const struct sl_cuda_context *context)
{
    for (bury(); has_ended(context); bury())
        pthread_cond_wait(&fake.moved, &fake.lock);
}

void fake_drain(const struct sl_cuda_context *context)
{
    pthread_mutex_lock(&fake.lock);
    while (fake_is_busy(context))
        pthread_cond_wait(&fake.moved, &fake.lock);
    await_ended(context);
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
    stream->flags = flags;
    stream->context = fake_current();
    pthread_mutex_lock(&fake.lock);
    bury();
    stream->context->things++;
    fake.counts.streams++;
    stream->next = streams;
    streams = stream;
    pthread_create(&stream->thread, NULL, run_stream, stream);
    pthread_mutex_unlock(&fake.lock);
    *out = stream;
    return 0;
}

/* What is on its way is done all the same, later. */
int cuStreamDestroy_v2(struct sl_cuda_stream *stream)
{
    int result = fake_enter("cuStreamDestroy", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    struct sl_cuda_stream **at = &streams;
    while (*at && *at != stream)
        at = &(*at)->next;
    if (!*at) {
        pthread_mutex_unlock(&fake.lock);
        return SL_CUDA_INVALID_HANDLE;
    }
    *at = stream->next;
    stream->next = ended;
    ended = stream;
    stream->ends = true;
    stream->context->things--;
    fake.counts.streams--;
    pthread_cond_broadcast(&fake.moved);
    stream->waiters++;
    while (is_idle(stream) && !stream->gone)
        pthread_cond_wait(&fake.moved, &fake.lock);
    stream->waiters--;
    bury();
    pthread_cond_broadcast(&fake.moved);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* The legacy default stream: whatever it waits for, all of the context is more. */
static int synchronize_default(void)
{
    fake_drain(fake_current());
    return fake_lost(fake_current()->device);
}

int cuStreamSynchronize(struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuStreamSynchronize", FAKE_CONTEXT);
    if (!stream)
        return synchronize_default();
    pthread_mutex_lock(&fake.lock);
    if (!is_stream(stream)) {
        pthread_mutex_unlock(&fake.lock);
        return SL_CUDA_INVALID_HANDLE;
    }
    stream->waiters++;
    while (!is_idle(stream))
        pthread_cond_wait(&fake.moved, &fake.lock);
    stream->waiters--;
    pthread_cond_broadcast(&fake.moved); /* its end may have waited for this call */
    int result = fake_lost(stream->context->device);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* The legacy default stream: it comes after everything, and here the caller waits for it. */
static int do_now(const struct work *given)
{
    const struct sl_cuda_stream now = {.context = fake_current()};
    struct work work = *given;
    work.asked_ns = now_ns();
    while (fake_is_busy(fake_current()))
        pthread_cond_wait(&fake.moved, &fake.lock);
    if (work.kind == RECORD)
        work.event->done = work.record;
    else if (work.kind != WAIT)
        perform(&work, &now);
    fake.counts.copies += work.kind == COPY;
    fake.counts.copied_bytes += work.kind == COPY ? work.bytes : 0;
    return 0;
}

/* With the lock; takes a copy of what is given. A stream works in its own context alone. */
static int enqueue(struct sl_cuda_stream *stream, const struct work *given)
{
    if (!stream)
        return do_now(given);
    if (!is_stream(stream) || stream->context != fake_current())
        return SL_CUDA_INVALID_HANDLE;
    struct work *work = malloc(sizeof(*work));
    *work = *given;
    work->asked_ns = now_ns();
    work->next = NULL;
    if (work->event)
        work->event->users++;
    *stream->last = work;
    stream->last = &work->next;
    pthread_cond_broadcast(&fake.moved);
    return 0;
}

/* ---- copies --------------------------------------------------------------------------------- */

static int copy(struct sl_cuda_stream *stream, struct work *work)
{
    int result = SL_CUDA_INVALID_VALUE, device = fake_current()->device;
    pthread_mutex_lock(&fake.lock);
    const void *host = !work->device_from ? work->from : !work->device_to ? work->to : NULL;
    work->pinned = host && fake_is_pinned(host, work->bytes);
    bool slow = host && !work->pinned;
    if ((!work->device_to ||
         fake_is_mapped((uintptr_t)work->to, work->bytes, device, SL_CUDA_READ_WRITE)) &&
        (!work->device_from ||
         fake_is_mapped((uintptr_t)work->from, work->bytes, device, SL_CUDA_READ)))
        result = work->bytes ? enqueue(stream, work) : 0;
    fake.counts.unpinned += slow;
    pthread_mutex_unlock(&fake.lock);
    if (result == 0 && slow)
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
    struct work work = {.kind = COPY,
                        .to = (void *)(uintptr_t)to,
                        .from = from,
                        .bytes = bytes,
                        .device_to = true,
                        .spoiled = is_to_be_spoiled(bytes)};
    return to && from ? copy(stream, &work) : SL_CUDA_INVALID_VALUE;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuMemcpyDtoHAsync", FAKE_CONTEXT);
    struct work work = {.kind = COPY,
                        .to = to,
                        .from = (const void *)(uintptr_t)from,
                        .bytes = bytes,
                        .device_from = true};
    return to && from ? copy(stream, &work) : SL_CUDA_INVALID_VALUE;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuMemcpyDtoDAsync", FAKE_CONTEXT);
    struct work work = {.kind = COPY,
                        .to = (void *)(uintptr_t)to,
                        .from = (const void *)(uintptr_t)from,
                        .bytes = bytes,
                        .device_to = true,
                        .device_from = true};
    return to && from ? copy(stream, &work) : SL_CUDA_INVALID_VALUE;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, struct sl_cuda_stream *stream)
{
    FAKE_ENTER("cuMemsetD8Async", FAKE_CONTEXT);
    const struct work work = {.kind = SET,
                              .to = (void *)(uintptr_t)to,
                              .bytes = bytes,
                              .device_to = true,
                              .value = value};
    int device = fake_current()->device;
    pthread_mutex_lock(&fake.lock);
    int result = fake_is_mapped(to, bytes, device, SL_CUDA_READ_WRITE) ? enqueue(stream, &work)
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
    int result = event->context == fake_current() ? enqueue(stream, &work) : SL_CUDA_INVALID_HANDLE;
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
        pthread_cond_wait(&fake.moved, &fake.lock);
    int result = fake_lost(event->context->device);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuEventElapsedTime(float *ms, struct sl_cuda_event *begin, struct sl_cuda_event *end)
{
    FAKE_ENTER("cuEventElapsedTime", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    bool ready = begin->done == begin->wanted && end->done == end->wanted;
    *ms = 0.001f; /* whatever was between */
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

int cuLaunchKernel(struct sl_cuda_function *function, unsigned grid_x, unsigned grid_y,
                   unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared_bytes, struct sl_cuda_stream *stream, void **params,
                   void **extra)
{
    FAKE_ENTER("cuLaunchKernel", FAKE_CONTEXT);
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (!function || !grid_x || !grid_y || !grid_z || grid_x > INT_MAX || grid_y > 65535 ||
        grid_z > 65535 || !threads || threads > function->kernel->threads_max ||
        shared_bytes > 48 * 1024 || extra)
        return SL_CUDA_INVALID_VALUE;
    if (function->module->context != fake_current())
        return SL_CUDA_INVALID_HANDLE;
    struct work work = {.kind = LAUNCH,
                        .kernel = function->kernel,
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

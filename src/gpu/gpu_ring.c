/*
 * A buffer is FREE, OPEN (bytes of one stretch of a file are put into it), CLOSED (to be copied) or
 * BUSY (being copied). It closes when it is full, when it is old, when somebody needs one and none
 * is free, or when its bytes are put again elsewhere: copies begin in the order of closing, in one
 * stream, so what was put later lands later.
 *
 * Buffers are numbered as they open, and a note waits for all with a number up to the highest of
 * its time. A buffer is closed a few milliseconds after it was opened however few bytes it has, so
 * no note waits long for a reader that is slow.
 *
 * All calls to the driver are in this file's second half, and made by the GPU's thread.
 */
#include "gpu_ring.h"

#include <errno.h>
#include <string.h>

#include "gpu_parts.h"
#include "metrics.h"

enum {
    BUFFERS = 16,
    BUFFERS_MAX = 256,
    AGE_MS = 5,
    POLL_NS = 50 * 1000,
    WAIT_SLICE_MS = 100,
    BOUNCE_BYTES = 1024 * 1024,
};
enum buffer_state { FREE, OPEN, CLOSED, BUSY };

struct buffer {
    uint8_t *data;
    struct sl_cuda_event *event;
    enum buffer_state state;
    bool closes; /* as soon as nobody writes into it */
    unsigned writers;
    uint32_t file;
    const struct sl_gpu_shape *shape;  /* NULL: bytes stay as they are */
    uint64_t offset, used;             /* in the file; bytes here */
    uint64_t number, opened_ns, order; /* order: of closing, of copying */
};
struct waiting_note {
    struct sl_gpu_note note;
    uint64_t upto; /* number */
};
struct sl_gpu_ring {
    struct sl_gpu_chore chore; /* first */
    struct sl_gpu *gpu;
    const uint64_t *addresses, *zeroed;
    size_t file_count;
    struct sl_cancel *cancel;
    unsigned count;
    uint64_t buffer_bytes, age_ns, scratch;
    uint8_t *pinned, *bounce; /* one piece: the buffers, then what reading back takes */
    struct sl_cuda_stream *stream;
    struct sl_cuda_event *read_event;
    bool acquired;
    pthread_mutex_t lock;
    pthread_cond_t moved; /* a buffer is free, a note told, or it failed */
    struct {
        struct buffer buffers[BUFFERS_MAX];
        uint64_t last_number, last_order;
        struct waiting_note *notes;
        size_t first_note, note_count, note_capacity;
        bool telling; /* one that was taken from the list */
        struct sl_err err;
    } locked;
};

/* ---- buffers; with the lock ----------------------------------------------------------------- */

static void close_buffer(struct sl_gpu_ring *ring, struct buffer *buffer)
{
    if (buffer->state != OPEN)
        return;
    if (buffer->writers) {
        buffer->closes = true;
        return;
    }
    buffer->state = CLOSED;
    buffer->closes = false;
    buffer->order = ++ring->locked.last_order;
}

/* What so many bytes of a buffer are on the device. */
static uint64_t bytes_there(const struct sl_gpu_shape *shape, uint64_t bytes)
{
    return shape ? bytes / shape->in_bytes * shape->out_bytes : bytes;
}

static uint64_t end_of(const struct buffer *buffer)
{
    return buffer->offset + bytes_there(buffer->shape, buffer->used);
}

static bool overlaps(const struct buffer *buffer, uint32_t file, uint64_t offset, uint64_t bytes)
{
    return buffer->file == file && buffer->offset < offset + bytes && offset < end_of(buffer);
}

/* One that these bytes continue; others that have the same bytes go before. */
static struct buffer *find_open(struct sl_gpu_ring *ring, const struct sl_gpu_shape *shape,
                                uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct buffer *found = NULL;
    for (unsigned i = 0; i < ring->count; i++) {
        struct buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state != OPEN || buffer->file != file)
            continue;
        if (overlaps(buffer, file, offset, bytes_there(shape, bytes)))
            close_buffer(ring, buffer);
        else if (!buffer->closes && buffer->shape == shape && end_of(buffer) == offset &&
                 bytes <= ring->buffer_bytes - buffer->used)
            found = buffer;
    }
    return found;
}

static struct buffer *take_free(struct sl_gpu_ring *ring)
{
    for (unsigned i = 0; i < ring->count; i++)
        if (ring->locked.buffers[i].state == FREE)
            return &ring->locked.buffers[i];
    return NULL;
}

/* Nothing is free: the oldest that is open goes. */
static void close_oldest(struct sl_gpu_ring *ring)
{
    struct buffer *oldest = NULL;
    for (unsigned i = 0; i < ring->count; i++) {
        struct buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state == CLOSED)
            return; /* one is about to go */
        if (buffer->state == OPEN && !buffer->closes &&
            (!oldest || buffer->number < oldest->number))
            oldest = buffer;
    }
    if (oldest)
        close_buffer(ring, oldest);
}

static struct buffer *open_buffer(struct sl_gpu_ring *ring, const struct sl_gpu_shape *shape,
                                  uint32_t file, uint64_t offset)
{
    struct buffer *buffer = take_free(ring);
    if (!buffer)
        return NULL;
    buffer->state = OPEN;
    buffer->closes = false;
    buffer->file = file;
    buffer->shape = shape;
    buffer->offset = offset;
    buffer->used = 0;
    buffer->number = ++ring->locked.last_number;
    buffer->opened_ns = sl_now_ns();
    sl_gpu_poke(ring->gpu); /* it will be old once */
    return buffer;
}

static int check_going(struct sl_gpu_ring *ring, struct sl_err *err)
{
    if (ring->locked.err.kind) {
        if (err)
            *err = ring->locked.err;
        return -1;
    }
    return sl_cancel_check(ring->cancel, err);
}

int sl_gpu_ring_check(struct sl_gpu_ring *ring, struct sl_err *err)
{
    SL_LOCKED(&ring->lock);
    return check_going(ring, err);
}

static void wait_a_while(struct sl_gpu_ring *ring)
{
    uint64_t when = sl_now_ns() + WAIT_SLICE_MS * SL_NS_PER_MS;
    const struct timespec at = {(time_t)(when / SL_NS_PER_S), (long)(when % SL_NS_PER_S)};
    pthread_cond_timedwait(&ring->moved, &ring->lock, &at);
}

int sl_gpu_ring_reserve(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, uint64_t bytes,
                        uint8_t **data, struct sl_err *err)
{
    return sl_gpu_ring_reserve_shaped(ring, NULL, file, offset, bytes, data, err);
}

int sl_gpu_ring_reserve_shaped(struct sl_gpu_ring *ring, const struct sl_gpu_shape *shape,
                               uint32_t file, uint64_t offset, uint64_t bytes, uint8_t **data,
                               struct sl_err *err)
{
    if (file >= ring->file_count || bytes > ring->buffer_bytes)
        return sl_fail(err, SL_E_INTERNAL, "%llu bytes of file %u do not fit the staging ring",
                       (unsigned long long)bytes, file);
    SL_LOCKED(&ring->lock);
    struct buffer *buffer;
    while (!(buffer = find_open(ring, shape, file, offset, bytes)) &&
           !(buffer = open_buffer(ring, shape, file, offset))) {
        if (check_going(ring, err) < 0)
            return -1;
        close_oldest(ring);
        sl_gpu_poke(ring->gpu);
        wait_a_while(ring);
    }
    if (check_going(ring, err) < 0)
        return -1;
    *data = buffer->data + buffer->used;
    buffer->used += bytes;
    buffer->writers++;
    return 0;
}

void sl_gpu_ring_commit(struct sl_gpu_ring *ring, const uint8_t *data)
{
    bool closed;
    {
        SL_LOCKED(&ring->lock);
        struct buffer *buffer = &ring->locked.buffers[(data - ring->pinned) / ring->buffer_bytes];
        buffer->writers--;
        if (buffer->closes || buffer->used == ring->buffer_bytes)
            close_buffer(ring, buffer);
        closed = buffer->state == CLOSED;
    }
    if (closed)
        sl_gpu_poke(ring->gpu);
}

/* ---- notes ---------------------------------------------------------------------------------- */

static bool continues(const struct waiting_note *before, const struct sl_gpu_note *note)
{
    return !note->subject && !before->note.subject && before->note.tell == note->tell &&
           before->note.arg == note->arg && before->note.file == note->file &&
           before->note.offset + before->note.bytes == note->offset;
}

static int add_note(struct sl_gpu_ring *ring, const struct sl_gpu_note *note, struct sl_err *err)
{
    SL_LOCKED(&ring->lock);
    size_t end = ring->locked.first_note + ring->locked.note_count;
    if (ring->locked.note_count && continues(&ring->locked.notes[end - 1], note)) {
        ring->locked.notes[end - 1].note.bytes += note->bytes;
        ring->locked.notes[end - 1].upto = ring->locked.last_number;
        return 0;
    }
    if (ring->locked.first_note && end == ring->locked.note_capacity) {
        memmove(ring->locked.notes, ring->locked.notes + ring->locked.first_note,
                ring->locked.note_count * sizeof(*ring->locked.notes));
        ring->locked.first_note = 0;
        end = ring->locked.note_count;
    }
    if (sl_grow(&ring->locked.notes, &ring->locked.note_capacity, end + 1,
                sizeof(*ring->locked.notes), err) < 0)
        return -1;
    ring->locked.notes[end] = (struct waiting_note){*note, ring->locked.last_number};
    ring->locked.note_count++;
    return 0;
}

void sl_gpu_ring_fail(struct sl_gpu_ring *ring, const struct sl_err *why)
{
    SL_LOCKED(&ring->lock);
    if (!ring->locked.err.kind)
        ring->locked.err = *why;
    pthread_cond_broadcast(&ring->moved);
}

void sl_gpu_ring_note(struct sl_gpu_ring *ring, const struct sl_gpu_note *note)
{
    struct sl_err err = SL_ERR_INIT;
    if (add_note(ring, note, &err) < 0)
        sl_gpu_ring_fail(ring, &err);
    sl_gpu_poke(ring->gpu);
}

/* The lowest number of what is not on the device yet; with the lock. */
static uint64_t lowest_outstanding(const struct sl_gpu_ring *ring)
{
    uint64_t lowest = UINT64_MAX;
    for (unsigned i = 0; i < ring->count; i++)
        if (ring->locked.buffers[i].state != FREE)
            lowest = SL_MIN(lowest, ring->locked.buffers[i].number);
    return lowest;
}

static bool take_note(struct sl_gpu_ring *ring, struct sl_gpu_note *note)
{
    SL_LOCKED(&ring->lock);
    if (!ring->locked.note_count || ring->locked.err.kind ||
        ring->locked.notes[ring->locked.first_note].upto >= lowest_outstanding(ring))
        return false;
    *note = ring->locked.notes[ring->locked.first_note++].note;
    if (--ring->locked.note_count == 0)
        ring->locked.first_note = 0;
    ring->locked.telling = true;
    return true;
}

static void tell_notes(struct sl_gpu_ring *ring)
{
    struct sl_gpu_note note;
    while (take_note(ring, &note)) {
        note.tell(note.arg, &note);
        SL_LOCKED(&ring->lock);
        ring->locked.telling = false;
        pthread_cond_broadcast(&ring->moved);
    }
}

/* ---- copies: the GPU's thread --------------------------------------------------------------- */

static bool has_failed(struct sl_gpu_ring *ring)
{
    SL_LOCKED(&ring->lock);
    return ring->locked.err.kind != SL_OK;
}

/* The one of this state that comes first; NULL: none. */
static struct buffer *first_of(struct sl_gpu_ring *ring, enum buffer_state state)
{
    struct buffer *first = NULL;
    SL_LOCKED(&ring->lock);
    for (unsigned i = 0; i < ring->count; i++) {
        struct buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state == state && (!first || buffer->order < first->order))
            first = buffer;
    }
    return first;
}

static void set_state(struct sl_gpu_ring *ring, struct buffer *buffer, enum buffer_state state)
{
    SL_LOCKED(&ring->lock);
    buffer->state = state;
    if (state == FREE)
        pthread_cond_broadcast(&ring->moved);
}

/* What is old closes. Nanoseconds until the next is. */
static uint64_t close_old(struct sl_gpu_ring *ring)
{
    uint64_t now = sl_now_ns(), next = SL_GPU_IDLE;
    SL_LOCKED(&ring->lock);
    for (unsigned i = 0; i < ring->count; i++) {
        struct buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state != OPEN || buffer->closes)
            continue;
        uint64_t age = now - buffer->opened_ns;
        if (age >= ring->age_ns)
            close_buffer(ring, buffer);
        else
            next = SL_MIN(next, ring->age_ns - age);
    }
    return next;
}

/* What has a shape goes by way of scratch memory; one piece of that is enough, since the next copy
 * into it comes behind the work in the same stream. */
static int begin_copy(struct sl_gpu_ring *ring, const struct buffer *buffer, struct sl_err *err)
{
    const struct sl_gpu_shape *shape = buffer->shape;
    uint64_t place = ring->addresses[buffer->file] + buffer->offset;
    uint64_t to = shape ? ring->scratch : place;
    if (sl_gpu_check(ring->gpu,
                     ring->gpu->cuda->copy_to_device(to, buffer->data, buffer->used, ring->stream),
                     err, "copy %llu bytes", (unsigned long long)buffer->used) < 0)
        return -1;
    return shape ? shape->start(shape->arg, shape, ring->stream, to, place,
                                buffer->used / shape->in_bytes, err)
                 : 0;
}

static int begin_copies(struct sl_gpu_ring *ring, struct sl_err *err)
{
    const struct sl_cuda *cuda = ring->gpu->cuda;
    struct buffer *buffer;
    while ((buffer = first_of(ring, CLOSED))) {
        if (begin_copy(ring, buffer, err) < 0 ||
            sl_gpu_check(ring->gpu, cuda->event_record(buffer->event, ring->stream), err,
                         "record an event") < 0)
            return -1;
        set_state(ring, buffer, BUSY);
    }
    return 0;
}

/* 1: copies are still under way. */
static int end_copies(struct sl_gpu_ring *ring, struct sl_err *err)
{
    struct buffer *buffer;
    while ((buffer = first_of(ring, BUSY))) {
        int result = ring->gpu->cuda->event_query(buffer->event);
        if (result == SL_CUDA_NOT_READY)
            return 1;
        if (sl_gpu_check(ring->gpu, result, err, "finish a copy") < 0)
            return -1;
        sl_metric_add(SL_M_GPU_COPIED_BYTES, (int64_t)buffer->used);
        set_state(ring, buffer, FREE);
    }
    return 0;
}

static uint64_t turn(struct sl_gpu_chore *chore)
{
    struct sl_gpu_ring *ring = (struct sl_gpu_ring *)chore;
    struct sl_err err = SL_ERR_INIT;
    if (has_failed(ring))
        return SL_GPU_IDLE;
    uint64_t next = close_old(ring);
    int going = begin_copies(ring, &err) < 0 ? -1 : end_copies(ring, &err);
    if (going < 0) {
        sl_gpu_ring_fail(ring, &err);
        return SL_GPU_IDLE;
    }
    tell_notes(ring);
    return going ? SL_MIN(next, (uint64_t)POLL_NS) : next;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* Everything that is open closes, and nothing is left but notes. */
static int drain(struct sl_gpu_ring *ring, bool notes, struct sl_err *err)
{
    SL_LOCKED(&ring->lock);
    while (lowest_outstanding(ring) != UINT64_MAX ||
           (notes && (ring->locked.note_count || ring->locked.telling))) {
        if (check_going(ring, err) < 0)
            return -1;
        for (unsigned i = 0; i < ring->count; i++)
            close_buffer(ring, &ring->locked.buffers[i]);
        sl_gpu_poke(ring->gpu);
        wait_a_while(ring);
    }
    return check_going(ring, err);
}

int sl_gpu_ring_finish(struct sl_gpu_ring *ring, struct sl_err *err)
{
    return drain(ring, true, err);
}

struct reading {
    struct sl_gpu_ring *ring;
    uint64_t address;
    uint8_t *data;
    size_t bytes;
};

static int read_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    const struct reading *reading = arg;
    struct sl_gpu_ring *ring = reading->ring;
    for (size_t done = 0; done < reading->bytes;) {
        size_t bytes = SL_MIN(reading->bytes - done, (size_t)BOUNCE_BYTES);
        if (sl_gpu_check(
                gpu,
                gpu->cuda->copy_to_host(ring->bounce, reading->address + done, bytes, ring->stream),
                err, "read %zu bytes back", bytes) < 0 ||
            sl_gpu_check(gpu, gpu->cuda->stream_synchronize(ring->stream), err,
                         "wait for %zu bytes", bytes) < 0)
            return -1;
        memcpy(reading->data + done, ring->bounce, bytes);
        done += bytes;
    }
    return 0;
}

int sl_gpu_ring_read(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, void *data,
                     size_t bytes, struct sl_err *err)
{
    struct reading reading = {ring, ring->addresses[file] + offset, data, bytes};
    if (drain(ring, false, err) < 0)
        return -1;
    return sl_gpu_call(ring->gpu, read_task, &reading, false, err);
}

/* ---- life: the GPU's thread ----------------------------------------------------------------- */

/* Nobody is to see what was in the memory before, between tensors and in those without bytes. */
static int zero_files(struct sl_gpu_ring *ring, struct sl_err *err)
{
    for (size_t i = 0; ring->zeroed && i < ring->file_count; i++)
        if (ring->addresses[i] && ring->zeroed[i] &&
            sl_gpu_check(
                ring->gpu,
                ring->gpu->cuda->set_bytes(ring->addresses[i], 0, ring->zeroed[i], ring->stream),
                err, "zero %llu bytes", (unsigned long long)ring->zeroed[i]) < 0)
            return -1;
    ring->zeroed = NULL;
    return 0;
}

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_ring *ring = arg;
    const struct sl_cuda *cuda = gpu->cuda;
    enum { EVENT = SL_CUDA_EVENT_DISABLE_TIMING | SL_CUDA_EVENT_BLOCKING_SYNC };
    size_t bytes = ring->count * ring->buffer_bytes + BOUNCE_BYTES;
    void *pinned = NULL;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    ring->acquired = true;
    if (sl_gpu_check(gpu, cuda->host_alloc(&pinned, bytes, SL_CUDA_HOST_PORTABLE), err,
                     "pin %zu bytes of host memory", bytes) < 0)
        return -1;
    ring->pinned = pinned;
    ring->bounce = ring->pinned + ring->count * ring->buffer_bytes;
    if (sl_gpu_check(gpu, cuda->stream_create(&ring->stream, SL_CUDA_STREAM_NON_BLOCKING), err,
                     "make a stream") < 0)
        return -1;
    for (unsigned i = 0; i < ring->count; i++) {
        struct buffer *buffer = &ring->locked.buffers[i];
        buffer->data = ring->pinned + i * ring->buffer_bytes;
        if (sl_gpu_check(gpu, cuda->event_create(&buffer->event, EVENT), err, "make an event") < 0)
            return -1;
    }
    if (zero_files(ring, err) < 0)
        return -1;
    sl_gpu_add_chore(gpu, &ring->chore);
    return 0;
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_ring *ring = arg;
    const struct sl_cuda *cuda = gpu->cuda;
    (void)err;
    sl_gpu_remove_chore(gpu, &ring->chore);
    if (ring->stream) {
        cuda->stream_synchronize(ring->stream);
        cuda->stream_destroy(ring->stream);
    }
    for (unsigned i = 0; i < ring->count; i++)
        if (ring->locked.buffers[i].event)
            cuda->event_destroy(ring->locked.buffers[i].event);
    if (ring->pinned)
        cuda->host_free(ring->pinned);
    if (ring->acquired)
        sl_gpu_release(gpu);
    return 0;
}

struct sl_gpu_ring *sl_gpu_ring_new(struct sl_gpu *gpu, const struct sl_gpu_ring_config *config,
                                    struct sl_err *err)
{
    pthread_condattr_t clock; /* as sl_now_ns() */
    struct sl_gpu_ring *ring = sl_alloc(sizeof(*ring), err);
    if (!ring)
        return NULL;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&ring->lock, NULL);
    pthread_cond_init(&ring->moved, &clock);
    pthread_condattr_destroy(&clock);
    ring->chore.turn = turn;
    ring->gpu = gpu;
    ring->addresses = config->addresses;
    ring->zeroed = config->bytes;
    ring->file_count = config->file_count;
    ring->cancel = config->cancel;
    ring->count =
        SL_MIN(config->buffers ? config->buffers : (unsigned)BUFFERS, (unsigned)BUFFERS_MAX);
    ring->buffer_bytes =
        config->buffer_bytes ? config->buffer_bytes : (uint64_t)SL_GPU_RING_BUFFER_BYTES;
    ring->scratch = config->scratch;
    ring->age_ns = (config->age_ms ? config->age_ms : AGE_MS) * SL_NS_PER_MS;
    if (sl_gpu_call(gpu, make_task, ring, false, err) == 0)
        return ring;
    sl_gpu_ring_free(ring);
    return NULL;
}

void sl_gpu_ring_free(struct sl_gpu_ring *ring)
{
    if (!ring)
        return;
    sl_gpu_call(ring->gpu, free_task, ring, true, NULL);
    pthread_mutex_destroy(&ring->lock);
    pthread_cond_destroy(&ring->moved);
    free(ring->locked.notes);
    free(ring);
}

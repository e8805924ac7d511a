/*
 *              bytes of a stretch of a file                 it is due, and
 *              that no open one continues                   nobody writes into it
 *     FREE --------------------------------> OPEN -----------------------------------> CLOSED
 *      ^                                                                                 |
 *      '---------------- each queue that it is for has copied it to its GPU -------------'
 *
 *     OPEN    open_buffer(), close_part()
 *     CLOSED  sl_gpu_ring_close()
 *     FREE    note_landed()
 *
 * It is due to close when it is full, when it is old, when somebody needs one and none is free nor
 * on its way, or when its bytes are put again elsewhere: copies begin in the order of closing, in
 * one stream a queue, and what takes a shape does so in the same order, in another; so what was put
 * later lands later. Of an old one that somebody still writes into, what lies before that goes by
 * itself (is_held()).
 *
 * Buffers are numbered as they open, and a note of a queue waits for all with a number up to the
 * highest of its time. A buffer is closed a few milliseconds after it was opened however few bytes
 * it has, so no note waits long for a reader that is slow. Queues do not wait for each other but
 * for buffers: the slowest GPU sets the pace.
 *
 * All calls to the driver are in this file's last part, and made by the GPU's thread.
 */
#include <assert.h>
#include <string.h>

#include "gpu_ring_parts.h"
#include "metrics.h"

enum {
    POLL_NS = 50 * 1000,
    WAIT_SLICE_MS = 100,
};

void sl_gpu_ring_poke(const struct sl_gpu_ring *ring)
{
    for (unsigned i = 0; i < ring->queue_count; i++)
        sl_gpu_poke(ring->queues[i].gpu);
}

/* ---- states; with the lock ------------------------------------------------------------------ */

static void set_state(struct sl_gpu_buffer *buffer, enum sl_gpu_buffer_state to)
{
#ifndef NDEBUG
    static const enum sl_gpu_buffer_state next[] = {[SL_BUFFER_FREE] = SL_BUFFER_OPEN,
                                                    [SL_BUFFER_OPEN] = SL_BUFFER_CLOSED,
                                                    [SL_BUFFER_CLOSED] = SL_BUFFER_FREE};
    assert(next[buffer->state] == to);
#endif
    buffer->state = to;
}

#ifndef NDEBUG
static void check_buffer(const struct sl_gpu_ring *ring, unsigned number)
{
    const struct sl_gpu_buffer *buffer = &ring->locked.buffers[number];
    bool is_part = number >= ring->count;
    /* 1: a free one has nothing of anybody, and all of its memory. */
    if (buffer->state == SL_BUFFER_FREE) {
        assert(!buffer->writers && !buffer->begun && !buffer->landed && !buffer->skipped);
        assert(is_part || !ring->pinned ||
               buffer->data == ring->pinned + number * ring->buffer_bytes);
        return;
    }
    /* 2: it is for somebody, was numbered, and its bytes lie in its memory. */
    assert(buffer->queues && buffer->number && buffer->number <= ring->locked.last_number);
    assert(buffer->skipped + buffer->used <= ring->buffer_bytes);
    /* 3: of what is written no more is told than is there. */
    assert(!buffer->writers || buffer->floor <= buffer->used);
    if (buffer->state == SL_BUFFER_OPEN) {
        /* 4: nothing is copied before it closes, and it closes later only for its writers. */
        assert(!buffer->begun && !buffer->landed && !is_part);
        assert(!buffer->closes || buffer->writers);
        return;
    }
    /* 5: nobody writes into what goes; a copy lands that was begun, of a queue that it is for. */
    assert(!buffer->writers && !buffer->closes && buffer->order);
    assert((buffer->begun & ~buffer->queues) == 0 && (buffer->landed & ~buffer->begun) == 0);
    assert(buffer->landed != buffer->queues);
    /* 6: closings have an order. */
    for (unsigned i = 0; i < number; i++)
        assert(ring->locked.buffers[i].state != SL_BUFFER_CLOSED ||
               ring->locked.buffers[i].order != buffer->order);
}

void gpu_ring_invariants(const struct sl_gpu_ring *ring)
{
    for (unsigned i = 0; i < ring->copies; i++)
        check_buffer(ring, i);
    /* 7: of four buffers three are lent at most. */
    unsigned lent = 0;
    for (unsigned i = 0; i < ring->count; i++)
        lent += ring->locked.buffers[i].state == SL_BUFFER_OPEN && ring->locked.buffers[i].lent;
    assert(lent <= ring->count * 3 / 4);
    /* 8: a note waits for what was numbered by then. */
    for (unsigned i = 0; i < ring->queue_count; i++) {
        const struct sl_gpu_queue *queue = &ring->queues[i];
        for (size_t at = 0; at < queue->locked.note_count; at++)
            assert(queue->locked.notes[queue->locked.first_note + at].upto <=
                   ring->locked.last_number);
    }
}
#endif

/* ---- buffers; with the lock ----------------------------------------------------------------- */

void sl_gpu_ring_close(struct sl_gpu_ring *ring, struct sl_gpu_buffer *buffer)
{
    if (buffer->state != SL_BUFFER_OPEN)
        return;
    if (buffer->writers) {
        buffer->closes = true;
        return;
    }
    set_state(buffer, SL_BUFFER_CLOSED);
    buffer->closes = false;
    buffer->order = ++ring->locked.last_order;
}

/* Its writer's source may be slow: nobody else writes there meanwhile, since what came behind such
 * a window could not go before it has. */
static bool is_held(const struct sl_gpu_buffer *buffer)
{
    return buffer->lent && buffer->writers;
}

/* Of one that is held, what lies before the first byte that is not written yet goes by itself, with
 * the buffer's number: who is told of it is told in time however long a source takes over what was
 * lent behind it. The rest is as a buffer that opens now. Its memory is free when that has landed,
 * which is later. */
static bool close_part(struct sl_gpu_ring *ring, struct sl_gpu_buffer *buffer)
{
    struct sl_gpu_buffer *part = NULL;
    for (unsigned i = ring->count; i < ring->copies && !part; i++)
        if (ring->locked.buffers[i].state == SL_BUFFER_FREE)
            part = &ring->locked.buffers[i];
    if (!part)
        return false;
    *part = (struct sl_gpu_buffer){.data = buffer->data,
                                   .file = buffer->file,
                                   .offset = buffer->offset,
                                   .used = buffer->floor,
                                   .number = buffer->number,
                                   .queues = buffer->queues};
    set_state(part, SL_BUFFER_OPEN);
    sl_gpu_ring_close(ring, part);
    buffer->data += buffer->floor;
    buffer->skipped += buffer->floor;
    buffer->offset += buffer->floor;
    buffer->used -= buffer->floor;
    buffer->floor = 0;
    return true;
}

/* It is held. Nothing that was told waits any more for what a source takes long over, and nothing
 * that is put from now on goes before what has come. False: not now, as many as may go ahead of
 * their buffers are on their way. */
static bool let_go(struct sl_gpu_ring *ring, struct sl_gpu_buffer *buffer)
{
    if (buffer->floor && !close_part(ring, buffer))
        return false;
    buffer->number = ++ring->locked.last_number;
    buffer->opened_ns = sl_now_ns();
    return true;
}

/* What is to be put. */
struct putting {
    const struct sl_gpu_shape *shape;
    uint32_t queues, file;
    uint64_t offset, bytes;
};

/* What so many bytes of a buffer are on the device. */
static uint64_t bytes_there(const struct sl_gpu_shape *shape, uint64_t bytes)
{
    return shape ? bytes / shape->in_bytes * shape->out_bytes : bytes;
}

uint64_t sl_gpu_buffer_end(const struct sl_gpu_buffer *buffer)
{
    return buffer->offset + bytes_there(buffer->shape, buffer->used);
}

static bool overlaps(const struct sl_gpu_buffer *buffer, const struct putting *putting)
{
    return buffer->offset < putting->offset + bytes_there(putting->shape, putting->bytes) &&
           putting->offset < sl_gpu_buffer_end(buffer);
}

static bool continues_in(const struct sl_gpu_buffer *buffer, const struct putting *putting)
{
    return buffer->shape == putting->shape && buffer->queues == putting->queues &&
           sl_gpu_buffer_end(buffer) == putting->offset;
}

/* One that these bytes continue; others that have the same bytes go before. *later: what must go
 * before cannot yet. */
static struct sl_gpu_buffer *find_open(struct sl_gpu_ring *ring, const struct putting *putting,
                                       bool *later)
{
    struct sl_gpu_buffer *found = NULL;
    *later = false;
    for (unsigned i = 0; i < ring->count; i++) {
        struct sl_gpu_buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state != SL_BUFFER_OPEN || buffer->file != putting->file)
            continue;
        if (overlaps(buffer, putting) && is_held(buffer) && !let_go(ring, buffer)) {
            *later = true;
            return NULL;
        }
        if (overlaps(buffer, putting))
            sl_gpu_ring_close(ring, buffer);
        else if (!buffer->closes && !is_held(buffer) && continues_in(buffer, putting) &&
                 putting->bytes <= ring->buffer_bytes - buffer->skipped - buffer->used)
            found = buffer;
    }
    return found;
}

static struct sl_gpu_buffer *take_free(struct sl_gpu_ring *ring)
{
    for (unsigned i = 0; i < ring->count; i++)
        if (ring->locked.buffers[i].state == SL_BUFFER_FREE)
            return &ring->locked.buffers[i];
    return NULL;
}

/* Nothing is free: the oldest that is open goes. True: one did. */
static bool close_oldest(struct sl_gpu_ring *ring)
{
    struct sl_gpu_buffer *oldest = NULL;
    for (unsigned i = 0; i < ring->count; i++) {
        struct sl_gpu_buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state == SL_BUFFER_CLOSED)
            return false; /* it will be free: whole buffers are what the link is fast with */
        if (buffer->state == SL_BUFFER_OPEN && !buffer->closes && !is_held(buffer) &&
            (!oldest || buffer->number < oldest->number))
            oldest = buffer;
    }
    if (oldest)
        sl_gpu_ring_close(ring, oldest);
    return oldest;
}

static struct sl_gpu_buffer *open_buffer(struct sl_gpu_ring *ring, const struct putting *putting)
{
    struct sl_gpu_buffer *buffer = take_free(ring);
    if (!buffer)
        return NULL;
    set_state(buffer, SL_BUFFER_OPEN);
    buffer->closes = buffer->lent = false;
    buffer->file = putting->file;
    buffer->shape = putting->shape;
    buffer->queues = putting->queues;
    buffer->offset = putting->offset;
    buffer->used = 0;
    buffer->number = ++ring->locked.last_number;
    buffer->opened_ns = sl_now_ns();
    sl_gpu_ring_poke(ring); /* it will be old once */
    return buffer;
}

int sl_gpu_ring_going(struct sl_gpu_ring *ring, struct sl_err *err)
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
    RING_LOCKED(ring);
    return sl_gpu_ring_going(ring, err);
}

static void wait_for(struct sl_gpu_ring *ring, pthread_cond_t *what)
{
    uint64_t when = sl_now_ns() + WAIT_SLICE_MS * SL_NS_PER_MS;
    const struct timespec at = {(time_t)(when / SL_NS_PER_S), (long)(when % SL_NS_PER_S)};
    gpu_ring_invariants(ring);
    pthread_cond_timedwait(what, &ring->lock, &at);
    gpu_ring_invariants(ring);
}

void sl_gpu_ring_wait(struct sl_gpu_ring *ring)
{
    wait_for(ring, &ring->moved);
}

static int check_fits(const struct sl_gpu_ring *ring, const struct putting *putting,
                      struct sl_err *err)
{
    if (putting->file < ring->file_count && putting->bytes <= ring->buffer_bytes)
        return 0;
    return sl_fail(err, SL_E_INTERNAL, "%llu bytes of file %u do not fit the staging ring",
                   (unsigned long long)putting->bytes, putting->file);
}

static uint8_t *take_place(struct sl_gpu_buffer *buffer, const struct putting *putting)
{
    uint8_t *data = buffer->data + buffer->used;
    if (!buffer->writers++)
        buffer->floor = buffer->used;
    buffer->used += putting->bytes;
    return data;
}

/* NULL: not now, and what can be done about that is. With the lock. */
static uint8_t *find_place(struct sl_gpu_ring *ring, const struct putting *putting)
{
    bool later;
    struct sl_gpu_buffer *buffer = find_open(ring, putting, &later);
    if (later)
        return NULL; /* nor is anything to be done: it is on its way */
    if (!buffer)
        buffer = open_buffer(ring, putting);
    if (buffer)
        return take_place(buffer, putting);
    if (close_oldest(ring))
        sl_gpu_ring_poke(ring);
    return NULL;
}

/* A buffer that is free wakes one of those who wait: whoever did not need it after all passes it
 * on. */
static int reserve(struct sl_gpu_ring *ring, const struct putting *putting, uint8_t **data,
                   struct sl_err *err)
{
    bool waited = false;
    if (check_fits(ring, putting, err) < 0)
        return -1;
    RING_LOCKED(ring);
    for (;; waited = true) {
        if (sl_gpu_ring_going(ring, err) < 0)
            return -1;
        if ((*data = find_place(ring, putting)))
            break;
        wait_for(ring, &ring->freed);
    }
    if (waited && take_free(ring))
        pthread_cond_signal(&ring->freed);
    return 0;
}

/* Of four buffers three may be lent. Whoever reserves may wait for the fourth: what is in it is
 * never held up by a source. */
static bool may_lend(const struct sl_gpu_ring *ring)
{
    unsigned lent = 0;
    for (unsigned i = 0; i < ring->count; i++)
        lent += ring->locked.buffers[i].state == SL_BUFFER_OPEN && ring->locked.buffers[i].lent;
    return lent < ring->count * 3 / 4;
}

static uint32_t all_queues(const struct sl_gpu_ring *ring)
{
    return (uint32_t)((1ull << ring->queue_count) - 1);
}

uint8_t *sl_gpu_ring_try(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const struct putting putting = {NULL, all_queues(ring), file, offset, bytes};
    RING_LOCKED(ring);
    return sl_gpu_ring_going(ring, NULL) < 0 ? NULL : find_place(ring, &putting);
}

int sl_gpu_ring_reserve(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, uint64_t bytes,
                        uint8_t **data, struct sl_err *err)
{
    const struct putting putting = {NULL, all_queues(ring), file, offset, bytes};
    if (check_fits(ring, &putting, err) < 0)
        return -1;
    *data = sl_gpu_ring_try(ring, file, offset, bytes);
    return *data ? 0 : reserve(ring, &putting, data, err);
}

int sl_gpu_ring_lend(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, uint64_t bytes,
                     uint8_t **data, struct sl_err *err)
{
    const struct putting putting = {NULL, all_queues(ring), file, offset, bytes};
    *data = NULL;
    if (check_fits(ring, &putting, err) < 0)
        return -1;
    RING_LOCKED(ring);
    if (sl_gpu_ring_going(ring, err) < 0)
        return -1;
    if (ring->scratch)
        return 0;
    bool later;
    struct sl_gpu_buffer *buffer = find_open(ring, &putting, &later);
    if (buffer && buffer->writers)
        buffer = NULL; /* as who is lent it, they write there alone */
    if (later || (!(buffer && buffer->lent) && !may_lend(ring)))
        return 0;
    if (!buffer && !(buffer = open_buffer(ring, &putting)))
        return 0;
    buffer->lent = true;
    *data = take_place(buffer, &putting);
    return 0;
}

int sl_gpu_ring_reserve_shaped(struct sl_gpu_ring *ring, const struct sl_gpu_shape *shape,
                               uint32_t file, uint64_t offset, uint64_t bytes, uint8_t **data,
                               struct sl_err *err)
{
    const struct putting putting = {shape, all_queues(ring), file, offset, bytes};
    return reserve(ring, &putting, data, err);
}

int sl_gpu_ring_reserve_alone(struct sl_gpu_ring *ring, unsigned queue, uint32_t file,
                              uint64_t offset, uint64_t bytes, uint8_t **data, struct sl_err *err)
{
    const struct putting putting = {NULL, ring->queues[queue].bit, file, offset, bytes};
    return reserve(ring, &putting, data, err);
}

void sl_gpu_ring_commit(struct sl_gpu_ring *ring, const uint8_t *data)
{
    bool closed;
    {
        RING_LOCKED(ring);
        struct sl_gpu_buffer *buffer =
            &ring->locked.buffers[(data - ring->pinned) / ring->buffer_bytes];
        buffer->writers--;
        if (buffer->closes || buffer->skipped + buffer->used == ring->buffer_bytes)
            sl_gpu_ring_close(ring, buffer);
        closed = buffer->state == SL_BUFFER_CLOSED;
    }
    if (closed)
        sl_gpu_ring_poke(ring);
}

/* ---- notes ---------------------------------------------------------------------------------- */

static bool continues(const struct sl_gpu_waiting_note *before, const struct sl_gpu_note *note)
{
    return !note->subject && !before->note.subject && before->note.deliver == note->deliver &&
           before->note.arg == note->arg && before->note.file == note->file &&
           before->note.offset + before->note.bytes == note->offset;
}

/* 1: it can be told at once. What waits for a copy is told in the turn in which that ends. */
static int add_note(struct sl_gpu_ring *ring, const struct sl_gpu_note *note, struct sl_err *err)
{
    struct sl_gpu_queue *queue = &ring->queues[note->queue];
    RING_LOCKED(ring);
    int due = sl_gpu_ring_lowest(queue) > ring->locked.last_number;
    size_t end = queue->locked.first_note + queue->locked.note_count;
    if (queue->locked.note_count && continues(&queue->locked.notes[end - 1], note)) {
        queue->locked.notes[end - 1].note.bytes += note->bytes;
        queue->locked.notes[end - 1].upto = ring->locked.last_number;
        return due;
    }
    if (queue->locked.first_note && end == queue->locked.note_capacity) {
        memmove(queue->locked.notes, queue->locked.notes + queue->locked.first_note,
                queue->locked.note_count * sizeof(*queue->locked.notes));
        queue->locked.first_note = 0;
        end = queue->locked.note_count;
    }
    if (sl_grow(&queue->locked.notes, &queue->locked.note_capacity, end + 1,
                sizeof(*queue->locked.notes), err) < 0)
        return -1;
    queue->locked.notes[end] = (struct sl_gpu_waiting_note){*note, ring->locked.last_number};
    queue->locked.note_count++;
    return due;
}

void sl_gpu_ring_fail(struct sl_gpu_ring *ring, const struct sl_err *why)
{
    RING_LOCKED(ring);
    if (!ring->locked.err.kind)
        ring->locked.err = *why;
    pthread_cond_broadcast(&ring->moved);
    pthread_cond_broadcast(&ring->freed);
}

void sl_gpu_ring_note(struct sl_gpu_ring *ring, const struct sl_gpu_note *note)
{
    struct sl_err err = SL_ERR_INIT;
    int due = add_note(ring, note, &err);
    if (due < 0)
        sl_gpu_ring_fail(ring, &err);
    if (due)
        sl_gpu_poke(ring->queues[note->queue].gpu);
}

/* Is it on its way to this queue's GPU? With the lock. */
bool sl_gpu_ring_is_outstanding(const struct sl_gpu_buffer *buffer,
                                const struct sl_gpu_queue *queue)
{
    return buffer->state != SL_BUFFER_FREE && (buffer->queues & ~buffer->landed & queue->bit);
}

/* The lowest number of what is not on the device yet; with the lock. */
uint64_t sl_gpu_ring_lowest(const struct sl_gpu_queue *queue)
{
    uint64_t lowest = UINT64_MAX;
    for (unsigned i = 0; i < queue->ring->copies; i++)
        if (sl_gpu_ring_is_outstanding(&queue->ring->locked.buffers[i], queue))
            lowest = SL_MIN(lowest, queue->ring->locked.buffers[i].number);
    return lowest;
}

static bool take_note(struct sl_gpu_queue *queue, struct sl_gpu_note *note)
{
    RING_LOCKED(queue->ring);
    if (!queue->locked.note_count || queue->ring->locked.err.kind ||
        queue->locked.notes[queue->locked.first_note].upto >= sl_gpu_ring_lowest(queue))
        return false;
    *note = queue->locked.notes[queue->locked.first_note++].note;
    if (--queue->locked.note_count == 0)
        queue->locked.first_note = 0;
    queue->locked.delivering = true;
    return true;
}

static void deliver_notes(struct sl_gpu_queue *queue)
{
    struct sl_gpu_note note;
    while (take_note(queue, &note)) {
        note.deliver(note.arg, &note);
        RING_LOCKED(queue->ring);
        queue->locked.delivering = false;
        pthread_cond_broadcast(&queue->ring->moved);
    }
}

/* ---- copies: the GPU's thread --------------------------------------------------------------- */

static bool has_failed(struct sl_gpu_ring *ring)
{
    RING_LOCKED(ring);
    return ring->locked.err.kind != SL_OK;
}

/* The CLOSED one that comes first of those whose copy has begun, or has not; NULL: none. */
static struct sl_gpu_buffer *first_of(const struct sl_gpu_queue *queue, bool begun)
{
    struct sl_gpu_ring *ring = queue->ring;
    struct sl_gpu_buffer *first = NULL;
    RING_LOCKED(ring);
    for (unsigned i = 0; i < ring->copies; i++) {
        struct sl_gpu_buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state == SL_BUFFER_CLOSED && sl_gpu_ring_is_outstanding(buffer, queue) &&
            (bool)(buffer->begun & queue->bit) == begun && (!first || buffer->order < first->order))
            first = buffer;
    }
    return first;
}

static struct sl_cuda_event *event_of(const struct sl_gpu_queue *queue,
                                      const struct sl_gpu_buffer *buffer)
{
    return queue->events[buffer - queue->ring->locked.buffers];
}

static void note_begun(struct sl_gpu_queue *queue, struct sl_gpu_buffer *buffer)
{
    RING_LOCKED(queue->ring);
    buffer->begun |= queue->bit;
}

static void note_landed(struct sl_gpu_queue *queue, struct sl_gpu_buffer *buffer)
{
    RING_LOCKED(queue->ring);
    buffer->landed |= queue->bit;
    if (buffer->landed != buffer->queues)
        return;
    set_state(buffer, SL_BUFFER_FREE);
    buffer->begun = buffer->landed = 0;
    buffer->data -= buffer->skipped;
    buffer->skipped = 0;
    pthread_cond_broadcast(&queue->ring->moved);
    pthread_cond_signal(&queue->ring->freed);
}

/* What is old closes. Nanoseconds until the next is. */
static uint64_t close_old(struct sl_gpu_ring *ring)
{
    RING_LOCKED(ring); /* before the clock: what opens meanwhile would be of the future */
    uint64_t now = sl_now_ns(), next = SL_GPU_IDLE;
    for (unsigned i = 0; i < ring->count; i++) {
        struct sl_gpu_buffer *buffer = &ring->locked.buffers[i];
        if (buffer->state != SL_BUFFER_OPEN || buffer->closes)
            continue;
        uint64_t age = now - buffer->opened_ns;
        if (age >= ring->age_ns && is_held(buffer)) {
            let_go(ring, buffer);
            next = SL_MIN(next, ring->age_ns); /* more of it may be written by then */
        } else if (age >= ring->age_ns)
            sl_gpu_ring_close(ring, buffer);
        else
            next = SL_MIN(next, ring->age_ns - age);
    }
    return next;
}

static int record(struct sl_gpu_queue *queue, struct sl_cuda_event *event,
                  struct sl_cuda_stream *stream, struct sl_err *err)
{
    return sl_gpu_check(queue->gpu, queue->gpu->cuda->event_record(event, stream), err,
                        "record an event");
}

static int await(struct sl_gpu_queue *queue, struct sl_cuda_stream *stream,
                 struct sl_cuda_event *event, struct sl_err *err)
{
    return sl_gpu_check(queue->gpu, queue->gpu->cuda->stream_wait_event(stream, event, 0), err,
                        "order two streams");
}

static int copy(struct sl_gpu_queue *queue, const struct sl_gpu_buffer *buffer, uint64_t to,
                struct sl_err *err)
{
    return sl_gpu_check(
        queue->gpu, queue->gpu->cuda->copy_to_device(to, buffer->data, buffer->used, queue->stream),
        err, "copy %llu bytes", (unsigned long long)buffer->used);
}

/* What lands as it is comes behind what took its shape before, which may be in the same place. */
static int begin_plain(struct sl_gpu_queue *queue, const struct sl_gpu_buffer *buffer,
                       struct sl_err *err)
{
    const struct sl_gpu_scratch *last = sl_steal(&queue->last_shaped);
    if ((last && await(queue, queue->stream, last->shaped, err) < 0) ||
        copy(queue, buffer, queue->addresses[buffer->file] + buffer->offset, err) < 0)
        return -1;
    return record(queue, event_of(queue, buffer), queue->stream, err);
}

/* What has a shape goes by way of scratch memory, and takes it in a stream of its own: meanwhile
 * the next is copied into another piece. Nobody waits for what was never recorded. */
static int begin_shaped(struct sl_gpu_queue *queue, const struct sl_gpu_buffer *buffer,
                        struct sl_err *err)
{
    const struct sl_gpu_shape *shape = buffer->shape;
    struct sl_gpu_scratch *scratch =
        &queue->scratches[queue->shaped_count++ % SL_GPU_RING_SCRATCHES];
    if (await(queue, queue->stream, scratch->shaped, err) < 0 ||
        copy(queue, buffer, scratch->address, err) < 0 ||
        record(queue, scratch->copied, queue->stream, err) < 0 ||
        await(queue, queue->shaping, scratch->copied, err) < 0 ||
        shape->start(shape->arg, shape, queue->shaping, scratch->address,
                     queue->addresses[buffer->file] + buffer->offset,
                     buffer->used / shape->in_bytes, err) < 0 ||
        record(queue, scratch->shaped, queue->shaping, err) < 0)
        return -1;
    queue->last_shaped = scratch;
    return record(queue, event_of(queue, buffer), queue->shaping, err);
}

static int begin_copies(struct sl_gpu_queue *queue, struct sl_err *err)
{
    struct sl_gpu_buffer *buffer;
    while ((buffer = first_of(queue, false))) {
        int begun =
            buffer->shape ? begin_shaped(queue, buffer, err) : begin_plain(queue, buffer, err);
        if (begun < 0)
            return -1;
        note_begun(queue, buffer);
    }
    return 0;
}

/* 1: copies are still under way. */
static int end_copies(struct sl_gpu_queue *queue, struct sl_err *err)
{
    struct sl_gpu_buffer *buffer;
    while ((buffer = first_of(queue, true))) {
        int result = queue->gpu->cuda->event_query(event_of(queue, buffer));
        if (result == SL_CUDA_NOT_READY)
            return 1;
        if (sl_gpu_check(queue->gpu, result, err, "finish a copy") < 0)
            return -1;
        sl_metric_add(SL_M_GPU_COPIED_BYTES, (int64_t)buffer->used);
        note_landed(queue, buffer);
    }
    return 0;
}

uint64_t sl_gpu_queue_turn(struct sl_gpu_chore *chore)
{
    struct sl_gpu_queue *queue = (struct sl_gpu_queue *)chore;
    struct sl_err err = SL_ERR_INIT;
    if (has_failed(queue->ring))
        return SL_GPU_IDLE;
    uint64_t next = close_old(queue->ring);
    int going = begin_copies(queue, &err) < 0 ? -1 : end_copies(queue, &err);
    if (going < 0) {
        sl_gpu_ring_fail(queue->ring, &err);
        return SL_GPU_IDLE;
    }
    deliver_notes(queue);
    return going ? SL_MIN(next, (uint64_t)POLL_NS) : next;
}

/*
 * A part gets a buffer with its first byte and gives it back when it is sent; buffers are kept for
 * other parts. Writers copy without the lock: each byte comes once, so they never overlap. The one
 * that completes a part queues it.
 *
 * Why it cannot deadlock: writing never waits. sl_parts_admit() waits only while all buffers are
 * lent out *and* a complete part is queued or being sent, that is, while a thread of ours is at
 * work, which needs nothing of the writers and ends by success, failure, time-out or cancellation.
 * When only incomplete parts hold the memory, admit() lets the writers go on, since nothing but
 * their bytes can free any of it: a block in the middle of a part, or the head of a tensor that is
 * written when its hash is known. So the limit is exceeded exactly by what would otherwise never
 * end: the incomplete parts that the blocks in the callers' hands belong to, which are few because
 * blocks are dispatched in the order of their places.
 *
 * Both waits look at cancellation themselves: a thread sees it, too, but only where its send looks.
 */
#include "upload_parts.h"

#include <assert.h>
#include <string.h>

#include "thread_cancel.h"

enum {
    CONNECTIONS_AUTO_MAX = 8,
    PART_MIB_MIN = 16,
    PART_MIB_MAX = 64,
    BUFFER_ALIGNMENT = 4096,
};

struct part {
    uint8_t *data; /* NULL: no byte came yet, or it is sent */
    uint64_t have;
    uint64_t next; /* in the queue, as number + 1; 0: the last */
};

struct sl_parts {
    struct sl_parts_config config;
    uint64_t count;
    unsigned buffers_max; /* beyond that admit() waits */
    unsigned threads_max;
    struct sl_cancel *stop;
    pthread_cond_t queued; /* or stopped: for the threads */
    pthread_cond_t moved;  /* a part is sent, or all has failed: for admit() and finish() */
    struct {
        pthread_mutex_t mutex;
        pthread_t threads[SL_PARTS_THREADS_MAX];
        unsigned thread_count;
        unsigned senders; /* of the threads: those that have a channel, or still may */
        struct part *parts;
        uint64_t first, last; /* of the queue, as number + 1; 0: it is empty */
        uint64_t under_way;   /* parts queued or being sent */
        uint64_t sent;        /* parts */
        unsigned lent;        /* buffers that parts hold */
        uint8_t **spare;      /* buffers_max places */
        unsigned spare_count;
        bool stopping;
        struct sl_err failed; /* the first */
    } locked;
};

uint64_t sl_parts_size(uint64_t bytes, uint64_t memory_bytes)
{
    uint64_t mib = memory_bytes / 8 / SL_PARTS_MIB;
    mib = SL_MIN(mib, (uint64_t)PART_MIB_MAX);
    if (mib < PART_MIB_MIN)
        mib = SL_MIN(memory_bytes / 4 / SL_PARTS_MIB, (uint64_t)PART_MIB_MIN);
    mib = SL_MAX(mib, (uint64_t)SL_PARTS_BYTES_MIN / SL_PARTS_MIB);
    uint64_t least = bytes / SL_PARTS_MAX + (bytes % SL_PARTS_MAX != 0);
    uint64_t least_mib = least / SL_PARTS_MIB + (least % SL_PARTS_MIB != 0);
    return SL_MAX(mib, least_mib) * SL_PARTS_MIB;
}

static uint64_t bytes_of(const struct sl_parts *parts, uint64_t number)
{
    uint64_t left = parts->config.bytes - number * parts->config.part_bytes;
    return SL_MIN(left, parts->config.part_bytes);
}

struct sl_parts *sl_parts_new(const struct sl_parts_config *config, struct sl_err *err)
{
    assert(config->bytes && config->part_bytes);
    SL_AUTO(sl_parts) parts = sl_alloc(sizeof(*parts), err);
    if (!parts)
        return NULL;
    pthread_mutex_init(&parts->locked.mutex, NULL);
    pthread_cond_init(&parts->queued, NULL);
    sl_thread_cancel_cond_init(&parts->moved);
    parts->config = *config;
    parts->count = (config->bytes - 1) / config->part_bytes + 1;
    uint64_t buffers = SL_MAX(config->memory_bytes / config->part_bytes, (uint64_t)2);
    parts->buffers_max = (unsigned)SL_MIN(buffers, parts->count);
    unsigned threads = config->connections;
    if (!threads)
        threads = SL_MIN(parts->buffers_max > 3 ? parts->buffers_max - 2 : 1,
                         (unsigned)CONNECTIONS_AUTO_MAX);
    threads = SL_MIN(threads, (unsigned)SL_PARTS_THREADS_MAX);
    parts->threads_max = (unsigned)SL_MIN((uint64_t)threads, parts->count);
    parts->locked.parts = sl_alloc_array(parts->count, sizeof(struct part), err);
    parts->locked.spare = sl_alloc_array(parts->buffers_max, sizeof(uint8_t *), err);
    parts->stop = sl_cancel_new(err);
    if (!parts->locked.parts || !parts->locked.spare || !parts->stop)
        return NULL;
    return sl_steal(&parts);
}

void sl_parts_free(struct sl_parts *parts)
{
    if (!parts)
        return;
    {
        SL_LOCKED(&parts->locked.mutex);
        parts->locked.stopping = true;
        pthread_cond_broadcast(&parts->queued);
    }
    if (parts->stop)
        sl_cancel_raise(parts->stop, 0);
    for (unsigned i = 0; i < parts->locked.thread_count; i++)
        pthread_join(parts->locked.threads[i], NULL);
    for (uint64_t i = 0; parts->locked.parts && i < parts->count; i++)
        free(parts->locked.parts[i].data);
    for (unsigned i = 0; i < parts->locked.spare_count; i++)
        free(parts->locked.spare[i]);
    free(parts->locked.parts);
    free(parts->locked.spare);
    sl_cancel_free(parts->stop);
    pthread_cond_destroy(&parts->queued);
    pthread_cond_destroy(&parts->moved);
    pthread_mutex_destroy(&parts->locked.mutex);
    free(parts);
}

/* ---- the threads ---------------------------------------------------------------------------- */

/* With the mutex held. */
static void fail_locked(struct sl_parts *parts, const struct sl_err *why)
{
    if (parts->locked.failed.kind == SL_OK)
        parts->locked.failed = *why;
    parts->locked.stopping = true;
    pthread_cond_broadcast(&parts->queued);
    pthread_cond_broadcast(&parts->moved);
}

static void fail_all(struct sl_parts *parts, const struct sl_err *why)
{
    {
        SL_LOCKED(&parts->locked.mutex);
        fail_locked(parts, why);
    }
    sl_cancel_raise(parts->stop, 0);
}

/* This thread has no channel. Beside others it is missed, and costs time only. */
static void leave(struct sl_parts *parts, const struct sl_err *why)
{
    bool last;
    {
        SL_LOCKED(&parts->locked.mutex);
        last = --parts->locked.senders == 0;
    }
    if (last)
        fail_all(parts, why);
}

/* The next part of the queue; false when the thread is to end. */
static bool take_part(struct sl_parts *parts, uint64_t *number, uint8_t **data)
{
    SL_LOCKED(&parts->locked.mutex);
    while (!parts->locked.first && !parts->locked.stopping)
        pthread_cond_wait(&parts->queued, &parts->locked.mutex);
    if (parts->locked.stopping)
        return false;
    *number = parts->locked.first - 1;
    struct part *part = &parts->locked.parts[*number];
    parts->locked.first = part->next;
    if (!part->next)
        parts->locked.last = 0;
    *data = part->data;
    return true;
}

/* It is sent: its buffer is another part's. */
static void give_back(struct sl_parts *parts, uint64_t number)
{
    SL_LOCKED(&parts->locked.mutex);
    struct part *part = &parts->locked.parts[number];
    parts->locked.lent--;
    if (parts->locked.spare_count < parts->buffers_max)
        parts->locked.spare[parts->locked.spare_count++] = part->data;
    else
        free(part->data);
    part->data = NULL;
    parts->locked.under_way--;
    parts->locked.sent++;
    pthread_cond_broadcast(&parts->moved);
}

static void *run(void *arg)
{
    struct sl_parts *parts = arg;
    struct sl_err err = SL_ERR_INIT;
    void *channel = parts->config.begin(parts->config.arg, parts->stop, &err);
    uint64_t number;
    uint8_t *data;
    if (!channel)
        leave(parts, &err);
    while (channel && take_part(parts, &number, &data)) {
        if (parts->config.send(parts->config.arg, channel, number, data, bytes_of(parts, number),
                               &err) < 0)
            fail_all(parts, &err);
        else
            give_back(parts, number);
    }
    if (channel)
        parts->config.end(parts->config.arg, channel);
    return NULL;
}

/* ---- writing -------------------------------------------------------------------------------- */

static int check(struct sl_parts *parts, struct sl_err *err)
{
    if (parts->locked.failed.kind == SL_OK)
        return 0;
    if (err)
        *err = parts->locked.failed;
    return -1;
}

/* Where the bytes of a part are gathered. */
static uint8_t *buffer_of(struct sl_parts *parts, uint64_t number, struct sl_err *err)
{
    SL_LOCKED(&parts->locked.mutex);
    struct part *part = &parts->locked.parts[number];
    if (check(parts, err) < 0)
        return NULL;
    if (part->data)
        return part->data;
    if (parts->locked.spare_count) {
        part->data = parts->locked.spare[--parts->locked.spare_count];
    } else {
        uint64_t bytes = SL_MIN(parts->config.part_bytes, parts->config.bytes);
        part->data = sl_alloc_aligned(BUFFER_ALIGNMENT, bytes, err);
        if (!part->data)
            return NULL;
    }
    parts->locked.lent++;
    return part->data;
}

/* Bytes of a part were written: the last ones queue it. */
static int account(struct sl_parts *parts, uint64_t number, uint64_t bytes, struct sl_err *err)
{
    SL_LOCKED(&parts->locked.mutex);
    struct part *part = &parts->locked.parts[number];
    part->have += bytes;
    if (part->have < bytes_of(parts, number))
        return 0;
    if (parts->locked.last)
        parts->locked.parts[parts->locked.last - 1].next = number + 1;
    else
        parts->locked.first = number + 1;
    parts->locked.last = number + 1;
    parts->locked.under_way++;
    pthread_cond_signal(&parts->queued);
    if (parts->locked.thread_count == parts->threads_max ||
        parts->locked.thread_count >= parts->locked.under_way)
        return 0;
    struct sl_err why = SL_ERR_INIT;
    if (sl_thread_start(&parts->locked.threads[parts->locked.thread_count], "sl-upload", run, parts,
                        &why) == 0)
        parts->locked.thread_count++, parts->locked.senders++;
    else if (!parts->locked.senders) /* as in leave() */
        fail_locked(parts, &why);
    return check(parts, err);
}

int sl_parts_write(struct sl_parts *parts, uint64_t offset, const void *data, size_t bytes,
                   struct sl_err *err)
{
    const uint8_t *from = data;
    while (bytes) {
        uint64_t number = offset / parts->config.part_bytes;
        uint64_t within = offset % parts->config.part_bytes;
        size_t piece = (size_t)SL_MIN((uint64_t)bytes, bytes_of(parts, number) - within);
        uint8_t *to = buffer_of(parts, number, err);
        if (!to)
            return -1;
        memcpy(to + within, from, piece);
        if (account(parts, number, piece, err) < 0)
            return -1;
        from += piece, offset += piece, bytes -= piece;
    }
    return 0;
}

/* With the mutex held. */
static int await_move(struct sl_parts *parts, struct sl_err *err)
{
    struct sl_cancel *cancel = parts->config.cancel;
    return sl_thread_cancel_wait(&parts->moved, &parts->locked.mutex, cancel, err);
}

int sl_parts_admit(struct sl_parts *parts, struct sl_err *err)
{
    SL_LOCKED(&parts->locked.mutex);
    while (parts->locked.failed.kind == SL_OK && parts->locked.lent >= parts->buffers_max &&
           parts->locked.under_way)
        if (await_move(parts, err) < 0)
            return -1;
    return check(parts, err);
}

int sl_parts_finish(struct sl_parts *parts, struct sl_err *err)
{
    SL_LOCKED(&parts->locked.mutex);
    while (parts->locked.failed.kind == SL_OK && parts->locked.sent < parts->count)
        if (await_move(parts, err) < 0)
            return -1;
    return check(parts, err);
}

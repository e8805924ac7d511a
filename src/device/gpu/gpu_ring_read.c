/*
 * Waiting for the staging ring's end, and reading back what it has: from the buffers as long as
 * bytes are on their way, else from the first GPU, through a pinned piece of its own.
 */
#include <string.h>

#include "gpu_ring_parts.h"

/* With the lock. */
static bool is_drained(const struct sl_gpu_ring *ring, bool notes)
{
    for (unsigned i = 0; i < ring->queue_count; i++) {
        const struct sl_gpu_queue *queue = &ring->queues[i];
        if (sl_gpu_ring_lowest(queue) != UINT64_MAX ||
            (notes &&
             (queue->locked.note_count || queue->locked.delivering || queue->locked.works)))
            return false;
    }
    return true;
}

/* Everything that is open closes, and nothing is left but notes. */
static int drain(struct sl_gpu_ring *ring, bool notes, struct sl_err *err)
{
    RING_LOCKED(ring);
    while (!is_drained(ring, notes)) {
        if (sl_gpu_ring_going(ring, err) < 0)
            return -1;
        for (unsigned i = 0; i < ring->count; i++)
            sl_gpu_ring_close(ring, &ring->locked.buffers[i]);
        sl_gpu_ring_poke(ring);
        sl_gpu_ring_wait(ring);
    }
    return sl_gpu_ring_going(ring, err);
}

void sl_gpu_ring_begin_work(struct sl_gpu_ring *ring, unsigned queue)
{
    RING_LOCKED(ring);
    ring->queues[queue].locked.works++;
}

void sl_gpu_ring_end_work(struct sl_gpu_ring *ring, unsigned queue)
{
    RING_LOCKED(ring);
    ring->queues[queue].locked.works--;
    pthread_cond_broadcast(&ring->moved);
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
    const struct sl_gpu_ring *ring = reading->ring;
    const struct sl_gpu_queue *queue = ring->queues;
    for (size_t done = 0; done < reading->bytes;) {
        size_t bytes = SL_MIN(reading->bytes - done, (size_t)SL_RING_BOUNCE_BYTES);
        if (sl_gpu_check(gpu,
                         gpu->cuda->copy_to_host(ring->bounce, reading->address + done, bytes,
                                                 queue->stream),
                         err, "read %zu bytes back", bytes) < 0 ||
            sl_gpu_check(gpu, gpu->cuda->stream_synchronize(queue->stream), err,
                         "wait for %zu bytes", bytes) < 0)
            return -1;
        memcpy(reading->data + done, ring->bounce, bytes);
        done += bytes;
    }
    return 0;
}

static int read_device(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, void *data,
                       size_t bytes, struct sl_err *err)
{
    struct reading reading = {ring, ring->queues->addresses[file] + offset, data, bytes};
    return sl_gpu_call(ring->queues->gpu, read_task, &reading, false, err);
}

/* The buffer that has this byte and is not on the device yet, of several the last that was opened;
 * *end: as far as that holds, up to what it was. With the lock. */
static const struct sl_gpu_buffer *buffer_of(const struct sl_gpu_ring *ring, uint32_t file,
                                             uint64_t offset, uint64_t *end)
{
    const struct sl_gpu_buffer *found = NULL;
    for (unsigned i = 0; i < ring->copies; i++) {
        const struct sl_gpu_buffer *at = &ring->locked.buffers[i];
        if (!sl_gpu_ring_is_outstanding(at, ring->queues) || at->file != file ||
            sl_gpu_buffer_end(at) <= offset)
            continue;
        if (at->offset > offset)
            *end = SL_MIN(*end, at->offset);
        else if (!found || at->number > found->number)
            found = at;
    }
    if (found)
        *end = SL_MIN(*end, sl_gpu_buffer_end(found));
    return found;
}

/* Bytes from a buffer on its way, as many as it has; 0: they are on the device up to *end. */
static uint64_t read_buffer(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, void *data,
                            uint64_t *end)
{
    RING_LOCKED(ring);
    const struct sl_gpu_buffer *buffer = buffer_of(ring, file, offset, end);
    if (!buffer)
        return 0;
    memcpy(data, buffer->data + (offset - buffer->offset), *end - offset);
    return *end - offset;
}

/* Not all is waited for: what a thread has been lent it may have to read before it fills it. What
 * has a shape is never lent, and is no such bytes before it is on the device. */
int sl_gpu_ring_read(struct sl_gpu_ring *ring, uint32_t file, uint64_t offset, void *data,
                     size_t bytes, struct sl_err *err)
{
    if (ring->scratch)
        return drain(ring, false, err) < 0 ? -1 : read_device(ring, file, offset, data, bytes, err);
    for (uint64_t at = offset; at < offset + bytes;) {
        uint64_t end = offset + bytes;
        uint8_t *to = (uint8_t *)data + (at - offset);
        if (sl_gpu_ring_check(ring, err) < 0)
            return -1;
        if (!read_buffer(ring, file, at, to, &end) &&
            read_device(ring, file, at, to, end - at, err) < 0)
            return -1;
        at = end;
    }
    return 0;
}

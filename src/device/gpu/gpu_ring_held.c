/*
 * Buffers of the staging ring that are held: a reader writes into one, and its source may be slow.
 * With the ring's lock.
 */
#include "gpu_ring_parts.h"

bool sl_gpu_buffer_is_held(const struct sl_gpu_buffer *buffer)
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
                                   .state = SL_BUFFER_OPEN,
                                   .file = buffer->file,
                                   .offset = buffer->offset,
                                   .used = buffer->floor,
                                   .number = buffer->number,
                                   .queues = buffer->queues};
    sl_gpu_ring_close(ring, part);
    buffer->data += buffer->floor;
    buffer->skipped += buffer->floor;
    buffer->offset += buffer->floor;
    buffer->used -= buffer->floor;
    buffer->floor = 0;
    return true;
}

bool sl_gpu_ring_let_go(struct sl_gpu_ring *ring, struct sl_gpu_buffer *buffer)
{
    if (buffer->floor && !close_part(ring, buffer))
        return false;
    buffer->number = ++ring->locked.last_number;
    buffer->opened_ns = sl_now_ns();
    return true;
}

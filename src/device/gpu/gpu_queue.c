/*
 * The begin and the end of a staging ring and of its queues. The first queue's GPU pins the memory,
 * portably: the others copy from it as well. Each has a stream of its own and an event for each
 * buffer, since both belong to a context. All calls to the driver are made by the GPU's thread.
 */
#include "gpu_ring_parts.h"

enum {
    BUFFERS = 64, /* one for each of 64 readers to fill: test_gpu_ring_rate.c */
    AGE_MS = 5,
};

/* ---- queues; the GPU's thread -----------------------------------------------------------------
 */

/* Nobody is to see what was in the memory before, between tensors and in those without bytes. */
static int zero_files(struct sl_gpu_queue *queue, struct sl_err *err)
{
    const struct sl_cuda *cuda = queue->gpu->cuda;
    for (size_t i = 0; queue->zeroed && i < queue->ring->file_count; i++)
        if (queue->addresses[i] && queue->zeroed[i] &&
            sl_gpu_check(queue->gpu,
                         cuda->set_bytes(queue->addresses[i], 0, queue->zeroed[i], queue->stream),
                         err, "zero %llu bytes", (unsigned long long)queue->zeroed[i]) < 0)
            return -1;
    queue->zeroed = NULL;
    return 0;
}

static size_t pinned_bytes(const struct sl_gpu_ring *ring)
{
    return ring->count * ring->buffer_bytes + SL_RING_BOUNCE_BYTES;
}

static int pin(struct sl_gpu_queue *queue, struct sl_err *err)
{
    struct sl_gpu_ring *ring = queue->ring;
    void *pinned = NULL;
    if (sl_gpu_pin(queue->gpu, pinned_bytes(ring), &pinned, err) < 0)
        return -1;
    ring->pinned = pinned;
    ring->bounce = ring->pinned + ring->count * ring->buffer_bytes;
    for (unsigned i = 0; i < ring->count; i++)
        ring->locked.buffers[i].data = ring->pinned + i * ring->buffer_bytes;
    return 0;
}

static int make_stream(const struct sl_gpu_queue *queue, struct sl_cuda_stream **stream,
                       struct sl_err *err)
{
    return sl_gpu_check(queue->gpu,
                        queue->gpu->cuda->stream_create(stream, SL_CUDA_STREAM_NON_BLOCKING), err,
                        "make a stream");
}

static int make_event(const struct sl_gpu_queue *queue, struct sl_cuda_event **event,
                      struct sl_err *err)
{
    enum { EVENT = SL_CUDA_EVENT_DISABLE_TIMING | SL_CUDA_EVENT_BLOCKING_SYNC };
    return sl_gpu_check(queue->gpu, queue->gpu->cuda->event_create(event, EVENT), err,
                        "make an event");
}

static int make_scratches(struct sl_gpu_queue *queue, struct sl_err *err)
{
    const struct sl_gpu_ring *ring = queue->ring;
    if (!ring->scratch)
        return 0;
    for (unsigned i = 0; i < SL_GPU_RING_SCRATCHES; i++) {
        struct sl_gpu_scratch *scratch = &queue->scratches[i];
        scratch->address = ring->scratch + i * ring->buffer_bytes;
        if (make_event(queue, &scratch->copied, err) < 0 ||
            make_event(queue, &scratch->shaped, err) < 0)
            return -1;
    }
    return make_stream(queue, &queue->shaping, err);
}

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_queue *queue = arg;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    queue->acquired = true;
    if (!queue->ring->pinned && pin(queue, err) < 0)
        return -1;
    if (make_stream(queue, &queue->stream, err) < 0 || make_scratches(queue, err) < 0)
        return -1;
    for (unsigned i = 0; i < queue->ring->copies; i++)
        if (make_event(queue, &queue->events[i], err) < 0)
            return -1;
    if (zero_files(queue, err) < 0)
        return -1;
    sl_gpu_add_chore(gpu, &queue->chore);
    return 0;
}

static void end_stream(const struct sl_cuda *cuda, struct sl_cuda_stream *stream)
{
    if (!stream)
        return;
    cuda->stream_synchronize(stream);
    cuda->stream_destroy(stream);
}

static void end_event(const struct sl_cuda *cuda, struct sl_cuda_event *event)
{
    if (event)
        cuda->event_destroy(event);
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_queue *queue = arg;
    struct sl_gpu_ring *ring = queue->ring;
    const struct sl_cuda *cuda = gpu->cuda;
    (void)err;
    sl_gpu_remove_chore(gpu, &queue->chore);
    end_stream(cuda, queue->stream);
    end_stream(cuda, queue->shaping);
    for (unsigned i = 0; i < ring->copies; i++)
        end_event(cuda, queue->events[i]);
    for (unsigned i = 0; i < SL_GPU_RING_SCRATCHES; i++) {
        end_event(cuda, queue->scratches[i].copied);
        end_event(cuda, queue->scratches[i].shaped);
    }
    if (queue == ring->queues && ring->pinned)
        sl_gpu_unpin(gpu, ring->pinned, pinned_bytes(ring)); /* no other GPU copies from it now */
    if (queue->acquired)
        sl_gpu_release(gpu);
    return 0;
}

/* With the lock: the threads of those that are there check the ring meanwhile. */
static unsigned add_queue(struct sl_gpu_ring *ring)
{
    RING_LOCKED(ring);
    return ring->queue_count++;
}

int sl_gpu_ring_add(struct sl_gpu_ring *ring, struct sl_gpu *gpu, const uint64_t *addresses,
                    const uint64_t *bytes, struct sl_err *err)
{
    if (ring->queue_count == SL_GPU_RING_QUEUES_MAX)
        return sl_fail(err, SL_E_INTERNAL, "a staging ring is for %d GPUs at most",
                       SL_GPU_RING_QUEUES_MAX);
    unsigned number = add_queue(ring);
    struct sl_gpu_queue *queue = &ring->queues[number];
    queue->chore.turn = sl_gpu_queue_turn;
    queue->ring = ring;
    queue->gpu = gpu;
    queue->bit = 1u << number;
    queue->addresses = addresses;
    queue->zeroed = bytes;
    return sl_gpu_call(gpu, make_task, queue, false, err) < 0 ? -1 : (int)number;
}

void sl_gpu_ring_leave(struct sl_gpu_ring *ring, unsigned queue)
{
    struct sl_gpu_queue *leaving = &ring->queues[queue];
    if (!leaving->gpu)
        return;
    sl_gpu_call(leaving->gpu, free_task, leaving, true, NULL);
    leaving->gpu = NULL;
}

/* ---- the ring -------------------------------------------------------------------------------- */

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
    pthread_cond_init(&ring->freed, &clock);
    pthread_condattr_destroy(&clock);
    ring->file_count = config->file_count;
    ring->cancel = config->cancel;
    ring->count = SL_MIN(config->buffers ? config->buffers : (unsigned)BUFFERS,
                         (unsigned)SL_RING_BUFFERS_MAX);
    ring->copies = 2 * ring->count;
    ring->buffer_bytes =
        config->buffer_bytes ? config->buffer_bytes : (uint64_t)SL_GPU_RING_BUFFER_BYTES;
    ring->scratch = config->scratch;
    ring->age_ns = (config->age_ms ? config->age_ms : (unsigned)AGE_MS) * SL_NS_PER_MS;
    if (sl_gpu_ring_add(ring, gpu, config->addresses, config->bytes, err) == 0)
        return ring;
    sl_gpu_ring_free(ring);
    return NULL;
}

void sl_gpu_ring_free(struct sl_gpu_ring *ring)
{
    if (!ring)
        return;
    for (unsigned i = ring->queue_count; i-- > 0;)
        sl_gpu_ring_leave(ring, i);
    /* Only now: while one queue's thread went on, it checked the notes of all. */
    for (unsigned i = 0; i < ring->queue_count; i++)
        free(ring->queues[i].locked.notes);
    pthread_mutex_destroy(&ring->lock);
    pthread_cond_destroy(&ring->moved);
    pthread_cond_destroy(&ring->freed);
    free(ring);
}

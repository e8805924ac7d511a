/*
 * The begin and the end of a staging ring and of its lanes. The first lane's GPU pins the memory,
 * portably: the others copy from it as well. Each has a stream of its own and an event for each
 * buffer, since both belong to a context. All calls to the driver are made by the GPU's thread.
 */
#include "gpu_ring_parts.h"

enum {
    BUFFERS = 16,
    AGE_MS = 5,
};

/* ---- lanes; the GPU's thread ----------------------------------------------------------------- */

/* Nobody is to see what was in the memory before, between tensors and in those without bytes. */
static int zero_files(struct sl_gpu_lane *lane, struct sl_err *err)
{
    const struct sl_cuda *cuda = lane->gpu->cuda;
    for (size_t i = 0; lane->zeroed && i < lane->ring->file_count; i++)
        if (lane->addresses[i] && lane->zeroed[i] &&
            sl_gpu_check(lane->gpu,
                         cuda->set_bytes(lane->addresses[i], 0, lane->zeroed[i], lane->stream), err,
                         "zero %llu bytes", (unsigned long long)lane->zeroed[i]) < 0)
            return -1;
    lane->zeroed = NULL;
    return 0;
}

static int pin(struct sl_gpu_lane *lane, struct sl_err *err)
{
    struct sl_gpu_ring *ring = lane->ring;
    size_t bytes = ring->count * ring->buffer_bytes + SL_RING_BOUNCE_BYTES;
    void *pinned = NULL;
    if (sl_gpu_check(lane->gpu, lane->gpu->cuda->host_alloc(&pinned, bytes, SL_CUDA_HOST_PORTABLE),
                     err, "pin %zu bytes of host memory", bytes) < 0)
        return -1;
    ring->pinned = pinned;
    ring->bounce = ring->pinned + ring->count * ring->buffer_bytes;
    for (unsigned i = 0; i < ring->count; i++)
        ring->locked.buffers[i].data = ring->pinned + i * ring->buffer_bytes;
    return 0;
}

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_lane *lane = arg;
    enum { EVENT = SL_CUDA_EVENT_DISABLE_TIMING | SL_CUDA_EVENT_BLOCKING_SYNC };
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    lane->acquired = true;
    if (!lane->ring->pinned && pin(lane, err) < 0)
        return -1;
    if (sl_gpu_check(gpu, gpu->cuda->stream_create(&lane->stream, SL_CUDA_STREAM_NON_BLOCKING), err,
                     "make a stream") < 0)
        return -1;
    for (unsigned i = 0; i < lane->ring->count; i++)
        if (sl_gpu_check(gpu, gpu->cuda->event_create(&lane->events[i], EVENT), err,
                         "make an event") < 0)
            return -1;
    if (zero_files(lane, err) < 0)
        return -1;
    sl_gpu_add_chore(gpu, &lane->chore);
    return 0;
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_lane *lane = arg;
    struct sl_gpu_ring *ring = lane->ring;
    const struct sl_cuda *cuda = gpu->cuda;
    (void)err;
    sl_gpu_remove_chore(gpu, &lane->chore);
    if (lane->stream) {
        cuda->stream_synchronize(lane->stream);
        cuda->stream_destroy(lane->stream);
    }
    for (unsigned i = 0; i < ring->count; i++)
        if (lane->events[i])
            cuda->event_destroy(lane->events[i]);
    if (lane == ring->lanes && ring->pinned)
        cuda->host_free(ring->pinned); /* the last one: no other copies from it any more */
    if (lane->acquired)
        sl_gpu_release(gpu);
    return 0;
}

int sl_gpu_ring_add(struct sl_gpu_ring *ring, struct sl_gpu *gpu, const uint64_t *addresses,
                    const uint64_t *bytes, struct sl_err *err)
{
    if (ring->lane_count == SL_GPU_RING_LANES_MAX)
        return sl_fail(err, SL_E_INTERNAL, "a staging ring is for %d GPUs at most",
                       SL_GPU_RING_LANES_MAX);
    unsigned number = ring->lane_count++;
    struct sl_gpu_lane *lane = &ring->lanes[number];
    lane->chore.turn = sl_gpu_lane_turn;
    lane->ring = ring;
    lane->gpu = gpu;
    lane->bit = 1u << number;
    lane->addresses = addresses;
    lane->zeroed = bytes;
    return sl_gpu_call(gpu, make_task, lane, false, err) < 0 ? -1 : (int)number;
}

void sl_gpu_ring_leave(struct sl_gpu_ring *ring, unsigned lane)
{
    struct sl_gpu_lane *leaving = &ring->lanes[lane];
    if (!leaving->gpu)
        return;
    sl_gpu_call(leaving->gpu, free_task, leaving, true, NULL);
    leaving->gpu = NULL;
}

/* ---- the ring -------------------------------------------------------------------------------- */

static unsigned usual_age_ms = AGE_MS;

void sl_gpu_ring_set_age(unsigned ms)
{
    usual_age_ms = ms ? ms : (unsigned)AGE_MS;
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
    ring->file_count = config->file_count;
    ring->cancel = config->cancel;
    ring->count = SL_MIN(config->buffers ? config->buffers : (unsigned)BUFFERS,
                         (unsigned)SL_RING_BUFFERS_MAX);
    ring->buffer_bytes =
        config->buffer_bytes ? config->buffer_bytes : (uint64_t)SL_GPU_RING_BUFFER_BYTES;
    ring->scratch = config->scratch;
    ring->age_ns = (config->age_ms ? config->age_ms : usual_age_ms) * SL_NS_PER_MS;
    if (sl_gpu_ring_add(ring, gpu, config->addresses, config->bytes, err) == 0)
        return ring;
    sl_gpu_ring_free(ring);
    return NULL;
}

void sl_gpu_ring_free(struct sl_gpu_ring *ring)
{
    if (!ring)
        return;
    for (unsigned i = ring->lane_count; i-- > 0;) {
        sl_gpu_ring_leave(ring, i);
        free(ring->lanes[i].locked.notes);
    }
    pthread_mutex_destroy(&ring->lock);
    pthread_cond_destroy(&ring->moved);
    free(ring);
}

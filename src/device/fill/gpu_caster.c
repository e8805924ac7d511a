/*
 * Each pair of types (with what becomes of too large numbers) is a shape of the ring, so small
 * tensors that lie behind one another and are cast alike are one copy and one kernel. A buffer's
 * event comes behind its cast, in the ring's stream for those: what it says of the copy it says of
 * the cast as well.
 */
#include "gpu_caster.h"

#include <string.h>

#include "cast.h"
#include "gpu_kernels.h"
#include "gpu_task.h"
#include "mapping.h"
#include "metrics.h"

/* Eight types, each to each other, with either of two overflows; and some room. */
enum {
    SHAPES_MAX = 128,
    NONE = UINT8_MAX,
    SCRATCH_BYTES = SL_GPU_RING_SCRATCHES * SL_GPU_RING_BUFFER_BYTES,
};

struct pair {
    enum sl_dtype from, to;
    enum sl_cast_overflow overflow;
    struct sl_gpu_shape shape;
};
struct sl_gpu_caster {
    struct sl_gpu *gpu;
    const struct sl_plan *plan;
    struct sl_gpu_ring *ring;
    struct sl_kernels *kernels;
    struct sl_gpu_memory scratch;
    bool acquired;
    struct pair pairs[SHAPES_MAX];
    unsigned pair_count;
    uint8_t *pair_of; /* one a mapping; NONE: it is not cast here */
};

/* ---- the reader's threads -------------------------------------------------------------------- */

int sl_gpu_caster_put(struct sl_gpu_caster *caster, const struct sl_mapping *mapping,
                      uint64_t offset, const uint8_t *data, uint64_t bytes, struct sl_err *err)
{
    const struct sl_gpu_shape *shape =
        &caster->pairs[caster->pair_of[mapping - caster->plan->mappings]].shape;
    uint8_t *to;
    if (sl_gpu_ring_reserve_shaped(caster->ring, shape, mapping->file, offset, bytes, &to, err) < 0)
        return -1;
    memcpy(to, data, (size_t)bytes);
    sl_gpu_ring_commit(caster->ring, to);
    return 0;
}

/* ---- the GPU's thread ------------------------------------------------------------------------ */

static int start(void *arg, const struct sl_gpu_shape *shape, struct sl_cuda_stream *stream,
                 uint64_t in, uint64_t out, uint64_t count, struct sl_err *err)
{
    struct sl_gpu_caster *caster = arg;
    const struct pair *pair =
        (const struct pair *)(const void *)((const char *)shape - offsetof(struct pair, shape));
    sl_metric_add(SL_M_GPU_CAST_BYTES, (int64_t)(count * shape->in_bytes));
    return sl_kernels_cast(caster->kernels, stream, pair->from, pair->to, pair->overflow, in, out,
                           count, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int find_pair(struct sl_gpu_caster *caster, const struct sl_mapping *mapping, uint8_t *pair,
                     struct sl_err *err)
{
    const struct sl_target *target = mapping->target;
    const struct pair wanted = {.from = target->from->dtype,
                                .to = target->out.dtype,
                                .overflow = (enum sl_cast_overflow)target->overflow,
                                .shape = {.in_bytes = mapping->in_item,
                                          .out_bytes = mapping->out_item,
                                          .start = start,
                                          .arg = caster}};
    unsigned i = 0;
    while (i < caster->pair_count &&
           (caster->pairs[i].from != wanted.from || caster->pairs[i].to != wanted.to ||
            caster->pairs[i].overflow != wanted.overflow))
        i++;
    if (i == SHAPES_MAX)
        return sl_fail(err, SL_E_INTERNAL, "there are more than %d kinds of casts", SHAPES_MAX);
    if (i == caster->pair_count)
        caster->pairs[caster->pair_count++] = wanted;
    *pair = (uint8_t)i;
    return 0;
}

static int find_all(struct sl_gpu_caster *caster, struct sl_err *err)
{
    const struct sl_plan *plan = caster->plan;
    caster->pair_of = sl_alloc_array(plan->target_count, sizeof(*caster->pair_of), err);
    if (!caster->pair_of)
        return -1;
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_mapping *mapping = &plan->mappings[i];
        caster->pair_of[i] = NONE;
        if (mapping->cast_on == SL_ON_DEVICE &&
            find_pair(caster, mapping, &caster->pair_of[i], err) < 0)
            return -1;
    }
    return 0;
}

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_caster *caster = arg;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    caster->acquired = true;
    caster->kernels = sl_gpu_kernels(gpu, err);
    return caster->kernels ? 0 : -1;
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_caster *caster = arg;
    (void)err;
    if (caster->acquired)
        sl_gpu_release(gpu);
    return 0;
}

struct sl_gpu_caster *sl_gpu_caster_new(struct sl_gpu *gpu, const struct sl_plan *plan,
                                        struct sl_err *err)
{
    SL_AUTO(sl_gpu_caster) caster = sl_alloc(sizeof(*caster), err);
    if (!caster)
        return NULL;
    caster->gpu = gpu;
    caster->plan = plan;
    caster->scratch = (struct sl_gpu_memory)SL_GPU_MEMORY_INIT;
    if (find_all(caster, err) < 0 ||
        sl_gpu_memory_make(gpu, sl_gpu_round(gpu, SCRATCH_BYTES), &caster->scratch, err) < 0 ||
        sl_gpu_call(gpu, make_task, caster, false, err) < 0)
        return NULL;
    return sl_steal(&caster);
}

void sl_gpu_caster_free(struct sl_gpu_caster *caster)
{
    if (!caster)
        return;
    sl_gpu_call(caster->gpu, free_task, caster, true, NULL);
    sl_gpu_memory_release(caster->gpu, &caster->scratch);
    free(caster->pair_of);
    free(caster);
}

uint64_t sl_gpu_caster_scratch(const struct sl_gpu_caster *caster)
{
    return caster->scratch.address;
}

void sl_gpu_caster_bind(struct sl_gpu_caster *caster, struct sl_gpu_ring *ring)
{
    caster->ring = ring;
}

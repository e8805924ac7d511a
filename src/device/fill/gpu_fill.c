/*
 * The device is the ring and the GPUs behind it. Casts and CRCs are made for one GPU alone, so each
 * is a part of the fill; what is opened is opened on each GPU, by its target.
 */
#include "gpu_fill.h"

#include "gpu_caster.h"
#include "gpu_target.h"
#include "stages.h"

struct sl_gpu_fill {
    struct sl_stage_device device;
    struct sl_gpu_sealed sealed;
    struct sl_gpu_target targets[SL_GPU_FILL_TARGETS_MAX];
    size_t target_count; /* that need a release */
    struct sl_gpu_ring *ring;
    struct sl_gpu_caster *caster; /* NULL: nothing is cast here */
    struct sl_gpu_crcs *crcs;     /* NULL: no CRC is computed here */
    void (*count_cast)(void *arg, uint64_t bytes);
    void *count_arg;
};

/* ---- what the reader says -------------------------------------------------------------------- */

static void on_landed(void *arg, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct sl_gpu_fill *fill = arg;
    for (size_t i = 0; i < fill->target_count; i++)
        sl_gpu_target_landed(&fill->targets[i], file, offset, bytes);
}

static void on_agreed(void *arg, const struct sl_check *check)
{
    struct sl_gpu_fill *fill = arg;
    for (size_t i = 0; i < fill->target_count; i++)
        sl_gpu_target_agreed(&fill->targets[i], check);
}

static int on_cast(void *arg, const struct sl_mapping *mapping, uint64_t offset,
                   const uint8_t *data, uint64_t bytes, struct sl_err *err)
{
    struct sl_gpu_fill *fill = arg;
    if (sl_gpu_caster_put(fill->caster, mapping, offset, data, bytes, err) < 0)
        return -1;
    fill->count_cast(fill->count_arg, bytes / mapping->in_item * mapping->out_item);
    return 0;
}

static void on_begin(void *arg, const struct sl_stage_results *results)
{
    sl_gpu_crcs_bind(((struct sl_gpu_fill *)arg)->crcs, results);
}

/* CRCs are told by notes, behind the copies of what they are of. */
static int on_finish(void *arg, struct sl_err *err)
{
    return sl_gpu_ring_finish(((struct sl_gpu_fill *)arg)->ring, err);
}

static void on_end(void *arg)
{
    sl_gpu_crcs_bind(((struct sl_gpu_fill *)arg)->crcs, NULL);
}

static void make_device(struct sl_gpu_fill *fill)
{
    fill->device = (struct sl_stage_device){.events = {on_landed, on_agreed, fill}, .arg = fill};
    if (fill->caster)
        fill->device.cast = on_cast;
    if (!fill->crcs)
        return;
    fill->device.begin = on_begin;
    fill->device.finish = on_finish;
    fill->device.end = on_end;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_targets(struct sl_gpu_fill *fill, const struct sl_plan *plan,
                        const struct sl_gpu_fill_config *config, struct sl_err *err)
{
    if (sl_gpu_sealed_find(plan, &fill->sealed, err) < 0)
        return -1;
    while (fill->target_count < config->target_count) {
        size_t number = fill->target_count++;
        if (sl_gpu_target_init(&fill->targets[number], &config->targets[number], plan,
                               &fill->sealed, err) < 0)
            return -1;
    }
    return 0;
}

/* For the first, since the plan leaves neither to several. */
static int make_works(struct sl_gpu_fill *fill, const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_gpu_target *first = &fill->targets[0];
    if (sl_plan_on_device(plan, SL_STAGE_CAST) &&
        !(fill->caster = sl_gpu_caster_new(first->is.gpu, plan, err)))
        return -1;
    if (sl_plan_on_device(plan, SL_STAGE_CRC) &&
        !(fill->crcs = sl_gpu_crcs_new(first->is.gpu, plan, first->addresses, err)))
        return -1;
    first->crcs = fill->crcs;
    return 0;
}

static int join(struct sl_gpu_fill *fill, size_t number, const struct sl_plan *plan,
                const struct sl_gpu_fill_config *config, struct sl_err *err)
{
    struct sl_gpu_target *target = &fill->targets[number];
    int queue = 0;
    if (number)
        queue = sl_gpu_ring_add(fill->ring, target->is.gpu, target->addresses, target->bytes, err);
    if (queue < 0)
        return -1;
    return sl_gpu_target_join(target, fill->ring, (unsigned)queue, plan, config, err);
}

static int make_ring(struct sl_gpu_fill *fill, const struct sl_plan *plan,
                     const struct sl_gpu_fill_config *config, struct sl_err *err)
{
    const struct sl_gpu_target *first = &fill->targets[0];
    const struct sl_gpu_ring_config ring = {
        .addresses = first->addresses,
        .bytes = first->bytes,
        .file_count = plan->file_count,
        .cancel = config->cancel,
        .scratch = fill->caster ? sl_gpu_caster_scratch(fill->caster) : 0};
    fill->ring = sl_gpu_ring_new(first->is.gpu, &ring, err);
    if (!fill->ring)
        return -1;
    if (fill->caster)
        sl_gpu_caster_bind(fill->caster, fill->ring);
    for (size_t i = 0; i < fill->target_count; i++)
        if (join(fill, i, plan, config, err) < 0)
            return -1;
    return 0;
}

struct sl_gpu_fill *sl_gpu_fill_new(const struct sl_plan *plan,
                                    const struct sl_gpu_fill_config *config, struct sl_err *err)
{
    SL_AUTO(sl_gpu_fill) fill = sl_alloc(sizeof(*fill), err);
    if (!fill || make_targets(fill, plan, config, err) < 0 || make_works(fill, plan, err) < 0 ||
        make_ring(fill, plan, config, err) < 0)
        return NULL;
    fill->count_cast = config->count_cast;
    fill->count_arg = config->arg;
    make_device(fill);
    return sl_steal(&fill);
}

void sl_gpu_fill_free(struct sl_gpu_fill *fill)
{
    if (!fill)
        return;
    for (size_t i = fill->target_count; i-- > 0;)
        sl_gpu_target_stop(&fill->targets[i]);
    sl_gpu_ring_free(fill->ring); /* no note comes after */
    for (size_t i = fill->target_count; i-- > 0;)
        sl_gpu_target_release(&fill->targets[i]);
    sl_gpu_caster_free(fill->caster);
    sl_gpu_crcs_free(fill->crcs);
    sl_gpu_sealed_release(&fill->sealed);
    free(fill);
}

const struct sl_stage_device *sl_gpu_fill_device(const struct sl_gpu_fill *fill)
{
    return &fill->device;
}

struct sl_gpu_ring *sl_gpu_fill_ring(const struct sl_gpu_fill *fill)
{
    return fill->ring;
}

int sl_gpu_fill_finish(struct sl_gpu_fill *fill, struct sl_err *err)
{
    if (sl_gpu_ring_finish(fill->ring, err) < 0)
        return -1;
    for (size_t i = 0; i < fill->target_count; i++)
        if (fill->targets[i].repair && sl_gpu_repair_wait(fill->targets[i].repair, err) < 0)
            return -1;
    return 0;
}

/*
 * Slabs as a destination of a load: its plan becomes a model that can be attached to before the
 * first byte is read. Each attempt makes a new model: what a failed one has given out cannot be
 * taken back, and is marked as failed instead.
 */
#include "fill.h"

#include "load_destination.h"
#include "pool_parts.h"

struct fill {
    struct sl_load_destination base;
    const struct sl_fill_config *config;
    struct sl_pool_model *model; /* of the attempt that succeeded */
    uint64_t decrypted, cast;    /* tensors, on a GPU */
    /* of the attempt in hand */
    struct sl_pool_model *filling;
    struct sl_sink_file *files;
    struct sl_reader_config reading;
    struct sl_readiness *readiness;
    struct sl_gpu_fill *device;     /* NULL: on the host */
    struct sl_gpu_followers *twins; /* with device */
};

struct sl_plan_wish sl_slabs_wish(uint64_t slab_bytes)
{
    return (struct sl_plan_wish){.layout = SL_LAYOUT_SLABS,
                                 .part_bytes = slab_bytes ? slab_bytes : SL_SLAB_BYTES};
}

uint64_t sl_slabs_needed(const struct sl_plan *plan, const struct sl_slab_place *place)
{
    uint64_t bytes = 0;
    if (place->kind != SL_SLAB_GPU)
        return plan->sink_bytes;
    for (size_t i = 0; i < sl_pool_first_data_file(plan); i++)
        bytes += sl_gpu_round(place->gpu, plan->files[i].bytes);
    return bytes;
}

static uint64_t needed(const struct sl_plan *plan, const struct sl_fill_config *config)
{
    uint64_t bytes = sl_slabs_needed(plan, config->place);
    for (size_t i = 0; i < config->more_count; i++) {
        uint64_t there = sl_slabs_needed(plan, &config->more[i]);
        bytes = SL_MAX(bytes, there);
    }
    return bytes;
}

static struct sl_pool_model *plan_model(const struct sl_fill_config *config,
                                        const struct sl_plan *plan, struct sl_err *err)
{
    SL_AUTO(sl_pool_model) model = sl_pool_model_plan(config->name, plan, config->place, err);
    for (size_t i = 0; model && i < config->more_count; i++)
        if (sl_pool_model_plan_twin(model, plan, &config->more[i], err) < 0)
            return NULL;
    if (model)
        model->everywhere = config->everywhere;
    return sl_steal(&model);
}

/* Everything between the reader and the slabs of a GPU, and of all its twins. */
static int open_device(struct fill *fill, const struct sl_load_attempt *attempt, struct sl_err *err)
{
    struct sl_spec_pool wishes = attempt->spec->sink.pool;
    struct sl_pool_model *model = fill->filling;
    struct sl_gpu *gpu = fill->config->place->gpu;
    if (!gpu)
        return 0;
    wishes.decrypt = sl_gpu_followers_decrypt(model, (enum sl_pool_decrypt)wishes.decrypt);
    fill->device = sl_gpu_fill_new(gpu, model, attempt->plan, &wishes, &fill->reading, err);
    if (!fill->device)
        return -1;
    fill->twins = sl_gpu_followers_new(fill->device, model, attempt->plan, err);
    if (!fill->twins)
        return -1;
    sl_gpu_fill_config(fill->device, &fill->reading);
    sl_gpu_fill_counts(fill->device, &fill->decrypted, &fill->cast);
    fill->reading.watch = sl_gpu_followers_watch(fill->twins);
    return 0;
}

static int current(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                   struct sl_err *err)
{
    const struct sl_fill_config *config = ((struct fill *)to)->config;
    const struct sl_plan *plan = attempt->plan;
    return config->admit ? config->admit(config->arg, needed(plan, config), plan->identity, err)
                         : 0;
}

static int begin(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                 struct sl_reader_config *config, struct sl_err *err)
{
    struct fill *fill = (struct fill *)to;
    const struct sl_plan *plan = attempt->plan;
    fill->filling = plan_model(fill->config, plan, err);
    if (!fill->filling)
        return -1;
    if (fill->config->planned)
        fill->config->planned(fill->config->arg, fill->filling);
    fill->files = sl_plan_sink_files(plan, err);
    if (!fill->files)
        return -1;
    fill->readiness = sl_readiness_new(plan, fill->filling, err);
    if (!fill->readiness)
        return -1;
    fill->reading = *config;
    fill->reading.watch = sl_readiness_watch(fill->readiness);
    if (open_device(fill, attempt, err) < 0)
        return -1;
    struct sl_gpu_ring *ring = fill->device ? sl_gpu_fill_ring(fill->device) : NULL;
    to->sink = sl_slab_sink_open(fill->filling, fill->files, plan->file_count, ring, err);
    *config = fill->reading;
    return to->sink ? 0 : -1;
}

static int finish(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                  struct sl_err *err)
{
    struct fill *fill = (struct fill *)to;
    if (fill->device && (sl_gpu_fill_finish(fill->device, err) < 0 ||
                         sl_gpu_followers_finish(fill->twins, err) < 0))
        return -1;
    size_t left =
        sl_readiness_left(fill->readiness) + (fill->twins ? sl_gpu_followers_left(fill->twins) : 0);
    if (left)
        return sl_fail(err, SL_E_INTERNAL,
                       "%zu tensors of '%s' were read and checked, but not counted as complete",
                       left, sl_plan_uri(attempt->plan));
    return sl_pool_model_finish(fill->filling, err);
}

static void end(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                const struct sl_err *why)
{
    struct fill *fill = (struct fill *)to;
    (void)attempt;
    sl_sink_free(sl_steal(&to->sink));
    sl_gpu_followers_free(sl_steal(&fill->twins));
    sl_gpu_fill_free(sl_steal(&fill->device));
    sl_readiness_free(sl_steal(&fill->readiness));
    free(sl_steal(&fill->files));
    SL_AUTO(sl_pool_model) model = sl_steal(&fill->filling);
    if (!model)
        return;
    if (!why) {
        fill->model = sl_steal(&model);
        return;
    }
    sl_pool_model_fail(model, why);
    for (size_t i = 0; i < sl_pool_model_copies(model); i++)
        sl_pool_model_give_up(sl_pool_model_copy(model, i));
}

const struct sl_load_destination_ops sl_slabs_destination = {
    .name = "slabs",
    .current = current,
    .begin = begin,
    .finish = finish,
    .end = end,
};

int sl_fill_run(const struct sl_spec *spec, const struct sl_fill_config *config,
                struct sl_pool_model **model, struct sl_load_result *result, struct sl_err *err)
{
    struct fill fill = {.base = {.ops = &sl_slabs_destination,
                                 .wish = sl_slabs_wish(config->slab_bytes),
                                 .path = ""},
                        .config = config};
    if (sl_load_run_to(spec, &fill.base, config->cancel, config->progress, result, err) < 0) {
        sl_pool_model_free(fill.model);
        return -1;
    }
    if (result) {
        result->gpu_decrypted = fill.decrypted;
        result->gpu_cast = fill.cast;
        /* What the ring of a GPU still held was read, but not there. */
        result->read_seconds += result->publish_seconds;
        result->publish_seconds = 0;
    }
    *model = fill.model;
    return 0;
}

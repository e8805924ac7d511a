/*
 * Slabs as a destination of a load: its plan becomes a model that can be attached to before the
 * first byte is read. Each attempt makes a new model: what a failed one has given out cannot be
 * taken back, and is marked as failed instead.
 */
#include "fill.h"

#include "gpu_fill.h"
#include "load_destination.h"
#include "mapping.h"
#include "pool_parts.h"
#include "readiness.h"
#include "stages.h"

struct fill {
    struct sl_load_destination base;
    const struct sl_fill_config *config;
    struct sl_pool_model *model; /* of the attempt that succeeded */
    struct sl_pool_model *own;   /* the same, unless somebody has taken it */
    uint64_t decrypted, cast;    /* tensors, on a GPU */
    /* of the attempt in hand */
    struct sl_pool_model *filling, *filling_own;
    struct sl_sink_file *files;
    struct sl_readiness *readiness[SL_GPU_FILL_TARGETS_MAX]; /* one for each copy of the model */
    size_t copies;
    struct sl_stage_device host; /* who is told where there is no device */
    struct sl_gpu_fill *device;  /* NULL: on the host */
};

struct sl_plan_output sl_slabs_output(uint64_t slab_bytes)
{
    return (struct sl_plan_output){.layout = SL_LAYOUT_SLABS,
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

uint64_t sl_slabs_taken(const struct sl_pool_model *model)
{
    uint64_t most = 0;
    for (size_t i = 0; i < sl_pool_model_copies(model); i++) {
        const struct sl_pool_copy *copy = sl_pool_model_copy(model, i);
        uint64_t bytes = 0;
        for (size_t n = 0; n < copy->slab_count; n++)
            bytes += copy->slabs[n].gpu == copy->gpu ? copy->slabs[n].bytes : 0;
        most = SL_MAX(most, bytes);
    }
    return most;
}

static uint64_t needed(const struct sl_plan *plan, const struct sl_fill_config *config)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < config->place_count; i++) {
        uint64_t there = sl_slabs_needed(plan, &config->places[i]);
        bytes = SL_MAX(bytes, there);
    }
    return bytes;
}

static struct sl_pool_model *plan_model(const struct sl_fill_config *config,
                                        const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_pool_model *model =
        sl_pool_model_plan(config->name, plan, config->places, config->place_count, err);
    if (model && config->placement)
        sl_pool_model_set_placement(model, config->placement);
    return model;
}

static struct sl_readiness_item tensor_item(const struct sl_plan *plan, size_t number)
{
    const struct sl_plan_tensor *place = &plan->tensors[number];
    const struct sl_target *target = (const struct sl_target *)place->tensor;
    const struct sl_mapping *mapping = &plan->mappings[target - plan->targets];
    return (struct sl_readiness_item){.file = place->file,
                                      .source = mapping->source,
                                      .offset = place->file_offset,
                                      .begin = mapping->begin,
                                      .end = mapping->end,
                                      .bytes = target->from->meta ? 0 : place->tensor->bytes};
}

/* Tensors, then data files, as a copy has them: sorted by file and offset, too. */
static void list_items(const struct sl_plan *plan, struct sl_readiness_item *items)
{
    size_t number = plan->tensor_count, file = sl_pool_first_data_file(plan);
    for (size_t i = 0; i < plan->tensor_count; i++)
        items[i] = tensor_item(plan, i);
    for (uint32_t i = 0; i < plan->source_count; i++) {
        if (plan->sources[i].index)
            continue;
        uint64_t bytes = plan->files[file].bytes;
        items[number++] = (struct sl_readiness_item){
            .file = (uint32_t)file++, .source = i, .bytes = bytes, .end = bytes};
    }
}

static void set_ready(void *arg, size_t number)
{
    sl_pool_copy_set_ready(arg, number);
}

static int follow_copies(struct fill *fill, const struct sl_plan *plan, struct sl_err *err)
{
    size_t count = sl_pool_model_copy(fill->filling, 0)->tensor_count;
    sl_autofree struct sl_readiness_item *items = sl_alloc_array(count, sizeof(*items), err);
    if (!items)
        return -1;
    list_items(plan, items);
    for (size_t i = 0; i < sl_pool_model_copies(fill->filling); i++)
        if (!(fill->readiness[fill->copies++] = sl_readiness_new(
                  plan, items, count, set_ready, sl_pool_model_copy(fill->filling, i), err)))
            return -1;
    return 0;
}

/* A file of the plan in memory of a copy's GPU. */
static const struct sl_gpu_memory *memory_of(void *arg, uint32_t file)
{
    const struct sl_pool_copy *copy = arg;
    uint32_t slab = copy->slab_of_file[file];
    return slab == UINT32_MAX ? NULL : &copy->slabs[slab].memory;
}

static void count_cast(void *arg, uint64_t bytes)
{
    sl_pool_model_landed(arg, bytes);
}

/* Where the GPUs of the model's copies come in; the plan says then what they do. */
static int open_device(struct fill *fill, const struct sl_load_attempt *attempt, struct sl_err *err)
{
    struct sl_gpu_fill_target targets[SL_GPU_FILL_TARGETS_MAX];
    for (size_t i = 0; i < fill->copies; i++) {
        struct sl_pool_copy *copy = sl_pool_model_copy(fill->filling, i);
        targets[i] = (struct sl_gpu_fill_target){copy->gpu, memory_of, copy,
                                                 sl_readiness_events(fill->readiness[i])};
    }
    const struct sl_gpu_fill_config config = {.targets = targets,
                                              .target_count = fill->copies,
                                              .cancel = attempt->cancel,
                                              .progress = attempt->progress,
                                              .count_cast = count_cast,
                                              .arg = fill->filling};
    if (sl_gpu_fill_stages(attempt->plan, targets, fill->copies, &attempt->spec->sink.pool, err) <
        0)
        return -1;
    fill->device = sl_gpu_fill_new(attempt->plan, &config, err);
    return fill->device ? 0 : -1;
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
    fill->filling = fill->filling_own = plan_model(fill->config, plan, err);
    if (!fill->filling)
        return -1;
    if (fill->config->planned && fill->config->planned(fill->config->arg, fill->filling))
        fill->filling_own = NULL;
    fill->files = sl_plan_sink_files(plan, err);
    if (!fill->files)
        return -1;
    if (follow_copies(fill, plan, err) < 0 ||
        (fill->config->places[0].gpu && open_device(fill, attempt, err) < 0))
        return -1;
    fill->host = (struct sl_stage_device){.events = sl_readiness_events(fill->readiness[0])};
    config->device = fill->device ? sl_gpu_fill_device(fill->device) : &fill->host;
    fill->decrypted = sl_plan_on_device(plan, SL_STAGE_DECRYPT);
    fill->cast = sl_plan_on_device(plan, SL_STAGE_CAST);
    struct sl_gpu_ring *ring = fill->device ? sl_gpu_fill_ring(fill->device) : NULL;
    to->sink = sl_slab_sink_open(sl_pool_model_copy(fill->filling, 0), fill->files,
                                 plan->file_count, ring, err);
    return to->sink ? 0 : -1;
}

static int check_complete(const struct fill *fill, const struct sl_plan *plan, struct sl_err *err)
{
    size_t left = 0;
    for (size_t i = 0; i < fill->copies; i++)
        left += sl_readiness_left(fill->readiness[i]);
    if (!left)
        return 0;
    return sl_fail(err, SL_E_INTERNAL,
                   "%zu tensors of '%s' were read and checked, but not counted as complete", left,
                   sl_plan_uri(plan));
}

static int finish(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                  struct sl_err *err)
{
    struct fill *fill = (struct fill *)to;
    if (fill->device && sl_gpu_fill_finish(fill->device, err) < 0)
        return -1;
    if (check_complete(fill, attempt->plan, err) < 0)
        return -1;
    return sl_pool_model_finish(fill->filling, err);
}

static void end(struct sl_load_destination *to, const struct sl_load_attempt *attempt,
                const struct sl_err *why)
{
    struct fill *fill = (struct fill *)to;
    (void)attempt;
    sl_sink_free(sl_steal(&to->sink));
    sl_gpu_fill_free(sl_steal(&fill->device));
    for (; fill->copies; fill->copies--)
        sl_readiness_free(fill->readiness[fill->copies - 1]);
    free(sl_steal(&fill->files));
    SL_AUTO(sl_pool_model) own = sl_steal(&fill->filling_own);
    struct sl_pool_model *model = sl_steal(&fill->filling);
    if (!model)
        return;
    if (why) {
        sl_pool_model_fail(model, why);
        sl_pool_model_give_up(model);
        return;
    }
    fill->model = model;
    fill->own = sl_steal(&own);
}

const struct sl_load_destination_ops sl_slabs_destination = {
    .name = "slabs",
    .lands_late = true,
    .current = current,
    .begin = begin,
    .finish = finish,
    .end = end,
};

int sl_fill_run(const struct sl_spec *spec, const struct sl_fill_config *config,
                struct sl_pool_model **model, struct sl_load_result *result, struct sl_err *err)
{
    struct fill fill = {.base = {.ops = &sl_slabs_destination,
                                 .output = sl_slabs_output(config->slab_bytes),
                                 .path = ""},
                        .config = config};
    if (sl_load_run_to(spec, &fill.base, config->cancel, config->progress, result, err) < 0) {
        sl_pool_model_free(fill.own);
        return -1;
    }
    if (result) {
        result->gpu_decrypted = fill.decrypted;
        result->gpu_cast = fill.cast;
    }
    *model = fill.model;
    return 0;
}

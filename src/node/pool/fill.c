/*
 * The load is load/'s, with its mirrors and second try; here its plan becomes a model that can be
 * attached to before the first byte is read. Each attempt makes a new model: what a failed one has
 * given out cannot be taken back, and is marked as failed instead.
 */
#include "fill.h"

#include "gpu_fill.h"
#include "pool_parts.h"
#include "stages.h"

struct fill {
    const struct sl_fill_config *config;
    const struct sl_spec_pool *wishes;
    struct sl_pool_model *model; /* of the last attempt that succeeded */
    uint64_t decrypted, cast;    /* tensors, on a GPU */
};

static struct sl_sink_file *sink_files(const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_sink_file *files = sl_alloc_array(plan->file_count, sizeof(*files), err);
    for (size_t i = 0; files && i < plan->file_count; i++)
        files[i] = (struct sl_sink_file){plan->files[i].name, plan->files[i].bytes};
    return files;
}

/* Who counts what is complete of each copy of the model. */
struct copies {
    struct sl_readiness *readiness[SL_GPU_FILL_TARGETS_MAX];
    size_t count;
};

static void release_copies(struct copies *copies)
{
    for (size_t i = 0; i < copies->count; i++)
        sl_readiness_free(copies->readiness[i]);
}

static int follow_copies(struct copies *copies, struct sl_pool_model *model,
                         const struct sl_plan *plan, struct sl_err *err)
{
    for (size_t i = 0; i < sl_pool_model_copies(model); i++)
        if (!(copies->readiness[copies->count++] =
                  sl_readiness_new(plan, sl_pool_model_copy(model, i), err)))
            return -1;
    return 0;
}

/* A file of the plan in memory of a copy's GPU. */
static const struct sl_gpu_memory *memory_of(void *arg, uint32_t file)
{
    const struct sl_pool_model *copy = arg;
    uint32_t slab = copy->slab_of_file[file];
    return slab == UINT32_MAX ? NULL : &copy->slabs[slab].memory;
}

static void count_cast(void *arg, uint64_t bytes)
{
    sl_pool_model_landed(arg, bytes);
}

/* Where the GPUs of the model's copies come in; the plan says then what they do. */
static struct sl_gpu_fill *open_device(struct sl_pool_model *model, const struct copies *copies,
                                       struct sl_plan *plan, const struct fill *fill,
                                       const struct sl_reader_config *config, struct sl_err *err)
{
    struct sl_gpu_fill_target targets[SL_GPU_FILL_TARGETS_MAX];
    for (size_t i = 0; i < copies->count; i++) {
        struct sl_pool_model *copy = sl_pool_model_copy(model, i);
        targets[i] = (struct sl_gpu_fill_target){copy->gpu, memory_of, copy,
                                                 sl_readiness_events(copies->readiness[i])};
    }
    const struct sl_gpu_fill_config device = {.targets = targets,
                                              .target_count = copies->count,
                                              .cancel = config->cancel,
                                              .progress = config->progress,
                                              .count_cast = count_cast,
                                              .arg = model};
    if (sl_gpu_fill_stages(plan, targets, copies->count, fill->wishes, err) < 0)
        return NULL;
    return sl_gpu_fill_new(plan, &device, err);
}

static int check_complete(const struct copies *copies, const struct sl_plan *plan,
                          struct sl_err *err)
{
    size_t left = 0;
    for (size_t i = 0; i < copies->count; i++)
        left += sl_readiness_left(copies->readiness[i]);
    if (!left)
        return 0;
    return sl_fail(err, SL_E_INTERNAL,
                   "%zu tensors of '%s' were read and checked, but not counted as complete", left,
                   sl_plan_uri(plan));
}

static int read_copies(struct sl_pool_model *model, const struct copies *copies,
                       struct sl_plan *plan, const struct sl_reader_config *given,
                       struct fill *fill, struct sl_err *err)
{
    struct sl_reader_config config = *given;
    const struct sl_stage_device host = {.events = sl_readiness_events(copies->readiness[0])};
    bool on_gpu = fill->config->place->gpu;
    sl_autofree struct sl_sink_file *files = sink_files(plan, err);
    if (!files)
        return -1;
    SL_AUTO(sl_gpu_fill) device = NULL;
    if (on_gpu && !(device = open_device(model, copies, plan, fill, given, err)))
        return -1;
    config.device = device ? sl_gpu_fill_device(device) : &host;
    fill->decrypted = sl_plan_on_device(plan, SL_STAGE_DECRYPT);
    fill->cast = sl_plan_on_device(plan, SL_STAGE_CAST);
    struct sl_gpu_ring *ring = device ? sl_gpu_fill_ring(device) : NULL;
    SL_AUTO(sl_sink) sink = sl_slab_sink_open(model, files, plan->file_count, ring, err);
    if (!sink)
        return -1;
    sl_progress_set_state(config.progress, SL_LOAD_READING);
    if (sl_reader_run(plan, sink, NULL, &config, err) < 0)
        return -1;
    return device ? sl_gpu_fill_finish(device, err) : 0;
}

static int read_into(struct sl_pool_model *model, struct sl_plan *plan,
                     const struct sl_reader_config *given, struct fill *fill, struct sl_err *err)
{
    struct copies copies = {.count = 0};
    int failed = follow_copies(&copies, model, plan, err);
    if (!failed)
        failed = read_copies(model, &copies, plan, given, fill, err);
    if (!failed)
        failed = check_complete(&copies, plan, err);
    release_copies(&copies);
    return failed ? -1 : sl_pool_model_finish(model, err);
}

/* What the slabs take in one place. */
static uint64_t needed_in(const struct sl_plan *plan, const struct sl_slab_place *place)
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
    uint64_t bytes = needed_in(plan, config->place);
    for (size_t i = 0; i < config->more_count; i++) {
        uint64_t there = needed_in(plan, &config->more[i]);
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

static int fill(void *arg, struct sl_plan *plan, const struct sl_reader_config *given,
                struct sl_err *err)
{
    struct fill *fill = arg;
    const struct sl_fill_config *config = fill->config;
    int there =
        config->admit ? config->admit(config->arg, needed(plan, config), plan->identity, err) : 0;
    if (there)
        return there < 0 ? -1 : 0;
    SL_AUTO(sl_pool_model) model = plan_model(config, plan, err);
    if (!model)
        return -1;
    if (config->planned)
        config->planned(config->arg, model);
    struct sl_err why = SL_ERR_INIT;
    if (read_into(model, plan, given, fill, &why) < 0) {
        sl_pool_model_fail(model, &why);
        for (size_t i = 0; i < sl_pool_model_copies(model); i++)
            sl_pool_model_give_up(sl_pool_model_copy(model, i));
        *err = why;
        return -1;
    }
    fill->model = sl_steal(&model);
    return 0;
}

int sl_fill_run(const struct sl_spec *spec, const struct sl_fill_config *config,
                struct sl_pool_model **model, struct sl_load_result *result, struct sl_err *err)
{
    struct sl_spec own = *spec; /* its strings are borrowed */
    struct fill state = {.config = config, .wishes = &spec->sink.pool};
    struct sl_load_fill into = {fill, &state};
    own.sink.tmpfs.path = NULL;
    own.sink.tmpfs.layout = SL_LAYOUT_SLABS;
    own.sink.tmpfs.shard_bytes = config->slab_bytes ? config->slab_bytes : SL_SLAB_BYTES;
    if (sl_load_run_into(&own, &into, config->cancel, config->progress, result, err) < 0) {
        sl_pool_model_free(state.model);
        return -1;
    }
    if (result) {
        result->gpu_decrypted = state.decrypted;
        result->gpu_cast = state.cast;
    }
    *model = state.model;
    return 0;
}

/*
 * The load is load/'s, with its mirrors and second try; here its plan becomes a model that can be
 * attached to before the first byte is read. Each attempt makes a new model: what a failed one has
 * given out cannot be taken back, and is marked as failed instead.
 */
#include "fill.h"

#include "pool_parts.h"

struct fill {
    const struct sl_fill_config *config;
    const struct sl_spec_pool *wishes;
    struct sl_pool_model *model; /* of the last attempt that succeeded */
    struct sl_pool_model *own;   /* the same, unless somebody has taken it */
    uint64_t decrypted, cast;    /* tensors, on a GPU */
};

static struct sl_sink_file *sink_files(const struct sl_plan *plan, struct sl_err *err)
{
    struct sl_sink_file *files = sl_alloc_array(plan->file_count, sizeof(*files), err);
    for (size_t i = 0; files && i < plan->file_count; i++)
        files[i] = (struct sl_sink_file){plan->files[i].name, plan->files[i].bytes};
    return files;
}

static int read_into(struct sl_pool_model *model, const struct sl_plan *plan,
                     const struct sl_reader_config *given, struct fill *fill, struct sl_err *err)
{
    struct sl_reader_config config = *given;
    struct sl_gpu *gpu = fill->config->places[0].gpu;
    struct sl_pool_copy *first = model->copies[0];
    sl_autofree struct sl_sink_file *files = sink_files(plan, err);
    if (!files)
        return -1;
    SL_AUTO(sl_readiness) readiness = sl_readiness_new(plan, first, err);
    if (!readiness)
        return -1;
    config.watch = sl_readiness_watch(readiness);
    struct sl_spec_pool wishes = *fill->wishes;
    wishes.decrypt = sl_gpu_followers_decrypt(model, (enum sl_pool_decrypt)wishes.decrypt);
    SL_AUTO(sl_gpu_fill) device = NULL;
    if (gpu && !(device = sl_gpu_fill_new(gpu, first, plan, &wishes, &config, err)))
        return -1;
    SL_AUTO(sl_gpu_followers) others = NULL;
    if (device && !(others = sl_gpu_followers_new(device, model, plan, err)))
        return -1;
    if (device) {
        sl_gpu_fill_config(device, &config);
        sl_gpu_fill_counts(device, &fill->decrypted, &fill->cast);
        config.watch = sl_gpu_followers_watch(others);
    }
    struct sl_gpu_ring *ring = device ? sl_gpu_fill_ring(device) : NULL;
    SL_AUTO(sl_sink) sink = sl_slab_sink_open(first, files, plan->file_count, ring, err);
    if (!sink)
        return -1;
    sl_progress_set_state(config.progress, SL_LOAD_READING);
    if (sl_reader_run(plan, sink, NULL, &config, err) < 0 ||
        (device &&
         (sl_gpu_fill_finish(device, err) < 0 || sl_gpu_followers_finish(others, err) < 0)))
        return -1;
    size_t left = sl_readiness_left(readiness) + (others ? sl_gpu_followers_left(others) : 0);
    if (left)
        return sl_fail(err, SL_E_INTERNAL,
                       "%zu tensors of '%s' were read and checked, but not counted as complete",
                       left, sl_plan_uri(plan));
    return sl_pool_model_finish(model, err);
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
    uint64_t bytes = 0;
    for (size_t i = 0; i < config->place_count; i++) {
        uint64_t there = needed_in(plan, &config->places[i]);
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

static int fill(void *arg, const struct sl_plan *plan, const struct sl_reader_config *given,
                struct sl_err *err)
{
    struct fill *fill = arg;
    const struct sl_fill_config *config = fill->config;
    int there =
        config->admit ? config->admit(config->arg, needed(plan, config), plan->identity, err) : 0;
    if (there)
        return there < 0 ? -1 : 0;
    SL_AUTO(sl_pool_model) own = plan_model(config, plan, err);
    struct sl_pool_model *model = own;
    if (!model)
        return -1;
    if (config->planned && config->planned(config->arg, model))
        own = NULL;
    struct sl_err why = SL_ERR_INIT;
    if (read_into(model, plan, given, fill, &why) < 0) {
        sl_pool_model_fail(model, &why);
        sl_pool_model_give_up(model);
        *err = why;
        return -1;
    }
    sl_pool_model_free(fill->own);
    fill->own = sl_steal(&own);
    fill->model = model;
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
        sl_pool_model_free(state.own);
        return -1;
    }
    if (result) {
        result->gpu_decrypted = state.decrypted;
        result->gpu_cast = state.cast;
    }
    *model = state.model;
    return 0;
}

/*
 * The budget of a GPU is what the registry counts with; beyond it, before anything is taken, the
 * driver is asked what is free, since other processes use the GPU as well. A context is held from
 * there to the load's end: making one takes longer than many a load.
 */
#include "gpu_loading.h"

#include "fill.h"
#include "log.h"

struct filling {
    const struct sl_gpu_targets *targets;
    const struct sl_holder_job *job;
    unsigned held; /* contexts, of the first GPUs */
};

static int check_free(const struct filling *filling, struct sl_gpu *gpu, uint64_t bytes,
                      struct sl_err *err)
{
    uint64_t free_bytes, total_bytes;
    char need[32], have[32];
    if (sl_gpu_memory(gpu, &free_bytes, &total_bytes, err) < 0)
        return -1;
    if (bytes <= free_bytes)
        return 0;
    return sl_fail_code(
        err, SL_E_NO_SPACE, "full",
        "the model '%s' needs %s, and %s are free on cuda:%d: other processes use "
        "it (see nvidia-smi); lower pool.gpuBudgetBytes so that models are evicted in time",
        filling->job->name, sl_human_bytes(bytes, need), sl_human_bytes(free_bytes, have),
        sl_gpu_device(gpu)->ordinal);
}

static int check_all_free(struct filling *filling, uint64_t bytes, struct sl_err *err)
{
    const struct sl_gpu_targets *targets = filling->targets;
    for (; filling->held < targets->count; filling->held++)
        if (sl_gpu_hold(targets->gpus[filling->held], err) < 0)
            return -1;
    for (unsigned i = 0; i < targets->count; i++)
        if (check_free(filling, targets->gpus[i], bytes, err) < 0)
            return -1;
    return 0;
}

static int admit(void *arg, uint64_t bytes, const uint8_t identity[32], struct sl_err *err)
{
    struct filling *filling = arg;
    char version[SL_VERSION_TEXT];
    int there = filling->job->admit(filling->job->arg, identity, bytes, version, err);
    return there ? there : check_all_free(filling, bytes, err);
}

static bool planned(void *arg, struct sl_pool_model *model)
{
    struct filling *filling = arg;
    filling->job->opened(filling->job->arg, model);
    return true;
}

static int run(struct filling *filling, struct sl_pool_model **model, struct sl_load_result *result,
               struct sl_err *err)
{
    const struct sl_gpu_targets *targets = filling->targets;
    struct sl_slab_place places[SL_SPACES_MAX - SL_SPACE_GPU];
    for (unsigned i = 0; i < targets->count; i++)
        sl_slab_place_gpu(targets->gpus[i], &places[i]);
    const struct sl_fill_config config = {.name = filling->job->name,
                                          .places = places,
                                          .place_count = targets->count,
                                          .placement = targets->placement,
                                          .admit = admit,
                                          .planned = planned,
                                          .arg = filling,
                                          .cancel = filling->job->cancel,
                                          .progress = filling->job->progress};
    int done = sl_fill_run(filling->job->spec, &config, model, result, err);
    while (filling->held)
        sl_gpu_unhold(targets->gpus[--filling->held]);
    return done;
}

int sl_gpu_load(const struct sl_gpu_targets *targets, const struct sl_holder_job *job, void **body,
                struct sl_err *err)
{
    struct filling filling = {.targets = targets, .job = job};
    struct sl_load_result result;
    struct sl_pool_model *model = NULL;
    char where[128], more[48] = "";
    *body = NULL;
    if (run(&filling, &model, &result, err) < 0)
        return -1;
    if (!model)
        return 0; /* it was there */
    *body = model;
    if (targets->count > 1)
        snprintf(more, sizeof(more), ", and on %u more", targets->count - 1);
    snprintf(where, sizeof(where), "the pool (%s%s)", sl_pool_model_memory(model), more);
    sl_load_say(&result, job->progress, job->name, where);
    return 0;
}

/*
 * What GPUs offer to do of a plan's work: what the spec says, or pins, else all for which they have
 * kernels, but for casts to smaller types. Nothing is measured: kernels are faster than any way to
 * a GPU, so what counts is how much goes that way, and which work the processors are spared. What
 * goes to several GPUs is decrypted on each of them or on the host, so each must have kernels;
 * casts and CRCs are the host's then.
 */
#include "gpu_fill.h"
#include "gpu_kernels.h"
#include "gpu_opener.h"
#include "log.h"
#include "stages.h"

/* Where a stage is done, and why. */
struct choice {
    bool on_gpu;
    char why[256]; /* for people */
};
static const struct {
    const char *name;
    const char *why; /* auto has it on the GPU; for people */
} stages[SL_STAGES] = {
    [SL_STAGE_DECRYPT] = {"decrypting", "it keeps up with the way to it"},
    [SL_STAGE_CAST] = {"casting", "what was stored is not larger"},
    [SL_STAGE_CRC] = {"computing CRCs", "they hold for the way to it, too"},
};

struct offer {
    const struct sl_plan *plan;
    const struct sl_gpu_fill_target *targets;
    size_t count;
    const struct sl_spec_pool *settings;
};

/* *pinned: it is not the spec's setting, which is auto. */
static enum sl_pool_decrypt setting_of(const struct offer *offer, enum sl_stage stage, bool *pinned)
{
    const int settings[SL_STAGES] = {[SL_STAGE_DECRYPT] = offer->settings->decrypt,
                                     [SL_STAGE_CAST] = offer->settings->cast,
                                     [SL_STAGE_CRC] = offer->settings->crc};
    const struct sl_fixed *fixed = &offer->plan->fixed;
    const int places[SL_STAGES] = {[SL_STAGE_DECRYPT] = fixed->decrypt,
                                   [SL_STAGE_CAST] = fixed->cast,
                                   [SL_STAGE_CRC] = fixed->crc};
    *pinned = fixed->on && settings[stage] == SL_DECRYPT_AUTO;
    if (!*pinned)
        return (enum sl_pool_decrypt)settings[stage];
    return places[stage] == SL_FIXED_GPU ? SL_DECRYPT_GPU : SL_DECRYPT_HOST;
}

/* Must it be the host, for all of several GPUs? */
static bool is_hosts(const struct offer *offer, enum sl_stage stage, struct choice *choice)
{
    struct sl_err why = SL_ERR_INIT;
    bool pinned;
    if (offer->count > 1 && stage != SL_STAGE_DECRYPT) {
        snprintf(choice->why, sizeof(choice->why), "once for all GPUs");
        return true;
    }
    for (size_t i = 1; setting_of(offer, stage, &pinned) == SL_DECRYPT_AUTO && i < offer->count;
         i++) {
        const struct sl_cuda_device *device = sl_gpu_device(offer->targets[i].gpu);
        if (sl_kernels_check(device, &why) == 0)
            continue;
        snprintf(choice->why, sizeof(choice->why), "for all GPUs, since of cuda:%d: %.200s",
                 device->ordinal, why.message);
        return true;
    }
    return false;
}

/* Are casts to smaller types? Then less goes to the GPU from the host. */
static bool shrinks(const struct offer *offer)
{
    const struct sl_plan *plan = offer->plan;
    double in = 0, out = 0;
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_mapping *mapping = &plan->mappings[i];
        if (mapping->target->from->dtype == mapping->target->out.dtype)
            continue;
        in += (double)mapping->selected.total;
        out += (double)mapping->selected.total / mapping->in_item * mapping->out_item;
    }
    return out < in;
}

static int load_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    (void)arg;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    const struct sl_kernels *kernels = sl_gpu_kernels(gpu, err);
    sl_gpu_release(gpu);
    return kernels ? 0 : -1;
}

/* -1: the spec wants the GPU, which has no kernels: SL_E_GPU. With auto the host does what a GPU
 * would do whose driver does not take them. */
static int choose(const struct offer *offer, enum sl_stage stage, enum sl_pool_decrypt setting,
                  struct choice *choice, struct sl_err *err)
{
    struct sl_gpu *gpu = offer->targets[0].gpu;
    struct sl_err why = SL_ERR_INIT;
    choice->on_gpu = setting == SL_DECRYPT_GPU;
    snprintf(choice->why, sizeof(choice->why), "the spec says so");
    if (setting == SL_DECRYPT_HOST)
        return 0;
    if (setting == SL_DECRYPT_GPU)
        return sl_kernels_check(sl_gpu_device(gpu), err);
    bool smaller = stage == SL_STAGE_CAST && shrinks(offer);
    choice->on_gpu = !smaller && sl_kernels_check(sl_gpu_device(gpu), &why) == 0 &&
                     sl_gpu_call(gpu, load_task, NULL, false, &why) == 0;
    snprintf(choice->why, sizeof(choice->why), "auto: %.200s",
             why.kind  ? why.message
             : smaller ? "what was stored is larger"
                       : stages[stage].why);
    return 0;
}

static int does(void *arg, enum sl_stage stage, bool *is_done, struct sl_err *err)
{
    const struct offer *offer = arg;
    struct sl_gpu *gpu = offer->targets[0].gpu;
    struct choice choice = {.on_gpu = false};
    bool pinned, is_host = is_hosts(offer, stage, &choice);
    enum sl_pool_decrypt setting = setting_of(offer, stage, &pinned);
    if (!is_host && choose(offer, stage, setting, &choice, err) < 0)
        return -1;
    if (!is_host && pinned)
        snprintf(choice.why, sizeof(choice.why), "the load is pinned");
    char place[32] = "the host";
    if (choice.on_gpu)
        snprintf(place, sizeof(place), "cuda:%d%s", sl_gpu_device(gpu)->ordinal,
                 offer->count > 1 ? " and the others" : "");
    sl_log(SL_LOG_INFO, "'%s': %s on %s: %s", sl_plan_uri(offer->plan), stages[stage].name, place,
           choice.why);
    *is_done = choice.on_gpu;
    return 0;
}

static bool has(void *arg, uint32_t file)
{
    const struct sl_gpu_fill_target *first = ((const struct offer *)arg)->targets;
    const struct sl_gpu_memory *memory = first->memory(first->arg, file);
    return memory && memory->address;
}

int sl_gpu_fill_stages(struct sl_plan *plan, const struct sl_gpu_fill_target *targets, size_t count,
                       const struct sl_spec_pool *settings, struct sl_err *err)
{
    struct offer own = {plan, targets, count, settings};
    const struct sl_stage_offer offer = {
        .does = does, .has = has, .arg = &own, .piece_bytes_max = SL_OPENER_PIECE_BYTES_MAX};
    return sl_plan_stages(plan, &offer, err);
}

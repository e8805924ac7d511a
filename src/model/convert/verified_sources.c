/*
 * Sources that have a sidecar: threads read here and there, so each source gets a verified, which
 * fetches whole ranges and lets nothing through that was not found right. What was read of a source
 * before, to find its tensors, is proved as its ranges come, and the rest of it at the end.
 */
#include "verified_reader.h"

#include "job.h"
#include "log.h"

static int verify_one(struct sl_job *job, struct sl_component *component, uint32_t number,
                      struct sl_err *err)
{
    const struct sl_spec_verify *verify = &component->spec.verify;
    const struct sl_sidecar *sidecar = sl_plan_sidecar(component->plan, number);
    struct sl_err why = SL_ERR_INIT;
    if (!sidecar)
        return 0;
    component->verified[number] =
        sl_verified_reader_new(component->plan->sources[number].source, sidecar,
                               verify->hashes == SL_HASHES_ALL, 0, job->config->progress, &why);
    if (component->verified[number])
        return 0;
    if (why.kind != SL_E_USAGE || verify->sidecar == SL_SIDECAR_REQUIRE) {
        *err = why;
        return -1;
    }
    sl_log(SL_LOG_WARN, "%s; it is not used", why.message);
    return 0;
}

int sl_component_verify_reads(struct sl_job *job, struct sl_component *component,
                              struct sl_err *err)
{
    const struct sl_plan *plan = component->plan;
    component->verified =
        sl_alloc_array(plan->source_count, sizeof(struct sl_verified_reader *), err);
    if (!component->verified)
        return -1;
    component->verified_count = plan->source_count;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (verify_one(job, component, i, err) < 0)
            return -1;
    return 0;
}

int sl_job_prove_indexes(struct sl_job *job, struct sl_err *err)
{
    for (size_t i = 0; i < job->component_count; i++) {
        const struct sl_component *component = &job->components[i];
        for (size_t n = 0; n < component->verified_count; n++)
            if (component->verified[n] &&
                sl_verified_reader_prove(component->verified[n], component->plan->sources[n].source,
                                         err) < 0)
                return -1;
    }
    return 0;
}

void sl_component_release_readers(struct sl_component *component)
{
    for (size_t i = 0; i < component->verified_count; i++)
        sl_verified_reader_free(component->verified[i]);
    free(component->verified);
}

void sl_component_release(struct sl_component *component)
{
    sl_layout_free(component->layout);
    sl_component_release_readers(component);
    if (!component->given)
        sl_plan_free(component->plan);
    for (size_t i = 0; i < component->include.count; i++)
        free(component->include.items[i]);
    free(component->include.items);
    free(component->folder);
    free(component->stem);
    free(component->uri);
}

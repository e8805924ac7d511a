/* How large a model is, from its listing alone. */
#include <string.h>

#include "format.h"
#include "plan_parts.h"
#include "stores.h"

/* An index of shards, or a part of a set, stands for others. */
static bool stands_for_others(const char *name)
{
    return sl_plan_names_files(name) || sl_format_of_index(name) || strstr(name, "-of-");
}

static int measure_object(struct sl_plan_own *own, uint64_t *bytes, struct sl_err *err)
{
    const char *name = own->candidates[0].name;
    SL_AUTO(sl_source) source = NULL;
    if (stands_for_others(name))
        return 0;
    if (sl_source_open(own->store, name, 1, &source, err) < 0)
        return -1;
    *bytes = sl_source_bytes(source);
    return 0;
}

int sl_plan_measure(const struct sl_spec *spec, const struct sl_source_config *config,
                    uint64_t *bytes, struct sl_err *err)
{
    const struct sl_plan_output none = {SL_LAYOUT_VERBATIM};
    SL_AUTO(sl_plan) plan = sl_plan_new(spec, &none, false, err);
    struct sl_plan_own *own = plan ? plan->own : NULL;
    sl_autofree char *key = NULL;
    *bytes = 0;
    if (!plan || sl_store_open(spec->source.uri, config, &own->store, &key, err) < 0)
        return -1;
    if (sl_store_advice(own->store).reads_to_list)
        return 0;
    if (sl_plan_list(plan, key, err) < 0)
        return -1;
    if (own->single)
        return measure_object(own, bytes, err);
    for (size_t i = 0; i < own->candidate_count; i++)
        *bytes = sl_add_capped(*bytes, own->candidates[i].bytes);
    return 0;
}

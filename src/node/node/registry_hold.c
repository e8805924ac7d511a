/* Looking at one model, and taking one version of it that is there. */
#include "metrics.h"
#include "registry_parts.h"

#include <string.h>

static struct resident *find_version(struct sl_registry *registry, const char *name,
                                     const char *version, bool whole)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next)
            if (!at->key && strcmp(model->name, name) == 0 && strcmp(at->version, version) == 0 &&
                (at->state == RESIDENT_READY ||
                 (!whole && (at->state == RESIDENT_PARTIAL || at->state == RESIDENT_LOADING))))
                return at;
    return NULL;
}

struct sl_model_ref *sl_registry_hold_version(struct sl_registry *registry, const char *name,
                                              const char *version, bool whole,
                                              enum sl_ref_kind kind, const char *who,
                                              struct sl_err *err)
{
    struct sl_model_ref *ref = registry_new_ref(registry, kind, who, err);
    if (!ref)
        return NULL;
    SL_LOCKED(&registry->lock);
    struct resident *resident = find_version(registry, name, version, whole);
    if (!resident) {
        free(ref);
        sl_fail(err, SL_E_NOT_FOUND, "version %s of '%s' is not in memory", version, name);
        return NULL;
    }
    registry_link_ref(ref, resident);
    registry_update_gauges(registry);
    return ref;
}

uint64_t sl_model_ref_bytes(const struct sl_model_ref *ref)
{
    SL_LOCKED(&ref->registry->lock);
    return ref->resident->bytes;
}

bool sl_registry_meaning(struct sl_registry *registry, const char *name,
                         struct sl_registry_meaning *meaning)
{
    SL_LOCKED(&registry->lock);
    const struct model *model = registry_find(registry, name);
    *meaning = (struct sl_registry_meaning){.of_config = false};
    if (!model || model->retired)
        return false;
    meaning->of_config = model->of_config;
    meaning->busy = model->work != WORK_NONE;
    meaning->holder = model->box ? model->holder->name : NULL;
    return true;
}

/* What the janitor and the workers look for, asked from outside. */
#include "registry_settle.h"

#include "registry_parts.h"

static bool has_work(const struct model *model)
{
    for (const struct resident *at = model->residents; at; at = at->next)
        if (registry_is_abandoned(at) || (at->state == RESIDENT_READY && (at->to_keep || at->busy)))
            return true;
    return false;
}

static bool is_settled(const struct sl_registry *registry)
{
    if (registry->locked.dropping || registry->locked.later_count)
        return false;
    for (const struct model *model = registry->locked.models; model; model = model->next)
        if (model->work != WORK_NONE || has_work(model))
            return false;
    return true;
}

void sl_registry_settle(struct sl_registry *registry)
{
    SL_LOCKED(&registry->lock);
    while (!registry->locked.stopping && !is_settled(registry))
        pthread_cond_wait(&registry->changed, &registry->lock);
}

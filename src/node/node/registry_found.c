/* What lay in memory when the daemon began, before or after it is known what its name means. */
#include <string.h>

#include "registry_parts.h"

static void make_current(struct model *model, struct resident *resident, const uint8_t *identity)
{
    model->current = resident;
    model->has_identity = identity;
    if (identity)
        memcpy(model->identity, identity, sizeof(model->identity));
}

static bool is_known(const uint8_t identity[32])
{
    static const uint8_t unknown[32];
    return memcmp(identity, unknown, sizeof(unknown)) != 0;
}

/* It was found in several memories: what lies where its spec says. Of several versions there the
 * one that was told last comes first. */
void registry_choose_current(struct model *model, const struct sl_holder *holder)
{
    struct resident *at = model->residents;
    while (at && (!at->was_current || at->holder != holder || at->state != RESIDENT_READY))
        at = at->next;
    if (at)
        make_current(model, at, is_known(at->identity) ? at->identity : NULL);
}

static bool is_there(struct model *model, const struct sl_registry_found *found,
                     const struct sl_holder *holder)
{
    if (!found->key)
        return registry_resident(model, found->version, holder);
    for (const struct resident *at = model->residents; at; at = at->next)
        if (at->key && strcmp(at->key, found->key) == 0 && at->owner == found->owner &&
            memcmp(at->identity, found->identity, sizeof(at->identity)) == 0)
            return true;
    return false;
}

static int take_found(struct sl_registry *registry, const struct sl_holder *holder,
                      const struct sl_registry_found *found, struct sl_err *err)
{
    struct model *model = registry_find(registry, found->name);
    if (!model && !(model = registry_new_model(registry, found->name, err)))
        return -1;
    if (is_there(model, found, holder))
        return sl_fail_code(err, SL_E_USAGE, "exists", "version %s of '%s' was adopted already",
                            found->version, found->name);
    struct resident *resident = registry_new_resident(model, found->version, holder, err);
    if (!resident)
        return -1;
    if (found->key && !(resident->key = sl_strdup(found->key, err))) {
        registry_remove_resident(resident);
        return -1;
    }
    model->holder = model->holder ? model->holder : holder;
    resident->state = found->ready ? RESIDENT_READY : RESIDENT_PARTIAL;
    resident->bytes = found->bytes;
    resident->owner = found->owner;
    resident->body = found->body;
    resident->ready_seconds = found->ready ? sl_wall_seconds() : 0;
    if (found->identity)
        memcpy(resident->identity, found->identity, sizeof(resident->identity));
    if (!found->ready || found->key)
        return 0;
    model->was_ready = true;
    resident->was_current = found->current;
    if (found->current || !model->current)
        make_current(model, resident, found->identity);
    return 0;
}

int sl_registry_adopt(struct sl_registry *registry, const struct sl_holder *holder,
                      const struct sl_registry_found *found, struct sl_err *err)
{
    SL_LOCKED(&registry->lock);
    int done = take_found(registry, holder, found, err);
    registry_update_gauges(registry);
    return done;
}

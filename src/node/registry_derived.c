/*
 * Derived models: what clients deposit. One is a holding beside the versions of the model that it
 * was made from, with a key, so that budget, references and eviction are those of every holding.
 * From its begin to its commit a deposit is a holding that is being loaded and counts with what was
 * announced; nobody finds it before the commit, and an abort takes it away.
 *
 * It fits its name as long as the model is of the version that it was made from: after that it is
 * stale, found by nobody new, and among the first to go.
 */
#include <string.h>

#include "registry_parts.h"

bool registry_is_source(const struct model *model, const uint8_t identity[32])
{
    if (model->has_identity && memcmp(model->identity, identity, 32) == 0)
        return true;
    for (const struct holding *at = model->holdings; at; at = at->next)
        if (!at->key && at->state == HOLDING_LOADING && at->body &&
            memcmp(at->identity, identity, 32) == 0)
            return true;
    return false;
}

/* With this key, there or being deposited; stale: only of what the model was before. */
static struct holding *find_key(const struct model *model, const char *key, bool stale)
{
    for (struct holding *at = model->holdings; at; at = at->next) {
        bool there = at->state == HOLDING_READY || at->state == HOLDING_LOADING;
        if (at->key && there && strcmp(at->key, key) == 0 &&
            registry_is_source(model, at->identity) != stale)
            return at;
    }
    return NULL;
}

static struct holding *find_deposit(const struct sl_registry *registry, uint64_t id)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct holding *at = model->holdings; at; at = at->next)
            if (at->key && at->state == HOLDING_LOADING && at->deposit == id)
                return at;
    return NULL;
}

static struct model *find_model(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    struct model *model = registry_find(registry, name);
    if (registry->locked.stopping)
        sl_fail(err, SL_E_CANCELED, "the node daemon is about to end");
    else if (!model || model->retired)
        sl_fail(err, SL_E_NOT_FOUND, "no model is called '%.100s' here", name);
    else
        return model;
    return NULL;
}

/* ---- begin ---------------------------------------------------------------------------------- */

static int refuse_stale(const struct model *model, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_INTEGRITY, "stale",
                        "the model '%s' is another version than the deposit was made from: attach "
                        "again, and make it anew",
                        model->name);
}

static int check_offer(const struct model *model, const struct sl_derived_offer *offer,
                       struct sl_err *err)
{
    unsigned count = 0;
    for (const struct holding *at = model->holdings; at; at = at->next)
        count += at->key != NULL;
    if (!model->holder || strcmp(model->holder->name, offer->holder) != 0)
        return sl_fail_code(err, SL_E_USAGE, "files", "the model '%s' is not held in the %s",
                            model->name, offer->holder);
    if (!registry_is_source(model, offer->identity))
        return refuse_stale(model, err);
    const struct holding *other = find_key(model, offer->key, false);
    if (other && other->state == HOLDING_READY)
        return sl_fail_code(err, SL_E_USAGE, "exists",
                            "the model '%s' has a version with this key: attach to it",
                            model->name);
    if (other)
        return sl_fail_code(err, SL_E_USAGE, "busy",
                            "somebody else is depositing '%s' with this key: attach in a while",
                            model->name);
    if (count >= SL_REGISTRY_DERIVED_MAX)
        return sl_fail_code(err, SL_E_USAGE, "full",
                            "the model '%s' has %u versions with keys, the most that it may have: "
                            "evict one",
                            model->name, count);
    return 0;
}

static struct holding *reserve(struct sl_registry *registry, const struct sl_derived_offer *offer,
                               struct victims *victims, struct sl_err *err)
{
    char version[SL_VERSION_TEXT];
    struct model *model = find_model(registry, offer->name, err);
    sl_version_text(offer->identity, version);
    if (!model || check_offer(model, offer, err) < 0)
        return NULL;
    struct holding *holding = registry_new_holding(model, version, err);
    if (!holding)
        return NULL;
    if (offer->on)
        holding->holder = offer->on;
    holding->key = sl_strdup(offer->key, err);
    if (!holding->key || registry_make_room(registry, holding, offer->bytes, victims, err) < 0) {
        registry_remove_holding(holding);
        return NULL;
    }
    holding->state = HOLDING_LOADING;
    holding->busy = 1;
    holding->bytes = offer->bytes;
    holding->deposit = offer->id;
    memcpy(holding->identity, offer->identity, sizeof(holding->identity));
    registry_tell(registry);
    return holding;
}

static int drop_all(struct sl_registry *registry, const struct victims *victims, struct sl_err *err)
{
    int done = 0;
    for (size_t i = 0; i < victims->count; i++)
        if (registry_drop(registry, victims->items[i], err) < 0)
            done = -1;
    return done;
}

/* The janitor drops them; the deposit is answered after the last. */
static void await_room(struct sl_registry *registry, struct holding *holding,
                       const struct sl_derived_offer *offer, const struct victims *victims)
{
    for (size_t i = 0; i < victims->count; i++) {
        victims->items[i]->makes_room_for = holding;
        victims->items[i]->for_janitor = true;
    }
    holding->awaits.count = (unsigned)victims->count;
    holding->awaits.answer = offer->answer;
    holding->awaits.arg = offer->arg;
    pthread_cond_signal(&registry->clean);
}

int sl_registry_deposit_begin(struct sl_registry *registry, const struct sl_derived_offer *offer,
                              struct sl_err *err)
{
    struct victims victims = {.count = 0};
    {
        SL_LOCKED(&registry->lock);
        struct holding *holding = reserve(registry, offer, &victims, err);
        if (!holding)
            return -1;
        if (victims.count && offer->answer) {
            await_room(registry, holding, offer, &victims);
            return 1;
        }
    }
    if (drop_all(registry, &victims, err) == 0)
        return 0;
    sl_registry_deposit_abort(registry, offer->id);
    return -1;
}

/* ---- its end -------------------------------------------------------------------------------- */

static struct deposit_answer take_answer(struct holding *deposit, const struct sl_err *why)
{
    struct deposit_answer answer = {deposit->awaits.answer, deposit->awaits.arg, *why};
    deposit->awaits.answer = NULL;
    deposit->awaits.count = 0;
    return answer;
}

struct deposit_answer registry_room_made(struct holding *deposit, const struct sl_err *why)
{
    if (why)
        deposit->awaits.err = *why;
    if (--deposit->awaits.count)
        return (struct deposit_answer){NULL};
    struct deposit_answer answer = take_answer(deposit, &deposit->awaits.err);
    if (answer.err.kind)
        registry_remove_holding(deposit);
    return answer;
}

void registry_tell_deposit(const struct deposit_answer *answer)
{
    if (answer->answer)
        answer->answer(answer->arg, answer->err.kind ? &answer->err : NULL);
}

static void forget_room(struct sl_registry *registry, const struct holding *deposit)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct holding *at = model->holdings; at; at = at->next)
            if (at->makes_room_for == deposit)
                at->makes_room_for = NULL;
}

/* Its model may have waited for this to go. */
static void tell_end(struct sl_registry *registry)
{
    registry_tell(registry);
    pthread_cond_broadcast(&registry->changed);
    pthread_cond_signal(&registry->clean);
}

static int accept(struct sl_registry *registry, struct holding *holding, uint64_t bytes,
                  struct sl_err *err)
{
    const struct model *model = holding->model;
    struct victims victims;
    if (model->forgotten || model->retired || !registry_is_source(model, holding->identity))
        return refuse_stale(model, err);
    /* More than announced is no more than its index, whose memory has been taken already: nothing
     * is gained by waiting until what goes for it is dropped. */
    if (registry_make_room(registry, holding, bytes, &victims, err) < 0)
        return -1;
    for (size_t i = 0; i < victims.count; i++)
        victims.items[i]->for_janitor = true;
    return 0;
}

int sl_registry_deposit_commit(struct sl_registry *registry, uint64_t id, void *body,
                               uint64_t bytes, struct sl_err *err)
{
    SL_LOCKED(&registry->lock);
    struct holding *holding = find_deposit(registry, id);
    if (!holding)
        return sl_fail(err, SL_E_NOT_FOUND, "there is no such deposit");
    int done = accept(registry, holding, bytes, err);
    if (done == 0) {
        holding->busy = 0;
        holding->state = HOLDING_READY;
        holding->bytes = bytes;
        holding->body = body;
        holding->to_keep = holding->holder->keep != NULL;
        holding->ready_seconds = sl_wall_seconds();
        holding->used_ns = sl_now_ns();
    } else {
        registry_remove_holding(holding);
    }
    tell_end(registry);
    return done;
}

void sl_registry_deposit_abort(struct sl_registry *registry, uint64_t id)
{
    const struct sl_err why = {.kind = SL_E_CANCELED, .message = "the deposit was aborted"};
    struct deposit_answer answer;
    {
        SL_LOCKED(&registry->lock);
        struct holding *holding = find_deposit(registry, id);
        if (!holding)
            return;
        answer = take_answer(holding, &why);
        forget_room(registry, holding);
        registry_remove_holding(holding);
        tell_end(registry);
    }
    registry_tell_deposit(&answer);
}

/* ---- use ------------------------------------------------------------------------------------ */

static struct holding *find_derived(struct sl_registry *registry, const char *name, const char *key,
                                    struct sl_err *err)
{
    struct model *model = find_model(registry, name, err);
    if (!model)
        return NULL;
    struct holding *holding = find_key(model, key, false);
    if (holding && holding->state == HOLDING_READY)
        return holding;
    if (holding)
        sl_fail_code(err, SL_E_NOT_FOUND, "busy",
                     "the version of '%s' with this key is being deposited: attach in a while",
                     name);
    else if (find_key(model, key, true))
        sl_fail_code(err, SL_E_NOT_FOUND, "stale",
                     "the version of '%s' with this key was made from another version of the "
                     "model: deposit it anew",
                     name);
    else
        sl_fail_code(err, SL_E_NOT_FOUND, "absent", "the model '%s' has no version with this key",
                     name);
    return NULL;
}

struct sl_model_ref *sl_registry_hold_derived(struct sl_registry *registry, const char *name,
                                              const char *key, const char *who, struct sl_err *err)
{
    sl_autofree struct sl_model_ref *ref = registry_new_ref(registry, SL_REF_LEASE, who, err);
    if (!ref)
        return NULL;
    SL_LOCKED(&registry->lock);
    struct holding *holding = find_derived(registry, name, key, err);
    if (!holding)
        return NULL;
    registry_link_ref(ref, holding);
    registry_tell(registry);
    return sl_steal(&ref);
}

static bool is_of_key(const struct holding *holding, const char *key)
{
    return holding->key && holding->state == HOLDING_READY && strcmp(holding->key, key) == 0;
}

int sl_registry_evict_derived(struct sl_registry *registry, const char *name, const char *key,
                              uint64_t *bytes, struct sl_err *err)
{
    unsigned found = 0;
    SL_LOCKED(&registry->lock);
    const struct model *model = registry_find(registry, name);
    for (const struct holding *at = model ? model->holdings : NULL; at; at = at->next) {
        found += is_of_key(at, key);
        if (is_of_key(at, key) && at->busy)
            return sl_fail_code(err, SL_E_USAGE, "busy",
                                "the model '%s' with this key is being given to the service "
                                "manager: evict it in a moment",
                                name);
        if (is_of_key(at, key) && at->ref_count)
            return sl_fail_code(err, SL_E_USAGE, "busy",
                                "the model '%s' with this key is in use (%u references): it goes "
                                "when they are gone",
                                name, at->ref_count);
    }
    if (!found)
        return sl_fail_code(err, SL_E_NOT_FOUND, "absent", "'%.100s' has no version with this key",
                            name);
    *bytes = 0;
    for (struct holding *at = model->holdings; at; at = at->next)
        if (is_of_key(at, key)) {
            *bytes += registry_copies(registry, at) * at->bytes;
            registry_mark(registry, at, true);
        }
    registry_tell(registry);
    return 0;
}

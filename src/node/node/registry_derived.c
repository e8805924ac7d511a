/*
 * Derived models: what clients deposit. One is a resident beside the versions of the model that it
 * was made from, with a key, so that budget, references and eviction are those of every resident.
 * From its begin to its commit a deposit is a resident that is being loaded and counts with what
 * was announced; nobody finds it before the commit, and an abort takes it away.
 *
 * A key belongs to who deposited it. Others with the same key may stand beside it: whoever asks
 * finds its own, else one of a user whom the config trusts.
 *
 * It fits its name as long as the model is of the version that it was made from: after that it is
 * stale, found by nobody new, and among the first to go.
 */
#include <assert.h>
#include <string.h>

#include "registry_parts.h"

bool registry_is_source(const struct model *model, const uint8_t identity[32])
{
    if (model->has_identity && memcmp(model->identity, identity, 32) == 0)
        return true;
    for (const struct resident *at = model->residents; at; at = at->next)
        if (!at->key && at->state == RESIDENT_LOADING && at->body &&
            memcmp(at->identity, identity, 32) == 0)
            return true;
    return false;
}

static bool is_trusted(const struct sl_derived_view *view, uint32_t uid)
{
    for (size_t i = 0; i < view->trusted_count; i++)
        if (view->trusted[i] == uid)
            return true;
    return false;
}

/* With this key, there or being deposited; stale: only of what the model was before. Its own comes
 * before that of another, what is there before what is being deposited. */
static struct resident *find_key(const struct model *model, const char *key,
                                 const struct sl_derived_view *view, bool stale)
{
    struct resident *best = NULL;
    int best_rank = 0;
    for (struct resident *at = model->residents; at; at = at->next) {
        bool ready = at->state == RESIDENT_READY, own = at->owner == view->uid;
        int rank = 1 + 2 * ready + own;
        if (at->key && (ready || at->state == RESIDENT_LOADING) && strcmp(at->key, key) == 0 &&
            (own || is_trusted(view, at->owner)) &&
            registry_is_source(model, at->identity) != stale && rank > best_rank) {
            best = at;
            best_rank = rank;
        }
    }
    return best;
}

/* A deposit is of the version, and serves every name that shares it. */
static struct resident *find_shared_key(const struct model *model, const char *key,
                                        const struct sl_derived_view *view)
{
    const struct resident *own = model->current;
    struct resident *found = find_key(model, key, view, false);
    for (const struct resident *at = own; at && !found && at->share_next != own;) {
        at = at->share_next;
        found = find_key(at->model, key, view, false);
        if (found && memcmp(found->identity, own->identity, sizeof(own->identity)) != 0)
            found = NULL; /* that name stands for something else by now */
    }
    return found;
}

static struct resident *find_deposit(const struct sl_registry *registry, uint64_t id)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next)
            if (at->key && at->state == RESIDENT_LOADING && at->deposit == id)
                return at;
    return NULL;
}

static struct model *find_model(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    struct model *model = registry_find(registry, name);
    if (registry->locked.stopping)
        sl_fail(err, SL_E_CANCELED, "the node daemon is about to end");
    else if (!model || model->name_state == NAME_RETIRED || model->of_volume)
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
                        "again, and make it again",
                        model->name);
}

static int check_offer(const struct model *model, const struct sl_derived_offer *offer,
                       struct sl_err *err)
{
    unsigned count = 0;
    for (const struct resident *at = model->residents; at; at = at->next)
        count += at->key != NULL;
    if (!model->holder || strcmp(model->holder->name, offer->holder) != 0)
        return sl_fail_code(err, SL_E_USAGE, "files", "the model '%s' is not held in the %s",
                            model->name, offer->holder);
    if (!registry_is_source(model, offer->identity))
        return refuse_stale(model, err);
    const struct resident *other = find_shared_key(model, offer->key, &offer->view);
    if (other && other->state == RESIDENT_READY)
        return sl_fail_code(err, SL_E_USAGE, "exists",
                            "the model '%s' has a version with this key: attach to it",
                            model->name);
    if (other)
        return sl_fail_code(
            err, SL_E_USAGE, "busy",
            "another client is depositing '%s' with this key: attach again in a few seconds",
            model->name);
    if (count >= SL_REGISTRY_DERIVED_MAX)
        return sl_fail_code(err, SL_E_USAGE, "full",
                            "the model '%s' has %u versions with keys, the most that it may have: "
                            "evict one",
                            model->name, count);
    return 0;
}

/* ---- the owner's share ----------------------------------------------------------------------- */

/* What one user has deposited: bytes in a space, how many of a model, and of both what is in use.
 */
struct owned {
    uint64_t bytes, used_bytes;
    unsigned count, used_count;
    struct resident *oldest_here, *oldest_of_model; /* not in use, the least recently used */
};

static bool is_owned(const struct resident *at, uint32_t owner)
{
    return at->key && at->owner == owner &&
           (at->state == RESIDENT_READY || at->state == RESIDENT_LOADING);
}

static void note_oldest(struct resident **oldest, struct resident *at)
{
    if (!*oldest || at->used_ns < (*oldest)->used_ns)
        *oldest = at;
}

static struct owned find_owned(const struct sl_registry *registry, const struct model *of,
                               uint32_t placement, uint32_t owner)
{
    struct owned owned = {0};
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            bool here = at->holder->placement == placement, counts = model == of;
            if (!is_owned(at, owner))
                continue;
            bool used = at->state != RESIDENT_READY || at->ref_count || at->busy;
            owned.bytes += here ? at->bytes : 0;
            owned.used_bytes += here && used ? at->bytes : 0;
            owned.count += counts;
            owned.used_count += counts && used;
            if (here && !used)
                note_oldest(&owned.oldest_here, at);
            if (counts && !used)
                note_oldest(&owned.oldest_of_model, at);
        }
    return owned;
}

static int refuse_share(const struct sl_derived_offer *offer, const struct owned *owned,
                        uint64_t most, struct sl_err *err)
{
    char has[32], needs[32], limit[32];
    return sl_fail_code(err, SL_E_NO_SPACE, "share",
                        "user %u may have %s in derived models (pool.depositBytes): %s are in use, "
                        "and this one is announced with %s",
                        offer->view.uid, sl_human_bytes(most, limit),
                        sl_human_bytes(owned->used_bytes, has),
                        sl_human_bytes(offer->bytes, needs));
}

/* One user cannot fill the budget, nor a model's list: what it has itself goes first, if that is
 * enough. */
static int make_share(struct sl_registry *registry, struct model *model, uint32_t placement,
                      const struct sl_derived_offer *offer, struct sl_err *err)
{
    uint64_t most = offer->owner_bytes_max;
    if (!most)
        return 0;
    if (most == SL_AUTO_VALUE)
        most = registry->locked.budgets[__builtin_ctz(placement)] / 2;
    struct owned owned = find_owned(registry, model, placement, offer->view.uid);
    if (offer->bytes > most || owned.used_bytes > most - offer->bytes)
        return refuse_share(offer, &owned, most, err);
    if (owned.used_count >= SL_REGISTRY_DERIVED_SHARE)
        return sl_fail_code(err, SL_E_USAGE, "full",
                            "the model '%s' has %u versions with keys of user %u in use, the most "
                            "that one user may have",
                            model->name, owned.used_count, offer->view.uid);
    while (owned.bytes > most - offer->bytes || owned.count >= SL_REGISTRY_DERIVED_SHARE) {
        bool for_bytes = owned.bytes > most - offer->bytes;
        registry_mark(registry, for_bytes ? owned.oldest_here : owned.oldest_of_model, true);
        owned = find_owned(registry, model, placement, offer->view.uid);
    }
    return 0;
}

static struct resident *reserve(struct sl_registry *registry, const struct sl_derived_offer *offer,
                                struct victims *victims, struct sl_err *err)
{
    char version[SL_VERSION_TEXT];
    struct model *model = find_model(registry, offer->name, err);
    sl_version_text(offer->identity, version);
    if (!model || check_offer(model, offer, err) < 0)
        return NULL;
    const struct sl_holder *holder = offer->on ? offer->on : model->holder;
    if (make_share(registry, model, holder->placement, offer, err) < 0)
        return NULL;
    struct resident *resident = registry_new_resident(model, version, holder, err);
    if (!resident)
        return NULL;
    resident->owner = offer->view.uid;
    resident->key = sl_strdup(offer->key, err);
    if (!resident->key || registry_make_room(registry, resident, offer->bytes, victims, err) < 0) {
        registry_remove_resident(resident);
        return NULL;
    }
    resident->busy = 1;
    resident->bytes = offer->bytes;
    resident->deposit = offer->id;
    if (offer->who)
        registry_note_had(resident, offer->who);
    memcpy(resident->identity, offer->identity, sizeof(resident->identity));
    registry_update_gauges(registry);
    return resident;
}

static int drop_all(struct sl_registry *registry, const struct victims *victims, struct sl_err *err)
{
    int done = 0;
    for (struct resident *at = victims->first, *next; at; at = next) {
        next = at->victim_next;
        if (registry_drop(registry, at, err) < 0)
            done = -1;
    }
    return done;
}

/* The janitor drops what goes for it; others may be dropping, too, and it was given their room. */
static void await_room(struct sl_registry *registry, struct resident *resident,
                       const struct sl_derived_offer *offer, const struct victims *victims)
{
    registry_leave_to_janitor(registry, victims);
    resident->awaits.answer = offer->answer;
    resident->awaits.arg = offer->arg;
}

/* For who does not want to be answered later. */
static bool has_room(struct sl_registry *registry, uint64_t id, struct sl_err *err)
{
    REGISTRY_LOCKED(registry);
    for (struct resident *resident; (resident = find_deposit(registry, id));) {
        if (registry_has_room(registry, resident))
            return true;
        if (!registry->locked.dropping || registry->locked.stopping)
            return registry_check_room(registry, resident, err) == 0;
        registry_wait(registry, &registry->changed, UINT64_MAX);
    }
    return true;
}

int sl_registry_deposit_begin(struct sl_registry *registry, const struct sl_derived_offer *offer,
                              struct sl_err *err)
{
    struct victims victims = {0};
    {
        REGISTRY_LOCKED(registry);
        struct resident *resident = reserve(registry, offer, &victims, err);
        if (!resident)
            return -1;
        bool dropping = registry->locked.dropping && !registry_has_room(registry, resident);
        if (dropping && offer->answer) {
            await_room(registry, resident, offer, &victims);
            return 1;
        }
    }
    if (drop_all(registry, &victims, err) == 0 && has_room(registry, offer->id, err))
        return 0;
    sl_registry_deposit_abort(registry, offer->id);
    return -1;
}

/* ---- its end -------------------------------------------------------------------------------- */

/* How a deposit that waited for room goes on; to be told without the lock. */
struct deposit_answer {
    void (*answer)(void *arg, const struct sl_err *err); /* NULL: nobody waits */
    void *arg;
    struct sl_err err;
};

static struct deposit_answer take_answer(struct resident *deposit, const struct sl_err *why)
{
    struct deposit_answer answer = {deposit->awaits.answer, deposit->awaits.arg, *why};
    deposit->awaits.answer = NULL;
    return answer;
}

static void report(const struct deposit_answer *answer)
{
    if (answer->answer)
        answer->answer(answer->arg, answer->err.kind ? &answer->err : NULL);
}

/* One that waits, and can be answered. */
static struct resident *find_waiting(const struct sl_registry *registry)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next)
            if (at->awaits.answer &&
                (!registry->locked.dropping || registry_has_room(registry, at)))
                return at;
    return NULL;
}

void registry_note_stuck(struct sl_registry *registry, const struct sl_err *why)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next)
            if (at->awaits.answer)
                at->awaits.err = *why;
}

static struct deposit_answer next_answer(struct sl_registry *registry)
{
    const struct sl_err fine = SL_ERR_INIT;
    REGISTRY_LOCKED(registry);
    struct resident *deposit = find_waiting(registry);
    if (!deposit)
        return (struct deposit_answer){NULL};
    if (registry_has_room(registry, deposit))
        return take_answer(deposit, &fine);
    if (!deposit->awaits.err.kind)
        registry_check_room(registry, deposit, &deposit->awaits.err);
    struct deposit_answer answer = take_answer(deposit, &deposit->awaits.err);
    if (answer.err.kind)
        registry_remove_resident(deposit);
    return answer;
}

void registry_answer_deposits(struct sl_registry *registry)
{
    for (struct deposit_answer answer; (answer = next_answer(registry)).answer;)
        report(&answer);
}

/* Its model may have waited for this to go. */
static void report_end(struct sl_registry *registry)
{
    registry_update_gauges(registry);
    pthread_cond_broadcast(&registry->changed);
    pthread_cond_signal(&registry->clean);
}

static int accept(struct sl_registry *registry, struct resident *resident, uint64_t bytes,
                  struct sl_err *err)
{
    const struct model *model = resident->model;
    struct victims victims;
    if (registry_name_ended(model) || !registry_is_source(model, resident->identity))
        return refuse_stale(model, err);
    /* More than announced is no more than its index, whose memory has been taken already: nothing
     * is gained by waiting until what goes for it is dropped. */
    if (registry_make_room(registry, resident, bytes, &victims, err) < 0)
        return -1;
    registry_leave_to_janitor(registry, &victims);
    return 0;
}

int sl_registry_deposit_commit(struct sl_registry *registry, uint64_t id, void *body,
                               uint64_t bytes, struct sl_err *err)
{
    REGISTRY_LOCKED(registry);
    struct resident *resident = find_deposit(registry, id);
    if (!resident)
        return sl_fail(err, SL_E_NOT_FOUND, "there is no such deposit");
    assert(resident->busy == 1 && !resident->body);
    int done = accept(registry, resident, bytes, err);
    if (done == 0) {
        resident->busy = 0;
        registry_set_resident(resident, RESIDENT_READY);
        resident->bytes = bytes;
        resident->body = body;
        resident->to_keep = resident->holder->keep != NULL;
        resident->ready_seconds = sl_wall_seconds();
        resident->used_ns = sl_now_ns();
    } else {
        registry_remove_resident(resident);
    }
    report_end(registry);
    return done;
}

void sl_registry_deposit_abort(struct sl_registry *registry, uint64_t id)
{
    const struct sl_err why = {.kind = SL_E_CANCELED, .message = "the deposit was aborted"};
    struct deposit_answer answer;
    {
        REGISTRY_LOCKED(registry);
        struct resident *resident = find_deposit(registry, id);
        if (!resident)
            return;
        answer = take_answer(resident, &why);
        registry_remove_resident(resident);
        report_end(registry);
    }
    report(&answer);
}

/* ---- use ------------------------------------------------------------------------------------ */

static struct resident *find_derived(struct sl_registry *registry, const char *name,
                                     const char *key, const struct sl_derived_view *view,
                                     struct sl_err *err)
{
    struct model *model = find_model(registry, name, err);
    if (!model)
        return NULL;
    struct resident *resident = find_shared_key(model, key, view);
    if (resident && resident->state == RESIDENT_READY)
        return resident;
    if (resident)
        sl_fail_code(err, SL_E_NOT_FOUND, "busy",
                     "the version of '%s' with this key is being deposited: attach in a while",
                     name);
    else if (find_key(model, key, view, true))
        sl_fail_code(err, SL_E_NOT_FOUND, "stale",
                     "the version of '%s' with this key was made from another version of the "
                     "model: deposit it again",
                     name);
    else
        sl_fail_code(err, SL_E_NOT_FOUND, "absent", "the model '%s' has no version with this key",
                     name);
    return NULL;
}

struct sl_model_ref *sl_registry_hold_derived(struct sl_registry *registry, const char *name,
                                              const char *key, const struct sl_derived_view *view,
                                              const char *who, struct sl_err *err)
{
    sl_autofree struct sl_model_ref *ref = registry_new_ref(registry, SL_REF_LEASE, who, err);
    if (!ref)
        return NULL;
    REGISTRY_LOCKED(registry);
    struct resident *resident = find_derived(registry, name, key, view, err);
    if (!resident)
        return NULL;
    registry_link_ref(ref, resident);
    registry_update_gauges(registry);
    return sl_steal(&ref);
}

static bool is_of_key(const struct resident *resident, const char *key)
{
    return resident->key && resident->state == RESIDENT_READY && strcmp(resident->key, key) == 0;
}

int sl_registry_evict_derived(struct sl_registry *registry, const char *name, const char *key,
                              uint64_t *bytes, struct sl_err *err)
{
    unsigned found = 0;
    REGISTRY_LOCKED(registry);
    const struct model *model = registry_find(registry, name);
    for (const struct resident *at = model ? model->residents : NULL; at; at = at->next) {
        found += is_of_key(at, key);
        if (is_of_key(at, key) && at->ref_count)
            return sl_fail_code(err, SL_E_USAGE, "busy",
                                "the model '%s' with this key is in use (%u references): it is "
                                "removed when they end",
                                name, at->ref_count);
    }
    if (!found)
        return sl_fail_code(err, SL_E_NOT_FOUND, "absent", "'%.100s' has no version with this key",
                            name);
    *bytes = 0;
    for (struct resident *at = model->residents; at; at = at->next)
        if (is_of_key(at, key)) {
            *bytes += registry_copies(registry, at) * at->bytes;
            registry_evict(registry, at);
        }
    registry_update_gauges(registry);
    return 0;
}

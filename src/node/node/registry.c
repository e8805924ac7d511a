/*
 * Models, residents and references, under one lock that is never held while something is loaded,
 * dropped or answered.
 *
 * Single flight: a model has at most one load, queued or running, and a list of those who wait for
 * its end. A load works on one resident, chosen when the plan says which version it is
 * (registry_loads.c); others find the resident, not the load. Who asks brings the memory of its
 * reference along, so nothing can fail when a load ends.
 *
 * A resident goes when there is no reference to it: by eviction (registry_budget.c), or because its
 * model is forgotten, which the janitor carries out.
 */
#include "registry.h"

#include <assert.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "log.h"
#include "metrics.h"
#include "registry_parts.h"
#include "spec_digest.h"

const char *sl_version_text(const uint8_t identity[32], char version[SL_VERSION_TEXT])
{
    sl_hex(identity, (SL_VERSION_TEXT - 1) / 2, version);
    return version;
}

bool sl_is_model_name(const char *name)
{
    size_t bytes = strlen(name);
    return bytes >= 1 && bytes <= 63 && *name != '.' && *name != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") == bytes;
}

/* ---- models and residents ------------------------------------------------------------------- */

struct model *registry_find(struct sl_registry *registry, const char *name)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        if (strcmp(model->name, name) == 0 && model->name_state != NAME_FORGOTTEN)
            return model;
    return NULL;
}

struct resident *registry_resident(struct model *model, const char *version,
                                   const struct sl_holder *holder)
{
    for (struct resident *at = model->residents; at; at = at->next)
        if (!at->key && at->state != RESIDENT_GONE && at->holder == holder &&
            strcmp(at->version, version) == 0)
            return at;
    return NULL;
}

struct resident *registry_new_resident(struct model *model, const char *version,
                                       const struct sl_holder *holder, struct sl_err *err)
{
    struct resident *resident = sl_alloc(sizeof(*resident), err);
    if (!resident)
        return NULL;
    resident->model = model;
    resident->holder = holder;
    resident->share_next = resident;
    snprintf(resident->version, sizeof(resident->version), "%s", version);
    resident->used_ns = sl_now_ns();
    resident->next = model->residents;
    model->residents = resident;
    return resident;
}

void registry_remove_resident(struct resident *resident)
{
    struct model *model = resident->model;
    struct resident **at = &model->residents;
    assert(!resident->refs);
    while (*at != resident)
        at = &(*at)->next;
    *at = resident->next;
    if (model->current == resident)
        model->current = NULL;
    registry_part(resident);
    free(resident->key);
    free(resident);
}

void registry_box_free(struct spec_box *box)
{
    if (!box || --box->count)
        return;
    sl_spec_release(&box->spec);
    free(box);
}

/* SL_E_USAGE, code "full"; SL_E_NO_SPACE. */
static struct model *new_model(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    if (registry->locked.model_count >= SL_REGISTRY_MODELS_MAX) {
        sl_fail_code(err, SL_E_USAGE, "full",
                     "no more than %d models at a time: forget one that is not needed",
                     SL_REGISTRY_MODELS_MAX);
        return NULL;
    }
    assert(!registry_find(registry, name));
    struct model *model = sl_alloc(sizeof(*model), err);
    if (!model)
        return NULL;
    snprintf(model->name, sizeof(model->name), "%s", name);
    model->next = registry->locked.models;
    registry->locked.models = model;
    registry->locked.model_count++;
    return model;
}

void registry_free_model(struct sl_registry *registry, struct model *model)
{
    struct model **at = &registry->locked.models;
    assert(!model->residents && !model->waiters);
    while (*at != model)
        at = &(*at)->next;
    *at = model->next;
    registry->locked.model_count--;
    registry_box_free(model->box);
    sl_progress_free(model->progress);
    free(model);
}

/* ---- what was found in memory --------------------------------------------------------------- */

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
static void choose_current(struct model *model, const struct sl_holder *holder)
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
    if (!model && !(model = new_model(registry, found->name, err)))
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
    registry_set_resident(resident, found->ready ? RESIDENT_READY : RESIDENT_PARTIAL);
    resident->bytes = found->bytes;
    resident->shared = found->shared;
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
    REGISTRY_LOCKED(registry);
    int done = take_found(registry, holder, found, err);
    registry_update_gauges(registry);
    return done;
}

/* ---- definitions ---------------------------------------------------------------------------- */

static struct spec_box *new_box(struct sl_spec *spec, struct sl_err *err)
{
    struct spec_box *box = sl_alloc(sizeof(*box), err);
    if (!box || sl_spec_digest(spec, box->digest, err) < 0 ||
        sl_spec_rule_digest(spec, box->rule, err) < 0 ||
        sl_spec_origin_digest(spec, box->origin, err) < 0) {
        free(box);
        sl_spec_release(spec);
        return NULL;
    }
    box->spec = *spec;
    box->count = 1;
    memset(spec, 0, sizeof(*spec));
    return box;
}

/* A name counts for who asked for it last while nobody waited, and for all who wait, so that no two
 * have more than two shares, and nobody keeps what another needs no more in the other's share. */
static int check_share(const struct sl_registry *registry, const char *sharer, struct sl_err *err)
{
    unsigned own = 0;
    for (const struct model *at = registry->locked.models; sharer && at; at = at->next)
        own += at->name_state == NAME_PASSING && registry_counts_for(at, sharer);
    if (own < SL_REGISTRY_PASSING_SHARE)
        return 0;
    return sl_fail_code(err, SL_E_USAGE, "full",
                        "%s has asked for %u models by URI, the most that one may at a time: let "
                        "some be forgotten, which takes a second after they failed",
                        sharer, own);
}

static int check_passing(const struct sl_registry *registry, const char *sharer, struct sl_err *err)
{
    unsigned all = 0;
    for (const struct model *model = registry->locked.models; model; model = model->next)
        all += model->name_state == NAME_PASSING;
    if (check_share(registry, sharer, err) < 0)
        return -1;
    if (all < SL_REGISTRY_PASSING_MAX)
        return 0;
    return sl_fail_code(err, SL_E_USAGE, "full",
                        "no more than %d models at a time can be asked for by URI",
                        SL_REGISTRY_PASSING_MAX);
}

/* Somebody asks for it, and will wait next. */
static void take_sharer(const struct sl_registry *registry, struct model *model, const char *sharer)
{
    if (!model->waiters && check_share(registry, sharer, NULL) == 0)
        snprintf(model->sharer, sizeof(model->sharer), "%s", sharer ? sharer : "");
}

/* Its load is wanted: also one that was to end, since nobody waited for it. */
static void want_load(struct model *model)
{
    if (model->work == WORK_UNWANTED)
        registry_set_work(model, WORK_QUEUED);
    else if (model->work == WORK_ABANDONED)
        registry_set_work(model, WORK_AGAIN);
}

/* What runs is of an older spec. */
static void want_another_load(struct model *model)
{
    if (model->work == WORK_RUNNING)
        registry_set_work(model, WORK_AGAIN);
    else if (model->work == WORK_FOLLOWS)
        registry_set_work(model, WORK_FOLLOWS_AGAIN);
}

/* What runs ends, and is not begun anew. */
static void end_load(struct sl_registry *registry, struct model *model)
{
    if (model->work == WORK_AGAIN)
        registry_set_work(model, WORK_RUNNING);
    else if (model->work == WORK_FOLLOWS_AGAIN)
        registry_set_work(model, WORK_FOLLOWS);
    registry_stop_measuring(registry, model);
    if (model->cancel)
        sl_cancel_raise(model->cancel, 0);
}

/* What the name is from now on: a request changes nothing that the config says. */
static enum name_state defined_as(const struct model *model, const struct sl_model_options *options)
{
    bool may_pass = !model || !model->box || model->name_state == NAME_PASSING;
    if (options->origin == SL_MODEL_OF_CONFIG || (model && model->name_state == NAME_CONFIG))
        return NAME_CONFIG;
    return options->passing && may_pass ? NAME_PASSING : NAME_REQUEST;
}

static void take_spec(struct sl_registry *registry, struct model *model, struct spec_box *box,
                      const struct sl_holder *holder)
{
    registry_box_free(model->box);
    model->box = box;
    box->count++;
    model->holder = holder;
    model->failures = 0;
    registry_stop_measuring(registry, model);
    model->measured = false;
    model->measured_bytes = 0;
}

bool registry_obeys(const struct model *model, const struct resident *resident)
{
    static const uint8_t none[32];
    return !model->box || memcmp(model->box->rule, none, sizeof(none)) == 0 ||
           memcmp(model->box->rule, resident->rule, sizeof(resident->rule)) == 0;
}

static int take_definition(struct sl_registry *registry, struct spec_box *box,
                           const struct sl_holder *holder, const struct sl_model_options *options,
                           struct sl_err *err)
{
    const char *name = box->spec.metadata.name;
    struct model *model = registry_find(registry, name);
    bool of_config = options->origin == SL_MODEL_OF_CONFIG;
    bool same = model && model->box && memcmp(model->box->digest, box->digest, 32) == 0;
    enum name_state to = defined_as(model, options);
    if (model && model->name_state == NAME_CONFIG && !of_config && !same)
        return sl_fail_code(err, SL_E_USAGE, "exists",
                            "the model '%s' is in the config, with another spec: change it there, "
                            "or give this one another name",
                            name);
    if (to == NAME_PASSING && !model && check_passing(registry, options->sharer, err) < 0)
        return -1;
    if (!model && !(model = new_model(registry, name, err)))
        return -1;
    take_sharer(registry, model, options->sharer);
    registry_set_name(model, to);
    if (to != NAME_PASSING)
        *model->payer = 0;
    model->lapse_ns = options->lapse_ms * SL_NS_PER_MS;
    model->of_volume = options->of_volume;
    model->asked_ns = sl_now_ns();
    model->passing_ns = sl_now_ns() + PASSING_MS * SL_NS_PER_MS; /* until it is asked for */
    if (!model->box)
        choose_current(model, holder);
    if (!same)
        take_spec(registry, model, box, holder);
    if (model->current && !registry_obeys(model, model->current))
        model->current = NULL; /* until a load has found that it does */
    if (of_config)
        model->pinned_by_config = options->pin;
    model->wanted = model->wanted || options->load;
    if (options->load)
        want_load(model);
    if (options->load && !same)
        want_another_load(model);
    if ((options->load && (!same || !of_config || !model->current)) || registry_is_queued(model))
        registry_queue(registry, model);
    return 0;
}

int sl_registry_define(struct sl_registry *registry, struct sl_spec *spec,
                       const struct sl_holder *holder, const struct sl_model_options *options,
                       struct sl_err *err)
{
    struct spec_box *box = new_box(spec, err);
    if (!box)
        return -1;
    REGISTRY_LOCKED(registry);
    int done = take_definition(registry, box, holder, options, err);
    registry_box_free(box);
    registry_update_gauges(registry);
    return done;
}

static bool is_named(const char *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

void sl_registry_keep_only(struct sl_registry *registry, const char *const *names, size_t count)
{
    REGISTRY_LOCKED(registry);
    for (struct model *model = registry->locked.models; model; model = model->next) {
        bool gone = model->name_state == NAME_CONFIG || model->name_state == NAME_FOUND;
        if (!gone || is_named(model->name, names, count))
            continue;
        registry_set_name(model, NAME_RETIRED);
        model->wanted = model->pinned_by_config = model->pinned_by_hand = false;
        end_load(registry, model);
    }
    registry_update_gauges(registry);
    pthread_cond_signal(&registry->clean);
}

/* ---- by hand -------------------------------------------------------------------------------- */

static int find_named(struct sl_registry *registry, const char *name, struct model **model,
                      struct sl_err *err)
{
    *model = registry_find(registry, name);
    if (*model)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND, "no model is called '%.100s' here", name);
}

static unsigned references(const struct model *model, bool derived)
{
    unsigned count = 0;
    for (const struct resident *at = model->residents; at; at = at->next)
        count += derived || !at->key ? at->ref_count : 0;
    return count;
}

/* Every resident that is not on its way out; the bytes of all. */
static uint64_t mark_all(struct sl_registry *registry, struct model *model, bool derived)
{
    uint64_t bytes = 0;
    for (struct resident *at = model->residents; at; at = at->next)
        if ((at->state == RESIDENT_READY || at->state == RESIDENT_PARTIAL) && !at->busy &&
            !at->ref_count && (derived || !at->key)) {
            bytes += registry_is_shared(at) ? 0 : registry_copies(registry, at) * at->bytes;
            registry_mark(registry, at, true);
        }
    return bytes;
}

static int fail_pinned(const struct model *model, const char *code, struct sl_err *err)
{
    if (model->pinned_by_config)
        return sl_fail_code(err, SL_E_USAGE, code,
                            "the config pins the model '%s': list its spec file there below "
                            "`models:` with `pin: false`, and have the daemon read it again "
                            "(SIGHUP)",
                            model->name);
    return sl_fail_code(err, SL_E_USAGE, code, "the model '%s' is pinned: unpin it first",
                        model->name);
}

int sl_registry_evict(struct sl_registry *registry, const char *name, uint64_t *bytes,
                      struct sl_err *err)
{
    struct model *model;
    REGISTRY_LOCKED(registry);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (references(model, false))
        return sl_fail_code(err, SL_E_USAGE, "busy",
                            "the model '%s' is in use (%u references): it is removed when they end",
                            name, references(model, false));
    if (registry_pinned(model))
        return fail_pinned(model, "pinned", err);
    if (model->work != WORK_NONE)
        return sl_fail_code(err, SL_E_USAGE, "loading", "the model '%s' is being loaded", name);
    uint64_t freed = mark_all(registry, model, false);
    if (bytes)
        *bytes = freed;
    registry_update_gauges(registry);
    return 0;
}

int sl_registry_forget(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    struct model *model;
    REGISTRY_LOCKED(registry);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (model->name_state == NAME_CONFIG)
        return sl_fail_code(err, SL_E_USAGE, "config",
                            "the model '%s' is in the config: take it out there", name);
    if (references(model, true))
        return sl_fail_code(err, SL_E_USAGE, "busy", "the model '%s' is in use (%u references)",
                            name, references(model, true));
    registry_set_name(model, NAME_FORGOTTEN);
    model->wanted = false;
    end_load(registry, model);
    mark_all(registry, model, true);
    registry_update_gauges(registry);
    pthread_cond_signal(&registry->clean);
    return 0;
}

int sl_registry_pin(struct sl_registry *registry, const char *name, bool pin, struct sl_err *err)
{
    struct model *model;
    REGISTRY_LOCKED(registry);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (!pin && model->pinned_by_config)
        return fail_pinned(model, "config", err);
    if (pin && model->name_state == NAME_RETIRED)
        return sl_fail(err, SL_E_NOT_FOUND, "the model '%s' was taken out of the config", name);
    model->pinned_by_hand = pin;
    registry_update_gauges(registry);
    return 0;
}

int sl_registry_load(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    struct model *model;
    REGISTRY_LOCKED(registry);
    if (find_named(registry, name, &model, err) < 0)
        return -1;
    if (model->name_state == NAME_RETIRED || !model->box)
        return sl_fail(err, SL_E_NOT_FOUND, "the model '%s' was taken out of the config", name);
    want_load(model);
    registry_queue(registry, model);
    registry_update_gauges(registry);
    return 0;
}

/* ---- asking --------------------------------------------------------------------------------- */

struct sl_model_ref *registry_new_ref(struct sl_registry *registry, enum sl_ref_kind kind,
                                      const char *who, struct sl_err *err)
{
    struct sl_model_ref *ref = sl_alloc(sizeof(*ref), err);
    if (!ref)
        return NULL;
    ref->registry = registry;
    ref->kind = kind;
    snprintf(ref->who, sizeof(ref->who), "%s", who ? who : "");
    return ref;
}

void registry_link_ref(struct sl_model_ref *ref, struct resident *resident)
{
    assert(resident->state <= RESIDENT_PARTIAL);
    ref->resident = resident;
    ref->body = resident->body;
    ref->since_ns = sl_now_ns();
    ref->next = resident->refs;
    resident->refs = ref;
    resident->ref_count++;
    resident->used_ns = ref->since_ns;
}

/* Not where the spec says by now. */
static bool has_moved(const struct model *model, const struct resident *resident)
{
    return model->box && resident->holder != model->holder;
}

struct waiter *registry_take_waiters(struct model *model, bool early, struct resident *resident,
                                     const struct sl_err *err)
{
    struct waiter *taken = NULL, **end = &taken, **at = &model->waiters;
    while (*at) {
        struct waiter *waiter = *at;
        if (early && (!waiter->early || has_moved(model, resident))) {
            at = &waiter->next;
            continue;
        }
        *at = waiter->next;
        waiter->next = NULL;
        if (resident)
            registry_link_ref(waiter->ref, resident);
        else
            waiter->err = *err;
        *end = waiter;
        end = &waiter->next;
    }
    return taken;
}

void registry_answer(struct waiter *waiters)
{
    while (waiters) {
        struct waiter *waiter = waiters;
        waiters = waiter->next;
        if (waiter->err.kind)
            free(waiter->ref);
        waiter->answer(waiter->arg, waiter->err.kind ? NULL : waiter->ref,
                       waiter->err.kind ? &waiter->err : NULL);
        free(waiter);
    }
}

static struct waiter *new_waiter(struct sl_registry *registry, const struct sl_ask *ask,
                                 struct sl_err *err)
{
    struct waiter *waiter = sl_alloc(sizeof(*waiter), err);
    struct sl_model_ref *ref = waiter ? registry_new_ref(registry, ask->kind, ask->who, err) : NULL;
    if (!ref) {
        free(waiter);
        return NULL;
    }
    *waiter =
        (struct waiter){.ref = ref, .early = ask->early, .answer = ask->answer, .arg = ask->arg};
    snprintf(waiter->sharer, sizeof(waiter->sharer), "%s", ask->sharer ? ask->sharer : "");
    return waiter;
}

/* What the name stands for, if it is where it belongs. */
static struct resident *whole_of(const struct model *model)
{
    struct resident *at = model->current;
    return at && !has_moved(model, at) ? at : NULL;
}

/* A model that failed is not tried again at once, however many ask; but that there was no room says
 * nothing of the model, and is over when there is some. */
static int refuse_ask(struct sl_registry *registry, const struct model *model,
                      const struct sl_ask *ask, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (registry->locked.stopping)
        return sl_fail(err, SL_E_CANCELED, "the node daemon is about to end");
    if (!model || model->name_state == NAME_RETIRED ||
        (model->of_volume && ask->kind != SL_REF_VOLUME))
        return sl_fail(err, SL_E_NOT_FOUND,
                       "no model is called '%.100s' here: define it in the config, or load it",
                       ask->name);
    if (whole_of(model) || model->work != WORK_NONE)
        return 0;
    if (!model->box || ask->present)
        return sl_fail_code(err, SL_E_NOT_FOUND, "absent", "the model '%s' is not in memory",
                            model->name);
    if (!model->err.kind || now >= model->retry_ns || registry_would_fit(registry, model) ||
        (model->refused_bytes && registry_is_ending(registry)))
        return 0;
    *err = model->err;
    err->retry_after_ms = (uint32_t)((model->retry_ns - now) / SL_NS_PER_MS + 1);
    return sl_wrap(err, "a moment ago");
}

/* The resident that will do at once, or NULL. */
static struct resident *at_hand(const struct model *model, const struct sl_ask *ask)
{
    struct resident *found = whole_of(model);
    for (struct resident *at = model->residents; !found && ask->early && at; at = at->next)
        if (at->state == RESIDENT_LOADING && at->body && !has_moved(model, at))
            found = at;
    return found;
}

static struct waiter *place_ask(struct sl_registry *registry, struct waiter *waiter,
                                const struct sl_ask *ask)
{
    REGISTRY_LOCKED(registry);
    struct model *model = registry_find(registry, ask->name);
    if (model) {
        model->asked_ns = sl_now_ns();
        model->passing_ns = 0;
    }
    if (refuse_ask(registry, model, ask, &waiter->err) < 0)
        return waiter;
    struct resident *resident = at_hand(model, ask);
    if (resident) {
        registry_link_ref(waiter->ref, resident);
        registry_update_gauges(registry);
        return waiter;
    }
    if (model->name_state == NAME_PASSING && ask->sharer &&
        !registry_counts_for(model, ask->sharer) &&
        check_share(registry, ask->sharer, &waiter->err) < 0)
        return waiter;
    struct waiter **end = &model->waiters;
    while (*end)
        end = &(*end)->next;
    *end = waiter;
    registry_pass_shares(registry, model);
    want_load(model);
    registry->locked.counts.joined += model->work != WORK_NONE;
    registry_queue(registry, model); /* one that waits may begin now, in a place of this one */
    registry_update_gauges(registry);
    return NULL;
}

int sl_registry_ask(struct sl_registry *registry, const struct sl_ask *ask, struct sl_err *err)
{
    struct waiter *waiter = new_waiter(registry, ask, err);
    if (!waiter)
        return -1;
    registry_answer(place_ask(registry, waiter, ask));
    return 0;
}

/* Take it out of those who wait for one of the models; NULL: it is not among them. */
static struct waiter *take_waiter(struct sl_registry *registry, const void *arg,
                                  struct model **model)
{
    for (*model = registry->locked.models; *model; *model = (*model)->next)
        for (struct waiter **at = &(*model)->waiters; *at; at = &(*at)->next) {
            struct waiter *waiter = *at;
            if (waiter->arg != arg)
                continue;
            *at = waiter->next;
            return waiter;
        }
    return NULL;
}

/* While its plan is made: after that it may be of use to the next one. */
void registry_abandon(struct sl_registry *registry, struct model *model)
{
    for (const struct resident *at = model->residents; at; at = at->next)
        if (at->state == RESIDENT_LOADING && (at->body || registry_is_shared(at)))
            return;
    if (model->name_state != NAME_PASSING || model->waiters || model->wanted ||
        model->work == WORK_NONE)
        return;
    registry_set_work(model, registry_is_queued(model) ? WORK_UNWANTED : WORK_ABANDONED);
    end_load(registry, model);
}

/* As sl_registry_withdraw(); not for good: who left will ask again, and the load goes on. */
static bool leave(struct sl_registry *registry, const void *arg, bool for_good)
{
    struct model *model;
    REGISTRY_LOCKED(registry);
    struct waiter *waiter = take_waiter(registry, arg, &model);
    if (!waiter)
        return false;
    free(waiter->ref);
    free(waiter);
    model->asked_ns = sl_now_ns();
    registry_pass_shares(registry, model);
    if (for_good)
        registry_abandon(registry, model);
    registry_update_gauges(registry);
    pthread_cond_signal(&registry->clean); /* its load may lapse from now on */
    return true;
}

bool sl_registry_withdraw(struct sl_registry *registry, const void *arg)
{
    return leave(registry, arg, true);
}

static bool has_reference(const struct resident *resident, const void *body)
{
    for (const struct sl_model_ref *ref = resident->refs; ref; ref = ref->next)
        if (ref->body == body)
            return true;
    return false;
}

bool registry_is_used(const struct resident *resident, const void *body)
{
    for (const struct resident *at = resident->share_next; at != resident; at = at->share_next)
        if (has_reference(at, body))
            return true;
    return has_reference(resident, body);
}

void registry_drop_replaced(const struct sl_holder *holder, void *body)
{
    holder->drop(holder->self, NULL, NULL, body, NULL);
}

/* True: its body was replaced meanwhile, and it was the last that had it. */
static bool unlink_ref(struct sl_registry *registry, struct sl_model_ref *ref)
{
    struct resident *resident = ref->resident;
    REGISTRY_LOCKED(registry);
    struct sl_model_ref **at = &resident->refs;
    while (*at != ref)
        at = &(*at)->next;
    *at = ref->next;
    resident->ref_count--;
    if (ref->kind == SL_REF_LEASE)
        registry_note_had(resident, ref->who);
    resident->used_ns = sl_now_ns();
    sl_metric_observe(SL_M_NODE_REFERENCE_SECONDS,
                      (double)(resident->used_ns - ref->since_ns) / (double)SL_NS_PER_S);
    bool last = ref->body && ref->body != resident->body && !registry_is_used(resident, ref->body);
    ref->holder = resident->holder;
    if (!resident->ref_count)
        registry_enforce(registry); /* a budget that shrank has waited for it */
    registry_update_gauges(registry);
    if (!resident->ref_count)
        pthread_cond_signal(&registry->clean);
    return last;
}

static void run_replaced(struct sl_deferred_call *call)
{
    struct sl_model_ref *ref = (struct sl_model_ref *)call;
    registry_drop_replaced(ref->holder, ref->body);
    free(ref);
}

void sl_registry_release(struct sl_registry *registry, struct sl_model_ref *ref)
{
    if (!ref)
        return;
    if (!unlink_ref(registry, ref)) {
        free(ref);
        return;
    }
    ref->call.run = run_replaced;
    sl_registry_defer(registry, &ref->call);
}

const char *sl_model_ref_name(const struct sl_model_ref *ref)
{
    return ref->resident->model->name;
}

const char *sl_model_ref_version(const struct sl_model_ref *ref)
{
    return ref->resident->version;
}

void *sl_model_ref_body(const struct sl_model_ref *ref)
{
    return ref->body;
}

uint32_t sl_model_ref_placement(const struct sl_model_ref *ref)
{
    return ref->resident->holder->placement;
}

void sl_model_ref_path(const struct sl_model_ref *ref, char path[SL_PUBLISH_PATH_MAX])
{
    const struct resident *resident = ref->resident;
    const struct sl_holder *holder = resident->holder;
    *path = 0;
    if (holder->where)
        holder->where(holder->self, resident->model->name, resident->version, path);
}

/* ---- one model, and one version of it ------------------------------------------------------- */

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
    REGISTRY_LOCKED(registry);
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
    REGISTRY_LOCKED(ref->registry);
    return ref->resident->bytes;
}

bool sl_registry_meaning(struct sl_registry *registry, const char *name,
                         struct sl_registry_meaning *meaning)
{
    REGISTRY_LOCKED(registry);
    const struct model *model = registry_find(registry, name);
    *meaning = (struct sl_registry_meaning){.of_config = false};
    if (!model || model->name_state == NAME_RETIRED)
        return false;
    meaning->of_config = model->name_state == NAME_CONFIG;
    meaning->busy = model->work != WORK_NONE;
    meaning->holder = model->box ? model->holder->name : NULL;
    return true;
}

/* ---- waiting in a thread of one's own ------------------------------------------------------- */

/* One who waits and the answer share this; the second to leave frees it. */
struct waiting {
    struct sl_registry *registry;
    pthread_mutex_t lock;
    int event_fd;
    struct {
        bool answered, left;
        struct sl_model_ref *ref;
        struct sl_err err;
    } locked;
};

static void waiting_free(struct waiting *waiting)
{
    close(waiting->event_fd);
    pthread_mutex_destroy(&waiting->lock);
    free(waiting);
}

static void on_answer(void *arg, struct sl_model_ref *ref, const struct sl_err *err)
{
    struct waiting *waiting = arg;
    bool left;
    {
        SL_LOCKED(&waiting->lock);
        left = waiting->locked.left;
        waiting->locked.answered = true;
        waiting->locked.ref = ref;
        if (err)
            waiting->locked.err = *err;
        if (!left)
            eventfd_write(waiting->event_fd, 1);
    }
    if (!left)
        return;
    sl_registry_release(waiting->registry, ref);
    waiting_free(waiting);
}

/* Until the answer, a cancellation, or this time. */
static void await_any(const struct waiting *waiting, struct sl_cancel *cancel, uint64_t until_ns)
{
    struct pollfd fds[] = {{waiting->event_fd, POLLIN, 0}, {sl_cancel_fd(cancel), POLLIN, 0}};
    for (;;) {
        uint64_t now = sl_now_ns();
        if (now >= until_ns)
            return;
        uint64_t ms = (until_ns - now + SL_NS_PER_MS - 1) / SL_NS_PER_MS;
        int wait_ms = until_ns == UINT64_MAX ? -1 : (int)SL_MIN(ms, (uint64_t)INT_MAX);
        if (poll(fds, 2, wait_ms) > 0)
            return;
    }
}

static struct sl_model_ref *fail_left(bool raised, struct sl_err *err)
{
    if (raised)
        sl_fail(err, SL_E_CANCELED, "canceled while a load was awaited");
    else
        sl_fail_code(err, SL_E_TIMEOUT, "waiting", "the model is still being loaded");
    return NULL;
}

static struct sl_model_ref *await(struct waiting *waiting, struct sl_cancel *cancel,
                                  uint64_t until_ns, struct sl_err *err)
{
    await_any(waiting, cancel, until_ns);
    struct sl_model_ref *ref;
    bool raised = sl_cancel_raised(cancel);
    if ((raised || sl_now_ns() >= until_ns) && leave(waiting->registry, waiting, false)) {
        waiting_free(waiting);
        return fail_left(raised, err);
    }
    {
        SL_LOCKED(&waiting->lock);
        if (!waiting->locked.answered) {
            waiting->locked.left = true;
            return fail_left(raised, err);
        }
        ref = waiting->locked.ref;
        if (!ref && err)
            *err = waiting->locked.err;
    }
    waiting_free(waiting);
    return ref;
}

struct sl_model_ref *sl_registry_wait_until(struct sl_registry *registry, const char *name,
                                            enum sl_ref_kind kind, const char *who,
                                            const char *sharer, uint64_t until_ns,
                                            struct sl_cancel *cancel, struct sl_err *err)
{
    struct waiting *waiting = sl_alloc(sizeof(*waiting), err);
    if (!waiting)
        return NULL;
    waiting->registry = registry;
    pthread_mutex_init(&waiting->lock, NULL);
    waiting->event_fd = eventfd(0, EFD_CLOEXEC);
    struct sl_ask ask = {.name = name,
                         .kind = kind,
                         .who = who,
                         .sharer = sharer,
                         .answer = on_answer,
                         .arg = waiting};
    if (waiting->event_fd < 0)
        sl_fail(err, SL_E_NO_SPACE, "no descriptors are left to wait for the model '%s'", name);
    if (waiting->event_fd < 0 || sl_registry_ask(registry, &ask, err) < 0) {
        waiting_free(waiting);
        return NULL;
    }
    return await(waiting, cancel, until_ns, err);
}

/* ---- begin and end -------------------------------------------------------------------------- */

static int start_beside(struct sl_registry *registry, unsigned space, struct sl_err *err)
{
    struct beside *own = &registry->besides[space];
    *own = (struct beside){.registry = registry, .space = space};
    if (sl_thread_start(&own->thread, "sluice-beside", registry_beside_worker, own, err) == 0)
        return 0;
    own->registry = NULL;
    return -1;
}

void registry_need_beside(struct sl_registry *registry, uint32_t placement)
{
    struct sl_err why = SL_ERR_INIT;
    unsigned space = placement ? (unsigned)__builtin_ctz(placement) : 0;
    if (sl_placement_count(placement) != 1 || registry->besides[space].registry)
        return;
    if (start_beside(registry, space, &why) < 0)
        sl_log(SL_LOG_WARN, "a GPU has no place for loads of its own: %s", why.message);
}

static int start(struct sl_registry *registry, struct sl_err *err)
{
    if (sl_thread_start(&registry->janitor, "sluice-janitor", registry_janitor, registry, err) < 0)
        return -1;
    registry->has_janitor = true;
    if (sl_thread_start(&registry->small_worker, "sluice-small", registry_small_worker, registry,
                        err) < 0)
        return -1;
    registry->has_small_worker = true;
    if (start_beside(registry, SL_SPACE_HOST, err) < 0)
        return -1;
    for (; registry->worker_count < registry->loads_at_once; registry->worker_count++)
        if (sl_thread_start(&registry->workers[registry->worker_count], "sluice-load",
                            registry_worker, registry, err) < 0)
            return -1;
    return 0;
}

struct sl_registry *sl_registry_new(const struct sl_registry_config *config, struct sl_err *err)
{
    SL_AUTO(sl_registry) registry = sl_alloc(sizeof(*registry), err);
    if (!registry)
        return NULL;
    pthread_condattr_t clock; /* sl_now_ns() is monotonic, and so is the janitor's wait */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&registry->lock, NULL);
    pthread_cond_init(&registry->work, NULL);
    pthread_cond_init(&registry->beside, NULL);
    pthread_cond_init(&registry->clean, &clock);
    pthread_cond_init(&registry->changed, &clock);
    pthread_condattr_destroy(&clock);
    registry->loads_at_once = SL_MAX(1u, SL_MIN(config->loads_at_once, (unsigned)LOADS_MAX));
    registry->retry_ms = config->retry_ms ? config->retry_ms : RETRY_MS;
    registry->retry_max_ms = config->retry_max_ms ? config->retry_max_ms : RETRY_MAX_MS;
    registry->locked.budgets[SL_SPACE_HOST] = config->budget_bytes;
    registry->locked.queue_end = &registry->locked.queue;
    registry->locked.deferred_end = &registry->locked.deferred;
    if (start(registry, err) < 0)
        return NULL;
    {
        REGISTRY_LOCKED(registry);
        registry_update_gauges(registry);
    }
    return sl_steal(&registry);
}

static void begin_stop(struct sl_registry *registry)
{
    REGISTRY_LOCKED(registry);
    registry->locked.stopping = true;
    for (struct model *model = registry->locked.models; model; model = model->next)
        end_load(registry, model);
    pthread_cond_broadcast(&registry->work);
    pthread_cond_broadcast(&registry->beside);
    pthread_cond_broadcast(&registry->clean);
    pthread_cond_broadcast(&registry->changed);
}

void sl_registry_stop(struct sl_registry *registry)
{
    const struct sl_err why = {.kind = SL_E_CANCELED, .message = "the node daemon ends"};
    begin_stop(registry);
    for (; registry->worker_count; registry->worker_count--)
        pthread_join(registry->workers[registry->worker_count - 1], NULL);
    if (registry->has_small_worker)
        pthread_join(registry->small_worker, NULL);
    registry->has_small_worker = false;
    for (unsigned i = 0; i < SL_SPACES_MAX; i++)
        if (registry->besides[i].registry)
            pthread_join(registry->besides[i].thread, NULL);
    memset(registry->besides, 0, sizeof(registry->besides));
    if (registry->has_janitor)
        pthread_join(registry->janitor, NULL);
    registry->has_janitor = false;
    registry_run_laters(registry);
    for (;;) {
        struct waiter *waiters = NULL;
        {
            REGISTRY_LOCKED(registry);
            struct model *model = registry->locked.models;
            for (; model && !waiters; model = model->next)
                waiters = registry_take_waiters(model, false, NULL, &why);
        }
        if (!waiters)
            return;
        registry_answer(waiters);
    }
}

/* What is whole stays for the next daemon where its holder can. */
static void free_residents(struct model *model)
{
    while (model->residents) {
        struct resident *resident = model->residents;
        const struct sl_holder *holder = resident->holder;
        if (registry_is_shared(resident))
            resident->body = NULL;
        if (resident->body && holder->leave && resident->state == RESIDENT_READY)
            holder->leave(holder->self, resident->body);
        else if (resident->body)
            holder->drop(holder->self, model->name, resident->version, resident->body, NULL);
        registry_remove_resident(resident);
    }
}

void sl_registry_free(struct sl_registry *registry)
{
    if (!registry)
        return;
    sl_registry_stop(registry);
    registry_free_left(registry);
    while (registry->locked.models) {
        free_residents(registry->locked.models);
        registry_free_model(registry, registry->locked.models);
    }
    registry->locked.budgets[SL_SPACE_HOST] = 0; /* the gauges show nothing any more */
    registry_update_gauges(registry);
    pthread_cond_destroy(&registry->work);
    pthread_cond_destroy(&registry->beside);
    pthread_cond_destroy(&registry->clean);
    pthread_cond_destroy(&registry->changed);
    pthread_mutex_destroy(&registry->lock);
    free(registry);
}

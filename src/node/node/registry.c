/*
 * Models, residents and references, under one lock that is never held while something is loaded,
 * dropped or answered.
 *
 * Single flight: a model has at most one load, queued or running, and a list of those who wait for
 * its end. A load works on one resident, chosen when the plan says which version it is
 * (registry_work.c); others find the resident, not the load. Who asks brings the memory of its
 * reference along, so nothing can fail when a load ends.
 *
 * A resident goes when there is no reference to it: by eviction (registry_budget.c), or because its
 * model is forgotten, which the janitor carries out.
 */
#include "registry.h"

#include <stdio.h>
#include <string.h>

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

/* ---- models and residents -------------------------------------------------------------------- */

struct model *registry_find(struct sl_registry *registry, const char *name)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        if (strcmp(model->name, name) == 0 && !model->forgotten)
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
    sl_options_release(sl_spec_table(), &box->spec);
    free(box);
}

struct model *registry_new_model(struct sl_registry *registry, const char *name, struct sl_err *err)
{
    if (registry->locked.model_count >= SL_REGISTRY_MODELS_MAX) {
        sl_fail_code(err, SL_E_USAGE, "full",
                     "no more than %d models at a time: forget one that is not needed",
                     SL_REGISTRY_MODELS_MAX);
        return NULL;
    }
    struct model *model = sl_alloc(sizeof(*model), err);
    if (!model)
        return NULL;
    snprintf(model->name, sizeof(model->name), "%s", name);
    model->next = registry->locked.models;
    registry->locked.models = model;
    registry->locked.model_count++;
    return model;
}

/* Nothing works with it, and it has no residents. */
void registry_free_model(struct sl_registry *registry, struct model *model)
{
    struct model **at = &registry->locked.models;
    while (*at != model)
        at = &(*at)->next;
    *at = model->next;
    registry->locked.model_count--;
    registry_box_free(model->box);
    sl_progress_free(model->progress);
    free(model);
}

/* ---- definitions ---------------------------------------------------------------------------- */

static struct spec_box *new_box(struct sl_spec *spec, struct sl_err *err)
{
    struct spec_box *box = sl_alloc(sizeof(*box), err);
    if (!box || sl_spec_digest(spec, box->digest, err) < 0 ||
        sl_spec_origin_digest(spec, box->origin, err) < 0) {
        free(box);
        sl_options_release(sl_spec_table(), spec);
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
        own += at->passing && registry_counts_for(at, sharer);
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
        all += model->passing;
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

static int take_definition(struct sl_registry *registry, struct spec_box *box,
                           const struct sl_holder *holder, const struct sl_model_options *options,
                           struct sl_err *err)
{
    const char *name = box->spec.metadata.name;
    struct model *model = registry_find(registry, name);
    bool of_config = options->origin == SL_MODEL_OF_CONFIG;
    bool passing = options->passing && (!model || !model->box || model->passing);
    if (model && model->of_config && !model->retired && !of_config &&
        memcmp(model->box->digest, box->digest, 32) != 0)
        return sl_fail_code(err, SL_E_USAGE, "exists",
                            "the model '%s' is in the config, with another spec: change it there, "
                            "or give this one another name",
                            name);
    if (passing && !model && check_passing(registry, options->sharer, err) < 0)
        return -1;
    bool new = !model;
    if (new && !(model = registry_new_model(registry, name, err)))
        return -1;
    take_sharer(registry, model, options->sharer);
    model->passing = passing;
    model->lapse_ns = options->lapse_ms * SL_NS_PER_MS;
    model->of_volume = options->of_volume;
    model->asked_ns = sl_now_ns();
    model->passing_ns = sl_now_ns() + PASSING_MS * SL_NS_PER_MS; /* until it is asked for */
    bool same = model->box && memcmp(model->box->digest, box->digest, 32) == 0;
    if (!model->box)
        registry_choose_current(model, holder);
    if (!same) {
        registry_box_free(model->box);
        model->box = box;
        box->count++;
        model->holder = holder;
        model->failures = 0;
        registry_stop_measuring(registry, model);
        model->measured = false;
        model->measured_bytes = 0;
    }
    model->of_config = model->of_config && !model->retired ? true : of_config;
    model->retired = false;
    if (of_config)
        model->pinned_by_config = options->pin;
    model->wanted = model->wanted || options->load;
    model->load_again =
        model->load_again ||
        (options->load && !same && (model->work == WORK_RUNNING || model->work == WORK_FOLLOWS));
    if ((options->load && (!same || !of_config || !model->current)) || model->work == WORK_QUEUED)
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
    SL_LOCKED(&registry->lock);
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
    SL_LOCKED(&registry->lock);
    for (struct model *model = registry->locked.models; model; model = model->next) {
        bool gone = model->of_config || !model->box;
        if (!gone || is_named(model->name, names, count))
            continue;
        model->retired = true;
        model->wanted = model->load_again = model->pinned_by_config = model->pinned_by_hand = false;
        registry_stop_measuring(registry, model);
        if (model->cancel)
            sl_cancel_raise(model->cancel, 0);
    }
    registry_update_gauges(registry);
    pthread_cond_signal(&registry->clean);
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

/* What the name stands for, if it is whole. */
static struct resident *whole_of(const struct model *model)
{
    struct resident *at = model->current;
    return at && at->state == RESIDENT_READY && !has_moved(model, at) ? at : NULL;
}

/* A model that failed is not tried again at once, however many ask; but that there was no room says
 * nothing of the model, and is over when there is some. */
static int refuse_ask(struct sl_registry *registry, const struct model *model,
                      const struct sl_ask *ask, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (registry->locked.stopping)
        return sl_fail(err, SL_E_CANCELED, "the node daemon is about to end");
    if (!model || model->retired || (model->of_volume && ask->kind != SL_REF_VOLUME))
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
    SL_LOCKED(&registry->lock);
    struct model *model = registry_find(registry, ask->name);
    if (model)
        model->asked_ns = sl_now_ns();
    if (refuse_ask(registry, model, ask, &waiter->err) < 0)
        return waiter;
    struct resident *resident = at_hand(model, ask);
    if (resident) {
        registry_link_ref(waiter->ref, resident);
        registry_update_gauges(registry);
        return waiter;
    }
    if (model->passing && ask->sharer && !registry_counts_for(model, ask->sharer) &&
        check_share(registry, ask->sharer, &waiter->err) < 0)
        return waiter;
    struct waiter **end = &model->waiters;
    while (*end)
        end = &(*end)->next;
    *end = waiter;
    registry_pass_shares(registry, model);
    model->load_again = model->load_again || (model->abandoned && model->work == WORK_RUNNING);
    model->abandoned = false;
    model->passing_ns = 0;
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
    if (!model->passing || model->waiters || model->wanted || model->work == WORK_NONE)
        return;
    model->abandoned = true;
    registry_stop_measuring(registry, model);
    if (model->cancel)
        sl_cancel_raise(model->cancel, 0);
}

static bool leave(struct sl_registry *registry, const void *arg, bool for_good)
{
    struct model *model;
    SL_LOCKED(&registry->lock);
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

bool sl_registry_leave(struct sl_registry *registry, const void *arg)
{
    return leave(registry, arg, false);
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
    SL_LOCKED(&registry->lock);
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

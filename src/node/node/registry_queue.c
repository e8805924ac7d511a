/*
 * Who loads next. Places go in the order of the queue. One more place is for small models, so that
 * a few MiB do not wait until large models are there: who waits, and is at most an eighth as large
 * as each model that is being loaded, may pass the others there, one at a time. It takes no place
 * away, so nobody waits longer for his. The host's memory, and each GPU, has a place beside the
 * usual ones while loads onto other GPUs have all of those: a driver that hangs never gives one
 * back. So has a model with a name while loads of URIs have them all.
 *
 * How large a model is, its source is asked once all places are taken: for a listing, not for a
 * plan. That is done by the thread that has the small place, one model after another.
 */
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "registry_parts.h"

enum { SMALL_PART = 8 };

void registry_queue(struct sl_registry *registry, struct model *model)
{
    if (registry->locked.stopping || !model->box)
        return;
    if (model->work == WORK_NONE) {
        model->work = WORK_QUEUED;
        model->measured = model->measured_bytes > 0;
        model->queue_next = NULL;
        *registry->locked.queue_end = model;
        registry->locked.queue_end = &model->queue_next;
    }
    if (model->work != WORK_QUEUED)
        return;
    registry_need_beside(registry, model->holder->placement);
    pthread_cond_signal(&registry->work);
    pthread_cond_broadcast(&registry->beside);
}

/* ---- shares --------------------------------------------------------------------------------- */

static bool waits(const struct model *model, const char *sharer)
{
    const struct waiter *at = model->waiters;
    while (at && strcmp(at->sharer, sharer) != 0)
        at = at->next;
    return at;
}

bool registry_counts_for(const struct model *model, const char *sharer)
{
    return strcmp(model->sharer, sharer) == 0 || waits(model, sharer);
}

void registry_pass_shares(struct sl_registry *registry, struct model *model)
{
    if (!model->waiters)
        return;
    if (!waits(model, model->sharer))
        snprintf(model->sharer, sizeof(model->sharer), "%s", model->waiters->sharer);
    if (waits(model, model->payer))
        return;
    snprintf(model->payer, sizeof(model->payer), "%s", model->waiters->sharer);
    pthread_cond_signal(&registry->work); /* others may have the place of who paid before */
    pthread_cond_broadcast(&registry->beside);
}

/* Loads that are under way, by who pays. */
struct payers {
    const char *items[LOADS_MAX + SL_SPACES_MAX + 1];
    unsigned count;
};

static bool is_limited(const struct model *running)
{
    return running->passing && *running->payer;
}

static void find_payers(const struct sl_registry *registry, struct payers *payers)
{
    payers->count = 0;
    for (const struct model *at = registry->locked.models; at; at = at->next)
        if (at->work == WORK_RUNNING && is_limited(at) && payers->count < SL_COUNT(payers->items))
            payers->items[payers->count++] = at->payer;
}

/* One user, or namespace, has half of the places for what it asks for by URI, and all of them leave
 * one for models that have names, so that sources which do not answer hold up nobody else. Of two
 * places two of them may have one each: models with names have one beside then. */
static bool may_pay(const struct sl_registry *registry, const struct payers *payers,
                    const char *sharer)
{
    unsigned own = 0, places = registry->loads_at_once;
    unsigned most = places == 2 ? 2 : SL_MAX(places - 1, 1u);
    for (unsigned i = 0; i < payers->count; i++)
        own += strcmp(payers->items[i], sharer) == 0;
    return !*sharer || (own < SL_MAX(places / 2, 1u) && payers->count < most);
}

/* In whose share its load may begin, of whose name it is and of those who wait: so nobody parks in
 * a used-up share what another wants. "": in none; NULL: it has to wait. */
static const char *find_payer(const struct sl_registry *registry, const struct model *wanting)
{
    struct payers payers;
    if (!wanting->passing)
        return "";
    find_payers(registry, &payers);
    if (may_pay(registry, &payers, wanting->sharer))
        return wanting->sharer;
    for (const struct waiter *at = wanting->waiters; at; at = at->next)
        if (may_pay(registry, &payers, at->sharer))
            return at->sharer;
    return NULL;
}

static bool has_place(const struct sl_registry *registry, const struct model *wanting)
{
    return find_payer(registry, wanting);
}

/* The first that may begin, of those with this placement, or of all (0). */
static struct model *take(struct sl_registry *registry, enum load_place place, uint32_t placement,
                          bool (*may)(const struct sl_registry *, const struct model *))
{
    struct model **at = &registry->locked.queue;
    while (*at && ((placement && (*at)->holder->placement != placement) || !may(registry, *at)))
        at = &(*at)->queue_next;
    struct model *model = registry->locked.held ? NULL : *at;
    if (!model)
        return NULL;
    *at = model->queue_next;
    if (!*at)
        registry->locked.queue_end = at;
    model->place = place;
    snprintf(model->payer, sizeof(model->payer), "%s", find_payer(registry, model));
    registry_stop_measuring(registry, model);
    pthread_cond_broadcast(&registry->beside);
    return model;
}

struct model *registry_take_queued(struct sl_registry *registry, unsigned space)
{
    (void)space;
    struct model *model = take(registry, PLACE_USUAL, 0, has_place);
    registry->locked.taken += model != NULL;
    return model;
}

static bool are_taken(const struct sl_registry *registry)
{
    return registry->locked.taken >= registry->loads_at_once;
}

/* ---- beside GPUs, and beside what was asked for by URI --------------------------------------- */

static bool goes_beside(const struct sl_registry *registry, const struct model *wanting)
{
    const char *payer = find_payer(registry, wanting);
    bool named_only = payer && !*payer, elsewhere = true;
    if (!payer)
        return false;
    for (const struct model *model = registry->locked.models; model; model = model->next) {
        if (model->work != WORK_RUNNING || model->place != PLACE_USUAL)
            continue;
        named_only = named_only && is_limited(model);
        elsewhere = elsewhere && !sl_placement_has(model->loads_into, SL_SPACE_HOST) &&
                    !(model->loads_into & wanting->holder->placement);
    }
    return named_only || elsewhere;
}

struct model *registry_take_beside(struct sl_registry *registry, unsigned space)
{
    return are_taken(registry) ? take(registry, PLACE_BESIDE, SL_PLACEMENT(space), goes_beside)
                               : NULL;
}

/* ---- small ones ----------------------------------------------------------------------------- */

/* What a load under way will have brought; 0: not known yet. */
static uint64_t loading_bytes(const struct model *model)
{
    for (const struct resident *at = model->residents; at; at = at->next)
        if (at->state == RESIDENT_LOADING && at->busy && !at->key)
            return at->bytes;
    return 0;
}

static bool is_small(const struct sl_registry *registry, const struct model *wanting)
{
    if (!wanting->measured_bytes)
        return false;
    for (const struct model *model = registry->locked.models; model; model = model->next)
        if (model->work == WORK_RUNNING && model->place == PLACE_USUAL &&
            loading_bytes(model) / SMALL_PART < wanting->measured_bytes)
            return false;
    return true;
}

static bool may_pass(const struct sl_registry *registry, const struct model *model)
{
    return is_small(registry, model) && has_place(registry, model);
}

struct model *registry_take_small(struct sl_registry *registry)
{
    return are_taken(registry) ? take(registry, PLACE_SMALL, 0, may_pass) : NULL;
}

/* ---- how large they are --------------------------------------------------------------------- */

static struct model *next_unmeasured(const struct sl_registry *registry)
{
    struct model *model = registry->locked.queue;
    if (!are_taken(registry) || registry->locked.held)
        return NULL;
    while (model && (model->measured || model->forgotten || model->retired || model->abandoned ||
                     !model->holder->measure))
        model = model->queue_next;
    return model;
}

bool registry_may_measure(const struct sl_registry *registry)
{
    return next_unmeasured(registry);
}

void registry_stop_measuring(struct sl_registry *registry, const struct model *model)
{
    if (registry->locked.measuring != model)
        return;
    registry->locked.measuring = NULL;
    sl_cancel_raise(registry->locked.measuring_cancel, 0);
}

/* One question, which outlives the model's place in the queue, and the model. */
struct question {
    struct model *model;
    struct spec_box *box;
    const struct sl_holder *holder;
    struct sl_cancel *cancel;
};

/* False: there is nothing to ask, or no memory to do so. */
static bool begin_measuring(struct sl_registry *registry, struct question *question)
{
    SL_LOCKED(&registry->lock);
    struct model *model = registry->locked.stopping ? NULL : next_unmeasured(registry);
    if (!model)
        return false;
    model->measured = true;
    *question = (struct question){model, model->box, model->holder, sl_cancel_new(NULL)};
    if (!question->cancel)
        return false;
    registry->locked.measuring = model;
    registry->locked.measuring_cancel = question->cancel;
    question->box->count++;
    return true;
}

static void end_measuring(struct sl_registry *registry, struct question *question, uint64_t bytes)
{
    SL_LOCKED(&registry->lock);
    if (registry->locked.measuring == question->model)
        question->model->measured_bytes = bytes;
    registry->locked.measuring = NULL;
    registry->locked.measuring_cancel = NULL;
    sl_cancel_free(question->cancel);
    registry_box_free(question->box);
}

void registry_measure(struct sl_registry *registry)
{
    struct question question;
    struct sl_err why = SL_ERR_INIT;
    uint64_t bytes = 0;
    if (!begin_measuring(registry, &question))
        return;
    const struct sl_spec *spec = &question.box->spec;
    if (question.holder->measure(spec, question.cancel, &bytes, &why) < 0) {
        bytes = 0;
        if (why.kind != SL_E_CANCELED)
            sl_log(SL_LOG_DEBUG, "'%s' waits for its place, since its size is not known: %s",
                   spec->metadata.name, why.message);
    }
    end_measuring(registry, &question, bytes);
}

/* ---- for people ----------------------------------------------------------------------------- */

static const struct model *small_one(const struct sl_registry *registry)
{
    const struct model *model = registry->locked.models;
    while (model && (model->work != WORK_RUNNING || model->place != PLACE_SMALL))
        model = model->next;
    return model;
}

void registry_describe_wait(const struct sl_registry *registry, const struct model *model, bool all,
                            char *text, size_t capacity)
{
    const struct model *small = is_small(registry, model) ? small_one(registry) : NULL;
    if (!has_place(registry, model))
        snprintf(text, capacity, "%s has all places that it may take", model->sharer);
    else if (small && (all || registry_is_public(small)))
        snprintf(text, capacity,
                 "all %u places for loads are taken, and '%s' has the one for small models",
                 registry->loads_at_once, small->name);
    else if (small)
        snprintf(text, capacity,
                 "all %u places for loads are taken, and so is the one for small models",
                 registry->loads_at_once);
    else
        snprintf(text, capacity, "all %u places for loads are taken", registry->loads_at_once);
}

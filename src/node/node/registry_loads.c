/*
 * Loads: who is next, what one does, and the threads that they run on.
 *
 * Places go in the order of the queue. One more place is for small models, so that a few MiB do not
 * wait until large models are there: who waits, and is at most an eighth as large as each model
 * that is being loaded, may pass the others there, one at a time. It takes no place away, so nobody
 * waits longer for his. The host's memory, and each GPU, has a place beside the usual ones while
 * loads onto other GPUs have all of those: a driver that hangs never gives one back. So has a model
 * with a name while loads of URIs have them all.
 *
 * How large a model is, its source is asked once all places are taken: for a listing, not for a
 * plan. That is done by the thread that has the small place, one model after another.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "registry_parts.h"
#include "url.h"

enum { SMALL_PART = 8 };

void registry_queue(struct sl_registry *registry, struct model *model)
{
    if (registry->locked.stopping || !model->box)
        return;
    if (model->work == WORK_NONE) {
        registry_set_work(model, WORK_QUEUED);
        model->measured = model->measured_bytes > 0;
        model->queue_next = NULL;
        *registry->locked.queue_end = model;
        registry->locked.queue_end = &model->queue_next;
    }
    if (!registry_is_queued(model))
        return;
    registry_need_beside(registry, model->holder->placement);
    pthread_cond_signal(&registry->work);
    pthread_cond_broadcast(&registry->beside);
}

/* ---- who pays ------------------------------------------------------------------------------- */

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
    if (model->name_state != NAME_PASSING || waits(model, model->payer))
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

static void find_payers(const struct sl_registry *registry, struct payers *payers)
{
    payers->count = 0;
    for (const struct model *at = registry->locked.models; at; at = at->next)
        if (registry_is_running(at) && *at->payer && payers->count < SL_COUNT(payers->items))
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
    if (wanting->name_state != NAME_PASSING)
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
    assert(registry_is_queued(model));
    *at = model->queue_next;
    if (!*at)
        registry->locked.queue_end = at;
    model->place = place;
    snprintf(model->payer, sizeof(model->payer), "%s", find_payer(registry, model));
    registry_stop_measuring(registry, model);
    pthread_cond_broadcast(&registry->beside);
    return model;
}

static bool are_taken(const struct sl_registry *registry)
{
    return registry->locked.taken >= registry->loads_at_once;
}

/* ---- beside GPUs, and beside what was asked for by URI -------------------------------------- */

static bool goes_beside(const struct sl_registry *registry, const struct model *wanting)
{
    const char *payer = find_payer(registry, wanting);
    bool named_only = payer && !*payer, elsewhere = true;
    if (!payer)
        return false;
    for (const struct model *model = registry->locked.models; model; model = model->next) {
        if (!registry_is_running(model) || model->place != PLACE_USUAL)
            continue;
        named_only = named_only && *model->payer;
        elsewhere = elsewhere && !sl_placement_has(model->loads_into, SL_SPACE_HOST) &&
                    !(model->loads_into & wanting->holder->placement);
    }
    return named_only || elsewhere;
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
        if (registry_is_running(model) && model->place == PLACE_USUAL &&
            loading_bytes(model) / SMALL_PART < wanting->measured_bytes)
            return false;
    return true;
}

static bool may_pass(const struct sl_registry *registry, const struct model *model)
{
    return is_small(registry, model) && has_place(registry, model);
}

/* Out of the queue, for a worker that has this place, past others for one that only some may have;
 * NULL: none may begin. space: whose place it is beside the usual ones. */
static struct model *take_next(struct sl_registry *registry, enum load_place place, unsigned space)
{
    if (place == PLACE_USUAL) {
        struct model *model = take(registry, place, 0, has_place);
        registry->locked.taken += model != NULL;
        return model;
    }
    if (!are_taken(registry))
        return NULL;
    return place == PLACE_SMALL ? take(registry, place, 0, may_pass)
                                : take(registry, place, SL_PLACEMENT(space), goes_beside);
}

/* ---- how large they are --------------------------------------------------------------------- */

static struct model *next_unmeasured(const struct sl_registry *registry)
{
    struct model *model = registry->locked.queue;
    if (!are_taken(registry) || registry->locked.held)
        return NULL;
    while (model && (model->measured || registry_name_ended(model) ||
                     model->work == WORK_UNWANTED || !model->holder->measure))
        model = model->queue_next;
    return model;
}

/* Does a queued model's size decide when it may start? */
static bool may_measure(const struct sl_registry *registry)
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
    REGISTRY_LOCKED(registry);
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
    REGISTRY_LOCKED(registry);
    if (registry->locked.measuring == question->model)
        question->model->measured_bytes = bytes;
    registry->locked.measuring = NULL;
    registry->locked.measuring_cancel = NULL;
    sl_cancel_free(question->cancel);
    registry_box_free(question->box);
}

/* Without the lock: ask the source of one of them. Blocks; the thread of the small place. */
static void measure(struct sl_registry *registry)
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
    while (model && (!registry_is_running(model) || model->place != PLACE_SMALL))
        model = model->next;
    return model;
}

void registry_describe_wait(const struct sl_registry *registry, const struct model *model, bool all,
                            char *text, size_t capacity)
{
    const struct model *small = is_small(registry, model) ? small_one(registry) : NULL;
    char taken[48] = "the one place for loads is taken";
    if (registry->loads_at_once > 1)
        snprintf(taken, sizeof(taken), "all %u places for loads are taken",
                 registry->loads_at_once);
    if (!has_place(registry, model))
        snprintf(text, capacity, "%s has all places that it may take", model->sharer);
    else if (small && (all || registry_is_public(small)))
        snprintf(text, capacity, "%s, and '%s' has the one for small models", taken, small->name);
    else
        snprintf(text, capacity, "%s%s", taken,
                 small ? ", and so is the one for small models" : "");
}

/* ---- how the last load ended ---------------------------------------------------------------- */

static void forget_failure(struct model *model)
{
    model->err = (struct sl_err)SL_ERR_INIT;
    model->failures = 0;
}

/* What the name stands for from now on; the last load went well. */
static void note_current(struct resident *resident)
{
    struct model *model = resident->model;
    resident->used_ns = sl_now_ns();
    if (!registry_obeys(model, resident))
        return; /* the node's rule is another by now: a load by that is under way */
    model->current = resident;
    memcpy(model->identity, resident->identity, sizeof(model->identity));
    model->has_identity = true;
    model->was_ready = true;
    forget_failure(model);
}

/* The last load failed: why, and until when it is not tried again. */
static void note_error(const struct sl_registry *registry, struct model *model,
                       const struct sl_err *err)
{
    model->err = *err;
    uint64_t ms = registry->retry_ms;
    for (unsigned i = 0; i < model->failures && ms < registry->retry_max_ms; i++)
        ms *= 2;
    if (!model->failures++)
        model->failing_since_ns = sl_now_ns();
    ms = SL_MIN(ms, (uint64_t)registry->retry_max_ms);
    model->retry_ns = sl_now_ns() + ms * SL_NS_PER_MS;
    model->refused_bytes = 0;
}

/* How long until a model that failed is tried again; at least 1. */
static uint64_t retry_ns(const struct model *model)
{
    uint64_t now = sl_now_ns();
    return model->retry_ns > now ? model->retry_ns - now : 1;
}

/* With the time to the next try; 0: there is none. */
static void log_failure(const struct model *model, const struct sl_err *err, uint64_t wait_ns)
{
    uint64_t seconds = (wait_ns + SL_NS_PER_S - 1) / SL_NS_PER_S;
    if (wait_ns)
        sl_log(SL_LOG_WARN, "model '%s': %s; next try in %" PRIu64 " s", model->name, err->message,
               seconds);
    else
        sl_log(SL_LOG_WARN, "model '%s': %s", model->name, err->message);
}

/* ---- one version, several names ------------------------------------------------------------- */

/*
 * One version is one copy, whatever names it is asked for by. Each name has a resident of its own,
 * with its own references and pin; those whose memory is one and the same are in a ring. One of
 * them stands for the memory in the budget, the others borrow. The memory goes when all of them
 * may, and is given back with the last.
 * (A table of memory beside the names would have every rule on eviction look into two places.)
 *
 * Those that share have the same identity, in the same holder, and come from the same place with
 * the same rights and keys: the identity alone does not say who may read it, nor what opened it.
 *
 * A load whose version another one is loading already does not load. It follows that one: its place
 * is given back, and it ends with it. Where the other ends because it was canceled, those who
 * follow begin anew.
 */

bool registry_is_shared(const struct resident *resident)
{
    return resident->share_next != resident;
}

void registry_pass_memory(struct resident *resident)
{
    struct resident *at = resident->share_next;
    while (at != resident && registry_is_going(at))
        at = at->share_next;
    if (at == resident || resident->borrows)
        return;
    resident->borrows = true;
    at->borrows = false;
    at->bytes = resident->bytes;
}

void registry_part(struct resident *resident)
{
    struct resident *before = resident->share_next;
    if (before == resident)
        return;
    while (before->share_next != resident)
        before = before->share_next;
    registry_pass_memory(resident);
    if (!resident->borrows) /* all others are on their way out, too */
        before->borrows = false;
    if (!before->borrows)
        before->bytes = resident->bytes;
    for (unsigned i = 0; i < HAD_MAX && i < resident->had.count; i++)
        registry_note_had(before, resident->had.who[i]);
    before->share_next = resident->share_next;
    resident->share_next = resident;
    resident->borrows = false;
    resident->bytes = 0;
    resident->body = NULL;
}

static const uint8_t *origin_of(const struct resident *resident)
{
    return resident->has_origin   ? resident->origin
           : resident->model->box ? resident->model->box->origin
                                  : NULL;
}

static bool can_share(const struct resident *at, const struct resident *wanting)
{
    static const uint8_t unknown[32];
    const uint8_t *origin = origin_of(at);
    bool there = at->state == RESIDENT_READY && at->body;
    bool coming = at->state == RESIDENT_LOADING && at->busy;
    return (there || coming) && !at->key && at->holder == wanting->holder && at->holder->shares &&
           memcmp(at->identity, unknown, 32) != 0 &&
           memcmp(at->identity, wanting->identity, 32) == 0 && origin &&
           memcmp(origin, wanting->origin, 32) == 0;
}

/* A new one of this holder, identity and origin: is the same there, or being loaded, under another
 * name? Then it shares that, with its state. */
static bool share(struct sl_registry *registry, struct resident *resident)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            if (model == resident->model || !can_share(at, resident))
                continue;
            resident->share_next = at->share_next;
            at->share_next = resident;
            resident->borrows = true;
            resident->bytes = at->bytes;
            resident->body = at->body;
            registry_set_resident(resident, at->state);
            resident->ready_seconds = at->ready_seconds;
            return true;
        }
    return false;
}

/* ---- loads that follow another -------------------------------------------------------------- */

/* One that follows the load of this resident; those that a worker has yet, or any. */
static struct resident *find_follower(const struct resident *resident, bool at_work)
{
    for (struct resident *at = resident->share_next; at != resident; at = at->share_next)
        if (at->state == RESIDENT_LOADING && (!at_work || registry_is_running(at->model)))
            return at;
    return NULL;
}

const struct model *registry_followed(const struct model *model)
{
    const struct resident *own = model->residents;
    while (own && (own->key || own->state != RESIDENT_LOADING || !own->borrows))
        own = own->next;
    const struct resident *at = own;
    while (at && at->borrows && at->share_next != own)
        at = at->share_next;
    return at ? at->model : model;
}

/* Two lists of those who wait, one behind the other. */
static struct waiter *chain(struct waiter *first, struct waiter *second)
{
    struct waiter **end = &first;
    while (*end)
        end = &(*end)->next;
    *end = second;
    return first;
}

/* The load of this resident has a (new) body: who follows has it, too. The early ones of those who
 * wait, with their references. */
static struct waiter *open_followers(struct resident *resident)
{
    struct waiter *all = NULL;
    for (struct resident *at = resident->share_next; at != resident; at = at->share_next) {
        if (at->state != RESIDENT_LOADING)
            continue;
        at->body = resident->body;
        at->bytes = resident->bytes;
        all = chain(all, registry_take_waiters(at->model, true, at, NULL));
    }
    return all;
}

/* What it had opened goes: who follows has no body either until it has one again. */
static void close_followers(struct resident *resident)
{
    for (struct resident *at = resident->share_next; at != resident; at = at->share_next)
        if (at->state == RESIDENT_LOADING)
            at->body = NULL;
}

/* Before the load of this resident ends: until no worker has one that follows it. */
static void await_followers(struct sl_registry *registry, const struct resident *resident)
{
    while (find_follower(resident, true))
        registry_wait(registry, &registry->changed, UINT64_MAX);
}

/* It shares nothing with the load that it followed any more, but for what its callers have. */
static void leave_load(struct resident *follower)
{
    if (follower->ref_count)
        registry_set_resident(follower, RESIDENT_GONE);
    else
        registry_remove_resident(follower);
}

static void follow_to_end(struct resident *follower, const struct resident *leader)
{
    registry_set_resident(follower, RESIDENT_READY);
    follower->ready_seconds = leader->ready_seconds;
    follower->body = leader->body;
    follower->bytes = leader->bytes;
    follower->signed_by = leader->signed_by;
    note_current(follower);
}

/* The load of this resident has ended, and with it those that follow: all who waited, answered. */
static struct waiter *end_followers(struct sl_registry *registry, struct resident *resident,
                                    int done, const struct sl_err *err)
{
    struct waiter *all = NULL;
    for (struct resident *at; (at = find_follower(resident, false));) {
        struct model *model = at->model;
        bool again = model->work == WORK_FOLLOWS_AGAIN || (done < 0 && err->kind == SL_E_CANCELED);
        at->busy--;
        registry_set_work(model, WORK_NONE);
        if (done == 0)
            follow_to_end(at, resident);
        else
            leave_load(at);
        if (done < 0 && err->kind != SL_E_CANCELED)
            note_error(registry, model, err);
        if (again)
            registry_queue(registry, model);
        else
            all = chain(all, registry_take_waiters(model, false, done == 0 ? at : NULL, err));
    }
    return all;
}

/* ---- one load ------------------------------------------------------------------------------- */

struct job {
    struct sl_registry *registry;
    struct model *model;
    struct spec_box *box;
    const struct sl_holder *holder;
    struct resident *resident; /* what it works on, once the version is known */
    bool found;                /* it was ready before */
    bool follows;              /* another load brings it */
    uint64_t refused_bytes;    /* there was no room for so much */
    bool unversioned;          /* no later load can go on with what this one has */
    struct sl_holder_shared shared;
};

/* Who follows wanted what this one brings no more: it starts over. */
static void part_followers(struct job *job, struct resident *resident)
{
    const struct sl_err why = {.kind = SL_E_CANCELED};
    await_followers(job->registry, resident);
    end_followers(job->registry, resident, -1, &why);
}

/* The load starts over with another version: what it had of the first is worth nothing. */
static void leave_resident(struct job *job)
{
    struct resident *resident = job->resident;
    job->resident = NULL;
    if (!job->found && !job->follows)
        part_followers(job, resident);
    resident->busy--;
    if (job->found || resident->busy)
        return;
    if (resident->ref_count)
        registry_set_resident(resident, RESIDENT_GONE);
    else
        registry_mark(job->registry, resident, true);
}

/* What somebody keeps may go any moment: its descriptors are on their way, or its process ends. So
 * may a model whose clients have used it and gone before we noted that its load has ended. */
static int try_room(struct job *job, struct resident *resident, uint64_t bytes,
                    struct victims *victims, struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    uint64_t until = sl_now_ns() + LEFT_GRACE_MS * SL_NS_PER_MS;
    int done;
    resident->busy++; /* nobody drops it while the lock is given up */
    while ((done = registry_make_room(registry, resident, registry_own_bytes(resident, bytes),
                                      victims, err)) < 0 &&
           sl_cancel_check(job->model->cancel, NULL) == 0)
        if (!registry_await_left(registry, until) && !registry_await_end(registry, until))
            break;
    resident->busy--;
    job->refused_bytes = done < 0 ? bytes : 0;
    return done;
}

/* Beside the version that it takes files over from; or, where there is no room for both, in the
 * place of that. */
static int find_room(struct job *job, struct resident *resident, uint64_t bytes,
                     struct victims *victims, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (resident->shared.bytes && try_room(job, resident, bytes, victims, &why) == 0)
        return 0;
    resident->shared.bytes = 0;
    return try_room(job, resident, bytes, victims, err);
}

/* Of what was dropped for it. */
static int await_room(struct job *job, struct victims *victims, struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct resident *resident = job->resident;
    REGISTRY_LOCKED(registry);
    *victims = (struct victims){0};
    while (registry->locked.dropping && !registry->locked.stopping &&
           !registry_has_room(registry, resident))
        registry_wait(registry, &registry->changed, UINT64_MAX);
    if (registry_has_room(registry, resident))
        return 0;
    return find_room(job, resident, resident->bytes, victims, err);
}

/* A model of this name that was forgotten may still have the version: holders know it by name and
 * version, so what is left of it must go before the same is made anew. */
static bool was_forgotten(const struct job *job, const char *version)
{
    for (const struct model *model = job->registry->locked.models; model; model = model->next) {
        if (model == job->model || model->name_state != NAME_FORGOTTEN ||
            strcmp(model->name, job->model->name) != 0)
            continue;
        for (const struct resident *at = model->residents; at; at = at->next)
            if (!at->key && !at->stuck && at->holder == job->holder &&
                strcmp(at->version, version) == 0)
                return true;
    }
    return false;
}

/* Until nothing that is being dropped is of this version; NULL: it is not there at all. */
static struct resident *await_dropped(struct job *job, const char *version)
{
    struct sl_registry *registry = job->registry;
    struct resident *resident;
    while (((resident = registry_resident(job->model, version, job->holder)) &&
            registry_is_going(resident)) ||
           (was_forgotten(job, version) && sl_cancel_check(job->model->cancel, NULL) == 0)) {
        if (registry->locked.stopping)
            break;
        registry_wait(registry, &registry->changed, UINT64_MAX);
    }
    return resident;
}

static void describe_resident(const struct job *job, struct resident *resident,
                              const uint8_t identity[32])
{
    memcpy(resident->identity, identity, sizeof(resident->identity));
    memcpy(resident->origin, job->box->origin, sizeof(resident->origin));
    resident->has_origin = true;
    memcpy(resident->rule, job->box->rule, sizeof(resident->rule));
}

/* There is no room for it. Others may have come to follow while some was waited for. */
static void give_up_resident(struct job *job, struct resident *resident)
{
    resident->busy++;
    part_followers(job, resident);
    registry_remove_resident(resident);
}

static int take_resident(struct job *job, const char *version, const uint8_t identity[32],
                         uint64_t bytes, struct victims *victims, struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    if (job->resident && strcmp(job->resident->version, version) != 0)
        leave_resident(job);
    struct resident *resident = await_dropped(job, version);
    if (sl_cancel_check(model->cancel, err) < 0)
        return -1;
    bool new = !resident;
    if (new && !(resident = registry_new_resident(model, version, job->holder, err)))
        return -1;
    describe_resident(job, resident, identity);
    job->follows = false;
    if (new &&share(registry, resident)) {
        job->follows = resident->state == RESIDENT_LOADING;
        registry->locked.counts.joined++;
    }
    job->found = resident->state == RESIDENT_READY;
    if (!job->found && !job->follows)
        resident->shared = job->shared;
    if (!job->found && !job->follows && find_room(job, resident, bytes, victims, err) < 0) {
        if (new)
            give_up_resident(job, resident);
        return -1;
    }
    if (!job->found && !job->follows) {
        registry_set_resident(resident, RESIDENT_LOADING);
        resident->bytes = bytes;
        pthread_cond_broadcast(&registry->beside);
    }
    resident->busy += job->resident != resident;
    job->resident = resident;
    registry_update_gauges(registry);
    return job->found || job->follows;
}

/* What the load had opened before it starts over with the same version, and nobody has. */
static void *take_failed(struct job *job, const char *version)
{
    struct resident *resident = job->resident;
    REGISTRY_LOCKED(job->registry);
    if (!resident || job->found || job->follows || strcmp(resident->version, version) != 0 ||
        registry_is_used(resident, resident->body))
        return NULL;
    close_followers(resident);
    return sl_steal(&resident->body);
}

/* Before memory is taken again: there may be no room for both, and a GPU's is taken whole. */
static void drop_failed(struct job *job, const char *version)
{
    void *body = take_failed(job, version);
    if (!body)
        return;
    struct left *left = registry_watch(job->registry, job->resident, body);
    registry_drop_replaced(job->holder, body);
    registry_leave(job->registry, left);
}

static int admit(void *arg, const uint8_t identity[32], uint64_t bytes,
                 char version[SL_VERSION_TEXT], struct sl_err *err)
{
    struct job *job = arg;
    struct victims victims = {0};
    struct waiter *early = NULL;
    int done;
    sl_version_text(identity, version);
    drop_failed(job, version);
    {
        REGISTRY_LOCKED(job->registry);
        done = take_resident(job, version, identity, bytes, &victims, err);
        if (done > 0 && job->resident->body) /* which another load has opened */
            early = registry_take_waiters(job->model, true, job->resident, NULL);
    }
    registry_answer(early);
    for (bool again = done == 0; again || victims.first;) {
        again = false; /* others may be dropping what it counts on */
        for (struct resident *at = victims.first, *next; at; at = next) {
            next = at->victim_next;
            if (registry_drop(job->registry, at, err) < 0)
                done = -1;
        }
        victims = (struct victims){0};
        if (done == 0 && await_room(job, &victims, err) < 0)
            done = -1;
    }
    return done;
}

static void opened(void *arg, void *body)
{
    struct job *job = arg;
    struct resident *resident = job->resident;
    struct waiter *waiters;
    bool used;
    void *before = resident->body; /* only we set it as long as the load goes on */
    struct left *left = before ? registry_watch(job->registry, resident, before) : NULL;
    {
        REGISTRY_LOCKED(job->registry);
        used = registry_is_used(resident, before);
        resident->body = body;
        waiters = registry_take_waiters(job->model, true, resident, NULL);
        waiters = chain(waiters, open_followers(resident));
        registry_update_gauges(job->registry);
    }
    if (before && !used)
        registry_drop_replaced(resident->holder, before);
    registry_leave(job->registry, left);
    registry_answer(waiters);
}

/* ---- its end -------------------------------------------------------------------------------- */

static void note_success(struct job *job, void *body)
{
    struct resident *resident = job->resident;
    if (!job->found) {
        resident->shared = job->shared;
        registry_set_resident(resident, RESIDENT_READY);
        resident->ready_seconds = sl_wall_seconds();
        job->registry->locked.counts.loads++;
    }
    if (body)
        resident->body = body;
    struct sl_progress_view view;
    sl_progress_view(job->model->progress, &view);
    resident->signed_by = view.signed_by;
    note_current(resident);
}

static bool can_resume(const struct job *job, const struct sl_err *err)
{
    return job->holder->keeps_partial && !job->unversioned &&
           (err->kind == SL_E_NET || err->kind == SL_E_TIMEOUT || err->kind == SL_E_CANCELED) &&
           job->model->name_state != NAME_FORGOTTEN;
}

/* What is left of the load; true: to be dropped by the caller. */
static bool note_failure(struct job *job, const struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    struct resident *resident = job->resident;
    note_error(registry, model, err);
    model->refused_bytes = job->refused_bytes;
    if (!resident || resident->busy || job->found)
        return false;
    if (can_resume(job, err) || (job->holder->keeps_partial && resident->ref_count)) {
        registry_set_resident(resident, RESIDENT_PARTIAL);
        resident->used_ns = sl_now_ns();
        return false;
    }
    if (resident->ref_count) {
        registry_set_resident(resident, RESIDENT_GONE);
        return false;
    }
    registry_mark(registry, resident, false);
    return true;
}

/* It is at work no more, in whatever place: what waited for a user's share may begin in another. */
static void leave_place(struct sl_registry *registry, struct model *model, enum work work)
{
    registry_set_work(model, work);
    pthread_cond_signal(&registry->work);
    pthread_cond_broadcast(&registry->beside);
}

/* Whoever brings it ends this, too. */
static void follow(struct job *job)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    REGISTRY_LOCKED(registry);
    sl_log(SL_LOG_INFO, "'%s' will share what is being loaded for '%s'", model->name,
           registry_followed(model)->name);
    sl_cancel_free(model->cancel);
    model->cancel = NULL;
    leave_place(registry, model, model->work == WORK_AGAIN ? WORK_FOLLOWS_AGAIN : WORK_FOLLOWS);
    registry_box_free(job->box);
    registry_update_gauges(registry);
    pthread_cond_broadcast(&registry->changed);
}

static void end_job(struct job *job, int done, void *body, const struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    struct waiter *waiters = NULL;
    uint64_t wait_ns = 0, promised = job->resident ? job->resident->shared.bytes : 0;
    bool drop = false;
    assert(done < 0 || job->resident);
    {
        REGISTRY_LOCKED(registry);
        if (job->resident && !job->follows)
            await_followers(registry, job->resident);
        sl_cancel_free(model->cancel);
        model->cancel = NULL;
        if (job->resident)
            job->resident->busy--;
        if (done == 0)
            note_success(job, body);
        else
            drop = note_failure(job, err);
        if (model->work == WORK_ABANDONED) /* whoever asks next starts over */
            forget_failure(model);
        if (done < 0 && model->wanted)
            wait_ns = retry_ns(model);
        if (model->work != WORK_AGAIN)
            waiters = registry_take_waiters(model, false, done == 0 ? job->resident : NULL, err);
        if (job->resident && !job->follows)
            waiters = chain(waiters, end_followers(registry, job->resident, done, err));
    }
    if (done < 0 && err->kind != SL_E_CANCELED)
        log_failure(model, err, wait_ns);
    if (drop)
        registry_drop(registry, job->resident, NULL);
    {
        REGISTRY_LOCKED(registry); /* the model stays until it is not at work any more */
        bool again = model->work == WORK_AGAIN;
        leave_place(registry, model, WORK_NONE);
        registry_box_free(job->box);
        if (again || model->waiters) /* who asked since the others were taken */
            registry_queue(registry, model);
        if (done == 0 && !job->found &&
            job->shared.bytes < promised) /* a file was not as it seemed */
            registry_enforce(registry);
        registry_update_gauges(registry);
        pthread_cond_broadcast(&registry->changed);
        pthread_cond_signal(&registry->clean);
    }
    registry_answer(waiters);
}

/* ---- workers -------------------------------------------------------------------------------- */

static int begin_job(struct job *job, struct sl_err *err)
{
    struct model *model = job->model;
    registry_set_work(model, model->work == WORK_UNWANTED ? WORK_ABANDONED : WORK_RUNNING);
    job->box = model->box;
    job->box->count++;
    job->holder = model->holder;
    model->loads_into = model->holder->placement;
    sl_progress_free(model->progress);
    const char *uri = job->box->spec.source.uri;
    sl_autofree char *clean = sl_uri_sanitize(uri ? uri : "", err);
    model->progress = !clean             ? NULL
                      : model->of_volume ? sl_progress_new_hidden(model->name, clean, err)
                                         : sl_progress_new(model->name, clean, "", err);
    if (!model->progress)
        return -1;
    model->cancel = sl_cancel_new(err);
    if (!model->cancel)
        return -1;
    if (registry_name_ended(model))
        return sl_fail(err, SL_E_CANCELED,
                       "the model '%s' was evicted or forgotten before its load began",
                       model->name);
    if (model->work == WORK_ABANDONED)
        return sl_fail(err, SL_E_CANCELED, "no client waits for the model '%s' any more",
                       model->name);
    return 0;
}

static void run_job(struct job *job, int begun, struct sl_err *err)
{
    void *body = NULL;
    int done = begun;
    if (begun == 0) {
        const struct sl_holder_job asked = {.name = job->model->name,
                                            .spec = &job->box->spec,
                                            .cancel = job->model->cancel,
                                            .progress = job->model->progress,
                                            .arg = job,
                                            .admit = admit,
                                            .shared = &job->shared,
                                            .unversioned = &job->unversioned,
                                            .opened = opened};
        done = job->holder->load(job->holder->self, &asked, &body, err);
    } else {
        sl_progress_finish(job->model->progress, err);
    }
    if (done == 0 && job->follows)
        follow(job);
    else
        end_job(job, done, body, err);
}

/* A load, or a question of how large one is; false: the end. */
static bool run_next(struct sl_registry *registry, enum load_place place, unsigned space)
{
    struct job job = {.registry = registry};
    struct sl_err err = SL_ERR_INIT;
    int begun = 0;
    {
        REGISTRY_LOCKED(registry);
        while (!registry->locked.stopping && !(job.model = take_next(registry, place, space)) &&
               !(place == PLACE_SMALL && may_measure(registry)))
            registry_wait(registry, place == PLACE_USUAL ? &registry->work : &registry->beside,
                          UINT64_MAX);
        if (registry->locked.stopping)
            return false;
        if (job.model)
            begun = begin_job(&job, &err);
        registry_update_gauges(registry);
    }
    if (job.model)
        run_job(&job, begun, &err);
    else
        measure(registry);
    return true;
}

void *registry_worker(void *arg)
{
    struct sl_registry *registry = arg;
    while (run_next(registry, PLACE_USUAL, SL_SPACE_HOST)) {
        REGISTRY_LOCKED(registry);
        registry->locked.taken--;
        pthread_cond_broadcast(&registry->beside);
    }
    return NULL;
}

void *registry_beside_worker(void *arg)
{
    const struct beside *own = arg;
    while (run_next(own->registry, PLACE_BESIDE, own->space))
        ;
    return NULL;
}

void *registry_small_worker(void *arg)
{
    while (run_next(arg, PLACE_SMALL, SL_SPACE_HOST))
        ;
    return NULL;
}

/*
 * The steps that names, loads and residents may make, and what holds between them: drawn and
 * numbered in registry_parts.h, asserted in debug and sanitizer builds, where each lock, unlock and
 * wait looks at the whole registry.
 */
#include <assert.h>
#include <string.h>
#include <time.h>

#include "registry_parts.h"

#ifndef NDEBUG
#define TO(state) (1u << (state))

static const unsigned name_steps[] = {
    [NAME_FOUND] = TO(NAME_CONFIG) | TO(NAME_REQUEST) | TO(NAME_PASSING) | TO(NAME_RETIRED) |
                   TO(NAME_FORGOTTEN),
    [NAME_CONFIG] = TO(NAME_CONFIG) | TO(NAME_RETIRED),
    [NAME_REQUEST] = TO(NAME_CONFIG) | TO(NAME_REQUEST) | TO(NAME_FORGOTTEN),
    [NAME_PASSING] = TO(NAME_CONFIG) | TO(NAME_REQUEST) | TO(NAME_PASSING) | TO(NAME_FORGOTTEN),
    [NAME_RETIRED] = TO(NAME_CONFIG) | TO(NAME_REQUEST) | TO(NAME_PASSING) | TO(NAME_FORGOTTEN),
    [NAME_FORGOTTEN] = 0,
};
static const unsigned work_steps[] = {
    [WORK_NONE] = TO(WORK_QUEUED),
    [WORK_QUEUED] = TO(WORK_UNWANTED) | TO(WORK_RUNNING),
    [WORK_UNWANTED] = TO(WORK_QUEUED) | TO(WORK_ABANDONED),
    [WORK_RUNNING] = TO(WORK_NONE) | TO(WORK_ABANDONED) | TO(WORK_AGAIN) | TO(WORK_FOLLOWS),
    [WORK_ABANDONED] = TO(WORK_NONE) | TO(WORK_AGAIN),
    [WORK_AGAIN] = TO(WORK_NONE) | TO(WORK_RUNNING) | TO(WORK_ABANDONED) | TO(WORK_FOLLOWS_AGAIN),
    [WORK_FOLLOWS] = TO(WORK_NONE) | TO(WORK_FOLLOWS_AGAIN),
    [WORK_FOLLOWS_AGAIN] = TO(WORK_NONE) | TO(WORK_FOLLOWS),
};
static const unsigned resident_steps[] = {
    [RESIDENT_LOADING] = TO(RESIDENT_LOADING) | TO(RESIDENT_READY) | TO(RESIDENT_PARTIAL) |
                         TO(RESIDENT_GONE) | TO(RESIDENT_MARKED) | TO(RESIDENT_DROPPING),
    [RESIDENT_READY] = TO(RESIDENT_MARKED) | TO(RESIDENT_DROPPING),
    [RESIDENT_PARTIAL] = TO(RESIDENT_LOADING) | TO(RESIDENT_MARKED) | TO(RESIDENT_DROPPING),
    [RESIDENT_GONE] = TO(RESIDENT_MARKED),
    [RESIDENT_MARKED] = TO(RESIDENT_DROPPING),
    [RESIDENT_DROPPING] = TO(RESIDENT_MARKED) | TO(RESIDENT_PARTIAL),
};
#endif

void registry_set_name(struct model *model, enum name_state to)
{
    assert(name_steps[model->name_state] & TO(to));
    model->name_state = to;
}

void registry_set_work(struct model *model, enum work to)
{
    assert(work_steps[model->work] & TO(to));
    model->work = to;
}

void registry_set_resident(struct resident *resident, enum resident_state to)
{
    assert(resident_steps[resident->state] & TO(to));
    resident->state = to;
}

void registry_wait(struct sl_registry *registry, pthread_cond_t *condition, uint64_t until_ns)
{
    struct timespec until = {(time_t)(until_ns / SL_NS_PER_S), (long)(until_ns % SL_NS_PER_S)};
    registry_check(registry);
    if (until_ns == UINT64_MAX)
        pthread_cond_wait(condition, &registry->lock);
    else
        pthread_cond_timedwait(condition, &registry->lock, &until);
    registry_check(registry);
}

#ifndef NDEBUG

static void check_name(const struct model *model)
{
    bool defined = model->name_state >= NAME_CONFIG && model->name_state <= NAME_PASSING;
    assert(!defined || model->box);                                       /* 1 */
    assert(model->name_state != NAME_FOUND || !model->box);               /* 1 */
    assert(!model->box || model->holder);                                 /* 1 */
    assert(!model->pinned_by_config || model->name_state == NAME_CONFIG); /* 2 */
    assert(!registry_name_ended(model) || !model->wanted);                /* 2 */
}

static void check_work(const struct sl_registry *registry, const struct model *model)
{
    bool unwanted = model->work == WORK_UNWANTED || model->work == WORK_ABANDONED;
    bool limited = model->name_state == NAME_PASSING || model->name_state == NAME_FORGOTTEN;
    assert(!model->cancel || registry_is_running(model));                             /* 4 */
    assert(!unwanted || (!model->waiters && !model->wanted));                         /* 5 */
    assert(!model->waiters || model->work != WORK_NONE || registry->locked.stopping); /* 6 */
    assert(!*model->payer || limited);                                                /* 7 */
    if (registry_follows(model)) {
        const struct model *leader = registry_followed(model);
        assert(leader != model && registry_is_running(leader)); /* 8 */
    }
}

static void check_ring(const struct resident *resident)
{
    const struct resident *at = resident;
    unsigned bearers = 0;
    do {
        bearers += !at->borrows;
        assert(at->holder == resident->holder);                                        /* 12 */
        assert(memcmp(at->identity, resident->identity, SL_COUNT(at->identity)) == 0); /* 12 */
    } while ((at = at->share_next) != resident);
    assert(bearers == 1); /* 12 */
}

static void check_resident(const struct resident *resident)
{
    unsigned references = 0;
    for (const struct sl_model_ref *ref = resident->refs; ref; ref = ref->next) {
        assert(ref->resident == resident); /* 9 */
        references++;
    }
    assert(references == resident->ref_count);                               /* 9 */
    assert(resident->state != RESIDENT_LOADING || resident->busy);           /* 10 */
    assert(!registry_is_going(resident) || !(references || resident->busy)); /* 10 */
    assert(!resident->awaits.answer ||
           (resident->key && resident->state == RESIDENT_LOADING)); /* 13 */
    check_ring(resident);
}

/* How many are going. */
static unsigned check_residents(const struct model *model)
{
    const struct resident *current = model->current;
    unsigned going = 0;
    bool found = false;
    for (const struct resident *at = model->residents; at; at = at->next) {
        assert(at->model == model);
        check_resident(at);
        going += registry_is_going(at);
        found = found || at == current;
    }
    assert(!current || (found && current->state == RESIDENT_READY && !current->key)); /* 11 */
    return going;
}

static void check_queue(const struct sl_registry *registry, unsigned queued)
{
    struct model *const *end = &registry->locked.queue;
    for (; *end; end = &(*end)->queue_next, queued--)
        assert(registry_is_queued(*end));                     /* 3 */
    assert(queued == 0 && end == registry->locked.queue_end); /* 3 */
}

static void check_deferred(const struct sl_registry *registry)
{
    unsigned count = 0;
    for (const struct sl_deferred_call *at = registry->locked.deferred; at; at = at->next)
        count++;
    assert(count <= registry->locked.later_count); /* 16 */
}

void registry_check(const struct sl_registry *registry)
{
    size_t count = 0;
    unsigned queued = 0, going = 0, usual = 0;
    const struct model *measuring = registry->locked.measuring;
    for (const struct model *model = registry->locked.models; model; model = model->next) {
        check_name(model);
        check_work(registry, model);
        going += check_residents(model);
        queued += registry_is_queued(model);
        usual += registry_is_running(model) && model->place == PLACE_USUAL;
        count++;
    }
    check_queue(registry, queued);
    check_deferred(registry);
    assert(count == registry->locked.model_count);             /* 1 */
    assert(going == registry->locked.dropping);                /* 10 */
    assert(usual <= registry->locked.taken);                   /* 14 */
    assert(registry->locked.taken <= registry->loads_at_once); /* 14 */
    assert(!measuring ||
           (measuring->work == WORK_QUEUED && registry->locked.measuring_cancel)); /* 15 */
}

#endif

/*
 * The janitor: one thread for what others must not wait for. It does what it was left, drops what
 * was evicted by hand or goes for a deposit, keeps deposits for the next daemon, frees what is
 * forgotten, and queues again what failed and is wanted.
 */
#include <time.h>

#include "registry_parts.h"

/* Nobody will ask for it again, and nobody has it any more. */
static bool is_abandoned(const struct resident *resident)
{
    bool wanted = resident->state != RESIDENT_GONE && !resident->model->forgotten;
    return !wanted && !resident->stuck && !resident->ref_count && !resident->busy &&
           resident->state != RESIDENT_DROPPING;
}

/* A resident whose memory is to be given back now; it is the caller's from now on. */
static struct resident *take_dropping(struct sl_registry *registry)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            if (is_abandoned(at))
                registry_mark(registry, at, true);
            if (at->state != RESIDENT_DROPPING || !at->for_janitor)
                continue;
            at->for_janitor = false;
            return at;
        }
    return NULL;
}

/* What is to be kept; nobody drops it meanwhile. */
static struct resident *take_keeping(struct sl_registry *registry)
{
    for (struct model *model = registry->locked.models; model; model = model->next)
        for (struct resident *at = model->residents; at; at = at->next) {
            if (!at->to_keep || at->state != RESIDENT_READY)
                continue;
            at->to_keep = false;
            at->busy++;
            return at;
        }
    return NULL;
}

static void keep(struct sl_registry *registry, struct resident *resident)
{
    resident->holder->keep(resident->holder->self, resident->body);
    SL_LOCKED(&registry->lock);
    resident->busy--;
    pthread_cond_broadcast(&registry->changed);
}

/* ---- what others leave to it ------------------------------------------------------------------
 */

static struct sl_later *take_later(struct sl_registry *registry)
{
    struct sl_later *later = registry->locked.laters;
    if (later && !(registry->locked.laters = later->next))
        registry->locked.laters_end = &registry->locked.laters;
    return later;
}

static void run_later(struct sl_registry *registry, struct sl_later *later)
{
    later->run(later);
    SL_LOCKED(&registry->lock);
    registry->locked.later_count--;
    pthread_cond_broadcast(&registry->changed);
}

void registry_run_laters(struct sl_registry *registry)
{
    for (;;) {
        struct sl_later *later;
        {
            SL_LOCKED(&registry->lock);
            later = take_later(registry);
        }
        if (!later)
            return;
        run_later(registry, later);
    }
}

static bool put_later(struct sl_registry *registry, struct sl_later *later)
{
    SL_LOCKED(&registry->lock);
    if (registry->locked.stopping)
        return false;
    later->next = NULL;
    *registry->locked.laters_end = later;
    registry->locked.laters_end = &later->next;
    registry->locked.later_count++;
    pthread_cond_signal(&registry->clean);
    return true;
}

void sl_registry_later(struct sl_registry *registry, struct sl_later *later)
{
    if (!put_later(registry, later))
        later->run(later);
}

/* ---- models -----------------------------------------------------------------------------------
 */

/* 0: goes now. Else when it may, UINT64_MAX if that is no question of time. */
static uint64_t stays_until(const struct model *model, uint64_t now)
{
    uint64_t until = SL_MAX(model->passing_ns, model->err.kind ? model->retry_ns : 0);
    if (model->work != WORK_NONE || model->residents || model->waiters)
        return UINT64_MAX;
    if (model->forgotten || model->retired || (model->passing && until <= now))
        return 0;
    return model->passing ? until : UINT64_MAX;
}

/* When the next one can go, UINT64_MAX if none. */
static uint64_t free_forgotten(struct sl_registry *registry)
{
    uint64_t now = sl_now_ns(), soonest = UINT64_MAX;
    struct model *next;
    for (struct model *model = registry->locked.models; model; model = next) {
        next = model->next;
        uint64_t until = stays_until(model, now);
        if (until)
            soonest = SL_MIN(soonest, until);
        else
            registry_free_model(registry, model);
    }
    return soonest;
}

/* Queue what is due; when the next one is, UINT64_MAX if none. */
static uint64_t queue_due(struct sl_registry *registry)
{
    uint64_t now = sl_now_ns(), soonest = UINT64_MAX;
    for (struct model *model = registry->locked.models; model; model = model->next) {
        if (!model->wanted || !model->err.kind || model->work != WORK_NONE)
            continue;
        if (model->retry_ns <= now)
            registry_queue(registry, model);
        else
            soonest = SL_MIN(soonest, model->retry_ns);
    }
    return soonest;
}

static void wait_until(struct sl_registry *registry, uint64_t when_ns)
{
    struct timespec at = {(time_t)(when_ns / SL_NS_PER_S), (long)(when_ns % SL_NS_PER_S)};
    if (when_ns != UINT64_MAX)
        pthread_cond_timedwait(&registry->clean, &registry->lock, &at);
    else
        pthread_cond_wait(&registry->clean, &registry->lock);
}

void *registry_janitor(void *arg)
{
    struct sl_registry *registry = arg;
    for (;;) {
        struct resident *keeping, *resident = NULL;
        struct sl_later *later = NULL;
        bool look = false;
        {
            SL_LOCKED(&registry->lock);
            while (!(keeping = take_keeping(registry)) && !registry->locked.stopping &&
                   !(later = take_later(registry)) && !(resident = take_dropping(registry)) &&
                   !(look = registry_next_look(registry) <= sl_now_ns())) {
                uint64_t due = queue_due(registry), free_at = free_forgotten(registry);
                registry_tell(registry);
                due = SL_MIN(due, registry_next_look(registry));
                wait_until(registry, SL_MIN(due, free_at));
            }
            if (!keeping && registry->locked.stopping)
                return NULL;
        }
        if (keeping)
            keep(registry, keeping);
        else if (look)
            registry_look_at_left(registry);
        else if (later)
            run_later(registry, later);
        else
            registry_drop(registry, resident, NULL);
    }
}

/* ---- is there anything left to do ------------------------------------------------------------ */

static bool has_work(const struct model *model)
{
    for (const struct resident *at = model->residents; at; at = at->next)
        if (is_abandoned(at) || (at->state == RESIDENT_READY && (at->to_keep || at->busy)))
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

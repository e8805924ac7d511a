/*
 * The janitor: one thread for what others must not wait for. It does what it was left, drops what
 * was evicted by hand or goes for a deposit, keeps deposits for the next daemon, frees what is
 * forgotten, and queues again what failed and is wanted.
 */
#include <inttypes.h>
#include <time.h>

#include "log.h"
#include "registry_parts.h"

/* ---- failures ------------------------------------------------------------------------------- */

void registry_note_error(const struct sl_registry *registry, struct model *model,
                         const struct sl_err *err)
{
    model->err = *err;
    uint64_t ms = registry->retry_ms;
    for (unsigned i = 0; i < model->failures && ms < registry->retry_max_ms; i++)
        ms *= 2;
    model->failures++;
    ms = SL_MIN(ms, (uint64_t)registry->retry_max_ms);
    model->retry_ns = sl_now_ns() + ms * SL_NS_PER_MS;
    model->refused_bytes = 0;
}

uint64_t registry_retry_ns(const struct model *model)
{
    uint64_t now = sl_now_ns();
    return model->retry_ns > now ? model->retry_ns - now : 1;
}

void registry_log_failure(const struct model *model, const struct sl_err *err, uint64_t wait_ns)
{
    uint64_t seconds = (wait_ns + SL_NS_PER_S - 1) / SL_NS_PER_S;
    if (wait_ns)
        sl_log(SL_LOG_WARN, "model '%s': %s; next try in %" PRIu64 " s", model->name, err->message,
               seconds);
    else
        sl_log(SL_LOG_WARN, "model '%s': %s", model->name, err->message);
}

/* ---- what it does --------------------------------------------------------------------------- */

bool registry_is_abandoned(const struct resident *resident)
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
            if (registry_is_abandoned(at))
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

static struct sl_deferred_call *take_deferred(struct sl_registry *registry)
{
    struct sl_deferred_call *call = registry->locked.deferred;
    if (call && !(registry->locked.deferred = call->next))
        registry->locked.deferred_end = &registry->locked.deferred;
    return call;
}

static void run_deferred(struct sl_registry *registry, struct sl_deferred_call *call)
{
    call->run(call);
    SL_LOCKED(&registry->lock);
    registry->locked.later_count--;
    pthread_cond_broadcast(&registry->changed);
}

void registry_run_laters(struct sl_registry *registry)
{
    for (;;) {
        struct sl_deferred_call *call;
        {
            SL_LOCKED(&registry->lock);
            call = take_deferred(registry);
        }
        if (!call)
            return;
        run_deferred(registry, call);
    }
}

static bool put_deferred(struct sl_registry *registry, struct sl_deferred_call *call)
{
    SL_LOCKED(&registry->lock);
    if (registry->locked.stopping)
        return false;
    call->next = NULL;
    *registry->locked.deferred_end = call;
    registry->locked.deferred_end = &call->next;
    registry->locked.later_count++;
    pthread_cond_signal(&registry->clean);
    return true;
}

void sl_registry_defer(struct sl_registry *registry, struct sl_deferred_call *call)
{
    if (!put_deferred(registry, call))
        call->run(call);
}

/* ---- models -----------------------------------------------------------------------------------
 */

/* 0: goes now. Else when it may, UINT64_MAX if that is not a question of time. */
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

/* Loads that nobody has asked for since a while end; when the next one does, UINT64_MAX if none. */
static uint64_t end_lapsed(struct sl_registry *registry)
{
    uint64_t now = sl_now_ns(), soonest = UINT64_MAX;
    for (struct model *model = registry->locked.models; model; model = model->next) {
        if (!model->passing || !model->lapse_ns || model->work == WORK_NONE || model->waiters ||
            model->abandoned)
            continue;
        uint64_t until = model->asked_ns + model->lapse_ns;
        if (until <= now)
            registry_abandon(registry, model);
        else
            soonest = SL_MIN(soonest, until);
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
        struct sl_deferred_call *call = NULL;
        bool look = false;
        {
            SL_LOCKED(&registry->lock);
            while (!(keeping = take_keeping(registry)) && !registry->locked.stopping &&
                   !(call = take_deferred(registry)) && !(resident = take_dropping(registry)) &&
                   !(look = registry_next_look(registry) <= sl_now_ns())) {
                uint64_t due = queue_due(registry), free_at = free_forgotten(registry);
                registry_update_gauges(registry);
                due = SL_MIN(due, registry_next_look(registry));
                due = SL_MIN(due, end_lapsed(registry));
                wait_until(registry, SL_MIN(due, free_at));
            }
            if (!keeping && registry->locked.stopping)
                return NULL;
        }
        if (keeping)
            keep(registry, keeping);
        else if (look)
            registry_look_at_left(registry);
        else if (call)
            run_deferred(registry, call);
        else
            registry_drop(registry, resident, NULL);
    }
}

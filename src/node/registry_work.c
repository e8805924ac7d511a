/* Loads, on a bounded number of threads; the begin and the end of all threads. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "registry_parts.h"

/* ---- the queue ------------------------------------------------------------------------------ */

void registry_queue(struct sl_registry *registry, struct model *model)
{
    if (registry->locked.stopping || !model->box)
        return;
    if (model->work != WORK_NONE)
        return;
    model->work = WORK_QUEUED;
    model->queue_next = NULL;
    *registry->locked.queue_end = model;
    registry->locked.queue_end = &model->queue_next;
    pthread_cond_signal(&registry->work);
}

static struct model *take_queued(struct sl_registry *registry)
{
    struct model *model = registry->locked.queue;
    if (!model)
        return NULL;
    registry->locked.queue = model->queue_next;
    if (!registry->locked.queue)
        registry->locked.queue_end = &registry->locked.queue;
    return model;
}

/* ---- one load ------------------------------------------------------------------------------- */

struct job {
    struct sl_registry *registry;
    struct model *model;
    struct spec_box *box;
    const struct sl_holder *holder;
    struct holding *holding; /* what it works on, once the version is known */
    bool found;              /* it was ready before */
};

/* The load begins anew with another version: what it had of the first is worth nothing. */
static void leave_holding(struct job *job)
{
    struct holding *holding = job->holding;
    job->holding = NULL;
    holding->busy--;
    if (job->found || holding->busy)
        return;
    if (holding->ref_count)
        holding->state = HOLDING_GONE;
    else
        registry_mark(job->registry, holding, true);
}

static int take_holding(struct job *job, const char *version, const uint8_t identity[32],
                        uint64_t bytes, struct victims *victims, struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    struct holding *holding;
    if (job->holding && strcmp(job->holding->version, version) != 0)
        leave_holding(job);
    while ((holding = registry_holding(model, version, job->holder->space)) &&
           holding->state == HOLDING_DROPPING && !registry->locked.stopping)
        pthread_cond_wait(&registry->changed, &registry->lock);
    if (sl_cancel_check(model->cancel, err) < 0)
        return -1;
    job->found = holding && holding->state == HOLDING_READY;
    bool new = !holding;
    if (new && !(holding = registry_new_holding(model, version, err)))
        return -1;
    holding->holder = job->holder;
    memcpy(holding->identity, identity, sizeof(holding->identity));
    if (!job->found && registry_make_room(registry, holding, bytes, victims, err) < 0) {
        if (new)
            registry_remove_holding(holding);
        return -1;
    }
    if (!job->found) {
        holding->state = HOLDING_LOADING;
        holding->bytes = bytes;
    }
    holding->busy += job->holding != holding;
    job->holding = holding;
    registry_tell(registry);
    return job->found;
}

static int admit(void *arg, const uint8_t identity[32], uint64_t bytes,
                 char version[SL_VERSION_TEXT], struct sl_err *err)
{
    struct job *job = arg;
    struct victims victims = {.count = 0};
    int done;
    sl_version_text(identity, version);
    {
        SL_LOCKED(&job->registry->lock);
        done = take_holding(job, version, identity, bytes, &victims, err);
    }
    for (size_t i = 0; i < victims.count; i++)
        if (registry_drop(job->registry, victims.items[i], err) < 0)
            done = -1;
    return done;
}

static void *opened(void *arg, void *body)
{
    struct job *job = arg;
    struct waiter *waiters;
    void *before;
    {
        SL_LOCKED(&job->registry->lock);
        before = job->holding->body;
        job->holding->body = body;
        waiters = registry_take_waiters(job->model, true, job->holding, NULL);
        registry_tell(job->registry);
    }
    registry_answer(waiters);
    return before;
}

/* ---- its end -------------------------------------------------------------------------------- */

static void note_success(struct job *job, void *body)
{
    struct model *model = job->model;
    struct holding *holding = job->holding;
    if (!job->found) {
        holding->state = HOLDING_READY;
        holding->ready_seconds = sl_wall_seconds();
        job->registry->locked.counts.loads++;
    }
    if (body)
        holding->body = body;
    holding->used_ns = sl_now_ns();
    model->current = holding;
    memcpy(model->identity, holding->identity, sizeof(model->identity));
    model->has_identity = true;
    model->was_ready = true;
    model->failures = 0;
    model->err = (struct sl_err)SL_ERR_INIT;
}

static bool can_resume(const struct job *job, const struct sl_err *err)
{
    return job->holder->keeps_partial &&
           (err->kind == SL_E_NET || err->kind == SL_E_TIMEOUT || err->kind == SL_E_CANCELED) &&
           !job->model->forgotten;
}

/* What is left of the load; true: to be dropped by the caller. */
static bool note_failure(struct job *job, const struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    struct holding *holding = job->holding;
    model->err = *err;
    uint64_t ms = registry->retry_ms;
    for (unsigned i = 0; i < model->failures && ms < registry->retry_max_ms; i++)
        ms *= 2;
    model->failures++;
    ms = SL_MIN(ms, (uint64_t)registry->retry_max_ms);
    model->retry_ns = sl_now_ns() + ms * SL_NS_PER_MS;
    if (!holding || holding->busy || job->found)
        return false;
    if (can_resume(job, err)) {
        holding->state = HOLDING_PARTIAL;
        holding->used_ns = sl_now_ns();
        return false;
    }
    if (holding->ref_count) {
        holding->state = HOLDING_GONE;
        return false;
    }
    registry_mark(registry, holding, false);
    return true;
}

static void end_job(struct job *job, int done, void *body, const struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    struct waiter *waiters = NULL;
    bool drop = false, again;
    assert(done < 0 || job->holding);
    {
        SL_LOCKED(&registry->lock);
        sl_cancel_free(model->cancel);
        model->cancel = NULL;
        if (job->holding)
            job->holding->busy--;
        if (done == 0)
            note_success(job, body);
        else
            drop = note_failure(job, err);
        again = model->wanted;
        if (!model->again)
            waiters = registry_take_waiters(model, false, done == 0 ? job->holding : NULL, err);
    }
    if (done < 0 && err->kind != SL_E_CANCELED)
        sl_log(SL_LOG_WARN, "model '%s': %s%s", model->name, err->message,
               again ? "; it will be tried again" : "");
    if (drop)
        registry_drop(registry, job->holding, NULL);
    {
        SL_LOCKED(&registry->lock); /* the model stays until it is not at work any more */
        model->work = WORK_NONE;
        registry_box_free(job->box);
        if (model->again)
            registry_queue(registry, model);
        model->again = false;
        registry_tell(registry);
        pthread_cond_broadcast(&registry->changed);
        pthread_cond_signal(&registry->clean);
    }
    registry_answer(waiters);
}

/* ---- workers -------------------------------------------------------------------------------- */

static const char *tame(const char *uri)
{
    return !uri || strpbrk(uri, "?@") ? "" : uri;
}

static int begin_job(struct job *job, struct sl_err *err)
{
    struct model *model = job->model;
    model->work = WORK_RUNNING;
    job->box = model->box;
    job->box->count++;
    job->holder = model->holder;
    sl_progress_free(model->progress);
    model->progress = sl_progress_new(model->name, tame(job->box->spec.source.uri), "", err);
    if (!model->progress)
        return -1;
    model->cancel = sl_cancel_new(err);
    if (!model->cancel)
        return -1;
    if (model->retired || model->forgotten)
        return sl_fail(err, SL_E_CANCELED, "the model '%s' was taken away", model->name);
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
                                            .opened = opened};
        done = job->holder->load(job->holder->self, &asked, &body, err);
    } else {
        sl_progress_finish(job->model->progress, err);
    }
    end_job(job, done, body, err);
}

void *registry_worker(void *arg)
{
    struct sl_registry *registry = arg;
    for (;;) {
        struct job job = {.registry = registry};
        struct sl_err err = SL_ERR_INIT;
        int begun;
        {
            SL_LOCKED(&registry->lock);
            while (!registry->locked.stopping && !registry->locked.queue)
                pthread_cond_wait(&registry->work, &registry->lock);
            if (registry->locked.stopping)
                return NULL;
            job.model = take_queued(registry);
            begun = begin_job(&job, &err);
            registry_tell(registry);
        }
        run_job(&job, begun, &err);
    }
}

/* ---- the whole ------------------------------------------------------------------------------ */

static int start(struct sl_registry *registry, struct sl_err *err)
{
    if (sl_thread_start(&registry->janitor, "sluice-janitor", registry_janitor, registry, err) < 0)
        return -1;
    registry->has_janitor = true;
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
    pthread_cond_init(&registry->clean, &clock);
    pthread_cond_init(&registry->changed, NULL);
    pthread_condattr_destroy(&clock);
    registry->loads_at_once = SL_MAX(1u, SL_MIN(config->loads_at_once, (unsigned)LOADS_MAX));
    registry->retry_ms = config->retry_ms ? config->retry_ms : RETRY_MS;
    registry->retry_max_ms = config->retry_max_ms ? config->retry_max_ms : RETRY_MAX_MS;
    registry->locked.budgets[SL_SPACE_HOST] = config->budget_bytes;
    registry->locked.queue_end = &registry->locked.queue;
    registry->locked.laters_end = &registry->locked.laters;
    if (start(registry, err) < 0)
        return NULL;
    {
        SL_LOCKED(&registry->lock);
        registry_tell(registry);
    }
    return sl_steal(&registry);
}

static void begin_stop(struct sl_registry *registry)
{
    SL_LOCKED(&registry->lock);
    registry->locked.stopping = true;
    for (struct model *model = registry->locked.models; model; model = model->next) {
        model->again = false;
        if (model->cancel)
            sl_cancel_raise(model->cancel, 0);
    }
    pthread_cond_broadcast(&registry->work);
    pthread_cond_broadcast(&registry->clean);
    pthread_cond_broadcast(&registry->changed);
}

void sl_registry_stop(struct sl_registry *registry)
{
    const struct sl_err why = {.kind = SL_E_CANCELED, .message = "the node daemon ends"};
    begin_stop(registry);
    for (; registry->worker_count; registry->worker_count--)
        pthread_join(registry->workers[registry->worker_count - 1], NULL);
    if (registry->has_janitor)
        pthread_join(registry->janitor, NULL);
    registry->has_janitor = false;
    registry_run_laters(registry);
    for (;;) {
        struct waiter *waiters = NULL;
        {
            SL_LOCKED(&registry->lock);
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
static void free_holdings(struct model *model)
{
    while (model->holdings) {
        struct holding *holding = model->holdings;
        const struct sl_holder *holder = holding->holder;
        if (holding->body && holder->leave && holding->state == HOLDING_READY)
            holder->leave(holder->self, holding->body);
        else if (holding->body)
            holder->drop(holder->self, model->name, holding->version, holding->body, NULL);
        registry_remove_holding(holding);
    }
}

void sl_registry_free(struct sl_registry *registry)
{
    if (!registry)
        return;
    sl_registry_stop(registry);
    while (registry->locked.models) {
        free_holdings(registry->locked.models);
        registry_free_model(registry, registry->locked.models);
    }
    registry->locked.budgets[SL_SPACE_HOST] = 0; /* the gauges show nothing any more */
    registry_tell(registry);
    pthread_cond_destroy(&registry->work);
    pthread_cond_destroy(&registry->clean);
    pthread_cond_destroy(&registry->changed);
    pthread_mutex_destroy(&registry->lock);
    free(registry);
}

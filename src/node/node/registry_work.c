/* Loads, and the threads that they run on. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "registry_parts.h"
#include "url.h"

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
};

/* Who follows wanted what this one brings no more: it starts over. */
static void part_followers(struct job *job, struct resident *resident)
{
    const struct sl_err why = {.kind = SL_E_CANCELED};
    registry_await_followers(job->registry, resident);
    registry_end_followers(job->registry, resident, -1, &why);
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
        resident->state = RESIDENT_GONE;
    else
        registry_mark(job->registry, resident, true);
}

/* What somebody keeps may go any moment: its descriptors are on their way, or its process ends. So
 * may a model whose clients have used it and gone before we noted that its load has ended. */
static int find_room(struct job *job, struct resident *resident, uint64_t bytes,
                     struct victims *victims, struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    uint64_t until = sl_now_ns() + LEFT_GRACE_MS * SL_NS_PER_MS;
    int done;
    resident->busy++; /* nobody drops it while the lock is given up */
    while ((done = registry_make_room(registry, resident, bytes, victims, err)) < 0 &&
           sl_cancel_check(job->model->cancel, NULL) == 0)
        if (!registry_await_left(registry, until) && !registry_await_end(registry, until))
            break;
    resident->busy--;
    job->refused_bytes = done < 0 ? bytes : 0;
    return done;
}

/* Of what was dropped for it. */
static int await_room(struct job *job, struct victims *victims, struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct resident *resident = job->resident;
    SL_LOCKED(&registry->lock);
    victims->count = 0;
    while (registry->locked.dropping && !registry->locked.stopping &&
           !registry_has_room(registry, resident))
        pthread_cond_wait(&registry->changed, &registry->lock);
    if (registry_has_room(registry, resident))
        return 0;
    return find_room(job, resident, resident->bytes, victims, err);
}

/* A model of this name that was forgotten may still have the version: holders know it by name and
 * version, so what is left of it must go before the same is made anew. */
static bool was_forgotten(const struct job *job, const char *version)
{
    for (const struct model *model = job->registry->locked.models; model; model = model->next) {
        if (model == job->model || !model->forgotten || strcmp(model->name, job->model->name) != 0)
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
            resident->state == RESIDENT_DROPPING) ||
           (was_forgotten(job, version) && sl_cancel_check(job->model->cancel, NULL) == 0)) {
        if (registry->locked.stopping)
            break;
        pthread_cond_wait(&registry->changed, &registry->lock);
    }
    return resident;
}

static void describe_resident(const struct job *job, struct resident *resident,
                              const uint8_t identity[32])
{
    memcpy(resident->identity, identity, sizeof(resident->identity));
    memcpy(resident->origin, job->box->origin, sizeof(resident->origin));
    resident->has_origin = true;
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
    if (new &&registry_share(registry, resident)) {
        job->follows = resident->state == RESIDENT_LOADING;
        registry->locked.counts.joined++;
    }
    job->found = resident->state == RESIDENT_READY;
    if (!job->found && !job->follows && find_room(job, resident, bytes, victims, err) < 0) {
        if (new)
            give_up_resident(job, resident);
        return -1;
    }
    if (!job->found && !job->follows) {
        resident->state = RESIDENT_LOADING;
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
    SL_LOCKED(&job->registry->lock);
    if (!resident || job->found || job->follows || strcmp(resident->version, version) != 0 ||
        registry_is_used(resident, resident->body))
        return NULL;
    registry_close_followers(resident);
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
    struct victims victims = {.count = 0};
    struct waiter *early = NULL;
    int done;
    sl_version_text(identity, version);
    drop_failed(job, version);
    {
        SL_LOCKED(&job->registry->lock);
        done = take_resident(job, version, identity, bytes, &victims, err);
        if (done > 0 && job->resident->body) /* which another load has opened */
            early = registry_take_waiters(job->model, true, job->resident, NULL);
    }
    registry_answer(early);
    for (bool again = done == 0; again || victims.count;) {
        again = false; /* others may be dropping what it counts on */
        for (size_t i = 0; i < victims.count; i++)
            if (registry_drop(job->registry, victims.items[i], err) < 0)
                done = -1;
        victims.count = 0;
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
        SL_LOCKED(&job->registry->lock);
        used = registry_is_used(resident, before);
        resident->body = body;
        waiters = registry_take_waiters(job->model, true, resident, NULL);
        waiters = registry_chain(waiters, registry_open_followers(resident));
        registry_update_gauges(job->registry);
    }
    if (before && !used)
        registry_drop_replaced(resident->holder, before);
    registry_leave(job->registry, left);
    registry_answer(waiters);
}

/* ---- its end -------------------------------------------------------------------------------- */

static void forget_failure(struct model *model)
{
    model->err = (struct sl_err)SL_ERR_INIT;
    model->failures = 0;
}

void registry_note_current(struct resident *resident)
{
    struct model *model = resident->model;
    resident->used_ns = sl_now_ns();
    model->current = resident;
    memcpy(model->identity, resident->identity, sizeof(model->identity));
    model->has_identity = true;
    model->was_ready = true;
    forget_failure(model);
}

static void note_success(struct job *job, void *body)
{
    struct resident *resident = job->resident;
    if (!job->found) {
        resident->state = RESIDENT_READY;
        resident->ready_seconds = sl_wall_seconds();
        job->registry->locked.counts.loads++;
    }
    if (body)
        resident->body = body;
    registry_note_current(resident);
}

static bool can_resume(const struct job *job, const struct sl_err *err)
{
    return job->holder->keeps_partial && !job->unversioned &&
           (err->kind == SL_E_NET || err->kind == SL_E_TIMEOUT || err->kind == SL_E_CANCELED) &&
           !job->model->forgotten;
}

/* What is left of the load; true: to be dropped by the caller. */
static bool note_failure(struct job *job, const struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    struct resident *resident = job->resident;
    registry_note_error(registry, model, err);
    model->refused_bytes = job->refused_bytes;
    if (!resident || resident->busy || job->found)
        return false;
    if (can_resume(job, err) || (job->holder->keeps_partial && resident->ref_count)) {
        resident->state = RESIDENT_PARTIAL;
        resident->used_ns = sl_now_ns();
        return false;
    }
    if (resident->ref_count) {
        resident->state = RESIDENT_GONE;
        return false;
    }
    registry_mark(registry, resident, false);
    return true;
}

/* It is at work no more, in whatever place: what waited for a user's share may begin in another. */
static void leave_place(struct sl_registry *registry, struct model *model, enum work work)
{
    model->work = work;
    pthread_cond_signal(&registry->work);
    pthread_cond_broadcast(&registry->beside);
}

/* Whoever brings it ends this, too. */
static void follow(struct job *job)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    SL_LOCKED(&registry->lock);
    sl_log(SL_LOG_INFO, "'%s' will share what is being loaded for '%s'", model->name,
           registry_followed(model)->name);
    sl_cancel_free(model->cancel);
    model->cancel = NULL;
    leave_place(registry, model, WORK_FOLLOWS);
    registry_box_free(job->box);
    registry_update_gauges(registry);
    pthread_cond_broadcast(&registry->changed);
}

static void end_job(struct job *job, int done, void *body, const struct sl_err *err)
{
    struct sl_registry *registry = job->registry;
    struct model *model = job->model;
    struct waiter *waiters = NULL;
    uint64_t wait_ns = 0;
    bool drop = false;
    assert(done < 0 || job->resident);
    {
        SL_LOCKED(&registry->lock);
        if (job->resident && !job->follows)
            registry_await_followers(registry, job->resident);
        sl_cancel_free(model->cancel);
        model->cancel = NULL;
        if (job->resident)
            job->resident->busy--;
        if (done == 0)
            note_success(job, body);
        else
            drop = note_failure(job, err);
        if (model->abandoned) /* whoever asks next starts over */
            forget_failure(model);
        model->abandoned = false;
        if (done < 0 && model->wanted)
            wait_ns = registry_retry_ns(model);
        if (!model->load_again)
            waiters = registry_take_waiters(model, false, done == 0 ? job->resident : NULL, err);
        if (job->resident && !job->follows)
            waiters =
                registry_chain(waiters, registry_end_followers(registry, job->resident, done, err));
    }
    if (done < 0 && err->kind != SL_E_CANCELED)
        registry_log_failure(model, err, wait_ns);
    if (drop)
        registry_drop(registry, job->resident, NULL);
    {
        SL_LOCKED(&registry->lock); /* the model stays until it is not at work any more */
        leave_place(registry, model, WORK_NONE);
        registry_box_free(job->box);
        if (model->load_again || model->waiters) /* who asked since the others were taken */
            registry_queue(registry, model);
        model->load_again = false;
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
    model->work = WORK_RUNNING;
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
    if (model->retired || model->forgotten)
        return sl_fail(err, SL_E_CANCELED,
                       "the model '%s' was evicted or forgotten before its load began",
                       model->name);
    if (model->abandoned)
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

/* False: the end. */
static bool run_next(struct sl_registry *registry, pthread_cond_t *more, unsigned space,
                     struct model *(*take)(struct sl_registry *registry, unsigned space))
{
    struct job job = {.registry = registry};
    struct sl_err err = SL_ERR_INIT;
    int begun;
    {
        SL_LOCKED(&registry->lock);
        while (!registry->locked.stopping && !(job.model = take(registry, space)))
            pthread_cond_wait(more, &registry->lock);
        if (registry->locked.stopping)
            return false;
        begun = begin_job(&job, &err);
        registry_update_gauges(registry);
    }
    run_job(&job, begun, &err);
    return true;
}

void *registry_worker(void *arg)
{
    struct sl_registry *registry = arg;
    while (run_next(registry, &registry->work, SL_SPACE_HOST, registry_take_queued)) {
        SL_LOCKED(&registry->lock);
        registry->locked.taken--;
        pthread_cond_broadcast(&registry->beside);
    }
    return NULL;
}

void *registry_beside_worker(void *arg)
{
    const struct beside *own = arg;
    while (run_next(own->registry, &own->registry->beside, own->space, registry_take_beside))
        ;
    return NULL;
}

void *registry_small_worker(void *arg)
{
    struct sl_registry *registry = arg;
    for (;;) {
        struct job job = {.registry = registry};
        struct sl_err err = SL_ERR_INIT;
        int begun = 0;
        {
            SL_LOCKED(&registry->lock);
            while (!registry->locked.stopping && !(job.model = registry_take_small(registry)) &&
                   !registry_may_measure(registry))
                pthread_cond_wait(&registry->beside, &registry->lock);
            if (registry->locked.stopping)
                return NULL;
            if (job.model)
                begun = begin_job(&job, &err);
            registry_update_gauges(registry);
        }
        if (job.model)
            run_job(&job, begun, &err);
        else
            registry_measure(registry);
    }
}

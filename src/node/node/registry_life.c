/* The begin and the end of a registry and of its threads. */
#include <string.h>

#include "log.h"
#include "registry_parts.h"

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
        SL_LOCKED(&registry->lock);
        registry_update_gauges(registry);
    }
    return sl_steal(&registry);
}

static void begin_stop(struct sl_registry *registry)
{
    SL_LOCKED(&registry->lock);
    registry->locked.stopping = true;
    for (struct model *model = registry->locked.models; model; model = model->next) {
        model->load_again = false;
        if (model->cancel)
            sl_cancel_raise(model->cancel, 0);
    }
    if (registry->locked.measuring_cancel)
        sl_cancel_raise(registry->locked.measuring_cancel, 0);
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

/*
 * Deposits in front of the registry, which keeps room for one from its begin to its commit.
 *
 * Who deposits on a GPU that nobody has opened waits for its driver, which may take seconds; the
 * server's thread must not. So another thread opens the GPU and begins the deposit then. An abort
 * may come before, in between or after: it is noted for that thread, which looks when the registry
 * knows of the deposit, and given to the registry, which looks when it was noted. One of both sees
 * the other, and a second abort does nothing.
 */
#include <stdio.h>
#include <string.h>

#include "node_pool_parts.h"

static void on_room(void *arg, const struct sl_err *why)
{
    if (why)
        sl_pool_request_refuse(arg, why);
    else
        sl_pool_request_accept(arg);
}

/* What is deposited on the host is held there, wherever the model is that it was made from. NULL:
 * there is no node, only a registry. */
static const struct sl_holder *host_holder(struct sl_node_pool *pool)
{
    SL_LOCKED(&pool->lock);
    return pool->locked.node ? sl_pool_holder_ops(pool->locked.node->pool) : NULL;
}

/* What one user may deposit; 0: there is no limit but the budget. */
static uint64_t owner_bytes(struct sl_node_pool *pool, uint32_t user)
{
    SL_LOCKED(&pool->lock);
    return user == SL_PEER_PRIVILEGED ? 0 : pool->locked.deposit_bytes;
}

/* Blocks while a GPU is opened. */
static int find_holder(struct sl_node_pool *pool, const struct sl_pool_offer *offer,
                       const struct sl_holder **holder, struct sl_err *err)
{
    unsigned space;
    if (sl_node_pool_find_device(pool, offer->device, &space, err) < 0)
        return -1;
    *holder = host_holder(pool);
    if (space == SL_SPACE_HOST)
        return 0;
    *holder = sl_gpu_holders_ops(pool->gpus, space - SL_SPACE_GPU);
    return sl_gpu_holders_open(pool->gpus, space - SL_SPACE_GPU, err) ? 0 : -1;
}

/* As the handler's call. */
static int begin_on(struct sl_node_pool *pool, const struct sl_pool_offer *offer,
                    const struct sl_holder *holder, struct sl_err *err)
{
    struct sl_derived_offer derived = {.name = offer->model,
                                       .key = offer->key,
                                       .holder = "pool",
                                       .on = holder,
                                       .bytes = offer->bytes,
                                       .id = offer->id,
                                       .answer = on_room,
                                       .arg = offer->request};
    memcpy(derived.identity, offer->identity, sizeof(derived.identity));
    struct sl_node_pool_view view;
    sl_node_pool_find_view(pool, offer->peer.user, &view);
    derived.view = view.view;
    derived.owner_bytes_max = owner_bytes(pool, offer->peer.user);
    char who[SL_REF_WHO_BYTES];
    snprintf(who, sizeof(who), "pid %d uid %u %.40s", offer->peer.pid, offer->peer.uid,
             offer->peer.name);
    derived.who = who;
    return sl_registry_deposit_begin(pool->registry, &derived, err);
}

/* ---- on a GPU that is not open ----------------------------------------------------------------
 */

struct sl_deposit_opening {
    struct sl_deferred_call call; /* first */
    struct sl_node_pool *pool;
    struct sl_pool_offer offer; /* its texts are the request's */
    /* Guarded by the pool: */
    struct sl_deposit_opening *next;
    bool aborted;
};

static struct sl_deposit_opening **find_opening(struct sl_node_pool *pool, uint64_t id)
{
    struct sl_deposit_opening **at = &pool->locked.openings;
    while (*at && (*at)->offer.id != id)
        at = &(*at)->next;
    return at;
}

static void note_abort(struct sl_node_pool *pool, uint64_t id)
{
    SL_LOCKED(&pool->lock);
    struct sl_deposit_opening *opening = *find_opening(pool, id);
    if (opening)
        opening->aborted = true;
}

static bool is_aborted(const struct sl_deposit_opening *opening)
{
    SL_LOCKED(&opening->pool->lock);
    return opening->aborted;
}

/* From now on an abort is the registry's alone. True: there was one before. */
static bool end_opening(const struct sl_deposit_opening *opening)
{
    SL_LOCKED(&opening->pool->lock);
    *find_opening(opening->pool, opening->offer.id) = opening->next;
    return opening->aborted;
}

/* As the handler's call; nothing goes for a client that has left. */
static int open_and_begin(const struct sl_deposit_opening *opening, struct sl_err *err)
{
    const struct sl_holder *holder;
    if (find_holder(opening->pool, &opening->offer, &holder, err) < 0)
        return -1;
    if (is_aborted(opening))
        return sl_fail(err, SL_E_CANCELED, "the deposit was aborted");
    return begin_on(opening->pool, &opening->offer, holder, err);
}

/* Where the registry is to answer it may have done so: the request is not touched then. */
static void run_opening(struct sl_deferred_call *call)
{
    sl_autofree struct sl_deposit_opening *opening = (struct sl_deposit_opening *)call;
    struct sl_err err = SL_ERR_INIT;
    int begun = open_and_begin(opening, &err);
    if (end_opening(opening))
        sl_registry_deposit_abort(opening->pool->registry, opening->offer.id);
    if (begun <= 0)
        on_room(opening->offer.request, begun < 0 ? &err : NULL);
}

/* The GPU's, or that which finds out which GPU is meant. */
static struct sl_deferred_thread *driver_for(const struct sl_node_pool *pool, const char *device)
{
    unsigned ordinal;
    return pool->drivers[sl_gpu_ordinal(device, &ordinal) ? ordinal : SL_GPUS_MAX];
}

static int begin_later(struct sl_node_pool *pool, const struct sl_pool_offer *offer,
                       struct sl_err *err)
{
    const struct sl_pool_attach_args *texts = sl_pool_request_args(offer->request);
    struct sl_deposit_opening *opening = sl_alloc(sizeof(*opening), err);
    if (!opening)
        return -1;
    *opening = (struct sl_deposit_opening){.call.run = run_opening, .pool = pool, .offer = *offer};
    opening->offer.model = texts->model;
    opening->offer.key = texts->key;
    opening->offer.device = texts->device;
    {
        SL_LOCKED(&pool->lock);
        opening->next = pool->locked.openings;
        pool->locked.openings = opening;
    }
    sl_deferred_thread_add(driver_for(pool, offer->device), &opening->call);
    return 1;
}

/* ---- the handler's calls ----------------------------------------------------------------------
 */

int sl_node_deposit_begin(void *arg, const struct sl_pool_offer *offer, struct sl_err *err)
{
    struct sl_node_pool *pool = arg;
    const struct sl_holder *holder;
    if (!*offer->key)
        return sl_fail(err, SL_E_USAGE, "a deposit needs a key that says how it was made");
    if (pool->gpus && !sl_gpu_holders_has_open(pool->gpus, offer->device))
        return begin_later(pool, offer, err);
    return find_holder(pool, offer, &holder, err) < 0 ? -1 : begin_on(pool, offer, holder, err);
}

struct sl_gpu *sl_node_deposit_gpu(void *arg, const struct sl_pool_offer *offer)
{
    const struct sl_node_pool *pool = arg;
    unsigned space;
    if (sl_node_pool_find_device(pool, offer->device, &space, NULL) < 0 || space == SL_SPACE_HOST)
        return NULL;
    return sl_gpu_holders_open(pool->gpus, space - SL_SPACE_GPU, NULL);
}

int sl_node_deposit_commit(void *arg, const struct sl_pool_offer *offer,
                           struct sl_pool_model *model, struct sl_err *err)
{
    const struct sl_node_pool *pool = arg;
    return sl_registry_deposit_commit(pool->registry, offer->id, model, sl_pool_model_bytes(model),
                                      err);
}

void sl_node_deposit_abort(void *arg, const struct sl_pool_offer *offer)
{
    struct sl_node_pool *pool = arg;
    note_abort(pool, offer->id);
    sl_registry_deposit_abort(pool->registry, offer->id);
}

struct counting {
    uint32_t user, uid;
    size_t fds;
};

static int count_fds(void *arg, const struct sl_registry_entry *entry)
{
    struct counting *counting = arg;
    if (*entry->key && entry->body && entry->owner == counting->user &&
        sl_pool_model_giver(entry->body) == counting->uid)
        counting->fds += sl_pool_copy_fds(sl_pool_model_copy(entry->body, 0), 0, NULL, 0);
    return 0;
}

size_t sl_node_deposited_fds(void *arg, uint32_t user, uint32_t uid)
{
    const struct sl_node_pool *pool = arg;
    struct counting counting = {.user = user, .uid = uid};
    sl_registry_each(pool->registry, "pool", count_fds, &counting);
    return counting.fds;
}

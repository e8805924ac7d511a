/*
 * Deposits in front of the registry, which keeps room for one from its begin to its commit.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
static uint64_t owner_bytes(struct sl_node_pool *pool, uint32_t uid)
{
    SL_LOCKED(&pool->lock);
    return uid == 0 || uid == geteuid() ? 0 : pool->locked.deposit_bytes;
}

int sl_node_deposit_begin(void *arg, const struct sl_pool_offer *offer, struct sl_err *err)
{
    struct sl_node_pool *pool = arg;
    struct sl_derived_offer derived = {.name = offer->model,
                                       .key = offer->key,
                                       .holder = "pool",
                                       .bytes = offer->bytes,
                                       .id = offer->id,
                                       .answer = on_room,
                                       .arg = offer->request};
    memcpy(derived.identity, offer->identity, sizeof(derived.identity));
    struct sl_node_pool_view view;
    sl_node_pool_find_view(pool, offer->peer.uid, &view);
    derived.view = view.view;
    derived.owner_bytes_max = owner_bytes(pool, offer->peer.uid);
    char who[SL_REF_WHO_BYTES];
    snprintf(who, sizeof(who), "pid %d uid %u %.40s", offer->peer.pid, offer->peer.uid,
             offer->peer.name);
    derived.who = who;
    unsigned space;
    if (sl_node_pool_find_device(pool, offer->device, &space, err) < 0)
        return -1;
    derived.on = host_holder(pool);
    if (space != SL_SPACE_HOST) {
        derived.on = sl_gpu_holders_ops(pool->gpus, space - SL_SPACE_GPU);
        if (!sl_gpu_holders_open(pool->gpus, space - SL_SPACE_GPU, err))
            return -1;
    }
    if (!*offer->key)
        return sl_fail(err, SL_E_USAGE, "a deposit needs a key that says how it was made");
    return sl_registry_deposit_begin(pool->registry, &derived, err);
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
    const struct sl_node_pool *pool = arg;
    sl_registry_deposit_abort(pool->registry, offer->id);
}

struct counting {
    uint32_t uid;
    size_t fds;
};

static int count_fds(void *arg, const struct sl_registry_entry *entry)
{
    struct counting *counting = arg;
    if (*entry->key && entry->body && entry->owner == counting->uid)
        counting->fds += sl_pool_copy_fds(sl_pool_model_copy(entry->body, 0), 0, NULL, 0);
    return 0;
}

size_t sl_node_deposited_fds(void *arg, uint32_t uid)
{
    const struct sl_node_pool *pool = arg;
    struct counting counting = {.uid = uid};
    sl_registry_each(pool->registry, "pool", count_fds, &counting);
    return counting.fds;
}

/* Inside the pool's side of a node: what those who answer its clients share. */
#ifndef SL_NODE_POOL_PARTS_H
#define SL_NODE_POOL_PARTS_H

#include "deferred_thread.h"
#include "node_pool.h"
#include "node_pool_rights.h"
#include "node_socket.h"
#include "peer.h"

enum { SL_NODE_POOL_ATTACHES = 1024 }; /* slots of a table of them */

struct sl_node_pool {
    struct sl_registry *registry;
    struct sl_gpu_holders *gpus; /* NULL: none */
    struct sl_pool_server *server;
    /* For what asks drivers of GPUs, which may hang: one for each GPU, the last looks for GPUs. */
    struct sl_deferred_thread *drivers[SL_GPUS_MAX + 1];
    struct sl_node_pool_door door; /* guarded by whoever reloads, one at a time */
    struct sl_node_socket socket;  /* at a path, to be taken away at the end */
    pthread_mutex_t lock;
    struct {
        struct attach
            *attaches[SL_NODE_POOL_ATTACHES]; /* not answered yet, by the address of the request */
        struct sl_deposit_opening *openings;  /* deposits that wait for their GPU */
        struct sl_node *node;                 /* that knows of URIs; NULL: none are taken */
        uint32_t trusted[1 + SL_POOL_RIGHTS_MAX]; /* whose deposits everybody finds */
        size_t trusted_count;
        uint64_t deposit_bytes; /* of one user */
    } locked;
};

/* Whose deposits a user finds. */
struct sl_node_pool_view {
    struct sl_derived_view view; /* borrows from the rest */
    uint32_t trusted[1 + SL_POOL_RIGHTS_MAX];
};
void sl_node_pool_find_view(struct sl_node_pool *pool, uint32_t user,
                            struct sl_node_pool_view *view);
/** What a client calls a place; errors as sl_gpu_holders_find(). */
int sl_node_pool_find_device(const struct sl_node_pool *pool, const char *device, unsigned *space,
                             struct sl_err *err);

/* ---- node_pool_deposit.c: the handler's calls that have to do with deposits ------------------ */

int sl_node_deposit_begin(void *arg, const struct sl_pool_offer *offer, struct sl_err *err);
struct sl_gpu *sl_node_deposit_gpu(void *arg, const struct sl_pool_offer *offer);
int sl_node_deposit_commit(void *arg, const struct sl_pool_offer *offer,
                           struct sl_pool_model *model, struct sl_err *err);
void sl_node_deposit_abort(void *arg, const struct sl_pool_offer *offer);
size_t sl_node_deposited_fds(void *arg, uint32_t user, uint32_t uid);

#endif

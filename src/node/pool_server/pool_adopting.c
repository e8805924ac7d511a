/*
 * What is deposited in memory of a GPU is looked at by its driver, which may take as long as a
 * context takes to make: so another thread does that, and the connection waits for it as for any
 * answer, while others are served.
 *
 * It is its thread's until the answer is in the mailbox, the server's from then on. Who finds that
 * nobody waits any more frees it.
 */
#include <string.h>

#include "pool_server_parts.h"

struct sl_pool_adopting {
    struct sl_deferred_call call; /* first */
    struct sl_pool_request *request;
    struct sl_gpu *gpu;
    uint64_t bytes; /* that were announced */
    struct sl_pool_model *model;
    int index_fd; /* these are the model's once there is one */
    size_t fd_count;
    int fds[SL_WIRE_SLABS_MAX];
};

void sl_pool_adopting_free(struct sl_pool_adopting *adopting)
{
    if (!adopting)
        return;
    sl_pool_model_free(adopting->model);
    free(adopting);
}

struct sl_pool_model *sl_pool_adopting_take(struct sl_pool_adopting *adopting)
{
    return sl_steal(&adopting->model);
}

static void run_adopting(struct sl_deferred_call *call)
{
    struct sl_pool_adopting *adopting = (struct sl_pool_adopting *)call;
    struct sl_err err = SL_ERR_INIT;
    const char *name = sl_pool_request_args(adopting->request)->model;
    adopting->model =
        sl_pool_model_adopt_offer(adopting->gpu, name, adopting->bytes, adopting->index_fd,
                                  adopting->fds, adopting->fd_count, &err);
    if (!sl_pool_request_adopted(adopting->request, adopting->model ? NULL : &err))
        sl_pool_adopting_free(adopting);
}

int sl_pool_adopt_later(struct sl_pool_connection *connection, struct sl_gpu *gpu, int index_fd,
                        struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    struct sl_pool_deposit *deposit = connection->deposit;
    sl_autofree struct sl_pool_adopting *adopting = sl_alloc(sizeof(*adopting), err);
    if (!adopting || !(adopting->request = sl_pool_request_new(server->mailbox, &deposit->begun,
                                                               &connection->peer, err)))
        return -1;
    adopting->call.run = run_adopting;
    adopting->gpu = gpu;
    adopting->bytes = deposit->offer.bytes;
    adopting->index_fd = index_fd;
    adopting->fd_count = deposit->fd_count;
    memcpy(adopting->fds, deposit->fds, deposit->fd_count * sizeof(*deposit->fds));
    deposit->fd_count = 0;
    deposit->waiting = true;
    connection->request = adopting->request;
    connection->request->connection = connection;
    connection->request->adopting = adopting;
    server->handler.ask_driver(server->arg, gpu, &sl_steal(&adopting)->call);
    return 0;
}

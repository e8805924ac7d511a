/*
 * Deposits. A client announces what it has, hands over its slabs, which it has sealed, and commits
 * them with an index. Nothing of it is believed before it was checked, and nothing is visible
 * before the commit; if the client goes before, it is as if it had never begun.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "pool_server_parts.h"

enum {
    INDEX_BYTES_MAX = 16 * 1024 * 1024, /* of a stranger's: it is read while others wait */
    SLACK_BYTES = 2 * 1024 * 1024,      /* beyond a file's end: its last page may be a huge one */
};

static void fill_offer(struct sl_pool_connection *connection, struct sl_pool_deposit *deposit)
{
    const struct sl_pool_packet *begun = &deposit->begun;
    deposit->offer = (struct sl_pool_offer){.peer = connection->peer,
                                            .model = begun->model,
                                            .key = begun->key,
                                            .device = begun->device[0] ? begun->device : "host",
                                            .bytes = begun->bytes,
                                            .id = ++connection->server->next_id};
    memcpy(deposit->offer.identity, begun->identity, sizeof(begun->identity));
}

int sl_pool_serve_deposit(struct sl_pool_connection *connection,
                          const struct sl_pool_packet *packet, struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    if (!server->handler.deposit_begin || !server->handler.deposit_commit)
        return sl_fail(err, SL_E_USAGE, "this pool takes no deposits");
    if (connection->deposit)
        return sl_fail(err, SL_E_USAGE,
                       "a deposit is open on this connection: commit or abort it first");
    sl_autofree struct sl_pool_deposit *deposit = sl_alloc(sizeof(*deposit), err);
    if (!deposit)
        return -1;
    deposit->begun = *packet;
    fill_offer(connection, deposit);
    struct sl_pool_request *request =
        sl_pool_request_new(server->mailbox, packet, &connection->peer, err);
    if (!request)
        return -1;
    request->connection = connection;
    deposit->offer.request = request;
    int begun = server->handler.deposit_begin(server->arg, &deposit->offer, err);
    if (begun <= 0)
        sl_pool_request_end(request);
    if (begun < 0)
        return -1;
    uint64_t id = deposit->offer.id;
    deposit->waiting = begun;
    connection->deposit = sl_steal(&deposit);
    {
        SL_LOCKED(&server->lock);
        server->locked.counts.deposits++;
    }
    if (begun)
        connection->request = request; /* it may be answered already, by the mailbox */
    else
        sl_pool_send_id(connection, SL_WIRE_ANSWER | SL_WIRE_DEPOSIT, id);
    return 0;
}

static int find(const struct sl_pool_connection *connection, uint64_t id, struct sl_err *err)
{
    if (connection->deposit && connection->deposit->offer.id == id)
        return 0;
    return sl_fail(err, SL_E_NOT_FOUND, "this connection has no deposit %llu",
                   (unsigned long long)id);
}

int sl_pool_serve_deposit_slabs(struct sl_pool_connection *connection,
                                const struct sl_pool_packet *packet, int *fds, struct sl_err *err)
{
    if (find(connection, packet->id, err) < 0)
        return -1;
    struct sl_pool_deposit *deposit = connection->deposit;
    if (packet->first != deposit->fd_count || packet->count > SL_WIRE_SLABS_MAX - deposit->fd_count)
        return sl_fail(err, SL_E_USAGE, "slab %u comes after %zu others, of at most %d",
                       packet->first, deposit->fd_count, SL_WIRE_SLABS_MAX);
    if (sl_pool_share_take(connection, packet->count, err) < 0)
        return -1;
    deposit->charged += packet->count;
    for (uint32_t i = 0; i < packet->count; i++) {
        deposit->fds[deposit->fd_count++] = fds[i];
        fds[i] = -1;
    }
    sl_pool_send_id(connection, SL_WIRE_ANSWER | SL_WIRE_DEPOSIT_SLABS, packet->id);
    return 0;
}

static int refuse_bytes(const struct sl_pool_offer *offer, struct sl_err *err)
{
    return sl_fail(err, SL_E_NO_SPACE,
                   "the deposit has more bytes than the %llu that were announced: announce the sum "
                   "of its slabs",
                   (unsigned long long)offer->bytes);
}

/* What the files say themselves, before anything is made of them. What lies beyond a file's end
 * would be memory that nobody counts. Memory of a GPU says nothing here, and other files are
 * refused later. */
static int check_files(const struct sl_pool_deposit *deposit, struct sl_err *err)
{
    const struct sl_pool_offer *offer = &deposit->offer;
    uint64_t sum = 0;
    for (size_t i = 0; i < deposit->fd_count; i++) {
        struct stat status;
        if (fcntl(deposit->fds[i], F_GET_SEALS) < 0)
            continue;
        if (fstat(deposit->fds[i], &status) < 0 || status.st_size < 1)
            return sl_fail(err, SL_E_INTEGRITY, "slab %zu of the deposit has no bytes", i);
        uint64_t bytes = (uint64_t)status.st_size;
        if (__builtin_add_overflow(sum, bytes, &sum) || sum > offer->bytes)
            return refuse_bytes(offer, err);
        if ((uint64_t)status.st_blocks > (bytes + SLACK_BYTES) / 512)
            return sl_fail(err, SL_E_INTEGRITY,
                           "slab %zu of the deposit has memory beyond its end: give it back before "
                           "it is sealed",
                           i);
    }
    return 0;
}

/* The index is looked at while others wait, so it is as large as it was said to be, or nothing. And
 * it is memory: who answers for another file, as with FUSE, could let us wait for its size. */
static int check_index(int fd, uint64_t announced, struct sl_err *err)
{
    struct stat status;
    if (announced > INDEX_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "a deposit's index has at most %d bytes", INDEX_BYTES_MAX);
    if (fcntl(fd, F_GET_SEALS) < 0)
        return sl_fail(err, SL_E_INTEGRITY, "the index is not a memfd that can be sealed");
    if (fstat(fd, &status) < 0 || status.st_size < 0 || (uint64_t)status.st_size != announced)
        return sl_fail(err, SL_E_FORMAT, "the index has %lld bytes, and %llu were announced",
                       (long long)status.st_size, (unsigned long long)announced);
    return 0;
}

/* Is this what was announced? */
static int check_promise(const struct sl_pool_offer *offer, const struct sl_pool_model *model,
                         struct sl_err *err)
{
    if (strcmp(sl_pool_model_key(model), offer->key) != 0)
        return sl_fail(err, SL_E_INTEGRITY, "the deposit's index has another key than announced");
    if (memcmp(sl_pool_model_identity(model), offer->identity, sizeof(offer->identity)) != 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "the deposit's index is of another source than announced");
    return 0;
}

/* One that cannot be kept may go here: better than to refuse the deposit. */
static void keep_all(struct sl_pool_deposit *deposit, int index_fd)
{
    for (size_t i = 0; i <= deposit->fd_count; i++) {
        int fd = fcntl(i ? deposit->fds[i - 1] : index_fd, F_DUPFD_CLOEXEC, 0);
        if (fd >= 0)
            deposit->kept[deposit->kept_count++] = fd;
    }
}

/* The model that was made of it, NULL with err: there is none. It is taken. */
static int publish(struct sl_pool_connection *connection, struct sl_pool_model *made,
                   struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    SL_AUTO(sl_pool_model) model = made;
    const struct sl_pool_offer *offer = &connection->deposit->offer;
    uint64_t id = offer->id;
    if (!model || check_promise(offer, model, err) < 0) {
        sl_pool_deposit_drop(connection, true);
        return -1;
    }
    sl_pool_model_set_owner(model, offer->peer.user, offer->peer.uid);
    int done = server->handler.deposit_commit(server->arg, offer, model, err);
    sl_pool_deposit_drop(connection, false);
    if (done < 0)
        return -1;
    model = NULL; /* the owner's */
    {
        SL_LOCKED(&server->lock);
        server->locked.counts.commits++;
    }
    sl_pool_send_id(connection, SL_WIRE_ANSWER | SL_WIRE_COMMIT, id);
    return 0;
}

void sl_pool_deposit_answer(struct sl_pool_connection *connection,
                            const struct sl_pool_request *request)
{
    struct sl_err err = request->err;
    connection->deposit->waiting = false;
    if (request->adopting) {
        struct sl_pool_model *made = sl_pool_adopting_take(request->adopting);
        sl_pool_adopting_free(request->adopting);
        if (publish(connection, made, &err) < 0)
            sl_pool_send_error(connection, &err);
        return;
    }
    if (!err.kind) {
        sl_pool_send_id(connection, SL_WIRE_ANSWER | SL_WIRE_DEPOSIT,
                        connection->deposit->offer.id);
        return;
    }
    sl_pool_deposit_drop(connection, false);
    sl_pool_send_error(connection, &err);
}

/* A GPU's driver is asked by another thread, if there is one. */
static int adopt(struct sl_pool_connection *connection, int *index_fd, struct sl_err *err)
{
    struct sl_pool_server *server = connection->server;
    struct sl_pool_deposit *deposit = connection->deposit;
    struct sl_gpu *gpu = NULL;
    if (server->handler.deposit_gpu)
        gpu = server->handler.deposit_gpu(server->arg, &deposit->offer);
    int index = *index_fd;
    keep_all(deposit, index);
    if (gpu && server->handler.ask_driver) {
        if (sl_pool_adopt_later(connection, gpu, index, err) < 0) {
            sl_pool_deposit_drop(connection, true);
            return -1;
        }
        *index_fd = -1;
        return 0;
    }
    size_t count = deposit->fd_count;
    *index_fd = -1;
    deposit->fd_count = 0; /* the model's from here on */
    struct sl_pool_model *made = sl_pool_model_adopt_offer(
        gpu, deposit->offer.model, deposit->offer.bytes, index, deposit->fds, count, err);
    return publish(connection, made, err);
}

int sl_pool_serve_commit(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                         int *fds, struct sl_err *err)
{
    if (find(connection, packet->id, err) < 0)
        return -1;
    if (check_index(fds[0], packet->bytes, err) < 0 || check_files(connection->deposit, err) < 0) {
        sl_pool_deposit_drop(connection, true);
        return -1;
    }
    return adopt(connection, &fds[0], err);
}

int sl_pool_serve_abort(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                        struct sl_err *err)
{
    if (find(connection, packet->id, err) < 0)
        return -1;
    sl_pool_deposit_drop(connection, true);
    sl_pool_send_id(connection, SL_WIRE_ANSWER | SL_WIRE_ABORT, packet->id);
    return 0;
}

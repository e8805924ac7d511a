/*
 * One client. It is read from only while nothing of it is pending: neither an answer that it has
 * not taken nor a request that its owner is still at work on. So a client can make the server hold
 * one packet and one request, and whatever it sends meanwhile waits in its own socket.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pool_server_parts.h"

void sl_pool_connection_enter(struct sl_pool_connection *connection, enum sl_pool_stage to)
{
#ifndef NDEBUG
    static const unsigned steps[] = {
        [SL_POOL_GREETING] = 1u << SL_POOL_SERVED | 1u << SL_POOL_CLOSING | 1u << SL_POOL_DEAD,
        [SL_POOL_SERVED] = 1u << SL_POOL_CLOSING | 1u << SL_POOL_LEFT | 1u << SL_POOL_DEAD,
        [SL_POOL_CLOSING] = 1u << SL_POOL_DEAD,
        [SL_POOL_LEFT] = 1u << SL_POOL_DEAD,
        [SL_POOL_DEAD] = 0,
    };
    assert(steps[connection->stage] & 1u << to);
#endif
    connection->stage = to;
}

bool sl_pool_is_dead(const struct sl_pool_connection *connection)
{
    return connection->stage == SL_POOL_DEAD;
}

void sl_pool_watch(struct sl_pool_connection *connection)
{
    uint32_t events = EPOLLRDHUP;
    if (connection->stage == SL_POOL_LEFT)
        return;
    if (connection->out.data)
        events |= connection->retry ? 0 : EPOLLOUT;
    else if (!connection->request && !connection->held)
        events |= EPOLLIN;
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(connection->server->epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) < 0)
        sl_pool_connection_close(connection);
}

/* ---- its end --------------------------------------------------------------------------------- */

/* What came with a grant. */
static void give_back(const struct sl_pool_server *server, void *cookie)
{
    if (server->handler.released)
        server->handler.released(server->arg, cookie);
}

void sl_pool_end_lease(struct sl_pool_connection *connection, size_t number)
{
    struct sl_pool_server *server = connection->server;
    void *cookie = connection->leases[number].cookie;
    {
        SL_LOCKED(&server->lock);
        connection->leases[number] = connection->leases[--connection->lease_count];
        server->locked.counts.leases--;
    }
    give_back(server, cookie);
}

static void drop_request(struct sl_pool_connection *connection)
{
    struct sl_pool_server *server = connection->server;
    struct sl_pool_request *request = sl_steal(&connection->request);
    if (!request)
        return;
    bool adopts = request->adopting != NULL; /* which the owner knows nothing of */
    if (!sl_pool_request_leave(request)) {
        if (server->handler.withdrawn && !adopts)
            server->handler.withdrawn(server->arg, request);
        return;
    }
    sl_pool_adopting_free(request->adopting);
    if (request->copy)
        give_back(server, request->cookie);
    sl_pool_request_end(request);
}

static void end_deposit(struct sl_deferred_call *call)
{
    struct sl_pool_deposit *deposit = (struct sl_pool_deposit *)call;
    for (size_t i = 0; i < deposit->fd_count; i++)
        close(deposit->fds[i]);
    for (size_t i = 0; i < deposit->kept_count; i++)
        close(deposit->kept[i]);
    if (deposit->mailbox)
        sl_pool_mailbox_closed(deposit->mailbox, deposit->fd_count + deposit->kept_count);
    free(deposit);
}

void sl_pool_deposit_drop(struct sl_pool_connection *connection, bool notify)
{
    struct sl_pool_server *server = connection->server;
    struct sl_pool_deposit *deposit = sl_steal(&connection->deposit);
    if (!deposit)
        return;
    if (notify && server->handler.deposit_abort)
        server->handler.deposit_abort(server->arg, &deposit->offer);
    sl_pool_share_give_back(connection, deposit->charged);
    deposit->call.run = end_deposit;
    size_t fds = deposit->fd_count + deposit->kept_count;
    deposit->mailbox = fds ? sl_pool_later(server, fds) : NULL;
    sl_pool_defer(server, &deposit->call, deposit->mailbox != NULL);
    SL_LOCKED(&server->lock);
    server->locked.counts.deposits--;
}

/* Whatever it has. */
void sl_pool_drop_all(struct sl_pool_connection *connection)
{
    free(sl_steal(&connection->out.data));
    connection->sending = NULL;
    drop_request(connection);
    sl_pool_deposit_drop(connection, true);
    while (connection->lease_count)
        sl_pool_end_lease(connection, connection->lease_count - 1);
}

void sl_pool_connection_close(struct sl_pool_connection *connection)
{
    struct sl_pool_server *server = connection->server;
    if (sl_pool_is_dead(connection))
        return;
    sl_pool_connection_enter(connection, SL_POOL_DEAD);
    /* A process that was forked meanwhile may hold the descriptor, too: closing it here would not
     * end its events. */
    epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    sl_pool_close_socket(server, connection->fd);
    sl_pool_drop_all(connection);
    SL_LOCKED(&server->lock);
    *(connection->previous ? &connection->previous->next : &server->locked.first) =
        connection->next;
    if (connection->next)
        connection->next->previous = connection->previous;
    connection->next = server->dead;
    server->dead = connection;
    server->locked.counts.clients--;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* 1: sent. 0: later. -1: the client is lost. */
static int try_send(struct sl_pool_connection *connection)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SL_WIRE_FDS_MAX)];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {connection->out.data, connection->out.bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    size_t fd_bytes = connection->out.fd_count * sizeof(int);
    connection->retry = fd_bytes && !sl_pool_share_may_send(connection, connection->out.fd_count);
    if (connection->retry)
        return 0;
    if (fd_bytes) {
        memset(&control, 0, sizeof(control));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_bytes);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(header), connection->out.fds, fd_bytes);
    }
    if (sendmsg(connection->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
        return 1;
    /* ETOOMANYREFS: descriptors that clients have not received yet are too many; they will. */
    connection->retry = errno == ETOOMANYREFS;
    return errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ETOOMANYREFS ? 0 : -1;
}

/* The slabs that did not fit the packets before. */
static void send_more(struct sl_pool_connection *connection)
{
    const struct sl_pool_copy *copy = connection->sending;
    size_t first = connection->next_slab, slab_count = sl_pool_copy_slab_count(copy);
    size_t count = SL_MIN(slab_count - first, (size_t)SL_WIRE_FDS_MAX);
    struct sl_wire_slabs slabs = {
        .id = connection->sending_lease, .first = (uint32_t)first, .count = (uint32_t)count};
    int fds[SL_WIRE_FDS_MAX];
    sl_pool_copy_fds(copy, 2 + first, fds, count);
    connection->next_slab += count;
    if (connection->next_slab == slab_count)
        connection->sending = NULL;
    sl_pool_send(connection, SL_WIRE_ANSWER | SL_WIRE_SLABS, &slabs, sizeof(slabs), fds, count);
}

void sl_pool_flush(struct sl_pool_connection *connection)
{
    int sent = try_send(connection);
    if (sent < 0) {
        sl_pool_connection_close(connection);
        return;
    }
    if (!connection->deadline_ns)
        connection->deadline_ns = sl_now_ns() + connection->server->take_ns;
    if (!sent)
        return;
    free(sl_steal(&connection->out.data));
    connection->untaken = true;
    connection->sent_fds += connection->out.fd_count;
    connection->user->sent_fds += connection->out.fd_count;
    if (connection->stage == SL_POOL_CLOSING)
        sl_pool_connection_close(connection);
    else if (connection->sending)
        send_more(connection);
}

void sl_pool_send(struct sl_pool_connection *connection, uint16_t type, void *packet, size_t bytes,
                  const int *fds, size_t fd_count)
{
    struct sl_wire_head *head = packet;
    if (sl_pool_is_dead(connection))
        return;
    head->bytes = (uint32_t)bytes;
    head->type = type;
    head->serial = connection->serial;
    connection->out.data = sl_alloc(bytes, NULL);
    if (!connection->out.data) {
        sl_pool_connection_close(connection);
        return;
    }
    memcpy(connection->out.data, packet, bytes);
    connection->out.bytes = bytes;
    connection->out.fd_count = fd_count;
    if (fd_count)
        memcpy(connection->out.fds, fds, fd_count * sizeof(*fds));
    sl_pool_flush(connection);
}

void sl_pool_send_error(struct sl_pool_connection *connection, const struct sl_err *err)
{
    struct {
        struct sl_wire_error error;
        char text[SL_WIRE_TEXT_BYTES];
    } packet = {0};
    size_t bytes = strlen(err->message);
    packet.error.kind = (uint32_t)sl_err_exit(err);
    packet.error.text_bytes = (uint32_t)bytes;
    memcpy(packet.error.code, err->code, strnlen(err->code, sizeof(packet.error.code) - 1));
    memcpy(packet.text, err->message, bytes);
    {
        SL_LOCKED(&connection->server->lock);
        connection->server->locked.counts.refusals++;
    }
    sl_pool_send(connection, SL_WIRE_ERROR, &packet, sizeof(packet.error) + bytes, NULL, 0);
}

void sl_pool_send_id(struct sl_pool_connection *connection, uint16_t type, uint64_t id)
{
    struct sl_wire_id packet = {.id = id};
    sl_pool_send(connection, type, &packet, sizeof(packet), NULL, 0);
}

/* ---- leases ---------------------------------------------------------------------------------- */

int sl_pool_serve_detach(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                         struct sl_err *err)
{
    for (size_t i = 0; i < connection->lease_count; i++) {
        if (connection->leases[i].id != packet->id)
            continue;
        sl_pool_end_lease(connection, i);
        sl_pool_send_id(connection, SL_WIRE_ANSWER | SL_WIRE_DETACH, packet->id);
        return 0;
    }
    return sl_fail(err, SL_E_NOT_FOUND, "this connection has no lease %llu",
                   (unsigned long long)packet->id);
}

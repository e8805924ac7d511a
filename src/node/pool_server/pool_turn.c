/*
 * What happens to a connection: it begins, packets come, its owner answers, time passes. What it
 * has, and how it is sent something, is pool_connection.c's.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "metrics.h"
#include "pool_server_parts.h"

enum { HELLO_SECONDS = 10 };

/* Has the client taken every answer? What is in its socket is counted here until it is read. */
static bool has_taken(struct sl_pool_connection *connection)
{
    int bytes = 0;
    if (!connection->untaken)
        return true;
    if (ioctl(connection->fd, SIOCOUTQ, &bytes) == 0 && bytes > 0)
        return false;
    connection->untaken = connection->held = false;
    connection->idle_ns = sl_now_ns();
    sl_pool_share_arrived(connection);
    if (!connection->out.data)
        connection->deadline_ns = 0;
    return true;
}

/* It does not take its answer. What is its goes; but descriptors in an answer stay on their way,
 * and count for its user, until it reads them or ends, so its place stays, too. */
static void leave(struct sl_pool_connection *connection)
{
    if (!connection->sent_fds) {
        sl_pool_connection_close(connection);
        return;
    }
    sl_pool_connection_enter(connection, SL_POOL_LEFT);
    connection->deadline_ns = 0;
    epoll_ctl(connection->server->epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
    shutdown(connection->fd, SHUT_RDWR);
    sl_pool_drop_all(connection);
}

/* Index, page and the first slabs; the rest follows. */
static void send_copy(struct sl_pool_connection *connection, struct sl_pool_copy *copy,
                      uint64_t lease)
{
    struct sl_pool_view view;
    int fds[SL_WIRE_FDS_MAX];
    size_t slab_count = sl_pool_copy_slab_count(copy);
    size_t here = SL_MIN(slab_count, (size_t)SL_WIRE_FDS_MAX - 2);
    sl_pool_copy_view(copy, &view);
    struct sl_wire_attached attached = {.lease = lease,
                                        .index_bytes = sl_pool_copy_index_bytes(copy),
                                        .page_bytes = sl_pool_copy_page_bytes(copy),
                                        .tensor_count = (uint32_t)sl_pool_copy_tensor_count(copy),
                                        .slab_count = (uint32_t)slab_count,
                                        .slabs_here = (uint32_t)here,
                                        .state = view.state};
    memcpy(attached.identity, sl_pool_model_identity(sl_pool_copy_model(copy)),
           sizeof(attached.identity));
    sl_pool_copy_fds(copy, 0, fds, 2 + here);
    connection->sending_lease = lease;
    if (here < slab_count) {
        connection->sending = copy;
        connection->next_slab = here;
    }
    sl_pool_send(connection, SL_WIRE_ANSWER | SL_WIRE_ATTACH, &attached, sizeof(attached), fds,
                 2 + here);
}

/* Others have not taken what they were sent, so nothing could be sent to this one: it is told. */
static void give_up_sending(struct sl_pool_connection *connection)
{
    struct sl_err err = SL_ERR_INIT;
    sl_pool_share_explain(connection, &err);
    free(sl_steal(&connection->out.data));
    connection->sending = NULL;
    connection->retry = false;
    connection->deadline_ns = 0;
    for (size_t i = connection->lease_count; i--;)
        if (connection->leases[i].id == connection->sending_lease)
            sl_pool_end_lease(connection, i);
    {
        SL_LOCKED(&connection->server->lock);
        connection->server->locked.counts.limited++;
    }
    sl_pool_send_error(connection, &err);
    if (!sl_pool_is_dead(connection))
        sl_pool_watch(connection);
}

bool sl_pool_connection_tick(struct sl_pool_connection *connection, uint64_t now)
{
    bool held = connection->held, left = connection->stage == SL_POOL_LEFT;
    if (connection->untaken && has_taken(connection) && (left || held)) {
        if (left)
            sl_pool_connection_close(connection);
        else
            sl_pool_watch(connection);
    }
    if (sl_pool_is_dead(connection))
        return false;
    if (connection->retry)
        sl_pool_connection_turn(connection, 0);
    if (sl_pool_is_dead(connection) || !connection->deadline_ns || connection->deadline_ns > now)
        return !sl_pool_is_dead(connection) && (connection->deadline_ns || left);
    if (connection->stage == SL_POOL_GREETING)
        sl_pool_connection_close(connection);
    else if (connection->retry)
        give_up_sending(connection);
    else
        leave(connection);
    return true;
}

void sl_pool_connection_answer(struct sl_pool_connection *connection,
                               struct sl_pool_request *request)
{
    struct sl_pool_server *server = connection->server;
    struct sl_pool_copy *copy = request->copy;
    connection->request = NULL;
    if (connection->deposit && connection->deposit->waiting) {
        sl_pool_deposit_answer(connection, request);
    } else if (!copy) {
        sl_pool_send_error(connection, &request->err);
    } else {
        uint64_t id = ++server->next_id;
        {
            SL_LOCKED(&server->lock);
            connection->leases[connection->lease_count++] =
                (struct sl_pool_lease){id, sl_now_ns(), copy, request->cookie};
            server->locked.counts.leases++;
            server->locked.counts.attaches++;
        }
        send_copy(connection, copy, id);
        sl_metric_observe(SL_M_POOL_ATTACH_SECONDS,
                          (double)(sl_now_ns() - request->since_ns) / (double)SL_NS_PER_S);
    }
    sl_pool_request_end(request);
    if (!sl_pool_is_dead(connection))
        sl_pool_watch(connection);
}

struct received {
    uint8_t data[SL_WIRE_PACKET_BYTES];
    ssize_t bytes;
    int fds[SL_WIRE_FDS_MAX];
    size_t fd_count;
    bool cut; /* larger than any packet may be */
};

static void take_fds(struct msghdr *message, struct received *received)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header;
         header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        count = SL_MIN(count, (size_t)SL_WIRE_FDS_MAX - received->fd_count);
        memcpy(received->fds + received->fd_count, CMSG_DATA(header), count * sizeof(int));
        received->fd_count += count;
    }
}

static void receive(struct sl_pool_connection *connection, struct received *received)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SL_WIRE_FDS_MAX)];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {received->data, sizeof(received->data)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    received->fd_count = 0;
    received->bytes = recvmsg(connection->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (received->bytes >= 0)
        take_fds(&message, received);
    received->cut = message.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
}

/* What breaks the protocol is told so, and then it is over. */
static void refuse(struct sl_pool_connection *connection, const struct sl_err *err)
{
    bool malformed = strcmp(err->code, "protocol") == 0;
    if (malformed) {
        char text[sizeof(err->message) + 64];
        snprintf(text, sizeof(text), "client %d (uid %u): %s", connection->peer.pid,
                 connection->peer.uid, err->message);
        sl_pool_quiet_warn(&connection->server->quiet, connection->peer.uid, SL_POOL_SAID_MALFORMED,
                           text);
        sl_pool_connection_enter(connection, SL_POOL_CLOSING);
        SL_LOCKED(&connection->server->lock);
        connection->server->locked.counts.protocol_errors++;
    }
    sl_pool_send_error(connection, err);
}

static void serve(struct sl_pool_connection *connection, struct received *received)
{
    struct sl_pool_packet packet;
    struct sl_err err = SL_ERR_INIT;
    int done = received->cut ? sl_fail_code(&err, SL_E_USAGE, "protocol",
                                            "a request to the pool is malformed: it is larger than "
                                            "%d bytes or has more than %d descriptors",
                                            SL_WIRE_PACKET_BYTES, SL_WIRE_FDS_MAX)
                             : sl_pool_packet_parse(received->data, (size_t)received->bytes,
                                                    received->fd_count, &packet, &err);
    connection->serial = received->cut ? 0 : packet.serial;
    if (done == 0 && connection->over) {
        sl_pool_connection_enter(connection, SL_POOL_CLOSING);
        done = sl_pool_share_refuse(connection, &err);
    }
    if (done == 0)
        done = sl_pool_serve(connection, &packet, received->fds, &err);
    if (done < 0)
        refuse(connection, &err);
}

static void read_one(struct sl_pool_connection *connection)
{
    struct received received;
    receive(connection, &received);
    if (received.bytes < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (received.bytes <= 0) { /* an empty packet reads like the end, and is as good as it */
        sl_pool_close_later(connection->server, received.fds, received.fd_count);
        sl_pool_connection_close(connection);
        return;
    }
    serve(connection, &received);
    sl_pool_close_later(connection->server, received.fds, received.fd_count);
}

/* A client that asks on without taking its answers would fill its socket with them. */
static void read_next(struct sl_pool_connection *connection)
{
    connection->held = !has_taken(connection);
    if (connection->held)
        return;
    connection->idle_ns = sl_now_ns();
    read_one(connection);
}

void sl_pool_connection_turn(struct sl_pool_connection *connection, uint32_t events)
{
    if (connection->stage >= SL_POOL_LEFT)
        return;
    if (events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) {
        sl_pool_connection_close(connection);
        return;
    }
    if (connection->out.data)
        sl_pool_flush(connection);
    else if ((events & EPOLLIN) && !connection->request)
        read_next(connection);
    if (!sl_pool_is_dead(connection))
        sl_pool_watch(connection);
}

int sl_pool_connection_open(struct sl_pool_server *server, int fd, uint32_t *who,
                            struct sl_err *err)
{
    struct sl_pool_connection *connection = sl_alloc(sizeof(*connection), err);
    if (!connection) {
        close(fd);
        return -1;
    }
    connection->server = server;
    connection->fd = fd;
    connection->idle_ns = sl_now_ns();
    connection->deadline_ns = connection->idle_ns + HELLO_SECONDS * SL_NS_PER_S;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = connection};
    if (sl_pool_peer_find(connection, err) < 0 || sl_pool_share_enter(connection, err) < 0 ||
        (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 &&
         sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot watch a client of the pool") < 0)) {
        close(fd);
        *who = connection->peer.uid;
        sl_pool_share_leave(connection);
        sl_peer_release(&connection->who);
        free(connection);
        return -1;
    }
    SL_LOCKED(&server->lock);
    connection->next = server->locked.first;
    if (connection->next)
        connection->next->previous = connection;
    server->locked.first = connection;
    server->locked.counts.clients++;
    server->locked.counts.connects++;
    return 0;
}

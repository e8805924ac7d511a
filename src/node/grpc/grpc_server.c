/*
 * The loop: one thread that polls the socket, its connections and an eventfd by which workers tell
 * that an answer is there. Nothing that blocks happens in it.
 *
 * The socket's file is looked at every few seconds: a kubelet that is set up anew empties its
 * folders, and a server whose file has gone would wait for ever for clients that cannot find it.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "grpc_parts.h"
#include "log.h"
#include "peer.h"

/* ---- the socket ----------------------------------------------------------------------------- */

static int listen_at(struct sl_grpc *grpc, struct sl_err *err)
{
    const struct sl_node_socket_options options = {.path = grpc->socket,
                                                   .type = SOCK_STREAM,
                                                   .backlog = SL_GRPC_CONNECTIONS_MAX,
                                                   .mode = 0600,
                                                   .group = UINT32_MAX};
    return sl_node_socket_open(&options, &grpc->at, err);
}

static void look_at_socket(struct sl_grpc *grpc, uint64_t now_ns)
{
    struct sl_err err = SL_ERR_INIT;
    if (grpc->close_ns || now_ns < grpc->look_ns)
        return;
    grpc->look_ns = now_ns + SL_GRPC_LOOK_NS;
    if (grpc->at.fd >= 0 && sl_node_socket_is_there(&grpc->at, grpc->socket))
        return;
    sl_node_socket_release(&grpc->at);
    if (listen_at(grpc, &err) == 0)
        sl_log(SL_LOG_WARN, "the socket '%s' had been removed and was created again", grpc->socket);
    else if (strcmp(err.message, grpc->listen_err.message) != 0)
        sl_log(SL_LOG_ERROR, "the socket '%s' was removed and cannot be created again: %s",
               grpc->socket, err.message);
    grpc->listen_err = err;
}

/* By the number alone: a kubelet lives in other namespaces than a daemon in a pod. No pod sees the
 * socket's folder, unless it may have any folder of the node. */
static bool may_call(int fd)
{
    struct sl_peer peer = {0};
    struct sl_err err = SL_ERR_INIT;
    bool known = sl_peer_find(fd, &peer, &err) == 0 || err.kind == SL_E_NO_SPACE;
    bool may = known && (peer.uid == 0 || peer.uid == geteuid());
    if (!may)
        sl_log(SL_LOG_DEBUG, "refused a connection of user %u", peer.uid);
    sl_peer_release(&peer);
    return may;
}

/* The one that has been idle longest goes for a new one; false: all have calls. */
static bool make_place(struct sl_grpc *grpc)
{
    struct sl_grpc_connection *oldest = NULL;
    if (grpc->connection_count < SL_GRPC_CONNECTIONS_MAX)
        return true;
    for (struct sl_grpc_connection *one = grpc->connections; one; one = one->next)
        if (!one->stream_count && (!oldest || one->since_ns < oldest->since_ns))
            oldest = one;
    if (!oldest)
        return false;
    sl_grpc_connection_end(oldest);
    oldest->is_dead = true;
    return true;
}

static void sweep(struct sl_grpc *grpc)
{
    for (struct sl_grpc_connection **at = &grpc->connections; *at;) {
        struct sl_grpc_connection *connection = *at;
        if (!connection->is_dead) {
            at = &connection->next;
            continue;
        }
        *at = connection->next;
        sl_grpc_connection_free(connection);
    }
}

static void take_connections(struct sl_grpc *grpc, uint64_t now_ns)
{
    for (unsigned i = 0; i < SL_GRPC_CONNECTIONS_MAX; i++) {
        struct sl_err err = SL_ERR_INIT;
        int fd = accept4(grpc->at.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0) {
            if (errno != EAGAIN) { /* no descriptors: others may give some back */
                sl_log(SL_LOG_WARN, "cannot take a connection to '%s': %s", grpc->socket,
                       strerror(errno));
                grpc->accept_ns = now_ns + SL_NS_PER_S;
            }
            return;
        }
        if (!may_call(fd) || !make_place(grpc)) {
            close(fd);
            continue;
        }
        sweep(grpc);
        if (sl_grpc_connection_add(grpc, fd, &err) < 0)
            sl_log(SL_LOG_WARN, "cannot take a connection to '%s': %s", grpc->socket, err.message);
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void take_answers(struct sl_grpc *grpc)
{
    struct sl_grpc_job *job = sl_grpc_work_done(grpc), *next;
    for (; job; job = next) {
        next = job->next;
        grpc->job_count--;
        if (job->stream) {
            struct sl_grpc_connection *connection = job->stream->connection;
            sl_grpc_stream_answer(job->stream, job->code, job->call.text, &job->call.response);
            sl_grpc_connection_write(connection);
        }
        sl_grpc_job_free(grpc, job);
    }
}

/* What is under way has had its time: its callers are told so, and the work to stop. */
static void cut(struct sl_grpc *grpc)
{
    for (struct sl_grpc_connection *connection = grpc->connections; connection;
         connection = connection->next) {
        struct sl_grpc_stream *next;
        for (struct sl_grpc_stream *stream = connection->streams; stream; stream = next) {
            next = stream->next;
            if (stream->job)
                sl_grpc_work_leave(grpc, stream->job);
            if (!stream->is_answered)
                sl_grpc_stream_answer(stream, SL_GRPC_UNAVAILABLE, "the server ends: try again",
                                      NULL);
        }
        sl_grpc_connection_write(connection);
    }
}

/* True: it is over. */
static bool go_on_closing(struct sl_grpc *grpc, uint64_t now_ns)
{
    bool begins = false;
    {
        SL_LOCKED(&grpc->lock);
        if (grpc->locked.is_closing && !grpc->close_ns) {
            begins = true;
            grpc->close_ns = now_ns;
            grpc->drain_ns = now_ns + grpc->locked.drain_ms * SL_NS_PER_MS;
            grpc->cut_ns = UINT64_MAX;
        }
    }
    if (begins) {
        sl_node_socket_release(&grpc->at);
        for (struct sl_grpc_connection *one = grpc->connections; one; one = one->next)
            sl_grpc_connection_end(one);
    }
    if (!grpc->close_ns)
        return false;
    if (grpc->cut_ns == UINT64_MAX && now_ns >= grpc->drain_ns) {
        cut(grpc);
        grpc->cut_ns = now_ns + SL_GRPC_FLUSH_NS;
    }
    if (now_ns >= grpc->cut_ns)
        for (struct sl_grpc_connection *one = grpc->connections; one; one = one->next)
            one->is_dead = true;
    sweep(grpc);
    return !grpc->connections && !grpc->job_count;
}

static int wait_ms(const struct sl_grpc *grpc, uint64_t now_ns)
{
    uint64_t next = grpc->close_ns ? UINT64_MAX : grpc->look_ns;
    if (grpc->close_ns && grpc->connections)
        next = SL_MIN(grpc->cut_ns, grpc->cut_ns == UINT64_MAX ? grpc->drain_ns : UINT64_MAX);
    if (grpc->accept_ns > now_ns)
        next = SL_MIN(next, grpc->accept_ns);
    for (const struct sl_grpc_connection *one = grpc->connections; one; one = one->next)
        next = SL_MIN(next, sl_grpc_connection_next(one));
    if (next == UINT64_MAX)
        return -1;
    next = SL_MIN(next, now_ns + 3600 * SL_NS_PER_S);
    return next <= now_ns ? 0 : (int)((next - now_ns) / SL_NS_PER_MS + 1);
}

/* fds: the wake, the socket, then the connections in the order of the list. */
static void serve(struct sl_grpc *grpc, const struct pollfd *fds, nfds_t count)
{
    nfds_t i = 2;
    eventfd_t ignored;
    uint64_t now_ns = sl_now_ns();
    if (fds[0].revents)
        eventfd_read(grpc->wake_fd, &ignored);
    for (struct sl_grpc_connection *one = grpc->connections; one && i < count; one = one->next) {
        short what = fds[i++].revents;
        if (what & POLLOUT)
            sl_grpc_connection_write(one);
        if (what & (POLLIN | POLLERR | POLLHUP) && !one->is_dead)
            sl_grpc_connection_read(one);
        if (!one->is_dead)
            sl_grpc_connection_turn(one, now_ns);
    }
    take_answers(grpc);
    sweep(grpc);
    if (fds[1].revents && !grpc->close_ns)
        take_connections(grpc, now_ns);
    look_at_socket(grpc, now_ns);
}

static void *loop(void *arg)
{
    struct sl_grpc *grpc = arg;
    struct pollfd fds[2 + SL_GRPC_CONNECTIONS_MAX];
    while (!go_on_closing(grpc, sl_now_ns())) {
        uint64_t now_ns = sl_now_ns();
        nfds_t count = 2;
        fds[0] = (struct pollfd){.fd = grpc->wake_fd, .events = POLLIN};
        fds[1] =
            (struct pollfd){.fd = grpc->accept_ns > now_ns ? -1 : grpc->at.fd, .events = POLLIN};
        for (struct sl_grpc_connection *one = grpc->connections; one; one = one->next)
            fds[count++] =
                (struct pollfd){.fd = one->fd, .events = one->out_bytes ? POLLOUT : POLLIN};
        if (poll(fds, count, wait_ms(grpc, now_ns)) < 0)
            continue;
        serve(grpc, fds, count);
    }
    return NULL;
}

/* ---- from beginning to end ------------------------------------------------------------------ */

static void forget(struct sl_grpc *grpc)
{
    sl_node_socket_release(&grpc->at);
    sl_autoclose_(&grpc->wake_fd);
    pthread_cond_destroy(&grpc->work);
    pthread_mutex_destroy(&grpc->lock);
    free(grpc->socket);
    free(grpc->name);
    free(grpc);
}

static int start(struct sl_grpc *grpc, struct sl_err *err)
{
    if (!grpc->socket || !grpc->name)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory");
    grpc->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (grpc->wake_fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot serve '%s'", grpc->socket);
    if (listen_at(grpc, err) < 0)
        return -1;
    grpc->look_ns = sl_now_ns() + SL_GRPC_LOOK_NS;
    return sl_thread_start(&grpc->loop, grpc->name, loop, grpc, err);
}

struct sl_grpc *sl_grpc_open(const struct sl_grpc_config *config, struct sl_err *err)
{
    struct sl_grpc *grpc = sl_alloc(sizeof(*grpc), err);
    if (!grpc)
        return NULL;
    grpc->config = *config;
    if (!grpc->config.workers)
        grpc->config.workers = SL_GRPC_WORKERS;
    grpc->config.workers = SL_MIN(grpc->config.workers, SL_GRPC_WORKERS_MAX);
    grpc->config.method_count = SL_MIN(config->method_count, SL_GRPC_METHODS_MAX);
    grpc->socket = sl_strdup(config->socket, err);
    grpc->name = sl_strdup(config->name, err);
    grpc->wake_fd = grpc->at.fd = grpc->at.folder_fd = -1;
    pthread_mutex_init(&grpc->lock, NULL);
    pthread_cond_init(&grpc->work, NULL);
    grpc->locked.last = &grpc->locked.first;
    if (start(grpc, err) == 0)
        return grpc;
    forget(grpc);
    return NULL;
}

void sl_grpc_close(struct sl_grpc *grpc, unsigned drain_ms)
{
    if (!grpc)
        return;
    {
        SL_LOCKED(&grpc->lock);
        grpc->locked.is_closing = true;
        grpc->locked.drain_ms = drain_ms;
    }
    eventfd_write(grpc->wake_fd, 1);
    pthread_join(grpc->loop, NULL);
    sl_grpc_work_end(grpc);
    forget(grpc);
}

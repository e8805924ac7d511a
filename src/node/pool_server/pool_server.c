/*
 * The server's thread: one epoll for the listening socket, the mailbox and all clients. Nothing in
 * it blocks. A tick of a tenth of a second is only there while something is timed: a client that
 * has not greeted, one that does not take its answer, a listener that ran out of descriptors.
 */
#include "pool_server.h"

#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pool_server_parts.h"

enum { EVENTS_MAX = 64, TICK_MS = 100, TAKE_MS = 30000 };

/* ---- accepting ------------------------------------------------------------------------------- */

static void watch_listener(struct sl_pool_server *server, bool accepting)
{
    struct epoll_event event = {.events = accepting ? EPOLLIN : 0, .data.ptr = &server->listen_fd};
    epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, server->listen_fd, &event);
    server->accepting = accepting;
}

/* While not even root finds a place, clients wait in the backlog until others leave. */
static void accept_some(struct sl_pool_server *server)
{
    struct sl_err err = SL_ERR_INIT;
    for (int i = 0; i < EVENTS_MAX; i++) {
        uint32_t who = 0;
        if (!sl_pool_share_is_open(server)) {
            watch_listener(server, false);
            return;
        }
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            if (sl_pool_connection_open(server, fd, &who, &err) < 0)
                sl_pool_quiet_warn(&server->quiet, who, SL_POOL_SAID_ACCEPT, err.message);
            continue;
        }
        if (sl_errno_is_short(errno) || errno == ENOBUFS) {
            sl_fail_errno(&err, SL_E_NO_SPACE, errno, "cannot accept a client");
            sl_pool_quiet_warn(&server->quiet, 0, SL_POOL_SAID_ACCEPT, err.message);
            watch_listener(server, false); /* until the next tick */
        }
        if (errno != EINTR && errno != ECONNABORTED)
            return;
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void take_answers(struct sl_pool_server *server)
{
    uint64_t count;
    struct sl_pool_request *request;
    ssize_t got = read(server->mailbox->wake_fd, &count, sizeof(count));
    (void)got;
    while ((request = sl_pool_mailbox_take(server->mailbox)))
        sl_pool_connection_answer(request->connection, request);
}

/* No other thread changes the list, so this one may read it without the lock. */
static bool tick(struct sl_pool_server *server)
{
    uint64_t now = sl_now_ns();
    bool timed = !server->accepting;
    struct sl_pool_connection *next;
    if (!server->accepting && sl_pool_share_is_open(server))
        watch_listener(server, true);
    for (struct sl_pool_connection *connection = server->locked.first; connection;
         connection = next) {
        next = connection->next;
        timed = sl_pool_connection_tick(connection, now) || timed;
    }
    return timed;
}

static void bury(struct sl_pool_server *server)
{
    while (server->dead) {
        struct sl_pool_connection *connection = server->dead;
        server->dead = connection->next;
        sl_pool_share_leave(connection);
        sl_peer_release(&connection->who);
        free(connection);
    }
}

#ifndef NDEBUG
static void check_connection(const struct sl_pool_connection *at)
{
    bool sends = at->out.data != NULL;
    bool has = at->request || at->deposit || at->lease_count || sends;
    assert(!has || at->stage == SL_POOL_SERVED || at->stage == SL_POOL_CLOSING);     /* 1 */
    assert(at->stage != SL_POOL_CLOSING || (sends && !at->request && !at->untaken)); /* 2 */
    assert(sends || !(at->sending || at->retry));                                    /* 3 */
    assert(at->untaken || !(at->held || at->sent_fds));                              /* 4 */
}

static void check_user(const struct sl_pool_user *user, const struct sl_pool_connection *first)
{
    struct sl_pool_user sum = {0};
    for (const struct sl_pool_connection *at = first; at; at = at->next)
        if (at->user == user) {
            sum.connections++;
            sum.places += !at->over;
            sum.sent_fds += at->sent_fds;
            sum.given_fds += at->deposit ? at->deposit->charged : 0;
        }
    assert(sum.connections == user->connections && sum.places == user->places); /* 5 */
    assert(sum.sent_fds == user->sent_fds && sum.given_fds == user->given_fds); /* 5 */
}
#endif

static void check(struct sl_pool_server *server)
{
#ifndef NDEBUG
    struct sl_pool_counts sum = {0};
    unsigned over = 0;
    SL_LOCKED(&server->lock);
    for (const struct sl_pool_connection *at = server->locked.first; at; at = at->next) {
        check_connection(at);
        over += at->over;
        sum.clients++;
        sum.leases += at->lease_count;
        sum.deposits += at->deposit != NULL;
    }
    for (const struct sl_pool_user *user = server->users; user; user = user->next)
        check_user(user, server->locked.first);
    assert(over == server->over_count);                     /* 5 */
    assert(sum.clients == server->locked.counts.clients);   /* 6 */
    assert(sum.leases == server->locked.counts.leases);     /* 6 */
    assert(sum.deposits == server->locked.counts.deposits); /* 6 */
#else
    (void)server;
#endif
}

static bool is_stopped(struct sl_pool_server *server)
{
    SL_LOCKED(&server->lock);
    return server->locked.stop;
}

static void *run(void *arg)
{
    struct sl_pool_server *server = arg;
    struct epoll_event events[EVENTS_MAX];
    bool timed = true;
    while (!is_stopped(server)) {
        int count = epoll_wait(server->epoll_fd, events, EVENTS_MAX, timed ? TICK_MS : -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr == &server->listen_fd)
                accept_some(server);
            else if (events[i].data.ptr == &server->mailbox)
                take_answers(server);
            else
                sl_pool_connection_turn(events[i].data.ptr, events[i].events);
        }
        timed = tick(server);
        bury(server);
        check(server);
        sl_pool_server_update_metrics(server);
    }
    while (server->locked.first) /* as in tick(): no other thread changes it */
        sl_pool_connection_close(server->locked.first);
    bury(server);
    sl_pool_quiet_end(&server->quiet);
    sl_pool_server_update_metrics(server);
    return NULL;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int add_to_epoll(struct sl_pool_server *server, int fd, void *mark, struct sl_err *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = mark};
    if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0)
        return 0;
    return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot watch the pool's socket");
}

static int start(struct sl_pool_server *server, const struct sl_pool_server_config *config,
                 struct sl_err *err)
{
    server->shares = sl_pool_shares_find(config);
    server->take_ns = (config->take_ms ? config->take_ms : TAKE_MS) * SL_NS_PER_MS;
    server->accepting = true;
    sl_pool_server_set_rights(server, config);
    server->mailbox = sl_pool_mailbox_new(err);
    if (!server->mailbox)
        return -1;
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (server->epoll_fd < 0)
        return sl_fail_errno(err, SL_E_NO_SPACE, errno, "cannot watch the pool's socket");
    if (add_to_epoll(server, server->listen_fd, &server->listen_fd, err) < 0 ||
        add_to_epoll(server, server->mailbox->wake_fd, &server->mailbox, err) < 0 ||
        sl_thread_start(&server->thread, "sluice-pool", run, server, err) < 0)
        return -1;
    server->started = true;
    return 0;
}

struct sl_pool_server *sl_pool_server_start(const struct sl_pool_server_config *config,
                                            const struct sl_pool_handler *handler, void *arg,
                                            struct sl_err *err)
{
    struct sl_pool_server *server = sl_alloc(sizeof(*server), err);
    if (!server) {
        close(config->listen_fd);
        return NULL;
    }
    server->handler = *handler;
    server->arg = arg;
    server->listen_fd = config->listen_fd;
    server->epoll_fd = -1;
    pthread_mutex_init(&server->lock, NULL);
    if (start(server, config, err) == 0)
        return server;
    sl_pool_server_free(server);
    return NULL;
}

static void stop(struct sl_pool_server *server)
{
    uint64_t one = 1;
    {
        SL_LOCKED(&server->lock);
        server->locked.stop = true;
    }
    ssize_t wrote = write(server->mailbox->wake_fd, &one, sizeof(one));
    (void)wrote;
    pthread_join(server->thread, NULL);
}

void sl_pool_server_free(struct sl_pool_server *server)
{
    if (!server)
        return;
    if (server->started)
        stop(server);
    close(server->listen_fd);
    if (server->epoll_fd >= 0)
        close(server->epoll_fd);
    sl_pool_mailbox_free(server->mailbox);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

void sl_pool_server_set_rights(struct sl_pool_server *server,
                               const struct sl_pool_server_config *config)
{
    SL_LOCKED(&server->lock);
    server->locked.attach = config->attach;
    server->locked.deposit = config->deposit;
    server->locked.evict = config->evict;
}

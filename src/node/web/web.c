/*
 * A few epoll threads of libmicrohttpd answer everything; nothing they do waits. Slow clients are
 * held off by a list of connections in the order in which they began to wait for a request: one
 * that takes too long to send its headers or to take a short answer is shut down by the ticker, and
 * when nearly all places are taken the one that waits longest makes room, so that a probe always
 * gets in.
 *
 * The library owns the sockets; it tells us of a connection's end before it closes the descriptor,
 * so a descriptor in the list is good for shutdown() while the lock is held.
 */
#include "web.h"

#include <linux/tcp.h> /* its tcp_info knows more than that of the C library */
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"
#include "mem.h"
#include "metrics.h"
#include "web_parts.h"

enum { WEB_THREADS = 2, TICK_MS = 100, IDLE_TICK_MS = 1000, DRAIN_STEP_MS = 10 };
/*
 * What the kernel may hold of an answer beyond what is on the wire: without this, megabytes a
 * connection, which count as ours. Files do without: it costs their sender a third more time.
 */
enum { UNSENT_BYTES = 256 << 10, UNSENT_FILE_BYTES = 1 << 30 };

struct connection {
    int fd;
    enum connection_state state;
    uint64_t since_ns;               /* when it entered its state */
    bool file;                       /* STREAMING: what it takes; judged anew from then on … */
    uint64_t judged_ns, acked_bytes; /* … when and how much it had taken by then */
    struct sl_buf body;              /* of a request that changes something */
    bool receiving, ended;           /* it is not whole; nor will it be, as of the last look */
    int unsent_bytes;                /* what the socket is set to; only its own thread looks */
    struct connection *newer, *older;
};

/* ---- the list of connections ---------------------------------------------------------------- */

static void list_remove(struct sl_web *web, struct connection *connection)
{
    *(connection->newer ? &connection->newer->older : &web->locked.newest) = connection->older;
    *(connection->older ? &connection->older->newer : &web->locked.oldest) = connection->newer;
    connection->newer = connection->older = NULL;
}

static void list_push(struct sl_web *web, struct connection *connection)
{
    connection->older = web->locked.newest;
    connection->newer = NULL;
    *(connection->older ? &connection->older->newer : &web->locked.oldest) = connection;
    web->locked.newest = connection;
}

/* The list is ordered by since_ns: whoever changes state goes to its young end. */
static void enter(struct sl_web *web, struct connection *connection, enum connection_state state)
{
    SL_LOCKED(&web->lock);
    connection->state = state;
    connection->file = false; /* what another answer took, and when, says nothing of the next */
    connection->since_ns = sl_now_ns();
    list_remove(web, connection);
    list_push(web, connection);
}

static void make_room(struct sl_web *web)
{
    if (web->locked.connection_count + WEB_SPARE_CONNECTIONS < web->connections_max)
        return;
    for (struct connection *at = web->locked.oldest; at; at = at->newer)
        if (at != web->locked.newest && at->state == CONNECTION_READING && at->fd >= 0) {
            shutdown(at->fd, SHUT_RDWR);
            at->fd = -1;
            return;
        }
}

/* Bytes that the client has acknowledged on this connection. */
static uint64_t acked_bytes(int fd)
{
    struct tcp_info info = {0};
    socklen_t bytes = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0 ? 0 : info.tcpi_bytes_acked;
}

/*
 * A reader of a file may take hours, but not by resident a place for nothing. What it takes is
 * known to the kernel alone: the library sees no write succeed for as long as megabytes of buffer
 * last.
 */
static bool takes_too_little(struct sl_web *web, struct connection *connection, uint64_t now)
{
    if (connection->state != CONNECTION_STREAMING || !connection->file || connection->fd < 0 ||
        now - connection->judged_ns < web->idle_seconds * SL_NS_PER_S)
        return false;
    uint64_t acked = acked_bytes(connection->fd);
    bool too_little = acked - connection->acked_bytes < WEB_TAKEN_BYTES_MIN;
    connection->judged_ns = now;
    connection->acked_bytes = acked;
    return too_little;
}

/* With what the kernel still holds for it. */
static void reset_connection(struct connection *connection)
{
    const struct linger now = {.l_onoff = 1};
    setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    shutdown(connection->fd, SHUT_RDWR);
    connection->fd = -1;
}

/*
 * The library may miss the end of a connection that comes with the last bytes of an upload, and
 * would hold what had come until the time for it is over. Seen twice, since it may be about to call
 * us with the whole of it.
 */
static bool broke_off(struct connection *connection)
{
    struct pollfd end = {connection->fd, POLLRDHUP, 0};
    int unread = 0;
    if (!connection->receiving || connection->fd < 0)
        return false;
    bool before = connection->ended;
    connection->ended = poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) &&
                        ioctl(connection->fd, FIONREAD, &unread) == 0 && !unread;
    return before && connection->ended;
}

static void drop_late(struct sl_web *web)
{
    SL_LOCKED(&web->lock);
    uint64_t now = sl_now_ns();
    for (struct connection *at = web->locked.oldest; at; at = at->newer) {
        uint64_t seconds = at->state == CONNECTION_READING     ? web->idle_seconds
                           : at->state == CONNECTION_ANSWERING ? WEB_ANSWER_SECONDS
                                                               : UINT32_MAX;
        if (takes_too_little(web, at, now))
            reset_connection(at);
        bool late = now - at->since_ns >= seconds * SL_NS_PER_S || broke_off(at);
        if (!late || at->fd < 0)
            continue;
        shutdown(at->fd, SHUT_RDWR);
        at->fd = -1;
    }
}

static void connection_opens(struct sl_web *web, struct MHD_Connection *mhd, void **context)
{
    const union MHD_ConnectionInfo *info =
        sl_libmicrohttpd.get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *connection = sl_alloc(sizeof(*connection), NULL);
    *context = connection;
    if (!connection || !info) {
        if (info)
            shutdown(info->connect_fd, SHUT_RDWR);
        free(connection);
        *context = NULL;
        return;
    }
    connection->fd = info->connect_fd;
    connection->since_ns = sl_now_ns();
    SL_LOCKED(&web->lock);
    list_push(web, connection);
    web->locked.connection_count++;
    make_room(web);
}

static void on_connection(void *arg, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct sl_web *web = arg;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        connection_opens(web, mhd, context);
        return;
    }
    struct connection *connection = *context;
    if (!connection)
        return;
    {
        SL_LOCKED(&web->lock);
        list_remove(web, connection);
        web->locked.connection_count--;
    }
    sl_buf_release(&connection->body);
    free(connection);
    *context = NULL;
}

static struct connection *connection_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        sl_libmicrohttpd.get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/*
 * The library's own limit would end readers that are slow but alive, and leave the kernel with all
 * that a dead one has not taken; so it is lifted while a file is sent.
 */
static void limit_library(struct MHD_Connection *mhd, unsigned seconds)
{
    sl_libmicrohttpd.set_connection_option(mhd, MHD_CONNECTION_OPTION_TIMEOUT, seconds);
}

void web_streams(const struct request *request, bool file)
{
    struct sl_web *web = request->web;
    struct connection *connection = connection_of(request->connection);
    if (!connection)
        return;
    enter(web, connection, CONNECTION_STREAMING);
    if (file)
        limit_library(request->connection, 0);
    SL_LOCKED(&web->lock);
    connection->file = file;
    connection->judged_ns = connection->since_ns;
    connection->acked_bytes = connection->fd < 0 ? 0 : acked_bytes(connection->fd);
}

void web_bound_socket(const struct request *request, bool file)
{
    struct connection *connection = connection_of(request->connection);
    const union MHD_ConnectionInfo *info = sl_libmicrohttpd.get_connection_info(
        request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int bytes = file ? UNSENT_FILE_BYTES : UNSENT_BYTES;
    if (!connection || !info || connection->unsent_bytes == bytes)
        return;
    setsockopt(info->connect_fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
    connection->unsent_bytes = bytes;
}

static void note_receiving(struct sl_web *web, struct connection *connection, bool receiving)
{
    SL_LOCKED(&web->lock);
    connection->receiving = receiving;
    connection->ended = false;
}

static void on_completed(void *arg, struct MHD_Connection *mhd, void **context,
                         enum MHD_RequestTerminationCode code)
{
    struct sl_web *web = arg;
    struct connection *connection = connection_of(mhd);
    (void)context;
    if (!connection)
        return;
    sl_buf_release(&connection->body); /* of an upload that broke off */
    note_receiving(web, connection, false);
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        limit_library(mhd, web->idle_seconds);
    enter(web, connection, CONNECTION_READING);
}

/* ---- requests ------------------------------------------------------------------------------- */

static bool has_body(const struct request *request)
{
    const char *length = web_header(request, "Content-Length");
    return web_header(request, "Transfer-Encoding") || (length && strcmp(length, "0") != 0);
}

static enum MHD_Result answer_reading(const struct request *request)
{
    struct sl_web *web = request->web;
    bool found = false;
    enum MHD_Result result = MHD_NO;
    result = web_named_answer(request, &found);
    if (!found && web->share_fd >= 0)
        result = web_share_answer(request, false, &found);
    if (!found)
        result = web_api_answer(request, &found);
    if (!found && web->share_fd >= 0)
        result = web_share_answer(request, true, &found);
    if (found)
        return result;
    struct request unanswered = *request;
    unanswered.allow = web_control_allow(request);
    if (unanswered.allow)
        return web_send_error(&unanswered, 405, SL_E_USAGE, 0, "'%.200s' does not answer %.20s",
                              request->url, request->method);
    return web_send_error(request, 404, SL_E_NOT_FOUND, 0, "there is no '%.200s' here",
                          request->url);
}

/* The body of a request that was let in comes in pieces, then once more with none. */
static enum MHD_Result take_body(const struct request *request, struct connection *connection,
                                 const char *upload, size_t *upload_bytes)
{
    note_receiving(request->web, connection, *upload_bytes);
    if (!*upload_bytes) {
        enum MHD_Result result = web_control_answer(request, &connection->body);
        sl_buf_release(&connection->body); /* not only when the answer was taken */
        return result;
    }
    if (sl_buf_append(&connection->body, upload, *upload_bytes, NULL) < 0)
        return MHD_NO;
    *upload_bytes = 0;
    return MHD_YES;
}

/*
 * Called first when the headers are there. An answer then leaves a body unread and ends the
 * connection, which is right for whoever sends one unasked or may not; any other request is
 * answered in the last call, which keeps the connection.
 */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_bytes, void **context)
{
    struct sl_web *web = arg;
    struct connection *connection = connection_of(mhd);
    struct request request = {.web = web, .connection = mhd, .url = url, .method = method};
    (void)version;
    if (!connection)
        return MHD_NO;
    request.head = strcmp(method, "HEAD") == 0;
    bool reading = request.head || strcmp(method, "GET") == 0;
    if (!*context) {
        enter(web, connection, CONNECTION_ANSWERING);
        *context = connection;
        sl_buf_release(&connection->body);
        connection->body = (struct sl_buf)SL_BUF_INIT(WEB_BODY_BYTES_MAX);
        if (!reading && web->node)
            return web_control_begin(&request);
        if (!has_body(&request))
            return MHD_YES;
    }
    if (reading)
        return answer_reading(&request);
    if (web->node)
        return take_body(&request, connection, upload, upload_bytes);
    return web_send_error(&request, 405, SL_E_USAGE, 0, "this server only answers GET and HEAD");
}

/* Paths are decoded by us, strictly: the library's own decoding would let NUL through. */
static size_t keep_escapes(void *arg, struct MHD_Connection *mhd, char *text)
{
    (void)arg;
    (void)mhd;
    return strlen(text);
}

static void on_log(void *arg, const char *format, va_list args)
{
    (void)arg;
    if (!sl_log_wants(SL_LOG_DEBUG))
        return;
    char text[512];
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = 0;
    sl_log(SL_LOG_DEBUG, "http server: %s", text);
}

/* ---- the ticker ----------------------------------------------------------------------------- */

static void note_history(struct sl_web *web)
{
    SL_LOCKED(&web->lock);
    sl_history_note(&web->locked.history, sl_now_ns());
}

static void *tick(void *arg)
{
    struct sl_web *web = arg;
    bool clients = false;
    while (sl_sleep_ms(clients ? TICK_MS : IDLE_TICK_MS, web->stop, NULL) == 0) {
        clients = events_tick(web->events);
        note_history(web);
        drop_late(web);
    }
    return NULL;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static unsigned connections_max(bool share)
{
    struct rlimit files;
    unsigned wanted = share ? WEB_SHARE_CONNECTIONS_MAX : WEB_CONNECTIONS_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY &&
        files.rlim_cur / 3 < wanted)
        wanted = (unsigned)files.rlim_cur / 3;
    return SL_MAX(wanted, 4u * WEB_SPARE_CONNECTIONS);
}

static int start_daemon(struct sl_web *web, const struct sl_web_config *config, struct sl_err *err)
{
    int fd = web_listen(config, &web->socket, &web->port, err);
    if (fd < 0)
        return -1;
    if (sl_libmicrohttpd_open(err) < 0) {
        close(fd);
        return -1;
    }
    unsigned threads = web->share_fd >= 0 ? SL_MAX(sl_cpu_count(), 2u) : WEB_THREADS;
    threads = SL_MIN(threads, 64u);
    sigset_t all, old; /* signals are for the threads that we start ourselves and for main */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    web->daemon = sl_libmicrohttpd.start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_SUSPEND_RESUME | MHD_USE_TURBO | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, web, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_THREAD_POOL_SIZE, threads,
        MHD_OPTION_CONNECTION_LIMIT, web->connections_max, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)WEB_CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, web->idle_seconds,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, web, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        web, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (web->daemon)
        return 0;
    close(fd);
    return sl_fail(err, SL_E_NO_SPACE, /* libmicrohttpd does not say which */
                   "cannot start the HTTP server on '%s': its %u threads lack descriptors or "
                   "memory: raise their limits (ulimit -n)",
                   web->is_control ? config->control->path : config->listen, threads);
}

static void name_node(struct sl_web *web, const char *name)
{
    if (name)
        snprintf(web->node_name, sizeof(web->node_name), "%s", name);
    else if (gethostname(web->node_name, sizeof(web->node_name) - 1) < 0)
        snprintf(web->node_name, sizeof(web->node_name), "localhost");
}

struct sl_web *sl_web_start(const struct sl_web_config *config, struct sl_err *err)
{
    SL_AUTO(sl_web) web = sl_alloc(sizeof(*web), err);
    if (!web)
        return NULL;
    web->share_fd = web->socket.fd = web->socket.folder_fd = -1;
    web->expected_loads = config->expected_loads;
    web->node = config->node;
    web->beside = config->beside;
    web->is_control = config->control;
    web->idle_seconds = config->idle_seconds ? config->idle_seconds : WEB_IDLE_SECONDS;
    pthread_mutex_init(&web->lock, NULL);
    web_page_policies(web);
    name_node(web, config->node_name);
    web->began_ns = sl_now_ns();
    note_history(web);
    if (config->share_directory && web_share_open(web, config, err) < 0)
        return NULL;
    web->connections_max = connections_max(web->share_fd >= 0);
    if (!(web->stop = sl_cancel_new(err)) || !(web->events = events_new(web, err)) ||
        start_daemon(web, config, err) < 0 ||
        sl_thread_start(&web->ticker, "web", tick, web, err) < 0)
        return NULL;
    web->ticking = true;
    return sl_steal(&web);
}

static bool is_busy(struct sl_web *web)
{
    SL_LOCKED(&web->lock);
    for (struct connection *at = web->locked.oldest; at; at = at->newer)
        if (at->state != CONNECTION_READING && at->fd >= 0)
            return true;
    return false;
}

void sl_web_drain(struct sl_web *web, unsigned drain_ms)
{
    {
        SL_LOCKED(&web->lock);
        web->locked.draining = true;
    }
    events_stop(web->events);
    for (unsigned waited = 0; is_busy(web) && waited < drain_ms; waited += DRAIN_STEP_MS)
        sl_sleep_ms(DRAIN_STEP_MS, NULL, NULL);
}

void sl_web_free(struct sl_web *web)
{
    if (!web)
        return;
    if (web->ticking) {
        sl_cancel_raise(web->stop, 0);
        pthread_join(web->ticker, NULL);
    }
    events_stop(web->events);
    if (web->daemon)
        sl_libmicrohttpd.stop_daemon(web->daemon);
    sl_node_socket_release(&web->socket);
    events_free(web->events);
    sl_cancel_free(web->stop);
    web_named_free(web->named);
    if (web->share_fd >= 0)
        close(web->share_fd);
    pthread_mutex_destroy(&web->lock);
    free(web);
}

int sl_web_set_mode(const struct sl_web *web, unsigned mode, struct sl_err *err)
{
    return sl_node_socket_set_mode(&web->socket, mode, err);
}

unsigned sl_web_port(const struct sl_web *web)
{
    return web->port;
}

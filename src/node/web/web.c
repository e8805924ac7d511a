/* A few epoll threads of libmicrohttpd answer everything; nothing they do waits. */
#include "web.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "log.h"
#include "mem.h"
#include "web_connections.h"

enum { WEB_THREADS = 2, TICK_MS = 100, IDLE_TICK_MS = 1000, DRAIN_STEP_MS = 10 };

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
    web_note_receiving(request->web, connection, *upload_bytes);
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
    struct connection *connection = web_connection_of(mhd);
    struct request request = {.web = web, .connection = mhd, .url = url, .method = method};
    (void)version;
    if (!connection)
        return MHD_NO;
    request.head = strcmp(method, "HEAD") == 0;
    bool reading = request.head || strcmp(method, "GET") == 0;
    if (!*context) {
        web_enter(web, connection, CONNECTION_ANSWERING);
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
        web_drop_late(web);
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
        MHD_OPTION_NOTIFY_CONNECTION, web_on_connection, web, MHD_OPTION_NOTIFY_COMPLETED,
        web_on_completed, web, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
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

/*
 * Slow clients are held off by a list of connections in the order in which they began to wait for a
 * request: one that takes too long to send its headers or to take a short answer is shut down by
 * the ticker, and when nearly all places are taken the one that waits longest makes room, so that a
 * probe always gets in.
 *
 * The library owns the sockets; it tells us of a connection's end before it closes the descriptor,
 * so a descriptor in the list is good for shutdown() while the lock is held.
 */
#include "web_connections.h"

#include <linux/tcp.h> /* its tcp_info knows more than that of the C library */
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/*
 * What the kernel may hold of an answer beyond what is on the wire: without this, megabytes a
 * connection, which count as ours. Files do without: it costs their sender a third more time.
 */
enum { UNSENT_BYTES = 256 << 10, UNSENT_FILE_BYTES = 1 << 30 };

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
void web_enter(struct sl_web *web, struct connection *connection, enum connection_state state)
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

void web_drop_late(struct sl_web *web)
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

void web_on_connection(void *arg, struct MHD_Connection *mhd, void **context,
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

struct connection *web_connection_of(struct MHD_Connection *mhd)
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
    struct connection *connection = web_connection_of(request->connection);
    if (!connection)
        return;
    web_enter(web, connection, CONNECTION_STREAMING);
    if (file)
        limit_library(request->connection, 0);
    SL_LOCKED(&web->lock);
    connection->file = file;
    connection->judged_ns = connection->since_ns;
    connection->acked_bytes = connection->fd < 0 ? 0 : acked_bytes(connection->fd);
}

void web_bound_socket(const struct request *request, bool file)
{
    struct connection *connection = web_connection_of(request->connection);
    const union MHD_ConnectionInfo *info = sl_libmicrohttpd.get_connection_info(
        request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    int bytes = file ? UNSENT_FILE_BYTES : UNSENT_BYTES;
    if (!connection || !info || connection->unsent_bytes == bytes)
        return;
    setsockopt(info->connect_fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof(bytes));
    connection->unsent_bytes = bytes;
}

void web_note_receiving(struct sl_web *web, struct connection *connection, bool receiving)
{
    SL_LOCKED(&web->lock);
    connection->receiving = receiving;
    connection->ended = false;
}

void web_on_completed(void *arg, struct MHD_Connection *mhd, void **context,
                      enum MHD_RequestTerminationCode code)
{
    struct sl_web *web = arg;
    struct connection *connection = web_connection_of(mhd);
    (void)context;
    if (!connection)
        return;
    sl_buf_release(&connection->body); /* of an upload that broke off */
    web_note_receiving(web, connection, false);
    if (code == MHD_REQUEST_TERMINATED_COMPLETED_OK)
        limit_library(mhd, web->idle_seconds);
    web_enter(web, connection, CONNECTION_READING);
}

/*
 * One connection: the glue between a socket and nghttp2, which does frames, HPACK, flow control,
 * SETTINGS and PING, and bounds what a flood of those can do. Its own checks of HTTP messages are
 * off, since clients put paths into :authority; the few headers that matter are looked at in
 * grpc_stream.c.
 *
 * While a client does not take what is written, nothing is read from it, so that what waits for it
 * is bounded; and that only for a while. All of nghttp2's calls with ssize_t, which later versions
 * call by other names, are here and in one line of grpc_stream.c.
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "grpc_parts.h"
#include "log.h"

enum { READ_BYTES = 64 * 1024 };

static int fail_stream(nghttp2_session *session, int32_t id, uint32_t code)
{
    return nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id, code) == 0
               ? 0
               : NGHTTP2_ERR_CALLBACK_FAILURE;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct sl_grpc_connection *connection = arg;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST &&
        sl_grpc_stream_new(connection, frame->hd.stream_id) < 0)
        return fail_stream(session, frame->hd.stream_id, NGHTTP2_REFUSED_STREAM);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                     void *arg)
{
    struct sl_grpc_stream *stream =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    (void)flags, (void)arg;
    if (!stream || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0; /* trailers of a request say nothing in gRPC */
    return sl_grpc_stream_header(stream, (const char *)name, name_bytes, (const char *)value,
                                 value_bytes)
               ? 0
               : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* resets the stream */
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t bytes, void *arg)
{
    struct sl_grpc_stream *stream = nghttp2_session_get_stream_user_data(session, id);
    (void)flags, (void)arg;
    if (stream)
        sl_grpc_stream_body(stream, data, bytes);
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct sl_grpc_connection *connection = arg;
    struct sl_grpc_stream *stream;
    if (frame->hd.type == NGHTTP2_SETTINGS)
        connection->is_greeted = true;
    if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)
        return 0;
    stream = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (!stream)
        return 0;
    if (frame->hd.type == NGHTTP2_HEADERS && (!stream->has_method || !stream->has_path))
        return fail_stream(session, frame->hd.stream_id, NGHTTP2_PROTOCOL_ERROR);
    if (frame->hd.flags & NGHTTP2_FLAG_END_STREAM)
        sl_grpc_stream_run(stream);
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
    struct sl_grpc_stream *stream = nghttp2_session_get_stream_user_data(session, id);
    (void)code, (void)arg;
    if (stream)
        sl_grpc_stream_free(stream);
    return 0;
}

static int make_session(struct sl_grpc_connection *connection)
{
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, SL_GRPC_STREAMS_MAX},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, SL_GRPC_HEADER_BYTES},
    };
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int done = nghttp2_session_callbacks_new(&callbacks);
    if (done == 0)
        done = nghttp2_option_new(&option);
    if (done == 0) {
        nghttp2_option_set_no_http_messaging(option, 1);
        nghttp2_option_set_no_closed_streams(option, 1);
        nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
        nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
        done = nghttp2_session_server_new2(&connection->session, callbacks, connection, option);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return done == 0 ? nghttp2_submit_settings(connection->session, NGHTTP2_FLAG_NONE, settings,
                                               SL_COUNT(settings))
                     : done;
}

int sl_grpc_connection_add(struct sl_grpc *grpc, int fd, struct sl_err *err)
{
    struct sl_grpc_connection *connection = sl_alloc(sizeof(*connection), err);
    if (!connection) {
        close(fd);
        return -1;
    }
    connection->grpc = grpc;
    connection->fd = fd;
    connection->since_ns = sl_now_ns();
    connection->next = grpc->connections;
    grpc->connections = connection;
    grpc->connection_count++;
    if (make_session(connection) != 0) {
        connection->is_dead = true;
        return sl_fail(err, SL_E_NO_SPACE, "no memory for a connection");
    }
    sl_grpc_connection_write(connection); /* clients wait for SETTINGS */
    return 0;
}

/* It is in no list any more. */
void sl_grpc_connection_free(struct sl_grpc_connection *connection)
{
    while (connection->streams)
        sl_grpc_stream_free(connection->streams);
    nghttp2_session_del(connection->session);
    close(connection->fd);
    connection->grpc->connection_count--;
    free(connection);
}

void sl_grpc_connection_read(struct sl_grpc_connection *connection)
{
    uint8_t bytes[READ_BYTES];
    ssize_t got = recv(connection->fd, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        connection->is_dead = true;
        return;
    }
    ssize_t taken = nghttp2_session_mem_recv(connection->session, bytes, (size_t)got);
    if (taken < 0) {
        sl_log(SL_LOG_DEBUG, "a connection to '%s' ends: %s", connection->grpc->socket,
               nghttp2_strerror((int)taken));
        connection->is_ending = true;
        sl_grpc_connection_write(connection);
        connection->is_dead = true;
        return;
    }
    sl_grpc_connection_write(connection);
}

void sl_grpc_connection_write(struct sl_grpc_connection *connection)
{
    while (!connection->is_dead) {
        if (!connection->out_bytes) {
            ssize_t bytes = nghttp2_session_mem_send(connection->session, &connection->out);
            if (bytes < 0)
                connection->is_dead = true;
            if (bytes <= 0)
                break;
            connection->out_bytes = (size_t)bytes;
        }
        ssize_t sent = send(connection->fd, connection->out, connection->out_bytes,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno == EAGAIN) {
            if (!connection->blocked_ns)
                connection->blocked_ns = sl_now_ns();
            return;
        }
        if (sent < 0) {
            connection->is_dead = true;
            return;
        }
        connection->out += sent;
        connection->out_bytes -= (size_t)sent;
        connection->blocked_ns = 0;
    }
    if (!connection->is_dead && !nghttp2_session_want_read(connection->session) &&
        !nghttp2_session_want_write(connection->session))
        connection->is_dead = true;
    if (connection->is_ending && !connection->stream_count && !connection->out_bytes)
        connection->is_dead = true;
}

void sl_grpc_connection_end(struct sl_grpc_connection *connection)
{
    if (connection->is_ending || connection->is_dead)
        return;
    connection->is_ending = true;
    nghttp2_submit_goaway(connection->session, NGHTTP2_FLAG_NONE,
                          nghttp2_session_get_last_proc_stream_id(connection->session),
                          NGHTTP2_NO_ERROR, NULL, 0);
    sl_grpc_connection_write(connection);
}

/* ---- time ----------------------------------------------------------------------------------- */

/* When the connection itself is late. One that is idle may stay: sidecars end when theirs is
 * closed; the idlest goes when its place is needed. */
static uint64_t own_next(const struct sl_grpc_connection *connection)
{
    if (connection->blocked_ns)
        return connection->blocked_ns + SL_GRPC_ANSWER_NS;
    if (!connection->is_greeted)
        return connection->since_ns + SL_GRPC_GREETING_NS;
    return UINT64_MAX;
}

uint64_t sl_grpc_connection_next(const struct sl_grpc_connection *connection)
{
    uint64_t next = own_next(connection);
    for (const struct sl_grpc_stream *stream = connection->streams; stream; stream = stream->next)
        next = SL_MIN(next, SL_MIN(stream->by_ns, stream->deadline_ns));
    return next;
}

void sl_grpc_connection_turn(struct sl_grpc_connection *connection, uint64_t now_ns)
{
    if (own_next(connection) <= now_ns) {
        connection->is_dead = true;
        return;
    }
    for (struct sl_grpc_stream *stream = connection->streams; stream; stream = stream->next) {
        if (stream->deadline_ns <= now_ns) {
            if (stream->job)
                sl_grpc_work_leave(connection->grpc, stream->job);
            sl_grpc_stream_answer(stream, SL_GRPC_DEADLINE_EXCEEDED,
                                  "the call exceeded the caller's deadline", NULL);
        } else if (stream->by_ns <= now_ns) {
            stream->by_ns = UINT64_MAX; /* it is gone with this */
            nghttp2_submit_rst_stream(connection->session, NGHTTP2_FLAG_NONE, stream->id,
                                      NGHTTP2_CANCEL);
        }
    }
    sl_grpc_connection_write(connection);
}

/* nghttp2's client side, blocking: what it wants to send goes out before anything is read. */
#include "grpc_client.h"

#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fake_clock.h"

enum { STREAMS_MAX = 4096 };

struct call {
    struct grpc_answer answer;
    struct sl_buf body;
    size_t at;
    bool open;
};
struct grpc_client {
    int fd; /* -1: bytes are kept */
    nghttp2_session *session;
    struct call *calls[STREAMS_MAX]; /* by (id - 1) / 2 */
    bool closed, goaway;
};

static struct call *call_of(struct grpc_client *client, int32_t id)
{
    size_t at = (size_t)(id - 1) / 2;
    return id > 0 && at < STREAMS_MAX ? client->calls[at] : NULL;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_bytes, const uint8_t *value, size_t value_bytes, uint8_t flags,
                     void *arg)
{
    struct call *call = call_of(arg, frame->hd.stream_id);
    (void)session, (void)flags, (void)name_bytes, (void)value_bytes;
    if (!call)
        return 0;
    if (strcmp((const char *)name, ":status") == 0)
        call->answer.http_status = (int)strtol((const char *)value, NULL, 10);
    if (strcmp((const char *)name, "grpc-status") == 0)
        call->answer.code = (int)strtol((const char *)value, NULL, 10);
    if (strcmp((const char *)name, "grpc-message") == 0)
        snprintf(call->answer.text, sizeof(call->answer.text), "%s", (const char *)value);
    if (strcmp((const char *)name, "content-type") == 0)
        snprintf(call->answer.content_type, sizeof(call->answer.content_type), "%s",
                 (const char *)value);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t bytes, void *arg)
{
    struct call *call = call_of(arg, id);
    (void)session, (void)flags;
    return call && sl_buf_append(&call->answer.body, data, bytes, NULL) < 0 ? -1 : 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct grpc_client *client = arg;
    struct call *call = call_of(client, frame->hd.stream_id);
    (void)session;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        client->goaway = true;
    if (call && frame->hd.type == NGHTTP2_HEADERS)
        call->answer.header_frames++;
    return 0;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error, void *arg)
{
    struct call *call = call_of(arg, id);
    (void)session;
    if (call) {
        call->answer.ended = true;
        call->answer.reset = error;
    }
    return 0;
}

static ssize_t give(nghttp2_session *session, int32_t id, uint8_t *to, size_t room, uint32_t *flags,
                    nghttp2_data_source *from, void *arg)
{
    struct call *call = from->ptr;
    size_t bytes = SL_MIN(room, call->body.used - call->at);
    (void)session, (void)id, (void)arg;
    if (!bytes && call->open)
        return NGHTTP2_ERR_DEFERRED;
    if (bytes)
        memcpy(to, call->body.data + call->at, bytes);
    call->at += bytes;
    if (call->at == call->body.used && !call->open)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    return (ssize_t)bytes;
}

int grpc_client_connect(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static struct grpc_client *make(int fd)
{
    struct grpc_client *client = sl_alloc(sizeof(*client), NULL);
    nghttp2_session_callbacks *callbacks;
    if (!client || nghttp2_session_callbacks_new(&callbacks) != 0)
        abort();
    client->fd = fd;
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    nghttp2_option *option;
    nghttp2_option_new(&option);
    nghttp2_option_set_no_http_messaging(option, 1);
    if (nghttp2_session_client_new2(&client->session, callbacks, client, option) != 0 ||
        nghttp2_submit_settings(client->session, NGHTTP2_FLAG_NONE, NULL, 0) != 0)
        abort();
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return client;
}

struct grpc_client *grpc_client_open(const char *path)
{
    int fd = grpc_client_connect(path);
    if (fd < 0)
        abort();
    return make(fd);
}

void grpc_client_close(struct grpc_client *client)
{
    for (size_t i = 0; i < STREAMS_MAX; i++)
        if (client->calls[i]) {
            sl_buf_release(&client->calls[i]->body);
            sl_buf_release(&client->calls[i]->answer.body);
            free(client->calls[i]);
        }
    nghttp2_session_del(client->session);
    if (client->fd >= 0)
        close(client->fd);
    free(client);
}

static nghttp2_nv header(const char *name, const char *value)
{
    return (nghttp2_nv){.name = (uint8_t *)name,
                        .namelen = strlen(name),
                        .value = (uint8_t *)value,
                        .valuelen = strlen(value),
                        .flags = NGHTTP2_NV_FLAG_NO_COPY_NAME}; /* a copy would be in lower case */
}

static size_t add(nghttp2_nv *headers, size_t count, const char *name, const char *value,
                  const char *usual)
{
    value = value ? value : usual;
    if (value && *value)
        headers[count++] = header(name, value);
    return count;
}

int32_t grpc_client_begin(struct grpc_client *client, const struct grpc_wish *wish)
{
    nghttp2_nv headers[9];
    size_t count = 0;
    struct call *call = sl_alloc(sizeof(*call), NULL);
    if (!call)
        abort();
    call->answer.code = -1;
    call->answer.body = (struct sl_buf)SL_BUF_INIT(8 << 20);
    call->body = (struct sl_buf)SL_BUF_INIT(16 << 20);
    call->open = wish->open;
    count = add(headers, count, ":method", wish->method, "POST");
    count = add(headers, count, ":scheme", NULL, "http");
    count = add(headers, count, ":path", wish->path, NULL);
    count = add(headers, count, ":authority", wish->authority, "localhost");
    count = add(headers, count, "content-type", wish->content_type, "application/grpc");
    count = add(headers, count, "te", NULL, "trailers");
    count = add(headers, count, "grpc-timeout", wish->timeout, NULL);
    if (wish->more_name)
        count = add(headers, count, wish->more_name, wish->more_value, NULL);
    if (wish->body) {
        sl_buf_append(&call->body, wish->body, wish->body_bytes, NULL);
    } else {
        uint32_t bytes = (uint32_t)wish->bytes;
        const uint8_t prefix[] = {0, (uint8_t)(bytes >> 24), (uint8_t)(bytes >> 16),
                                  (uint8_t)(bytes >> 8), (uint8_t)bytes};
        sl_buf_append(&call->body, prefix, sizeof(prefix), NULL);
        sl_buf_append(&call->body, wish->message, wish->bytes, NULL);
    }
    const nghttp2_data_provider body = {.source.ptr = call, .read_callback = give};
    int32_t id = nghttp2_submit_request(client->session, NULL, headers, count, &body, NULL);
    if (id < 0 || (size_t)(id - 1) / 2 >= STREAMS_MAX)
        abort();
    client->calls[(id - 1) / 2] = call;
    return id;
}

static void send_all(struct grpc_client *client)
{
    const uint8_t *out;
    ssize_t bytes;
    while (!client->closed && (bytes = nghttp2_session_mem_send(client->session, &out)) > 0)
        for (ssize_t at = 0, sent; at < bytes && !client->closed; at += SL_MAX(sent, 0))
            if ((sent = send(client->fd, out + at, (size_t)(bytes - at), MSG_NOSIGNAL)) < 0)
                break; /* what it had to say is still there to read */
}

bool grpc_client_step(struct grpc_client *client, int ms)
{
    uint8_t bytes[16384];
    struct pollfd fd = {.fd = client->fd, .events = POLLIN};
    send_all(client);
    if (fake_clock_poll(&fd, 1, ms) <= 0)
        return !client->closed;
    ssize_t got = recv(client->fd, bytes, sizeof(bytes), 0);
    if (got <= 0 || nghttp2_session_mem_recv(client->session, bytes, (size_t)got) < 0)
        client->closed = true;
    send_all(client);
    return !client->closed;
}

struct grpc_answer *grpc_client_answer(struct grpc_client *client, int32_t id)
{
    return &call_of(client, id)->answer;
}

bool grpc_client_await(struct grpc_client *client, int32_t id)
{
    while (!grpc_client_answer(client, id)->ended)
        if (!grpc_client_step(client, -1))
            return grpc_client_answer(client, id)->ended;
    return true;
}

struct grpc_answer *grpc_client_call(struct grpc_client *client, const struct grpc_wish *wish)
{
    int32_t id = grpc_client_begin(client, wish);
    grpc_client_await(client, id);
    return grpc_client_answer(client, id);
}

void grpc_client_reset(struct grpc_client *client, int32_t id, uint32_t error)
{
    nghttp2_submit_rst_stream(client->session, NGHTTP2_FLAG_NONE, id, error);
    send_all(client);
}

bool grpc_client_got_goaway(const struct grpc_client *client)
{
    return client->goaway;
}

void grpc_client_bytes(const struct grpc_wish *wish, struct sl_buf *bytes)
{
    struct grpc_client *client = make(-1);
    const uint8_t *out;
    ssize_t got;
    grpc_client_begin(client, wish);
    while ((got = nghttp2_session_mem_send(client->session, &out)) > 0)
        sl_buf_append(bytes, out, (size_t)got, NULL);
    grpc_client_close(client);
}

/*
 * One call as the loop sees it: headers, then the body, then the answer. What is wrong with a
 * request is remembered and told when all of it has come, so that a client that is still sending
 * gets an answer and no reset; its body is thrown away meanwhile.
 */
#include <stdio.h>
#include <string.h>

#include "grpc_parts.h"
#include "grpc_words.h"

enum {
    PREFIX_BYTES = 5,
    BODY_BYTES_LEAST = 1024,
    BODY_BYTES_SMALL = 4096, /* always taken: of all streams there can be, that is 50 MiB */
};

int sl_grpc_stream_new(struct sl_grpc_connection *connection, int32_t id)
{
    struct sl_grpc_stream *stream = sl_alloc(sizeof(*stream), NULL);
    if (!stream)
        return -1;
    stream->connection = connection;
    stream->id = id;
    stream->row = connection->grpc->config.method_count;
    stream->timeout_ns = stream->deadline_ns = UINT64_MAX;
    stream->by_ns = sl_now_ns() + SL_GRPC_REQUEST_NS;
    stream->answer = (struct sl_buf)SL_BUF_INIT(SL_GRPC_RESPONSE_BYTES + PREFIX_BYTES);
    stream->next = connection->streams;
    if (stream->next)
        stream->next->previous = stream;
    connection->streams = stream;
    connection->stream_count++;
    nghttp2_session_set_stream_user_data(connection->session, id, stream);
    return 0;
}

static void drop_body(struct sl_grpc_stream *stream)
{
    stream->connection->grpc->held_bytes -= stream->body_capacity;
    free(sl_steal(&stream->body));
    stream->body_capacity = 0;
}

void sl_grpc_stream_free(struct sl_grpc_stream *stream)
{
    struct sl_grpc_connection *connection = stream->connection;
    if (stream->job)
        sl_grpc_work_leave(connection->grpc, stream->job);
    drop_body(stream);
    sl_buf_release(&stream->answer);
    if (stream->previous)
        stream->previous->next = stream->next;
    else
        connection->streams = stream->next;
    if (stream->next)
        stream->next->previous = stream->previous;
    connection->stream_count--;
    connection->since_ns = sl_now_ns();
    free(stream);
}

/* ---- headers -------------------------------------------------------------------------------- */

static bool is(const char *text, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && memcmp(text, wanted, bytes) == 0;
}

/* Once, and before the others. */
static bool once(struct sl_grpc_stream *stream, bool *has)
{
    bool first = !*has && !stream->has_plain;
    *has = true;
    return first;
}

static bool take_pseudo(struct sl_grpc_stream *stream, const char *name, size_t name_bytes,
                        const char *value, size_t value_bytes)
{
    const struct sl_grpc_config *config = &stream->connection->grpc->config;
    if (is(name, name_bytes, ":method")) {
        stream->is_post = is(value, value_bytes, "POST");
        return once(stream, &stream->has_method);
    }
    if (is(name, name_bytes, ":path")) {
        for (size_t i = 0; i < config->method_count; i++)
            if (is(value, value_bytes, config->methods[i].path))
                stream->row = i;
        return once(stream, &stream->has_path);
    }
    /* Clients put paths and escapes into the authority; neither it nor the scheme matters here. */
    return !stream->has_plain &&
           (is(name, name_bytes, ":scheme") || is(name, name_bytes, ":authority"));
}

bool sl_grpc_stream_header(struct sl_grpc_stream *stream, const char *name, size_t name_bytes,
                           const char *value, size_t value_bytes)
{
    stream->header_bytes += name_bytes + value_bytes + 32; /* as RFC 9113 counts them, 6.5.2 */
    if (stream->header_bytes > SL_GRPC_HEADER_BYTES || !name_bytes)
        return false;
    if (name[0] == ':')
        return take_pseudo(stream, name, name_bytes, value, value_bytes);
    stream->has_plain = true;
    for (size_t i = 0; i < name_bytes; i++)
        if (name[i] <= ' ' || name[i] >= 0x7f || (name[i] >= 'A' && name[i] <= 'Z'))
            return false; /* RFC 9113, 8.2.1 */
    if (is(name, name_bytes, "content-type")) {
        stream->is_grpc = sl_grpc_is_content_type(value, value_bytes) &&
                          (!stream->has_content_type || stream->is_grpc);
        stream->has_content_type = true;
    } else if (is(name, name_bytes, "grpc-timeout")) {
        stream->is_timeout_bad |=
            stream->is_timed || !sl_grpc_timeout_parse(value, value_bytes, &stream->timeout_ns);
        stream->is_timed = true;
    }
    return true;
}

/* ---- the body ------------------------------------------------------------------------------- */

static void refuse(struct sl_grpc_stream *stream, enum sl_grpc_code code, const char *text)
{
    stream->is_refused = true;
    stream->refused_code = code;
    stream->refused_text = text;
    drop_body(stream);
}

/* Too much: the client shows this reset as RESOURCE_EXHAUSTED. */
static void reset(struct sl_grpc_stream *stream)
{
    refuse(stream, SL_GRPC_RESOURCE_EXHAUSTED, "");
    stream->is_answered = true;
    nghttp2_submit_rst_stream(stream->connection->session, NGHTTP2_FLAG_NONE, stream->id,
                              NGHTTP2_ENHANCE_YOUR_CALM);
}

/* Of the message, as its prefix tells. */
static uint32_t message_bytes(const struct sl_grpc_stream *stream)
{
    const uint8_t *at = stream->body + 1;
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Room for more of the body, as it comes: what its prefix claims takes no memory. While large ones
 * hold all that there is, small ones, as probes are, still get in. */
static bool make_room(struct sl_grpc_stream *stream, size_t need)
{
    struct sl_grpc *grpc = stream->connection->grpc;
    size_t before = stream->body_capacity, wanted = SL_MAX(before, (size_t)BODY_BYTES_LEAST);
    uint8_t *larger = NULL;
    if (need <= before)
        return true;
    while (wanted < need)
        wanted *= 2;
    if ((wanted > BODY_BYTES_SMALL && grpc->held_bytes + (wanted - before) > SL_GRPC_HELD_BYTES) ||
        !(larger = sl_alloc(wanted, NULL)))
        return false;
    if (stream->body_bytes)
        memcpy(larger, stream->body, stream->body_bytes);
    free(stream->body);
    stream->body = larger;
    stream->body_capacity = wanted;
    grpc->held_bytes += wanted - before;
    return true;
}

void sl_grpc_stream_body(struct sl_grpc_stream *stream, const uint8_t *data, size_t bytes)
{
    if (stream->is_refused) {
        stream->body_bytes += bytes;
        if (stream->body_bytes > SL_GRPC_REQUEST_BYTES + PREFIX_BYTES)
            reset(stream);
        return;
    }
    if (stream->body_bytes + bytes > SL_GRPC_REQUEST_BYTES + PREFIX_BYTES ||
        !make_room(stream, stream->body_bytes + bytes)) {
        reset(stream);
        return;
    }
    memcpy(stream->body + stream->body_bytes, data, bytes);
    stream->body_bytes += bytes;
    if (stream->body_bytes < PREFIX_BYTES)
        return;
    if (stream->body[0] != 0)
        refuse(stream, SL_GRPC_UNIMPLEMENTED, "compressed messages are not supported");
    else if (message_bytes(stream) > SL_GRPC_REQUEST_BYTES)
        reset(stream);
    else if (stream->body_bytes - PREFIX_BYTES > message_bytes(stream))
        refuse(stream, SL_GRPC_INVALID_ARGUMENT, "a call has one message, and this one has more");
}

/* ---- the answer ----------------------------------------------------------------------------- */

#define HEADER(name_text, value_text)                                                              \
    (nghttp2_nv)                                                                                   \
    {                                                                                              \
        .name = (uint8_t *)(name_text), .namelen = sizeof(name_text) - 1,                          \
        .value = (uint8_t *)(value_text), .valuelen = strlen(value_text),                          \
        .flags = NGHTTP2_NV_FLAG_NO_COPY_NAME                                                      \
    }

/* The message behind its prefix, then the trailers. */
static ssize_t give(nghttp2_session *session, int32_t id, uint8_t *to, size_t room, uint32_t *flags,
                    nghttp2_data_source *from, void *arg)
{
    struct sl_grpc_stream *stream = from->ptr;
    size_t bytes = SL_MIN(room, stream->answer.used - stream->answer_at);
    (void)arg;
    memcpy(to, stream->answer.data + stream->answer_at, bytes);
    stream->answer_at += bytes;
    if (stream->answer_at == stream->answer.used) {
        nghttp2_nv trailers[] = {HEADER("grpc-status", "0")};
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        if (nghttp2_submit_trailer(session, id, trailers, SL_COUNT(trailers)) != 0)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    return (ssize_t)bytes;
}

static int answer_message(struct sl_grpc_stream *stream, const struct sl_buf *response)
{
    const nghttp2_data_provider provider = {.source.ptr = stream, .read_callback = give};
    const nghttp2_nv headers[] = {HEADER(":status", "200"),
                                  HEADER("content-type", "application/grpc")};
    uint32_t bytes = (uint32_t)response->used;
    const uint8_t prefix[PREFIX_BYTES] = {0, (uint8_t)(bytes >> 24), (uint8_t)(bytes >> 16),
                                          (uint8_t)(bytes >> 8), (uint8_t)bytes};
    if (sl_buf_append(&stream->answer, prefix, sizeof(prefix), NULL) < 0 ||
        sl_buf_append(&stream->answer, response->data, response->used, NULL) < 0)
        return -1;
    return nghttp2_submit_response(stream->connection->session, stream->id, headers,
                                   SL_COUNT(headers), &provider);
}

/* Trailers only. */
static int answer_error(struct sl_grpc_stream *stream, enum sl_grpc_code code, const char *text)
{
    char number[16], escaped[SL_GRPC_ESCAPED_BYTES];
    snprintf(number, sizeof(number), "%d", (int)code);
    sl_grpc_escape(text, escaped);
    const nghttp2_nv headers[] = {HEADER(":status", "200"),
                                  HEADER("content-type", "application/grpc"),
                                  HEADER("grpc-status", number), HEADER("grpc-message", escaped)};
    return nghttp2_submit_response(stream->connection->session, stream->id, headers,
                                   SL_COUNT(headers), NULL);
}

static void answer_http(struct sl_grpc_stream *stream, const char *status)
{
    const nghttp2_nv headers[] = {HEADER(":status", status)};
    stream->is_answered = true;
    stream->by_ns = sl_now_ns() + SL_GRPC_ANSWER_NS;
    nghttp2_submit_response(stream->connection->session, stream->id, headers, SL_COUNT(headers),
                            NULL);
}

void sl_grpc_stream_answer(struct sl_grpc_stream *stream, enum sl_grpc_code code, const char *text,
                           struct sl_buf *response)
{
    int done = -1;
    stream->job = NULL;
    stream->is_answered = true;
    stream->deadline_ns = UINT64_MAX;
    stream->by_ns = sl_now_ns() + SL_GRPC_ANSWER_NS;
    if (code == SL_GRPC_OK)
        done = answer_message(stream, response);
    if (done != 0)
        done = answer_error(stream, code == SL_GRPC_OK ? SL_GRPC_RESOURCE_EXHAUSTED : code,
                            code == SL_GRPC_OK ? "no memory for the answer" : text);
    if (done != 0)
        nghttp2_submit_rst_stream(stream->connection->session, NGHTTP2_FLAG_NONE, stream->id,
                                  NGHTTP2_INTERNAL_ERROR);
}

/* ---- a whole request ------------------------------------------------------------------------ */

static void answer_at_once(struct sl_grpc_stream *stream, const struct sl_grpc_method *method,
                           struct sl_grpc_call *call)
{
    enum sl_grpc_code code = method->answer(stream->connection->grpc->config.arg, method, call);
    sl_grpc_stream_answer(stream, code, call->text, &call->response);
    sl_buf_release(&call->response);
    drop_body(stream);
}

static void hand_over(struct sl_grpc_stream *stream, const struct sl_grpc_method *method,
                      const struct sl_grpc_call *call)
{
    struct sl_grpc *grpc = stream->connection->grpc;
    struct sl_grpc_job *job = sl_alloc(sizeof(*job), NULL);
    struct sl_cancel *cancel = job ? sl_cancel_new(NULL) : NULL;
    if (!cancel) {
        free(job);
        sl_grpc_stream_answer(stream, SL_GRPC_RESOURCE_EXHAUSTED, "no memory for this call", NULL);
        return;
    }
    job->stream = stream;
    job->method = method;
    job->row = stream->row;
    job->call = *call;
    job->call.cancel = cancel;
    job->held_bytes = stream->body_capacity;
    job->message = sl_steal(&stream->body); /* counted with the job from now on */
    stream->body_capacity = 0;
    stream->by_ns = UINT64_MAX;
    stream->job = job;
    if (sl_grpc_work_add(grpc, job))
        return;
    stream->job = NULL;
    sl_grpc_job_free(grpc, job);
    sl_grpc_stream_answer(stream, SL_GRPC_RESOURCE_EXHAUSTED,
                          "too many calls wait here already: try again", NULL);
}

/* What is wrong with the request as one of gRPC; false: it was answered. */
static bool is_sound(struct sl_grpc_stream *stream)
{
    if (!stream->is_post || !stream->is_grpc) {
        answer_http(stream, stream->is_post ? "415" : "405");
        return false;
    }
    if (!stream->is_refused && stream->row == stream->connection->grpc->config.method_count)
        refuse(stream, SL_GRPC_UNIMPLEMENTED, "unknown method");
    else if (!stream->is_refused && stream->is_timeout_bad)
        refuse(stream, SL_GRPC_INVALID_ARGUMENT, "grpc-timeout is malformed");
    else if (!stream->is_refused && (stream->body_bytes < PREFIX_BYTES ||
                                     stream->body_bytes - PREFIX_BYTES < message_bytes(stream)))
        refuse(stream, SL_GRPC_INVALID_ARGUMENT, "the message is incomplete");
    if (stream->is_refused)
        sl_grpc_stream_answer(stream, stream->refused_code, stream->refused_text, NULL);
    return !stream->is_refused;
}

void sl_grpc_stream_run(struct sl_grpc_stream *stream)
{
    struct sl_grpc *grpc = stream->connection->grpc;
    if (stream->is_answered || !is_sound(stream))
        return;
    const struct sl_grpc_method *method = &grpc->config.methods[stream->row];
    struct sl_grpc_call call = {.request = stream->body + PREFIX_BYTES,
                                .request_bytes = stream->body_bytes - PREFIX_BYTES,
                                .deadline_ns = UINT64_MAX,
                                .response = SL_BUF_INIT(SL_GRPC_RESPONSE_BYTES)};
    if (stream->is_timed)
        call.deadline_ns = sl_add_capped(sl_now_ns(), stream->timeout_ns);
    stream->deadline_ns = call.deadline_ns;
    if (method->fast)
        answer_at_once(stream, method, &call);
    else
        hand_over(stream, method, &call);
}

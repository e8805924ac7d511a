/* Every answer leaves through web_queue(), so that no answer lacks the headers that make browsers
 * careful. */
#include <stdarg.h>
#include <stdio.h>

#include "metrics.h"
#include "web_parts.h"

const char *web_header(const struct request *request, const char *name)
{
    return sl_libmicrohttpd.lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

enum MHD_Result web_queue(const struct request *request, int status, struct MHD_Response *response)
{
    if (!response)
        return MHD_NO;
    sl_libmicrohttpd.add_response_header(response, "X-Content-Type-Options", "nosniff");
    sl_libmicrohttpd.add_response_header(response, "Referrer-Policy", "no-referrer");
    if (!sl_libmicrohttpd.get_response_header(response, "Content-Security-Policy"))
        sl_libmicrohttpd.add_response_header(response, "Content-Security-Policy",
                                             "default-src 'none'; frame-ancestors 'none'");
    if (!sl_libmicrohttpd.get_response_header(response, "Cache-Control"))
        sl_libmicrohttpd.add_response_header(response, "Cache-Control", "no-store");
    if (request->outcome)
        request->outcome->status = status;
    sl_metric_add(SL_M_HTTP_REQUESTS, 1);
    if (status >= 400)
        sl_metric_add(SL_M_HTTP_ERRORS, 1);
    enum MHD_Result result =
        sl_libmicrohttpd.queue_response(request->connection, (unsigned)status, response);
    sl_libmicrohttpd.destroy_response(response);
    return result;
}

struct MHD_Response *web_empty(void)
{
    static char nothing[1];
    return sl_libmicrohttpd.create_response_from_buffer(0, nothing, MHD_RESPMEM_PERSISTENT);
}

/* Bytes that the library sends and then gives back. */
struct answer {
    struct sl_web *web;
    size_t bytes;
    char *data;
};

static void answer_free(void *arg)
{
    struct answer *answer = arg;
    {
        SL_LOCKED(&answer->web->lock);
        answer->web->locked.unread_bytes -= answer->bytes;
    }
    free(answer->data);
    free(answer);
}

static struct answer *answer_new(struct sl_web *web, struct sl_buf *buf)
{
    struct answer *answer = sl_alloc(sizeof(*answer), NULL);
    if (!answer)
        return NULL;
    SL_LOCKED(&web->lock);
    if (web->locked.unread_bytes + buf->used <= WEB_UNREAD_BYTES_MAX) {
        size_t bytes = buf->used;
        char *data = sl_buf_steal(buf, NULL);
        if (data) {
            web->locked.unread_bytes += bytes;
            *answer = (struct answer){web, bytes, data};
            return answer;
        }
    }
    free(answer);
    return NULL;
}

static enum MHD_Result send_buf(const struct request *request, int status, const char *type,
                                const char *policy, struct sl_buf *buf)
{
    struct answer *answer = answer_new(request->web, buf);
    if (!answer)
        return web_send_error(request, 503, SL_E_NO_SPACE, 1,
                              "too many answers wait to be read: try again in a second");
    struct MHD_Response *response =
        sl_libmicrohttpd.create_response_from_buffer_with_free_callback_cls(
            answer->bytes, answer->data, answer_free, answer);
    if (!response) {
        answer_free(answer);
        return MHD_NO;
    }
    sl_libmicrohttpd.add_response_header(response, "Content-Type", type);
    if (policy)
        sl_libmicrohttpd.add_response_header(response, "Content-Security-Policy", policy);
    web_bound_socket(request, false);
    return web_queue(request, status, response);
}

enum MHD_Result web_send_buf(const struct request *request, int status, const char *type,
                             struct sl_buf *buf)
{
    return send_buf(request, status, type, NULL, buf);
}

enum MHD_Result web_send_html(const struct request *request, const char *policy, struct sl_buf *buf)
{
    return send_buf(request, 200, "text/html; charset=utf-8", policy, buf);
}

enum MHD_Result web_send_json(const struct request *request, int status, struct sl_json *json)
{
    enum MHD_Result result;
    if (sl_json_text(json, NULL) && sl_buf_append(&json->buf, "\n", 1, NULL) == 0)
        result = web_send_buf(request, status, "application/json", &json->buf);
    else
        result = web_send_error(request, 507, SL_E_NO_SPACE, 0,
                                "the answer is larger than %d MiB, or memory is short: ask for a "
                                "part of it",
                                WEB_ANSWER_BYTES_MAX >> 20);
    sl_json_release(json);
    return result;
}

static struct MHD_Response *error_response(const struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, 8192);
    sl_json_object(&json);
    sl_json_key(&json, "error");
    sl_json_object(&json);
    sl_json_key_string(&json, "kind", sl_err_row(err->kind)->name);
    sl_json_key_string(&json, "code", err->code);
    sl_json_key_string(&json, "message", err->message);
    sl_json_end(&json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, NULL);
    struct MHD_Response *response = NULL;
    if (text && sl_buf_append(&json.buf, "\n", 1, NULL) == 0)
        response = sl_libmicrohttpd.create_response_from_buffer(json.buf.used, json.buf.data,
                                                                MHD_RESPMEM_MUST_COPY);
    sl_json_release(&json);
    return response;
}

enum MHD_Result web_send_failure(const struct request *request, int status,
                                 const struct sl_err *err)
{
    char seconds[16];
    struct MHD_Response *response = error_response(err);
    if (!response)
        return MHD_NO;
    sl_libmicrohttpd.add_response_header(response, "Content-Type", "application/json");
    if (status == 405)
        sl_libmicrohttpd.add_response_header(response, "Allow",
                                             request->allow ? request->allow : "GET, HEAD");
    if (status == 401)
        sl_libmicrohttpd.add_response_header(response, "WWW-Authenticate",
                                             "Bearer realm=\"sluice\"");
    if (request->outcome)
        snprintf(request->outcome->message, sizeof(request->outcome->message), "%s", err->message);
    if (err->retry_after_ms) {
        snprintf(seconds, sizeof(seconds), "%u", (err->retry_after_ms + 999) / 1000);
        sl_libmicrohttpd.add_response_header(response, "Retry-After", seconds);
    }
    return web_queue(request, status, response);
}

enum MHD_Result web_send_error(const struct request *request, int status, enum sl_err_kind kind,
                               unsigned retry_seconds, const char *format, ...)
{
    struct sl_err err = {.kind = kind, .retry_after_ms = retry_seconds * 1000};
    va_list args;
    va_start(args, format);
    vsnprintf(err.message, 512, format, args);
    va_end(args);
    return web_send_failure(request, status, &err);
}

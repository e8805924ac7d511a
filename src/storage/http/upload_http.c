/*
 * A new object of a web server, by one PUT (WebDAV servers, presigned URLs).
 *
 * A PUT cannot be resumed, so all that can be refused is refused before its body: whether the
 * object is there is asked by HEAD, and the head of the PUT goes ahead (Expect: 100-continue), so
 * that missing rights, redirects and servers that take no PUT are known before the first byte was
 * fetched for nothing. From then on bytes go straight from the caller to the socket, in order. The
 * last byte is kept until sl_upload_finish(): a server that lacks it throws the others away.
 *
 * Objects up to SMALL_BYTES are kept whole and sent at the end, again if it must be. Where a PUT is
 * repeated because its answer was lost, and the server now has the object, it is read back: only if
 * it has our bytes are they taken for ours.
 *
 * Redirects are followed with method and body (307, 308), others are refused; HEAD follows all of
 * them, but does not tell the PUT where to go. Some servers want the body first and redirect then
 * (nginx with "return"), so the beginning of a stream is kept and can be sent once more.
 */
#include <stdio.h>
#include <string.h>

#include "http_call.h"
#include "http_store.h"
#include "upload_backend.h"

enum {
    SMALL_BYTES = 8 * 1024 * 1024, /* more than sockets take before an answer is heard */
    ANSWER_BYTES_MAX = 64 * 1024,
};

struct http_upload {
    struct sl_upload *upload;
    struct sl_store *store;
    struct sl_http_object *object; /* the URL as the PUT sees it, with its redirects */
    struct sl_exchange *exchange;
    char what[400];  /* "cannot write 'https://…'" */
    char *asked_url; /* of the last request */
    uint8_t *start;  /* the first SMALL_BYTES */
    bool whole;      /* which is all; else: */

    struct {
        bool begun;           /* the server waits for the body */
        unsigned moves;       /* after it had begun */
        uint64_t given, sent; /* by the caller, to this server */
        uint8_t last;         /* byte */
    } stream;
};

/* ---- one request ---------------------------------------------------------------------------- */

struct ask {
    struct http_upload *http;
    struct sl_http_object *object;
    const char *method;
    uint64_t stream_bytes;
    bool condition;
};

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    const struct ask *ask = arg;
    struct http_upload *http = ask->http;
    if (sl_http_prepare(http->store->impl, ask->object, request, err) < 0)
        return -1;
    free(http->asked_url);
    http->asked_url = sl_strdup(request->url, err);
    if (!http->asked_url)
        return -1;
    if (strcmp(ask->method, "PUT") == 0 &&
        sl_range_add_header(request, err, "Content-Type: application/octet-stream") < 0)
        return -1;
    if (ask->condition && sl_range_add_header(request, err, "If-None-Match: *") < 0)
        return -1;
    return ask->stream_bytes ? sl_range_add_header(request, err, "Expect: 100-continue") : 0;
}

/* Of a PUT only those that keep method and body. */
static int redirect(void *arg, const char *from, const char *to, int status, struct sl_err *err)
{
    const struct ask *ask = arg;
    bool reads = strcmp(ask->method, "PUT") != 0;
    if (status != 307 && status != 308 && !reads)
        return 1;
    return sl_http_redirect(ask->http->store->impl, ask->object, from, to, status, err);
}

/* Whoever asked judges what neither passes nor can be recovered. */
static bool is_answer(void *arg, const struct sl_answer *answer)
{
    (void)arg;
    return !sl_retry_status(answer->status) && answer->status != 401;
}

static bool recover(void *arg, const struct sl_err *why)
{
    const struct ask *ask = arg;
    struct sl_err ignored = SL_ERR_INIT;
    return sl_http_recover(ask->http->store->impl, ask->object, why, &ignored);
}

/* What the text of a refusal begins with tells people more than the status. */
static int refuse(const struct http_upload *http, const struct sl_answer *answer,
                  struct sl_err *err)
{
    static const struct {
        int status;
        enum sl_err_kind kind;
        const char *advice;
    } rules[] = {
        {301, SL_E_USAGE, "it moves the upload elsewhere: name that place"},
        {302, SL_E_USAGE, "it moves the upload elsewhere: name that place"},
        {303, SL_E_USAGE, "it moves the upload elsewhere: name that place"},
        {307, SL_E_USAGE, "it moves the upload elsewhere: name that place"},
        {308, SL_E_USAGE, "it moves the upload elsewhere: name that place"},
        {401, SL_E_AUTH, "check the credentials (source.http, .netrc)"},
        {403, SL_E_AUTH, "the credentials may not write there, or there are none"},
        {404, SL_E_NOT_FOUND, "there is no such folder to write into: make it on the server first"},
        {405, SL_E_USAGE,
         "the server takes no PUT there: allow it (nginx: dav_methods PUT), or "
         "write to a file or a bucket"},
        {409, SL_E_USAGE,
         "the folder is missing: make it on the server first (nginx: "
         "create_full_put_path on)"},
        {411, SL_E_NET, "a proxy hides the length"},
        {413, SL_E_NO_SPACE, "it is larger than the server takes (nginx: client_max_body_size)"},
        {501, SL_E_USAGE, "the server knows no PUT: write to a file or a bucket"},
        {507, SL_E_NO_SPACE, "the server's disk is full"},
    };
    int status = answer->status;
    for (size_t i = 0; i < SL_COUNT(rules); i++)
        if (rules[i].status == status) {
            sl_fail(err, rules[i].kind, "%s: the server answered %d: %s", http->what, status,
                    rules[i].advice);
            err->http_status = status;
            err->retryable = false;
            return -1;
        }
    if (status == 412)
        return sl_fail_code(
            err, SL_E_USAGE, "exists",
            "'%.380s' exists: name another destination, or replace it with --replace",
            http->upload->uri);
    char retry_after[64];
    bool later = sl_answer_header(answer, "Retry-After", retry_after, sizeof(retry_after));
    return sl_http_fail(err, status, later ? retry_after : NULL, http->what,
                        status == 500 ? "(is the folder there? nginx makes it with "
                                        "create_full_put_path on)"
                                      : "");
}

static int refuse_ask(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    const struct ask *ask = arg;
    return refuse(ask->http, answer, err);
}

static struct sl_http_call call_of(struct ask *ask)
{
    return (struct sl_http_call){.what = ask->http->what,
                                 .method = ask->method,
                                 .answer_limit = ANSWER_BYTES_MAX,
                                 .stream_bytes = ask->stream_bytes,
                                 .arg = ask,
                                 .prepare = prepare,
                                 .is_success = is_answer,
                                 .redirect = redirect,
                                 .refuse = refuse_ask,
                                 .recover = recover};
}

/* 0 with any answer that is neither a redirect that is followed nor one that may pass (release
 * it); status 0 where a stream may begin. err must not be NULL. */
static int converse(const struct sl_http_call *call, struct sl_answer *answer, unsigned *tried,
                    struct sl_err *err)
{
    const struct ask *ask = call->arg;
    return sl_http_call(&ask->http->store->config, ask->http->exchange, call, answer, tried, err);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* By HEAD. What is neither a success nor "not found" tells nothing: such servers take uploads and
 * show nothing. */
static int refuse_existing(struct http_upload *http, const char *url, struct sl_err *err)
{
    SL_AUTO(sl_http_object) there = sl_http_object_new(url, err);
    struct ask head = {.http = http, .object = there, .method = "HEAD"};
    const struct sl_http_call call = call_of(&head);
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    if (!there)
        return -1;
    if (converse(&call, &answer, NULL, &why) < 0) {
        if (why.http_status == 401)
            return 0;
        *err = why;
        return -1;
    }
    bool exists = answer.status >= 200 && answer.status < 300;
    sl_answer_release(&answer);
    if (!exists)
        return 0;
    answer.status = 412;
    return refuse(http, &answer, err);
}

static int http_open(struct sl_upload *upload, const char *uri, struct sl_err *err)
{
    struct http_upload *http = upload->impl = sl_alloc(sizeof(*http), err);
    sl_autofree char *key = NULL, *url = NULL;
    if (!http)
        return -1;
    http->upload = upload;
    if (sl_store_open_kind(upload->kind, uri, upload->config.source, &http->store, &key, err) < 0)
        return -1;
    if (!*key)
        return sl_fail(err, SL_E_USAGE, "'%s' names a folder: name the object to write",
                       sl_store_uri(http->store));
    if (sl_http_store_url(http->store, key, &url, &upload->uri, err) < 0)
        return -1;
    http->object = sl_http_object_new(url, err);
    if (!http->object)
        return -1;
    snprintf(http->what, sizeof(http->what), "cannot write '%.380s'", upload->uri);
    const struct sl_connect connect = {.tls = http->store->config.tls,
                                       .cancel = upload->source.cancel,
                                       .stall_seconds = upload->source.stall_seconds};
    http->exchange = sl_exchange_new(&connect, err);
    if (!http->exchange || (!upload->config.replace && refuse_existing(http, url, err) < 0))
        return -1;
    http->whole = upload->bytes <= SMALL_BYTES;
    http->start = sl_alloc(http->whole ? upload->bytes : SMALL_BYTES, err);
    return http->start ? 0 : -1;
}

/* ---- the stream ----------------------------------------------------------------------------- */

static struct ask put_of(struct http_upload *http, uint64_t stream_bytes)
{
    return (struct ask){.http = http,
                        .object = http->object,
                        .method = "PUT",
                        .stream_bytes = stream_bytes,
                        .condition = !http->upload->config.replace};
}

static int begin(struct http_upload *http, struct sl_err *err)
{
    struct sl_answer answer = {0};
    struct ask put = put_of(http, http->upload->bytes);
    const struct sl_http_call call = call_of(&put);
    if (converse(&call, &answer, NULL, err) < 0)
        return -1;
    if (answer.status) {
        if (answer.status < 300)
            sl_fail(err, SL_E_NET, "%s: the server answered %d before it had the bytes", http->what,
                    answer.status);
        else
            refuse(http, &answer, err);
        sl_answer_release(&answer);
        return -1;
    }
    http->stream.begun = true;
    http->stream.sent = 0;
    return 0;
}

/* The server answered in mid-body: 0 if the stream began anew elsewhere. kept: so much of it can
 * still be sent again. */
static int answered_early(struct http_upload *http, uint64_t kept, struct sl_err *err)
{
    struct sl_answer answer;
    if (sl_exchange_answer(http->exchange, ANSWER_BYTES_MAX, &answer, err) < 0)
        return sl_wrap(err, "%s", http->what);
    struct ask put = put_of(http, http->upload->bytes);
    const struct sl_http_call call = call_of(&put);
    int followed = http->stream.sent > kept
                       ? 1
                       : sl_http_follow(&call, http->asked_url, &answer, &http->stream.moves, err);
    if (followed <= 0) {
        sl_answer_release(&answer);
        return followed == 0 ? begin(http, err) : -1;
    }
    if (answer.status < 300)
        sl_fail(err, SL_E_NET, "%s: the server answered %d before it had all bytes", http->what,
                answer.status);
    else
        refuse(http, &answer, err);
    sl_answer_release(&answer);
    return -1;
}

static int fail_stream(const struct http_upload *http, struct sl_err *err)
{
    if (err->kind != SL_E_CANCELED)
        sl_wrap(err,
                "%s: an upload by PUT cannot be resumed, begin again, and look whether the server "
                "kept a part of it",
                http->what);
    err->retryable = false;
    return -1;
}

/* Keep what of these bytes belongs to the beginning. */
static void keep_start(struct http_upload *http, const uint8_t *data, size_t bytes)
{
    uint64_t given = http->stream.given;
    if (given < SMALL_BYTES)
        memcpy(http->start + given, data, SL_MIN(bytes, SMALL_BYTES - given));
}

static int send_bytes(struct http_upload *http, const uint8_t *data, size_t bytes,
                      struct sl_err *err)
{
    uint64_t before = http->stream.given, end = before + bytes;
    uint64_t kept = before <= SMALL_BYTES ? end : 0;
    keep_start(http, data, bytes);
    http->stream.given = end;
    while (http->stream.sent < end) {
        uint64_t at = http->stream.sent;
        const uint8_t *from = at < before ? http->start + at : data + (at - before);
        size_t taken, more = (size_t)((at < before ? before : end) - at);
        enum sl_io_state state = sl_exchange_send(http->exchange, from, more, &taken, err);
        if (state == SL_IO_END && answered_early(http, kept, err) < 0)
            return -1;
        if (state == SL_IO_FAILED ||
            (state == SL_IO_WAIT && sl_exchange_wait(http->exchange, err) < 0))
            return fail_stream(http, err);
        if (state != SL_IO_END)
            http->stream.sent += taken;
    }
    return 0;
}

static int http_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                      struct sl_err *err)
{
    struct http_upload *http = upload->impl;
    if (http->whole) {
        memcpy(http->start + offset, data, bytes);
        return 0;
    }
    if (!http->stream.begun && begin(http, err) < 0)
        return -1;
    bool ends = offset + bytes == upload->bytes;
    if (ends)
        http->stream.last = ((const uint8_t *)data)[bytes - 1];
    return send_bytes(http, data, bytes - ends, err);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Does the server have our bytes, although it answers that there is an object already? */
static bool is_ours(struct http_upload *http)
{
    struct ask get = {.http = http, .object = http->object, .method = "GET"};
    struct sl_http_call call = call_of(&get);
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    call.answer_limit = http->upload->bytes + 1;
    if (converse(&call, &answer, NULL, &why) < 0)
        return false;
    bool ours = answer.status == 200 && answer.body.used == http->upload->bytes &&
                memcmp(sl_buf_string(&answer.body), http->start, answer.body.used) == 0;
    sl_answer_release(&answer);
    return ours;
}

static int put_whole(struct http_upload *http, struct sl_err *err)
{
    struct sl_answer answer = {0};
    struct ask put = put_of(http, 0);
    struct sl_http_call call = call_of(&put);
    unsigned tried = 0;
    call.body = http->start;
    call.body_bytes = http->upload->bytes;
    sl_exchange_abort(http->exchange); /* a new connection is not made anew in silence */
    if (converse(&call, &answer, &tried, err) < 0)
        return -1;
    bool good = answer.status >= 200 && answer.status < 300;
    if (!good)
        good = answer.status == 412 && tried > 1 && is_ours(http);
    if (!good)
        refuse(http, &answer, err);
    sl_answer_release(&answer);
    return good ? 0 : -1;
}

static int http_finish(struct sl_upload *upload, struct sl_err *err)
{
    struct http_upload *http = upload->impl;
    struct sl_answer answer;
    if (http->whole)
        return put_whole(http, err);
    if (send_bytes(http, &http->stream.last, 1, err) < 0)
        return -1;
    if (sl_exchange_answer(http->exchange, ANSWER_BYTES_MAX, &answer, err) < 0)
        return fail_stream(http, err);
    bool good = answer.status >= 200 && answer.status < 300;
    if (!good)
        refuse(http, &answer, err);
    sl_answer_release(&answer);
    return good ? 0 : -1;
}

static void http_close(struct sl_upload *upload)
{
    struct http_upload *http = upload->impl;
    if (!http)
        return;
    sl_exchange_free(http->exchange);
    sl_http_object_free(http->object);
    sl_store_free(http->store);
    free(http->asked_url);
    free(http->start);
    free(http);
}

const struct sl_upload_ops sl_upload_http_ops = {
    .in_order = true,
    .open = http_open,
    .write = http_write,
    .finish = http_finish,
    .close = http_close,
};

/*
 * OAuth 2.0's token endpoints (RFC 6749 sections 4 and 5) and the metadata services that answer
 * alike. Each answer is a stranger's: limited in size, and never quoted where it could hold a
 * token.
 */
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "retry.h"
#include "thread_cancel.h"
#include "tokens.h"
#include "url.h"

enum {
    ANSWER_BYTES_MAX = 256 * 1024,
    SECONDS_DEFAULT = 10,
    TRIES_DEFAULT = 3,
    PAUSE_MS = 200,
    LIFETIME_SECONDS_MAX = 30 * 24 * 3600,
};

int sl_token_url_check(const char *url, const char *whose, struct sl_err *err)
{
    sl_autourl parsed = {0};
    if (sl_url_parse(url, &parsed, err) < 0) {
        if (err && err->kind == SL_E_USAGE)
            err->kind = SL_E_AUTH;
        return sl_wrap(err, "%s", whose);
    }
    if (parsed.userinfo)
        return sl_fail(err, SL_E_AUTH, "%s: expected a URL without user and password", whose);
    if (!parsed.tls && !sl_url_host_is_near(parsed.host))
        return sl_fail(
            err, SL_E_AUTH,
            "%s: '%.100s' is plain http, which is allowed only within this machine: use https",
            whose, parsed.host);
    return 0;
}

int sl_token_check(const char *text, const char *origin, struct sl_err *err)
{
    size_t bytes = strlen(text);
    if (!bytes)
        return sl_fail(err, SL_E_AUTH, "%s is empty", origin);
    if (bytes > SL_TOKEN_BYTES_MAX / 4)
        return sl_fail(err, SL_E_AUTH, "%s is longer than %d bytes", origin,
                       SL_TOKEN_BYTES_MAX / 4);
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)text[i] <= 0x20 || (unsigned char)text[i] >= 0x7f)
            return sl_fail(err, SL_E_AUTH, "%s contains a blank or a byte that no header may carry",
                           origin);
    return 0;
}

char *sl_token_from_file(const char *path, struct sl_err *err)
{
    char origin[300];
    sl_autosecretbuf buf = SL_BUF_INIT(SL_TOKEN_BYTES_MAX);
    snprintf(origin, sizeof(origin), "token file '%.280s'", path);
    if (sl_buf_read_file(&buf, path, err) < 0) {
        if (err && err->kind != SL_E_NO_SPACE)
            err->kind = SL_E_AUTH;
        sl_wrap(err, "token file");
        return NULL;
    }
    sl_buf_trim(&buf);
    const char *text = sl_buf_string(&buf);
    return sl_token_check(text, origin, err) < 0 ? NULL : sl_strdup(text, err);
}

/* One try on a connection of its own. */
static int ask(const struct sl_token_request *request, struct sl_cancel *cancel,
               struct sl_answer *answer, struct sl_err *err)
{
    unsigned seconds = request->seconds ? request->seconds : SECONDS_DEFAULT, count = 0;
    const struct sl_connect connect = {.tls = request->tls,
                                       .cancel = cancel,
                                       .stall_seconds = seconds,
                                       .connect_seconds = seconds,
                                       .direct = request->direct};
    const char *headers[8] = {0};
    char type[128];
    for (; request->headers && request->headers[count] && count < 6; count++)
        headers[count] = request->headers[count];
    snprintf(type, sizeof(type), "Content-Type: %.100s",
             request->form_type ? request->form_type : "application/x-www-form-urlencoded");
    if (request->form)
        headers[count] = type;
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, err);
    const struct sl_request http = {.method = request->form ? "POST" : "GET",
                                    .url = request->url,
                                    .headers = headers,
                                    .body = request->form,
                                    .body_bytes = request->form ? strlen(request->form) : 0};
    return exchange ? sl_exchange_simple(exchange, &http, ANSWER_BYTES_MAX, answer, err) : -1;
}

int sl_token_request(const struct sl_token_request *request, struct sl_answer *answer,
                     struct sl_err *err)
{
    unsigned limit = request->tries ? request->tries : TRIES_DEFAULT;
    struct sl_cancel *cancel = sl_thread_cancel(request->cancel);
    for (unsigned tries = 1;; tries++) {
        struct sl_err why = SL_ERR_INIT;
        int result = ask(request, cancel, answer, &why);
        bool passing = result < 0 ? why.retryable : sl_retry_status(answer->status);
        if (!passing || tries >= limit) {
            if (result == 0)
                return 0;
            if (err)
                *err = why;
            return sl_wrap(err, "%s", request->what);
        }
        if (result == 0)
            sl_secret_answer_release(answer);
        if (sl_sleep_ms(PAUSE_MS << (tries - 1), cancel, err) < 0)
            return -1;
    }
}

/* "error" and "error_description" of RFC 6749 section 5.2, or {"error": {"message"}}. */
int sl_token_refused(const struct sl_token_request *request, const struct sl_answer *answer,
                     const char *advice, struct sl_err *err)
{
    json_t *json = sl_json_parse(sl_buf_string(&answer->body), answer->body.used, "answer", NULL);
    const char *code = json ? sl_json_get_string(json, "error") : NULL;
    const char *text = json ? sl_json_get_string(json, "error_description") : NULL;
    const json_t *inner = json ? json_object_get(json, "error") : NULL;
    if (inner && json_is_object(inner)) {
        code = sl_json_get_string(inner, "status");
        text = sl_json_get_string(inner, "message");
    }
    sl_fail_code(err, SL_E_AUTH, code ? code : "", "%s: %d%s%.60s%s%.200s: %s", request->what,
                 answer->status, code ? " " : "", code ? code : "", text ? ", " : "",
                 text ? text : "", advice);
    json_decref(json);
    if (err) {
        err->http_status = 0; /* of the service, not of the store */
        err->retryable = false;
    }
    return -1;
}

/* A number, or a text of one. */
static int64_t seconds_of(const json_t *value)
{
    uint64_t seconds = 0;
    const char *text = json_string_value(value);
    if (json_is_integer(value))
        return json_integer_value(value);
    if (text && sl_take_digits(&text, &seconds) && !*text)
        return (int64_t)SL_MIN(seconds, (uint64_t)LIFETIME_SECONDS_MAX);
    return -1;
}

int sl_token_take(const struct sl_token_request *request, const struct sl_answer *answer,
                  char **text, int64_t *expires, struct sl_err *err)
{
    json_t *json = sl_json_parse(sl_buf_string(&answer->body), answer->body.used, "answer", NULL);
    const char *token = json ? sl_json_get_string(json, "access_token") : NULL;
    int64_t lifetime = json ? seconds_of(json_object_get(json, "expires_in")) : -1;
    int result = -1;
    if (!token)
        sl_fail(err, SL_E_AUTH, "%s: the answer has no access_token", request->what);
    else if (lifetime <= 0)
        sl_fail(err, SL_E_AUTH, "%s: the answer does not say when its token expires",
                request->what);
    else if (sl_token_check(token, "the token of the answer", err) < 0)
        sl_wrap(err, "%s", request->what);
    else
        result = (*text = sl_strdup(token, err)) ? 0 : -1;
    if (result == 0)
        *expires = sl_wall_seconds() + SL_MIN(lifetime, (int64_t)LIFETIME_SECONDS_MAX);
    json_decref(json);
    return result;
}

/* What is done with whole small answers: reading them in one blocking call, finding headers,
 * turning statuses into errors. */
#include <string.h>

#include "exchange_state.h"
#include "http_head.h"
#include "retry.h"

enum { READ_BYTES = 16 * 1024 };

bool sl_exchange_leads_to(const struct sl_exchange *exchange, const struct sl_host *host)
{
    return sl_link_leads_to(exchange->link, host);
}

struct sl_answered sl_exchange_answered(const struct sl_exchange *exchange)
{
    return (struct sl_answered){.ns = exchange->answer_ns, .twice = exchange->twice};
}

int sl_exchange_status(const struct sl_exchange *exchange)
{
    return exchange->head_text ? exchange->head.status : 0;
}

int64_t sl_exchange_content_length(const struct sl_exchange *exchange)
{
    return exchange->head_text ? exchange->head.content_length : -1;
}

const char *sl_exchange_header(const struct sl_exchange *exchange, const char *name)
{
    size_t bytes;
    return exchange->head_text
               ? sl_head_find(exchange->head_text, exchange->head_bytes, name, 0, &bytes)
               : NULL;
}

/* All header lines of the answer, each ended by "\r\n", the status line first. */
static char *head_lines(const struct sl_exchange *exchange, struct sl_err *err)
{
    char *lines =
        sl_strndup(exchange->head_text ? exchange->head_text : "", exchange->head_bytes, err);
    for (size_t i = 0; lines && i < exchange->head_bytes; i++)
        if (!lines[i])
            lines[i] = '\r';
    return lines;
}

static int check_end(struct sl_exchange *exchange, struct sl_err *err)
{
    if (sl_cancel_check(exchange->connect.cancel, err) < 0)
        return -1;
    return sl_cancel_check(exchange->connect.stop, err);
}

int sl_exchange_pause(struct sl_exchange *exchange, unsigned ms, struct sl_err *err)
{
    struct pollfd fds[] = {{sl_cancel_fd(exchange->connect.cancel), POLLIN, 0},
                           {sl_cancel_fd(exchange->connect.stop), POLLIN, 0}};
    uint64_t end = sl_now_ns() + ms * SL_NS_PER_MS;
    for (uint64_t now; check_end(exchange, NULL) == 0 && (now = sl_now_ns()) < end;)
        poll(fds, SL_COUNT(fds), (int)((end - now) / SL_NS_PER_MS + 1));
    return check_end(exchange, err);
}

void sl_exchange_linger(struct sl_exchange *exchange, unsigned seconds)
{
    exchange->linger_ns = seconds * SL_NS_PER_S;
    exchange->linger_end_ns = 0;
}

/* It has been told to end, and waits for an answer all the same. */
static bool lingers(struct sl_exchange *exchange)
{
    uint64_t now = sl_now_ns();
    bool sent = exchange->phase == SL_X_HEAD || exchange->phase == SL_X_BODY;
    if (!exchange->linger_ns || !sent || check_end(exchange, NULL) == 0)
        return false;
    if (!exchange->linger_end_ns)
        exchange->linger_end_ns = now + exchange->linger_ns;
    return now < exchange->linger_end_ns;
}

int sl_exchange_wait(struct sl_exchange *exchange, struct sl_err *err)
{
    struct pollfd fds[SL_IO_POLL_MAX + 2];
    uint64_t deadline_ns, now = sl_now_ns();
    int count = sl_exchange_poll(exchange, fds, &deadline_ns), timeout_ms = -1;
    if (lingers(exchange)) {
        deadline_ns = SL_MIN(deadline_ns, exchange->linger_end_ns);
    } else {
        fds[count++] = (struct pollfd){sl_cancel_fd(exchange->connect.cancel), POLLIN, 0};
        fds[count++] = (struct pollfd){sl_cancel_fd(exchange->connect.stop), POLLIN, 0};
    }
    if (deadline_ns <= now)
        timeout_ms = 0;
    else if (deadline_ns != UINT64_MAX)
        timeout_ms = (int)SL_MIN((deadline_ns - now) / SL_NS_PER_MS + 1, 60000);
    poll(fds, (nfds_t)count, timeout_ms);
    return lingers(exchange) ? 0 : check_end(exchange, err);
}

static int read_body(struct sl_exchange *exchange, struct sl_buf *body, struct sl_err *err)
{
    sl_autofree char *chunk = sl_alloc(READ_BYTES, err);
    enum sl_io_state state = chunk ? SL_IO_WAIT : SL_IO_FAILED;
    while (state != SL_IO_END && state != SL_IO_FAILED) {
        size_t got;
        state = sl_exchange_body(exchange, chunk, READ_BYTES, &got, err);
        if (state == SL_IO_DATA && sl_buf_append(body, chunk, got, err) < 0)
            return sl_wrap(err, "the answer is too large");
        if (state == SL_IO_WAIT && sl_exchange_wait(exchange, err) < 0)
            return -1;
    }
    return state == SL_IO_END ? 0 : -1;
}

int sl_exchange_answer(struct sl_exchange *exchange, size_t body_limit, struct sl_answer *answer,
                       struct sl_err *err)
{
    enum sl_io_state state;
    *answer = (struct sl_answer){.body = SL_BUF_INIT(body_limit)};
    while ((state = sl_exchange_head(exchange, err)) == SL_IO_WAIT)
        if (sl_exchange_wait(exchange, err) < 0)
            break;
    if (state == SL_IO_DATA) {
        answer->status = sl_exchange_status(exchange);
        answer->head = head_lines(exchange, err);
        if (answer->head && read_body(exchange, &answer->body, err) == 0)
            return 0;
    }
    sl_exchange_abort(exchange);
    sl_answer_release(answer);
    return -1;
}

int sl_exchange_simple(struct sl_exchange *exchange, const struct sl_request *request,
                       size_t body_limit, struct sl_answer *answer, struct sl_err *err)
{
    *answer = (struct sl_answer){.body = SL_BUF_INIT(body_limit)};
    if (check_end(exchange, err) < 0 || sl_exchange_start(exchange, request, err) < 0)
        return -1;
    return sl_exchange_answer(exchange, body_limit, answer, err);
}

void sl_answer_release(struct sl_answer *answer)
{
    sl_buf_release(&answer->body);
    free(answer->head);
    answer->head = NULL;
}

bool sl_answer_header(const struct sl_answer *answer, const char *name, char *text, size_t bytes)
{
    size_t value_bytes;
    const char *value =
        answer->head ? sl_head_find(answer->head, strlen(answer->head), name, 0, &value_bytes)
                     : NULL;
    if (!value)
        return false;
    value_bytes = SL_MIN(value_bytes, bytes - 1);
    memcpy(text, value, value_bytes);
    text[value_bytes] = 0;
    return true;
}

char *sl_answer_header_whole(const struct sl_answer *answer, const char *name, struct sl_err *err)
{
    size_t bytes, head_bytes = answer->head ? strlen(answer->head) : 0;
    sl_autobuf whole = SL_BUF_INIT(SL_HEADERS_BYTES_MAX);
    const char *value;
    for (unsigned nth = 0;
         answer->head && (value = sl_head_find(answer->head, head_bytes, name, nth, &bytes)); nth++)
        if ((nth && sl_buf_text(&whole, ", ", err) < 0) ||
            sl_buf_append(&whole, value, bytes, err) < 0)
            return NULL;
    return sl_buf_steal(&whole, err);
}

/* A refusal of the request as it is, whenever it is sent; not of what may be otherwise soon, and
 * not of its range, which was taken before. */
static bool is_for_good(int status)
{
    static const int others[] = {408, 409, 416, 423, 425, 429};
    for (size_t i = 0; i < SL_COUNT(others); i++)
        if (status == others[i])
            return false;
    return status >= 400 && status < 500;
}

static const char *advice(int status)
{
    switch (status) {
    case 400:
        return "the server takes no such request: check the address, whether it is http or https, "
               "and what is there";
    case 401:
    case 403:
        return "the server refuses the credentials, or there are none: check them and their rights";
    case 404:
    case 410:
        return "it does not exist: check the name";
    case 412:
        return "it changed while it was read";
    case 429:
    case 503:
        return "the server is too busy";
    case 407:
        return "the proxy wants a login: give it in the proxy's URL";
    default:
        return is_for_good(status)
                   ? "the server takes no such request: check the address, and what is there"
                   : "";
    }
}

int sl_http_fail(struct sl_err *err, int status, const char *retry_after, const char *what,
                 const char *detail)
{
    enum sl_err_kind kind = SL_E_NET;
    const char *next = advice(status);
    if (status == 401 || status == 403 || status == 407)
        kind = SL_E_AUTH;
    else if (status == 404 || status == 410)
        kind = SL_E_NOT_FOUND;
    else if (status == 412)
        kind = SL_E_INTEGRITY;
    else if (is_for_good(status))
        kind = SL_E_USAGE;
    sl_fail_code(err, kind, status == 412 ? "changed" : "", "%s: the server answered %d%s%s%s%s",
                 what, status, detail && *detail ? " " : "", detail ? detail : "",
                 *next ? "; " : "", next);
    if (!err)
        return -1;
    err->http_status = status;
    err->retryable = sl_retry_status(status);
    err->retry_after_ms = retry_after ? sl_retry_after_ms(retry_after, sl_wall_seconds()) : 0;
    return -1;
}

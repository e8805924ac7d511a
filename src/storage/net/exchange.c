/*
 * A state machine over one link: connect, send, head, body. Body bytes go from the socket into the
 * caller's memory; only what came together with the head passes through our buffer.
 *
 *     IDLE ──▶ CONNECTING ──▶ SENDING ─────────▶ HEAD ──▶ BODY ──▶ DRAINED, kept open or closed:
 *                  ▲             │                ▲ ▲              the next request is SENDING on
 *                  │             └──▶ STREAM ─────┘ │              it, or CONNECTING anew
 *                  │                  the caller's  1xx: the next head
 *                  └── a connection that had been idle broke before it answered: once, on a new one
 *
 * An answer that comes before all of the request is sent leads from SENDING or STREAM straight to
 * BODY, and its connection is not kept. One that was made ahead is CONNECTING without a request,
 * and counts as idle. Any failure drops the connection and is IDLE, and so does an abort. Only the
 * thread that has the exchange moves it.
 *
 * Stall: a window begins when the request is sent and starts over with every 64 KiB of the answer.
 * When it is older than stall_seconds and nothing is waiting in the socket, the answer has stalled;
 * a trickle is not a progress. Time in which the caller was busy elsewhere does not count.
 *
 * A request that may be hedged and is silent is sent twice: exchange_hedge.c.
 *
 * While a plain connection is in the middle of a body, poll() wakes only for 256 KiB or the rest
 * (SO_RCVLOWAT): fewer, fuller reads.
 */
#include "exchange.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "exchange_state.h"
#include "latency.h"
#include "metrics.h"
#include "progress.h"
#include "proxy.h"
#include "retry.h"
#include "url.h"

enum {
    IN_BYTES_FIRST = 8 * 1024,
    INTERIM_MAX = 16,
    STALL_BYTES = 64 * 1024,
    REQUEST_BYTES_MAX = 64 * 1024 * 1024,
    PROXY_WANTS_LOGIN = 407,
};
/* A connection that was made ahead longer ago may be near its time to connect, or forgotten. */
#define AHEAD_NS_MAX (5 * SL_NS_PER_S)

struct sl_exchange *sl_exchange_new(const struct sl_connect *connect, struct sl_err *err)
{
    SL_AUTO(sl_exchange) exchange = sl_alloc(sizeof(*exchange), err);
    if (!exchange)
        return NULL;
    exchange->connect = *connect;
    exchange->out.limit = REQUEST_BYTES_MAX;
    exchange->in_capacity = IN_BYTES_FIRST;
    exchange->in = sl_alloc(IN_BYTES_FIRST, err);
    exchange->link = exchange->in ? sl_link_new(&exchange->connect, err) : NULL;
    return exchange->link ? sl_steal(&exchange) : NULL;
}

void sl_exchange_free(struct sl_exchange *exchange)
{
    if (!exchange)
        return;
    if (exchange->link)
        sl_exchange_abort(exchange);
    sl_link_free(exchange->link);
    sl_buf_release(&exchange->out);
    free(exchange->route);
    free(exchange->open_url);
    free(exchange->open_proxy);
    free(exchange->subject);
    free(exchange->in);
    free(exchange->head_text);
    free(exchange);
}

bool sl_exchange_leads_to(const struct sl_exchange *exchange, const struct sl_host *host)
{
    return sl_link_leads_to(exchange->link, host);
}

struct sl_cancel *sl_exchange_cancel(const struct sl_exchange *exchange)
{
    return exchange->connect.cancel;
}

/* ---- the request ----------------------------------------------------------------------------- */

/* Proxy-Authorization from the proxy's own URL. */
static int add_proxy_login(struct sl_exchange *exchange, const struct sl_url *proxy,
                           struct sl_err *err)
{
    if (!proxy->userinfo)
        return 0;
    size_t colon = strcspn(proxy->userinfo, ":");
    const char *rest = proxy->userinfo + colon + (proxy->userinfo[colon] == ':');
    sl_autofree char *user = sl_url_decode(proxy->userinfo, colon, err);
    sl_autofree char *password = user ? sl_url_decode(rest, strlen(rest), err) : NULL;
    sl_autofree char *basic = password ? sl_http_basic(user, password, err) : NULL;
    return basic ? sl_buf_printf(&exchange->out, err, "Proxy-Authorization: %s\r\n", basic) : -1;
}

static int add_headers(struct sl_exchange *exchange, const struct sl_request *request,
                       struct sl_err *err)
{
    for (const char *const *header = request->headers; header && *header; header++) {
        const char *colon = strchr(*header, ':');
        if (!colon || colon == *header)
            return sl_fail(err, SL_E_USAGE, "a request header without a name");
        for (const char *c = *header; *c; c++)
            if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
                return sl_fail(err, SL_E_USAGE,
                               "the request header '%.*s' holds control characters",
                               (int)SL_MIN(colon - *header, 60), *header);
        if (sl_buf_printf(&exchange->out, err, "%s\r\n", *header) < 0)
            return -1;
    }
    return 0;
}

static int build_request(struct sl_exchange *exchange, const struct sl_request *request,
                         const struct sl_url *url, const struct sl_url *forward, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX];
    struct sl_buf *out = &exchange->out;
    for (const char *c = request->method; *c || c == request->method; c++)
        if (*c < 'A' || *c > 'Z')
            return sl_fail(err, SL_E_USAGE, "bad request method");
    sl_url_authority(url, authority);
    out->used = 0;
    if (sl_buf_printf(out, err, "%s %s%s%s HTTP/1.1\r\nHost: %s\r\n", request->method,
                      forward ? "http://" : "", forward ? authority : "", url->target,
                      authority) < 0 ||
        sl_buf_text(out, "User-Agent: sluice/" SLUICE_VERSION "\r\nAccept-Encoding: identity\r\n",
                    err) < 0 ||
        (forward && add_proxy_login(exchange, forward, err) < 0) ||
        add_headers(exchange, request, err) < 0)
        return -1;
    uint64_t bytes = request->stream_bytes ? request->stream_bytes : request->body_bytes;
    bool length =
        bytes || strcmp(request->method, "PUT") == 0 || strcmp(request->method, "POST") == 0;
    bool copied = request->body_bytes && !request->lent;
    if ((length && sl_buf_printf(out, err, "Content-Length: %" PRIu64 "\r\n", bytes) < 0) ||
        sl_buf_text(out, "\r\n", err) < 0 ||
        (copied && sl_buf_append(out, request->body, request->body_bytes, err) < 0))
        return -1;
    exchange->body = request->lent ? request->body : NULL;
    exchange->body_bytes = request->lent ? request->body_bytes : 0;
    exchange->stream_bytes = request->stream_bytes;
    exchange->bodiless = strcmp(request->method, "HEAD") == 0;
    return 0;
}

static int replace(char **text, char *value)
{
    if (!value)
        return -1;
    free(*text);
    *text = value;
    return 0;
}

static int lead_to(struct sl_exchange *exchange, const struct sl_url *to, const char *proxy,
                   char **route, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX];
    if (replace(&exchange->open_url, sl_asprintf(err, "http%s://%s/", to->tls ? "s" : "",
                                                 sl_url_authority(to, authority))) < 0 ||
        replace(&exchange->open_proxy, sl_strdup(proxy, err)) < 0)
        return -1;
    *route = sl_asprintf(err, "%s %s", exchange->open_url, exchange->open_proxy);
    return *route ? 0 : -1;
}

static int lead_via(struct sl_exchange *exchange, const char *via, char **route, struct sl_err *err)
{
    sl_autourl to = {0};
    return sl_url_parse(via, &to, err) < 0 ? -1 : lead_to(exchange, &to, "", route, err);
}

/*
 * Where the link must lead: to what the request goes by, or to the origin, through a tunnel if
 * there is a proxy, except that plain http goes to an http proxy itself. *forward is that proxy,
 * host NULL if there is none.
 */
static int choose_route(struct sl_exchange *exchange, const struct sl_url *url, const char *via,
                        struct sl_url *forward, char **route, struct sl_err *err)
{
    sl_autofree char *proxy = NULL;
    if (via)
        return lead_via(exchange, via, route, err);
    if (!exchange->connect.direct && sl_proxy_find(url, &proxy, err) < 0)
        return -1;
    if (!proxy || url->tls || strncmp(proxy, "http", 4) != 0)
        return lead_to(exchange, url, proxy ? proxy : "", route, err);
    if (sl_url_parse(proxy, forward, err) < 0)
        return sl_wrap(err, "the proxy for '%s'", url->host);
    return lead_to(exchange, forward, "", route, err);
}

int sl_exchange_reconnect(struct sl_exchange *exchange, struct sl_err *err)
{
    exchange->answers = 0;
    exchange->preconnected = false;
    exchange->in_begin = exchange->in_end = 0;
    exchange->sent = 0;
    exchange->phase = SL_X_CONNECTING;
    if (sl_link_open(exchange->link, exchange->open_url, exchange->open_proxy, err) == 0)
        return 0;
    exchange->phase = SL_X_IDLE;
    return -1;
}

static char *name_subject(const struct sl_request *request, const char *url,
                          const struct sl_url *forward, struct sl_err *err)
{
    char authority[SL_URL_AUTHORITY_MAX];
    const char *method = request->method;
    if (request->via)
        return sl_asprintf(err, "%s %s through '%s'", method, url, request->via);
    if (!forward->host)
        return sl_asprintf(err, "%s %s", method, url);
    return sl_asprintf(err, "%s %s through the proxy '%s'", method, url,
                       sl_url_authority(forward, authority));
}

static int start(struct sl_exchange *exchange, const struct sl_request *request, struct sl_err *err)
{
    sl_autourl url = {0};
    sl_autourl forward = {0};
    sl_autofree char *route = NULL;
    if (sl_url_parse(request->url, &url, err) < 0 ||
        choose_route(exchange, &url, request->via, &forward, &route, err) < 0)
        return -1;
    sl_autofree char *shown = sl_url_format(&url, false, err);
    if (!shown || replace(&exchange->subject, name_subject(request, shown, &forward, err)) < 0 ||
        build_request(exchange, request, &url, forward.host ? &forward : NULL, err) < 0)
        return -1;

    bool same = exchange->route && strcmp(exchange->route, route) == 0;
    bool reuse = same && exchange->phase == SL_X_DRAINED && sl_link_idle(exchange->link) &&
                 !sl_link_is_past(exchange->link);
    bool ahead = same && exchange->preconnected && exchange->phase == SL_X_CONNECTING &&
                 sl_now_ns() - exchange->ahead_ns < AHEAD_NS_MAX;
    exchange->forwarded = forward.host != NULL;
    exchange->answered = exchange->wanted = false;
    exchange->interim = 0;
    exchange->streamed = 0;
    bool repeatable = exchange->bodiless || strcmp(request->method, "GET") == 0;
    exchange->hedge = repeatable ? request->hedge : 0;
    exchange->twice = exchange->distant = false;
    exchange->hedge_ns = 0;
    exchange->away_ns = exchange->came = exchange->absent_ns = 0;
    exchange->pace.turn_ns = 0;
    free(exchange->route);
    exchange->route = sl_steal(&route);
    if (ahead)
        return 0;
    if (!reuse)
        return sl_exchange_reconnect(exchange, err);
    sl_link_expect(exchange->link, 1);
    exchange->sent = 0;
    exchange->phase = SL_X_SENDING;
    exchange->window_ns = sl_now_ns();
    exchange->window_bytes = 0;
    return 0;
}

int sl_exchange_start(struct sl_exchange *exchange, const struct sl_request *request,
                      struct sl_err *err)
{
    bool ahead = exchange->phase == SL_X_CONNECTING && exchange->preconnected;
    if (exchange->phase != SL_X_DRAINED && !ahead)
        sl_exchange_abort(exchange);
    exchange->answer_ns = 0;
    free(sl_steal(&exchange->head_text));
    exchange->head_bytes = 0;
    if (start(exchange, request, err) == 0)
        return 0;
    sl_exchange_abort(exchange);
    return -1;
}

/* How fast the answer was, for choosing among the addresses of a host. */
void sl_exchange_note_answer(struct sl_exchange *exchange, bool whole)
{
    uint64_t now = exchange->away_ns ? exchange->away_ns : sl_now_ns();
    uint64_t ns = now - exchange->asked_ns,
             moved_ns = SL_MAX(exchange->moved_ns, exchange->asked_ns);
    if (!whole && now >= moved_ns && sl_latency_is_silent(now - moved_ns))
        sl_link_note_silence(exchange->link);
    ns -= SL_MIN(exchange->absent_ns, ns);
    if (whole && exchange->head.status >= 500)
        sl_link_note_trouble(exchange->link);
    else
        sl_link_note_answer(exchange->link, exchange->came, ns, whole);
}

void sl_exchange_drop(struct sl_exchange *exchange)
{
    if (exchange->phase == SL_X_HEAD || exchange->phase == SL_X_BODY)
        sl_exchange_note_answer(exchange, false);
    sl_link_close(exchange->link);
    exchange->in_begin = exchange->in_end = 0;
    exchange->preconnected = false;
    exchange->pending.kind = SL_OK;
    exchange->phase = SL_X_IDLE;
}

void sl_exchange_abort(struct sl_exchange *exchange)
{
    sl_exchange_drop_hedged(exchange);
    sl_exchange_drop(exchange);
}

/* ---- progress -------------------------------------------------------------------------------- */

static unsigned stall_seconds(const struct sl_exchange *exchange)
{
    return sl_latency_stall_seconds(exchange->connect.stall_seconds);
}

/* The caller came back: the time that it was away was not the server's. */
void sl_exchange_enter(struct sl_exchange *exchange)
{
    if (!exchange->away_ns)
        return;
    uint64_t ns = sl_now_ns() - exchange->away_ns;
    exchange->window_ns += ns;
    exchange->absent_ns += ns;
    exchange->moved_ns += ns;
    exchange->away_ns = 0;
}

void sl_exchange_progress(struct sl_exchange *exchange, size_t bytes)
{
    exchange->window_bytes += bytes;
    if (exchange->window_bytes >= STALL_BYTES) {
        exchange->window_bytes = 0;
        exchange->window_ns = sl_now_ns();
    }
}

enum sl_io_state sl_exchange_fail(struct sl_exchange *exchange)
{
    if (exchange->phase > SL_X_CONNECTING && exchange->phase < SL_X_DRAINED)
        sl_link_note_trouble(exchange->link);
    sl_exchange_drop(exchange);
    return SL_IO_FAILED;
}

/* Nothing is there now: wait, unless it has been too little for too long. */
enum sl_io_state sl_exchange_stay(struct sl_exchange *exchange, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (exchange->phase == SL_X_BODY && now >= sl_exchange_hedge_at(exchange)) {
        sl_metric_add(SL_M_SOURCE_HEDGES, 1);
        sl_progress_add_hedge(exchange->connect.progress);
        sl_link_note_wait(exchange->link, exchange->hedge_ns); /* it may have been usual */
        sl_fail_code(err, SL_E_NET, "stall", "%s stalled: no byte for %" PRIu64 " ms",
                     exchange->subject, exchange->hedge_ns / (uint64_t)SL_NS_PER_MS);
        return sl_exchange_fail(exchange);
    }
    if (now < exchange->window_ns + stall_seconds(exchange) * SL_NS_PER_S)
        return SL_IO_WAIT;
    sl_fail_code(err, SL_E_NET, "stall", "%s stalled: %" PRIu64 " bytes in %u s", exchange->subject,
                 exchange->window_bytes, stall_seconds(exchange));
    return sl_exchange_fail(exchange);
}

/* An idle connection that the server had closed meanwhile is not a failure: send again on a new
 * one, once. */
enum sl_io_state sl_exchange_broken(struct sl_exchange *exchange, struct sl_err *err)
{
    bool idle = exchange->answers || exchange->preconnected;
    if (exchange->answered || !idle || exchange->streamed) {
        sl_wrap(err, "%s", exchange->subject);
        return sl_exchange_fail(exchange);
    }
    if (err)
        *err = (struct sl_err)SL_ERR_INIT;
    return sl_exchange_reconnect(exchange, err) == 0 ? SL_IO_WAIT : sl_exchange_fail(exchange);
}

/* More bytes behind in_end: DATA if any came; the end of the stream sets *ended. */
enum sl_io_state sl_exchange_receive(struct sl_exchange *exchange, bool *ended, struct sl_err *err)
{
    *ended = false;
    if (exchange->in_begin == exchange->in_end)
        exchange->in_begin = exchange->in_end = 0;
    if (exchange->in_end == exchange->in_capacity && exchange->in_begin) {
        memmove(exchange->in, exchange->in + exchange->in_begin,
                exchange->in_end - exchange->in_begin);
        exchange->in_end -= exchange->in_begin;
        exchange->in_begin = 0;
    }
    if (exchange->in_end == exchange->in_capacity &&
        sl_grow(&exchange->in, &exchange->in_capacity, exchange->in_capacity * 2, 1, err) < 0)
        return sl_exchange_fail(exchange);
    ssize_t came = sl_link_recv(exchange->link, exchange->in + exchange->in_end,
                                exchange->in_capacity - exchange->in_end, err);
    if (came == SL_LINK_AGAIN)
        return sl_exchange_stay(exchange, err);
    if (came < 0)
        return sl_exchange_broken(exchange, err);
    if (came == 0) {
        *ended = true;
        return SL_IO_DATA;
    }
    exchange->answered = true;
    exchange->in_end += (size_t)came;
    sl_exchange_progress(exchange, (size_t)came);
    return SL_IO_DATA;
}

/* ---- the head -------------------------------------------------------------------------------- */

enum sl_io_state sl_exchange_refuse(struct sl_exchange *exchange, bool retryable, const char *why,
                                    struct sl_err *err)
{
    sl_fail(err, SL_E_NET, "%s: %s", exchange->subject, why);
    if (err)
        err->retryable = retryable;
    return sl_exchange_fail(exchange);
}

static void begin_body(struct sl_exchange *exchange)
{
    struct sl_head *head = &exchange->head;
    exchange->moved_ns = sl_now_ns();
    if (exchange->phase == SL_X_HEAD)
        exchange->answer_ns = SL_MAX(exchange->moved_ns - exchange->sending_ns, UINT64_C(1));
    exchange->phase = SL_X_BODY;
    exchange->chunk = SL_X_CHUNK_SIZE;
    exchange->left = 0;
    exchange->trailer_bytes = 0;
    if (exchange->bodiless || head->status == 204 || head->status == 304)
        head->framing = SL_FRAMING_LENGTH;
    else if (head->framing == SL_FRAMING_LENGTH)
        exchange->left = (uint64_t)head->content_length;
}

/* Keep the head with every line ended by "\0\n" and without blanks before that: values are strings
 * then. */
static int keep_head(struct sl_exchange *exchange, const char *text, size_t bytes,
                     struct sl_err *err)
{
    free(exchange->head_text);
    char *out = exchange->head_text = sl_alloc(2 * bytes + 2, err);
    if (!out)
        return -1;
    for (size_t at = 0, line_end; at < bytes; at = line_end + 1) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        line_end = newline ? (size_t)(newline - text) : bytes;
        size_t used = line_end - at;
        while (used && strchr("\r \t", text[at + used - 1]))
            used--;
        memcpy(out, text + at, used);
        out += used;
        *out++ = 0;
        *out++ = '\n';
    }
    exchange->head_bytes = (size_t)(out - exchange->head_text);
    return 0;
}

/* A whole head lies in the buffer: DATA if it is the answer's, WAIT if it was an interim one. */
static enum sl_io_state take_head(struct sl_exchange *exchange, size_t bytes, struct sl_err *err)
{
    const char *text = exchange->in + exchange->in_begin;
    if (sl_head_parse(text, bytes, &exchange->head, err) < 0) {
        sl_wrap(err, "%s", exchange->subject);
        return sl_exchange_fail(exchange);
    }
    if (exchange->head.status < 200) {
        exchange->in_begin += bytes;
        exchange->wanted |= exchange->head.status == 100;
        if (exchange->head.status == 101 || ++exchange->interim > INTERIM_MAX)
            return sl_exchange_refuse(exchange, false, "the server goes on answering 1xx", err);
        return SL_IO_WAIT;
    }
    if (exchange->forwarded && exchange->head.status == PROXY_WANTS_LOGIN) {
        sl_fail(err, SL_E_AUTH, "%s: the proxy " SL_PROXY_LOGIN, exchange->subject);
        if (err)
            err->http_status = PROXY_WANTS_LOGIN;
        return sl_exchange_fail(exchange);
    }
    if (keep_head(exchange, text, bytes, err) < 0)
        return sl_exchange_fail(exchange);
    exchange->in_begin += bytes;
    begin_body(exchange);
    return SL_IO_DATA;
}

enum sl_io_state sl_exchange_read_head(struct sl_exchange *exchange, struct sl_err *err)
{
    for (;;) {
        size_t there = exchange->in_end - exchange->in_begin;
        size_t bytes = there ? sl_head_end(exchange->in + exchange->in_begin, there) : 0;
        if (bytes > SL_HEADERS_BYTES_MAX || (!bytes && there >= SL_HEADERS_BYTES_MAX))
            return sl_exchange_refuse(exchange, false,
                                      "the head of the answer is larger than 64 KiB", err);
        if (bytes) {
            enum sl_io_state state = take_head(exchange, bytes, err);
            if (state != SL_IO_WAIT)
                return state;
            continue;
        }
        bool ended;
        enum sl_io_state state = sl_exchange_receive(exchange, &ended, err);
        if (state != SL_IO_DATA)
            return state;
        if (ended) {
            sl_fail(err, SL_E_NET,
                    there ? "the server closed the connection within the head of its answer"
                          : "the server closed the connection without an answer");
            return sl_exchange_broken(exchange, err);
        }
    }
}

enum sl_io_state sl_exchange_begin(struct sl_exchange *exchange, struct sl_err *err)
{
    if (exchange->phase == SL_X_CONNECTING) {
        enum sl_io_state state = sl_link_connect(exchange->link, err);
        if (state == SL_IO_FAILED)
            return sl_exchange_broken(exchange, err);
        if (state == SL_IO_WAIT)
            return state;
        exchange->phase = SL_X_SENDING;
        exchange->window_ns = sl_now_ns();
        exchange->window_bytes = 0;
    }
    return exchange->phase == SL_X_SENDING ? sl_exchange_send_start(exchange, err) : SL_IO_DATA;
}

enum sl_io_state sl_exchange_own_head(struct sl_exchange *exchange, struct sl_err *err)
{
    sl_exchange_enter(exchange);
    for (;;) {
        bool connecting = exchange->phase == SL_X_CONNECTING;
        enum sl_io_state state = sl_exchange_begin(exchange, err);
        if (exchange->phase == SL_X_HEAD && state == SL_IO_DATA)
            state = sl_exchange_read_head(exchange, err);
        if (exchange->phase == SL_X_CONNECTING && !connecting) /* the idle connection was dead */
            continue;
        if (exchange->phase == SL_X_BODY) {
            exchange->away_ns = sl_now_ns();
            return SL_IO_DATA;
        }
        if (exchange->phase == SL_X_STREAM)
            return sl_exchange_refuse(exchange, false, "its body is not sent yet", err);
        if (exchange->phase == SL_X_IDLE && state != SL_IO_FAILED)
            return sl_exchange_refuse(exchange, false, "no request was begun", err);
        return state;
    }
}

enum sl_io_state sl_exchange_head(struct sl_exchange *exchange, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    enum sl_io_state state = sl_exchange_own_head(exchange, &why);
    return sl_exchange_race(exchange, state, &why, err);
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

char *sl_exchange_head_lines(const struct sl_exchange *exchange, struct sl_err *err)
{
    char *lines =
        sl_strndup(exchange->head_text ? exchange->head_text : "", exchange->head_bytes, err);
    for (size_t i = 0; lines && i < exchange->head_bytes; i++)
        if (!lines[i])
            lines[i] = '\r';
    return lines;
}

static int poll_own(const struct sl_exchange *exchange, struct pollfd fds[SL_LINK_POLL_MAX],
                    uint64_t *deadline_ns)
{
    if (exchange->phase == SL_X_IDLE || exchange->phase == SL_X_DRAINED) {
        *deadline_ns = 0;
        return 0;
    }
    if (exchange->phase == SL_X_BODY && exchange->pace.turn_ns) {
        *deadline_ns = exchange->pace.turn_ns;
        return 0;
    }
    bool offered = exchange->phase == SL_X_STREAM && !exchange->wanted;
    bool sends = exchange->phase == SL_X_SENDING || (exchange->phase == SL_X_STREAM && !offered);
    int count = sl_link_poll(exchange->link, sends, fds, deadline_ns);
    if (offered)
        *deadline_ns = exchange->asked_ns + SL_X_OFFER_NS;
    else if (exchange->phase != SL_X_CONNECTING)
        *deadline_ns = SL_MIN(SL_MIN(exchange->window_ns + stall_seconds(exchange) * SL_NS_PER_S,
                                     sl_exchange_hedge_at(exchange)),
                              sl_exchange_distance_end(exchange));
    return count;
}

int sl_exchange_poll(struct sl_exchange *exchange, struct pollfd fds[SL_IO_POLL_MAX],
                     uint64_t *deadline_ns)
{
    uint64_t hedged_ns;
    int count = poll_own(exchange, fds, deadline_ns);
    if (exchange->hedged) {
        count += poll_own(exchange->hedged, fds + count, &hedged_ns);
        *deadline_ns = SL_MIN(*deadline_ns, hedged_ns);
    }
    return count;
}

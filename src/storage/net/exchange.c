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
 *     reconnect()      CONNECTING     begin_request()  SENDING      sent_all()  STREAM or HEAD
 *     begin_body()     BODY           end_body()       DRAINED      drop()      IDLE
 *     start()          SENDING, on the connection of the request before
 *
 * An answer that comes before all of the request is sent leads from SENDING or STREAM straight to
 * BODY, and its connection is not kept. A preconnected one is CONNECTING without a request,
 * and counts as idle. Any failure drops the connection and is IDLE, and so does an abort. Only the
 * thread that has the exchange moves it.
 *
 * Stall: a window begins when the request is sent and starts over with every 64 KiB of the answer.
 * When it is older than stall_seconds and nothing is waiting in the socket, the answer has stalled;
 * a trickle is not a progress. Time in which the caller was busy elsewhere does not count.
 */
#include "exchange.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/ioctl.h>

#include "exchange_state.h"
#include "idle_links.h"
#include "latency.h"
#include "log.h"
#include "metrics.h"
#include "progress.h"
#include "proxy.h"
#include "url.h"

enum {
    IN_BYTES_FIRST = 8 * 1024,
    INTERIM_MAX = 16,
    STALL_BYTES = 64 * 1024,
    REQUEST_BYTES_MAX = 64 * 1024 * 1024,
    PROXY_WANTS_LOGIN = 407,
    CHUNK_LINE_MAX = 4 * 1024,
    TRAILER_BYTES_MAX = 16 * 1024,
    EXPECT_BYTES = 256 * 1024,
    BEGINNING_BYTES = 8 * 1024 * 1024, /* sockets alone may take as much */
};
/* How long a server may take to say 100 Continue: RFC 9110 section 10.1.1 has it no longer than
 * need be, since old ones never do; but a busy one that would have sent the body elsewhere cannot
 * any more when it has begun. */
#define OFFER_NS (3 * SL_NS_PER_S)
/* A preconnected connection that is older may be near its time to connect, or forgotten. */
#define PRECONNECT_NS_MAX (5 * SL_NS_PER_S)

/* ---- the phases ------------------------------------------------------------------------------ */

#ifndef NDEBUG

#define TO(phase) (1U << SL_X_##phase)

/* The phases that each may be followed by. */
static const unsigned steps[] = {
    [SL_X_IDLE] = TO(IDLE) | TO(CONNECTING),
    [SL_X_CONNECTING] = TO(IDLE) | TO(CONNECTING) | TO(SENDING),
    [SL_X_SENDING] = TO(IDLE) | TO(CONNECTING) | TO(STREAM) | TO(HEAD) | TO(BODY),
    [SL_X_STREAM] = TO(IDLE) | TO(CONNECTING) | TO(HEAD) | TO(BODY),
    [SL_X_HEAD] = TO(IDLE) | TO(CONNECTING) | TO(BODY),
    [SL_X_BODY] = TO(IDLE) | TO(DRAINED),
    [SL_X_DRAINED] = TO(IDLE) | TO(CONNECTING) | TO(SENDING),
};

/* What always holds between calls. */
static void check(const struct sl_exchange *exchange)
{
    const struct sl_exchange *hedged = exchange->hedged;
    enum sl_exchange_phase phase = exchange->phase;
    bool streams = exchange->streamed < exchange->stream_bytes;
    /* 1: what was received and not taken lies within the buffer. */
    assert(exchange->in_begin <= exchange->in_end && exchange->in_end <= exchange->in_capacity);
    /* 2: no more was sent than there is to send. */
    assert(phase == SL_X_IDLE || exchange->sent <= exchange->out.used + exchange->body_bytes);
    assert(phase == SL_X_IDLE || exchange->streamed <= exchange->stream_bytes);
    /* 3: a connection knows where it leads. */
    assert(phase == SL_X_IDLE || exchange->open_url);
    /* 4: all before the pieces, or before the answer, is sent. */
    assert((phase != SL_X_STREAM && phase != SL_X_HEAD) ||
           exchange->sent == exchange->out.used + exchange->body_bytes);
    /* 5: STREAM has pieces to send, HEAD has none. */
    assert(phase != SL_X_STREAM || streams);
    assert(phase != SL_X_HEAD || !streams);
    /* 6: a body follows a head. */
    assert(phase != SL_X_BODY || exchange->head_text);
    /* 7: a request is sent twice at most. */
    assert(!hedged || (exchange->twice && hedged->twice && !hedged->hedged));
}

#else
static void check(const struct sl_exchange *exchange)
{
    (void)exchange;
}
#endif

static void set_phase(struct sl_exchange *exchange, enum sl_exchange_phase to)
{
    assert(steps[exchange->phase] & 1U << to);
    exchange->phase = to;
}

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

/* For whoever connects there next, if it is between two requests, or made before there was one. */
static void keep_link(struct sl_exchange *exchange)
{
    if (!exchange->connect.idle_seconds)
        return;
    bool made = exchange->preconnected && exchange->phase == SL_X_CONNECTING &&
                sl_link_connect(exchange->link, NULL) == SL_IO_DATA;
    if (made || exchange->phase == SL_X_DRAINED)
        sl_idle_links_keep(sl_steal(&exchange->link), exchange->connect.idle_seconds);
}

void sl_exchange_free(struct sl_exchange *exchange)
{
    if (!exchange)
        return;
    if (exchange->link) {
        check(exchange);
        keep_link(exchange);
    }
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

/* ---- the request ----------------------------------------------------------------------------- */

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

/* Send what is prepared on a new connection. */
static int reconnect(struct sl_exchange *exchange, struct sl_err *err)
{
    exchange->answers = 0;
    exchange->preconnected = false;
    exchange->in_begin = exchange->in_end = 0;
    exchange->sent = 0;
    set_phase(exchange, SL_X_CONNECTING);
    if (sl_link_open(exchange->link, exchange->open_url, exchange->open_proxy, err) == 0)
        return 0;
    set_phase(exchange, SL_X_IDLE);
    return -1;
}

/* Go on with a connection that another exchange has left. */
static bool take_link(struct sl_exchange *exchange)
{
    if (!exchange->connect.idle_seconds || exchange->anew)
        return false;
    struct sl_link *link =
        sl_idle_links_take(&exchange->connect, exchange->open_url, exchange->open_proxy);
    if (!link)
        return false;
    sl_link_free(exchange->link);
    exchange->link = link;
    exchange->answers = 1; /* it may break, as idle ones do */
    exchange->preconnected = false;
    exchange->in_begin = exchange->in_end = 0;
    exchange->sent = 0;
    sl_link_expect(link, 1);
    set_phase(exchange, SL_X_CONNECTING);
    return true;
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
        sl_exchange_build(exchange, request, &url, forward.host ? &forward : NULL, err) < 0)
        return -1;

    bool same = exchange->route && strcmp(exchange->route, route) == 0;
    bool reuse = same && exchange->phase == SL_X_DRAINED && sl_link_idle(exchange->link) &&
                 !sl_link_is_past(exchange->link);
    bool preconnected = same && exchange->preconnected && exchange->phase == SL_X_CONNECTING &&
                        sl_now_ns() - exchange->preconnected_ns < PRECONNECT_NS_MAX;
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
    if (preconnected)
        return 0;
    if (!reuse)
        return take_link(exchange) ? 0 : reconnect(exchange, err);
    sl_link_expect(exchange->link, 1);
    exchange->sent = 0;
    set_phase(exchange, SL_X_SENDING);
    exchange->window_ns = sl_now_ns();
    exchange->window_bytes = 0;
    return 0;
}

/* The request is on its way: how long may its answer take until it is sent twice? */
static void set_hedge_delay(struct sl_exchange *exchange)
{
    unsigned hedge = exchange->connect.once ? 0 : exchange->hedge;
    exchange->hedge_ns = sl_latency_hedge_delay(hedge, sl_link_answer_delay(exchange->link),
                                                exchange->connect.stall_seconds);
}

/* When the server has been silent for too long; UINT64_MAX: never. */
static uint64_t hedge_at(const struct sl_exchange *exchange)
{
    if (!exchange->hedge_ns)
        return UINT64_MAX;
    if (exchange->phase == SL_X_HEAD && !exchange->twice)
        return exchange->asked_ns + exchange->hedge_ns;
    if (exchange->phase == SL_X_BODY)
        return exchange->moved_ns + exchange->hedge_ns;
    return UINT64_MAX;
}

/* ---- the end of an answer -------------------------------------------------------------------- */

/* How fast the answer was, for choosing among the addresses of a host. */
static void note_answer(struct sl_exchange *exchange, bool whole)
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

static void disconnect(struct sl_exchange *exchange)
{
    sl_link_close(exchange->link);
    exchange->in_begin = exchange->in_end = 0;
    exchange->preconnected = false;
    exchange->pending.kind = SL_OK;
}

/* Drop the connection, but not that of the hedged request. */
static void drop(struct sl_exchange *exchange)
{
    if (exchange->phase == SL_X_HEAD || exchange->phase == SL_X_BODY)
        note_answer(exchange, false);
    disconnect(exchange);
    set_phase(exchange, SL_X_IDLE);
}

/* What came of an answer that nobody will take. */
static void count_waste(struct sl_exchange *exchange)
{
    struct pollfd fds[SL_IO_POLL_MAX];
    uint64_t deadline_ns, wasted = exchange->in_end - exchange->in_begin;
    int count = sl_exchange_poll(exchange, fds, &deadline_ns), unread;
    for (int i = 0; i < count; i++)
        if (ioctl(fds[i].fd, FIONREAD, &unread) == 0 && unread > 0)
            wasted += (uint64_t)unread;
    sl_metric_add(SL_M_SOURCE_WASTED_BYTES, (int64_t)wasted);
    sl_progress_add_wasted(exchange->connect.progress, wasted);
}

/* The hedged request is not needed any more. */
static void drop_hedged(struct sl_exchange *exchange)
{
    if (!exchange->hedged)
        return;
    count_waste(exchange->hedged);
    sl_exchange_free(sl_steal(&exchange->hedged));
}

static void give_up(struct sl_exchange *exchange)
{
    drop_hedged(exchange);
    drop(exchange);
}

void sl_exchange_abort(struct sl_exchange *exchange)
{
    exchange->anew = true;
    give_up(exchange);
}

int sl_exchange_start(struct sl_exchange *exchange, const struct sl_request *request,
                      struct sl_err *err)
{
    bool preconnected = exchange->phase == SL_X_CONNECTING && exchange->preconnected;
    if (exchange->phase != SL_X_DRAINED && !preconnected)
        give_up(exchange);
    exchange->answer_ns = 0;
    free(sl_steal(&exchange->head_text));
    exchange->head_bytes = 0;
    if (start(exchange, request, err) == 0)
        return 0;
    sl_exchange_abort(exchange);
    return -1;
}

/* ---- progress -------------------------------------------------------------------------------- */

static unsigned stall_seconds(const struct sl_exchange *exchange)
{
    return sl_latency_stall_seconds(exchange->connect.stall_seconds);
}

/* The caller came back: the time that it was away was not the server's. */
static void enter(struct sl_exchange *exchange)
{
    check(exchange);
    if (!exchange->away_ns)
        return;
    uint64_t ns = sl_now_ns() - exchange->away_ns;
    exchange->window_ns += ns;
    exchange->absent_ns += ns;
    exchange->moved_ns += ns;
    exchange->away_ns = 0;
}

static void note_progress(struct sl_exchange *exchange, size_t bytes)
{
    exchange->window_bytes += bytes;
    if (exchange->window_bytes >= STALL_BYTES) {
        exchange->window_bytes = 0;
        exchange->window_ns = sl_now_ns();
    }
}

/* Something went wrong on the connection: drop it; FAILED. */
static enum sl_io_state fail_link(struct sl_exchange *exchange)
{
    if (exchange->phase > SL_X_CONNECTING && exchange->phase < SL_X_DRAINED)
        sl_link_note_trouble(exchange->link);
    exchange->anew = true;
    drop(exchange);
    return SL_IO_FAILED;
}

/* Nothing is there now: wait, unless it has been too little for too long. */
static enum sl_io_state stay(struct sl_exchange *exchange, struct sl_err *err)
{
    uint64_t now = sl_now_ns();
    if (exchange->phase == SL_X_BODY && now >= hedge_at(exchange)) {
        sl_metric_add(SL_M_SOURCE_HEDGES, 1);
        sl_progress_add_hedge(exchange->connect.progress);
        sl_link_note_wait(exchange->link, exchange->hedge_ns); /* it may have been usual */
        sl_fail_code(err, SL_E_NET, "stall", "%s stalled: no byte for %" PRIu64 " ms",
                     exchange->subject, exchange->hedge_ns / (uint64_t)SL_NS_PER_MS);
        return fail_link(exchange);
    }
    if (now < exchange->window_ns + stall_seconds(exchange) * SL_NS_PER_S)
        return SL_IO_WAIT;
    sl_fail_code(err, SL_E_NET, "stall", "%s stalled: %" PRIu64 " bytes in %u s", exchange->subject,
                 exchange->window_bytes, stall_seconds(exchange));
    return fail_link(exchange);
}

/* An idle connection that the server had closed meanwhile is not a failure: send again on a new
 * one, once. */
static enum sl_io_state broken(struct sl_exchange *exchange, struct sl_err *err)
{
    bool idle = exchange->answers || exchange->preconnected;
    if (exchange->answered || !idle || exchange->streamed) {
        sl_wrap(err, "%s", exchange->subject);
        return fail_link(exchange);
    }
    if (err)
        *err = (struct sl_err)SL_ERR_INIT;
    return reconnect(exchange, err) == 0 ? SL_IO_WAIT : fail_link(exchange);
}

/* More bytes behind in_end: DATA if any came; the end of the stream sets *ended. */
static enum sl_io_state receive(struct sl_exchange *exchange, bool *ended, struct sl_err *err)
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
        return fail_link(exchange);
    ssize_t came = sl_link_recv(exchange->link, exchange->in + exchange->in_end,
                                exchange->in_capacity - exchange->in_end, err);
    if (came == SL_LINK_AGAIN)
        return stay(exchange, err);
    if (came < 0)
        return broken(exchange, err);
    if (came == 0) {
        *ended = true;
        return SL_IO_DATA;
    }
    exchange->answered = true;
    exchange->in_end += (size_t)came;
    note_progress(exchange, (size_t)came);
    return SL_IO_DATA;
}

/* ---- the head -------------------------------------------------------------------------------- */

/* SL_E_NET about the request in hand; FAILED. */
static enum sl_io_state refuse(struct sl_exchange *exchange, bool retryable, const char *why,
                               struct sl_err *err)
{
    sl_fail(err, SL_E_NET, "%s: %s", exchange->subject, why);
    if (err)
        err->retryable = retryable;
    return fail_link(exchange);
}

static void begin_body(struct sl_exchange *exchange)
{
    struct sl_head *head = &exchange->head;
    exchange->moved_ns = sl_now_ns();
    if (exchange->phase == SL_X_HEAD)
        exchange->answer_ns = SL_MAX(exchange->moved_ns - exchange->sending_ns, UINT64_C(1));
    set_phase(exchange, SL_X_BODY);
    exchange->chunk = SL_X_CHUNK_SIZE;
    exchange->left = 0;
    exchange->trailer_bytes = 0;
    if (exchange->bodiless || head->status == 204 || head->status == 304)
        head->framing = SL_FRAMING_LENGTH;
    else if (head->framing == SL_FRAMING_LENGTH)
        exchange->left = (uint64_t)head->content_length;
}

/* A whole head lies in the buffer: DATA if it is the answer's, WAIT if it was an interim one. */
static enum sl_io_state take_head(struct sl_exchange *exchange, size_t bytes, struct sl_err *err)
{
    const char *text = exchange->in + exchange->in_begin;
    if (sl_head_parse(text, bytes, &exchange->head, err) < 0) {
        sl_wrap(err, "%s", exchange->subject);
        return fail_link(exchange);
    }
    if (exchange->head.status < 200) {
        exchange->in_begin += bytes;
        exchange->wanted |= exchange->head.status == 100;
        if (exchange->head.status == 101 || ++exchange->interim > INTERIM_MAX)
            return refuse(exchange, false, "the server goes on answering 1xx", err);
        return SL_IO_WAIT;
    }
    if (exchange->forwarded && exchange->head.status == PROXY_WANTS_LOGIN) {
        sl_fail(err, SL_E_AUTH, "%s: the proxy " SL_PROXY_LOGIN, exchange->subject);
        if (err)
            err->http_status = PROXY_WANTS_LOGIN;
        return fail_link(exchange);
    }
    free(exchange->head_text);
    exchange->head_text = sl_head_keep(text, bytes, &exchange->head_bytes, err);
    if (!exchange->head_text)
        return fail_link(exchange);
    exchange->in_begin += bytes;
    begin_body(exchange);
    return SL_IO_DATA;
}

/* DATA when the answer's head is there (phase BODY), WAIT, FAILED. */
static enum sl_io_state read_head(struct sl_exchange *exchange, struct sl_err *err)
{
    for (;;) {
        size_t there = exchange->in_end - exchange->in_begin;
        size_t bytes = there ? sl_head_end(exchange->in + exchange->in_begin, there) : 0;
        if (bytes > SL_HEADERS_BYTES_MAX || (!bytes && there >= SL_HEADERS_BYTES_MAX))
            return refuse(exchange, false, "the head of the answer is larger than 64 KiB", err);
        if (bytes) {
            enum sl_io_state state = take_head(exchange, bytes, err);
            if (state != SL_IO_WAIT)
                return state;
            continue;
        }
        bool ended;
        enum sl_io_state state = receive(exchange, &ended, err);
        if (state != SL_IO_DATA)
            return state;
        if (ended) {
            sl_fail(err, SL_E_NET,
                    there ? "the server closed the connection within the head of its answer"
                          : "the server closed the connection without an answer");
            return broken(exchange, err);
        }
    }
}

/* ---- the way out ------------------------------------------------------------------------------
 *
 * The head of a request with a body that was copied, lent, or comes in pieces.
 *
 * A server may answer before it has read the whole body (a refusal, a full disk) and close: what it
 * says is worth more than the broken pipe that follows. So whenever the socket is full, before each
 * of the first pieces of a stream, which the caller may still be able to send elsewhere, and once
 * more when it breaks, we look for an answer. The rest of the body is then not sent, and the
 * connection is not used again.
 */

/* An answer before its time: DATA if it is whole, WAIT, FAILED. */
static enum sl_io_state listen_early(struct sl_exchange *exchange, struct sl_err *err)
{
    enum sl_io_state state = read_head(exchange, err);
    if (state == SL_IO_DATA)
        exchange->head.close = true;
    return state;
}

/* Sending failed: DATA if the server had answered before, else as broken(). */
static enum sl_io_state last_words(struct sl_exchange *exchange, struct sl_err *err)
{
    struct sl_err ignored = SL_ERR_INIT;
    unsigned answers = exchange->answers;
    exchange->answers = 0; /* no new connection from here */
    enum sl_io_state state =
        exchange->sent || exchange->streamed ? listen_early(exchange, &ignored) : SL_IO_FAILED;
    if (state == SL_IO_DATA) {
        if (err)
            *err = (struct sl_err)SL_ERR_INIT;
        return state;
    }
    exchange->answers = answers;
    return broken(exchange, err);
}

static void sent_all(struct sl_exchange *exchange)
{
    bool stream = exchange->streamed < exchange->stream_bytes;
    set_phase(exchange, stream ? SL_X_STREAM : SL_X_HEAD);
    exchange->asked_ns = exchange->window_ns = sl_now_ns();
    exchange->window_bytes = 0;
    exchange->answer_ns = 0;
    set_hedge_delay(exchange);
}

/* Send what was started; DATA when it is sent or answered, in the phase that follows. */
static enum sl_io_state send_request(struct sl_exchange *exchange, struct sl_err *err)
{
    size_t all = exchange->out.used + exchange->body_bytes;
    if (!exchange->sent)
        exchange->sending_ns = sl_now_ns();
    while (exchange->sent < all) {
        bool head = exchange->sent < exchange->out.used;
        const char *data = head ? exchange->out.data + exchange->sent
                                : exchange->body + (exchange->sent - exchange->out.used);
        size_t end = head ? exchange->out.used : all;
        ssize_t sent = sl_link_send(exchange->link, data, end - exchange->sent, err);
        if (sent == SL_LINK_AGAIN)
            return listen_early(exchange, err);
        if (sent < 0)
            return last_words(exchange, err);
        exchange->sent += (size_t)sent;
        note_progress(exchange, (size_t)sent);
    }
    sent_all(exchange);
    return SL_IO_DATA;
}

/* Connect and send as far as it goes: DATA in the phase that follows, WAIT, FAILED. */
static enum sl_io_state begin_request(struct sl_exchange *exchange, struct sl_err *err)
{
    if (exchange->phase == SL_X_CONNECTING) {
        enum sl_io_state state = sl_link_connect(exchange->link, err);
        if (state == SL_IO_FAILED)
            return broken(exchange, err);
        if (state == SL_IO_WAIT)
            return state;
        set_phase(exchange, SL_X_SENDING);
        exchange->window_ns = sl_now_ns();
        exchange->window_bytes = 0;
    }
    return exchange->phase == SL_X_SENDING ? send_request(exchange, err) : SL_IO_DATA;
}

enum sl_io_state sl_exchange_ready(struct sl_exchange *exchange, struct sl_err *err)
{
    enter(exchange);
    for (;;) {
        bool connecting = exchange->phase == SL_X_CONNECTING;
        enum sl_io_state state = begin_request(exchange, err);
        if (exchange->phase == SL_X_STREAM) {
            state = exchange->wanted ? SL_IO_WAIT : listen_early(exchange, err);
            bool late = sl_now_ns() >= exchange->asked_ns + OFFER_NS;
            if (state == SL_IO_WAIT && exchange->phase == SL_X_STREAM &&
                (exchange->wanted || late)) {
                exchange->wanted = true;
                exchange->away_ns = sl_now_ns();
                return SL_IO_DATA;
            }
        }
        if (exchange->phase == SL_X_CONNECTING && !connecting)
            continue;
        if (exchange->phase == SL_X_BODY)
            return SL_IO_END;
        return state;
    }
}

enum sl_io_state sl_exchange_send(struct sl_exchange *exchange, const void *data, size_t bytes,
                                  size_t *taken, struct sl_err *err)
{
    *taken = 0;
    enter(exchange);
    if (exchange->phase == SL_X_BODY)
        return SL_IO_END;
    if (exchange->phase != SL_X_STREAM || bytes > exchange->stream_bytes - exchange->streamed)
        return refuse(exchange, false, "more body than was announced", err);
    enum sl_io_state state = SL_IO_WAIT;
    if (exchange->streamed < BEGINNING_BYTES)
        state = listen_early(exchange, err);
    if (state != SL_IO_WAIT)
        return state == SL_IO_DATA ? SL_IO_END : state;
    if (exchange->phase != SL_X_STREAM)
        return refuse(exchange, true, "the server closed the connection", err);
    ssize_t sent = sl_link_send(exchange->link, data, bytes, err);
    if (sent > 0) {
        *taken = (size_t)sent;
        exchange->streamed += (uint64_t)sent;
        note_progress(exchange, (size_t)sent);
        if (exchange->streamed == exchange->stream_bytes)
            sent_all(exchange);
        exchange->away_ns = sl_now_ns();
        return SL_IO_DATA;
    }
    state = sent == SL_LINK_AGAIN ? listen_early(exchange, err) : last_words(exchange, err);
    return state == SL_IO_DATA ? SL_IO_END : state;
}

/* ---- the body ---------------------------------------------------------------------------------
 *
 * Content-Length, chunked, until close. The buffer of the exchange holds only what came with the
 * head and the lines between chunks.
 *
 * While a plain connection is in the middle of a body, poll() wakes only for 256 KiB or the rest
 * (SO_RCVLOWAT): fewer, fuller reads. Four connections that got 11 KiB every 200 us each took 0.20
 * CPU seconds per GB this way and 0.70 without; at memory speed it makes no difference. What
 * trickles in below the mark is read when the stall is judged.
 */

static enum sl_io_state end_body(struct sl_exchange *exchange)
{
    bool leftover = exchange->in_begin != exchange->in_end;
    exchange->answers++;
    note_answer(exchange, true);
    set_phase(exchange, SL_X_DRAINED);
    exchange->away_ns = 0;
    if (exchange->head.close || exchange->head.framing == SL_FRAMING_CLOSE || leftover)
        disconnect(exchange);
    return SL_IO_END;
}

static void count_body(struct sl_exchange *exchange, size_t bytes)
{
    exchange->came += bytes;
    exchange->moved_ns = sl_now_ns();
    if (exchange->connect.bandwidth)
        sl_bandwidth_used(exchange->connect.bandwidth, bytes, exchange->moved_ns);
}

/* Body bytes as they lie on the wire, at most `bytes`: from the buffer first, then from the link. 0
 * with DATA is the stream's end. */
static enum sl_io_state take_bytes(struct sl_exchange *exchange, char *data, uint64_t bytes,
                                   size_t *got, struct sl_err *err)
{
    size_t kept = exchange->in_end - exchange->in_begin;
    if (kept) {
        *got = (size_t)SL_MIN(bytes, kept);
        memcpy(data, exchange->in + exchange->in_begin, *got);
        exchange->in_begin += *got;
        count_body(exchange, *got);
        return SL_IO_DATA;
    }
    *got = 0;
    bytes = SL_MIN(bytes, (uint64_t)SSIZE_MAX);
    if (exchange->connect.bandwidth)
        bytes = sl_bandwidth_ask(&exchange->pace, exchange->connect.bandwidth, (size_t)bytes,
                                 sl_now_ns());
    if (!bytes) { /* the time until its turn is not the server's */
        exchange->away_ns = sl_now_ns();
        return SL_IO_WAIT;
    }
    ssize_t came = sl_link_recv(exchange->link, data, (size_t)bytes, err);
    if (came == SL_LINK_AGAIN)
        return SL_IO_WAIT;
    if (came < 0)
        return SL_IO_FAILED;
    *got = (size_t)came;
    count_body(exchange, *got);
    note_progress(exchange, *got);
    return SL_IO_DATA;
}

/* One line of the chunked framing: DATA with *line (ended), or as receive(). */
static enum sl_io_state take_line(struct sl_exchange *exchange, char **line, struct sl_err *err)
{
    for (;;) {
        char *begin = exchange->in + exchange->in_begin;
        size_t there = exchange->in_end - exchange->in_begin;
        char *newline = there ? memchr(begin, '\n', there) : NULL;
        if (newline) {
            exchange->in_begin += (size_t)(newline - begin) + 1;
            *newline = 0;
            if (newline > begin && newline[-1] == '\r')
                newline[-1] = 0;
            *line = begin;
            return SL_IO_DATA;
        }
        if (there > CHUNK_LINE_MAX)
            return refuse(exchange, false, "a line of the chunked body is too long", err);
        bool ended;
        enum sl_io_state state = receive(exchange, &ended, err);
        if (state == SL_IO_DATA && ended)
            return refuse(exchange, true, "the body broke off", err);
        if (state != SL_IO_DATA)
            return state;
    }
}

static bool parse_chunk_size(const char *line, uint64_t *bytes)
{
    unsigned digits = 0;
    *bytes = 0;
    for (; isxdigit((unsigned char)*line); line++, digits++)
        *bytes =
            *bytes << 4 |
            (uint64_t)(isdigit((unsigned char)*line) ? *line - '0' : (*line | 0x20) - 'a' + 10);
    return digits > 0 && digits <= 15 &&
           (*line == 0 || *line == ';' || *line == ' ' || *line == '\t');
}

/* Walk the framing until chunk data is next (DATA, left > 0), the body ended (END), or as
 * receive(). */
static enum sl_io_state next_chunk(struct sl_exchange *exchange, struct sl_err *err)
{
    char *line = NULL;
    while (exchange->chunk != SL_X_CHUNK_DATA) {
        if (exchange->chunk == SL_X_CHUNK_DONE)
            return SL_IO_END;
        enum sl_io_state state = take_line(exchange, &line, err);
        if (state != SL_IO_DATA)
            return state;
        if (exchange->chunk == SL_X_CHUNK_END) {
            if (*line)
                return refuse(exchange, false, "a chunk of the body is longer than it said", err);
            exchange->chunk = SL_X_CHUNK_SIZE;
        } else if (exchange->chunk == SL_X_CHUNK_SIZE) {
            if (!parse_chunk_size(line, &exchange->left))
                return refuse(exchange, false, "bad chunk size in the body", err);
            exchange->chunk = exchange->left ? SL_X_CHUNK_DATA : SL_X_CHUNK_TRAILER;
        } else if (!*line) {
            exchange->chunk = SL_X_CHUNK_DONE;
        } else if ((exchange->trailer_bytes += strlen(line)) > TRAILER_BYTES_MAX) {
            return refuse(exchange, false, "too many trailers behind the body", err);
        }
    }
    return SL_IO_DATA;
}

/* Some bytes of the body: DATA with *got > 0, END, WAIT or FAILED. */
static enum sl_io_state body_some(struct sl_exchange *exchange, char *data, size_t bytes,
                                  size_t *got, struct sl_err *err)
{
    enum sl_framing framing = exchange->head.framing;
    uint64_t limit = framing == SL_FRAMING_CLOSE ? bytes : exchange->left;
    if (framing == SL_FRAMING_LENGTH && !exchange->left)
        return SL_IO_END;
    if (framing == SL_FRAMING_CHUNKED) {
        enum sl_io_state state = next_chunk(exchange, err);
        if (state != SL_IO_DATA)
            return state;
        limit = exchange->left;
    }
    enum sl_io_state state = take_bytes(exchange, data, SL_MIN(bytes, limit), got, err);
    if (state == SL_IO_WAIT)
        return exchange->pace.turn_ns ? state : stay(exchange, err);
    if (state == SL_IO_FAILED) {
        sl_wrap(err, "%s", exchange->subject);
        return fail_link(exchange);
    }
    if (*got == 0)
        return framing == SL_FRAMING_CLOSE
                   ? SL_IO_END
                   : refuse(exchange, true, "the connection closed before the body was complete",
                            err);
    if (framing != SL_FRAMING_CLOSE) {
        exchange->left -= *got;
        if (framing == SL_FRAMING_CHUNKED && !exchange->left)
            exchange->chunk = SL_X_CHUNK_END;
    }
    return state;
}

enum sl_io_state sl_exchange_body(struct sl_exchange *exchange, void *data, size_t bytes,
                                  size_t *got, struct sl_err *err)
{
    *got = 0;
    if (exchange->pending.kind != SL_OK) {
        if (err)
            *err = exchange->pending;
        exchange->pending.kind = SL_OK;
        return SL_IO_FAILED;
    }
    if (exchange->phase == SL_X_DRAINED)
        return SL_IO_END;
    if (exchange->phase != SL_X_BODY)
        return refuse(exchange, false, "the body was asked for before the head", err);
    enter(exchange);
    struct sl_err problem = SL_ERR_INIT;
    enum sl_io_state state = SL_IO_DATA;
    while (*got < bytes && state == SL_IO_DATA) {
        size_t came = 0;
        state = body_some(exchange, (char *)data + *got, bytes - *got, &came, &problem);
        *got += came;
    }
    if (*got) { /* what came is good; a failure behind it is told next time */
        if (state == SL_IO_FAILED)
            exchange->pending = problem;
        exchange->away_ns = sl_now_ns();
        return SL_IO_DATA;
    }
    if (state == SL_IO_FAILED && err)
        *err = problem;
    if (state == SL_IO_END)
        return end_body(exchange);
    if (state == SL_IO_WAIT && exchange->head.framing == SL_FRAMING_LENGTH &&
        !exchange->pace.turn_ns)
        sl_link_expect(exchange->link, (size_t)SL_MIN(exchange->left, (uint64_t)EXPECT_BYTES));
    return state;
}

/* ---- preconnecting -----------------------------------------------------------------------------
 *
 * Far away a new connection costs a round trip, with TLS two or three, before the first range can
 * be asked for; and what a load needs is known a round trip after its first request was sent. So
 * others connect meanwhile: as soon as the first one took long to connect, or is not answered at
 * once.
 *
 * They are not driven until somebody takes one: the kernel completes a TCP connection by itself,
 * and TLS goes on from there. What became of one in the meantime is not a failure of the request
 * that finds it closed: it is sent on a new one then, as on an idle connection.
 */

/* Lead where another one does. */
static int follow(struct sl_exchange *exchange, const struct sl_exchange *like, struct sl_err *err)
{
    exchange->route = sl_strdup(like->route, err);
    exchange->open_url = exchange->route ? sl_strdup(like->open_url, err) : NULL;
    exchange->open_proxy = exchange->open_url ? sl_strdup(like->open_proxy, err) : NULL;
    exchange->forwarded = like->forwarded;
    exchange->subject = exchange->open_proxy ? sl_strdup(like->subject, err) : NULL;
    return exchange->subject ? 0 : -1;
}

int sl_exchange_connect(struct sl_exchange *exchange, const struct sl_exchange *like,
                        struct sl_err *err)
{
    if (exchange->phase != SL_X_IDLE || exchange->route)
        return sl_fail(err, SL_E_INTERNAL, "a connection that was used cannot be preconnected");
    if (follow(exchange, like, err) < 0 || (!take_link(exchange) && reconnect(exchange, err) < 0))
        return -1;
    if (!sl_link_has_room(exchange->link) || sl_link_connect(exchange->link, err) == SL_IO_FAILED ||
        sl_link_awaits_permit(exchange->link)) {
        sl_exchange_abort(exchange);
        return -1;
    }
    exchange->preconnected = true;
    exchange->preconnected_ns = sl_now_ns();
    return 0;
}

static bool may_report(const struct sl_exchange *exchange)
{
    return exchange->connect.distant && exchange->hedge && !exchange->distant &&
           exchange->phase == SL_X_HEAD;
}

/* When it is known that the server is far away, if no answer comes before; UINT64_MAX: it is told.
 */
static uint64_t distance_end(const struct sl_exchange *exchange)
{
    return may_report(exchange) ? exchange->asked_ns + SL_LATENCY_NEAR_NS : UINT64_MAX;
}

/* Tell, once, whoever would preconnect, if the server is far away. */
static void report_distance(struct sl_exchange *exchange)
{
    bool always = exchange->connect.distant_always;
    if (!may_report(exchange) || (!always && sl_link_away_ns(exchange->link) < SL_LATENCY_NEAR_NS &&
                                  sl_now_ns() < distance_end(exchange)))
        return;
    exchange->distant = true;
    exchange->connect.distant(exchange->connect.distant_arg, exchange);
}

/* ---- a request that is sent twice --------------------------------------------------------------
 *
 * The ranges of a load are judged by their siblings (reader/slow.c); what comes before them, the
 * first answer of a source, a page of a listing, the index of shards, a sidecar, has none, and the
 * whole load waits for it. So it is judged by the clock: what took long to connect takes long to
 * answer, and no answer within several times that, and a second at least, is sent once more on a
 * new connection, at another address where the name has several.
 *
 * Both then run, and the first head that comes is taken: a server that simply takes long has lost
 * nothing by it. Its host is remembered for it, so that the next request waits for longer and is
 * sent once. A range is not raced, since its bytes would come twice; a head is small.
 *
 * The clock begins when the request is sent, so permits of the host, names and the cap on bandwidth
 * do not count. Where the host has no permit for a second connection, or there is no memory for it,
 * the first one makes room.
 *
 * A body that falls silent is not raced: it fails as a stall does, only earlier, and who fetches
 * goes on at the first missing byte.
 */

/* As sl_exchange_head(), on one connection. */
static enum sl_io_state own_head(struct sl_exchange *exchange, struct sl_err *err)
{
    enter(exchange);
    for (;;) {
        bool connecting = exchange->phase == SL_X_CONNECTING;
        enum sl_io_state state = begin_request(exchange, err);
        if (exchange->phase == SL_X_HEAD && state == SL_IO_DATA)
            state = read_head(exchange, err);
        if (exchange->phase == SL_X_CONNECTING && !connecting) /* the idle connection was dead */
            continue;
        if (exchange->phase == SL_X_BODY) {
            exchange->away_ns = sl_now_ns();
            return SL_IO_DATA;
        }
        if (exchange->phase == SL_X_STREAM)
            return refuse(exchange, false, "its body is not sent yet", err);
        if (exchange->phase == SL_X_IDLE && state != SL_IO_FAILED)
            return refuse(exchange, false, "no request was begun", err);
        return state;
    }
}

/* The hedged request takes the place of the first, which is dropped. */
static void adopt(struct sl_exchange *exchange)
{
    struct sl_exchange *hedged = sl_steal(&exchange->hedged), first = *exchange;
    *exchange = *hedged;
    *hedged = first;
    exchange->hedged = hedged;
    drop_hedged(exchange);
}

/* The same request, prepared for another connection; NULL: no memory. */
static struct sl_exchange *make_hedged(const struct sl_exchange *exchange)
{
    SL_AUTO(sl_exchange) hedged = sl_exchange_new(&exchange->connect, NULL);
    if (!hedged)
        return NULL;
    hedged->bodiless = exchange->bodiless;
    hedged->hedge = exchange->hedge;
    hedged->twice = hedged->distant = true;
    if (follow(hedged, exchange, NULL) < 0 ||
        sl_buf_append(&hedged->out, exchange->out.data, exchange->out.used, NULL) < 0 ||
        reconnect(hedged, NULL) < 0)
        return NULL;
    return sl_steal(&hedged);
}

/* Whether it has a permit of its host, or got one now: the first call makes idle connections go. */
static bool find_place(struct sl_exchange *hedged)
{
    for (int i = 0; i < 2 && sl_link_awaits_permit(hedged->link); i++)
        if (own_head(hedged, NULL) == SL_IO_FAILED)
            return true; /* whoever races it hears of it */
    return !sl_link_awaits_permit(hedged->link);
}

/* WAIT, or FAILED if the first request was given up, too. */
static enum sl_io_state send_twice(struct sl_exchange *exchange, struct sl_err *err)
{
    exchange->twice = true;
    sl_metric_add(SL_M_SOURCE_HEDGES, 1);
    sl_metric_add(SL_M_SOURCE_REQUESTS, 1);
    sl_progress_add_hedge(exchange->connect.progress);
    sl_link_note_silence(exchange->link);
    sl_log(SL_LOG_DEBUG, "%s: no answer for %" PRIu64 " ms, sending it on another connection",
           exchange->subject, exchange->hedge_ns / (uint64_t)SL_NS_PER_MS);
    exchange->hedged = make_hedged(exchange);
    if (exchange->hedged && find_place(exchange->hedged))
        return SL_IO_WAIT;
    sl_exchange_free(sl_steal(&exchange->hedged));
    drop(exchange);
    return reconnect(exchange, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

static enum sl_io_state race_hedged(struct sl_exchange *exchange, enum sl_io_state state)
{
    switch (own_head(exchange->hedged, NULL)) {
    case SL_IO_DATA:
        adopt(exchange);
        return SL_IO_DATA;
    case SL_IO_FAILED:
        drop_hedged(exchange);
        return state;
    default:
        if (state == SL_IO_FAILED)
            adopt(exchange);
        return SL_IO_WAIT;
    }
}

/*
 * The answer's head is there, or not yet, or there will be none: have it from the hedged request,
 * if that is better, and make one where it is time to. Returns the state of both, err as that says.
 */
static enum sl_io_state race(struct sl_exchange *exchange, enum sl_io_state state,
                             const struct sl_err *why, struct sl_err *err)
{
    struct sl_err trouble = *why;
    if (state == SL_IO_WAIT)
        report_distance(exchange);
    if (state == SL_IO_WAIT && sl_now_ns() >= hedge_at(exchange))
        state = send_twice(exchange, &trouble);
    else if (state != SL_IO_DATA && exchange->hedged)
        state = race_hedged(exchange, state);
    if (state == SL_IO_DATA) {
        drop_hedged(exchange);
        if (exchange->hedge)
            sl_link_note_wait(exchange->link, sl_now_ns() - exchange->asked_ns);
    }
    if (state == SL_IO_FAILED && err)
        *err = trouble;
    return state;
}

enum sl_io_state sl_exchange_head(struct sl_exchange *exchange, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    enum sl_io_state state = own_head(exchange, &why);
    return race(exchange, state, &why, err);
}

/* ---- what it says, and what it waits for ----------------------------------------------------- */

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
        *deadline_ns = exchange->asked_ns + OFFER_NS;
    else if (exchange->phase != SL_X_CONNECTING)
        *deadline_ns = SL_MIN(
            SL_MIN(exchange->window_ns + stall_seconds(exchange) * SL_NS_PER_S, hedge_at(exchange)),
            distance_end(exchange));
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

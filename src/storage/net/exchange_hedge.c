/*
 * A request that is sent twice. The ranges of a load are judged by their siblings (reader/slow.c);
 * what comes before them, the first answer of a source, a page of a listing, the index of shards, a
 * sidecar, has none, and the whole load waits for it. So it is judged by the clock: what took long
 * to connect takes long to answer, and no answer within several times that, and a second at least,
 * is sent once more on a new connection, at another address where the name has several.
 *
 * Both then run, and the first head that comes is taken: a server that simply takes long has lost
 * nothing by it. Its host is remembered for it, so that the next request waits for longer and is
 * sent once. A range is not raced, since its bytes would come twice; a head is small.
 *
 * The clock begins when the request is sent, so places at the host, names and the cap on bandwidth
 * do not count. Where the host has no place for a second connection, or there is no memory for it,
 * the first one makes room.
 *
 * A body that falls silent is not raced: it fails as a stall does, only earlier, and who fetches
 * goes on at the first missing byte.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/ioctl.h>

#include "exchange_state.h"
#include "latency.h"
#include "log.h"
#include "metrics.h"
#include "progress.h"

void sl_exchange_set_hedge(struct sl_exchange *exchange)
{
    unsigned hedge = exchange->connect.once ? 0 : exchange->hedge;
    exchange->hedge_ns = sl_latency_hedge_delay(hedge, sl_link_answer_delay(exchange->link),
                                                exchange->connect.stall_seconds);
}

uint64_t sl_exchange_hedge_at(const struct sl_exchange *exchange)
{
    if (!exchange->hedge_ns)
        return UINT64_MAX;
    if (exchange->phase == SL_X_HEAD && !exchange->twice)
        return exchange->asked_ns + exchange->hedge_ns;
    if (exchange->phase == SL_X_BODY)
        return exchange->moved_ns + exchange->hedge_ns;
    return UINT64_MAX;
}

struct sl_answered sl_exchange_answered(const struct sl_exchange *exchange)
{
    return (struct sl_answered){.ns = exchange->answer_ns, .twice = exchange->twice};
}

/* ---- the hedged request --------------------------------------------------------------------- */

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

void sl_exchange_drop_hedged(struct sl_exchange *exchange)
{
    if (!exchange->hedged)
        return;
    count_waste(exchange->hedged);
    sl_exchange_free(sl_steal(&exchange->hedged));
}

/* The hedged request takes the place of the first, which is dropped. */
static void adopt(struct sl_exchange *exchange)
{
    struct sl_exchange *hedged = sl_steal(&exchange->hedged), first = *exchange;
    *exchange = *hedged;
    *hedged = first;
    exchange->hedged = hedged;
    sl_exchange_drop_hedged(exchange);
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
    if (sl_exchange_follow(hedged, exchange, NULL) < 0 ||
        sl_buf_append(&hedged->out, exchange->out.data, exchange->out.used, NULL) < 0 ||
        sl_exchange_reconnect(hedged, NULL) < 0)
        return NULL;
    return sl_steal(&hedged);
}

/* Whether it has a place at its host, or got one now: the first call makes idle connections go. */
static bool find_place(struct sl_exchange *hedged)
{
    for (int i = 0; i < 2 && sl_link_awaits_permit(hedged->link); i++)
        if (sl_exchange_own_head(hedged, NULL) == SL_IO_FAILED)
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
    sl_exchange_drop(exchange);
    return sl_exchange_reconnect(exchange, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

/* ---- the race -------------------------------------------------------------------------------- */

static enum sl_io_state race_hedged(struct sl_exchange *exchange, enum sl_io_state state)
{
    switch (sl_exchange_own_head(exchange->hedged, NULL)) {
    case SL_IO_DATA:
        adopt(exchange);
        return SL_IO_DATA;
    case SL_IO_FAILED:
        sl_exchange_drop_hedged(exchange);
        return state;
    default:
        if (state == SL_IO_FAILED)
            adopt(exchange);
        return SL_IO_WAIT;
    }
}

enum sl_io_state sl_exchange_race(struct sl_exchange *exchange, enum sl_io_state state,
                                  const struct sl_err *why, struct sl_err *err)
{
    struct sl_err trouble = *why;
    if (state == SL_IO_WAIT)
        sl_exchange_report_distance(exchange);
    if (state == SL_IO_WAIT && sl_now_ns() >= sl_exchange_hedge_at(exchange))
        state = send_twice(exchange, &trouble);
    else if (state != SL_IO_DATA && exchange->hedged)
        state = race_hedged(exchange, state);
    if (state == SL_IO_DATA) {
        sl_exchange_drop_hedged(exchange);
        if (exchange->hedge)
            sl_link_note_wait(exchange->link, sl_now_ns() - exchange->asked_ns);
    }
    if (state == SL_IO_FAILED && err)
        *err = trouble;
    return state;
}

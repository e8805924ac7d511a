/*
 * Connections before there is anything to ask. Far away a new connection costs a round trip, with
 * TLS two or three, before the first range can be asked for; and what a load needs is known a round
 * trip after its first request was sent. So others connect meanwhile: as soon as the first one took
 * long to connect, or is not answered at once.
 *
 * They are not driven until somebody takes one: the kernel completes a TCP connection by itself,
 * and TLS goes on from there. What became of one in the meantime is not a failure of the request
 * that finds it closed: it is sent on a new one then, as on an idle connection.
 */
#include "exchange_state.h"
#include "latency.h"

static bool may_report(const struct sl_exchange *exchange)
{
    return exchange->connect.distant && exchange->hedge && !exchange->distant &&
           exchange->phase == SL_X_HEAD;
}

uint64_t sl_exchange_distance_end(const struct sl_exchange *exchange)
{
    return may_report(exchange) ? exchange->asked_ns + SL_LATENCY_NEAR_NS : UINT64_MAX;
}

void sl_exchange_report_distance(struct sl_exchange *exchange)
{
    bool always = exchange->connect.distant_always;
    if (!may_report(exchange) || (!always && sl_link_away_ns(exchange->link) < SL_LATENCY_NEAR_NS &&
                                  sl_now_ns() < sl_exchange_distance_end(exchange)))
        return;
    exchange->distant = true;
    exchange->connect.distant(exchange->connect.distant_arg, exchange);
}

int sl_exchange_follow(struct sl_exchange *exchange, const struct sl_exchange *like,
                       struct sl_err *err)
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
        return sl_fail(err, SL_E_INTERNAL, "a connection that was used is not made ahead");
    if (sl_exchange_follow(exchange, like, err) < 0 || sl_exchange_reconnect(exchange, err) < 0)
        return -1;
    if (!sl_link_has_room(exchange->link) || sl_link_connect(exchange->link, err) == SL_IO_FAILED ||
        sl_link_awaits_permit(exchange->link)) {
        sl_exchange_abort(exchange);
        return -1;
    }
    exchange->preconnected = true;
    exchange->ahead_ns = sl_now_ns();
    return 0;
}

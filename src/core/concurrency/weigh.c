/*
 * A row of a matrix that is asked for by itself costs little of the link, but a place in a queue:
 * N connections wait for N answers at a time, so rows follow each other every Nth part of what one
 * takes, and no faster than the processors here can make requests. In that time the link, were it
 * full, would have brought so many bytes. Those beyond the row are what a request is worth; what it
 * costs beside, where stores bill each, the user says in bytes.
 *
 * How much the link brings is not known before it was seen full. Until then it is taken for one of
 * 10 Gbit/s: where that is too much, the load begins with bytes that it could have spared, and that
 * shows what the link does within a quarter of a second, in which requests are short. Where it then
 * asks for rows, their requests must bring more of what is wanted than the spans before did, or the
 * spans come back.
 */
#include "weigh.h"

#include "mem.h"
#include "thread.h"

static const double LINK_BYTES_PER_S = 1.25e9, CONNECTION_BYTES_PER_S = 40e6;
#define FAR_NS     (8 * SL_NS_PER_MS)
#define REQUEST_NS (30 * SL_NS_PER_MS / 1000) /* of a processor, here */
#define WINDOW_NS  (80 * SL_NS_PER_MS)
enum { WINDOW_WAITS = 4 /* at least */, WINDOWS = 3 /* the first of which does not count */ };
enum { FIRST_SPAN_BYTES = 512 * 1024 };
static const double CHANGED = 1.3, SAME = 0.95;

const char *sl_worth_why_name(enum sl_worth_why why)
{
    static const char *const names[] = {"least", "assumed", "known", "measured", "fixed"};
    return (unsigned)why < SL_COUNT(names) ? names[why] : "";
}

/* What one connection brings; all together, as far as is known. */
static double connection_rate(const struct sl_worth_facts *facts)
{
    return facts->wait_ns >= FAR_NS ? CONNECTION_BYTES_PER_S : LINK_BYTES_PER_S;
}

static double link_rate(const struct sl_worth_facts *facts)
{
    double all = connection_rate(facts) * SL_MAX(facts->connections, 1u);
    return facts->bytes_per_s > 0 ? facts->bytes_per_s : SL_MIN(all, LINK_BYTES_PER_S);
}

uint64_t sl_request_worth(const struct sl_worth_facts *facts, uint64_t row)
{
    if (facts->fixed_bytes)
        return facts->fixed_bytes;
    if (facts->least)
        return SL_WORTH_BYTES_MIN;
    double link = link_rate(facts), each = SL_MAX(connection_rate(facts), link);
    if (link >= connection_rate(facts) * facts->connections)
        each = link / SL_MAX(facts->connections, 1u);
    double waits = ((double)facts->wait_ns / (double)SL_NS_PER_S + (double)row / each) /
                   SL_MAX(facts->connections, 1u);
    double works = (double)REQUEST_NS / (double)SL_NS_PER_S / SL_MAX(facts->processors, 1u);
    double worth = link * SL_MAX(waits, works) - (double)row + (double)facts->price_bytes;
    if (worth >= SL_WORTH_BYTES_MAX)
        return SL_WORTH_BYTES_MAX;
    return worth > SL_WORTH_BYTES_MIN ? (uint64_t)worth : SL_WORTH_BYTES_MIN;
}

void sl_weigh_init(struct sl_weigh *weigh, const struct sl_worth_facts *facts,
                   enum sl_worth_why why)
{
    *weigh = (struct sl_weigh){.why = facts->least ? SL_WORTH_LEAST : why,
                               .facts = *facts,
                               .settled = facts->least || facts->fixed_bytes};
}

uint64_t sl_weigh_span(const struct sl_weigh *weigh)
{
    return weigh->why == SL_WORTH_ASSUMED && !weigh->seen ? FIRST_SPAN_BYTES : UINT64_MAX;
}

/* What was measured of other requests does not count. */
static void begin_anew(struct sl_weigh *weigh)
{
    weigh->windows = 0;
    weigh->window_ns = 0;
    weigh->come_most = weigh->landed_most = 0;
}

/* A link that brings less than it was taken for: a request is worth less there. One that brings
 * more has shown by that that it needs no change. */
static bool try_other(struct sl_weigh *weigh)
{
    weigh->seen = true;
    weigh->tries = weigh->come_most * CHANGED < link_rate(&weigh->facts);
    if (weigh->tries) {
        weigh->why = SL_WORTH_MEASURED;
        weigh->rate_before = weigh->facts.bytes_per_s;
        weigh->landed_before = weigh->landed_most;
        weigh->facts.bytes_per_s = weigh->come_most;
    }
    begin_anew(weigh);
    return weigh->tries;
}

static void judge(struct sl_weigh *weigh)
{
    if (weigh->landed_most < weigh->landed_before * SAME)
        weigh->facts.bytes_per_s = weigh->rate_before;
    weigh->settled = true;
}

bool sl_weigh_tick(struct sl_weigh *weigh, uint64_t now_ns, uint64_t come, uint64_t landed,
                   uint64_t wait_ns)
{
    weigh->facts.wait_ns = wait_ns ? wait_ns : weigh->facts.wait_ns;
    uint64_t least_ns = SL_MAX(WINDOW_NS, WINDOW_WAITS * weigh->facts.wait_ns);
    if (weigh->settled || !come || (weigh->window_ns && now_ns - weigh->window_ns < least_ns))
        return false;
    if (weigh->window_ns && weigh->windows++) {
        double seconds = (double)(now_ns - weigh->window_ns) / (double)SL_NS_PER_S;
        weigh->come_most = SL_MAX(weigh->come_most, (double)(come - weigh->come) / seconds);
        weigh->landed_most = SL_MAX(weigh->landed_most, (double)(landed - weigh->landed) / seconds);
    }
    weigh->window_ns = now_ns;
    weigh->come = come;
    weigh->landed = landed;
    if (weigh->windows >= WINDOWS && weigh->tries)
        judge(weigh);
    else if (weigh->windows >= WINDOWS)
        return try_other(weigh);
    return false;
}

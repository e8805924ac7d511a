/*
 * Hill climbing. A window is measured, connections are added, the next window decides: if the
 * goodput rose by more than noise the step stays and another follows, else it is taken back and the
 * load stays there for a while before it tries again, since other users of the link come and go.
 * The first part of a window after a step is not counted: new connections need a few round trips to
 * get going.
 *
 * Climbing from a few connections takes a second, in which a distant server could have sent a
 * gigabyte. What it takes to begin an answer tells beforehand: nearby (a cache, the same rack) that
 * is a millisecond or two, and a few connections are enough; of object stores it is 10 to 200 ms,
 * and one connection brings some 40 to 90 MB/s.
 */
#include "growth.h"

#include "thread.h"

#define SETTLE_NS (60 * SL_NS_PER_MS)
#define WINDOW_NS (140 * SL_NS_PER_MS)
#define REST_NS   (5 * SL_NS_PER_S)
#define BUSY_NS   (2 * SL_NS_PER_S)
static const double NOISE = 1.08;
#define DISTANT_NS (8 * SL_NS_PER_MS)
static const double LINK_BYTES_PER_S = 1.25e9, CONNECTION_BYTES_PER_S = 40e6; /* 10 Gbit/s */

void sl_growth_init(struct sl_growth *growth, unsigned connections, unsigned maximum)
{
    *growth =
        (struct sl_growth){.connections = connections, .maximum = maximum, .settle_ns = SETTLE_NS};
}

void sl_growth_know_distance(struct sl_growth *growth, uint64_t first_byte_ns,
                             uint64_t request_bytes)
{
    if (growth->distance_known || !first_byte_ns)
        return;
    growth->distance_known = true;
    if (first_byte_ns < DISTANT_NS || growth->ceiling)
        return;
    double waits = (double)first_byte_ns / (double)SL_NS_PER_S;
    double takes = waits + (double)request_bytes / CONNECTION_BYTES_PER_S;
    double fill = LINK_BYTES_PER_S * takes / (double)(request_bytes ? request_bytes : 1);
    unsigned wanted = fill < growth->maximum ? (unsigned)fill + 1 : growth->maximum;
    if (wanted <= growth->connections)
        return;
    growth->connections = wanted < growth->maximum ? wanted : growth->maximum;
    growth->before = 0;
    growth->window_ns = 0;
    if (growth->settle_ns < 3 * first_byte_ns)
        growth->settle_ns = 3 * first_byte_ns;
}

static void begin_window(struct sl_growth *growth, uint64_t ns, uint64_t bytes)
{
    growth->window_ns = ns;
    growth->window_bytes = bytes;
}

static void back_off(struct sl_growth *growth, uint64_t now_ns)
{
    growth->ceiling = growth->connections;
    growth->connections = growth->connections > 1 ? growth->connections / 2 : 1;
    growth->before = 0;
    growth->quiet_until_ns = now_ns + BUSY_NS;
    growth->window_ns = 0;
}

/* Double while nothing speaks against it; one by one near where the server complained. */
static unsigned next_step(struct sl_growth *growth)
{
    unsigned next = growth->connections * 2;
    if (growth->ceiling && next >= growth->ceiling)
        next = growth->connections + 1;
    return next < growth->maximum ? next : growth->maximum;
}

static void judge(struct sl_growth *growth, uint64_t now_ns, double rate)
{
    if (growth->before && rate < growth->rate * NOISE) {
        growth->connections = growth->before;
        growth->before = 0;
        growth->quiet_until_ns = now_ns + REST_NS;
        return;
    }
    unsigned next = next_step(growth);
    growth->before = next > growth->connections ? growth->connections : 0;
    growth->connections = next;
    growth->rate = rate;
}

unsigned sl_growth_tick(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes,
                        unsigned throttled)
{
    if (throttled && now_ns >= growth->quiet_until_ns)
        back_off(growth, now_ns);
    if (now_ns < growth->quiet_until_ns || (!growth->window_ns && !bytes))
        return growth->connections;
    if (!growth->window_ns) {
        begin_window(growth, now_ns + growth->settle_ns, bytes);
    } else if (now_ns < growth->window_ns) {
        growth->window_bytes = bytes;
    } else if (now_ns - growth->window_ns >= WINDOW_NS) {
        double seconds = (double)(now_ns - growth->window_ns) / (double)SL_NS_PER_S;
        judge(growth, now_ns, (double)(bytes - growth->window_bytes) / seconds);
        begin_window(growth, now_ns + growth->settle_ns, bytes);
    }
    return growth->connections;
}

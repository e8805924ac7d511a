/*
 * Hill climbing. A window is measured, connections are added, the next window decides: if the
 * goodput rose by more than noise the step stays and another follows, else it is taken back and the
 * load stays there for a while before it tries again, since other users of the link come and go.
 * The first part of a window after a step is not counted: new connections need a few round trips to
 * get going.
 */
#include "growth.h"

#include "thread.h"

#define SETTLE_NS (60 * SL_NS_PER_MS)
#define WINDOW_NS (140 * SL_NS_PER_MS)
#define REST_NS   (5 * SL_NS_PER_S)
#define BUSY_NS   (2 * SL_NS_PER_S)
static const double NOISE = 1.08;

void sl_growth_init(struct sl_growth *growth, unsigned connections, unsigned maximum)
{
    *growth = (struct sl_growth){.connections = connections, .maximum = maximum};
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
        begin_window(growth, now_ns + SETTLE_NS, bytes);
    } else if (now_ns < growth->window_ns) {
        growth->window_bytes = bytes;
    } else if (now_ns - growth->window_ns >= WINDOW_NS) {
        double seconds = (double)(now_ns - growth->window_ns) / (double)SL_NS_PER_S;
        judge(growth, now_ns, (double)(bytes - growth->window_bytes) / seconds);
        begin_window(growth, now_ns + SETTLE_NS, bytes);
    }
    return growth->connections;
}

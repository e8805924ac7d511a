/*
 * Hill climbing. A window is measured, connections are added, the next window decides: if the
 * goodput rose by more than noise the step stays and another follows, else it is taken back and the
 * load stays there for a while before it tries again, since other users of the link come and go.
 * The first part of a window after a step is not counted: new connections need a few round trips to
 * get going.
 *
 * Every connection costs memory, here and at the server, and on a link that is full they share what
 * one less would bring as well. So every other try goes down, by a quarter, and on while the
 * goodput stays what it was; it is measured for longer, since here noise must not decide. While the
 * process has no processor left more connections only make each of them slower: none are added, and
 * fewer are tried.
 *
 * Climbing from a few connections takes a second, in which a distant server could have sent a
 * gigabyte. What it takes to begin an answer tells beforehand: nearby (a cache, the same rack) that
 * is a millisecond or two, and a few connections are enough; of object stores it is 10 to 200 ms,
 * and one connection brings some 40 to 90 MB/s.
 */
#include "growth.h"

#include <time.h>

#include "thread.h"

#define SETTLE_NS (60 * SL_NS_PER_MS)
#define WINDOW_NS (140 * SL_NS_PER_MS)
#define REST_NS   (5 * SL_NS_PER_S)
#define BUSY_NS   (2 * SL_NS_PER_S)
static const double NOISE = 1.08, SAME = 0.97, CPU_FULL = 0.92;
enum { LONG_WINDOWS = 3 /* for a step down */, EVEN_TURNS_MAX = 4 };
#define DISTANT_NS (8 * SL_NS_PER_MS)
static const double LINK_BYTES_PER_S = 1.25e9, CONNECTION_BYTES_PER_S = 40e6; /* 10 Gbit/s */

void sl_growth_init(struct sl_growth *growth, unsigned connections, unsigned maximum)
{
    *growth = (struct sl_growth){.connections = connections,
                                 .maximum = maximum,
                                 .least = connections,
                                 .settle_ns = SETTLE_NS};
}

void sl_growth_watch_cpu(struct sl_growth *growth, uint64_t (*cpu_ns)(void), double processors)
{
    growth->cpu_ns = cpu_ns;
    growth->processors = processors;
}

uint64_t sl_growth_process_cpu_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * SL_NS_PER_S + (uint64_t)time.tv_nsec;
}

void sl_growth_know_requests(struct sl_growth *growth, size_t requests)
{
    growth->requests = requests;
}

/*
 * 40 connections for 64 requests need two turns, and in the second 16 of them have nothing to do:
 * 64 need one, and 32 the same two. One turn if so many are allowed, else as few as the turns need.
 */
static unsigned even_out(const struct sl_growth *growth, unsigned wanted)
{
    size_t turns = (growth->requests + wanted - 1) / wanted;
    if (turns == 2 && growth->requests <= growth->maximum)
        return (unsigned)growth->requests;
    return turns > 1 && turns <= EVEN_TURNS_MAX ? (unsigned)((growth->requests + turns - 1) / turns)
                                                : wanted;
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
    wanted = even_out(growth, wanted < growth->maximum ? wanted : growth->maximum);
    if (wanted <= growth->connections)
        return;
    growth->connections = wanted;
    growth->before = 0;
    growth->window_ns = 0;
    if (growth->settle_ns < 3 * first_byte_ns)
        growth->settle_ns = 3 * first_byte_ns;
}

static void begin_window(struct sl_growth *growth, uint64_t ns, uint64_t bytes)
{
    growth->window_ns = ns;
    growth->window_bytes = bytes;
    growth->window_cpu_ns = growth->cpu_ns ? growth->cpu_ns() : 0;
}

static void back_off(struct sl_growth *growth, uint64_t now_ns)
{
    growth->ceiling = growth->connections;
    growth->connections = growth->connections > 1 ? growth->connections / 2 : 1;
    growth->before = 0;
    growth->down = false;
    growth->quiet_until_ns = now_ns + BUSY_NS;
    growth->window_ns = 0;
}

/* Double while nothing speaks against it; one by one near where the server complained. */
static unsigned next_step(const struct sl_growth *growth)
{
    unsigned next = growth->connections * 2;
    if (growth->ceiling && next >= growth->ceiling)
        next = growth->connections + 1;
    return next < growth->maximum ? next : growth->maximum;
}

/* A quarter fewer. */
static unsigned step_down(const struct sl_growth *growth)
{
    unsigned less = growth->connections / 4 ? growth->connections / 4 : 1;
    return growth->connections > growth->least + less ? growth->connections - less : growth->least;
}

/* Stay where it is for a while; the next try goes the other way. */
static void rest(struct sl_growth *growth, uint64_t now_ns)
{
    growth->before = 0;
    growth->down = !growth->down && growth->connections > growth->least;
    growth->quiet_until_ns = now_ns + REST_NS;
}

/* Whether the process used all the time of its processors since the window was begun. */
static bool is_cpu_full(const struct sl_growth *growth, uint64_t now_ns)
{
    uint64_t begin_ns = growth->window_ns - growth->settle_ns;
    if (!growth->cpu_ns || now_ns <= begin_ns)
        return false;
    double used = (double)(growth->cpu_ns() - growth->window_cpu_ns);
    return used >= CPU_FULL * growth->processors * (double)(now_ns - begin_ns);
}

static void judge_down(struct sl_growth *growth, uint64_t now_ns, double rate)
{
    if (!growth->before)
        growth->rate = rate;
    else if (rate < growth->rate * SAME) {
        growth->connections = growth->before;
        rest(growth, now_ns);
        return;
    }
    unsigned next = step_down(growth);
    if (next >= growth->connections) {
        rest(growth, now_ns);
        return;
    }
    growth->before = growth->connections;
    growth->connections = next;
}

static void judge_up(struct sl_growth *growth, uint64_t now_ns, double rate)
{
    if (growth->before && rate < growth->rate * NOISE) {
        growth->connections = growth->before;
        rest(growth, now_ns);
        return;
    }
    if (is_cpu_full(growth, now_ns)) {
        rest(growth, now_ns);
        return;
    }
    unsigned next = next_step(growth);
    growth->rate = rate;
    if (next == growth->connections) {
        rest(growth, now_ns);
        return;
    }
    growth->before = growth->connections;
    growth->connections = next;
}

unsigned sl_growth_tick(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes,
                        unsigned throttled)
{
    if (growth->least == growth->maximum && growth->connections == growth->maximum && !throttled)
        return growth->connections;
    if (throttled && now_ns >= growth->quiet_until_ns)
        back_off(growth, now_ns);
    if (now_ns < growth->quiet_until_ns) {
        growth->window_ns = 0;
        return growth->connections;
    }
    if (!growth->window_ns && !bytes)
        return growth->connections;
    uint64_t window_ns = growth->down ? LONG_WINDOWS * WINDOW_NS : WINDOW_NS;
    if (!growth->window_ns) {
        begin_window(growth, now_ns + growth->settle_ns, bytes);
    } else if (now_ns < growth->window_ns) {
        growth->window_bytes = bytes;
    } else if (now_ns - growth->window_ns >= window_ns) {
        double rate = (double)(bytes - growth->window_bytes) * (double)SL_NS_PER_S /
                      (double)(now_ns - growth->window_ns);
        if (growth->down)
            judge_down(growth, now_ns, rate);
        else
            judge_up(growth, now_ns, rate);
        begin_window(growth, now_ns + growth->settle_ns, bytes);
    }
    return growth->connections;
}

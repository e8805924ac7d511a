/*
 * Hill climbing. A window is measured, connections are added, the next window decides: if the
 * goodput rose by more than noise the step stays and another follows, else it is taken back and the
 * load stays there for a while before it tries again, since other users of the link come and go.
 * The first part of a window after a step is not counted: new connections need a few round trips to
 * get going.
 *
 *     what is seen of a step                then
 *     more comes                            it stays, and the next step
 *     no more comes                         taken back; rest
 *     none may be added, or no processor    rest
 *     is left
 *     others have the processors (near)     taken back; rest
 *     the server says: too many             half of them; rest
 *
 * No step goes down but these: tries with fewer made loads slower on links that change, by up to
 * 30 %, and no load faster by 3 % (test_growth_links.c).
 *
 * While the process has no processor left more connections only make each of them slower: none are
 * added. So it is while others have the machine's processors, and the threads of this process wait
 * for their turn; not far from the server, where connections wait for answers in that time as well.
 * While one thread has all connections and is busy all the time, what is tried is a second thread:
 * more connections of the first would bring nothing, and hide that.
 *
 * Bytes are counted as they land, a window of a connection at a time. A store that brings 3 MB/s
 * lands one or two of these in the time in which a fast one is measured, and chance would look like
 * a rise. So a rate is measured over several windows of each connection.
 *
 * Climbing by windows takes a second, in which a distant server could have sent a gigabyte. What it
 * takes to begin an answer tells how many connections an ordinary link would need: nearby (a cache,
 * the same rack) that is a millisecond or two, and a few are enough; of object stores it is 10 to
 * 200 ms, and one connection brings some 40 to 90 MB/s. But a server that takes long may as well be
 * slow. So it first sees a few, and then as many as what has come would give a share to: a store of
 * 3 MB/s never has enough for more than the few, and of a fast one a few megabytes tell, long
 * before a window is over. That is a step like others, on trial, and taken back if it does not
 * help. Where a later answer begins at once the first one was slow and the server is near: then all
 * that was done for its distance is taken back. An answer that came late while this process waited
 * for processors, for half of the time and more, tells nothing: where many loads begin together on
 * one machine the nearest server answers late. Then it is looked again as soon as there are
 * processors, with the answers that have come by then.
 *
 * Nearby, a server may give each connection little and all together much. Where a step clearly
 * brought what it added, the next one does not wait for a whole window. Where connections bring
 * much, a step that could not be judged before the load ends is not tried.
 *
 * Each rule was left out alone on 1,433 simulated links: those of test_growth_links.c, more sizes,
 * rates and distances, and stores that many connections slow down. Without one that is here some
 * loads take 1.04 to 4 times as long, but for those that spare the processors of this machine: no
 * simulated link has any, and they are worth a tenth of the processor time of 512 MiB from near.
 */
#include "growth.h"

#include "thread.h"

#define SETTLE_NS (60 * SL_NS_PER_MS)
#define WINDOW_NS (140 * SL_NS_PER_MS)
#define REST_NS   (5 * SL_NS_PER_S)
#define BUSY_NS   (2 * SL_NS_PER_S)
static const double NOISE = 1.08, CPU_FULL = 0.92;
static const double THREAD_FULL = 0.8; /* of a processor; at times it waits for others' locks */
static const double WAIT_PART = 0.5;   /* of what threads would do: others have the processors */
enum { QUANTA = 8 /* of each connection, in a window that is measured */ };
enum { EVEN_TURNS_MAX = 4 };
/* Any server sees FEW before more are judged. Where many are aimed at it begins with less: the step
 * to FEW then tells a slow store from a fast one. */
enum { FEW = 8, FEW_AIMED = 6 };
#define DISTANT_NS (8 * SL_NS_PER_MS)
/* Where an answer begins sooner the server is near, whatever the first one took. */
#define NEARER_NS SL_NS_PER_MS
static const double LINK_BYTES_PER_S = 1.25e9, CONNECTION_BYTES_PER_S = 40e6; /* 10 Gbit/s */
static const double SPARE = 1.25; /* since some bring less than others */
/* A connection that brings this part of what one should at its distance is not held up by others.
 */
static const double SHARE_PART = 0.25, SHARE_MOST_BYTES_PER_S = 1e6;
/* Where connections bring less than this each, a step that brings so much of what it adds has
 * clearly helped, in a window as short as this. */
static const double THROTTLED_BYTES_PER_S = 100e6, CLEAR_PART = 0.5;
enum { QUICK_QUANTA = 4 };
enum { LATE_ANSWERS = 4 /* of which one was in time, if the server is near */ };
#define LOOK_NS         (50 * SL_NS_PER_MS) /* between two looks for processors */
#define QUICK_NS        (20 * SL_NS_PER_MS)
#define QUICK_SETTLE_NS (10 * SL_NS_PER_MS)

void sl_growth_init(struct sl_growth *growth, unsigned connections, unsigned maximum)
{
    *growth = (struct sl_growth){.connections = connections,
                                 .maximum = maximum,
                                 .near = connections,
                                 .fixed = connections == maximum,
                                 .why = connections == maximum ? SL_GROWTH_MOST : SL_GROWTH_BEGUN,
                                 .settle_ns = SETTLE_NS};
}

void sl_growth_watch_cpu(struct sl_growth *growth, struct sl_cpu_time (*cpu)(void),
                         double processors)
{
    growth->cpu = cpu;
    growth->processors = processors;
}

void sl_growth_know_threads(struct sl_growth *growth, unsigned second_thread)
{
    growth->second_thread = second_thread;
}

void sl_growth_know_quantum(struct sl_growth *growth, uint64_t bytes)
{
    growth->quantum = bytes;
}

void sl_growth_know_bytes(struct sl_growth *growth, uint64_t bytes)
{
    growth->all_bytes = bytes;
}

void sl_growth_know_requests(struct sl_growth *growth, size_t requests)
{
    growth->requests = requests;
}

bool sl_growth_is_crowded(const struct sl_growth *growth, unsigned open)
{
    return growth->ceiling > 0 || (growth->share > 0 && !growth->fed && open >= FEW);
}

void sl_growth_restart(struct sl_growth *growth)
{
    if (growth->before && !growth->distant)
        growth->connections = growth->before;
    growth->before = 0;
    growth->window_ns = 0;
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

/* Connections that fill an ordinary link. takes_s: one request, from its first byte out to its last
 * byte in. */
static unsigned fill_link(const struct sl_growth *growth, double takes_s, uint64_t request_bytes)
{
    double fill = SPARE * LINK_BYTES_PER_S * takes_s / (double)request_bytes;
    unsigned wanted = fill < growth->maximum ? (unsigned)fill + 1 : growth->maximum;
    return even_out(growth, wanted < growth->maximum ? wanted : growth->maximum);
}

/* Begin with a few, and reach for more. */
static void begin_with_few(struct sl_growth *growth, unsigned target)
{
    unsigned few = target < FEW_AIMED ? target : FEW_AIMED;
    if (growth->connections != few && !growth->first_ns) {
        growth->connections = few;
        growth->before = 0;
        growth->window_ns = 0;
    }
    growth->target = target > growth->connections ? target : 0;
}

/* The first answer was slow, and the server is not far. */
static void take_back_distance(struct sl_growth *growth, uint64_t first_byte_ns)
{
    growth->distant = false;
    growth->answer_ns = first_byte_ns;
    growth->settle_ns = QUICK_SETTLE_NS;
    if (growth->why == SL_GROWTH_ROSE || growth->why == SL_GROWTH_BUSY)
        return;
    growth->target = 0;
    growth->before = 0;
    growth->window_ns = 0;
    growth->why = SL_GROWTH_NEARER;
    growth->connections = growth->near < growth->connections ? growth->near : growth->connections;
}

/* What the process had of the processors in so many ns; not known is nothing. */
struct spent {
    double ns, used, waited;
};

static struct spent spent_since(const struct sl_growth *growth, struct sl_cpu_time before,
                                uint64_t ns)
{
    if (!growth->cpu)
        return (struct spent){.ns = 1};
    struct sl_cpu_time cpu = sl_cpu_time_between(before, growth->cpu());
    return (struct spent){(double)ns, (double)cpu.used_ns, (double)cpu.waited_ns};
}

static bool waits(const struct spent *spent)
{
    double wanted = spent->used + spent->waited;
    return wanted > 0 && spent->waited >= WAIT_PART * wanted;
}

bool sl_growth_waits(struct sl_cpu_time cpu)
{
    return waits(&(struct spent){.used = (double)cpu.used_ns, .waited = (double)cpu.waited_ns});
}

/* The machine has none: a thread of the process, or more, always has something to do, and waits for
 * a processor for much of that. */
static bool is_machine_full(const struct spent *spent)
{
    return spent->used + spent->waited >= THREAD_FULL * spent->ns && waits(spent);
}

static void look(struct sl_growth *growth)
{
    growth->looked = true;
    growth->looked_ns = growth->now_ns;
    growth->looked_cpu = growth->cpu();
}

/* Whether an answer that came late may have waited for a processor: since the process began, and
 * then, when a few more have come, since the last look. */
static bool was_delayed(struct sl_growth *growth, uint64_t request_bytes)
{
    uint64_t ns = growth->looked ? growth->now_ns - growth->looked_ns : 0;
    bool early = ns < LOOK_NS || growth->landed < LATE_ANSWERS * request_bytes;
    if (growth->looked && growth->looked_ns && early)
        return true;
    struct spent spent = spent_since(growth, growth->looked_cpu, ns);
    bool begins = growth->looked && !growth->looked_ns; /* there was no clock before */
    bool delayed = begins || is_machine_full(&spent);
    if (delayed)
        look(growth);
    return delayed;
}

static void take_distance(struct sl_growth *growth, uint64_t first_byte_ns, uint64_t request_bytes)
{
    bool distant = first_byte_ns >= DISTANT_NS;
    growth->distance_known = true;
    uint64_t settle_ns = 3 * first_byte_ns, least_ns = distant ? SETTLE_NS : QUICK_SETTLE_NS;
    growth->settle_ns = settle_ns > least_ns ? settle_ns : least_ns;
    growth->answer_ns = first_byte_ns;
    growth->request_bytes = request_bytes ? request_bytes : 1;
    double takes_s = (double)first_byte_ns / (double)SL_NS_PER_S +
                     (double)growth->request_bytes / CONNECTION_BYTES_PER_S;
    double share = SHARE_PART * (double)growth->request_bytes / takes_s;
    if (growth->ceiling || growth->fixed)
        return;
    growth->share = share < SHARE_MOST_BYTES_PER_S ? share : SHARE_MOST_BYTES_PER_S;
    unsigned fills = distant ? fill_link(growth, takes_s, growth->request_bytes) : 0;
    growth->distant = fills > 0;
    unsigned target = fills > growth->connections ? fills : growth->connections;
    if (fills || target > FEW)
        begin_with_few(growth, target);
}

void sl_growth_know_distance(struct sl_growth *growth, uint64_t first_byte_ns,
                             uint64_t request_bytes)
{
    if (growth->distant && first_byte_ns && first_byte_ns < NEARER_NS)
        take_back_distance(growth, first_byte_ns);
    if (growth->distance_known || !first_byte_ns)
        return;
    if (first_byte_ns < DISTANT_NS || !was_delayed(growth, request_bytes))
        take_distance(growth, first_byte_ns, request_bytes);
}

void sl_growth_know_smaller(struct sl_growth *growth, uint64_t first_byte_ns,
                            uint64_t request_bytes)
{
    growth->requests = 0;
    growth->quantum = growth->quantum < request_bytes ? growth->quantum : request_bytes;
    growth->distance_known = first_byte_ns > 0; /* several answers have come by now */
    if (growth->distance_known)
        take_distance(growth, first_byte_ns, request_bytes);
}

static void begin_window(struct sl_growth *growth, uint64_t ns, uint64_t bytes)
{
    growth->window_ns = ns;
    growth->window_bytes = bytes;
    if (growth->cpu)
        growth->window_cpu = growth->cpu();
}

static void back_off(struct sl_growth *growth, uint64_t now_ns)
{
    growth->ceiling = growth->connections;
    growth->connections = growth->connections > 1 ? growth->connections / 2 : 1;
    growth->why = SL_GROWTH_BUSY;
    growth->before = 0;
    growth->target = 0;
    growth->quiet_until_ns = now_ns + BUSY_NS;
    growth->window_ns = 0;
}

static struct spent since_window(const struct sl_growth *growth, uint64_t now_ns)
{
    uint64_t begin_ns = growth->window_ns - growth->settle_ns;
    if (now_ns <= begin_ns)
        return (struct spent){.ns = 1};
    return spent_since(growth, growth->window_cpu, now_ns - begin_ns);
}

static bool is_cpu_full(const struct sl_growth *growth, const struct spent *spent)
{
    return growth->cpu && spent->used >= CPU_FULL * growth->processors * spent->ns;
}

/* Whether one thread has all connections, and no time for more. */
static bool is_thread_full(const struct sl_growth *growth, const struct spent *spent)
{
    return growth->connections < growth->second_thread && spent->used >= THREAD_FULL * spent->ns;
}

/* Double while nothing speaks against it; one by one near where the server complained. It is seen
 * what a few bring before there are more. */
static unsigned next_step(const struct sl_growth *growth, const struct spent *spent)
{
    unsigned next = growth->connections * 2;
    if (next < growth->second_thread && is_thread_full(growth, spent))
        next = growth->second_thread;
    if (growth->connections < FEW && next > FEW)
        next = FEW;
    if (growth->ceiling && next >= growth->ceiling)
        next = growth->connections + 1;
    return next < growth->maximum ? next : growth->maximum;
}

/* Stay where it is for a while. */
static void rest(struct sl_growth *growth, uint64_t now_ns)
{
    growth->before = 0;
    growth->quiet_until_ns = now_ns + REST_NS;
}

static double bytes_per_s(uint64_t bytes, uint64_t ns)
{
    return (double)bytes * (double)SL_NS_PER_S / (double)(ns ? ns : 1);
}

/* Before a step could be judged, at this rate. Where connections bring little each it is judged
 * soon. More may land than was told: what is cast to larger types. */
static bool ends_soon(const struct sl_growth *growth, double rate)
{
    uint64_t all = growth->all_bytes, landed = growth->landed;
    return all > landed && !growth->distant &&
           rate >= THROTTLED_BYTES_PER_S * growth->connections &&
           rate >= bytes_per_s(all - landed, growth->settle_ns + WINDOW_NS);
}

static void judge(struct sl_growth *growth, uint64_t now_ns, double rate)
{
    struct spent spent = since_window(growth, now_ns);
    unsigned next = next_step(growth, &spent);
    bool crowded = !growth->distant && is_machine_full(&spent);
    if (growth->before && (crowded || rate < growth->rate * NOISE)) {
        growth->connections = growth->before;
        growth->why = crowded ? SL_GROWTH_PROCESSORS : SL_GROWTH_SAME;
        growth->target = 0;
        rest(growth, now_ns);
        return;
    }
    if (growth->before)
        growth->why = SL_GROWTH_ROSE;
    bool full = crowded || is_cpu_full(growth, &spent);
    if (full || next == growth->connections) {
        growth->why = full ? SL_GROWTH_PROCESSORS : SL_GROWTH_MOST;
        rest(growth, now_ns);
        return;
    }
    growth->rate = rate;
    growth->before = 0;
    if (ends_soon(growth, rate))
        return;
    growth->before = growth->connections;
    growth->connections = next;
}

/* Whether what was measured so far is clear: connections bring little each, and those that were
 * added brought that, too. */
static bool is_clear(const struct sl_growth *growth, uint64_t ns, uint64_t landed)
{
    if (growth->target || ns < QUICK_NS || !growth->quantum || growth->settle_ns >= SETTLE_NS ||
        landed < QUICK_QUANTA * growth->quantum * growth->connections)
        return false;
    double rate = bytes_per_s(landed, ns), before = growth->before;
    if (rate >= THROTTLED_BYTES_PER_S * growth->connections)
        return false;
    return !growth->before ||
           rate >= growth->rate * (1 + CLEAR_PART * (growth->connections - before) / before);
}

/* Whether enough time has passed, and enough has landed, to measure a rate. */
static bool is_measured(const struct sl_growth *growth, uint64_t now_ns, uint64_t bytes)
{
    uint64_t ns = now_ns - growth->window_ns, landed = bytes - growth->window_bytes;
    return is_clear(growth, ns, landed) ||
           (ns >= WINDOW_NS && landed >= QUANTA * growth->quantum * growth->connections);
}

/* As many as would all have their share of what comes, waiting included: nothing is added on the
 * word of a burst. One step, however many calls it takes to get there. */
static void reach_target(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes)
{
    if (bytes < QUANTA * growth->quantum || now_ns <= growth->began_ns)
        return;
    double shares = bytes_per_s(bytes, now_ns - growth->began_ns) / growth->share;
    unsigned next = shares < growth->target ? (unsigned)shares : growth->target;
    growth->fed = growth->fed || next > growth->connections;
    if (next <= growth->connections)
        return;
    if (growth->distant && !growth->before) {
        growth->before = growth->connections;
        growth->rate = 0;
        growth->reached_ns = now_ns;
    }
    growth->connections = next;
    growth->target = next == growth->target ? 0 : growth->target;
    begin_window(growth, now_ns + growth->settle_ns, bytes);
}

/* What those before it bring, as long as the others cannot have brought anything, since they have
 * to connect and to ask. That is within their first ranges: between these they wait. */
static void note_before(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes)
{
    if (!growth->before || growth->rate > 0 || now_ns < growth->reached_ns + 2 * growth->answer_ns)
        return;
    double rate = bytes_per_s(bytes - growth->first_bytes, now_ns - growth->first_ns);
    double asked = (double)growth->before * (double)growth->request_bytes;
    double wait_s = (double)growth->answer_ns / (double)SL_NS_PER_S;
    growth->rate = rate > 0 ? asked / (wait_s + asked / rate) : 1;
}

/* The first call, and the first bytes. */
static void note_begin(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes)
{
    if (!growth->began_ns)
        growth->began_ns = now_ns;
    if (growth->first_ns || !bytes)
        return;
    growth->first_ns = now_ns;
    growth->first_bytes = bytes;
}

unsigned sl_growth_tick(struct sl_growth *growth, uint64_t now_ns, uint64_t bytes,
                        unsigned throttled)
{
    growth->now_ns = now_ns;
    growth->landed = bytes;
    if (growth->fixed && growth->connections == growth->maximum && !throttled)
        return growth->connections;
    if (throttled && now_ns >= growth->quiet_until_ns)
        back_off(growth, now_ns);
    if (now_ns < growth->quiet_until_ns) {
        growth->window_ns = 0;
        return growth->connections;
    }
    note_begin(growth, now_ns, bytes);
    if (growth->target)
        reach_target(growth, now_ns, bytes);
    if (!growth->window_ns && !bytes)
        return growth->connections;
    if (!growth->window_ns) {
        begin_window(growth, now_ns + growth->settle_ns, bytes);
    } else if (now_ns < growth->window_ns) {
        growth->window_bytes = bytes;
        note_before(growth, now_ns, bytes);
    } else if (is_measured(growth, now_ns, bytes)) {
        double rate = bytes_per_s(bytes - growth->window_bytes, now_ns - growth->window_ns);
        growth->fed = rate >= growth->share * growth->connections;
        judge(growth, now_ns, rate);
        begin_window(growth, now_ns + growth->settle_ns, bytes);
    }
    return growth->connections;
}

/*
 * A few connections suffice nearby, many are needed far away or where requests are small, and each
 * costs a buffer here and a process or a place there: so auto begins with what is right at most
 * places and lets growth.c look for more, up to a maximum that no store minds.
 *
 * Threads are for processors, so their number is bounded for the process and not for each load:
 * several models that are loaded side by side share what one would have. A load that finds all
 * taken has its own thread, which drives any number of connections.
 */
#include "concurrency.h"

#include "fork_guard.h"
#include "mem.h"
#include "option.h"
#include "thread.h"

enum {
    HOST_AUTO = 128,
    PRECONNECT_AUTO = 7, /* with the first, what a load far from its store begins with */
    PRECONNECT_MAX = 63,

    FIRST_AUTO = 2,
    FIRST_NEAR = 1, /* another stands in where it stalls */
    FIRST_SMALL = 16,
    CACHES = 32, /* blocks on their way; with 16 a ring of 16 idles for a sixth of the time */
    FIRST_LOCAL = 2,
    MOST_AUTO = 64,
    MOST_SMALL = 128, /* 30 ms away that is 4,000 requests/s: a store allows them */
    MOST_LOCAL = 8,
    FIXED_USUAL = 8,
    FIXED_THREADS = 2,
    FIXED_OPENINGS = 32,
    MOST_USEFUL = 4096,
    SMALL_REQUEST_BYTES = 1024 * 1024,

    MOST_OF_LOAD = 1024,
    BUFFER_BYTES = 256 * 1024,
    BUFFER_BYTES_MIN = 64 * 1024,
    PAGE_BYTES = 4096,
    LARGE_BUFFER_BYTES = 1024 * 1024, /* two threads that fill one file wait less for each other */
    MEMORY_BYTES = 48 * 1024 * 1024,

    THREADS_AUTO = 8,
    CONNECTIONS_A_THREAD = 2, /* or more: while one writes, another reads */
    STAND_IN_PART = 4,        /* of a thread's connections */
};
/* After a window that filled within FAST_WINDOW_NS the next is longer; after SLOW_WINDOW_NS,
 * shorter.
 */
#define FAST_WINDOW_NS (2 * SL_NS_PER_MS)
#define SLOW_WINDOW_NS (8 * SL_NS_PER_MS)
#define NEAR_NS        SL_NS_PER_MS /* a server that begins an answer sooner than this */

#define NAME_OF(names, value) ((unsigned)(value) < SL_COUNT(names) ? names[value] : "")

const char *sl_connections_why_name(enum sl_connections_why why)
{
    static const char *const names[] = {"usual",   "near",  "given",  "local",   "small",
                                        "distant", "known", "caches", "in-order"};
    return NAME_OF(names, why);
}

const char *sl_connections_bound_name(enum sl_connections_bound bound)
{
    static const char *const names[] = {"auto", "ranges", "descriptors", "memory", "host"};
    return NAME_OF(names, bound);
}

const char *sl_growth_why_name(enum sl_growth_why why)
{
    static const char *const names[] = {"begun", "rose",   "same", "processors",
                                        "busy",  "nearer", "most"};
    return NAME_OF(names, why);
}

const char *sl_threads_why_name(enum sl_threads_why why)
{
    static const char *const names[] = {"given", "processors", "connections", "loads"};
    return NAME_OF(names, why);
}

static bool is_auto(uint64_t given)
{
    return given == 0 || given == SL_AUTO_VALUE;
}

/* ---- before there is a plan ------------------------------------------------------------------ */

unsigned sl_concurrency_per_host(uint64_t per_host, uint64_t connections)
{
    if (per_host != SL_AUTO_VALUE)
        return (unsigned)per_host;
    return SL_MAX((unsigned)HOST_AUTO, is_auto(connections) ? 0u : (unsigned)connections);
}

unsigned sl_concurrency_preconnect(uint64_t connections, unsigned descriptors)
{
    unsigned wanted = is_auto(connections)
                          ? (unsigned)PRECONNECT_AUTO
                          : (unsigned)SL_MIN(connections - 1, (uint64_t)PRECONNECT_MAX);
    return SL_MIN(wanted, descriptors - 1); /* one is there, that of the first request */
}

unsigned sl_concurrency_small(uint64_t connections, unsigned descriptors)
{
    uint64_t wanted = is_auto(connections) ? (uint64_t)MOST_SMALL : connections;
    return (unsigned)SL_MAX(SL_MIN(wanted, (uint64_t)descriptors), 1u);
}

unsigned sl_concurrency_openings(const struct sl_fixed *fixed, uint64_t connections)
{
    uint64_t most = is_auto(connections) ? (uint64_t)FIXED_OPENINGS : connections;
    uint64_t usual = SL_MIN(most, (uint64_t)FIXED_OPENINGS);
    return fixed->on ? (unsigned)sl_fixed_or(fixed->openings, usual) : 0;
}

/* ---- a plan ---------------------------------------------------------------------------------- */

/* No more than this, because of that. */
static void bound(struct sl_connections *connections, unsigned most, enum sl_connections_bound why)
{
    if (connections->most <= most)
        return;
    connections->most = most;
    connections->bound = why;
}

struct sl_connections sl_concurrency_of_plan(const struct sl_plan_facts *facts)
{
    /* A small request is mostly waited for: the rate of requests counts, and that is of
     * connections. */
    uint64_t requests = facts->requests ? facts->requests : facts->ranges;
    bool small = requests && facts->fetch_bytes / requests < SMALL_REQUEST_BYTES;
    struct sl_connections connections = {FIRST_AUTO, MOST_AUTO, SL_CONNECTIONS_USUAL,
                                         SL_BOUND_AUTO};
    if (facts->in_order)
        return (struct sl_connections){1, 1, SL_CONNECTIONS_IN_ORDER, SL_BOUND_AUTO};
    if (!is_auto(facts->given))
        connections = (struct sl_connections){(unsigned)facts->given, (unsigned)facts->given,
                                              SL_CONNECTIONS_GIVEN, SL_BOUND_AUTO};
    else if (facts->local)
        connections =
            (struct sl_connections){FIRST_LOCAL, MOST_LOCAL, SL_CONNECTIONS_LOCAL, SL_BOUND_AUTO};
    else if (facts->caches)
        connections = (struct sl_connections){CACHES, CACHES, SL_CONNECTIONS_CACHES, SL_BOUND_AUTO};
    else if (small)
        connections =
            (struct sl_connections){FIRST_SMALL, MOST_SMALL, SL_CONNECTIONS_SMALL, SL_BOUND_AUTO};
    if (facts->rows && is_auto(facts->given) && !facts->local)
        connections.most = MOST_SMALL;
    if (facts->fixed && connections.why == SL_CONNECTIONS_USUAL)
        connections.first = FIXED_USUAL;
    if (facts->fixed)
        connections.most = connections.first;
    size_t parts = SL_MIN(facts->ranges + facts->composed, (size_t)MOST_USEFUL);
    bound(&connections, SL_MAX((unsigned)parts, 1u), SL_BOUND_RANGES);
    bound(&connections, facts->descriptors, SL_BOUND_DESCRIPTORS);
    connections.first = SL_MIN(connections.first, connections.most);
    return connections;
}

/* ---- a load that begins to read -------------------------------------------------------------- */

/* They fill no larger buffer, and need more connections than larger ones leave room for. */
static bool are_requests_tiny(const struct sl_load_facts *facts)
{
    return facts->ranges && facts->fetch_bytes / facts->ranges <= BUFFER_BYTES_MIN;
}

/* What the buffers of all connections leave of the memory. */
static void fit_large(uint64_t memory, uint64_t buffers, struct sl_concurrency *out)
{
    uint64_t taken = (out->connections.most + out->stand_ins) * buffers * out->buffer_bytes;
    bool usual = out->buffer_bytes == BUFFER_BYTES && buffers == 1;
    out->large_bytes = usual ? (size_t)LARGE_BUFFER_BYTES : out->buffer_bytes;
    out->large = usual && taken < memory
                     ? (unsigned)((memory - taken) / (LARGE_BUFFER_BYTES - BUFFER_BYTES))
                     : 0;
}

/* Buffers shrink before connections do; the bound holds in the worst case. */
static void fit_memory(const struct sl_load_facts *facts, struct sl_concurrency *out)
{
    struct sl_connections *connections = &out->connections;
    uint64_t memory = facts->memory_bytes ? facts->memory_bytes : MEMORY_BYTES;
    uint64_t buffers = facts->grows ? 2 : 1;
    unsigned host = facts->host ? facts->host : (unsigned)MOST_OF_LOAD;
    connections->most = SL_MIN(SL_MAX(connections->most, 1u), (unsigned)MOST_OF_LOAD);
    bool window = facts->fixed.on && facts->fixed.window_bytes != SL_AUTO_VALUE;
    out->buffer_bytes = are_requests_tiny(facts) ? BUFFER_BYTES_MIN : BUFFER_BYTES;
    if (window)
        out->buffer_bytes =
            (size_t)(facts->fixed.window_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    while (facts->connections && !window && out->buffer_bytes > BUFFER_BYTES_MIN &&
           connections->most * buffers * out->buffer_bytes > memory)
        out->buffer_bytes /= 2;
    uint64_t fit = memory / (buffers * out->buffer_bytes);
    bound(connections, (unsigned)SL_MIN(SL_MAX(fit, 1u), (uint64_t)MOST_OF_LOAD), SL_BOUND_MEMORY);
    unsigned most = connections->most, room = (unsigned)SL_MIN(fit, (uint64_t)host);
    bool more = room > most && !facts->fixed.on;
    out->stand_ins = more ? SL_MIN(room - most, most + SL_THREADS_MAX) : 0;
    fit_large(memory, buffers, out);
    if (facts->fixed.on)
        out->large = 0;
    bound(connections, host, SL_BOUND_HOST); /* more would wait for each other */
}

void sl_concurrency_know_distance(const struct sl_load_facts *facts, uint64_t first_byte_ns,
                                  struct sl_growth *growth)
{
    if (!facts->ranges)
        return;
    sl_growth_know_requests(growth, facts->ranges);
    sl_growth_know_distance(growth, first_byte_ns, facts->fetch_bytes / facts->ranges);
}

/* What a connection lands at a time: a buffer, or a request that is smaller. */
static uint64_t quantum(const struct sl_load_facts *facts, const struct sl_concurrency *out)
{
    uint64_t request = facts->ranges ? facts->fetch_bytes / facts->ranges : 0;
    return SL_MIN((uint64_t)out->buffer_bytes, request);
}

/* Where growth begins: near a server, or without processors, with one; far from one with many; at
 * one that is known with what was enough there. */
static void begin_growth(const struct sl_load_facts *facts, struct sl_concurrency *out)
{
    struct sl_connections *connections = &out->connections;
    double processors = facts->processors, limit = facts->processor_limit;
    bool near = facts->first_byte_ns && facts->first_byte_ns < NEAR_NS;
    bool usual = connections->why == SL_CONNECTIONS_USUAL;
    bool waits = facts->cpu && sl_growth_waits(facts->cpu());
    bool known = usual && facts->known && facts->known <= connections->most;
    if (known) {
        connections->first = facts->known;
        connections->why = SL_CONNECTIONS_KNOWN;
    } else if (usual && (near || waits) && connections->first > FIRST_NEAR) {
        connections->first = FIRST_NEAR;
        connections->why = near ? SL_CONNECTIONS_NEAR : SL_CONNECTIONS_USUAL;
    }
    sl_growth_init(&out->growth, connections->first, connections->most);
    sl_growth_know_quantum(&out->growth, quantum(facts, out));
    sl_growth_know_bytes(&out->growth, facts->fetch_bytes);
    sl_growth_watch_cpu(&out->growth, facts->cpu,
                        limit > 0 ? SL_MIN(limit, processors) : processors);
    out->growth.near =
        usual && !known ? SL_MIN((unsigned)FIRST_NEAR, connections->first) : connections->first;
    out->growth.distance_known = known; /* and what was enough there, too */
    sl_concurrency_know_distance(facts, facts->first_byte_ns, &out->growth);
    if (out->growth.distant)
        connections->why = SL_CONNECTIONS_DISTANT;
    connections->first = out->growth.connections;
}

static unsigned useful_threads(const struct sl_concurrency *concurrency, unsigned wanted)
{
    return SL_MAX(concurrency->one_each ? wanted : wanted / CONNECTIONS_A_THREAD, 1u);
}

static void decide_threads(const struct sl_load_facts *facts, struct sl_concurrency *out)
{
    unsigned most = out->connections.most;
    out->one_each = out->connections.why == SL_CONNECTIONS_LOCAL && !facts->one_file;
    unsigned useful = useful_threads(out, most);
    unsigned all = SL_MAX(SL_MIN(facts->processors, (unsigned)THREADS_AUTO), 1u);
    unsigned left = all > facts->threads_of_all ? all - facts->threads_of_all : 0;
    unsigned part = SL_MAX(SL_MIN(all / SL_MAX(facts->loads, 1u), left), 1u);
    unsigned given = facts->threads;
    unsigned usual = most < 2 * CONNECTIONS_A_THREAD ? 1 : (unsigned)FIXED_THREADS;
    if (facts->fixed.on)
        given = (unsigned)sl_fixed_or(facts->fixed.threads, given ? given : usual);
    if (given) {
        out->threads = SL_MIN(SL_MIN(given, (unsigned)SL_THREADS_MAX), most);
        out->threads_why = SL_THREADS_GIVEN;
        return;
    }
    out->threads = SL_MIN(part, useful);
    sl_growth_know_threads(&out->growth, out->threads > 1 ? 2 * CONNECTIONS_A_THREAD : 0);
    out->threads_why = useful < part ? SL_THREADS_CONNECTIONS
                       : part < all  ? SL_THREADS_LOADS
                                     : SL_THREADS_PROCESSORS;
}

void sl_concurrency_decide(const struct sl_load_facts *facts, struct sl_concurrency *out)
{
    bool in_order = facts->planned.why == SL_CONNECTIONS_IN_ORDER;
    unsigned given = in_order ? 0 : facts->connections; /* each would read all of the object */
    *out = (struct sl_concurrency){.connections = facts->planned};
    if (given)
        out->connections =
            (struct sl_connections){given, given, SL_CONNECTIONS_GIVEN, SL_BOUND_AUTO};
    fit_memory(facts, out);
    unsigned first = given ? out->connections.most : out->connections.first;
    out->connections.first = SL_MIN(SL_MAX(first, 1u), out->connections.most);
    if (facts->fixed.on)
        sl_growth_init(&out->growth, out->connections.most, out->connections.most);
    else
        begin_growth(facts, out);
    decide_threads(facts, out);
}

/* Of the longest windows a few may have been all that the memory held. */
static size_t window_of_all(const struct sl_load_facts *facts,
                            const struct sl_concurrency *concurrency, unsigned connections,
                            size_t longest)
{
    uint64_t memory = facts->memory_bytes ? facts->memory_bytes : MEMORY_BYTES;
    size_t window = SL_MAX(longest, concurrency->buffer_bytes);
    while (window > concurrency->buffer_bytes &&
           (uint64_t)connections * (facts->grows ? 2 : 1) * window > memory)
        window /= 2;
    return window;
}

struct sl_fixed sl_concurrency_decided(const struct sl_load_facts *facts,
                                       const struct sl_concurrency *concurrency, unsigned last,
                                       size_t window_bytes)
{
    struct sl_fixed decided = sl_fixed_none();
    unsigned connections = SL_MIN(SL_MAX(last, 1u), concurrency->connections.most);
    decided.on = true;
    decided.connections = connections;
    decided.threads = SL_MIN(concurrency->threads, connections);
    decided.window_bytes = window_of_all(facts, concurrency, connections, window_bytes);
    decided.hedge = 0;
    return decided;
}

/* ---- while it reads -------------------------------------------------------------------------- */

struct sl_thread_room sl_concurrency_room(const struct sl_concurrency *concurrency)
{
    unsigned threads = concurrency->threads, most = concurrency->connections.most / threads + 1;
    unsigned stand_ins = SL_MIN(most / STAND_IN_PART + 1, concurrency->stand_ins / threads);
    return (struct sl_thread_room){most, stand_ins};
}

unsigned sl_concurrency_large(const struct sl_concurrency *concurrency, unsigned thread)
{
    unsigned threads = concurrency->threads;
    return concurrency->large / threads + (thread < concurrency->large % threads);
}

size_t sl_concurrency_window(const struct sl_concurrency *concurrency, size_t bytes, uint64_t ns)
{
    if (ns <= FAST_WINDOW_NS)
        return SL_MIN(2 * bytes, concurrency->large_bytes);
    return ns < SLOW_WINDOW_NS ? bytes : SL_MAX(bytes / 2, concurrency->buffer_bytes);
}

/* Writers that meet in one file wait for each other: a second thread has connections only when the
 * first has two. With one_each nobody meets, and one connection keeps a thread busy. */
static unsigned busy_threads(const struct sl_concurrency *concurrency, unsigned wanted)
{
    unsigned useful = useful_threads(concurrency, wanted);
    if (concurrency->threads_why == SL_THREADS_GIVEN)
        useful = SL_MAX(wanted, 1u);
    return SL_MIN(concurrency->threads, useful);
}

unsigned sl_concurrency_share(const struct sl_concurrency *concurrency,
                              const struct sl_share_facts *facts)
{
    struct sl_thread_room room = sl_concurrency_room(concurrency);
    unsigned wanted = facts->wanted, threads = busy_threads(concurrency, wanted);
    unsigned mine = wanted / threads + (facts->thread < wanted % threads);
    mine = facts->thread < threads ? SL_MIN(mine, room.most) : 0;
    bool alone = facts->all_open == 1 && concurrency->connections.why != SL_CONNECTIONS_GIVEN;
    bool most_do_well = alone || facts->all_doubtful * 2 <= facts->all_open;
    if (!most_do_well || facts->crowded)
        return mine;
    return mine + SL_MIN(facts->doubtful, room.stand_ins);
}

/* ---- the process ----------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t mutex;
    unsigned loads, threads;
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void forget(void)
{
    process.loads = process.threads = 0;
}
SL_FORK_GUARD(&process.mutex, forget)

void sl_concurrency_open_load(void)
{
    SL_LOCKED(&process.mutex);
    process.loads++;
}

void sl_concurrency_close_load(void)
{
    SL_LOCKED(&process.mutex);
    process.loads--;
}

void sl_concurrency_take_threads(const struct sl_load_facts *facts, struct sl_concurrency *out)
{
    struct sl_load_facts now = *facts;
    SL_LOCKED(&process.mutex);
    now.loads = process.loads;
    now.threads_of_all = process.threads;
    decide_threads(&now, out);
    process.threads += out->threads;
}

void sl_concurrency_return_threads(unsigned count)
{
    SL_LOCKED(&process.mutex);
    process.threads -= count;
}

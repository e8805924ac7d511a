/* How many connections, threads and buffers a load has: facts, and what is decided by them. */
#include "concurrency.h"

#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "mem.h"
#include "option.h"
#include "thread.h"

#define KIB  UINT64_C(1024)
#define MIB  (1024 * KIB)
#define GIB  (1024 * MIB)
#define AUTO SL_AUTO_VALUE

/* ---- before there is a plan ------------------------------------------------------------------ */

SL_TEST(a_host_has_as_many_as_a_load_asks_for)
{
    static const struct {
        uint64_t per_host, connections;
        unsigned most;
    } rows[] = {{AUTO, AUTO, 128}, {AUTO, 0, 128}, {AUTO, 16, 128}, {AUTO, 500, 500},
                {8, AUTO, 8},      {8, 500, 8},    {4096, 1, 4096}, {AUTO, 128, 128}};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_uint_eq(sl_concurrency_per_host(rows[i].per_host, rows[i].connections),
                          rows[i].most);
}

SL_TEST(ahead_of_need_are_those_that_a_distant_load_begins_with)
{
    static const struct {
        uint64_t connections;
        unsigned descriptors, ahead;
    } rows[] = {{AUTO, 1000, 7}, {0, 1000, 7},    {1, 1000, 0},  {2, 1000, 1}, {33, 1000, 32},
                {64, 1000, 63},  {500, 1000, 63}, {AUTO, 12, 7}, {AUTO, 4, 3}, {2, 4, 1}};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_uint_eq(sl_concurrency_preconnect(rows[i].connections, rows[i].descriptors),
                          rows[i].ahead);
}

/* ---- a plan ---------------------------------------------------------------------------------- */

SL_TEST(a_plan_says_how_many_are_of_use)
{
    static const struct {
        struct sl_plan_facts facts;
        unsigned first, most;
        enum sl_connections_why why;
        enum sl_connections_bound bound;
    } rows[] = {
        /* a model of usual size, from a store, and from this machine */
        {{AUTO, false, 512, 4 * GIB, 0, 1000}, 2, 64, SL_CONNECTIONS_USUAL, SL_BOUND_AUTO},
        {{0, false, 512, 4 * GIB, 0, 1000}, 2, 64, SL_CONNECTIONS_USUAL, SL_BOUND_AUTO},
        {{AUTO, true, 512, 4 * GIB, 0, 1000}, 2, 8, SL_CONNECTIONS_LOCAL, SL_BOUND_AUTO},
        /* requests of less than 1 MiB */
        {{AUTO, false, 1000, 1000 * MIB - 1, 0, 1000}, 16, 128, SL_CONNECTIONS_SMALL, 0},
        {{AUTO, false, 1000, 1000 * MIB, 0, 1000}, 2, 64, SL_CONNECTIONS_USUAL, SL_BOUND_AUTO},
        {{AUTO, true, 1000, MIB, 0, 1000}, 2, 8, SL_CONNECTIONS_LOCAL, SL_BOUND_AUTO},
        /* few ranges; what is composed is asked for, too */
        {{AUTO, false, 1, 8 * MIB, 0, 1000}, 1, 1, SL_CONNECTIONS_USUAL, SL_BOUND_RANGES},
        {{AUTO, false, 3, 24 * MIB, 0, 1000}, 2, 3, SL_CONNECTIONS_USUAL, SL_BOUND_RANGES},
        {{AUTO, false, 30, 240 * MIB, 0, 1000}, 2, 30, SL_CONNECTIONS_USUAL, SL_BOUND_RANGES},
        {{AUTO, false, 3, 24 * MIB, 9, 1000}, 2, 12, SL_CONNECTIONS_USUAL, SL_BOUND_RANGES},
        {{AUTO, false, 0, 0, 0, 1000}, 1, 1, SL_CONNECTIONS_USUAL, SL_BOUND_RANGES},
        /* few descriptors */
        {{AUTO, false, 512, 4 * GIB, 0, 12}, 2, 12, SL_CONNECTIONS_USUAL, SL_BOUND_DESCRIPTORS},
        {{AUTO, false, 512, MIB, 0, 12}, 12, 12, SL_CONNECTIONS_SMALL, SL_BOUND_DESCRIPTORS},
        {{AUTO, false, 10, 80 * MIB, 0, 12}, 2, 10, SL_CONNECTIONS_USUAL, SL_BOUND_RANGES},
        /* as it was told */
        {{16, false, 512, 4 * GIB, 0, 1000}, 16, 16, SL_CONNECTIONS_GIVEN, SL_BOUND_AUTO},
        {{16, true, 512, 4 * GIB, 0, 1000}, 16, 16, SL_CONNECTIONS_GIVEN, SL_BOUND_AUTO},
        {{16, false, 3, 4 * GIB, 0, 1000}, 3, 3, SL_CONNECTIONS_GIVEN, SL_BOUND_RANGES},
        {{1024, false, 9999, 4 * GIB, 0, 200}, 200, 200, SL_CONNECTIONS_GIVEN, 2},
        /* what can only be read in order is read once */
        {{AUTO, false, 512, 4 * GIB, 0, 1000, .in_order = true}, 1, 1, SL_CONNECTIONS_IN_ORDER, 0},
        {{16, false, 512, MIB, 9, 1000, .in_order = true}, 1, 1, SL_CONNECTIONS_IN_ORDER, 0},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_connections is = sl_concurrency_of_plan(&rows[i].facts);
        ck_assert_msg(is.first == rows[i].first && is.most == rows[i].most &&
                          is.why == rows[i].why && is.bound == rows[i].bound,
                      "row %zu: %u to %u, %s, %s", i, is.first, is.most,
                      sl_connections_why_name(is.why), sl_connections_bound_name(is.bound));
    }
}

SL_TEST(what_is_read_in_order_has_one_connection_whatever_was_asked_for)
{
    const struct sl_load_facts facts = {
        .planned = {1, 1, SL_CONNECTIONS_IN_ORDER, SL_BOUND_AUTO},
        .connections = 8,
        .ranges = 512,
        .fetch_bytes = 4 * GIB,
        .host = 128,
        .processors = 4,
        .loads = 1,
    };
    struct sl_concurrency is;
    sl_concurrency_decide(&facts, &is);
    ck_assert_uint_eq(is.connections.first, 1);
    ck_assert_uint_eq(is.connections.most, 1);
    ck_assert_int_eq(is.connections.why, SL_CONNECTIONS_IN_ORDER);
}

/* ---- a load that begins to read -------------------------------------------------------------- */

/* 4 GiB in ranges of 8 MiB, from somewhere near, alone on 4 processors. */
static const struct sl_load_facts usual = {.planned = {2, 64, SL_CONNECTIONS_USUAL, SL_BOUND_AUTO},
                                           .ranges = 512,
                                           .fetch_bytes = 4 * GIB,
                                           .host = 128,
                                           .first_byte_ns = SL_NS_PER_MS,
                                           .processors = 4,
                                           .loads = 1};

struct decided {
    unsigned first, most, stand_ins, buffer_kib, threads;
    enum sl_connections_why why;
    enum sl_connections_bound bound;
    enum sl_threads_why threads_why;
};

static void expect_decided(const char *what, const struct sl_load_facts *facts,
                           const struct decided *wanted)
{
    struct sl_concurrency is;
    sl_concurrency_decide(facts, &is);
    bool same = is.connections.first == wanted->first && is.connections.most == wanted->most &&
                is.stand_ins == wanted->stand_ins && is.buffer_bytes == wanted->buffer_kib * KIB &&
                is.threads == wanted->threads && is.connections.why == wanted->why &&
                is.connections.bound == wanted->bound && is.threads_why == wanted->threads_why;
    ck_assert_msg(same, "%s: %u to %u and %u (%s, %s), %zu KiB, %u threads (%s)", what,
                  is.connections.first, is.connections.most, is.stand_ins,
                  sl_connections_why_name(is.connections.why),
                  sl_connections_bound_name(is.connections.bound), is.buffer_bytes / 1024,
                  is.threads, sl_threads_why_name(is.threads_why));
    ck_assert_uint_eq(is.growth.connections, wanted->first);
    ck_assert_uint_eq(is.growth.maximum, wanted->most);
}

#define EXPECT(what, change, ...)                                                                  \
    do {                                                                                           \
        struct sl_load_facts facts = usual;                                                        \
        change;                                                                                    \
        expect_decided(what, &facts, &(const struct decided){__VA_ARGS__});                        \
    } while (0)

SL_TEST(what_a_load_begins_with)
{
    EXPECT("near", (void)0, 2, 64, 64, 256, 4, 0, 0, SL_THREADS_PROCESSORS);
    EXPECT("very near", facts.first_byte_ns = SL_NS_PER_MS - 1, 1, 64, 64, 256, 4,
           SL_CONNECTIONS_NEAR, 0, SL_THREADS_PROCESSORS);
    EXPECT("very near, one range",
           (facts.first_byte_ns = 1000,
            facts.planned = (struct sl_connections){1, 1, 0, SL_BOUND_RANGES}),
           1, 1, 65, 256, 1, 0, SL_BOUND_RANGES, SL_THREADS_CONNECTIONS);
    EXPECT("very near, 3 were needed", (facts.first_byte_ns = 1000, facts.known = 3), 3, 64, 64,
           256, 4, SL_CONNECTIONS_KNOWN, 0, SL_THREADS_PROCESSORS);
    EXPECT("far, 50 were needed", (facts.first_byte_ns = 30 * SL_NS_PER_MS, facts.known = 50), 50,
           64, 64, 256, 4, SL_CONNECTIONS_KNOWN, 0, SL_THREADS_PROCESSORS);
    EXPECT("nothing known of the server", facts.first_byte_ns = 0, 2, 64, 64, 256, 4, 0, 0,
           SL_THREADS_PROCESSORS);
    EXPECT("30 ms away", facts.first_byte_ns = 30 * SL_NS_PER_MS, 6, 64, 64, 256, 4,
           SL_CONNECTIONS_DISTANT, 0, SL_THREADS_PROCESSORS);
    EXPECT(
        "30 ms away, one turn of 64 ranges",
        (facts.first_byte_ns = 30 * SL_NS_PER_MS, facts.ranges = 64, facts.fetch_bytes = 512 * MIB),
        6, 64, 64, 256, 4, SL_CONNECTIONS_DISTANT, 0, SL_THREADS_PROCESSORS);
    EXPECT("far, 3 were needed", (facts.first_byte_ns = 30 * SL_NS_PER_MS, facts.known = 3), 3, 64,
           64, 256, 4, SL_CONNECTIONS_KNOWN, 0, SL_THREADS_PROCESSORS);
    EXPECT("tiny requests, far away",
           (facts.planned = (struct sl_connections){16, 128, SL_CONNECTIONS_SMALL, 0},
            facts.ranges = 100000, facts.fetch_bytes = GIB,
            facts.first_byte_ns = 30 * SL_NS_PER_MS),
           6, 128, 0, 64, 4, SL_CONNECTIONS_DISTANT, 0, SL_THREADS_PROCESSORS);
    EXPECT("files of this machine",
           (facts.planned = (struct sl_connections){2, 8, SL_CONNECTIONS_LOCAL, 0}), 2, 8, 72, 256,
           4, SL_CONNECTIONS_LOCAL, 0, SL_THREADS_PROCESSORS);
    EXPECT("files of this machine, 8 processors",
           (facts.planned = (struct sl_connections){2, 8, SL_CONNECTIONS_LOCAL, 0},
            facts.processors = 8),
           2, 8, 72, 256, 8, SL_CONNECTIONS_LOCAL, 0, SL_THREADS_PROCESSORS);
    EXPECT("files of this machine into one, 8 processors",
           (facts.planned = (struct sl_connections){2, 8, SL_CONNECTIONS_LOCAL, 0},
            facts.processors = 8, facts.one_file = true),
           2, 8, 72, 256, 4, SL_CONNECTIONS_LOCAL, 0, SL_THREADS_CONNECTIONS);
    EXPECT("tiny requests",
           (facts.planned = (struct sl_connections){16, 128, SL_CONNECTIONS_SMALL, 0},
            facts.ranges = 100000, facts.fetch_bytes = GIB),
           6, 128, 0, 64, 4, SL_CONNECTIONS_SMALL, 0, SL_THREADS_PROCESSORS);
    EXPECT("one range", facts.planned = ((struct sl_connections){1, 1, 0, SL_BOUND_RANGES}), 1, 1,
           65, 256, 1, 0, SL_BOUND_RANGES, SL_THREADS_CONNECTIONS);
    EXPECT("nothing to fetch", (facts.ranges = 0, facts.fetch_bytes = 0), 2, 64, 64, 256, 4, 0, 0,
           SL_THREADS_PROCESSORS);
}

static struct sl_cpu_time waited(void)
{
    return (struct sl_cpu_time){.used_ns = 4 * SL_NS_PER_MS, .waited_ns = 6 * SL_NS_PER_MS};
}

static struct sl_cpu_time worked(void)
{
    return (struct sl_cpu_time){.used_ns = 6 * SL_NS_PER_MS, .waited_ns = 4 * SL_NS_PER_MS};
}

/* Its first answer may have waited as well. */
SL_TEST(without_processors_a_load_begins_with_one)
{
    const uint64_t FAR_NS = 30 * SL_NS_PER_MS;
    EXPECT("near", facts.cpu = waited, 1, 64, 64, 256, 4, 0, 0, SL_THREADS_PROCESSORS);
    EXPECT("30 ms away", (facts.first_byte_ns = FAR_NS, facts.cpu = waited), 1, 64, 64, 256, 4, 0,
           0, SL_THREADS_PROCESSORS);
    EXPECT("30 ms away, with processors", (facts.first_byte_ns = FAR_NS, facts.cpu = worked), 6, 64,
           64, 256, 4, SL_CONNECTIONS_DISTANT, 0, SL_THREADS_PROCESSORS);
    EXPECT("16 were given", (facts.connections = 16, facts.cpu = waited), 16, 16, 80, 256, 4,
           SL_CONNECTIONS_GIVEN, 0, SL_THREADS_PROCESSORS);
    EXPECT("3 were needed", (facts.known = 3, facts.cpu = waited), 3, 64, 64, 256, 4,
           SL_CONNECTIONS_KNOWN, 0, SL_THREADS_PROCESSORS);
}

SL_TEST(what_is_given_stays)
{
    EXPECT("16", facts.connections = 16, 16, 16, 80, 256, 4, SL_CONNECTIONS_GIVEN, 0,
           SL_THREADS_PROCESSORS);
    EXPECT("16, far away", (facts.connections = 16, facts.first_byte_ns = 90 * SL_NS_PER_MS), 16,
           16, 80, 256, 4, SL_CONNECTIONS_GIVEN, 0, SL_THREADS_PROCESSORS);
    EXPECT("more than a load has", (facts.connections = 2000, facts.host = 0), 768, 768, 0, 64, 4,
           SL_CONNECTIONS_GIVEN, SL_BOUND_MEMORY, SL_THREADS_PROCESSORS);
    EXPECT("3 threads", facts.threads = 3, 2, 64, 64, 256, 3, 0, 0, SL_THREADS_GIVEN);
    EXPECT("100 threads", facts.threads = 100, 2, 64, 64, 256, 64, 0, 0, SL_THREADS_GIVEN);
    EXPECT("9 threads, 2 connections", (facts.threads = 9, facts.connections = 2), 2, 2, 66, 256, 2,
           SL_CONNECTIONS_GIVEN, 0, SL_THREADS_GIVEN);
}

SL_TEST(memory_and_the_host_are_bounds)
{
    EXPECT("4 MiB", facts.memory_bytes = 4 * MIB, 2, 16, 0, 256, 4, 0, SL_BOUND_MEMORY,
           SL_THREADS_PROCESSORS);
    EXPECT("4 MiB, grows", (facts.memory_bytes = 4 * MIB, facts.grows = true), 2, 8, 0, 256, 4, 0,
           SL_BOUND_MEMORY, SL_THREADS_PROCESSORS);
    EXPECT("64 KiB", facts.memory_bytes = 64 * KIB, 1, 1, 0, 256, 1, 0, SL_BOUND_MEMORY,
           SL_THREADS_CONNECTIONS);
    /* what is given keeps its number as long as smaller buffers make room for it */
    EXPECT("4 MiB, 32", (facts.memory_bytes = 4 * MIB, facts.connections = 32), 32, 32, 0, 128, 4,
           SL_CONNECTIONS_GIVEN, 0, SL_THREADS_PROCESSORS);
    EXPECT("4 MiB, 100", (facts.memory_bytes = 4 * MIB, facts.connections = 100), 64, 64, 0, 64, 4,
           SL_CONNECTIONS_GIVEN, SL_BOUND_MEMORY, SL_THREADS_PROCESSORS);
    EXPECT("grows", facts.grows = true, 2, 64, 32, 256, 4, 0, 0, SL_THREADS_PROCESSORS);
    EXPECT("a host of 6", facts.host = 6, 2, 6, 0, 256, 3, 0, SL_BOUND_HOST,
           SL_THREADS_CONNECTIONS);
    EXPECT("a host of 2, far away", (facts.host = 2, facts.first_byte_ns = 90 * SL_NS_PER_MS), 2, 2,
           0, 256, 1, 0, SL_BOUND_HOST, SL_THREADS_CONNECTIONS);
    EXPECT("a host of 70", facts.host = 70, 2, 64, 6, 256, 4, 0, 0, SL_THREADS_PROCESSORS);
    EXPECT("any number at the host", facts.host = 0, 2, 64, 128, 256, 4, 0, 0,
           SL_THREADS_PROCESSORS);
}

/* All buffers together, the large ones in place of others. */
static uint64_t memory_of(const struct sl_concurrency *is, bool grows)
{
    uint64_t all = (uint64_t)(is->connections.most + is->stand_ins) * is->buffer_bytes;
    return (all + is->large * (is->large_bytes - is->buffer_bytes)) * (grows ? 2 : 1);
}

SL_TEST(what_memory_is_left_is_for_large_buffers)
{
    static const struct {
        uint64_t memory_bytes;
        unsigned connections;
        bool grows;
        unsigned large;
    } rows[] = {{0, 0, false, 21},        {0, 1, false, 42},
                {0, 64, false, 21},       {0, 150, false, 14},
                {0, 0, true, 0},          {16 * MIB, 8, false, 0},
                {64 * MIB, 0, false, 42}, {1024 * MIB, 0, false, 1322},
                {4 * MIB, 32, false, 0},  {64 * KIB, 1, false, 0}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_load_facts facts = usual;
        struct sl_concurrency is;
        facts.memory_bytes = rows[i].memory_bytes;
        facts.connections = rows[i].connections;
        facts.grows = rows[i].grows;
        sl_concurrency_decide(&facts, &is);
        ck_assert_msg(is.large == rows[i].large, "row %zu: %u", i, is.large);
        ck_assert_uint_le(memory_of(&is, facts.grows),
                          facts.memory_bytes ? facts.memory_bytes : 48 * MIB);
        unsigned all = 0;
        for (unsigned thread = 0; thread < is.threads; thread++)
            all += sl_concurrency_large(&is, thread);
        ck_assert_uint_eq(all, is.large);
    }
}

SL_TEST(windows_grow_where_bytes_come_fast)
{
    struct sl_concurrency is;
    sl_concurrency_decide(&usual, &is);
    uint64_t ms = SL_NS_PER_MS;
    ck_assert_uint_eq(sl_concurrency_window(&is, 256 * KIB, 2 * ms), 512 * KIB);
    ck_assert_uint_eq(sl_concurrency_window(&is, 256 * KIB, 2 * ms + 1), 256 * KIB);
    ck_assert_uint_eq(sl_concurrency_window(&is, 512 * KIB, 0), MIB);
    ck_assert_uint_eq(sl_concurrency_window(&is, MIB, ms), MIB);
    ck_assert_uint_eq(sl_concurrency_window(&is, MIB, 8 * ms - 1), MIB);
    ck_assert_uint_eq(sl_concurrency_window(&is, MIB, 8 * ms), 512 * KIB);
    ck_assert_uint_eq(sl_concurrency_window(&is, 256 * KIB, 900 * ms), 256 * KIB);
    struct sl_load_facts small = usual;
    small.memory_bytes = 4 * MIB;
    small.connections = 32;
    sl_concurrency_decide(&small, &is);
    ck_assert_uint_eq(sl_concurrency_window(&is, 128 * KIB, 0), 128 * KIB);
}

SL_TEST(loads_share_the_processors)
{
    EXPECT("2 loads", facts.loads = 2, 2, 64, 64, 256, 2, 0, 0, SL_THREADS_LOADS);
    EXPECT("9 loads", facts.loads = 9, 2, 64, 64, 256, 1, 0, 0, SL_THREADS_LOADS);
    EXPECT("3 threads are taken", (facts.loads = 2, facts.threads_of_all = 3), 2, 64, 64, 256, 1, 0,
           0, SL_THREADS_LOADS);
    EXPECT("all are taken", facts.threads_of_all = 9, 2, 64, 64, 256, 1, 0, 0, SL_THREADS_LOADS);
    EXPECT("uncounted loads", facts.loads = 0, 2, 64, 64, 256, 4, 0, 0, SL_THREADS_PROCESSORS);
    EXPECT("many processors", facts.processors = 96, 2, 64, 64, 256, 8, 0, 0,
           SL_THREADS_PROCESSORS);
    EXPECT("given, whoever has the others", (facts.threads = 5, facts.threads_of_all = 9), 2, 64,
           64, 256, 5, 0, 0, SL_THREADS_GIVEN);
}

SL_TEST(growth_counts_the_processors_that_the_group_has)
{
    struct sl_load_facts facts = usual;
    struct sl_concurrency is;
    facts.processor_limit = 1.5;
    sl_concurrency_decide(&facts, &is);
    ck_assert_double_eq(is.growth.processors, 1.5);
    facts.processor_limit = 9;
    sl_concurrency_decide(&facts, &is);
    ck_assert_double_eq(is.growth.processors, 4);
    facts.processor_limit = 0;
    sl_concurrency_decide(&facts, &is);
    ck_assert_double_eq(is.growth.processors, 4);
}

SL_TEST(what_is_known_of_the_server_later_counts_as_well)
{
    struct sl_load_facts facts = usual;
    struct sl_concurrency is;
    facts.first_byte_ns = 0;
    sl_concurrency_decide(&facts, &is);
    sl_concurrency_know_distance(&facts, 0, &is.growth);
    ck_assert_uint_eq(is.growth.connections, 2);
    sl_concurrency_know_distance(&facts, 30 * SL_NS_PER_MS, &is.growth);
    ck_assert_uint_eq(is.growth.connections, 6);
}

/* ---- while it reads -------------------------------------------------------------------------- */

SL_TEST(a_server_that_is_near_after_all_has_what_a_near_one_has)
{
    struct sl_load_facts facts = {.ranges = 1000,
                                  .fetch_bytes = UINT64_C(8000) * 1024 * 1024,
                                  .planned = {4, 64, SL_CONNECTIONS_USUAL, SL_BOUND_AUTO},
                                  .first_byte_ns = 30 * SL_NS_PER_MS,
                                  .processors = 4};
    struct sl_concurrency is;
    sl_concurrency_decide(&facts, &is);
    ck_assert_int_eq(is.connections.why, SL_CONNECTIONS_DISTANT);
    ck_assert_uint_eq(is.growth.connections, 6);
    sl_concurrency_know_distance(&facts, SL_NS_PER_MS / 5, &is.growth);
    ck_assert_uint_eq(is.growth.connections, 1);
    ck_assert_str_eq(sl_growth_why_name(is.growth.why), "nearer");
}

/* Writers of one file wait for each other. */
SL_TEST(few_connections_stay_on_one_thread)
{
    static const unsigned shares[][4] = {
        /* wanted: of each thread */
        [1] = {1, 0, 0, 0}, [2] = {2, 0, 0, 0}, [3] = {3, 0, 0, 0}, [4] = {2, 2, 0, 0},
        [5] = {3, 2, 0, 0}, [7] = {3, 2, 2, 0}, [8] = {2, 2, 2, 2}, [9] = {3, 2, 2, 2}};
    struct sl_concurrency is = {.connections = {.first = 2, .most = 64},
                                .threads = 4,
                                .threads_why = SL_THREADS_PROCESSORS};
    for (unsigned wanted = 1; wanted < SL_COUNT(shares); wanted++)
        for (unsigned thread = 0; shares[wanted][0] && thread < 4; thread++) {
            struct sl_share_facts facts = {.thread = thread, .wanted = wanted, .all_open = wanted};
            ck_assert_msg(sl_concurrency_share(&is, &facts) == shares[wanted][thread],
                          "thread %u of %u connections: %u", thread, wanted,
                          sl_concurrency_share(&is, &facts));
        }
    is.threads_why = SL_THREADS_GIVEN;
    ck_assert_uint_eq(sl_concurrency_share(&is, &(struct sl_share_facts){.thread = 1, .wanted = 2}),
                      1);
}

/* Whoever reads a file waits for nobody: two at once are two threads'. */
SL_TEST(local_files_have_a_thread_each)
{
    for (unsigned one_file = 0; one_file < 2; one_file++) {
        struct sl_load_facts facts = usual;
        struct sl_concurrency is;
        facts.planned = (struct sl_connections){2, 8, SL_CONNECTIONS_LOCAL, 0};
        facts.one_file = one_file;
        sl_concurrency_decide(&facts, &is);
        struct sl_share_facts share = {.wanted = is.growth.connections, .all_open = 2};
        ck_assert_uint_eq(sl_concurrency_share(&is, &share), 1 + one_file);
        share.thread = 1;
        ck_assert_uint_eq(sl_concurrency_share(&is, &share), 1 - one_file);
    }
}

SL_TEST(threads_have_equal_parts_and_stand_ins)
{
    static const struct {
        struct sl_share_facts facts;
        unsigned share;
    } rows[] = {
        {{.thread = 0, .wanted = 10, .all_open = 10}, 4}, /* of 3 threads */
        {{.thread = 1, .wanted = 10, .all_open = 10}, 3},
        {{.thread = 2, .wanted = 10, .all_open = 10}, 3},
        {{.thread = 2, .wanted = 2, .all_open = 2}, 0},
        {{.thread = 0, .wanted = 1000, .all_open = 64}, 22}, /* it has no room for more */
        {{.thread = 1, .wanted = 10, .doubtful = 2, .all_doubtful = 2, .all_open = 10}, 5},
        {{.thread = 0, .wanted = 64, .doubtful = 9, .all_doubtful = 9, .all_open = 64}, 28},
        {{.thread = 1, .wanted = 10, .doubtful = 2, .all_doubtful = 5, .all_open = 10}, 5},
        {{.thread = 1, .wanted = 10, .doubtful = 2, .all_doubtful = 6, .all_open = 10}, 3},
        {{1, 10, 2, 2, 10, true}, 3},
        {{.thread = 0, .wanted = 1, .doubtful = 1, .all_doubtful = 1, .all_open = 1}, 2},
        {{.thread = 0, .wanted = 1, .doubtful = 2, .all_doubtful = 2, .all_open = 2}, 1},
    };
    const struct sl_concurrency concurrency = {
        .connections = {.first = 4, .most = 64}, .stand_ins = 64, .threads = 3};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_concurrency_share(&concurrency, &rows[i].facts) == rows[i].share,
                      "row %zu: %u", i, sl_concurrency_share(&concurrency, &rows[i].facts));
    struct sl_thread_room room = sl_concurrency_room(&concurrency);
    ck_assert_uint_eq(room.most, 22);
    ck_assert_uint_eq(room.stand_ins, 6);
    const struct sl_concurrency tight = {.connections = {1, 1, 0, 0}, .threads = 1};
    room = sl_concurrency_room(&tight);
    ck_assert_uint_eq(room.most, 2);
    ck_assert_uint_eq(room.stand_ins, 0);
}

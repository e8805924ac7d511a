/* What a request is worth, and what a load that sees its store makes of it. */
#include <check.h>
#include <stdio.h>

#include "claims.h"
#include "host_memory.h"
#include "mem.h"
#include "thread.h"
#include "weigh.h"

#define US (SL_NS_PER_MS / 1000)

static const double GBIT = 125e6;

/* ---- the decision ---------------------------------------------------------------------------- */

/* Time for `rows` rows of so many bytes with a gap behind each, by the model that the decision
 * stands for: the slower of what the link, the waits and the processors take. */
static double takes(const struct sl_worth_facts *facts, double rows, double row, double gap,
                    bool whole)
{
    double requests = whole ? rows * (row + gap) / 64e6 : rows;
    double bytes = whole ? rows * (row + gap) : rows * row;
    double each = facts->wait_ns >= 8000 * US ? 40e6 : 1.25e9;
    each = SL_MAX(each, facts->bytes_per_s / facts->connections);
    double link = bytes / facts->bytes_per_s;
    double wait = (double)facts->wait_ns / 1e9 + bytes / requests / each;
    double waits = requests * wait / facts->connections;
    double works = requests * 30e-6 / facts->processors;
    return SL_MAX(link, SL_MAX(waits, works));
}

/* Round trips x rates x gaps: what is chosen takes at most a tenth more than the better of both. */
SL_TEST(the_choice_is_hardly_slower_than_the_better_one)
{
    static const uint64_t waits[] = {100 * US, 1000 * US, 10000 * US, 30000 * US, 100000 * US};
    static const double rates[] = {0.024, 0.1, 1, 10, 40};
    static const unsigned connections[] = {1, 16, 128};
    static const double gaps[] = {2e3, 8e3, 14336, 28672, 50176, 2e5, 1e6}, parts[] = {7, 1, 3};
    for (unsigned i = 0; i < SL_COUNT(waits) * SL_COUNT(rates) * SL_COUNT(connections); i++)
        for (unsigned j = 0; j < SL_COUNT(gaps); j++) {
            struct sl_worth_facts facts = {
                .wait_ns = waits[i % SL_COUNT(waits)],
                .bytes_per_s = rates[i / SL_COUNT(waits) % SL_COUNT(rates)] * GBIT * 8,
                .connections = connections[i / SL_COUNT(waits) / SL_COUNT(rates)],
                .processors = 2};
            double row = gaps[j] / parts[j % SL_COUNT(parts)], rows = 1e5;
            double each = takes(&facts, rows, row, gaps[j], false);
            double whole = takes(&facts, rows, row, gaps[j], true);
            double chosen =
                gaps[j] <= (double)sl_request_worth(&facts, (uint64_t)row) ? whole : each;
            ck_assert_msg(chosen <= 1.1 * SL_MIN(each, whole),
                          "wait %g ms, %g MB/s, %u connections, gap %g: %g s, not %g or %g",
                          (double)facts.wait_ns / 1e6, facts.bytes_per_s / 1e6, facts.connections,
                          gaps[j], chosen, each, whole);
        }
}

SL_TEST(what_a_request_is_worth)
{
    static const struct {
        struct sl_worth_facts facts;
        uint64_t worth, row;
    } rows[] = {
        /* a full link of 10 Gbit/s: in 30 ms / 128 it brings so much */
        {{.wait_ns = 30000 * US, .bytes_per_s = 1.25e9, .connections = 128, .processors = 2},
         292968},
        /* not known: the same link, or what 16 connections bring of one */
        {{.wait_ns = 30000 * US, .connections = 128, .processors = 2}, 292968},
        {{.wait_ns = 30000 * US, .connections = 16, .processors = 2}, 1200000},
        /* near: what a processor needs for a request */
        {{.wait_ns = 100 * US, .bytes_per_s = 1.25e9, .connections = 128, .processors = 2}, 18750},
        {{.wait_ns = 100 * US, .bytes_per_s = 1.25e8, .connections = 128, .processors = 2}, 1875},
        /* a slow link: no more than its heads */
        {{.wait_ns = 100 * US, .bytes_per_s = 3e6, .connections = 128, .processors = 2}, 1024},
        /* what it costs beside */
        {{.wait_ns = 100 * US,
          .bytes_per_s = 1.25e9,
          .connections = 128,
          .processors = 2,
          .price_bytes = 400000},
         418750},
        {{.wait_ns = 30000 * US, .connections = 1, .processors = 2, .price_bytes = 1 << 30},
         SL_WORTH_BYTES_MAX},
        {{.least = true, .wait_ns = 30000 * US, .connections = 1, .price_bytes = 1 << 30}, 1024},
        {{0}, 37500},
        /* what the link is full of anyway is not waited for */
        {{.wait_ns = 100 * US, .bytes_per_s = 1.25e9, .connections = 128, .processors = 2},
         18750 - 8192,
         8192},
    };
    for (unsigned i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_request_worth(&rows[i].facts, rows[i].row) == rows[i].worth,
                      "row %u: %llu", i,
                      (unsigned long long)sl_request_worth(&rows[i].facts, rows[i].row));
}

/* ---- a load ---------------------------------------------------------------------------------- */

/* A store, seen by a load whose rows are an eighth of what lies there: in spans it brings what the
 * link does, in rows so many of them. */
struct store {
    double link, rows_per_s;
    uint64_t wait_ns;
};
enum { ROW = 2048, GAP = 14336 };

static uint64_t worth(const struct sl_weigh *weigh)
{
    return sl_request_worth(&weigh->facts, ROW);
}

/* A load of so many seconds; what a request is worth at its end. */
static uint64_t run(struct sl_weigh *weigh, const struct store *store, double seconds)
{
    double come = 0, landed = 0;
    uint64_t begun_ns = 5 * SL_NS_PER_S;
    for (double at = 0; at < seconds; at += 0.005) {
        sl_weigh_tick(weigh, begun_ns + (uint64_t)(at * 1e9), (uint64_t)come, (uint64_t)landed,
                      store->wait_ns);
        if (worth(weigh) >= GAP) {
            come += store->link * 0.005;
            landed += store->link * 0.005 * ROW / (ROW + GAP);
        } else {
            come += SL_MIN(store->rows_per_s * ROW, store->link) * 0.005;
            landed += SL_MIN(store->rows_per_s * ROW, store->link) * 0.005;
        }
    }
    return worth(weigh);
}

static struct sl_weigh begin(const struct store *store)
{
    struct sl_weigh weigh;
    struct sl_worth_facts facts = {.wait_ns = store->wait_ns, .connections = 128, .processors = 2};
    sl_weigh_init(&weigh, &facts, SL_WORTH_ASSUMED);
    return weigh;
}

SL_TEST(a_slow_link_is_seen_and_rows_are_asked_for)
{
    const struct store slow = {.link = 12.5e6, .rows_per_s = 20000, .wait_ns = 100 * US};
    struct sl_weigh weigh = begin(&slow);
    ck_assert_uint_ge(worth(&weigh), GAP);
    ck_assert_uint_lt(run(&weigh, &slow, 2), GAP);
    ck_assert_str_eq(sl_worth_why_name(weigh.why), "measured");
}

SL_TEST(a_fast_link_stays_as_it_was_taken_for)
{
    const struct store fast = {.link = 2e9, .rows_per_s = 30000, .wait_ns = 100 * US};
    struct sl_weigh weigh = begin(&fast);
    uint64_t before = worth(&weigh);
    ck_assert_uint_eq(run(&weigh, &fast, 2), before);
}

SL_TEST(rows_that_bring_less_are_taken_back)
{
    /* The server takes 20 ms for each of few rows, whatever its first answer took. */
    const struct store odd = {.link = 50e6, .rows_per_s = 100, .wait_ns = 100 * US};
    struct sl_weigh weigh = begin(&odd);
    uint64_t before = worth(&weigh);
    ck_assert_uint_eq(run(&weigh, &odd, 1), before);
    ck_assert_uint_eq(run(&weigh, &odd, 5), before);
}

SL_TEST(least_bytes_are_never_weighed)
{
    const struct store fast = {.link = 2e9, .rows_per_s = 30, .wait_ns = 30000 * US};
    struct sl_weigh weigh;
    sl_weigh_init(&weigh, &(struct sl_worth_facts){.least = true}, SL_WORTH_KNOWN);
    ck_assert_uint_eq(run(&weigh, &fast, 5), SL_WORTH_BYTES_MIN);
    ck_assert_str_eq(sl_worth_why_name(weigh.why), "least");
}

/* ---- hosts ----------------------------------------------------------------------------------- */

SL_TEST(a_host_is_known_by_the_next_load)
{
    struct sl_host_needs needs = {.bytes_per_s = 5e8, .connections = 3};
    ck_assert(!sl_host_memory_recall("http://one:80/a", &needs));
    sl_host_memory_note("http://one:80/a/b?c", &needs);
    sl_host_memory_note("http://one:80/", &(struct sl_host_needs){.connections = 2});
    needs = (struct sl_host_needs){0};
    ck_assert(sl_host_memory_recall("http://one:80", &needs));
    ck_assert(needs.bytes_per_s == 5e8 && needs.connections == 2);
    ck_assert(!sl_host_memory_recall("http://one:8080/a", &needs));
    ck_assert(!sl_host_memory_recall("", &needs));
}

SL_TEST(hosts_that_nobody_asks_for_are_forgotten)
{
    struct sl_host_needs needs = {.connections = 1};
    char uri[32] = "s3://kept/x";
    sl_host_memory_note(uri, &needs);
    for (int i = 0; i < 100; i++) {
        char other[32];
        snprintf(other, sizeof(other), "s3://bucket-%d/x", i);
        sl_host_memory_note(other, &needs);
        ck_assert(sl_host_memory_recall(uri, &needs));
    }
    ck_assert(!sl_host_memory_recall("s3://bucket-1/x", &needs));
    ck_assert(sl_host_memory_recall("s3://bucket-99/x", &needs));
}

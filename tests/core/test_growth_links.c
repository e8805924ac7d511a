/*
 * The connections that a load has, on links that are simulated: events in virtual time, no clock.
 * What decides is the program's own (concurrency.h); a link is a round trip, bytes a second in all
 * and for one connection. Connections ask for a range, wait for a round trip (a new one for two),
 * and share the link. A buffer that is full lands; what is left at the end is parted among those
 * that are idle, as in the reader.
 *
 * The first claim prints the tables that docs/benchmarks.md sums up.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "claims.h"
#include "concurrency.h"
#include "latency.h"
#include "mem.h"
#include "thread.h"

#define MIB UINT64_C(1048576)
#define GIB (1024 * MIB)
#define MB  1e6

enum { MOST = 256, FIXED_MOST = 128, SLOW_MOST = 8, SPLIT_BYTES = 1048576 };
#define LOOK_S 0.005

struct link {
    double round_trip_s, answer_s; /* answer: what the server takes beside the round trip */
    double bytes_per_s;            /* of all connections */
    double connection_bytes_per_s; /* of each; 0: no limit */
    double burst_bytes;            /* that come at ten times the rate first */
    double harm; /* part of all that 64 connections more than 8 lose, since the store seeks */
    double change_s, changed_bytes_per_s; /* of all connections from then on; 0: no change */
    uint64_t load_bytes, request_bytes;
};
struct outcome {
    double seconds;
    unsigned begun, most,
        last; /* connections: at first, open at the same time, wanted at the end */
    enum sl_growth_why why;
};

struct connection {
    double waits_until_s; /* for its answer; 0: it reads */
    double left, filled;  /* of its range; of its buffer */
    double weight;        /* its part of the link beside those of others */
};
struct run {
    const struct link *link;
    struct sl_concurrency is;
    struct connection connections[MOST];
    unsigned open, idle, ready; /* idle: open, with nothing to ask for; ready: preconnected */
    double now_s, quantum, unasked, landed, come;
    uint32_t chance;
    struct outcome outcome;
};

static double link_rate(const struct run *run)
{
    const struct link *link = run->link;
    bool changed = link->change_s > 0 && run->now_s >= link->change_s;
    double rate = changed ? link->changed_bytes_per_s : link->bytes_per_s;
    if (run->open > 8)
        rate *= fmax(0.2, 1 - link->harm * (run->open - 8) / 64);
    return run->come < run->link->burst_bytes ? 10 * rate : rate;
}

/* Bytes/s of a connection of weight 1. */
static double rate_of_each(const struct run *run)
{
    double weights = 0, most = run->link->connection_bytes_per_s;
    for (unsigned i = 0; i < run->open; i++)
        weights += run->connections[i].waits_until_s > 0 ? 0 : run->connections[i].weight;
    double share = link_rate(run) / fmax(weights, 0.001);
    return most > 0 ? fmin(share, most) : share;
}

/* From 0.8 to 1.2: no range comes as fast as another. */
static double next_weight(struct run *run)
{
    run->chance = run->chance * 1664525 + 1013904223;
    return 0.8 + 0.4 * (run->chance >> 16) / 65536.0;
}

/* Half of what the one with most left has not read. */
static double take_half(struct run *run)
{
    struct connection *most = &run->connections[0];
    for (unsigned i = 1; i < run->open; i++)
        if (run->connections[i].left > most->left)
            most = &run->connections[i];
    double half = run->open ? floor((most->left - run->quantum) / 2) : 0;
    if (half < SPLIT_BYTES)
        return 0;
    most->left -= half;
    return half;
}

static double take_range(struct run *run)
{
    double bytes = fmin(run->unasked, (double)run->link->request_bytes);
    run->unasked -= bytes;
    return bytes > 0 ? bytes : take_half(run);
}

static bool ask(struct run *run, struct connection *connection, unsigned round_trips)
{
    double bytes = take_range(run);
    if (bytes <= 0)
        return false;
    connection->left = bytes;
    connection->weight = next_weight(run);
    connection->waits_until_s =
        run->now_s + run->link->round_trip_s * round_trips + run->link->answer_s;
    return true;
}

static void open_missing(struct run *run, unsigned wanted)
{
    while (run->open < wanted && run->open < MOST) {
        struct connection *connection = &run->connections[run->open];
        *connection = (struct connection){0};
        if (!ask(run, connection, run->ready ? 1 : 2))
            return;
        run->ready -= run->ready > 0;
        run->open++;
        run->outcome.most = SL_MAX(run->outcome.most, run->open + run->ready);
    }
}

/* How long until something happens. */
static double until_next(const struct run *run, double rate)
{
    double next = LOOK_S;
    for (unsigned i = 0; i < run->open; i++) {
        const struct connection *one = &run->connections[i];
        double at = one->waits_until_s - run->now_s;
        if (one->waits_until_s <= 0)
            at = SL_MIN(run->quantum - one->filled, one->left) / (rate * one->weight);
        next = SL_MIN(next, at);
    }
    return fmax(next, 0);
}

static void pass(struct run *run, double seconds, double rate)
{
    run->now_s += seconds;
    for (unsigned i = 0; i < run->open; i++) {
        struct connection *one = &run->connections[i];
        if (one->waits_until_s > 0)
            continue;
        double bytes = SL_MIN(seconds * rate * one->weight, one->left);
        one->left -= bytes;
        one->filled += bytes;
        run->come += bytes;
    }
}

/* Whatever is due: answers begin, buffers land, connections end a range and take another. */
static void settle(struct run *run, unsigned wanted)
{
    for (unsigned i = 0; i < run->open;) {
        struct connection *one = &run->connections[i];
        if (one->waits_until_s > 0 && one->waits_until_s <= run->now_s + 1e-9)
            one->waits_until_s = 0;
        bool ended = one->waits_until_s <= 0 && one->left < 1;
        if (ended || one->filled >= run->quantum - 1) {
            run->landed += one->filled + (ended ? one->left : 0);
            one->filled = 0;
        }
        if (ended && (run->open > wanted || !ask(run, one, 1))) {
            run->connections[i] = run->connections[--run->open];
            continue;
        }
        i++;
    }
}

static struct sl_load_facts facts_of(const struct link *link, unsigned given)
{
    struct sl_load_facts facts = {
        .connections = given,
        .ranges = (size_t)((link->load_bytes + link->request_bytes - 1) / link->request_bytes),
        .fetch_bytes = link->load_bytes,
        .host = 1024,
        .first_byte_ns = (uint64_t)((link->round_trip_s + link->answer_s) * SL_NS_PER_S),
        .processors = 8,
        .loads = 1,
        .memory_bytes = given ? GIB : 0,
    };
    const struct sl_plan_facts plan = {.given = given,
                                       .ranges = facts.ranges,
                                       .fetch_bytes = facts.fetch_bytes,
                                       .descriptors = 1000};
    facts.planned = sl_concurrency_of_plan(&plan);
    return facts;
}

/* given: so many connections; 0: as the program decides. */
static struct outcome load_over(const struct link *link, unsigned given)
{
    struct sl_load_facts facts = facts_of(link, given);
    struct run run = {.link = link, .unasked = (double)link->load_bytes};
    sl_concurrency_decide(&facts, &run.is);
    run.quantum = fmin((double)run.is.buffer_bytes, (double)link->request_bytes);
    run.ready = 1;
    if (facts.first_byte_ns >= SL_LATENCY_NEAR_NS)
        run.ready += sl_concurrency_preconnect(given, 1000);
    run.outcome = (struct outcome){.begun = run.is.growth.connections, .most = run.ready};
    unsigned wanted = run.outcome.begun;
    while (run.landed < (double)link->load_bytes - 1) {
        open_missing(&run, wanted);
        double rate = rate_of_each(&run);
        pass(&run, until_next(&run, rate), rate);
        settle(&run, wanted);
        wanted = sl_growth_tick(&run.is.growth, 1 + (uint64_t)(run.now_s * SL_NS_PER_S),
                                (uint64_t)run.landed, 0);
    }
    run.outcome.seconds = run.now_s;
    run.outcome.last = wanted;
    run.outcome.why = run.is.growth.why;
    return run.outcome;
}

/* The least seconds of all fixed numbers, and the number. */
static double best_fixed(const struct link *link, unsigned *connections)
{
    double best = INFINITY;
    for (unsigned fixed = 1; fixed <= FIXED_MOST; fixed *= 2) {
        for (unsigned step = 0; step < 2 && fixed + step * fixed / 2 <= FIXED_MOST; step++) {
            unsigned given = fixed + step * fixed / 2; /* 1, 2, 3, 4, 6, 8, 12, … */
            double seconds = load_over(link, given).seconds;
            if (seconds < best * 0.999) {
                best = seconds;
                *connections = given;
            }
        }
    }
    return best;
}

static void print_row(const struct link *link, const struct outcome *is, double best,
                      unsigned fixed)
{
    char each[16] = "any";
    if (link->connection_bytes_per_s > 0)
        snprintf(each, sizeof(each), "%.0f", link->connection_bytes_per_s / MB);
    printf("| %.1f | %.4g | %s | %.2f | %u | %.2f | %u, %u, %u | %s | %.3f |\n",
           link->round_trip_s * 1000, link->bytes_per_s / MB, each, best, fixed, is->seconds,
           is->begun, is->most, is->last, sl_growth_why_name(is->why), is->seconds / best);
    fflush(stdout);
}

/* As the program decides; best: the seconds of the best number. Prints a row. */
static struct outcome compare(const struct link *link, double *best)
{
    unsigned fixed = 0;
    *best = best_fixed(link, &fixed);
    struct outcome is = load_over(link, 0);
    print_row(link, &is, *best, fixed);
    return is;
}

SL_CASE(.seconds = 300) /* computation alone, much of it */

static const double round_trips_s[] = {0.0001, 0.001, 0.01, 0.05};

SL_TEST(on_every_link_a_load_is_as_fast_as_with_the_best_number)
{
    static const double links[] = {12.5 * MB, 125 * MB, 1250 * MB}, each[] = {40 * MB, 0};
    static const uint64_t loads[] = {1, 4, 8};
    double worst = 0;
    for (size_t i = 0; i < SL_COUNT(round_trips_s) * SL_COUNT(links) * SL_COUNT(each); i++) {
        const struct link link = {.round_trip_s = round_trips_s[i / 6],
                                  .bytes_per_s = links[i / 2 % 3],
                                  .connection_bytes_per_s = each[i % 2],
                                  .load_bytes = loads[i / 2 % 3] * GIB,
                                  .request_bytes = 16 * MIB};
        double best;
        struct outcome is = compare(&link, &best);
        worst = fmax(worst, is.seconds / best);
    }
    ck_assert_double_le(worst, 1.05);
}

/* What the first few connections bring is not enough, and the others need two round trips: no more
 * than these are lost. */
/* Objects of 100 kB: what counts is how many are asked for at a time. */
SL_TEST(small_requests_soon_have_many_connections_where_these_help)
{
    static const double links[] = {3 * MB, 1250 * MB};
    for (size_t i = 0; i < SL_COUNT(round_trips_s) * SL_COUNT(links); i++) {
        const struct link link = {.round_trip_s = round_trips_s[i / 2],
                                  .bytes_per_s = links[i % 2],
                                  .connection_bytes_per_s = 40 * MB,
                                  .load_bytes = i % 2 ? GIB : 64 * MIB,
                                  .request_bytes = 100000};
        double best;
        struct outcome is = compare(&link, &best);
        ck_assert_double_le(is.seconds, best * 1.1 + 2 * link.round_trip_s);
        if (i % 2 == 0) /* 50 ms away a request waits for longer than it takes */
            ck_assert_uint_le(is.most, i < 6 ? SLOW_MOST : 2 * SLOW_MOST);
    }
}

SL_TEST(a_short_load_from_far_away_loses_two_round_trips)
{
    static const double round_trips[] = {0.01, 0.03, 0.05};
    for (size_t i = 0; i < SL_COUNT(round_trips) * 2; i++) {
        const struct link link = {.round_trip_s = round_trips[i / 2],
                                  .bytes_per_s = 1250 * MB,
                                  .connection_bytes_per_s = i % 2 ? 0 : 40 * MB,
                                  .load_bytes = GIB,
                                  .request_bytes = 8 * MIB};
        double best;
        struct outcome is = compare(&link, &best);
        ck_assert_double_le(is.seconds, best * 1.05 + 2 * link.round_trip_s);
    }
}

SL_TEST(a_store_that_is_slow_in_all_sees_a_few_connections)
{
    static const double each[] = {0, 1 * MB};
    for (size_t i = 0; i < SL_COUNT(round_trips_s) * SL_COUNT(each); i++) {
        struct link link = {.round_trip_s = round_trips_s[i / 2],
                            .bytes_per_s = 3 * MB,
                            .connection_bytes_per_s = each[i % 2],
                            .load_bytes = 512 * MIB,
                            .request_bytes = 8 * MIB};
        double best;
        struct outcome is = compare(&link, &best);
        ck_assert_double_le(is.seconds, best * 1.05);
        ck_assert_uint_le(is.most, SLOW_MOST);
    }
}

/* Its first answer comes late though it is near, and what is in its cache comes fast. */
SL_TEST(nor_does_one_that_seems_distant_or_begins_fast_see_many)
{
    for (unsigned answer_ms = 0; answer_ms <= 200; answer_ms += 20) {
        for (unsigned burst_mb = 0; burst_mb < 2; burst_mb++) {
            const struct link link = {.round_trip_s = 0.0001,
                                      .answer_s = answer_ms / 1000.0,
                                      .bytes_per_s = 3 * MB,
                                      .burst_bytes = burst_mb * MB,
                                      .load_bytes = 512 * MIB,
                                      .request_bytes = 8 * MIB};
            struct outcome is = load_over(&link, 0);
            ck_assert_msg(is.most <= SLOW_MOST, "%u ms, %u MB at once: %u connections", answer_ms,
                          burst_mb, is.most);
        }
    }
}

/* Its own drawing of a disk that seeks: 0.6 is lost with 72 connections. */
SL_TEST(a_store_that_many_connections_slow_down_costs_less_than_twice)
{
    static const double harms[] = {0.1, 0.3, 0.6}, links[] = {50 * MB, 125 * MB},
                        each[] = {40 * MB, 0};
    double worst = 0;
    for (size_t i = 0; i < SL_COUNT(round_trips_s) * SL_COUNT(harms) * 4; i++) {
        const struct link link = {.round_trip_s = round_trips_s[i / 12],
                                  .harm = harms[i / 4 % 3],
                                  .bytes_per_s = links[i / 2 % 2],
                                  .connection_bytes_per_s = each[i % 2],
                                  .load_bytes = 4 * GIB,
                                  .request_bytes = 8 * MIB};
        double best;
        struct outcome is = compare(&link, &best);
        worst = fmax(worst, is.seconds / best);
    }
    ck_assert_double_le(worst, 1.9);
}

/* Other users of the link go, or come, four seconds after the load began. */
SL_TEST(a_link_that_changes_is_used_soon)
{
    static const double links[][2] = {{125 * MB, 1250 * MB}, {1250 * MB, 125 * MB}},
                        each[] = {40 * MB, 200 * MB};
    double worst = 0;
    for (size_t i = 0; i < SL_COUNT(round_trips_s) * SL_COUNT(links) * SL_COUNT(each); i++) {
        const double *rates = links[i % 2];
        const struct link link = {.round_trip_s = round_trips_s[i / 4],
                                  .bytes_per_s = rates[0],
                                  .connection_bytes_per_s = each[i / 2 % 2],
                                  .change_s = 4,
                                  .changed_bytes_per_s = rates[1],
                                  .load_bytes = 8 * GIB,
                                  .request_bytes = 8 * MIB};
        double best;
        struct outcome is = compare(&link, &best);
        worst = fmax(worst, is.seconds / best);
    }
    ck_assert_double_le(worst, 1.15);
}

/* The cap on bandwidth: how exact it is, who gets what, and that waiting for it is not a stall. */
#include "bandwidth.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "metrics.h"
#include "range_blob.h"
#include "stores.h"
#include "thread.h"

enum { READERS_MAX = 64, WANTED = 256 * 1024, RUN_MS = 2000, LATER_MS = 60000 };

/* Readers that come whenever it is their turn, on a clock of our own. */
struct crowd {
    unsigned count;
    unsigned idle;    /* so many of them never have anything to read */
    unsigned step_ms; /* they come no more often */
    uint64_t rate;
    struct sl_bandwidth readers[READERS_MAX];
    double bytes[READERS_MAX], all;
};

static void run_crowd(struct crowd *crowd, unsigned begin_ms, unsigned end_ms)
{
    for (unsigned ms = begin_ms; ms < end_ms; ms += crowd->step_ms) {
        uint64_t now_ns = SL_NS_PER_S + ms * SL_NS_PER_MS;
        for (unsigned i = 0; i < crowd->count; i++) {
            size_t given = sl_bandwidth_ask(&crowd->readers[i], crowd->rate, WANTED, now_ns);
            if (!given || i < crowd->idle)
                continue;
            ck_assert_uint_le(given, WANTED);
            sl_bandwidth_used(crowd->rate, given, now_ns);
            crowd->bytes[i] += (double)given;
            crowd->all += (double)given;
        }
    }
}

SL_TEST(it_is_kept_within_five_percent_over_two_seconds)
{
    static const struct {
        unsigned count, idle, step_ms;
        uint64_t rate;
    } rows[] = {
        {1, 0, 1, 1000000},      {4, 0, 1, 100000000},   {64, 0, 1, 100000000},
        {64, 0, 1, 5000000},     {64, 0, 1, 2000000000}, {16, 0, 30, 50000000},
        {64, 32, 1, 1000000000}, {8, 4, 10, 20000000},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct crowd crowd = {rows[i].count, rows[i].idle, rows[i].step_ms, rows[i].rate};
        unsigned begin_ms = (unsigned)i * LATER_MS;
        run_crowd(&crowd, begin_ms, begin_ms + RUN_MS);
        double share = crowd.all / ((double)crowd.rate * RUN_MS / 1000);
        ck_assert_msg(share > 0.95 && share < 1.05, "row %zu: %.3f", i, share);
    }
}

SL_TEST(every_reader_has_its_part)
{
    struct crowd crowd = {.count = 32, .step_ms = 1, .rate = 20000000};
    run_crowd(&crowd, 0, RUN_MS);
    for (unsigned i = 0; i < crowd.count; i++)
        ck_assert_msg(crowd.bytes[i] > crowd.all / crowd.count / 2 &&
                          crowd.bytes[i] < crowd.all / crowd.count * 2,
                      "reader %u has %.0f of %.0f bytes", i, crowd.bytes[i], crowd.all);
}

/* Two loads, of which the second has `supply` bytes/s to read at most, 0: as many as it likes. */
struct pair {
    struct crowd a, b;
    uint64_t supply;
};

static void run_pair(struct pair *pair, unsigned begin_ms, unsigned end_ms)
{
    for (unsigned ms = begin_ms; ms < end_ms; ms++) {
        run_crowd(&pair->a, ms, ms + 1);
        if (!pair->supply || pair->b.all < (double)pair->supply * (ms - begin_ms) / 1000.0)
            run_crowd(&pair->b, ms, ms + 1);
    }
}

/* Each keeps to its own rate, all together to the largest, and what is there is used. Neither more
 * connections nor a higher rate gives a load more than its half while both want more. */
SL_TEST(loads_with_other_rates_keep_to_their_own_and_together_to_the_largest)
{
    enum { M = 1000000 };
    static const struct {
        unsigned a_count, b_count;
        uint64_t a_rate, b_rate, supply;
        double a, b; /* expected, bytes/s */
    } rows[] = {
        {4, 4, 100 * M, 10 * M, 0, 90 * M, 10 * M}, {16, 2, 80 * M, 40 * M, 0, 40 * M, 40 * M},
        {2, 16, 80 * M, 40 * M, 0, 40 * M, 40 * M}, {8, 1, 70 * M, 30 * M, 0, 40 * M, 30 * M},
        {16, 2, 80 * M, 60 * M, 0, 40 * M, 40 * M}, {8, 4, 80 * M, 40 * M, 8 * M, 72 * M, 8 * M},
        {1, 32, 20 * M, 18 * M, 0, 10 * M, 10 * M},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct pair pair = {
            .a = {.count = rows[i].a_count, .step_ms = 1, .rate = rows[i].a_rate},
            .b = {.count = rows[i].b_count, .step_ms = 1, .rate = rows[i].b_rate},
            .supply = rows[i].supply,
        };
        unsigned begin_ms = (unsigned)i * LATER_MS;
        run_pair(&pair, begin_ms, begin_ms + RUN_MS);
        double a = pair.a.all * 1000 / RUN_MS, b = pair.b.all * 1000 / RUN_MS;
        ck_assert_msg(a > rows[i].a * 0.9 && a < rows[i].a * 1.1 && b > rows[i].b * 0.9 &&
                          b < rows[i].b * 1.1 && a + b < (double)rows[i].a_rate * 1.05,
                      "row %zu: %.0f and %.0f bytes/s", i, a, b);
    }
}

/* One that waited and then ended, or has nothing to read, takes nothing away from the others. */
SL_TEST(a_load_that_ends_leaves_its_part_to_the_others)
{
    struct pair pair = {.a = {.count = 4, .step_ms = 1, .rate = 80000000},
                        .b = {.count = 4, .step_ms = 1, .rate = 40000000}};
    run_pair(&pair, 0, RUN_MS);
    double before = pair.a.all;
    run_crowd(&pair.a, RUN_MS, 2 * RUN_MS);
    double alone = (pair.a.all - before) / ((double)pair.a.rate * RUN_MS / 1000);
    ck_assert_msg(alone > 0.95 && alone < 1.05, "%.3f of its rate", alone);
}

/* More rates than there are places for: still each keeps to its own. */
SL_TEST(very_many_rates_are_still_limits)
{
    enum { RATES = 100 };
    struct crowd crowds[RATES];
    memset(crowds, 0, sizeof(crowds));
    double got = 0;
    for (unsigned i = 0; i < RATES; i++) {
        crowds[i].count = 1;
        crowds[i].step_ms = 1;
        crowds[i].rate = 100000000 + i;
    }
    for (unsigned ms = 0; ms < RUN_MS; ms++)
        for (unsigned i = 0; i < RATES; i++)
            run_crowd(&crowds[i], ms, ms + 1);
    for (unsigned i = 0; i < RATES; i++)
        got += crowds[i].all;
    ck_assert_double_lt(got, 100000000 * (RUN_MS / 1000.0) * 1.1);
    ck_assert_double_gt(got, 100000000 * (RUN_MS / 1000.0) * 0.9);
}

SL_TEST(what_was_not_used_for_long_is_lost)
{
    struct crowd crowd = {.count = 1, .step_ms = 1, .rate = 10000000};
    run_crowd(&crowd, 0, 1);
    crowd.all = 0;
    run_crowd(&crowd, 60000, 60001);
    ck_assert_double_le(crowd.all, 10000000 * 0.04 + 1);
}

static void read_all(void *server)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_source_config config = {.bandwidth = 1000 * 1000};
    ck_assert_msg(sl_read_blob(sl_server_url(server, "/blob"), &config, 1000, 300000, &err) == 0,
                  "%s", err.message);
}

/* As slow as it should be, not slower than the server for ever: the other bound is above. */
SL_TEST(a_read_takes_the_time_that_the_cap_asks_for)
{
    struct fake_clock_work work;
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/blob", sl_blob(), SL_BLOB_BYTES, "\"v1\"");
    fake_clock_hold();
    fake_clock_begin(&work, read_all, server);
    fake_clock_turn_until(&work.done, 5 * SL_NS_PER_MS, 1);
    fake_clock_end(&work);
    ck_assert_uint_ge(work.took_ns, SL_NS_PER_S - SL_BANDWIDTH_BURST_NS);
    sl_server_stop(server);
}

enum { SLOW_BYTES = 120 * 1000, SLOW_RATE = 50 * 1000 };

static void open_slowly(void *server)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_source_config config = {
        .bandwidth = SLOW_RATE, .stall_seconds = 1, .attempts = 1};
    struct sl_store *store;
    struct sl_source *source;
    char *key;
    ck_assert_int_eq(sl_store_open(sl_server_url(server, "/blob"), &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, SLOW_BYTES, &source, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(source), SLOW_BYTES);
    sl_source_free(source);
    sl_store_free(store);
    free(key);
}

/* 64 KiB take longer than stallSeconds here. */
SL_TEST(waiting_for_the_cap_is_no_stall)
{
    struct fake_clock_work work;
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/blob", sl_blob(), SLOW_BYTES, "\"v1\"");
    fake_clock_hold();
    fake_clock_begin(&work, open_slowly, server);
    SL_AWAIT(sl_metric_get(SL_M_SOURCE_BYTES), "the answer, which comes in one piece");
    fake_clock_turn_until(&work.done, 5 * SL_NS_PER_MS, 1);
    fake_clock_end(&work);
    ck_assert_uint_ge(work.took_ns, SLOW_BYTES * SL_NS_PER_S / SLOW_RATE - SL_BANDWIDTH_BURST_NS);
    sl_server_stop(server);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.seconds = 30, .prepare = prepare)

/* How long a server is waited for: times go in, delays come out. */
#include "latency.h"

#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "mem.h"
#include "thread.h"

#define MS SL_NS_PER_MS
#define S  SL_NS_PER_S

SL_TEST(limits_have_defaults)
{
    ck_assert_uint_eq(sl_latency_connect_limit(0), 10 * S);
    ck_assert_uint_eq(sl_latency_connect_limit(3), 3 * S);
    ck_assert_uint_eq(sl_latency_address_delay(0), 2 * S);
    ck_assert_uint_eq(sl_latency_address_delay(1), 200 * MS);
    ck_assert_uint_eq(sl_latency_stall_seconds(0), 30);
    ck_assert_uint_eq(sl_latency_stall_seconds(7), 7);
    ck_assert(!sl_latency_is_silent(250 * MS - 1));
    ck_assert(sl_latency_is_silent(250 * MS));
}

/* Twice the slowest, of which a quarter is forgotten with each that is faster. */
SL_TEST(a_host_is_remembered_by_its_slowest_answers)
{
    static const struct {
        uint64_t known, waited, then;
    } rows[] = {{0, 0, 0},
                {0, 3 * S, 6 * S},
                {6 * S, 3 * S, 6 * S},
                {6 * S, 0, 4500 * MS},
                {6 * S, 2250 * MS, 4500 * MS},
                {6 * S, 2300 * MS, 4600 * MS},
                {6 * S, 4 * S, 8 * S}};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_uint_eq(sl_latency_host_add(rows[i].known, rows[i].waited), rows[i].then);
}

SL_TEST(a_lone_answer_has_a_second_or_what_the_way_and_the_host_need)
{
    static const struct {
        uint64_t connect, host, least, delay;
    } rows[] = {{0, 0, S, S},
                {30 * MS, 0, S, S},
                {125 * MS, 0, S, S},
                {200 * MS, 0, S, 1600 * MS},
                {200 * MS, 6 * S, S, 6 * S},
                {900 * MS, 6 * S, S, 7200 * MS},
                {MS, 0, 20 * MS, 20 * MS},
                {10 * MS, 0, 20 * MS, 80 * MS}};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_uint_eq(sl_latency_answer_delay(rows[i].connect, rows[i].host, rows[i].least),
                          rows[i].delay);
}

SL_TEST(a_request_is_hedged_before_it_stalls_or_not_at_all)
{
    static const struct {
        unsigned times;
        uint64_t delay;
        unsigned stall_seconds;
        uint64_t hedge;
    } rows[] = {{0, S, 30, 0},      {1, S, 30, S},          {4, S, 30, 4 * S},
                {4, S, 0, 4 * S},   {4, S, 4, 0},           {4, S, 5, 4 * S},
                {1, 40 * S, 30, 0}, {1, 40 * S, 0, 40 * S}, {2, 500 * MS, 1, 0}};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_uint_eq(
            sl_latency_hedge_delay(rows[i].times, rows[i].delay, rows[i].stall_seconds),
            rows[i].hedge);
}

/* As many waits of one length as are needed to know; none for 0. */
static struct sl_waits waits_of(uint64_t ns)
{
    struct sl_waits waits = {0};
    for (int i = 0; ns && i < 4; i++)
        sl_waits_add(&waits, ns - 1); /* "within" adds one */
    return waits;
}

SL_TEST(a_range_is_compared_with_what_its_siblings_waited)
{
    static const struct {
        uint64_t first, fresh, gap, store; /* usual; 0: not known */
        uint64_t slow_first, slow_fresh, slow_gap;
    } rows[] = {
        /* nothing known: a quarter of a second, or what the store has shown */
        {0, 0, 0, 0, 250 * MS, 250 * MS, 250 * MS},
        {0, 0, 0, 30 * MS, 250 * MS, 250 * MS, 250 * MS},
        {0, 0, 0, 100 * MS, 800 * MS, 800 * MS, 800 * MS},
        /* near: the floors; far: four times what is usual */
        {MS, 2 * MS, MS, MS, 25 * MS, 150 * MS, 100 * MS},
        {30 * MS, 100 * MS, 40 * MS, 30 * MS, 120 * MS, 400 * MS, 160 * MS},
        {30 * MS, 100 * MS, 10 * MS, 30 * MS, 120 * MS, 400 * MS, 120 * MS},
        /* one is known of the two */
        {MS, 0, 0, MS, 25 * MS, 250 * MS, 250 * MS},
        {100 * MS, 0, 0, 100 * MS, 400 * MS, 1200 * MS, 400 * MS},
        {0, 100 * MS, 0, 0, 400 * MS, 400 * MS, 400 * MS},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_waits first = waits_of(rows[i].first), fresh = waits_of(rows[i].fresh),
                        gap = waits_of(rows[i].gap);
        struct sl_latency_delays is = sl_latency_range_delays(&first, &fresh, &gap, rows[i].store);
        ck_assert_msg(is.first_ns == rows[i].slow_first && is.fresh_ns == rows[i].slow_fresh &&
                          is.gap_ns == rows[i].slow_gap,
                      "row %zu: %llu, %llu, %llu us", i, (unsigned long long)is.first_ns / 1000,
                      (unsigned long long)is.fresh_ns / 1000, (unsigned long long)is.gap_ns / 1000);
    }
}

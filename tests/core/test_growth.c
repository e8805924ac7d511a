/* What the distance to a server does to the number of connections. (Climbing: test_reader.c.) */
#include "growth.h"

#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "mem.h"
#include "thread.h"

#define MIB UINT64_C(1048576)

static unsigned begin_at(uint64_t first_byte_ms, uint64_t request_bytes, unsigned first,
                         unsigned maximum)
{
    struct sl_growth growth;
    sl_growth_init(&growth, first, maximum);
    sl_growth_know_distance(&growth, first_byte_ms * SL_NS_PER_MS, request_bytes);
    return growth.connections;
}

SL_TEST(nearby_a_load_begins_with_few)
{
    ck_assert_uint_eq(begin_at(0, 8 * MIB, 4, 64), 4);
    ck_assert_uint_eq(begin_at(1, 8 * MIB, 4, 64), 4);
    ck_assert_uint_eq(begin_at(7, 8 * MIB, 4, 64), 4);
}

/* Each connection brings 40 MB/s from the first answer on; the most within a quarter of a second.
 */
static unsigned reach_at(struct sl_growth *growth, uint64_t first_byte_ms)
{
    unsigned most = 0;
    double bytes = 0;
    for (uint64_t ms = 1; ms < first_byte_ms + 90; ms++) {
        unsigned now = sl_growth_tick(growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        bytes += ms < first_byte_ms ? 0 : 40e3 * now;
        most = now > most ? now : most;
    }
    return most;
}

static unsigned reach(uint64_t first_byte_ms, uint64_t request_bytes)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_quantum(&growth, SL_MIN(request_bytes, MIB / 4));
    sl_growth_know_distance(&growth, first_byte_ms * SL_NS_PER_MS, request_bytes);
    return reach_at(&growth, first_byte_ms);
}

SL_TEST(far_away_it_begins_with_a_few_and_fills_a_link_once_they_bring_enough)
{
    ck_assert_uint_eq(begin_at(30, 8 * MIB, 4, 64), 6);
    ck_assert_uint_eq(begin_at(100, 64 * 1024, 4, 64), 6);
    unsigned far = reach(30, 8 * MIB), farther = reach(100, 8 * MIB);
    ck_assert_uint_ge(far, 38);
    ck_assert_uint_le(far, 50);
    ck_assert_uint_gt(farther, far);
    ck_assert_uint_eq(reach(30, 64 * 1024), 64);
}

SL_TEST(where_none_has_its_share_more_would_only_take_from_others)
{
    struct sl_growth growth;
    uint64_t bytes = 1;
    sl_growth_init(&growth, 4, 64);
    ck_assert(!sl_growth_is_crowded(&growth, 64));
    sl_growth_know_quantum(&growth, MIB / 4);
    sl_growth_know_distance(&growth, 50 * SL_NS_PER_MS, 8 * MIB);
    for (uint64_t ms = 1; ms < 20000; ms++, bytes += 3000) {
        sl_growth_tick(&growth, ms * SL_NS_PER_MS, bytes, 0);
        ck_assert(sl_growth_is_crowded(&growth, 8));
        ck_assert(!sl_growth_is_crowded(&growth, 7));
    }
    for (uint64_t ms = 20000; ms < 40000; ms++, bytes += 300000)
        sl_growth_tick(&growth, ms * SL_NS_PER_MS, bytes, 0);
    ck_assert(!sl_growth_is_crowded(&growth, 8));
    sl_growth_tick(&growth, 60 * SL_NS_PER_S, bytes, 1);
    ck_assert(sl_growth_is_crowded(&growth, 1));
    sl_growth_init(&growth, 16, 16); /* given */
    sl_growth_know_distance(&growth, 50 * SL_NS_PER_MS, 8 * MIB);
    ck_assert(!sl_growth_is_crowded(&growth, 16));
}

SL_TEST(a_number_that_was_given_stays)
{
    ck_assert_uint_eq(begin_at(100, 64 * 1024, 6, 6), 6);
    ck_assert_uint_eq(begin_at(100, 64 * 1024, 1, 1), 1);
    ck_assert_uint_eq(begin_at(30, 8 * MIB, 64, 64), 64);
}

SL_TEST(only_the_first_answer_counts)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_distance(&growth, 0, MIB);
    sl_growth_know_distance(&growth, 2 * SL_NS_PER_MS, MIB);
    sl_growth_know_distance(&growth, 90 * SL_NS_PER_MS, MIB);
    ck_assert_uint_eq(growth.connections, 4);
}

/* Of a store that begins its first answer after 60 ms and each later one within a tenth of one:
 * the most within a second, where a processor keeps it from bringing more by more connections. */
SL_TEST(a_first_answer_that_was_slow_does_not_make_a_server_distant)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 128);
    sl_growth_know_quantum(&growth, MIB / 4);
    sl_growth_know_distance(&growth, 60 * SL_NS_PER_MS, 8 * MIB);
    ck_assert_uint_eq(growth.connections, 6);
    unsigned most = 0;
    for (uint64_t ms = 1; ms < 1000; ms++) {
        sl_growth_know_distance(&growth, ms < 2 ? 60 * SL_NS_PER_MS : SL_NS_PER_MS / 10, 8 * MIB);
        most = SL_MAX(most, sl_growth_tick(&growth, ms * SL_NS_PER_MS, ms * 1000000, 0));
    }
    ck_assert_uint_le(most, 8);
    ck_assert_uint_le(growth.connections, 4);
}

SL_TEST(many_that_were_begun_for_a_distance_go_when_it_is_known_to_be_wrong)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_quantum(&growth, MIB / 4);
    sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
    ck_assert_uint_ge(reach_at(&growth, 30), 38);
    sl_growth_know_distance(&growth, 2 * SL_NS_PER_MS, 8 * MIB); /* it may be near, and slow */
    ck_assert_uint_ge(growth.connections, 38);
    sl_growth_know_distance(&growth, SL_NS_PER_MS / 2, 8 * MIB);
    ck_assert_uint_eq(growth.connections, 4);
    ck_assert_int_eq(growth.why, SL_GROWTH_NEARER);
}

SL_TEST(many_that_brought_more_stay_all_the_same)
{
    struct sl_growth growth;
    double bytes = 0;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
    for (uint64_t ms = 30; growth.why != SL_GROWTH_ROSE; ms++) {
        ck_assert_uint_lt(ms, 2000);
        bytes += 40e3 * sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
    }
    unsigned rose = growth.connections;
    sl_growth_know_distance(&growth, SL_NS_PER_MS / 2, 8 * MIB);
    ck_assert_uint_ge(rose, 38);
    ck_assert_uint_eq(growth.connections, rose);
}

/* The first few bring 320 MB/s, and the many that a distance asks for `part` of that, once they
 * have connected and asked. */
static unsigned reach_and_bring(double part)
{
    struct sl_growth growth;
    double bytes = 1;
    unsigned most = 0, many_ms = 0;
    sl_growth_init(&growth, 2, 64);
    sl_growth_know_quantum(&growth, MIB / 4);
    sl_growth_know_requests(&growth, 1000);
    sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
    for (uint64_t ms = 1; ms < 1500; ms++) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        most = SL_MAX(most, now);
        many_ms = now > 8 ? many_ms + 1 : 0;
        bytes += many_ms > 60 ? 320e3 * part : 320e3;
    }
    ck_assert_uint_gt(most, 32);
    return growth.connections;
}

SL_TEST(what_fills_a_link_is_taken_back_where_it_brings_no_more)
{
    ck_assert_uint_gt(reach_and_bring(2), 32);
    ck_assert_uint_gt(reach_and_bring(1.2), 32);
    ck_assert_uint_eq(reach_and_bring(0.9), 6);
    ck_assert_uint_eq(reach_and_bring(0.5), 6);
}

SL_TEST(a_server_that_is_too_busy_is_not_asked_for_more)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 16, 64);
    ck_assert_uint_eq(sl_growth_tick(&growth, SL_NS_PER_S, 1, 1), 8);
    sl_growth_know_distance(&growth, 90 * SL_NS_PER_MS, MIB);
    ck_assert_uint_eq(growth.connections, 8);
}

/* 32 connections fill this link: the step from 45 to 90 brings nothing and is taken back. */
SL_TEST(from_there_it_climbs_as_ever)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 128);
    sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
    unsigned most = 0;
    double bytes = 1;
    for (uint64_t ms = 1; ms < 2000; ms++) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        bytes += 40e3 * (now < 32 ? now : 32);
        most = now > most ? now : most;
    }
    ck_assert_uint_eq(most, 90);
    ck_assert_uint_eq(growth.connections, 45);
}

/* 64 requests, and 45 connections would do: one turn of 64. 100: three turns of 34. */
SL_TEST(none_is_left_over_in_the_last_turn)
{
    static const struct {
        size_t requests;
        unsigned wanted;
    } rows[] = {{64, 64}, {66, 33}, {100, 34}, {46, 46}, {20, 45}, {1000, 45}, {0, 45}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sl_growth growth;
        sl_growth_init(&growth, 4, 64);
        sl_growth_know_requests(&growth, rows[i].requests);
        sl_growth_know_quantum(&growth, MIB / 4);
        sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
        unsigned reached = reach_at(&growth, 30);
        ck_assert_msg(reached == rows[i].wanted, "%zu requests: %u connections", rows[i].requests,
                      reached);
    }
}

/* ---- slow stores ----------------------------------------------------------------------------- */

/* A store that brings so much a second however many ask; bytes land a window of 256 KiB at a time,
 * at each connection whenever its own is full. The most connections that it saw. */
static unsigned run_slow_store(uint64_t rate, unsigned first, unsigned seed)
{
    enum { WINDOW = 256 * 1024, MOST = 64 };
    struct sl_growth growth;
    double waiting[MOST];
    uint64_t landed = 1;
    unsigned most = 0;
    srand(seed);
    for (unsigned i = 0; i < MOST; i++)
        waiting[i] = rand() % WINDOW;
    sl_growth_init(&growth, first, MOST);
    sl_growth_know_quantum(&growth, WINDOW);
    for (uint64_t ms = 1; ms < 120000; ms++) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, landed, 0);
        most = now > most ? now : most;
        for (unsigned i = 0; i < now; i++) {
            waiting[i] += (double)rate / 1000 / now * (rand() % 2001) / 1000;
            if (waiting[i] < WINDOW)
                continue;
            waiting[i] -= WINDOW;
            landed += WINDOW;
        }
    }
    return most;
}

SL_TEST(a_slow_store_never_sees_more_than_a_few)
{
    for (unsigned seed = 0; seed < 40; seed++) {
        ck_assert_uint_le(run_slow_store(1000000, 4, seed), 8);
        ck_assert_uint_le(run_slow_store(3000000, 4, seed), 8);
        ck_assert_uint_le(run_slow_store(3000000, 2, seed), 8);
    }
}

/* It is slow to begin an answer, as if it were 50 ms away. */
SL_TEST(a_slow_store_that_seems_far_away_sees_few)
{
    struct sl_growth growth;
    uint64_t bytes = 1;
    unsigned most = 0;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_quantum(&growth, 256 * 1024);
    sl_growth_know_distance(&growth, 50 * SL_NS_PER_MS, 8 * MIB);
    for (uint64_t ms = 1; ms < 60000; ms++, bytes += 3000) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, bytes, 0);
        most = now > most ? now : most;
    }
    ck_assert_uint_le(most, 8);
}

/* The same where each connection is throttled: what was taken away comes back, and more. */
SL_TEST(far_away_where_each_is_slow_there_are_many_in_the_end)
{
    struct sl_growth growth;
    uint64_t bytes = 1;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_quantum(&growth, 256 * 1024);
    sl_growth_know_distance(&growth, 50 * SL_NS_PER_MS, 8 * MIB);
    for (uint64_t ms = 1; ms < 120000; ms++)
        bytes += 150 * sl_growth_tick(&growth, ms * SL_NS_PER_MS, bytes, 0);
    ck_assert_uint_ge(growth.connections, 32);
}

/* Each connection is slow, and all of them together are not. */
SL_TEST(where_slow_connections_add_up_there_are_many)
{
    struct sl_growth growth;
    uint64_t bytes = 1;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_quantum(&growth, 256 * 1024);
    for (uint64_t ms = 1; ms < 60000; ms++)
        bytes += 500 * sl_growth_tick(&growth, ms * SL_NS_PER_MS, bytes, 0);
    ck_assert_uint_eq(growth.connections, 64);
    ck_assert_int_eq(growth.why, SL_GROWTH_MOST);
}

SL_TEST(it_says_why_there_are_so_many)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 64);
    ck_assert_int_eq(growth.why, SL_GROWTH_BEGUN);
    uint64_t bytes = 1;
    for (uint64_t ms = 1; ms < 4000; ms++, bytes += 400000)
        sl_growth_tick(&growth, ms * SL_NS_PER_MS, bytes, 0);
    ck_assert_int_eq(growth.why, SL_GROWTH_SAME);
    sl_growth_tick(&growth, 60 * SL_NS_PER_S, bytes, 1);
    ck_assert_int_eq(growth.why, SL_GROWTH_BUSY);
    sl_growth_init(&growth, 4, 4);
    ck_assert_int_eq(growth.why, SL_GROWTH_MOST);
}

static struct sl_cpu_time cpu;
static struct sl_cpu_time cpu_so_far(void)
{
    return cpu;
}

/* Two processors; a part of them is used all the time. */
static unsigned grow_busy(double part)
{
    struct sl_growth growth;
    double bytes = 1;
    cpu = (struct sl_cpu_time){0};
    sl_growth_init(&growth, 4, 64);
    sl_growth_watch_cpu(&growth, cpu_so_far, 2);
    for (uint64_t ms = 1; ms < 3000; ms++) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        bytes += 40e3 * now;
        cpu.used_ns += (uint64_t)(part * 2 * SL_NS_PER_MS);
    }
    return growth.connections;
}

/* Near a fast store, with threads of two connections each on four processors: a thread brings
 * 400 MB/s, whatever its connections, and works all the time for that. */
static unsigned grow_threads(unsigned threads, unsigned useful)
{
    struct sl_growth growth;
    double bytes = 1;
    cpu = (struct sl_cpu_time){0};
    sl_growth_init(&growth, 1, 64);
    sl_growth_watch_cpu(&growth, cpu_so_far, 16);
    sl_growth_know_threads(&growth, threads > 1 ? 4 : 0);
    for (uint64_t ms = 1; ms < 4000; ms++) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        unsigned busy = now / 2 > 1 ? now / 2 : 1;
        busy = busy < threads ? busy : threads;
        bytes += 400e3 * (busy < useful ? busy : useful);
        cpu.used_ns += busy * SL_NS_PER_MS;
    }
    return growth.connections;
}

SL_TEST(where_one_thread_is_busy_all_the_time_a_second_is_tried)
{
    ck_assert_uint_ge(grow_threads(8, 8), 16);
    ck_assert_uint_eq(grow_threads(8, 2), 4);
    ck_assert_uint_eq(grow_threads(8, 1), 1);
    ck_assert_uint_eq(grow_threads(1, 1), 1);
}

/* The most connections of a load of so many bytes from a near server that gives a connection
 * `each` bytes/ms, and `all` together. It is told that there are `told` bytes; 0: nothing. */
static unsigned most_of(uint64_t load_bytes, double each, double all, uint64_t told)
{
    struct sl_growth growth;
    double bytes = 1;
    unsigned most = 0;
    sl_growth_init(&growth, 1, 64);
    sl_growth_know_quantum(&growth, MIB / 4);
    sl_growth_know_distance(&growth, SL_NS_PER_MS / 2, 8 * MIB);
    sl_growth_know_bytes(&growth, told);
    for (uint64_t ms = 1; bytes < (double)load_bytes; ms++) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        bytes += SL_MIN(each * now, all);
        most = SL_MAX(most, now);
    }
    return most;
}

SL_TEST(a_step_that_could_not_be_judged_before_the_end_is_not_tried)
{
    ck_assert_uint_eq(most_of(500 * MIB, 2e6, 2e6, 500 * MIB), 1);
    ck_assert_uint_eq(most_of(500 * MIB, 2e6, 2e6, 0), 2);
    ck_assert_uint_eq(most_of(1000 * MIB, 2e6, 2e6, 1000 * MIB), 2); /* there is time enough */
    ck_assert_uint_eq(most_of(1000 * MIB, 2e6, 4e6, 1000 * MIB), 2); /* of the second step, not */
    ck_assert_uint_ge(most_of(100 * MIB, 40e3, 2e6, 100 * MIB), 8);  /* that tells soon */
}

/* Casts to larger types. */
SL_TEST(where_more_lands_than_was_told_it_is_not_known_when_the_load_ends)
{
    ck_assert_uint_eq(most_of(1000 * MIB, 2e6, 2e6, 250 * MIB), 2);
}

SL_TEST(far_away_a_load_that_ends_soon_has_as_many_as_another)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_quantum(&growth, MIB / 4);
    sl_growth_know_bytes(&growth, MIB);
    sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
    ck_assert_uint_eq(reach_at(&growth, 30), reach(30, 8 * MIB));
}

/* Others have the processors: the threads have `used` of one between them, and wait for `waited`.
 * What comes rises with the connections all the same, as chance will have it; far from the server
 * there is a target. */
static unsigned grow_among_others(double used, double waited, uint64_t first_byte_ns, unsigned ms)
{
    struct sl_growth growth;
    double bytes = 1;
    cpu = (struct sl_cpu_time){0};
    sl_growth_init(&growth, 4, 64);
    sl_growth_watch_cpu(&growth, cpu_so_far, 16);
    sl_growth_know_quantum(&growth, 256 * 1024);
    sl_growth_know_requests(&growth, 1000);
    sl_growth_know_distance(&growth, first_byte_ns, 8 << 20);
    for (uint64_t at = 1; at < ms; at++) {
        unsigned now = sl_growth_tick(&growth, at * SL_NS_PER_MS, (uint64_t)bytes, 0);
        bytes += 40e3 * now;
        cpu.used_ns += (uint64_t)(used * SL_NS_PER_MS);
        cpu.waited_ns += (uint64_t)(waited * SL_NS_PER_MS);
    }
    return growth.connections;
}

/* A load that began while its threads waited for `waited` of their time, or not, and whose first
 * answer came late for that: how many connections it wants, each ms. From `free_ms` on there are
 * processors, and by then answers take `later_ns`. */
static unsigned grow_delayed(double waited, unsigned free_ms, uint64_t later_ns, unsigned ms)
{
    struct sl_growth growth;
    double bytes = 1;
    cpu = (struct sl_cpu_time){.used_ns = 5 * SL_NS_PER_MS};
    cpu.waited_ns = (uint64_t)((double)cpu.used_ns * waited / (1 - waited));
    sl_growth_init(&growth, 2, 64);
    sl_growth_watch_cpu(&growth, cpu_so_far, 16);
    sl_growth_know_quantum(&growth, 256 * 1024);
    sl_growth_know_requests(&growth, 1000);
    sl_growth_know_distance(&growth, 20 * SL_NS_PER_MS, 8 << 20);
    for (uint64_t at = 1000; at < 1000 + ms; at++) {
        bool late = at < 1000 + free_ms;
        sl_growth_know_distance(&growth, late ? 20 * SL_NS_PER_MS : later_ns, 8 << 20);
        unsigned now = sl_growth_tick(&growth, at * SL_NS_PER_MS, (uint64_t)bytes, 0);
        bytes += 40e3 * now;
        cpu.used_ns += (uint64_t)((late ? 1 - waited : 0.1) * SL_NS_PER_MS);
        cpu.waited_ns += (uint64_t)((late ? waited : 0) * SL_NS_PER_MS);
    }
    return growth.connections;
}

SL_TEST(an_answer_that_waited_for_a_processor_makes_no_server_distant)
{
    const uint64_t LATE_NS = 20 * SL_NS_PER_MS;
    ck_assert_uint_eq(grow_delayed(0.7, 2000, LATE_NS, 2000), 2);
    /* there are processors, and the server is as far as it seemed; or near */
    ck_assert_uint_gt(grow_delayed(0.7, 100, LATE_NS, 800), 32);
    ck_assert_uint_le(grow_delayed(0.7, 100, SL_NS_PER_MS / 2, 800), 8);
    /* which one answer of that time does not tell */
    ck_assert_uint_le(grow_delayed(0.7, 60, LATE_NS, 200), 4);
    /* there were processors all the time */
    ck_assert_uint_gt(grow_delayed(0.2, 0, LATE_NS, 250), 32);
    ck_assert_uint_gt(grow_delayed(0.2, 250, LATE_NS, 250), 32);
}

/* Rows are asked for one by one from then on; how far the server is is known by then. */
SL_TEST(smaller_requests_are_counted_while_processors_are_waited_for)
{
    struct sl_growth growth;
    cpu = (struct sl_cpu_time){.used_ns = SL_NS_PER_MS, .waited_ns = 9 * SL_NS_PER_MS};
    sl_growth_init(&growth, 2, 128);
    sl_growth_watch_cpu(&growth, cpu_so_far, 16);
    sl_growth_know_quantum(&growth, MIB / 4);
    sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
    ck_assert_uint_eq(growth.connections, 2);
    sl_growth_know_smaller(&growth, 30 * SL_NS_PER_MS, MIB / 8);
    ck_assert_uint_eq(growth.connections, 6);
    ck_assert_uint_eq(growth.target, 128);
}

SL_TEST(where_others_have_the_processors_none_are_added)
{
    const uint64_t NEAR_NS = SL_NS_PER_MS / 2, FAR_NS = 20 * SL_NS_PER_MS;
    ck_assert_uint_eq(grow_among_others(0.4, 0.6, NEAR_NS, 3000), 4);
    /* a little, as between a load and the server on the same machine; and seldom anything to do */
    ck_assert_uint_eq(grow_among_others(0.7, 0.3, NEAR_NS, 3000), 64);
    ck_assert_uint_eq(grow_among_others(0.1, 0.5, NEAR_NS, 3000), 64);
    /* far away connections wait for answers, and for a processor meanwhile */
    ck_assert_uint_gt(grow_among_others(0.4, 0.6, FAR_NS, 1000), 32);
    ck_assert_uint_gt(grow_among_others(0.5, 1.5, FAR_NS, 1000), 32);
}

SL_TEST(what_is_on_trial_when_others_take_the_processors_is_taken_back)
{
    struct sl_growth growth;
    double bytes = 1;
    unsigned most = 0;
    cpu = (struct sl_cpu_time){0};
    sl_growth_init(&growth, 4, 64);
    sl_growth_watch_cpu(&growth, cpu_so_far, 16);
    for (uint64_t at = 1; at < 1500; at++) {
        unsigned now = sl_growth_tick(&growth, at * SL_NS_PER_MS, (uint64_t)bytes, 0);
        most = now > most ? now : most;
        bytes += 40e3 * now;
        cpu.used_ns += SL_NS_PER_MS / 2;
        cpu.waited_ns += most > 8 ? 2 * SL_NS_PER_MS : 0;
    }
    ck_assert_uint_eq(most, 16);
    ck_assert_uint_eq(growth.connections, 8);
    ck_assert_int_eq(growth.why, SL_GROWTH_PROCESSORS);
}

SL_TEST(without_a_free_processor_none_are_added)
{
    ck_assert_uint_eq(grow_busy(1), 4);
    ck_assert_uint_eq(grow_busy(0.5), 64);
}

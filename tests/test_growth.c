/* What the distance to a server does to the number of connections. (Climbing: test_reader.c.) */
#include "growth.h"

#include <check.h>
#include <stdlib.h>

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

START_TEST(nearby_a_load_begins_with_few)
{
    ck_assert_uint_eq(begin_at(0, 8 * MIB, 4, 64), 4);
    ck_assert_uint_eq(begin_at(1, 8 * MIB, 4, 64), 4);
    ck_assert_uint_eq(begin_at(7, 8 * MIB, 4, 64), 4);
}
END_TEST

START_TEST(far_away_it_begins_with_what_fills_a_link)
{
    unsigned far = begin_at(30, 8 * MIB, 4, 64), farther = begin_at(100, 8 * MIB, 4, 64);
    ck_assert_uint_ge(far, 30);
    ck_assert_uint_le(far, 48);
    ck_assert_uint_gt(farther, far);
    ck_assert_uint_eq(begin_at(30, 64 * 1024, 4, 64), 64);
    ck_assert_uint_eq(begin_at(30, 0, 4, 64), 64);
}
END_TEST

START_TEST(a_number_that_was_given_stays)
{
    ck_assert_uint_eq(begin_at(100, 64 * 1024, 6, 6), 6);
    ck_assert_uint_eq(begin_at(100, 64 * 1024, 1, 1), 1);
    ck_assert_uint_eq(begin_at(30, 8 * MIB, 50, 64), 50);
}
END_TEST

START_TEST(only_the_first_answer_counts)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 64);
    sl_growth_know_distance(&growth, 0, MIB);
    sl_growth_know_distance(&growth, 2 * SL_NS_PER_MS, MIB);
    sl_growth_know_distance(&growth, 90 * SL_NS_PER_MS, MIB);
    ck_assert_uint_eq(growth.connections, 4);
}
END_TEST

START_TEST(a_server_that_is_too_busy_is_not_asked_for_more)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 16, 64);
    ck_assert_uint_eq(sl_growth_tick(&growth, SL_NS_PER_S, 1, 1), 8);
    sl_growth_know_distance(&growth, 90 * SL_NS_PER_MS, MIB);
    ck_assert_uint_eq(growth.connections, 8);
}
END_TEST

/* 32 connections fill this link: the step to 64 brings nothing and is taken back. */
START_TEST(from_there_it_climbs_as_ever)
{
    struct sl_growth growth;
    sl_growth_init(&growth, 4, 128);
    sl_growth_know_distance(&growth, 30 * SL_NS_PER_MS, 8 * MIB);
    unsigned first = growth.connections, most = 0;
    double bytes = 1;
    for (uint64_t ms = 1; ms < 2000; ms++) {
        unsigned now = sl_growth_tick(&growth, ms * SL_NS_PER_MS, (uint64_t)bytes, 0);
        bytes += 40e3 * (now < 32 ? now : 32);
        most = now > most ? now : most;
    }
    ck_assert_uint_gt(most, first);
    ck_assert_uint_eq(growth.connections, first);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("growth");
    TCase *tcase = tcase_create("distance");
    tcase_add_test(tcase, nearby_a_load_begins_with_few);
    tcase_add_test(tcase, far_away_it_begins_with_what_fills_a_link);
    tcase_add_test(tcase, a_number_that_was_given_stays);
    tcase_add_test(tcase, only_the_first_answer_counts);
    tcase_add_test(tcase, a_server_that_is_too_busy_is_not_asked_for_more);
    tcase_add_test(tcase, from_there_it_climbs_as_ever);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}

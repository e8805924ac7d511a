/* Binary search against counting, over every length up to a few and over places at the limits. */
#include "lower_bound.h"

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include "claims.h"
#include "mem.h"

SL_TEST(the_first_that_is_not_before_is_found)
{
    for (size_t count = 0; count <= 17; count++) {
        for (size_t first = 0; first <= count; first++) {
            size_t asked = 0;
            ck_assert_uint_eq(SL_LOWER_BOUND(i, count, (asked++, i < first)), first);
            ck_assert_uint_le(asked, 5); /* not one by one */
        }
    }
}

SL_TEST(of_equal_ones_it_is_the_first_or_the_one_behind)
{
    static const int numbers[] = {1, 3, 3, 3, 7};
    ck_assert_uint_eq(SL_LOWER_BOUND(i, 5, numbers[i] < 3), 1);
    ck_assert_uint_eq(SL_LOWER_BOUND(i, 5, numbers[i] <= 3), 4);
    ck_assert_uint_eq(SL_LOWER_BOUND(i, 5, numbers[i] < 0), 0);
    ck_assert_uint_eq(SL_LOWER_BOUND(i, 5, numbers[i] < 8), 5);
}

SL_TEST(none_is_asked_for_nothing)
{
    bool asked = false;
    ck_assert_uint_eq(SL_LOWER_BOUND(i, 0, (asked = true, i < 1)), 0);
    ck_assert(!asked);
}

SL_TEST(counts_up_to_the_largest_do_not_overflow)
{
    ck_assert_uint_eq(SL_LOWER_BOUND(i, SIZE_MAX, i < SIZE_MAX - 1), SIZE_MAX - 1);
    ck_assert_uint_eq(SL_LOWER_BOUND(i, SIZE_MAX, ((void)i, true)), SIZE_MAX);
    ck_assert_uint_eq(SL_LOWER_BOUND(i, SIZE_MAX, i < 1), 1);
}

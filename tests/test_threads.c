/* How many threads the loads of a process have together. */
#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "metrics.h"
#include "reader_parts.h"

enum { LOADS = 12, USEFUL = 32 };

static unsigned bound(void)
{
    return SL_MIN(sl_cpu_count(), 8u);
}

SL_TEST(a_load_alone_has_all)
{
    unsigned count = sl_reader_take_threads(0, USEFUL);
    ck_assert_uint_eq(count, bound());
    sl_reader_return_threads(count);
    ck_assert_uint_eq(sl_reader_take_threads(0, 1), 1);
    sl_reader_return_threads(1);
    ck_assert_uint_eq(sl_reader_take_threads(5, USEFUL), 5); /* as it was told */
    sl_reader_return_threads(5);
}

SL_TEST(many_loads_have_no_more_together)
{
    unsigned counts[LOADS], more = 0;
    for (unsigned i = 0; i < LOADS; i++) {
        counts[i] = sl_reader_take_threads(0, USEFUL);
        ck_assert_uint_ge(counts[i], 1);
        more += counts[i] - 1;
    }
    ck_assert_uint_lt(more, bound()); /* beyond each one's own */
    for (unsigned i = 0; i < LOADS; i++)
        sl_reader_return_threads(counts[i]);
    ck_assert_uint_eq(sl_reader_take_threads(0, USEFUL), bound());
    sl_reader_return_threads(bound());
}

/* Loads that began together are told apart by the gauge that counts them. */
SL_TEST(loads_that_begin_together_have_equal_parts)
{
    sl_metric_add(SL_M_LOADS_ACTIVE, 2);
    unsigned one = sl_reader_take_threads(0, USEFUL), other = sl_reader_take_threads(0, USEFUL);
    ck_assert_uint_eq(one, SL_MAX(bound() / 2, 1u));
    ck_assert_uint_eq(other, one);
    sl_reader_return_threads(one + other);
    sl_metric_add(SL_M_LOADS_ACTIVE, -2);
}

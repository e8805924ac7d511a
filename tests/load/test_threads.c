/* How many threads the loads of a process have together. */
#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "concurrency.h"
#include "mem.h"
#include "thread.h"

enum { LOADS = 12, USEFUL = 32 };

static unsigned bound(void)
{
    return SL_MIN(sl_cpu_count(), 8u);
}

/* As many as fit to the connections, or those that are given. */
static unsigned take(unsigned given, unsigned useful)
{
    const struct sl_load_facts facts = {.threads = given, .processors = sl_cpu_count()};
    struct sl_concurrency concurrency = {.connections = {.first = 1, .most = 2 * useful}};
    sl_concurrency_take_threads(&facts, &concurrency);
    return concurrency.threads;
}

SL_TEST(a_load_alone_has_all)
{
    unsigned count = take(0, USEFUL);
    ck_assert_uint_eq(count, bound());
    sl_concurrency_return_threads(count);
    ck_assert_uint_eq(take(0, 1), 1);
    sl_concurrency_return_threads(1);
    ck_assert_uint_eq(take(5, USEFUL), 5); /* as it was told */
    sl_concurrency_return_threads(5);
}

SL_TEST(many_loads_have_no_more_together)
{
    unsigned counts[LOADS], more = 0;
    for (unsigned i = 0; i < LOADS; i++) {
        counts[i] = take(0, USEFUL);
        ck_assert_uint_ge(counts[i], 1);
        more += counts[i] - 1;
    }
    ck_assert_uint_lt(more, bound()); /* beyond each one's own */
    for (unsigned i = 0; i < LOADS; i++)
        sl_concurrency_return_threads(counts[i]);
    ck_assert_uint_eq(take(0, USEFUL), bound());
    sl_concurrency_return_threads(bound());
}

/* Loads are counted from their begin, and not only once they have threads. */
SL_TEST(loads_that_begin_together_have_equal_parts)
{
    sl_concurrency_open_load();
    sl_concurrency_open_load();
    unsigned one = take(0, USEFUL), other = take(0, USEFUL);
    ck_assert_uint_eq(one, SL_MAX(bound() / 2, 1u));
    ck_assert_uint_eq(other, one);
    sl_concurrency_return_threads(one + other);
    sl_concurrency_close_load();
    sl_concurrency_close_load();
}

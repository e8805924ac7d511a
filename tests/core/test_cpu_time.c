/* What the process has used, and what its threads have waited for. */
#include <check.h>
#include <sched.h>

#include "claims.h"
#include "cpu_time.h"
#include "thread.h"

enum { SPIN_MS = 60 };

static void *spin(void *arg)
{
    (void)arg;
    for (uint64_t end_ns = sl_now_ns() + SPIN_MS * SL_NS_PER_MS; sl_now_ns() < end_ns;)
        ;
    return NULL;
}

SL_TEST(what_is_used_is_counted)
{
    struct sl_cpu_time before = sl_cpu_time();
    spin(NULL);
    struct sl_cpu_time spent = sl_cpu_time_between(before, sl_cpu_time());
    ck_assert_uint_gt(spent.used_ns, 0);
    ck_assert_uint_le(spent.used_ns, 3600 * SL_NS_PER_S);
}

static void *spin_until(void *seen)
{
    while (!sl_counter_get(seen))
        ;
    return NULL;
}

/* On one processor two that always run wait for each other: in a few ms, unless neither runs, for
 * which a quota is enough. */
SL_TEST(what_is_waited_for_is_counted)
{
    struct sl_cpu_time before = sl_cpu_time(), spent;
    struct sl_counter seen = {0};
    struct sl_err err;
    pthread_t other;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    ck_assert_int_eq(sl_thread_start(&other, "other", spin_until, &seen, &err), 0);
    uint64_t end_ns = sl_now_ns() + 3 * SL_NS_PER_S;
    do
        spent = sl_cpu_time_between(before, sl_cpu_time());
    while (spent.waited_ns <= SPIN_MS / 8 * SL_NS_PER_MS && sl_now_ns() < end_ns);
    sl_counter_add(&seen, 1);
    pthread_join(other, NULL);
    if (!spent.waited_ns)
        SL_SKIP("this kernel does not count how long threads wait");
    ck_assert_uint_gt(spent.waited_ns, SPIN_MS / 8 * SL_NS_PER_MS);
}

SL_TEST(what_goes_back_is_nothing)
{
    struct sl_cpu_time before = {5, 7}, now = {9, 3};
    struct sl_cpu_time spent = sl_cpu_time_between(before, now);
    ck_assert_uint_eq(spent.used_ns, 4);
    ck_assert_uint_eq(spent.waited_ns, 0);
}

SL_CASE(.seconds = 10)

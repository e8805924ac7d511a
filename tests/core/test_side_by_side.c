/* Jobs side by side: each once, no more than may be, and which failure counts. */
#include "side_by_side.h"

#include <check.h>

#include "claims.h"
#include "mem.h"
#include "thread.h"

enum { JOBS = 200 };

struct seen {
    struct sl_counter times[JOBS], begun;
    size_t fails_from; /* jobs from this one on fail */
};

static int see(void *arg, size_t number, struct sl_err *err)
{
    struct seen *seen = arg;
    sl_counter_add(&seen->times[number], 1);
    sl_counter_add(&seen->begun, 1);
    return number < seen->fails_from ? 0 : sl_fail(err, SL_E_NET, "job %zu", number);
}

SL_TEST(each_job_is_done_once)
{
    static const unsigned most[] = {0, 1, 2, 7, 64, 1000};
    for (size_t i = 0; i < SL_COUNT(most); i++) {
        struct seen seen = {.fails_from = JOBS};
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(sl_side_by_side(JOBS, most[i], "test", see, &seen, &err), 0);
        ck_assert_int_eq(err.kind, SL_OK);
        for (size_t job = 0; job < JOBS; job++)
            ck_assert_uint_eq(sl_counter_get(&seen.times[job]), 1);
        ck_assert_int_eq(sl_side_by_side(0, most[i], "test", see, &seen, &err), 0);
        ck_assert_uint_eq(sl_counter_get(&seen.begun), JOBS);
    }
}

/* Others that failed as well had begun before. */
SL_TEST(the_first_failure_by_number_counts_and_ends_it)
{
    for (unsigned most = 1; most <= 32; most *= 2) {
        struct seen seen = {.fails_from = 100};
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(sl_side_by_side(JOBS, most, "test", see, &seen, &err), -1);
        ck_assert_str_eq(err.message, "job 100");
        ck_assert_uint_ge(sl_counter_get(&seen.begun), 101);
        ck_assert_uint_le(sl_counter_get(&seen.begun), 100 + most);
        ck_assert_int_eq(sl_side_by_side(JOBS, most, "test", see, &seen, NULL), -1);
    }
}

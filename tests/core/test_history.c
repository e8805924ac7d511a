/* The bytes of the last hour: where each counts, what a long silence leaves, how much is kept. */
#include <check.h>
#include <string.h>

#include "claims.h"
#include "history.h"
#include "metrics.h"
#include "thread.h"

static struct sl_history history;

/* The array as it is shown, after bytes came at this second. */
static json_t *after(double second, unsigned bytes)
{
    struct sl_json json;
    struct sl_err err = SL_ERR_INIT;
    sl_metric_add(SL_M_SOURCE_BYTES, bytes);
    sl_history_note(&history, SL_NS_PER_S + (uint64_t)(second * 1e9));
    sl_json_init(&json, 1 << 20);
    sl_json_object(&json);
    sl_history_json(&history, &json);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, &err);
    json_t *parsed = sl_json_parse(text, strlen(text), "history", &err);
    sl_json_release(&json);
    ck_assert_uint_eq(sl_json_get_uint(parsed, "step_seconds", 0), 2);
    return parsed;
}

static void expect(double second, unsigned bytes, size_t count, unsigned last)
{
    json_t *json = after(second, bytes), *shown = json_object_get(json, "bytes");
    ck_assert_uint_eq(json_array_size(shown), count);
    if (count)
        ck_assert_uint_eq((unsigned)json_integer_value(json_array_get(shown, count - 1)), last);
    json_decref(json);
}

SL_TEST(what_came_counts_for_its_step)
{
    history = (struct sl_history){0};
    expect(0, 7, 0, 0); /* what was there before it began does not count */
    expect(1, 10, 0, 0);
    expect(1.9, 5, 0, 0);
    expect(2, 3, 1, 15);
    expect(4, 0, 2, 3);
    expect(10, 1, 5, 0); /* the steps of a silence are empty */
    expect(12, 0, 6, 1);
}

SL_TEST(an_hour_is_kept_and_no_more)
{
    history = (struct sl_history){0};
    for (unsigned step = 0; step < 2 * SL_HISTORY_STEPS; step++)
        expect(2.0 * step, 1, step < SL_HISTORY_STEPS ? step : (size_t)SL_HISTORY_STEPS - 1,
               step > 1);
}

SL_TEST(a_silence_of_years_leaves_nothing)
{
    history = (struct sl_history){0};
    expect(0, 1, 0, 0);
    expect(1, 9, 0, 0);
    expect(1e9, 0, SL_HISTORY_STEPS - 1, 0);
    json_t *json = after(1e9 + 4, 2), *shown = json_object_get(json, "bytes");
    size_t at;
    json_t *bytes;
    json_array_foreach(shown, at, bytes) ck_assert_uint_eq(json_integer_value(bytes), 0);
    json_decref(json);
}

/* When a set is saved: not before the engine is ready, and not before its caches stand still. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "range_server.h"
#include "sets_case.h"
#include "sets_parts.h"

static struct sl_server *engine;
static char keys[512];

/* Not ready for the first so many of its answers; after some it writes what it has compiled. */
static struct {
    struct sl_counter answers; /* an engine may still answer whom the end of the waiting cut off */
    unsigned not_ready, writes_at;
} script;

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    (void)request, (void)arg;
    sl_counter_add(&script.answers, 1);
    uint64_t answers = sl_counter_get(&script.answers);
    reply->status = answers > script.not_ready ? 200 : 503;
    if (answers == script.writes_at)
        sets_put("vllm/late", "code");
    return true;
}

static void setup(void)
{
    sets_case_setup();
    script = (__typeof__(script)){0};
    engine = sl_server_start();
    sl_server_handle(engine, answer, NULL);
    snprintf(keys, sizeof(keys), "saveSeconds: 30, ready: '%s', " SETS_SIGNED,
             sl_server_url(engine, "/health"));
}

static void teardown(void)
{
    fake_clock_release();
    sl_server_stop(engine);
    sets_case_teardown();
}
SL_CASE(.setup = setup, .teardown = teardown)

static bool is_saved(void)
{
    sets_forget();
    return sets_restore(keys).outcome == SL_SETS_RESTORED;
}

SL_TEST(five_seconds_without_a_change_are_still)
{
    static const struct {
        unsigned second;
        struct sl_sets_count count;
        bool still;
    } rows[] = {
        {0, {0, 0, 0, 0}, false},  {9, {0, 0, 0, 0}, false}, /* nothing is nothing to save */
        {10, {1, 5, 0, 7}, false}, {14, {1, 5, 0, 7}, false}, {15, {1, 6, 0, 7}, false},
        {19, {1, 6, 0, 7}, false}, {20, {1, 6, 0, 8}, false}, {24, {2, 6, 0, 8}, false},
        {28, {2, 6, 0, 8}, false}, {29, {2, 6, 0, 8}, true},
    };
    struct sl_sets_still still = {.looked = false};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_sets_stands_still(&still, &rows[i].count, rows[i].second * SL_NS_PER_S) ==
                          rows[i].still,
                      "row %zu", i);
}

SL_TEST(an_engine_that_is_ready_and_still_is_saved)
{
    script.not_ready = 3;
    script.writes_at = 4;
    sets_put("vllm/early", "code");
    const struct sl_spec *spec = sets_spec(keys);
    fake_clock_run();
    sl_sets_save_when_ready(spec, NULL);
    fake_clock_release();
    ck_assert_uint_eq(sl_counter_get(&script.answers), 4);
    ck_assert(is_saved());
    ck_assert_str_eq(sets_get("vllm/late"), "code");
}

SL_TEST(an_engine_that_never_is_ready_is_not_saved)
{
    script.not_ready = 1000;
    sets_put("vllm/early", "code");
    const struct sl_spec *spec = sets_spec(keys);
    fake_clock_run();
    sl_sets_save_when_ready(spec, NULL);
    fake_clock_release();
    ck_assert_uint_ge(sl_counter_get(&script.answers), 2);
    ck_assert(!is_saved());
}

SL_TEST(caches_that_never_come_are_not_saved)
{
    const struct sl_spec *spec = sets_spec(keys);
    fake_clock_run();
    sl_sets_save_when_ready(spec, NULL);
    fake_clock_release();
    ck_assert(!is_saved());
}

SL_TEST(a_cancel_ends_the_waiting)
{
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    script.not_ready = 1000;
    sets_put("vllm/early", "code");
    sl_cancel_raise(cancel, 15);
    sl_sets_save_when_ready(sets_spec(keys), cancel);
    sl_cancel_free(cancel);
    ck_assert(!is_saved());
}

static int note(const struct sl_sets_entry *entry, void *arg, struct sl_err *err)
{
    return sl_buf_printf(arg, err, "%.4s %s %s\n", entry->key, entry->own ? "own" : "other",
                         entry->bad ? entry->bad : "good");
}

SL_TEST(a_listing_says_whose_a_set_is_and_why_it_is_not_used)
{
    sl_autobuf text = SL_BUF_INIT(64 * 1024);
    ck_assert_int_eq(sl_sets_list(sets_spec(SETS_SIGNED), NULL, note, &text, &sets_err), 0);
    ck_assert_str_eq(sl_buf_string(&text), "");
    sets_put("x", "code");
    sets_save_well(SETS_SIGNED);
    sets_save_well("variant: b, " SETS_SIGNED);
    sets_save_well("variant: c, trust: store");
    int done = sl_sets_list(sets_spec(SETS_SIGNED), NULL, note, &text, &sets_err);
    ck_assert_msg(done == 0, "%s", sets_err.message);
    ck_assert_ptr_nonnull(strstr(text.data, " own good\n"));
    ck_assert_ptr_nonnull(strstr(text.data, " other good\n"));
    ck_assert_ptr_nonnull(strstr(text.data, " other it is not signed"));
}

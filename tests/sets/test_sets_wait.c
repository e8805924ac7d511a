/* When a set is saved: not before the engine is ready, and not before its caches stand still. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "claims.h"
#include "fake_clock.h"
#include "metrics.h"
#include "range_server.h"
#include "sets_case.h"
#include "sets_parts.h"

static struct sl_server *engine;
static char keys[512];
static const struct sl_sets_result nothing = {.outcome = SL_SETS_MISSED};

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
        {0, {.files = 0}, false},
        {9, {.files = 0}, false}, /* nothing is nothing to save */
        {10, {.files = 1, .bytes = 5, .newest_ns = 7}, false},
        {14, {.files = 1, .bytes = 5, .newest_ns = 7}, false},
        {15, {.files = 1, .bytes = 6, .newest_ns = 7}, false},
        {19, {.files = 1, .bytes = 6, .newest_ns = 7}, false},
        {20, {.files = 1, .bytes = 6, .newest_ns = 8}, false},
        {24, {.files = 2, .bytes = 6, .newest_ns = 8}, false},
        {28, {.files = 2, .bytes = 6, .newest_ns = 8}, false},
        {29, {.files = 2, .bytes = 6, .newest_ns = 8}, true},
    };
    struct sl_sets_still still = {.looked = false};
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_sets_stands_still(&still, &rows[i].count, rows[i].second * SL_NS_PER_S) ==
                          rows[i].still,
                      "row %zu", i);
}

SL_TEST(an_engine_that_is_ready_and_still_is_saved)
{
    uint64_t before = sl_metric_get(SL_M_SETS_ENGINE);
    script.not_ready = 3;
    script.writes_at = 4;
    sets_put("vllm/early", "code");
    const struct sl_spec *spec = sets_spec(keys);
    fake_clock_run();
    sl_sets_when_ready(spec, &nothing, NULL);
    fake_clock_release();
    ck_assert_uint_eq(sl_counter_get(&script.answers), 4);
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_ENGINE), before + 1);
    ck_assert(is_saved());
    ck_assert_str_eq(sets_get("vllm/late"), "code");
}

SL_TEST(a_sidecar_that_finds_caches_tells_of_no_start)
{
    const struct sl_sets_result kept = {.outcome = SL_SETS_KEPT};
    uint64_t before = sl_metric_get(SL_M_SETS_ENGINE);
    sets_put("vllm/early", "code");
    const struct sl_spec *spec = sets_spec(keys);
    fake_clock_run();
    sl_sets_when_ready(spec, &kept, NULL);
    fake_clock_release();
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_ENGINE), before);
}

SL_TEST(an_engine_that_never_is_ready_is_not_saved)
{
    script.not_ready = 1000;
    sets_put("vllm/early", "code");
    const struct sl_spec *spec = sets_spec(keys);
    fake_clock_run();
    sl_sets_when_ready(spec, &nothing, NULL);
    fake_clock_release();
    ck_assert_uint_ge(sl_counter_get(&script.answers), 2);
    ck_assert(!is_saved());
}

SL_TEST(caches_that_never_come_are_not_saved)
{
    const struct sl_spec *spec = sets_spec(keys);
    fake_clock_run();
    sl_sets_when_ready(spec, &nothing, NULL);
    fake_clock_release();
    ck_assert(!is_saved());
}

SL_TEST(a_cancel_ends_the_waiting)
{
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    script.not_ready = 1000;
    sets_put("vllm/early", "code");
    sl_cancel_raise(cancel, 15);
    sl_sets_when_ready(sets_spec(keys), &nothing, cancel);
    sl_cancel_free(cancel);
    ck_assert(!is_saved());
}

SL_TEST(half_as_much_written_again_is_little_use)
{
    static const struct {
        struct sl_sets_result restored;
        struct sl_sets_count count;
        bool unused;
    } rows[] = {
        {{.outcome = SL_SETS_RESTORED, .bytes = 100}, {.later_files = 0}, false},
        {{.outcome = SL_SETS_RESTORED, .bytes = 100}, {.later_files = 9, .later_bytes = 49}, false},
        {{.outcome = SL_SETS_RESTORED, .bytes = 100}, {.later_files = 1, .later_bytes = 50}, true},
        {{.outcome = SL_SETS_KEPT, .bytes = 100}, {.later_files = 9, .later_bytes = 100}, false},
        {{.outcome = SL_SETS_MISSED}, {.later_files = 9, .later_bytes = 100}, false},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        ck_assert_msg(sl_sets_were_unused(&rows[i].restored, &rows[i].count) == rows[i].unused,
                      "row %zu", i);
}

/* Saved long ago, so that what is written now is later whatever the file system's clock does. */
static struct sl_sets_result restored_from_old_files(void)
{
    const struct timespec then[2] = {{1000000000, 0}, {1000000000, 0}};
    sets_put("vllm/kernel", "code of a kernel");
    ck_assert_int_eq(utimensat(sets_scratch_fd, "caches/engine/vllm/kernel", then, 0), 0);
    sets_save_well(keys);
    sets_forget();
    return sets_restore(keys);
}

static int64_t unused(void)
{
    return (int64_t)sl_metric_get(SL_M_SETS_UNUSED);
}

SL_TEST(an_engine_that_compiles_again_is_told_of)
{
    struct sl_sets_result restored = restored_from_old_files();
    ck_assert_int_eq(restored.outcome, SL_SETS_RESTORED);
    for (unsigned again = 0; again < 2; again++) {
        int64_t before = unused();
        if (again)
            sets_put("vllm/other-kernel", "code of a kernel");
        const struct sl_spec *spec = sets_spec(keys);
        fake_clock_run();
        sl_sets_when_ready(spec, &restored, NULL);
        fake_clock_release();
        ck_assert_int_eq(unused() - before, again);
    }
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

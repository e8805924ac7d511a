/* Sets are saved once, whole, and without what they cannot hold. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_clock.h"
#include "fake_s3.h"
#include "metrics.h"
#include "range_server.h"
#include "removal.h"
#include "sets_case.h"
#include "sets_parts.h"
#include "tar_write.h"
#include "tree.h"

static struct sl_fake_s3 fake;

static void setup(void)
{
    clearenv();
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    fake = (struct sl_fake_s3){0};
    sets_case_setup();
}

static void teardown(void)
{
    if (fake.server)
        sl_fake_s3_stop(&fake);
    sets_case_teardown();
}
SL_CASE(.setup = setup, .teardown = teardown)

static void use_s3(void)
{
    sl_fake_s3_start(&fake, false);
    snprintf(sets_store, sizeof(sets_store), "s3://bucket/sets/");
}

static int save(const char *keys, bool replace, struct sl_sets_saved *saved)
{
    sets_err = (struct sl_err)SL_ERR_INIT;
    return sl_sets_save(sets_spec(keys), replace, NULL, saved, &sets_err);
}

static void expect_failure(const char *keys, enum sl_err_kind kind, const char *text)
{
    struct sl_sets_saved saved;
    ck_assert_int_eq(save(keys, false, &saved), -1);
    ck_assert_msg(sets_err.kind == kind && strstr(sets_err.message, text), "%s", sets_err.message);
}

/* ---- once ------------------------------------------------------------------------------------ */

SL_TEST(the_blob_comes_first_and_then_its_name)
{
    use_s3();
    sets_put("vllm/x", "code");
    struct sl_sets_saved saved = sets_save_well(SETS_SIGNED);
    ck_assert(!saved.there && !saved.lost);
    ck_assert_uint_eq(fake.object_count, 2);
    ck_assert_ptr_nonnull(strstr(fake.objects[0].key, saved.sha256));
    ck_assert_ptr_nonnull(strstr(fake.objects[1].key, "/latest.json"));
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_SAVED), 1);
}

SL_TEST(a_set_that_is_there_is_not_packed_again)
{
    use_s3();
    sets_put("vllm/x", "code");
    sets_save_well(SETS_SIGNED);
    sets_put("vllm/y", "more");
    struct sl_sets_saved saved = sets_save_well(SETS_SIGNED);
    ck_assert(saved.there && !saved.lost);
    ck_assert_uint_eq(fake.puts, 2);
    ck_assert_uint_eq(saved.packed_bytes, 0);
}

/* The other one wrote between this one's looks and its last request: 412. */
SL_TEST(of_two_savers_one_writes_the_name)
{
    use_s3();
    sets_put("vllm/x", "first");
    struct sl_sets_saved first = sets_save_well(SETS_SIGNED), second;
    size_t bytes;
    const char *key = fake.objects[1].key;
    const char *object = sl_fake_s3_object(&fake, key, &bytes);
    sl_autofree char *before = strndup(object, bytes);
    fake.faults[0] = (struct sl_fake_fault){"GET", "latest.json", 1, 404, "NoSuchKey", NULL};
    fake.faults[1] = (struct sl_fake_fault){"HEAD", "latest.json", 1, 404, NULL, NULL};
    sets_put("vllm/x", "second");
    second = sets_save_well(SETS_SIGNED);
    ck_assert(second.lost && !second.there);
    ck_assert_str_ne(first.sha256, second.sha256);
    object = sl_fake_s3_object(&fake, key, &bytes);
    ck_assert(bytes == strlen(before) && memcmp(object, before, bytes) == 0);
    ck_assert_uint_eq(fake.faults[0].times + fake.faults[1].times, 0);
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_SAVED), 1);
}

SL_TEST(a_set_is_replaced_when_it_is_asked_for)
{
    struct sl_sets_saved saved;
    sets_put("x", "first");
    sets_save_well(SETS_SIGNED);
    sets_put("x", "second");
    ck_assert_int_eq(save(SETS_SIGNED, true, &saved), 0);
    sets_forget();
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
    ck_assert_str_eq(sets_get("x"), "second");
}

SL_TEST(a_broken_blob_is_replaced_by_the_same_files)
{
    char blob[SL_SCRATCH_PATH_BYTES + 160];
    struct sl_sets_saved first, second;
    sets_put("x", "code");
    first = sets_save_well(SETS_SIGNED);
    snprintf(blob, sizeof(blob), "%sblobs/%.64s.tar.zst", sets_store, first.sha256);
    ck_assert_int_eq(truncate(blob, 10), 0);
    ck_assert_int_eq(save(SETS_SIGNED, true, &second), 0);
    ck_assert_str_eq(first.sha256, second.sha256);
    sets_forget();
    struct sl_sets_result result = sets_restore(SETS_SIGNED);
    ck_assert_msg(result.outcome == SL_SETS_RESTORED, "%s", result.why.message);
}

/* Somebody may have put it there before the first save. */
SL_TEST(a_blob_that_is_there_is_proved_before_a_name_leads_to_it)
{
    char blob[SL_SCRATCH_PATH_BYTES + 160];
    sets_put("x", "code");
    struct sl_sets_saved first = sets_save_well(SETS_SIGNED);
    for (unsigned i = 0; i < 3; i++) {
        snprintf(blob, sizeof(blob), "%sblobs/%.64s.tar.zst", sets_store, first.sha256);
        sl_autoclose int fd = open(blob, O_RDWR | O_CLOEXEC);
        ck_assert_int_ge(fd, 0);
        if (i == 1)
            ck_assert_int_eq(ftruncate(fd, 10), 0);
        if (i == 2)
            ck_assert_int_eq(pwrite(fd, "X", 1, 0), 1);
        ck_assert_int_eq(unlink(sets_name_file(first.key)), 0);
        ck_assert_str_eq(sets_save_well(SETS_SIGNED).sha256, first.sha256);
        sets_forget();
        struct sl_sets_result result = sets_restore(SETS_SIGNED);
        ck_assert_msg(result.outcome == SL_SETS_RESTORED, "%s", result.why.message);
    }
}

SL_TEST(a_set_that_is_not_used_is_named)
{
    struct sl_sets_saved saved;
    sets_put("x", "code");
    sets_save_well("trust: store");
    expect_failure(SETS_SIGNED, SL_E_INTEGRITY, "--replace");
    ck_assert_int_eq(save(SETS_SIGNED, true, &saved), 0);
    ck_assert(sets_save_well(SETS_SIGNED).there);
}

/* What cannot be asked, or judged, is neither a bad set nor none. */
SL_TEST(a_set_that_nobody_could_look_at_is_no_bad_one)
{
    struct sl_sets_saved saved;
    use_s3();
    sets_put("x", "code");
    sets_save_well(SETS_SIGNED);
    expect_failure("publicKeyFile: /not/there, secretKeyFile: " SL_TEST_DATA "/minisign/plain.key",
                   SL_E_NOT_FOUND, "/not/there");
    fake.faults[0] = (struct sl_fake_fault){"GET", "latest.json", 9, 403, "AccessDenied", NULL};
    ck_assert_int_eq(save(SETS_SIGNED, false, &saved), -1);
    ck_assert_int_eq(sets_err.kind, SL_E_AUTH);
    ck_assert_msg(!strstr(sets_err.message, "--replace"), "%s", sets_err.message);
}

SL_TEST(nothing_is_saved_by_a_key_that_nobody_trusts)
{
    use_s3();
    sets_put("x", "code");
    expect_failure("publicKeyFile: " SL_TEST_DATA "/minisign/one.pub, "
                   "secretKeyFile: " SL_TEST_DATA "/minisign/plain.key",
                   SL_E_INTEGRITY, "not a pair");
    ck_assert_uint_eq(fake.object_count, 0);
}

SL_TEST(a_blob_that_cannot_be_written_has_no_name)
{
    use_s3();
    sets_put("x", "code");
    fake.faults[0] = (struct sl_fake_fault){"PUT", "/blobs/", 9, 403, "AccessDenied", NULL};
    expect_failure(SETS_SIGNED, SL_E_AUTH, "AccessDenied");
    ck_assert_uint_eq(fake.object_count, 0);
}

/* ---- what is refused --------------------------------------------------------------------------
 */

SL_TEST(nothing_is_saved_of_nothing)
{
    ck_assert_int_eq(mkdirat(sets_scratch_fd, "caches", 0755), 0);
    expect_failure(SETS_SIGNED, SL_E_NOT_FOUND, "nothing to save");
}

SL_TEST(without_save_nothing_is_saved)
{
    struct sl_sets_saved saved;
    struct sl_spec spec = *sets_spec(SETS_SIGNED);
    spec.sink.caches.save = false;
    sets_put("x", "code");
    ck_assert_int_eq(sl_sets_save(&spec, false, NULL, &saved, &sets_err), -1);
    ck_assert_ptr_nonnull(strstr(sets_err.message, "save: true"));
}

SL_TEST(a_secret_key_that_is_none_is_refused)
{
    sets_put("x", "code");
    expect_failure("publicKeyFile: /x, secretKeyFile: " SL_TEST_DATA "/minisign/plain.pub",
                   SL_E_USAGE, "plain.pub");
    expect_failure("publicKeyFile: /x, secretKeyFile: /not/there", SL_E_NOT_FOUND, "/not/there");
}

/* ---- what is in it ----------------------------------------------------------------------------
 */

SL_TEST(equal_folders_make_equal_archives)
{
    static const char *const names[] = {"b/z", "a", "b/a", "c"};
    char sha[65] = "";
    const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    for (unsigned turn = 0; turn < 2; turn++) {
        struct sl_sets_saved saved;
        for (unsigned i = 0; i < SL_COUNT(names); i++)
            sets_put(names[turn ? SL_COUNT(names) - 1 - i : i], "text");
        for (unsigned i = 0; i < SL_COUNT(names) + 1; i++) {
            char path[64];
            snprintf(path, sizeof(path), "caches/engine/%s", i < SL_COUNT(names) ? names[i] : "b");
            ck_assert_int_eq(utimensat(sets_scratch_fd, path, times, 0), 0);
        }
        ck_assert_int_eq(save("trust: store", true, &saved), 0);
        ck_assert(!turn || strcmp(sha, saved.sha256) == 0);
        memcpy(sha, saved.sha256, sizeof(sha));
        sets_forget();
    }
}

SL_TEST(what_no_set_can_hold_is_left_out_and_counted)
{
    sets_put("good", "code");
    sets_put("back\\slash", "odd");
    ck_assert_int_eq(symlinkat("good", sets_scratch_fd, "caches/engine/near"), 0);
    ck_assert_int_eq(symlinkat("/etc/passwd", sets_scratch_fd, "caches/engine/far"), 0);
    ck_assert_int_eq(symlinkat("../../outside", sets_scratch_fd, "caches/engine/out"), 0);
    ck_assert_int_eq(mkfifoat(sets_scratch_fd, "caches/engine/pipe", 0600), 0);
    struct sl_sets_saved saved = sets_save_well(SETS_SIGNED);
    ck_assert_uint_eq(saved.passed, 4);
    ck_assert_uint_eq(saved.files, 2);
    sets_forget();
    struct sl_sets_result result = sets_restore(SETS_SIGNED);
    ck_assert_msg(result.outcome == SL_SETS_RESTORED, "%s", result.why.message);
    ck_assert_str_eq(sets_get("near"), "code");
}

/* Called when all names are known, and the first file is about to be read. */
static void (*when_packing)(void);
int __real_sl_tar_write_head(const struct sl_tar_entry *entry, struct sl_buf *out,
                             struct sl_err *err);
int __wrap_sl_tar_write_head(const struct sl_tar_entry *entry, struct sl_buf *out,
                             struct sl_err *err);
int __wrap_sl_tar_write_head(const struct sl_tar_entry *entry, struct sl_buf *out,
                             struct sl_err *err)
{
    void (*now)(void) = when_packing;
    when_packing = NULL;
    if (now)
        now();
    return __real_sl_tar_write_head(entry, out, err);
}

static void grow_first(void)
{
    sets_put("a", "the first file, longer");
}

static void grow_second(void)
{
    sets_put("b", "the second file, longer");
}

static void cut_second(void)
{
    sets_put("b", "");
}

static void remove_second(void)
{
    ck_assert_int_eq(unlinkat(sets_scratch_fd, "caches/engine/b", 0), 0);
}

/* As compilers do: written beside, and renamed. */
static void replace_second(void)
{
    sets_put("c", "another second");
    ck_assert_int_eq(
        renameat(sets_scratch_fd, "caches/engine/c", sets_scratch_fd, "caches/engine/b"), 0);
}

SL_TEST(a_file_that_changes_while_it_is_packed_is_not_saved)
{
    static void (*const changes[])(void) = {grow_first, grow_second, cut_second, remove_second,
                                            replace_second};
    for (size_t i = 0; i < SL_COUNT(changes); i++) {
        sets_put("a", "the first file");
        sets_put("b", "the second one"); /* as long as what replaces it */
        when_packing = changes[i];
        expect_failure(SETS_SIGNED, SL_E_INTEGRITY, "changed while it was packed");
    }
    sets_save_well(SETS_SIGNED);
}

/* The first time the engine's first request makes it compile more. */
SL_TEST(a_sidecar_saves_what_stands_still_at_last)
{
    char keys[512];
    const struct sl_sets_result nothing = {.outcome = SL_SETS_MISSED};
    struct sl_server *engine = sl_server_start();
    sl_server_put(engine, "/health", "fine", 4, NULL);
    snprintf(keys, sizeof(keys), "saveSeconds: 600, ready: '%s', " SETS_SIGNED,
             sl_server_url(engine, "/health"));
    sets_put("a", "the first file");
    sets_put("b", "the second one");
    const struct sl_spec *spec = sets_spec(keys);
    when_packing = grow_second;
    fake_clock_run();
    sl_sets_when_ready(spec, &nothing, NULL);
    fake_clock_release();
    ck_assert(!when_packing);
    ck_assert_uint_eq(sl_metric_get(SL_M_SETS_SAVED), 1);
    sets_forget();
    ck_assert_int_eq(sets_restore(keys).outcome, SL_SETS_RESTORED);
    ck_assert_str_eq(sets_get("b"), "the second file, longer");
    sl_server_stop(engine);
}

SL_TEST(what_no_restore_would_take_is_not_saved)
{
    sets_put("zeros", "");
    sl_autoclose int fd = openat(sets_scratch_fd, "caches/engine/zeros", O_WRONLY);
    ck_assert_int_eq(ftruncate(fd, 80 * 1024 * 1024), 0);
    expect_failure(SETS_SIGNED, SL_E_USAGE, "no restore takes");
    ck_assert_int_eq(ftruncate(fd, 8 * 1024 * 1024), 0);
    sets_save_well(SETS_SIGNED);
}

/* Of a target that is too long no part is saved as if it were all. */
SL_TEST(a_target_that_is_too_long_is_left_out)
{
    char target[1200];
    sets_put("good", "code");
    memset(target, 'x', sizeof(target));
    for (size_t i = 100; i < sizeof(target); i += 100)
        target[i] = '/';
    target[sizeof(target) - 1] = 0;
    ck_assert_int_eq(symlinkat(target, sets_scratch_fd, "caches/engine/long"), 0);
    struct sl_sets_saved saved = sets_save_well(SETS_SIGNED);
    ck_assert_uint_eq(saved.passed, 1);
    ck_assert_uint_eq(saved.files, 1);
}

SL_TEST(a_time_far_away_is_still_later)
{
    struct sl_sets_count count;
    const struct timespec far[2] = {{.tv_sec = 13569465600}, {.tv_sec = 13569465600}}; /* 2400 */
    sets_put("x", "code");
    ck_assert_int_eq(utimensat(sets_scratch_fd, "caches/engine/x", far, 0), 0);
    sl_autoclose int fd = open(sets_path, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(sl_sets_count(fd, INT64_MAX / 2, NULL, &count, &sets_err), 0);
    ck_assert_int_eq(count.newest_file_ns, INT64_MAX);
    ck_assert_uint_eq(count.later_files, 1);
    sets_save_well(SETS_SIGNED);
    sets_forget();
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
}

SL_TEST(without_memory_saving_fails_or_is_whole)
{
    struct sl_sets_saved saved;
    const struct sl_spec *spec = sets_spec(SETS_SIGNED);
    bool whole = false;
    sets_put("x", "code");
    for (unsigned nth = 1; !whole; nth++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_uint_lt(nth, 2000);
        sl_alloc_fail_at(nth);
        int done = sl_sets_save(spec, true, NULL, &saved, &err);
        whole = done == 0 && sl_alloc_count() < nth;
        sl_alloc_fail_at(0);
        ck_assert(done == 0 || err.kind != SL_OK);
    }
    sets_forget();
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
}

/* ---- what goes again --------------------------------------------------------------------------
 */

static int note(void *arg, const char *name, uint64_t bytes, const char *why, struct sl_err *err)
{
    (void)bytes;
    return sl_buf_printf(arg, err, "%s %s\n", name, why);
}

/* What is pruned, a line each; borrowed until the next. */
static const char *prune(uint64_t older_days, bool removes)
{
    static struct sl_buf text = SL_BUF_INIT(64 * 1024);
    text.used = 0;
    const struct sl_sets_prune how = {older_days, removes, note, &text};
    int done = sl_sets_prune(sets_spec(SETS_SIGNED), &how, NULL, &sets_err);
    ck_assert_msg(done == 0, "%s", sets_err.message);
    return text.used ? sl_buf_string(&text) : "";
}

SL_TEST(a_blob_without_a_name_goes_when_it_is_asked_for)
{
    struct sl_sets_saved first, second;
    ck_assert_str_eq(prune(0, true), "");
    sets_put("x", "first");
    first = sets_save_well(SETS_SIGNED);
    sets_save_well("variant: other, " SETS_SIGNED);
    ck_assert_str_eq(prune(0, true), "");
    sets_put("x", "second");
    ck_assert_int_eq(save(SETS_SIGNED, true, &second), 0);
    ck_assert_int_eq(save("variant: other, " SETS_SIGNED, true, &second), 0);
    for (unsigned removes = 0; removes < 2; removes++) {
        const char *told = prune(0, removes);
        ck_assert_msg(strstr(told, first.sha256) && !strstr(told, second.sha256), "%s", told);
    }
    ck_assert_str_eq(prune(0, true), "");
    sets_forget();
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_RESTORED);
}

SL_TEST(nothing_is_removed_where_no_store_can)
{
    struct sl_source_config config = {.attempts = 1};
    ck_assert_int_eq(sl_removal_of("http://127.0.0.1/x", &config, &sets_err), -1);
    ck_assert_int_eq(sets_err.kind, SL_E_USAGE);
    ck_assert_int_eq(sl_removal_of("/not/there/x", &config, &sets_err), 0);
    ck_assert_int_eq(sl_removal_of("/not/there/", &config, &sets_err), -1);
}

SL_TEST(an_old_set_goes_with_its_blob)
{
    struct sl_sets_saved saved;
    sets_put("x", "code");
    saved = sets_save_well(SETS_SIGNED);
    fake_clock_hold();
    fake_clock_turn((UINT64_C(30) * 86400 - 10) * SL_NS_PER_S);
    ck_assert_str_eq(prune(30, true), "");
    fake_clock_turn(20 * SL_NS_PER_S);
    ck_assert_str_eq(prune(0, true), "");
    const char *told = prune(30, true);
    ck_assert_msg(strstr(told, saved.key) && strstr(told, saved.sha256), "%s", told);
    fake_clock_release();
    sets_forget();
    ck_assert_int_eq(sets_restore(SETS_SIGNED).outcome, SL_SETS_MISSED);
}

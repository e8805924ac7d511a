/* What /metrics says: right sums under threads, both text formats, promtool's opinion. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "metrics.h"
#include "progress.h"
#include "run_sluice.h"
#include "skip.h"

enum { THREADS = 8, ROUNDS = 20000 };

static void *count(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS; i++) {
        sl_metric_add(SL_M_SOURCE_BYTES, 3);
        sl_metric_add(SL_M_CONNECTIONS, i % 2 ? -1 : 1);
        sl_metric_observe(SL_M_REQUEST_SECONDS, 0.002);
    }
    return NULL;
}

static char *written(int openmetrics)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_buf out = SL_BUF_INIT(1 << 20);
    ck_assert_msg(sl_metrics_write(&out, openmetrics, &err) == 0, "%s", err.message);
    return sl_buf_steal(&out, &err);
}

SL_TEST(threads_lose_no_count)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, count, NULL), 0);
    free(written(0));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(sl_metric_get(SL_M_SOURCE_BYTES), 3ull * THREADS * ROUNDS);
    ck_assert_uint_eq(sl_metric_get(SL_M_CONNECTIONS), 0);
    ck_assert_uint_eq(sl_metric_get(SL_M_REQUEST_SECONDS), (uint64_t)THREADS * ROUNDS);
}

SL_TEST(buckets_are_cumulative_and_end_at_the_count)
{
    const double seen[] = {0.0005, 0.001, 0.3, 60, 61, 1e300, -1, 0.0 / 0.0};
    for (size_t i = 0; i < SL_COUNT(seen); i++)
        sl_metric_observe(SL_M_FIRST_BYTE_SECONDS, seen[i]);
    sl_autofree char *text = written(0);
    ck_assert_ptr_nonnull(strstr(text, "first_byte_seconds_bucket{le=\"0.001\"} 4\n"));
    ck_assert_ptr_nonnull(strstr(text, "first_byte_seconds_bucket{le=\"0.25\"} 4\n"));
    ck_assert_ptr_nonnull(strstr(text, "first_byte_seconds_bucket{le=\"0.5\"} 5\n"));
    ck_assert_ptr_nonnull(strstr(text, "first_byte_seconds_bucket{le=\"60\"} 6\n"));
    ck_assert_ptr_nonnull(strstr(text, "first_byte_seconds_bucket{le=\"+Inf\"} 8\n"));
    ck_assert_ptr_nonnull(strstr(text, "first_byte_seconds_count 8\n"));
}

SL_TEST(openmetrics_names_families_without_suffix_and_ends_in_eof)
{
    sl_autofree char *text = written(1);
    ck_assert_ptr_nonnull(strstr(text, "# TYPE sluice_source_bytes counter\n"));
    ck_assert_ptr_nonnull(strstr(text, "# UNIT sluice_source_bytes bytes\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nsluice_source_bytes_total 0\n"));
    ck_assert_ptr_nonnull(strstr(text, "# TYPE sluice_build info\n"));
    ck_assert_ptr_nonnull(strstr(text, "{le=\"1.0\"}"));
    ck_assert_ptr_null(strstr(text, "TYPE sluice_source_bytes_total"));
    ck_assert_str_eq(text + strlen(text) - 6, "# EOF\n");
}

SL_TEST(hostile_model_names_cannot_break_a_line)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *progress =
        sl_progress_new("a\"} 1\nevil{x=\"\\\xff", "file:///x", "/m", &err);
    sl_autofree char *text = written(0);
    ck_assert_ptr_nonnull(
        strstr(text, "sluice_load_size_bytes{model=\"a\\\"} 1\\nevil{x=\\\"\\\\?\"} 0\n"));
    ck_assert_ptr_null(strstr(text, "\nevil"));
    sl_progress_free(progress);
}

SL_TEST(one_model_is_one_series_however_often_it_is_loaded)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *old = sl_progress_new("m", "file:///x", "/m", &err);
    struct sl_progress *latest = sl_progress_new("m", "file:///x", "/m", &err);
    sl_progress_finish(old, NULL);
    sl_progress_set_total(latest, 77, 1, 1);
    sl_autofree char *text = written(0);
    const char *found = strstr(text, "sluice_load_size_bytes{model=\"m\"} 77\n");
    ck_assert_ptr_nonnull(found);
    ck_assert_ptr_null(strstr(found + 1, "sluice_load_size_bytes{model=\"m\"}"));
    ck_assert_ptr_nonnull(strstr(text, "sluice_load_state{model=\"m\",state=\"queued\"} 1\n"));
    sl_progress_free(old);
    sl_progress_free(latest);
}

SL_TEST(models_beyond_the_limit_are_not_shown)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *all[300];
    for (int i = 0; i < 300; i++) {
        char name[16];
        snprintf(name, sizeof(name), "m%d", i);
        all[i] = sl_progress_new(name, "file:///x", "/m", &err);
    }
    sl_autofree char *text = written(1);
    ck_assert_ptr_nonnull(strstr(text, "sluice_load_size_bytes{model=\"m255\"}"));
    ck_assert_ptr_null(strstr(text, "sluice_load_size_bytes{model=\"m256\"}"));
    for (int i = 0; i < 300; i++)
        sl_progress_free(all[i]);
}

SL_TEST(promtool_is_content)
{
    if (access("/usr/bin/promtool", X_OK) != 0)
        SL_SKIP("no /usr/bin/promtool");
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *progress = sl_progress_new("gpt-j-6b", "s3://m/x", "/m", &err);
    sl_autofree char *text = written(0);
    char name[] = "/tmp/sluice-metrics-XXXXXX";
    int fd = mkstemp(name);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    struct ran ran = {0};
    run_program(
        &ran, "/bin/sh",
        (const char *const[]){"-c", "exec /usr/bin/promtool check metrics <\"$0\"", name, NULL});
    ck_assert_str_eq(ran.err, "");
    ck_assert_str_eq(ran.out, "");
    ck_assert_int_eq(ran.exit_code, 0);
    ran_release(&ran);
    unlink(name);
    sl_progress_free(progress);
}

SL_TEST(a_failing_allocation_is_an_error_and_leaks_nothing)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *progress = sl_progress_new("m", "file:///x", "/m", &err);
    for (unsigned nth = 1; nth < 50; nth++) {
        sl_autobuf out = SL_BUF_INIT(1 << 20);
        sl_alloc_fail_at(nth);
        int result = sl_metrics_write(&out, 1, &err);
        unsigned made = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (made < nth) {
            ck_assert_int_eq(result, 0);
            break;
        }
        ck_assert_int_eq(result, -1);
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
    sl_progress_free(progress);
}

/* Who supplied bytes: sums that stay right however many there are, names that break nothing. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "fake_clock.h"
#include "metrics.h"
#include "progress.h"
#include "run_sluice.h"
#include "suppliers.h"
#include "thread.h"

static struct sl_suppliers set;
static struct sl_supplier all[SL_SUPPLIERS_MAX];

static struct sl_supplied gave(const char *name, uint64_t bytes)
{
    return (struct sl_supplied){.kind = name ? SL_SUPPLIER_CACHE : SL_SUPPLIER_ORIGIN,
                                .name = name,
                                .bytes = bytes,
                                .ranges = 1,
                                .failure = SL_SUPPLIER_FAILURE_COUNT};
}

static void add(const char *name, uint64_t bytes)
{
    struct sl_supplied supplied = gave(name, bytes);
    sl_suppliers_add(&set, &supplied);
}

static const struct sl_supplier *find(const char *name)
{
    size_t count = sl_suppliers_copy(&set, all, SL_SUPPLIERS_MAX);
    ck_assert_uint_le(count, SL_SUPPLIERS_MAX);
    for (size_t i = 0; i < count; i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

static uint64_t sum_of_bytes(void)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < sl_suppliers_copy(&set, all, SL_SUPPLIERS_MAX); i++)
        sum += all[i].bytes;
    return sum;
}

static void add_many(unsigned begin, unsigned end)
{
    char name[64];
    for (unsigned i = begin; i < end; i++) {
        snprintf(name, sizeof(name), "http://10.0.%u.%u:80", i / 256, i % 256);
        add(name, 10);
    }
}

SL_TEST(sums_are_right_however_many_there_are)
{
    add(NULL, 7);
    add_many(0, 300);
    ck_assert_uint_eq(sl_suppliers_copy(&set, all, 0), SL_SUPPLIERS_MAX);
    ck_assert_uint_eq(sum_of_bytes(), 3007);
    ck_assert_uint_eq(find(SL_SUPPLIER_OTHERS)->bytes, (300 - (SL_SUPPLIERS_MAX - 2)) * 10);
    ck_assert_uint_eq(find("origin")->bytes, 7);
}

SL_TEST(whoever_was_asked_an_hour_ago_makes_room)
{
    fake_clock_hold();
    add(NULL, 7);
    add_many(0, 300);
    fake_clock_turn(3599 * SL_NS_PER_S);
    add("http://new:80", 5);
    ck_assert_ptr_null(find("http://new:80"));
    fake_clock_turn(1 * SL_NS_PER_S);
    add("http://new:80", 5);
    ck_assert_uint_eq(find("http://new:80")->bytes, 5);
    ck_assert_uint_eq(sum_of_bytes(), 3017);
    ck_assert_uint_eq(find("origin")->bytes, 7);
    fake_clock_release();
}

SL_TEST(who_did_worst_comes_first_after_the_origin)
{
    struct sl_supplied failed = gave("http://failed:80", 0), wrong = gave("http://wrong:80", 9);
    failed.failure = SL_SUPPLIER_SILENT;
    wrong.wrong = 1;
    add("http://a:80", 100);
    add("http://b:80", 1000);
    sl_suppliers_add(&set, &failed);
    sl_suppliers_add(&set, &wrong);
    add(NULL, 1);
    static const char *const order[] = {"origin", "http://wrong:80", "http://failed:80",
                                        "http://b:80", "http://a:80"};
    ck_assert_uint_eq(sl_suppliers_copy(&set, all, SL_SUPPLIERS_MAX), SL_COUNT(order));
    for (size_t i = 0; i < SL_COUNT(order); i++)
        ck_assert_str_eq(all[i].name, order[i]);
    char text[192];
    ck_assert_str_eq(sl_supplier_trouble(&all[1], text), "http://wrong:80 was left: wrong bytes");
    ck_assert_str_eq(sl_supplier_trouble(&all[2], text),
                     "http://failed:80 failed 1 time (it sent nothing)");
    ck_assert_str_eq(sl_supplier_trouble(&all[3], text), "");
}

SL_TEST(the_rate_is_over_the_time_that_it_was_asked_for)
{
    fake_clock_hold();
    struct sl_supplied supplied = gave("http://a:80", 100);
    supplied.began_ns = sl_now_ns();
    fake_clock_turn(2 * SL_NS_PER_S);
    sl_suppliers_add(&set, &supplied);
    supplied.began_ns = sl_now_ns();
    fake_clock_turn(2 * SL_NS_PER_S);
    sl_suppliers_add(&set, &supplied);
    ck_assert_double_eq(sl_supplier_rate(find("http://a:80")), 50);
    fake_clock_release();
}

/* ---- metrics --------------------------------------------------------------------------------- */

static char *written(int openmetrics)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_buf out = SL_BUF_INIT(1 << 20);
    ck_assert_msg(sl_metrics_write(&out, openmetrics, &err) == 0, "%s", err.message);
    return sl_buf_steal(&out, &err);
}

SL_TEST(nobody_who_gave_nothing_is_in_metrics)
{
    sl_autofree char *text = written(0);
    ck_assert_ptr_null(strstr(text, "{place="));
}

SL_TEST(names_cannot_break_a_line_nor_be_one_label_for_two)
{
    char hostile[300], other[300];
    memset(hostile, 'x', sizeof(hostile));
    memcpy(hostile, "a\"} 1\nevil{x=\"\\\xff", 16);
    hostile[299] = 0;
    memcpy(other, hostile, sizeof(other));
    other[298] = 'y';
    struct sl_supplied supplied = gave(hostile, 3);
    sl_progress_add_supplied(NULL, &supplied);
    supplied.name = other;
    sl_progress_add_supplied(NULL, &supplied);
    sl_autofree char *text = written(0);
    ck_assert_ptr_null(strstr(text, "\nevil"));
    const char *first = strstr(text, "sluice_source_place_bytes_total{place=\"a?}?1?evil{x=???"),
               *label = strchr(first, '"'), *end = strchr(label + 1, '"');
    ck_assert_uint_eq((size_t)(end - label - 1), SL_SUPPLIER_NAME_BYTES - 1);
    const char *second = strstr(end, "sluice_source_place_bytes_total{place=\"a?}");
    ck_assert_ptr_nonnull(second);
    ck_assert(strncmp(strchr(second, '"'), label, (size_t)(end - label)) != 0);
}

static void expect_promtool(const char *text)
{
    char name[] = "/tmp/sluice-metrics-XXXXXX";
    int fd = mkstemp(name);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    struct ran ran = {0};
    run_program(
        &ran, "/bin/sh",
        (const char *const[]){"-c", "exec /usr/bin/promtool check metrics <\"$0\"", name, NULL});
    ck_assert_str_eq(ran.err, "");
    ck_assert_str_eq(ran.out, "");
    ran_release(&ran);
    unlink(name);
}

SL_TEST(promtool_is_content_with_places)
{
    struct sl_supplied supplied = gave("http://10.0.0.1:80", 3);
    if (access("/usr/bin/promtool", X_OK) != 0)
        SL_SKIP("no /usr/bin/promtool");
    sl_progress_add_supplied(NULL, &supplied);
    supplied.failure = SL_SUPPLIER_BUSY;
    supplied.wrong = 1;
    sl_progress_add_supplied(NULL, &supplied);
    sl_autofree char *text = written(0), *open = written(1);
    ck_assert_ptr_nonnull(
        strstr(text, "\nsluice_source_place_bytes_total{place=\"http://10.0.0.1:80\"} 6\n"));
    ck_assert_ptr_nonnull(strstr(text, "\nsluice_source_place_failures_total{place=\"http://"
                                       "10.0.0.1:80\",kind=\"busy\"} 1\n"));
    ck_assert_ptr_nonnull(
        strstr(open, "\nsluice_source_place_wrong_total{place=\"http://10.0.0.1:80\"} 1\n"));
    ck_assert_ptr_nonnull(strstr(open, "# TYPE sluice_source_place_bytes counter\n"));
    expect_promtool(text);
}

SL_TEST(a_hidden_load_does_not_tell_its_caches)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_progress *hidden = sl_progress_new_hidden("m", "file:///x", &err);
    struct sl_supplied supplied = gave("http://secret:80", 3);
    sl_progress_add_supplied(hidden, &supplied);
    sl_autofree char *text = written(0);
    ck_assert_ptr_null(strstr(text, "secret"));
    ck_assert_ptr_nonnull(strstr(text, "sluice_source_place_bytes_total{place=\"others\"} 3\n"));
    ck_assert_uint_eq(sl_progress_suppliers(hidden, all, SL_SUPPLIERS_MAX), 1);
    ck_assert_str_eq(all[0].name, "http://secret:80");
    sl_progress_free(hidden);
}

static void note(void *arg, const char *text)
{
    snprintf(arg, 192, "%s", text);
}

SL_TEST(trouble_counts_for_ten_minutes)
{
    struct sl_supplied supplied = gave("http://a:80", 3), origin = gave(NULL, 0);
    char said[192] = "";
    fake_clock_hold();
    supplied.wrong = 1;
    origin.failure = SL_SUPPLIER_BUSY;
    sl_progress_add_supplied(NULL, &supplied);
    sl_progress_add_supplied(NULL, &origin);
    fake_clock_turn(599 * SL_NS_PER_S);
    sl_suppliers_each_degraded(note, said);
    ck_assert_str_eq(said, "http://a:80 was left: wrong bytes");
    said[0] = 0;
    fake_clock_turn(1 * SL_NS_PER_S);
    sl_suppliers_each_degraded(note, said);
    ck_assert_str_eq(said, "");
    fake_clock_release();
}

/* Figures of runs, and what the command line of bench says. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "bench_parts.h"
#include "claims.h"

static const uint64_t KIB = 1024, MIB = 1024 * 1024;

/* ---- figures -------------------------------------------------------------------------------- */

SL_TEST(best_median_and_worst_are_those_of_the_runs)
{
    struct sl_bench_sample samples[] = {{4, 2, 100}, {1, 8, 300}, {2, 4, 200}};
    struct sl_bench_point point = {.bytes = 2000000000};
    sl_bench_summarize(&point, samples, 3);
    ck_assert_uint_eq(point.runs, 3);
    ck_assert_double_eq(point.best, 2e9);
    ck_assert_double_eq(point.median, 1e9);
    ck_assert_double_eq(point.worst, 5e8);
    ck_assert_double_eq(point.cpu_seconds_per_gb, 2);
    ck_assert_uint_eq(point.peak_memory_bytes, 300);
    ck_assert_double_eq(sl_bench_spread(&point), 1.5);
}

SL_TEST(an_even_number_of_runs_takes_the_middle_two)
{
    struct sl_bench_sample samples[] = {{1, 1, 0}, {2, 3, 0}};
    struct sl_bench_point point = {.bytes = 1000000000};
    sl_bench_summarize(&point, samples, 2);
    ck_assert_double_eq(point.median, 7.5e8);
    ck_assert_double_eq(point.cpu_seconds_per_gb, 2);
}

SL_TEST(no_runs_are_no_figures)
{
    struct sl_bench_point point = {.bytes = 1};
    sl_bench_summarize(&point, NULL, 0);
    ck_assert_double_eq(point.median, 0);
    ck_assert_double_eq(sl_bench_spread(&point), 0);
    ck_assert_double_eq(sl_bench_median(NULL, 0), 0);
    struct sl_bench_result result = {.points = &point, .point_count = 1};
    ck_assert_ptr_null(sl_bench_best(&result, SL_BENCH_NETWORK));
    ck_assert_double_eq(sl_bench_share(&result, &point), 0);
}

SL_TEST(a_share_is_that_of_the_best_network)
{
    struct sl_bench_point points[] = {
        {.way = SL_BENCH_NETWORK, .range_bytes = 1, .connections = 1, .median = 2},
        {.way = SL_BENCH_NETWORK, .range_bytes = 2, .connections = 1, .median = 4},
        {.way = SL_BENCH_LOAD, .range_bytes = 1, .connections = 1, .median = 3},
        {.way = SL_BENCH_LOAD, .median = 1},
    };
    struct sl_bench_result result = {.points = points, .point_count = SL_COUNT(points)};
    ck_assert_double_eq(sl_bench_share(&result, &points[2]), 0.75);
    ck_assert_ptr_eq(sl_bench_headline(&result), &points[3]);
    points[3].median = 0; /* not measured: the best one stands in */
    ck_assert_ptr_eq(sl_bench_headline(&result), &points[2]);
    ck_assert_ptr_eq(sl_bench_find(&result, SL_BENCH_LOAD, 1, 1), &points[2]);
    ck_assert_ptr_null(sl_bench_find(&result, SL_BENCH_STORE, 1, 1));
}

SL_TEST(steps_of_an_axis_are_round)
{
    ck_assert_double_eq_tol(sl_bench_step(4.4), 1, 1e-9);
    ck_assert_double_eq_tol(sl_bench_step(6), 1, 1e-9);
    ck_assert_double_eq_tol(sl_bench_step(23), 5, 1e-9);
    ck_assert_double_eq_tol(sl_bench_step(0.9), 0.2, 1e-9);
    ck_assert_double_eq(sl_bench_step(0), 1);
    ck_assert_double_eq(sl_bench_step(-1), 1);
}

/* ---- lists ---------------------------------------------------------------------------------- */

SL_TEST(sizes_are_a_list_or_double)
{
    uint64_t items[SL_BENCH_LIST_MAX];
    size_t count;
    ck_assert_int_eq(sl_bench_parse_sizes("64KiB,1MiB,64Ki", items, &count, NULL), 0);
    ck_assert_uint_eq(count, 2); /* each once */
    ck_assert_uint_eq(items[0], 64 * KIB);
    ck_assert_uint_eq(items[1], MIB);
    ck_assert_int_eq(sl_bench_parse_sizes("256KiB..256MiB,5GiB", items, &count, NULL), 0);
    ck_assert_uint_eq(count, 12);
    ck_assert_uint_eq(items[10], 256 * MIB);
    ck_assert_uint_eq(items[11], 5 * 1024 * MIB);
    ck_assert_int_eq(sl_bench_parse_sizes("3MiB..10MiB", items, &count, NULL), 0);
    ck_assert_uint_eq(count, 2); /* 3 and 6 */
}

static const char *const bad_sizes[] = {
    "",
    "auto",
    "63KiB",
    "6GiB",
    "1MiB,,2MiB",
    "2MiB..1MiB",
    "1MiB..",
    "..1MiB",
    "1MiB...2MiB",
    "1e9",
    "-1MiB",
    "1MiB;2MiB",
    "99999999999999999999999999999999999999999999999999999999999999999999999999999999999GiB",
};

SL_TEST_LOOP(a_bad_size_is_named_with_what_is_expected, 0, (int)SL_COUNT(bad_sizes))
{
    uint64_t items[SL_BENCH_LIST_MAX];
    size_t count;
    struct sl_err err = SL_ERR_INIT;

    ck_assert_int_eq(sl_bench_parse_sizes(bad_sizes[_i], items, &count, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "--range-bytes"));
}

SL_TEST(counts_are_within_their_bounds)
{
    uint32_t items[SL_BENCH_LIST_MAX];
    size_t count;
    ck_assert_int_eq(sl_bench_parse_counts("1..256", items, &count, NULL), 0);
    ck_assert_uint_eq(count, 9);
    ck_assert_uint_eq(items[8], 256);
    static const char *const bad[] = {"", "0", "257", "x", "1..300", "4..2", "1.5", "+1", " 1"};
    for (size_t i = 0; i < SL_COUNT(bad); i++)
        ck_assert_int_eq(sl_bench_parse_counts(bad[i], items, &count, NULL), -1);
}

SL_TEST(a_list_has_a_limit)
{
    uint32_t items[SL_BENCH_LIST_MAX];
    size_t count;
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf text = SL_BUF_INIT(1024);
    for (unsigned i = 1; i <= SL_BENCH_LIST_MAX + 1; i++)
        sl_buf_printf(&text, NULL, "%u,", i);
    ck_assert_int_eq(sl_bench_parse_counts(sl_buf_string(&text), items, &count, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "at most 32"));
}

SL_TEST(ways_are_named)
{
    bool ways[SL_BENCH_WAY_COUNT];
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_bench_parse_ways("load,network", ways, NULL), 0);
    ck_assert(ways[SL_BENCH_LOAD] && ways[SL_BENCH_NETWORK] && !ways[SL_BENCH_STORE]);
    ck_assert_int_eq(sl_bench_parse_ways("memory", ways, NULL), 0);
    ck_assert(ways[SL_BENCH_MEMORY] && !ways[SL_BENCH_LOAD]);
    ck_assert_int_eq(sl_bench_parse_ways("load,peer", ways, &err), -1);
    ck_assert_int_eq(sl_bench_parse_ways("net", ways, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "'net'"));
}

/* ---- when ----------------------------------------------------------------------------------- */

SL_TEST(a_start_is_after_or_at_a_time_or_at_a_full_multiple)
{
    double start, now = 1795235462.5; /* 2026-11-21T04:31:02.5Z */
    ck_assert_int_eq(sl_bench_parse_start("+30", now, &start, NULL), 0);
    ck_assert_double_eq(start, now + 30);
    ck_assert_int_eq(sl_bench_parse_start("/120", now, &start, NULL), 0);
    ck_assert_double_eq(start, 1795235520); /* 04:32:00 */
    ck_assert_int_eq(sl_bench_parse_start("2026-11-21T04:31:30Z", now, &start, NULL), 0);
    ck_assert_double_eq(start, 1795235490);
    ck_assert_int_eq(sl_bench_parse_start("2020-01-01T00:00:00Z", now, &start, NULL), 0);
    ck_assert(start < now);
}

SL_TEST(a_start_that_is_none_is_refused)
{
    static const char *const bad[] = {"",
                                      "+",
                                      "/",
                                      "/0",
                                      "30",
                                      "+1h",
                                      "+-3",
                                      "+99999999",
                                      "now",
                                      "12:00",
                                      "2026-11-21",
                                      "2026-11-21T04:31:30",
                                      "2026-11-21T04:31:30Zx",
                                      "2027-11-21T04:31:30Z"};
    double start;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_msg(sl_bench_parse_start(bad[i], 1795235462, &start, &err) < 0, "%s", bad[i]);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
    }
}

/* ---- peers ---------------------------------------------------------------------------------- */

static void expect_arguments(const char *peer, const struct sl_bench_target *target,
                             const char *expected)
{
    struct sl_bench_arguments arguments = {0};
    sl_autobuf text = SL_BUF_INIT(4096);
    ck_assert_int_eq(sl_bench_peer_arguments(sl_bench_peer_find(peer), target, &arguments, NULL),
                     0);
    for (size_t i = 0; i < arguments.count; i++)
        sl_buf_printf(&text, NULL, "%s%s", i ? "|" : "", arguments.items[i]);
    ck_assert_ptr_null(arguments.items[arguments.count]);
    sl_bench_arguments_release(&arguments);
    ck_assert_str_eq(sl_buf_string(&text), expected);
}

SL_TEST(a_peer_gets_an_argument_vector)
{
    struct sl_bench_target one = {.uri = "http://h:80/a/m.tensors",
                                  .kind = "http",
                                  .endpoint = "",
                                  .objects = 1,
                                  .name = "m.tensors",
                                  .directory = "/d"};
    expect_arguments("curl", &one, "curl|-sSf|-o|/d/object|http://h:80/a/m.tensors");
    expect_arguments("rclone", &one,
                     "rclone|copyto|:http:a/m.tensors|/d/object|--multi-thread-streams|4|"
                     "--multi-thread-cutoff|10M|--transfers|8|--checkers|8|--http-url|http://h:80|"
                     "--s3-provider|Other|--s3-env-auth|--s3-force-path-style");
    one.uri = "s3://b/k; rm -rf $HOME";
    one.kind = "s3";
    one.endpoint = "http://e:1";
    expect_arguments("s5cmd", &one,
                     "s5cmd|--endpoint-url|http://e:1|cp|s3://b/k; rm -rf $HOME|/d/object");
    one.anonymous = true;
    one.endpoint = "";
    one.objects = 3;
    one.folder = true;
    one.uri = "s3://b/p/";
    expect_arguments("s5cmd", &one, "s5cmd|--no-sign-request|cp|s3://b/p/*|/d/");
    expect_arguments("aws", &one,
                     "aws|--no-sign-request|s3|cp|--only-show-errors|--recursive|s3://b/p/|/d");
}

SL_TEST(a_peer_that_cannot_bring_the_model_says_why)
{
    struct sl_bench_target target = {.uri = "http://h/m?sig=1",
                                     .kind = "http",
                                     .endpoint = "",
                                     .objects = 1,
                                     .name = "m",
                                     .directory = "/d"};
    const struct sl_bench_peer *curl = sl_bench_peer_find("curl");
    ck_assert_ptr_nonnull(strstr(sl_bench_peer_unfit(curl, &target), "secret"));
    target.uri = "http://user:word@h/m";
    ck_assert_ptr_nonnull(strstr(sl_bench_peer_unfit(curl, &target), "secret"));
    target.uri = "http://h/m";
    target.folder = true;
    ck_assert_str_eq(sl_bench_peer_unfit(curl, &target), "it takes one object");
    target.folder = false;
    target.objects = 2; /* an index */
    ck_assert_str_eq(sl_bench_peer_unfit(curl, &target), "it has no way to name the objects");
    target.objects = 1;
    target.chosen = true;
    ck_assert_str_eq(sl_bench_peer_unfit(curl, &target), "it has no way to name the objects");
    target.chosen = false;
    ck_assert_str_eq(sl_bench_peer_unfit(sl_bench_peer_find("tensorizer"), &target),
                     "it takes .tensors files");
    ck_assert_str_eq(sl_bench_peer_unfit(sl_bench_peer_find("s5cmd"), &target),
                     "it does not read from there");
    setenv("PATH", "/nonexistent", 1);
    ck_assert_ptr_nonnull(strstr(sl_bench_peer_unfit(curl, &target), "PATH"));
    ck_assert_ptr_null(sl_bench_peer_find("perl"));
}

/* ---- other programs ------------------------------------------------------------------------- */

static int run_shell(const char *script, uint64_t seconds, struct sl_bench_sample *sample,
                     struct sl_err *err)
{
    char program[] = "sh", flag[] = "-c";
    char *const argv[] = {program, flag, (char *)(uintptr_t)script, NULL};
    const struct sl_bench_child child = {argv, seconds, NULL};
    *sample = (struct sl_bench_sample){0};
    return sl_bench_child_run(&child, sample, err);
}

SL_TEST(a_program_that_ends_well_is_measured)
{
    struct sl_bench_sample sample;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(run_shell("read x; test -z \"$x\"", 3600, &sample, &err) == 0, "%s", err.message);
    ck_assert_double_gt(sample.seconds, 0);
    ck_assert_double_lt(sample.seconds, 3600);
}

SL_TEST(a_program_that_fails_is_told_by_its_last_line)
{
    struct sl_bench_sample sample;
    struct sl_err err = SL_ERR_INIT;
    const char *script = "i=0; while [ $i -lt 2000 ]; do echo noise $i >&2; i=$((i+1)); done; "
                         "echo 'no such bucket' >&2; exit 3";
    ck_assert_int_eq(run_shell(script, 20, &sample, &err), -1);
    ck_assert_str_eq(err.message, "'sh' ended with 3: no such bucket");
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(run_shell("kill -9 $$", 20, &sample, &err), -1);
    ck_assert_str_eq(err.message, "'sh' was ended by signal 9");
}

SL_TEST(a_program_that_takes_too_long_is_ended_with_its_children)
{
    struct sl_bench_sample sample;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(run_shell("sleep 3600 & sleep 3600; exit 0", 1, &sample, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_TIMEOUT);
}

SL_TEST(a_program_that_is_not_there_is_named)
{
    char name[] = "no-such-program-of-sluice";
    char *const argv[] = {name, NULL};
    if (!sl_missing_program_is_told())
        SL_SKIP("an emulated process is not told that a program is missing");
    const struct sl_bench_child child = {argv, 1, NULL};
    struct sl_bench_sample sample;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_bench_child_run(&child, &sample, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.message, name));
    ck_assert(sl_bench_program_found("sh"));
    ck_assert(!sl_bench_program_found(name));
}

/* Results out of logs, which anybody may have written into. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "bench_maker.h"
#include "bench_parts.h"
#include "claims.h"
#include "log.h"
#include "scratch.h"

static struct sl_bench_results nodes, got;
static struct sl_buf lines[2];

static void make_line(struct sl_buf *line, const struct sl_bench_result *result)
{
    struct sl_json json;
    *line = (struct sl_buf)SL_BUF_INIT(1 << 20);
    sl_json_init(&json, 1 << 20);
    sl_bench_json(&json, result);
    ck_assert_int_eq(sl_buf_text(line, sl_json_text(&json, NULL), NULL), 0);
    sl_json_release(&json);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    sl_bench_sample_nodes(&nodes, 2);
    make_line(&lines[0], &nodes.items[0]);
    make_line(&lines[1], &nodes.items[1]);
    got = (struct sl_bench_results){0};
}

static void teardown(void)
{
    sl_bench_results_release(&nodes);
    sl_bench_results_release(&got);
    sl_buf_release(&lines[0]);
    sl_buf_release(&lines[1]);
}

static void gather(const char *text, size_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_bench_gather(&got, "log", text, bytes, &err) == 0, "%s", err.message);
}

SL_TEST(results_are_found_among_log_lines)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    sl_buf_printf(&text, NULL,
                  "{\"level\":\"info\",\"message\":\"round 1 of 5\"}\n"
                  "[pod/sluice-benchmark-nodes-0-abcde] %s\n\n"
                  "2026-11-21T04:31:02.1Z stdout F %s\r\nlast line without end",
                  sl_buf_string(&lines[0]), sl_buf_string(&lines[1]));
    gather(text.data, text.used);
    ck_assert_uint_eq(got.count, 2);
    ck_assert_uint_eq(got.wrong_lines, 0);
    ck_assert_str_eq(got.items[1].facts.node, "worker-1");
    ck_assert_uint_eq(got.items[1].facts.index, 1);
    ck_assert_uint_eq(got.items[0].point_count, 4);
}

SL_TEST(every_prefix_of_a_result_is_a_wrong_line)
{
    const char *line = sl_buf_string(&lines[0]);
    for (size_t bytes = strlen(SL_BENCH_MARKER); bytes < strlen(line); bytes++)
        gather(line, bytes);
    ck_assert_uint_eq(got.count, 0);
    ck_assert_uint_eq(got.wrong_lines, strlen(line) - strlen(SL_BENCH_MARKER));
}

SL_TEST(bytes_of_a_result_may_be_anything)
{
    sl_autofree char *line = sl_strdup(sl_buf_string(&lines[0]), NULL);
    size_t bytes = strlen(line);
    for (size_t at = strlen(SL_BENCH_MARKER); at < bytes; at++)
        for (int value = 0; value < 256; value += 51) {
            char was = line[at];
            line[at] = (char)value;
            gather(line, bytes);
            line[at] = was;
            ck_assert_uint_le(got.count, bytes * 6);
            sl_bench_results_release(&got);
        }
}

/* One member of a good line replaced. */
static const struct {
    const char *from, *to;
} changes[] = {
    {"\"sluice_bench\":1", "\"sluice_bench\":2"},
    {"\"sluice_bench\":1", "\"sluice_bench\":\"1\""},
    {"\"node\":\"worker-0\"", "\"node\":7"},
    {"\"node\":\"worker-0\"", "\"other\":\"worker-0\""},
    {"\"node\":\"worker-0\"", "\"node\":\"a\\u0000b\""},
    {"\"index\":0", "\"index\":-1"},
    {"\"cpus\":8", "\"cpus\":-8"},
    {"\"cpus\":8", "\"cpus\":99999999999"},
    {"\"cpus\":8", "\"cpus\":1e3"},
    {"\"seconds\":61.5", "\"seconds\":-1"},
    {"\"seconds\":61.5", "\"seconds\":1e300"},
    {"\"way\":\"load\"", "\"way\":\"lood\""},
    {"\"way\":\"load\"", "\"way\":null"},
    {"\"runs\":5", "\"runs\":5.5"},
    {"\"median_bytes_per_second\":2e+09", "\"median_bytes_per_second\":1e400"},
    {"\"median_bytes_per_second\":2e+09", "\"median_bytes_per_second\":-2e+09"},
    {"\"points\":[", "\"points\":[7,"},
    {"\"points\":[", "\"points\":{},\"more\":["},
    {"\"points\":[", "\"points\":7,\"more\":["},
    {"\"node\":\"worker-0\"", "\"node\":\"worker-0\",\"node\":\"worker-1\""},
};

SL_TEST_LOOP(a_member_that_is_wrong_is_refused, 0, (int)SL_COUNT(changes))
{
    const char *line = sl_buf_string(&lines[0]);
    const char *at = strstr(line, changes[_i].from);
    ck_assert_msg(at != NULL, "%s", changes[_i].from);
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    sl_buf_printf(&text, NULL, "%.*s%s%s", (int)(at - line), line, changes[_i].to,
                  at + strlen(changes[_i].from));
    gather(text.data, text.used);
    ck_assert_uint_eq(got.count, 0);
    ck_assert_uint_eq(got.wrong_lines, 1);
}

SL_TEST(a_name_of_any_length_stays_in_its_place)
{
    struct sl_bench_result result = {0};
    struct sl_err err = SL_ERR_INIT;
    const char *line = sl_buf_string(&lines[0]), *at = strstr(line, "worker-0");
    for (int length = 126; length < 130; length++) {
        sl_autobuf text = SL_BUF_INIT(1 << 20);
        char name[256] = "";
        memset(name, 'n', (size_t)length);
        sl_buf_printf(&text, NULL, "%.*s%s%s", (int)(at - line), line, name, at + 8);
        int done = sl_bench_json_read(text.data, text.used, &result, &err);
        ck_assert_int_eq(done, length < SL_BENCH_NAME_MAX ? 0 : -1);
        free(result.points);
        result = (struct sl_bench_result){0};
    }
    ck_assert_ptr_nonnull(strstr(err.message, "'node'"));
}

SL_TEST(what_would_change_a_terminal_is_replaced)
{
    const char *line = sl_buf_string(&lines[0]), *at = strstr(line, "worker-0");
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    sl_buf_printf(&text, NULL, "%.*s\\u001b[31m%s", (int)(at - line), line, at + 8);
    gather(text.data, text.used);
    ck_assert_uint_eq(got.count, 1);
    ck_assert_str_eq(got.items[0].facts.node, "?[31m");
}

SL_TEST(the_same_result_counts_once)
{
    gather(lines[0].data, lines[0].used);
    gather(lines[0].data, lines[0].used);
    ck_assert_uint_eq(got.count, 1);
    ck_assert_uint_eq(got.wrong_lines, 1);
}

SL_TEST(nodes_that_did_not_run_together_are_told)
{
    gather(lines[0].data, lines[0].used);
    gather(lines[1].data, lines[1].used);
    ck_assert_double_eq(sl_bench_overlap(&got), 60.5);
    got.items[1].started_at += 1000;
    ck_assert_double_eq(sl_bench_overlap(&got), 0);
    char text[64];
    ck_assert_str_eq(sl_bench_overlap_text(&got, text), "they did not all run at once");
}

SL_TEST(files_folders_and_absent_ones)
{
    char scratch[SL_SCRATCH_PATH_BYTES], path[512];
    int fd = sl_scratch_open(scratch);
    struct sl_err err = SL_ERR_INIT;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "node%d.log", i);
        int file = openat(fd, path, O_WRONLY | O_CREAT, 0600);
        ck_assert_int_eq(write(file, lines[i].data, lines[i].used), (ssize_t)lines[i].used);
        close(file);
    }
    ck_assert_int_eq(mkdirat(fd, "folder", 0700), 0);
    ck_assert_msg(sl_bench_gather_path(&got, scratch, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(got.count, 2);
    snprintf(path, sizeof(path), "%s/none", scratch);
    ck_assert_int_eq(sl_bench_gather_path(&got, path, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    sl_scratch_close(fd, scratch);
}

SL_TEST(every_failing_allocation_is_told)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    sl_buf_printf(&text, NULL, "%s\n%s\n", sl_buf_string(&lines[0]), sl_buf_string(&lines[1]));
    for (unsigned nth = 1;; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int done = sl_bench_gather(&got, "log", text.data, text.used, &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        sl_bench_results_release(&got);
        if (!reached)
            break;
        ck_assert_int_eq(done, -1);
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
}

SL_CASE(.setup = setup, .teardown = teardown)

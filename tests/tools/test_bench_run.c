/* Runs against a server that may misbehave: figures are of the right bytes or there are none, and
 * nothing stays behind. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "bench_parts.h"
#include "claims.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"

enum { MODEL_BYTES = 1000000 };

static struct sl_server *server;
static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct sl_specs specs;
static struct sl_plan *plan;
static struct sl_bench_config config;
static struct sl_bench_result result;

static void open_plan(const char *uri, const char *more)
{
    struct sl_source_config source;
    struct sl_err err = SL_ERR_INIT;
    sl_model_spec(&specs, uri, scratch, more);
    sl_spec_source_config(&specs.items[0], NULL, NULL, &source);
    const struct sl_plan_output wanted = sl_plan_output_of_spec(&specs.items[0]);
    ck_assert_msg(sl_plan_make(&specs.items[0], &wanted, &source, &plan, &err) == 0, "%s",
                  err.message);
}

static void setup(void)
{
    uint8_t *noise = sl_model_noise(MODEL_BYTES, 1);
    sl_log_setup(SL_LOG_ERROR, false);
    server = sl_server_start();
    sl_server_put(server, "/m.bin", noise, MODEL_BYTES, "\"v1\"");
    free(noise);
    scratch_fd = sl_scratch_open(scratch);
    open_plan(sl_server_url(server, "/m.bin"), "readers: {attempts: 2, stallSeconds: 1}\n");
    config = (struct sl_bench_config){
        .range_bytes = {65536, 262144},
        .connections = {1, 3},
        .range_count = 2,
        .connection_count = 2,
        .ways = {true, true, true},
        .rounds = 2,
        .warmups = 1,
        .to = scratch,
        .peers = "none",
        .peer_seconds = 20,
    };
    result = (struct sl_bench_result){0};
}

static void teardown(void)
{
    sl_plan_free(plan);
    plan = NULL;
    sl_specs_release(&specs);
    free(result.points);
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
}

static bool is_empty(const char *path)
{
    DIR *folder = opendir(path);
    ck_assert_ptr_nonnull(folder);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count == 0;
}

static int network(unsigned connections, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_bench_network(&specs.items[0], plan, 65536, connections, 0, NULL, err);
}

/* ---- the network ---------------------------------------------------------------------------- */

SL_TEST(every_byte_is_asked_for_once)
{
    struct sl_err err;
    unsigned before = sl_server_request_count(server);
    ck_assert_msg(network(3, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(server) - before, (MODEL_BYTES + 65535) / 65536);
    char range[64];
    ck_assert(sl_server_header(sl_server_request_at(server, before + 15), "Range", range, 64));
    uint64_t sum = 0;
    for (unsigned i = before; i < sl_server_request_count(server); i++) {
        unsigned long long begin, end;
        sl_server_header(sl_server_request_at(server, i), "Range", range, sizeof(range));
        ck_assert_int_eq(sscanf(range, "bytes=%llu-%llu", &begin, &end), 2);
        sum += end - begin + 1;
    }
    ck_assert_uint_eq(sum, MODEL_BYTES);
}

SL_TEST(a_limit_of_bytes_is_kept)
{
    struct sl_err err = SL_ERR_INIT;
    unsigned before = sl_server_request_count(server);
    ck_assert_int_eq(sl_bench_network(&specs.items[0], plan, 65536, 2, 100000, NULL, &err), 0);
    ck_assert_int_eq(sl_bench_store(plan, 65536, 2, 100000, &err), 0);
    ck_assert_uint_eq(sl_server_request_count(server) - before, 4);
}

SL_TEST(a_server_that_closes_is_connected_to_again)
{
    struct sl_err err;
    static const enum sl_fault faults[] = {SL_FAULT_CLOSE, SL_FAULT_DROP_AFTER};
    for (size_t i = 0; i < SL_COUNT(faults); i++) {
        SL_SCRIPT(server, {.path = "/m.bin", .fault = faults[i]});
        ck_assert_msg(network(2, &err) == 0, "%zu: %s", i, err.message);
    }
}

static const struct {
    struct sl_step step;
    const char *says;
} faults[] = {
    {{.fault = SL_FAULT_WHOLE}, "status 200"},
    {{.fault = SL_FAULT_LONG}, "length"},
    {{.fault = SL_FAULT_CHUNKED}, "length"},
    {{.fault = SL_FAULT_UNTIL_CLOSE}, "length"},
    {{.fault = SL_FAULT_SHORT, .after = 10}, "closed the connection early"},
    {{.fault = SL_FAULT_SHORT, .after = -1}, "closed the connection early"},
    {{.fault = SL_FAULT_STATUS, .status = 503}, "status 503"},
    {{.fault = SL_FAULT_STATUS, .status = 404}, "status 404"},
    {{.fault = SL_FAULT_HEAD, .text = "SSH-2.0-OpenSSH_9.2\r\n\r\n"}, "not HTTP/1.1"},
    {{.fault = SL_FAULT_HEAD, .text = "HTTP/1.1 206 OK\r\nContent-Length: x\r\n\r\n"}, "length"},
    {{.fault = SL_FAULT_HEAD, .text = "HTTP/1.1 206 OK\r\n\r\n"}, "length"},
};

SL_TEST_LOOP(an_answer_of_other_bytes_is_no_measure, 0, (int)SL_COUNT(faults))
{
    struct sl_err err;
    SL_SCRIPT(server, {.path = "/m.bin",
                       .fault = faults[_i].step.fault,
                       .after = faults[_i].step.after,
                       .status = faults[_i].step.status,
                       .text = faults[_i].step.text});
    ck_assert_int_eq(network(2, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_msg(strstr(err.message, faults[_i].says) != NULL, "%s", err.message);
}

SL_TEST(cancellation_ends_a_stalled_network)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(&err);
    SL_SCRIPT(server, {.path = "/m.bin", .fault = SL_FAULT_STALL, .after = 10});
    sl_cancel_raise(cancel, SIGTERM);
    ck_assert_int_eq(sl_bench_network(&specs.items[0], plan, 65536, 2, 0, cancel, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_cancel_free(cancel);
}

/* ---- the sweep ------------------------------------------------------------------------------ */

SL_TEST(a_sweep_measures_every_setting_and_leaves_nothing)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_bench_run(&specs.items[0], &config, NULL, &result, &err) == 0, "%s",
                  err.message);
    ck_assert_uint_eq(result.point_count, 1 + 2 * 2 * 3);
    for (size_t i = 0; i < result.point_count; i++) {
        const struct sl_bench_point *point = &result.points[i];
        ck_assert_uint_eq(point->runs, 2);
        ck_assert_uint_eq(point->bytes, MODEL_BYTES);
        ck_assert(point->best >= point->median && point->median >= point->worst);
        ck_assert_double_gt(point->worst, 0);
    }
    ck_assert_uint_eq(result.objects, 1);
    ck_assert_uint_eq(result.bytes, MODEL_BYTES);
    ck_assert_double_gt(result.facts.cpus, 0);
    ck_assert(is_empty(scratch));
}

SL_TEST(memory_that_is_there_is_filled_and_checked)
{
    struct sl_err err = SL_ERR_INIT;
    memset(config.ways, 0, sizeof(config.ways));
    config.ways[SL_BENCH_MEMORY] = true;
    ck_assert_msg(sl_bench_run(&specs.items[0], &config, NULL, &result, &err) == 0, "%s",
                  err.message);
    ck_assert_uint_eq(result.point_count, 1); /* whatever is swept: as it comes */
    ck_assert_uint_eq(result.points[0].runs, 2);
    ck_assert_uint_eq(result.points[0].bytes, MODEL_BYTES);
    ck_assert_double_gt(result.points[0].median, 0);
    ck_assert(is_empty(scratch));
    sl_plan_free(plan);
    plan = NULL;
    sl_specs_release(&specs);
    sl_model_spec(&specs, sl_server_url(server, "/m.bin"), scratch,
                  "verify: {sha256: {m.bin: '"
                  "0123456789012345678901234567890123456789012345678901234567890123'}}\n");
    ck_assert_int_eq(sl_bench_run(&specs.items[0], &config, NULL, &result, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
}

SL_TEST(a_failing_load_ends_it_and_leaves_nothing)
{
    struct sl_err err = SL_ERR_INIT;
    unsigned made = sl_server_request_count(server);
    SL_SCRIPT(server, {.path = "/m.bin",
                       .first = made + 4,
                       .last = 100000,
                       .fault = SL_FAULT_STATUS,
                       .status = 403});
    config.ways[SL_BENCH_NETWORK] = config.ways[SL_BENCH_STORE] = false;
    ck_assert_int_eq(sl_bench_run(&specs.items[0], &config, NULL, &result, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    ck_assert_ptr_nonnull(strstr(err.message, "benchmark of sluice"));
    ck_assert(is_empty(scratch));
}

SL_TEST(a_folder_of_a_killed_benchmark_is_taken_over)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(mkdirat(scratch_fd, "sluice-bench", 0700), 0);
    ck_assert_int_eq(mkdirat(scratch_fd, "sluice-bench/run", 0700), 0);
    close(openat(scratch_fd, "sluice-bench/run/model", O_CREAT | O_WRONLY, 0400));
    config.rounds = 1;
    config.warmups = 0;
    ck_assert_msg(sl_bench_run(&specs.items[0], &config, NULL, &result, &err) == 0, "%s",
                  err.message);
    ck_assert(is_empty(scratch));
}

SL_TEST(a_place_in_use_or_not_ours_is_refused)
{
    struct sl_bench_place place, second;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_bench_place_open(&place, scratch, "sluice-bench", &err), 0);
    ck_assert_int_eq(sl_bench_place_open(&second, scratch, "sluice-bench", &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "another benchmark"));
    sl_bench_place_close(&second);
    ck_assert(!is_empty(scratch)); /* the first one's folder is still there */
    sl_bench_place_close(&place);
    ck_assert(is_empty(scratch));
    ck_assert_int_eq(symlinkat("/etc", scratch_fd, "sluice-bench"), 0);
    ck_assert_int_eq(sl_bench_place_open(&place, scratch, "sluice-bench", &err), -1);
    sl_bench_place_close(&place);
    ck_assert_int_eq(sl_bench_place_open(&place, "/nonexistent/x", "sluice-bench", &err), -1);
    ck_assert_ptr_nonnull(strstr(err.message, "--to DIR"));
    sl_bench_place_close(&place);
}

SL_TEST(a_local_model_has_no_network)
{
    struct sl_err err = SL_ERR_INIT;
    char path[512];
    int fd = openat(scratch_fd, "local.bin", O_CREAT | O_WRONLY, 0600);
    uint8_t *noise = sl_model_noise(100000, 2);
    ck_assert_int_eq(write(fd, noise, 100000), 100000);
    free(noise);
    close(fd);
    snprintf(path, sizeof(path), "%s/local.bin", scratch);
    sl_plan_free(plan);
    plan = NULL;
    sl_specs_release(&specs);
    sl_model_spec(&specs, path, scratch, "");
    ck_assert_int_eq(mkdirat(scratch_fd, "to", 0700), 0);
    char to[512];
    snprintf(to, sizeof(to), "%s/to", scratch);
    config.to = to;
    config.peers = "cp,curl";
    ck_assert_msg(sl_bench_run(&specs.items[0], &config, NULL, &result, &err) == 0, "%s",
                  err.message);
    ck_assert_ptr_null(sl_bench_best(&result, SL_BENCH_NETWORK));
    ck_assert_ptr_nonnull(sl_bench_best(&result, SL_BENCH_STORE));
    ck_assert_ptr_nonnull(sl_bench_best(&result, SL_BENCH_PEER));
    ck_assert_str_eq(sl_bench_best(&result, SL_BENCH_PEER)->client, "cp");
    const struct sl_bench_point *curl = &result.points[result.point_count - 1];
    ck_assert_str_eq(curl->why, "it does not read from there");
    ck_assert_uint_eq(curl->runs, 0);
}

SL_TEST(an_unknown_peer_is_refused)
{
    struct sl_err err = SL_ERR_INIT;
    config.peers = "curl,perl";
    ck_assert_int_eq(sl_bench_run(&specs.items[0], &config, NULL, &result, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "'perl'"));
}

SL_TEST(a_failing_peer_is_noted_and_the_rest_goes_on)
{
    struct sl_err err = SL_ERR_INIT;
    char path[600];
    int fd = openat(scratch_fd, "curl", O_CREAT | O_WRONLY, 0700);
    const char script[] = "#!/bin/sh\necho 'no luck' >&2\nexit 7\n";
    ck_assert_int_eq(write(fd, script, sizeof(script) - 1), (ssize_t)sizeof(script) - 1);
    close(fd);
    snprintf(path, sizeof(path), "%s:%s", scratch, getenv("PATH"));
    setenv("PATH", path, 1);
    config.peers = "curl";
    ck_assert_msg(sl_bench_run(&specs.items[0], &config, NULL, &result, &err) == 0, "%s",
                  err.message);
    const struct sl_bench_point *curl = &result.points[result.point_count - 1];
    ck_assert_uint_eq(curl->failed, 2); /* and is not tried for ever */
    ck_assert_str_eq(curl->why, "'curl' ended with 7: no luck");
    ck_assert_double_gt(sl_bench_best(&result, SL_BENCH_LOAD)->median, 0);
}

SL_TEST(a_peer_that_brings_too_little_is_not_measured)
{
    struct sl_err err = SL_ERR_INIT;
    char path[600];
    int fd = openat(scratch_fd, "wget", O_CREAT | O_WRONLY, 0700);
    const char script[] = "#!/bin/sh\nhead -c 500000 /dev/zero > \"$3\"\n";
    ck_assert_int_eq(write(fd, script, sizeof(script) - 1), (ssize_t)sizeof(script) - 1);
    close(fd);
    snprintf(path, sizeof(path), "%s:%s", scratch, getenv("PATH"));
    setenv("PATH", path, 1);
    config.peers = "wget";
    ck_assert_msg(sl_bench_run(&specs.items[0], &config, NULL, &result, &err) == 0, "%s",
                  err.message);
    const struct sl_bench_point *wget = &result.points[result.point_count - 1];
    ck_assert_uint_eq(wget->runs, 0);
    ck_assert_ptr_nonnull(strstr(wget->why, "bytes, not 1000000"));
}

SL_TEST(every_failing_allocation_ends_it_in_order)
{
    config.rounds = 1;
    config.warmups = 0;
    config.range_count = config.connection_count = 1;
    config.ways[SL_BENCH_MEMORY] = true;
    unsigned step = 1;
    for (unsigned nth = 1;; nth += step) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_bench_result one = {0};
        sl_alloc_fail_at(nth);
        int done = sl_bench_run(&specs.items[0], &config, NULL, &one, &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        free(one.points);
        ck_assert(is_empty(scratch));
        if (!reached)
            break;
        ck_assert_msg(done == 0 || err.kind != SL_OK, "%u", nth);
        step = 1 + nth / 6; /* the loads' own are tested elsewhere */
    }
}

/* ---- loopback ------------------------------------------------------------------------------- */

SL_TEST(a_synthetic_model_is_served_and_verified)
{
    struct sl_err err = SL_ERR_INIT;
    const char *program = getenv("SLUICE");
    ck_assert_ptr_nonnull(program);
    struct sl_bench_loopback *loopback =
        sl_bench_loopback_start(program, scratch, 9000000, NULL, &err);
    ck_assert_msg(loopback != NULL, "%s", err.message);
    sl_plan_free(plan);
    plan = NULL;
    sl_specs_release(&specs);
    open_plan(sl_bench_loopback_uri(loopback), "verify: {hashes: require}\n");
    ck_assert_uint_ge(plan->fetch_bytes - plan->unhashed_bytes, 8900000); /* all of the tensors */
    config.rounds = 1;
    ck_assert_msg(sl_bench_run(&specs.items[0], &config, NULL, &result, &err) == 0, "%s",
                  err.message);
    sl_bench_loopback_free(loopback);
    ck_assert(is_empty(scratch));
}

SL_TEST(a_server_that_does_not_start_is_told)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_ptr_null(sl_bench_loopback_start("/bin/false", scratch, 1000000, NULL, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "did not start"));
    ck_assert(is_empty(scratch));
}

SL_CASE(.setup = setup, .teardown = teardown)

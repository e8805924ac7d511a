/* What a load that is broken off, or killed, keeps of ranges that have not come to their end. */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "await.h"
#include "buf.h"
#include "claims.h"
#include "fake_clock.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "publish.h"
#include "range_server.h"
#include "run_sluice.h"
#include "scratch.h"
#include "skip.h"

enum {
    MIB = 1024 * 1024,
    RANGES = 8,
    BYTES = RANGES * MIB,
    CAME = 200 * 1024,    /* of each range, less than a window */
    OPENING = 128 * 1024, /* what a load asks for to see what there is */
};
static const char usual[] = "readers: {rangeBytes: 1Mi, connections: 8}\n";

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static struct sl_cancel *cancel;
static uint8_t *noise;

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    server = sl_server_start();
    cancel = sl_cancel_new(&err);
    noise = sl_model_noise(BYTES, 6);
    sl_server_put(server, "/m/weights.bin", noise, BYTES, "\"one\"");
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_cancel_free(cancel);
    free(noise);
    sl_scratch_close(scratch_fd, scratch);
}

/* Every answer stops after so many bytes; the first request asks what there is. */
static void stop_answers_after(int64_t bytes)
{
    SL_SCRIPT(server, {.path = "/m/weights.bin",
                       .first = sl_server_request_count(server) + 2,
                       .last = 1000000,
                       .fault = SL_FAULT_STALL,
                       .after = bytes});
}

static int load(struct sl_load_result *result, struct sl_err *err)
{
    struct sl_specs specs;
    *err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, sl_server_url(server, "/m/weights.bin"), path, usual);
    int done = sl_load_run(&specs.items[0], cancel, NULL, result, err);
    sl_specs_release(&specs);
    return done;
}

/* It asks for no byte that was kept. */
static void expect_the_rest(uint64_t kept)
{
    struct sl_load_result result;
    struct sl_err err;
    sl_server_script(server, NULL, 0);
    ck_assert_msg(load(&result, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(result.resumed, kept);
    ck_assert_uint_eq(result.fetched, OPENING + BYTES - kept);
    ck_assert(sl_model_same(path, "weights.bin", noise, BYTES));
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, NULL), 0);
}

/* Bytes that the journal vouches for. */
static uint64_t journalled(void)
{
    char name[sizeof(path) + 32];
    uint8_t record[40];
    uint64_t bytes = 0;
    snprintf(name, sizeof(name), "%s/.sluice/journal", path);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    for (off_t at = 64; fd >= 0 && pread(fd, record, 40, at) == 40; at += 40)
        bytes += sl_get_le64(record + 16) - sl_get_le64(record + 8);
    if (fd >= 0)
        close(fd);
    return bytes;
}

static void load_until_canceled(void *ignored)
{
    struct sl_load_result result;
    struct sl_err err;
    (void)ignored;
    ck_assert_int_eq(load(&result, &err), -1);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* No time passes, so that only the end itself can keep anything. */
SL_TEST(a_load_that_is_told_to_end_keeps_all_that_came)
{
    struct fake_clock_work work;
    stop_answers_after(CAME);
    fake_clock_hold();
    fake_clock_begin(&work, load_until_canceled, NULL);
    SL_AWAIT(sl_server_stalled_count(server) == RANGES, "all answers to stop");
    sl_cancel_raise(cancel, SIGTERM);
    fake_clock_end(&work);
    fake_clock_release();
    sl_cancel_free(cancel);
    cancel = NULL;
    expect_the_rest(RANGES * CAME);
}

static pid_t start_load(void)
{
    const char *const words[] = {"load",
                                 sl_server_url(server, "/m/weights.bin"),
                                 "--to",
                                 path,
                                 "--connections",
                                 "8",
                                 "--range-bytes",
                                 "1Mi",
                                 "--hedge",
                                 "off",
                                 NULL};
    const char *program = getenv("SLUICE");
    ck_assert_msg(program != NULL, "SLUICE is not set to the program under test");
    return start_program(program, words);
}

static void kill_when_noted(uint64_t bytes)
{
    pid_t child = start_load();
    SL_AWAIT(journalled() >= bytes, "the journal to know of what came");
    kill(child, SIGKILL);
    ck_assert_int_eq(wait_sluice(child), 128 + SIGKILL);
}

SL_TEST(a_killed_load_keeps_what_came_of_unfinished_ranges)
{
    stop_answers_after(CAME);
    kill_when_noted(RANGES * CAME);
    expect_the_rest(RANGES * CAME);
}

/* Again and again: each time every range goes on where it was. */
SL_TEST(one_that_is_killed_many_times_gets_on_each_time)
{
    for (unsigned times = 1; times <= 4; times++) {
        stop_answers_after(CAME);
        kill_when_noted((uint64_t)times * RANGES * CAME);
    }
    expect_the_rest(UINT64_C(4) * RANGES * CAME);
}

/* All of a load of 12 MiB, at 3 MB/s. */
SL_TEST(a_slow_store_sees_few_connections)
{
    struct sl_load_result result;
    struct sl_err err;
    struct sl_specs specs;
    sl_test_adapts();
    uint8_t *more = sl_model_noise(12 * MIB, 7);
    sl_server_put(server, "/m/weights.bin", more, 12 * MIB, "\"two\"");
    sl_server_pace(server, 3000000);
    sl_model_spec(&specs, sl_server_url(server, "/m/weights.bin"), path, "readers: {hedge: off}\n");
    ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, &result, &err) == 0, "%s", err.message);
    sl_specs_release(&specs);
    bool same = sl_model_same(path, "weights.bin", more, 12 * MIB);
    free(more);
    ck_assert(same);
    if (result.reading.why == SL_CONNECTIONS_DISTANT)
        SL_SKIP("the machine is so busy that the server seemed far away");
    ck_assert_uint_le(result.reading.last, 8);
    /* Two may have stood in for others. */
    ck_assert_uint_le(sl_server_connection_count(server), 8 + 2);
}

/* A byte of it changes: nothing is believed without its CRC. */
SL_TEST(what_was_kept_is_read_before_it_is_believed)
{
    char name[sizeof(path) + 64];
    stop_answers_after(CAME);
    kill_when_noted(RANGES * CAME);
    snprintf(name, sizeof(name), "%s/.sluice/staging/weights.bin", path);
    int fd = open(name, O_WRONLY | O_CLOEXEC);
    uint8_t wrong = (uint8_t)~noise[5 * MIB + 7];
    ck_assert_int_eq(pwrite(fd, &wrong, 1, 5 * MIB + 7), 1);
    close(fd);
    expect_the_rest((RANGES - 1) * CAME);
}

/* Loads that end before they are through: told to, or by their limit of time. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "listen_at.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"

enum { BYTES = 1024 * 1024, STALLS_AT = 7 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static struct sl_cancel *cancel;
static uint8_t *noise;

/* A request stalls, and all after it. */
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
    SL_SCRIPT(server, {.path = "/m/weights.bin",
                       .first = STALLS_AT,
                       .last = 1000000,
                       .fault = SL_FAULT_STALL,
                       .after = -1});
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_cancel_free(cancel);
    free(noise);
    sl_scratch_close(scratch_fd, scratch);
}

static int load(const char *more, struct sl_load_result *result, struct sl_err *err)
{
    struct sl_specs specs;
    *err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, sl_server_url(server, "/m/weights.bin"), path, more);
    int done = sl_load_run(&specs.items[0], cancel, NULL, result, err);
    sl_specs_release(&specs);
    return done;
}

static void load_until_canceled(void *ignored)
{
    struct sl_load_result result;
    struct sl_err err;
    (void)ignored;
    ck_assert_int_eq(load("readers: {rangeBytes: 128Ki, connections: 1}\n", &result, &err), -1);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
}

/* ---- a store that is not there yet ---------------------------------------------------------- */

struct late {
    char url[128];
    struct sl_progress *progress;
    struct sl_counter ended;
    int done;
    struct sl_err err;
};

static void *load_from_late_store(void *arg)
{
    struct late *late = arg;
    struct sl_specs specs;
    struct sl_load_result result;
    sl_model_spec(&specs, late->url, path, "readers: {attempts: 1, unreachableSeconds: 3600}\n");
    late->done = sl_load_run(&specs.items[0], cancel, late->progress, &result, &late->err);
    sl_specs_release(&specs);
    sl_counter_add(&late->ended, 1);
    return NULL;
}

/* One try is all that other failures have. */
SL_TEST(a_store_that_comes_late_is_waited_for)
{
    struct late late = {.err = SL_ERR_INIT};
    pthread_t thread;
    unsigned port = 0;
    int held = sl_port_hold("127.0.0.1", &port);
    snprintf(late.url, sizeof(late.url), "http://127.0.0.1:%u/m/weights.bin", port);
    late.progress = sl_progress_new("m", "", path, &late.err);
    pthread_create(&thread, NULL, load_from_late_store, &late);
    SL_AWAIT(sl_progress_counts(late.progress).retries >= 2, "two tries in vain");
    struct sl_server *other = sl_server_listen_at("127.0.0.1", port);
    ck_assert_ptr_nonnull(other);
    sl_server_put(other, "/m/weights.bin", noise, BYTES, "\"one\"");
    sl_server_accept(other);
    pthread_join(thread, NULL);
    ck_assert_msg(late.done == 0, "%s", late.err.message);
    ck_assert(sl_model_same(path, "weights.bin", noise, BYTES));
    sl_progress_free(late.progress);
    sl_server_stop(other);
    close(held);
}

SL_TEST(a_canceled_load_waits_for_nothing)
{
    struct fake_clock_work work;
    fake_clock_hold();
    fake_clock_begin(&work, load_until_canceled, NULL);
    SL_AWAIT(sl_server_request_count(server) >= STALLS_AT, "the request that stalls");
    sl_cancel_raise(cancel, SIGTERM);
    fake_clock_end(&work);
    ck_assert_uint_eq(work.took_ns, 0);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

static void load_for_three_seconds(void *ignored)
{
    struct sl_load_result result;
    struct sl_err err;
    (void)ignored;
    ck_assert_int_eq(
        load("readers: {rangeBytes: 128Ki, timeoutSeconds: 3, connections: 1}\n", &result, &err),
        -1);
    ck_assert_msg(err.kind == SL_E_TIMEOUT, "%s", err.message);
}

SL_TEST(the_time_of_the_whole_is_limited_and_the_next_load_resumes)
{
    struct sl_load_result result;
    struct sl_err err;
    struct fake_clock_work work;
    fake_clock_hold();
    fake_clock_begin(&work, load_for_three_seconds, NULL);
    SL_AWAIT(sl_server_request_count(server) >= STALLS_AT, "the request that stalls");
    fake_clock_pass(&work, 3 * SL_NS_PER_S);
    fake_clock_end(&work);
    fake_clock_release();
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    sl_server_script(server, NULL, 0);
    ck_assert_msg(load("", &result, &err) == 0, "%s", err.message);
    ck_assert(sl_model_exists(path, ".sluice/ready"));
    ck_assert(!sl_model_exists(path, ".sluice/staging"));
    ck_assert_uint_ge(result.resumed, 4 * 128 * 1024);
    ck_assert(sl_model_same(path, "weights.bin", noise, BYTES));
}

SL_CASE(.setup = setup, .teardown = teardown)

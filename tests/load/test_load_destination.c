/* What a load asks of its destination, shown by one that was added by a row and a file
 * (hash_destination.c), and that the three of the program are what destinations.def says. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "hash_destination.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"

enum { BYTES = 1024 * 1024 };
#define SMALL_RANGES "readers: {rangeBytes: 64Ki, connections: 1}\n"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static uint8_t *noise;
static struct hash_destination to;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    noise = sl_model_noise(BYTES, 1);
    to = hash_destination(SL_LAYOUT_VERBATIM);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    free(noise);
    sl_scratch_close(scratch_fd, scratch);
    sl_memory_clear();
}

static void put(const char *name, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_memory_put(name, data, bytes, NULL), 0);
}

/* The spec names a directory, which nobody may touch. */
static int load_with(const char *uri, const char *more, struct sl_cancel *cancel,
                     struct sl_load_result *result, struct sl_err *err)
{
    struct sl_specs specs;
    *err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, uri, path, more);
    int done = sl_load_run_to(&specs.items[0], &to.base, cancel, NULL, result, err);
    sl_specs_release(&specs);
    ck_assert(!sl_model_exists(scratch, "model"));
    ck_assert_ptr_null(to.base.sink);
    ck_assert_uint_eq(to.opened, to.closed);
    return done;
}

static void expect_load(const char *uri, const char *more, struct sl_load_result *result)
{
    struct sl_err err;
    int done = load_with(uri, more, NULL, result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert(to.published);
    ck_assert_int_eq(to.why, 0);
    ck_assert_str_eq(result->path, "");
}

SL_TEST(the_rows_are_the_destinations)
{
    static const struct {
        const char *name;
        const struct sl_load_destination_ops *ops;
        bool resumes;
    } rows[] = {
#define SL_DESTINATION(name, key, options, table, text, refusal)                                   \
    {#name, &sl_##name##_destination, strcmp(#key, "tmpfs") == 0},
#define SL_DESTINATION_OF_CALLER(name) {#name, &sl_##name##_destination, true},
#include "destinations.def"
#undef SL_DESTINATION
#undef SL_DESTINATION_OF_CALLER
    };
    ck_assert_uint_eq(SL_COUNT(rows), 3);
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const struct sl_load_destination_ops *ops = rows[i].ops;
        ck_assert_str_eq(ops->name, rows[i].name);
        ck_assert(ops->resumes == rows[i].resumes);
        ck_assert(ops->current && ops->begin && ops->finish && ops->end);
    }
}

SL_TEST(every_byte_lands_in_its_place)
{
    struct sl_load_result result;
    put("m/a", "first", 5);
    put("m/b", noise, BYTES);
    put("m/empty", "", 0);
    expect_load("memory://m/", "readers: {rangeBytes: 64Ki, connections: 4}\n", &result);
    ck_assert_uint_eq(to.bytes, BYTES + 5);
    ck_assert_uint_eq(to.sum,
                      hash_sum(0, 0, (const uint8_t *)"first", 5) + hash_sum(1, 0, noise, BYTES));
    ck_assert_uint_eq(result.bytes, BYTES + 5);
    ck_assert(to.opened == 1 && to.prepared == 1 && to.begun == 1 && to.finished == 1 &&
              to.ended == 1 && to.closed == 1);
}

/* The wanted is the destination's; the selection is the spec's. */
SL_TEST(it_has_the_layout_that_it_wishes)
{
    struct sl_load_result result;
    size_t bytes;
    uint8_t *model = sl_model_safetensors("a,b,c", 1000, &bytes);
    put("m.safetensors", model, bytes);
    to = hash_destination(SL_LAYOUT_SAFETENSORS);
    expect_load("memory://m.safetensors",
                "tensors: {include: [b]}\nsink: {tmpfs: {path: /none, layout: tensorizer}}\n",
                &result);
    ck_assert_uint_eq(result.tensors, 1);
    ck_assert_uint_eq(result.files, 1);
    ck_assert_uint_lt(to.bytes, bytes);
    ck_assert_uint_ge(to.bytes, 4000);
    free(model);
}

SL_TEST(what_failed_is_not_seen_and_not_resumed)
{
    struct sl_load_result result;
    struct sl_err err;
    put("w", noise, BYTES);
    sl_memory_fail_at(9);
    ck_assert_int_eq(load_with("memory://w", SMALL_RANGES, NULL, &result, &err), -1);
    ck_assert_int_eq(to.why, err.kind);
    ck_assert(!to.published && to.begun == 1 && to.finished == 0 && to.ended == 1);
    expect_load("memory://w", SMALL_RANGES, &result);
    ck_assert_uint_eq(result.resumed, 0);
    ck_assert_uint_ge(result.fetched, BYTES);
    ck_assert_uint_eq(to.sum, hash_sum(0, 0, noise, BYTES));
    expect_load("memory://w", SMALL_RANGES, &result); /* nor does it know what is there already */
    ck_assert(!result.already);
    ck_assert_uint_ge(result.fetched, BYTES);
}

SL_TEST(a_changed_object_begins_a_new_attempt)
{
    struct sl_load_result result;
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/w", noise, BYTES, "\"one\"");
    SL_SCRIPT(server, {.first = 4, .fault = SL_FAULT_CHANGED});
    expect_load(sl_server_url(server, "/w"), SMALL_RANGES "verify: {sidecar: off}\n", &result);
    ck_assert(to.begun == 2 && to.finished == 1 && to.ended == 2 && to.closed == 1);
    ck_assert_uint_eq(to.bytes, BYTES);
    ck_assert_uint_eq(to.sum, hash_sum(0, 0, noise, BYTES));
    sl_server_stop(server);
}

/* The first attempt ends before there is a plan. */
SL_TEST(a_mirror_is_a_new_attempt)
{
    struct sl_load_result result;
    struct sl_server *server = sl_server_start();
    char more[600];
    sl_server_put(server, "/there/w", noise, BYTES, "\"one\"");
    sl_autofree char *lost = sl_strdup(sl_server_url(server, "/lost/w"), NULL);
    snprintf(more, sizeof(more), "source: {uri: \"%s\", mirrors: [\"%s\"]}\n", lost,
             sl_server_url(server, "/there/w"));
    expect_load("", more, &result);
    ck_assert(to.begun == 1 && to.ended == 2 && to.closed == 1);
    ck_assert_uint_eq(to.sum, hash_sum(0, 0, noise, BYTES));
    sl_server_stop(server);
}

static struct sl_server *stalling(void)
{
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/w", noise, BYTES, "\"one\"");
    SL_SCRIPT(server, {.first = 2, .last = 1000000, .fault = SL_FAULT_STALL, .after = -1});
    return server;
}

struct raising {
    struct sl_server *server;
    struct sl_cancel *cancel;
};

static void *raise_later(void *arg)
{
    const struct raising *raising = arg;
    SL_AWAIT(sl_server_request_count(raising->server) >= 2, "the second request");
    sl_cancel_raise(raising->cancel, SIGTERM);
    return NULL;
}

SL_TEST(cancel_ends_the_attempt)
{
    struct sl_load_result result;
    struct sl_err err;
    struct raising raising = {stalling(), sl_cancel_new(NULL)};
    pthread_t thread;
    ck_assert_int_eq(sl_thread_start(&thread, "raise", raise_later, &raising, NULL), 0);
    ck_assert_int_eq(
        load_with(sl_server_url(raising.server, "/w"), "", raising.cancel, &result, &err), -1);
    pthread_join(thread, NULL);
    ck_assert_msg(err.kind == SL_E_CANCELED, "%s", err.message);
    ck_assert_int_eq(to.why, SL_E_CANCELED);
    ck_assert(!to.published && to.ended == 1);
    sl_cancel_free(raising.cancel);
    sl_server_stop(raising.server);
}

static void load_for_a_second(void *server)
{
    struct sl_load_result result;
    struct sl_err err;
    ck_assert_int_eq(load_with(sl_server_url(server, "/w"), "readers: {timeoutSeconds: 1}\n", NULL,
                               &result, &err),
                     -1);
    ck_assert_int_eq(err.kind, SL_E_TIMEOUT);
    ck_assert_str_eq(err.message, "the load took longer than readers.timeoutSeconds (1 s); the "
                                  "next one starts over");
}

SL_TEST(a_resume_is_not_promised)
{
    struct sl_server *server = stalling();
    struct fake_clock_work work;
    fake_clock_hold();
    fake_clock_begin(&work, load_for_a_second, server);
    SL_AWAIT(sl_server_request_count(server) >= 2, "the request that stalls");
    fake_clock_pass(&work, SL_NS_PER_S);
    fake_clock_end(&work);
    fake_clock_release();
    ck_assert(!to.published);
    sl_server_stop(server);
}

SL_TEST(every_failing_allocation_is_survived)
{
    struct sl_load_result result;
    struct sl_err err;
    int done = -1;
    put("w", noise, 4096);
    for (unsigned nth = 1; done < 0; nth++) {
        struct sl_specs specs;
        err = (struct sl_err)SL_ERR_INIT;
        to = hash_destination(SL_LAYOUT_VERBATIM);
        sl_model_spec(&specs, "memory://w", path, "readers: {connections: 1}\n");
        sl_alloc_fail_at(nth);
        done = sl_load_run_to(&specs.items[0], &to.base, NULL, NULL, &result, &err);
        sl_alloc_fail_at(0);
        sl_specs_release(&specs);
        ck_assert(to.published == (done == 0));
        ck_assert(to.opened == to.closed && !to.base.sink && !to.files);
    }
    ck_assert_uint_eq(to.sum, hash_sum(0, 0, noise, 4096));
}

SL_CASE(.setup = setup, .teardown = teardown)

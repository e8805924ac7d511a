/* What a load tells when it is over: what auto decided, and why. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "json.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "range_server.h"
#include "scratch.h"

enum { RANGE = 64 * 1024, RANGES = 24, BYTES = RANGES * RANGE };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

static void teardown(void)
{
    sl_scratch_close(scratch_fd, scratch);
}

static json_t *as_json(const struct sl_load_result *result)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_json json;
    sl_json_init(&json, 65536);
    sl_load_result_json(&json, result, "m");
    const char *text = sl_json_text(&json, &err);
    ck_assert_ptr_nonnull(text);
    json_t *document = sl_json_parse(text, strlen(text), "result", &err);
    ck_assert_ptr_nonnull(document);
    sl_json_release(&json);
    return document;
}

/* From a server, with these readers; the result as JSON. */
static json_t *load(const char *readers, struct sl_load_result *result)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    struct sl_server *server = sl_server_start();
    uint8_t *noise = sl_model_noise(BYTES, 7);
    sl_server_put(server, "/weights.bin", noise, BYTES, "\"one\"");
    sl_model_spec(&specs, sl_server_url(server, "/weights.bin"), path, readers);
    ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, result, &err) == 0, "%s", err.message);
    sl_specs_release(&specs);
    sl_server_stop(server);
    free(noise);
    return as_json(result);
}

static void expect_text(const json_t *document, const char *key, const char *wanted)
{
    ck_assert_str_eq(json_string_value(json_object_get(document, key)), wanted);
}

static uint64_t number(const json_t *document, const char *key)
{
    return sl_json_get_uint(document, key, UINT64_MAX);
}

SL_TEST(what_was_given_is_in_the_result)
{
    struct sl_load_result result;
    json_t *document = load("readers: {connections: 3, rangeBytes: 64Ki}\n", &result);
    ck_assert_uint_eq(number(document, "connections"), 3);
    ck_assert_uint_ge(number(document, "connections_most"), 1);
    ck_assert_uint_le(number(document, "connections_most"), 3);
    expect_text(document, "connections_why", "given");
    expect_text(document, "connections_bound", "auto");
    ck_assert_uint_eq(number(document, "connections_last"), 3);
    expect_text(document, "connections_last_why", "most");
    ck_assert_uint_eq(number(document, "threads"), 1);
    ck_assert_uint_eq(number(document, "range_bytes"), RANGE);
    ck_assert_uint_eq(number(document, "buffer_bytes"), RANGE);
    expect_text(document, "decided",
                "connections=3 threads=1 range-bytes=64KiB window-bytes=64KiB request-worth=64KiB "
                "openings=3 preconnect=0 hedge=off decrypt=host cast=host crc=host");
    json_decref(document);
}

static void expect_summary(const struct sl_load_result *result, const char *wanted)
{
    char summary[512];
    ck_assert_str_eq(sl_load_summary(result, summary), wanted);
}

SL_TEST(the_line_has_size_time_rate_and_what_is_unusual)
{
    struct sl_load_result result = {
        .bytes = (uint64_t)15 << 30,
        .seconds = 12.4,
        .read_seconds = 11,
        .files = 9,
        .checks = 285,
        .unhashed = 1 << 20,
        .reading = {.threads = 4, .most = 64, .why = SL_CONNECTIONS_DISTANT}};
    expect_summary(&result, "15.0 GiB in 12.4 s, 1.21 GiB/s, 64 connections");
    result.unhashed_matters = true;
    result.resumed = (uint64_t)3 << 30;
    expect_summary(&result, "15.0 GiB in 12.4 s, 991 MiB/s, 64 connections, 3.00 GiB kept from an "
                            "earlier run; 1.00 MiB came without a hash");
    result = (struct sl_load_result){
        .bytes = 1 << 20, .seconds = 0.25, .reading = {.threads = 1, .why = SL_CONNECTIONS_LOCAL}};
    expect_summary(&result, "1.00 MiB in 0.25 s, 4.00 MiB/s");
}

SL_TEST(what_a_gpu_did_is_told_from_what_the_host_did)
{
    const struct sl_load_result result = {
        .decrypted = 5, .cast = 7, .gpu_decrypted = 3, .gpu_cast = 2};
    char summary[512];
    json_t *document = as_json(&result);
    ck_assert_uint_eq(number(document, "decrypted"), 5);
    ck_assert_uint_eq(number(document, "cast"), 7);
    ck_assert_uint_eq(number(document, "gpu_decrypted"), 3);
    ck_assert_uint_eq(number(document, "gpu_cast"), 2);
    ck_assert_ptr_nonnull(strstr(sl_load_details(&result, summary),
                                 ", 5 decrypted (3 by the GPU), 7 cast (2 by the"));
    json_decref(document);
}

SL_TEST(the_longest_line_fits)
{
    struct sl_load_result result;
    struct {
        char summary[512], behind[512];
    } text;
    memset(&result, 0xff, sizeof(result));
    memset(&text, '?', sizeof(text));
    result.already = false;
    result.unhashed_matters = true;
    result.signed_by.by[sizeof(result.signed_by.by) - 1] = 0;
    result.signed_by.file[sizeof(result.signed_by.file) - 1] = 0;
    result.seconds = result.read_seconds = 1e9;
    result.reading.why = SL_CONNECTIONS_DISTANT;
    ck_assert_uint_lt(strlen(sl_load_details(&result, text.summary)), sizeof(text.summary));
    ck_assert_uint_lt(strlen(sl_load_summary(&result, text.summary)), sizeof(text.summary));
    for (size_t i = 0; i < sizeof(text.behind); i++)
        ck_assert_int_eq(text.behind[i], '?');
}

SL_TEST(what_auto_decided_is_in_the_result)
{
    struct sl_load_result result;
    sl_test_adapts();
    json_t *document = load("readers: {rangeBytes: 64Ki, hedge: off}\n", &result);
    ck_assert_uint_eq(number(document, "connections"), result.reading.first);
    ck_assert_uint_ge(number(document, "connections"), 6); /* of many, as a host allows */
    ck_assert_uint_ge(number(document, "connections_most"), 1);
    ck_assert_uint_le(number(document, "connections_most"), RANGES);
    ck_assert(result.reading.why == SL_CONNECTIONS_SMALL ||
              result.reading.why == SL_CONNECTIONS_DISTANT);
    expect_text(document, "connections_bound", "ranges");
    ck_assert_uint_ge(number(document, "threads"), 1);
    expect_text(document, "threads_why", sl_threads_why_name(result.reading.threads_why));
    json_decref(document);
}

SL_TEST(a_bound_is_named)
{
    struct sl_load_result result;
    json_t *document = load("readers: {rangeBytes: 64Ki, connectionsPerHost: 2}\n", &result);
    ck_assert_uint_eq(number(document, "connections"), 2);
    expect_text(document, "connections_bound", "host");
    ck_assert_uint_eq(number(document, "threads"), 1);
    expect_text(document, "threads_why", sl_threads_why_name(result.reading.threads_why));
    json_decref(document);
}

/* Nothing is read: no thread, no buffer, and the plan's word for the rest. */
SL_TEST(a_version_that_is_there_has_no_threads)
{
    struct sl_load_result result;
    struct sl_err err = SL_ERR_INIT;
    struct sl_specs specs;
    uint8_t *noise = sl_model_noise(BYTES, 7);
    ck_assert_int_eq(sl_memory_put("weights.bin", noise, BYTES, NULL), 0);
    sl_model_spec(&specs, "memory:weights.bin", path, "readers: {connections: 3}\n");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(sl_load_run(&specs.items[0], NULL, NULL, &result, &err), 0);
    ck_assert(result.already);
    ck_assert_uint_eq(result.reading.threads, 0);
    ck_assert_uint_eq(result.reading.most, 0);
    ck_assert_uint_le(result.reading.first, 3);
    sl_specs_release(&specs);
    sl_memory_clear();
    free(noise);
}

SL_CASE(.setup = setup, .teardown = teardown)

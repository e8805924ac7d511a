/* Loads of files that are on Xet: which hash checks them, and what a load that goes on relies on.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "hf_hub.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_blob.h"
#include "scratch.h"
#include "xet_store.h"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_hub hub;
static struct sl_xet_store xet;
static struct sl_load_result result;
static struct sl_err err;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    sl_hub_start(&hub);
    sl_xet_store_start(&xet);
    hub.xet_url = sl_server_url(xet.cas, "");
    sl_xet_store_put(&xet, sl_blob(), SL_BLOB_BYTES);
    sl_hub_put(&hub, "blob.bin", sl_blob(), SL_BLOB_BYTES, true);
    memcpy(hub.files[0].xet, xet.file_hash, sizeof(xet.file_hash));
}

static void teardown(void)
{
    sl_hub_stop(&hub);
    sl_xet_store_stop(&xet);
    sl_scratch_close(scratch_fd, scratch);
}

static int load_in(const char *mode, const char *more)
{
    struct sl_specs specs;
    char text[400];
    snprintf(text, sizeof(text),
             "source: {uri: \"hf://org/name\", hf: {endpoint: \"%s\", xet: '%s'}}\n%s",
             sl_hub_url(&hub), mode, more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert(done < 0 || sl_model_same(path, "blob.bin", sl_blob(), SL_BLOB_BYTES));
    return done;
}

static int load(const char *more)
{
    return load_in("on", more);
}

/* The hub lists another SHA-256 than the file has. */
static void lie(void)
{
    hub.files[0].hash[0] = hub.files[0].hash[0] == '0' ? '1' : '0';
}

SL_TEST(a_file_of_which_all_came_through_xet_needs_no_sha256)
{
    lie();
    ck_assert_msg(load("") == 0, "%s", err.message);
    ck_assert_uint_eq(result.verified, SL_BLOB_BYTES);
    ck_assert_uint_eq(result.unhashed, 0);
    ck_assert_uint_eq(hub.links, 0);
}

SL_TEST(both_are_checked_where_all_hashes_are_wanted)
{
    ck_assert_msg(load("verify: {hashes: all}\n") == 0, "%s", err.message);
    lie();
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    ck_assert_int_eq(load("verify: {hashes: all}\n"), -1);
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
}

/* What the first load landed was not seen by the second: its SHA-256 decides. */
SL_TEST_LOOP(a_load_that_goes_on_checks_the_sha256, 0, 2)
{
    if (_i)
        lie();
    SL_SCRIPT(xet.cdn, {.first = 8, .last = 10000, .fault = SL_FAULT_RESET});
    ck_assert_int_eq(load("readers: {rangeBytes: 128Ki, connections: 1, attempts: 1}\n"), -1);
    sl_server_script(xet.cdn, NULL, 0);
    ck_assert_int_eq(load(""), _i ? -1 : 0);
    ck_assert_str_eq(err.code, _i ? "E_HASH_SHA256" : "");
    if (!_i)
        ck_assert_uint_ge(result.resumed, 128 * 1024);
}

/* ---- buckets --------------------------------------------------------------------------------- */

static int load_bucket(const char *mode, const char *more)
{
    struct sl_specs specs;
    char text[400];
    snprintf(text, sizeof(text),
             "source: {uri: \"hf://buckets/org/name\", hf: {endpoint: \"%s\", xet: '%s'}}\n%s",
             sl_hub_url(&hub), mode, more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    return done;
}

/* Its Xet hash is the only one that there is, and is known when all of it has come: before that
 * nobody can promise it. */
SL_TEST_LOOP(a_bucket_is_checked_where_it_comes_through_xet, 0, 4)
{
    bool by_xet = _i < 2, required = _i & 1;
    sl_hub_keep(&hub, "blob.bin", sl_blob(), SL_BLOB_BYTES, xet.file_hash);
    int done = load_bucket(by_xet ? "on" : "off", required ? "verify: {hashes: require}\n" : "");
    if (required) {
        ck_assert_int_eq(done, -1);
        ck_assert_msg(strstr(err.message, "without a hash that can be checked"), "%s", err.message);
        return;
    }
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "blob.bin", sl_blob(), SL_BLOB_BYTES));
    ck_assert_uint_eq(result.verified, by_xet ? SL_BLOB_BYTES : 0);
    ck_assert_uint_eq(result.unhashed, by_xet ? 0 : SL_BLOB_BYTES);
    ck_assert_int_eq(hub.links > 0, !by_xet);
}

/* A content is a version. */
SL_TEST(a_bucket_that_is_the_same_is_there_already_and_another_is_loaded)
{
    static const char other[] = "another file";
    sl_hub_keep(&hub, "blob.bin", sl_blob(), SL_BLOB_BYTES, xet.file_hash);
    ck_assert_msg(load_bucket("on", "") == 0, "%s", err.message);
    ck_assert(!result.already);
    ck_assert_msg(load_bucket("on", "") == 0, "%s", err.message);
    ck_assert(result.already);
    sl_hub_keep(&hub, "blob.bin", other, sizeof(other), NULL);
    ck_assert_msg(load_bucket("off", "") == 0, "%s", err.message);
    ck_assert(!result.already && sl_model_same(path, "blob.bin", other, sizeof(other)));
}

/* The first load's bytes are of the content that the second asks for: they are kept, and nothing is
 * left that could check all of it. */
SL_TEST(a_load_of_a_bucket_goes_on_with_the_same_content)
{
    sl_hub_keep(&hub, "blob.bin", sl_blob(), SL_BLOB_BYTES, xet.file_hash);
    SL_SCRIPT(xet.cdn, {.first = 8, .last = 10000, .fault = SL_FAULT_RESET});
    ck_assert_int_eq(
        load_bucket("on", "readers: {rangeBytes: 128Ki, connections: 1, attempts: 1}\n"), -1);
    sl_server_script(xet.cdn, NULL, 0);
    ck_assert_msg(load_bucket("on", "") == 0, "%s", err.message);
    ck_assert_uint_ge(result.resumed, 128 * 1024);
    ck_assert_uint_eq(result.unhashed, SL_BLOB_BYTES);
    ck_assert(sl_model_same(path, "blob.bin", sl_blob(), SL_BLOB_BYTES));
}

/* ---- wrong chunks ---------------------------------------------------------------------------- */

#define ONE "readers: {connections: 1, rangeBytes: 64Mi}\n"

/* Which one is not known, so the SHA-256 decides: all is read again, and that comes right. */
SL_TEST(a_file_that_xet_brings_wrong_once_is_read_again_through_it)
{
    ck_assert_msg(load(ONE) == 0, "%s", err.message);
    unsigned questions = xet.asked;
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    sl_xet_store_spoil(&xet, false);
    xet.heals_at = 2 * questions + 1;
    ck_assert_msg(load(ONE) == 0, "%s", err.message);
    ck_assert_uint_ge(xet.asked, xet.heals_at);
    ck_assert_uint_eq(hub.links, 0);
    ck_assert_uint_eq(result.verified, SL_BLOB_BYTES);
}

/* However often, and however many connections there are. */
SL_TEST_LOOP(a_file_that_xet_brings_wrong_is_read_by_links_instead, 0, 2)
{
    sl_xet_store_spoil(&xet, false);
    ck_assert_msg(load_in("auto", _i ? "" : ONE) == 0, "%s", err.message);
    ck_assert_uint_gt(hub.links, 0);
    ck_assert_uint_eq(result.verified, SL_BLOB_BYTES);
}

/* Where Xet is asked for, and where no other hash could tell. */
SL_TEST_LOOP(a_file_that_xet_brings_wrong_is_refused, 0, 2)
{
    sl_xet_store_spoil(&xet, false);
    ck_assert_int_eq(load_in(_i ? "auto" : "on", _i ? ONE "verify: {hashes: off}\n" : ONE), -1);
    ck_assert_msg(strcmp(err.code, "xet-hash") == 0, "%s: %s", err.code, err.message);
    ck_assert_uint_eq(hub.links, 0);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* Sidecars in repositories of a hub: how often they are asked for, and what they mend where the
 * bytes of their objects come through Xet. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "buf.h"
#include "claims.h"
#include "fake_clock.h"
#include "hash.h"
#include "hf_hub.h"
#include "hf_options.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_blob.h"
#include "scratch.h"
#include "sidecar.h"
#include "source.h"
#include "stores.h"
#include "verified_reader.h"
#include "xet.h"
#include "xet_store.h"

enum { RANGE = 64 * 1024 };
#define LOOK_NS (20 * SL_NS_PER_MS) /* readers look as often as this */
#define SIDECAR "blob.bin.sluice.json"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_hub hub;
static struct sl_xet_store xet;
static struct sl_buf text;
static struct sl_load_result result;
static struct sl_err err;

static struct sl_sidecar *new_sidecar(void)
{
    const uint8_t *of = sl_blob();
    uint8_t digest[SL_HASH_BYTES_MAX];
    struct sl_sidecar *sidecar = sl_sidecar_new("blob.bin", SL_BLOB_BYTES, RANGE, &err);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        uint64_t begin = i * RANGE, end = sl_sidecar_range_end(sidecar, i);
        sidecar->ranges[i].crc32c = sl_crc32c(0, of + begin, (size_t)(end - begin));
        sl_digest_of(SL_HASH_SHA256, NULL, 0, of + begin, (size_t)(end - begin), digest, NULL);
        memcpy(sidecar->ranges[i].sha256, digest, sizeof(sidecar->ranges[i].sha256));
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    return sidecar;
}

static void make_sidecar(void)
{
    struct sl_sidecar *sidecar = new_sidecar();
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_sidecar_free(sidecar);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    text = (struct sl_buf)SL_BUF_INIT(1024 * 1024);
    sl_hub_start(&hub);
    sl_xet_store_start(&xet);
    hub.xet_url = sl_server_url(xet.cas, "");
    sl_xet_store_put(&xet, sl_blob(), SL_BLOB_BYTES);
    sl_hub_put(&hub, "blob.bin", sl_blob(), SL_BLOB_BYTES, true);
    memcpy(hub.files[0].xet, xet.file_hash, sizeof(xet.file_hash));
    make_sidecar();
}

static void teardown(void)
{
    sl_hub_stop(&hub);
    sl_xet_store_stop(&xet);
    sl_scratch_close(scratch_fd, scratch);
    sl_buf_release(&text);
}

static void put_sidecar(void)
{
    sl_hub_put(&hub, SIDECAR, text.data, text.used, false);
}

static const char *revision = ""; /* "@main" */

static int load(const char *mode, const char *more)
{
    struct sl_specs specs;
    char spec[500];
    snprintf(spec, sizeof(spec),
             "source: {uri: \"hf://org/name%s\", hf: {endpoint: \"%s\", xet: '%s'}}\n%s", revision,
             sl_hub_url(&hub), mode, more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, spec);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert(done < 0 || sl_model_same(path, "blob.bin", sl_blob(), SL_BLOB_BYTES));
    return done;
}

static unsigned sidecars_asked_for(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sl_server_request_count(hub.origin); i++) {
        const char *target = sl_server_request_at(hub.origin, i)->target;
        count += strstr(target, "/resolve-cache/") && strstr(target, SIDECAR);
    }
    return count;
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Whether it is right or not. */
SL_TEST_LOOP(a_sidecar_is_asked_for_once, 0, 3)
{
    if (_i == 1)
        text.used = text.used / 2;
    if (_i == 2)
        text.data[text.used / 2] ^= 1;
    put_sidecar();
    ck_assert_int_eq(load("off", ""), _i ? -1 : 0);
    ck_assert_msg(!_i || strstr(err.message, SIDECAR), "%s", err.message);
    ck_assert_uint_eq(sidecars_asked_for(), 1);
}

/* ---- wrong chunks ---------------------------------------------------------------------------- */

#define ONE "readers: {connections: 1, rangeBytes: 64Mi}\n"

static void remove_model(void)
{
    sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

/* The sidecar says which range it is in, so that nobody must read the file again. */
SL_TEST_LOOP(a_chunk_that_comes_wrong_once_is_mended_by_its_range, 0, 2)
{
    const char *mode = _i ? "auto" : "on";
    put_sidecar();
    ck_assert_msg(load(mode, ONE) == 0, "%s", err.message);
    unsigned questions = xet.asked;
    remove_model();
    sl_xet_store_spoil(&xet, false);
    xet.heals_at = 2 * questions + 1;
    ck_assert_msg(load(mode, ONE) == 0, "%s", err.message);
    ck_assert_uint_eq(result.refetched_ranges, 1);
    ck_assert_uint_eq(result.sidecars, 1);
    ck_assert_uint_eq(result.verified, SL_BLOB_BYTES);
    ck_assert_uint_lt(result.fetched, SL_BLOB_BYTES + 6 * RANGE);
    ck_assert_uint_eq(hub.links > 0, _i);
}

/* However many connections there are: by links, or, where nothing but Xet will do, not at all. */
SL_TEST_LOOP(a_chunk_that_stays_wrong_is_never_published, 0, 4)
{
    const char *more = _i & 2 ? "" : ONE;
    put_sidecar();
    sl_xet_store_spoil(&xet, false);
    int done = load(_i & 1 ? "auto" : "on", more);
    ck_assert_msg(done == (_i & 1 ? 0 : -1), "%s", err.message);
    ck_assert_int_eq(err.kind, _i & 1 ? 0 : SL_E_INTEGRITY);
    ck_assert(sl_model_exists(path, ".sluice/ready") == (done == 0));
}

static void load_by_two(void *ignored)
{
    (void)ignored;
    ck_assert_msg(load("auto", "readers: {connections: 2, rangeBytes: 64Ki}\n") == 0, "%s",
                  err.message);
}

/* What Xet's own hash would tell is not known before the last byte has come. */
SL_TEST(a_chunk_that_stays_wrong_is_mended_before_the_others_have_come)
{
    struct fake_clock_work work;
    put_sidecar();
    sl_xet_store_spoil(&xet, false);
    SL_SCRIPT(xet.cdn, {.path = "/xorb/2", .fault = SL_FAULT_SLOW});
    fake_clock_hold();
    fake_clock_begin(&work, load_by_two, NULL);
    SL_AWAIT(sl_server_request_count(hub.cdn) > 0, "the request for the range that is wrong");
    fake_clock_turn_until(&work.done, LOOK_NS, 1);
    fake_clock_end(&work);
    fake_clock_release();
    ck_assert_uint_eq(result.refetched_ranges, 1);
    ck_assert_uint_gt(hub.links, 0);
}

SL_TEST(bytes_that_are_wrong_both_ways_are_never_published)
{
    uint8_t *spoilt = malloc(SL_BLOB_BYTES);
    memcpy(spoilt, sl_blob(), SL_BLOB_BYTES);
    spoilt[RANGE + 1] ^= 1;
    put_sidecar();
    sl_server_put(hub.cdn, "/blob.bin", spoilt, SL_BLOB_BYTES, "\"edge\"");
    free(spoilt);
    sl_xet_store_spoil(&xet, false);
    ck_assert_int_eq(load("auto", ""), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_uint_gt(sl_server_request_count(hub.cdn), 0);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

/* Who reads here and there, in its order. */
SL_TEST_LOOP(what_is_read_before_a_load_is_mended_by_links_too, SL_XET_AUTO, SL_XET_ON + 1)
{
    static uint8_t data[SL_BLOB_BYTES];
    struct sl_hf_options options = {.endpoint = (char *)sl_hub_url(&hub), .xet = _i};
    struct sl_source_config config = {
        .attempts = 2, .stall_seconds = 20, .options[0] = {&sl_hf_table, &options}};
    struct sl_sidecar *sidecar = new_sidecar();
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    sl_xet_store_spoil(&xet, false);
    ck_assert_int_eq(sl_store_open("hf://org/name/blob.bin", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 1, &source, &err) == 0, "%s", err.message);
    struct sl_verified_reader *verified =
        sl_verified_reader_new(source, sidecar, true, 2 * RANGE, NULL, &err);
    ck_assert_msg(verified != NULL, "%s", err.message);
    int done = sl_source_read(source, 0, data, sizeof(data), &err);
    ck_assert_msg(done == (_i == SL_XET_AUTO ? 0 : -1), "%s", err.message);
    ck_assert(done < 0 || memcmp(data, sl_blob(), sizeof(data)) == 0);
    ck_assert_int_eq(sl_server_request_count(hub.cdn) > 0, done == 0);
    sl_verified_reader_free(verified);
    sl_sidecar_free(sidecar);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* Its version is a commit, of a URI; the hub says besides what is in it. */
SL_TEST_LOOP(a_large_file_is_the_same_by_whatever_uri, 0, 2)
{
    static const char *const modes[] = {"off", "auto"};
    ck_assert_msg(load(modes[_i], "") == 0, "%s", err.message);
    ck_assert_uint_eq(result.inherited, 0);
    revision = "@main";
    ck_assert_msg(load(modes[_i], "") == 0, "%s", err.message);
    ck_assert(!result.already);
    ck_assert_uint_eq(result.inherited, SL_BLOB_BYTES);
    ck_assert_uint_lt(result.fetched, SL_BLOB_BYTES / 2);
}

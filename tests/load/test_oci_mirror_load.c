/* Loads of an artifact that a mirror has, too: where its bytes come from, and that none of a mirror
 * is published which the digest does not bear out. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_blob.h"
#include "scratch.h"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *registry, *mirror;
static char blob[128];
static struct sl_load_result result;
static struct sl_err err;

static unsigned blobs_asked(struct sl_server *of)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sl_server_request_count(of); i++)
        count += strcmp(sl_server_request_at(of, i)->target, "/v2/org/m/manifests/v1") != 0;
    return count;
}

static void setup(void)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65], manifest[400];
    sl_log_setup(SL_LOG_ERROR, false);
    setenv("HOME", "/nonexistent", 1);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    registry = sl_server_start();
    mirror = sl_server_start();
    sl_digest_of(SL_HASH_SHA256, NULL, 0, sl_blob(), SL_BLOB_BYTES, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(manifest, sizeof(manifest),
             "{\"layers\":[{\"mediaType\":\"x\",\"size\":%d,\"digest\":\"sha256:%s\","
             "\"annotations\":{\"org.opencontainers.image.title\":\"blob.bin\"}}]}",
             SL_BLOB_BYTES, hex);
    snprintf(blob, sizeof(blob), "/v2/org/m/blobs/sha256:%s", hex);
    sl_server_put(registry, "/v2/org/m/manifests/v1", manifest, strlen(manifest), NULL);
    sl_server_put(registry, blob, sl_blob(), SL_BLOB_BYTES, "\"r\"");
    sl_server_put(mirror, blob, sl_blob(), SL_BLOB_BYTES, "\"m\"");
}

static void teardown(void)
{
    sl_server_stop(registry);
    sl_server_stop(mirror);
    sl_scratch_close(scratch_fd, scratch);
}

/* The mirror's bytes are changed, at one place. */
static void spoil_mirror(void)
{
    sl_autofree uint8_t *wrong = malloc(SL_BLOB_BYTES);
    memcpy(wrong, sl_blob(), SL_BLOB_BYTES);
    wrong[SL_BLOB_BYTES / 2] ^= 1;
    sl_server_put(mirror, blob, wrong, SL_BLOB_BYTES, "\"m\"");
}

static int load(const char *more)
{
    struct sl_specs specs;
    char text[500];
    snprintf(text, sizeof(text),
             "source: {uri: \"oci://127.0.0.1:%u/org/m:v1\", oci: {mirrors: [\"127.0.0.1:%u\"]}}\n"
             "%s",
             sl_server_port(registry), sl_server_port(mirror), more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    ck_assert(done < 0 || sl_model_same(path, "blob.bin", sl_blob(), SL_BLOB_BYTES));
    return done;
}

SL_TEST(a_load_takes_its_bytes_from_a_mirror_and_says_so)
{
    char summary[512];
    ck_assert_msg(load("") == 0, "%s", err.message);
    ck_assert_uint_eq(result.mirrored, SL_BLOB_BYTES);
    ck_assert_uint_eq(result.unhashed, 0);
    ck_assert_msg(strstr(sl_load_summary(&result, summary), "from mirrors"), "%s", summary);
    ck_assert_uint_ge(blobs_asked(mirror), 1);
}

SL_TEST(wrong_bytes_of_a_mirror_are_read_again_from_the_registry)
{
    spoil_mirror();
    ck_assert_msg(load("readers: {rangeBytes: 128Ki}\n") == 0, "%s", err.message);
    ck_assert_uint_ge(result.mirrored, SL_BLOB_BYTES);
    ck_assert_uint_ge(result.fetched, 2 * SL_BLOB_BYTES);
}

/* Both have other bytes than the manifest says: that is an error, and nothing is published. */
SL_TEST(wrong_bytes_everywhere_are_refused)
{
    spoil_mirror();
    sl_autofree uint8_t *wrong = malloc(SL_BLOB_BYTES);
    memset(wrong, 7, SL_BLOB_BYTES);
    sl_server_put(registry, blob, wrong, SL_BLOB_BYTES, "\"r\"");
    ck_assert_int_eq(load(""), -1);
    ck_assert_str_eq(err.code, "E_HASH_SHA256");
}

SL_TEST(what_nobody_checks_comes_from_the_registry)
{
    spoil_mirror();
    ck_assert_msg(load("verify: {hashes: 'off'}\n") == 0, "%s", err.message);
    ck_assert_uint_eq(result.mirrored, 0);
    ck_assert_uint_eq(blobs_asked(mirror), 0);
}

/* What a first load kept of a bad mirror does not spoil the second one, whatever that asks. */
SL_TEST_LOOP(what_was_kept_of_a_mirror_is_checked_with_the_rest, 0, 2)
{
    if (_i)
        spoil_mirror();
    SL_SCRIPT(mirror, {.first = 6, .last = 10000, .fault = SL_FAULT_RESET});
    SL_SCRIPT(registry, {.path = blob, .first = 2, .last = 10000, .fault = SL_FAULT_RESET});
    ck_assert_int_eq(load("readers: {rangeBytes: 128Ki, connections: 1, attempts: 1}\n"), -1);
    sl_server_script(registry, NULL, 0);
    ck_assert_msg(load("") == 0, "%s", err.message);
    if (!_i)
        ck_assert_uint_ge(result.resumed, 128 * 1024);
}

SL_CASE(.setup = setup, .teardown = teardown)

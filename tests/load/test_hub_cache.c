/* Layout hf-cache: the objects of a hub as files that are called otherwise, with all that is
 * checked. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "hash.h"
#include "hf_hub.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_blob.h"
#include "scratch.h"

#define SNAPSHOT "models--org--name/snapshots/" SL_HUB_COMMIT

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_hub hub;
static enum sl_sink_layout layout;
static struct sl_load_result result;
static struct sl_err err;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    layout = SL_LAYOUT_HF_CACHE;
    sl_hub_start(&hub);
    sl_hub_put(&hub, "blob.bin", sl_blob(), SL_BLOB_BYTES, true);
    sl_hub_put(&hub, "config.json", "{}", 2, false);
    sl_hub_put(&hub, "empty.txt", "", 0, false);
}

static void teardown(void)
{
    sl_hub_stop(&hub);
    sl_scratch_close(scratch_fd, scratch);
}

static int load(const char *revision, const char *more)
{
    struct sl_specs specs;
    char spec[1000];
    snprintf(spec, sizeof(spec), "source: {uri: \"hf://org/name%s\", hf: {endpoint: \"%s\"}}\n%s",
             revision, sl_hub_url(&hub), more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, spec);
    specs.items->sink.tmpfs.layout = layout;
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    return done;
}

/* A spec with the SHA-256 of each object; `wrong` is given another one. */
static const char *given(const char *wrong)
{
    static const char *const names[] = {"blob.bin", "config.json", "empty.txt"};
    static char spec[1000];
    const void *const data[] = {sl_blob(), "{}", ""};
    const size_t bytes[] = {SL_BLOB_BYTES, 2, 0};
    size_t used = (size_t)snprintf(spec, sizeof(spec), "verify: {sha256: {");
    for (int i = 0; i < 3; i++) {
        uint8_t digest[SL_HASH_BYTES_MAX];
        char hex[65];
        sl_digest_of(SL_HASH_SHA256, NULL, 0, data[i], bytes[i], digest, NULL);
        digest[0] ^= wrong && strcmp(wrong, names[i]) == 0;
        sl_hex(digest, 32, hex);
        used += (size_t)snprintf(spec + used, sizeof(spec) - used, "%s: %s, ", names[i], hex);
    }
    snprintf(spec + used - 2, sizeof(spec) - used + 2, "}}\n");
    return spec;
}

SL_TEST(what_the_spec_says_of_an_object_is_checked_of_its_file)
{
    ck_assert_msg(load("", given(NULL)) == 0, "%s", err.message);
    ck_assert(sl_model_same(path, SNAPSHOT "/blob.bin", sl_blob(), SL_BLOB_BYTES));
    ck_assert(sl_model_same(path, SNAPSHOT "/config.json", "{}", 2));
    ck_assert(sl_model_same(path, "models--org--name/refs/main", SL_HUB_COMMIT, 40));
    ck_assert_int_eq(load("", given(NULL)), 0);
    ck_assert(result.already);
}

SL_TEST_LOOP(a_hash_of_the_spec_that_does_not_agree_publishes_nothing, 0, 3)
{
    static const char *const names[] = {"blob.bin", "config.json", "empty.txt"};
    ck_assert_int_eq(load("", given(names[_i])), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strstr(err.message, names[_i]) != NULL, "%s", err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

/* By other hashes than before: the hub has a SHA-256 of the large file, and none of the small one.
 */
SL_TEST(another_version_takes_over_what_was_checked_alike)
{
    ck_assert_msg(load("", "") == 0, "%s", err.message);
    ck_assert_msg(load("@main", given(NULL)) == 0, "%s", err.message);
    ck_assert_uint_eq(result.inherited, SL_BLOB_BYTES);
    ck_assert_msg(load("@" SL_HUB_COMMIT, given(NULL)) == 0, "%s", err.message);
    ck_assert_uint_eq(result.inherited, SL_BLOB_BYTES + 2);
    ck_assert(sl_model_same(path, SNAPSHOT "/blob.bin", sl_blob(), SL_BLOB_BYTES));
}

/* ---- beside tensors -------------------------------------------------------------------------- */

/* Of the model itself the hub's hash is over all of it, and other bytes land. */
SL_TEST_LOOP(what_is_no_model_is_checked_by_the_hubs_hash_in_every_layout, 0, 4)
{
    size_t bytes, model_bytes = 4 * 1000;
    uint8_t *model = sl_model_safetensors("a", 1000, &bytes);
    uint8_t *wrong = malloc(SL_BLOB_BYTES);
    layout = _i & 1 ? SL_LAYOUT_SAFETENSORS : SL_LAYOUT_TENSORIZER;
    sl_hub_put(&hub, "model.safetensors", model, bytes, true);
    free(model);
    memcpy(wrong, sl_blob(), SL_BLOB_BYTES);
    wrong[SL_BLOB_BYTES / 2] ^= 1;
    if (_i & 2)
        sl_server_put(hub.cdn, "/blob.bin", wrong, SL_BLOB_BYTES, "\"edge\"");
    free(wrong);
    int done = load("", "");
    ck_assert_msg(done == (_i & 2 ? -1 : 0), "%s", err.message);
    ck_assert(done == 0 || (err.kind == SL_E_INTEGRITY && strstr(err.message, "blob.bin")));
    ck_assert_int_eq(sl_model_exists(path, ".sluice/ready"), done == 0);
    ck_assert(done < 0 || (result.checks == 2 && result.unhashed == model_bytes));
}

SL_CASE(.setup = setup, .teardown = teardown)

/* A load of what is there already, from a store whose listing tells versions. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "publish.h"
#include "range_server.h"
#include "scratch.h"

enum { SHARDS = 3 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static uint8_t *data[SHARDS];
static size_t bytes[SHARDS];
static char etags[SHARDS][32]; /* as the listing tells them */
static const char *through;    /* a format of the cache's URL; "": none */

static bool answer_listing(const struct sl_server_request *request, struct sl_server_reply *reply,
                           void *arg)
{
    (void)arg;
    if (!strstr(request->target, "list-type=2"))
        return false;
    sl_autobuf text = SL_BUF_INIT(65536);
    sl_buf_text(&text, "<ListBucketResult><IsTruncated>false</IsTruncated>", NULL);
    for (unsigned i = 0; i < SHARDS; i++)
        sl_buf_printf(&text, NULL,
                      "<Contents><Key>m/model-%u.safetensors</Key><Size>%zu</Size>"
                      "<ETag>&quot;%s&quot;</ETag></Contents>",
                      i, bytes[i], etags[i]);
    sl_buf_text(&text, "</ListBucketResult>", NULL);
    reply->status = 200;
    reply->body_bytes = text.used;
    reply->body = sl_buf_steal(&text, NULL);
    return true;
}

/* Shard i of this version in the store; the listing follows unless it is stale. */
static void store_shard(unsigned i, unsigned version, bool listed)
{
    char name[64], etag[40], tensors[32];
    free(data[i]);
    snprintf(tensors, sizeof(tensors), "t%u.%u", i, version);
    snprintf(name, sizeof(name), "/bucket/m/model-%u.safetensors", i);
    snprintf(etag, sizeof(etag), "\"e%u.%u\"", i, version);
    data[i] = sl_model_safetensors(tensors, 50000, &bytes[i]);
    sl_server_put(server, name, data[i], bytes[i], etag);
    if (listed)
        snprintf(etags[i], sizeof(etags[i]), "e%u.%u", i, version);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    server = sl_server_start();
    through = "";
    for (unsigned i = 0; i < SHARDS; i++)
        store_shard(i, 1, true);
    sl_server_handle(server, answer_listing, NULL);
}

static void teardown(void)
{
    sl_server_stop(server);
    for (unsigned i = 0; i < SHARDS; i++) {
        free(data[i]);
        data[i] = NULL;
    }
    sl_scratch_close(scratch_fd, scratch);
}

/* How many requests it made beside the listing. */
static unsigned load(const char *more, struct sl_load_result *result)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    char text[1000], caches[200];
    unsigned before = sl_server_request_count(server), ranges = 0;
    snprintf(caches, sizeof(caches), through, sl_server_url(server, ""));
    snprintf(text, sizeof(text),
             "source: {uri: \"s3://bucket/m/\", s3: {endpoint: \"%s\", region: r, addressing: "
             "path, anonymous: true}%s}\n%s",
             sl_server_url(server, ""), caches, more);
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    sl_specs_release(&specs);
    for (unsigned i = before; i < sl_server_request_count(server); i++)
        ranges += !strstr(sl_server_request_at(server, i)->target, "list-type=2");
    for (unsigned i = 0; i < SHARDS; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model-%u.safetensors", i);
        ck_assert(sl_model_same(path, name, data[i], bytes[i]));
    }
    return ranges;
}

SL_CASE(.setup = setup, .teardown = teardown)

SL_TEST(a_listing_is_all_that_it_costs)
{
    struct sl_load_result first, again;
    ck_assert_uint_ge(load("", &first), SHARDS);
    ck_assert_uint_eq(load("", &again), 0);
    ck_assert(!first.already && again.already);
    ck_assert_uint_eq(again.fetched, 0);
    ck_assert_uint_eq(again.bytes, first.bytes);
    ck_assert_uint_eq(again.files, SHARDS);
    ck_assert_uint_eq(again.tensors, first.tensors);
    ck_assert_uint_eq(again.objects, SHARDS);
    ck_assert_uint_eq(again.checks, first.checks);
    ck_assert_uint_eq(again.unhashed, first.unhashed);
    ck_assert_str_eq(again.uri, first.uri);
}

SL_TEST(another_version_is_loaded)
{
    struct sl_load_result result;
    load("", &result);
    store_shard(1, 2, true);
    ck_assert_uint_gt(load("", &result), 0);
    ck_assert(!result.already);
    ck_assert_uint_eq(load("", &result), 0);
}

SL_TEST(a_file_that_was_touched_is_loaded_again)
{
    struct sl_load_result result;
    char name[sizeof(path) + 32];
    load("", &result);
    snprintf(name, sizeof(name), "%s/model-1.safetensors", path);
    ck_assert_int_eq(utimensat(AT_FDCWD, name, (struct timespec[]){{1, 0}, {1, 0}}, 0), 0);
    ck_assert_uint_gt(load("", &result), 0);
    ck_assert(!result.already);
}

/* A load, `verify`, `status` and a node give one answer. */
SL_TEST_LOOP(a_manifest_that_is_refused_is_loaded_again, 0, 6)
{
    static const char *const pairs[][2] = {
        {"{\"name\":\"model-1.safetensors\",\"bytes\"", "{\"name\":\"../x\",\"bytes\""},
        {"{\"name\":\"model-1.safetensors\",\"bytes\"", "{\"name\":\"x\",\"bytes\""},
        {"\"files\":", "\"filez\":"},
        {"\"crc32c\":\"", "\"crc32c\":\"x"},
        {"\"identity\":\"", "\"identity\":\"00"},
        {"\"tensors\":", "\"tensors\":[],tensors:"},
    };
    struct sl_load_result result;
    struct sl_err err = SL_ERR_INIT;
    char name[sizeof(path) + 32];
    size_t text_bytes;
    load("", &result);
    char *text = (char *)sl_model_read(path, ".sluice/manifest.json", &text_bytes);
    const char *found = text ? strstr(text, pairs[_i][0]) : NULL;
    ck_assert_ptr_nonnull(found);
    snprintf(name, sizeof(name), "%s/.sluice/manifest.json", path);
    ck_assert_int_eq(unlink(name), 0);
    FILE *file = fopen(name, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%.*s%s%s", (int)(found - text), text, pairs[_i][1],
            found + strlen(pairs[_i][0]));
    ck_assert_int_eq(fclose(file), 0);
    ck_assert(sl_publish_verify(path, NULL, NULL, NULL, &err) < 0 || _i == 4);
    load("", &result);
    ck_assert(!result.already);
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, &err), 0);
    load("", &result);
    ck_assert(result.already);
    free(text);
}

/* What is asked of the bytes is another question. */
SL_TEST(another_wish_is_not_answered_by_the_same_listing)
{
    struct sl_load_result result;
    char owner[sizeof(path) + 128];
    load("verify: {hashes: all}\n", &result);
    ck_assert_uint_gt(load("verify: {hashes: off}\n", &result), 0);
    ck_assert_uint_eq(load("verify: {hashes: all}\n", &result), 0);
    snprintf(owner, sizeof(owner),
             "verify: {hashes: all}\nsink: {tmpfs: {path: \"%s\", owner: \"%u\"}}\n", path,
             (unsigned)getuid());
    ck_assert_uint_gt(load(owner, &result), 0);
    ck_assert_uint_eq(load("verify: {hashes: all}\nreaders: {connections: 3}\n", &result), 0);
}

/* Of that only samples were compared, so it is not what comes from the store itself. */
SL_TEST(what_came_unchecked_through_caches_is_loaded_again_without_them)
{
    struct sl_load_result result;
    through = ", through: {caches: [\"%s\"], unverified: warn}";
    load("", &result);
    ck_assert_uint_gt(result.cached, 0);
    ck_assert_uint_eq(load("", &result), 0);
    ck_assert(result.already);
    through = "";
    ck_assert_uint_gt(load("", &result), 0);
    ck_assert(!result.already && result.inherited == 0);
}

/* The object was newer than the listing said; then it is what the listing said at that time. */
SL_TEST(a_listing_that_was_stale_says_nothing_later)
{
    struct sl_load_result result;
    store_shard(2, 7, false);
    load("", &result);
    store_shard(2, 1, true);
    ck_assert_uint_gt(load("", &result), 0);
    ck_assert(!result.already);
}

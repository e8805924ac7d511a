/* Loads that read through `sluice share`: it gives the objects that it has as they are, and none
 * else. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "fake_clock.h"
#include "hash.h"
#include "load.h"
#include "metrics.h"
#include "model_maker.h"
#include "range_blob.h"
#include "range_server.h"
#include "scratch.h"
#include "web.h"

enum { BLOCK = 64 * 1024, BLOCKS = 24, BYTES = BLOCKS * BLOCK - 777 };

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct sl_server *origin;
static struct sl_web *web;
static uint8_t *data, *newer;
static struct sl_err err;
static struct sl_load_result result;

static bool answer_head(const struct sl_server_request *request, struct sl_server_reply *reply,
                        void *arg)
{
    (void)arg;
    if (strcmp(request->method, "HEAD") != 0)
        return false;
    reply->status = 200;
    snprintf(reply->headers, sizeof(reply->headers), "ETag: \"v1\"\r\n");
    return true;
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    origin = sl_server_start();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(origin, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    data = sl_model_noise(BYTES, 11);
    newer = sl_model_noise(BYTES, 12);
    sl_server_put(origin, "/bucket/m.bin", data, BYTES, "\"v1\"");
    sl_server_handle(origin, answer_head, NULL);
}

static void teardown(void)
{
    sl_web_free(web);
    sl_server_stop(origin);
    sl_scratch_close(scratch_fd, scratch);
    free(data);
    free(newer);
}

static const char *at(const char *name)
{
    static char texts[4][SL_SCRATCH_PATH_BYTES + 64];
    static unsigned turn;
    char *text = texts[turn++ % SL_COUNT(texts)];
    snprintf(text, sizeof(texts[0]), "%s/%s", scratch, name);
    return text;
}

/* through: YAML of source.through; "": none. */
static int load(const char *uri, const char *to, const char *through, const char *more)
{
    struct sl_specs specs;
    char text[2048];
    snprintf(text, sizeof(text), "source: {uri: \"%s\"%s}\nreaders: {connections: 1}\n%s", uri,
             through, more);
    sl_model_spec(&specs, "", at(to), text);
    fake_clock_run();
    err = (struct sl_err)SL_ERR_INIT;
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    fake_clock_release();
    sl_specs_release(&specs);
    return done;
}

static const char *sha256_of(const uint8_t *of)
{
    static char text[256];
    uint8_t digest[SL_HASH_BYTES_MAX];
    char hex[65];
    sl_digest_of(SL_HASH_SHA256, NULL, 0, of, BYTES, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(text, sizeof(text), "verify: {sha256: {m.bin: %s}}\n", hex);
    return text;
}

static void share(const char *directory)
{
    const struct sl_web_config config = {
        .listen = "127.0.0.1:0", .share_directory = directory, .share_prefix = "/"};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
}

static const char *through(void)
{
    static char text[256];
    snprintf(text, sizeof(text), ", through: {caches: [\"http://127.0.0.1:%u\"], blockBytes: 64Ki}",
             sl_web_port(web));
    return text;
}

/* A load through the share: all came from there or nothing, and so often it said that it has
 * something not. */
static void must_load(const char *uri, const uint8_t *right, bool given, unsigned refusals)
{
    static unsigned number;
    char to[16];
    uint64_t errors = sl_metric_get(SL_M_HTTP_ERRORS);
    snprintf(to, sizeof(to), "copy%u", ++number);
    ck_assert_msg(load(uri, to, through(), sha256_of(right)) == 0, "%s", err.message);
    ck_assert(sl_model_same(at(to), "m.bin", right, BYTES));
    ck_assert_uint_eq(result.cached, given ? BYTES : 0);
    ck_assert_uint_eq(sl_metric_get(SL_M_HTTP_ERRORS) - errors, refusals);
}

static const char *const uris[] = {"s3://bucket/m.bin", NULL};

static const char *uri_of(int number)
{
    return uris[number] ? uris[number] : sl_server_url(origin, "/bucket/m.bin");
}

/* _i: which store, and how deep below the shared directory. */
SL_TEST_LOOP(a_share_gives_the_objects_that_it_has, 0, 2 * 3)
{
    static const char *const depths[] = {"shared/name/version", "shared/name", "shared"};
    mkdir(at("shared"), 0755);
    mkdir(at("shared/name"), 0755);
    ck_assert_msg(load(uri_of(_i % 2), depths[_i / 2], "", sha256_of(data)) == 0, "%s",
                  err.message);
    share(at("shared"));
    unsigned asked = sl_server_request_count(origin);
    must_load(uri_of(_i % 2), data, true, 0);
    ck_assert_uint_le(sl_server_request_count(origin) - asked, 2); /* it opens, and asks for sums */
}

/* The store has another one by now. */
SL_TEST(another_version_is_not_given)
{
    ck_assert_int_eq(load(uri_of(0), "shared", "", sha256_of(data)), 0);
    share(at("shared"));
    sl_server_put(origin, "/bucket/m.bin", newer, BYTES, "\"v2\"");
    must_load(uri_of(0), newer, false, 1);
}

/* And what the share loads then it gives. */
SL_TEST(what_is_published_later_is_found)
{
    ck_assert_int_eq(load(uri_of(0), "shared", "", sha256_of(data)), 0);
    share(at("shared"));
    sl_server_put(origin, "/bucket/m.bin", newer, BYTES, "\"v2\"");
    ck_assert_int_eq(load(uri_of(0), "shared", "", sha256_of(newer)), 0);
    must_load(uri_of(0), newer, true, 0);
}

SL_TEST(a_file_that_was_changed_is_not_given)
{
    ck_assert_int_eq(load(uri_of(0), "shared", "", sha256_of(data)), 0);
    chmod(at("shared"), 0755);
    chmod(at("shared/m.bin"), 0644);
    int fd = open(at("shared/m.bin"), O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, "x", 1, BYTES / 2), 1);
    close(fd);
    share(at("shared"));
    must_load(uri_of(0), data, false, 1);
}

/* A link may name another object by its query. */
SL_TEST(a_url_with_a_query_is_no_name)
{
    const char *uri = sl_server_url(origin, "/bucket/m.bin?object=2");
    ck_assert_int_eq(load(uri, "shared", "", sha256_of(data)), 0);
    share(at("shared"));
    must_load(uri, data, false, 1);
    must_load(uri_of(1), data, false, 1);
}

/* Tensors of a file that are laid out anew are no object of the store. */
SL_TEST(what_was_made_of_an_object_is_not_the_object)
{
    size_t bytes;
    uint8_t digest[SL_HASH_BYTES_MAX];
    char more[512], hex[65], laid_out[SL_SCRATCH_PATH_BYTES + 128];
    snprintf(laid_out, sizeof(laid_out),
             "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\ntensors: {include: [a, b]}\n",
             at("shared"));
    sl_autofree uint8_t *model = sl_model_safetensors("a,b,c,d", 8 * BLOCK, &bytes);
    sl_server_put(origin, "/bucket/model.safetensors", model, bytes, "\"v1\"");
    ck_assert_int_eq(load("s3://bucket/model.safetensors", "shared", "", laid_out), 0);
    share(at("shared"));
    sl_digest_of(SL_HASH_SHA256, NULL, 0, model, bytes, digest, NULL);
    sl_hex(digest, 32, hex);
    snprintf(more, sizeof(more), "verify: {sha256: {model.safetensors: %s}}\n", hex);
    ck_assert_msg(load("s3://bucket/model.safetensors", "copy", through(), more) == 0, "%s",
                  err.message);
    ck_assert(sl_model_same(at("copy"), "model.safetensors", model, bytes));
    ck_assert_uint_eq(result.cached, 0);
}

/* A daemon's address, where no files are shared. */
SL_TEST(who_shares_nothing_says_so)
{
    const struct sl_web_config config = {.listen = "127.0.0.1:0"};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
    must_load(uri_of(0), data, false, 1);
}

static bool prepare(void)
{
    sl_test_environment();
    unsetenv("SLUICE_THROUGH");
    return true;
}

SL_CASE(.seconds = 60, .setup = setup, .teardown = teardown, .prepare = prepare)

/* Loads that have their store fetch the objects into its cache: which requests say so, and that
 * none of them can harm the load. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_server.h"
#include "s3_store.h"
#include "scratch.h"
#include "stores.h"

enum { BYTES = 300 * 1000 };
static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_server *server;
static uint8_t *data;
static struct sl_err err;
static struct {
    int status;             /* of a HEAD */
    unsigned heads, wanted; /* ranges are refused as by a busy store until so many came */
    bool a, b, version;     /* was asked for; of a.bin, one version */
} mock;

static void list(struct sl_server_reply *reply)
{
    char text[600];
    snprintf(text, sizeof(text),
             "<ListBucketResult><IsTruncated>false</IsTruncated>"
             "<Contents><Key>m/a.bin</Key><Size>%d</Size><ETag>&quot;e&quot;</ETag></Contents>"
             "<Contents><Key>m/b+.bin</Key><Size>%d</Size><ETag>&quot;e&quot;</ETag></Contents>"
             "</ListBucketResult>",
             BYTES, BYTES);
    reply->body = strdup(text);
    reply->body_bytes = strlen(text);
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    char value[1024] = "";
    (void)arg;
    if (strstr(request->target, "list-type=2")) {
        list(reply);
        return true;
    }
    if (strcmp(request->method, "HEAD") != 0) {
        reply->status = 503;
        return mock.heads < mock.wanted;
    }
    mock.heads++;
    mock.a |= strcmp(request->target, "/bucket/m/a.bin") == 0;
    mock.version |= strcmp(request->target, "/bucket/m/a.bin?versionId=v1") == 0;
    mock.b |= strcmp(request->target, "/bucket/m/b%2B.bin") == 0;
    ck_assert(sl_server_header(request, "Range", value, sizeof(value)));
    ck_assert_str_eq(value, "bytes=0-0");
    ck_assert(sl_server_header(request, "Authorization", value, sizeof(value)));
    ck_assert_msg(strstr(value, ";range;"), "%s", value);
    reply->status = mock.status;
    snprintf(reply->headers, sizeof(reply->headers), "Content-Range: bytes 0-0/%d\r\n", BYTES);
    return true;
}

static void setup(void)
{
    clearenv();
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    server = sl_server_start();
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    setenv("AWS_ACCESS_KEY_ID", "k", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s", 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    data = sl_model_noise(BYTES, 6);
    sl_server_put(server, "/bucket/m/a.bin", data, BYTES, "\"e\"");
    sl_server_put(server, "/bucket/m/b%2B.bin", data, BYTES, "\"e\"");
    sl_server_handle(server, answer, NULL);
    memset(&mock, 0, sizeof(mock));
    mock.status = 206;
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(data);
}

static void expect_load(const char *more)
{
    struct sl_specs specs;
    char text[256];
    snprintf(text, sizeof(text), "source: {uri: \"s3://bucket/m/\"%s}\nreaders: {attempts: 100}\n",
             more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, NULL, &err);
    sl_specs_release(&specs);
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert(sl_model_same(path, "a.bin", data, BYTES));
    ck_assert(sl_model_same(path, "b+.bin", data, BYTES));
}

SL_TEST(each_object_is_asked_for_while_the_load_reads)
{
    mock.wanted = 2;
    expect_load(", s3: {prestage: true}");
    ck_assert_uint_eq(mock.heads, 2);
    ck_assert(mock.a && mock.b);
}

SL_TEST(a_store_that_refuses_it_is_read_all_the_same)
{
    mock.wanted = 1;
    mock.status = 403;
    expect_load(", s3: {prestage: true}");
    ck_assert_uint_eq(mock.heads, 1); /* the first refusal ends it */
}

SL_TEST(nothing_is_asked_for_unless_the_user_says_so)
{
    expect_load("");
    expect_load(", s3: {prestage: false}");
    ck_assert_uint_eq(mock.heads, 0);
}

/* What has been published is not fetched again, by anybody. */
SL_TEST(a_model_that_is_there_is_not_asked_for)
{
    expect_load("");
    expect_load(", s3: {prestage: true}");
    ck_assert_uint_eq(mock.heads, 0);
}

SL_TEST(a_version_is_asked_for_as_it_is_read)
{
    static const char *const names[] = {"a.bin"};
    struct sl_s3_options s3 = {.prestage = true};
    struct sl_source_config config = {.options = {{&sl_s3_table, &s3}}};
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open("s3://bucket/m/a.bin?versionId=v1", &config, &store, &key, &err),
                     0);
    ck_assert_int_eq(sl_store_advice(store).prestage(store, names, 1, NULL, &err), 0);
    ck_assert(mock.version && mock.heads == 1);
}

SL_TEST(it_ends_when_it_is_stopped)
{
    static const char *const names[] = {"a.bin", "b+.bin"};
    struct sl_s3_options s3 = {.prestage = true};
    struct sl_source_config config = {.options = {{&sl_s3_table, &s3}}};
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    struct sl_cancel *stop = sl_cancel_new(&err);
    ck_assert_int_eq(sl_store_open("s3://bucket/m/", &config, &store, &key, &err), 0);
    ck_assert_int_eq(sl_store_advice(store).prestage(store, names, 2, stop, &err), 0);
    ck_assert_uint_eq(mock.heads, 2);
    sl_cancel_raise(stop, 0);
    ck_assert_int_eq(sl_store_advice(store).prestage(store, names, 2, stop, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    ck_assert_uint_eq(mock.heads, 2);
    sl_cancel_free(stop);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)

/* Rows of stores: that the program's hang together, and that one more (toy_store.c) is all that a
 * store takes: spec, schema, reference, initializer, loads and conversions find it. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "cli_flags.h"
#include "convert_case.h"
#include "hash.h"
#include "plan.h"
#include "range_blob.h"
#include "storage_uri.h"
#include "stores.h"
#include "toy_store.h"

static struct sl_server *server;
static char uri[128];

static void setup(void)
{
    ck_assert_int_eq(sl_stores_register(&sl_toy_store, NULL), 0);
    sl_case_setup();
    server = sl_server_start();
    snprintf(uri, sizeof(uri), "toy://127.0.0.1:%u/models/", sl_server_port(server));
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_case_teardown();
}

/* ---- rows ----------------------------------------------------------------------------------- */

SL_TEST(rows_say_what_they_can)
{
    const struct sl_store_kind *kind;
    size_t count = 0;
    for (; (kind = sl_stores_at(count)); count++) {
        ck_assert_msg(kind->name && kind->schemes[0] && kind->example && kind->help, "%s",
                      kind->name);
        ck_assert_msg(kind->open && kind->close && kind->locate && kind->transport, "%s",
                      kind->name);
        ck_assert_msg(!kind->traits.listing || kind->list, "%s", kind->name);
        ck_assert_msg(!kind->options || kind->options_help, "%s", kind->name);
    }
    ck_assert_uint_ge(count, 5);
}

SL_TEST(a_scheme_finds_its_row)
{
    static const struct {
        const char *uri, *name;
    } rows[] = {{"/a", "file"},        {"a:b", "file"},        {"file:/a", "file"},
                {"http://h/", "http"}, {"HTTPS://h/", "http"}, {"rediss://h/", "redis"},
                {"toy://h/x", "toy"},  {"toys://h/x", NULL},   {"://", "file"},
                {"s3:b/k", "file"},    {"memory:x", "memory"}, {"s3://b", "s3"}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const struct sl_store_kind *kind = sl_stores_find(rows[i].uri);
        ck_assert_msg((kind != NULL) == (rows[i].name != NULL), "%s", rows[i].uri);
        if (kind)
            ck_assert_str_eq(kind->name, rows[i].name);
    }
}

SL_TEST(two_rows_do_not_share_a_scheme)
{
    static const struct sl_store_kind taken = {.name = "other", .schemes = {"new", "https"}};
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_stores_register(&taken, &err), -1);
    ck_assert_int_eq(sl_stores_register(&sl_toy_store, &err), 0);
    ck_assert_ptr_null(sl_stores_find("new://x"));
}

/* ---- one more ------------------------------------------------------------------------------- */

static int parse(const char *source, struct sl_specs *specs, struct sl_buf *complaints)
{
    char text[512];
    struct sl_err err = SL_ERR_INIT;
    int bytes = snprintf(text, sizeof(text),
                         "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
                         "source: %s\nsink: {tmpfs: {path: /t}}\n",
                         source);
    return sl_spec_parse(text, (size_t)bytes, "m.yaml", NULL, 0, specs, complaints, &err);
}

SL_TEST(its_options_are_in_the_spec)
{
    sl_autobuf complaints = SL_BUF_INIT(65536);
    struct sl_specs specs = {0};
    ck_assert_int_eq(
        parse("{uri: 'toy://h/x', toy: {tokenFile: /f, revision: 3}}", &specs, &complaints), 0);
    const struct sl_toy_options *toy = sl_spec_store_options(specs.items, &sl_toy_table);
    ck_assert_str_eq(toy->token_file, "/f");
    ck_assert_uint_eq(toy->revision, 3);
    struct sl_source_config config;
    sl_spec_source_config(specs.items, NULL, NULL, &config);
    ck_assert_ptr_eq(sl_source_options(&config, &sl_toy_table), toy);
    sl_specs_release(&specs);
}

SL_TEST(mistakes_in_them_are_told)
{
    static const struct {
        const char *source, *says;
    } rows[] = {
        {"{uri: 'toy://h/x', toy: {revision: 12}}", "expected a number from 1 to 9, not '12'"},
        {"{uri: 'toy://h/x', toy: {revisio: 1}}", "in 'source.toy', did you mean 'revision'?"},
        {"{uri: 'toi://h/x'}", "'toi://' is not supported, did you mean 'toy://'?"},
        {"{uri: 'toy:///x'}", "'toy:///x' names no toy"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        sl_autobuf complaints = SL_BUF_INIT(65536);
        struct sl_specs specs = {0};
        ck_assert_int_eq(parse(rows[i].source, &specs, &complaints), -1);
        ck_assert_msg(strstr(sl_buf_string(&complaints), rows[i].says), "%s",
                      sl_buf_string(&complaints));
        sl_specs_release(&specs);
    }
}

SL_TEST(it_is_on_the_pages)
{
    sl_autobuf page = SL_BUF_INIT(1 << 20), schema = SL_BUF_INIT(1 << 20),
               sources = SL_BUF_INIT(1 << 20);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_spec_write_reference(&page, &err), 0);
    ck_assert_ptr_nonnull(
        strstr(page.data, "| `source.toy.revision` | number from 1 to 9 | `1` |"));
    ck_assert_int_eq(sl_spec_write_schema(&schema, &err), 0);
    ck_assert_ptr_nonnull(strstr(schema.data, "\"toy\": {"));
    ck_assert_ptr_nonnull(strstr(schema.data, "\"revision\": {"));
    ck_assert_int_eq(sl_cli_write_topic("sources", &sources, &err), 0);
    ck_assert_ptr_nonnull(strstr(sources.data, "| toy | `toy://host/m` | toys, for tests |"));
    ck_assert_ptr_nonnull(strstr(sources.data, "## `source.toy`"));
}

SL_TEST(the_initializer_takes_it)
{
    struct sl_storage_uri parsed;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_storage_uri_parse("sluice+toy://h/x/", &parsed, &err), 0);
    ck_assert_ptr_eq(parsed.store, &sl_toy_store);
    sl_storage_uri_release(&parsed);
    ck_assert_int_eq(sl_storage_uri_parse("toi://h/x/", &parsed, &err), -1);
    ck_assert_msg(strstr(err.message, "toy://") != NULL, "%s", err.message);
}

struct toy {
    size_t bytes;
    char sha256[65];
};

static struct toy toy_of(const uint8_t *data, size_t bytes)
{
    struct toy toy = {.bytes = bytes};
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    sl_sha256_update(sha, data, bytes);
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), toy.sha256);
    return toy;
}

/* The server of a toy: a listing, and an object that lies elsewhere. */
static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    const struct toy *toy = arg;
    if (strcmp(request->target, "/3/models/") == 0) {
        reply->body = sl_asprintf(NULL, "%zu \"v1\" %s m.safetensors\n", toy->bytes, toy->sha256);
        reply->body_bytes = strlen(reply->body);
    } else if (strcmp(request->target, "/3/models/m.safetensors") == 0) {
        reply->status = 302;
        snprintf(reply->headers, sizeof(reply->headers), "X-Toy: 1\r\nLocation: /cdn/m\r\n");
    } else {
        return false;
    }
    return true;
}

SL_TEST(it_is_listed_and_converted)
{
    static const char *const words[] = {"source.toy.revision=3", NULL};
    size_t bytes;
    char to[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct toy toy = toy_of(data, bytes);
    sl_server_put(server, "/cdn/m", data, bytes, "\"v1\"");
    sl_server_handle(server, answer, &toy);
    sl_case_expect(uri, sl_case_path("out/", to), &sl_case_tensorizer, words);
    sl_case_same("memory:model", NULL, sl_case_path("out/model.tensors", to), NULL);
    char one[sizeof(uri) + 32];
    snprintf(one, sizeof(one), "%sm.safetensors", uri);
    sl_case_expect(one, sl_case_path("one.tensors", to), &sl_case_tensorizer, words);
    sl_case_same("memory:model", NULL, to, NULL);
    free(data);
}

/* What a listing says of an object's bytes and of its version comes to the checks and the sources.
 */
SL_TEST(hashes_and_pins_of_a_listing_are_used)
{
    static const char *const words[] = {"source.toy.revision=3", "sink.tmpfs.layout=verbatim",
                                        "verify.hashes=all", NULL};
    size_t bytes;
    uint8_t *data = sl_case_model(&bytes), digest[32];
    struct toy toy = toy_of(data, bytes);
    struct sl_specs specs;
    struct sl_source_config config;
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_plan) plan = NULL;
    unsigned found = 0;
    sl_server_put(server, "/cdn/m", data, bytes, "\"v1\"");
    sl_server_handle(server, answer, &toy);
    sl_case_spec(&specs, uri, words);
    sl_spec_source_config(specs.items, NULL, NULL, &config);
    const struct sl_plan_output wanted = sl_plan_output_of_spec(specs.items);
    int done = sl_plan_make(specs.items, &wanted, &config, &plan, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert_int_eq(sl_unhex(toy.sha256, digest, sizeof(digest)), 0);
    for (size_t i = 0; i < plan->check_count; i++)
        found += plan->checks[i].kind == SL_HASH_SHA256 && plan->checks[i].end == bytes &&
                 memcmp(plan->checks[i].expected, digest, sizeof(digest)) == 0;
    ck_assert_uint_eq(found, 1);
    sl_plan_free(sl_steal(&plan));
    sl_specs_release(&specs);
    free(data);
}

/* An object that is not looked into is known by the listing alone, with its pin. */
SL_TEST(a_pin_is_a_version)
{
    const struct sl_version pinned = {.pin = "revision 3"}, none = {.etag = ""};
    ck_assert(sl_version_is_known(&pinned));
    ck_assert(!sl_version_is_known(&none));
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    struct sl_store *store = NULL;
    char data[4];
    sl_server_put(server, "/1/models/m", "toys", 4, "\"v1\"");
    ck_assert_int_eq(sl_store_open(uri, NULL, &store, &key, NULL), 0);
    ck_assert_int_eq(sl_source_known(store, "m", 4, &pinned, &source, NULL), 0);
    ck_assert_int_eq(sl_source_read(source, 0, data, 4, NULL), 0);
    ck_assert_mem_eq(data, "toys", 4);
    sl_source_free(sl_steal(&source));
    ck_assert_int_eq(sl_source_open(store, "m", 4, &source, NULL), 0);
    sl_source_free(sl_steal(&source));
    sl_store_free(store);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

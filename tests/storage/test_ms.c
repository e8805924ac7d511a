/* Repositories of ModelScope: one listing for all, its SHA-256s, large files by links and small
 * ones cut out of whole answers, tokens for the hub alone, and what its refusals mean. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fake_clock.h"
#include "http_case.h"
#include "ms_hub.h"
#include "ms_store.h"
#include "store_kind.h"
#include "stores.h"

static struct sl_ms_hub hub;
static struct sl_ms_options options;
static struct sl_source_config config;
static uint8_t small[3000];
static const char files_at[] = "/api/v1/models/org/name/repo?",
                  listing_at[] = "/api/v1/models/org/name/repo/files?",
                  model[] = "ms://org/name/model.safetensors";

static void setup(void)
{
    for (size_t i = 0; i < sizeof(small); i++)
        small[i] = (uint8_t)(7 * i);
    sl_ms_hub_start(&hub);
    sl_ms_hub_put(&hub, "config.json", small, sizeof(small), false);
    sl_ms_hub_put(&hub, "model.safetensors", sl_blob(), SL_BLOB_BYTES, true);
    sl_ms_hub_put(&hub, "sub/a b%&.bin", sl_blob(), SL_BLOB_BYTES, true);
    sl_ms_hub_put(&hub, "empty.txt", "", 0, false);
    sl_ms_hub_put(&hub, "merges.txt", sl_blob(), SL_BLOB_BYTES, false);
    options = (struct sl_ms_options){.endpoint = strdup(sl_server_url(hub.origin, ""))};
    config = (struct sl_source_config){.attempts = 3,
                                       .stall_seconds = 20,
                                       .hedge = SL_HEDGE_OFF,
                                       .options[0] = {&sl_ms_table, &options}};
}

static void teardown(void)
{
    ck_assert_uint_eq(hub.leaked_tokens, 0);
    sl_ms_hub_stop(&hub);
    free(options.endpoint);
}

static int read_model(const char *uri, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(uri, &config, 1000, 400000, err);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

SL_TEST(a_repository_is_listed_once_and_a_link_asked_for_once)
{
    struct sl_err err;
    ck_assert_msg(read_model(model, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_ms_hub_count(&hub, listing_at), 1);
    ck_assert_uint_eq(sl_ms_hub_count(&hub, files_at), 1);
    ck_assert_uint_eq(sl_server_request_count(hub.origin), 2);
    ck_assert_uint_eq(hub.links, 1);
}

SL_TEST_LOOP(every_way_to_write_a_file_is_read, 0, 5)
{
    static const char *const uris[] = {
        "ms://org/name@master/model.safetensors",
        "modelscope://org/name/model.safetensors",
        "modelscope://org/name:master/sub/a b%&.bin",
        "MS://models/org/name/model.safetensors",
        "ms://org/name/merges.txt",
    };
    struct sl_err err;
    ck_assert_msg(read_model(uris[_i], &err) == 0, "%s", err.message);
}

static const struct {
    const char *uri, *says;
} bad_uris[] = {
    {"ms://name", "names no repository"},      {"ms:///x/y", "names no repository"},
    {"modelscope://org/", "ms://ORG/NAME"},    {"ms://org/name@", "names no revision"},
    {"ms://org/name/../x", "an invalid path"}, {"ms://org/name@a%20b/x", "a blank"},
};

SL_TEST_LOOP(what_is_no_repository_is_refused, 0, (int)SL_COUNT(bad_uris))
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_source_check_uri(bad_uris[_i].uri, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, bad_uris[_i].says) != NULL, "%s", err.message);
}

SL_TEST_LOOP(the_hub_is_found_where_the_client_finds_it, 0, 5)
{
    static const char *const rows[][3] = {
        {"MODELSCOPE_ENDPOINT", "http://127.0.0.1:1/", "http://127.0.0.1:1"},
        {"MODELSCOPE_DOMAIN", "hub.test", "https://hub.test"},
        {"MODELSCOPE_DOMAIN", "http://127.0.0.1:2", "http://127.0.0.1:2"},
        {"MODELSCOPE_PREFER_AI_SITE", "true", "https://www.modelscope.ai"},
        {"MODELSCOPE_DOMAIN", " ", "https://www.modelscope.cn"},
    };
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    setenv(rows[_i][0], rows[_i][1], 1);
    ck_assert_int_eq(sl_store_open(model, NULL, &store, &key, &err), 0);
    ck_assert_str_eq(((struct sl_ms *)store->impl)->endpoint, rows[_i][2]);
}

/* ---- what it lists --------------------------------------------------------------------------- */

struct seen {
    char names[4096];
    unsigned count, hashed, pinned;
};

static int note(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct seen *seen = arg;
    (void)err;
    size_t used = strlen(seen->names);
    if (seen->count++ < 20)
        snprintf(seen->names + used, sizeof(seen->names) - used, "%s ", entry->name);
    seen->hashed += entry->sums && entry->sums->items[0].kind == SL_HASH_SHA256;
    seen->pinned += entry->pin && strlen(entry->pin) == 64;
    return 0;
}

static int list(const char *uri, struct seen *seen, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    *seen = (struct seen){.names = ""};
    *err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_store_open(uri, &config, &store, &key, err), 0);
    return sl_store_list(store, note, seen, err);
}

SL_TEST(files_are_listed_with_their_hashes)
{
    struct seen seen;
    struct sl_err err;
    ck_assert_msg(list("ms://org/name", &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.names,
                     "config.json empty.txt merges.txt model.safetensors sub/a b%&.bin ");
    ck_assert(seen.hashed == 5 && seen.pinned == 5);
    ck_assert_msg(list("ms://org/name/sub/", &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.names, "a b%&.bin ");
    ck_assert_int_eq(list("ms://org/name/none/", &seen, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
}

/* The hub leaves out what is beyond 3000 entries without a word. */
SL_TEST(no_file_of_a_large_repository_is_left_out)
{
    struct seen seen;
    struct sl_err err;
    hub.many = 5000;
    ck_assert_msg(list("ms://org/name", &seen, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(seen.count, 5005);
    hub.many = 6010;
    ck_assert_int_eq(list("ms://org/name", &seen, &err), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT && strstr(err.message, "3000 entries"), "%s",
                  err.message);
}

#define LIST(files) "{\"Code\": 200, \"Data\": {\"Files\": " files "}}"
static const struct {
    const char *listing, *says;
    enum sl_err_kind kind;
} hostile[] = {
    {"[", "cannot list", SL_E_FORMAT},
    {"{}", "is this a ModelScope hub?", SL_E_FORMAT},
    {LIST("7"), "not a list of files", SL_E_FORMAT},
    {LIST("[7]"), "no type or no path", SL_E_FORMAT},
    {LIST("[{\"Type\": \"blob\", \"Path\": \"a\", \"Size\": -1}]"), "not a number", SL_E_FORMAT},
    {LIST("[{\"Type\": \"blob\", \"Path\": \"a\", \"Size\": \"1\"}]"), "not a number", SL_E_FORMAT},
    {LIST("[{\"Type\": \"blob\", \"Path\": \"a\", \"Size\": 1, \"Sha256\": \"00\"}]"),
     "not 64 hex digits", SL_E_FORMAT},
    {LIST("[{\"Type\": \"blob\", \"Path\": \"a\", \"Size\": 9223372036854775807}]"), "1 EiB",
     SL_E_FORMAT},
    {LIST("[]"), "there is no file", SL_E_NOT_FOUND},
    {LIST("null"), "there is no file", SL_E_NOT_FOUND},
    {"{\"Code\": 404, \"Message\": \"gone\"}", "('gone')", SL_E_NOT_FOUND},
    {"{\"Code\": 10010205001, \"Message\": \"hidden\"}", "or it is private ('hidden')",
     SL_E_NOT_FOUND},
};

SL_TEST_LOOP(a_hostile_listing_is_refused, 0, (int)SL_COUNT(hostile))
{
    struct seen seen;
    struct sl_err err;
    hub.listing = hostile[_i].listing;
    ck_assert_int_eq(list("ms://org/name", &seen, &err), -1);
    ck_assert_msg(err.kind == hostile[_i].kind && strstr(err.message, hostile[_i].says), "%d: %s",
                  err.kind, err.message);
}

SL_TEST(names_outside_of_the_folder_are_refused)
{
    struct seen seen;
    struct sl_err err;
    hub.listing = LIST("[{\"Type\": \"blob\", \"Path\": \"other/a\", \"Size\": 1}]");
    ck_assert_int_eq(list("ms://org/name/sub/", &seen, &err), -1);
    ck_assert_msg(strstr(err.message, "below the folder") != NULL, "%s", err.message);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static struct sl_source *open_file(struct sl_store **store, const char *name, struct sl_err *err)
{
    struct sl_source *source = NULL;
    sl_autofree char *key = NULL;
    *err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_store_open("ms://org/name/", &config, store, &key, err), 0);
    ck_assert_msg(sl_source_open(*store, name, 10, &source, err) == 0, "%s", err->message);
    return source;
}

SL_TEST(a_range_is_cut_out_of_a_whole_answer)
{
    struct sl_err err;
    uint8_t data[1000];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = open_file(&store, "config.json", &err);
    ck_assert_uint_eq(sl_source_bytes(source), sizeof(small));
    ck_assert_str_eq(sl_source_version(source)->pin, hub.files[0].sha256);
    for (size_t at = 0; at < sizeof(small); at += sizeof(data)) {
        ck_assert_msg(sl_source_read(source, at, data, sizeof(data), &err) == 0, "%s", err.message);
        ck_assert_mem_eq(data, small + at, sizeof(data));
    }
}

SL_TEST(an_empty_file_costs_no_request)
{
    struct sl_err err;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = open_file(&store, "empty.txt", &err);
    ck_assert_uint_eq(sl_source_bytes(source), 0);
    ck_assert_uint_eq(sl_ms_hub_count(&hub, files_at), 0);
}

/* The listing is older than the file. */
SL_TEST(a_file_of_another_length_has_changed)
{
    struct sl_err err;
    uint8_t data[100];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = open_file(&store, "config.json", &err);
    hub.files[0].bytes--;
    ck_assert_int_eq(sl_source_read(source, 100, data, sizeof(data), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
}

SL_TEST_LOOP(a_host_that_tells_another_hash_has_another_file, 0, 2)
{
    struct sl_err err;
    uint8_t data[100];
    char headers[128];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = open_file(&store, "model.safetensors", &err);
    snprintf(headers, sizeof(headers), "X-Linked-ETag: \"%s\"\r\n", hub.files[_i ? 1 : 0].sha256);
    SL_SCRIPT(hub.cdn, {.headers = headers});
    ck_assert_int_eq(sl_source_read(source, 5000, data, sizeof(data), &err), _i ? 0 : -1);
    if (!_i)
        ck_assert_msg(err.kind == SL_E_INTEGRITY && strcmp(err.code, "changed") == 0, "%s",
                      err.message);
}

SL_TEST(a_link_that_expires_in_mid_load_is_asked_for_anew)
{
    struct sl_err err;
    uint8_t data[1000];
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = open_file(&store, "model.safetensors", &err);
    hub.oldest_link = 2;
    ck_assert_msg(sl_source_read(source, 5000, data, sizeof(data), &err) == 0, "%s", err.message);
    ck_assert_mem_eq(data, sl_blob() + 5000, sizeof(data));
    ck_assert_uint_eq(hub.links, 2);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

SL_TEST_LOOP(a_token_goes_to_the_hub_as_header_and_cookie, 0, 2)
{
    struct sl_err err;
    hub.token = "ms-secret";
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "MODELSCOPE_API_TOKEN") != NULL, "%s", err.message);
    if (_i)
        setenv("MODELSCOPE_API_TOKEN", " ms-secret\n", 1);
    else
        options.token_file = (char *)(uintptr_t)file_with("ms-secret\n");
    ck_assert_msg(read_model(model, &err) == 0, "%s", err.message);
    if (!_i)
        remove(options.token_file);
}

SL_TEST(a_renewed_token_file_is_read_again)
{
    struct sl_err err;
    uint8_t data[100];
    options.token_file = (char *)(uintptr_t)file_with("ms-old\n");
    hub.token = "ms-old";
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = open_file(&store, "config.json", &err);
    hub.token = "ms-new";
    FILE *file = fopen(options.token_file, "w");
    fputs("ms-new\n", file);
    fclose(file);
    ck_assert_msg(sl_source_read(source, 100, data, sizeof(data), &err) == 0, "%s", err.message);
    remove(options.token_file);
}

SL_TEST(a_token_does_not_go_over_plain_http_to_another_machine)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    free(options.endpoint);
    options.endpoint = strdup("http://hub.test");
    setenv("MODELSCOPE_API_TOKEN", "ms-secret", 1);
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_ptr_null(((struct sl_ms *)store->impl)->http.bearer_token);
    sl_store_free(sl_steal(&store));
    options.token_file = (char *)(uintptr_t) "/dev/null";
    free(sl_steal(&key));
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), -1);
    ck_assert_msg(err.kind == SL_E_AUTH && strstr(err.message, "plain http"), "%s", err.message);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static const struct {
    unsigned status;
    bool token;
    const char *headers, *body;
    enum sl_err_kind kind;
    const char *says;
} refusals[] = {
    {404, false, "", "{\"Message\": \"no model\"}", SL_E_NOT_FOUND,
     "or it is private ('no model'): check the name"},
    {403, false, "", "", SL_E_NOT_FOUND, "give a token by source.ms.tokenFile"},
    {404, true, "", "", SL_E_NOT_FOUND, "may not see it"},
    {401, true, "", "{\"Message\": \"bad token\"}", SL_E_AUTH,
     "refuses the token (from MODELSCOPE"},
    {403, true, "", "", SL_E_AUTH, "/my/myaccesstoken"},
    {429, false, "Retry-After: 0\r\n", "", SL_E_NET, "429"},
    {503, false, "", "<html>", SL_E_NET, "503"},
    {418, false, "", "{\"Message\": 7}", SL_E_USAGE, "418"},
};

SL_TEST_LOOP(a_refusal_says_what_to_do, 0, 2 * (int)SL_COUNT(refusals))
{
    struct sl_err err;
    int i = _i / 2;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    uint8_t data[100];
    if (refusals[i].token)
        setenv("MODELSCOPE_API_TOKEN", "ms-secret", 1);
    if (_i % 2) /* of a file, or of the listing */
        source = open_file(&store, "config.json", &err);
    hub.refuse_status = refusals[i].status;
    hub.refuse_headers = refusals[i].headers;
    hub.refuse_body = refusals[i].body;
    fake_clock_run();
    ck_assert_int_eq(_i % 2 ? sl_source_read(source, 100, data, sizeof(data), &err)
                            : read_model(model, &err),
                     -1);
    ck_assert_msg(err.kind == refusals[i].kind, "%d: %s", err.kind, err.message);
    ck_assert_int_eq(err.http_status, (int)refusals[i].status);
    ck_assert_msg(strstr(err.message, refusals[i].says) != NULL, "%s", err.message);
    ck_assert_msg(!strstr(err.message, "ms-secret"), "%s", err.message);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

/* Buckets of a hub: files without versions that are replaced where they are. What is read is one
 * content of each, the one that was listed or found, or nothing. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "hf_hub.h"
#include "hf_store.h"
#include "http_case.h"
#include "model_maker.h"
#include "stores.h"

static struct sl_hub hub;
static struct sl_hf_options options;
static struct sl_source_config config;
static uint8_t other[SL_BLOB_BYTES];
static const char model[] = "hf://buckets/org/name/model.safetensors";

static void setup(void)
{
    sl_hub_start(&hub);
    setenv("HF_TOKEN", "hf_secret", 1);
    setenv("HF_ENDPOINT", sl_hub_url(&hub), 1);
    hub.token = "hf_secret";
    memcpy(other, sl_blob(), sizeof(other));
    other[100] ^= 1;
    sl_hub_keep(&hub, "model.safetensors", sl_blob(), SL_BLOB_BYTES, NULL);
    options = (struct sl_hf_options){.xet = SL_XET_OFF};
    config = (struct sl_source_config){.attempts = 3,
                                       .stall_seconds = 20,
                                       .hedge = SL_HEDGE_OFF,
                                       .options[0] = {&sl_hf_table, &options}};
}

static void teardown(void)
{
    ck_assert_uint_eq(hub.leaked_tokens, 0);
    sl_hub_stop(&hub);
}

static int read_model(const char *uri, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_read_blob(uri, &config, 1000, 400000, err);
}

/* ---- one file -------------------------------------------------------------------------------- */

SL_TEST(a_file_is_found_once_and_pinned_to_its_content)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_msg(read_model(model, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/buckets/org/name/paths-info"), 1);
    ck_assert_uint_eq(sl_hub_count(&hub, SL_HUB_KEPT "model.safetensors"), 1);
    ck_assert_uint_eq(sl_server_request_count(hub.origin), 2);
    ck_assert_int_eq(sl_store_open(model, &config, &store, &key, &err), 0);
    ck_assert_str_eq(sl_store_uri(store), "hf://buckets/org/name/");
    ck_assert_str_eq(key, "model.safetensors");
    ck_assert_int_eq(sl_source_open(store, key, 10, &source, &err), 0);
    ck_assert_str_eq(sl_source_version(source)->pin, hub.kept[0].xet);
    ck_assert_str_eq(sl_source_version(source)->etag, "");
    ck_assert_uint_eq(sl_source_bytes(source), SL_BLOB_BYTES);
    ck_assert_ptr_null(sl_source_known_checksums(source)); /* X-Linked-Etag is none */
}

SL_TEST(odd_names_are_asked_for_as_they_are)
{
    struct sl_err err;
    sl_hub_keep(&hub, "a folder/100% \xc3\xa4#b?.bin", sl_blob(), SL_BLOB_BYTES, NULL);
    ck_assert_msg(read_model("hf://buckets/org/name/a folder/100% \xc3\xa4#b?.bin", &err) == 0,
                  "%s", err.message);
}

SL_TEST(an_empty_file_is_read_without_a_request_for_its_bytes)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    hub.tree = "[{\"type\": \"file\", \"path\": \"e\", \"size\": 0, \"xetHash\": null}]";
    ck_assert_int_eq(sl_store_open("hf://buckets/org/name/e", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_source_open(store, key, 10, &source, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(sl_source_bytes(source), 0);
    ck_assert(sl_version_is_known(sl_source_version(source)));
    ck_assert_uint_eq(sl_hub_count(&hub, SL_HUB_KEPT), 0);
}

SL_TEST(a_file_that_is_not_there_is_missing)
{
    struct sl_err err;
    ck_assert_int_eq(read_model("hf://buckets/org/name/model", &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_str_eq(err.code, "EntryNotFound");
    ck_assert_msg(strstr(err.message, "cannot open 'hf://buckets/org/name/model': the bucket has "
                                      "no such file; a folder is written with '/' at its end"),
                  "%s", err.message);
}

SL_TEST_LOOP(a_refusal_speaks_of_a_bucket, 0, 2)
{
    struct sl_err err;
    hub.token = NULL;
    hub.refuse_status = _i ? 404 : 401;
    hub.refuse_headers = _i ? "X-Error-Code: RepoNotFound\r\n" : "";
    if (_i == 0)
        unsetenv("HF_TOKEN");
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "there is no such bucket"), "%s", err.message);
    ck_assert_msg(!strstr(err.message, "gated"), "%s", err.message);
}

/* ---- files that are replaced ----------------------------------------------------------------- */

struct opened {
    struct sl_store *store;
    struct sl_source *source;
    char *key;
};

static void open_model(struct opened *opened)
{
    struct sl_err err = SL_ERR_INIT;
    *opened = (struct opened){.store = NULL};
    ck_assert_int_eq(sl_store_open(model, &config, &opened->store, &opened->key, &err), 0);
    ck_assert_msg(sl_source_open(opened->store, opened->key, 10, &opened->source, &err) == 0, "%s",
                  err.message);
}

static void close_model(struct opened *opened)
{
    sl_source_free(opened->source);
    sl_store_free(opened->store);
    free(opened->key);
}

static int read_part(struct sl_source *source, const uint8_t *expected, struct sl_err *err)
{
    uint8_t data[1000];
    *err = (struct sl_err)SL_ERR_INIT;
    int result = sl_source_read(source, 50, data, sizeof(data), err);
    if (result == 0)
        ck_assert_mem_eq(data, expected + 50, sizeof(data));
    return result;
}

/* A link leads to the content that it was given for, until it ends: then there is no other. */
SL_TEST(a_replaced_file_is_read_to_the_end_of_its_link_and_no_further)
{
    struct sl_err err;
    struct opened opened;
    open_model(&opened);
    sl_hub_keep(&hub, "model.safetensors", other, sizeof(other), NULL);
    ck_assert_msg(read_part(opened.source, sl_blob(), &err) == 0, "%s", err.message);
    hub.oldest_link = hub.links + 1;
    ck_assert_int_eq(read_part(opened.source, sl_blob(), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
    ck_assert_msg(strstr(err.message, "it was replaced meanwhile"), "%s", err.message);
    close_model(&opened);
}

/* In one store: the link of the older content is not the newer's. */
SL_TEST(whoever_opens_a_replaced_file_reads_the_new_one)
{
    struct sl_err err;
    struct opened opened;
    struct sl_source *newer = NULL;
    open_model(&opened);
    sl_hub_keep(&hub, "model.safetensors", other, sizeof(other), NULL);
    ck_assert_int_eq(sl_source_open(opened.store, opened.key, 10, &newer, &err), 0);
    ck_assert_msg(read_part(newer, other, &err) == 0, "%s", err.message);
    ck_assert_msg(read_part(opened.source, sl_blob(), &err) == 0, "%s", err.message);
    sl_source_free(newer);
    close_model(&opened);
}

static int keep_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct sl_version *version = arg;
    (void)err;
    snprintf(version->pin, sizeof(version->pin), "%s", entry->pin);
    return 0;
}

SL_TEST(what_is_replaced_after_the_listing_is_a_change)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_version version = {.pin = ""};
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open("hf://buckets/org/name", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, keep_entry, &version, &err) == 0, "%s", err.message);
    ck_assert_str_eq(version.pin, hub.kept[0].xet);
    sl_hub_keep(&hub, "model.safetensors", other, sizeof(other), NULL);
    ck_assert_int_eq(
        sl_source_known(store, "model.safetensors", SL_BLOB_BYTES, &version, &source, &err), 0);
    ck_assert_int_eq(read_part(source, sl_blob(), &err), -1);
    ck_assert_str_eq(err.code, "changed");
    ck_assert_uint_eq(sl_server_request_count(hub.cdn), 0);
}

/* What was listed is what is opened, and costs no question. */
SL_TEST(a_listed_file_is_not_asked_for)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_version version = {.pin = ""};
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    SL_AUTO(sl_source) added = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open("hf://buckets/org/name", &config, &store, &key, &err), 0);
    ck_assert_msg(sl_store_list(store, keep_entry, &version, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_source_open(store, "model.safetensors", 10, &source, &err), 0);
    ck_assert_str_eq(sl_source_version(source)->pin, version.pin);
    ck_assert_uint_eq(sl_source_bytes(source), SL_BLOB_BYTES);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/buckets/org/name/paths-info"), 0);
    sl_hub_keep(&hub, "added", "x", 1, NULL);
    ck_assert_int_eq(sl_source_open(store, "added", 10, &added, &err), 0);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/buckets/org/name/paths-info"), 1);
}

/* ---- hubs that do not say which content ------------------------------------------------------ */

SL_TEST(a_link_without_the_content_it_leads_to_is_not_followed)
{
    struct sl_err err;
    hub.silent = true;
    ck_assert_int_eq(read_model(model, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_str_eq(err.code, "unversioned");
    ck_assert_msg(strstr(err.message, "X-Xet-Hash is missing"), "%s", err.message);
    ck_assert_uint_eq(sl_server_request_count(hub.cdn), 0);
    ck_assert_uint_eq(hub.links, 1);
}

/* The hub gives the bytes itself: of the right content, of another, of which nobody says. */
SL_TEST_LOOP(bytes_of_the_hub_itself_are_held_to_the_content, 0, 3)
{
    static const char *const codes[] = {"", "changed", "unversioned"};
    struct sl_err err;
    char headers[128] = "";
    if (_i < 2)
        snprintf(headers, sizeof(headers), "X-Xet-Hash: %s\r\n", hub.kept[0].xet);
    if (_i == 1)
        headers[20] = headers[20] == '0' ? '1' : '0';
    hub.direct = true;
    sl_server_put(hub.origin, SL_HUB_KEPT "model.safetensors", sl_blob(), SL_BLOB_BYTES, NULL);
    SL_SCRIPT(hub.origin, {.path = SL_HUB_KEPT "model.safetensors", .headers = headers});
    ck_assert_int_eq(read_model(model, &err), _i ? -1 : 0);
    ck_assert_str_eq(err.code, codes[_i]);
}

/* ---- listings -------------------------------------------------------------------------------- */

struct seen {
    char names[1024];
    unsigned pinned;
};

static int note(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct seen *seen = arg;
    (void)err;
    size_t used = strlen(seen->names);
    snprintf(seen->names + used, sizeof(seen->names) - used, "%s ", entry->name);
    seen->pinned += strlen(entry->pin) == 64 && !entry->sums;
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

SL_TEST_LOOP(every_page_is_read, 0, 3)
{
    static const unsigned pages[] = {1, 2, 0};
    struct seen seen;
    struct sl_err err;
    sl_hub_keep(&hub, "c/d e.txt", "x", 1, NULL);
    sl_hub_keep(&hub, "empty", "", 0, NULL);
    hub.page_entries = pages[_i];
    ck_assert_msg(list("hf://buckets/org/name", &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.names, "model.safetensors c/d e.txt empty ");
    ck_assert_uint_eq(seen.pinned, 3);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/buckets/org/name/tree?recursive=true"),
                      pages[_i] ? (3 + pages[_i] - 1) / pages[_i] : 1);
}

/* The hub takes a folder for the beginning of a path. */
SL_TEST(a_folder_has_nothing_of_its_neighbours)
{
    struct seen seen;
    struct sl_err err;
    sl_hub_keep(&hub, "step 1/a.bin", "x", 1, NULL);
    sl_hub_keep(&hub, "step 10/b.bin", "y", 1, NULL);
    sl_hub_keep(&hub, "step 1", "z", 1, NULL);
    ck_assert_msg(list("hf://buckets/org/name/step 1/", &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.names, "a.bin ");
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/buckets/org/name/tree/step%201?recursive=true"), 1);
    ck_assert_int_eq(list("hf://buckets/org/name/step/", &seen, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_msg(strstr(err.message, "there is no file below"), "%s", err.message);
}

static const char *const hostile[] = {
    "[{\"type\": \"file\", \"size\": 1, \"path\": \"a\"}]",
    "[{\"type\": \"file\", \"size\": 1, \"path\": \"a\", \"xetHash\": null}]",
    "[{\"type\": \"file\", \"size\": 1, \"path\": \"a\", \"xetHash\": \"\"}]",
    "[{\"type\": \"file\", \"size\": 1, \"path\": \"a\", \"xetHash\": \"../../etc/passwd\"}]",
    "[{\"type\": \"file\", \"size\": 1, \"path\": \"a\", \"xetHash\": "
    "\"00000000000000000000000000000000000000000000000000000000000000000\"}]",
    "[{\"type\": \"file\", \"size\": -1, \"path\": \"a\", \"xetHash\": "
    "\"0000000000000000000000000000000000000000000000000000000000000000\"}]",
    "{\"error\": \"no\"}",
    "[",
};

SL_TEST_LOOP(a_hostile_listing_is_refused, 0, 2 * (int)SL_COUNT(hostile))
{
    struct seen seen;
    struct sl_err err;
    hub.tree = hostile[_i / 2];
    ck_assert_int_eq(_i % 2 ? read_model("hf://buckets/org/name/a", &err)
                            : list("hf://buckets/org/name", &seen, &err),
                     -1);
    ck_assert_msg(err.kind == SL_E_FORMAT, "%d: %s", err.kind, err.message);
}

/* ---- plans ----------------------------------------------------------------------------------- */

SL_TEST(the_cache_of_the_hubs_client_has_no_buckets)
{
    struct sl_specs specs;
    struct sl_plan *made = NULL;
    struct sl_err err = SL_ERR_INIT;
    struct sl_source_config usual;
    sl_model_spec(&specs, "hf://buckets/org/name", "/nowhere", "verify: {hashes: 'off'}\n");
    specs.items->sink.tmpfs.layout = SL_LAYOUT_HF_CACHE;
    sl_spec_source_config(specs.items, NULL, NULL, &usual);
    const struct sl_plan_output wish = sl_plan_output_of_spec(specs.items);
    ck_assert_int_eq(sl_plan_make(specs.items, &wish, &usual, &made, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "for repositories of a hub"), "%s", err.message);
    sl_specs_release(&specs);
}

/* ---- memory ---------------------------------------------------------------------------------- */

SL_TEST(every_allocation_may_fail)
{
    unsigned failed = 0, nth = 1;
    config.attempts = 1;
    for (;; nth++) {
        struct sl_err err = SL_ERR_INIT;
        uint8_t data[3000];
        SL_AUTO(sl_store) store = NULL;
        SL_AUTO(sl_source) source = NULL;
        sl_autofree char *key = NULL;
        struct seen seen = {.names = ""};
        sl_alloc_fail_at(nth);
        int result = sl_store_open(model, &config, &store, &key, &err);
        if (result == 0)
            result = sl_store_list(store, note, &seen, &err);
        if (result == 0)
            result = sl_source_open(store, key, 10, &source, &err);
        if (result == 0)
            result = sl_source_read(source, 99000, data, sizeof(data), &err);
        bool over = sl_alloc_count() < nth;
        sl_alloc_fail_at(0);
        failed += result < 0;
        if (result == 0)
            ck_assert_mem_eq(data, sl_blob() + 99000, sizeof(data));
        if (over)
            break;
    }
    ck_assert_uint_gt(failed, 20);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

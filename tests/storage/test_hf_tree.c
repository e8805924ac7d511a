/* A hub's tree: pages, hashes, what a hostile one holds, and what of a repository a load takes. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "hf_hub.h"
#include "hf_store.h"
#include "http_case.h"
#include "model_maker.h"
#include "stores.h"

static struct sl_hub hub;

static void setup(void)
{
    sl_hub_start(&hub);
    setenv("HF_ENDPOINT", sl_hub_url(&hub), 1);
}

static void teardown(void)
{
    sl_hub_stop(&hub);
}

static void put(const char *path, bool large)
{
    sl_hub_put(&hub, path, path, strlen(path), large);
}

struct seen {
    char names[4096];
    unsigned sha256, git, pinned;
};

static int note(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct seen *seen = arg;
    (void)err;
    size_t used = strlen(seen->names);
    snprintf(seen->names + used, sizeof(seen->names) - used, "%s ", entry->name);
    seen->sha256 += entry->sums && entry->sums->items[0].kind == SL_HASH_SHA256;
    seen->git += entry->sums && entry->sums->items[0].git;
    seen->pinned += strcmp(entry->pin, SL_HUB_COMMIT) == 0;
    return 0;
}

static int list(const char *uri, struct seen *seen, struct sl_err *err)
{
    static const struct sl_source_config once = {.attempts = 1, .hedge = SL_HEDGE_OFF};
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    *seen = (struct seen){.names = ""};
    *err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_store_open(uri, &once, &store, &key, err), 0);
    return sl_store_list(store, note, seen, err);
}

SL_TEST_LOOP(every_page_is_read, 0, 4)
{
    static const unsigned pages[] = {1, 2, 3, 0};
    struct seen seen;
    struct sl_err err;
    put("a.json", false);
    put("b.safetensors", true);
    put("c/d e.txt", false);
    hub.page_entries = pages[_i];
    ck_assert_msg(list("hf://org/name", &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.names, "a.json b.safetensors c/d e.txt ");
    ck_assert(seen.sha256 == 1 && seen.git == 2 && seen.pinned == 3);
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/models/org/name/tree/"),
                      pages[_i] ? (3 + pages[_i] - 1) / pages[_i] : 1);
}

#define TREE "/api/models/org/name/tree/" SL_HUB_COMMIT
#define NEXT "<http://hub.invalid" TREE "?recursive=true&cursor=0>; rel=\"next\"\r\n"

/* Behind another link that is as long as heads allow, and in a line of its own. */
SL_TEST_LOOP(the_next_page_is_found_wherever_it_stands, 0, 2)
{
    enum { LONG = 20000 };
    static const char *const lines[] = {"Link: <http://hub.invalid/%s>; rel=\"first\", " NEXT,
                                        "Link: </%.9s>; rel=preconnect\r\nLink: " NEXT};
    char far[LONG + 1] = "", headers[LONG + 1024];
    struct seen seen;
    struct sl_err err;
    memset(far, 'x', LONG);
    snprintf(headers, sizeof(headers), lines[_i], far);
    put("b.json", false);
    SL_SCRIPT(hub.origin, {.path = TREE,
                           .first = 1,
                           .fault = SL_FAULT_STATUS,
                           .status = 200,
                           .headers = headers,
                           .text = "[{\"type\": \"file\", \"size\": 1, \"path\": \"a.json\"}]",
                           .unhandled = true});
    ck_assert_msg(list("hf://org/name", &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.names, "a.json b.json ");
}

SL_TEST(a_folder_is_listed_alone)
{
    struct seen seen;
    struct sl_err err;
    put("c/d/e.txt", false);
    ck_assert_msg(list("hf://org/name/c/", &seen, &err) == 0, "%s", err.message);
    ck_assert_str_eq(seen.names, "d/e.txt ");
    ck_assert_uint_eq(sl_hub_count(&hub, "/api/models/org/name/tree/" SL_HUB_COMMIT "/c?"), 1);
}

static const struct {
    const char *tree, *next, *says;
    enum sl_err_kind kind;
} hostile[] = {
    {"{\"error\": \"no\"}", NULL, "not a tree of files", SL_E_FORMAT},
    {"[", NULL, "cannot list", SL_E_FORMAT},
    {"[7]", NULL, "no type or no path", SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 1}]", NULL, "no type or no path", SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 1, \"path\": \"\"}]", NULL, "no type or no path",
     SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": -1, \"path\": \"a\"}]", NULL, "is not a number", SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": \"1\", \"path\": \"a\"}]", NULL, "is not a number",
     SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 9223372036854775807, \"path\": \"a\"}]", NULL, "1 EiB",
     SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 1, \"path\": \"a\", \"oid\": \"xyz\"}]", NULL,
     "the SHA-1 of a file is not 40 hex digits", SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 1, \"path\": \"a\", \"lfs\": {\"oid\": \"00\"}}]", NULL,
     "the SHA-256 of a file is not 64 hex digits", SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 1, \"path\": \"a\\u0000b\"}]", NULL, "cannot list",
     SL_E_FORMAT},
    {"[]", NULL, "there is no file", SL_E_NOT_FOUND},
    {"[{\"type\": \"file\", \"size\": 1, \"path\": \"a\"}]",
     "/api/models/org/name/tree/" SL_HUB_COMMIT, "go in a circle", SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 1, \"path\": \"a\"}]", "ftp://elsewhere/",
     "next page is invalid", SL_E_FORMAT},
    {"[{\"type\": \"file\", \"size\": 1, \"path\": \"a\"}]", "/api/a b", "next page is invalid",
     SL_E_FORMAT},
};

SL_TEST_LOOP(a_hostile_tree_is_refused, 0, (int)SL_COUNT(hostile))
{
    struct seen seen;
    struct sl_err err;
    hub.tree = hostile[_i].tree;
    hub.next = hostile[_i].next;
    ck_assert_int_eq(list("hf://org/name", &seen, &err), -1);
    ck_assert_msg(err.kind == hostile[_i].kind && strstr(err.message, hostile[_i].says), "%d: %s",
                  err.kind, err.message);
}

/* ---- what a load takes ----------------------------------------------------------------------- */

static int plan(const char *more, struct sl_plan **made, struct sl_specs *specs, struct sl_err *err)
{
    struct sl_source_config config;
    *err = (struct sl_err)SL_ERR_INIT;
    *made = NULL;
    sl_model_spec(specs, "hf://org/name", "/nowhere/cache", more);
    sl_spec_source_config(specs->items, NULL, NULL, &config);
    const struct sl_plan_output wish = sl_plan_output_of_spec(specs->items);
    return sl_plan_make(specs->items, &wish, &config, made, err);
}

static const struct {
    const char *path, *says;
} names[] = {
    {"../x", "'..'"},      {"/etc/passwd", ""}, {"a//b", ""},
    {".sluice/ready", ""}, {"a/./b", ""},       {"a/.m.sluice-edit", ""},
};

SL_TEST_LOOP(a_hostile_name_is_refused, 0, (int)SL_COUNT(names))
{
    struct sl_specs specs;
    struct sl_plan *made;
    struct sl_err err;
    char tree[256];
    snprintf(tree, sizeof(tree), "[{\"type\": \"file\", \"size\": 1, \"path\": \"%s\"}]",
             names[_i].path);
    hub.tree = tree;
    ck_assert_int_eq(plan("", &made, &specs, &err), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT, "%d: %s", err.kind, err.message);
    sl_specs_release(&specs);
}

SL_TEST(a_name_that_comes_twice_is_refused)
{
    struct sl_specs specs;
    struct sl_plan *made;
    struct sl_err err;
    hub.tree = "[{\"type\": \"file\", \"size\": 1, \"path\": \"a\"}, "
               "{\"type\": \"file\", \"size\": 1, \"path\": \"a\"}]";
    ck_assert_int_eq(plan("", &made, &specs, &err), -1);
    ck_assert_msg(err.kind == SL_E_FORMAT && strstr(err.message, "twice"), "%s", err.message);
    sl_specs_release(&specs);
}

/* "a b " of the plan's files. */
static void expect_files(const char *const *paths, const char *expected)
{
    struct sl_specs specs;
    struct sl_plan *made;
    struct sl_err err;
    char text[1024] = "";
    for (; *paths; paths++)
        put(*paths, true);
    ck_assert_msg(plan("verify: {hashes: 'off'}\n", &made, &specs, &err) == 0, "%s", err.message);
    for (size_t i = 0; i < made->file_count; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s ", made->files[i].name);
    ck_assert_str_eq(text, expected);
    sl_plan_free(made);
    sl_specs_release(&specs);
}

static const struct {
    const char *paths[12], *taken;
} repositories[] = {
    {{"config.json", "model.safetensors", "original/params.json", "pytorch_model.bin",
      "pytorch_model.bin.index.json", "tf_model.h5", "x.gguf"},
     "config.json model.safetensors "},
    {{"model-1.safetensors", "consolidated.safetensors", "model.fp16.safetensors"},
     "model-1.safetensors model.fp16.safetensors "},
    {{"model.fp16.safetensors", "model.safetensors"}, "model.safetensors "},
    {{"pytorch_model.bin", "flax_model.msgpack", "training_args.bin"},
     "pytorch_model.bin training_args.bin "},
    {{"unet/model.bin", "unet/model.safetensors", "vae/model.bin"},
     "unet/model.safetensors vae/model.bin "},
    {{"original/model.safetensors"}, "original/model.safetensors "},
    {{"a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "mmproj-a.gguf"},
     "a-00001-of-00002.gguf a-00002-of-00002.gguf mmproj-a.gguf "},
    {{"onnx/model.onnx", "config.json"}, "config.json onnx/model.onnx "},
};

SL_TEST_LOOP(weights_are_taken_once, 0, (int)SL_COUNT(repositories))
{
    expect_files(repositories[_i].paths, repositories[_i].taken);
}

SL_TEST(several_gguf_models_are_for_the_user_to_choose)
{
    struct sl_specs specs;
    struct sl_plan *made;
    struct sl_err err;
    put("m-Q4.gguf", true);
    put("m-Q8.gguf", true);
    ck_assert_int_eq(plan("", &made, &specs, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "'m-Q4.gguf', 'm-Q8.gguf'") != NULL, "%s", err.message);
    sl_specs_release(&specs);
}

/* ---- layout hf-cache ------------------------------------------------------------------------- */

SL_TEST(a_cache_names_its_commit_last)
{
    struct sl_specs specs;
    struct sl_plan *made;
    struct sl_err err = SL_ERR_INIT;
    put("config.json", false);
    sl_model_spec(&specs, "hf://org/name", "/nowhere", "verify: {hashes: 'off'}\n");
    specs.items->sink.tmpfs.layout = SL_LAYOUT_HF_CACHE;
    struct sl_source_config config;
    sl_spec_source_config(specs.items, NULL, NULL, &config);
    struct sl_plan_output wish = sl_plan_output_of_spec(specs.items);
    ck_assert_msg(sl_plan_make(specs.items, &wish, &config, &made, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(made->file_count, 2);
    ck_assert_str_eq(made->files[0].name,
                     "models--org--name/snapshots/" SL_HUB_COMMIT "/config.json");
    ck_assert_str_eq(made->files[1].name, "models--org--name/refs/main");
    ck_assert_uint_eq(made->files[1].bytes, 40);
    ck_assert(made->literal_count == 1 && made->literals[0].file == 1 &&
              memcmp(made->literals[0].data, SL_HUB_COMMIT, 40) == 0);
    sl_plan_free(made);
    wish.cache = "/hub/models--org--name/";
    ck_assert_int_eq(sl_plan_make(specs.items, &wish, &config, &made, &err), 0);
    ck_assert_str_eq(made->files[0].name, "snapshots/" SL_HUB_COMMIT "/config.json");
    ck_assert_str_eq(made->files[1].name, "refs/main");
    sl_plan_free(made);
    sl_specs_release(&specs);
}

/* ---- many ------------------------------------------------------------------------------------ */

/* Each page names another one, and nothing is in them but folders. */
SL_TEST(a_listing_without_end_is_refused)
{
    struct seen seen;
    struct sl_err err;
    sl_autobuf tree = SL_BUF_INIT(SL_HF_PAGE_BYTES_MAX);
    sl_buf_text(&tree, "[", NULL);
    for (unsigned i = 0; i < 100000; i++)
        sl_buf_printf(&tree, NULL, "%s{\"type\": \"directory\", \"path\": \"d%u\"}", i ? "," : "",
                      i);
    sl_buf_text(&tree, "]", NULL);
    hub.tree = sl_buf_string(&tree);
    hub.endless = true;
    ck_assert_int_eq(list("hf://org/name", &seen, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    ck_assert_msg(strstr(err.message, "more than 1000000 entries"), "%s", err.message);
    ck_assert_uint_eq(hub.pages, 11);
}

SL_TEST(files_on_xet_are_noted_up_to_a_limit)
{
    struct sl_hf hf = {.store = NULL};
    struct sl_err err = SL_ERR_INIT;
    char name[32], hash[65];
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    static const struct sl_source_config usual = {.attempts = 1};
    ck_assert_int_eq(sl_store_open("hf://org/name", &usual, &store, &key, &err), 0);
    hf = *(struct sl_hf *)store->impl;
    snprintf(hash, sizeof(hash), "%064d", 1);
    for (int mode = 0; mode < 2; mode++) {
        SL_AUTO(sl_xet) xet = sl_xet_new(&hf, mode ? SL_XET_ON : SL_XET_AUTO, &err);
        int done = 0;
        unsigned i = 0;
        for (; done == 0 && i < 200000; i++) {
            snprintf(name, sizeof(name), "f%u", i);
            done = sl_xet_note(xet, "commit", name, hash, 1, &err);
        }
        ck_assert_int_eq(done, mode ? -1 : 0);
        ck_assert_ptr_nonnull(sl_xet_find(xet, "commit", "f131071", false));
        ck_assert_ptr_null(sl_xet_find(xet, "commit", "f131072", false));
    }
    ck_assert_msg(strstr(err.message, "lists too many files"), "%s", err.message);
}

SL_TEST(a_hundred_thousand_files_are_listed_and_one_more_is_refused)
{
    struct sl_specs specs;
    struct sl_plan *made;
    struct sl_err err;
    sl_autobuf tree = SL_BUF_INIT(SL_HF_PAGE_BYTES_MAX);
    sl_buf_text(&tree, "[", NULL);
    for (unsigned i = 0; i <= 100000; i++)
        sl_buf_printf(&tree, NULL, "%s{\"type\": \"file\", \"size\": 1, \"path\": \"f%u.onnx\"}",
                      i ? "," : "", i);
    sl_buf_text(&tree, "]", NULL);
    hub.tree = sl_buf_string(&tree);
    ck_assert_int_eq(plan("", &made, &specs, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "more than 100000 objects"), "%s", err.message);
    sl_specs_release(&specs);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

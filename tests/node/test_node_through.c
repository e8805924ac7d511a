/* Caches that the config of a node names, for models that name none themselves. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "hash.h"
#include "model_maker.h"
#include "node.h"
#include "range_server.h"
#include "registry_settle.h"
#include "scratch.h"
#include "tree.h"

enum { CACHES = 2, ITEMS = 400000 };

static char path[SL_SCRATCH_PATH_BYTES], config_path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch;
static struct sl_server *origin, *caches[CACHES];
static struct sl_node_config config;
static struct sl_node *node;
static struct sl_err err;
static char sha256[65];

static void setup(void)
{
    size_t bytes;
    sl_autofree uint8_t *model = sl_model_safetensors("a,b", ITEMS, &bytes);
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(&err);
    sl_sha256_update(sha, model, bytes);
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), sha256);
    scratch = sl_scratch_open(path);
    snprintf(config_path, sizeof(config_path), "%s/node.yaml", path);
    origin = sl_server_start();
    sl_server_put(origin, "/m/a.safetensors", model, bytes, "\"v1\"");
    for (unsigned i = 0; i < CACHES; i++) {
        caches[i] = sl_server_start();
        sl_server_put(caches[i], "/m/a.safetensors", model, bytes, "\"v1\"");
    }
}

static void teardown(void)
{
    sl_node_free(sl_steal(&node));
    sl_node_config_release(&config);
    sl_server_stop(origin);
    for (unsigned i = 0; i < CACHES; i++)
        sl_server_stop(caches[i]);
    sl_scratch_close(scratch, path);
}

/* more: of the model's source. hashed: its bytes are checked. */
static const char *model_of(const char *name, const char *more, bool hashed)
{
    static char text[1024];
    char check[128] = "";
    if (hashed)
        snprintf(check, sizeof(check), "verify: {sha256: {a.safetensors: %s}}\n", sha256);
    snprintf(text, sizeof(text),
             "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\n"
             "source: {uri: \"%s\"%s}\n%s",
             name, sl_server_url(origin, "/m/a.safetensors"), more, check);
    return text;
}

static const char *model(const char *name, const char *more)
{
    return model_of(name, more, true);
}

static const char *through(unsigned cache)
{
    static char text[256];
    snprintf(text, sizeof(text), "{caches: [\"%s\"], blockBytes: 64Ki, unverified: warn}",
             sl_server_url(caches[cache], ""));
    return text;
}

static void read_config(const char *caches_of_it, const char *models)
{
    char text[4096];
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1GiB\n"
             "pool: {uriPrefixes: [\"%s\"]}\nthrough: %s\n%s",
             path, sl_server_url(origin, "/m/"), caches_of_it, models);
    sl_node_config_release(&config);
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
    ck_assert_msg(sl_node_config_read(config_path, &config, &complaints, &err) == 0, "%s",
                  err.message);
}

static void open_node(const char *caches_of_it, const char *models)
{
    read_config(caches_of_it, models);
    node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
}

static void must_load(const char *name)
{
    struct sl_model_ref *ref = sl_registry_wait_until(node->registry, name, SL_REF_VOLUME, "test",
                                                      NULL, UINT64_MAX, NULL, &err);
    ck_assert_msg(ref != NULL, "%s", err.message);
    sl_registry_release(node->registry, ref);
    sl_registry_settle(node->registry);
}

static unsigned came(unsigned cache)
{
    return sl_server_request_count(caches[cache]);
}

SL_TEST(a_model_that_names_no_caches_has_the_nodes)
{
    open_node(through(0), model("m", ""));
    must_load("m");
    ck_assert_uint_gt(came(0), 0);
}

SL_TEST(a_model_may_say_that_it_has_none)
{
    open_node(through(0), model("m", ", through: []"));
    must_load("m");
    ck_assert_uint_eq(came(0), 0);
}

SL_TEST(a_model_with_caches_takes_nothing_of_the_nodes)
{
    char more[512];
    snprintf(more, sizeof(more), ", through: %s", through(1));
    open_node(through(0), model("m", more));
    must_load("m");
    ck_assert_uint_eq(came(0), 0);
    ck_assert_uint_gt(came(1), 0);
}

/* The block's length and the rest follow the node's caches, but for what the model says. */
SL_TEST(a_model_may_differ_in_one_thing)
{
    char caches_of_it[256];
    snprintf(caches_of_it, sizeof(caches_of_it), "\"%s\"", sl_server_url(caches[0], ""));
    open_node(caches_of_it, model_of("m", ", through: {unverified: direct}", false));
    must_load("m"); /* what nothing checks would have been refused */
    ck_assert_uint_eq(came(0), 0);
}

SL_TEST(what_callers_bring_has_the_nodes)
{
    char names[SL_NODE_REQUEST_MODELS_MAX][64], name[SL_NODE_URI_NAME];
    size_t count;
    open_node(through(0), "");
    const char *text = model("m", "");
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    must_load("m");
    unsigned before = came(0);
    ck_assert_uint_gt(before, 0);
    ck_assert_int_eq(sl_node_forget(node, "m", &err), 0);
    sl_registry_settle(node->registry);
    const char *uri = sl_server_url(origin, "/m/a.safetensors");
    const struct sl_node_files_options files = {.uri = uri, .sharing = "", .name_space = ""};
    ck_assert_int_eq(sl_node_define_files(node, &files, name, &err), 0);
    must_load(name);
    ck_assert_uint_gt(came(0), before);
}

SL_TEST(the_environments_caches_come_after_the_nodes)
{
    setenv("SLUICE_THROUGH", sl_server_url(caches[1], ""), 1);
    open_node(through(0), model("m", ""));
    must_load("m");
    ck_assert_uint_gt(came(0), 0);
    ck_assert_uint_eq(came(1), 0);
    sl_node_free(sl_steal(&node));
    open_node("[]", model("other", "")); /* the node has none, whatever the environment says */
    must_load("other");
    ck_assert_uint_eq(came(1), 0);
    unsetenv("SLUICE_THROUGH");
}

SL_TEST(a_new_config_brings_new_caches)
{
    open_node(through(0), "");
    read_config(through(1), model("m", ""));
    sl_node_reload(node, &config);
    must_load("m");
    ck_assert_uint_eq(came(0), 0);
    ck_assert_uint_gt(came(1), 0);
}

SL_TEST(new_caches_fetch_nothing_again)
{
    open_node(through(0), model("m", ""));
    must_load("m");
    unsigned before = came(0);
    read_config(through(1), model("m", ""));
    sl_node_reload(node, &config);
    must_load("m");
    ck_assert_uint_eq(came(0), before);
    ck_assert_uint_eq(came(1), 0);
}

SL_CASE(.setup = setup, .teardown = teardown)

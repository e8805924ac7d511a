/* Rules of a node for who signs models: which names they are for, and that no way to name a model
 * goes round them. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "log.h"
#include "model_maker.h"
#include "node.h"
#include "node_signing.h"
#include "oms_maker.h"
#include "range_server.h"
#include "registry_settle.h"
#include "scratch.h"
#include "tree.h"

enum { ITEMS = 64 * 1024 };

/* ---- names ----------------------------------------------------------------------------------- */

static struct sl_err err;

/* The number of the rule that counts, -1: none does, -2: the name is refused. */
static int find(const struct sl_node_spec_signing *rules, size_t count, const char *uri)
{
    const struct sl_items items = {(void *)(uintptr_t)rules, count};
    const struct sl_node_spec_signing *rule;
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_node_signing_find(&items, uri, &rule, &err) < 0)
        return -2;
    return rule ? (int)(rule - rules) : -1;
}

static char wanted[] = "/key.pem";
#define RULE(text)                                                                                 \
    {                                                                                              \
        .prefix = (char *)(uintptr_t)(text), .model_signing.public_key_file = wanted               \
    }
#define FREE(text)                                                                                 \
    {                                                                                              \
        .prefix = (char *)(uintptr_t)(text)                                                        \
    }

SL_TEST(the_longest_prefix_counts_by_whole_parts)
{
    static const struct sl_node_spec_signing rules[] = {RULE("s3://prod/"),
                                                        RULE("s3://prod/llama/"),
                                                        FREE("s3://prod/scratch/"),
                                                        RULE("http://hub:80/m/"),
                                                        RULE("hf://acme/"),
                                                        RULE("hf://acme/model"),
                                                        RULE("az://account/models/"),
                                                        RULE("oci://reg:5000/team/m"),
                                                        FREE("s3://free/")};
    static const struct {
        const char *uri;
        int rule;
    } rows[] = {
        {"s3://prod/m/", 0},
        {"s3://prod/m.bin", 0},
        {"s3://prod", 0},
        {"s3://prod-evil/m/", -1},
        {"s3://production/m/", -1},
        {"s3://other/prod/m/", -1},
        {"s3://prod/llama/8b/", 1},
        {"s3://prod/llama", 1},
        {"s3://prod/llama-2/", 0},
        {"s3://PROD/m/", 0},
        {"S3://prod/m/", 0},
        {"s3://pr%6fd/m/", 0},
        {"s3://prod/%6clama/8b/", 1},
        {"s3://prod/scratch/x", -1},
        {"s3://prod/Scratch/x", 0}, /* what takes away is to the letter */
        {"s3://prod/scr%61tch/x", 0},
        {"s3://prod/scratch-not/x", 0},
        {"s3://prod/../x", -2},
        {"s3://free/../prod/x", -2},
        {"s3://free/%2e%2e/prod/x", -2},
        {"s3://free/x/..", -2},
        {"s3://free//x", -2},
        {"s3://free/./x", -2},
        {"s3://free/a\\b", -2},
        {"s3://free/x%zz", -2},
        {"s3://free/x", -1},
        {"http://hub/m/x", 3},
        {"https://hub/m/x", 3},
        {"https://hub:443/m/x", 3},
        {"http://HUB.:80/m/x?token=1", 3},
        {"http://user:secret@hub/m/x", 3},
        {"http://hub/m?x=/y", 3},
        {"http://hub:8080/m/x", -1},
        {"http://hub/n/x", -1},
        {"hf://acme/other", 4},
        {"hf://acme/model", 5},
        {"hf://acme/model@main", 5},
        {"hf://acme/model@main/sub/", 5},
        {"hf://acme/model:v1", 5},
        {"hf://models/acme/model", 5},
        {"hf://Acme/Model/x.bin", 5},
        {"hf://acme/model2", 4},
        {"abfs://models@account.dfs.core.windows.net/x", 6},
        {"abfss://models@account/x", 6},
        {"azure://account/models/x", 6},
        {"az://account/modelsx/x", -1},
        {"oci://reg:5000/team/m", 7},
        {"oci://reg:5000/team/m:v1", 7},
        {"oci://reg:5000/team/m@sha256:0123", 7},
        {"oci://reg:5000/team/n", -1},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        int found = find(rules, SL_COUNT(rules), rows[i].uri);
        ck_assert_msg(found == rows[i].rule, "%s: %d, expected %d", rows[i].uri, found,
                      rows[i].rule);
    }
}

SL_TEST(everything_has_a_rule_where_one_says_so)
{
    static const struct sl_node_spec_signing rules[] = {RULE("*"), FREE("s3://dev/")};
    ck_assert_int_eq(find(rules, 2, "s3://any/thing"), 0);
    ck_assert_int_eq(find(rules, 2, "/srv/models/m"), 0);
    ck_assert_int_eq(find(rules, 2, "s3://dev/x"), -1);
    ck_assert_int_eq(find(rules, 2, "s3://DEV/x"), 0);
    ck_assert_int_eq(find(rules, 2, "s3://dev/../x"), -2);
    ck_assert_int_eq(find(rules, 1, "s3://dev/../x"), 0);
    ck_assert_int_eq(find(rules, 0, "s3://dev/../x"), -1);
}

SL_TEST(links_of_this_machine_are_followed)
{
    char top[SL_SCRATCH_PATH_BYTES], prod[SL_SCRATCH_PATH_BYTES + 16],
        open[SL_SCRATCH_PATH_BYTES + 16], link[SL_SCRATCH_PATH_BYTES + 32], uri[600];
    int folder = sl_scratch_open(top);
    snprintf(prod, sizeof(prod), "%s/prod/", top);
    snprintf(open, sizeof(open), "%s/scratch/", top);
    snprintf(link, sizeof(link), "%s/scratch/link", top);
    ck_assert_int_eq(mkdir(prod, 0755), 0);
    ck_assert_int_eq(mkdir(open, 0755), 0);
    ck_assert_int_eq(symlink("../prod", link), 0);
    const struct sl_node_spec_signing rules[] = {RULE(prod), FREE(open), RULE("*")};
    snprintf(uri, sizeof(uri), "%sm", prod);
    ck_assert_int_eq(find(rules, 3, uri), 0);
    snprintf(uri, sizeof(uri), "file://%sm", prod);
    ck_assert_int_eq(find(rules, 3, uri), 0);
    snprintf(uri, sizeof(uri), "%sm", open);
    ck_assert_int_eq(find(rules, 3, uri), -1);
    snprintf(uri, sizeof(uri), "%s/", link);
    ck_assert_int_eq(find(rules, 3, uri), 0);
    snprintf(uri, sizeof(uri), "%s/not/there", link);
    ck_assert_int_eq(find(rules, 3, uri), 0);
    snprintf(uri, sizeof(uri), "%snot/there", open);
    ck_assert_int_eq(find(rules, 3, uri), -1);
    sl_scratch_close(folder, top);
}

SL_TEST(of_equal_rules_that_counts_which_wants_a_signature)
{
    static const struct sl_node_spec_signing rules[] = {
        FREE("https://hub/m/"), RULE("http://hub/m/"), FREE("s3://Dev/"), RULE("s3://dev/")};
    ck_assert_int_eq(find(rules, 4, "https://hub/m/x"), 1);
    ck_assert_int_eq(find(rules, 4, "s3://Dev/x"), 3);
}

/* ---- a node ---------------------------------------------------------------------------------- */

static char path[SL_SCRATCH_PATH_BYTES], config_path[SL_SCRATCH_PATH_BYTES + 16],
    key_file[SL_SCRATCH_PATH_BYTES + 16];
static int scratch;
static struct sl_server *server;
static struct sl_node_config config;
static struct sl_node *node;
static EVP_PKEY *key, *other;
static uint8_t *model_bytes;
static size_t model_count;

static void put(const char *folder, EVP_PKEY *by)
{
    char name[64];
    const struct oms_file file = {"a.safetensors", model_bytes, model_count};
    snprintf(name, sizeof(name), "/%s/a.safetensors", folder);
    sl_server_put(server, name, model_bytes, model_count, "\"v1\"");
    if (!by)
        return;
    sl_autofree char *bundle =
        oms_sign(&(struct oms_wanted){.files = &file, .count = 1, .shard_bytes = 64 * 1024}, by);
    snprintf(name, sizeof(name), "/%s/model.sig", folder);
    sl_server_put(server, name, bundle, strlen(bundle), "\"s\"");
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
    scratch = sl_scratch_open(path);
    snprintf(config_path, sizeof(config_path), "%s/node.yaml", path);
    snprintf(key_file, sizeof(key_file), "%s/key.pem", path);
    key = oms_key();
    other = oms_key();
    oms_put_key(key, key_file, false);
    server = sl_server_start();
    model_bytes = sl_model_safetensors("a,b", ITEMS, &model_count);
    put("prod/good", key);
    put("prod/bare", NULL);
    put("prod/wrong", other);
    put("free", NULL);
}

static void teardown(void)
{
    sl_node_free(sl_steal(&node));
    sl_node_config_release(&config);
    sl_server_stop(server);
    EVP_PKEY_free(key);
    EVP_PKEY_free(other);
    free(sl_steal(&model_bytes));
    sl_scratch_close(scratch, path);
}
static const struct sl_claim_case serving = {.setup = setup, .teardown = teardown, .seconds = 60};

static const char *rules_of(const char *prefix)
{
    static char text[1024];
    snprintf(text, sizeof(text),
             "signing: [{prefix: \"%s\", modelSigning: {publicKeyFile: \"%s\"}}]\n", prefix,
             key_file);
    return text;
}

/* more: of the source, after its URI; then further sections. */
static const char *model(const char *name, const char *uri, const char *more)
{
    static char text[2048];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\n"
             "source: {uri: \"%s\"%s\n",
             name, uri, more);
    return text;
}

static void read_config(const char *rules, const char *models)
{
    char text[8192], uris[256];
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    snprintf(uris, sizeof(uris), "%s", sl_server_url(server, "/"));
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1GiB\n"
             "pool: {uriPrefixes: [\"%s\"]}\n%s%s%s",
             path, uris, rules, *models ? "---\n" : "", models);
    sl_node_config_release(&config);
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
    ck_assert_msg(sl_node_config_read(config_path, &config, &complaints, &err) == 0, "%s",
                  err.message);
}

static void open_node(const char *rules, const char *models)
{
    read_config(rules, models);
    node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
}

static bool loads(const char *name)
{
    err = (struct sl_err)SL_ERR_INIT;
    struct sl_model_ref *ref = sl_registry_wait_until(node->registry, name, SL_REF_VOLUME, "test",
                                                      NULL, UINT64_MAX, NULL, &err);
    if (ref)
        sl_registry_release(node->registry, ref);
    return ref;
}

static void must_refuse(const char *name, const char *words)
{
    ck_assert_msg(!loads(name), "%s loads", name);
    ck_assert_msg(err.kind == SL_E_INTEGRITY && strstr(err.message, words), "%s: %d: %s", name,
                  err.kind, err.message);
}

static void request(const char *text)
{
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    ck_assert_msg(sl_node_request(node, text, strlen(text), names, &count, &err) == 0, "%s",
                  err.message);
}

static char *url(const char *file)
{
    return strdup(sl_server_url(server, file));
}

SL_TEST_OF(serving, a_model_of_the_config_is_under_the_rule)
{
    sl_autofree char *prod = url("/prod/"), *bare = url("/prod/bare/a.safetensors");
    open_node(rules_of(prod), model("m", bare, "}"));
    must_refuse("m", "not signed");
}

SL_TEST_OF(serving, a_request_is_under_the_rule)
{
    sl_autofree char *prod = url("/prod/"), *bare = url("/prod/bare/a.safetensors"),
                     *good = url("/prod/good/a.safetensors"), *unruled = url("/free/a.safetensors"),
                     *wrong = url("/prod/wrong/a.safetensors");
    open_node(rules_of(prod), "");
    request(model("good", good, "}"));
    ck_assert_msg(loads("good"), "%s", err.message);
    request(model("free", unruled, "}"));
    ck_assert_msg(loads("free"), "%s", err.message);
    request(model("bare", bare, "}"));
    must_refuse("bare", "not signed");
    request(model("wrong", wrong, "}"));
    must_refuse("wrong", "by the rule of this node");
}

/* A spec's own signers must have signed, too, and it allows nothing that the rule does not. */
SL_TEST_OF(serving, a_spec_can_ask_for_more_and_not_for_less)
{
    char more[512], other_file[SL_SCRATCH_PATH_BYTES + 16];
    sl_autofree char *prod = url("/prod/"), *wrong = url("/prod/wrong/a.safetensors"),
                     *good = url("/prod/good/a.safetensors");
    snprintf(other_file, sizeof(other_file), "%s/other.pem", path);
    oms_put_key(other, other_file, false);
    snprintf(more, sizeof(more),
             "}\nverify: {modelSigning: {publicKeyFile: \"%s\", unsigned: allow}}", other_file);
    open_node(rules_of(prod), "");
    request(model("wrong", wrong, more));
    must_refuse("wrong", "by the rule of this node");
    request(model("good", good, more));
    must_refuse("good", "signature 'model.sig'");
    oms_put_key(key, other_file, true);
    request(model("both", good, more));
    ck_assert_msg(loads("both"), "%s", err.message);
}

SL_TEST_OF(serving, mirrors_and_caches_are_no_way_round)
{
    char more[1024];
    sl_autofree char *prod = url("/prod/"), *bare = url("/prod/bare/a.safetensors"),
                     *unruled = url("/free/a.safetensors"), *cache = url("");
    open_node(rules_of(prod), "");
    snprintf(more, sizeof(more), ", mirrors: [\"%s\"]}", bare);
    request(model("mirrored", unruled, more));
    must_refuse("mirrored", "not signed");
    snprintf(more, sizeof(more), ", mirrors: [\"%s\"]}", unruled);
    request(model("mirrors", bare, more));
    must_refuse("mirrors", "not signed");
    snprintf(more, sizeof(more), ", through: {caches: [\"%s\"], unverified: direct}}", cache);
    request(model("through", bare, more));
    must_refuse("through", "not signed");
}

SL_TEST_OF(serving, uris_of_clients_and_of_volumes_are_under_the_rule)
{
    char name[SL_NODE_URI_NAME];
    sl_autofree char *prod = url("/prod/"), *bare = url("/prod/bare/a.safetensors"),
                     *good = url("/prod/good/a.safetensors");
    open_node(rules_of(prod), "");
    const struct sl_node_files_options files = {
        .uri = bare, .prefix_bytes = strlen(prod), .sharing = "s", .name_space = "team"};
    ck_assert_msg(sl_node_define_files(node, &files, name, &err) == 0, "%s", err.message);
    must_refuse(name, "not signed");
    ck_assert_msg(sl_node_define_uri(node, bare, "host", getuid(), name, &err) == 0, "%s",
                  err.message);
    must_refuse(name, "not signed");
    const struct sl_node_files_options signed_files = {
        .uri = good, .prefix_bytes = strlen(prod), .sharing = "s", .name_space = "team"};
    ck_assert_int_eq(sl_node_define_files(node, &signed_files, name, &err), 0);
    ck_assert_msg(loads(name), "%s", err.message);
    ck_assert_int_eq(sl_node_define_uri(node, good, "host", getuid(), name, &err), 0);
    ck_assert_msg(loads(name), "%s", err.message);
}

SL_TEST_OF(serving, a_name_that_could_be_another_place_is_refused)
{
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    sl_autofree char *prod = url("/prod/"), *odd = url("/free/../prod/bare/a.safetensors");
    open_node(rules_of(prod), "");
    const char *text = model("odd", odd, "}");
    ck_assert_int_lt(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "another place"), "%s",
                  err.message);
}

/* What is in memory was loaded when nobody asked for a signature. */
SL_TEST_OF(serving, a_new_rule_is_for_what_is_there_too)
{
    sl_autofree char *prod = url("/prod/"), *bare = url("/prod/bare/a.safetensors"),
                     *good = url("/prod/good/a.safetensors");
    open_node("", model("m", bare, "}"));
    ck_assert_msg(loads("m"), "%s", err.message);
    request(model("asked", bare, "}"));
    ck_assert_msg(loads("asked"), "%s", err.message);
    request(model("good", good, "}"));
    ck_assert_msg(loads("good"), "%s", err.message);
    read_config(rules_of(prod), model("m", bare, "}"));
    sl_node_reload(node, &config);
    must_refuse("m", "not signed");
    must_refuse("asked", "not signed");
    ck_assert_msg(loads("good"), "%s", err.message);
}

SL_TEST_OF(serving, after_a_restart_a_rule_is_for_what_was_found)
{
    sl_autofree char *prod = url("/prod/"), *bare = url("/prod/bare/a.safetensors");
    open_node("", model("m", bare, "}"));
    ck_assert_msg(loads("m"), "%s", err.message);
    sl_node_free(sl_steal(&node));
    open_node(rules_of(prod), model("m", bare, "}"));
    must_refuse("m", "not signed");
}

SL_TEST_OF(serving, a_listing_says_who_signed)
{
    struct sl_json json;
    char who[80];
    sl_autofree char *prod = url("/prod/"), *good = url("/prod/good/a.safetensors");
    open_node(rules_of(prod), model("m", good, "}"));
    ck_assert_msg(loads("m"), "%s", err.message);
    sl_registry_settle(node->registry);
    sl_json_init(&json, 1 << 20);
    ck_assert(sl_registry_model_json(node->registry, "m", true, &json));
    const char *text = sl_json_text(&json, &err);
    snprintf(who, sizeof(who), "\"signed\":{\"by\":\"key ");
    ck_assert_msg(text && strstr(text, who), "%s", text);
    sl_json_release(&json);
}

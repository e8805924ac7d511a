/* The pool's socket in front of the registry, with real loads and real clients. */
#include "await.h"
#include "node_pool.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "memory_store.h"
#include "model_maker.h"
#include "node.h"
#include "registry_settle.h"
#include "scratch.h"
#include "sluice.h"
#include "tree.h"

static char path[SL_SCRATCH_PATH_BYTES], socket_path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch;
static struct sl_err err;
static struct sl_node *node;
static struct sl_node_pool *pool;
static uint8_t *model;

#define MODEL(name, sink)                                                                          \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                        \
    "}\nsource: {uri: \"memory://m/model.safetensors\"}\n" sink

static void setup(void)
{
    char text[2048];
    size_t bytes;
    struct sl_node_config config;
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    scratch = sl_scratch_open(path);
    model = sl_model_safetensors("a,b", 1000, &bytes);
    ck_assert_int_eq(sl_memory_put("m/model.safetensors", model, bytes, NULL), 0);
    snprintf(socket_path, sizeof(socket_path), "%s/pool.sock", path);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1MiB\n"
             "pool: {socket: %s}\n" MODEL("held", "sink: {pool: {}}\n") MODEL("files", ""),
             path, socket_path);
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(text, sizeof(text), "%s/node.yaml", path);
    ck_assert_msg(sl_node_config_read(text, &config, &complaints, &err) == 0, "%s", err.message);
    node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
    pool = sl_node_pool_start_with(node->registry, NULL, &config.spec, -1, &err);
    ck_assert_msg(pool != NULL, "%s", err.message);
    sl_node_config_release(&config);
}

static void teardown(void)
{
    sl_registry_stop(node->registry);
    sl_node_pool_free(pool);
    sl_node_free(node);
    sl_memory_clear();
    free(model);
    sl_scratch_close(scratch, path);
}

static int attach(const char *name, struct sluice_model **attached, struct sluice_error *error)
{
    const struct sluice_attach_options options = {
        .size = sizeof(options), .model = name, .socket = socket_path, .client = "engine"};
    return sluice_attach(&options, attached, error);
}

static struct sl_registry_counts counts(void)
{
    struct sl_registry_counts found;
    sl_registry_counts(node->registry, &found);
    return found;
}

/* The server learns of a client's end by itself, some time after it. */
static void await_references(uint64_t wanted)
{
    SL_AWAIT(counts().references == wanted, "the number of references");
}

SL_TEST(clients_share_one_load_and_each_has_its_reference)
{
    struct sluice_model *clients[4];
    struct sluice_error error;
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    for (size_t i = 0; i < SL_COUNT(clients); i++)
        ck_assert_msg(attach("held", &clients[i], &error) == 0, "%s", error.message);
    ck_assert_int_eq(sluice_find(clients[3], "b", &tensor, &error), 0);
    ck_assert_int_eq(sluice_wait(clients[3], tensor.number, -1, -1, &error), 0);
    ck_assert_uint_eq(tensor.bytes, 4000);
    sl_registry_settle(node->registry);
    ck_assert_uint_eq(counts().references, 4);
    ck_assert_uint_eq(counts().loads, 2); /* of held and of files */
    struct sl_json json;
    sl_json_init(&json, 1 << 20);
    ck_assert(sl_registry_model_json(node->registry, "held", true, &json));
    const char *text = sl_json_text(&json, &err);
    ck_assert_msg(text && strstr(text, " engine\""), "%s", text ? text : err.message);
    sl_json_release(&json);
    for (size_t i = 0; i < SL_COUNT(clients); i++)
        sluice_detach(clients[i]);
    await_references(0);
}

SL_TEST(what_is_held_as_files_is_not_in_the_pool)
{
    struct sluice_model *attached;
    struct sluice_error error;
    ck_assert_int_eq(attach("files", &attached, &error), -1);
    ck_assert_ptr_nonnull(strstr(error.message, "is held as files in"));
    ck_assert_int_eq(attach("none", &attached, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_uint_eq(counts().references, 0);
}

SL_TEST(a_lease_keeps_a_model_that_left_the_config)
{
    struct sluice_model *attached;
    struct sluice_error error;
    ck_assert_int_eq(attach("held", &attached, &error), 0);
    sl_registry_settle(node->registry);
    sl_registry_keep_only(node->registry, NULL, 0);
    ck_assert_int_eq(sl_registry_evict(node->registry, "held", NULL, &err), -1);
    ck_assert_str_eq(err.code, "busy");
    struct sluice_model *second;
    ck_assert_int_eq(attach("held", &second, &error), -1);
    sluice_detach(attached);
    await_references(0);
    uint64_t bytes;
    ck_assert_int_eq(sl_registry_evict(node->registry, "held", &bytes, &err), 0);
    ck_assert_uint_gt(bytes, 8000);
    sl_registry_settle(node->registry);
}

SL_TEST(a_refused_client_learns_of_the_budget)
{
    static const char text[] = "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: big}\n"
                               "source: {uri: \"memory://m/big\"}\nsink: {pool: {}}\n";
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    struct sluice_model *attached;
    struct sluice_error error;
    size_t count, bytes;
    sl_autofree uint8_t *big = sl_model_safetensors("a", 600000, &bytes);
    ck_assert_int_eq(sl_memory_put("m/big", big, bytes, NULL), 0);
    ck_assert_int_eq(sl_node_request(node, text, strlen(text), names, &count, &err), 0);
    ck_assert_int_eq(attach("big", &attached, &error), -1);
    ck_assert_msg(error.kind == SLUICE_NO_SPACE && strstr(error.message, "budget"), "%s",
                  error.message);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* What loads of a node keep in memory: each its share of what all of them may. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "log.h"
#include "model_maker.h"
#include "node.h"
#include "range_server.h"
#include "registry_settle.h"
#include "run_sluice.h"
#include "scratch.h"
#include "tree.h"

enum { TENSORS = 40, ITEMS = 65536 }; /* 10 MiB */

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct sl_server *server;
static struct sl_err err;
static uint8_t *file;
static size_t file_bytes;

static void make_file(void)
{
    char names[8 * TENSORS] = "", from[SL_SCRATCH_PATH_BYTES + 32], to[SL_SCRATCH_PATH_BYTES + 32];
    size_t bytes;
    struct ran ran = {0};
    for (int i = 0; i < TENSORS; i++)
        snprintf(names + strlen(names), 8, "%st%02d", i ? "," : "", i);
    uint8_t *plain = sl_model_safetensors(names, ITEMS, &bytes);
    snprintf(from, sizeof(from), "%s/m.safetensors", scratch);
    snprintf(to, sizeof(to), "%s/m.tensors", scratch);
    ck_assert_int_eq(sl_tree_write(scratch_fd, "m.safetensors", plain, bytes, &err), 0);
    RUN(&ran, "convert", from, to);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    file = sl_model_read(scratch, "m.tensors", &file_bytes);
    ran_release(&ran);
    free(plain);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    make_file();
    server = sl_server_start();
    sl_server_put(server, "/m.tensors", file, file_bytes, "\"one\"");
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(file);
}

static void load_at_once(unsigned loads)
{
    struct sl_node_config config = {0};
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    char text[2048], path[SL_SCRATCH_PATH_BYTES + 32], found[SL_PUBLISH_PATH_MAX];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1GiB\n"
             "loadsAtOnce: %u\n---\napiVersion: sluice/v1alpha1\nkind: Model\n"
             "metadata: {name: m}\nsource: {uri: \"%s\"}\n",
             scratch, loads, sl_server_url(server, "/m.tensors"));
    snprintf(path, sizeof(path), "%s/node.yaml", scratch);
    ck_assert_int_eq(sl_tree_write(scratch_fd, "node.yaml", text, strlen(text), &err), 0);
    ck_assert_msg(sl_node_config_read(path, &config, &complaints, &err) == 0, "%s", err.message);
    struct sl_node *node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
    struct sl_model_ref *ref = sl_registry_wait_until(node->registry, "m", SL_REF_DIRECTORY, "test",
                                                      NULL, UINT64_MAX, NULL, &err);
    ck_assert_msg(ref != NULL, "%s", err.message);
    sl_model_ref_path(ref, found);
    ck_assert(sl_model_same(found, "m.tensors", file, file_bytes));
    sl_registry_release(node->registry, ref);
    sl_node_free(node);
    sl_node_config_release(&config);
}

/* A file is fetched whole at its opening if it is no larger than the load's share of 48 MiB: here
 * 24 MiB, and 4. */
SL_TEST(a_load_holds_no_more_than_its_share)
{
    load_at_once(2);
    ck_assert_uint_eq(sl_server_request_count(server), 3);
}

SL_TEST(where_many_load_at_once_a_share_is_small)
{
    load_at_once(12);
    ck_assert_uint_gt(sl_server_request_count(server), TENSORS);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* Derived models of a node: deposits through real clients, held by the registry within its budget.
 */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "early_child.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "node.h"
#include "node_pool.h"
#include "node_pool_parts.h"
#include "peer.h"
#include "pool_link.h"
#include "registry_settle.h"
#include "scratch.h"
#include "skip.h"
#include "sluice.h"
#include "tree.h"

enum { BUDGET = 1 << 20, TIMEOUT_MS = 300000, CHILDREN = 3 };

static char path[SL_SCRATCH_PATH_BYTES], socket_path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch;
static struct sl_err err;
static struct sl_node *node;
static struct sl_node_pool *pool;
static struct sluice_error error;
static uint8_t identity[32]; /* of the source */
static uint8_t *sources[2];  /* as the store lends them */
/* Made by every test, before the node's threads; those that a test has used are NULL. */
static struct sl_early_child *children[CHILDREN];

/* What a child does: for a step above 0 deposit so far and wait to be killed, else try to begin one
 * as another user. */
struct order {
    int step;
    uid_t uid;
    uint8_t identity[32];
};
static int run_child(struct sl_early_child *self, const void *order);

static void put_source(int which, unsigned items)
{
    size_t bytes;
    sources[which] = sl_model_safetensors("a,b", items, &bytes);
    ck_assert_int_eq(sl_memory_put("m/model.safetensors", sources[which], bytes, NULL), 0);
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
static void await_residents(uint64_t wanted)
{
    SL_AWAIT(counts().residents == wanted, "the number of residents");
}

static struct sluice_model *attach(const char *key)
{
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = "source",
                                                  .key = key,
                                                  .socket = socket_path,
                                                  .timeout_ms = TIMEOUT_MS};
    memset(&error, 0, sizeof(error));
    return sluice_attach(&options, &model, &error) < 0 ? NULL : model;
}

static void learn_identity(void)
{
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_model *model = attach(NULL);
    ck_assert_msg(model != NULL, "%s", error.message);
    sluice_model_info(model, &info);
    memcpy(identity, info.identity, sizeof(identity));
    sluice_detach(model);
    sl_registry_settle(node->registry);
    await_references(0);
}

static void setup(void)
{
    char text[2048];
    struct sl_node_config config;
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    sl_log_setup(SL_LOG_ERROR, false);
    scratch = sl_scratch_open(path);
    put_source(0, 1000);
    snprintf(socket_path, sizeof(socket_path), "%s/pool.sock", path);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1MiB\n"
             "pool: {socket: %s, mode: \"0666\", depositUids: [4001]}\n---\napiVersion: "
             "sluice/v1alpha1\nkind: Model\n"
             "metadata: {name: source}\nsource: {uri: \"memory://m/model.safetensors\"}\n"
             "sink: {pool: {}}\n",
             path, socket_path);
    ck_assert_int_eq(sl_tree_write(scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(text, sizeof(text), "%s/node.yaml", path);
    ck_assert_msg(sl_node_config_read(text, &config, &complaints, &err) == 0, "%s", err.message);
    for (int i = 0; i < CHILDREN; i++)
        children[i] = sl_early_child_start(run_child);
    node = sl_node_open(&config, &(struct sl_node_opening){0}, &err);
    ck_assert_msg(node != NULL, "%s", err.message);
    pool = sl_node_pool_start_with(node->registry, NULL, &config.spec, -1, &err);
    ck_assert_msg(pool != NULL, "%s", err.message);
    sl_node_config_release(&config);
    learn_identity();
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    for (int i = 0; i < CHILDREN; i++)
        if (children[i])
            sl_early_child_kill(children[i]);
    sl_registry_stop(node->registry);
    sl_node_pool_free(pool);
    sl_node_free(node);
    sl_memory_clear();
    free(sources[0]);
    free(sources[1]);
    sl_scratch_close(scratch, path);
}

static struct sluice_deposit *begin(const char *key, uint64_t bytes)
{
    struct sluice_deposit *deposit = NULL;
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = "source",
                                             .key = key,
                                             .socket = socket_path,
                                             .bytes = bytes,
                                             .timeout_ms = TIMEOUT_MS};
    memcpy(options.identity, identity, sizeof(identity));
    memset(&error, 0, sizeof(error));
    return sluice_deposit_begin(&options, &deposit, &error) < 0 ? NULL : deposit;
}

static int add(struct sluice_deposit *deposit, uint64_t count)
{
    void *data;
    return sluice_deposit_add(deposit, "t", "F32", 1, &count, NULL, count * sizeof(float), &data,
                              &error);
}

static void deposit_whole(const char *key, uint64_t bytes)
{
    struct sluice_deposit *deposit = begin(key, bytes);
    ck_assert_msg(deposit != NULL, "%s", error.message);
    ck_assert_msg(add(deposit, bytes / sizeof(float)) == 0, "%s", error.message);
    ck_assert_msg(sluice_deposit_commit(deposit, &error) == 0, "%s", error.message);
    sluice_deposit_end(deposit);
}

static void expect_refusal(const struct sluice_model *model, const char *code)
{
    ck_assert_ptr_null(model);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_str_eq(error.code, code);
}

SL_TEST(who_knows_the_key_attaches_to_what_was_deposited)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    uint64_t before = counts().held_bytes, bytes;
    expect_refusal(attach("k"), "absent");
    deposit_whole("k", 4096);
    ck_assert_uint_ge(counts().held_bytes, before + 4096);
    struct sluice_model *model = attach("k");
    ck_assert_msg(model != NULL, "%s", error.message);
    ck_assert_int_eq(sluice_find(model, "t", &tensor, &error), 0);
    ck_assert_uint_eq(tensor.bytes, 4096);
    expect_refusal(attach("other"), "absent");
    ck_assert_uint_eq(counts().references, 1);
    ck_assert_int_eq(sluice_evict(socket_path, "source", "k", &bytes, &error), -1);
    ck_assert_str_eq(error.code, "busy");
    sluice_detach(model);
    await_references(0);
    sl_registry_settle(node->registry); /* while it is kept for a restart it is busy */
    ck_assert_msg(sluice_evict(socket_path, "source", "k", &bytes, &error) == 0, "%s",
                  error.message);
    ck_assert_uint_ge(bytes, 4096);
    await_residents(1);
    ck_assert_uint_eq(counts().held_bytes, before);
    expect_refusal(attach("k"), "absent");
}

SL_TEST(its_descriptors_count_for_the_uid_that_made_it)
{
    uint32_t uid = geteuid();
    ck_assert_uint_eq(sl_node_deposited_fds(pool, SL_PEER_PRIVILEGED, uid), 0);
    deposit_whole("k", 4096);
    ck_assert_uint_gt(sl_node_deposited_fds(pool, SL_PEER_PRIVILEGED, uid), 0);
    ck_assert_uint_eq(sl_node_deposited_fds(pool, SL_PEER_PRIVILEGED, uid + 1), 0);
    ck_assert_uint_eq(sl_node_deposited_fds(pool, uid, uid), 0);
}

static int see_row(void *arg, const struct sluice_row *row)
{
    if (strcmp(row->key, "k") == 0) {
        ck_assert_uint_ge(row->bytes, 4096);
        ck_assert_uint_eq(row->lease_count, 1);
        ++*(int *)arg;
    }
    return 0;
}

SL_TEST(lists_and_pages_show_it)
{
    int seen = 0;
    struct sl_json json;
    deposit_whole("k", 4096);
    struct sluice_model *model = attach("k");
    ck_assert_ptr_nonnull(model);
    ck_assert_int_eq(sluice_list(socket_path, see_row, &seen, &error), 0);
    ck_assert_int_eq(seen, 1);
    sl_json_init(&json, 1 << 20);
    ck_assert(sl_registry_model_json(node->registry, "source", true, &json));
    const char *text = sl_json_text(&json, &err);
    ck_assert_msg(text && strstr(text, "\"key\":\"k\""), "%s", text ? text : err.message);
    sl_json_release(&json);
    sluice_detach(model);
}

SL_TEST(one_key_has_one_depositor)
{
    struct sluice_deposit *deposit = begin("k", 4096);
    ck_assert_ptr_nonnull(deposit);
    ck_assert_ptr_null(begin("k", 4096));
    ck_assert_str_eq(error.code, "busy");
    expect_refusal(attach("k"), "busy");
    ck_assert_int_eq(add(deposit, 1000), 0);
    ck_assert_int_eq(sluice_deposit_commit(deposit, &error), 0);
    sluice_deposit_end(deposit);
    ck_assert_ptr_null(begin("k", 4096));
    ck_assert_str_eq(error.code, "exists");
}

/* The model is loaded again, as another version. */
static void change_source(void)
{
    put_source(1, 2000);
    ck_assert_int_eq(sl_registry_load(node->registry, "source", &err), 0);
    sl_registry_settle(node->registry);
}

SL_TEST(what_was_made_from_another_version_is_stale)
{
    deposit_whole("old", 4096);
    struct sluice_deposit *deposit = begin("late", 4096);
    ck_assert_ptr_nonnull(deposit);
    ck_assert_int_eq(add(deposit, 1000), 0);
    change_source();
    expect_refusal(attach("old"), "stale");
    ck_assert_int_eq(sluice_deposit_commit(deposit, &error), -1);
    ck_assert_str_eq(error.code, "stale");
    sluice_deposit_end(deposit);
    ck_assert_ptr_null(begin("new", 4096));
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_str_eq(error.code, "stale");
    expect_refusal(attach("late"), "absent");
    learn_identity();
    deposit_whole("old", 8192);
    struct sluice_model *model = attach("old");
    ck_assert_msg(model != NULL, "%s", error.message);
    sluice_detach(model);
}

SL_TEST(a_deposit_is_refused_before_the_budget_is_exceeded)
{
    uint64_t before = counts().held_bytes;
    ck_assert_ptr_null(begin("k", 2 * BUDGET));
    ck_assert_int_eq(error.kind, SLUICE_NO_SPACE);
    ck_assert_str_eq(error.code, "budget");
    ck_assert_ptr_null(begin("k", BUDGET - 4096)); /* the source is pinned */
    ck_assert_int_eq(error.kind, SLUICE_NO_SPACE);
    ck_assert_uint_eq(counts().held_bytes, before);
    struct sluice_deposit *deposit = begin("k", BUDGET / 2);
    ck_assert_ptr_nonnull(deposit);
    ck_assert_uint_eq(counts().held_bytes, before + BUDGET / 2);
    ck_assert_ptr_null(begin("j", BUDGET / 2));
    ck_assert_ptr_nonnull(strstr(error.message, "being deposited"));
    sluice_deposit_end(deposit);
    await_residents(1);
    ck_assert_uint_eq(counts().held_bytes, before);
}

SL_TEST(the_least_recently_used_goes_for_another)
{
    deposit_whole("first", BUDGET / 4);
    deposit_whole("second", BUDGET / 4);
    deposit_whole("held", BUDGET / 4);
    struct sluice_model *held = attach("held"), *first = attach("first");
    ck_assert(held && first);
    sluice_detach(first);
    await_references(1);
    deposit_whole("fourth", BUDGET / 4);
    expect_refusal(attach("second"), "absent");
    first = attach("first");
    ck_assert_ptr_nonnull(first);
    sluice_detach(first);
    sluice_detach(held);
    ck_assert_uint_le(counts().held_bytes, BUDGET);
}

SL_TEST(what_is_forgotten_takes_its_derived_models_along)
{
    deposit_whole("k", 4096);
    struct sluice_deposit *deposit = begin("late", 4096);
    ck_assert_ptr_nonnull(deposit);
    ck_assert_int_eq(add(deposit, 1000), 0);
    sl_registry_keep_only(node->registry, NULL, 0);
    ck_assert_int_eq(sl_registry_forget(node->registry, "source", &err), 0);
    ck_assert_int_eq(sluice_deposit_commit(deposit, &error), -1);
    ck_assert_str_eq(error.code, "stale");
    sluice_deposit_end(deposit);
    await_residents(0);
    ck_assert_uint_eq(counts().held_bytes, 0);
}

/* ---- the dead ------------------------------------------------------------------------------- */

enum step { BEGUN = 1, WRITTEN, COMMITTED };

static int be_depositor(struct sl_early_child *self, enum step last)
{
    struct sluice_deposit *deposit = begin("k", 4096);
    if (!deposit || (last >= WRITTEN && add(deposit, 1000) < 0) ||
        (last >= COMMITTED && sluice_deposit_commit(deposit, &error) < 0))
        return 1;
    sl_early_child_arrive(self);
}

static void kill_depositor(enum step last)
{
    struct sl_early_child *child = sl_steal(&children[last - BEGUN]);
    struct order order = {.step = last};
    memcpy(order.identity, identity, sizeof(identity));
    sl_early_child_go(child, &order, sizeof(order));
    sl_early_child_await(child);
    ck_assert_uint_eq(counts().residents, 2);
    sl_early_child_kill(child);
}

SL_TEST(a_depositor_that_dies_leaves_nothing_but_what_it_committed)
{
    uint64_t before = counts().held_bytes;
    for (enum step last = BEGUN; last < COMMITTED; last++) {
        kill_depositor(last);
        await_residents(1);
        ck_assert_uint_eq(counts().held_bytes, before);
    }
    kill_depositor(COMMITTED);
    struct sluice_model *model = attach("k");
    ck_assert_msg(model != NULL, "%s", error.message);
    sluice_detach(model);
}

SL_TEST(slabs_without_a_commit_go_with_their_depositor)
{
    struct sl_pool_link link;
    struct sl_pool_reply reply;
    struct {
        struct sl_wire_deposit deposit;
        char texts[7];
    } ask = {.deposit = {.bytes = 4096, .model_bytes = 6, .key_bytes = 1}, .texts = "sourcek"};
    memcpy(ask.deposit.identity, identity, sizeof(identity));
    ck_assert_int_eq(
        sl_pool_link_open(&link, socket_path, "raw", sl_limit_make(TIMEOUT_MS, -1), &error), 0);
    ck_assert_int_eq(sl_pool_link_ask(&link, SL_WIRE_DEPOSIT, &ask, sizeof(ask.deposit) + 7, NULL,
                                      0, sizeof(struct sl_wire_id), &reply, &error),
                     0);
    struct sl_wire_slabs slabs = {.id = ((const struct sl_wire_id *)sl_pool_reply_data(&reply))->id,
                                  .count = 1};
    sl_autoclose int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(sl_pool_link_ask(&link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), &fd, 1,
                                      sizeof(struct sl_wire_id), &reply, &error),
                     0);
    ck_assert_uint_eq(counts().residents, 2);
    sl_pool_link_close(&link);
    await_residents(1);
}

/* ---- rights --------------------------------------------------------------------------------- */

enum { MAY = 0, MAY_NOT = 1, OTHER = 2, CANNOT_TRY = 77 };

static int try_as(uid_t uid)
{
    if (chdir(path) < 0) /* the folders above it may be closed to others */
        return CANNOT_TRY;
    snprintf(socket_path, sizeof(socket_path), "pool.sock");
    if (setgid(4000) < 0 || setuid(uid) < 0)
        return CANNOT_TRY;
    return begin("k", 4096) ? MAY : strstr(error.message, "deposit into") ? MAY_NOT : OTHER;
}

static int run_child(struct sl_early_child *self, const void *data)
{
    const struct order *order = data;
    memcpy(identity, order->identity, sizeof(identity));
    return order->step ? be_depositor(self, (enum step)order->step) : try_as(order->uid);
}

static int deposit_as(int which, uid_t uid)
{
    struct sl_early_child *child = sl_steal(&children[which]);
    struct order order = {.uid = uid};
    memcpy(order.identity, identity, sizeof(identity));
    sl_early_child_go(child, &order, sizeof(order));
    int status = sl_early_child_end(child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

SL_TEST(only_who_the_config_names_may_deposit)
{
    if (geteuid() != 0 || fchmod(scratch, 0755) < 0)
        SL_SKIP("only root can become another user");
    int named = deposit_as(0, 4001);
    if (named == CANNOT_TRY)
        SL_SKIP("other users cannot come to the socket");
    ck_assert_int_eq(named, MAY);
    ck_assert_int_eq(deposit_as(1, 4002), MAY_NOT);
    await_residents(1);
}

/* ---- failing allocations -------------------------------------------------------------------- */

static const struct sl_derived_view own = {.uid = SL_PEER_PRIVILEGED};

static int reserve_once(uint64_t id)
{
    struct sl_derived_offer offer = {
        .name = "source", .key = "k", .holder = "pool", .bytes = 4096, .id = id};
    memcpy(offer.identity, identity, sizeof(identity));
    return sl_registry_deposit_begin(node->registry, &offer, &err);
}

SL_TEST(a_registry_without_memory_refuses_and_keeps_nothing)
{
    int done = -1;
    for (unsigned nth = 1; done < 0; nth++) {
        ck_assert_uint_lt(nth, 100);
        sl_alloc_fail_at(nth);
        done = reserve_once(nth);
        sl_alloc_fail_at(0);
        ck_assert_uint_eq(counts().residents, done < 0 ? 1 : 2);
        if (done == 0)
            sl_registry_deposit_abort(node->registry, nth);
    }
    deposit_whole("k", 4096);
    struct sl_model_ref *ref = NULL;
    for (unsigned nth = 1; !ref; nth++) {
        ck_assert_uint_lt(nth, 100);
        sl_alloc_fail_at(nth);
        ref = sl_registry_hold_derived(node->registry, "source", "k", &own, "test", &err);
        sl_alloc_fail_at(0);
    }
    ck_assert_uint_eq(counts().references, 1);
    sl_registry_release(node->registry, ref);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 300)

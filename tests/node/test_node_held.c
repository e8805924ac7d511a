/*
 * The budget counts what is really held: what a client keeps of a model after its lease, by
 * whatever means, counts under its name until it has gone, and the room is back soon after.
 */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "early_child.h"
#include "fake_clock.h"
#include "held_case.h"
#include "held_memory.h"
#include "pages.h"
#include "pool_parts.h"
#include "registry.h"
#include "registry_settle.h"
#include "skip.h"
enum { KEPT_MAX = 24 };
#define RETRY_NS SL_NS_PER_S        /* before what failed is tried again */
#define LOOK_NS  (SL_NS_PER_S / 10) /* what is left is looked at */
#define GRACE_NS (SL_NS_PER_S / 2)  /* that a load waits for room */

static struct manager manager;
static struct sl_systemd_sockets given;
static struct sl_early_child *child;

/* ---- one after another ----------------------------------------------------------------------- */

SL_TEST_LOOP(what_is_kept_after_the_lease_counts_until_it_goes, 0, 2 * HOW_COUNT)
{
    fake_clock_turn(1); /* in hand, and going */
    held_open_node(_i >= HOW_COUNT ? held_keys : "");
    struct sluice_model *model = held_must_load("m0");
    struct held_kept kept = held_keep(held_slab_of(model, 0), (enum held_how)(_i % HOW_COUNT));
    sluice_detach(model);
    held_evict("m0");
    ck_assert_uint_eq(node_case_counts(&held_node).left_bytes, kept.bytes);
    ck_assert_uint_eq(node_case_counts(&held_node).held_bytes, kept.bytes);
    held_let_go(&kept);
    fake_clock_turn(LOOK_NS);
    held_await_left(0, 0);
    ck_assert_uint_eq(node_case_counts(&held_node).held_bytes, 0);
}

SL_TEST(nothing_is_left_of_what_nobody_keeps)
{
    held_open_node("");
    sluice_detach(held_must_load("m0"));
    held_evict("m0");
    ck_assert_uint_eq(node_case_counts(&held_node).left_bytes, 0);
    ck_assert_uint_eq(node_case_counts(&held_node).held_bytes, 0);
}

/* 64 MiB had grown to 232 in this way, and there was no end. */
SL_TEST(keeping_again_and_again_ends_at_the_budget)
{
    struct held_kept kept[8];
    unsigned count = 0;
    char who[32];
    held_open_node("");
    for (;;) {
        struct sluice_model *model = node_case_load(&held_node, "m0");
        if (!model)
            break;
        ck_assert_uint_lt(count, HELD_BUDGET / HELD_MODEL_BYTES + 1);
        ck_assert_int_eq(sluice_wait_all(model, HELD_WAIT_MS, -1, &held_node.error), 0);
        kept[count++] = held_keep(held_slab_of(model, 0), BY_MAPPING);
        sluice_detach(model);
        held_evict("m0");
        ck_assert_uint_le(node_case_counts(&held_node).held_bytes, HELD_BUDGET);
    }
    ck_assert_uint_eq(count, HELD_BUDGET / HELD_MODEL_BYTES);
    snprintf(who, sizeof(who), "pid %d uid %u", getpid(), getuid());
    ck_assert_int_eq(held_node.error.kind, SLUICE_NO_SPACE);
    ck_assert_msg(strstr(held_node.error.message, "'m0'") &&
                      strstr(held_node.error.message, "still held") &&
                      strstr(held_node.error.message, who),
                  "%s", held_node.error.message);
    struct sl_json json;
    sl_json_init(&json, 1 << 20);
    sl_json_object(&json);
    sl_registry_json(held_node.node->registry, true, &json);
    sl_json_end(&json);
    ck_assert_ptr_nonnull(strstr(sl_json_text(&json, NULL), who));
    sl_json_release(&json);
    while (count)
        held_let_go(&kept[--count]);
    held_await_left(0, 0);
    fake_clock_turn(RETRY_NS); /* what was refused may be tried again */
    sluice_detach(held_must_load("m1"));
}

static void load_another(void *ignored)
{
    (void)ignored;
    sluice_detach(held_must_load("m1"));
}

/* Who begins just as the last descriptor goes is not refused: half a second is waited for it. */

SL_TEST(a_load_waits_a_moment_for_room_that_comes)
{
    struct held_kept kept[3];
    struct fake_clock_work work;
    held_open_node("");
    for (int i = 0; i < 3; i++) {
        struct sluice_model *model = held_must_load("m0");
        kept[i] = held_keep(held_slab_of(model, 0), BY_MAPPING);
        sluice_detach(model);
        held_evict("m0");
    }
    fake_clock_hold();
    fake_clock_begin(&work, load_another, NULL);
    fake_clock_await(GRACE_NS);
    fake_clock_turn(GRACE_NS / 2);
    fake_clock_settle(1);
    ck_assert_uint_eq(sl_counter_get(&work.done), 0);
    held_let_go(&kept[1]);
    fake_clock_turn(GRACE_NS / 4); /* somebody looks what has gone */
    fake_clock_end(&work);
    fake_clock_release();
    held_let_go(&kept[0]);
    held_let_go(&kept[2]);
}

/* ---- a client that is killed ----------------------------------------------------------------- */

static int keep_and_wait(struct sl_early_child *self, const void *order)
{
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = "m0",
                                                  .socket = order,
                                                  .flags = SLUICE_KEEP_FDS,
                                                  .timeout_ms = HELD_WAIT_MS};
    struct sluice_model *model;
    struct sluice_error error;
    const void *data;
    uint64_t bytes;
    int fd;
    if (sluice_attach(&options, &model, &error) < 0 ||
        sluice_slab(model, 0, &data, &bytes, &fd, &error) < 0)
        return 1;
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return 2;
    sluice_detach(model); /* the mapping is kept */
    sl_early_child_arrive(self);
}

SL_TEST(what_a_killed_client_kept_comes_back)
{
    child = sl_early_child_start(keep_and_wait);
    held_open_node("");
    sluice_detach(held_must_load("m0"));
    ck_assert_uint_lt(strlen(held_node.socket), SL_EARLY_ORDER_BYTES);
    sl_early_child_go(child, held_node.socket, strlen(held_node.socket) + 1);
    sl_early_child_await(child);
    held_evict("m0");
    ck_assert_uint_ge(node_case_counts(&held_node).left_bytes, HELD_MODEL_BYTES);
    sl_early_child_kill(child);
    held_await_left(0, 0);
}

/* ---- without inotify ------------------------------------------------------------------------- */

static struct sl_held_watcher *watcher_without_inotify(void)
{
    struct sl_err err = SL_ERR_INIT;
    struct rlimit before, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct sl_held_watcher *watcher = sl_held_watcher_new(&err);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_ptr_nonnull(watcher);
    return watcher;
}

SL_TEST(leases_of_files_tell_where_inotify_does_not)
{
    held_open_node("");
    struct sl_held_watcher *watcher = watcher_without_inotify();
    struct sluice_model *model = held_must_load("m0");
    struct sl_slab slab = {.fd = -1,
                           .reader_fd = fcntl(held_slab_of(model, 0), F_DUPFD_CLOEXEC, 0),
                           .bytes = HELD_MODEL_BYTES,
                           .kind = SL_SLAB_MEMFD};
    struct sl_pool_copy copy = {.slabs = &slab, .slab_count = 1};
    struct sl_pool_model body = {.name = (char[]){"m0"}, .copies = {&copy}, .copy_count = 1};
    struct sl_held_memory *memory = sl_held_memory_watch(watcher, &body);
    sl_slab_release(&slab);
    ck_assert_uint_eq(sl_held_memory_look(memory), HELD_MODEL_BYTES);
    struct held_kept kept = held_keep(held_slab_of(model, 0), BY_MAPPING);
    sluice_detach(model);
    held_evict("m0");
    ck_assert_uint_eq(sl_held_memory_look(memory), HELD_MODEL_BYTES);
    held_let_go(&kept);
    ck_assert_uint_eq(sl_held_memory_look(memory), 0);
    ck_assert_uint_eq(sl_held_memory_look(memory), 0);
    sl_held_memory_free(memory);
    sl_held_watcher_free(watcher);
}

/* ---- across a restart ------------------------------------------------------------------------ */

/* A client of the daemon before, and slabs that have a name by now: two ways to the same file. */
SL_TEST_LOOP(a_client_of_the_daemon_before_counts, 0, 2)
{
    bool files = _i;
    if (files && sl_pages_of(held_node.scratch) == SL_PAGES_NONE)
        SL_SKIP("TMPDIR is not on a tmpfs");
    if (!files)
        manager_start(&manager, &held_node);
    node_case_open(&held_node, files ? held_keys : "", HELD_MODELS, NULL);
    struct sluice_model *model = held_must_load("m0");
    struct held_kept kept = held_keep(held_slab_of(model, 0), BY_MAPPING);
    sluice_detach(model);
    held_await_no_references();
    sl_registry_settle(held_node.node->registry);
    if (!files)
        manager_await(&manager, 3 * 2);
    node_case_end(&held_node);
    if (!files)
        manager_give(&manager, &given);
    node_case_open(&held_node, files ? held_keys : "", HELD_MODELS, files ? NULL : &given);
    if (!files)
        sl_systemd_close(&given);
    ck_assert_uint_ne(node_case_inode(&held_node, "m0", NULL), 0);
    held_evict("m0");
    if (!files)
        manager_await(&manager, 2 * 2);
    ck_assert_uint_ge(node_case_counts(&held_node).left_bytes, kept.bytes);
    held_let_go(&kept);
    held_await_left(0, 0);
    node_case_end(&held_node);
    if (!files)
        manager_stop(&manager);
}

SL_CASE(.setup = held_setup, .teardown = held_teardown, .seconds = 20)

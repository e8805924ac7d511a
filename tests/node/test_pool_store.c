/* Models of the pool that a service manager keeps while there is no daemon, and what may come back
 * instead of them. */
#include "pool_store.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "memory_store.h"
#include "node_case.h"
#include "registry_settle.h"

static struct node_case c;
static struct manager manager;
static struct sl_systemd_sockets given;

#define MODEL NODE_CASE_MODEL("m", "object.safetensors")

static void setup(void)
{
    node_case_init(&c);
    manager_start(&manager, &c);
    node_case_put(&c, "object.safetensors", 1000);
}

static void teardown(void)
{
    node_case_release(&c);
    manager_stop(&manager);
}

static uint64_t held; /* by the one that loaded */

/* A daemon comes and goes; the manager has an index and a slab then. */
static uint64_t load_and_end(void)
{
    node_case_open(&c, "", MODEL, NULL);
    uint64_t inode = node_case_inode(&c, "m", NULL);
    ck_assert_msg(inode != 0, "%s", c.error.message);
    manager_await(&manager, 2);
    held = node_case_counts(&c).held_bytes;
    node_case_end(&c);
    return inode;
}

static void come_back(const char *models)
{
    manager_give(&manager, &given);
    node_case_open(&c, "", models, &given);
}

SL_TEST(the_next_daemon_has_the_same_memory)
{
    uint64_t inode = load_and_end();
    come_back(MODEL);
    ck_assert_uint_eq(node_case_inode(&c, "m", NULL), inode);
    ck_assert_uint_eq(node_case_counts(&c).loads, 0);
    ck_assert_uint_gt(held, 8000);
    ck_assert_uint_eq(node_case_counts(&c).held_bytes, held);
    node_case_end(&c);
    sl_memory_clear(); /* the source is gone */
    come_back(MODEL);
    ck_assert_uint_eq(node_case_inode(&c, "m", NULL), inode);
    manager_await(&manager, 2);
}

SL_TEST(deposits_come_back_with_their_model)
{
    node_case_open(&c, "", MODEL, NULL);
    node_case_deposit(&c, "m", "k", 1000);
    uint64_t inode = node_case_inode(&c, "m", "k");
    ck_assert_uint_ne(inode, 0);
    manager_await(&manager, 4);
    node_case_end(&c);
    come_back(MODEL);
    ck_assert_uint_eq(node_case_inode(&c, "m", "k"), inode);
    node_case_end(&c);
    node_case_put(&c, "object.safetensors", 2000);
    come_back(MODEL);
    ck_assert_uint_eq(node_case_inode(&c, "m", "k"), 0);
    ck_assert_str_eq(c.error.code, "stale");
}

SL_TEST(what_is_evicted_leaves_the_store)
{
    uint64_t bytes;
    node_case_open(&c, "", MODEL, NULL);
    node_case_deposit(&c, "m", "k", 1000);
    manager_await(&manager, 4);
    sl_registry_settle(c.node->registry);
    ck_assert_int_eq(sl_registry_evict_derived(c.node->registry, "m", "k", &bytes, NULL), 0);
    manager_await(&manager, 2);
    node_case_end(&c);
    come_back(""); /* nobody asks for it any more */
    ck_assert_uint_eq(node_case_inode(&c, "m", NULL), 0);
    ck_assert_uint_gt(node_case_counts(&c).held_bytes, 8000);
    sl_registry_set_budget(c.node->registry, 1000);
    manager_await(&manager, 0);
}

SL_TEST(a_changed_source_is_loaded_beside_what_came_back)
{
    uint64_t inode = load_and_end();
    node_case_put(&c, "object.safetensors", 2000);
    come_back(MODEL);
    uint64_t other = node_case_inode(&c, "m", NULL);
    ck_assert_uint_ne(other, 0);
    ck_assert_uint_ne(other, inode);
    manager_await(&manager, 4); /* both, until the old one has to go */
    node_case_end(&c);
    sl_memory_clear();
    come_back(MODEL);
    ck_assert_uint_eq(node_case_counts(&c).residents, 2);
}

#define FILES                                                                                      \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"                         \
    "source: {uri: \"memory://m/object.safetensors\"}\nsink: {tmpfs: {path: /unused}}\n"

/* What the pool still has is not what the name stands for any more. */
SL_TEST(what_went_from_the_pool_to_files_stays_there)
{
    char path[SL_PUBLISH_PATH_MAX];
    struct sl_err err = SL_ERR_INIT;
    load_and_end();
    come_back(FILES);
    node_case_end(&c);
    manager_await(&manager, 2);
    sl_memory_clear(); /* the source is gone */
    come_back(FILES);
    struct sl_model_ref *ref = sl_registry_wait_until(c.node->registry, "m", SL_REF_VOLUME, "a pod",
                                                      NULL, UINT64_MAX, NULL, &err);
    ck_assert_msg(ref, "%s", err.message);
    sl_model_ref_path(ref, path);
    sl_registry_release(c.node->registry, ref);
    ck_assert_str_ne(path, "");
}

SL_TEST(a_spec_that_changed_is_loaded)
{
    uint64_t inode = load_and_end();
    node_case_put(&c, "other.safetensors", 2000);
    come_back(NODE_CASE_MODEL("m", "other.safetensors"));
    uint64_t other = node_case_inode(&c, "m", NULL);
    ck_assert_uint_ne(other, 0);
    ck_assert_uint_ne(other, inode);
}

/* ---- hostile -------------------------------------------------------------------------------- */

static int find(const char *end)
{
    for (unsigned i = 0; i < given.count; i++) {
        const char *dot = strrchr(given.items[i].name, '.');
        if (dot && strcmp(dot, end) == 0)
            return (int)i;
    }
    ck_abort_msg("nothing was stored");
}

static void replace(const char *end, int fd)
{
    int at = find(end);
    ck_assert_int_ge(fd, 0);
    close(given.items[at].fd);
    given.items[at].fd = fd;
}

static int memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

enum { ALL = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW };

static uint64_t slab_bytes(void)
{
    off_t bytes = lseek(given.items[find(".1")].fd, 0, SEEK_END);
    return (uint64_t)bytes;
}

static void no_memfd(void)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    close(ends[1]);
    replace(".1", ends[0]);
}
static void no_file(void)
{
    replace(".0", open("/dev/null", O_RDONLY | O_CLOEXEC));
}
static void not_sealed(void)
{
    replace(".1", memfd(slab_bytes(), F_SEAL_SHRINK | F_SEAL_GROW));
}
static void of_another_size(void)
{
    replace(".1", memfd(slab_bytes() + 4096, ALL));
}
static void of_zeros(void)
{
    replace(".0", memfd(4096, ALL));
}
static void a_part_is_missing(void)
{
    replace(".0", open("/dev/null", O_RDONLY | O_CLOEXEC));
    snprintf(given.items[find(".0")].name, SL_SYSTEMD_NAME_BYTES, "other");
}
static void a_part_is_there_twice(void)
{
    struct sl_systemd_fd *more = &given.items[given.count++]; /* there is room for one */
    *more = given.items[find(".1")];
    more->fd = fcntl(more->fd, F_DUPFD_CLOEXEC, 0);
}
static void under_another_name(void)
{
    for (unsigned i = 0; i < given.count; i++)
        strchr(given.items[i].name + strlen("slab."), '.')[1] ^= 1;
}
static void with_a_large_number(void)
{
    struct sl_systemd_fd *item = &given.items[find(".1")];
    char *dot = strrchr(item->name, '.');
    memcpy(dot, ".99999", sizeof(".99999"));
}

SL_TEST_LOOP(what_is_not_a_whole_model_is_loaded_again, 0, 9)
{
    static void (*const changes[])(void) = {
        no_memfd,           no_file,           not_sealed,         of_another_size,
        of_zeros,           a_part_is_missing, under_another_name, a_part_is_there_twice,
        with_a_large_number};
    uint64_t inode = load_and_end();
    manager_give(&manager, &given);
    changes[_i]();
    node_case_open(&c, "", MODEL, &given);
    uint64_t other = node_case_inode(&c, "m", NULL);
    ck_assert_uint_ne(other, 0);
    ck_assert_uint_ne(other, inode);
    ck_assert_uint_eq(node_case_counts(&c).loads, 1);
    ck_assert_uint_eq(node_case_counts(&c).residents, 1);
}

SL_TEST(names_of_others_are_left_alone)
{
    static const char *const names[] = {"",
                                        "stored",
                                        "http",
                                        "slab",
                                        "slab.",
                                        "slab.0",
                                        "slab.1.2",
                                        "slab.1.2.",
                                        "slab.1.2.x",
                                        "slab.1.2.-1",
                                        "slab.1.2.1234567",
                                        "slab..",
                                        "slab.ffffffffffffffffffffffffffffffffffffffffffffffff.0"};
    given.items = sl_alloc_array(SL_COUNT(names), sizeof(*given.items), NULL);
    given.count = SL_COUNT(names);
    for (unsigned i = 0; i < given.count; i++) {
        given.items[i].fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        snprintf(given.items[i].name, sizeof(given.items[i].name), "%s", names[i]);
    }
    node_case_open(&c, "", MODEL, &given);
    ck_assert_uint_eq(node_case_counts(&c).loads, 1);
    manager_await(&manager, 2);
}

/* ---- who does not keep ---------------------------------------------------------------------- */

SL_TEST(without_a_manager_models_are_loaded_again)
{
    unsetenv("NOTIFY_SOCKET");
    node_case_open(&c, "", MODEL, NULL);
    ck_assert_uint_ne(node_case_inode(&c, "m", NULL), 0);
    node_case_end(&c);
    node_case_open(&c, "", MODEL, NULL);
    ck_assert_uint_eq(node_case_counts(&c).loads, 1);
    setenv("NOTIFY_SOCKET", manager.path, 1);
}

SL_TEST(a_manager_that_has_gone_harms_nothing)
{
    char nowhere[SL_SCRATCH_PATH_BYTES + 16];
    snprintf(nowhere, sizeof(nowhere), "%s/nowhere", c.path);
    setenv("NOTIFY_SOCKET", nowhere, 1);
    node_case_open(&c, "", MODEL, NULL);
    ck_assert_uint_ne(node_case_inode(&c, "m", NULL), 0);
    setenv("NOTIFY_SOCKET", manager.path, 1);
}

static void found(void *arg, struct sl_pool_model *model)
{
    ++*(unsigned *)arg;
    sl_pool_model_free(model);
}

SL_TEST(a_scan_without_memory_leaks_nothing)
{
    unsigned whole = 0;
    load_and_end();
    for (unsigned at = 1; !whole; at++) {
        manager_give(&manager, &given);
        unsetenv("NOTIFY_SOCKET"); /* what is not used would be forgotten */
        sl_alloc_fail_at(at);
        sl_pool_store_scan(&given, NULL, found, &whole);
        sl_alloc_fail_at(0);
        setenv("NOTIFY_SOCKET", manager.path, 1);
        sl_systemd_close(&given);
        ck_assert_uint_lt(at, 200);
    }
}

/* It is whole, as far as anybody knows. */
SL_TEST(what_cannot_be_looked_at_now_stays_in_the_store)
{
    unsigned whole = 0;
    load_and_end();
    for (unsigned at = 1; !whole; at++) {
        manager_give(&manager, &given);
        sl_alloc_fail_at(at);
        sl_pool_store_scan(&given, NULL, found, &whole);
        sl_alloc_fail_at(0);
        sl_systemd_close(&given);
        ck_assert_uint_lt(at, 200);
    }
    manager_await(&manager, 2);
}

SL_CASE(.setup = setup, .teardown = teardown)

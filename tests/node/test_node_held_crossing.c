/*
 * The budget counts what is really held, whatever clients do in whatever order: they attach, keep
 * in every way, detach, deposit and are killed, models are evicted and replaced.
 * Which steps and how many: seed.h.
 */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "early_child.h"
#include "fake_clock.h"
#include "held_case.h"
#include "memory_store.h"
#include "model_maker.h"
#include "pool_parts.h"
#include "registry_parts.h"
#include "seed.h"

enum { KEPT_MAX = 24, LOOK_MS = 10 };

/* Processes that attach, keep, and are killed; made before there are threads. */
enum { MORTALS = 12 };
struct mortal_order {
    char socket[200], model[16];
    unsigned number;
    bool detaches;
};
struct mortal_report {
    uint64_t inode, bytes; /* of the slab that it has; 0: it was refused */
};
static struct mortal_report *reports; /* shared with them */

static struct {
    uint8_t *data;
    size_t bytes;
} versions[2]; /* of every model */

struct crossing {
    uint64_t state;
    struct sluice_model *attached[6];
    struct held_kept kept[KEPT_MAX];
    unsigned keys;
    struct sl_early_child *mortals[MORTALS]; /* NULL: killed */
    bool sent[MORTALS], detaches[MORTALS];
    bool newer[3];
};

static unsigned by_chance(struct crossing *crossing, unsigned below)
{
    return (unsigned)sl_test_draw(&crossing->state, below);
}

/* Sizes of all files that somebody has: the test knows what it keeps, and the pool what it holds.
 */
struct known {
    uint64_t inodes[128], bytes;
    unsigned count;
};

static void know(struct known *known, uint64_t inode, uint64_t bytes)
{
    for (unsigned i = 0; i < known->count; i++)
        if (known->inodes[i] == inode)
            return;
    ck_assert_uint_lt(known->count, SL_COUNT(known->inodes));
    known->inodes[known->count++] = inode;
    known->bytes += bytes;
}

static void know_fd(struct known *known, int fd)
{
    struct stat status;
    ck_assert_int_eq(fstat(fd, &status), 0);
    know(known, status.st_ino, (uint64_t)status.st_size);
}

static void know_model(struct known *known, struct sl_pool_model *model)
{
    int fds[16];
    size_t count = sl_pool_copy_fds(sl_pool_model_copy(model, 0), 0, fds, SL_COUNT(fds));
    ck_assert_uint_le(count, SL_COUNT(fds));
    for (size_t i = 2; i < count; i++)
        know_fd(known, fds[i]);
}

/* All versions, also those that are not current and in no list any more. */
static void know_registry(struct known *known)
{
    struct sl_registry *registry = held_node.node->registry;
    SL_LOCKED(&registry->lock);
    for (const struct model *model = registry->locked.models; model; model = model->next)
        for (const struct resident *at = model->residents; at; at = at->next)
            if (at->body && at->state != RESIDENT_DROPPING)
                know_model(known, at->body);
}

static uint64_t really_held(struct crossing *crossing)
{
    struct known known = {.count = 0};
    know_registry(&known);
    for (unsigned i = 0; i < SL_COUNT(crossing->attached); i++) {
        struct sluice_model_info info = {.size = sizeof(info)};
        if (!crossing->attached[i])
            continue;
        sluice_model_info(crossing->attached[i], &info);
        for (unsigned at = 0; at < info.slab_count; at++)
            know_fd(&known, held_slab_of(crossing->attached[i], at));
    }
    for (unsigned i = 0; i < KEPT_MAX; i++)
        if (crossing->kept[i].bytes)
            know(&known, crossing->kept[i].inode, crossing->kept[i].bytes);
    for (unsigned i = 0; i < MORTALS; i++)
        if (crossing->mortals[i] && crossing->sent[i] && reports[i].bytes)
            know(&known, reports[i].inode, reports[i].bytes);
    return known.bytes;
}

/* Who has a lease: a reference of the registry each. */
static unsigned really_leased(const struct crossing *crossing)
{
    unsigned leases = 0;
    for (unsigned i = 0; i < SL_COUNT(crossing->attached); i++)
        leases += crossing->attached[i] != NULL;
    for (unsigned i = 0; i < MORTALS; i++)
        leases +=
            crossing->mortals[i] && crossing->sent[i] && !crossing->detaches[i] && reports[i].bytes;
    return leases;
}

/* By the clock, which runs: it may take the second in which room comes back, and the machine's time
 * in which the pool looks for who has gone. */
static void compare(struct crossing *crossing, unsigned step)
{
    for (unsigned ms = 0;; ms += LOOK_MS) {
        struct sl_registry_counts counts = node_case_counts(&held_node);
        uint64_t counted = counts.held_bytes, real = really_held(crossing);
        unsigned leases = really_leased(crossing);
        uint64_t off = counted > real ? counted - real : real - counted;
        char what[160];
        if (off < HELD_SLAB / 2 && counted <= HELD_BUDGET && counts.references == leases)
            return;
        snprintf(what, sizeof(what),
                 "step %u: %llu bytes are counted, %llu are held, %llu references for %u leases",
                 step, (unsigned long long)counted, (unsigned long long)real,
                 (unsigned long long)counts.references, leases);
        ck_assert_msg(ms < HELD_WAIT_MS, "%s", what);
        sl_sleep_ms(LOOK_MS, NULL, NULL);
    }
}

static const char *any_model(struct crossing *crossing)
{
    static const char *const names[] = {"m0", "m1", "m2"};
    return names[by_chance(crossing, 3)];
}

static void attach_any(struct crossing *crossing)
{
    struct sluice_model **slot = &crossing->attached[by_chance(crossing, 6)];
    sluice_detach(*slot);
    *slot = node_case_load(&held_node, any_model(crossing)); /* or it is refused: the budget */
}

static void keep_any(struct crossing *crossing)
{
    struct sluice_model *model = crossing->attached[by_chance(crossing, 6)];
    struct held_kept *kept = &crossing->kept[by_chance(crossing, KEPT_MAX)];
    if (model && !kept->bytes)
        *kept = held_keep(held_slab_of(model, 0), (enum held_how)by_chance(crossing, HOW_COUNT));
}

static void let_any_go(struct crossing *crossing)
{
    held_let_go(&crossing->kept[by_chance(crossing, KEPT_MAX)]);
}

static void detach_any(struct crossing *crossing)
{
    struct sluice_model **slot = &crossing->attached[by_chance(crossing, 6)];
    sluice_detach(*slot);
    *slot = NULL;
}

static void evict_any(struct crossing *crossing)
{
    struct sl_err err = SL_ERR_INIT;
    sl_registry_evict(held_node.node->registry, any_model(crossing), NULL,
                      &err); /* or it is in use */
}

static void deposit_any(struct crossing *crossing)
{
    const char *name = any_model(crossing);
    char key[32];
    struct sluice_model *source = node_case_attach(&held_node, name, NULL);
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = name,
                                             .key = key,
                                             .socket = held_node.socket,
                                             .bytes = HELD_SLAB,
                                             .timeout_ms = HELD_WAIT_MS};
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_deposit *deposit;
    uint64_t count = HELD_SLAB / 4;
    void *data;
    if (!source)
        return;
    snprintf(key, sizeof(key), "k%u", crossing->keys++);
    sluice_model_info(source, &info);
    memcpy(options.identity, info.identity, sizeof(options.identity));
    sluice_detach(source);
    if (sluice_deposit_begin(&options, &deposit, &held_node.error) < 0)
        return;
    if (sluice_deposit_add(deposit, "t", "F32", 1, &count, NULL, HELD_SLAB, &data,
                           &held_node.error) == 0)
        sluice_deposit_commit(deposit, &held_node.error);
    sluice_deposit_end(deposit);
}

static int attach_and_die(struct sl_early_child *self, const void *order)
{
    const struct mortal_order *what = order;
    struct sluice_attach_options options = {.size = sizeof(options),
                                            .model = what->model,
                                            .socket = what->socket,
                                            .flags = SLUICE_KEEP_FDS,
                                            .timeout_ms = HELD_WAIT_MS};
    struct sluice_model *model;
    struct sluice_error error;
    struct stat status;
    const void *data;
    uint64_t bytes;
    int fd;
    if (sluice_attach(&options, &model, &error) == 0 &&
        sluice_slab(model, 0, &data, &bytes, &fd, &error) == 0 && fstat(fd, &status) == 0) {
        reports[what->number] = (struct mortal_report){status.st_ino, (uint64_t)status.st_size};
        if (what->detaches && mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED)
            sluice_detach(model);
    }
    sl_early_child_arrive(self);
}

/* The next one goes to work, or one that works dies. */
static void send_or_kill_any(struct crossing *crossing)
{
    unsigned number = by_chance(crossing, MORTALS);
    struct sl_early_child **mortal = &crossing->mortals[number];
    if (*mortal && crossing->sent[number]) {
        sl_early_child_kill(*mortal);
        *mortal = NULL;
    } else if (*mortal) {
        struct mortal_order order = {.number = number, .detaches = by_chance(crossing, 2)};
        crossing->detaches[number] = order.detaches;
        ck_assert_uint_lt(strlen(held_node.socket), sizeof(order.socket));
        memcpy(order.socket, held_node.socket, strlen(held_node.socket));
        snprintf(order.model, sizeof(order.model), "%s", any_model(crossing));
        fake_clock_release(); /* another process is at work, which no clock of ours waits for */
        sl_early_child_go(*mortal, &order, sizeof(order));
        sl_early_child_await(*mortal);
        fake_clock_run();
        crossing->sent[number] = true;
    }
}

/* Another version of a model is there; its load may be refused by the budget. */
static void replace_any(struct crossing *crossing)
{
    struct sl_err err = SL_ERR_INIT;
    unsigned number = by_chance(crossing, 3);
    char name[32], object[64];
    bool newer = crossing->newer[number] = !crossing->newer[number];
    snprintf(object, sizeof(object), "m/x%u.safetensors", number);
    snprintf(name, sizeof(name), "m%u", number);
    ck_assert_int_eq(sl_memory_put(object, versions[newer].data, versions[newer].bytes, &err), 0);
    sl_registry_load(held_node.node->registry, name, &err);
}

static void step_any(struct crossing *crossing)
{
    static void (*const steps[])(struct crossing *) = {
        attach_any, attach_any, keep_any,  keep_any,  let_any_go,  let_any_go,       let_any_go,
        detach_any, detach_any, evict_any, evict_any, deposit_any, send_or_kill_any, replace_any,
    };
    steps[by_chance(crossing, SL_COUNT(steps))](crossing);
}

SL_TEST_LOOP(what_is_counted_is_what_is_held_in_any_order, 0, 2)
{
    struct crossing crossing = {.state = sl_test_seed() + (unsigned)_i};
    unsigned count = sl_test_rounds(400, 1200);
    for (unsigned i = 0; i < KEPT_MAX; i++)
        crossing.kept[i] = (struct held_kept)HELD_NONE;
    reports = mmap(NULL, MORTALS * sizeof(*reports), PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(reports, MAP_FAILED);
    for (unsigned i = 0; i < MORTALS; i++)
        crossing.mortals[i] = sl_early_child_start(attach_and_die);
    for (unsigned i = 0; i < 2; i++) /* of other contents, by their lengths */
        versions[i].data = sl_model_safetensors("a,b", HELD_ITEMS - 4 * i, &versions[i].bytes);
    held_open_node(_i ? held_keys : "");
    fake_clock_run();
    for (unsigned step = 0; step < count; step++) {
        step_any(&crossing);
        if (step % 8 == 0)
            compare(&crossing, step);
    }
    for (unsigned i = 0; i < SL_COUNT(crossing.attached); i++)
        sluice_detach(sl_steal(&crossing.attached[i]));
    for (unsigned i = 0; i < KEPT_MAX; i++)
        held_let_go(&crossing.kept[i]);
    for (unsigned i = 0; i < MORTALS; i++)
        if (crossing.mortals[i])
            sl_early_child_kill(sl_steal(&crossing.mortals[i]));
    compare(&crossing, 0);
    held_await_left(0, 0);
    node_case_end(&held_node);
    free(versions[0].data);
    free(versions[1].data);
    munmap(reports, MORTALS * sizeof(*reports));
}

SL_CASE(.setup = held_setup, .teardown = held_teardown)

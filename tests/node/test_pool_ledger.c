/*
 * One lease is one cookie, whatever clients and the owner do in whatever order: they attach, keep
 * descriptors, detach, send requests and die with them in every state, answers come late, models
 * are evicted and deposited. After every step each cookie that was given is out, for a lease that
 * there is, or back, and the bytes that the pool counts are those of the models that there are.
 * Which steps and how many: seed.h.
 */
#include <check.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "log.h"
#include "memory_store.h"
#include "metrics.h"
#include "pool_case.h"
#include "pool_link.h"
#include "seed.h"

enum { ATTACHED = 6, KEPT = 12, PATIENCE_MS = 60000 };

static struct pool_case pool;
static const uint8_t identity[32] = {1, 2, 3};

struct ledger {
    uint64_t state;
    struct sluice_model *attached[ATTACHED];
    int kept[KEPT]; /* descriptors of slabs; -1: none */
};

static unsigned by_chance(struct ledger *ledger, unsigned below)
{
    return (unsigned)sl_test_draw(&ledger->state, below);
}

/* ---- what must be so --------------------------------------------------------------------------
 */

static uint64_t bytes_of(const struct sl_pool_model *model)
{
    return sl_pool_model_copy(model, 0)->bytes;
}

/* Of the models that the owner has: those that can be found, and those that only leases keep. */
static uint64_t owned_bytes(unsigned *out)
{
    uint64_t bytes = 0;
    *out = 0;
    SL_LOCKED(&pool.lock);
    for (int i = 0; i < POOL_CASE_MODELS; i++)
        bytes += pool.locked.models[i] ? bytes_of(pool.locked.models[i]) : 0;
    for (const struct pool_case_lease *at = pool.locked.leases; at; at = at->next) {
        bool counted = false;
        for (int i = 0; i < POOL_CASE_MODELS; i++)
            counted = counted || pool.locked.models[i] == at->model;
        for (const struct pool_case_lease *other = at->next; other; other = other->next)
            counted = counted || other->model == at->model;
        bytes += counted ? 0 : bytes_of(at->model);
        ++*out;
    }
    return bytes;
}

static bool is_balanced(const struct ledger *ledger)
{
    struct sl_pool_counts counts;
    unsigned attached = 0, out;
    for (int i = 0; i < ATTACHED; i++)
        attached += ledger->attached[i] != NULL;
    pool_case_counts(&pool, &counts);
    uint64_t bytes = owned_bytes(&out);
    unsigned granted = pool_case_count(&pool, &pool.locked.granted);
    unsigned released = pool_case_count(&pool, &pool.locked.released);
    unsigned begun = pool_case_count(&pool, &pool.locked.begun);
    unsigned ended = pool_case_count(&pool, &pool.locked.committed) +
                     pool_case_count(&pool, &pool.locked.aborted);
    return counts.leases == attached && counts.clients == attached && out == attached &&
           granted == released + out && begun == ended && counts.deposits == 0 &&
           (uint64_t)sl_metric_get(SL_M_POOL_BYTES) == bytes;
}

/* ---- clients ----------------------------------------------------------------------------------
 */

static const char *any_model(struct ledger *ledger)
{
    static const char *const names[] = {"m0", "m1", "m2"};
    return names[by_chance(ledger, SL_COUNT(names))];
}

static const char *any_key(struct ledger *ledger)
{
    static const char *const keys[] = {"", "", "k0", "k1"};
    return keys[by_chance(ledger, SL_COUNT(keys))];
}

static void attach_any(struct ledger *ledger)
{
    struct sluice_model **slot = &ledger->attached[by_chance(ledger, ATTACHED)];
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = any_model(ledger),
                                                  .key = any_key(ledger),
                                                  .socket = pool.socket,
                                                  .flags = SLUICE_KEEP_FDS,
                                                  .timeout_ms = PATIENCE_MS};
    struct sluice_error error;
    sluice_detach(*slot);
    *slot = NULL;
    sluice_attach(&options, slot, &error); /* or there is no such model */
}

static void keep_any(struct ledger *ledger)
{
    const struct sluice_model *model = ledger->attached[by_chance(ledger, ATTACHED)];
    int *kept = &ledger->kept[by_chance(ledger, KEPT)];
    const void *data;
    uint64_t bytes;
    int fd = -1;
    if (*kept >= 0)
        close(*kept);
    *kept = -1;
    if (model && sluice_slab(model, 0, &data, &bytes, &fd, NULL) == 0)
        *kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static void detach_any(struct ledger *ledger)
{
    struct sluice_model **slot = &ledger->attached[by_chance(ledger, ATTACHED)];
    sluice_detach(*slot);
    *slot = NULL;
}

static void open_link(struct sl_pool_link *link)
{
    struct sluice_error error = {0};
    int done = sl_pool_link_open(link, pool.socket, "raw", sl_limit_make(PATIENCE_MS, -1), &error);
    ck_assert_msg(done == 0, "%s", error.message);
}

static void ask_for(struct sl_pool_link *link, const char *model)
{
    struct {
        struct sl_wire_attach attach;
        char name[2];
    } packet = {.attach = {.model_bytes = sizeof(packet.name)}};
    memcpy(packet.name, model, sizeof(packet.name));
    ck_assert_int_eq(sl_pool_link_send(link, SL_WIRE_ATTACH, &packet,
                                       sizeof(packet.attach) + sizeof(packet.name), NULL, 0, NULL),
                     0);
}

static void take_answer(struct sl_pool_link *link)
{
    struct sl_pool_reply reply;
    if (sl_pool_link_receive(link, SL_WIRE_ATTACH, sizeof(struct sl_wire_attached), &reply, NULL) ==
        0)
        sl_pool_reply_release(&reply);
}

/* With its answers unread, or some of them. */
static void ask_and_die(struct ledger *ledger)
{
    struct sl_pool_link link;
    unsigned asked = 1 + by_chance(ledger, 3), read = by_chance(ledger, asked + 1);
    open_link(&link);
    for (unsigned i = 0; i < asked; i++)
        ask_for(&link, any_model(ledger));
    for (unsigned i = 0; i < read; i++)
        take_answer(&link);
    sl_pool_link_close(&link);
}

static struct sl_pool_request *take_held(void)
{
    SL_LOCKED(&pool.lock);
    pool.locked.held_count = 0;
    return pool.locked.held[0];
}

static void set_hold(bool hold)
{
    SL_LOCKED(&pool.lock);
    pool.locked.hold = hold;
}

static struct sl_pool_model *first_model(void)
{
    SL_LOCKED(&pool.lock);
    for (int i = 0; i < POOL_CASE_MODELS; i++)
        if (pool.locked.models[i])
            return pool.locked.models[i];
    return NULL;
}

/* Its client dies before the answer comes, before it is read, or after. */
static void answer_late(struct ledger *ledger)
{
    static const struct sl_err none = {.kind = SL_E_NOT_FOUND, .message = "none"};
    unsigned when = by_chance(ledger, 3);
    struct sl_pool_link link;
    open_link(&link);
    set_hold(true);
    ask_for(&link, "m0");
    SL_AWAIT(pool_case_count(&pool, &pool.locked.held_count) == 1, "the request");
    set_hold(false);
    if (when == 0)
        sl_pool_link_close(&link);
    struct sl_pool_model *model = first_model();
    struct sl_pool_request *request = take_held();
    if (!model)
        sl_pool_request_refuse(request, &none);
    else if (pool_case_grant(&pool, request, model) && when == 2)
        take_answer(&link);
    if (when != 0)
        sl_pool_link_close(&link);
}

/* ---- the owner --------------------------------------------------------------------------------
 */

static void evict_any(struct ledger *ledger)
{
    struct sluice_error error;
    const char *model = any_model(ledger);
    sluice_evict(pool.socket, model, any_key(ledger), NULL, &error); /* or there is none */
}

static bool is_there(const char *name)
{
    SL_LOCKED(&pool.lock);
    for (int i = 0; i < POOL_CASE_MODELS; i++)
        if (pool.locked.models[i] && strcmp(sl_pool_model_name(pool.locked.models[i]), name) == 0 &&
            !*sl_pool_model_key(pool.locked.models[i]))
            return true;
    return false;
}

/* Some are never filled, and fail. */
static void add_any(struct ledger *ledger)
{
    static const struct sl_err why = {.kind = SL_E_NET, .message = "it broke off"};
    const char *name = any_model(ledger);
    if (is_there(name))
        return;
    struct sl_pool_model *model =
        pool_case_add(&pool, name, "a,b", 100 * (1 + by_chance(ledger, 40)), 4096);
    if (by_chance(ledger, 3))
        pool_case_fill_all(model);
    else if (by_chance(ledger, 2))
        sl_pool_model_fail(model, &why);
}

static void deposit_any(struct ledger *ledger)
{
    uint64_t count = 1000 * (1 + by_chance(ledger, 4));
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = "m0",
                                             .key = by_chance(ledger, 2) ? "k0" : "k1",
                                             .socket = pool.socket,
                                             .bytes = 4 * count,
                                             .timeout_ms = PATIENCE_MS};
    struct sluice_deposit *deposit;
    struct sluice_error error;
    void *data;
    memcpy(options.identity, identity, sizeof(identity));
    if (sluice_deposit_begin(&options, &deposit, &error) < 0)
        return; /* there is one with this key */
    if (by_chance(ledger, 4) &&
        sluice_deposit_add(deposit, "t", "F32", 1, &count, NULL, 4 * count, &data, &error) == 0 &&
        by_chance(ledger, 4))
        sluice_deposit_commit(deposit, &error);
    sluice_deposit_end(deposit);
}

/* ---- in any order -----------------------------------------------------------------------------
 */

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    pool_case_init(&pool);
    pool_case_start(&pool);
}

static void teardown(void)
{
    pool_case_release(&pool); /* every cookie is back */
    sl_memory_clear();
}

static void step_any(struct ledger *ledger)
{
    static void (*const steps[])(struct ledger *) = {
        attach_any,  attach_any,  attach_any, attach_any, keep_any, detach_any, ask_and_die,
        ask_and_die, answer_late, add_any,    add_any,    add_any,  evict_any,  deposit_any,
    };
    steps[by_chance(ledger, SL_COUNT(steps))](ledger);
}

SL_TEST(every_cookie_is_out_or_back_in_any_order)
{
    struct ledger ledger = {.state = sl_test_seed()};
    unsigned count = sl_test_rounds(300, 3000);
    char what[80];
    for (int i = 0; i < KEPT; i++)
        ledger.kept[i] = -1;
    for (unsigned step = 0; step < count; step++) {
        step_any(&ledger);
        snprintf(what, sizeof(what), "a balance after step %u of seed %" PRIu64, step,
                 sl_test_seed());
        SL_AWAIT(is_balanced(&ledger), what);
    }
    /* Some leases end with the server, others after it for their clients. */
    for (int i = 0; i < ATTACHED / 2; i++)
        sluice_detach(ledger.attached[i]);
    pool_case_stop(&pool);
    ck_assert_uint_eq(pool.locked.granted, pool.locked.released);
    ck_assert_ptr_null(pool.locked.leases);
    for (int i = ATTACHED / 2; i < ATTACHED; i++)
        sluice_detach(ledger.attached[i]);
    for (int i = 0; i < KEPT; i++)
        if (ledger.kept[i] >= 0)
            close(ledger.kept[i]);
}

SL_CASE(.setup = setup, .teardown = teardown)

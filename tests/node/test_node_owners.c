/*
 * Whose a derived model is: a key means what its own user deposited under it, or a user whom the
 * config trusts. Real users, so it takes root.
 */
#include <check.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "early_child.h"
#include "node_case.h"
#include "registry_settle.h"

enum { HOSTILE = 4001, VICTIM = 4002, TRUSTED = 4003, CHILDREN = 10, TIMEOUT_MS = 60000 };
#define KEYS  ", mode: \"0666\", depositUids: [4001, 4002, 4003]"
#define MODEL NODE_CASE_MODEL("m", "object.safetensors")

enum act { DEPOSIT, BEGIN_AND_STAY, BEGIN_AND_COMMIT_LATER, ATTACH, EVICT };
struct order {
    enum act act;
    int number; /* of the child */
    uid_t uid;
    bool stranger; /* in a PID namespace of its own, as a container is */
    char key[16];
    float value;    /* that is deposited */
    uint64_t bytes; /* that are announced; 0: 4096 */
};
/* What a child tells, in memory that it shares with the test. */
struct told {
    int failed;
    float value; /* that it found */
    struct sluice_error error;
};

static struct node_case c;
static struct sl_early_child *children[CHILDREN];
static int used;
static struct told *told;
static volatile int *go_on;         /* by the test */
static bool have_others, strangers; /* strangers: the children are in containers */

static int run_child(struct sl_early_child *self, const void *copy);

static void setup(void)
{
    strangers = false;
    told = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(told != MAP_FAILED);
    go_on = (volatile int *)(told + CHILDREN);
    node_case_init(&c);
    node_case_put(&c, "object.safetensors", 1000);
    ck_assert_int_eq(fchmod(c.scratch, 0755), 0);
    have_others = getuid() == 0;
    for (int i = 0; have_others && i < CHILDREN; i++)
        children[i] = sl_early_child_start(run_child);
}

static void teardown(void)
{
    for (int i = used; have_others && i < CHILDREN; i++)
        sl_early_child_kill(children[i]);
    node_case_release(&c);
    munmap(told, 65536);
}

/* ---- what the users do ----------------------------------------------------------------------- */

static int deposit(struct sl_early_child *self, const struct order *order, struct told *own)
{
    uint64_t count = 1000;
    float *data;
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_deposit *made;
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = "m",
                                             .key = order->key,
                                             .socket = c.socket,
                                             .bytes = order->bytes ? order->bytes : 4096,
                                             .timeout_ms = TIMEOUT_MS};
    struct sluice_model *model = node_case_load(&c, "m");
    if (!model)
        _exit(97);
    sluice_model_info(model, &info);
    memcpy(options.identity, info.identity, sizeof(options.identity));
    sluice_detach(model);
    if (sluice_deposit_begin(&options, &made, &own->error) < 0 ||
        sluice_deposit_add(made, "t", "F32", 1, &count, NULL, 4000, (void **)&data, &own->error) <
            0)
        return -1;
    for (unsigned i = 0; i < count; i++)
        data[i] = order->value;
    if (order->act == BEGIN_AND_STAY)
        sl_early_child_arrive(self);
    if (order->act == BEGIN_AND_COMMIT_LATER) {
        *go_on = 1;
        for (int i = 0; *go_on == 1 && i < TIMEOUT_MS; i++)
            usleep(1000);
    }
    return sluice_deposit_commit(made, &own->error);
}

static int attach(const struct order *order, struct told *own)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_model *model = node_case_attach(&c, "m", order->key);
    own->error = c.error;
    if (!model || sluice_find(model, "t", &tensor, &own->error) < 0)
        return -1;
    own->value = *(const float *)tensor.data;
    return 0;
}

/* What follows is done by the first process of a new PID namespace; the other one waits for it. */
static void enter_container(void)
{
    int status;
    if (unshare(CLONE_NEWPID) < 0)
        _exit(96);
    pid_t pid = fork();
    if (pid > 0 && waitpid(pid, &status, 0) == pid)
        _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 95);
    if (pid < 0)
        _exit(95);
}

static bool have_containers(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(unshare(CLONE_NEWPID) < 0);
    return waitpid(pid, &status, 0) == pid && status == 0;
}

static int run_child(struct sl_early_child *self, const void *copy)
{
    struct order order = *(const struct order *)copy;
    struct told *own = &told[order.number];
    if (order.stranger)
        enter_container();
    if (chdir(c.path) < 0 || setgroups(0, NULL) < 0 || setgid(order.uid) < 0 ||
        setuid(order.uid) < 0)
        _exit(99);
    snprintf(c.socket, sizeof(c.socket), "pool.sock"); /* the folders above may be closed */
    if (order.act == EVICT)
        own->failed = sluice_evict(c.socket, "m", order.key, NULL, &own->error);
    else
        own->failed = order.act == ATTACH ? attach(&order, own) : deposit(self, &order, own);
    return 0;
}

/* ---- the test's side ------------------------------------------------------------------------- */

static struct sl_early_child *begin(enum act act, uid_t uid, const char *key, float value,
                                    uint64_t bytes, struct told **own)
{
    struct order order = {.act = act,
                          .number = used,
                          .uid = uid,
                          .stranger = strangers,
                          .value = value,
                          .bytes = bytes};
    ck_assert_int_lt(used, CHILDREN);
    snprintf(order.key, sizeof(order.key), "%s", key);
    *own = &told[used];
    sl_early_child_go(children[used], &order, sizeof(order));
    return children[used++];
}

static const struct told *end(struct sl_early_child *child, const struct told *own)
{
    int status = sl_early_child_end(child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
    return own;
}

static void expect_deposit(uid_t uid, const char *key, float value)
{
    struct told *own;
    struct sl_early_child *child = begin(DEPOSIT, uid, key, value, 0, &own);
    ck_assert_msg(end(child, own)->failed == 0, "%s", own->error.message);
    sl_registry_settle(c.node->registry); /* while it is kept for a restart it is busy */
}

static void expect_refusal(uid_t uid, const char *key, uint64_t bytes, const char *code)
{
    struct told *own;
    struct sl_early_child *child = begin(DEPOSIT, uid, key, 0, bytes, &own);
    ck_assert_int_ne(end(child, own)->failed, 0);
    ck_assert_msg(strcmp(own->error.code, code) == 0, "%s: %s", own->error.code,
                  own->error.message);
}

/* The value that it finds there; "absent" where that is 0. */
static void expect_found(uid_t uid, const char *key, float value)
{
    struct told *own;
    struct sl_early_child *child = begin(ATTACH, uid, key, 0, 0, &own);
    end(child, own);
    if (value == 0)
        ck_assert_str_eq(own->error.code, "absent");
    else
        ck_assert_msg(own->failed == 0 && own->value == value, "%g: %s", own->value,
                      own->error.message);
}

/* Clients' ends are noticed by themselves. */
static void await_references(uint64_t count)
{
    SL_AWAIT(node_case_counts(&c).references == count, "the end of references");
}

SL_TEST(a_stranger_that_takes_a_key_first_gives_nobody_its_bytes)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, KEYS, MODEL, NULL);
    expect_deposit(HOSTILE, "k", 66);
    expect_found(VICTIM, "k", 0);
    expect_deposit(VICTIM, "k", 7);
    expect_found(VICTIM, "k", 7);
    expect_found(HOSTILE, "k", 66);
    ck_assert_ptr_null(node_case_attach(&c, "m", "k")); /* nor root */
    ck_assert_str_eq(c.error.code, "absent");
    expect_refusal(VICTIM, "k", 0, "exists");
}

SL_TEST(a_stranger_that_stays_at_a_key_keeps_nobody_from_it)
{
    struct told *own;
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, KEYS, MODEL, NULL);
    struct sl_early_child *stays = begin(BEGIN_AND_STAY, HOSTILE, "k", 66, 0, &own);
    sl_early_child_await(stays);
    expect_refusal(HOSTILE, "k", 0, "busy"); /* its own user is */
    expect_deposit(VICTIM, "k", 7);
    expect_found(VICTIM, "k", 7);
    node_case_deposit(&c, "m", "k", 1000);
    sl_early_child_kill(stays);
}

SL_TEST(who_is_trusted_shares_its_deposits)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, KEYS ", sharedUids: [4003]", MODEL, NULL);
    expect_deposit(TRUSTED, "k", 3);
    expect_found(VICTIM, "k", 3);
    expect_refusal(VICTIM, "k", 0, "exists");
    node_case_deposit(&c, "m", "root's", 1000);
    await_references(0);
    expect_refusal(HOSTILE, "root's", 0, "exists");
    node_case_reload(&c, KEYS, MODEL); /* as by SIGHUP */
    expect_found(VICTIM, "k", 0);
    node_case_reload(&c, KEYS ", sharedUids: [4002, 4003]", MODEL);
    expect_found(VICTIM, "k", 3);
}

SL_TEST(a_right_that_was_taken_away_ends_a_deposit)
{
    struct told *own;
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, KEYS, MODEL, NULL);
    struct sl_early_child *child = begin(BEGIN_AND_COMMIT_LATER, HOSTILE, "k", 1, 0, &own);
    SL_AWAIT(*go_on == 1, "the beginning of the deposit");
    node_case_reload(&c, ", mode: \"0666\"", MODEL);
    *go_on = 2;
    ck_assert_int_ne(end(child, own)->failed, 0);
    ck_assert_int_eq(own->error.kind, SLUICE_AUTH);
    SL_AWAIT(node_case_counts(&c).residents == 1, "the end of the deposit");
}

SL_TEST(one_user_has_a_share_of_the_budget)
{
    struct told *own;
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, KEYS ", depositBytes: 12KiB", MODEL, NULL);
    expect_refusal(HOSTILE, "a", 16384, "share");
    struct sl_early_child *stays = begin(BEGIN_AND_STAY, HOSTILE, "a", 1, 8192, &own);
    sl_early_child_await(stays);
    expect_refusal(HOSTILE, "b", 8192, "share"); /* while the first is made */
    expect_deposit(HOSTILE, "b", 2);
    expect_deposit(HOSTILE, "c", 3); /* its own, the least recently used, goes for it */
    sl_registry_settle(c.node->registry);
    expect_found(HOSTILE, "b", 0);
    expect_deposit(VICTIM, "b", 4);
    sl_early_child_kill(stays);
}

/* Clients' ends are noticed by themselves. */
static void await_residents(uint64_t count)
{
    SL_AWAIT(node_case_counts(&c).residents == count, "the end of residents");
}

SL_TEST(evictions_and_kills_give_a_depositor_its_share_back)
{
    struct told *own;
    uint64_t bytes = 0;
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, KEYS, MODEL, NULL);
    expect_deposit(HOSTILE, "a", 1);
    struct sl_early_child *stays = begin(BEGIN_AND_STAY, HOSTILE, "b", 2, 500 << 10, &own);
    sl_early_child_await(stays);
    expect_refusal(HOSTILE, "c", 32 << 10, "share");
    ck_assert_int_eq(sluice_evict(c.socket, "m", "b", &bytes, &c.error), -1); /* being made */
    ck_assert_str_eq(c.error.code, "absent");
    struct sluice_model *held = node_case_load(&c, "m");
    ck_assert_ptr_nonnull(held);
    sl_early_child_kill(stays);
    await_residents(2); /* "a" did not go for what was refused */
    sluice_detach(held);
    expect_deposit(HOSTILE, "d", 4);
    await_references(0);
    ck_assert_int_eq(sluice_evict(c.socket, "m", "d", &bytes, &c.error), 0);
    ck_assert_uint_ge(bytes, 4096);
    expect_found(HOSTILE, "d", 0);
    await_residents(2);
}

/* ---- root of a container --------------------------------------------------------------------- */

static void expect_kept_out(enum act act)
{
    struct told *own;
    struct sl_early_child *child = begin(act, 0, "k", 0, 0, &own);
    ck_assert_int_ne(end(child, own)->failed, 0);
    ck_assert_msg(own->error.kind == SLUICE_AUTH, "%s", own->error.message);
}

static bool skips_containers(void)
{
    strangers = have_others && have_containers();
    return !strangers;
}

SL_TEST(root_of_a_container_may_what_a_user_may_whom_nobody_listed)
{
    if (skips_containers())
        SL_SKIP("it takes a PID namespace of its own");
    node_case_open(&c, ", mode: \"0666\", uids: [4001], depositUids: [4001, 4002]", MODEL, NULL);
    expect_kept_out(ATTACH);
    node_case_reload(&c, "", MODEL);
    expect_kept_out(ATTACH); /* the socket's mode lets its owner in */
    node_case_reload(&c, ", group: \"0\", depositUids: [4001]", MODEL);
    expect_kept_out(DEPOSIT);              /* it attaches, as others of its group */
    node_case_deposit(&c, "m", "k", 1000); /* root of the machine */
}

SL_TEST(deposits_of_root_of_a_container_are_its_own)
{
    if (skips_containers())
        SL_SKIP("it takes a PID namespace of its own");
    node_case_open(&c, ", mode: \"0666\", depositUids: [0, 4002]", MODEL, NULL);
    expect_deposit(0, "k", 66);
    expect_found(0, "k", 66);
    expect_found(VICTIM, "k", 0);
    ck_assert_ptr_null(node_case_attach(&c, "m", "k")); /* nor root of the machine */
    ck_assert_str_eq(c.error.code, "absent");
    node_case_deposit(&c, "m", "k", 1000);
    expect_found(0, "k", 66);
    expect_deposit(0, "own", 67);
    node_case_deposit(&c, "m", "all", 1000);
    await_references(0);
    expect_refusal(0, "all", 0, "exists"); /* what root of the machine made is for everybody */
    node_case_reload(&c, ", mode: \"0666\", depositUids: [0, 4002], sharedUids: [0]", MODEL);
    expect_found(VICTIM, "own", 67); /* the old way, where it is written */
}

SL_TEST(root_of_a_container_has_a_share_and_evicts_nothing)
{
    struct told *own;
    if (skips_containers())
        SL_SKIP("it takes a PID namespace of its own");
    node_case_open(&c, ", mode: \"0666\", depositUids: [0], depositBytes: 12KiB", MODEL, NULL);
    expect_refusal(0, "a", 16384, "share");
    struct sl_early_child *child = begin(EVICT, 0, "", 0, 0, &own);
    ck_assert_int_ne(end(child, own)->failed, 0);
    ck_assert_msg(own->error.kind == SLUICE_AUTH, "%s", own->error.message);
}

static int see_owner(void *arg, const struct sluice_row *row)
{
    int64_t *owners = arg;
    if (!*row->key)
        ck_assert_int_eq(row->owner, -1);
    else
        owners[owners[0] < 0] = row->owner;
    return 0;
}

SL_TEST(lists_show_whose_it_is)
{
    int64_t owners[2] = {0, 0};
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, KEYS, MODEL, NULL);
    expect_deposit(HOSTILE, "k", 1);
    ck_assert_int_eq(sluice_list(c.socket, see_owner, owners, &c.error), 0);
    ck_assert_int_eq(owners[0], HOSTILE);
}

SL_TEST(the_next_daemon_knows_whose_it_is)
{
    struct manager manager;
    struct sl_systemd_sockets given;
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    manager_start(&manager, &c);
    node_case_open(&c, KEYS, MODEL, NULL);
    expect_deposit(HOSTILE, "k", 66);
    expect_deposit(VICTIM, "k", 7);
    manager_await(&manager, 6); /* index and slab of each, and the model's */
    node_case_end(&c);
    manager_give(&manager, &given);
    node_case_open(&c, KEYS, MODEL, &given);
    expect_found(VICTIM, "k", 7);
    expect_found(HOSTILE, "k", 66);
    expect_found(TRUSTED, "k", 0);
    manager_stop(&manager);
}

SL_CASE(.setup = setup, .teardown = teardown)

/*
 * Who gets in: users and groups of the config, as real users and groups try it. The socket lies in
 * a folder that everybody may enter; what the lists and the mode say decides.
 */
#include <check.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "early_child.h"
#include "log.h"
#include "node_case.h"
#include "node_rights.h"
#include "peer.h"
#include "pool_case.h"

enum { CHILDREN = 12, NOBODY = 4009, TIMEOUT_MS = 60000, CANNOT_CONNECT = 3 };
#define MODEL NODE_CASE_MODEL("m", "object.safetensors")

enum act { ATTACH, DEPOSIT, CONNECT, SERVE };
struct order {
    enum act act;
    uid_t uid;
    gid_t gid, groups[2]; /* 0: none */
};

static struct node_case c;
static struct sl_early_child *children[CHILDREN];
static int used;
static struct sluice_error *told; /* by a child, in memory that it shares with the test */
static bool have_others;

static int run_child(struct sl_early_child *self, const void *copy);

static void setup(void)
{
    told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(told != MAP_FAILED);
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
    munmap(told, 4096);
}

/* ---- what the others do ---------------------------------------------------------------------- */

static void become(const struct order *order)
{
    size_t count = order->groups[1] ? 2 : order->groups[0] ? 1 : 0;
    if (chdir(c.path) < 0 || setgroups(count, order->groups) < 0 || setgid(order->gid) < 0 ||
        setuid(order->uid) < 0)
        _exit(99);
    snprintf(c.socket, sizeof(c.socket), "pool.sock"); /* the folders above may be closed */
}

static int attach(void)
{
    struct sluice_model *model = node_case_load(&c, "m");
    *told = c.error;
    return model ? 0 : c.error.kind;
}

static int deposit(void)
{
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_deposit *made;
    struct sluice_model *model = node_case_load(&c, "m");
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = "m",
                                             .key = "k",
                                             .socket = c.socket,
                                             .bytes = 4096,
                                             .timeout_ms = TIMEOUT_MS};
    *told = c.error;
    if (!model)
        return c.error.kind;
    sluice_model_info(model, &info);
    memcpy(options.identity, info.identity, sizeof(options.identity));
    return sluice_deposit_begin(&options, &made, told) < 0 ? told->kind : 0;
}

/* To a socket of the test. */
static int connect_to_it(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "own.sock"};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char byte;
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return CANNOT_CONNECT;
    return read(fd, &byte, 1) == 1 ? byte : 98;
}

/* A daemon that is not root's. It serves until it is killed. */
static _Noreturn void serve(struct sl_early_child *self)
{
    static struct pool_case pool;
    pool_case_init(&pool);
    snprintf(pool.socket, sizeof(pool.socket), "pool.sock");
    pool.config.attach = (struct sl_pool_right){
        .uids = {4006}, .uid_count = 1, .gids = {4102, 4103}, .gid_count = 2};
    pool_case_fill_all(pool_case_add(&pool, "m", "a,b", 10, 1 << 20));
    pool_case_start(&pool);
    sl_early_child_arrive(self);
}

static int run_child(struct sl_early_child *self, const void *copy)
{
    struct order order = *(const struct order *)copy;
    become(&order);
    switch (order.act) {
    case ATTACH:
        return attach();
    case DEPOSIT:
        return deposit();
    case CONNECT:
        return connect_to_it();
    default:
        serve(self);
    }
}

/* ---- the test's side ------------------------------------------------------------------------- */

static struct sl_early_child *begin(struct order order)
{
    ck_assert_int_lt(used, CHILDREN);
    sl_early_child_go(children[used], &order, sizeof(order));
    return children[used++];
}

static int end(struct sl_early_child *child)
{
    int status = sl_early_child_end(child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void expect(struct order order, int kind)
{
    memset(told, 0, sizeof(*told));
    int got = end(begin(order));
    ck_assert_msg(got == kind, "%d: %s", got, told->message);
}

/* Refused by the daemon, not by the socket's mode; or the other way round. */
static void expect_told_by(const char *who)
{
    ck_assert_msg(strstr(told->message, who) != NULL, "%s", told->message);
}

static unsigned mode_of_socket(void)
{
    struct stat status;
    ck_assert_int_eq(stat(c.socket, &status), 0);
    return status.st_mode & 0777;
}

SL_TEST(members_of_every_listed_group_may_attach)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, ", gids: [4101, 4102], uids: [4005]", MODEL, NULL);
    expect((struct order){ATTACH, 4001, 4101, {0}}, 0);
    expect((struct order){ATTACH, 4001, 4102, {0}}, 0);
    expect((struct order){ATTACH, 4001, NOBODY, {4200, 4102}}, 0); /* by another group */
    expect((struct order){ATTACH, 4005, NOBODY, {0}}, 0);
    expect((struct order){ATTACH, 4001, NOBODY, {4200, 4201}}, SLUICE_AUTH);
    expect_told_by("may not attach to this pool");
    expect((struct order){DEPOSIT, 4001, 4101, {0}}, SLUICE_AUTH);
    expect_told_by("may not deposit into this pool");
}

SL_TEST(who_may_deposit_gets_in_and_opens_it_to_nobody_else)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, ", group: 4300, depositUids: [4005], depositGids: [4101]", MODEL, NULL);
    expect((struct order){DEPOSIT, 4005, NOBODY, {0}}, 0);
    expect((struct order){DEPOSIT, 4001, NOBODY, {4101}}, 0);
    expect((struct order){ATTACH, 4001, NOBODY, {4300}}, 0); /* as by a mode of 0660 */
    expect((struct order){DEPOSIT, 4001, NOBODY, {4300}}, SLUICE_AUTH);
    expect((struct order){ATTACH, 4001, NOBODY, {0}}, SLUICE_AUTH);
    expect_told_by("may not attach to this pool");
}

SL_TEST(without_lists_the_group_of_the_socket_decides)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, ", group: 4300", MODEL, NULL);
    ck_assert_uint_eq(mode_of_socket(), 0660);
    expect((struct order){ATTACH, 4001, 4300, {0}}, 0);
    expect((struct order){ATTACH, 4001, NOBODY, {4300}}, 0);
    expect((struct order){ATTACH, 4001, NOBODY, {0}}, SLUICE_AUTH);
    expect_told_by("cannot connect");
}

SL_TEST(a_mode_that_is_given_stays)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, ", mode: \"0660\", gids: [4101]", MODEL, NULL);
    ck_assert_uint_eq(mode_of_socket(), 0660);
    expect((struct order){ATTACH, 4001, 4101, {0}}, SLUICE_AUTH);
    expect_told_by("cannot connect");
    node_case_reload(&c, ", mode: \"0666\", gids: [4102]", MODEL);
    expect((struct order){ATTACH, 4001, 4101, {0}}, SLUICE_AUTH);
    expect_told_by("may not attach");
    expect((struct order){ATTACH, 4001, 4102, {0}}, 0);
    node_case_reload(&c, ", mode: \"0666\"", MODEL);
    expect((struct order){ATTACH, 4001, NOBODY, {0}}, 0);
}

SL_TEST(a_new_config_opens_and_closes_the_socket)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    node_case_open(&c, "", MODEL, NULL);
    expect((struct order){ATTACH, 4001, 4101, {0}}, SLUICE_AUTH);
    node_case_reload(&c, ", gids: [4101]", MODEL);
    expect((struct order){ATTACH, 4001, 4101, {0}}, 0);
    node_case_reload(&c, "", MODEL);
    ck_assert_uint_eq(mode_of_socket(), 0660);
    expect((struct order){ATTACH, 4001, 4101, {0}}, SLUICE_AUTH);
    expect_told_by("cannot connect");
}

SL_TEST(a_daemon_that_is_not_root_knows_its_groups_too)
{
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    ck_assert_int_eq(fchown(c.scratch, 4005, 4005), 0);
    struct sl_early_child *daemon = begin((struct order){SERVE, 4005, 4005, {0}});
    sl_early_child_await(daemon);
    expect((struct order){ATTACH, 4005, 4005, {0}}, 0); /* its own user */
    expect((struct order){ATTACH, 0, 0, {0}}, 0);
    expect((struct order){ATTACH, 4006, NOBODY, {0}}, 0);
    expect((struct order){ATTACH, 4001, 4102, {0}}, 0);
    expect((struct order){ATTACH, 4001, NOBODY, {4200, 4103}}, 0);
    expect((struct order){ATTACH, 4001, NOBODY, {0}}, SLUICE_AUTH);
    expect_told_by("may not attach");
    sl_early_child_kill(daemon);
}

/* What the kernel says of who connects to a socket of the test's. */
static void accept_peer(struct order order, struct sl_peer *peer)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.60s/own.sock", c.path);
    unlink(address.sun_path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert(chmod(address.sun_path, 0666) == 0 && listen(fd, 1) == 0);
    struct sl_early_child *child = begin(order);
    int client = accept(fd, NULL, NULL);
    ck_assert(client >= 0 && sl_peer_find(client, peer, NULL) == 0);
    ck_assert_int_eq(write(client, "\1", 1), 1);
    ck_assert_int_eq(end(child), 1);
    close(client);
    close(fd);
}

SL_TEST(control_knows_every_group_of_who_asks)
{
    char *gids[] = {(char *)"4101", (char *)"4102"};
    const struct sl_node_spec_control control = {.gids = {gids, 2}};
    struct sl_node_rights rights;
    struct sl_peer peer;
    unsigned mode;
    if (!have_others)
        SL_SKIP("it takes root to be another user");
    sl_node_rights_init(&rights);
    ck_assert_int_eq(sl_node_rights_set(&rights, &control, NULL), 0);
    ck_assert_int_eq(sl_node_spec_control_mode(&control, &mode, NULL), 0);
    ck_assert_uint_eq(mode, 0666); /* or its lists would let in nobody */
    accept_peer((struct order){CONNECT, 4001, NOBODY, {4200, 4102}}, &peer);
    ck_assert_uint_eq(peer.uid, 4001);
    ck_assert(sl_node_rights_user(&rights, &peer));
    sl_peer_release(&peer);
    accept_peer((struct order){CONNECT, 4001, 4101, {0}}, &peer);
    ck_assert(sl_node_rights_user(&rights, &peer));
    sl_peer_release(&peer);
    accept_peer((struct order){CONNECT, 4001, NOBODY, {4200}}, &peer);
    ck_assert(!sl_node_rights_user(&rights, &peer));
    sl_peer_release(&peer);
    sl_node_rights_release(&rights);
}

SL_TEST(a_list_that_is_too_long_is_refused)
{
    char keys[4000] = ", uids: [1";
    struct sl_err err = SL_ERR_INIT;
    for (int i = 2; i <= 257; i++)
        snprintf(keys + strlen(keys), sizeof(keys) - strlen(keys), ", %d", i);
    snprintf(keys + strlen(keys), sizeof(keys) - strlen(keys), "]");
    ck_assert_int_eq(node_case_try(&c, keys, MODEL, NULL, &err), -1);
    ck_assert_msg(strstr(err.message, "'pool.uids' has 257 ids, at most 256 are taken"), "%s",
                  err.message);
}

SL_CASE(.setup = setup, .teardown = teardown)

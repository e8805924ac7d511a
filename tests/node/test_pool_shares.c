/*
 * What one user of a machine can do to the others at the pool's socket: connections that say
 * nothing, answers that nobody takes, descriptors without end, floods of rubbish. Each test has a
 * hostile process of another user; root, or a third user, must be served all the same.
 */
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "early_child.h"
#include "log.h"
#include "pool_case.h"
#include "pool_link.h"

enum { HOSTILE = 4001, OTHER = 4002, CHILDREN = 3, PATIENCE_MS = 8000, CONNECTIONS_MAX = 1200 };

enum act { GREET, LEASE, LEAVE_UNREAD, DEPOSIT, MALFORMED, ATTACH };
struct order {
    enum act act;
    uid_t uid;
    unsigned count;
};
/* What a child tells, in memory that it shares with the test. */
struct told {
    unsigned done; /* so many went well */
    struct sluice_error error;
};

static struct pool_case pool;
static struct sl_early_child *children[CHILDREN];
static struct told *told; /* one for each user: HOSTILE, OTHER, root */
static bool have_others;

static int run_child(struct sl_early_child *self, const void *order);

static unsigned told_by(uid_t uid)
{
    return uid ? uid - HOSTILE : OTHER - HOSTILE + 1;
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(told != MAP_FAILED);
    pool_case_init(&pool);
    pool.config.attach.all = pool.config.deposit.all = true;
    have_others = getuid() == 0;
    for (int i = 0; have_others && i < CHILDREN; i++)
        children[i] = sl_early_child_start(run_child);
}

static void teardown(void)
{
    for (int i = 0; i < CHILDREN; i++)
        if (children[i])
            sl_early_child_kill(children[i]);
    pool_case_release(&pool);
    munmap(told, 4096);
}

static bool skip(const char *test)
{
    if (!have_others)
        printf("skipped: %s: it takes root to be another user\n", test);
    return !have_others;
}

/* ---- what the others do ---------------------------------------------------------------------- */

/* The folders above the socket may be closed to others. */
static void become(uid_t uid)
{
    char *name = strrchr(pool.socket, '/');
    *name++ = 0;
    if (chdir(pool.socket) < 0 || setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
        _exit(99);
    memmove(pool.socket, name, strlen(name) + 1);
}

static int open_link(struct sl_pool_link *link, struct sluice_error *error)
{
    return sl_pool_link_open(link, pool.socket, "x", sl_limit_make(PATIENCE_MS, -1), error);
}

static int send_attach(struct sl_pool_link *link, struct sluice_error *error)
{
    struct {
        struct sl_wire_attach attach;
        char texts[1];
    } ask = {.attach = {.model_bytes = 1}, .texts = "m"};
    return sl_pool_link_send(link, SL_WIRE_ATTACH, &ask, sizeof(ask.attach) + 1, NULL, 0, error);
}

static int attach_by_hand(struct sl_pool_link *link, struct sluice_error *error)
{
    struct sl_pool_reply reply;
    if (send_attach(link, error) < 0 ||
        sl_pool_link_receive(link, SL_WIRE_ANSWER | SL_WIRE_ATTACH, sizeof(struct sl_wire_attached),
                             &reply, error) < 0)
        return -1;
    sl_pool_reply_release(&reply);
    return 0;
}

static int begin_deposit(struct sl_pool_link *link, unsigned number, uint64_t *id,
                         struct sluice_error *error)
{
    struct sl_pool_reply reply;
    struct {
        struct sl_wire_deposit deposit;
        char texts[10];
    } ask = {.deposit = {.bytes = 1 << 30, .model_bytes = 1, .key_bytes = 8}};
    snprintf(ask.texts, sizeof(ask.texts), "m%08x", number);
    if (sl_pool_link_ask(link, SL_WIRE_DEPOSIT, &ask, sizeof(ask.deposit) + 9, NULL, 0,
                         sizeof(struct sl_wire_id), &reply, error) < 0)
        return -1;
    *id = ((const struct sl_wire_id *)sl_pool_reply_data(&reply))->id;
    return 0;
}

/* Slabs until they are refused; how many were taken. */
static unsigned fill_deposit(struct sl_pool_link *link, uint64_t id, struct sluice_error *error)
{
    enum { AT_ONCE = 32 };
    int fds[AT_ONCE];
    struct sl_pool_reply reply;
    unsigned done = 0;
    for (int i = 0; i < AT_ONCE; i++)
        fds[i] = memfd_create("slab", MFD_CLOEXEC);
    while (done + AT_ONCE <= SL_WIRE_SLABS_MAX) {
        struct sl_wire_slabs slabs = {.id = id, .first = done, .count = AT_ONCE};
        if (sl_pool_link_ask(link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), fds, AT_ONCE,
                             sizeof(struct sl_wire_id), &reply, error) < 0)
            break;
        done += AT_ONCE;
    }
    for (int i = 0; i < AT_ONCE; i++)
        close(fds[i]);
    return done;
}

static void send_rubbish(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct pollfd answer = {.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0),
                            .events = POLLIN};
    char text[4096];
    memcpy(address.sun_path, pool.socket, strlen(pool.socket));
    if (connect(answer.fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
        send(answer.fd, "rubbish", 7, MSG_NOSIGNAL) != 7 || poll(&answer, 1, PATIENCE_MS) != 1 ||
        recv(answer.fd, text, sizeof(text), 0) <= 0)
        _exit(98);
    close(answer.fd);
}

/* One of its connections; -1: refused. */
static int act_once(enum act act, unsigned number, struct told *own)
{
    struct sl_pool_link link;
    uint64_t id;
    if (act == MALFORMED) {
        send_rubbish();
        own->done++;
        return 0;
    }
    if (open_link(&link, &own->error) < 0)
        return -1;
    if (act == DEPOSIT) {
        if (begin_deposit(&link, number, &id, &own->error) < 0)
            return -1;
        own->done += fill_deposit(&link, id, &own->error);
        return 0;
    }
    if ((act == LEASE && attach_by_hand(&link, &own->error) < 0) ||
        (act == LEAVE_UNREAD && send_attach(&link, &own->error) < 0))
        return -1;
    own->done++;
    return 0;
}

static int run_child(struct sl_early_child *self, const void *copy)
{
    struct order order = *(const struct order *)copy;
    struct told *own = &told[told_by(order.uid)];
    become(order.uid);
    if (order.act == ATTACH) {
        struct sluice_model *model = NULL;
        const struct sluice_attach_options options = {.size = sizeof(options),
                                                      .model = "m",
                                                      .socket = pool.socket,
                                                      .timeout_ms = PATIENCE_MS};
        return sluice_attach(&options, &model, &own->error) < 0 ? own->error.kind : 0;
    }
    for (unsigned i = 0; i < order.count; i++)
        if (act_once(order.act, i, own) < 0)
            break;
    sl_early_child_arrive(self);
}

/* ---- the tests' side ------------------------------------------------------------------------- */

static void start(const char *tensors, unsigned items, uint64_t slab_bytes)
{
    char directory[300];
    pool_case_fill_all(pool_case_add(&pool, "m", tensors, items, slab_bytes));
    pool_case_start(&pool);
    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(pool.socket, '/') - pool.socket),
             pool.socket);
    ck_assert_int_eq(chmod(directory, 0755), 0);
}

static const struct told *let(int child, enum act act, uid_t uid, unsigned count)
{
    const struct order order = {act, uid, count};
    sl_early_child_go(children[child], &order, sizeof(order));
    sl_early_child_await(children[child]);
    return &told[told_by(uid)];
}

static void expect_served(int child, uid_t uid)
{
    const struct order order = {ATTACH, uid, 1};
    sl_early_child_go(children[child], &order, sizeof(order));
    int status = sl_early_child_end(sl_steal(&children[child]));
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x: %s", (unsigned)status,
                  told[told_by(uid)].error.message);
}

static void expect_root_is_served(void)
{
    struct sluice_error error = {0};
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {
        .size = sizeof(options), .model = "m", .socket = pool.socket, .timeout_ms = PATIENCE_MS};
    ck_assert_msg(sluice_attach(&options, &model, &error) == 0, "%s", error.message);
    sluice_detach(model);
}

static void limit_files(rlim_t count)
{
    struct rlimit files = {count, count};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
}

static struct sl_pool_counts counts(void)
{
    struct sl_pool_counts found;
    pool_case_counts(&pool, &found);
    return found;
}

/* ---- places ---------------------------------------------------------------------------------- */

SL_TEST(silent_connections_of_one_user_keep_nobody_out)
{
    if (skip("silent_connections_of_one_user_keep_nobody_out"))
        return;
    start("a", 10, 1 << 20);
    const struct told *hostile = let(0, GREET, HOSTILE, CONNECTIONS_MAX);
    ck_assert_uint_ge(hostile->done, 200);
    expect_root_is_served();
    expect_served(1, OTHER);
    ck_assert_uint_lt(counts().clients, SL_POOL_CLIENTS_MAX / 2);
    ck_assert_uint_gt(counts().limited, 0);
}

SL_TEST(who_has_used_up_its_share_is_told_so)
{
    if (skip("who_has_used_up_its_share_is_told_so"))
        return;
    pool.config.clients_max = 40;
    start("a", 10, 1 << 20);
    const struct told *hostile = let(0, LEASE, HOSTILE, 40);
    ck_assert_uint_eq(hostile->done, 10);
    ck_assert_str_eq(hostile->error.code, "full");
    ck_assert_int_eq(hostile->error.kind, SLUICE_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(hostile->error.message, "user 4001"));
    expect_served(1, OTHER);
    expect_root_is_served();
    SL_AWAIT(counts().leases == 10, "the end of the others"); /* noticed by itself */
}

/* It may all that the daemon's user may. */
SL_TEST(root_has_a_share_of_another_users_daemon)
{
    if (skip("root_has_a_share_of_another_users_daemon"))
        return;
    pool.config.clients_max = 40;
    start("a", 10, 1 << 20);
    ck_assert_int_eq(seteuid(OTHER), 0);
    const struct told *root = let(0, LEASE, 0, 40);
    ck_assert_uint_eq(root->done, 10);
    ck_assert_str_eq(root->error.code, "full");
    ck_assert_ptr_nonnull(strstr(root->error.message, "user 0"));
    expect_served(1, OTHER); /* the daemon's own */
    ck_assert_int_eq(seteuid(0), 0);
}

/* Until its connection has ended. */
static void await_hangup(const struct sl_pool_link *link)
{
    struct pollfd end = {.fd = link->fd, .events = POLLRDHUP};
    ck_assert_int_eq(poll(&end, 1, PATIENCE_MS), 1);
}

SL_TEST(the_longest_idle_connection_makes_room)
{
    struct sl_pool_link idle, leased;
    struct sluice_error error = {0};
    if (skip("the_longest_idle_connection_makes_room"))
        return;
    pool.config.clients_max = 3;
    start("a", 10, 1 << 20);
    ck_assert_int_eq(open_link(&leased, &error), 0);
    ck_assert_int_eq(attach_by_hand(&leased, &error), 0);
    pool_case_settle(&pool, 1, 1);
    if (let(0, GREET, HOSTILE, 1)->done != 1) /* the one place of its user */
        ck_abort_msg("%s", told->error.message);
    ck_assert_int_eq(open_link(&idle, &error), 0);
    expect_root_is_served(); /* as soon as the idle one of a user has been idle for a second */
    ck_assert_int_eq(attach_by_hand(&idle, &error), 0);
    pool_case_settle(&pool, 2, 2);
    sl_pool_link_close(&idle);
    sl_pool_link_close(&leased);
}

/* ---- answers --------------------------------------------------------------------------------- */

SL_TEST(an_answer_that_nobody_takes_ends_its_lease)
{
    struct sl_pool_link link, idle;
    struct sluice_error error = {0};
    pool.config.take_ms = 300;
    start("a", 10, 1 << 20);
    ck_assert_int_eq(open_link(&idle, &error), 0);
    ck_assert_int_eq(attach_by_hand(&idle, &error), 0);
    ck_assert_int_eq(open_link(&link, &error), 0);
    ck_assert_int_eq(send_attach(&link, &error), 0);
    pool_case_settle(&pool, 2, 2);
    pool_case_settle(&pool, 2, 1); /* its descriptors are still on their way, so it counts */
    await_hangup(&link);
    sl_pool_link_close(&link);
    pool_case_settle(&pool, 1, 1); /* who took its answer may be silent */
    ck_assert_int_eq(attach_by_hand(&idle, &error), 0);
    pool_case_settle(&pool, 1, 2);
    sl_pool_link_close(&idle);
    pool_case_settle(&pool, 0, 0);
}

SL_TEST(requests_beyond_an_answer_that_was_not_taken_wait)
{
    struct sl_pool_link link;
    struct sluice_error error = {0};
    struct sl_pool_reply reply;
    start("a", 10, 1 << 20);
    ck_assert_int_eq(open_link(&link, &error), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(send_attach(&link, &error), 0);
    for (unsigned i = 1; i <= 3; i++) {
        pool_case_settle(&pool, 1, i);
        poll(NULL, 0, 150); /* longer than a tick: nothing may come of the next one */
        pool_case_settle(&pool, 1, i);
        ck_assert_int_eq(sl_pool_link_receive(&link, SL_WIRE_ANSWER | SL_WIRE_ATTACH,
                                              sizeof(struct sl_wire_attached), &reply, &error),
                         i == 3 ? 0 : -1); /* of another serial than the last */
        sl_pool_reply_release(&reply);
    }
    sl_pool_link_close(&link);
    pool_case_settle(&pool, 0, 0);
}

SL_TEST(unread_answers_of_one_user_hold_up_nobody_else)
{
    if (skip("unread_answers_of_one_user_hold_up_nobody_else"))
        return;
    limit_files(1024);
    pool.config.take_ms = 400;
    start("a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q,r,s,t", 1000, 4096); /* 20 slabs */
    const struct told *hostile = let(0, LEAVE_UNREAD, HOSTILE, 40);
    ck_assert_uint_eq(hostile->done, 40);
    expect_served(1, OTHER);
    expect_root_is_served();
    pool_case_settle(&pool, 40, 0); /* it has no lease any more, nor has who waited */
    ck_assert_uint_ge(counts().limited, 40 - 256 / 22);
    sl_early_child_kill(sl_steal(&children[0]));
    pool_case_settle(&pool, 0, 0);
}

/* ---- descriptors ----------------------------------------------------------------------------- */

SL_TEST(depositors_cannot_use_up_the_descriptors)
{
    if (skip("depositors_cannot_use_up_the_descriptors"))
        return;
    limit_files(2048);
    start("a", 10, 1 << 20);
    unsigned before = pool_case_count_fds();
    const struct told *hostile = let(0, DEPOSIT, HOSTILE, 16);
    ck_assert_uint_le(hostile->done, 2048 / 4);
    ck_assert_uint_ge(hostile->done, 2048 / 4 - 64);
    ck_assert_str_eq(hostile->error.code, "descriptors");
    ck_assert_ptr_nonnull(strstr(hostile->error.message, "too many descriptors of user 4001"));
    ck_assert_uint_le(pool_case_count_fds(), before + 2048 / 4 + 64); /* sockets, a packet */
    const struct told *other = let(1, DEPOSIT, OTHER, 16);
    ck_assert_uint_ge(other->done, 2048 / 4 - 64);
    expect_root_is_served();
    for (int i = 0; i < 2; i++)
        sl_early_child_kill(sl_steal(&children[i]));
    pool_case_settle(&pool, 0, 0);
    expect_root_is_served();
}

/* What the daemon's own user has deposited is not root's, nor the other way round. */
SL_TEST(deposits_of_root_count_for_root_at_another_users_daemon)
{
    static const uid_t users[] = {OTHER, 0};
    if (skip("deposits_of_root_count_for_root_at_another_users_daemon"))
        return;
    limit_files(2048);
    pool.kept_uid = OTHER;
    pool.kept_fds = 2048 / 2 - 64;
    start("a", 10, 1 << 20);
    ck_assert_int_eq(seteuid(OTHER), 0);
    for (int i = 0; i < 2; i++) {
        const struct told *told_of = let(i, DEPOSIT, users[i], 16);
        ck_assert_str_eq(told_of->error.code, "descriptors");
        ck_assert_uint_le(told_of->done, users[i] ? 64 : 2048 / 4);
        ck_assert_uint_ge(told_of->done, users[i] ? 32 : 2048 / 4 - 64);
    }
    ck_assert_ptr_nonnull(strstr(told[told_by(0)].error.message, "user 0"));
    ck_assert_int_eq(seteuid(0), 0);
}

SL_TEST(what_is_still_to_be_closed_is_bounded)
{
    enum { AT_ONCE = 200 };
    int fds[AT_ONCE];
    struct sl_pool_link link;
    struct sluice_error error = {0};
    limit_files(1024);
    start("a", 10, 1 << 20);
    pool.locked.hold_laters = true; /* the thread that closes is at work elsewhere */
    for (int i = 0; i < AT_ONCE; i++)
        fds[i] = memfd_create("slab", MFD_CLOEXEC);
    ck_assert_int_eq(open_link(&link, &error), 0);
    for (unsigned i = 0; i < 20; i++) {
        struct sl_pool_reply reply;
        struct sl_wire_id abort = {0};
        struct sl_wire_slabs slabs = {.count = AT_ONCE};
        ck_assert_msg(begin_deposit(&link, i, &slabs.id, &error) == 0, "%s", error.message);
        abort.id = slabs.id;
        ck_assert_msg(sl_pool_link_ask(&link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), fds,
                                       AT_ONCE, sizeof(struct sl_wire_id), &reply, &error) == 0,
                      "%u: %s", i, error.message);
        ck_assert_int_eq(sl_pool_link_ask(&link, SL_WIRE_ABORT, &abort, sizeof(abort), NULL, 0,
                                          sizeof(struct sl_wire_id), &reply, &error),
                         0);
    }
    for (int i = 0; i < AT_ONCE; i++)
        close(fds[i]);
    sl_pool_link_close(&link);
    pool_case_settle(&pool, 0, 0);
    pool.locked.hold_laters = false;
    pool_case_run_laters(&pool);
}

/* ---- the log --------------------------------------------------------------------------------- */

/* What is written to it meanwhile goes to a file of its own. */
static int divert_log(int *saved)
{
    int fd = memfd_create("log", MFD_CLOEXEC);
    *saved = dup(STDERR_FILENO);
    ck_assert(fd >= 0 && *saved >= 0 && dup2(fd, STDERR_FILENO) >= 0);
    sl_log_setup(SL_LOG_WARN, false);
    return fd;
}

static unsigned count_lines(int fd)
{
    static char text[1 << 20];
    unsigned lines = 0;
    ssize_t bytes = pread(fd, text, sizeof(text), 0);
    for (ssize_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    return lines;
}

SL_TEST(a_flood_of_rubbish_leaves_few_lines_in_the_log)
{
    int saved;
    if (skip("a_flood_of_rubbish_leaves_few_lines_in_the_log"))
        return;
    int log = divert_log(&saved); /* before there are threads that write to it */
    start("a", 10, 1 << 20);
    const struct told *hostile = let(0, MALFORMED, HOSTILE, 500);
    ck_assert_uint_eq(hostile->done, 500);
    expect_root_is_served();
    ck_assert_uint_eq(counts().protocol_errors, 500);
    unsigned lines = count_lines(log);
    ck_assert_uint_ge(lines, 1);
    ck_assert_uint_le(lines, 10);
    pool_case_stop(&pool); /* tells how many were left out */
    ck_assert_uint_eq(count_lines(log), lines + 1);
    sl_log_setup(SL_LOG_ERROR, false);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(log);
}

SL_CASE(.setup = setup, .teardown = teardown)

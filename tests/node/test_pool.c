/*
 * The pool's server and libsluice together: what is attached to is right, usable while it is still
 * being loaded, and gone from the books however a client ends; a server that ends takes nothing
 * from its clients.
 */
#include <check.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "early_child.h"
#include "log.h"
#include "pool_case.h"
#include "pool_link.h"
#include "skip.h"

static struct pool_case pool;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    pool_case_init(&pool);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    pool_case_release(&pool);
}

static void expect_value(struct sluice_model *model, const char *name, float value)
{
    struct sluice_error error = {0};
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_msg(sluice_find(model, name, &tensor, &error) == 0, "%s", error.message);
    ck_assert_int_eq(sluice_wait(model, tensor.number, 60000, -1, &error), 0);
    for (uint64_t i = 0; i < tensor.bytes / sizeof(float); i++)
        ck_assert_float_eq(((const float *)tensor.data)[i], value);
}

/* ---- attaching ------------------------------------------------------------------------------- */

SL_TEST(whoever_attaches_sees_every_tensor)
{
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_error error;
    pool_case_fill_all(pool_case_add(&pool, "m", "a,b,c", 1000, 1 << 20));
    pool_case_start(&pool);
    struct sluice_model *model = pool_case_attach(&pool, "m");
    sluice_model_info(model, &info);
    ck_assert_str_eq(info.name, "m");
    ck_assert_uint_eq(info.tensor_count, 3);
    ck_assert_uint_eq(info.ready_count, 3);
    ck_assert_int_eq(info.state, 1);
    expect_value(model, "a", 1);
    expect_value(model, "b", 2);
    expect_value(model, "c", 3);
    ck_assert_int_eq(sluice_tensor_at(model, 1, &tensor, &error), 0);
    ck_assert_str_eq(tensor.name, "b");
    ck_assert_str_eq(tensor.dtype, "F32");
    ck_assert_uint_eq(tensor.shape[0], 1000);
    ck_assert(tensor.dlpack_code == 2 && tensor.dlpack_bits == 32);
    ck_assert_uint_eq((uintptr_t)tensor.data % 256, 0);
    ck_assert_int_eq(sluice_find(model, "d", &tensor, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_int_eq(sluice_wait_all(model, 0, -1, &error), 0);
    sluice_detach(model);
    pool_case_settle(&pool, 0, 0);
    ck_assert_uint_eq(pool_case_count(&pool, &pool.locked.granted),
                      pool_case_count(&pool, &pool.locked.released));
}

SL_TEST(models_of_many_slabs_come_in_several_packets)
{
    char names[8 * 600] = "";
    size_t used = 0;
    unsigned before;
    for (int i = 0; i < 600; i++)
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%st%d", i ? "," : "", i);
    pool_case_fill_all(pool_case_add(&pool, "m", names, 16, 64)); /* a slab each */
    pool_case_start(&pool);
    before = pool_case_count_fds();
    struct sluice_model *model = pool_case_attach(&pool, "m");
    ck_assert_uint_eq(pool_case_count(&pool, &pool.locked.granted), 1);
    for (int i = 0; i < 600; i++) {
        char name[16];
        snprintf(name, sizeof(name), "t%d", i);
        expect_value(model, name, (float)(i + 1));
    }
    sluice_detach(model);
    pool_case_settle(&pool, 0, 0);
    ck_assert_uint_eq(pool_case_count_fds(), before);
}

SL_TEST(memory_is_read_only_or_private)
{
    struct sluice_error error;
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_attach_options options = {.size = sizeof(options),
                                            .model = "m",
                                            .socket = pool.socket,
                                            .flags = SLUICE_PRIVATE | SLUICE_KEEP_FDS};
    const void *data;
    uint64_t bytes;
    int fd;
    pool_case_fill_all(pool_case_add(&pool, "m", "a,b", 1000, 1 << 20));
    pool_case_start(&pool);
    struct sluice_model *shared = pool_case_attach(&pool, "m"), *own = NULL;
    ck_assert_int_eq(sluice_attach(&options, &own, &error), 0);
    ck_assert_int_eq(sluice_find(own, "a", &tensor, &error), 0);
    *(float *)(uintptr_t)tensor.data = 99;
    expect_value(shared, "a", 1);
    ck_assert_int_eq(sluice_slab(own, 0, &data, &bytes, &fd, &error), 0);
    ck_assert_ptr_eq(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_eq(sluice_slab(own, 1, &data, &bytes, &fd, &error), -1);
    sluice_find(shared, "a", &tensor, &error);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* no sanitizer's report */
        *(volatile float *)(uintptr_t)tensor.data = 1;
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    sluice_detach(shared);
    sluice_detach(own);
}

SL_TEST(the_socket_of_something_else_is_told_from_none)
{
    struct sluice_error error;
    struct sluice_model *model = NULL;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(pool.socket), sizeof(address.sun_path));
    memcpy(address.sun_path, pool.socket, strlen(pool.socket));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_int_eq(pool_case_try(&pool, "m", &model, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_ptr_nonnull(strstr(error.message, "is not a pool's socket"));
    close(fd);
    ck_assert_int_eq(unlink(pool.socket), 0);
}

SL_TEST(a_missing_model_says_so)
{
    struct sluice_error error;
    struct sluice_model *model = NULL;
    pool_case_start(&pool);
    ck_assert_int_eq(pool_case_try(&pool, "none", &model, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_str_eq(error.message, "no model 'none'");
    ck_assert_int_eq(pool_case_try(&pool, "", &model, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    pool_case_stop(&pool);
    struct sluice_attach_options options = {
        .size = sizeof(options), .model = "none", .socket = pool.socket};
    for (int ms = 0; ms <= 20; ms += 20) { /* at once, or when there is no more time */
        options.timeout_ms = ms;
        ck_assert_int_eq(sluice_attach(&options, &model, &error), -1);
        ck_assert_int_eq(error.kind, SLUICE_NETWORK);
        ck_assert_ptr_nonnull(strstr(error.message, "sluice serve"));
    }
    int ends[2]; /* whoever waits can be interrupted */
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[1]);
    options.timeout_ms = 60000;
    options.cancel_fd = ends[0];
    ck_assert_int_eq(sluice_attach(&options, &model, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    close(ends[0]);
}

/* ---- during the load ------------------------------------------------------------------------- */

static void *fill_slowly(void *arg)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *model = arg;
    pool_case_fill(model, 1, 2);
    pool_case_fill(model, 0, 1);
    pool_case_fill(model, 2, 3);
    ck_assert_int_eq(sl_pool_model_finish(model, &err), 0);
    return NULL;
}

SL_TEST(tensors_can_be_used_as_they_arrive)
{
    struct sl_err err = SL_ERR_INIT;
    struct sluice_error error;
    pthread_t thread;
    struct sl_pool_model *source = pool_case_add(&pool, "m", "a,b,c", 1000, 1 << 20);
    pool_case_start(&pool);
    struct sluice_model *model = pool_case_attach(&pool, "m");
    ck_assert_int_eq(sluice_ready(model, 1), 0);
    ck_assert_int_eq(sluice_wait(model, 1, 0, -1, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_TIMEOUT);
    ck_assert_int_eq(sl_thread_start(&thread, "fill", fill_slowly, source, &err), 0);
    expect_value(model, "a", 1);
    expect_value(model, "b", 2);
    ck_assert_int_eq(sluice_wait_all(model, 60000, -1, &error), 0);
    expect_value(model, "c", 3);
    ck_assert_int_eq(sluice_ready(model, 2), 1);
    ck_assert_int_eq(sluice_ready(model, 3), -1);
    pthread_join(thread, NULL);
    sluice_detach(model);
}

SL_TEST(a_failed_load_tells_its_error_to_who_waits)
{
    struct sl_err why = SL_ERR_INIT;
    struct sluice_error error;
    struct sl_pool_model *source = pool_case_add(&pool, "m", "a,b", 1000, 1 << 20);
    pool_case_start(&pool);
    struct sluice_model *model = pool_case_attach(&pool, "m");
    pool_case_fill(source, 0, 1);
    sl_fail_code(&why, SL_E_INTEGRITY, "E_HASH_CRC32", "tensor 'b': its crc32 is wrong");
    sl_pool_model_fail(source, &why);
    expect_value(model, "a", 1); /* what was there stays good */
    ck_assert_int_eq(sluice_wait(model, 1, -1, -1, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_str_eq(error.code, "E_HASH_CRC32");
    ck_assert_ptr_nonnull(strstr(error.message, "its crc32 is wrong"));
    ck_assert_int_eq(sluice_wait_all(model, -1, -1, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    sluice_detach(model);
}

SL_TEST(waiting_ends_by_the_callers_word)
{
    struct sluice_error error;
    int cancel[2];
    pool_case_add(&pool, "m", "a", 1000, 1 << 20);
    pool_case_start(&pool);
    struct sluice_model *model = pool_case_attach(&pool, "m");
    ck_assert_int_eq(pipe(cancel), 0);
    ck_assert_int_eq(write(cancel[1], "x", 1), 1);
    ck_assert_int_eq(sluice_wait(model, 0, -1, cancel[0], &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_CANCELED);
    close(cancel[0]);
    close(cancel[1]);
    sluice_detach(model);
}

SL_TEST(a_server_that_ends_takes_nothing_away)
{
    struct sluice_error error;
    struct sl_pool_model *source = pool_case_add(&pool, "m", "a,b", 1000, 1 << 20);
    pool_case_fill(source, 0, 1);
    pool_case_start(&pool);
    struct sluice_model *model = pool_case_attach(&pool, "m");
    pool_case_stop(&pool);
    ck_assert_uint_eq(pool_case_count(&pool, &pool.locked.released), 1);
    expect_value(model, "a", 1);
    ck_assert_int_eq(sluice_wait(model, 1, -1, -1, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NETWORK);
    sluice_detach(model);
    pool_case_start(&pool); /* and the socket is free again */
    sluice_detach(pool_case_attach(&pool, "m"));
}

/* ---- requests that wait ---------------------------------------------------------------------- */

SL_TEST(who_gives_up_waiting_is_withdrawn)
{
    struct sluice_error error;
    struct sluice_model *model = NULL;
    struct sluice_attach_options options = {
        .size = sizeof(options), .model = "m", .socket = pool.socket, .timeout_ms = 1};
    pool.locked.hold = true;
    struct sl_pool_model *source = pool_case_add(&pool, "m", "a", 10, 1 << 20);
    pool_case_start(&pool);
    ck_assert_int_eq(sluice_attach(&options, &model, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_TIMEOUT);
    pool_case_settle(&pool, 0, 0);
    /* It may have given up before its request was read. */
    ck_assert_uint_eq(pool_case_count(&pool, &pool.locked.withdrawn),
                      pool_case_count(&pool, &pool.locked.held_count));
    for (unsigned i = 0; i < pool.locked.held_count; i++)
        ck_assert(!pool_case_grant(&pool, pool.locked.held[i], source));
    pool.locked.held_count = 0;
    ck_assert_uint_eq(pool_case_count(&pool, &pool.locked.released), 0);
}

static void *attach_thread(void *arg)
{
    struct sluice_model **model = arg;
    *model = pool_case_attach(&pool, "m");
    return NULL;
}

SL_TEST(answers_may_come_late_and_from_any_thread)
{
    struct sl_err err = SL_ERR_INIT;
    struct sluice_model *models[8] = {0};
    pthread_t threads[8];
    pool.locked.hold = true;
    struct sl_pool_model *source = pool_case_add(&pool, "m", "a", 10, 1 << 20);
    pool_case_start(&pool);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(sl_thread_start(&threads[i], "attach", attach_thread, &models[i], &err),
                         0);
    pool_case_await(&pool, &pool.locked.held_count, 8);
    for (int i = 0; i < 8; i++)
        ck_assert(pool_case_grant(&pool, pool.locked.held[i], source));
    pool.locked.held_count = 0;
    for (int i = 0; i < 8; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_ptr_nonnull(models[i]);
    }
    pool_case_settle(&pool, 8, 8);
    for (int i = 0; i < 8; i++)
        sluice_detach(models[i]);
    pool_case_await(&pool, &pool.locked.released, 8);
}

SL_TEST(requests_outlive_the_server)
{
    struct sl_err err = SL_ERR_INIT;
    struct sluice_error error;
    struct sluice_model *model = NULL;
    struct sluice_attach_options options = {
        .size = sizeof(options), .model = "m", .socket = pool.socket, .timeout_ms = 200};
    pool.locked.hold = true;
    pool_case_start(&pool);
    do
        ck_assert_int_eq(sluice_attach(&options, &model, &error), -1);
    while (pool_case_count(&pool, &pool.locked.held_count) == 0);
    pool_case_stop(&pool);
    sl_fail(&err, SL_E_CANCELED, "too late");
    for (unsigned i = 0; i < pool.locked.held_count; i++)
        sl_pool_request_refuse(pool.locked.held[i], &err);
    pool.locked.held_count = 0;
}

/* ---- ends ------------------------------------------------------------------------------------ */

enum step { CONNECTED, GREETED, ASKED, ANSWERED, STEPS };

/* A client by hand, which says when it has come this far, and then waits to be killed. */
static int be_client(struct sl_early_child *self, const void *order)
{
    enum step last = *(const enum step *)order;
    struct sl_pool_link link;
    struct sl_limit limit = sl_limit_make(60000, -1);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct {
        struct sl_wire_attach attach;
        char model[1];
    } ask = {.attach = {.model_bytes = 1}, .model = "m"};
    static struct sl_pool_reply reply;
    memcpy(address.sun_path, pool.socket, strlen(pool.socket));
    if (last == CONNECTED) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
            return 1;
    } else if (sl_pool_link_open(&link, pool.socket, "victim", limit, NULL) < 0) {
        return 1;
    }
    size_t bytes = sizeof(ask.attach) + 1;
    if (last >= ASKED && sl_pool_link_send(&link, SL_WIRE_ATTACH, &ask, bytes, NULL, 0, NULL) < 0)
        return 1;
    if (last >= ANSWERED &&
        sl_pool_link_receive(&link, SL_WIRE_ANSWER | SL_WIRE_ATTACH, 16, &reply, NULL) < 0)
        return 1;
    sl_early_child_arrive(self);
}

SL_TEST(a_client_killed_at_any_step_leaves_nothing)
{
    struct sl_early_child *children[STEPS];
    for (enum step step = CONNECTED; step < STEPS; step++)
        children[step] = sl_early_child_start(be_client);
    pool_case_fill_all(pool_case_add(&pool, "m", "a,b", 1000, 1 << 20));
    pool_case_start(&pool);
    unsigned before = pool_case_count_fds();
    for (enum step step = CONNECTED; step < STEPS; step++) {
        sl_early_child_go(children[step], &step, sizeof(step));
        sl_early_child_await(children[step]);
        sl_early_child_kill(children[step]);
        pool_case_settle(&pool, 0, 0);
        ck_assert_uint_eq(pool_case_count(&pool, &pool.locked.granted),
                          pool_case_count(&pool, &pool.locked.released));
    }
    ck_assert_uint_ge(pool_case_count(&pool, &pool.locked.granted), 1);
    ck_assert_uint_eq(pool_case_count_fds(), before);
}

SL_TEST(thousands_of_connects_leave_nothing)
{
    enum { ROUNDS = 3000 };
    struct sl_pool_counts counts;
    pool_case_fill_all(pool_case_add(&pool, "m", "a,b", 10, 1 << 20));
    pool_case_start(&pool);
    unsigned before = pool_case_count_fds();
    for (int i = 0; i < ROUNDS; i++)
        sluice_detach(pool_case_attach(&pool, "m"));
    pool_case_settle(&pool, 0, 0);
    pool_case_counts(&pool, &counts);
    ck_assert_uint_eq(counts.connects, ROUNDS);
    ck_assert_uint_eq(counts.attaches, ROUNDS);
    ck_assert_uint_eq(pool_case_count(&pool, &pool.locked.released), ROUNDS);
    ck_assert_uint_eq(pool_case_count_fds(), before);
}

SL_TEST(clients_beyond_the_limit_wait_their_turn)
{
    struct sluice_model *model[4];
    struct sluice_error error;
    struct sluice_attach_options options = {
        .size = sizeof(options), .model = "m", .socket = pool.socket, .timeout_ms = 50};
    pool_case_add(&pool, "m", "a", 10, 1 << 20);
    pool.config.clients_max = 3;
    pool_case_start(&pool);
    for (int i = 0; i < 3; i++)
        model[i] = pool_case_attach(&pool, "m");
    ck_assert_int_eq(sluice_attach(&options, &model[3], &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_TIMEOUT);
    sluice_detach(model[0]);
    model[0] = pool_case_attach(&pool, "m");
    for (int i = 0; i < 3; i++)
        sluice_detach(model[i]);
}

/* ---- who, and from where --------------------------------------------------------------------- */

struct who {
    uid_t uid;
    gid_t gid;
};

/* 0, or the kind of the error. */
static int attach_as(struct sl_early_child *self, const void *order)
{
    const struct who *who = order;
    struct sluice_error error = {0};
    struct sluice_model *model = NULL;
    char *name = strrchr(pool.socket, '/');
    *name++ = 0;
    if (chdir(pool.socket) < 0) /* the folders above it may be closed to others */
        return 77;
    memmove(pool.socket, name, strlen(name) + 1);
    (void)self;
    if (setgid(who->gid) < 0 || setuid(who->uid) < 0)
        return 77;
    if (pool_case_try(&pool, "m", &model, &error) < 0)
        return error.kind;
    expect_value(model, "a", 1);
    return 0;
}

static void expect_attach(struct sl_early_child *child, uid_t uid, gid_t gid, int kind)
{
    sl_early_child_go(child, &(struct who){uid, gid}, sizeof(struct who));
    int status = sl_early_child_end(child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), kind);
}

SL_TEST(only_who_is_listed_may_attach)
{
    char directory[300];
    if (getuid() != 0)
        SL_SKIP("only root can become another user");
    struct sl_early_child *child[6];
    for (size_t i = 0; i < SL_COUNT(child); i++)
        child[i] = sl_early_child_start(attach_as);
    pool_case_fill_all(pool_case_add(&pool, "m", "a", 10, 1 << 20));
    pool.config.attach =
        (struct sl_pool_right){.uids = {4001}, .uid_count = 1, .gids = {4002}, .gid_count = 1};
    pool_case_start(&pool);
    snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(pool.socket, '/') - pool.socket),
             pool.socket);
    ck_assert_int_eq(chmod(directory, 0755), 0);
    expect_attach(child[0], 0, 0, 0);
    expect_attach(child[1], 4001, 1, 0);
    expect_attach(child[2], 1, 4002, 0);
    expect_attach(child[3], 1, 1, SLUICE_AUTH);
    pool.config.attach = (struct sl_pool_right){.all = true};
    sl_pool_server_set_rights(pool.server, &pool.config);
    expect_attach(child[4], 1, 1, 0);
    ck_assert_int_eq(chmod(pool.socket, 0600), 0);
    expect_attach(child[5], 1, 1, SLUICE_AUTH); /* by the socket's mode */
}

/* 0, the kind of the error, or 77: this cannot be tried here. */
static int attach_in_namespaces(struct sl_early_child *self, const void *order)
{
    int status;
    (void)self, (void)order;
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC) < 0)
        return 77;
    pid_t inner = fork(); /* the first process of the new PID namespace */
    if (inner == 0) {
        struct sluice_error error = {0};
        struct sluice_model *model = NULL;
        if (pool_case_try(&pool, "m", &model, &error) < 0)
            _exit(error.kind);
        expect_value(model, "a", 1);
        sluice_detach(model);
        _exit(0);
    }
    return waitpid(inner, &status, 0) == inner && WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

SL_TEST(namespaces_make_no_difference)
{
    struct sl_early_child *child = sl_early_child_start(attach_in_namespaces);
    pool_case_fill_all(pool_case_add(&pool, "m", "a", 10, 1 << 20));
    pool.config.attach.all = true; /* of an unmapped user, as it may be in there */
    pool_case_start(&pool);
    sl_early_child_go(child, NULL, 0);
    int status = sl_early_child_end(child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        SL_SKIP("no namespaces can be made");
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int count_row(void *arg, const struct sluice_row *row)
{
    unsigned *seen = arg;
    ck_assert_str_eq(row->device, "host");
    ck_assert_uint_eq(row->tensor_count, 2);
    ck_assert_int_eq(row->state, strcmp(row->name, "ready") == 0);
    ck_assert_uint_eq(row->lease_count, strcmp(row->name, "ready") == 0);
    ++*seen;
    return 0;
}

static int check_holder(void *arg, const struct sluice_holder *holder)
{
    unsigned *seen = arg;
    ck_assert_int_eq(holder->pid, getpid());
    ck_assert_uint_eq(holder->uid, getuid());
    ck_assert_str_eq(holder->name, "test");
    *seen += 100;
    return 0;
}

SL_TEST(lists_tell_what_there_is_and_who_has_it)
{
    struct sluice_error error = {0};
    uint64_t bytes = 0;
    unsigned seen = 0;
    pool_case_fill_all(pool_case_add(&pool, "ready", "a,b", 10, 1 << 20));
    pool_case_add(&pool, "loading", "a,b", 10, 1 << 20);
    pool_case_start(&pool);
    struct sluice_model *model = pool_case_attach(&pool, "ready");
    ck_assert_int_eq(sluice_list(pool.socket, count_row, &seen, &error), 0);
    ck_assert_uint_eq(seen, 2);
    seen = 0;
    ck_assert_int_eq(
        sluice_stat(pool.socket, "ready", NULL, count_row, check_holder, &seen, &error), 0);
    ck_assert_uint_eq(seen, 101);
    ck_assert_int_eq(sluice_stat(pool.socket, "none", NULL, NULL, NULL, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_int_eq(sluice_evict(pool.socket, "loading", NULL, &bytes, &error), 0);
    ck_assert_uint_gt(bytes, 80);
    ck_assert_int_eq(sluice_evict(pool.socket, "loading", NULL, &bytes, &error), -1);
    sluice_detach(model);
}

SL_CASE(.setup = setup, .teardown = teardown)

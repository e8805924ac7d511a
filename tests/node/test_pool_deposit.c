/*
 * Deposits and hostile clients: what was not sealed, does not fit its index or was not announced is
 * refused, whoever dies leaves nothing, and no packet does more than end its own connection.
 */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "deposit_case.h"
#include "early_child.h"
#include "pool_index_write.h"

/* ---- deposits -------------------------------------------------------------------------------- */

static int begin(uint64_t bytes, struct sluice_deposit **deposit, struct sluice_error *error)
{
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = "m",
                                             .key = "engine=test;rank=0",
                                             .socket = pool.socket,
                                             .bytes = bytes,
                                             .timeout_ms = 60000};
    memcpy(options.identity, identity, sizeof(identity));
    return sluice_deposit_begin(&options, deposit, error);
}

static void add(struct sluice_deposit *deposit, const char *name, uint64_t count, float value)
{
    struct sluice_error error = {0};
    float *data = NULL;
    int done = sluice_deposit_add(deposit, name, "F32", 1, &count, NULL, count * sizeof(float),
                                  (void **)&data, &error);
    ck_assert_msg(done == 0, "%s", error.message);
    ck_assert_uint_eq((uintptr_t)data % 256, 0);
    for (uint64_t i = 0; i < count; i++)
        data[i] = value;
}

static struct sluice_model *attach_derived(const char *key, struct sluice_error *error)
{
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = "m",
                                                  .key = key,
                                                  .socket = pool.socket,
                                                  .timeout_ms = 60000};
    return sluice_attach(&options, &model, error) < 0 ? NULL : model;
}

SL_TEST(what_one_deposits_another_attaches_to)
{
    struct sluice_error error = {0};
    struct sluice_deposit *deposit = NULL;
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_model_info info = {.size = sizeof(info)};
    uint64_t shape[2] = {2, 3}, strides[2] = {1, 2};
    void *data;
    ck_assert_int_eq(begin(100000, &deposit, &error), 0);
    add(deposit, "a", 1000, 1);
    add(deposit, "b", 0, 0);
    ck_assert_int_eq(sluice_deposit_add(deposit, "t", "BF16", 2, shape, strides, 12, &data, &error),
                     0);
    ck_assert_ptr_null(attach_derived("engine=test;rank=0", &error));
    int done = sluice_deposit_commit(deposit, &error);
    ck_assert_msg(done == 0, "%s", error.message);
    ck_assert_uint_eq(pool.locked.committed, 1);
    struct sluice_model *model = attach_derived("engine=test;rank=0", &error);
    ck_assert_ptr_nonnull(model);
    sluice_deposit_end(deposit);
    sluice_model_info(model, &info);
    ck_assert_int_eq(info.state, 1);
    ck_assert_int_eq(memcmp(info.identity, identity, sizeof(identity)), 0);
    ck_assert_int_eq(sluice_find(model, "a", &tensor, &error), 0);
    ck_assert_float_eq(((const float *)tensor.data)[999], 1);
    ck_assert_int_eq(sluice_find(model, "t", &tensor, &error), 0);
    ck_assert_ptr_nonnull(tensor.strides);
    ck_assert_uint_eq(tensor.strides[1], 2);
    ck_assert_ptr_null(attach_derived("engine=test;rank=1", &error));
    ck_assert_int_eq(begin(1000, &deposit, &error), -1);
    ck_assert_str_eq(error.code, "exists");
    sluice_detach(model);
    pool_case_settle(&pool, 0, 0);
}

SL_TEST(a_deposit_keeps_to_what_it_announced)
{
    struct sluice_error error = {0};
    struct sluice_deposit *deposit = NULL;
    uint64_t shape = 1000;
    void *data;
    ck_assert_int_eq(begin(4096, &deposit, &error), 0);
    ck_assert_int_eq(sluice_deposit_add(deposit, "a", "F32", 1, &shape, NULL, 4001, &data, &error),
                     -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_int_eq(sluice_deposit_add(deposit, "a", "F99", 1, &shape, NULL, 4000, &data, &error),
                     -1);
    add(deposit, "a", 1000, 1);
    ck_assert_int_eq(sluice_deposit_add(deposit, "b", "F32", 1, &shape, NULL, 4000, &data, &error),
                     -1);
    ck_assert_int_eq(error.kind, SLUICE_NO_SPACE);
    sluice_deposit_end(deposit);
    pool_case_await(&pool, &pool.locked.aborted, 1);
    pool.locked.refuse_deposits = true;
    ck_assert_int_eq(begin(4096, &deposit, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NO_SPACE);
    pool_case_settle(&pool, 0, 0);
}

/* The memory is both processes', the deposit the parent's alone. */
SL_TEST(a_forked_process_neither_adds_to_a_deposit_nor_commits_it)
{
    enum { FIRST = 1000, SECOND = 3000 };
    struct sluice_error error = {0};
    struct sluice_deposit *deposit = NULL;
    uint64_t shape = FIRST;
    void *data;
    int status;
    ck_assert_int_eq(begin(65536, &deposit, &error), 0);
    add(deposit, "a", FIRST, 1);
    pid_t child = fork();
    if (child == 0) {
        bool refused = sluice_deposit_commit(deposit, &error) < 0 && !strcmp(error.code, "forked");
        refused = sluice_deposit_add(deposit, "c", "F32", 1, &shape, NULL, 4 * FIRST, &data,
                                     &error) < 0 &&
                  !strcmp(error.code, "forked") && refused;
        _exit(refused ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    add(deposit, "b", SECOND, 2); /* on pages of its own */
    ck_assert_msg(sluice_deposit_commit(deposit, &error) == 0, "%s", error.message);
    ck_assert_int_eq(status, 0);
    sluice_deposit_end(deposit);
    pool_case_settle(&pool, 0, 0);
}

SL_TEST(what_was_deposited_cannot_be_written_any_more)
{
    struct sluice_error error = {0};
    struct sluice_deposit *deposit = NULL;
    uint64_t shape = 1000;
    void *data;
    int status;
    ck_assert_int_eq(begin(4096, &deposit, &error), 0);
    ck_assert_int_eq(sluice_deposit_add(deposit, "a", "F32", 1, &shape, NULL, 4000, &data, &error),
                     0);
    ck_assert_int_eq(sluice_deposit_commit(deposit, &error), 0);
    ck_assert_float_eq(((const float *)data)[0], 0); /* but read */
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile float *)data = 1;
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    sluice_deposit_end(deposit);
}

/* ---- by hand --------------------------------------------------------------------------------- */

/* The size of a file that another process answers for may never come: of an index that is none the
 * seals are asked for, not the size, which is wrong here. */
SL_TEST(an_index_that_is_no_memory_is_not_asked_for_its_size)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(deposit_by_hand(make_fd(4096, SEALED, NULL), null_fd, 4096, 4096),
                     SLUICE_INTEGRITY);
}

SL_TEST(only_sealed_files_that_fit_are_taken)
{
    uint64_t index[64], other[64];
    size_t bytes = make_index("k", index, 4096);
    unsigned before = pool_case_count_fds();
    ck_assert_uint_le(bytes, sizeof(index));
    const struct {
        int slab_seals, index_seals;
        uint64_t slab_bytes, announced;
        int kind;
    } cases[] = {
        {0, SEALED, 4096, 4096, SLUICE_INTEGRITY},
        {F_SEAL_WRITE, SEALED, 4096, 4096, SLUICE_INTEGRITY},
        {F_SEAL_SHRINK | F_SEAL_GROW, SEALED, 4096, 4096, SLUICE_INTEGRITY},
        {SEALED, F_SEAL_WRITE, 4096, 4096, SLUICE_INTEGRITY},
        {SEALED, SEALED, 8192, 8192, SLUICE_INTEGRITY},
        {SEALED, SEALED, 4096, 4095, SLUICE_NO_SPACE},
        {SEALED, SEALED, 4096, 4096, 0},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        ck_assert_int_eq(deposit_by_hand(make_fd(cases[i].slab_bytes, cases[i].slab_seals, NULL),
                                         make_fd(bytes, cases[i].index_seals, index), bytes,
                                         cases[i].announced),
                         cases[i].kind);
    ck_assert_uint_eq(pool.locked.aborted, SL_COUNT(cases) - 1);
    sluice_evict(pool.socket, "m", "k", NULL, NULL);
    size_t other_bytes = make_index("j", other, 4096); /* not the key that was announced */
    ck_assert_int_eq(deposit_by_hand(make_fd(4096, SEALED, NULL),
                                     make_fd(other_bytes, SEALED, other), other_bytes, 4096),
                     SLUICE_INTEGRITY);
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(deposit_by_hand(null_fd, make_fd(bytes, SEALED, index), bytes, 4096),
                     SLUICE_INTEGRITY);
    pool_case_settle(&pool, 0, 0);
    ck_assert_uint_eq(pool_case_count_fds(), before);
}

SL_TEST(no_byte_of_an_index_can_be_wrong_unnoticed)
{
    uint64_t index[64], broken[64];
    size_t bytes = make_index("k", index, 4096);
    struct sl_pool_index view;
    char why[SL_POOL_WHY_BYTES];
    for (size_t cut = 0; cut < bytes; cut += 8)
        ck_assert_int_eq(sl_pool_index_check(index, cut, &view, why), -1);
    for (size_t at = 0; at < bytes; at++)
        for (int value = 0; value < 256; value += 51) {
            memcpy(broken, index, sizeof(index));
            ((uint8_t *)broken)[at] = (uint8_t)value;
            if (sl_pool_index_check(broken, bytes, &view, why) < 0)
                continue; /* else every place must still lie within */
            const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&view, 0);
            ck_assert_uint_le(tensor->offset + tensor->bytes, view.slabs[0].bytes);
            ck_assert_uint_le(strlen(sl_pool_index_text(&view, tensor->name_at)), bytes);
        }
}

/* A depositor that comes so far, says so, and waits to be killed. */
static int be_depositor(struct sl_early_child *self, const void *order)
{
    int step = *(const int *)order;
    struct sluice_error error = {0};
    struct sluice_deposit *deposit = NULL;
    struct sl_pool_link link;
    struct sl_pool_reply reply;
    if (step < 2 && begin(4096, &deposit, &error) < 0)
        return 1;
    if (step == 1)
        add(deposit, "a", 1000, 1);
    if (step == 2) { /* slabs without an index */
        struct sl_wire_slabs slabs = {.id = begin_by_hand(&link, 4096), .count = 1};
        int fd = make_fd(4096, SEALED, NULL);
        if (sl_pool_link_ask(&link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), &fd, 1,
                             sizeof(struct sl_wire_id), &reply, &error) < 0)
            return 1;
    }
    sl_early_child_arrive(self);
}

SL_TEST(a_depositor_that_dies_leaves_nothing)
{
    enum { STEPS = 3 };
    struct sl_early_child *child[STEPS];
    pool_case_stop(&pool); /* its threads */
    for (int step = 0; step < STEPS; step++)
        child[step] = sl_early_child_start(be_depositor);
    pool_case_start(&pool);
    unsigned before = pool_case_count_fds();
    for (int step = 0; step < STEPS; step++) {
        sl_early_child_go(child[step], &step, sizeof(step));
        sl_early_child_await(child[step]);
        sl_early_child_kill(child[step]);
        pool_case_await(&pool, &pool.locked.aborted, (unsigned)step + 1);
    }
    pool_case_settle(&pool, 0, 0);
    ck_assert_uint_eq(pool_case_count_fds(), before);
    ck_assert_uint_eq(pool.locked.committed, 0);
}

/* ---- what frees memory ------------------------------------------------------------------------
 */

/* A descriptor that tells when its last holder has closed it: the other end of a pipe. */
static int make_watched(int *watch)
{
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    *watch = ends[0];
    return ends[1];
}

static bool is_open(int watch)
{
    struct pollfd poller = {.fd = watch, .events = POLLIN};
    return poll(&poller, 1, 0) == 0;
}

/* It is open as long as the server's thread alone is at work, and not any more then. */
static void expect_later(int watch)
{
    pool_case_settle(&pool, 0, 0);
    ck_assert(is_open(watch));
    ck_assert_uint_ge(pool_case_run_laters(&pool), 1);
    ck_assert(!is_open(watch));
    close(watch);
}

static void send_slab(struct sl_pool_link *link, uint64_t id, int fd)
{
    struct sl_wire_slabs slabs = {.id = id, .count = 1};
    struct sl_pool_reply reply;
    struct sluice_error error = {0};
    ck_assert_int_eq(sl_pool_link_ask(link, SL_WIRE_DEPOSIT_SLABS, &slabs, sizeof(slabs), &fd, 1,
                                      sizeof(struct sl_wire_id), &reply, &error),
                     0);
    close(fd);
}

SL_TEST(what_a_dead_depositor_had_is_closed_by_another_thread)
{
    struct sl_pool_link link;
    int watch;
    pool.locked.hold_laters = true;
    uint64_t id = begin_by_hand(&link, 4096);
    send_slab(&link, id, make_watched(&watch));
    sl_pool_link_close(&link);
    pool_case_await(&pool, &pool.locked.aborted, 1);
    expect_later(watch);
}

SL_TEST(what_is_refused_is_closed_by_another_thread)
{
    uint64_t index[64];
    size_t bytes = make_index("k", index, 4096);
    struct sl_pool_link link;
    struct sl_pool_reply reply;
    struct sluice_error error = {0};
    int watch, index_fd = make_fd(bytes, SEALED, index);
    pool.locked.hold_laters = true;
    uint64_t id = begin_by_hand(&link, 4096);
    struct sl_wire_commit commit = {.id = id, .index_bytes = bytes};
    send_slab(&link, id, make_watched(&watch));
    ck_assert_int_eq(sl_pool_link_ask(&link, SL_WIRE_COMMIT, &commit, sizeof(commit), &index_fd, 1,
                                      sizeof(struct sl_wire_id), &reply, &error),
                     -1);
    ck_assert(is_open(watch));
    close(index_fd);
    sl_pool_link_close(&link);
    expect_later(watch);
}

SL_TEST(what_nobody_asked_for_is_closed_by_another_thread)
{
    struct sl_pool_link link;
    struct sl_wire_id list = {0};
    struct sluice_error error = {0};
    int watch, fd = make_watched(&watch);
    pool.locked.hold_laters = true;
    open_link(&link);
    ck_assert_int_eq(sl_pool_link_send(&link, SL_WIRE_LIST, &list, sizeof(list), &fd, 1, &error),
                     0);
    close(fd);
    sl_pool_link_close(&link);
    expect_later(watch);
}

SL_TEST(what_was_not_even_read_is_closed_by_another_thread)
{
    struct sl_pool_link link;
    struct sl_wire_id list = {0};
    struct sluice_error error = {0};
    struct {
        struct sl_wire_attach attach;
        char texts[8];
    } ask = {.attach = {.model_bytes = 1}, .texts = "m"};
    int watch, fd = make_watched(&watch);
    pool.locked.hold = pool.locked.hold_laters = true;
    open_link(&link);
    ck_assert_int_eq(
        sl_pool_link_send(&link, SL_WIRE_ATTACH, &ask, sizeof(ask.attach) + 1, NULL, 0, &error), 0);
    pool_case_await(&pool, &pool.locked.held_count, 1); /* it reads no more meanwhile */
    ck_assert_int_eq(sl_pool_link_send(&link, SL_WIRE_LIST, &list, sizeof(list), &fd, 1, &error),
                     0);
    close(fd);
    sl_pool_link_close(&link);
    pool_case_await(&pool, &pool.locked.withdrawn, 1);
    expect_later(watch);
}

/* ---- hostile packets ------------------------------------------------------------------------- */

static int connect_raw(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, pool.socket, strlen(pool.socket));
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* The server must end the connection; what it says before is an error or nothing. */
static void expect_end(int fd)
{
    uint64_t answer[SL_WIRE_PACKET_BYTES / 8];
    const struct sl_wire_head *head = (const void *)answer;
    ssize_t got = recv(fd, answer, sizeof(answer), 0);
    if (got > 0) {
        ck_assert_uint_eq(head->type, SL_WIRE_ERROR);
        got = recv(fd, answer, sizeof(answer), 0);
    }
    ck_assert_int_le(got, 0);
    close(fd);
}

SL_TEST(what_breaks_the_protocol_ends_its_connection_alone)
{
    static uint8_t large[SL_WIRE_PACKET_BYTES + 100];
    const struct sl_wire_attach early = {.head = {.bytes = sizeof(early), .type = SL_WIRE_ATTACH}};
    struct sl_wire_hello hello = {.head = {.bytes = sizeof(hello), .type = SL_WIRE_HELLO},
                                  .magic = SL_WIRE_MAGIC,
                                  .version_min = 1,
                                  .version_max = 1};
    int fd;
    unsigned before = pool_case_count_fds();
    pool_case_fill_all(pool_case_add(&pool, "m", "a", 10, 1 << 20));
    struct sluice_model *model = pool_case_attach(&pool, "m");
    for (size_t bytes = 1; bytes < sizeof(hello); bytes++) {
        fd = connect_raw();
        ck_assert_int_eq(send(fd, &hello, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        expect_end(fd);
    }
    fd = connect_raw();
    send(fd, &early, sizeof(early), MSG_NOSIGNAL);
    expect_end(fd);
    fd = connect_raw();
    send(fd, large, sizeof(large), MSG_NOSIGNAL);
    expect_end(fd);
    hello.version_min = hello.version_max = 2;
    fd = connect_raw();
    send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
    expect_end(fd);
    hello.version_min = 1;
    hello.name_bytes = 1000;
    fd = connect_raw();
    send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
    expect_end(fd);
    pool_case_settle(&pool, 1, 1);
    sluice_detach(model);
    sluice_detach(pool_case_attach(&pool, "m"));
    pool_case_settle(&pool, 0, 0);
    ck_assert_uint_le(pool_case_count_fds(), before + 3); /* the model: index, page, slab */
}

/* The first and the last version that a client speaks, older and newer ones. */
SL_TEST_LOOP(a_client_of_another_version_is_told_in_one_sentence, 0, 3)
{
    static const uint16_t spoken[][2] = {{0, 0}, {2, 2}, {2, UINT16_MAX}};
    struct sl_wire_hello hello = {.head = {.bytes = sizeof(hello), .type = SL_WIRE_HELLO},
                                  .magic = SL_WIRE_MAGIC,
                                  .version_min = spoken[_i][0],
                                  .version_max = spoken[_i][1]};
    union {
        struct sl_wire_error refusal;
        char bytes[SL_WIRE_PACKET_BYTES];
    } answer = {.bytes = {0}};
    char expected[128];
    snprintf(expected, sizeof(expected), "versions %u to %u of the pool's protocol, this server 1",
             spoken[_i][0], spoken[_i][1]);
    int fd = connect_raw();
    ck_assert_int_eq(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
    ck_assert_int_gt(recv(fd, &answer, sizeof(answer) - 1, 0), (int)sizeof(answer.refusal));
    ck_assert_uint_eq(answer.refusal.head.type, SL_WIRE_ERROR);
    ck_assert_int_eq(answer.refusal.kind, SL_E_USAGE);
    ck_assert_str_eq(answer.refusal.code, "protocol");
    ck_assert_msg(strstr((char *)(&answer.refusal + 1), expected) != NULL, "%s",
                  (char *)(&answer.refusal + 1));
    expect_end(fd);
}

SL_TEST(descriptors_that_nobody_asked_for_are_closed)
{
    unsigned before = pool_case_count_fds();
    for (int i = 0; i < 50; i++) {
        struct sl_pool_link link;
        struct sl_wire_id list = {0};
        int fds[20];
        open_link(&link);
        for (size_t f = 0; f < SL_COUNT(fds); f++)
            fds[f] = 0;
        ck_assert_int_eq(
            sl_pool_link_send(&link, SL_WIRE_LIST, &list, sizeof(list), fds, SL_COUNT(fds), NULL),
            0);
        expect_end(link.fd);
    }
    pool_case_settle(&pool, 0, 0);
    ck_assert_uint_eq(pool_case_count_fds(), before);
}

/* ---- failing allocations --------------------------------------------------------------------- */

SL_TEST(a_server_without_memory_refuses_and_goes_on)
{
    struct sluice_error error;
    pool_case_fill_all(pool_case_add(&pool, "m", "a", 10, 1 << 20));
    unsigned before = pool_case_count_fds();
    for (unsigned nth = 1; nth < 12; nth++) {
        struct sluice_model *model = NULL;
        unsigned rows = 0;
        sl_alloc_fail_at(nth);
        if (pool_case_try(&pool, "m", &model, &error) == 0)
            sluice_detach(model);
        sluice_list(pool.socket, NULL, &rows, &error);
        sl_alloc_fail_at(0);
        pool_case_settle(&pool, 0, 0);
        ck_assert_uint_eq(pool_case_count_fds(), before);
    }
    sluice_detach(pool_case_attach(&pool, "m"));
}

SL_CASE(.setup = deposit_case_setup, .teardown = deposit_case_teardown)

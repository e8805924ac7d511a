/*
 * Nobody but the daemon changes what a client of the pool reads: not root, not a process of the
 * daemon's own user, not one that attached before the first byte was there and tried every way of
 * writing then and later.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "fill_case.h"
#include "pool_case.h"
#include "range_server.h"
#include "seed.h"

enum { TENSOR_ITEMS = 300 * 1000, NOBODY = 65534, CHUNK = 64 * 1024 };
#define MODEL "memory://m.safetensors"

static struct pool_case pool;
static uint8_t evil[CHUNK];

/* ---- who attacks ----------------------------------------------------------------------------- */

enum { ATTACK_SLABS_MAX = 8 };
struct attacker {
    struct sluice_model *model;
    int own[ATTACK_SLABS_MAX];       /* slabs, opened anew for writing; -1: refused */
    uint8_t *maps[ATTACK_SLABS_MAX]; /* … and mapped for writing */
    size_t bytes[ATTACK_SLABS_MAX];
    unsigned slabs;
};

static int slab_of(const struct attacker *attacker, unsigned number, const void **data,
                   uint64_t *bytes)
{
    int fd = -1;
    ck_assert_int_eq(sluice_slab(attacker->model, number, data, bytes, &fd, NULL), 0);
    return fd;
}

/* Whatever a descriptor lets one do to its file. */
static void write_by(int fd)
{
    int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    struct iovec part = {evil, sizeof(evil)};
    (void)!write(fd, evil, sizeof(evil));
    (void)!pwrite(fd, evil, sizeof(evil), 0);
    (void)!pwritev(fd, &part, 1, 4096);
    (void)!sendfile(fd, zeros, NULL, sizeof(evil));
    (void)!ftruncate(fd, 0);
    (void)!ftruncate(fd, 1 << 30);
    (void)!fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, CHUNK);
    (void)!fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, CHUNK);
    (void)!fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, 4096);
    close(zeros);
}

/* Whatever a mapping lets one do to what is behind it. */
static void write_through(uint8_t *map, size_t bytes)
{
    int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    struct iovec from = {evil, sizeof(evil)}, to = {map, sizeof(evil)};
    (void)!pwrite(memory, evil, sizeof(evil), (off_t)(uintptr_t)map);
    (void)!process_vm_writev(getpid(), &from, 1, &to, 1, 0);
    (void)!madvise(map, bytes, MADV_REMOVE);
    if (mprotect(map, bytes, PROT_READ | PROT_WRITE) == 0)
        memcpy(map, evil, sizeof(evil));
    mprotect(map, bytes, PROT_READ);
    close(memory);
}

static void attack_slab(struct attacker *attacker, unsigned number)
{
    const void *data;
    uint64_t bytes;
    char path[64];
    int fd = slab_of(attacker, number, &data, &bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    write_by(fd);
    fchmod(fd, 0666);
    if (attacker->own[number] < 0)
        attacker->own[number] = open(path, O_RDWR | O_CLOEXEC);
    int other = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (attacker->own[number] >= 0) {
        write_by(attacker->own[number]);
        if (!attacker->maps[number]) {
            void *map =
                mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, attacker->own[number], 0);
            attacker->maps[number] = map == MAP_FAILED ? NULL : map;
        }
        void *look = mmap(NULL, bytes, PROT_READ, MAP_SHARED, attacker->own[number], 0);
        ck_assert_ptr_ne(look, MAP_FAILED);
        write_through(look, bytes);
        munmap(look, bytes);
    }
    if (attacker->maps[number]) {
        memcpy(attacker->maps[number], evil, sizeof(evil));
        madvise(attacker->maps[number], bytes, MADV_REMOVE);
    }
    void *view = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(view, MAP_FAILED);
    write_through(view, bytes);
    munmap(view, bytes);
    if (other >= 0)
        close(other);
    attacker->bytes[number] = bytes;
}

static void attack_all(struct attacker *attacker)
{
    for (unsigned i = 0; i < attacker->slabs; i++)
        attack_slab(attacker, i);
}

static void attacker_open(struct attacker *attacker)
{
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = "m",
                                                  .socket = pool.socket,
                                                  .client = "attacker",
                                                  .flags = SLUICE_KEEP_FDS,
                                                  .timeout_ms = 60000};
    struct sluice_error error = {0};
    struct sluice_model_info info = {.size = sizeof(info)};
    *attacker = (struct attacker){.own = {-1, -1, -1, -1, -1, -1, -1, -1}};
    int done = sluice_attach(&options, &attacker->model, &error);
    ck_assert_msg(done == 0, "%s", error.message);
    sluice_model_info(attacker->model, &info);
    attacker->slabs = (unsigned)info.slab_count;
    ck_assert_uint_gt(attacker->slabs, 0);
    ck_assert_uint_le(attacker->slabs, ATTACK_SLABS_MAX);
}

static void attacker_close(struct attacker *attacker)
{
    for (unsigned i = 0; i < attacker->slabs; i++) {
        if (attacker->maps[i])
            munmap(attacker->maps[i], attacker->bytes[i]);
        if (attacker->own[i] >= 0)
            close(attacker->own[i]);
    }
    sluice_detach(attacker->model);
}

/* ---- who is attacked ------------------------------------------------------------------------- */

static struct attacker attacker;

/* Before the first byte is there. */
static bool attack_planned(void *arg, struct sl_pool_model *model)
{
    (void)arg;
    pool_case_publish(&pool, model);
    attacker_open(&attacker);
    attack_all(&attacker);
    return true;
}

/* Everything that is there is what the source has: what a client sees, too. */
static void compare(struct sl_pool_model *model)
{
    struct sluice_model *client = pool_case_attach(&pool, "m");
    ck_assert_int_eq(sluice_wait_all(client, 60000, -1, NULL), 0);
    fill_case_compare(MODEL, "", model);
    sluice_detach(client);
}

static void setup(void)
{
    memset(evil, 0xee, sizeof(evil));
    fill_case_setup();
    pool_case_init(&pool);
    pool_case_start(&pool);
    fill_case_put_model("m.safetensors", "a,b,c", TENSOR_ITEMS);
}

static void teardown(void)
{
    pool_case_release(&pool);
    fill_case_teardown();
}

static void be_attacked(void)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {.planned = attack_planned,
                                    .slab_bytes = (uint64_t)TENSOR_ITEMS * 4 + 4096};
    struct sl_pool_model *model = fill_case_try(MODEL, "", &config, &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    compare(model);
    attack_all(&attacker); /* by what it opened before, and anew */
    compare(model);
    attacker_close(&attacker);
    compare(model);
}

/* As another user, who is the daemon's and the attacker's; 77: it cannot become one. */
static int as_nobody(void (*run)(void))
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
            _exit(77);
        setup();
        run();
        teardown();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

SL_TEST(a_client_that_came_in_mid_load_changes_nothing)
{
    setup();
    be_attacked();
    teardown();
}

SL_TEST(nor_does_one_of_the_daemons_own_user)
{
    if (geteuid() != 0) {
        printf("skipped: nor_does_one_of_the_daemons_own_user: it takes root to become another\n");
        return;
    }
    ck_assert_int_eq(as_nobody(be_attacked), 0);
}

/* ---- while bytes arrive ---------------------------------------------------------------------- */

static void *attack_at_once(void *arg)
{
    const unsigned *microseconds = arg;
    uint64_t until = sl_now_ns() + *microseconds * 1000ull;
    while (sl_now_ns() < until)
        ;
    attacker_open(&attacker);
    attack_all(&attacker);
    return NULL;
}

struct racing {
    pthread_t thread;
    unsigned microseconds;
};

static bool start_race(void *arg, struct sl_pool_model *model)
{
    struct racing *racing = arg;
    struct sl_err err = SL_ERR_INIT;
    pool_case_publish(&pool, model);
    ck_assert_int_eq(
        sl_thread_start(&racing->thread, "attack", attack_at_once, &racing->microseconds, &err), 0);
    return true;
}

/* The seal comes between any two writes of the load. */
SL_TEST(a_load_goes_on_while_its_memory_is_given_out)
{
    uint64_t state = sl_test_seed();
    unsigned rounds = sl_test_rounds(60, 600);
    setup();
    for (unsigned round = 0; round < rounds; round++) {
        struct sl_err err = SL_ERR_INIT;
        struct racing racing = {.microseconds = (unsigned)sl_test_draw(&state, 3000)};
        struct sl_fill_config config = {
            .planned = start_race, .arg = &racing, .slab_bytes = (uint64_t)TENSOR_ITEMS * 4 + 4096};
        struct sl_pool_model *model = fill_case_try(MODEL, "", &config, &err);
        ck_assert_msg(model != NULL, "%s", err.message);
        pthread_join(racing.thread, NULL);
        compare(model);
        attack_all(&attacker);
        compare(model);
        attacker_close(&attacker);
    }
    teardown();
}

/* ---- seals that are not there ---------------------------------------------------------------- */

static struct sl_pool_model *add_loading(void)
{
    return pool_case_add(&pool, "m", "a,b", 1000, 0x100000);
}

/* One that had it before all others: it is ours to test with, as by /proc/PID/fd. */
SL_TEST(a_load_whose_memory_cannot_be_sealed_fails)
{
    struct sl_err err = SL_ERR_INIT;
    setup();
    struct sl_pool_model *model = add_loading();
    void *thief =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, model->copies[0]->slabs[0].fd, 0);
    ck_assert_ptr_ne(thief, MAP_FAILED);
    pool_case_fill(model, 0, 1);
    ck_assert_int_lt(sl_pool_model_finish(model, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_ptr_nonnull(strstr(err.message, "cannot seal a slab of the pool"));
    munmap(thief, 4096);
    teardown();
}

SL_TEST(what_cannot_be_sealed_is_not_given_out)
{
    struct sluice_error error = {0};
    struct sluice_model *client = NULL;
    setup();
    struct sl_pool_model *model = add_loading();
    ck_assert_int_eq(fcntl(model->copies[0]->slabs[0].fd, F_ADD_SEALS, F_SEAL_SEAL), 0);
    ck_assert_int_lt(pool_case_try(&pool, "m", &client, &error), 0);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_ptr_nonnull(strstr(error.message, "cannot seal a slab of the pool"));
    teardown();
}

/* A daemon that does not seal: its clients do not believe it. */
SL_TEST(a_client_looks_at_the_seals_itself)
{
    static const char *const what[] = {"the index", "the progress page", "a slab"};
    setup();
    struct sl_pool_model *model = add_loading();
    pool_case_fill_all(model);
    for (int i = 0; i < 3; i++) {
        struct sluice_error error = {0};
        struct sluice_model *client = NULL;
        struct sl_err err = SL_ERR_INIT;
        int *place = i == 0   ? &model->copies[0]->index_fd
                     : i == 1 ? &model->copies[0]->page_fd
                              : &model->copies[0]->slabs[0].reader_fd;
        int before = *place;
        struct stat status;
        ck_assert_int_eq(fstat(before, &status), 0);
        sl_autofree char *bytes = malloc((size_t)status.st_size);
        ck_assert_int_eq(pread(before, bytes, (size_t)status.st_size, 0), status.st_size);
        *place = sl_memfd_make("unsealed", (uint64_t)status.st_size, &err);
        ck_assert_int_eq(pwrite(*place, bytes, (size_t)status.st_size, 0), status.st_size);
        for (int seals = 0; seals < 2; seals++) {
            ck_assert_int_lt(pool_case_try(&pool, "m", &client, &error), 0);
            ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
            ck_assert_ptr_nonnull(strstr(error.message, what[i]));
            ck_assert_ptr_nonnull(strstr(error.message, seals ? "writing" : "resizing"));
            ck_assert_int_eq(fcntl(*place, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
        }
        close(*place);
        *place = before;
        sluice_detach(pool_case_attach(&pool, "m"));
    }
    teardown();
}

SL_CASE(.seconds = 300)

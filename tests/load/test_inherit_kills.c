/* A load that takes over files of the version before, killed before each of its steps: the old
 * version is whole, and the next load is right and leaves nothing of the first. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "claims.h"
#include "exact_io.h"
#include "journal.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "publish.h"
#include "scratch.h"

enum { FILES = 4, LINKED = 0, COPIED = 1, CHANGED = 2, BYTES = 600000, STEPS_MAX = 200 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static uint8_t *noise; /* of each file, and one more that CHANGED becomes */

/* ---- steps ---------------------------------------------------------------------------------- */

static unsigned steps, die_at; /* of the child, whose loads have one thread for it */

static void before_step(void)
{
    if (die_at && ++steps == die_at)
        _exit(99);
}

int __real_linkat(int from, const char *name, int to, const char *new, int flags);
int __wrap_linkat(int from, const char *name, int to, const char *new, int flags);
int __wrap_linkat(int from, const char *name, int to, const char *new, int flags)
{
    before_step();
    return __real_linkat(from, name, to, new, flags);
}

int __real_sl_write_at(int fd, const void *data, size_t bytes, uint64_t offset);
int __wrap_sl_write_at(int fd, const void *data, size_t bytes, uint64_t offset);
int __wrap_sl_write_at(int fd, const void *data, size_t bytes, uint64_t offset)
{
    before_step();
    return __real_sl_write_at(fd, data, bytes, offset);
}

int __real_sl_journal_add(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end,
                          uint32_t crc32c, struct sl_err *err);
int __wrap_sl_journal_add(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end,
                          uint32_t crc32c, struct sl_err *err);
int __wrap_sl_journal_add(struct sl_journal *journal, uint32_t file, uint64_t begin, uint64_t end,
                          uint32_t crc32c, struct sl_err *err)
{
    before_step();
    return __real_sl_journal_add(journal, file, begin, end, crc32c, err);
}

/* ---- versions ------------------------------------------------------------------------------- */

static void name_of(unsigned i, char name[16])
{
    snprintf(name, 16, "%u.bin", i);
}

static void store(unsigned i, unsigned content)
{
    char name[32];
    snprintf(name, sizeof(name), "m/%u.bin", i);
    ck_assert_int_eq(sl_memory_put(name, noise + content * BYTES, BYTES, NULL), 0);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
    noise = sl_model_noise((FILES + 1) * BYTES, 3);
    for (unsigned i = 0; i < FILES; i++)
        store(i, i);
}

static void teardown(void)
{
    sl_memory_clear();
    free(noise);
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120)

static int load(struct sl_load_result *result)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    sl_model_spec(&specs, "", path, "source: {uri: \"memory://m/\"}\n");
    int done = sl_load_run(&specs.items[0], NULL, NULL, result, &err);
    sl_specs_release(&specs);
    return done;
}

static void expect_whole(unsigned changed)
{
    struct sl_err err = SL_ERR_INIT;
    char name[16];
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, &err), 0);
    for (unsigned i = 0; i < FILES; i++) {
        name_of(i, name);
        ck_assert_msg(
            sl_model_same(path, name, noise + (i == CHANGED ? changed : i) * BYTES, BYTES),
            "file %u", i);
    }
}

/* The first version, with a file that may not be linked, and another name of one that may. */
static void begin_again(void)
{
    struct sl_load_result result;
    char copied[sizeof(path) + 32], linked[sizeof(path) + 32], kept[sizeof(path) + 32];
    store(CHANGED, CHANGED);
    ck_assert_int_eq(load(&result), 0);
    snprintf(copied, sizeof(copied), "%s/%d.bin", path, COPIED);
    snprintf(linked, sizeof(linked), "%s/%d.bin", path, LINKED);
    snprintf(kept, sizeof(kept), "%s/kept", scratch);
    ck_assert_int_eq(chmod(copied, 0644), 0);
    unlink(kept);
    ck_assert_int_eq(link(linked, kept), 0);
    store(CHANGED, FILES);
}

/* Was it killed? */
static bool kill_before(unsigned step)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct sl_load_result result;
        die_at = step;
        _exit(load(&result) == 0 ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != 1);
    return WEXITSTATUS(status) == 99;
}

static ino_t inode(const char *folder, const char *name)
{
    struct stat status;
    char file[sizeof(path) + 32];
    snprintf(file, sizeof(file), "%s/%s", folder, name);
    ck_assert_int_eq(lstat(file, &status), 0);
    return status.st_ino;
}

/* It cannot be taken over any more, and what the killed load left of it must not be written to. */
static void touch_linked(void)
{
    static const struct timespec then[2] = {{1, 0}, {1, 0}};
    char name[sizeof(path) + 32];
    snprintf(name, sizeof(name), "%s/%d.bin", path, LINKED);
    ck_assert_int_eq(utimensat(AT_FDCWD, name, then, 0), 0);
}

SL_TEST_LOOP(a_kill_at_any_step_leaves_old_or_new_and_the_next_load_is_right, 0, 2)
{
    unsigned step = 1;
    for (bool killed = true; killed; step++) {
        struct sl_load_result result;
        ck_assert_uint_lt(step, STEPS_MAX);
        begin_again();
        killed = kill_before(step);
        expect_whole(killed ? CHANGED : FILES);
        if (killed && _i)
            touch_linked();
        ck_assert_int_eq(load(&result), 0);
        ck_assert_int_eq(result.already, !killed);
        ck_assert_int_eq(inode(path, "0.bin") != inode(scratch, "kept"), killed && _i);
        expect_whole(FILES);
        ck_assert(!sl_model_exists(path, ".sluice/staging"));
        ck_assert(!sl_model_exists(path, ".sluice/journal"));
        ck_assert(sl_model_same(scratch, "kept", noise + LINKED * BYTES, BYTES));
    }
    ck_assert_uint_gt(step, 10); /* it went through links, copies, and what was fetched */
}

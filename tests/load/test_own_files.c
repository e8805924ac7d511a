/*
 * Every file of ours below a folder that a model is put into (the rows of own_names.def), with
 * something else in its place: no command hangs, writes elsewhere, or takes it for what it is not.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "mem.h"
#include "run_sluice.h"
#include "scratch.h"
#include "seed.h"
#include "tree.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], to[PATH_BYTES], source[PATH_BYTES], canary[PATH_BYTES];
static int scratch_fd;
static struct ran ran;
static const char weights[] = "weights of a model";

static const char *const rows[] = {
#define SL_OWN_BESIDE(end, writer, reader, proof)
#define SL_OWN_BELOW(name, writer, reader, proof) name,
#define SL_OWN_NODE(name, writer, reader, proof)
#include "own_names.def"
#undef SL_OWN_BESIDE
#undef SL_OWN_BELOW
#undef SL_OWN_NODE
};
enum thing {
    EMPTY,
    TEXT,
    LINKED,
    LEADING,
    DANGLING,
    LOOP,
    HUGE,
    PIPE,
    FOLDER,
    FULL,
    THEIRS,
    THINGS
};

static void put(const char *name, const void *data, size_t bytes, mode_t mode)
{
    sl_autoclose int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, mode);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    ck_assert_int_eq(fchmod(fd, mode), 0);
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(to, sizeof(to), "%s/models", scratch);
    snprintf(source, sizeof(source), "%s/source.bin", scratch);
    snprintf(canary, sizeof(canary), "%s/canary", scratch);
    put(source, weights, sizeof(weights), 0644);
    put(canary, "canary", 6, 0640);
    setenv("SLUICE_TERMINATION_LOG", "off", 1);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}
SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120)

/* The file that a row means, for the first source: its folders are there afterwards. */
static void path_of(const char *row, char path[PATH_BYTES + 64])
{
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(row, ","), row);
    size_t bytes = strlen(name);
    if (name[bytes - 1] == '/')
        name[bytes - 1] = 0;
    char *number = strstr(name, "/N.");
    if (number)
        number[1] = '0';
    snprintf(path, PATH_BYTES + 64, "%s/%s", to, name);
    for (char *slash = path + strlen(to); (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        ck_assert(mkdir(path, 0755) == 0 || errno == EEXIST);
    }
}

static void put_thing(const char *path, enum thing thing)
{
    char below[PATH_BYTES + 80];
    snprintf(below, sizeof(below), "%s/x", path);
    switch (thing) {
    case EMPTY:
    case HUGE:
    case THEIRS:
        put(path, "", 0, 0666);
        if (thing == HUGE)
            ck_assert_int_eq(truncate(path, (off_t)1 << 40), 0);
        if (thing == THEIRS && geteuid() == 0)
            ck_assert_int_eq(chown(path, 54321, 54321), 0);
        break;
    case TEXT:
        put(path, "{\"identity\": \"not ours\", \"files\": [{\"name\": \"../x\"}]}\n", 54, 0644);
        break;
    case LINKED:
        ck_assert_int_eq(link(canary, path), 0);
        break;
    case LEADING:
        ck_assert_int_eq(symlink(canary, path), 0);
        break;
    case DANGLING:
        ck_assert_int_eq(symlink("../../../nowhere", path), 0);
        break;
    case LOOP:
        ck_assert_int_eq(symlink(strrchr(path, '/') + 1, path), 0);
        break;
    case PIPE:
        ck_assert_int_eq(mkfifo(path, 0666), 0);
        break;
    case FOLDER:
    case FULL:
    case THINGS:
        ck_assert_int_eq(mkdir(path, 0755), 0);
        if (thing == FULL)
            put(below, "x", 1, 0644);
        break;
    }
}

static void expect_canary(const char *what)
{
    struct stat info, up;
    char text[16], above[PATH_BYTES + 8];
    snprintf(above, sizeof(above), "%s/x", scratch);
    sl_autoclose int fd = open(canary, O_RDONLY);
    ck_assert_msg(read(fd, text, sizeof(text)) == 6 && memcmp(text, "canary", 6) == 0, "%s", what);
    ck_assert_int_eq(fstat(fd, &info), 0);
    ck_assert_msg((info.st_mode & 07777) == 0640, "%s: mode %o", what, info.st_mode);
    ck_assert_msg(lstat(above, &up) < 0, "%s: something was written outside", what);
}

/* It is told what to do, or the model is there. */
static void expect_model(const char *what)
{
    char name[PATH_BYTES + 16], text[64];
    if (ran.exit_code != 0) {
        ck_assert_msg(strstr(ran.err, "remove it") || strstr(ran.err, "move it away") ||
                          strstr(ran.err, "load as that user"),
                      "%s: %s", what, ran.err);
        return;
    }
    snprintf(name, sizeof(name), "%s/source.bin", to);
    sl_autoclose int fd = open(name, O_RDONLY);
    ck_assert_msg(read(fd, text, sizeof(text)) == sizeof(weights) &&
                      memcmp(text, weights, sizeof(weights)) == 0,
                  "%s: other bytes", what);
}

/* In a folder as it is before a load, and after one; in the gate two commands of each. */
SL_TEST_LOOP(whatever_is_in_its_place_is_refused_or_replaced, 0, 2 * SL_COUNT(rows) * THINGS)
{
    static const char *const commands[][6] = {{"status", to},
                                              {"verify", to},
                                              {"load", source, "--to", to},
                                              {"initializer", "--local", "copy", source, to},
                                              {"rm", to}};
    const bool published = _i % 2;
    const size_t row = (size_t)_i / 2 / THINGS;
    const enum thing thing = _i / 2 % THINGS;
    for (size_t n = 0; n < sl_test_rounds(2, SL_COUNT(commands)); n++) {
        const size_t i = (2 * (size_t)_i + n) % SL_COUNT(commands);
        char path[PATH_BYTES + 64], what[128];
        ck_assert_int_eq(mkdir(to, 0755), 0);
        if (published)
            RUN_COPY(&ran, "load", source, "--to", to);
        path_of(rows[row], path);
        ck_assert_int_eq(sl_tree_remove(AT_FDCWD, path), 0);
        put_thing(path, thing);
        run_copy(&ran, commands[i]);
        snprintf(what, sizeof(what), "%s with %s %d", commands[i][0], rows[row], (int)thing);

        ck_assert_msg(ran.exit_code < 128, "%s: ended by a signal", what);
        expect_canary(what);
        if (i == 2 || i == 3)
            expect_model(what);
        sl_autoclose int fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
            sl_scratch_close(fcntl(fd, F_DUPFD_CLOEXEC, 0), to);
    }
}

/* What is below a folder, and what only looks so; with openat2 and without. */
#include "beneath.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "range_blob.h"
#include "scratch.h"
#include "skip.h"
#include "stores.h"
#include "stranger.h"
#include "thread.h"

static char path[SL_SCRATCH_PATH_BYTES];
static int scratch, root_fd;
static bool old_kernel; /* one without openat2 */

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    long a[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_openat2 && old_kernel) {
        errno = ENOSYS;
        return -1;
    }
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void put(const char *name, const char *text)
{
    int fd = openat(scratch, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq((int)write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
}

static void setup(void)
{
    char target[SL_SCRATCH_PATH_BYTES + 16];
    scratch = sl_scratch_open(path);
    ck_assert_int_eq(fchmod(scratch, 0755), 0);
    ck_assert_int_eq(mkdirat(scratch, "models", 0755), 0);
    ck_assert_int_eq(mkdirat(scratch, "models/a", 0755), 0);
    ck_assert_int_eq(mkdirat(scratch, "models-secret", 0755), 0);
    put("models/a/m", "good");
    put("models/n", "good");
    put("models-secret/m", "evil");
    snprintf(target, sizeof(target), "%s/models-secret/m", path);
    ck_assert_int_eq(symlinkat("m", scratch, "models/a/near"), 0);
    ck_assert_int_eq(symlinkat("../n", scratch, "models/a/up"), 0);
    ck_assert_int_eq(symlinkat("a", scratch, "models/folder"), 0);
    ck_assert_int_eq(symlinkat("../../models-secret/m", scratch, "models/a/out"), 0);
    ck_assert_int_eq(symlinkat(target, scratch, "models/a/absolute"), 0);
    ck_assert_int_eq(symlinkat("../models-secret", scratch, "models/way"), 0);
    ck_assert_int_eq(symlinkat("/proc/self/cwd/", scratch, "models/cwd"), 0);
    ck_assert_int_eq(symlinkat("/proc/self/root", scratch, "models/root"), 0);
    ck_assert_int_eq(symlinkat("loop", scratch, "models/loop"), 0);
    root_fd = openat(scratch, "models", O_PATH | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(root_fd, 0);
}

static void teardown(void)
{
    old_kernel = false;
    close(root_fd);
    sl_scratch_close(scratch, path);
}

/* 0: what it should be; else errno. */
static int reads(const char *name)
{
    char text[8] = "";
    int fd = sl_beneath_open(root_fd, name, O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return errno;
    ck_assert_int_eq((int)read(fd, text, sizeof(text)), 4);
    ck_assert_str_eq(text, "good");
    close(fd);
    return 0;
}

static bool has_openat2(const char *test)
{
    struct open_how how = {.flags = O_PATH};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, ".", &how, sizeof(how));
    if (fd >= 0)
        close(fd);
    else
        printf("skipped: %s: this kernel has no openat2, or it is filtered\n", test);
    return fd >= 0;
}

static const char *const outside[] = {
    "../models-secret/m", "a/../../models-secret/m", "a/out", "a/absolute", "way/m",
    "cwd/models/n",       "root/etc/passwd",         "loop",  "..",         "/etc/passwd",
};

SL_TEST(links_that_stay_below_are_followed)
{
    if (!has_openat2("links_that_stay_below_are_followed"))
        return;
    static const char *const inside[] = {"n",        "a/m",    "a/near", "a/up",
                                         "folder/m", "a/../n", "./a//m"};
    for (size_t i = 0; i < SL_COUNT(inside); i++)
        ck_assert_msg(reads(inside[i]) == 0, "%s", inside[i]);
    for (size_t i = 0; i < SL_COUNT(outside); i++) {
        int number = reads(outside[i]);
        ck_assert_msg(number == EXDEV || number == ELOOP, "%s: %d", outside[i], number);
    }
}

SL_TEST(without_openat2_no_link_is)
{
    static const char *const links[] = {"a/near", "a/up", "folder/m", "a/../n"};
    old_kernel = true;
    ck_assert_int_eq(reads("n") | reads("a/m") | reads("a//m") | reads("./a/m"), 0);
    ck_assert_int_eq(reads("none"), ENOENT);
    ck_assert_int_eq(reads("n/m"), ENOTDIR);
    for (size_t i = 0; i < SL_COUNT(links); i++)
        ck_assert_msg(reads(links[i]) == ELOOP || reads(links[i]) == EXDEV, "%s", links[i]);
    for (size_t i = 0; i < SL_COUNT(outside); i++) {
        int number = reads(outside[i]);
        ck_assert_msg(number == EXDEV || number == ELOOP, "%s: %d", outside[i], number);
    }
    int fd = sl_beneath_open(root_fd, "", O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(fd, 0);
    close(fd);
    fd = sl_beneath_open(root_fd, "a/", O_RDONLY);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_int_eq(sl_beneath_open(root_fd, "n/", O_RDONLY), -1);
}

/* ---- a store that is bound ------------------------------------------------------------------ */

static struct sl_err err;

/* The whole of a URI whose prefix is the folder "models"; *text "" if it is refused. */
static void load(const char *name, bool with_slash, char text[8])
{
    char uri[SL_SCRATCH_PATH_BYTES + 64];
    struct sl_source_config config = {.beneath_bytes = strlen(path) + 7 + with_slash};
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    memset(text, 0, 8);
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(uri, sizeof(uri), "%s/models/%s", path, name);
    if (sl_store_open(uri, &config, &store, &key, &err) == 0 &&
        sl_source_open(store, key, 1, &source, &err) == 0 && sl_source_bytes(source) < 8 &&
        sl_source_read(source, 0, text, sl_source_bytes(source), &err) < 0)
        memset(text, 0, 8);
}

static int count(const struct sl_entry *entry, void *arg, struct sl_err *why)
{
    (void)entry, (void)why;
    (*(int *)arg)++;
    return 0;
}

static int list(const char *name, size_t beneath)
{
    char uri[SL_SCRATCH_PATH_BYTES + 64];
    const struct sl_source_config config = {.beneath_bytes = beneath};
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    int found = 0;
    err = (struct sl_err)SL_ERR_INIT;
    snprintf(uri, sizeof(uri), "%s/%s", path, name);
    if (sl_store_open(uri, &config, &store, &key, &err) < 0 ||
        sl_store_list(store, count, &found, &err) < 0)
        return -1;
    return found;
}

SL_TEST(a_bound_store_reads_and_lists_nothing_outside)
{
    char text[8];
    static const char *const refused[] = {"a/out", "a/absolute", "way/m", "../models-secret/m",
                                          "cwd/models/n"};
    for (int plain = 0; plain < 2; plain++) {
        old_kernel = plain;
        for (int slash = 0; slash < 2; slash++) {
            load("a/m", slash, text);
            ck_assert_msg(strcmp(text, "good") == 0, "%s", err.message);
            for (size_t i = 0; i < SL_COUNT(refused); i++) {
                load(refused[i], slash, text);
                ck_assert_str_eq(text, "");
                ck_assert_msg(err.kind == SL_E_AUTH && strstr(err.message, "leads out of"), "%s",
                              err.message);
            }
        }
        ck_assert_int_eq(list("models/a/", strlen(path) + 8), -1); /* its links lead out */
        ck_assert_msg(err.kind == SL_E_AUTH, "%s", err.message);
        ck_assert_int_eq(list("models/way/", strlen(path) + 8), -1);
        ck_assert_int_eq(err.kind, SL_E_AUTH);
        ck_assert_int_eq(list("models-secret/", strlen(path) + 8), -1);
        ck_assert_int_eq(list("models-secret/", strlen(path) + 15), 1);
    }
    ck_assert_int_eq(list("models/a/", 0), 5); /* who names it himself gets all of it */
}

SL_TEST(a_file_that_is_the_prefix_is_bound_to_its_folder)
{
    char uri[SL_SCRATCH_PATH_BYTES + 64];
    snprintf(uri, sizeof(uri), "%s/models/a/m", path);
    struct sl_source_config config = {.beneath_bytes = strlen(uri)};
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    SL_AUTO(sl_source) other = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(uri, &config, &store, &key, &err), 0);
    ck_assert_str_eq(key, "m");
    ck_assert_msg(sl_source_open(store, key, 1, &source, &err) == 0, "%s", err.message);
    ck_assert_int_eq(sl_source_open(store, "out", 1, &other, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
}

/* ---- somebody who exchanges names meanwhile -------------------------------------------------- */

static void exchange_names(const char *one, const char *other)
{
    syscall(SYS_renameat2, scratch, one, scratch, other, RENAME_EXCHANGE);
}

/* A folder for a link out, a file for a link out, over and over. Eight turns lead back to the
 * begin. With `ended`, which counts loads, it rests now and then, each time at another of the
 * eight, until a load has begun and ended there: a file that changes all the time has no version,
 * and is not loaded from anywhere. */
static int exchange(void *arg)
{
    enum { TURNS_TO_REST = 301 };
    const struct sl_counter *ended = arg;
    for (uint64_t turn = 1; turn; turn++) {
        if (turn % 2)
            exchange_names("models/b", "models/b-out");
        else
            exchange_names("models/b/m", "models/b/m-out");
        if (!ended || turn % TURNS_TO_REST)
            continue;
        uint64_t then = sl_counter_get(ended);
        while (sl_counter_get(ended) < then + 2) /* the first may have begun before */
            usleep(200);
    }
    return 0;
}

/* 2: this file system cannot exchange names. */
static int plant(void *arg)
{
    (void)arg;
    if (mkdirat(scratch, "models/b", 0755) < 0 ||
        symlinkat("../models-secret", scratch, "models/b-out") < 0 ||
        symlinkat("../../models-secret/m", scratch, "models/b/m-out") < 0)
        return 1;
    put("models/b/m", "good");
    for (int i = 0; i < 2; i++)
        if (syscall(SYS_renameat2, scratch, "models/b", scratch, "models/b-out", RENAME_EXCHANGE))
            return errno == EINVAL || errno == ENOSYS ? 2 : 1;
    return 0;
}

/* Everything is there: 0, 2 if it cannot be exchanged. */
static int prepare_exchange(void)
{
    ck_assert_int_eq(fchmodat(scratch, "models", 0777, 0), 0);
    int planted = stranger_runs(plant, NULL);
    ck_assert(planted == 0 || planted == 2);
    return planted;
}

struct seen {
    unsigned good, refused;
    struct sl_counter *ended; /* loads */
};

static bool opened_enough(struct seen *seen)
{
    enum { ENOUGH = 5000, AT_A_TIME = 200 };
    for (int i = 0; i < AT_A_TIME; i++)
        *(reads("b/m") == 0 ? &seen->good : &seen->refused) += 1;
    return seen->good >= ENOUGH && seen->refused >= ENOUGH;
}

static bool loaded_enough(struct seen *seen)
{
    enum { ENOUGH_GOOD = 20, ENOUGH_REFUSED = 300 };
    char text[8];
    load("b/m", true, text);
    ck_assert_msg(strcmp(text, "evil") != 0, "read from outside after %u",
                  seen->good + seen->refused);
    seen->good += strcmp(text, "good") == 0;
    seen->refused += !*text;
    sl_counter_add(seen->ended, 1);
    return seen->good >= ENOUGH_GOOD && seen->refused >= ENOUGH_REFUSED;
}

SL_TEST(what_is_exchanged_meanwhile_is_never_opened_outside)
{
    if (!stranger_exists("what_is_exchanged_meanwhile_is_never_opened_outside"))
        return;
    if (prepare_exchange() == 2)
        SL_SKIP("this file system cannot exchange names");
    int pid = stranger_begins(exchange, NULL);
    for (int plain = 0; plain < 2; plain++) {
        struct seen seen = {0};
        old_kernel = plain;
        SL_AWAIT(opened_enough(&seen), "enough of the file, and of the links in its place,");
    }
    stranger_ends(pid);
}

SL_TEST(what_is_exchanged_meanwhile_is_never_read_from_outside)
{
    if (!stranger_exists("what_is_exchanged_meanwhile_is_never_read_from_outside"))
        return;
    if (prepare_exchange() == 2)
        SL_SKIP("this file system cannot exchange names");
    struct sl_counter *ended =
        mmap(NULL, sizeof(*ended), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(ended != MAP_FAILED);
    int pid = stranger_begins(exchange, ended);
    for (int plain = 0; plain < 2; plain++) {
        struct seen seen = {.ended = ended};
        old_kernel = plain;
        SL_AWAIT(loaded_enough(&seen), "enough good and refused loads");
    }
    stranger_ends(pid);
    munmap(ended, sizeof(*ended));
}

SL_CASE(.setup = setup, .teardown = teardown)

/* A destination: what is made ready there, moved into place, and gone on with after a kill. */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "destination.h"
#include "fake_clock.h"
#include "golden.h"
#include "publish.h"
#include "scratch.h"
#include "stranger.h"
#include "tree.h"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_err err;
static const char request[] = "0123456789012345678901234567890123456789012345678901234567890123";

static struct sl_cancel *stop; /* NULL: none */

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/a/models", scratch);
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    sl_scratch_close(scratch_fd, scratch);
}

static struct sl_destination *opened(void)
{
    struct sl_destination *destination = sl_destination_open(path, NULL, &err);
    ck_assert_msg(destination != NULL, "%s", err.message);
    return destination;
}

/* A file with its own name in it, below the work place. */
static void make_file(struct sl_destination *destination, const char *kind, const char *name,
                      unsigned mode)
{
    const char *leaf;
    sl_autoclose int fd = sl_destination_open_work(destination, 3, kind, &err);
    ck_assert_int_ge(fd, 0);
    sl_autoclose int parent = sl_tree_parent(fd, name, true, &leaf);
    sl_autoclose int file = openat(parent, leaf, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ck_assert_int_eq(write(file, name, strlen(name)), (ssize_t)strlen(name));
    ck_assert_int_eq(fchmod(file, mode), 0);
    sl_tree_seal(fd, name);
}

static const char *content(const char *name)
{
    static char text[256];
    char whole[1024];
    snprintf(whole, sizeof(whole), "%s/%s", path, name);
    FILE *file = fopen(whole, "r");
    size_t got = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[got] = 0;
    if (file)
        fclose(file);
    return text;
}

static unsigned mode_of(const char *name)
{
    char whole[1024];
    struct stat status;
    snprintf(whole, sizeof(whole), "%s/%s", path, name);
    return lstat(whole, &status) < 0 ? 0 : status.st_mode & 07777;
}

static struct sl_ready ready(const char *kind, const char *strip)
{
    struct sl_ready what = {0};
    snprintf(what.request, sizeof(what.request), "%s", request);
    snprintf(what.kind, sizeof(what.kind), "%s", kind);
    snprintf(what.strip, sizeof(what.strip), "%s", strip);
    return what;
}

static int moved_or(struct sl_destination *destination, const struct sl_ready *what,
                    struct sl_err *why)
{
    if (sl_destination_list(destination, 3, what, why) < 0 ||
        sl_destination_judge(destination, stop, why) < 0 ||
        sl_destination_look(destination, why) < 0)
        return -1;
    return sl_destination_move(destination, why);
}

static int moved(struct sl_destination *destination, const struct sl_ready *what)
{
    err = (struct sl_err)SL_ERR_INIT;
    return moved_or(destination, what, &err);
}

SL_TEST(what_is_ready_is_moved_and_nothing_else_stays)
{
    SL_AUTO(sl_destination) destination = opened();
    const struct sl_ready what = ready(SL_WORK_LOAD, "");
    make_file(destination, SL_WORK_LOAD, "x", 0444);
    make_file(destination, SL_WORK_LOAD, "sub/deep/y", 0555);
    make_file(destination, SL_WORK_LOAD, ".sluice/manifest.json", 0444);
    ck_assert_int_eq(sl_destination_mark(destination, 3, &what, &err), 0);
    ck_assert_msg(moved(destination, &what) == 0, "%s", err.message);
    ck_assert_int_eq(sl_destination_clean(destination, &err), 0);
    ck_assert_str_eq(content("x"), "x");
    ck_assert_str_eq(content("sub/deep/y"), "sub/deep/y");
    ck_assert_uint_eq(mode_of("x"), 0644);
    ck_assert_uint_eq(mode_of("sub/deep/y"), 0755);
    ck_assert_uint_eq(mode_of("sub/deep"), 0755);
    ck_assert_uint_eq(mode_of(".sluice"), 0);
}

/* Each name on the way of a link is looked up. */
SL_TEST_LOOP(links_that_lead_on_and_on_are_refused, 0, 2)
{
    enum { STEPS = 1300, LINKS = 1600 };
    SL_AUTO(sl_destination) destination = opened();
    const struct sl_ready what = ready(SL_WORK_FILES, "");
    char target[3 * STEPS + 2] = "", name[16];
    make_file(destination, SL_WORK_FILES, "a", 0444);
    sl_autoclose int fd = sl_destination_open_work(destination, 3, SL_WORK_FILES, &err);
    for (unsigned i = 0; i < STEPS; i++)
        memcpy(target + strlen(target), i % 2 ? "../" : "bb/", 4);
    memcpy(target + strlen(target), "a", 2);
    for (unsigned i = 0; i < LINKS; i++) {
        snprintf(name, sizeof(name), "l%u", i);
        ck_assert_int_eq(symlinkat(target, fd, name), 0);
    }
    stop = _i ? sl_cancel_new(NULL) : NULL;
    if (_i)
        sl_cancel_raise(stop, 0);
    ck_assert_int_eq(moved(destination, &what), -1);
    ck_assert_int_eq(err.kind, _i ? SL_E_CANCELED : SL_E_FORMAT);
    ck_assert_msg(_i || strstr(err.message, "through too many names below"), "%s", err.message);
    sl_cancel_free(stop);
}

SL_TEST(names_are_cut_as_the_choice_says)
{
    SL_AUTO(sl_destination) destination = opened();
    const struct sl_ready what = ready(SL_WORK_LOAD, "model");
    make_file(destination, SL_WORK_LOAD, "model/x", 0444);
    make_file(destination, SL_WORK_LOAD, "model/model/y", 0444);
    make_file(destination, SL_WORK_LOAD, "model-v2/z", 0444);
    make_file(destination, SL_WORK_LOAD, "model.json", 0444);
    ck_assert_msg(moved(destination, &what) == 0, "%s", err.message);
    ck_assert_str_eq(content("x"), "model/x");
    ck_assert_str_eq(content("model/y"), "model/model/y");
    ck_assert_str_eq(content("-v2/z"), "model-v2/z");
    ck_assert_str_eq(content(".json"), "model.json");
}

/* As a mark of an earlier version may have it. */
SL_TEST(nothing_is_cut_off_what_came_out_of_an_archive)
{
    SL_AUTO(sl_destination) destination = opened();
    const struct sl_ready what = ready(SL_WORK_FILES, "model");
    make_file(destination, SL_WORK_FILES, "model../x", 0444);
    make_file(destination, SL_WORK_FILES, "model-config.json", 0444);
    ck_assert_msg(moved(destination, &what) == 0, "%s", err.message);
    ck_assert_str_eq(content("model../x"), "model../x");
    ck_assert_str_eq(content("model-config.json"), "model-config.json");
}

SL_TEST(a_name_that_a_cut_makes_hostile_moves_nothing)
{
    static const char *const names[] = {"model../x", "model..", "model.sluice/ready", "modelx"};
    const struct sl_ready what = ready(SL_WORK_LOAD, "model");
    SL_AUTO(sl_destination) destination = opened();
    struct sl_ready found = {0};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        make_file(destination, SL_WORK_LOAD, "model/x", 0444);
        make_file(destination, SL_WORK_LOAD, names[i], 0444);
        ck_assert_int_eq(sl_destination_mark(destination, 3, &what, &err), 0);
        ck_assert_int_eq(moved(destination, &what), -1);
        ck_assert_msg(err.kind == SL_E_FORMAT && strcmp(err.code, "E_NAME") == 0, "%s: %s",
                      names[i], err.message);
        ck_assert_uint_eq(mode_of("x"), 0);
        sl_destination_unmark(destination, 3);
        ck_assert(!sl_destination_marked(destination, 3, request, &found));
        ck_assert_int_eq(sl_destination_discard(destination, 3, SL_WORK_LOAD, &err), 0);
    }
}

SL_TEST(what_is_there_is_replaced_and_strangers_stay)
{
    SL_AUTO(sl_destination) destination = opened();
    const struct sl_ready what = ready(SL_WORK_FILES, "");
    for (int round = 0; round < 2; round++) {
        make_file(destination, SL_WORK_FILES, "sub/x", 0444);
        ck_assert_msg(moved(destination, &what) == 0, "%s", err.message);
        char stranger[1024];
        snprintf(stranger, sizeof(stranger), "%s/sub/own", path);
        if (round == 0)
            ck_assert_int_eq(symlink("/nowhere", stranger), 0);
        ck_assert_uint_ne(mode_of("sub/own"), 0);
    }
    make_file(destination, SL_WORK_FILES, "sub", 0444); /* a folder is in the way */
    ck_assert_int_eq(moved(destination, &what), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
}

SL_TEST(links_in_the_way_are_not_followed)
{
    char outside[1024], link[1024];
    SL_AUTO(sl_destination) destination = opened();
    const struct sl_ready what = ready(SL_WORK_LOAD, "");
    snprintf(outside, sizeof(outside), "%s/outside", scratch);
    snprintf(link, sizeof(link), "%s/sub", path);
    ck_assert_int_eq(mkdir(outside, 0755), 0);
    ck_assert_int_eq(symlink(outside, link), 0);
    make_file(destination, SL_WORK_LOAD, "sub/x", 0444);
    ck_assert_int_eq(moved(destination, &what), -1);
    ck_assert_int_eq(rmdir(outside), 0); /* nothing came into it */
    snprintf(link, sizeof(link), "%s/.sluice", path);
    ck_assert_int_eq(sl_destination_clean(destination, &err), 0);
    ck_assert_int_eq(symlink(scratch, link), 0);
    ck_assert_int_eq(sl_destination_open_work(destination, 0, SL_WORK_LOAD, &err), -1);
}

SL_TEST(a_mark_is_for_its_wish_alone)
{
    SL_AUTO(sl_destination) destination = opened();
    struct sl_ready what = ready(SL_WORK_FILES, "model"), found = {0};
    ck_assert(!sl_destination_marked(destination, 3, request, &found));
    ck_assert_int_eq(sl_destination_mark(destination, 3, &what, &err), 0);
    ck_assert(!sl_destination_marked(destination, 2, request, &found));
    ck_assert(!sl_destination_marked(destination, 3, "other", &found));
    ck_assert(sl_destination_marked(destination, 3, request, &found));
    ck_assert_str_eq(found.kind, SL_WORK_FILES);
    ck_assert_str_eq(found.strip, "model");
    static const char *const broken[] = {"", "\n\n\n", "x\nload\n", "x\nother\n\n", "x\nload"};
    for (size_t i = 0; i < SL_COUNT(broken); i++) {
        sl_autoclose int work = sl_destination_open_work(destination, 3, SL_WORK_LOAD, &err);
        sl_autoclose int above = openat(work, "..", O_RDONLY | O_DIRECTORY);
        ck_assert_int_eq(sl_tree_write(above, "3.mark", broken[i], strlen(broken[i]), &err), 0);
        ck_assert(!sl_destination_marked(destination, 3, "x", &found));
    }
}

SL_TEST(a_second_one_waits_and_can_be_stopped)
{
    SL_AUTO(sl_destination) destination = opened();
    struct sl_cancel *cancel = sl_cancel_new(&err);
    sl_cancel_raise(cancel, 0);
    ck_assert_ptr_null(sl_destination_open(path, cancel, &err));
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    ck_assert(sl_destination_is(destination, path));
    ck_assert(!sl_destination_is(destination, scratch));
    sl_cancel_free(cancel);
}

static int hold(void *arg)
{
    (void)arg;
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || flock(fd, LOCK_EX) < 0)
        return 1;
    pause();
    return 0;
}

/* Who may only read the destination holds no initializer up, and cannot open its lock. */
SL_TEST(a_reader_of_the_destination_holds_nobody_up)
{
    if (!stranger_exists("a_reader_of_the_destination_holds_nobody_up"))
        return;
    ck_assert_int_eq(fchmod(scratch_fd, 0755), 0);
    sl_destination_free(opened());
    int pid = stranger_begins(hold, NULL);
    sl_autoclose int fd = open(path, O_RDONLY | O_DIRECTORY);
    SL_AWAIT(flock(fd, LOCK_SH | LOCK_NB) < 0 || flock(fd, LOCK_UN) < 0, "the reader's lock");
    struct sl_cancel *cancel = sl_cancel_new(&err);
    sl_cancel_raise(cancel, 0); /* it would wait for ever */
    SL_AUTO(sl_destination) destination = sl_destination_open(path, cancel, &err);
    stranger_ends(pid);
    sl_cancel_free(cancel);
    ck_assert_msg(destination != NULL, "%s", err.message);
    ck_assert_uint_eq(mode_of(".sluice/lock"), 0600);
}

/* Nothing stays of one that put nothing there, and another that waits for it goes on. */
SL_TEST(the_lock_goes_with_who_held_it)
{
    struct sl_destination *destination = opened();
    ck_assert_uint_eq(mode_of(".sluice/lock"), 0600);
    sl_destination_free(destination);
    ck_assert_uint_eq(mode_of(".sluice"), 0);
    destination = opened();
    make_file(destination, SL_WORK_LOAD, "x", 0444);
    sl_destination_free(destination);
    ck_assert_uint_eq(mode_of(".sluice/lock"), 0);
    ck_assert_uint_ne(mode_of(".sluice/initializer/3.load/x"), 0);
}

/* Who waited may hold a lock that was removed with its folder. */
SL_TEST(one_that_waits_goes_on_when_the_other_is_done)
{
    int status;
    struct sl_destination *destination = opened();
    pid_t child = fork();
    if (child == 0) {
        close_range(3, ~0u, 0); /* the lock is the parent's alone */
        SL_AUTO(sl_destination) own = sl_destination_open(path, NULL, &err);
        _exit(own && mode_of(".sluice/lock") == 0600 ? 0 : 1);
    }
    ck_assert_int_eq(sl_destination_clean(destination, &err), 0);
    sl_destination_free(destination);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The two would mix in the directory. */
SL_TEST(a_load_and_an_initializer_wait_for_each_other)
{
    struct sl_cancel *at_once = sl_cancel_new(&err);
    sl_cancel_raise(at_once, 0); /* whoever would wait gives up */
    struct sl_destination *destination = opened();
    ck_assert_ptr_null(sl_publish_open(path, at_once, NULL, NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_destination_free(destination);
    err = (struct sl_err)SL_ERR_INIT;
    struct sl_publish *publish = sl_publish_open(path, at_once, NULL, NULL, &err);
    ck_assert_msg(publish != NULL, "%s", err.message);
    ck_assert_ptr_null(sl_destination_open(path, at_once, &err));
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_publish_free(publish);
    sl_cancel_free(at_once);
    sl_destination_free(opened());
}

static int hold_own_lock(void *arg)
{
    (void)arg;
    close_range(3, ~0u, 0); /* the first lock is the parent's alone */
    int folder = open(path, O_RDONLY | O_DIRECTORY);
    bool made =
        mkdirat(folder, ".sluice", 0755) == 0 && mkdirat(folder, ".sluice/initializer", 0755) == 0;
    int fd = made ? openat(folder, ".sluice/lock", O_RDWR | O_CREAT | O_EXCL, 0666) : -1;
    if (fd < 0 || flock(fd, LOCK_EX) < 0 ||
        openat(folder, ".sluice/initializer/locked", O_WRONLY | O_CREAT, 0666) < 0)
        return 1;
    pause();
    return 0;
}

static void *open_again(void *arg)
{
    (void)arg;
    ck_assert_ptr_null(sl_destination_open(path, NULL, &err));
    return NULL;
}

/* In a folder for all somebody else comes between the look and the making. */
SL_TEST(who_makes_the_work_place_a_moment_before_holds_nobody_up)
{
    pthread_t thread;
    char from[1024], to[1024];
    if (!stranger_exists("who_makes_the_work_place_a_moment_before_holds_nobody_up"))
        return;
    struct sl_destination *destination = opened();
    ck_assert_int_eq(chmod(scratch, 0755), 0);
    ck_assert_int_eq(chmod(path, 01777), 0);
    fake_clock_hold();
    ck_assert_int_eq(pthread_create(&thread, NULL, open_again, NULL), 0);
    fake_clock_await(20 * SL_NS_PER_MS); /* it has looked, and waits for the lock */
    snprintf(from, sizeof(from), "%s/.sluice", path);
    snprintf(to, sizeof(to), "%s/was-ours", path);
    ck_assert_int_eq(rename(from, to), 0);
    int pid = stranger_begins(hold_own_lock, NULL);
    SL_AWAIT(mode_of(".sluice/initializer/locked"), "the lock of another user");
    sl_destination_free(destination);
    fake_clock_release();
    pthread_join(thread, NULL);
    stranger_ends(pid);
    ck_assert_msg(strstr(err.message, "the folder '.sluice' belongs to user"), "%s", err.message);
}

/* Whatever is there by that name; the folder is ours. */
SL_TEST_LOOP(what_is_no_lock_is_replaced, 0, 5)
{
    char lock[1024], canary[1024];
    snprintf(lock, sizeof(lock), "%s/.sluice/lock", path);
    snprintf(canary, sizeof(canary), "%s/canary", scratch);
    sl_destination_free(opened());
    {
        SL_AUTO(sl_destination) destination = opened();
        sl_autoclose int work = sl_destination_open_work(destination, 3, SL_WORK_LOAD, &err);
        ck_assert_int_ge(work, 0);
    }
    ck_assert_int_ge(open(canary, O_CREAT | O_WRONLY, 0640), 0);
    int done = _i == 0   ? mkfifo(lock, 0666)
               : _i == 1 ? symlink("/nowhere", lock)
               : _i == 2 ? symlink(canary, lock)
               : _i == 3 ? link(canary, lock)
                         : mkdir(lock, 0755);
    ck_assert_int_eq(done, 0);
    SL_AUTO(sl_destination) destination = opened();
    ck_assert_uint_eq(mode_of(".sluice/lock"), 0600);
    struct stat info;
    ck_assert_int_eq(stat(canary, &info), 0);
    ck_assert_uint_eq(info.st_nlink, 1);
    ck_assert_uint_eq(info.st_mode & 07777, 0640);
}

SL_TEST(links_to_volumes_do_not_replace_what_is_there)
{
    SL_AUTO(sl_destination) destination = opened();
    ck_assert_int_eq(sl_destination_link(destination, "x", "/one", &err), 0);
    ck_assert_int_eq(sl_destination_link(destination, "x", "/two", &err), 0);
    char whole[1024], target[64] = "";
    snprintf(whole, sizeof(whole), "%s/x", path);
    ck_assert_int_eq(readlink(whole, target, sizeof(target) - 1), 4);
    ck_assert_str_eq(target, "/one");
}

SL_TEST(a_destination_that_cannot_be_is_named)
{
    char file[1024];
    snprintf(file, sizeof(file), "%s/file", scratch);
    ck_assert_int_ge(open(file, O_CREAT | O_WRONLY, 0644), 0);
    ck_assert_ptr_null(sl_destination_open(file, NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(err.message, file));
}

static int whole_once(void *arg, struct sl_err *why)
{
    (void)arg;
    struct sl_ready what = ready(SL_WORK_LOAD, "");
    SL_AUTO(sl_destination) destination = sl_destination_open(path, NULL, why);
    sl_autofree char *work =
        destination ? sl_destination_work(destination, 3, SL_WORK_LOAD, why) : NULL;
    if (!work || sl_destination_mark(destination, 3, &what, why) < 0 ||
        moved_or(destination, &what, why) < 0)
        return -1;
    return sl_destination_clean(destination, why);
}

SL_TEST(every_failing_allocation_is_survived)
{
    ck_assert_uint_ge(golden_each_allocation(whole_once, NULL), 3);
}

SL_CASE(.setup = setup, .teardown = teardown)

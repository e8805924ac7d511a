/* Walks below a folder: what is kept open serves neighbours, and nobody else. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "mem.h"
#include "scratch.h"
#include "tree.h"

static char scratch[SL_SCRATCH_PATH_BYTES];
static int root_fd;

static void setup(void)
{
    root_fd = sl_scratch_open(scratch);
}

static void teardown(void)
{
    sl_scratch_close(root_fd, scratch);
}

static ino_t folder_inode(const char *name)
{
    struct stat status;
    ck_assert_int_eq(fstatat(root_fd, name, &status, AT_SYMLINK_NOFOLLOW), 0);
    return status.st_ino;
}

static void expect_in(struct sl_tree_walk *walk, const char *name, const char *leaf,
                      const char *folder)
{
    const char *got;
    struct stat status;
    int fd = sl_tree_enter(walk, name, &got);
    ck_assert_msg(fd >= 0, "%s: %s", name, strerror(errno));
    ck_assert_str_eq(got, leaf);
    ck_assert_int_eq(fstat(fd, &status), 0);
    ck_assert_uint_eq(status.st_ino, folder_inode(folder));
}

SL_TEST(every_name_is_found_in_its_own_folder)
{
    SL_AUTO_WALK walk = {.root_fd = root_fd, .make = true, .fd = -1};
    expect_in(&walk, "a/b/x", "x", "a/b");
    expect_in(&walk, "a/b/y", "y", "a/b");
    expect_in(&walk, "a/x", "x", "a");
    expect_in(&walk, "a/bb/x", "x", "a/bb");
    expect_in(&walk, "x", "x", ".");
    expect_in(&walk, "a", "a", ".");
    expect_in(&walk, "b/b/x", "x", "b/b");
}

SL_TEST(neighbours_share_one_descriptor)
{
    SL_AUTO_WALK walk = {.root_fd = root_fd, .make = true, .fd = -1};
    const char *leaf;
    int fd = sl_tree_enter(&walk, "a/b/x", &leaf);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(renameat(root_fd, "a", root_fd, "c"), 0);
    ck_assert_int_eq(sl_tree_enter(&walk, "a/b/y", &leaf), fd); /* the same folder, not its name */
    sl_tree_walk_end(&walk);
    ck_assert_int_eq(faccessat(root_fd, "a", F_OK, 0), -1);
    expect_in(&walk, "a/b/y", "y", "a/b");
}

SL_TEST(links_are_not_followed)
{
    SL_AUTO_WALK walk = {.root_fd = root_fd, .make = true, .fd = -1};
    const char *leaf;
    ck_assert_int_eq(symlinkat("/", root_fd, "link"), 0);
    expect_in(&walk, "a/x", "x", "a");
    ck_assert_int_eq(sl_tree_enter(&walk, "link/etc", &leaf), -1);
    ck_assert_int_eq(errno, ENOTDIR);
    ck_assert_int_eq(walk.fd, -1);
    expect_in(&walk, "a/x", "x", "a");
}

SL_TEST(missing_folders_are_made_only_when_asked)
{
    SL_AUTO_WALK walk = {.root_fd = root_fd, .fd = -1};
    const char *leaf;
    ck_assert_int_eq(sl_tree_enter(&walk, "a/x", &leaf), -1);
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_int_eq(mkdirat(root_fd, "a", 0755), 0);
    ck_assert_int_eq(sl_tree_enter(&walk, "a/y", &leaf), -1); /* asked once for all neighbours */
    ck_assert_int_eq(errno, ENOENT);
    ck_assert_int_eq(sl_tree_enter(&walk, "a/b/x", &leaf), -1);
    ck_assert_int_eq(errno, ENOENT);
    expect_in(&walk, "a/x", "x", "a");
    ck_assert_int_eq(sl_tree_enter(&walk, "b/x", &leaf), -1);
    ck_assert_int_eq(mkdirat(root_fd, "b", 0755), 0);
    sl_tree_walk_end(&walk);
    expect_in(&walk, "b/x", "x", "b");
}

SL_TEST(folders_beyond_all_names_are_refused)
{
    SL_AUTO_WALK walk = {.root_fd = root_fd, .make = true, .fd = -1};
    char name[1200] = "";
    const char *leaf;
    for (int i = 0; i < 590; i++)
        memcpy(name + 2 * i, "a/", 3);
    name[2 * 590] = 'x';
    ck_assert_int_eq(sl_tree_enter(&walk, name, &leaf), -1);
    ck_assert_int_eq(errno, ENAMETOOLONG);
}

SL_TEST(siblings_have_the_same_folder)
{
    ck_assert(sl_tree_siblings("a", "b"));
    ck_assert(sl_tree_siblings("a/x", "a/y"));
    ck_assert(!sl_tree_siblings("a/x", "b/x"));
    ck_assert(!sl_tree_siblings("a/x", "a/b/x"));
    ck_assert(!sl_tree_siblings("a", "a/x"));
    ck_assert(!sl_tree_siblings("ab/x", "a/bx"));
}

SL_CASE(.setup = setup, .teardown = teardown)

SL_TEST(what_cannot_be_written_leaves_nothing)
{
    struct sl_err err = SL_ERR_INIT;
    const struct rlimit none = {0, 0};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &none), 0); /* of this test's process */
    ck_assert_int_eq(sl_tree_write_own(root_fd, "file", "text", 4, &err), -1);
    ck_assert_int_eq(faccessat(root_fd, "file", F_OK, 0), -1);
    ck_assert_int_eq(faccessat(root_fd, "file.tmp", F_OK, 0), -1);
}

SL_TEST(a_file_that_is_too_large_is_not_begun)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf buf = SL_BUF_INIT(65536), room = SL_BUF_INIT(65536);
    sl_autoclose int fd = openat(root_fd, "x", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ck_assert_int_eq(ftruncate(fd, (off_t)1 << 40), 0);
    ck_assert_int_eq(sl_tree_read(root_fd, "x", &buf, &err), -1);
    ck_assert_str_eq(err.message, "'x' is larger than 65536 bytes");
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_uint_eq(buf.used, 0);
    ck_assert_int_eq(ftruncate(fd, 65536), 0);
    ck_assert_int_eq(sl_tree_read(root_fd, "x", &room, &err), 0);
    ck_assert_uint_eq(room.used, 65536);
}

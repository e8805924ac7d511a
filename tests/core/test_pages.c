/* What a destination's pages are, on mounts of the test's own. */
#include <check.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "mem.h"
#include "pages.h"
#include "skip.h"

static char directory[] = "/tmp/sluice-test-pages-XXXXXX";

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void teardown(void)
{
    umount2(directory, MNT_DETACH);
    rmdir(directory);
}

/* A tmpfs that only this process sees; false where mounting is not allowed. */
static bool have_tmpfs(const char *options)
{
    if (unshare(CLONE_NEWNS) < 0 && (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0))
        return false;
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    return mount("tmpfs", directory, "tmpfs", 0, options) == 0;
}

static void assert_kind(const char *kind)
{
    char below[128];
    ck_assert_str_eq(sl_pages_of_path(directory), kind);
    snprintf(below, sizeof(below), "%s/not/there", directory);
    ck_assert_str_eq(sl_pages_of_path(below), kind);
}

SL_TEST(a_tmpfs_has_small_pages_unless_it_is_mounted_otherwise)
{
    if (!have_tmpfs("size=1m"))
        SL_SKIP("no tmpfs of its own can be mounted");
    assert_kind("tmpfs with 4 KiB pages");
}

SL_TEST(huge_never_is_small)
{
    if (!have_tmpfs("size=1m,huge=never"))
        SL_SKIP("no tmpfs of its own can be mounted");
    assert_kind("tmpfs with 4 KiB pages");
}

SL_TEST(huge_within_size_is_huge)
{
    if (!have_tmpfs("huge=within_size,size=8m"))
        SL_SKIP("no tmpfs of its own can be mounted");
    assert_kind("tmpfs with huge pages");
}

SL_TEST(what_is_no_tmpfs_is_a_disk)
{
    ck_assert_str_eq(sl_pages_of_path("/proc"), "disk");
    ck_assert_str_eq(sl_pages_of_path("/proc/self/not/there"), "disk");
    ck_assert_int_eq(sl_pages_of(-1), SL_PAGES_NONE);
}

SL_TEST(names_without_an_end_are_nothing)
{
    char name[5000];
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    ck_assert_str_eq(sl_pages_of_path(name), "");
}

SL_TEST(what_is_relative_lies_in_the_working_directory)
{
    static const char *const paths[] = {"not-there", "not/there", "./not-there", "../not-there"};
    ck_assert_int_eq(chdir("/proc/self"), 0);
    for (size_t i = 0; i < SL_COUNT(paths); i++)
        ck_assert_str_eq(sl_pages_of_path(paths[i]), "disk");
}

SL_CASE(.setup = setup, .teardown = teardown)

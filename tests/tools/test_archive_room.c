/* An archive for which there is no room beside what an earlier run left: that goes only for one
 * that can be put in its place. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "archive_work.h"
#include "claims.h"
#include "scratch.h"
#include "tar_maker.h"

enum { BYTES = 4 << 20, FILES = 4, OLD_BYTES = 12 << 20 };
static char scratch[SL_SCRATCH_PATH_BYTES], to[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_err err;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(to, sizeof(to), "%s/models", scratch);
    ck_assert_int_eq(mkdir(to, 0755), 0);
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    umount2(to, MNT_DETACH);
    sl_scratch_close(scratch_fd, scratch);
}
SL_CASE(.setup = setup, .teardown = teardown)

/* What an earlier run left fills most of a volume of the test's own. */
static bool have_volume(const char *test)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("models", to, "tmpfs", 0, "size=30m,mode=0755") < 0) {
        printf("skipped: %s: cannot mount\n", test);
        return false;
    }
    char old[SL_SCRATCH_PATH_BYTES + 32];
    snprintf(old, sizeof(old), "%s/a", to);
    sl_autoclose int fd = open(old, O_WRONLY | O_CREAT | O_EXCL, 0644);
    ck_assert_int_eq(posix_fallocate(fd, 0, OLD_BYTES), 0);
    return true;
}

static uint64_t bytes_of(const char *name)
{
    struct stat info;
    char path[SL_SCRATCH_PATH_BYTES + 32];
    snprintf(path, sizeof(path), "%s/%s", to, name);
    return lstat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

/* Four files, the first of which is there already, and one entry behind them. */
static int unpack(struct sl_destination *destination, char type, const char *name, const char *link)
{
    uint64_t count, bytes;
    sl_autobuf tar = SL_BUF_INIT((FILES + 1) * BYTES);
    sl_autofree uint8_t *content = sl_alloc(BYTES, &err);
    for (unsigned i = 0; i < FILES; i++)
        tar_entry(&tar, '0', (const char[]){(char)('a' + i), 0}, NULL, content, BYTES);
    tar_entry(&tar, type, name, link, "x", type == '0');
    tar_end(&tar);
    sl_autoclose int fd = openat(scratch_fd, "m.tar", O_RDWR | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(write(fd, tar.data, tar.used), (ssize_t)tar.used);
    const struct sl_archive_work what = {destination, 0, to, NULL};
    const struct sl_archive_file file = {fd, SL_ARCHIVE_TAR, "m.tar", false};
    return sl_archive_work_unpack(&what, &file, &count, &bytes, &err);
}

static const struct refused {
    char type;
    const char *name, *link;
} refused[] = {
    {'0', "../outside", NULL},     /* a name that leaves */
    {'0', ".m.sluice-edit", NULL}, /* one of ours */
    {'2', "link", "../outside"},   /* a link that leaves */
    {'2', "e", "through/../../x"}, /* over what the destination holds */
    {'0', "taken", NULL},          /* a folder is in its place */
    {'2', "a", "b"},               /* the name of something else */
    {'3', "bad", NULL},            /* no kind of entry that can be put there */
};

SL_TEST_LOOP(an_archive_that_is_refused_costs_no_file_that_was_there, 0, SL_COUNT(refused))
{
    const struct refused *row = &refused[_i];
    char name[SL_SCRATCH_PATH_BYTES + 32];
    if (!have_volume("an_archive_that_is_refused_costs_no_file_that_was_there"))
        return;
    snprintf(name, sizeof(name), "%s/taken", to);
    ck_assert_int_eq(mkdir(name, 0755), 0);
    snprintf(name, sizeof(name), "%s/through", to);
    ck_assert_int_eq(symlink("/", name), 0);
    SL_AUTO(sl_destination) destination = sl_destination_open(to, NULL, &err);
    ck_assert_int_eq(unpack(destination, row->type, row->name, row->link), -1);
    ck_assert_msg(!strstr(err.message, "left"), "for lack of room: %s", err.message);
    ck_assert_uint_eq(bytes_of("a"), OLD_BYTES);
}

SL_TEST(an_archive_that_can_be_put_there_takes_the_room_of_what_it_replaces)
{
    if (!have_volume("an_archive_that_can_be_put_there_takes_the_room_of_what_it_replaces"))
        return;
    SL_AUTO(sl_destination) destination = sl_destination_open(to, NULL, &err);
    ck_assert_msg(unpack(destination, '2', "link", "a") == 0, "%s", err.message);
    ck_assert_uint_eq(bytes_of("a"), 0);
    ck_assert_uint_eq(bytes_of(".sluice/initializer/0.files/d"), BYTES);
}

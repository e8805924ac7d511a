/* Folders that break off: a volume's error in the middle of a listing (EIO, ESTALE) is no end of
 * it, so nothing is lost, and nothing is taken for empty. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "claims.h"
#include "local_links.h"
#include "mounting.h"
#include "moving.h"
#include "node_folder.h"
#include "run_sluice.h"
#include "scratch.h"
#include "sets_parts.h"
#include "tree.h"
#include "volume_record.h"

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct ran ran;

/* Folders of this name give no entry, but this error. */
static struct {
    const char *name;
    int number;
} broken;

struct dirent *__real_readdir64(DIR *folder);
struct dirent *__wrap_readdir64(DIR *folder);

struct dirent *__wrap_readdir64(DIR *folder)
{
    char link[64], path[512] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd(folder));
    if (broken.name && readlink(link, path, sizeof(path) - 1) > 0 &&
        strcmp(strrchr(path, '/') + 1, broken.name) == 0) {
        errno = broken.number;
        return NULL;
    }
    return __real_readdir64(folder);
}

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    broken.name = NULL;
}

static void teardown(void)
{
    broken.name = NULL;
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}
SL_CASE(.setup = setup, .teardown = teardown)

/* scratch/name, with one file in it; opened. */
static int fill(const char *name, const char *file)
{
    ck_assert(mkdirat(scratch_fd, name, 0755) == 0 || errno == EEXIST);
    int fd = openat(scratch_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(sl_tree_write(fd, file, "text", 4, NULL), 0);
    return fd;
}

static void breaks(const char *name, int number)
{
    broken.name = name;
    broken.number = number;
}

static void expect(int done, const struct sl_err *err, int number)
{
    ck_assert_int_eq(done, -1);
    ck_assert_msg(err->kind != SL_OK && strstr(err->message, strerror(number)), "%s", err->message);
}

SL_TEST(a_tree_is_not_removed_and_says_why)
{
    sl_autoclose int fd = fill("full", "x");
    breaks("full", EIO);
    ck_assert_int_eq(sl_tree_remove(scratch_fd, "full"), -1);
    ck_assert_int_eq(errno, EIO);
}

SL_TEST(a_set_without_some_files_is_not_packed)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_sets_saved saved;
    sl_autoclose int fd = fill("caches", "x"), out_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    breaks("caches", ESTALE);
    expect(sl_sets_pack(fd, out_fd, NULL, &saved, &err), &err, ESTALE);
}

SL_TEST(a_folder_of_caches_is_taken_for_used)
{
    sl_autoclose int fd = fill("caches", "x");
    const struct sl_sets_folder folder = {.fd = fd};
    breaks("caches", EIO);
    ck_assert(sl_sets_folder_is_used(&folder));
}

SL_TEST(a_part_of_a_model_is_not_moved)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_moving) moving = sl_moving_new(scratch_fd, scratch, &err);
    int fd = fill("ready", "x");
    breaks("ready", EIO);
    expect(sl_moving_add(moving, fd, "", &err), &err, EIO);
}

SL_TEST(a_part_of_a_folder_is_not_linked)
{
    struct sl_err err = SL_ERR_INIT;
    char path[SL_SCRATCH_PATH_BYTES + 16];
    struct sl_local_links links = {0};
    const struct sl_patterns patterns = {0};
    sl_autoclose int fd = fill("local", "x");
    snprintf(path, sizeof(path), "%s/local", scratch);
    breaks("local", EIO);
    expect(sl_local_links_find(&links, path, &patterns, &err), &err, EIO);
    ck_assert_int_ne(err.kind, SL_E_NOT_FOUND);
    sl_local_links_release(&links);
}

SL_TEST(a_folder_for_a_socket_holds_who_knows_what)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    sl_autoclose int fd = fill("run", "x"),
                     socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%.80s/run/s", scratch);
    ck_assert_int_eq(bind(socket_fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert(!sl_mounting_holds_only(fd, "s"));
    ck_assert_int_eq(unlinkat(fd, "x", 0), 0);
    ck_assert(sl_mounting_holds_only(fd, "s"));
    breaks("run", EIO);
    ck_assert(!sl_mounting_holds_only(fd, "s"));
}

SL_TEST(entries_that_cannot_be_seen_are_not_the_daemons_own)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autoclose int fd = fill("version", "x");
    ck_assert_int_eq(sl_node_check_entries(fd, "version", &err), 0);
    breaks("version", EIO);
    expect(sl_node_check_entries(fd, "version", &err), &err, EIO);
    ck_assert_str_eq(err.code, "");
}

static int never(void *arg, const struct sl_volume_record *record, struct sl_err *err)
{
    (void)arg, (void)record, (void)err;
    ck_abort_msg("there is no record");
    return 0;
}

SL_TEST(records_of_volumes_are_all_read_or_none)
{
    struct sl_err err = SL_ERR_INIT;
    sl_autoclose int fd = fill(".volumes", "x.json");
    breaks(".volumes", EIO);
    expect(sl_volume_record_each(fd, never, NULL, &err), &err, EIO);
}

/* A daemon's directory, with the record of a volume. */
SL_TEST(rm_removes_nothing_while_volumes_cannot_be_counted)
{
    char path[SL_SCRATCH_PATH_BYTES + 16];
    sl_autoclose int fd = fill("node", ".lock"), volumes_fd = fill("node/.volumes", "v.json");
    ck_assert_int_eq(unlinkat(fd, ".lock", 0), 0);
    sl_autoclose int lock_fd = openat(fd, ".lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    snprintf(path, sizeof(path), "%s/node", scratch);
    RUN_COPY(&ran, "rm", path);
    ck_assert_msg(ran.exit_code != 0 && strstr(ran.err, "volumes of pods (1)"), "%s", ran.err);
    breaks(".volumes", EIO);
    RUN_COPY(&ran, "rm", path);
    ck_assert_msg(ran.exit_code != 0 && strstr(ran.err, strerror(EIO)), "%s", ran.err);
    breaks("node", EIO);
    ck_assert_int_eq(sl_tree_remove(fd, ".volumes"), 0);
    RUN_COPY(&ran, "rm", path);
    ck_assert_msg(ran.exit_code != 0 && strstr(ran.err, strerror(EIO)), "%s", ran.err);
}

SL_TEST(status_takes_no_folder_for_empty_that_it_cannot_list)
{
    char path[SL_SCRATCH_PATH_BYTES + 16];
    sl_autoclose int fd = fill("foreign", "x");
    snprintf(path, sizeof(path), "%s/foreign", scratch);
    RUN_COPY(&ran, "status", path);
    ck_assert_msg(strstr(ran.out, "1 file, none published"), "%s%s", ran.out, ran.err);
    breaks("foreign", EIO);
    RUN_COPY(&ran, "status", path);
    ck_assert_msg(ran.exit_code != 0 && strstr(ran.err, strerror(EIO)), "%s%s", ran.out, ran.err);
    RUN_COPY(&ran, "status", "--json", path);
    ck_assert_msg(ran.exit_code != 0 && strstr(ran.out, strerror(EIO)), "%s%s", ran.out, ran.err);
    ck_assert_ptr_null(strstr(ran.out, "\"empty\""));
}

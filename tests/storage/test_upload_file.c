/* New local files: visible when they are whole, and what upload.c does for every destination. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "scratch.h"
#include "stores.h"
#include "upload.h"
#include "upload_backend.h"

enum { BYTES = 300000 };
static char base[SL_SCRATCH_PATH_BYTES];
static int base_fd;
static uint8_t data[BYTES];
static struct sl_upload_config config;
static struct sl_err err;

static void setup(void)
{
    base_fd = sl_scratch_open(base);
    umask(022);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (uint8_t)(i * 13 + i / 241);
    config = (struct sl_upload_config){0};
    err = (struct sl_err)SL_ERR_INIT;
}

static void teardown(void)
{
    sl_scratch_close(base_fd, base);
}

static const char *at(const char *name)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof(paths[0]), "%s/%s", base, name);
    return path;
}

static int upload(const char *uri)
{
    SL_AUTO(sl_upload) to = NULL;
    err = (struct sl_err)SL_ERR_INIT;
    if (sl_upload_open(uri, BYTES, &config, &to, &err) < 0 ||
        sl_upload_write(to, 100000, data + 100000, BYTES - 100000, &err) < 0 ||
        sl_upload_admit(to, &err) < 0 || sl_upload_write(to, 0, data, 100000, &err) < 0)
        return -1;
    return sl_upload_finish(to, &err);
}

static void expect_file(const char *path)
{
    static uint8_t got[BYTES + 1];
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "no '%s'", path);
    ck_assert_uint_eq(fread(got, 1, sizeof(got), file), BYTES);
    fclose(file);
    ck_assert_mem_eq(got, data, BYTES);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void expect_text(const char *path, const char *text)
{
    char got[64] = "";
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    got[fread(got, 1, sizeof(got) - 1, file)] = 0;
    fclose(file);
    ck_assert_str_eq(got, text);
}

static unsigned names_in(const char *path)
{
    unsigned count = 0;
    DIR *directory = opendir(path);
    ck_assert_ptr_nonnull(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(directory);
    return count;
}

static void expect_refusal(const char *uri, enum sl_err_kind kind, const char *text)
{
    ck_assert_int_eq(upload(uri), -1);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_msg(err.kind == kind, "kind %d: %s", err.kind, err.message);
}

SL_TEST(bytes_in_any_order_become_a_file)
{
    char uri[600];
    struct stat info;
    ck_assert_msg(upload(at("a b")) == 0, "%s", err.message);
    expect_file(at("a b"));
    ck_assert_int_eq(stat(at("a b"), &info), 0);
    ck_assert_uint_eq(info.st_mode, S_IFREG | 0644);
    snprintf(uri, sizeof(uri), "file://%s", at("c%20d"));
    ck_assert_msg(upload(uri) == 0, "%s", err.message);
    expect_file(at("c d"));
    ck_assert_uint_eq(names_in(base), 2);
}

SL_TEST(a_mode_is_set_whatever_the_umask)
{
    struct stat info;
    config.mode = 0600;
    umask(0);
    ck_assert_int_eq(upload(at("key")), 0);
    ck_assert_int_eq(stat(at("key"), &info), 0);
    ck_assert_uint_eq(info.st_mode, S_IFREG | 0600);
    umask(077);
    config.mode = 0444;
    ck_assert_int_eq(upload(at("open")), 0);
    ck_assert_int_eq(stat(at("open"), &info), 0);
    ck_assert_uint_eq(info.st_mode, S_IFREG | 0444);
}

SL_TEST(folders_are_made_and_go_again_with_a_failure)
{
    SL_AUTO(sl_upload) half = NULL;
    ck_assert_int_eq(upload(at("x/y//z/file")), 0);
    expect_file(at("x/y/z/file"));
    ck_assert_int_eq(sl_upload_open(at("x/new/deep/file"), 10, &config, &half, &err), 0);
    ck_assert_int_eq(access(at("x/new/deep"), F_OK), 0);
    sl_upload_free(sl_steal(&half));
    ck_assert_int_eq(access(at("x/new"), F_OK), -1);
    ck_assert_int_eq(access(at("x/y/z/file"), F_OK), 0);
}

SL_TEST(relative_paths_and_empty_objects_are_fine)
{
    struct stat info;
    SL_AUTO(sl_upload) to = NULL;
    ck_assert_int_eq(chdir(base), 0);
    ck_assert_int_eq(upload("plain"), 0);
    expect_file(at("plain"));
    ck_assert_int_eq(sl_upload_open("sub/empty", 0, NULL, &to, &err), 0);
    ck_assert_int_eq(sl_upload_finish(to, &err), 0);
    ck_assert_int_eq(stat(at("sub/empty"), &info), 0);
    ck_assert_int_eq(info.st_size, 0);
    ck_assert_str_eq(to->kind->name, "file");
    ck_assert(!to->ops->in_order);
    ck_assert_int_eq(chdir("/"), 0);
}

SL_TEST(what_is_there_is_kept_unless_it_is_to_be_replaced)
{
    write_file(at("old"), "old");
    expect_refusal(at("old"), SL_E_USAGE, "exists");
    ck_assert_str_eq(err.code, "exists");
    expect_text(at("old"), "old");
    config.replace = true;
    ck_assert_msg(upload(at("old")) == 0, "%s", err.message);
    expect_file(at("old"));
    ck_assert_uint_eq(names_in(base), 1);
}

SL_TEST(what_replaces_a_private_file_is_private)
{
    struct stat info;
    write_file(at("old"), "old");
    ck_assert_int_eq(chmod(at("old"), 0600), 0);
    config.replace = true;
    ck_assert_int_eq(upload(at("old")), 0);
    ck_assert_int_eq(stat(at("old"), &info), 0);
    ck_assert_uint_eq(info.st_mode, S_IFREG | 0600);
}

SL_TEST(what_appears_meanwhile_is_kept_too)
{
    SL_AUTO(sl_upload) to = NULL;
    ck_assert_int_eq(sl_upload_open(at("late"), BYTES, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, 0, data, BYTES, &err), 0);
    write_file(at("late"), "theirs");
    ck_assert_int_eq(sl_upload_finish(to, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    sl_upload_free(sl_steal(&to));
    expect_text(at("late"), "theirs");
    ck_assert_uint_eq(names_in(base), 1);
}

SL_TEST(a_link_is_refused_or_replaced_and_never_followed)
{
    struct stat info;
    write_file(at("target"), "target");
    ck_assert_int_eq(symlink("target", at("link")), 0);
    ck_assert_int_eq(symlink("nowhere", at("dangling")), 0);
    expect_refusal(at("link"), SL_E_USAGE, "exists");
    expect_refusal(at("dangling"), SL_E_USAGE, "exists");
    config.replace = true;
    ck_assert_int_eq(upload(at("link")), 0);
    ck_assert_int_eq(lstat(at("link"), &info), 0);
    ck_assert(S_ISREG(info.st_mode));
    expect_text(at("target"), "target");
    ck_assert_int_eq(access(at("nowhere"), F_OK), -1);
}

SL_TEST(what_cannot_be_written_is_said_before_the_first_byte)
{
    SL_AUTO(sl_upload) to = NULL;
    config.replace = true;
    ck_assert_int_eq(mkdir(at("folder"), 0755), 0);
    ck_assert_int_eq(mkfifo(at("fifo"), 0644), 0);
    write_file(at("file"), "x");
    expect_refusal(at("folder"), SL_E_USAGE, "is a folder");
    expect_refusal(at("folder/"), SL_E_USAGE, "names a folder");
    expect_refusal(at("fifo"), SL_E_USAGE, "neither a file");
    expect_refusal(at("file/under"), SL_E_USAGE, "cannot open the folder");
    expect_refusal(at(".."), SL_E_USAGE, "not a name");
    expect_refusal("-", SL_E_USAGE, "not a name");
    expect_refusal("", SL_E_USAGE, "no URI");
    expect_refusal("ftp://host/x", SL_E_USAGE, "nothing can be written to 'ftp:'");
    expect_refusal("file://host/x", SL_E_USAGE, "names a host");
    expect_refusal("/proc/none/x", SL_E_NO_SPACE, "/proc");
    ck_assert_int_eq(sl_upload_open(at("huge"), UINT64_C(1) << 60, &config, &to, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_ptr_nonnull(strstr(err.message, "its file system has"));
}

SL_TEST(an_upload_that_is_not_finished_leaves_nothing)
{
    SL_AUTO(sl_upload) to = NULL;
    ck_assert_int_eq(sl_upload_open(at("half"), BYTES, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, 0, data, 1000, &err), 0);
    ck_assert_uint_eq(names_in(base), 0);
    sl_upload_free(sl_steal(&to));
    ck_assert_uint_eq(names_in(base), 0);
}

SL_TEST(a_killed_process_leaves_nothing)
{
    int ready[2];
    ck_assert_int_eq(pipe(ready), 0);
    write_file(at("old"), "old");
    config.replace = true;
    pid_t child = fork();
    if (child == 0) {
        struct sl_upload *to;
        if (sl_upload_open(at("old"), BYTES, &config, &to, NULL) < 0 ||
            sl_upload_write(to, 0, data, BYTES, NULL) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
    }
    char byte;
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    expect_text(at("old"), "old");
    ck_assert_uint_eq(names_in(base), 1);
}

SL_TEST(missing_bytes_and_ranges_beyond_the_end_are_our_own_mistakes)
{
    SL_AUTO(sl_upload) to = NULL;
    ck_assert_int_eq(sl_upload_open(at("short"), BYTES, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, 0, data, BYTES - 1, &err), 0);
    ck_assert_int_eq(sl_upload_finish(to, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.message, "got 299999 of its 300000 bytes"));
    sl_upload_free(sl_steal(&to));
    ck_assert_int_eq(sl_upload_open(at("short"), BYTES, &config, &to, &err), 0);
    ck_assert_int_eq(sl_upload_write(to, BYTES, data, 1, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    ck_assert_int_eq(sl_upload_write(to, UINT64_MAX, data, 2, &err), -1);
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_upload_write(to, 0, data, 1, &err), -1); /* the first failure stays */
    ck_assert_ptr_nonnull(strstr(err.message, "do not lie within"));
    ck_assert_int_eq(sl_upload_finish(to, NULL), -1);
    sl_upload_free(sl_steal(&to));
    ck_assert_uint_eq(names_in(base), 0);
}

SL_TEST(cancellation_ends_it)
{
    SL_AUTO(sl_upload) to = NULL;
    SL_AUTO(sl_upload) other = NULL;
    struct sl_source_config source = {.cancel = sl_cancel_new(&err)};
    config.source = &source;
    ck_assert_int_eq(sl_upload_open(at("c"), BYTES, &config, &to, &err), 0);
    sl_cancel_raise(source.cancel, SIGTERM);
    ck_assert_int_eq(sl_upload_write(to, 0, data, BYTES, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    ck_assert_int_eq(sl_upload_open(at("d"), BYTES, &config, &other, &err), -1);
    sl_upload_free(sl_steal(&to));
    sl_cancel_free(source.cancel);
    ck_assert_uint_eq(names_in(base), 0);
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    int result = -1;
    config.replace = true;
    write_file(at("old"), "old");
    for (unsigned nth = 1; result < 0; nth++) {
        sl_alloc_fail_at(nth);
        result = upload(at("old"));
        sl_alloc_fail_at(0);
        if (result == 0)
            break;
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
        expect_text(at("old"), "old");
        ck_assert_uint_eq(names_in(base), 1);
    }
    expect_file(at("old"));
    ck_assert_uint_eq(names_in(base), 1);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* Local files, the memory source, and what source.c does for every backend. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "memory_store.h"
#include "range_blob.h"
#include "stores.h"
#include "tree.h"

static char base[64];

static char *path_of(const char *name)
{
    static char paths[8][256];
    static unsigned turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", base, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(path_of(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
}

static void setup(void)
{
    snprintf(base, sizeof(base), "/tmp/sluice-file-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
    write_file("m", sl_blob(), SL_BLOB_BYTES);
}

static void teardown(void)
{
    static const char *const names[] = {"m",          "empty",         "a b",        "sub/x",
                                        "sub/deep/y", "link",          "up",         "dangling",
                                        "fifo",       ".sluice/ready", "sub/.hidden"};
    static const char *const folders[] = {"sub/deep", "sub", ".sluice", ""};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        unlink(path_of(names[i]));
    for (size_t i = 0; i < SL_COUNT(folders); i++)
        rmdir(path_of(folders[i]));
}

/* Open uri and its key; the store is closed with the source by close_both(). */
static struct sl_store *store;
static struct sl_source *source;

static int open_uri(const char *uri, struct sl_err *err)
{
    sl_autofree char *key = NULL;
    *err = (struct sl_err)SL_ERR_INIT;
    store = NULL;
    source = NULL;
    if (sl_store_open(uri, NULL, &store, &key, err) < 0)
        return -1;
    return sl_source_open(store, key, 100, &source, err);
}

static void close_both(void)
{
    sl_source_free(source);
    sl_store_free(store);
}

SL_TEST(a_path_and_its_uri_are_read)
{
    struct sl_err err;
    char uri[300];
    write_file("a b", "hello", 5);
    ck_assert_int_eq(sl_read_blob(path_of("m"), NULL, 10, 300000, &err), 0);
    snprintf(uri, sizeof(uri), "file://%s", path_of("m"));
    ck_assert_int_eq(sl_read_blob(uri, NULL, 10, 300000, &err), 0);
    snprintf(uri, sizeof(uri), "FILE://localhost%s", path_of("a%20b"));
    ck_assert_int_eq(open_uri(uri, &err), 0);
    ck_assert_uint_eq(sl_source_bytes(source), 5);
    ck_assert_str_eq(sl_source_name(source), "a b");
    ck_assert_str_eq(sl_store_kind(store), "file");
    close_both();
    ck_assert_int_eq(open_uri("file://host/x", &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    close_both();
}

SL_TEST(the_head_is_served_without_another_request)
{
    struct sl_err err;
    uint8_t data[200];
    uint64_t requests, bytes;
    ck_assert_int_eq(open_uri(path_of("m"), &err), 0);
    ck_assert_int_eq(sl_source_read(source, 0, data, 100, &err), 0);
    sl_source_counts(source, &requests, &bytes);
    ck_assert_uint_eq(requests, 1);
    ck_assert_uint_eq(bytes, 100);
    ck_assert_int_eq(sl_source_read(source, 50, data, 200, &err), 0);
    ck_assert_mem_eq(data, sl_blob() + 50, 200);
    sl_source_counts(source, &requests, &bytes);
    ck_assert_uint_eq(requests, 2);
    ck_assert_uint_eq(bytes, 250);
    ck_assert_int_eq(sl_source_read(source, SL_BLOB_BYTES, data, 0, &err), 0);
    ck_assert_int_eq(sl_source_read(source, SL_BLOB_BYTES, data, 1, &err), -1);
    ck_assert_str_eq(err.code, "truncated");
    ck_assert_int_eq(sl_source_read(source, UINT64_MAX, data, 2, &err), -1);
    ck_assert_str_eq(err.code, "truncated");
    close_both();
}

SL_TEST(an_empty_file_is_fine)
{
    struct sl_err err;
    write_file("empty", "", 0);
    ck_assert_int_eq(open_uri(path_of("empty"), &err), 0);
    ck_assert_uint_eq(sl_source_bytes(source), 0);
    close_both();
}

SL_TEST_LOOP(a_changed_file_is_noticed, 0, 3)
{
    struct sl_err err;
    uint8_t data[100];
    ck_assert_int_eq(open_uri(path_of("m"), &err), 0);
    if (_i == 0) {
        ck_assert_int_eq(truncate(path_of("m"), 5000), 0);
    } else if (_i == 1) {
        struct timespec times[2] = {{1, 0}, {1, 0}};
        ck_assert_int_eq(utimensat(AT_FDCWD, path_of("m"), times, 0), 0);
    } else {
        write_file("a b", sl_blob(), SL_BLOB_BYTES);
        ck_assert_int_eq(rename(path_of("a b"), path_of("m")), 0);
    }
    ck_assert_int_eq(sl_source_read(source, 200, data, 100, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "changed");
    close_both();
}

/* Written over at once, the same length, with the old mtime set back: only ctime tells, and only
 * because the opening waited for its tick to pass. */
SL_TEST(a_change_right_after_the_opening_is_noticed)
{
    struct sl_err err;
    uint8_t data[100];
    for (int tries = 0; tries < 20; tries++) {
        struct stat info;
        write_file("m", sl_blob(), SL_BLOB_BYTES);
        ck_assert_int_eq(open_uri(path_of("m"), &err), 0);
        ck_assert(sl_version_is_known(sl_source_version(source)));
        ck_assert_int_eq(stat(path_of("m"), &info), 0);
        struct timespec times[2] = {info.st_atim, info.st_mtim};
        int fd = open(path_of("m"), O_WRONLY);
        ck_assert_int_eq(pwrite(fd, "other", 5, 250), 5);
        ck_assert_int_eq(futimens(fd, times), 0);
        close(fd);
        ck_assert_int_eq(sl_source_read(source, 200, data, 100, &err), -1);
        ck_assert_str_eq(err.code, "changed");
        close_both();
    }
}

SL_TEST(what_is_no_file_is_refused_with_the_reason)
{
    struct sl_err err;
    ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
    ck_assert_int_eq(open_uri(path_of("fifo"), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "pipe"));
    close_both();
    ck_assert_int_eq(open_uri("-", &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    close_both();
    ck_assert_int_eq(open_uri("/dev/null", &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    close_both();
    ck_assert_int_eq(open_uri(path_of("none"), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    close_both();
    ck_assert_int_eq(open_uri(path_of("m/x"), &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    close_both();
}

struct seen {
    char text[1000];
    unsigned count;
};

static int see(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct seen *seen = arg;
    size_t used = strlen(seen->text);
    (void)err;
    seen->count++;
    snprintf(seen->text + used, sizeof(seen->text) - used, "%s=%u ", entry->name,
             (unsigned)entry->bytes);
    return 0;
}

static int list(const char *uri, struct seen *seen, struct sl_err *err)
{
    SL_AUTO(sl_store) here = NULL;
    sl_autofree char *key = NULL;
    *seen = (struct seen){0};
    *err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_eq(sl_store_open(uri, NULL, &here, &key, err), 0);
    ck_assert_str_eq(key, "");
    return sl_store_list(here, see, seen, err);
}

SL_TEST(a_directory_is_listed_sorted_and_without_strangers)
{
    struct sl_err err;
    struct seen seen;
    ck_assert_int_eq(mkdir(path_of("sub"), 0700), 0);
    ck_assert_int_eq(mkdir(path_of("sub/deep"), 0700), 0);
    ck_assert_int_eq(mkdir(path_of(".sluice"), 0700), 0);
    ck_assert_int_eq(mkfifo(path_of("fifo"), 0600), 0);
    write_file("sub/x", "x", 1);
    write_file("sub/.hidden", "hh", 2);
    write_file("sub/deep/y", "yyy", 3);
    write_file(".sluice/ready", "r", 1);
    write_file("empty", "", 0);
    ck_assert_int_eq(symlink("sub/x", path_of("link")), 0);
    ck_assert_int_eq(symlink("..", path_of("up")), 0);
    ck_assert_int_eq(list(base, &seen, &err), 0);
    ck_assert_str_eq(seen.text, "empty=0 link=1 m=1000000 sub/.hidden=2 sub/deep/y=3 sub/x=1 ");
    char uri[100];
    snprintf(uri, sizeof(uri), "file://%s/sub/", base);
    ck_assert_int_eq(list(uri, &seen, &err), 0);
    ck_assert_uint_eq(seen.count, 3);
    ck_assert_int_eq(symlink("nowhere", path_of("dangling")), 0);
    ck_assert_int_eq(list(base, &seen, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
}

/* A model may have files of these names, too: then others can read them. */
SL_TEST(what_a_node_keeps_for_itself_is_left_out_of_a_directory)
{
    static const char *const names[] = {"model.yaml", ".lock", "0.whole"};
    struct sl_err err;
    struct seen seen;
    ck_assert_int_eq(mkdir(path_of("n"), 0700), 0);
    ck_assert_int_eq(mkdir(path_of("n/.volumes"), 0700), 0);
    write_file("n/.volumes/salt", "s", 1);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        char name[32];
        snprintf(name, sizeof(name), "n/%s", names[i]);
        write_file(name, "x", 1);
        ck_assert_int_eq(chmod(path_of(name), 0600), 0);
    }
    ck_assert_int_eq(list(base, &seen, &err), 0);
    ck_assert_str_eq(seen.text, "m=1000000 ");
    ck_assert_int_eq(chmod(path_of("n/model.yaml"), 0640), 0);
    ck_assert_int_eq(list(base, &seen, &err), 0);
    ck_assert_str_eq(seen.text, "m=1000000 n/model.yaml=1 ");
    ck_assert_int_eq(sl_tree_remove(AT_FDCWD, path_of("n")), 0);
}

SL_TEST(names_of_ours_are_left_out_of_a_directory)
{
    struct sl_err err;
    struct seen seen;
    ck_assert_int_eq(mkdir(path_of("sub"), 0700), 0);
    write_file("sub/x", "x", 1);
    ck_assert_int_eq(symlink("nowhere", path_of(".m.sluice-edit")), 0);
    ck_assert_int_eq(mkfifo(path_of(".m.sluice-lock"), 0600), 0);
    ck_assert_int_eq(mkdir(path_of("sub/.x.sluice-new"), 0700), 0);
    ck_assert_int_eq(mkdir(path_of("sub/.sluice"), 0700), 0);
    write_file("sub/.sluice/ready", "r", 1);
    ck_assert_int_eq(list(base, &seen, &err), 0);
    ck_assert_str_eq(seen.text, "m=1000000 sub/x=1 ");
    unlink(path_of(".m.sluice-edit"));
    unlink(path_of(".m.sluice-lock"));
    rmdir(path_of("sub/.x.sluice-new"));
    unlink(path_of("sub/.sluice/ready"));
    rmdir(path_of("sub/.sluice"));
}

SL_TEST(an_empty_directory_is_not_found)
{
    struct sl_err err;
    struct seen seen;
    ck_assert_int_eq(mkdir(path_of("sub"), 0700), 0);
    ck_assert_int_eq(list(path_of("sub"), &seen, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_int_eq(list(path_of("none/"), &seen, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
}

static int stop(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    (void)arg;
    return sl_fail(err, SL_E_FORMAT, "stop at %s", entry->name);
}

SL_TEST(a_listing_stops_when_told)
{
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) here = NULL;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(base, NULL, &here, &key, &err), 0);
    ck_assert_int_eq(sl_store_list(here, stop, NULL, &err), -1);
    ck_assert_str_eq(err.message, "stop at m");
}

SL_TEST_LOOP(unknown_schemes_are_usage_errors, 0, 5)
{
    static const char *const uris[] = {"redix://h/x", "gopher://x", "",
                                       "averyveryverylongscheme://x", "pvc://a/b"};
    struct sl_err err = SL_ERR_INIT;
    sl_autofree char *key = NULL;
    ck_assert_int_eq(sl_store_open(uris[_i], NULL, &store, &key, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_null(store);
}

SL_TEST(every_failing_allocation_is_an_error)
{
    char uri[100];
    ck_assert_int_eq(mkdir(path_of("sub"), 0700), 0);
    write_file("sub/x", "x", 1);
    snprintf(uri, sizeof(uri), "file://%s/m", base);
    for (unsigned nth = 1; nth < 200; nth++) {
        struct sl_err err = SL_ERR_INIT;
        struct seen seen = {0};
        sl_autofree char *key = NULL;
        SL_AUTO(sl_store) here = NULL;
        sl_alloc_fail_at(nth);
        int result = sl_read_blob(uri, NULL, 10, SL_BLOB_BYTES, &err);
        if (result == 0)
            result = sl_store_open(base, NULL, &here, &key, &err);
        if (result == 0)
            result = sl_store_list(here, see, &seen, &err);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(0);
        ck_assert_msg(result == 0 || err.kind == SL_E_NO_SPACE, "allocation %u: %s", nth,
                      err.message);
        if (!reached)
            return;
    }
    ck_abort_msg("too many allocations");
}

SL_TEST(the_memory_source_reads_lists_changes_and_fails)
{
    struct sl_err err;
    struct seen seen;
    uint8_t data[200];
    ck_assert_int_eq(sl_memory_put("d/m", sl_blob(), SL_BLOB_BYTES, &err), 0);
    ck_assert_int_eq(sl_memory_put("d/e/x", "xx", 2, &err), 0);
    ck_assert_int_eq(sl_memory_put("z", "z", 1, &err), 0);
    ck_assert_int_eq(sl_read_blob("memory:d/m", NULL, 10, 77777, &err), 0);
    ck_assert_int_eq(list("memory:d/", &seen, &err), 0);
    ck_assert_str_eq(seen.text, "m=1000000 e/x=2 ");
    ck_assert_int_eq(list("memory://all/", &seen, &err), 0);
    ck_assert_uint_eq(seen.count, 3);
    ck_assert_int_eq(open_uri("memory:d/m", &err), 0);
    sl_memory_fail_at(2);
    ck_assert_int_eq(sl_source_read(source, 200, data, 200, &err), 0);
    ck_assert_int_eq(sl_source_read(source, 200, data, 200, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_int_eq(sl_source_read(source, 200, data, 200, &err), 0);
    ck_assert_int_eq(sl_memory_put("d/m", sl_blob() + 1, SL_BLOB_BYTES - 1, &err), 0);
    ck_assert_int_eq(sl_source_read(source, 200, data, 200, &err), -1);
    ck_assert_str_eq(err.code, "changed");
    close_both();
    ck_assert_int_eq(open_uri("memory:none", &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    close_both();
    sl_memory_clear();
    ck_assert_int_eq(list("memory:", &seen, &err), -1);
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

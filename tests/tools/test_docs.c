/* The pages of docs/reference are what this program prints, and tools can read them and the manual
 * pages. */
#include <check.h>
#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "run_sluice.h"
#include "skip.h"

static char directory[] = "/tmp/sluice-docs-XXXXXX";
static struct ran ran;

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *ftw)
{
    (void)status, (void)type, (void)ftw;
    return remove(path);
}
static void setup(void)
{
    memcpy(directory + sizeof(directory) - 7, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(directory));
    RUN(&ran, "docs", "--write", directory);
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
}
static void teardown(void)
{
    nftw(directory, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    ran_release(&ran);
}

static int count_files(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    ck_assert_msg(dir != NULL, "%s", path);
    for (struct dirent *entry; (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void compare_folder(const char *folder)
{
    char written[512], kept[512];
    snprintf(written, sizeof(written), "%s/%s", directory, folder);
    snprintf(kept, sizeof(kept), "%s/docs/%s", SL_SOURCE_ROOT, folder);
    ck_assert_msg(count_files(written) == count_files(kept), "stale or missing files in docs/%s",
                  folder);
    DIR *dir = opendir(written);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.' || entry->d_type == DT_DIR)
            continue;
        struct sl_err err = SL_ERR_INIT;
        sl_autobuf ours = SL_BUF_INIT(1 << 20), theirs = SL_BUF_INIT(1 << 20);
        char path[1024];
        snprintf(path, sizeof(path), "%s/%s", written, entry->d_name);
        ck_assert_int_eq(sl_buf_read_file(&ours, path, &err), 0);
        snprintf(path, sizeof(path), "%s/%s", kept, entry->d_name);
        ck_assert_msg(sl_buf_read_file(&theirs, path, &err) == 0 && ours.used == theirs.used &&
                          memcmp(ours.data, theirs.data, ours.used) == 0,
                      "docs/%s/%s is not what sluice prints: run `sluice docs --write docs`",
                      folder, entry->d_name);
    }
    closedir(dir);
}

SL_TEST(the_tree_holds_what_is_printed)
{
    compare_folder("reference");
    compare_folder("reference/commands");
}

SL_TEST(man_pages_have_no_warnings)
{
    const char *folders[] = {"man"};
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", directory, folders[0]);
    DIR *dir = opendir(path);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.')
            continue;
        char page[1024];
        snprintf(page, sizeof(page), "%s/%s", path, entry->d_name);
        struct ran roff = {0};
        run_program(&roff, "groff",
                    (const char *const[]){"-man", "-Tutf8", "-ww", "-z", page, NULL});
        if (roff.exit_code != 127)
            ck_assert_msg(roff.exit_code == 0 && !*roff.err, "%s: %s", entry->d_name, roff.err);
        ran_release(&roff);
    }
    closedir(dir);
}

SL_TEST(a_validator_takes_the_schema)
{
    char schema[512], script[512];
    snprintf(schema, sizeof(schema), "%s/reference/spec.schema.json", directory);
    snprintf(script, sizeof(script), "%s/tests/support/schema_check.py", SL_SOURCE_ROOT);
    run_program(&ran, "python3", (const char *const[]){script, schema, NULL});
    if (ran.exit_code == 127 || ran.exit_code == 77)
        SL_SKIP("no validator; e2e has one");
    ck_assert_msg(ran.exit_code == 0, "%s%s", ran.out, ran.err);
}

SL_TEST(a_wrong_topic_names_the_nearest)
{
    RUN(&ran, "docs", "error");
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_str_eq(ran.err, "sluice: error: no page is called 'error', did you mean 'errors'?\n");
    RUN(&ran, "docs", "man", "lod");
    ck_assert_int_eq(ran.exit_code, 2);
    RUN(&ran, "docs");
    ck_assert_int_eq(ran.exit_code, 2);
    RUN(&ran, "docs", "--write", "/dev/null/x");
    ck_assert_int_eq(ran.exit_code, 6);
}

SL_CASE(.setup = setup, .teardown = teardown)

/* See sets_case.h. */
#include "sets_case.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hash.h"
#include "log.h"
#include "sets_parts.h"
#include "tree.h"

char sets_scratch[SL_SCRATCH_PATH_BYTES];
int sets_scratch_fd;
char sets_path[SL_SCRATCH_PATH_BYTES + 32], sets_store[SL_SCRATCH_PATH_BYTES + 32];
struct sl_err sets_err;
static struct sl_specs specs;

void sets_case_setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    sets_err = (struct sl_err)SL_ERR_INIT;
    sets_scratch_fd = sl_scratch_open(sets_scratch);
    snprintf(sets_path, sizeof(sets_path), "%s/caches/engine", sets_scratch);
    snprintf(sets_store, sizeof(sets_store), "%s/store/", sets_scratch);
}

void sets_case_teardown(void)
{
    sl_specs_release(&specs);
    sl_scratch_close(sets_scratch_fd, sets_scratch);
}

const struct sl_spec *sets_spec(const char *keys)
{
    char text[4096];
    sl_autobuf complaints = SL_BUF_INIT(64 * 1024);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
             "source: {uri: '%s/models/m/'}\nreaders: {attempts: 2}\n"
             "sink:\n  tmpfs: {path: '%s/out'}\n"
             "  caches: {path: '%s', url: '%s', save: true, %s}\n",
             sets_scratch, sets_scratch, sets_path, sets_store, keys);
    sl_specs_release(&specs);
    ck_assert_msg(
        sl_spec_parse(text, strlen(text), "m.yaml", NULL, 0, &specs, &complaints, &sets_err) == 0,
        "%s", sl_buf_string(&complaints));
    if (!strstr(keys, "restoreSeconds")) /* no claim is decided by a slow machine */
        specs.items[0].sink.caches.restore_seconds = 86400;
    return &specs.items[0];
}

void sets_put(const char *name, const char *text)
{
    char path[512];
    struct sl_err err = SL_ERR_INIT;
    struct sl_sets_folder folder;
    ck_assert_msg(sl_sets_folder_open(&folder, sets_path, &err) == 0, "%s", err.message);
    sl_sets_folder_close(&folder);
    snprintf(path, sizeof(path), "caches/engine/%s", name);
    const char *leaf;
    sl_autoclose int parent = sl_tree_parent(sets_scratch_fd, path, true, &leaf);
    sl_autoclose int fd = openat(parent, leaf, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

const char *sets_get(const char *name)
{
    static char text[8192];
    char path[1024];
    snprintf(path, sizeof(path), "%s/%s", sets_path, name);
    FILE *file = fopen(path, "r");
    size_t got = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[got] = 0;
    if (file)
        fclose(file);
    return text;
}

void sets_forget(void)
{
    ck_assert_int_eq(sl_tree_remove(sets_scratch_fd, "caches"), 0);
}

static unsigned entries_of(const char *path)
{
    unsigned count = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

bool sets_are_empty(void)
{
    char above[SL_SCRATCH_PATH_BYTES + 32];
    snprintf(above, sizeof(above), "%s/caches", sets_scratch);
    return entries_of(sets_path) == 0 && entries_of(above) == 1;
}

struct sl_sets_saved sets_save_well(const char *keys)
{
    struct sl_sets_saved saved;
    int done = sl_sets_save(sets_spec(keys), false, NULL, &saved, &sets_err);
    ck_assert_msg(done == 0, "%s", sets_err.message);
    return saved;
}

struct sl_sets_result sets_restore(const char *keys)
{
    struct sl_sets_result result;
    sl_sets_restore(sets_spec(keys), NULL, &result);
    return result;
}

void sets_plant(const void *data, size_t bytes)
{
    struct sl_sets_machine machine;
    struct sl_source_config config;
    const struct sl_spec *spec = sets_spec("trust: store");
    struct sl_sets_name name = {.bytes = bytes, .facts = (char *)(uintptr_t) "{}"};
    sl_autobuf facts = SL_BUF_INIT(SL_SETS_NAME_BYTES_MAX);
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_autoclose int fd = open(sets_scratch, O_TMPFILE | O_RDWR, 0600);
    ck_assert_int_eq(write(fd, data, bytes), (ssize_t)bytes);
    sl_sets_look(&machine);
    sl_digest_of(SL_HASH_SHA256, NULL, 0, data, bytes, digest, NULL);
    sl_hex(digest, 32, name.sha256);
    sl_sets_source_config(spec, NULL, &config);
    int done = sl_sets_key(spec, &machine, &facts, name.key, &sets_err);
    if (done == 0)
        done = sl_sets_store_put_blob(spec, &config, &name, fd, false, &sets_err);
    if (done == 0)
        done = sl_sets_store_put_name(spec, &config, &name, true, &sets_err);
    ck_assert_msg(done == 0, "%s", sets_err.message);
}

const char *sets_name_file(const char *key)
{
    static char path[SL_SCRATCH_PATH_BYTES + 160];
    snprintf(path, sizeof(path), "%ssets/%s/latest.json", sets_store, key);
    return path;
}

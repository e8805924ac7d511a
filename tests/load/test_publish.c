/* Publishing: whatever happens, each file is wholly old or wholly new, and `ready` never stands
 * beside a mixture. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "cpu_time.h"
#include "fake_clock.h"
#include "memory_store.h"
#include "model_maker.h"
#include "plan_parts.h"
#include "publish_case.h"
#include "publish_parts.h"
#include "scratch.h"
#include "sidecar.h"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

static void teardown(void)
{
    publish_pretend_boot(NULL, false);
    sl_scratch_close(scratch_fd, scratch);
    sl_memory_clear();
}

/* A version of a model: objects in memory, spec and plan. */
struct version {
    struct sl_specs specs;
    struct sl_plan *plan;
};

static void version_make(struct version *version, const char *const names[], const char *content)
{
    struct sl_err err = SL_ERR_INIT;
    sl_memory_clear();
    for (size_t i = 0; names[i]; i++) {
        char name[1200];
        snprintf(name, sizeof(name), "m/%s", names[i]);
        ck_assert_int_eq(sl_memory_put(name, content, strlen(content), NULL), 0);
    }
    sl_model_spec(&version->specs, "memory://m/", path, "");
    ck_assert_msg(sl_model_plan(&version->specs, &version->plan, &err) == 0, "%s", err.message);
}

static void version_release(struct version *version)
{
    sl_plan_free(version->plan);
    sl_specs_release(&version->specs);
}

/* What reader and sink would do. */
static void stage(struct sl_publish *publish, const struct sl_plan *plan, const char *content)
{
    ck_assert_int_eq(sl_publish_discard(publish, false, NULL), 0);
    int staging = sl_publish_staging(publish, NULL);
    ck_assert_int_ge(staging, 0);
    for (size_t i = 0; i < plan->file_count; i++) {
        const char *leaf;
        int folder = sl_tree_parent(staging, plan->files[i].name, true, &leaf);
        ck_assert_int_ge(folder, 0);
        ck_assert_int_eq(sl_tree_write(folder, leaf, content, strlen(content), NULL), 0);
        close(folder);
    }
}

static struct sl_publish *open_publish(void)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_publish *publish = sl_publish_open(path, NULL, NULL, NULL, &err);
    ck_assert_msg(publish != NULL, "%s", err.message);
    return publish;
}

static int publish_version(const struct version *version, const char *content, struct sl_err *err)
{
    struct sl_publish *publish = open_publish();
    stage(publish, version->plan, content);
    int done = sl_publish_commit(publish, version->plan, &version->specs.items[0], NULL, NULL, err);
    sl_publish_free(publish);
    return done;
}

static bool is_current(const struct version *version)
{
    struct sl_publish *publish = open_publish();
    bool current;
    ck_assert_int_eq(sl_publish_is_current(publish, version->plan, &current, NULL), 0);
    sl_publish_free(publish);
    return current;
}

static const char *const old_names[] = {"a", "both/x", "old/deep/er", "turn", NULL};
static const char *const new_names[] = {"a", "both/x", "new/file", "turn/now/folder", NULL};

SL_TEST(what_is_published_is_there_read_only_and_current)
{
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    version_make(&version, old_names, "old");
    ck_assert(!is_current(&version));
    ck_assert_msg(publish_version(&version, "old", &err) == 0, "%s", err.message);
    ck_assert(is_current(&version));
    struct stat status;
    char name[512];
    for (size_t i = 0; old_names[i]; i++)
        ck_assert(sl_model_same(path, old_names[i], "old", 3));
    snprintf(name, sizeof(name), "%s/old/deep", path);
    ck_assert_int_eq(stat(name, &status), 0);
    ck_assert_int_eq(status.st_mode & 0777, 0555);
    ck_assert(!sl_model_exists(path, ".sluice/staging"));
    ck_assert(!sl_model_exists(path, ".sluice/commit"));
    json_t *manifest = sl_model_manifest(path);
    ck_assert_uint_eq(json_array_size(json_object_get(manifest, "files")), 4);
    json_decref(manifest);
    version_release(&version);
}

SL_TEST(touched_files_are_not_current)
{
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    char name[512];
    version_make(&version, old_names, "old");
    ck_assert_int_eq(publish_version(&version, "old", &err), 0);
    snprintf(name, sizeof(name), "%s/both/x", path);
    struct timespec times[2] = {{1, 0}, {1, 0}};
    ck_assert_int_eq(utimensat(AT_FDCWD, name, times, 0), 0);
    ck_assert(!is_current(&version));
    version_release(&version);
}

/* Exits before step `die_at`. */
static unsigned steps, die_at;
static void count_step(const char *what, const char *name)
{
    (void)what, (void)name;
    if (++steps == die_at)
        _exit(99);
}

/* Exits before this one. */
static const char *stop_what, *stop_name;
static void stop_there(const char *what, const char *name)
{
    if (strcmp(what, stop_what) == 0 && strcmp(name, stop_name) == 0)
        _exit(0);
}

static void check_consistent(const struct version *old, const struct version *new)
{
    bool ready = sl_model_exists(path, ".sluice/ready");
    unsigned olds = 0, news = 0;
    for (size_t i = 0; old_names[i]; i++)
        olds += (unsigned)sl_model_same(path, old_names[i], "old", 3);
    for (size_t i = 0; new_names[i]; i++)
        news += (unsigned)sl_model_same(path, new_names[i], "newer", 5);
    ck_assert_msg(!ready || olds == 4 || news == 4, "ready with %u old and %u new files", olds,
                  news);
    bool is_new = is_current(new); /* completes what was begun */
    ck_assert(is_new || is_current(old));
    ck_assert(sl_model_exists(path, ".sluice/ready"));
    for (size_t i = 0; new_names[i]; i++)
        ck_assert_int_eq(sl_model_same(path, new_names[i], "newer", 5), is_new);
    for (size_t i = 0; old_names[i]; i++)
        ck_assert_int_eq(sl_model_same(path, old_names[i], "old", 3), !is_new);
    ck_assert_int_eq(sl_model_exists(path, "old"), !is_new);
}

SL_TEST(a_kill_at_any_step_leaves_old_or_new)
{
    struct version old, new;
    struct sl_err err = SL_ERR_INIT;
    unsigned completed = 0;
    version_make(&old, old_names, "old");
    version_make(&new, new_names, "newer");
    for (unsigned at = 1; at < 40; at++) {
        ck_assert_msg(publish_version(&old, "old", &err) == 0, "%s", err.message);
        pid_t child = fork();
        if (child == 0) {
            die_at = at;
            publish_before_steps(count_step);
            _exit(publish_version(&new, "newer", &err) == 0 ? 0 : 1);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != 1);
        check_consistent(&old, &new);
        completed += WEXITSTATUS(status) == 0;
    }
    ck_assert_uint_gt(completed, 5); /* the loop reached the end of a commit */
    ck_assert_uint_lt(completed, 25);
    version_release(&old);
    version_release(&new);
}

static const char *const first_names[] = {"a", "b", NULL}, *const next_names[] = {"a", "c", NULL};

/* Both files are those of the old version, one of them under another name. */
static int publish_links(const struct version *version)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_publish *publish = open_publish();
    ck_assert_int_eq(sl_publish_discard(publish, false, NULL), 0);
    int staging = sl_publish_staging(publish, NULL);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(linkat(publish->root_fd, first_names[i], staging, next_names[i], 0), 0);
    int done =
        sl_publish_commit(publish, version->plan, &version->specs.items[0], NULL, NULL, &err);
    sl_publish_free(publish);
    return done;
}

SL_TEST(a_kill_at_any_step_leaves_old_or_new_where_files_are_linked)
{
    struct version old, new;
    struct sl_err err = SL_ERR_INIT;
    unsigned completed = 0;
    version_make(&old, first_names, "old");
    version_make(&new, next_names, "old");
    for (unsigned at = 1; at < 30; at++) {
        ck_assert_int_eq(publish_version(&old, "old", &err), 0);
        pid_t child = fork();
        if (child == 0) {
            die_at = at;
            publish_before_steps(count_step);
            _exit(publish_links(&new) == 0 ? 0 : 1);
        }
        int status;
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) != 1);
        bool is_new = is_current(&new); /* completes what was begun */
        ck_assert(is_new || is_current(&old));
        ck_assert(sl_model_same(path, "a", "old", 3));
        ck_assert_int_eq(sl_model_same(path, "b", "old", 3), !is_new);
        ck_assert_int_eq(sl_model_same(path, "c", "old", 3), is_new);
        completed += WEXITSTATUS(status) == 0;
    }
    ck_assert_uint_gt(completed, 5);
    ck_assert_uint_lt(completed, 20);
    version_release(&old);
    version_release(&new);
}

SL_TEST(what_vanished_from_a_marked_commit_is_loaded_again)
{
    struct version old, new;
    struct sl_err err = SL_ERR_INIT;
    version_make(&old, old_names, "old");
    version_make(&new, new_names, "newer");
    ck_assert_int_eq(publish_version(&old, "old", &err), 0);
    pid_t child = fork();
    if (child == 0) {
        stop_what = "remove"; /* after the marker */
        stop_name = SL_READY;
        publish_before_steps(stop_there);
        publish_version(&new, "newer", &err);
        _exit(1);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    int state = open(path, O_RDONLY | O_DIRECTORY);
    ck_assert(sl_model_exists(path, ".sluice/commit"));
    ck_assert_int_eq(sl_tree_remove(state, ".sluice/staging"), 0);
    close(state);
    ck_assert(!is_current(&new));
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    ck_assert_int_eq(publish_version(&new, "newer", &err), 0);
    ck_assert(is_current(&new));
    version_release(&old);
    version_release(&new);
}

SL_TEST(links_are_not_followed)
{
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    char elsewhere[512], name[512];
    snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", scratch);
    ck_assert_int_eq(mkdir(elsewhere, 0755), 0);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    snprintf(name, sizeof(name), "%s/both", path);
    ck_assert_int_eq(symlink(elsewhere, name), 0);
    version_make(&version, old_names, "old");
    ck_assert_int_eq(publish_version(&version, "old", &err), -1);
    ck_assert_msg(err.kind == SL_E_NO_SPACE && strstr(err.message, "both/x"), "%s", err.message);
    ck_assert(!sl_model_exists(elsewhere, "x"));
    ck_assert(!sl_model_exists(path, ".sluice/commit")); /* refused before the marker */
    ck_assert_int_eq(unlink(name), 0);
    ck_assert_int_eq(publish_version(&version, "old", &err), 0);

    char other[300];
    snprintf(other, sizeof(other), "%s/other", scratch);
    snprintf(name, sizeof(name), "%s/.sluice", other);
    ck_assert_int_eq(mkdir(other, 0755), 0);
    ck_assert_int_eq(symlink(elsewhere, name), 0);
    ck_assert_ptr_null(sl_publish_open(other, NULL, NULL, NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);

    snprintf(name, sizeof(name), "%s/link", scratch); /* PATH itself may be one */
    ck_assert_int_eq(symlink(path, name), 0);
    struct sl_publish *publish = sl_publish_open(name, NULL, NULL, NULL, &err);
    ck_assert_ptr_nonnull(publish);
    bool current = false;
    ck_assert_int_eq(sl_publish_is_current(publish, version.plan, &current, NULL), 0);
    ck_assert(current);
    sl_publish_free(publish);
    version_release(&version);
}

SL_TEST(a_folder_of_somebody_else_in_the_way_leaves_the_old_version)
{
    struct version old, new;
    struct sl_err err = SL_ERR_INIT;
    char folder[512], mine[600];
    version_make(&old, old_names, "old");
    ck_assert_int_eq(publish_version(&old, "old", &err), 0);
    snprintf(folder, sizeof(folder), "%s/new/file", path);
    snprintf(mine, sizeof(mine), "%s/new", path);
    ck_assert_int_eq(mkdir(mine, 0755), 0);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    version_make(&new, new_names, "new");
    ck_assert_int_eq(publish_version(&new, "new", &err), -1);
    ck_assert_msg(err.kind == SL_E_NO_SPACE && strstr(err.message, "new/file"), "%s", err.message);
    ck_assert(is_current(&old));
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(publish_version(&new, "new", &err), 0);
    ck_assert(is_current(&new));
    version_release(&new);
    version_release(&old);
}

SL_TEST(a_file_takes_the_place_of_an_old_folder_unless_others_live_there)
{
    static const char *const deep[] = {"turn/now/folder", "turn/x", NULL}, *const flat[] = {"turn",
                                                                                            NULL};
    struct version old, new;
    struct sl_err err = SL_ERR_INIT;
    char mine[512];
    version_make(&old, deep, "old");
    ck_assert_int_eq(publish_version(&old, "old", &err), 0);
    snprintf(mine, sizeof(mine), "%s/turn/now", path);
    ck_assert_int_eq(chmod(mine, 0755), 0);
    snprintf(mine, sizeof(mine), "%s/turn/now/mine", path);
    close(open(mine, O_WRONLY | O_CREAT, 0600));
    version_make(&new, flat, "new");
    ck_assert_int_eq(publish_version(&new, "new", &err), -1);
    ck_assert(is_current(&old));
    ck_assert_int_eq(unlink(mine), 0);
    ck_assert_msg(publish_version(&new, "new", &err) == 0, "%s", err.message);
    ck_assert(is_current(&new));
    version_release(&new);
    version_release(&old);
}

enum { MANY = 20000 };

/* A version of that many files, as its manifest has it: turn/00000 and so on, or, if flat, the same
 * without the folder, and a file zz. Returns what it takes to read it. */
static uint64_t write_many(struct sl_publish *publish, bool flat)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_published read;
    sl_autobuf text = SL_BUF_INIT(8 << 20);
    sl_buf_text(&text, "{\"identity\":\"x\",\"files\":[", &err);
    for (unsigned i = 0; i <= MANY; i++) {
        char name[32];
        const char *leaf;
        snprintf(name, sizeof(name), i == MANY ? "zz" : flat ? "%05u" : "turn/%05u", i);
        int folder = sl_tree_parent(publish->root_fd, name, true, &leaf);
        close(openat(folder, leaf, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        close(folder);
        sl_buf_printf(&text, &err, "%s{\"name\":\"%s\",\"bytes\":0,\"crc32c\":\"00000000\"}",
                      i ? "," : "", name);
    }
    ck_assert_int_eq(sl_buf_text(&text, "]}", &err), 0);
    ck_assert_int_eq(sl_tree_write(publish->state_fd, SL_MANIFEST, text.data, text.used, &err), 0);
    struct sl_cpu_time before = sl_cpu_time();
    ck_assert_int_eq(sl_published_read(publish->state_fd, SL_MANIFEST, &read, &err), 0);
    sl_published_release(&read);
    return sl_cpu_time_between(before, sl_cpu_time()).used_ns;
}

/* A folder becomes a file; a file becomes a folder of folders. What grows with the square takes two
 * seconds and more, so one is left for what a busy machine counts to us. */
SL_TEST_LOOP(the_work_on_what_is_in_the_way_grows_with_the_names_alone, 0, 2)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_plan plan = {.file_count = _i ? MANY : 1};
    plan.files = calloc(MANY, sizeof(*plan.files));
    ck_assert_ptr_nonnull(plan.files);
    for (unsigned i = 0; i < plan.file_count; i++)
        plan.files[i].name = _i ? sl_asprintf(&err, "zz/%05u/x", i) : sl_strdup("turn", &err);
    struct sl_publish *publish = open_publish();
    uint64_t read_ns = write_many(publish, _i);
    struct sl_cpu_time before = sl_cpu_time();
    ck_assert_msg(sl_publish_look_ahead(publish, &plan, &err) == 0, "%s", err.message);
    uint64_t looked_ns = sl_cpu_time_between(before, sl_cpu_time()).used_ns;
    ck_assert_msg(looked_ns < 20 * read_ns + SL_NS_PER_S, "%u ms to read the names, %u ms to look",
                  (unsigned)(read_ns / SL_NS_PER_MS), (unsigned)(looked_ns / SL_NS_PER_MS));
    sl_publish_free(publish);
    for (unsigned i = 0; i < plan.file_count; i++)
        free((void *)(uintptr_t)plan.files[i].name);
    free(plan.files);
}

enum { OBJECTS = 100000 }; /* of one load, at most */

static uint64_t write_manifest(const struct sl_plan *plan, const struct version *version)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_published published = {.identity = "x"};
    struct sl_json json;
    sl_json_init(&json, SL_MANIFEST_BYTES_MAX);
    struct sl_cpu_time before = sl_cpu_time();
    ck_assert_msg(sl_manifest_write(&json, plan, &version->specs.items[0], &published, &err) == 0,
                  "%s", err.message);
    uint64_t used_ns = sl_cpu_time_between(before, sl_cpu_time()).used_ns;
    ck_assert_int_eq(strstr(sl_buf_string(&json.buf), "sha256") != NULL, plan->check_count > 0);
    sl_json_release(&json);
    return used_ns;
}

SL_TEST(the_work_on_hashes_of_objects_grows_with_the_objects_alone)
{
    struct version version;
    version_make(&version, old_names, "old");
    struct sl_plan plan = *version.plan;
    plan.sources = calloc(OBJECTS, sizeof(*plan.sources));
    plan.checks = calloc(OBJECTS, sizeof(*plan.checks));
    ck_assert(plan.sources && plan.checks);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        plan.sources[i] = version.plan->sources[0];
        plan.checks[i] =
            (struct sl_check){.given = true, .kind = SL_HASH_SHA256, .source = i, .end = 1};
    }
    plan.source_count = OBJECTS;
    plan.check_count = 0;
    uint64_t without_ns = write_manifest(&plan, &version);
    plan.check_count = OBJECTS;
    uint64_t with_ns = write_manifest(&plan, &version);
    ck_assert_msg(with_ns < 20 * without_ns + SL_NS_PER_S, "%u ms without hashes, %u ms with them",
                  (unsigned)(without_ns / SL_NS_PER_MS), (unsigned)(with_ns / SL_NS_PER_MS));
    free(plan.sources);
    free(plan.checks);
    version_release(&version);
}

/* 16 MiB of digits each, and behind them a short one: small ranges of large models must neither
 * fail a load at its end nor fill its memory. */
SL_TEST(hashes_of_ranges_that_are_too_many_are_left_out)
{
    enum { FILES = 3 };
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    version_make(&version, old_names, "old");
    struct sl_sidecar sidecars[FILES], *rows[FILES];
    struct sl_plan plan = *version.plan;
    struct sl_plan_own own = *version.plan->own;
    struct sl_plan_file files[FILES];
    struct sl_plan_source sources[FILES];
    struct sl_published_file written[FILES];
    struct sl_sidecar_range *ranges = calloc(SL_SIDECAR_RANGES_MAX, sizeof(*ranges));
    ck_assert_ptr_nonnull(ranges);
    for (uint32_t i = 0; i < FILES; i++) {
        sidecars[i] = (struct sl_sidecar){
            .bytes = 1, .ranges = ranges, .range_count = i == 2 ? 1 : SL_SIDECAR_RANGES_MAX};
        rows[i] = &sidecars[i];
        files[i] = version.plan->files[0];
        files[i].bytes = 1;
        sources[i] = version.plan->sources[0];
        written[i] = (struct sl_published_file){.name = "f"};
    }
    own.sidecars = rows;
    plan.own = &own;
    plan.files = files;
    plan.sources = sources;
    plan.file_count = plan.source_count = FILES;
    struct sl_published published = {.identity = "x", .files = written, .count = FILES};
    struct sl_json json;
    sl_json_init(&json, SL_MANIFEST_BYTES_MAX);
    ck_assert_msg(sl_manifest_write(&json, &plan, &version.specs.items[0], &published, &err) == 0,
                  "%s", err.message);
    unsigned with = 0;
    for (const char *at = sl_buf_string(&json.buf); (at = strstr(at, "\"range_sha256\"")); at++)
        with++;
    ck_assert_uint_eq(with, 2);
    ck_assert_uint_lt(json.buf.used, SL_MANIFEST_RANGES_END);
    sl_json_release(&json);
    free(ranges);
    version_release(&version);
}

static void note_waiting(void *arg)
{
    sl_cancel_raise(arg, SIGTERM);
}

SL_TEST(a_second_load_waits_and_can_be_canceled)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    struct sl_publish *first = open_publish();
    ck_assert_ptr_null(sl_publish_open(path, cancel, note_waiting, cancel, &err));
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_publish_free(first);
    sl_publish_free(open_publish());
    sl_cancel_free(cancel);
}

static bool parent_goes; /* another load takes it away once, just before a folder is made in it */

int __real_mkdir(const char *name, mode_t mode);
int __wrap_mkdir(const char *name, mode_t mode);

int __wrap_mkdir(const char *name, mode_t mode)
{
    if (parent_goes && strcmp(name, path) == 0) {
        parent_goes = false;
        ck_assert_int_eq(rmdir(scratch), 0);
    }
    return __real_mkdir(name, mode);
}

SL_TEST(a_parent_that_another_load_takes_away_is_made_again)
{
    parent_goes = true;
    sl_publish_free(open_publish());
    ck_assert(!parent_goes);
    ck_assert_int_eq(access(scratch, F_OK),
                     -1); /* it was made for this load, and brought nothing */
    ck_assert_int_eq(mkdir(scratch, 0700), 0);
}

SL_TEST(a_path_through_a_link_to_nothing_is_refused)
{
    struct sl_err err = SL_ERR_INIT;
    char below[SL_SCRATCH_PATH_BYTES + 32];
    ck_assert_int_eq(symlink("nowhere", path), 0);
    snprintf(below, sizeof(below), "%s/a/b", path);
    ck_assert_ptr_null(sl_publish_open(below, NULL, NULL, NULL, &err));
    ck_assert_msg(strstr(err.message, "make directory"), "%s", err.message);
}

SL_TEST(withdrawing_removes_what_was_published_and_nothing_else)
{
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    char name[512];
    version_make(&version, old_names, "old");
    ck_assert_int_eq(publish_version(&version, "old", &err), 0);
    snprintf(name, sizeof(name), "%s/mine", path);
    close(open(name, O_WRONLY | O_CREAT, 0600));
    struct sl_publish *publish = open_publish();
    ck_assert_int_eq(sl_publish_withdraw(publish, &err), 0);
    ck_assert_int_eq(sl_publish_withdraw(publish, &err), 0);
    sl_publish_free(publish);
    ck_assert(sl_model_exists(path, "mine"));
    ck_assert(!sl_model_exists(path, "a"));
    ck_assert(!sl_model_exists(path, "old"));
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    version_release(&version);
}

static void count_files(const char *name, bool good, void *arg)
{
    (void)name;
    ((unsigned *)arg)[good]++;
}

static enum { LOCKS_WORK, LOCKS_FOR_ALL, NO_LOCKS } locks;

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
    if (locks == LOCKS_WORK)
        return __real_flock(fd, operation);
    errno = ENOSYS;
    return locks == NO_LOCKS ? -1 : 0;
}

/* As on Lustre without flock. */
SL_TEST(a_file_system_without_locks_is_warned_of)
{
    for (locks = LOCKS_WORK; locks <= NO_LOCKS; locks++) {
        struct version version;
        struct sl_err err = SL_ERR_INIT;
        char log[512], text[512] = "";
        snprintf(log, sizeof(log), "%s.log", path);
        int kept = dup(STDERR_FILENO), to = open(log, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        ck_assert(kept >= 0 && to >= 0 && dup2(to, STDERR_FILENO) >= 0);
        version_make(&version, old_names, "old");
        int done = publish_version(&version, "old", &err);
        dup2(kept, STDERR_FILENO);
        ck_assert_msg(done == 0, "%s", err.message);
        ck_assert_int_ge(pread(to, text, sizeof(text) - 1, 0), 0);
        ck_assert_int_eq(strstr(text, "locks have no effect") != NULL, locks != LOCKS_WORK);
        version_release(&version);
        close(kept);
        close(to);
        unlink(log);
    }
    locks = LOCKS_WORK;
}

SL_TEST(verify_finds_a_changed_byte)
{
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    unsigned counts[2] = {0};
    char name[512];
    version_make(&version, old_names, "old");
    ck_assert_int_eq(sl_publish_verify(path, count_files, counts, NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    ck_assert_int_eq(publish_version(&version, "old", &err), 0);
    ck_assert_int_eq(sl_publish_verify(path, count_files, counts, NULL, &err), 0);
    ck_assert(counts[0] == 0 && counts[1] == 4);
    snprintf(name, sizeof(name), "%s/both/x", path);
    chmod(name, 0644);
    int fd = open(name, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "0", 1, 0), 1);
    close(fd);
    ck_assert_int_eq(sl_publish_verify(path, count_files, counts, NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_ptr_nonnull(strstr(err.message, "both/x"));
    ck_assert(counts[0] == 1 && counts[1] == 7);
    version_release(&version);
}

static void *publish_later(void *arg)
{
    struct sl_err err = SL_ERR_INIT;
    return publish_version(arg, "old", &err) == 0 ? arg : NULL;
}

static void wait_for_a_second(void *ignored)
{
    struct sl_err err = SL_ERR_INIT;
    (void)ignored;
    ck_assert_int_eq(sl_publish_wait(path, 1, NULL, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_TIMEOUT);
}

static void expect_to_wait_in_vain(void)
{
    struct fake_clock_work work;
    fake_clock_hold();
    fake_clock_begin(&work, wait_for_a_second, NULL);
    fake_clock_turn_until(&work.done, 100 * SL_NS_PER_MS, 1);
    fake_clock_end(&work);
    fake_clock_release();
    ck_assert_uint_ge(work.took_ns, SL_NS_PER_S);
}

SL_TEST(waiting_ends_with_ready_time_or_cancel)
{
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    expect_to_wait_in_vain();
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    sl_cancel_raise(cancel, 0);
    ck_assert_int_eq(sl_publish_wait(path, 0, cancel, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    sl_cancel_free(cancel);
    version_make(&version, old_names, "old");
    pthread_t thread;
    ck_assert_int_eq(sl_thread_start(&thread, "publish", publish_later, &version, NULL), 0);
    ck_assert_int_eq(sl_publish_wait(path, 30, NULL, &err), 0);
    void *result;
    pthread_join(thread, &result);
    ck_assert_ptr_nonnull(result);
    version_release(&version);
}

/* Returns at once, or not at all: it is canceled before it begins. */
static bool comes_at_once(const char *than, char identity[65])
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_cancel *cancel = sl_cancel_new(NULL);
    sl_cancel_raise(cancel, 0);
    int done = sl_publish_wait_next(path, than, 0, cancel, identity, &err);
    sl_cancel_free(cancel);
    ck_assert(done == 0 || err.kind == SL_E_CANCELED);
    return done == 0;
}

SL_TEST(waiting_for_another_version_ends_with_another_one)
{
    struct version version, next;
    struct sl_err err = SL_ERR_INIT;
    char now[65], wanted[65], came[65], begin[13], none[65];
    snprintf(none, sizeof(none), "%064d", 0);
    ck_assert(!comes_at_once("", came));
    version_make(&version, old_names, "old");
    ck_assert_int_eq(publish_version(&version, "old", &err), 0);
    sl_publish_now(path, now);
    sl_hex(version.plan->identity, 32, wanted);
    ck_assert_str_eq(now, wanted);
    snprintf(begin, sizeof(begin), "%.12s", now);
    ck_assert(!comes_at_once(now, came) && !comes_at_once(begin, came));
    ck_assert(comes_at_once("", came) && strcmp(came, now) == 0);
    ck_assert(comes_at_once(none, came) && strcmp(came, now) == 0);
    version_make(&next, new_names, "old");
    pthread_t thread;
    ck_assert_int_eq(sl_thread_start(&thread, "publish", publish_later, &next, NULL), 0);
    ck_assert_int_eq(sl_publish_wait_next(path, now, 30, NULL, came, &err), 0);
    void *result;
    pthread_join(thread, &result);
    ck_assert_ptr_nonnull(result);
    sl_hex(next.plan->identity, 32, wanted);
    ck_assert_str_eq(came, wanted);
    version_release(&version);
    version_release(&next);
}

SL_TEST(hostile_manifests_are_refused)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_published published = {0};
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"identity\":\"x\",\"files\":[{\"name\":\"../x\",\"bytes\":1,\"crc32c\":\"00000000\"}]}",
        "{\"identity\":\"x\",\"files\":[{\"name\":\"x\",\"bytes\":-1,\"crc32c\":\"00000000\"}]}",
        "{\"identity\":\"x\",\"files\":[{\"name\":\"x\",\"bytes\":1,\"crc32c\":\"0000000\"}]}",
        "{\"identity\":\"x\",\"files\":[{\"name\":\".sluice/"
        "lock\",\"bytes\":1,\"crc32c\":\"00000000\"}]}"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        ck_assert_int_eq(
            sl_tree_write(scratch_fd, "manifest.json", texts[i], strlen(texts[i]), &err), 0);
        ck_assert_msg(sl_published_read(scratch_fd, "manifest.json", &published, &err) == -1, "%s",
                      texts[i]);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
    }
}

SL_TEST(every_failing_allocation_leaves_old_or_new)
{
    struct version old, new;
    struct sl_err err = SL_ERR_INIT;
    version_make(&old, old_names, "old");
    version_make(&new, new_names, "newer");
    unsigned succeeded = 0;
    for (unsigned nth = 1; nth < 500 && succeeded < 2; nth++) {
        ck_assert_int_eq(publish_version(&old, "old", &err), 0);
        struct sl_publish *publish = open_publish();
        stage(publish, new.plan, "newer");
        sl_alloc_fail_at(nth);
        int done = sl_publish_commit(publish, new.plan, &new.specs.items[0], NULL, NULL, &err);
        sl_alloc_fail_at(0);
        sl_publish_free(publish);
        ck_assert_msg(done == 0 || err.kind == SL_E_NO_SPACE, "%u: %s", nth, err.message);
        succeeded += done == 0;
        check_consistent(&old, &new);
    }
    ck_assert_uint_eq(succeeded, 2);
    version_release(&old);
    version_release(&new);
}

/* ---- another boot ---------------------------------------------------------------------------- */

static void overwrite(const char *name, const char *content)
{
    struct stat status;
    struct timespec times[2];
    const char *leaf;
    int root = open(path, O_RDONLY | O_DIRECTORY);
    int folder = sl_tree_parent(root, name, false, &leaf);
    ck_assert_int_eq(fstatat(folder, leaf, &status, 0), 0);
    ck_assert_int_eq(fchmodat(folder, leaf, 0644, 0), 0);
    int fd = openat(folder, leaf, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, content, strlen(content), 0), (ssize_t)strlen(content));
    times[0] = status.st_atim;
    times[1] = status.st_mtim;
    ck_assert_int_eq(futimens(fd, times), 0);
    close(fd);
    close(folder);
    close(root);
}

SL_TEST(what_another_boot_left_on_a_disk_is_read_before_it_is_believed)
{
    static const char *const names[] = {"a", "b", NULL};
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    version_make(&version, names, "content");
    publish_pretend_boot("one", true);
    ck_assert_int_eq(publish_version(&version, "content", &err), 0);
    overwrite("b", "\0ontent"); /* as a crash leaves it: nothing that stat tells is different */
    overwrite("b", "zontent");
    ck_assert(is_current(&version)); /* the same boot: times and sizes are enough */
    publish_pretend_boot("two", false);
    ck_assert(is_current(&version)); /* memory does not outlive a boot */
    publish_pretend_boot("two", true);
    ck_assert(!is_current(&version));
    overwrite("b", "content");
    ck_assert(is_current(&version)); /* read, and noted for this boot */
    overwrite("b", "zontent");
    ck_assert(is_current(&version));
    publish_pretend_boot("", true); /* not known: read each time */
    ck_assert(!is_current(&version));
    expect_to_wait_in_vain();
    overwrite("b", "content");
    ck_assert_int_eq(sl_publish_wait(path, 1, NULL, &err), 0);
    version_release(&version);
}

/* So whoever published it loads it again, as if it were wrong, and what follows is looked at. */
SL_TEST(a_published_file_that_cannot_be_read_is_damaged)
{
    static const char *const names[] = {"a", NULL};
    const struct sl_published_file file = {.name = "a", .bytes = 7};
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    bool good = true;
    version_make(&version, names, "content");
    ck_assert_int_eq(publish_version(&version, "content", &err), 0);
    sl_autoclose int root = open(path, O_RDONLY | O_DIRECTORY);
    void *nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_int_eq(sl_published_hash(root, &file, nowhere, NULL, &good, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert(!good);
    munmap(nowhere, 4096);
    version_release(&version);
}

SL_TEST(a_commit_of_another_boot_is_completed_only_if_its_files_are_whole)
{
    static const char *const names[] = {"a", "b", NULL};
    static const char *const stops[][2] = {{"remove", SL_READY}, {"rename", SL_MANIFEST}};
    for (size_t s = 0; s < SL_COUNT(stops); s++) {
        for (int torn = 0; torn < 2; torn++) {
            struct version version;
            struct sl_err err = SL_ERR_INIT;
            version_make(&version, names, "content");
            publish_pretend_boot("one", true);
            pid_t child = fork();
            if (child == 0) {
                stop_what = stops[s][0];
                stop_name = stops[s][1];
                publish_before_steps(stop_there);
                publish_version(&version, "content", &err);
                _exit(1);
            }
            int status;
            ck_assert_int_eq(waitpid(child, &status, 0), child);
            ck_assert_int_eq(WEXITSTATUS(status), 0);
            if (torn)
                overwrite(s == 0 ? ".sluice/staging/b" : "b", "zontent");
            publish_pretend_boot("two", true);
            ck_assert_int_eq(is_current(&version), !torn);
            version_release(&version);
            publish_pretend_boot(NULL, false);
            int parent = open(scratch, O_RDONLY | O_DIRECTORY);
            ck_assert_int_eq(sl_tree_remove(parent, "model"), 0);
            close(parent);
        }
    }
}

SL_CASE(.setup = setup, .teardown = teardown)

/* Which of two files the next version takes over: bit by bit. */
static unsigned inherited(const struct version *version)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_publish *publish = open_publish();
    const struct sl_plan *plan = version->plan;
    bool resumed;
    uint64_t linked;
    struct sl_journal *journal =
        sl_journal_open(sl_publish_state(publish), SL_JOURNAL_NAME, plan->identity, &resumed, &err);
    struct sl_sink_file *files = sl_plan_sink_files(plan, &err);
    struct sl_inheritance *inheritance = sl_inherit(
        publish, publish, plan, &version->specs.items[0].sink.tmpfs, journal, files, &linked, &err);
    ck_assert_msg(inheritance != NULL, "%s", err.message);
    unsigned which = (unsigned)files[0].inherited | (unsigned)files[1].inherited << 1;
    ck_assert_uint_eq(linked, 3 * (which & 1) + 3 * (which >> 1));
    sl_inheritance_free(inheritance);
    free(files);
    sl_journal_free(journal);
    ck_assert_int_eq(sl_publish_discard(publish, false, &err), 0);
    sl_publish_free(publish);
    return which;
}

SL_TEST(what_another_boot_left_on_a_disk_is_read_before_it_is_taken_over)
{
    struct version version;
    struct sl_err err = SL_ERR_INIT;
    struct stat status;
    char name[512];
    version_make(&version, first_names, "old");
    publish_pretend_boot("one", true);
    ck_assert_int_eq(publish_version(&version, "old", &err), 0);
    ck_assert_uint_eq(inherited(&version), 3);
    snprintf(name, sizeof(name), "%s/a", path);
    ck_assert_int_eq(stat(name, &status), 0);
    ck_assert_int_eq(chmod(name, 0644), 0);
    int fd = open(name, O_WRONLY);
    ck_assert_int_eq(pwrite(fd, "0", 1, 0), 1);
    ck_assert_int_eq(futimens(fd, (struct timespec[]){status.st_mtim, status.st_mtim}), 0);
    close(fd);
    ck_assert_int_eq(chmod(name, 0444), 0);
    publish_pretend_boot("two", true);
    ck_assert_uint_eq(inherited(&version), 2);
    version_release(&version);
}

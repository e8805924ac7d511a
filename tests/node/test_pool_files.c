/* Models of the pool in files of a tmpfs: there for the next daemon, and not believed if they are
 * not the files that were kept. */
#include "pool_files.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fill.h"
#include "memory_store.h"
#include "model_maker.h"
#include "node_case.h"
#include "registry_settle.h"
#include "skip.h"
#include "tree.h"

enum { PATH_BYTES = SL_SCRATCH_PATH_BYTES + 128, TMPFS = 0x01021994 };

static struct node_case c;
static char keys[PATH_BYTES];
static int slabs_fd; /* of the pool's directory */

#define MODEL NODE_CASE_MODEL("m", "object.safetensors")

static void setup(void)
{
    node_case_init(&c);
    snprintf(keys, sizeof(keys), ", directory: %s/slabs", c.path);
    node_case_put(&c, "object.safetensors", 1000);
    ck_assert_int_eq(mkdirat(c.scratch, "slabs", 0755), 0);
    slabs_fd = openat(c.scratch, "slabs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(slabs_fd, 0);
}

static void teardown(void)
{
    node_case_release(&c);
    close(slabs_fd);
}

/* The folders of models; the name of one of them. */
static unsigned folders(char name[SL_POOL_ID_TEXT])
{
    DIR *folder = fdopendir(openat(slabs_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    unsigned count = 0;
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strlen(entry->d_name) != SL_POOL_ID_TEXT - 1)
            continue;
        memcpy(name, entry->d_name, SL_POOL_ID_TEXT);
        count++;
    }
    closedir(folder);
    return count;
}

static uint64_t load_and_end(void)
{
    node_case_open(&c, keys, MODEL, NULL);
    uint64_t inode = node_case_inode(&c, "m", NULL);
    ck_assert_msg(inode != 0, "%s", c.error.message);
    node_case_end(&c);
    return inode;
}

SL_TEST(the_next_daemon_has_the_same_files)
{
    char id[SL_POOL_ID_TEXT];
    uint64_t inode = load_and_end();
    ck_assert_uint_eq(folders(id), 1);
    for (int i = 0; i < 3; i++) {
        node_case_open(&c, keys, MODEL, NULL);
        ck_assert_uint_eq(node_case_inode(&c, "m", NULL), inode);
        ck_assert_uint_eq(node_case_counts(&c).loads, 0);
        ck_assert_uint_gt(node_case_counts(&c).held_bytes, 8000);
        struct sluice_model *model = node_case_attach(&c, "m", NULL);
        struct sluice_tensor tensor = {.size = sizeof(tensor)};
        ck_assert_int_eq(sluice_find(model, "b", &tensor, &c.error), 0);
        ck_assert_int_eq(sluice_wait(model, tensor.number, 0, -1, &c.error), 0);
        ck_assert_uint_eq(tensor.bytes, 4000);
        sluice_detach(model);
        node_case_end(&c);
        if (i == 1)
            sl_memory_clear(); /* the source is gone */
    }
}

SL_TEST(what_is_evicted_is_gone_from_the_directory)
{
    char id[SL_POOL_ID_TEXT];
    load_and_end();
    node_case_open(&c, keys, "", NULL);
    ck_assert_uint_eq(folders(id), 1);
    ck_assert_uint_eq(node_case_inode(&c, "m", NULL), 0); /* nobody defined it */
    sl_registry_set_budget(c.node->registry, 1000);
    sl_registry_settle(c.node->registry);
    ck_assert_uint_eq(folders(id), 0);
}

SL_TEST(a_changed_source_is_loaded_beside_what_was_kept)
{
    char id[SL_POOL_ID_TEXT];
    uint64_t inode = load_and_end();
    node_case_put(&c, "object.safetensors", 2000);
    node_case_open(&c, keys, MODEL, NULL);
    uint64_t other = node_case_inode(&c, "m", NULL);
    ck_assert_uint_ne(other, 0);
    ck_assert_uint_ne(other, inode);
    ck_assert_uint_eq(folders(id), 2);
}

SL_TEST(one_directory_has_one_daemon)
{
    struct node_case second = c;
    struct sl_err err = SL_ERR_INIT;
    node_case_open(&c, keys, MODEL, NULL);
    second.scratch = sl_scratch_open(second.path);
    second.node = NULL;
    ck_assert_int_eq(node_case_try(&second, keys, "", NULL, &err), -1);
    ck_assert_msg(strstr(err.message, "another node daemon has the directory") != NULL, "%s",
                  err.message);
    sl_scratch_close(second.scratch, second.path);
}

SL_TEST(deposits_are_memfds_all_the_same)
{
    char id[SL_POOL_ID_TEXT];
    node_case_open(&c, keys, MODEL, NULL);
    node_case_deposit(&c, "m", "k", 1000);
    ck_assert_uint_ne(node_case_inode(&c, "m", "k"), 0);
    ck_assert_uint_eq(folders(id), 1);
    node_case_end(&c);
    node_case_open(&c, keys, MODEL, NULL);
    ck_assert_uint_eq(node_case_inode(&c, "m", "k"), 0);
    ck_assert_str_eq(c.error.code, "absent");
}

/* ---- hostile -------------------------------------------------------------------------------- */

static char id[SL_POOL_ID_TEXT];
static int model_fd; /* of its folder */

static void write_to(const char *name, off_t at)
{
    ck_assert_int_eq(fchmodat(model_fd, name, 0600, 0), 0);
    int fd = openat(model_fd, name, O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(pwrite(fd, "x", 1, at), 1);
    close(fd);
    ck_assert_int_eq(fchmodat(model_fd, name, 0400, 0), 0);
}

static void slab_written(void)
{
    write_to("slab-0", 100);
}
static void index_written(void)
{
    write_to("index", 8);
}
static void slab_cut(void)
{
    ck_assert_int_eq(fchmodat(model_fd, "slab-0", 0600, 0), 0);
    int fd = openat(model_fd, "slab-0", O_WRONLY | O_CLOEXEC);
    ck_assert_int_eq(ftruncate(fd, 100), 0);
    close(fd);
}
static void slab_gone(void)
{
    ck_assert_int_eq(unlinkat(model_fd, "slab-0", 0), 0);
}
static void slab_is_a_link(void)
{
    ck_assert_int_eq(renameat(model_fd, "slab-0", model_fd, "moved"), 0);
    ck_assert_int_eq(symlinkat("moved", model_fd, "slab-0"), 0);
}
static void slab_has_another_name_too(void)
{
    ck_assert_int_eq(linkat(model_fd, "slab-0", slabs_fd, "more", 0), 0);
}
static void slab_is_a_pipe(void)
{
    ck_assert_int_eq(unlinkat(model_fd, "slab-0", 0), 0);
    ck_assert_int_eq(mkfifoat(model_fd, "slab-0", 0600), 0);
}
static void manifest_gone(void)
{
    ck_assert_int_eq(unlinkat(model_fd, "manifest.json", 0), 0);
}
static void write_manifest(const char *text)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_tree_write(model_fd, "manifest.json", text, strlen(text), &err), 0);
}
static void manifest_is_no_json(void)
{
    write_manifest("{\"version\": 1, \"files\": [");
}
static void manifest_has_no_files(void)
{
    write_manifest("{\"version\": 1, \"files\": []}");
}
static void manifest_has_other_things(void)
{
    write_manifest("{\"version\": 1, \"files\": [1, null, {\"inode\": \"x\"}]}");
}
static void manifest_is_newer(void)
{
    write_manifest("{\"version\": 2, \"files\": [{}, {}]}");
}
static void folder_has_another_name(void)
{
    char other[SL_POOL_ID_TEXT];
    memcpy(other, id, sizeof(other));
    other[0] = other[0] == 'a' ? 'b' : 'a';
    ck_assert_int_eq(renameat(slabs_fd, id, slabs_fd, other), 0);
}
static void folder_is_a_link(void)
{
    ck_assert_int_eq(renameat(slabs_fd, id, slabs_fd, "moved"), 0);
    ck_assert_int_eq(symlinkat("moved", slabs_fd, id), 0);
}
static void (*const changes[])(void) = {
    slab_written,
    index_written,
    slab_cut,
    slab_gone,
    slab_is_a_link,
    slab_has_another_name_too,
    slab_is_a_pipe,
    manifest_gone,
    manifest_is_no_json,
    manifest_has_no_files,
    manifest_has_other_things,
    manifest_is_newer,
    folder_has_another_name,
    folder_is_a_link,
};

SL_TEST_LOOP(what_is_not_the_kept_file_is_loaded_again, 0, SL_COUNT(changes))
{
    uint64_t inode = load_and_end();
    ck_assert_uint_eq(folders(id), 1);
    model_fd = openat(slabs_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    changes[_i]();
    close(model_fd);
    node_case_open(&c, keys, MODEL, NULL);
    uint64_t other = node_case_inode(&c, "m", NULL);
    ck_assert_msg(other != 0, "%s", c.error.message);
    ck_assert_uint_ne(other, inode);
    ck_assert_uint_eq(node_case_counts(&c).loads, 1);
    ck_assert_uint_eq(folders(id), 1);
}

/* As a kill leaves it: the manifest comes last, so each prefix of it is possible. */
SL_TEST(every_prefix_of_a_manifest_is_refused)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    struct sl_err err = SL_ERR_INIT;
    struct sl_slab_place place;
    load_and_end();
    ck_assert_uint_eq(folders(id), 1);
    model_fd = openat(slabs_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(sl_tree_read(model_fd, "manifest.json", &text, &err), 0);
    close(model_fd);
    sl_slab_place_probe(slabs_fd, &place);
    for (size_t bytes = 0; bytes < text.used; bytes++) {
        ck_assert_int_eq(sl_tree_remove(slabs_fd, id), 0);
        ck_assert_int_eq(mkdirat(slabs_fd, id, 0700), 0);
        model_fd = openat(slabs_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        ck_assert_int_eq(sl_tree_write(model_fd, "manifest.json", text.data, bytes, &err), 0);
        close(model_fd);
        sl_pool_files_scan(&place, NULL, NULL); /* a model would be handed to nobody */
        ck_assert_uint_eq(folders(id), 0);
    }
}

static void found(void *arg, struct sl_pool_model *model)
{
    *(struct sl_pool_model **)arg = model;
}

/* What cannot be looked at now is there for the next daemon. */
SL_TEST(without_memory_what_was_kept_stays)
{
    struct sl_slab_place place;
    struct sl_pool_model *model = NULL;
    load_and_end();
    sl_slab_place_probe(slabs_fd, &place);
    for (unsigned at = 1; !model; at++) {
        sl_alloc_fail_at(at);
        sl_pool_files_scan(&place, found, &model);
        sl_alloc_fail_at(0);
        ck_assert_uint_lt(at, 200);
        ck_assert_uint_eq(folders(id), 1);
    }
    sl_pool_files_drop(slabs_fd, model);
    sl_pool_model_free(model);
    ck_assert_uint_eq(folders(id), 0);
}

SL_TEST(without_descriptors_what_was_kept_stays)
{
    struct sl_slab_place place;
    struct sl_pool_model *model = NULL;
    struct rlimit usual, scarce;
    load_and_end();
    sl_slab_place_probe(slabs_fd, &place);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &usual), 0);
    int lowest = dup(slabs_fd);
    close(lowest);
    for (rlim_t most = (rlim_t)lowest; !model; most++) {
        scarce = (struct rlimit){most, usual.rlim_max};
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &scarce), 0);
        sl_pool_files_scan(&place, found, &model);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &usual), 0);
        ck_assert_uint_lt(most, (rlim_t)lowest + 100);
        ck_assert_uint_eq(folders(id), 1);
    }
    sl_pool_model_free(model);
}

/* A slab gets its name once, so each try needs a new model. */
static struct sl_pool_model *fill(const struct sl_slab_place *place)
{
    struct sl_specs specs;
    struct sl_pool_model *model;
    struct sl_err err = SL_ERR_INIT;
    const struct sl_fill_config config = {.name = "m", .places = place, .place_count = 1};
    sl_model_spec(&specs, "memory://m/object.safetensors", "/t", "");
    ck_assert_msg(sl_fill_run(&specs.items[0], &config, &model, NULL, &err) == 0, "%s",
                  err.message);
    sl_specs_release(&specs);
    return model;
}

SL_TEST(a_failing_keep_leaves_nothing)
{
    struct sl_slab_place place;
    int kept = -1;
    sl_slab_place_probe(slabs_fd, &place);
    for (unsigned at = 1; kept < 0; at++) {
        struct sl_pool_model *model = fill(&place);
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(at);
        kept = sl_pool_files_keep(slabs_fd, model, &err);
        sl_alloc_fail_at(0);
        ck_assert_uint_eq(folders(id), kept == 0);
        ck_assert_uint_lt(at, 200);
        sl_pool_model_free(model);
    }
}

static bool prepare(void)
{
    char path[SL_SCRATCH_PATH_BYTES];
    struct statfs status;
    int scratch = sl_scratch_open(path);
    bool tmpfs = fstatfs(scratch, &status) == 0 && status.f_type == TMPFS;
    sl_scratch_close(scratch, path);
    if (!tmpfs)
        sl_skipped("pool_files", "TMPDIR is not on a tmpfs");
    return tmpfs;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

/*
 * Loads into slabs: every tensor lies where the index says and is what the source holds, each is
 * told when its own bytes are there and checked and not before, and whatever fails leaves nothing.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fill.h"
#include "golden.h"
#include "hash.h"
#include "log.h"
#include "model_maker.h"
#include "pool_index.h"
#include "pool_words.h"
#include "range_server.h"
#include "scratch.h"

enum { SLAB_BYTES = 64 * 1024 };

static struct sl_slab_place place;
static uint8_t *blobs[128]; /* what the memory source serves */
static unsigned blob_count;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    sl_slab_place_probe(-1, &place);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_memory_clear();
    while (blob_count)
        free(blobs[--blob_count]);
}

static unsigned count_fds(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(directory);
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

/* ---- a model that is mapped ------------------------------------------------------------------ */

struct view {
    struct sl_pool_index index;
    const struct sl_wire_page *page;
    const uint8_t *slabs[64];
    size_t slab_count;
};

static const void *map_fd(int fd, size_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    return map;
}

static size_t size_of(int fd)
{
    struct stat status;
    ck_assert_int_eq(fstat(fd, &status), 0);
    return (size_t)status.st_size;
}

static void view_open(const struct sl_pool_model *model, struct view *view)
{
    int fds[66];
    size_t count;
    char why[SL_POOL_WHY_BYTES];
    sl_pool_model_fds(model, NULL, &count);
    ck_assert_uint_le(count, SL_COUNT(fds));
    sl_pool_model_fds(model, fds, &count);
    const void *data = map_fd(fds[0], size_of(fds[0]));
    int good = sl_pool_index_check(data, size_of(fds[0]), &view->index, why);
    ck_assert_msg(good == 0, "%s", why);
    view->page = map_fd(fds[1], size_of(fds[1]));
    ck_assert_uint_eq(view->page->count, view->index.head->tensor_count);
    view->slab_count = count - 2;
    for (size_t i = 0; i < view->slab_count; i++) {
        ck_assert_uint_eq(size_of(fds[2 + i]), view->index.slabs[i].bytes);
        view->slabs[i] = map_fd(fds[2 + i], (size_t)view->index.slabs[i].bytes);
    }
}

static void view_close(struct view *view)
{
    for (size_t i = 0; i < view->slab_count; i++)
        munmap((void *)(uintptr_t)view->slabs[i], (size_t)view->index.slabs[i].bytes);
    munmap((void *)(uintptr_t)view->page, sizeof(*view->page) + 4 * (size_t)view->page->count);
    munmap((void *)(uintptr_t)view->index.data, (size_t)view->index.head->index_bytes);
}

static uint32_t find(const struct view *view, const char *name)
{
    for (uint32_t i = 0; i < view->index.head->tensor_count; i++)
        if (strcmp(sl_pool_index_text(&view->index, sl_pool_index_tensor(&view->index, i)->name_at),
                   name) == 0)
            return i;
    ck_abort_msg("no '%s'", name);
}

static const uint8_t *data_of(const struct view *view, uint32_t number)
{
    const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&view->index, number);
    return tensor->bytes ? view->slabs[tensor->slab] + tensor->offset : NULL;
}

/* ---- loads ----------------------------------------------------------------------------------- */

static void make_spec(struct sl_specs *specs, const char *uri, const char *more)
{
    char text[1024];
    snprintf(text, sizeof(text), "sink: {tmpfs: {path: /t, layout: safetensors}}\n%s", more);
    sl_model_spec(specs, uri, "", text);
}

static struct sl_pool_model *fill_with(const char *uri, const char *more,
                                       struct sl_fill_config *config, struct sl_err *err)
{
    struct sl_specs specs;
    struct sl_pool_model *model = NULL;
    make_spec(&specs, uri, more);
    config->name = "m";
    config->place = &place;
    config->slab_bytes = config->slab_bytes ? config->slab_bytes : SLAB_BYTES;
    if (sl_fill_run(&specs.items[0], config, &model, NULL, err) < 0)
        ck_assert_ptr_null(model);
    sl_specs_release(&specs);
    return model;
}

static struct sl_pool_model *fill(const char *uri, const char *more)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    struct sl_pool_model *model = fill_with(uri, more, &config, &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    return model;
}

static void expect_digest(const uint8_t *data, size_t bytes, const uint8_t digest[32],
                          const char *name)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t found[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(&err);
    ck_assert_ptr_nonnull(sha);
    sl_sha256_update(sha, data, bytes);
    sl_sha256_finish(sha, found);
    ck_assert_msg(memcmp(found, digest, 32) == 0, "tensor '%s' differs", name);
}

/* Everything of the source lies in the pool, ready, and nothing else does. */
static void compare(const char *uri, const char *more, const struct sl_pool_model *model)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    struct sl_source_config config;
    struct view view;
    view_open(model, &view);
    make_spec(&specs, uri, more);
    sl_load_source_config(&specs.items[0], NULL, NULL, &config);
    SL_AUTO(sl_plan) plan = NULL;
    ck_assert_int_eq(sl_plan_make_targets(&specs.items[0], &config, &plan, &err), 0);
    ck_assert_uint_eq(view.index.head->tensor_count, plan->target_count);
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_tensor *from = plan->targets[i].from;
        uint32_t number = find(&view, from->name);
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&view.index, number);
        uint8_t digest[32];
        ck_assert_uint_eq(view.page->words[number], SL_WORD_READY);
        ck_assert_uint_eq(tensor->bytes, from->bytes);
        if (from->meta && from->bytes > 1024 * 1024)
            continue; /* gigabytes of nothing */
        ck_assert_int_eq(sl_tensor_digest(plan->targets[i].index, from, true, digest, &err), 0);
        expect_digest(data_of(&view, number), (size_t)tensor->bytes, digest, from->name);
    }
    ck_assert_uint_eq(view.page->state, SL_WIRE_READY);
    ck_assert_uint_eq(view.page->ready_count, view.page->count);
    view_close(&view);
    sl_plan_free(sl_steal(&plan));
    sl_specs_release(&specs);
}

/* A copy is kept until the test ends. */
static void put(const char *name, const void *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    ck_assert_uint_lt(blob_count, SL_COUNT(blobs));
    if (bytes)
        memcpy(copy, data, bytes);
    blobs[blob_count++] = copy;
    ck_assert_int_eq(sl_memory_put(name, copy, bytes, NULL), 0);
}

/* ---- what lands ------------------------------------------------------------------------------ */

/* `decrypt` for a golden file, or nothing. */
static void make_decrypt(const char *name, const char *directory, char *more, size_t room)
{
    char file[300], path[SL_SCRATCH_PATH_BYTES + 8];
    uint8_t secret[256];
    snprintf(file, sizeof(file), "tensorizer/%s.json", name);
    json_t *sidecar = golden_json(file);
    const json_t *how = json_object_get(sidecar, "encryption");
    const json_t *key = json_object_get(how, "key_hex");
    key = key ? key : json_object_get(how, "derived_key_hex");
    more[0] = 0;
    if (key) {
        size_t bytes = json_string_length(key) / 2;
        ck_assert_int_eq(sl_unhex(json_string_value(key), secret, bytes), 0);
        snprintf(path, sizeof(path), "%s/key", directory);
        FILE *out = fopen(path, "w");
        ck_assert_uint_eq(fwrite(secret, 1, bytes, out), bytes);
        fclose(out);
        chmod(path, 0600);
        snprintf(more, room, "decrypt: {keyFile: \"%s\"}\n", path);
    }
    json_decref(sidecar);
}

static void compare_golden(const char *name, const char *more)
{
    char file[300];
    size_t bytes;
    snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
    uint8_t *golden = golden_read(file, &bytes);
    put("m/any.tensors", golden, bytes);
    free(golden);
    struct sl_pool_model *model = fill("memory://m/any.tensors", more);
    compare("memory://m/any.tensors", more, model);
    sl_pool_model_free(model);
    sl_memory_clear();
}

START_TEST(every_tensor_of_reference_files_lies_in_slabs)
{
    char directory[SL_SCRATCH_PATH_BYTES], more[SL_SCRATCH_PATH_BYTES + 64];
    int scratch = sl_scratch_open(directory);
    json_t *manifest = golden_json("tensorizer/MANIFEST.json");
    const json_t *files = json_object_get(manifest, "files");
    unsigned loaded = 0, encrypted = 0;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(file, "name"));
        if (strcmp(json_string_value(json_object_get(file, "category")), "valid") != 0 ||
            strcmp(name, "v4-meta-0d") == 0) /* no layout but verbatim takes it */
            continue;
        make_decrypt(name, directory, more, sizeof(more));
        compare_golden(name, more);
        encrypted += more[0] != 0;
        strncat(more, "verify: {hashes: all}\n", sizeof(more) - strlen(more) - 1);
        compare_golden(name, more);
        loaded++;
    }
    json_decref(manifest);
    sl_scratch_close(scratch, directory);
    ck_assert_uint_gt(loaded, 20);
    ck_assert_uint_gt(encrypted, 4);
}
END_TEST

/* "a" to "z" of so many floats each. */
static void put_model(const char *name, const char *names, unsigned items)
{
    size_t bytes;
    uint8_t *model = sl_model_safetensors(names, items, &bytes);
    put(name, model, bytes);
    free(model);
}

START_TEST(tensors_are_aligned_and_cross_no_slab)
{
    struct view view;
    put_model("m/a.safetensors", "a,b,c,d,e,f,g,h,i", 5000); /* 20 000 bytes each */
    put_model("m/b.safetensors", "big,k,l", 25 * 1000);      /* 100 000 */
    struct sl_pool_model *model = fill("memory://m/", "");
    view_open(model, &view);
    ck_assert_uint_eq(view.slab_count, 3 + 3);
    for (uint32_t i = 0; i < view.index.head->tensor_count; i++) {
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&view.index, i);
        uint64_t room = view.index.slabs[tensor->slab].bytes;
        ck_assert_uint_eq(tensor->offset % SL_WIRE_ALIGN, 0);
        ck_assert_uint_le(tensor->offset + tensor->bytes, room);
        ck_assert(room <= SLAB_BYTES || (tensor->offset == 0 && room == tensor->bytes));
    }
    view_close(&view);
    compare("memory://m/", "", model);
    sl_pool_model_free(model);
}
END_TEST

START_TEST(data_files_come_along_as_files)
{
    static const char config[] = "{\"model_type\": \"none\"}";
    struct view view;
    put_model("m/model.safetensors", "a,b", 10);
    put("m/config.json", config, sizeof(config) - 1);
    put("m/empty.txt", "", 0);
    struct sl_pool_model *model = fill("memory://m/", "");
    view_open(model, &view);
    ck_assert_uint_eq(view.index.head->tensor_count, 4);
    uint32_t number = find(&view, "config.json");
    const struct sl_wire_index_tensor *file = sl_pool_index_tensor(&view.index, number);
    ck_assert_uint_eq(file->kind, SL_WIRE_FILE);
    ck_assert_uint_eq(file->bytes, sizeof(config) - 1);
    ck_assert_int_eq(memcmp(data_of(&view, number), config, sizeof(config) - 1), 0);
    ck_assert_uint_eq(sl_pool_index_tensor(&view.index, find(&view, "empty.txt"))->bytes, 0);
    ck_assert_uint_eq(view.page->ready_count, 4);
    view_close(&view);
    sl_pool_model_free(model);
}
END_TEST

START_TEST(casts_and_selections_land_as_wanted)
{
    struct view view;
    put_model("m.safetensors", "a,b,c", 1000);
    struct sl_pool_model *model =
        fill("memory://m.safetensors", "tensors: {include: [b, c], cast: {F32: F16}}\n");
    view_open(model, &view);
    ck_assert_uint_eq(view.index.head->tensor_count, 2);
    const struct sl_wire_index_tensor *b = sl_pool_index_tensor(&view.index, find(&view, "b"));
    ck_assert_uint_eq(b->bytes, 2000);
    ck_assert_str_eq(sl_pool_index_text(&view.index, b->dtype_at), "F16");
    ck_assert_uint_eq(b->dlpack_code, 2);
    ck_assert_uint_eq(b->dlpack_bits, 16);
    ck_assert_uint_eq(view.page->ready_count, 2);
    view_close(&view);
    sl_pool_model_free(model);
}
END_TEST

/* ---- slabs ----------------------------------------------------------------------------------- */

START_TEST(nobody_can_change_a_ready_model)
{
    int fds[16];
    size_t count;
    put_model("m.safetensors", "a,b", 1000);
    struct sl_pool_model *model = fill("memory://m.safetensors", "");
    sl_pool_model_fds(model, fds, &count);
    ck_assert_uint_eq(count, 3);
    for (size_t i = 0; i < count; i++) {
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fds[i]);
        int own = open(path, O_RDWR | O_CLOEXEC); /* root may; others need not be let in */
        ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0),
                         MAP_FAILED);
        ck_assert_int_lt(ftruncate(fds[i], 0), 0);
        if (own < 0)
            continue;
        ck_assert_int_lt(write(own, "x", 1), 0);
        ck_assert_int_lt(ftruncate(own, 0), 0);
        ck_assert_ptr_eq(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0), MAP_FAILED);
        close(own);
    }
    sl_pool_model_free(model);
}
END_TEST

/* In namespaces of its own, where it may mount; 77 if it may not. */
static int fill_on_huge_tmpfs(const char *directory)
{
    put_model("m.safetensors", "a,b,c", 100 * 1000);
    if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return 77;
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("tmpfs", directory, "tmpfs", 0, "huge=always,size=64m") < 0)
        return 77;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sl_slab_place_probe(fd, &place);
    if (place.kind != SL_SLAB_TMPFS || !place.huge)
        return 1;
    int fds[8];
    size_t count;
    struct sl_pool_model *model = fill("memory://m.safetensors", "");
    sl_pool_model_fds(model, fds, &count);
    if (count != 5 || write(fds[2], "x", 1) >= 0 ||
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0) != MAP_FAILED)
        return 2;
    compare("memory://m.safetensors", "", model);
    sl_pool_model_free(model);
    close(fd);
    return 0;
}

START_TEST(huge_pages_come_from_a_tmpfs_of_ours)
{
    char directory[SL_SCRATCH_PATH_BYTES];
    int status, scratch = sl_scratch_open(directory);
    pid_t child = fork();
    if (child == 0)
        _exit(fill_on_huge_tmpfs(directory));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    sl_scratch_close(scratch, directory);
    ck_assert(WIFEXITED(status));
    ck_assert_msg(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77, "exit code %d",
                  WEXITSTATUS(status));
}
END_TEST

/* ---- when tensors are told ------------------------------------------------------------------- */

struct watcher {
    struct sl_pool_model *model; /* the last that was planned */
    unsigned planned;
    struct sl_cancel *cancel; /* raised once `wanted` tensors are ready; NULL: never */
    uint32_t wanted;
    pthread_t thread;
    uint64_t admitted;
    bool refuse;
};

static void *cancel_when_ready(void *arg)
{
    struct watcher *watcher = arg;
    struct view view;
    uint32_t ready;
    view_open(watcher->model, &view);
    while ((ready = sl_word_get(&view.page->ready_count)) < watcher->wanted)
        sl_word_wait(&view.page->ready_count, ready, 1000);
    view_close(&view);
    sl_cancel_raise(watcher->cancel, 0);
    return NULL;
}

static void on_planned(void *arg, struct sl_pool_model *model)
{
    struct watcher *watcher = arg;
    struct sl_err err = SL_ERR_INIT;
    sl_pool_model_free(watcher->model);
    watcher->model = sl_pool_model_hold(model);
    if (watcher->cancel && watcher->planned++ == 0)
        ck_assert_int_eq(
            sl_thread_start(&watcher->thread, "watch", cancel_when_ready, watcher, &err), 0);
}

static int on_admit(void *arg, uint64_t bytes, const uint8_t identity[32], struct sl_err *err)
{
    struct watcher *watcher = arg;
    (void)identity;
    watcher->admitted = bytes;
    return watcher->refuse ? sl_fail(err, SL_E_NO_SPACE, "the budget is used up") : 0;
}

static struct sl_fill_config watching(struct watcher *watcher)
{
    return (struct sl_fill_config){
        .planned = on_planned, .admit = on_admit, .arg = watcher, .cancel = watcher->cancel};
}

START_TEST(tensors_are_told_before_the_load_ends)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_server *server = sl_server_start();
    size_t bytes;
    uint8_t *blob = sl_model_safetensors("a,b,c,d", 256 * 1024, &bytes);
    struct watcher watcher = {.cancel = sl_cancel_new(&err), .wanted = 2};
    struct sl_fill_config config = watching(&watcher);
    struct sl_pool_view view;
    sl_server_put(server, "/m.safetensors", blob, bytes, "\"1\"");
    /* The first request is for the index, the next for the first range: it never ends. */
    SL_SCRIPT(server, {"/m.safetensors", 2, 1000, SL_FAULT_STALL, 2560 * 1024, 0, NULL, NULL});
    config.slab_bytes = 16 * 1024 * 1024;
    struct sl_pool_model *model =
        fill_with(sl_server_url(server, "/m.safetensors"),
                  "readers: {connections: 1, rangeBytes: 16777216}\n", &config, &err);
    ck_assert_ptr_null(model);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    pthread_join(watcher.thread, NULL);
    sl_pool_model_view(watcher.model, &view);
    ck_assert_int_eq(view.state, SL_POOL_FAILED);
    ck_assert_int_eq(view.err.kind, SL_E_CANCELED);
    ck_assert_uint_ge(view.ready_count, 2);
    ck_assert_uint_lt(view.ready_count, 4);
    sl_pool_model_free(watcher.model);
    sl_cancel_free(watcher.cancel);
    sl_server_stop(server);
    free(blob);
}
END_TEST

START_TEST(a_tensor_with_a_wrong_hash_is_never_told)
{
    struct sl_err err = SL_ERR_INIT;
    struct watcher watcher = {0};
    struct sl_fill_config config = watching(&watcher);
    struct view view;
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/bad-hash-data.tensors.gz", &bytes);
    put("m.tensors", golden, bytes);
    free(golden);
    ck_assert_ptr_null(fill_with("memory://m.tensors", "", &config, &err));
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
    view_open(watcher.model, &view);
    uint32_t wrong = find(&view, "second"), failed = 0;
    ck_assert_uint_eq(view.page->state, SL_WIRE_FAILED);
    ck_assert_uint_eq(view.page->error_kind, 5);
    ck_assert_ptr_nonnull(strstr(view.page->error_text, "expected"));
    ck_assert_uint_eq(view.page->words[wrong], SL_WORD_FAILED);
    for (uint32_t i = 0; i < view.page->count; i++)
        failed += view.page->words[i] != SL_WORD_READY;
    ck_assert_uint_eq(view.page->count - failed, view.page->ready_count);
    view_close(&view);
    sl_pool_model_free(watcher.model);
}
END_TEST

START_TEST(what_is_not_admitted_is_not_allocated)
{
    struct sl_err err = SL_ERR_INIT;
    struct watcher watcher = {.refuse = true};
    struct sl_fill_config config = watching(&watcher);
    unsigned before = count_fds();
    put_model("m.safetensors", "a,b", 1000);
    ck_assert_ptr_null(fill_with("memory://m.safetensors", "", &config, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_uint_ge(watcher.admitted, 8000);
    ck_assert_ptr_null(watcher.model);
    ck_assert_uint_eq(count_fds(), before);
}
END_TEST

START_TEST(every_failing_allocation_leaves_nothing)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *model = NULL;
    put_model("m/m.safetensors", "a,b,c", 1000);
    put("m/config.json", "{}", 2);
    sl_pool_model_free(fill("memory://m/", ""));
    unsigned before = count_fds(), nth = 0;
    while (!model) {
        struct watcher watcher = {0};
        struct sl_fill_config config = watching(&watcher);
        struct sl_specs specs;
        make_spec(&specs, "memory://m/", "readers: {connections: 1}\n");
        config.name = "m";
        config.place = &place;
        sl_alloc_fail_at(++nth);
        int done = sl_fill_run(&specs.items[0], &config, &model, NULL, &err);
        sl_alloc_fail_at(0);
        ck_assert(done == 0 || model == NULL);
        sl_pool_model_free(watcher.model);
        sl_specs_release(&specs);
        ck_assert_uint_lt(nth, 5000);
        if (!model)
            ck_assert_uint_eq(count_fds(), before);
    }
    sl_pool_model_free(model);
    ck_assert_uint_eq(count_fds(), before);
    ck_assert_uint_gt(nth, 20);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fill");
    TCase *tests = tcase_create("fill");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, every_tensor_of_reference_files_lies_in_slabs);
    tcase_add_test(tests, tensors_are_aligned_and_cross_no_slab);
    tcase_add_test(tests, data_files_come_along_as_files);
    tcase_add_test(tests, casts_and_selections_land_as_wanted);
    tcase_add_test(tests, nobody_can_change_a_ready_model);
    tcase_add_test(tests, huge_pages_come_from_a_tmpfs_of_ours);
    tcase_add_test(tests, tensors_are_told_before_the_load_ends);
    tcase_add_test(tests, a_tensor_with_a_wrong_hash_is_never_told);
    tcase_add_test(tests, what_is_not_admitted_is_not_allocated);
    tcase_add_test(tests, every_failing_allocation_leaves_nothing);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}

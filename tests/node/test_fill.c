/*
 * Loads into slabs: every tensor lies where the index says and is what the source holds, each is
 * told when its own bytes are there and checked and not before, and whatever fails leaves nothing.
 */
#include <check.h>
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

#include "alloc_fail.h"
#include "claims.h"
#include "fill_case.h"
#include "golden.h"
#include "model_maker.h"
#include "pool_words.h"
#include "range_server.h"
#include "scratch.h"
#include "skip.h"

/* ---- what lands ------------------------------------------------------------------------------ */

SL_TEST(every_tensor_of_reference_files_lies_in_slabs)
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
        fill_case_decrypt(name, directory, more, sizeof(more));
        fill_case_compare_golden(name, more);
        encrypted += more[0] != 0;
        strncat(more, "verify: {hashes: all}\n", sizeof(more) - strlen(more) - 1);
        fill_case_compare_golden(name, more);
        loaded++;
    }
    json_decref(manifest);
    sl_scratch_close(scratch, directory);
    ck_assert_uint_gt(loaded, 20);
    ck_assert_uint_gt(encrypted, 4);
}

SL_TEST(tensors_are_aligned_and_cross_no_slab)
{
    struct fill_view view;
    fill_case_put_model("m/a.safetensors", "a,b,c,d,e,f,g,h,i", 5000); /* 20 000 bytes each */
    fill_case_put_model("m/b.safetensors", "big,k,l", 25 * 1000);      /* 100 000 */
    struct sl_pool_model *model = fill_case_load("memory://m/", "");
    fill_view_open(model, &view);
    ck_assert_uint_eq(view.slab_count, 3 + 3);
    for (uint32_t i = 0; i < view.index.head->tensor_count; i++) {
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&view.index, i);
        uint64_t room = view.index.slabs[tensor->slab].bytes;
        ck_assert_uint_eq(tensor->offset % SL_WIRE_ALIGN, 0);
        ck_assert_uint_le(tensor->offset + tensor->bytes, room);
        ck_assert(room <= FILL_CASE_SLAB_BYTES || (tensor->offset == 0 && room == tensor->bytes));
    }
    fill_view_close(&view);
    fill_case_compare("memory://m/", "", model);
    sl_pool_model_free(model);
}

SL_TEST(data_files_come_along_as_files)
{
    static const char config[] = "{\"model_type\": \"none\"}";
    struct fill_view view;
    fill_case_put_model("m/model.safetensors", "a,b", 10);
    fill_case_put("m/config.json", config, sizeof(config) - 1);
    fill_case_put("m/empty.txt", "", 0);
    struct sl_pool_model *model = fill_case_load("memory://m/", "");
    fill_view_open(model, &view);
    ck_assert_uint_eq(view.index.head->tensor_count, 4);
    uint32_t number = fill_view_find(&view, "config.json");
    const struct sl_wire_index_tensor *file = sl_pool_index_tensor(&view.index, number);
    ck_assert_uint_eq(file->kind, SL_WIRE_FILE);
    ck_assert_uint_eq(file->bytes, sizeof(config) - 1);
    ck_assert_int_eq(memcmp(fill_view_data(&view, number), config, sizeof(config) - 1), 0);
    ck_assert_uint_eq(sl_pool_index_tensor(&view.index, fill_view_find(&view, "empty.txt"))->bytes,
                      0);
    ck_assert_uint_eq(view.page->ready_count, 4);
    fill_view_close(&view);
    sl_pool_model_free(model);
}

SL_TEST(casts_and_selections_land_as_wanted)
{
    struct fill_view view;
    fill_case_put_model("m.safetensors", "a,b,c", 1000);
    struct sl_pool_model *model =
        fill_case_load("memory://m.safetensors", "tensors: {include: [b, c], cast: {F32: F16}}\n");
    fill_view_open(model, &view);
    ck_assert_uint_eq(view.index.head->tensor_count, 2);
    const struct sl_wire_index_tensor *b =
        sl_pool_index_tensor(&view.index, fill_view_find(&view, "b"));
    ck_assert_uint_eq(b->bytes, 2000);
    ck_assert_str_eq(sl_pool_index_text(&view.index, b->dtype_at), "F16");
    ck_assert_uint_eq(b->dlpack_code, 2);
    ck_assert_uint_eq(b->dlpack_bits, 16);
    ck_assert_uint_eq(view.page->ready_count, 2);
    fill_view_close(&view);
    sl_pool_model_free(model);
}

/* ---- slabs ----------------------------------------------------------------------------------- */

SL_TEST(nobody_can_change_a_ready_model)
{
    int fds[16];
    fill_case_put_model("m.safetensors", "a,b", 1000);
    struct sl_pool_model *model = fill_case_load("memory://m.safetensors", "");
    size_t count = sl_pool_copy_fds(sl_pool_model_copy(model, 0), 0, fds, SL_COUNT(fds));
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

/* In namespaces of its own, where it may mount; 77 if it may not. */
static int fill_on_huge_tmpfs(const char *directory)
{
    fill_case_put_model("m.safetensors", "a,b,c", 100 * 1000);
    if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
        return 77;
    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    if (mount("tmpfs", directory, "tmpfs", 0, "huge=always,size=64m") < 0)
        return 77;
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    sl_slab_place_probe(fd, &fill_case_place);
    if (fill_case_place.kind != SL_SLAB_TMPFS || !fill_case_place.huge)
        return 1;
    int fds[8];
    struct sl_pool_model *model = fill_case_load("memory://m.safetensors", "");
    size_t count = sl_pool_copy_fds(sl_pool_model_copy(model, 0), 0, fds, SL_COUNT(fds));
    if (count != 5 || write(fds[2], "x", 1) >= 0 ||
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[2], 0) != MAP_FAILED)
        return 2;
    fill_case_compare("memory://m.safetensors", "", model);
    sl_pool_model_free(model);
    close(fd);
    return 0;
}

SL_TEST(huge_pages_come_from_a_tmpfs_of_ours)
{
    char directory[SL_SCRATCH_PATH_BYTES];
    int status, scratch = sl_scratch_open(directory);
    pid_t child = fork();
    if (child == 0)
        _exit(fill_on_huge_tmpfs(directory));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    sl_scratch_close(scratch, directory);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        SL_SKIP("no tmpfs of its own can be mounted");
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

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
    struct fill_view view;
    uint32_t ready;
    fill_view_open(watcher->model, &view);
    while ((ready = sl_word_get(&view.page->ready_count)) < watcher->wanted)
        sl_word_wait(&view.page->ready_count, ready, 1000);
    fill_view_close(&view);
    sl_cancel_raise(watcher->cancel, 0);
    return NULL;
}

static bool on_planned(void *arg, struct sl_pool_model *model)
{
    struct watcher *watcher = arg;
    struct sl_err err = SL_ERR_INIT;
    sl_pool_model_free(watcher->model);
    watcher->model = model;
    if (watcher->cancel && watcher->planned++ == 0)
        ck_assert_int_eq(
            sl_thread_start(&watcher->thread, "watch", cancel_when_ready, watcher, &err), 0);
    return true;
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

SL_TEST(tensors_are_told_before_the_load_ends)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_server *server = sl_server_start();
    size_t bytes;
    uint8_t *blob = sl_model_safetensors("a,b,c,d", 1024 * 1024, &bytes);
    struct watcher watcher = {.cancel = sl_cancel_new(&err), .wanted = 2};
    struct sl_fill_config config = watching(&watcher);
    struct sl_pool_view view;
    sl_server_put(server, "/m.safetensors", blob, bytes, "\"1\"");
    /* The first request is for the index, the next for the first range: it never ends. It stalls
     * more than the longest window, a MiB, behind the second tensor of 4 MiB. */
    SL_SCRIPT(server, {"/m.safetensors", 2, 1000, SL_FAULT_STALL, 10 << 20, 0, NULL, NULL});
    config.slab_bytes = 16 * 1024 * 1024;
    struct sl_pool_model *model =
        fill_case_try(sl_server_url(server, "/m.safetensors"),
                      "readers: {connections: 1, rangeBytes: 33554432}\n", &config, &err);
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

SL_TEST(a_tensor_with_a_wrong_hash_is_never_told)
{
    struct sl_err err = SL_ERR_INIT;
    struct watcher watcher = {0};
    struct sl_fill_config config = watching(&watcher);
    struct fill_view view;
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/bad-hash-data.tensors.gz", &bytes);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
    ck_assert_ptr_null(fill_case_try("memory://m.tensors", "", &config, &err));
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
    fill_view_open(watcher.model, &view);
    uint32_t wrong = fill_view_find(&view, "second"), failed = 0;
    ck_assert_uint_eq(view.page->state, SL_WIRE_FAILED);
    ck_assert_uint_eq(view.page->error_kind, 5);
    ck_assert_ptr_nonnull(strstr(view.page->error_text, "expected"));
    ck_assert_uint_eq(view.page->words[wrong], SL_WORD_FAILED);
    for (uint32_t i = 0; i < view.page->count; i++)
        failed += view.page->words[i] != SL_WORD_READY;
    ck_assert_uint_eq(view.page->count - failed, view.page->ready_count);
    fill_view_close(&view);
    sl_pool_model_free(watcher.model);
}

SL_TEST(what_is_not_admitted_is_not_allocated)
{
    struct sl_err err = SL_ERR_INIT;
    struct watcher watcher = {.refuse = true};
    struct sl_fill_config config = watching(&watcher);
    unsigned before = fill_case_fds();
    fill_case_put_model("m.safetensors", "a,b", 1000);
    ck_assert_ptr_null(fill_case_try("memory://m.safetensors", "", &config, &err));
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_uint_ge(watcher.admitted, 8000);
    ck_assert_ptr_null(watcher.model);
    ck_assert_uint_eq(fill_case_fds(), before);
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *model = NULL;
    fill_case_put_model("m/m.safetensors", "a,b,c", 1000);
    fill_case_put("m/config.json", "{}", 2);
    sl_pool_model_free(fill_case_load("memory://m/", ""));
    unsigned before = fill_case_fds(), nth = 0;
    while (!model) {
        struct watcher watcher = {0};
        struct sl_fill_config config = watching(&watcher);
        struct sl_specs specs;
        fill_case_spec(&specs, "memory://m/", "readers: {connections: 1}\n");
        config.name = "m";
        config.places = &fill_case_place;
        config.place_count = 1;
        sl_alloc_fail_at(++nth);
        int done = sl_fill_run(&specs.items[0], &config, &model, NULL, &err);
        sl_alloc_fail_at(0);
        ck_assert(done == 0 || model == NULL);
        sl_pool_model_free(watcher.model);
        sl_specs_release(&specs);
        ck_assert_uint_lt(nth, 5000);
        if (!model)
            ck_assert_uint_eq(fill_case_fds(), before);
    }
    ck_assert_uint_eq(fill_case_fds(), before);
    ck_assert_uint_gt(nth, 20);
}

SL_CASE(.setup = fill_case_setup, .teardown = fill_case_teardown)

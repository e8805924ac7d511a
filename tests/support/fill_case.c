/* Objects, loads and comparisons for the tests of loads into slabs. */
#include "fill_case.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "golden.h"
#include "hash.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "scratch.h"
#include "use_fake_cuda.h"

struct sl_slab_place fill_case_place;
int fill_case_where;
static uint8_t *blobs[128]; /* what the memory source serves */
static unsigned blob_count;

void fill_case_setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    sl_slab_place_probe(-1, &fill_case_place);
    fill_case_where = SL_DECRYPT_AUTO;
}

void fill_case_teardown(void)
{
    sl_alloc_fail_at(0);
    sl_memory_clear();
    while (blob_count)
        free(blobs[--blob_count]);
}

unsigned fill_case_fds(void)
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

static const void *fill_case_map(int fd, size_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(map, MAP_FAILED);
    return map;
}

static size_t fill_case_size(int fd)
{
    struct stat status;
    ck_assert_int_eq(fstat(fd, &status), 0);
    return (size_t)status.st_size;
}

void fill_view_open_copy(const struct sl_pool_copy *copy, struct fill_view *view)
{
    int fds[66];
    char why[SL_POOL_WHY_BYTES];
    size_t count = sl_pool_copy_fds(copy, 0, fds, SL_COUNT(fds));
    ck_assert_uint_le(count, SL_COUNT(fds));
    const void *data = fill_case_map(fds[0], fill_case_size(fds[0]));
    int good = sl_pool_index_check(data, fill_case_size(fds[0]), &view->index, why);
    ck_assert_msg(good == 0, "%s", why);
    view->page = fill_case_map(fds[1], fill_case_size(fds[1]));
    ck_assert_uint_eq(view->page->count, view->index.head->tensor_count);
    view->slab_count = count - 2;
    for (size_t i = 0; i < view->slab_count; i++) {
        int file = fake_cuda_file(fds[2 + i]);
        ck_assert_uint_eq(fill_case_size(file), view->index.slabs[i].bytes);
        view->slabs[i] = fill_case_map(file, (size_t)view->index.slabs[i].bytes);
        close(file);
    }
}

void fill_view_open(const struct sl_pool_model *model, struct fill_view *view)
{
    fill_view_open_copy(sl_pool_model_copy(model, 0), view);
}

void fill_view_close(struct fill_view *view)
{
    for (size_t i = 0; i < view->slab_count; i++)
        munmap((void *)(uintptr_t)view->slabs[i], (size_t)view->index.slabs[i].bytes);
    munmap((void *)(uintptr_t)view->page, sizeof(*view->page) + 4 * (size_t)view->page->count);
    munmap((void *)(uintptr_t)view->index.data, (size_t)view->index.head->index_bytes);
}

uint32_t fill_view_find(const struct fill_view *view, const char *name)
{
    for (uint32_t i = 0; i < view->index.head->tensor_count; i++)
        if (strcmp(sl_pool_index_text(&view->index, sl_pool_index_tensor(&view->index, i)->name_at),
                   name) == 0)
            return i;
    ck_abort_msg("no '%s'", name);
}

const uint8_t *fill_view_data(const struct fill_view *view, uint32_t number)
{
    const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&view->index, number);
    return tensor->bytes ? view->slabs[tensor->slab] + tensor->offset : NULL;
}

/* ---- loads ----------------------------------------------------------------------------------- */

void fill_case_spec(struct sl_specs *specs, const char *uri, const char *more)
{
    char text[1024];
    snprintf(text, sizeof(text), "sink: {tmpfs: {path: /t, layout: safetensors}}\n%s", more);
    sl_model_spec(specs, uri, "", text);
}

struct sl_pool_model *fill_case_try(const char *uri, const char *more,
                                    struct sl_fill_config *config, struct sl_err *err)
{
    struct sl_specs specs;
    struct sl_pool_model *model = NULL;
    fill_case_spec(&specs, uri, more);
    struct sl_spec_pool *pool = &specs.items[0].sink.pool;
    pool->decrypt = pool->cast = pool->crc = fill_case_where;
    config->name = "m";
    if (!config->places) {
        config->places = &fill_case_place;
        config->place_count = 1;
    }
    config->slab_bytes = config->slab_bytes ? config->slab_bytes : FILL_CASE_SLAB_BYTES;
    if (sl_fill_run(&specs.items[0], config, &model, NULL, err) < 0)
        ck_assert_ptr_null(model);
    sl_specs_release(&specs);
    return model;
}

struct sl_pool_model *fill_case_load(const char *uri, const char *more)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    struct sl_pool_model *model = fill_case_try(uri, more, &config, &err);
    ck_assert_msg(model != NULL, "%s", err.message);
    return model;
}

void fill_case_digest(const uint8_t *data, size_t bytes, const uint8_t digest[32], const char *name)
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
void fill_case_compare_copy(const char *uri, const char *more, const struct sl_pool_copy *copy)
{
    struct sl_specs specs;
    struct sl_err err = SL_ERR_INIT;
    struct sl_source_config config;
    struct fill_view view;
    fill_view_open_copy(copy, &view);
    fill_case_spec(&specs, uri, more);
    sl_spec_source_config(&specs.items[0], NULL, NULL, &config);
    SL_AUTO(sl_plan) plan = NULL;
    ck_assert_int_eq(sl_plan_make_targets(&specs.items[0], &config, &plan, &err), 0);
    ck_assert_uint_eq(view.index.head->tensor_count, plan->target_count);
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_tensor *from = plan->targets[i].from;
        uint32_t number = fill_view_find(&view, from->name);
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&view.index, number);
        uint8_t digest[32];
        ck_assert_uint_eq(view.page->words[number], SL_WORD_READY);
        ck_assert_uint_eq(tensor->bytes, from->bytes);
        if (from->meta && from->bytes > 1024 * 1024)
            continue; /* gigabytes of nothing */
        ck_assert_int_eq(sl_tensor_digest(plan->targets[i].index, from, true, digest, &err), 0);
        fill_case_digest(fill_view_data(&view, number), (size_t)tensor->bytes, digest, from->name);
    }
    ck_assert_uint_eq(view.page->state, SL_WIRE_READY);
    ck_assert_uint_eq(view.page->ready_count, view.page->count);
    fill_view_close(&view);
    sl_plan_free(sl_steal(&plan));
    sl_specs_release(&specs);
}

/* A copy is kept until the test ends. */
void fill_case_put(const char *name, const void *data, size_t bytes)
{
    uint8_t *copy = malloc(bytes + 1);
    ck_assert_uint_lt(blob_count, SL_COUNT(blobs));
    if (bytes)
        memcpy(copy, data, bytes);
    blobs[blob_count++] = copy;
    ck_assert_int_eq(sl_memory_put(name, copy, bytes, NULL), 0);
}

/* `decrypt` for a golden file, or nothing. */
void fill_case_decrypt(const char *name, const char *directory, char *more, size_t room)
{
    char file[300], path[SL_SCRATCH_PATH_BYTES + 8];
    uint8_t secret[256];
    snprintf(file, sizeof(file), "tensorizer/%s.json", name);
    json_t *sidecar = golden_json(file);
    const json_t *how = json_object_get(sidecar, "encryption");
    /* The passphrase where it costs little: slabs are made before such a key is there. */
    bool passphrase = strcmp(name, "v3-passphrase-min") == 0;
    const json_t *key = json_object_get(how, passphrase ? "passphrase_hex" : "key_hex");
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
        snprintf(more, room, "decrypt: {%s: \"%s\"}\n", passphrase ? "passphraseFile" : "keyFile",
                 path);
    }
    json_decref(sidecar);
}

/* "a" to "z" of so many floats each. */
void fill_case_put_model(const char *name, const char *names, unsigned items)
{
    size_t bytes;
    uint8_t *model = sl_model_safetensors(names, items, &bytes);
    fill_case_put(name, model, bytes);
    free(model);
}

void fill_case_compare(const char *uri, const char *more, const struct sl_pool_model *model)
{
    fill_case_compare_copy(uri, more, sl_pool_model_copy(model, 0));
}

void fill_case_compare_golden(const char *name, const char *more)
{
    char file[300];
    size_t bytes;
    snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
    uint8_t *golden = golden_read(file, &bytes);
    fill_case_put("m/any.tensors", golden, bytes);
    free(golden);
    struct sl_pool_model *model = fill_case_load("memory://m/any.tensors", more);
    fill_case_compare("memory://m/any.tensors", more, model);
    sl_pool_model_free(model);
    sl_memory_clear();
}

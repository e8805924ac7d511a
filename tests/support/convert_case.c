/* See convert_case.h. */
#include "convert_case.h"

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "buf.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "stores.h"

char sl_case_scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;

void sl_case_setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(sl_case_scratch);
}

void sl_case_teardown(void)
{
    sl_alloc_fail_at(0);
    sl_scratch_close(scratch_fd, sl_case_scratch);
    sl_memory_clear();
}

const char *sl_case_path(const char *name, char path[SL_CASE_PATH_BYTES])
{
    snprintf(path, SL_CASE_PATH_BYTES, "%s/%s", sl_case_scratch, name);
    return path;
}

/* How many files lie below the scratch directory. */
unsigned sl_case_files(const char *directory)
{
    unsigned count = 0;
    DIR *dir = opendir(directory);
    struct dirent *entry;
    while (dir && (entry = readdir(dir))) {
        char path[2 * SL_CASE_PATH_BYTES];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
        count += entry->d_type == DT_DIR ? sl_case_files(path) : 1;
    }
    if (dir)
        closedir(dir);
    return count;
}

/* ---- one conversion -------------------------------------------------------------------------- */

/* A spec of a URI, with settings "key=value" up to a NULL (may be NULL itself). */
void sl_case_spec(struct sl_specs *specs, const char *uri, const char *const *words)
{
    struct sl_spec_setting settings[16] = {{"sink.tmpfs.layout", "safetensors", "test"}};
    char keys[16][64];
    size_t count = 1;
    struct sl_err err = SL_ERR_INIT;
    sl_autobuf complaints = SL_BUF_INIT(65536);
    for (; words && *words; words++, count++) {
        const char *equals = strchr(*words, '=');
        snprintf(keys[count], sizeof(keys[count]), "%.*s", (int)(equals - *words), *words);
        settings[count] = (struct sl_spec_setting){keys[count], equals + 1, "test"};
    }
    memset(specs, 0, sizeof(*specs));
    int done = sl_spec_from_uri(uri, "/dev/shm", settings, count, specs, &complaints, &err);
    ck_assert_msg(done == 0, "%s\n%s", err.message, sl_buf_string(&complaints));
}

int sl_case_convert(const char *uri, const char *to, const struct sl_convert_config *base,
                    const char *const *words, struct sl_convert_result *result, struct sl_err *err)
{
    struct sl_specs specs;
    struct sl_convert_config config = *base;
    sl_case_spec(&specs, uri, words);
    config.spec = &specs.items[0];
    config.to = to;
    *err = (struct sl_err)SL_ERR_INIT;
    int done = sl_convert_run(&config, result, err);
    sl_specs_release(&specs);
    return done;
}

void sl_case_expect(const char *uri, const char *to, const struct sl_convert_config *base,
                    const char *const *words)
{
    struct sl_err err;
    int done = sl_case_convert(uri, to, base, words, NULL, &err);
    ck_assert_msg(done == 0, "%s to %s: %s", uri, to, err.message);
}

const struct sl_convert_config sl_case_tensorizer = {.format = SL_CONVERT_TENSORIZER,
                                                     .block_bytes = SL_CASE_BLOCK,
                                                     .threads = 2,
                                                     .replace = true},
                               sl_case_safetensors = {.format = SL_CONVERT_SAFETENSORS,
                                                      .block_bytes = SL_CASE_BLOCK,
                                                      .threads = 2,
                                                      .replace = true};

/* ---- comparing ------------------------------------------------------------------------------- */

void sl_case_close(struct sl_case_opened *opened)
{
    sl_index_free(opened->index);
    sl_store_free(opened->store);
    *opened = (struct sl_case_opened){0};
}

int sl_case_open(struct sl_case_opened *opened, const char *uri, struct sl_keys *keys,
                 struct sl_err *err)
{
    char *key = NULL;
    struct sl_source *source = NULL;
    *opened = (struct sl_case_opened){0};
    int done = sl_store_open(uri, NULL, &opened->store, &key, err);
    if (done == 0)
        done = sl_source_open(opened->store, key, SL_INDEX_HEAD_BYTES, &source, err);
    if (done == 0)
        done = sl_format_index_strict(source, key, &opened->index, err);
    if (done == 0)
        done = sl_index_unlock(opened->index, keys, err);
    free(key);
    return done;
}

void sl_case_digest(struct sl_index *index, const struct sl_tensor *tensor, uint8_t digest[32])
{
    struct sl_err err = SL_ERR_INIT;
    if (tensor->meta && tensor->bytes > SL_META_DIGEST_BYTES_MAX) { /* zeros without end */
        memset(digest, 0, 32);
        return;
    }
    ck_assert_msg(sl_tensor_digest(index, tensor, true, digest, &err) == 0, "%s", err.message);
}

/* The same tensors by name: dtype, shape, bytes. */
void sl_case_same(const char *uri, struct sl_keys *uri_keys, const char *other,
                  struct sl_keys *other_keys)
{
    struct sl_case_opened a, b;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_case_open(&a, uri, uri_keys, &err) == 0, "%s: %s", uri, err.message);
    ck_assert_msg(sl_case_open(&b, other, other_keys, &err) == 0, "%s: %s", other, err.message);
    ck_assert_uint_eq(a.index->tensor_count, b.index->tensor_count);
    for (size_t i = 0; i < a.index->tensor_count; i++) {
        const struct sl_tensor *x = &a.index->tensors[i],
                               *y = sl_index_find(b.index, x->name, x->name_bytes, NULL);
        uint8_t x_digest[32], y_digest[32];
        ck_assert_msg(y != NULL, "%s: no tensor '%s'", other, x->name);
        ck_assert_str_eq(x->dtype_name, y->dtype_name);
        ck_assert_uint_eq(x->rank, y->rank);
        for (unsigned d = 0; d < x->rank; d++)
            ck_assert_uint_eq(x->shape[d], y->shape[d]);
        sl_case_digest(a.index, x, x_digest);
        sl_case_digest(b.index, y, y_digest);
        ck_assert_msg(memcmp(x_digest, y_digest, 32) == 0, "%s: '%s' differs", other, x->name);
    }
    sl_case_close(&a);
    sl_case_close(&b);
}

/* ---- a model of our own ---------------------------------------------------------------------- */

/* Two F32 tensors of many tiny blocks, and small ones between. */
uint8_t *sl_case_model(size_t *bytes)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    uint8_t length[8];
    struct sl_err err = SL_ERR_INIT;
    sl_buf_printf(&text, &err,
                  "{\"big.0\":{\"dtype\":\"F32\",\"shape\":[%d,4],\"data_offsets\":[0,%d]},"
                  "\"big.1\":{\"dtype\":\"F32\",\"shape\":[%d,4],\"data_offsets\":[%d,%d]}",
                  SL_CASE_BIG, SL_CASE_BIG * 16, SL_CASE_BIG, SL_CASE_BIG * 16, SL_CASE_BIG * 32);
    for (unsigned i = 0, at = SL_CASE_BIG * 32; i < 20; i++, at += SL_CASE_SMALL)
        sl_buf_printf(&text, &err,
                      ",\"s.%u\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[%u,%u]}", i, at,
                      at + SL_CASE_SMALL);
    sl_buf_text(&text, ",\"none\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[48140,48140]}}",
                &err);
    ck_assert_int_eq(err.kind, SL_OK);
    *bytes = 8 + text.used + SL_CASE_BIG * 32 + 20 * SL_CASE_SMALL;
    uint8_t *data = malloc(*bytes),
            *noise = sl_model_noise(SL_CASE_BIG * 32 + 20 * SL_CASE_SMALL, 3);
    sl_put_le64(length, text.used);
    memcpy(data, length, 8);
    memcpy(data + 8, text.data, text.used);
    memcpy(data + 8 + text.used, noise, SL_CASE_BIG * 32 + 20 * SL_CASE_SMALL);
    free(noise);
    ck_assert_int_eq(sl_memory_put("model", data, *bytes, NULL), 0);
    return data;
}

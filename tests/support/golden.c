/* Reading golden files and comparing indexes with their expectations. */
#include "golden.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "alloc_fail.h"
#include "buf.h"
#include "memory_store.h"
#include "stores.h"

enum { FILE_BYTES_MAX = 64 * 1024 * 1024, TRIES_MAX = 20000 };

uint8_t *golden_read(const char *name, size_t *bytes)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/golden/%s", SL_TEST_DATA, name);
    gzFile file = gzopen(path, "rb"); /* reads plain files as they are */
    ck_assert_msg(file != NULL, "cannot open %s", path);
    size_t capacity = 64 * 1024, used = 0;
    uint8_t *data = malloc(capacity);
    int got;
    while ((got = gzread(file, data + used, (unsigned)(capacity - used))) > 0) {
        used += (size_t)got;
        if (used == capacity)
            data = realloc(data, capacity *= 2);
        ck_assert_uint_lt(used, FILE_BYTES_MAX);
    }
    ck_assert_int_eq(got, 0);
    gzclose(file);
    /* A copy of the exact size, so that the address sanitizer sees one byte too many. */
    uint8_t *exact = malloc(used ? used : 1);
    memcpy(exact, data, used);
    free(data);
    *bytes = used;
    return exact;
}

char *golden_text(const char *name, size_t *bytes)
{
    uint8_t *data = golden_read(name, bytes);
    char *text = calloc(1, *bytes + 1);
    memcpy(text, data, *bytes);
    free(data);
    return text;
}

json_t *golden_json(const char *name)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof(path), "%s/golden/%s", SL_TEST_DATA, name);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);
    ck_assert_msg(json != NULL, "%s: %s", path, error.text);
    return json;
}

int golden_index(struct golden_open *open, const char *name, const void *data, size_t bytes,
                 struct sl_err *err)
{
    char uri[256];
    char *key = NULL;
    struct sl_source *source = NULL;
    memset(open, 0, sizeof(*open));
    snprintf(uri, sizeof(uri), "memory:%s", name);
    int result = sl_memory_put(name, data, bytes, err);
    if (result == 0)
        result = sl_store_open(uri, NULL, &open->store, &key, err);
    if (result == 0)
        result = sl_source_open(open->store, key, SL_INDEX_HEAD_BYTES, &source, err);
    if (result == 0)
        result = sl_format_index_strict(source, key, &open->index, err);
    free(key);
    return result;
}

void golden_release(struct golden_open *open)
{
    sl_index_free(open->index);
    sl_store_free(open->store);
    memset(open, 0, sizeof(*open));
}

static bool same_shape(const struct sl_tensor *tensor, const json_t *shape)
{
    bool same = json_array_size(shape) == tensor->rank;
    for (unsigned i = 0; same && i < tensor->rank; i++)
        same = (uint64_t)json_integer_value(json_array_get(shape, i)) == tensor->shape[i];
    return same;
}

static bool same_path(const struct sl_tensor *tensor, const json_t *path)
{
    bool same = json_array_size(path) == tensor->path_count;
    for (unsigned i = 0; same && i < tensor->path_count; i++) {
        const json_t *part = json_array_get(path, i);
        if (tensor->path[i].text)
            same = json_is_string(part) && json_string_length(part) == tensor->path[i].text_bytes &&
                   memcmp(json_string_value(part), tensor->path[i].text,
                          tensor->path[i].text_bytes) == 0;
        else
            same = json_is_integer(part) &&
                   (uint64_t)json_integer_value(part) == tensor->path[i].number;
    }
    return same;
}

static int differs(const struct sl_tensor *tensor, const char *what)
{
    fprintf(stderr, "tensor '%s': %s differs\n", tensor->name, what);
    return 0;
}

static int same_tensor(struct sl_index *index, const struct sl_tensor *tensor,
                       const json_t *expected, bool verify, bool digest)
{
    const char *dtype = json_string_value(json_object_get(expected, "dtype"));
    const json_t *path = json_object_get(expected, "path");
    if (strcmp(index->format, "safetensors") == 0 && strcmp(dtype, tensor->dtype_name) != 0)
        return differs(tensor, "dtype");
    if (!same_shape(tensor, json_object_get(expected, "shape")))
        return differs(tensor, "shape");
    if ((uint64_t)json_integer_value(json_object_get(expected, "nbytes")) != tensor->bytes)
        return differs(tensor, "size");
    if (path && !same_path(tensor, path))
        return differs(tensor, "path");
    if (!digest)
        return 1;
    uint8_t sha256[32];
    char hex[65];
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_tensor_digest(index, tensor, verify, sha256, &err) == 0, "%s", err.message);
    sl_hex(sha256, 32, hex);
    if (strcmp(hex, json_string_value(json_object_get(expected, "sha256"))) != 0)
        return differs(tensor, "SHA-256");
    return 1;
}

int golden_same(struct sl_index *index, const json_t *tensors, bool verify, bool digest)
{
    bool by_name = strcmp(index->format, "safetensors") == 0;
    if (json_array_size(tensors) != index->tensor_count) {
        fprintf(stderr, "%zu tensors, expected %zu\n", index->tensor_count,
                json_array_size(tensors));
        return 0;
    }
    for (size_t i = 0; i < index->tensor_count; i++) {
        const json_t *expected = json_array_get(tensors, i),
                     *name = json_object_get(expected, "name");
        const struct sl_tensor *tensor = &index->tensors[i];
        if (by_name)
            tensor = sl_index_find(index, json_string_value(name), json_string_length(name), NULL);
        if (!tensor || !same_tensor(index, tensor, expected, verify, digest)) {
            fprintf(stderr, "tensor %zu is not as expected\n", i);
            return 0;
        }
    }
    return 1;
}

unsigned golden_each_allocation(int (*once)(void *arg, struct sl_err *err), void *arg)
{
    for (unsigned nth = 1; nth < TRIES_MAX; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int result = once(arg, &err);
        unsigned made = sl_alloc_count();
        sl_alloc_fail_at(0);
        if (nth > made) {
            ck_assert_msg(result == 0, "%s", err.message);
            return made;
        }
        ck_assert_msg(result < 0, "allocation %u failed unnoticed", nth);
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    }
    ck_abort_msg("it never succeeds");
    return 0;
}

unsigned golden_each_read(int (*once)(void *arg, struct sl_err *err), void *arg)
{
    for (unsigned nth = 1; nth < TRIES_MAX; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_memory_fail_at(nth);
        int result = once(arg, &err);
        sl_memory_fail_at(0);
        if (result == 0)
            return nth - 1;
        ck_assert_int_eq(err.kind, SL_E_NET);
    }
    ck_abort_msg("it never succeeds");
    return 0;
}

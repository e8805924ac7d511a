/*
 * PyTorch checkpoints: every golden file exactly, prefixes, damaged bytes, failing calls, shards,
 * and how a plan treats them.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "memory_store.h"
#include "seed.h"
#include "stores.h"

static int ignore_digest(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                         struct sl_err *err)
{
    (void)arg, (void)tensor, (void)digest, (void)err;
    return 0;
}

static int index_and_digest(const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct golden_open open;
    int result = golden_index(&open, "x.pt", data, bytes, err);
    if (result == 0)
        result = sl_index_digest(open.index, true, ignore_digest, NULL, err);
    golden_release(&open);
    return result;
}

static uint8_t *read_checkpoint(const char *file, size_t *bytes)
{
    char name[300];
    snprintf(name, sizeof(name), "pytorch/%s", file);
    return golden_read(name, bytes);
}

/* ---- golden files ---------------------------------------------------------------------------- */

static bool mentions(const json_t *texts, const char *text)
{
    for (size_t i = 0; i < json_array_size(texts); i++)
        if (!strstr(text, json_string_value(json_array_get(texts, i))))
            return false;
    return true;
}

static bool accepts(const json_t *codes, const char *code)
{
    for (size_t i = 0; i < json_array_size(codes); i++)
        if (strcmp(json_string_value(json_array_get(codes, i)), code) == 0)
            return true;
    return false;
}

static void check_refusal(const char *file, const json_t *refusal, const struct sl_err *err)
{
    const json_t *codes = json_object_get(refusal, "accept_codes");
    const char *code = json_string_value(json_object_get(refusal, "code"));
    ck_assert_int_eq(err->kind, SL_E_FORMAT);
    ck_assert_msg(codes ? accepts(codes, err->code) : strcmp(code, err->code) == 0,
                  "%s: %s instead of %s: %s", file, err->code, code, err->message);
    ck_assert_msg(mentions(json_object_get(refusal, "must_mention"), err->message), "%s: %s", file,
                  err->message);
}

static void check_path(const struct sl_tensor *tensor, const json_t *path)
{
    ck_assert_uint_eq(tensor->path_count, json_array_size(path));
    for (unsigned i = 0; i < tensor->path_count; i++) {
        const struct sl_path_part *part = &tensor->path[i];
        const json_t *expected = json_array_get(path, i);
        if (!part->text) {
            ck_assert_uint_eq(part->number, (uint64_t)json_integer_value(expected));
            continue;
        }
        ck_assert_uint_eq(part->text_bytes, json_string_length(expected));
        ck_assert_int_eq(memcmp(part->text, json_string_value(expected), part->text_bytes), 0);
    }
}

static void check_tensor(struct sl_index *index, const json_t *expected)
{
    const json_t *name = json_object_get(expected, "name"),
                 *shape = json_object_get(expected, "shape");
    const struct sl_tensor *tensor =
        sl_index_find(index, json_string_value(name), json_string_length(name), NULL);
    uint8_t digest[32];
    char hex[65];
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(tensor != NULL, "no tensor '%s'", json_string_value(name));
    if (json_object_get(expected, "expect")) {
        ck_assert_int_lt(sl_tensor_digest(index, tensor, true, digest, &err), 0);
        ck_assert_str_eq(err.code, json_string_value(json_object_get(expected, "code")));
        ck_assert(strstr(err.message, json_string_value(json_object_get(expected, "kind"))));
        return;
    }
    ck_assert_str_eq(tensor->dtype_name, json_string_value(json_object_get(expected, "dtype")));
    ck_assert_uint_eq(tensor->rank, json_array_size(shape));
    for (unsigned i = 0; i < tensor->rank; i++)
        ck_assert_uint_eq(tensor->shape[i], (uint64_t)json_integer_value(json_array_get(shape, i)));
    ck_assert_uint_eq(tensor->bytes,
                      (uint64_t)json_integer_value(json_object_get(expected, "nbytes")));
    if (json_object_get(expected, "path"))
        check_path(tensor, json_object_get(expected, "path"));
    ck_assert_msg(sl_tensor_digest(index, tensor, true, digest, &err) == 0, "%s", err.message);
    sl_hex(digest, 32, hex);
    ck_assert_str_eq(hex, json_string_value(json_object_get(expected, "sha256")));
}

/* Tensors of such files lie in storages of their own, in their order. */
static void check_offsets(const struct sl_index *index, const json_t *offsets)
{
    for (size_t i = 0; i < json_object_size(offsets); i++) {
        char key[32];
        snprintf(key, sizeof(key), "%zu", i);
        ck_assert_uint_eq(index->tensors[i].begin,
                          (uint64_t)json_integer_value(json_object_get(offsets, key)));
    }
}

static void check_slice(struct sl_index *index, const json_t *expected)
{
    const json_t *ranges = json_object_get(expected, "slice");
    const char *name = json_string_value(json_object_get(expected, "name"));
    const struct sl_tensor *tensor = sl_index_find(index, name, strlen(name), NULL);
    struct sl_slice slice;
    struct sl_err err = SL_ERR_INIT;
    uint8_t digest[32];
    char hex[65];
    ck_assert(tensor != NULL);
    ck_assert_uint_eq(json_array_size(ranges), tensor->rank);
    for (unsigned i = 0; i < tensor->rank; i++) {
        const json_t *range = json_array_get(ranges, i);
        slice.begin[i] = (uint64_t)json_integer_value(json_array_get(range, 0));
        slice.end[i] = (uint64_t)json_integer_value(json_array_get(range, 1));
    }
    ck_assert_msg(sl_slice_digest(index, tensor, &slice, digest, &err) == 0, "%s", err.message);
    sl_hex(digest, 32, hex);
    ck_assert_str_eq(hex, json_string_value(json_object_get(expected, "sha256")));
}

static void check_index(struct sl_index *index, const json_t *expected)
{
    const json_t *tensors = json_object_get(expected, "tensors"),
                 *slices = json_object_get(expected, "slices");
    struct sl_err err = SL_ERR_INIT;
    ck_assert_uint_eq(index->tensor_count, json_array_size(tensors));
    for (size_t i = 0; i < json_array_size(tensors); i++)
        check_tensor(index, json_array_get(tensors, i));
    check_offsets(index, json_object_get(expected, "storage_offsets"));
    for (size_t i = 0; i < json_array_size(slices); i++)
        check_slice(index, json_array_get(slices, i));
    ck_assert_int_eq(sl_index_digest(index, true, ignore_digest, NULL, &err), 0);
}

/* Files are opened where they lie, so that indexes find their shards. */
static void check_golden(const char *file)
{
    char text[600];
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_index) index = NULL;
    struct sl_source *source = NULL;
    char *key = NULL;
    snprintf(text, sizeof(text), "pytorch/%s.expect.json", file);
    json_t *expected = golden_json(text);
    const json_t *trap = json_object_get(expected, "must_not_exist_after");
    snprintf(text, sizeof(text), "%s/golden/pytorch/%s", SL_TEST_DATA, file);
    ck_assert_msg(sl_store_open(text, NULL, &store, &key, &err) == 0, "%s", err.message);
    ck_assert(sl_source_open(store, key, SL_INDEX_HEAD_BYTES, &source, &err) == 0);
    int result = sl_format_index_strict(source, key, &index, &err);
    if (json_object_get(expected, "refusal")) {
        ck_assert_msg(result < 0, "%s is not refused", file);
        check_refusal(file, json_object_get(expected, "refusal"), &err);
    } else {
        ck_assert_msg(result == 0, "%s: %s", file, err.message);
        ck_assert_str_eq(index->format, "pytorch");
        check_index(index, expected);
    }
    if (trap)
        ck_assert_int_ne(access(json_string_value(trap), F_OK), 0);
    free(key);
    json_decref(expected);
}

SL_TEST(golden_files_are_read_exactly_or_refused_with_their_code)
{
    json_t *manifest = golden_json("pytorch/MANIFEST.json");
    const json_t *items = json_object_get(manifest, "items");
    ck_assert_uint_gt(json_array_size(items), 140);
    for (size_t i = 0; i < json_array_size(items); i++)
        check_golden(json_string_value(json_object_get(json_array_get(items, i), "file")));
    json_decref(manifest);
}

/* ---- damage ---------------------------------------------------------------------------------- */

enum { PREFIXES_MAX = 200 }; /* of the beginning, and as many up to the end */

static void check_prefixes(const char *file, size_t step)
{
    size_t bytes;
    uint8_t *data = read_checkpoint(file, &bytes);
    for (size_t length = 0; length < bytes;
         length += length < PREFIXES_MAX || length + PREFIXES_MAX > bytes ? SL_TEST_STEP : step) {
        struct sl_err err = SL_ERR_INIT;
        uint8_t *part = malloc(length + 1);
        memcpy(part, data, length);
        ck_assert_msg(index_and_digest(part, length, &err) < 0, "%zu bytes of %s are read", length,
                      file);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        free(part);
    }
    free(data);
}

SL_TEST(every_prefix_is_refused)
{
    check_prefixes("views.pt", SL_TEST_STEP);
    check_prefixes("legacy_0_4.pt", SL_TEST_STEP);
    check_prefixes("zip64_as_torch_writes.pt", SL_TEST_STEP);
}

SL_TEST(prefixes_of_every_file_are_refused)
{
    json_t *manifest = golden_json("pytorch/MANIFEST.json");
    const json_t *items = json_object_get(manifest, "items");
    for (size_t i = 0; i < json_array_size(items); i += SL_TEST_STEP) {
        const char *file = json_string_value(json_object_get(json_array_get(items, i), "file"));
        if (!strstr(file, ".json") && !strstr(file, "trailing"))
            check_prefixes(file, 97);
    }
    json_decref(manifest);
}

SL_TEST(every_damaged_byte_is_survived)
{
    static const char *const files[] = {"views.pt", "legacy_0_4.pt", "zip64_fields.pt"};
    static const uint8_t values[] = {0x00, 0x7f, 0xff};
    for (size_t f = 0; f < SL_COUNT(files); f++) {
        size_t bytes;
        uint8_t *data = read_checkpoint(files[f], &bytes);
        for (size_t i = 0; i < bytes && i < 6000; i += SL_TEST_STEP) {
            uint8_t kept = data[i];
            struct sl_err err = SL_ERR_INIT;
            data[i] = values[i % SL_COUNT(values)];
            if (index_and_digest(data, bytes, &err) < 0)
                ck_assert(err.kind == SL_E_FORMAT || err.kind == SL_E_INTEGRITY);
            data[i] = kept;
        }
        free(data);
    }
}

/* ---- failing calls --------------------------------------------------------------------------- */

struct object {
    const uint8_t *data;
    size_t bytes;
};

static int read_object(void *arg, struct sl_err *err)
{
    const struct object *object = arg;
    return index_and_digest(object->data, object->bytes, err);
}

static void check_failing(const char *file)
{
    struct object object;
    uint8_t *data = read_checkpoint(file, &object.bytes);
    object.data = data;
    ck_assert_uint_gt(golden_each_allocation(read_object, &object), 20);
    golden_each_read(read_object, &object);
    free(data);
}

SL_TEST(every_failing_allocation_and_read_is_reported)
{
    check_failing("noncontiguous.pt");
    check_failing("repacked_stored.pt");
    check_failing("legacy_0_4.pt");
    check_failing("big_endian.pt");
}

/* ---- loads ----------------------------------------------------------------------------------- */

SL_TEST(verbatim_loads_do_not_look_inside)
{
    static const char *const files[] = {"records_2_7.pt", "mal_os_system.pt", "legacy_0_4.pt"};
    static const size_t parts[] = {8, 3, 0}; /* entries with a checksum */
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        size_t bytes;
        uint8_t *data = read_checkpoint(files[i], &bytes);
        SL_AUTO(sl_store) store = NULL;
        struct sl_index *index = NULL;
        struct sl_source *source = NULL;
        struct sl_err err = SL_ERR_INIT;
        char *key = NULL;
        ck_assert_int_eq(sl_memory_put("x.bin", data, bytes, &err), 0);
        ck_assert_int_eq(sl_store_open("memory:x.bin", NULL, &store, &key, &err), 0);
        ck_assert_int_eq(sl_source_open(store, key, SL_INDEX_HEAD_BYTES, &source, &err), 0);
        ck_assert_int_eq(sl_format_index_files(source, NULL, &index, &err), 0);
        ck_assert_int_eq(index != NULL, parts[i] > 0);
        for (size_t k = 0; index && k < index->tensor_count; k++)
            ck_assert(index->tensors[k].part && index->tensors[k].hash_count == 1);
        ck_assert_uint_eq(index ? index->tensor_count : 0, parts[i]);
        sl_index_free(index);
        free(key);
        free(data);
    }
}

SL_TEST(other_archives_are_data)
{
    static const uint8_t zip[] = "PK\3\4\24\0\0\0\0\0 README.txt ............";
    SL_AUTO(sl_store) store = NULL;
    struct sl_index *index = NULL;
    struct sl_source *source = NULL;
    struct sl_err err = SL_ERR_INIT;
    char *key = NULL;
    ck_assert_int_eq(sl_memory_put("x.zip", zip, sizeof(zip), &err), 0);
    ck_assert_int_eq(sl_store_open("memory:x.zip", NULL, &store, &key, &err), 0);
    ck_assert_int_eq(sl_source_open(store, key, SL_INDEX_HEAD_BYTES, &source, &err), 0);
    ck_assert_int_eq(sl_format_index(source, &index, &err), 0);
    ck_assert_ptr_null(index);
    free(key);
}

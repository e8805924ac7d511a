/* The index itself: formats found from bytes, names, digests, slices, and models in several files.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "hash.h"
#include "memory_store.h"
#include "stores.h"

/* One tensor "t" of 5 x 4 x 3 bytes that count up, in a file; free() it. */
static uint8_t *cube_file(const char *dtype, const char *shape, size_t data_bytes, size_t *bytes)
{
    char json[256];
    int used = snprintf(json, sizeof(json),
                        "{\"t\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[0,%zu]}}", dtype,
                        shape, data_bytes);
    *bytes = 8 + (size_t)used + data_bytes;
    uint8_t *data = malloc(*bytes);
    sl_put_le64(data, (uint64_t)used);
    memcpy(data + 8, json, (size_t)used);
    for (size_t i = 0; i < data_bytes; i++)
        data[8 + used + i] = (uint8_t)(i * 7 + i / 256);
    return data;
}

/* ---- formats --------------------------------------------------------------------------------- */

static int index_bytes(const char *name, const void *data, size_t bytes, bool strict,
                       struct sl_index **index, struct sl_store **store, struct sl_err *err)
{
    char *key;
    char uri[128];
    struct sl_source *source;
    snprintf(uri, sizeof(uri), "memory:%s", name);
    ck_assert_int_eq(sl_memory_put(name, data, bytes, NULL), 0);
    ck_assert_int_eq(sl_store_open(uri, NULL, store, &key, err), 0);
    ck_assert_int_eq(sl_source_open(*store, key, SL_INDEX_HEAD_BYTES, &source, err), 0);
    free(key);
    return strict ? sl_format_index_strict(source, name, index, err)
                  : sl_format_index(source, index, err);
}

SL_TEST(the_format_is_found_from_bytes_not_from_the_name)
{
    size_t bytes;
    uint8_t *data = cube_file("U8", "[5,4,3]", 60, &bytes);
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_index) index = NULL;
    ck_assert_int_eq(index_bytes("model.tensors", data, bytes, false, &index, &store, NULL), 0);
    ck_assert_str_eq(index->format, "safetensors");
    free(data);
}

SL_TEST(unknown_bytes_are_no_index_or_refused_if_asked)
{
    static const char text[] = "{\"hidden_size\": 4096, \"weight_map\": 1}";
    for (int strict = 0; strict <= 1; strict++) {
        SL_AUTO(sl_store) store = NULL;
        SL_AUTO(sl_index) index = NULL;
        struct sl_err err = SL_ERR_INIT;
        int result = index_bytes("config.json", text, strlen(text), strict, &index, &store, &err);
        ck_assert_int_eq(result, -strict);
        ck_assert_ptr_null(index);
        ck_assert_str_eq(err.code, strict ? "E_UNKNOWN" : "");
    }
}

SL_TEST(an_empty_object_is_of_no_format)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_index) index = NULL;
    ck_assert_int_eq(index_bytes("empty", "", 0, false, &index, &store, NULL), 0);
    ck_assert_ptr_null(index);
}

/* "There is none" is said only where it is known. */
SL_TEST(a_name_that_is_not_there_is_told_from_memory_that_is_not_there)
{
    size_t bytes;
    uint8_t *data = cube_file("U8", "[5,4,3]", 60, &bytes);
    struct sl_err err = SL_ERR_INIT;
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_index) index = NULL;
    ck_assert_int_eq(index_bytes("m", data, bytes, false, &index, &store, NULL), 0);
    sl_alloc_fail_at(1);
    const struct sl_tensor *found = sl_index_find(index, "t", 1, &err);
    sl_alloc_fail_at(0);
    ck_assert_ptr_null(found);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    ck_assert_ptr_nonnull(sl_index_find(index, "t", 1, NULL));
    ck_assert_ptr_null(sl_index_find(index, "u", 1, &err));
    ck_assert_int_eq(err.kind, SL_E_NOT_FOUND);
    free(data);
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* SHA-256 of data[x][y][z] of a 5 x 4 x 3 cube of items of `item` bytes, the slow way. */
static void slow_digest(const uint8_t *data, size_t item, const struct sl_slice *slice,
                        uint8_t digest[32])
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    for (uint64_t x = slice->begin[0]; x < slice->end[0]; x++)
        for (uint64_t y = slice->begin[1]; y < slice->end[1]; y++)
            for (uint64_t z = slice->begin[2]; z < slice->end[2]; z++)
                sl_sha256_update(sha, data + ((x * 4 + y) * 3 + z) * item, item);
    sl_sha256_finish(sha, digest);
}

SL_TEST(every_slice_of_a_cube_is_what_the_slow_way_says)
{
    size_t bytes;
    uint8_t *data = cube_file("F32", "[5,4,3]", 240, &bytes);
    struct golden_open open;
    ck_assert_int_eq(golden_index(&open, "x.safetensors", data, bytes, NULL), 0);
    const struct sl_tensor *tensor = &open.index->tensors[0];
    struct sl_slice slice;
    for (unsigned code = 0; code < 5 * 6 * 4 * 5 * 3 * 4; code++) {
        unsigned c = code;
        slice.begin[0] = c % 5, c /= 5, slice.end[0] = c % 6, c /= 6;
        slice.begin[1] = c % 4, c /= 4, slice.end[1] = c % 5, c /= 5;
        slice.begin[2] = c % 3, c /= 3, slice.end[2] = c % 4;
        if (slice.begin[0] > slice.end[0] || slice.begin[1] > slice.end[1] ||
            slice.begin[2] > slice.end[2])
            continue;
        uint8_t fast[32], slow[32];
        ck_assert_int_eq(sl_slice_digest(open.index, tensor, &slice, fast, NULL), 0);
        slow_digest(data + tensor->begin, 4, &slice, slow);
        ck_assert_mem_eq(fast, slow, 32);
    }
    golden_release(&open);
    free(data);
}

SL_TEST(a_slice_fetches_only_what_it_needs)
{
    size_t bytes;
    uint8_t *data = cube_file("U8", "[100,100000]", 10000000, &bytes);
    struct golden_open open;
    struct sl_slice slice;
    uint8_t digest[32], expected[32];
    ck_assert_int_eq(golden_index(&open, "x.safetensors", data, bytes, NULL), 0);
    const struct sl_tensor *tensor = &open.index->tensors[0];
    uint64_t object_bytes, requests, before, after;
    sl_index_counts(open.index, &object_bytes, &requests, &before);
    ck_assert_int_eq(sl_slice_parse("t[50:53,90000:90010]", tensor, &slice, NULL), 0);
    ck_assert_int_eq(sl_slice_digest(open.index, tensor, &slice, digest, NULL), 0);
    sl_index_counts(open.index, &object_bytes, &requests, &after);
    ck_assert_uint_eq(after - before, 30);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    for (size_t row = 50; row < 53; row++)
        sl_sha256_update(sha, data + tensor->begin + row * 100000 + 90000, 10);
    sl_sha256_finish(sha, expected);
    ck_assert_mem_eq(digest, expected, 32);
    golden_release(&open);
    free(data);
}

SL_TEST(slices_are_parsed_strictly)
{
    static const uint64_t shape[] = {5, 4, 3};
    const struct sl_tensor tensor = {.rank = 3, .shape = shape, .dtype = SL_DTYPE_U8};
    static const struct {
        const char *text, *code;
        int kind; /* 0: good */
    } cases[] = {
        {"t[0:4,:,2:]", "", 0},
        {"t[]", "", 0},
        {"t[:,:3]", "", 0},
        {"a[1][2]", "", 0},
        {"t[0:5]", "", 0},
        {"t[0:6]", "st.slice", SL_E_FORMAT},
        {"t[3:2]", "st.slice", SL_E_FORMAT},
        {"t[5:5]", "st.slice", SL_E_FORMAT},
        {"t[:,:,:,:]", "st.slice", SL_E_FORMAT},
        {"t[5]", "st.slice", SL_E_FORMAT},
        {"t", "", SL_E_USAGE},
        {"t[a]", "", SL_E_USAGE},
        {"t[1:2:3]", "", SL_E_USAGE},
        {"t[-1:]", "", SL_E_USAGE},
        {"t[18446744073709551616]", "", SL_E_USAGE},
        {"t[0:18446744073709551615]", "st.slice", SL_E_FORMAT},
        {"t[0,,1]", "", SL_E_USAGE},
        {"", "", SL_E_USAGE},
    };
    for (unsigned i = 0; i < SL_COUNT(cases); i++) {
        struct sl_slice slice;
        struct sl_err err = SL_ERR_INIT;
        int result = sl_slice_parse(cases[i].text, &tensor, &slice, &err);
        ck_assert_msg((int)err.kind == cases[i].kind && result == (cases[i].kind ? -1 : 0),
                      "%s: %s", cases[i].text, err.message);
        ck_assert_str_eq(err.code, cases[i].code);
    }
    ck_assert_uint_eq(sl_slice_name_bytes("a[1][2]"), 4);
    ck_assert_uint_eq(sl_slice_name_bytes("plain"), 5);
}

/* ---- models in several files ----------------------------------------------------------------- */

/* Put a golden folder's files as FOLDER/NAME; data[] is freed by the caller. */
static unsigned put_folder(const char *folder, const char *const *names, uint8_t **data,
                           char (*keys)[128])
{
    unsigned count = 0;
    for (; names[count]; count++) {
        char path[256];
        size_t bytes;
        snprintf(path, sizeof(path), "safetensors/%s/%s", folder, names[count]);
        snprintf(keys[count], 128, "%s/%s", folder, names[count]);
        data[count] = golden_read(path, &bytes);
        ck_assert_int_eq(sl_memory_put(keys[count], data[count], bytes, NULL), 0);
    }
    return count;
}

static void check_model(const char *folder, const char *const *names)
{
    uint8_t *data[8];
    char keys[8][128], path[256];
    unsigned count = put_folder(folder, names, data, keys);
    size_t bytes;
    snprintf(path, sizeof(path), "safetensors/%s/%s", folder, names[0]);
    uint8_t *index_data = golden_read(path, &bytes);
    snprintf(path, sizeof(path), "safetensors/%s/%s.expect.json", folder, names[0]);
    json_t *expected = golden_json(path);
    const json_t *refusal = json_object_get(expected, "refusal");
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    int result = golden_index(&open, keys[0], index_data, bytes, &err);
    ck_assert_msg(result == (refusal ? -1 : 0), "%s: %s", folder, err.message);
    if (refusal) {
        ck_assert_str_eq(err.code, json_string_value(json_object_get(refusal, "code")));
        const json_t *mention = json_object_get(refusal, "must_mention");
        for (size_t i = 0; i < json_array_size(mention); i++)
            ck_assert_ptr_nonnull(
                strstr(err.message, json_string_value(json_array_get(mention, i))));
    } else {
        ck_assert(golden_same(open.index, json_object_get(expected, "tensors"), true, true));
    }
    golden_release(&open);
    json_decref(expected);
    free(index_data);
    for (unsigned i = 0; i < count; i++)
        free(data[i]);
    sl_memory_clear();
}

static const char index_name[] = "model.safetensors.index.json";

SL_TEST(golden_models_of_several_files_are_read_exactly_or_refused)
{
    check_model("sharded", (const char *const[]){index_name, "model-00001-of-00003.safetensors",
                                                 "model-00002-of-00003.safetensors",
                                                 "model-00003-of-00003.safetensors", NULL});
    check_model("idx_bad_shard", (const char *const[]){index_name, "m1.safetensors", NULL});
    check_model("idx_duplicate_key", (const char *const[]){index_name, "m1.safetensors", NULL});
    check_model("idx_empty_file", (const char *const[]){index_name, NULL});
    check_model("idx_missing_shard", (const char *const[]){index_name, "m1.safetensors", NULL});
    check_model("idx_missing_tensor", (const char *const[]){index_name, "m1.safetensors", NULL});
    check_model("idx_traversal", (const char *const[]){index_name, NULL});
    check_model("idx_url", (const char *const[]){index_name, NULL});
}

static const char *map_code(const char *json)
{
    static struct sl_err err;
    struct golden_open open;
    err = (struct sl_err)SL_ERR_INIT;
    golden_index(&open, index_name, json, strlen(json), &err);
    golden_release(&open);
    return err.code;
}

SL_TEST(hostile_shard_names_are_refused)
{
    static const char *const names[] = {"",
                                        "/etc/passwd",
                                        "..",
                                        "a/../b",
                                        "./a",
                                        "a//b",
                                        "a/",
                                        "a\\\\b",
                                        "a\\u0000b",
                                        "C:x",
                                        "s3://b/k",
                                        "a\\nb",
                                        "x.safetensors.index.json",
                                        "a/."};
    for (unsigned i = 0; i < SL_COUNT(names); i++) {
        char json[256];
        snprintf(json, sizeof(json), "{\"weight_map\": {\"t\": \"%s\"}}", names[i]);
        ck_assert_msg(strcmp(map_code(json), "idx.path") == 0, "%s: %s", names[i], map_code(json));
    }
}

SL_TEST(malformed_maps_are_refused)
{
    static const char *const maps[] = {"{",
                                       "{}",
                                       "{\"weight_map\": []}",
                                       "{\"weight_map\": {\"a\": 1}}",
                                       "{\"weight_map\": {\"a\": {}}}",
                                       "{\"weight_map\": {}} x",
                                       "{\"weight_map\": {}, \"weight_map\": {}}",
                                       "{\"weight_map\": {\"a\": \"x\", \"\\u0061\": \"y\"}}"};
    for (unsigned i = 0; i < SL_COUNT(maps); i++)
        ck_assert_msg(strcmp(map_code(maps[i]), "idx.json") == 0, "%s: %s", maps[i],
                      map_code(maps[i]));
    ck_assert_str_eq(map_code("{\"weight_map\": {}, \"metadata\": {\"total_size\": 1.5}}"), "");
}

SL_TEST(a_shard_that_is_not_there_is_named)
{
    ck_assert_str_eq(map_code("{\"weight_map\": {\"a\": \"gone.safetensors\"}}"),
                     "idx.missing-shard");
}

static int read_sharded(void *arg, struct sl_err *err)
{
    struct sl_span *span = arg;
    struct golden_open open;
    char key[128];
    snprintf(key, sizeof(key), "sharded/%s", index_name);
    int result = golden_index(&open, key, span->data, span->bytes, err);
    golden_release(&open);
    return result;
}

SL_TEST(every_failing_call_of_a_sharded_model_is_reported)
{
    const char *const names[] = {index_name, "model-00001-of-00003.safetensors",
                                 "model-00002-of-00003.safetensors",
                                 "model-00003-of-00003.safetensors", NULL};
    uint8_t *data[8];
    char keys[8][128];
    unsigned count = put_folder("sharded", names, data, keys);
    struct sl_span span;
    char path[256];
    snprintf(path, sizeof(path), "safetensors/sharded/%s", index_name);
    span.data = golden_read(path, &span.bytes);
    ck_assert_uint_gt(golden_each_allocation(read_sharded, &span), 20);
    ck_assert_uint_eq(golden_each_read(read_sharded, &span), 4);
    free(span.data);
    for (unsigned i = 0; i < count; i++)
        free(data[i]);
    sl_memory_clear();
}

/* safetensors: every golden file exactly, every prefix of it, limits and one past, every failing
 * call. */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"

/* A file of this header text and `data_bytes` bytes 0, 1, 2, …; free() it. */
static uint8_t *make_file(const char *json, size_t data_bytes, size_t *bytes)
{
    size_t json_bytes = strlen(json);
    *bytes = 8 + json_bytes + data_bytes;
    uint8_t *data = malloc(*bytes);
    sl_put_le64(data, json_bytes);
    memcpy(data + 8, json, json_bytes);
    for (size_t i = 0; i < data_bytes; i++)
        data[8 + json_bytes + i] = (uint8_t)i;
    return data;
}

/* The code that a file of this header is refused with, "" if it is not. */
static const char *code_of(const char *json, size_t data_bytes)
{
    static struct sl_err err;
    struct golden_open open;
    size_t bytes;
    uint8_t *data = make_file(json, data_bytes, &bytes);
    err = (struct sl_err)SL_ERR_INIT;
    int result = golden_index(&open, "x.safetensors", data, bytes, &err);
    ck_assert(result == 0 || err.code[0]);
    golden_release(&open);
    free(data);
    return err.code;
}

static bool holds(const json_t *list, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), text) == 0)
            return true;
    return false;
}

/* ---- golden files ---------------------------------------------------------------------------- */

static void check_refusal(const char *name, const json_t *refusal, const struct sl_err *err)
{
    ck_assert_msg(holds(json_object_get(refusal, "accept_codes"), err->code), "%s: %s %s", name,
                  err->code, err->message);
    ck_assert_msg(strcmp(json_string_value(json_object_get(refusal, "code")), err->code) == 0,
                  "%s: %s", name, err->code);
    ck_assert_int_eq(sl_err_exit(err), 10);
    const json_t *mention = json_object_get(refusal, "must_mention");
    for (size_t i = 0; i < json_array_size(mention); i++)
        ck_assert_msg(strstr(err->message, json_string_value(json_array_get(mention, i))) != NULL,
                      "%s: %s", name, err->message);
}

static void check_slices(struct sl_index *index, const json_t *slices)
{
    for (size_t i = 0; i < json_array_size(slices); i++) {
        const json_t *expected = json_array_get(slices, i),
                     *ranges = json_object_get(expected, "slice");
        char text[256], hex[65] = "";
        int used = snprintf(text, sizeof(text), "%s[",
                            json_string_value(json_object_get(expected, "name")));
        for (size_t k = 0; k < json_array_size(ranges); k++) {
            const json_t *range = json_array_get(ranges, k);
            used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%d:%d", k ? "," : "",
                             (int)json_integer_value(json_array_get(range, 0)),
                             (int)json_integer_value(json_array_get(range, 1)));
        }
        snprintf(text + used, sizeof(text) - (size_t)used, "]");
        const struct sl_tensor *tensor =
            sl_index_find(index, text, sl_slice_name_bytes(text), NULL);
        struct sl_slice slice;
        struct sl_err err = SL_ERR_INIT;
        uint8_t digest[32];
        ck_assert(tensor && sl_slice_parse(text, tensor, &slice, &err) == 0);
        int result = sl_slice_digest(index, tensor, &slice, digest, &err);
        if (json_object_get(expected, "expect")) {
            ck_assert_int_lt(result, 0);
            ck_assert_str_eq(err.code, json_string_value(json_object_get(expected, "code")));
            continue;
        }
        ck_assert_msg(result == 0, "%s: %s", text, err.message);
        sl_hex(digest, 32, hex);
        ck_assert_str_eq(hex, json_string_value(json_object_get(expected, "sha256")));
    }
}

static void check_golden(const char *file)
{
    char name[300];
    snprintf(name, sizeof(name), "safetensors/%s", file);
    size_t bytes;
    uint8_t *data = golden_read(name, &bytes);
    snprintf(name, sizeof(name), "safetensors/%s.expect.json", file);
    json_t *expected = golden_json(name);
    const json_t *refusal = json_object_get(expected, "refusal");
    struct sl_err err = SL_ERR_INIT;
    struct golden_open open;
    int result = golden_index(&open, file, data, bytes, &err);
    if (refusal) {
        ck_assert_msg(result < 0, "%s is not refused", file);
        check_refusal(file, refusal, &err);
    } else {
        ck_assert_msg(result == 0, "%s: %s", file, err.message);
        ck_assert_msg(golden_same(open.index, json_object_get(expected, "tensors"), true, true),
                      "%s", file);
        check_slices(open.index, json_object_get(expected, "slices"));
    }
    golden_release(&open);
    json_decref(expected);
    free(data);
}

/* The single files of the manifest. */
SL_TEST(golden_files_are_read_exactly_or_refused_with_their_code)
{
    json_t *manifest = golden_json("safetensors/MANIFEST.json");
    const json_t *items = json_object_get(manifest, "items");
    unsigned checked = 0;
    for (size_t i = 0; i < json_array_size(items); i++) {
        const char *file = json_string_value(json_object_get(json_array_get(items, i), "file"));
        if (strchr(file, '/'))
            continue;
        check_golden(file);
        checked++;
    }
    ck_assert_uint_ge(checked, 83);
    json_decref(manifest);
}

/* Of large files only the prefixes that end inside the header and around its end, and some of the
 * data. */
static void check_prefixes(const char *file)
{
    char name[300];
    snprintf(name, sizeof(name), "safetensors/%s", file);
    size_t bytes;
    uint8_t *data = golden_read(name, &bytes);
    size_t step = bytes > 4096 ? 37 : 1;
    for (size_t cut = 0; cut < bytes; cut += step) {
        uint8_t *prefix = malloc(cut + 1);
        memcpy(prefix, data, cut);
        struct golden_open open;
        struct sl_err err = SL_ERR_INIT;
        ck_assert_msg(golden_index(&open, "x.safetensors", prefix, cut, &err) < 0, "%s, %zu bytes",
                      file, cut);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        ck_assert_msg(strncmp(err.code, "st.", 3) == 0, "%s, %zu bytes: %s %s", file, cut, err.code,
                      err.message);
        golden_release(&open);
        free(prefix);
    }
    free(data);
}

SL_TEST(every_prefix_is_refused)
{
    static const char *const files[] = {
        "dtypes.safetensors",     "header_order.safetensors", "names_escaped.safetensors",
        "names_utf8.safetensors", "no_tensors.safetensors",   "only_metadata.safetensors",
        "shapes.safetensors",     "unaligned.safetensors",    "unknown_field.safetensors",
        "many.safetensors",       "page_aligned.safetensors", "metadata_null.safetensors"};
    for (unsigned i = 0; i < SL_COUNT(files); i++)
        check_prefixes(files[i]);
}

/* ---- limits and one past --------------------------------------------------------------------- */

SL_TEST(the_header_length_is_limited)
{
    uint8_t data[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    static const struct {
        uint64_t length;
        const char *code;
    } cases[] = {{2, ""},
                 {1, "st.json"},
                 {3, "st.header-length"},
                 {100000000, "st.header-length"},
                 {100000001, "st.header-too-large"},
                 {UINT64_MAX - 7, "st.header-too-large"},
                 {UINT64_MAX, "st.header-too-large"}};
    for (unsigned i = 0; i < SL_COUNT(cases); i++) {
        struct golden_open open;
        struct sl_err err = SL_ERR_INIT;
        sl_put_le64(data, cases[i].length);
        golden_index(&open, "x.safetensors", data, sizeof(data), &err);
        ck_assert_str_eq(err.code, cases[i].code);
        golden_release(&open);
    }
}

SL_TEST(numbers_have_64_bits)
{
    ck_assert_str_eq(code_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4),
                     "");
    ck_assert_str_eq(
        code_of(
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615,0],\"data_offsets\":[0,0]}}",
            0),
        "");
    ck_assert_str_eq(
        code_of(
            "{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551616],\"data_offsets\":[0,0]}}",
            0),
        "st.tensor-info");
    ck_assert_str_eq(
        code_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551615],\"data_offsets\":[0,"
                "18446744073709551615]}}",
                0),
        "st.overflow");
    ck_assert_str_eq(
        code_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[2305843009213693951],\"data_offsets\":[0,"
                "2305843009213693951]}}",
                4),
        "st.incomplete");
    ck_assert_str_eq(
        code_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[18446744073709551615,"
                "18446744073709551615]}}",
                0),
        "st.offset");
}

SL_TEST(nesting_is_limited_to_64_levels)
{
    for (int levels = 62; levels <= 63; levels++) { /* two levels are the header and the entry */
        char text[512] = "{\"a\":{\"x\":", *at = text + strlen(text);
        memset(at, '[', (size_t)levels);
        memset(at + levels, ']', (size_t)levels);
        snprintf(at + 2 * levels, 100, ",\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}");
        ck_assert_str_eq(code_of(text, 1), levels == 62 ? "" : "st.json");
    }
}

SL_TEST(duplicates_are_found_at_every_level)
{
    static const char entry[] = "\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]";
    static const struct {
        const char *format, *code;
    } cases[] = {
        {"{\"a\":{%s,\"x\":1,\"y\":1}}", ""},
        {"{\"a\":{%s,\"x\":1,\"x\":1}}", "st.duplicate-key"},
        {"{\"a\":{%s,\"x\":{\"p\":1},\"y\":{\"p\":1}}}", ""},
        {"{\"a\":{%s,\"x\":[{},{},{\"p\":1}],\"y\":{\"p\":1}}}", ""},
        {"{\"a\":{%s,\"x\":[{\"p\":1,\"p\":2}]}}", "st.duplicate-key"},
        {"{\"a\":{%s,\"x\":[{\"p\":1,\"\\u0070\":2}]}}", "st.duplicate-key"},
        {"{\"a\":{%s,\"shape\":[]}}", "st.duplicate-key"},
        {"{\"__metadata__\":{\"a\":\"1\",\"b\":\"2\",\"a\":\"3\"},\"a\":{%s}}", "st.duplicate-key"},
        {"{\"__metadata__\":{},\"a\":{%s},\"__metadata__\":null}", "st.duplicate-key"},
        {"{\"a\":{%s},\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]}}",
         "st.duplicate-key"},
    };
    for (unsigned i = 0; i < SL_COUNT(cases); i++) {
        char text[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(text, sizeof(text), cases[i].format, entry);
#pragma GCC diagnostic pop
        ck_assert_msg(strcmp(code_of(text, 1), cases[i].code) == 0, "%s: %s", text,
                      code_of(text, 1));
    }
}

/* ---- size and requests ----------------------------------------------------------------------- */

/* A header of `count` scalar tensors, in the reverse order of their data. */
static uint8_t *many_tensors(unsigned count, size_t *bytes)
{
    size_t capacity = 64 + (size_t)count * 96, used = 1;
    char *text = malloc(capacity);
    text[0] = '{';
    for (unsigned i = count; i-- > 0;)
        used += (size_t)snprintf(text + used, capacity - used,
                                 "%s\"model.layers.%u.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                                 "\"data_offsets\":[%u,%u]}",
                                 i + 1 < count ? "," : "", i, i, i + 1);
    snprintf(text + used, capacity - used, "}");
    uint8_t *data = make_file(text, count, bytes);
    free(text);
    return data;
}

SL_TEST(a_hundred_thousand_tensors_take_two_requests)
{
    size_t bytes;
    uint8_t *data = many_tensors(100000, &bytes);
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    clock_t begin = clock();
    ck_assert_msg(golden_index(&open, "x.safetensors", data, bytes, &err) == 0, "%s", err.message);
    double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
    ck_assert_double_lt(took, 10); /* of processor time: 0.1 s here, sanitizers take longer */
    uint64_t object_bytes, requests, read_bytes;
    sl_index_counts(open.index, &object_bytes, &requests, &read_bytes);
    ck_assert_uint_eq(requests, 2);
    ck_assert_uint_le(read_bytes, bytes - 100000 + 8);
    ck_assert_uint_eq(open.index->tensor_count, 100000);
    const struct sl_tensor *tensor =
        sl_index_find(open.index, "model.layers.77777.weight", 25, NULL);
    ck_assert(tensor && tensor->end - tensor->begin == 1 && data[tensor->begin] == (uint8_t)77777);
    golden_release(&open);
    free(data);
}

SL_TEST(a_header_in_the_first_128_kib_takes_one_request)
{
    size_t bytes;
    uint8_t *data = many_tensors(1000, &bytes);
    struct golden_open open;
    ck_assert_int_eq(golden_index(&open, "x.safetensors", data, bytes, NULL), 0);
    uint64_t object_bytes, requests, read_bytes;
    sl_index_counts(open.index, &object_bytes, &requests, &read_bytes);
    ck_assert_uint_eq(requests, 1);
    golden_release(&open);
    free(data);
}

/* ---- failing calls --------------------------------------------------------------------------- */

struct object {
    const uint8_t *data;
    size_t bytes;
};

static int index_and_digest(void *arg, struct sl_err *err)
{
    const struct object *object = arg;
    struct golden_open open;
    uint8_t digest[32];
    int result = golden_index(&open, "x.safetensors", object->data, object->bytes, err);
    if (result == 0)
        result = sl_tensor_digest(open.index, &open.index->tensors[0], true, digest, err);
    golden_release(&open);
    return result;
}

SL_TEST(every_failing_allocation_is_reported)
{
    struct object object;
    uint8_t *data = golden_read("safetensors/shapes.safetensors", &object.bytes);
    object.data = data;
    ck_assert_uint_gt(golden_each_allocation(index_and_digest, &object), 10);
    free(data);
}

SL_TEST(every_failing_read_is_reported)
{
    struct object object;
    uint8_t *data = many_tensors(3000, &object.bytes);
    object.data = data;
    ck_assert_uint_ge(golden_each_read(index_and_digest, &object), 3);
    free(data);
}

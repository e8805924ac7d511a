/* GGUF: every golden file exactly, every prefix, every length at its limit and one past, sets,
 * every failing call. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "gguf_maker.h"
#include "golden.h"
#include "hash.h"

enum { U8 = 0, I16 = 3, U32 = 4, F32 = 6, BOOL = 7, STRING = 8, ARRAY = 9, U64 = 10, I64 = 11 };
enum { GGML_F32 = 0, GGML_Q8_0 = 8, GGML_I8 = 24, TYPES_KNOWN = 35 };

/* ---- making files ---------------------------------------------------------------------------- */

/* The code that the file is refused with, "" if it is not. Releases it. */
static const char *code_of(struct sl_buf *file)
{
    static struct sl_err err;
    struct golden_open open;
    err = (struct sl_err)SL_ERR_INIT;
    int result = golden_index(&open, "x.gguf", file->data, file->used, &err);
    ck_assert(result == 0 || err.code[0]);
    golden_release(&open);
    sl_buf_release(file);
    return err.code;
}

/* A file of one tensor and 64 bytes. */
static const char *code_of_tensor(const char *name, unsigned rank, const uint64_t *ne,
                                  uint32_t type)
{
    struct sl_buf file;
    begin(&file, 1, 0);
    put_tensor(&file, name, rank, ne, type, 0);
    put_zeros(&file, 31 + 64);
    return code_of(&file);
}

/* ---- golden files ---------------------------------------------------------------------------- */

static bool holds(const json_t *list, const char *text)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(json_string_value(json_array_get(list, i)), text) == 0)
            return true;
    return false;
}

static void check_refusal(const char *name, const json_t *refusal, const struct sl_err *err)
{
    ck_assert_msg(holds(json_object_get(refusal, "accept_codes"), err->code), "%s: %s %s", name,
                  err->code, err->message);
    ck_assert_int_eq(sl_err_exit(err), 10);
    const json_t *mention = json_object_get(refusal, "must_mention");
    for (size_t i = 0; i < json_array_size(mention); i++)
        ck_assert_msg(strstr(err->message, json_string_value(json_array_get(mention, i))) != NULL,
                      "%s: %s", name, err->message);
}

static void check_dtypes(const struct sl_index *index, const json_t *tensors)
{
    for (size_t i = 0; i < index->tensor_count; i++)
        ck_assert_str_eq(index->tensors[i].dtype_name,
                         json_string_value(json_object_get(json_array_get(tensors, i), "dtype")));
}

static void check_golden(const char *file)
{
    char name[300];
    size_t bytes;
    snprintf(name, sizeof(name), "gguf/%s", file);
    uint8_t *data = golden_read(name, &bytes);
    snprintf(name, sizeof(name), "gguf/%s.expect.json", file);
    json_t *expected = golden_json(name);
    const json_t *refusal = json_object_get(expected, "refusal"),
                 *tensors = json_object_get(expected, "tensors"),
                 *split = json_object_get(expected, "split");
    struct sl_err err = SL_ERR_INIT;
    struct golden_open open;
    int result = golden_index(&open, file, data, bytes, &err);
    ck_assert_msg((result < 0) == (refusal != NULL), "%s: %s", file, err.message);
    if (refusal) {
        check_refusal(file, refusal, &err);
    } else {
        ck_assert_msg(golden_same(open.index, tensors, true, true), "%s", file);
        check_dtypes(open.index, tensors);
        ck_assert_uint_eq(open.index->part.count,
                          (unsigned)json_integer_value(json_object_get(split, "count")));
        ck_assert_uint_eq(open.index->part.number,
                          (unsigned)json_integer_value(json_object_get(split, "no")));
    }
    golden_release(&open);
    json_decref(expected);
    free(data);
}

SL_TEST(golden_files_are_read_exactly_or_refused_with_their_code)
{
    json_t *manifest = golden_json("gguf/MANIFEST.json");
    const json_t *items = json_object_get(manifest, "items");
    ck_assert_uint_eq(json_array_size(items), 85);
    for (size_t i = 0; i < json_array_size(items); i++)
        check_golden(json_string_value(json_object_get(json_array_get(items, i), "file")));
    json_decref(manifest);
}

static void check_prefix(const char *file, const uint8_t *data, size_t cut)
{
    uint8_t *prefix = malloc(cut + 1);
    memcpy(prefix, data, cut);
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(golden_index(&open, "x.gguf", prefix, cut, &err) < 0, "%s, %zu bytes", file, cut);
    ck_assert_msg(strcmp(err.code, "gg.truncated") == 0 || strcmp(err.code, "gg.bounds") == 0,
                  "%s, %zu bytes: %s %s", file, cut, err.code, err.message);
    golden_release(&open);
    free(prefix);
}

SL_TEST(every_prefix_is_refused)
{
    static const char *const files[] = {"all_kv",   "all_types", "dims",     "names",
                                        "version2", "align8",    "trailing", "no_tail_padding"};
    for (unsigned i = 0; i < SL_COUNT(files); i++) {
        char name[300];
        size_t bytes;
        snprintf(name, sizeof(name), "gguf/%s.gguf", files[i]);
        uint8_t *data = golden_read(name, &bytes);
        struct golden_open open;
        ck_assert_int_eq(golden_index(&open, "x.gguf", data, bytes, NULL), 0);
        uint64_t end = open.index->tensors[open.index->tensor_count - 1].end;
        golden_release(&open);
        for (size_t cut = 0; cut < end; cut++)
            check_prefix(files[i], data, cut);
        free(data);
    }
}

/* Every byte of a header, changed three ways: refused with a code of the format, or read. */
SL_TEST(no_damaged_byte_does_harm)
{
    static const char *const files[] = {"align64", "dims", "split/model-00002-of-00003"};
    static const uint8_t changes[] = {1, 0xff, 0x80};
    for (unsigned i = 0; i < SL_COUNT(files); i++) {
        char name[300];
        size_t bytes;
        snprintf(name, sizeof(name), "gguf/%s.gguf", files[i]);
        uint8_t *data = golden_read(name, &bytes);
        for (size_t k = 0; k < bytes * SL_COUNT(changes); k++) {
            struct golden_open open;
            struct sl_err err = SL_ERR_INIT;
            data[k % bytes] = (uint8_t)(data[k % bytes] + changes[k / bytes]);
            int result = golden_index(&open, "x.gguf", data, bytes, &err);
            ck_assert_msg(result == 0 || strncmp(err.code, "gg.", 3) == 0, "%s", err.message);
            golden_release(&open);
            data[k % bytes] = (uint8_t)(data[k % bytes] - changes[k / bytes]);
        }
        free(data);
    }
}

/* ---- limits and one past --------------------------------------------------------------------- */

SL_TEST(counts_and_lengths_are_limited)
{
    static const struct {
        uint64_t tensors, keys;
        const char *code;
    } counts[] = {{1 << 20, 0, "gg.truncated"},
                  {(1 << 20) + 1, 0, "gg.limit"},
                  {0, 1 << 20, "gg.truncated"},
                  {0, (1 << 20) + 1, "gg.limit"}};
    static const struct {
        uint32_t type;
        uint64_t length;
        const char *code;
    } values[] = {{STRING, 64 << 20, "gg.truncated"},
                  {STRING, (64 << 20) + 1, "gg.limit"},
                  {U8, 64 << 20, "gg.truncated"},
                  {U8, (64 << 20) + 1, "gg.limit"},
                  {U8, 16, ""},
                  {U8, 17, "gg.truncated"},
                  {U64, 2, ""},
                  {U64, 3, "gg.truncated"},
                  {STRING, 16, ""},
                  {BOOL, 16, ""}};
    struct sl_buf file;
    for (unsigned i = 0; i < SL_COUNT(counts); i++) {
        begin(&file, counts[i].tensors, counts[i].keys);
        ck_assert_str_eq(code_of(&file), counts[i].code);
    }
    for (unsigned i = 0; i < SL_COUNT(values); i++) {
        begin(&file, 0, 1);
        put_string(&file, "k");
        put_number(&file, values[i].type == STRING ? STRING : ARRAY, 4);
        if (values[i].type != STRING)
            put_number(&file, values[i].type, 4);
        put_number(&file, values[i].length, 8);
        put_zeros(&file, 16);
        ck_assert_str_eq(code_of(&file), values[i].code);
    }
}

SL_TEST(keys_and_names_are_limited)
{
    static const uint64_t ne[] = {4};
    char *text = calloc(1, 65537);
    for (size_t bytes = 65535; bytes <= 65536; bytes++) {
        struct sl_buf file;
        memset(text, 'k', bytes);
        begin(&file, 0, 1);
        put_key(&file, text, U32, 1, 4);
        ck_assert_str_eq(code_of(&file), bytes == 65535 ? "" : "gg.key");
    }
    memset(text, 0, 65536);
    memset(text, 'n', 63);
    ck_assert_str_eq(code_of_tensor(text, 1, ne, GGML_F32), "");
    text[63] = 'n';
    ck_assert_str_eq(code_of_tensor(text, 1, ne, GGML_F32), "gg.name");
    ck_assert_str_eq(code_of_tensor("", 1, ne, GGML_F32), "");
    free(text);
}

SL_TEST(arrays_nest_four_deep)
{
    for (unsigned depth = 4; depth <= 5; depth++) {
        struct sl_buf file;
        begin(&file, 0, 1);
        put_string(&file, "k");
        put_number(&file, ARRAY, 4);
        for (unsigned i = 1; i < depth; i++) {
            put_number(&file, ARRAY, 4);
            put_number(&file, 1, 8);
        }
        put_number(&file, U8, 4);
        put_number(&file, 0, 8);
        ck_assert_str_eq(code_of(&file), depth == 4 ? "" : "gg.limit");
    }
}

SL_TEST(alignment_is_a_power_of_two_to_2_20)
{
    static const struct {
        uint32_t value;
        const char *code;
    } cases[] = {{1, ""}, {1 << 20, ""}, {1 << 21, "gg.alignment"}, {48, "gg.alignment"}};
    for (unsigned i = 0; i < SL_COUNT(cases); i++) {
        struct sl_buf file;
        begin(&file, 0, 1);
        put_key(&file, "general.alignment", U32, cases[i].value, 4);
        ck_assert_str_eq(code_of(&file), cases[i].code);
    }
}

SL_TEST(shapes_never_overflow)
{
    static const uint64_t big = UINT64_C(1) << 32, max = INT64_MAX;
    ck_assert_str_eq(code_of_tensor("w", 4, (uint64_t[]){2, 2, 2, 2}, GGML_F32), "");
    ck_assert_str_eq(code_of_tensor("w", 5, (uint64_t[]){1, 1, 1, 1, 1}, GGML_F32), "gg.dims");
    ck_assert_str_eq(code_of_tensor("w", 1, (uint64_t[]){max}, GGML_I8), "gg.bounds");
    ck_assert_str_eq(code_of_tensor("w", 1, (uint64_t[]){max}, GGML_F32), "gg.dims");
    ck_assert_str_eq(code_of_tensor("w", 1, (uint64_t[]){max + 1}, GGML_I8), "gg.dims");
    ck_assert_str_eq(code_of_tensor("w", 3, (uint64_t[]){big, big / 2, 2}, GGML_I8), "gg.dims");
    ck_assert_str_eq(code_of_tensor("w", 3, (uint64_t[]){big, big, 0}, GGML_I8), "gg.dims");
    ck_assert_str_eq(code_of_tensor("w", 1, (uint64_t[]){(max + 1) - 256}, 15), "gg.dims");
    ck_assert_str_eq(code_of_tensor("w", 2, (uint64_t[]){32, 1}, GGML_Q8_0), "");
    ck_assert_str_eq(code_of_tensor("w", 2, (uint64_t[]){0, 7}, GGML_Q8_0), "");
    ck_assert_str_eq(code_of_tensor("w", 2, (uint64_t[]){16, 2}, GGML_Q8_0), "gg.block");
    ck_assert_str_eq(code_of_tensor("w", 1, (uint64_t[]){64}, GGML_I8), "");
    ck_assert_str_eq(code_of_tensor("w", 1, (uint64_t[]){4096}, GGML_I8), "gg.bounds");
}

SL_TEST(types_are_known_or_refused_by_number)
{
    unsigned known = 0;
    for (uint32_t type = 0; type < 300; type++) {
        const char *code = code_of_tensor("w", 1, (uint64_t[]){0}, type);
        ck_assert(!*code || strcmp(code, "gg.type") == 0);
        known += !*code;
    }
    ck_assert_uint_eq(known, TYPES_KNOWN);
}

/* 123 is '{': safetensors' probe would take such a file for one of its own. */
SL_TEST(a_hundred_and_twenty_three_tensors_are_no_safetensors)
{
    struct sl_buf file;
    begin(&file, 123, 0);
    for (unsigned i = 0; i < 123; i++) {
        char name[16];
        snprintf(name, sizeof(name), "t%u", i);
        put_tensor(&file, name, 1, (uint64_t[]){0}, GGML_F32, 0);
    }
    struct golden_open open;
    ck_assert_int_eq(golden_index(&open, "x", file.data, file.used, NULL), 0);
    ck_assert_str_eq(open.index->format, "gguf");
    ck_assert_uint_eq(open.index->tensor_count, 123);
    golden_release(&open);
    sl_buf_release(&file);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static int slice(struct golden_open *open, const char *text, uint8_t digest[32], struct sl_err *err)
{
    struct sl_slice part;
    const struct sl_tensor *tensor =
        sl_index_find(open->index, text, sl_slice_name_bytes(text), NULL);
    ck_assert_ptr_nonnull(tensor);
    *err = (struct sl_err)SL_ERR_INIT;
    if (sl_slice_parse(text, tensor, &part, err) < 0)
        return -1;
    return sl_slice_digest(open->index, tensor, &part, digest, err);
}

/* w: 3 x 64 in Q8_0, rows of two blocks of 34 bytes. */
SL_TEST(slices_of_quantised_tensors_are_whole_blocks)
{
    static const struct {
        const char *text;
        size_t begin, bytes;
    } cases[] = {
        {"w[:]", 0, 204}, {"w[1:3]", 68, 136}, {"w[1,32:]", 102, 34}, {"w[2,:32]", 136, 34}};
    struct sl_buf file;
    begin(&file, 1, 0);
    put_tensor(&file, "w", 2, (uint64_t[]){64, 3}, GGML_Q8_0, 0);
    put_zeros(&file, 32 - file.used % 32);
    size_t data_begin = file.used;
    for (unsigned i = 0; i < 204; i++)
        put_number(&file, i, 1);
    struct golden_open open;
    struct sl_err err;
    uint8_t digest[32], expected[32];
    ck_assert_int_eq(golden_index(&open, "x", file.data, file.used, NULL), 0);
    for (unsigned i = 0; i < SL_COUNT(cases); i++) {
        ck_assert_msg(slice(&open, cases[i].text, digest, &err) == 0, "%s", err.message);
        struct sl_sha256 *sha = sl_sha256_new(NULL);
        sl_sha256_update(sha, file.data + data_begin + cases[i].begin, cases[i].bytes);
        sl_sha256_finish(sha, expected);
        sl_sha256_free(sha);
        ck_assert_msg(memcmp(digest, expected, 32) == 0, "%s", cases[i].text);
    }
    ck_assert_int_lt(slice(&open, "w[0,:16]", digest, &err), 0);
    ck_assert_str_eq(err.code, "gg.block");
    ck_assert_int_lt(slice(&open, "w[0,16:48]", digest, &err), 0);
    ck_assert_str_eq(err.code, "gg.block");
    golden_release(&open);
    sl_buf_release(&file);
}

/* ---- sets ------------------------------------------------------------------------------------ */

struct set {
    struct golden_open open[3];
    uint8_t *data[3];
    const struct sl_index *indexes[3];
};

static void set_open(struct set *set)
{
    for (unsigned i = 0; i < 3; i++) {
        char name[64];
        size_t bytes;
        snprintf(name, sizeof(name), "gguf/split/model-%05u-of-00003.gguf", i + 1);
        set->data[i] = golden_read(name, &bytes);
        ck_assert_int_eq(golden_index(&set->open[i], name + 11, set->data[i], bytes, NULL), 0);
        set->indexes[i] = set->open[i].index;
    }
}

static void set_release(struct set *set)
{
    for (unsigned i = 0; i < 3; i++) {
        golden_release(&set->open[i]);
        free(set->data[i]);
    }
}

static const char *set_code(const struct set *set, size_t count)
{
    static struct sl_err err;
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert(sl_format_check_sets(set->indexes, count, &err) == 0 || err.kind == SL_E_FORMAT);
    return err.code;
}

SL_TEST(a_set_is_whole_or_refused)
{
    struct set set;
    set_open(&set);
    struct sl_index *second = set.open[1].index;
    ck_assert_str_eq(set_code(&set, 3), "");
    ck_assert_str_eq(set_code(&set, 0), "");
    ck_assert_str_eq(set_code(&set, 2), "gg.split");
    ck_assert_str_eq(set_code(&set, 1), "gg.split");
    second->part.tensors++;
    ck_assert_str_eq(set_code(&set, 3), "gg.split");
    second->part.tensors--;
    second->tensor_count--;
    ck_assert_str_eq(set_code(&set, 3), "gg.split");
    second->tensor_count++;
    second->part.number = 2; /* its name says otherwise */
    ck_assert_str_eq(set_code(&set, 3), "gg.split");
    second->part.number = 1;
    second->part.count = 4;
    ck_assert_str_eq(set_code(&set, 3), "gg.split");
    second->part.count = 3;
    second->tensors[0].name = "s0.t0"; /* which is in the first part */
    ck_assert_str_eq(set_code(&set, 3), "gg.split");
    set_release(&set);
}

SL_TEST(parts_are_found_by_name)
{
    struct set set;
    struct sl_err err = SL_ERR_INIT;
    set_open(&set);
    char *name = sl_format_part_name(set.indexes[0], 2, &err);
    ck_assert_str_eq(name, "model-00003-of-00003.gguf");
    free(name);
    set.open[0].index->source_names[0][0] = 0;
    ck_assert_ptr_null(sl_format_part_name(set.indexes[0], 2, &err));
    ck_assert_str_eq(err.code, "gg.split");
    set_release(&set);
}

SL_TEST(split_keys_are_integers_of_any_type)
{
    static const struct {
        uint32_t type, bytes;
        uint64_t count;
        const char *code;
    } cases[] = {{U8, 1, 255, ""},
                 {I16, 2, 3, ""},
                 {U64, 8, 65535, ""},
                 {U64, 8, 65536, "gg.split"},
                 {I16, 2, 65535, "gg.split"},
                 {F32, 4, 3, "gg.split"},
                 {I64, 8, UINT64_MAX, "gg.split"},
                 {BOOL, 1, 1, "gg.split"}};
    for (unsigned i = 0; i < SL_COUNT(cases); i++) {
        struct sl_buf file;
        begin(&file, 0, 1);
        put_key(&file, "split.count", cases[i].type, cases[i].count, cases[i].bytes);
        ck_assert_str_eq(code_of(&file), cases[i].code);
    }
    struct sl_buf file;
    begin(&file, 0, 2);
    put_key(&file, "split.count", U32, 2, 4);
    put_key(&file, "split.no", U32, 2, 4);
    ck_assert_str_eq(code_of(&file), "gg.split");
}

/* ---- size and requests ----------------------------------------------------------------------- */

static void check_requests(struct sl_buf *file, uint64_t requests_max, uint64_t bytes_max)
{
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    uint64_t object_bytes, requests, bytes;
    ck_assert_msg(golden_index(&open, "x.gguf", file->data, file->used, &err) == 0, "%s",
                  err.message);
    sl_index_counts(open.index, &object_bytes, &requests, &bytes);
    ck_assert_uint_le(requests, requests_max);
    ck_assert_uint_le(bytes, bytes_max);
    golden_release(&open);
    sl_buf_release(file);
}

/* 600,000 tokens and their scores. */
static void make_vocabulary(struct sl_buf *file, unsigned tokens)
{
    begin(file, 0, 2);
    put_string(file, "scores");
    put_number(file, ARRAY, 4);
    put_number(file, F32, 4);
    put_number(file, tokens, 8);
    put_zeros(file, (size_t)tokens * 4);
    put_string(file, "tokens");
    put_number(file, ARRAY, 4);
    put_number(file, STRING, 4);
    put_number(file, tokens, 8);
    for (unsigned i = 0; i < tokens; i++)
        put_string(file, "token");
}

SL_TEST(a_long_header_takes_three_requests)
{
    struct sl_buf file;
    make_vocabulary(&file, 600000);
    check_requests(&file, 3, file.used - 2000000); /* most of the scores are not fetched */
    make_vocabulary(&file, 6000);
    check_requests(&file, 1, file.used);
}

/* ---- failing calls --------------------------------------------------------------------------- */

struct object {
    const void *data;
    size_t bytes;
};

static int index_and_digest(void *arg, struct sl_err *err)
{
    const struct object *object = arg;
    struct golden_open open;
    uint8_t digest[32];
    int result = golden_index(&open, "x.gguf", object->data, object->bytes, err);
    if (result == 0 && open.index->tensor_count)
        result = sl_tensor_digest(open.index, &open.index->tensors[0], true, digest, err);
    golden_release(&open);
    return result;
}

static int check_set(void *arg, struct sl_err *err)
{
    const struct set *set = arg;
    char *name = sl_format_part_name(set->indexes[0], 1, err);
    free(name);
    return name ? sl_format_check_sets(set->indexes, 3, err) : -1;
}

SL_TEST(every_failing_allocation_is_reported)
{
    struct object object;
    struct set set;
    uint8_t *data = golden_read("gguf/all_kv.gguf", &object.bytes);
    object.data = data;
    ck_assert_uint_gt(golden_each_allocation(index_and_digest, &object), 10);
    free(data);
    set_open(&set);
    ck_assert_uint_gt(golden_each_allocation(check_set, &set), 3);
    set_release(&set);
}

SL_TEST(every_failing_read_is_reported)
{
    struct sl_buf file;
    make_vocabulary(&file, 600000);
    struct object object = {file.data, file.used};
    ck_assert_uint_ge(golden_each_read(index_and_digest, &object), 2);
    sl_buf_release(&file);
}

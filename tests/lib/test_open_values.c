/* What a model says of itself under keys: values of GGUF, short and long, and texts of safetensors.
 */
#include "sluice.h"

#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "convert_case.h"
#include "gguf_maker.h"
#include "golden.h"
#include "memory_store.h"
#include "open_case.h"

enum { HEAD_BYTES = 128 * 1024, LONG_COUNT = 100000, KEPT_BYTES = 64 * 1024 };

static struct sluice_value value_of(const struct sluice_source *source, uint64_t number)
{
    struct sluice_value value = {.size = sizeof(value)};
    ck_assert_msg(sluice_source_value(source, number, &value, &error) == 0, "%s", error.message);
    return value;
}

static void put_array(struct sl_buf *file, const char *name, uint32_t element, uint64_t count)
{
    put_string(file, name);
    put_number(file, SLUICE_VALUE_ARRAY, 4);
    put_number(file, element, 4);
    put_number(file, count, 8);
}

/* The file stays as long as the source: see closed(). */
static struct sluice_source *opened(struct sl_buf *file)
{
    const uint64_t ne[] = {16};
    put_tensor(file, "w", 1, ne, 0, 0);
    put_zeros(file, 63 + 64);
    ck_assert_int_eq(sl_memory_put("m.gguf", file->data, file->used, NULL), 0);
    return open_it("memory:m.gguf", NULL);
}

static void closed(struct sluice_source *source, struct sl_buf *file)
{
    sluice_close(source);
    sl_memory_clear();
    sl_buf_release(file);
}

/* Everything of it, kept or not. */
static uint8_t *all_of(struct sluice_source *source, uint64_t number)
{
    uint8_t *data = malloc(value_of(source, number).bytes + 1);
    ck_assert_msg(sluice_source_value_read(source, number, data, 0, &error) == 0, "%s",
                  error.message);
    return data;
}

static void check_kept(struct sluice_source *source, uint64_t number, const char *key,
                       uint32_t type, const void *data, uint64_t bytes)
{
    struct sluice_value value = value_of(source, number);
    ck_assert_str_eq(value.key, key);
    ck_assert_uint_eq(value.type, type);
    ck_assert_uint_eq(value.bytes, bytes);
    ck_assert_ptr_nonnull(value.data);
    ck_assert_mem_eq(value.data, data, bytes);
    uint8_t *read = all_of(source, number);
    ck_assert_mem_eq(read, data, bytes);
    free(read);
}

SL_TEST(short_values_are_kept_in_the_order_of_the_file)
{
    struct sl_buf file;
    begin(&file, 1, 5);
    put_string(&file, "general.name");
    put_number(&file, SLUICE_VALUE_TEXT, 4);
    put_string(&file, "a model");
    put_key(&file, "general.alignment", SLUICE_VALUE_U32, 64, 4);
    put_key(&file, "b", SLUICE_VALUE_I64, (uint64_t)-5, 8);
    put_array(&file, "few", SLUICE_VALUE_TEXT, 2);
    put_string(&file, "x");
    put_string(&file, "");
    put_array(&file, "none", SLUICE_VALUE_F32, 0);
    struct sluice_source *source = opened(&file);
    ck_assert_uint_eq(info_of(source).value_count, 5);
    ck_assert_uint_eq(info_of(source).meta_count, 0);
    check_kept(source, 0, "general.name", SLUICE_VALUE_TEXT, "a model", 7);
    check_kept(source, 1, "general.alignment", SLUICE_VALUE_U32, "\100\0\0\0", 4);
    check_kept(source, 2, "b", SLUICE_VALUE_I64, "\373\377\377\377\377\377\377\377", 8);
    check_kept(source, 3, "few", SLUICE_VALUE_ARRAY, "\1\0\0\0\0\0\0\0x\0\0\0\0\0\0\0\0", 17);
    ck_assert_uint_eq(value_of(source, 3).element_type, SLUICE_VALUE_TEXT);
    ck_assert_uint_eq(value_of(source, 3).count, 2);
    check_kept(source, 4, "none", SLUICE_VALUE_ARRAY, "", 0);
    ck_assert_uint_eq(value_of(source, 4).count, 0);
    closed(source, &file);
}

SL_TEST(long_values_are_read_from_their_place)
{
    struct sl_buf file;
    begin(&file, 1, 2);
    put_array(&file, "ids", SLUICE_VALUE_U32, LONG_COUNT);
    for (uint32_t i = 0; i < LONG_COUNT; i++)
        put_number(&file, i, 4);
    put_key(&file, "after", SLUICE_VALUE_U8, 7, 1);
    struct sluice_source *source = opened(&file);
    struct sluice_value ids = value_of(source, 0);
    uint64_t before = info_of(source).bytes_fetched;
    ck_assert_ptr_null(ids.data);
    ck_assert_uint_eq(ids.bytes, 4 * LONG_COUNT);
    check_kept(source, 1, "after", SLUICE_VALUE_U8, "\7", 1);
    ck_assert_uint_eq(info_of(source).bytes_fetched, before);
    uint8_t *data = all_of(source, 0);
    for (uint32_t i = 0; i < LONG_COUNT; i++)
        ck_assert_uint_eq(sl_get_le32(data + 4 * (size_t)i), i);
    free(data);
    sl_memory_fail_at(1);
    data = malloc(ids.bytes);
    ck_assert_int_eq(sluice_source_value_read(source, 0, data, 0, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NETWORK);
    free(data);
    sl_memory_fail_at(0);
    closed(source, &file);
}

/* What opening has brought ends inside the texts, wherever they begin. */
SL_TEST(a_value_that_two_windows_have_is_whole)
{
    for (unsigned back = 1; back < 60; back++) {
        struct sl_buf file;
        begin(&file, 1, 3);
        put_array(&file, "pad", SLUICE_VALUE_U8, HEAD_BYTES - 61 - back);
        put_zeros(&file, HEAD_BYTES - 61 - back);
        put_array(&file, "w", SLUICE_VALUE_TEXT, 3);
        uint64_t begin = file.used;
        for (unsigned i = 0; i < 3; i++)
            put_string(&file, "token");
        put_key(&file, "end", SLUICE_VALUE_U16, 0x1234, 2);
        uint8_t expected[39];
        memcpy(expected, file.data + begin, sizeof(expected));
        struct sluice_source *source = opened(&file);
        ck_assert_uint_eq(value_of(source, 1).bytes, sizeof(expected));
        uint8_t *data = all_of(source, 1);
        ck_assert_mem_eq(data, expected, sizeof(expected));
        free(data);
        check_kept(source, 2, "end", SLUICE_VALUE_U16, "\64\22", 2);
        closed(source, &file);
    }
}

/* However many: 16 MiB of them. */
SL_TEST(what_is_kept_is_bounded)
{
    enum { COUNT = 300 };
    struct sl_buf file;
    char key[16];
    begin(&file, 1, COUNT);
    for (unsigned i = 0; i < COUNT; i++) {
        snprintf(key, sizeof(key), "k%u", i);
        put_array(&file, key, SLUICE_VALUE_U8, KEPT_BYTES);
        put_zeros(&file, KEPT_BYTES);
    }
    struct sluice_source *source = opened(&file);
    unsigned kept = 0;
    for (unsigned i = 0; i < COUNT; i++)
        kept += value_of(source, i).data != NULL;
    ck_assert_uint_eq(kept, 256);
    free(all_of(source, COUNT - 1));
    closed(source, &file);
}

SL_TEST(numbers_beyond_are_refused)
{
    struct sl_buf file;
    begin(&file, 1, 1);
    put_key(&file, "a", SLUICE_VALUE_U8, 7, 1);
    struct sluice_source *source = opened(&file);
    struct sluice_value value = {.size = sizeof(value)};
    uint8_t data[8];
    for (uint64_t number = 1; number; number <<= 1) {
        ck_assert_int_eq(sluice_source_value(source, number, &value, &error), -1);
        ck_assert_int_eq(error.kind, SLUICE_USAGE);
        ck_assert_int_eq(sluice_source_value_read(source, number, data, 0, &error), -1);
        ck_assert_int_eq(error.kind, SLUICE_USAGE);
    }
    value.size = 0;
    ck_assert_int_eq(sluice_source_value(source, 0, &value, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    closed(source, &file);
}

/* Every type, and a vocabulary of 900 texts: a file that ggml's reader takes. */
SL_TEST(a_golden_file_has_a_value_for_each_key)
{
    size_t bytes;
    uint8_t *data = golden_read("gguf/all_kv.gguf", &bytes);
    ck_assert_int_eq(sl_memory_put("m.gguf", data, bytes, NULL), 0);
    struct sluice_source *source = open_it("memory:m.gguf", NULL);
    uint32_t seen = 0;
    ck_assert_uint_eq(info_of(source).value_count, sl_get_le64(data + 16));
    for (uint64_t i = 0; i < info_of(source).value_count; i++) {
        struct sluice_value value = value_of(source, i);
        seen |= 1u << value.type;
        free(all_of(source, i));
    }
    ck_assert_uint_eq(seen, (1u << (SLUICE_VALUE_F64 + 1)) - 1);
    sluice_close(source);
    free(data);
    sl_memory_clear();
}

SL_TEST(texts_of_safetensors_are_values)
{
    static const char file[] = "\x59\0\0\0\0\0\0\0"
                               "{\"__metadata__\":{\"format\":\"pt\"},\"w\":{\"dtype\":\"U8\","
                               "\"shape\":[1],\"data_offsets\":[0,1]}}     x";
    ck_assert_int_eq(sl_memory_put("m.safetensors", file, sizeof(file) - 1, NULL), 0);
    struct sluice_source *source = open_it("memory:m.safetensors", NULL);
    ck_assert_uint_eq(info_of(source).value_count, 1);
    check_kept(source, 0, "format", SLUICE_VALUE_TEXT, "pt", 2);
    sluice_close(source);
    sl_memory_clear();
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 60)

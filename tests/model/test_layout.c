/* The safetensors layout: what is laid out is read back, aligned, in the library's order, in shards
 * that fit. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "layout.h"
#include "memory_store.h"

enum { TENSOR_COUNT = 5 };
static const uint64_t shape_small[] = {3}, shape_large[] = {4, 100}, shape_empty[] = {0, 7};
static const struct sl_tensor samples[TENSOR_COUNT] = {
    {.name = "b",
     .name_bytes = 1,
     .dtype = SL_DTYPE_U8,
     .dtype_name = "U8",
     .rank = 1,
     .shape = shape_small,
     .bytes = 3},
    {.name = "a\0\"\xc3\xa9",
     .name_bytes = 5,
     .dtype = SL_DTYPE_F32,
     .dtype_name = "F32",
     .rank = 2,
     .shape = shape_large,
     .bytes = 1600},
    {.name = "z",
     .name_bytes = 1,
     .dtype = SL_DTYPE_BF16,
     .dtype_name = "BF16",
     .rank = 2,
     .shape = shape_empty,
     .bytes = 0},
    {.name = "",
     .name_bytes = 0,
     .dtype = SL_DTYPE_I64,
     .dtype_name = "I64",
     .rank = 0,
     .bytes = 8},
    {.name = "c",
     .name_bytes = 1,
     .dtype = SL_DTYPE_F32,
     .dtype_name = "F32",
     .rank = 1,
     .shape = shape_small,
     .bytes = 12},
};
static const struct sl_tensor *const all[] = {&samples[0], &samples[1], &samples[2], &samples[3],
                                              &samples[4]};

/* The file as it will be: its head, then bytes that count up; free() it. */
static uint8_t *make_file(const struct sl_layout_file *file)
{
    uint8_t *data = malloc(file->bytes ? file->bytes : 1);
    for (uint64_t i = 0; i < file->bytes; i++)
        data[i] = i < file->head.used ? (uint8_t)file->head.data[i] : (uint8_t)i;
    return data;
}

SL_TEST(what_is_laid_out_is_read_back)
{
    static const struct sl_meta_pair metadata[] = {{"format", "pt"}, {"who", "\"me\""}};
    SL_AUTO(sl_layout) layout = NULL;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_safetensors_layout(all, TENSOR_COUNT, metadata, 2, 0, &layout, &err), 0);
    ck_assert_uint_eq(layout->file_count, 1);
    ck_assert_str_eq(layout->files[0].name, "model.safetensors");
    ck_assert_uint_eq(layout->files[0].head.used % 64, 0);
    uint8_t *data = make_file(&layout->files[0]);
    struct golden_open open;
    ck_assert_msg(golden_index(&open, "x.safetensors", data, layout->files[0].bytes, &err) == 0,
                  "%s", err.message);
    ck_assert_uint_eq(open.index->tensor_count, TENSOR_COUNT);
    ck_assert_uint_eq(open.index->metadata_count, 2);
    ck_assert_str_eq(open.index->metadata[1].value, "\"me\"");
    for (size_t i = 0; i < layout->place_count; i++) {
        const struct sl_tensor *wanted = layout->places[i].tensor;
        const struct sl_tensor *found =
            sl_index_find(open.index, wanted->name, wanted->name_bytes, NULL);
        ck_assert(found != NULL);
        ck_assert_int_eq(found->dtype, wanted->dtype);
        ck_assert_uint_eq(found->begin, layout->places[i].offset);
        ck_assert_uint_eq(found->bytes, wanted->bytes);
        ck_assert_uint_eq(found->rank, wanted->rank);
        ck_assert(wanted->rank == 0 || memcmp(found->shape, wanted->shape, wanted->rank * 8) == 0);
    }
    golden_release(&open);
    free(data);
}

SL_TEST(order_is_dtype_descending_then_name)
{
    static const char *const order[] = {"", "a", "c", "z", "b"}; /* I64, F32, F32, BF16, U8 */
    SL_AUTO(sl_layout) layout = NULL;
    ck_assert_int_eq(sl_safetensors_layout(all, TENSOR_COUNT, NULL, 0, 0, &layout, NULL), 0);
    for (size_t i = 0; i < TENSOR_COUNT; i++)
        ck_assert_str_eq(layout->places[i].tensor->name, order[i]);
    ck_assert_ptr_nonnull(
        strstr(layout->files[0].head.data + 8, "{\"__metadata__\":{\"format\":\"pt\"}"));
}

SL_TEST(no_tensors_is_a_file_too)
{
    SL_AUTO(sl_layout) layout = NULL;
    struct golden_open open;
    ck_assert_int_eq(sl_safetensors_layout(NULL, 0, NULL, 0, 100, &layout, NULL), 0);
    ck_assert_uint_eq(layout->file_count, 1);
    uint8_t *data = make_file(&layout->files[0]);
    ck_assert_int_eq(golden_index(&open, "x.safetensors", data, layout->files[0].bytes, NULL), 0);
    golden_release(&open);
    free(data);
}

SL_TEST(shards_hold_at_most_what_they_may_and_are_read_back)
{
    SL_AUTO(sl_layout) layout = NULL;
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    uint8_t *data[8] = {0};
    ck_assert_int_eq(sl_safetensors_layout(all, TENSOR_COUNT, NULL, 0, 20, &layout, &err), 0);
    /* 8 | 1600, larger than a shard and alone | 12 + 0 + 3 */
    ck_assert_uint_eq(layout->file_count, 4);
    ck_assert_str_eq(layout->files[0].name, "model-00001-of-00003.safetensors");
    ck_assert_str_eq(layout->files[3].name, "model.safetensors.index.json");
    ck_assert_uint_eq(layout->files[2].bytes - layout->files[2].head.used, 15);
    for (size_t i = 0; i < layout->file_count; i++) {
        data[i] = make_file(&layout->files[i]);
        ck_assert_int_eq(
            sl_memory_put(layout->files[i].name, data[i], layout->files[i].bytes, NULL), 0);
    }
    int result = golden_index(&open, layout->files[3].name, data[3], layout->files[3].bytes, &err);
    ck_assert_msg(result == 0, "%s", err.message);
    ck_assert_uint_eq(open.index->tensor_count, TENSOR_COUNT);
    ck_assert_uint_eq(open.index->source_count, 4);
    golden_release(&open);
    for (size_t i = 0; i < layout->file_count; i++)
        free(data[i]);
    sl_memory_clear();
}

SL_TEST(a_shard_is_full_at_its_limit_and_not_one_past)
{
    const struct sl_tensor *two[] = {&samples[3], &samples[4]}; /* 8 + 12 */
    for (uint64_t limit = 19; limit <= 20; limit++) {
        SL_AUTO(sl_layout) layout = NULL;
        ck_assert_int_eq(sl_safetensors_layout(two, 2, NULL, 0, limit, &layout, NULL), 0);
        ck_assert_uint_eq(layout->file_count, limit == 20 ? 1 : 3);
    }
}

static void check_refused(struct sl_tensor tensor, const char *code)
{
    const struct sl_tensor *tensors[] = {&samples[0], &tensor};
    SL_AUTO(sl_layout) layout = NULL;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(sl_safetensors_layout(tensors, 2, NULL, 0, 0, &layout, &err), 0);
    ck_assert_str_eq(err.code, code);
    ck_assert_ptr_nonnull(strstr(err.message, tensor.name));
}

SL_TEST(what_safetensors_cannot_hold_is_refused_by_name)
{
    static uint64_t ones[65];
    struct sl_tensor tensor = samples[4];
    tensor.dtype = SL_DTYPE_C128, tensor.dtype_name = "C128";
    check_refused(tensor, "st.dtype");
    tensor = samples[4], tensor.name = "b";
    check_refused(tensor, "st.duplicate-key");
    tensor = samples[4], tensor.name = "__metadata__", tensor.name_bytes = 12;
    check_refused(tensor, "st.metadata");
    tensor = samples[4], tensor.name = "\xff";
    tensor.name_bytes = 1;
    check_refused(tensor, "st.utf8");
    tensor = samples[4], tensor.rank = 65, tensor.shape = ones;
    check_refused(tensor, "st.tensor-info");
    tensor = samples[4], tensor.refused = SL_E_FORMAT, tensor.refused_code = "E_KEY_REQUIRED",
    tensor.refused_why = "no key";
    check_refused(tensor, "E_KEY_REQUIRED");
}

static int lay_out(void *arg, struct sl_err *err)
{
    SL_AUTO(sl_layout) layout = NULL;
    (void)arg;
    return sl_safetensors_layout(all, TENSOR_COUNT, NULL, 0, 20, &layout, err);
}

SL_TEST(every_failing_allocation_is_reported)
{
    ck_assert_uint_gt(golden_each_allocation(lay_out, NULL), 10);
}

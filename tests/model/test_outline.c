/*
 * Listing a .tensors file whose headers lie far apart: names, types, shapes and places from the
 * metadata alone. The made files have noise for headers, so whoever reads one refuses it.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "golden.h"
#include "memory_store.h"
#include "redis_model_maker.h"
#include "stores.h"

enum { MANY = 40, FEW = 16, BYTES = 70000, ENTRY_BYTES = 29 + 1 + 3 + 4, METADATA_AT = 73 };

struct made {
    uint8_t *data;
    size_t bytes;
    bool strict;
    struct sl_store *store;
    struct sl_index *index;
};

static char names[MANY];

static void make(struct made *made, size_t count)
{
    struct made_tensor tensors[MANY];
    for (size_t i = 0; i < count; i++) {
        names[i] = (char)('0' + i);
        tensors[i] = (struct made_tensor){&names[i], 1, BYTES + i};
    }
    *made = (struct made){0};
    made->data = make_tensors(tensors, count, &made->bytes);
}

static int look(void *arg, struct sl_err *err)
{
    struct made *made = arg;
    struct sl_source *source = NULL;
    sl_autofree char *key = NULL;
    sl_index_free(made->index);
    sl_store_free(made->store);
    made->index = NULL;
    made->store = NULL;
    if (sl_memory_put("x.tensors", made->data, made->bytes, err) < 0 ||
        sl_store_open("memory:x.tensors", NULL, &made->store, &key, err) < 0 ||
        sl_source_open(made->store, key, SL_INDEX_HEAD_BYTES, &source, err) < 0)
        return -1;
    return made->strict ? sl_format_index_strict(source, key, &made->index, err)
                        : sl_format_outline(source, key, &made->index, err);
}

static void drop(struct made *made)
{
    sl_index_free(made->index);
    sl_store_free(made->store);
    free(made->data);
}

SL_TEST(a_large_file_is_listed_from_its_metadata)
{
    struct made made;
    struct sl_err err = SL_ERR_INIT;
    uint64_t object_bytes, requests, bytes;
    make(&made, MANY);
    ck_assert_msg(look(&made, &err) == 0, "%s", err.message);
    ck_assert(made.index->outline);
    sl_index_counts(made.index, &object_bytes, &requests, &bytes);
    ck_assert_uint_le(requests, 2);
    ck_assert_uint_le(bytes, 300 * 1024);
    ck_assert_uint_eq(made.index->tensor_count, MANY);
    uint64_t end = 0;
    for (size_t i = 0; i < MANY; i++) {
        const struct sl_tensor *tensor = &made.index->tensors[i];
        ck_assert_uint_eq(tensor->name_bytes, 1);
        ck_assert_int_eq(tensor->name[0], names[i]);
        ck_assert_str_eq(tensor->dtype_name, "U8");
        ck_assert_uint_eq(tensor->rank, 1);
        ck_assert_uint_eq(tensor->shape[0], BYTES + i);
        ck_assert_uint_eq(tensor->bytes, BYTES + i);
        ck_assert_uint_eq(tensor->end - tensor->begin, BYTES + i);
        ck_assert_uint_gt(tensor->begin, end);
        end = tensor->end;
        ck_assert_uint_eq(tensor->hash_count, 0);
    }
    drop(&made);
}

SL_TEST(who_reads_tensors_reads_the_headers)
{
    struct made made;
    struct sl_err err = SL_ERR_INIT;
    make(&made, MANY);
    made.strict = true;
    ck_assert_int_eq(look(&made, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    drop(&made);
}

SL_TEST(few_headers_are_checked_for_a_list_too)
{
    struct made made;
    struct sl_err err = SL_ERR_INIT;
    make(&made, FEW);
    ck_assert_int_eq(look(&made, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_FORMAT);
    drop(&made);
}

/* The entry of tensor 30: its data_length, data_offset, header_offset are its last three numbers.
 */
static const struct {
    unsigned field;
    int64_t change;
    const char *code;
} wrongs[] = {
    {0, 1, "E_LENGTH"},       {0, INT64_MIN, "E_OFFSET"}, {1, INT64_MAX / 2, "E_TRUNCATED"},
    {1, -100000, "E_OFFSET"}, {2, -100000, "E_OFFSET"},   {2, INT64_MAX / 2, "E_OFFSET"},
};

SL_TEST_LOOP(metadata_that_cannot_be_are_refused, 0, SL_COUNT(wrongs))
{
    struct made made;
    struct sl_err err = SL_ERR_INIT;
    make(&made, MANY);
    uint8_t *field = made.data + METADATA_AT + 31 * ENTRY_BYTES - 8 * (wrongs[_i].field + 1);
    sl_put_le64(field, sl_get_le64(field) + (uint64_t)wrongs[_i].change);
    ck_assert_int_eq(look(&made, &err), -1);
    ck_assert_str_eq(err.code, wrongs[_i].code);
    drop(&made);
}

SL_TEST(a_file_that_is_cut_off_is_refused)
{
    struct made made;
    struct sl_err err = SL_ERR_INIT;
    make(&made, MANY);
    made.bytes -= BYTES;
    ck_assert_int_eq(look(&made, &err), -1);
    ck_assert_str_eq(err.code, "E_TRUNCATED");
    drop(&made);
}

SL_TEST(every_failing_call_is_reported)
{
    struct made made;
    make(&made, MANY);
    ck_assert_uint_gt(golden_each_allocation(look, &made), 10);
    ck_assert_uint_ge(golden_each_read(look, &made), 1);
    drop(&made);
}

SL_CASE(.seconds = 60)

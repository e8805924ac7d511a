/* Element types: spellings are exact, ranks are safetensors' own order. */
#include "dtype.h"

#include <check.h>
#include <string.h>

#include "claims.h"

SL_TEST(every_name_finds_its_own_row)
{
    for (int i = 1; i < SL_DTYPE_COUNT; i++) {
        const char *name = sl_dtype_row((enum sl_dtype)i)->name;
        ck_assert_int_eq(sl_dtype_by_name(name, (unsigned)strlen(name)), i);
    }
}

SL_TEST(blocks_are_whole_bytes)
{
    for (int i = 1; i < SL_DTYPE_COUNT; i++) {
        const struct sl_dtype_row *row = sl_dtype_row((enum sl_dtype)i);
        ck_assert_uint_ge(row->block, 1);
        ck_assert(row->block == 1 || (row->bits % 8 == 0 && !row->safetensors));
    }
    ck_assert_uint_eq(sl_dtype_row(SL_DTYPE_Q4_K)->block, 256);
    ck_assert_uint_eq(sl_dtype_row(SL_DTYPE_Q4_K)->bits, 144 * 8);
}

SL_TEST(names_are_exact)
{
    ck_assert_int_eq(sl_dtype_by_name("f32", 3), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_name("F3", 2), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_name("F321", 4), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_name("F321", 3), SL_DTYPE_F32);
    ck_assert_int_eq(sl_dtype_by_name("", 0), SL_DTYPE_NONE);
}

SL_TEST(every_torch_name_finds_its_own_row)
{
    for (int i = 1; i < SL_DTYPE_COUNT; i++) {
        const struct sl_dtype_row *row = sl_dtype_row((enum sl_dtype)i);
        char text[64];
        size_t bytes = strlen(row->numpy);
        if (!bytes)
            continue;
        memcpy(text, row->numpy, bytes);
        if (strchr(row->numpy, 'V')) {
            memcpy(text + bytes, "\0torch.", 7);
            memcpy(text + bytes + 7, row->torch, strlen(row->torch));
            bytes += 7 + strlen(row->torch);
        }
        ck_assert_int_eq(sl_dtype_by_numpy(text, bytes), i);
    }
}

SL_TEST(code_and_torch_name_must_belong_together)
{
    ck_assert_int_eq(sl_dtype_by_numpy("<V2\0torch.bfloat16", 18), SL_DTYPE_BF16);
    ck_assert_int_eq(sl_dtype_by_numpy("|V1\0torch.bfloat16", 18), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_numpy("<f4\0torch.float32", 17), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_numpy("<V2", 3), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_numpy("<V2\0bfloat16", 12), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_numpy("<V2\0torch.bfloat16\0", 19), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_numpy(">f4", 3), SL_DTYPE_NONE);
    ck_assert_int_eq(sl_dtype_by_numpy("", 0), SL_DTYPE_NONE);
}

SL_TEST(ranks_are_a_total_order_of_22_types)
{
    unsigned seen = 0;
    for (int i = 1; i < SL_DTYPE_COUNT; i++) {
        int rank = sl_dtype_row((enum sl_dtype)i)->safetensors;
        ck_assert(rank == 0 || !(seen >> rank & 1));
        seen |= rank ? 1u << rank : 0;
    }
    ck_assert_uint_eq(seen, (1u << 23) - 2);
}

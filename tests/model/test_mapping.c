/* Runs of slices against counting byte by byte, and where mappings may be parted. */
#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "mapping.h"

/* A slice of a byte tensor, and which of its bytes are taken. */
struct sliced {
    struct sl_index *index;
    struct sl_target target;
    struct sl_tensor tensor;
    struct sl_slice slice;
    uint64_t shape[3];
    struct sl_mapping mapping;
    bool taken[4096];
};

static void make(struct sliced *sliced, const uint64_t shape[3], const uint64_t begin[3],
                 const uint64_t end[3])
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t bytes = shape[0] * shape[1] * shape[2], out = 1;
    *sliced = (struct sliced){.index = sl_index_new("made", &err)};
    for (int i = 0; i < 3; i++) {
        sliced->shape[i] = shape[i];
        sliced->slice.begin[i] = begin[i];
        sliced->slice.end[i] = end[i];
        out *= end[i] - begin[i];
    }
    for (uint64_t i = 0; i < bytes; i++) {
        uint64_t at[3] = {i / shape[2] / shape[1], i / shape[2] % shape[1], i % shape[2]};
        sliced->taken[i] = true;
        for (int d = 0; d < 3; d++)
            sliced->taken[i] = sliced->taken[i] && at[d] >= begin[d] && at[d] < end[d];
    }
    sliced->tensor = (struct sl_tensor){.name = "t",
                                        .dtype = SL_DTYPE_U8,
                                        .rank = 3,
                                        .shape = sliced->shape,
                                        .bytes = bytes,
                                        .begin = 1000,
                                        .end = 1000 + bytes};
    sliced->target = (struct sl_target){.out = sliced->tensor,
                                        .from = &sliced->tensor,
                                        .index = sliced->index,
                                        .slice = &sliced->slice};
    sliced->target.out.bytes = out;
    int failed = sl_mapping_init(&sliced->mapping, &sliced->target, 0, 500, &err);
    ck_assert_msg(failed == 0, "%s", err.message);
}

static void must_count_right(const struct sliced *sliced)
{
    const struct sl_runs *runs = &sliced->mapping.selected;
    uint64_t taken = 0, left;
    for (uint64_t i = 0; i <= sliced->tensor.bytes; i++) {
        ck_assert_uint_eq(sl_runs_before(runs, i), taken);
        ck_assert_uint_eq(sl_mapping_place(&sliced->mapping, 1000 + i), 500 + taken);
        if (i == sliced->tensor.bytes || !sliced->taken[i])
            continue;
        ck_assert_uint_eq(sl_runs_at(runs, taken, &left), i);
        for (uint64_t j = 0; j < left; j++)
            ck_assert(sliced->taken[i + j]);
        taken++;
    }
    ck_assert_uint_eq(taken, runs->total);
}

SL_TEST(runs_are_counted_as_bytes_are)
{
    for (unsigned seed = 1; seed < 60; seed++) {
        uint64_t shape[3], begin[3], end[3];
        srand(seed);
        for (int d = 0; d < 3; d++) {
            shape[d] = 1 + (unsigned)rand() % 15;
            bool whole = rand() % 3 == 0;
            begin[d] = whole ? 0 : (unsigned)rand() % shape[d];
            end[d] = whole ? shape[d] : begin[d] + 1 + (unsigned)rand() % (shape[d] - begin[d]);
        }
        struct sliced sliced;
        make(&sliced, shape, begin, end);
        must_count_right(&sliced);
        sl_index_free(sliced.index);
    }
}

/* Groups as they are counted from one run to the next. */
static void must_group_right(const struct sliced *sliced, uint64_t gap)
{
    const struct sl_runs *runs = &sliced->mapping.selected;
    uint64_t group = sl_runs_group(runs, gap), left;
    for (uint64_t taken = runs->bytes; taken < runs->total; taken += runs->bytes) {
        uint64_t before = sl_runs_at(runs, taken - 1, &left) + 1;
        bool near = sl_runs_at(runs, taken, &left) - before <= gap;
        ck_assert_int_eq(near, taken % group != 0);
    }
}

SL_TEST(runs_that_are_near_make_groups)
{
    struct sliced sliced;
    static const uint64_t shape[3] = {4, 8, 16};
    for (uint64_t wide = 1; wide <= 15; wide += 7)
        for (uint64_t high = 1; high <= 7; high += 3) {
            make(&sliced, shape, (uint64_t[]){1, 1, 1}, (uint64_t[]){3, 1 + high, 1 + wide});
            for (uint64_t gap = 0; gap < 200; gap++)
                must_group_right(&sliced, gap);
            sl_index_free(sliced.index);
        }
}

SL_TEST(units_begin_at_the_tensor)
{
    struct sliced sliced;
    make(&sliced, (uint64_t[3]){10, 10, 10}, (uint64_t[3]){0}, (uint64_t[3]){10, 10, 10});
    struct sl_mapping *mapping = &sliced.mapping;
    mapping->unit = 64;
    ck_assert_uint_eq(sl_mapping_floor(mapping, 1000), 1000);
    ck_assert_uint_eq(sl_mapping_ceil(mapping, 1000), 1000);
    ck_assert_uint_eq(sl_mapping_floor(mapping, 1063), 1000);
    ck_assert_uint_eq(sl_mapping_ceil(mapping, 1001), 1064);
    ck_assert_uint_eq(sl_mapping_floor(mapping, 1999), 1960);
    ck_assert_uint_eq(sl_mapping_ceil(mapping, 1961), 2000); /* the last is shorter */
    ck_assert_uint_eq(sl_mapping_floor(mapping, 2000), 2000);
    mapping->unit = 1000;
    ck_assert_uint_eq(sl_mapping_floor(mapping, 1999), 1000);
    ck_assert_uint_eq(sl_mapping_ceil(mapping, 1001), 2000);
    sl_index_free(sliced.index);
}

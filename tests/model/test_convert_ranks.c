/*
 * Conversions into files of ranks: each has the slices that the rules say, byte for byte, and a
 * rank reads its own again.
 */
#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"
#include "convert_case.h"
#include "memory_store.h"
#include "model_maker.h"

enum { ROWS = 48, COLUMNS = 32, RANKS = 4, TENSORS = 4, HEAD_BYTES = 1024 };

/* U16 elements that count up; cut along rows, along columns, and not at all. */
static const struct {
    const char *name;
    unsigned rows, columns;
    int dim; /* -1: whole */
} tensors[TENSORS] = {
    {"a.q_proj.weight", ROWS, COLUMNS, 0},
    {"b.o_proj.weight", ROWS, COLUMNS, 1},
    {"c.norm.weight", 1, COLUMNS, -1},
    {"d.embed.weight", 2 * ROWS, 2, 0},
};

static const char *const rules[] = {
    "tensors.shard.of=4",
    "tensors.shard.others=refuse",
    "tensors.shard.rules=[{match: '*.q_proj.*', dim: 0}, {match: '*.o_proj.*', dim: 1}, "
    "{match: '*norm*', whole: true}, {match: 'd.*'}]",
    NULL,
};

static uint16_t element(unsigned tensor, unsigned row, unsigned column)
{
    return (uint16_t)(tensor * 20011 + row * 131 + column);
}

static void put_element(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void put_model(void)
{
    static uint8_t data[64 * 1024];
    char head[HEAD_BYTES] = "{";
    size_t at = 0, used = 8 + HEAD_BYTES;
    for (unsigned t = 0; t < TENSORS; t++) {
        size_t bytes = 2 * (size_t)tensors[t].rows * tensors[t].columns;
        snprintf(head + strlen(head), sizeof(head) - strlen(head),
                 "%s\"%s\":{\"dtype\":\"U16\",\"shape\":[%u,%u],\"data_offsets\":[%zu,%zu]}",
                 t ? "," : "", tensors[t].name, tensors[t].rows, tensors[t].columns, at,
                 at + bytes);
        at += bytes;
        for (unsigned i = 0; i < tensors[t].rows * tensors[t].columns; i++, used += 2)
            put_element(data + used, element(t, i / tensors[t].columns, i % tensors[t].columns));
    }
    snprintf(head + strlen(head), sizeof(head) - strlen(head), "}");
    sl_put_le64(data, HEAD_BYTES);
    memset(data + 8, ' ', HEAD_BYTES);
    memcpy(data + 8, head, strlen(head));
    ck_assert_int_eq(sl_memory_put("model", data, used, NULL), 0);
}

/* One tensor of a rank's file against what it must be. */
static void check_tensor(struct sl_index *index, unsigned t, unsigned rank)
{
    const struct sl_tensor *tensor =
        sl_index_find(index, tensors[t].name, (unsigned)strlen(tensors[t].name), NULL);
    ck_assert_ptr_nonnull(tensor);
    unsigned rows = tensors[t].rows, columns = tensors[t].columns, row = 0, column = 0;
    if (tensors[t].dim == 0)
        row = rank * (rows /= RANKS);
    if (tensors[t].dim == 1)
        column = rank * (columns /= RANKS);
    ck_assert_uint_eq(tensor->shape[0], rows);
    ck_assert_uint_eq(tensor->shape[1], columns);
    for (unsigned i = 0; i < rows; i++)
        for (unsigned j = 0; j < columns; j++) {
            uint8_t two[2];
            struct sl_source *source = index->sources[tensor->source];
            uint64_t at = tensor->begin + 2 * ((uint64_t)i * columns + j);
            ck_assert_int_eq(sl_source_read(source, at, two, 2, NULL), 0);
            ck_assert_uint_eq(sl_get_le16(two), element(t, row + i, column + j));
        }
}

SL_TEST(each_rank_has_its_slices_byte_for_byte)
{
    char to[SL_CASE_PATH_BYTES], path[SL_CASE_PATH_BYTES];
    for (unsigned threads = 1; threads <= 4; threads += 3) {
        struct sl_convert_config config = sl_case_safetensors;
        char name[64];
        snprintf(name, sizeof(name), "out%u/", threads);
        config.threads = threads;
        config.ranks = RANKS;
        put_model();
        sl_case_expect("memory:model", sl_case_path(name, to), &config, rules);
        ck_assert_uint_eq(sl_case_files(to), RANKS);
        for (unsigned rank = 0; rank < RANKS; rank++) {
            struct sl_case_opened opened;
            snprintf(name, sizeof(name), "out%u/model-rank-%u-part-0.safetensors", threads, rank);
            ck_assert_int_eq(sl_case_open(&opened, sl_case_path(name, path), NULL, NULL), 0);
            ck_assert_uint_eq(opened.index->tensor_count, TENSORS);
            for (unsigned t = 0; t < TENSORS; t++)
                check_tensor(opened.index, t, rank);
            sl_case_close(&opened);
        }
    }
}

/* Parts of a rank have an index, so that one that is missing is noticed; the rank reads them. */
SL_TEST(a_rank_reads_its_parts_again)
{
    char to[SL_CASE_PATH_BYTES], back[SL_CASE_PATH_BYTES], lost[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_safetensors;
    struct sl_case_opened opened;
    struct sl_err err;
    static const char *const third[] = {"source.rank.index=2", "source.rank.of=4", NULL};
    config.ranks = RANKS;
    config.shard_bytes = 1000;
    put_model();
    sl_case_expect("memory:model", sl_case_path("out/", to), &config, rules);
    ck_assert(sl_model_exists(sl_case_scratch, "out/model-rank-2-part-1.safetensors"));
    ck_assert(sl_model_exists(sl_case_scratch, "out/model-rank-2.safetensors.index.json"));
    sl_case_expect(to, sl_case_path("back.safetensors", back), &sl_case_safetensors, third);
    ck_assert_int_eq(sl_case_open(&opened, back, NULL, NULL), 0);
    for (unsigned t = 0; t < TENSORS; t++)
        check_tensor(opened.index, t, 2);
    sl_case_close(&opened);
    ck_assert_int_eq(remove(sl_case_path("out/model-rank-2-part-1.safetensors", lost)), 0);
    config = sl_case_safetensors;
    config.replace = true;
    ck_assert_int_lt(sl_case_convert(to, back, &config, third, NULL, &err), 0);
    ck_assert_msg(err.kind == SL_E_FORMAT && strstr(err.message, "model-rank-2-part-1"), "%s",
                  err.message);
}

SL_TEST(what_the_rules_cannot_do_is_told)
{
    static const struct {
        unsigned of;
        const char *rules, *words;
    } cases[] = {
        {4, "[{match: 'a*'}, {match: 'b*'}, {match: 'c*', whole: true}]",
         "no rule says how tensor 'd.embed.weight' is cut"},
        {5, "[{match: '*'}]", "dimension 0 of tensor 'a.q_proj.weight' has size 48"},
        {4, "[{match: '*', dim: 2}]", "there is no dimension 2"},
        {4, "[{match: 'c*', dim: 0}, {match: '*', whole: true}]", "tensor 'c.norm.weight'"},
    };
    put_model();
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        char of[64], text[200], to[SL_CASE_PATH_BYTES];
        struct sl_convert_config config = sl_case_safetensors;
        struct sl_err err;
        snprintf(of, sizeof(of), "tensors.shard.of=%u", cases[i].of);
        snprintf(text, sizeof(text), "tensors.shard.rules=%s", cases[i].rules);
        const char *const words[] = {of, "tensors.shard.others=refuse", text, NULL};
        config.ranks = cases[i].of;
        ck_assert_int_lt(
            sl_case_convert("memory:model", sl_case_path("out/", to), &config, words, NULL, &err),
            0);
        ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, cases[i].words), "%zu: %s", i,
                      err.message);
        ck_assert_uint_eq(sl_case_files(to), 0);
    }
}

SL_TEST(ranks_of_another_number_are_not_mixed)
{
    char to[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_safetensors;
    struct sl_err err;
    const char *const two[] = {"tensors.shard.of=2", rules[1], rules[2], NULL};
    sl_case_path("out/", to);
    config.ranks = RANKS;
    put_model();
    sl_case_expect("memory:model", to, &config, rules);
    sl_case_expect("memory:model", to, &config, rules);
    config.ranks = 2;
    ck_assert_int_lt(sl_case_convert("memory:model", to, &config, two, NULL, &err), 0);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "model-rank-"), "%s", err.message);
    ck_assert_uint_eq(sl_case_files(to), RANKS);
}

SL_TEST(ranks_go_into_a_folder)
{
    char to[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_safetensors;
    struct sl_err err;
    config.ranks = RANKS;
    put_model();
    ck_assert_int_lt(sl_case_convert("memory:model", sl_case_path("m.safetensors", to), &config,
                                     rules, NULL, &err),
                     0);
    ck_assert_msg(strstr(err.message, "name a folder") != NULL, "%s", err.message);
}

SL_TEST(every_failing_allocation_leaves_no_rank)
{
    char to[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_safetensors;
    struct sl_err err;
    unsigned succeeded = 0;
    config.ranks = 2;
    config.threads = 1;
    config.replace = true;
    put_model();
    const char *const words[] = {"tensors.shard.of=2", rules[1], rules[2], NULL};
    sl_case_path("out/", to);
    struct sl_specs specs;
    sl_case_spec(&specs, "memory:model", words);
    config.spec = specs.items;
    config.to = to;
    for (unsigned nth = 1; nth < 5000 && succeeded < 2; nth++) {
        err = (struct sl_err)SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        int done = sl_convert_run(&config, NULL, &err);
        sl_alloc_fail_at(0);
        succeeded += done == 0;
        ck_assert_msg(done == 0 || err.kind == SL_E_NO_SPACE, "allocation %u: %s", nth,
                      err.message);
    }
    ck_assert_uint_eq(succeeded, 2);
    sl_specs_release(&specs);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

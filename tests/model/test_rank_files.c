/*
 * Folders whose files are one rank's each: a rank takes its own by name, and says what is missing.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "plan_case.h"
#include "rank_name.h"

static uint8_t *objects[32];
static unsigned object_count;

/* Names with blanks between; weights by their ends, everything else a text. */
static void put_names(const char *names)
{
    char text[600], *state = NULL;
    snprintf(text, sizeof(text), "%s", names);
    for (char *name = strtok_r(text, " ", &state); name; name = strtok_r(NULL, " ", &state)) {
        char full[200], tensor[80];
        size_t bytes;
        snprintf(full, sizeof(full), "m/%s", name);
        snprintf(tensor, sizeof(tensor), "w%u", object_count);
        if (!strstr(name, ".safetensors") || strstr(name, ".json")) {
            put_text(full, "{\"weight_map\":{\"x\":\"lacking.safetensors\"}}");
            continue;
        }
        objects[object_count] = sl_model_safetensors(tensor, 16, &bytes);
        put(full, objects[object_count++], bytes);
    }
}

static void drop_names(void)
{
    clear();
    while (object_count > 0)
        free(objects[--object_count]);
}

/* The names of a plan's files, with blanks between. */
static void expect_files(const char *more, const char *files)
{
    struct sl_specs specs;
    struct sl_plan *plan = expect_plan(more, &specs);
    char found[600] = "";
    for (size_t i = 0; i < plan->file_count; i++)
        snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s%s", i ? " " : "",
                 plan->files[i].name);
    ck_assert_str_eq(found, files);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

static const char *rank(unsigned index, unsigned of, const char *more)
{
    static char text[300];
    snprintf(text, sizeof(text), "source: {uri: \"memory://m/\", rank: {index: %u, of: %u}%s}\n",
             index, of, more);
    return text;
}

SL_TEST(names_of_ranks)
{
    static const struct {
        const char *name;
        int number; /* -1: none */
    } cases[] = {
        {"model-rank-3-part-0.safetensors", 3},
        {"unet/model-rank-12-part-1.safetensors", 12},
        {"model-rank-007.tensors", 7},
        {"model-rank-1.safetensors.index.json", 1},
        {"rank5.safetensors", 5},
        {"consolidated.02.pth", 2},
        {"mp_rank_00_model.pt", 0},
        {"model-rank-.safetensors", -1},
        {"model-rank-1.json", -1},
        {"model-rank-1234567.tensors", -1},
        {"prank5.safetensors", -1},
        {"rank5/model.safetensors", -1},
        {"model-00001-of-00003.safetensors", -1},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sl_rank_name found = {0};
        bool is = sl_rank_name(cases[i].name, &found);
        ck_assert_msg(is == (cases[i].number >= 0), "%s", cases[i].name);
        ck_assert_msg(!is || (int)found.number == cases[i].number, "%s", cases[i].name);
    }
}

SL_TEST(a_rank_takes_its_files_and_what_is_no_weights)
{
    put_names("model-rank-0-part-0.safetensors model-rank-0-part-1.safetensors "
              "model-rank-1-part-0.safetensors model-rank-10-part-0.safetensors config.json");
    put_names("model.safetensors model.safetensors.index.json");
    for (unsigned i = 2; i < 10; i++) {
        char name[64];
        snprintf(name, sizeof(name), "model-rank-%u-part-0.safetensors", i);
        put_names(name);
    }
    expect_files(rank(1, 11, ""), "config.json model-rank-1-part-0.safetensors");
    expect_files(rank(0, 11, ""),
                 "config.json model-rank-0-part-0.safetensors model-rank-0-part-1.safetensors");
    expect_files(rank(10, 11, ""), "config.json model-rank-10-part-0.safetensors");
    drop_names();
}

SL_TEST(checkpoints_of_tensorrt_llm_are_ranks)
{
    put_names("rank0.safetensors rank1.safetensors config.json");
    expect_files(rank(1, 2, ""), "config.json rank1.safetensors");
    drop_names();
}

/* One clear sentence for each, and exit code 10. */
SL_TEST(what_is_not_of_so_many_ranks_is_refused)
{
    put_names("rank0.safetensors rank1.safetensors rank2.safetensors rank3.safetensors");
    expect_refusal(rank(1, 2, ""), SL_E_FORMAT, "'rank3.safetensors' is there, and 'source.rank'");
    expect_refusal(rank(1, 2, ", incomplete: warn"), SL_E_FORMAT, "there are 2 ranks");
    expect_refusal(rank(5, 8, ""), SL_E_FORMAT, "'rank5.safetensors' is not there");
    expect_refusal(rank(5, 8, ", incomplete: warn"), SL_E_FORMAT, "made for 8 ranks");
    expect_refusal(rank(1, 8, ""), SL_E_FORMAT, "'rank4.safetensors' is not there, of 8 ranks");
    expect_files(rank(1, 8, ", incomplete: warn"), "rank1.safetensors");
    expect_files(rank(1, 8, ", include: [\"rank1.*\"]"), "rank1.safetensors");
    drop_names();
}

SL_TEST(a_part_of_a_rank_that_is_missing_is_told)
{
    put_names("model-rank-0-part-0.safetensors model-rank-1-part-0.safetensors "
              "model-rank-1-part-2.safetensors model-rank-2-part-1.safetensors");
    expect_refusal(rank(1, 3, ""), SL_E_FORMAT, "of rank 1 2 files are there");
    expect_refusal(rank(2, 3, ""), SL_E_FORMAT, "of rank 2 1 file is there");
    expect_files(rank(0, 3, ""), "model-rank-0-part-0.safetensors");
    expect_files(rank(2, 3, ", incomplete: warn"), "model-rank-2-part-1.safetensors");
    put_text("m/model-rank-0.safetensors.index.json",
             "{\"weight_map\":{\"w0\":\"model-rank-0-part-0.safetensors\","
             "\"x\":\"model-rank-0-part-1.safetensors\"}}");
    expect_refusal(rank(0, 3, ""), SL_E_FORMAT, "'model-rank-0-part-1.safetensors', which is not");
    expect_files(rank(2, 3, ", incomplete: warn"), "model-rank-2-part-1.safetensors");
    drop_names();
}

SL_TEST(ranks_that_meet_are_told_how_to_part)
{
    size_t bytes;
    for (unsigned i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof(name), "m/rank%u.safetensors", i);
        objects[object_count] = sl_model_safetensors("w", 16, &bytes);
        put(name, objects[object_count++], bytes);
    }
    expect_refusal("sink: {tmpfs: {path: /n, layout: safetensors}}\n", SL_E_FORMAT,
                   "say with source.rank whose files are wanted");
    drop_names();
}

SL_TEST(two_sets_or_none_are_told)
{
    put_names("model.safetensors");
    expect_refusal(rank(0, 2, ""), SL_E_NOT_FOUND, "is called like the file of a rank");
    put_names("rank0.safetensors model-rank-0-part-0.safetensors");
    expect_refusal(rank(0, 1, ""), SL_E_USAGE, "two sets of ranks");
    expect_files(rank(0, 1, ", exclude: [\"rank0.*\"]"), "model-rank-0-part-0.safetensors");
    drop_names();
}

/* Each of these would give two files of one rank, or of ranks that were made apart. */
SL_TEST(numbers_that_are_written_in_two_ways_are_told)
{
    static const char *const cases[][2] = {
        {"model-rank-0-part-0.safetensors model-rank-00-part-0.safetensors", "two sets of ranks"},
        {"rank0.safetensors rank1.safetensors rank01.safetensors", "two sets of ranks"},
        {"rank00.safetensors rank1.safetensors", "two sets of ranks"},
        {"rank0.safetensors rank01.safetensors", "two sets of ranks"},
        {"model-rank-0-part-0.safetensors model-rank-0-part-00.safetensors", "the same part"},
        {"model-rank-0-part-1.safetensors model-rank-0-part-0.safetensors "
         "model-rank-0-part-01.safetensors",
         "the same part"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        put_names(cases[i][0]);
        expect_refusal(rank(0, 2, ", incomplete: warn"), SL_E_USAGE, cases[i][1]);
        drop_names();
    }
    put_names("rank0-00001-of-00002.safetensors rank0-00002-of-00002.safetensors "
              "rank1-00001-of-00001.safetensors"); /* no parts, as far as their names tell */
    expect_files(rank(0, 2, ""),
                 "rank0-00001-of-00002.safetensors rank0-00002-of-00002.safetensors");
    drop_names();
    put_names("rank00.safetensors rank01.safetensors rank100.safetensors");
    expect_files(rank(100, 101, ", incomplete: warn"), "rank100.safetensors");
    drop_names();
}

SL_TEST(a_rank_is_of_a_folder)
{
    struct sl_specs specs;
    struct sl_plan *plan = NULL;
    struct sl_err err = SL_ERR_INIT;
    put_names("rank0.safetensors");
    sl_model_spec(&specs, "memory:m/rank0.safetensors", "/n",
                  "source: {uri: \"memory:m/rank0.safetensors\", rank: {index: 0, of: 1}}\n");
    ck_assert_int_lt(sl_model_plan(&specs, &plan, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "is one object") != NULL, "%s", err.message);
    sl_specs_release(&specs);
    drop_names();
}

SL_TEST(every_failing_allocation_of_the_choice_is_survived)
{
    struct sl_specs specs;
    put_names("rank0.safetensors rank2.safetensors config.json");
    sl_model_spec(&specs, "memory://m/", "/n", rank(0, 3, ", incomplete: warn"));
    unsigned succeeded = 0;
    for (unsigned nth = 1; nth < 3000 && succeeded < 3; nth++) {
        struct sl_plan *plan = NULL;
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        if (sl_model_plan(&specs, &plan, &err) == 0)
            succeeded++;
        else
            ck_assert_msg(err.kind == SL_E_NO_SPACE, "allocation %u: %d %s", nth, err.kind,
                          err.message);
        sl_alloc_fail_at(0);
        sl_plan_free(plan);
    }
    ck_assert_uint_eq(succeeded, 3);
    sl_specs_release(&specs);
    drop_names();
}

SL_CASE(.teardown = drop_names)

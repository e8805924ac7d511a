/* Plans of GGUF models: alone, cast into safetensors, split into several files. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "golden.h"
#include "model_maker.h"
#include "plan_case.h"

/* A golden file as an object; free() it when the plan is gone. */
static uint8_t *put_file(const char *name, const char *golden)
{
    size_t bytes;
    uint8_t *data = golden_read(golden, &bytes);
    put(name, data, bytes);
    return data;
}

SL_TEST(gguf_models_are_loaded_as_they_are)
{
    struct sl_specs specs;
    uint8_t *model = put_file("m/model.gguf", "gguf/all_types.gguf");
    put_text("m/config.json", "{}");
    struct sl_plan *plan = expect_plan("", &specs);
    check_shape(plan);
    ck_assert_uint_eq(plan->file_count, 2);
    ck_assert_uint_eq(plan->fetch_bytes, 10272 + 2);
    ck_assert_uint_gt(plan->tensor_count, 30);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(model);
    model = put_file("m/model.gguf", "gguf/cut_in_data.gguf");
    expect_refusal("", SL_E_FORMAT, "source.asIs");
    plan = expect_plan("verify: {hashes: off}\n", &specs);
    ck_assert_uint_eq(plan->tensor_count, 0);
    ck_assert_uint_eq(plan->fetch_bytes, 140 + 2);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(model);
    put_text("m/model.gguf", "<html>not found</html>");
    expect_refusal("", SL_E_FORMAT, "model.gguf");
}

SL_TEST(gguf_tensors_without_blocks_become_safetensors)
{
    static const char layout[] = "sink: {tmpfs: {path: /n, layout: safetensors}}\n";
    struct sl_specs specs;
    uint8_t *model = put_file("m/model.gguf", "gguf/dims.gguf");
    struct sl_plan *plan = expect_plan(layout, &specs);
    check_shape(plan);
    ck_assert_uint_eq(plan->tensor_count, 6);
    ck_assert_str_eq(plan->files[0].name, "model.safetensors");
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(model);
    model = put_file("m/model.gguf", "gguf/all_types.gguf");
    expect_refusal(layout, SL_E_FORMAT, "Q");
    free(model);
}

static const char *const parts[] = {"model-00001-of-00003.gguf", "model-00002-of-00003.gguf",
                                    "model-00003-of-00003.gguf"};

static void put_parts(uint8_t *data[3], unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char name[64], golden[64];
        snprintf(name, sizeof(name), "m/%s", parts[i]);
        snprintf(golden, sizeof(golden), "gguf/split/%s", parts[i]);
        data[i] = put_file(name, golden);
    }
}

SL_TEST(a_split_set_is_loaded_whole_or_refused)
{
    uint8_t *data[3];
    struct sl_specs specs;
    put_parts(data, 3);
    struct sl_plan *plan = expect_plan("", &specs);
    ck_assert_uint_eq(plan->file_count, 3);
    ck_assert_uint_eq(plan->tensor_count, 5);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    static const char some[] = "source: {uri: \"memory://m/\", exclude: [\"*-00002-*\"]}\n";
    plan = expect_plan(some, &specs); /* what is left out is not missing */
    ck_assert_uint_eq(plan->file_count, 2);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    char picked[200];
    snprintf(picked, sizeof(picked), "%ssink: {tmpfs: {path: /n, layout: safetensors}}\n", some);
    expect_refusal(picked, SL_E_FORMAT, "part 2 of 3");
    for (unsigned i = 0; i < 3; i++)
        free(data[i]);
    clear();
    put_parts(data, 2);
    expect_refusal("", SL_E_FORMAT, "part 3 of 3");
    free(data[0]);
    free(data[1]);
}

/* Plan one object. */
static int plan_object(const char *uri, struct sl_plan **plan, struct sl_specs *specs,
                       struct sl_err *err)
{
    *plan = NULL;
    *err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(specs, uri, "/nowhere", "");
    return sl_model_plan(specs, plan, err);
}

SL_TEST(the_first_part_brings_its_set)
{
    uint8_t *data[3];
    struct sl_specs specs;
    struct sl_plan *plan;
    struct sl_err err;
    put_parts(data, 2);
    ck_assert_int_eq(plan_object("memory:m/model-00001-of-00003.gguf", &plan, &specs, &err), -1);
    ck_assert_msg(err.kind == SL_E_NOT_FOUND && strstr(err.message, "00003-of"), "%s", err.message);
    sl_specs_release(&specs);
    free(data[0]);
    free(data[1]);
    put_parts(data, 3);
    ck_assert_int_eq(plan_object("memory:m/model-00001-of-00003.gguf", &plan, &specs, &err), 0);
    ck_assert_uint_eq(plan->file_count, 3);
    ck_assert_uint_eq(plan->tensor_count, 5);
    check_shape(plan);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    ck_assert_int_eq(plan_object("memory:m/model-00002-of-00003.gguf", &plan, &specs, &err), 0);
    ck_assert_uint_eq(plan->file_count, 1);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    for (unsigned i = 0; i < 3; i++)
        free(data[i]);
}

SL_CASE(.teardown = clear)

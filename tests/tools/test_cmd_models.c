/* The list of public models, and the specs that are made from it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "json.h"
#include "run_sluice.h"
#include "spec.h"

static struct ran ran;

static void teardown(void)
{
    ran_release(&ran);
}

static size_t count_lines_with(const char *text, const char *part)
{
    size_t count = 0;
    while ((text = strstr(text, part))) {
        count++;
        text = strchr(text, '\n');
        if (!text)
            break;
    }
    return count;
}

SL_TEST(every_public_object_is_listed)
{
    RUN(&ran, "models");
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_uint_eq(count_lines_with(ran.out, "s3://tensorized/"), 74);
    ck_assert_uint_eq(count_lines_with(ran.out, "/model.tensors"), 54);
    ck_assert_uint_eq(count_lines_with(ran.out, "/fp16/"), 37);
    ck_assert_uint_eq(count_lines_with(ran.out, "text_encoder_2.tensors"), 2);
    ck_assert_ptr_nonnull(
        strstr(ran.out, "s3://tensorized/EleutherAI/gpt-j-6B/fp16/model.tensors"));
    ck_assert_ptr_nonnull(
        strstr(ran.out, "s3://tensorized/stabilityai/stable-diffusion-2-1/unet.tensors"));
}

SL_TEST(all_words_must_match_in_capitals_or_not)
{
    RUN(&ran, "models", "PYTHIA", "fp16", "deduped");
    ck_assert_uint_eq(count_lines_with(ran.out, "s3://"), 5);
    RUN(&ran, "models", "pythia", "unet");
    ck_assert_int_eq(ran.exit_code, 4);
    ck_assert_str_eq(ran.out, "");
}

SL_TEST(names_are_found_without_their_dashes)
{
    RUN(&ran, "models", "gptj", "fp16");
    ck_assert_uint_eq(count_lines_with(ran.out, "gpt-j-6b-fp16"), 1);
    RUN(&ran, "models", "--spec", "gptj");
    ck_assert_int_eq(ran.exit_code, 4);
    ck_assert_ptr_nonnull(strstr(ran.err, "'gptj', did you mean 'gpt-j-6b'?"));
    RUN(&ran, "models", "--spec", "---");
    ck_assert_int_eq(ran.exit_code, 4);
    ck_assert_ptr_null(strstr(ran.err, "did you mean"));
}

SL_TEST(each_row_has_its_size)
{
    RUN(&ran, "models", "gpt-j-6b-fp16");
    ck_assert_ptr_nonnull(strstr(ran.out, " 11.3 GiB  s3://"));
    RUN(&ran, "models", "xl-base-1.0-text-encoder-2");
    ck_assert_ptr_nonnull(strstr(ran.out, " 2.59 GiB  s3://"));
}

SL_TEST(scripts_get_json)
{
    struct sl_err err = SL_ERR_INIT;
    RUN(&ran, "models", "--json", "codegen");
    json_t *root = sl_json_parse(ran.out, strlen(ran.out), "models", &err);
    ck_assert_ptr_nonnull(root);
    json_t *models = json_object_get(root, "models");
    ck_assert_uint_eq(json_array_size(models), 14);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(models, 1), "name")),
                     "codegen-350m-mono-fp16");
    json_decref(root);
}

/* Parses what --spec printed; the number of models. */
static size_t spec_count(const char *name)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_specs specs = {0};
    struct sl_buf complaints = SL_BUF_INIT(65536);
    RUN(&ran, "models", "--spec", name);
    ck_assert_msg(ran.exit_code == 0, "%s: %s", name, ran.err);
    int result =
        sl_spec_parse(ran.out, strlen(ran.out), "spec", NULL, 0, &specs, &complaints, &err);
    ck_assert_msg(result == 0, "%s: %s %s", name, err.message, sl_buf_string(&complaints));
    size_t count = specs.count;
    sl_specs_release(&specs);
    sl_buf_release(&complaints);
    return count;
}

SL_TEST(specs_are_good)
{
    ck_assert_uint_eq(spec_count("gpt-j-6b-fp16"), 1);
    ck_assert_ptr_nonnull(strstr(ran.out, "EleutherAI/gpt-j-6B/fp16/model.tensors"));
    ck_assert_ptr_nonnull(strstr(ran.out, "anonymous: true"));
    ck_assert_uint_eq(spec_count("GPT-J-6B"), 1);
    ck_assert_uint_eq(spec_count("stable-diffusion-xl-base-1.0"), 4);
    ck_assert_uint_eq(spec_count("stable-diffusion-2-1-fp16-unet"), 1);
    RUN(&ran, "models", "--spec", "gpt-5");
    ck_assert_int_eq(ran.exit_code, 4);
    RUN(&ran, "models", "--spec", "gpt-j-6b", "word");
    ck_assert_int_eq(ran.exit_code, 2);
}

static const struct {
    const char *name;
    size_t models;
} families[] = {
    {"gpt", 10}, {"pythia", 20}, {"fairseq", 10}, {"codegen", 14}, {"stable-diffusion", 20},
};

SL_TEST_LOOP(the_manifest_of_a_family_is_what_is_printed, 0, 5)
{
    struct sl_err err = SL_ERR_INIT;
    char path[512];
    struct sl_buf text = SL_BUF_INIT(1 << 20);
    ck_assert_uint_eq(spec_count(families[_i].name), families[_i].models);
    snprintf(path, sizeof(path), "%s/manifests/models/%s.yaml", SL_SOURCE_ROOT, families[_i].name);
    ck_assert_msg(sl_buf_read_file(&text, path, &err) == 0, "%s", err.message);
    ck_assert_msg(strcmp(sl_buf_string(&text), ran.out) == 0,
                  "%s differs: write it anew with `sluice models --spec %s`", path,
                  families[_i].name);
    sl_buf_release(&text);
}

SL_CASE(.teardown = teardown)

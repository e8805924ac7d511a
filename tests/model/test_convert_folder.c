/* Conversions of folders: what goes along, where it goes, and how it is called. */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "claims.h"
#include "convert_case.h"
#include "golden.h"
#include "model_maker.h"

static void put_file(const char *name, const void *data, size_t bytes)
{
    char path[SL_CASE_PATH_BYTES];
    sl_case_path(name, path);
    for (char *slash = strchr(path + strlen(sl_case_scratch) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0755);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    ck_assert(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
}

SL_TEST(a_pipeline_keeps_its_folders)
{
    size_t bytes;
    uint8_t *data = sl_case_model(&bytes);
    char from[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES], a[SL_CASE_PATH_BYTES],
        b[SL_CASE_PATH_BYTES];
    put_file("in/model_index.json", "{}", 2);
    put_file("in/unet/diffusion_pytorch_model.safetensors", data, bytes);
    put_file("in/unet/config.json", "{\"u\":1}", 7);
    put_file("in/unet/diffusion_pytorch_model.safetensors.minisig", "old", 3);
    put_file("in/te[x]t/model.safetensors", data, bytes);
    put_file("in/te[x]t/pytorch_model.bin.sluice.json", "{}", 2); /* of what is left out */
    size_t rival_bytes;
    uint8_t *rival = golden_read("pytorch/dtypes.pt", &rival_bytes);
    put_file("in/te[x]t/pytorch_model.bin", rival,
             rival_bytes); /* the same weights, it is thought */
    free(rival);
    put_file("in/.sluice/ready", "", 0);
    struct sl_convert_config config = sl_case_safetensors;
    config.data_files = true;
    sl_case_expect(sl_case_path("in/", from), sl_case_path("out/", to), &config, NULL);
    sl_case_same(sl_case_path("in/unet/diffusion_pytorch_model.safetensors", a), NULL,
                 sl_case_path("out/unet/diffusion_pytorch_model.safetensors", b), NULL);
    ck_assert(sl_model_exists(sl_case_scratch, "out/te[x]t/model.safetensors"));
    ck_assert(sl_model_same(sl_case_scratch, "out/unet/config.json", "{\"u\":1}", 7));
    ck_assert(sl_model_same(sl_case_scratch, "out/model_index.json", "{}", 2));
    ck_assert_uint_eq(sl_case_files(to), 4);
    free(data);
}

/* Else "%2e%2e%2f" in the name of an object would lead out of the folder. */
SL_TEST(a_file_url_gets_names_as_they_are)
{
    size_t bytes;
    uint8_t *data = sl_case_model(&bytes);
    char from[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES], folder[SL_CASE_PATH_BYTES - 8];
    struct sl_convert_config config = sl_case_safetensors;
    config.data_files = true;
    put_file("in/model.safetensors", data, bytes);
    put_file("in/%2e%2e%2fout", "evil", 4);
    snprintf(folder, sizeof(folder), "%s/to/", sl_case_scratch);
    snprintf(to, sizeof(to), "file://%s", folder);
    sl_case_expect(sl_case_path("in/", from), to, &config, NULL);
    ck_assert(sl_model_same(sl_case_scratch, "to/%2e%2e%2fout", "evil", 4));
    ck_assert(!sl_model_exists(sl_case_scratch, "out"));
    ck_assert_uint_eq(sl_case_files(folder), 2);
    free(data);
}

SL_TEST(one_object_takes_the_model_of_a_folder_alone)
{
    size_t bytes;
    uint8_t *data = sl_case_model(&bytes);
    char from[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES];
    struct sl_convert_config config = sl_case_tensorizer;
    config.data_files = true;
    put_file("in/model.safetensors", data, bytes);
    put_file("in/config.json", "{}", 2);
    sl_case_expect(sl_case_path("in", from), sl_case_path("m.tensors", to), &config, NULL);
    sl_case_same("memory:model", NULL, to, NULL);
    free(data);
}

SL_TEST(several_models_do_not_fit_one_object)
{
    size_t bytes;
    struct sl_err err;
    uint8_t *data = sl_case_model(&bytes);
    char from[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES];
    put_file("in/unet/model.safetensors", data, bytes);
    put_file("in/vae/model.safetensors", data, bytes);
    ck_assert_int_lt(sl_case_convert(sl_case_path("in/", from), sl_case_path("m.tensors", to),
                                     &sl_case_tensorizer, NULL, NULL, &err),
                     0);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "folder"), "%s", err.message);
    ck_assert_int_lt(sl_case_convert(from, "http://me:secret@127.0.0.1:9/m.tensors",
                                     &sl_case_tensorizer, NULL, NULL, &err),
                     0);
    ck_assert_msg(strstr(err.message, "'http://127.0.0.1:9/m.tensors'") != NULL, "%s", err.message);
    free(data);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

/* What engines would take with the new files, or in their place. */
SL_TEST(files_of_an_earlier_conversion_are_not_mixed_with_the_new_ones)
{
    size_t bytes;
    char from[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES], path[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_case_model(&bytes);
    struct sl_err err;
    put_file("in/model.safetensors", data, bytes);
    free(data);
    struct sl_convert_config parts = sl_case_safetensors, one = sl_case_safetensors;
    parts.shard_bytes = 20000;
    sl_case_path("in/", from);
    sl_case_path("out/", to);
    sl_case_expect(from, to, &parts, NULL);
    sl_case_expect(from, to, &parts, NULL); /* over itself */
    unsigned files = sl_case_files(to);
    ck_assert_int_lt(sl_case_convert(from, to, &one, NULL, NULL, &err), 0);
    ck_assert_msg(err.kind == SL_E_USAGE && strstr(err.message, "of an earlier conversion"), "%s",
                  err.message);
    ck_assert_uint_eq(sl_case_files(to), files);
    put_file("other/model.fp16.safetensors", "x", 1); /* of other models */
    put_file("other/model-rank-0-part-0.safetensors", "x", 1);
    put_file("other/unet/model-00001-of-00002.safetensors", "x", 1);
    sl_case_expect(from, sl_case_path("other/", path), &one, NULL);
}

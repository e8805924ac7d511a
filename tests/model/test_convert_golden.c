/*
 * Every golden file that can be read, there and back: the same tensors, and bit for bit what the
 * reference writer made of them.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "convert_case.h"
#include "golden.h"
#include "memory_store.h"
#include "model_maker.h"

/* ---- golden files ---------------------------------------------------------------------------- */

/* Can it be read without a key, and has it a tensor that can be read? */
static bool is_readable(const char *uri)
{
    struct sl_case_opened opened;
    struct sl_err err = SL_ERR_INIT;
    bool readable = sl_case_open(&opened, uri, NULL, &err) == 0 && opened.index->tensor_count > 0;
    for (size_t i = 0; readable && i < opened.index->tensor_count; i++)
        readable = !opened.index->tensors[i].refused;
    sl_case_close(&opened);
    return readable;
}

/* What one format can hold and another cannot. */
static bool is_fair_refusal(const struct sl_err *err)
{
    static const char *const codes[] = {"E_DTYPE",  "E_EMPTY", "E_NAME",           "E_DUPLICATE",
                                        "st.dtype", "st.utf8", "st.duplicate-key", "st.metadata"};
    for (size_t i = 0; i < SL_COUNT(codes); i++)
        if (strcmp(err->code, codes[i]) == 0)
            return err->kind == SL_E_FORMAT;
    return strstr(err->message, "meta tensor") != NULL;
}

/* There, back, and to the other format; each file leaves nothing when it is refused. */
static unsigned round_trip(const char *uri)
{
    struct sl_err err;
    char tensors[SL_CASE_PATH_BYTES], other[SL_CASE_PATH_BYTES];
    sl_case_path("a.tensors", tensors);
    sl_case_path("a.safetensors", other);
    if (sl_case_convert(uri, tensors, &sl_case_tensorizer, NULL, NULL, &err) < 0) {
        ck_assert_msg(is_fair_refusal(&err), "%s: %s", uri, err.message);
        ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
        return 0;
    }
    sl_case_same(uri, NULL, tensors, NULL);
    unsigned done = 1;
    if (sl_case_convert(tensors, other, &sl_case_safetensors, NULL, NULL, &err) == 0) {
        sl_case_same(uri, NULL, other, NULL);
        done = 2;
        unlink(other);
    } else {
        ck_assert_msg(is_fair_refusal(&err), "%s: %s", uri, err.message);
    }
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 1);
    unlink(tensors);
    return done;
}

static unsigned round_trip_file(const char *folder, const char *file)
{
    char name[SL_CASE_PATH_BYTES], uri[SL_CASE_PATH_BYTES + 16];
    size_t bytes;
    snprintf(name, sizeof(name), "%s/%s", folder, file);
    uint8_t *data = golden_read(name, &bytes);
    ck_assert_int_eq(sl_memory_put("golden", data, bytes, NULL), 0);
    snprintf(uri, sizeof(uri), "memory:golden");
    unsigned done = is_readable(uri) ? round_trip(uri) : 0;
    sl_memory_clear();
    free(data);
    return done;
}

static unsigned round_trip_all(const char *folder)
{
    char name[SL_CASE_PATH_BYTES];
    unsigned done = 0;
    snprintf(name, sizeof(name), "%s/MANIFEST.json", folder);
    json_t *manifest = golden_json(name), *items = json_object_get(manifest, "items");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        const char *file = json_string_value(json_object_get(item, "file"));
        if (strcmp(json_string_value(json_object_get(item, "expect")), "ok") == 0 &&
            !strchr(file, '/'))
            done += round_trip_file(folder, file);
    }
    json_decref(manifest);
    return done;
}

SL_TEST(safetensors_go_to_tensors_and_back)
{
    ck_assert_uint_ge(round_trip_all("safetensors"), 16);
}

SL_TEST(pytorch_goes_to_tensors_and_safetensors)
{
    ck_assert_uint_ge(round_trip_all("pytorch"), 40);
}

SL_TEST(unquantised_gguf_goes_to_tensors_and_safetensors)
{
    ck_assert_uint_ge(round_trip_all("gguf"), 10);
}

/* The reference writer's plain files come out as it wrote them. */
SL_TEST(tensors_are_copied_bit_for_bit)
{
    json_t *manifest = golden_json("tensorizer/MANIFEST.json"),
           *items = json_object_get(manifest, "files");
    unsigned same = 0;
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        const char *name = json_string_value(json_object_get(item, "name"));
        char file[SL_CASE_PATH_BYTES], to[SL_CASE_PATH_BYTES];
        size_t bytes;
        if (strcmp(json_string_value(json_object_get(item, "category")), "invalid") == 0)
            continue;
        bool valid = strcmp(json_string_value(json_object_get(item, "category")), "valid") == 0;
        snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
        uint8_t *data = golden_read(file, &bytes);
        ck_assert_int_eq(sl_memory_put("golden", data, bytes, NULL), 0);
        bool quirk = strcmp(name, "v4-meta-0d") == 0; /* its hashes are over nothing known */
        if (is_readable("memory:golden") && !quirk) {
            sl_case_expect("memory:golden", sl_case_path("m.tensors", to), &sl_case_tensorizer,
                           NULL);
            sl_case_same("memory:golden", NULL, to, NULL);
            if (valid) {
                ck_assert_msg(sl_model_same(sl_case_scratch, "m.tensors", data, bytes), "%s", name);
                same++;
            }
        }
        sl_memory_clear();
        free(data);
    }
    ck_assert_uint_ge(same, 15);
    json_decref(manifest);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

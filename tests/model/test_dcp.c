/*
 * Distributed checkpoints of PyTorch: what torch 2.1 and 2.15 wrote, exactly; each way in which one
 * can be wrong; folders as a plan sees them.
 */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "claims.h"
#include "convert_case.h"
#include "dcp_maker.h"
#include "golden.h"
#include "log.h"
#include "memory_store.h"
#include "plan_case.h"
#include "stores.h"

static const char *const folders[] = {"one", "fsdp", "tp", "square", "hybrid", "copies", "old_one"};

/* The files of a checkpoint, in memory as m/NAME. */
struct files {
    uint8_t *data[16];
    char names[16][300];
    size_t bytes[16];
    unsigned count;
};

static void put_folder(struct files *files, const char *folder)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/golden/dcp/%s", SL_TEST_DATA, folder);
    DIR *dir = opendir(path);
    ck_assert_msg(dir != NULL, "cannot open %s", path);
    files->count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        unsigned i = files->count++;
        ck_assert_uint_lt(i, SL_COUNT(files->data));
        snprintf(files->names[i], sizeof(files->names[i]), "m/%s", entry->d_name);
        snprintf(path, sizeof(path), "dcp/%s/%s", folder, entry->d_name);
        files->data[i] = golden_read(path, &files->bytes[i]);
        put(files->names[i], files->data[i], files->bytes[i]);
    }
    closedir(dir);
}

static void drop_folder(struct files *files)
{
    clear();
    while (files->count > 0)
        free(files->data[--files->count]);
}

static unsigned number_of(const struct files *files, const char *name)
{
    for (unsigned i = 0; i < files->count; i++)
        if (strcmp(files->names[i], name) == 0)
            return i;
    ck_abort_msg("there is no %s", name);
    return 0;
}

/* Index memory:m/.metadata as it is there. */
static int open_checkpoint(struct golden_open *open, bool outline, struct sl_err *err)
{
    struct sl_source *source = NULL;
    char *key = NULL;
    memset(open, 0, sizeof(*open));
    int done = sl_store_open("memory:m/.metadata", NULL, &open->store, &key, err);
    if (done == 0)
        done = sl_source_open(open->store, key, SL_INDEX_HEAD_BYTES, &source, err);
    if (done == 0)
        done =
            (outline ? sl_format_outline : sl_format_index_strict)(source, key, &open->index, err);
    free(key);
    return done;
}

static int ignore_digest(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                         struct sl_err *err)
{
    (void)arg, (void)tensor, (void)digest, (void)err;
    return 0;
}

static int read_once(void *arg, struct sl_err *err)
{
    struct golden_open open;
    int done = open_checkpoint(&open, false, err);
    if (done == 0)
        done = sl_index_digest(open.index, true, arg ? arg : ignore_digest, NULL, err);
    golden_release(&open);
    return done;
}

/* ---- golden files ---------------------------------------------------------------------------- */

static void check_tensor(struct sl_index *index, const json_t *expected, bool outline)
{
    const json_t *name = json_object_get(expected, "name"),
                 *shape = json_object_get(expected, "shape"),
                 *dtype = json_object_get(expected, "dtype");
    const struct sl_tensor *tensor =
        sl_index_find(index, json_string_value(name), json_string_length(name), NULL);
    uint8_t digest[32];
    char hex[65];
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(tensor != NULL, "no tensor '%s'", json_string_value(name));
    ck_assert_int_eq(tensor->dtype,
                     sl_dtype_by_torch(json_string_value(dtype), json_string_length(dtype)));
    ck_assert_uint_eq(tensor->rank, json_array_size(shape));
    for (unsigned i = 0; i < tensor->rank; i++)
        ck_assert_uint_eq(tensor->shape[i], (uint64_t)json_integer_value(json_array_get(shape, i)));
    ck_assert_uint_eq(tensor->bytes,
                      (uint64_t)json_integer_value(json_object_get(expected, "nbytes")));
    if (outline)
        return;
    ck_assert_msg(sl_tensor_digest(index, tensor, true, digest, &err) == 0, "%s", err.message);
    sl_hex(digest, 32, hex);
    ck_assert_str_eq(hex, json_string_value(json_object_get(expected, "sha256")));
}

static void check_folder(const char *folder, bool outline)
{
    char name[100];
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    snprintf(name, sizeof(name), "dcp/%s.json", folder);
    json_t *json = golden_json(name), *tensors = json_object_get(json, "tensors");
    ck_assert_msg(open_checkpoint(&open, outline, &err) == 0, "%s: %s", folder, err.message);
    ck_assert_uint_eq(open.index->tensor_count, json_array_size(tensors));
    ck_assert_int_eq(open.index->outline, outline);
    for (size_t i = 0; i < json_array_size(tensors); i++)
        check_tensor(open.index, json_array_get(tensors, i), outline);
    golden_release(&open);
    json_decref(json);
}

SL_TEST(what_torch_saves_is_read_exactly)
{
    for (size_t i = 0; i < SL_COUNT(folders); i++) {
        struct files files;
        put_folder(&files, folders[i]);
        check_folder(folders[i], false);
        check_folder(folders[i], true);
        drop_folder(&files);
    }
}

SL_TEST(converted_tensors_are_those_that_were_saved)
{
    for (size_t i = 0; i < SL_COUNT(folders); i++) {
        struct files files;
        char to[SL_CASE_PATH_BYTES];
        put_folder(&files, folders[i]);
        sl_case_expect("memory://m/", sl_case_path("m.safetensors", to), &sl_case_safetensors,
                       NULL);
        sl_case_same("memory:m/.metadata", NULL, to, NULL);
        sl_case_expect("memory://m/", sl_case_path("m.tensors", to), &sl_case_tensorizer, NULL);
        sl_case_same("memory:m/.metadata", NULL, to, NULL);
        drop_folder(&files);
    }
}

SL_TEST(some_tensors_are_chosen)
{
    static const char *const words[] = {"tensors.include=[\"model.*\"]", NULL};
    struct files files;
    struct sl_case_opened opened;
    char to[SL_CASE_PATH_BYTES];
    put_folder(&files, "one");
    sl_case_expect("memory://m/", sl_case_path("m.safetensors", to), &sl_case_safetensors, words);
    ck_assert_int_eq(sl_case_open(&opened, to, NULL, NULL), 0);
    ck_assert_uint_eq(opened.index->tensor_count, 4);
    ck_assert_ptr_nonnull(sl_index_find(opened.index, "model.layers.0.bias", 19, NULL));
    sl_case_close(&opened);
    drop_folder(&files);
}

/* One byte of each chunk is damaged in turn. */
static void damage_chunks(struct files *files, struct sl_index *index)
{
    char to[SL_CASE_PATH_BYTES];
    unsigned damaged = 0;
    sl_case_path("m.safetensors", to);
    for (size_t i = 0; i < index->tensor_count; i++)
        for (size_t c = 0; c < index->tensors[i].chunk_count; c++, damaged++) {
            const struct sl_tensor *chunk = &index->tensors[i].chunks[c].tensor;
            char name[300];
            struct sl_err err = SL_ERR_INIT;
            snprintf(name, sizeof(name), "m/%s", index->source_names[chunk->source]);
            unsigned number = number_of(files, name);
            files->data[number][chunk->end - 1] ^= 1;
            put(name, files->data[number], files->bytes[number]);
            ck_assert_int_lt(
                sl_case_convert("memory://m/", to, &sl_case_safetensors, NULL, NULL, &err), 0);
            ck_assert_msg(strcmp(err.code, "E_HASH_CRC32") == 0 && err.kind == SL_E_INTEGRITY, "%s",
                          err.message);
            files->data[number][chunk->end - 1] ^= 1;
            put(name, files->data[number], files->bytes[number]);
        }
    ck_assert_uint_gt(damaged, 7);
}

SL_TEST(a_conversion_checks_each_chunk)
{
    static const char *const words[] = {"verify.hashes=require", NULL};
    static const char *const cut[] = {"tp", "square"};
    for (size_t i = 0; i < SL_COUNT(cut); i++) {
        struct files files;
        struct golden_open open;
        struct sl_convert_result result;
        struct sl_err err = SL_ERR_INIT;
        size_t chunks = 0;
        char to[SL_CASE_PATH_BYTES];
        put_folder(&files, cut[i]);
        ck_assert_int_eq(open_checkpoint(&open, false, &err), 0);
        for (size_t t = 0; t < open.index->tensor_count; t++)
            chunks += open.index->tensors[t].chunk_count;
        ck_assert_msg(sl_case_convert("memory://m/", sl_case_path("m.safetensors", to),
                                      &sl_case_safetensors, words, &result, &err) == 0,
                      "%s", err.message);
        ck_assert_uint_eq(result.checks, chunks);
        damage_chunks(&files, open.index);
        golden_release(&open);
        drop_folder(&files);
    }
}

/* ---- damage ---------------------------------------------------------------------------------- */

SL_TEST(every_prefix_of_the_metadata_is_refused)
{
    struct files files;
    put_folder(&files, "fsdp");
    unsigned number = number_of(&files, "m/.metadata");
    for (size_t bytes = 0; bytes < files.bytes[number]; bytes++) {
        struct sl_err err = SL_ERR_INIT;
        uint8_t *cut = malloc(bytes ? bytes : 1); /* of the exact size */
        memcpy(cut, files.data[number], bytes);
        put("m/.metadata", cut, bytes);
        ck_assert_int_lt(read_once(NULL, &err), 0);
        ck_assert_int_eq(err.kind, SL_E_FORMAT);
        put("m/.metadata", "", 0);
        free(cut);
    }
    drop_folder(&files);
}

/* Each byte of .metadata, of a file. Where the checkpoint is still read its tensors are right. */
static void change_each_byte(struct files *files, const char *name)
{
    unsigned number = number_of(files, name);
    for (size_t at = 0; at < files->bytes[number]; at++) {
        struct sl_err err = SL_ERR_INIT;
        files->data[number][at] ^= 0x41;
        put(name, files->data[number], files->bytes[number]);
        if (read_once(NULL, &err) < 0)
            ck_assert_msg(err.kind == SL_E_FORMAT || err.kind == SL_E_INTEGRITY, "%zu: %s", at,
                          err.message);
        files->data[number][at] ^= 0x41;
    }
}

SL_TEST(changed_bytes_are_refused_or_do_no_harm)
{
    struct files files;
    sl_log_setup(SL_LOG_ERROR, false);
    put_folder(&files, "hybrid");
    change_each_byte(&files, "m/.metadata");
    drop_folder(&files);
    put_folder(&files, "hybrid");
    change_each_byte(&files, "m/__0_0.distcp");
    drop_folder(&files);
}

SL_TEST(every_call_that_can_fail_fails_well)
{
    struct files files;
    sl_log_setup(SL_LOG_ERROR, false);
    put_folder(&files, "old_one"); /* of one file: with one thread */
    ck_assert_uint_gt(golden_each_allocation(read_once, NULL), 100);
    ck_assert_uint_gt(golden_each_read(read_once, NULL), 3);
    drop_folder(&files);
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static const struct {
    const char *code, *says; /* "": it is read */
    struct dcp_made made;
} cases[] = {
    {"", "", {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3"}}}},
    {"",
     "",
     {.shape = "4 3", .chunks = {{.at = "2 0", .size = "2 3"}, {.at = "0 0", .size = "2 3"}}}},
    {"",
     "",
     {.shape = "2 2",
      .chunks = {{.at = "0 0", .size = "2 1", .strides = "1 2"}, {.at = "0 1", .size = "2 1"}}}},
    {"",
     "",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3"}, {.at = "4 0", .size = "0 3"}}}},
    {"",
     "",
     {.shape = "4 3",
      .chunks = {{.at = "0 0", .size = "4 3"}, {.at = "4 0", .size = "0 3", .lost = true}}}},
    {"chunk.gap", "6 of 12 elements", {.shape = "4 3", .chunks = {{.at = "2 0", .size = "2 3"}}}},
    {"chunk.gap", "0 of 12", {.shape = "4 3"}},
    {"chunk.overlap",
     "same elements",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "3 3"}, {.at = "2 0", .size = "1 3"}}}},
    {"chunk.bounds",
     "beyond its shape",
     {.shape = "4 3", .chunks = {{.at = "1 0", .size = "4 3"}}}},
    {"chunk.bounds",
     "beyond its shape",
     {.shape = "4 3", .chunks = {{.at = "0 9223372036854775807", .size = "4 3"}}}},
    {"dcp.metadata", "from 0 on", {.shape = "4 3", .chunks = {{.at = "-1 0", .size = "4 3"}}}},
    {"dcp.metadata", "from 0 on", {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 -3"}}}},
    {"dcp.metadata",
     "from 0 on",
     {.shape = "4 99999999999999999999", .chunks = {{.at = "0 0", .size = "4 3"}}}},
    {"dcp.metadata", "2^60 bytes", {.shape = "9223372036854775807 9223372036854775807"}},
    {"dcp.metadata", "dimensions", {.shape = "4 3", .chunks = {{.at = "0", .size = "12"}}}},
    {"dcp.metadata",
     "stored nowhere",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .lost = true}}}},
    {"dcp.metadata",
     "two places",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3"}, {.at = "0 0", .size = "4 3"}}}},
    {"dcp.metadata",
     "negative",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .offset = "-1"}}}},
    {"dcp.bounds",
     "cut off",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .offset = "1"}}}},
    {"dcp.bounds",
     "cut off",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .offset = "9223372036854775807"}}}},
    {"dcp.bounds",
     "cut off",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .length = "9223372036854775807"}}}},
    {"dcp.bounds",
     "another one has",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .length = "0"}}}},
    {"dcp.bounds",
     "another one has",
     {.shape = "4 3",
      .chunks = {{.at = "0 0", .size = "2 3"}, {.at = "2 0", .size = "2 3", .offset = "0"}}}},
    {"zip.no-eocd",
     "tensor 't'",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .length = "100"}}}},
    {"dcp.missing-file",
     "'x/__1_0.distcp', which is not there",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .path = "x/__1_0.distcp"}}}},
    {"dcp.path",
     "'../__0_0.distcp'",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .path = "../__0_0.distcp"}}}},
    {"dcp.path",
     "'/etc/passwd'",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .path = "/etc/passwd"}}}},
    {"dcp.path",
     "'http://h/x'",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .path = "http://h/x"}}}},
    {"dcp.extension",
     "zstd",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .extension = "stream.zstd"}}}},
    {"dcp.chunk",
     "another type or shape",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .stored = "3 4"}}}},
    {"dcp.chunk",
     "another type or shape",
     {.shape = "4 3", .dtype = "int32", .chunks = {{.at = "0 0", .size = "4 3"}}}},
    {"dcp.chunk",
     "fill their place",
     {.shape = "4 3", .chunks = {{.at = "0 0", .size = "4 3", .strides = "0 1"}}}},
    {"dcp.unsupported",
     "torch.sparse_coo",
     {.shape = "4 3", .layout = "torch.sparse_coo", .chunks = {{.at = "0 0", .size = "4 3"}}}},
    {"pkl.global",
     "os.system",
     {.shape = "4 3", .opcodes = "cos\nsystem\n", .chunks = {{.at = "0 0", .size = "4 3"}}}},
    {"pkl.global",
     "my.planner.Plan",
     {.shape = "4 3",
      .opcodes = "cmy.planner\nPlan\n)\x81",
      .chunks = {{.at = "0 0", .size = "4 3"}}}},
    {"pkl.global", "torch.qint8x", {.shape = "4 3", .dtype = "qint8x"}},
    {"pkl.call", "does not write", {.shape = "4 3", .opcodes = "ctorch\nSize\n)R"}},
    {"pkl.persid", "persistent id", {.shape = "4 3", .opcodes = "NQ"}},
    {"pkl.build", "state", {.shape = "4 3", .opcodes = "}}b"}},
    {"pkl.memo", "", {.shape = "4 3", .opcodes = "h\1"}},
};

static void check_case(size_t number)
{
    struct sl_buf metadata = SL_BUF_INIT(1 << 20), file = SL_BUF_INIT(1 << 20);
    struct sl_err err = SL_ERR_INIT;
    dcp_make(&cases[number].made, &metadata, &file);
    put("m/.metadata", metadata.data, metadata.used);
    put("m/__0_0.distcp", file.data, file.used);
    int done = read_once(NULL, &err);
    ck_assert_msg(strcmp(err.code, cases[number].code) == 0 && (done < 0) == (err.kind != SL_OK) &&
                      (!done || err.kind == SL_E_FORMAT) && strstr(err.message, cases[number].says),
                  "case %zu: '%s' (%s) instead of '%s'", number, err.code, err.message,
                  cases[number].code);
    clear();
    sl_buf_release(&metadata);
    sl_buf_release(&file);
}

SL_TEST(what_is_wrong_is_refused_by_name)
{
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        check_case(i);
}

/* References to one value, without end: a few bytes that stand for much. */
SL_TEST(a_pickle_that_repeats_itself_is_limited)
{
    struct sl_buf metadata = SL_BUF_INIT(8 << 20), file = SL_BUF_INIT(1 << 20),
                  opcodes = SL_BUF_INIT(8 << 20);
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_eq(sl_buf_append(&opcodes, "]", 1, NULL), 0);
    for (unsigned i = 0; i < 2000; i++)
        ck_assert_int_eq(sl_buf_append(&opcodes, "]", 1, NULL), 0);
    for (unsigned i = 0; i < 2000; i++)
        ck_assert_int_eq(sl_buf_append(&opcodes, "a", 1, NULL), 0);
    const struct dcp_made made = {
        .shape = "4 3", .opcodes = opcodes.data, .opcode_bytes = opcodes.used};
    dcp_make(&made, &metadata, &file);
    put("m/.metadata", metadata.data, metadata.used);
    ck_assert_int_lt(read_once(NULL, &err), 0);
    ck_assert_str_eq(err.code, "pkl.limit");
    clear();
    sl_buf_release(&metadata);
    sl_buf_release(&file);
    sl_buf_release(&opcodes);
}

/* ---- folders --------------------------------------------------------------------------------- */

static const char tensors[] = "sink: {tmpfs: {path: /n, layout: safetensors}}\n";

static void forget(struct files *files, const char *name)
{
    clear();
    for (unsigned i = 0; i < files->count; i++)
        if (strcmp(files->names[i], name) != 0)
            put(files->names[i], files->data[i], files->bytes[i]);
}

SL_TEST(a_checkpoint_without_metadata_was_not_saved_to_its_end)
{
    struct files files;
    struct sl_err err = SL_ERR_INIT;
    struct golden_open open;
    put_folder(&files, "fsdp");
    forget(&files, "m/.metadata");
    expect_refusal(tensors, SL_E_FORMAT, "was not saved to its end");
    expect_refusal("", SL_E_FORMAT, "is written last");
    unsigned number = number_of(&files, "m/__1_0.distcp");
    ck_assert_int_lt(
        golden_index(&open, "m/__1_0.distcp", files.data[number], files.bytes[number], &err), 0);
    ck_assert_str_eq(err.code, "dcp.unfinished");
    golden_release(&open);
    drop_folder(&files);
}

SL_TEST(a_file_alone_is_told_from_its_checkpoint)
{
    struct files files;
    struct sl_err err = SL_ERR_INIT;
    struct golden_open open;
    put_folder(&files, "fsdp");
    unsigned number = number_of(&files, "m/__1_0.distcp");
    ck_assert_int_lt(
        golden_index(&open, "m/__1_0.distcp", files.data[number], files.bytes[number], &err), 0);
    ck_assert_str_eq(err.code, "dcp.part");
    golden_release(&open);
    drop_folder(&files);
}

SL_TEST(missing_files_are_named)
{
    struct files files;
    put_folder(&files, "fsdp");
    forget(&files, "m/__2_0.distcp");
    expect_refusal(tensors, SL_E_FORMAT, "'__2_0.distcp', which is not there");
    expect_refusal("", SL_E_FORMAT, "'__2_0.distcp', which is not there");
    clear(); /* all of them but one */
    unsigned number = number_of(&files, "m/.metadata");
    put("m/.metadata", files.data[number], files.bytes[number]);
    expect_refusal(tensors, SL_E_FORMAT, "'__0_0.distcp', which is not there");
    drop_folder(&files);
}

static void expect_plan_of(const char *more, size_t file_count, size_t tensor_count)
{
    struct sl_specs specs;
    struct sl_plan *plan = expect_plan(more, &specs);
    ck_assert_uint_eq(plan->file_count, file_count);
    ck_assert_uint_eq(plan->tensor_count, tensor_count);
    check_shape(plan);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

SL_TEST(a_folder_is_one_model_and_whole_files_stay_as_they_are)
{
    struct files files;
    put_folder(&files, "copies"); /* a rank had nothing to save: its file is empty */
    ck_assert_uint_eq(files.bytes[number_of(&files, "m/__3_0.distcp")], 0);
    put("m/__9_0.distcp", "PK\3\4 of an earlier save", 24);
    put_text("m/config.json", "{}");
    expect_plan_of(tensors, 2, 2);
    drop_folder(&files);
    put_folder(&files, "copies");
    expect_plan_of("", files.count, 0);
    put("m/__1_0.distcp", "", 0); /* that one had something */
    expect_refusal("", SL_E_FORMAT, "names '__1_0.distcp', which is empty");
    drop_folder(&files);
}

SL_TEST(safetensors_beside_a_checkpoint_come_first)
{
    struct files files;
    size_t bytes;
    put_folder(&files, "fsdp");
    uint8_t *model = sl_model_safetensors("a", 16, &bytes);
    put("m/model.safetensors", model, bytes);
    expect_plan_of(tensors, 1, 1);
    drop_folder(&files);
    free(model);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

/*
 * What is not whole is not ready, and what is whole is never refused: every format in every state,
 * by every command that takes a model.
 */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "golden.h"
#include "model_maker.h"
#include "run_sluice.h"
#include "scratch.h"
#include "whole_case.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], model[PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    snprintf(model, sizeof(model), "%s/model", scratch);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

SL_CASE(.setup = setup, .teardown = teardown)

static void write_file(const char *name, const void *data, size_t bytes)
{
    char path[PATH_BYTES * 2];
    snprintf(path, sizeof(path), "%s/%s", model, name);
    for (char *slash = path + strlen(model) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        (void)mkdir(path, 0755);
    }
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static void begin_model(void)
{
    sl_scratch_close(scratch_fd, scratch);
    setup();
    ck_assert_int_eq(mkdir(model, 0755), 0);
    write_text("config.json", "{}");
}

static void put_file(const char *name, const void *data, size_t bytes, void *arg)
{
    (void)arg;
    write_file(name, data, bytes);
}

/* ---- commands -------------------------------------------------------------------------------- */

static const char *const commands[] = {"load", "plan", "initializer", "convert"};

static void run_command(const char *command, const char *more)
{
    char uri[PATH_BYTES + 8], to[PATH_BYTES + 8], folder[PATH_BYTES + 8];
    snprintf(uri, sizeof(uri), "%s/", model);
    snprintf(to, sizeof(to), "%s/to", scratch);
    snprintf(folder, sizeof(folder), "%s/to/", scratch);
    const char *set = *more ? "--set" : NULL;
    if (strcmp(command, "load") == 0)
        RUN_COPY(&ran, "load", uri, "--to", to, set, more);
    else if (strcmp(command, "plan") == 0)
        RUN_COPY(&ran, "plan", uri, set, more);
    else if (strcmp(command, "initializer") == 0)
        RUN_COPY(&ran, "initializer", "--local", "copy", model, to, set, more);
    else
        RUN_COPY(&ran, "convert", uri, folder, set, more);
}

static bool is_there(const char *name)
{
    char path[PATH_BYTES * 2];
    snprintf(path, sizeof(path), "%s/to/%s", scratch, name);
    return access(path, F_OK) == 0;
}

/* Only that what was published is whole counts; the exit code of the initializer is always 1. */
static void expect_state(const struct whole_format *format, enum whole_state state,
                         const char *command)
{
    bool converts = strcmp(command, "convert") == 0;
    bool fine = state == WHOLE || (state == INDEX_STALE && !converts);
    const char *named = whole_named(format, state);
    begin_model();
    whole_put(format, state, put_file, NULL);
    run_command(command, "");
    ck_assert_msg((ran.exit_code == 0) == fine, "%s, %s, %s: exit code %d\n%s", format->name,
                  whole_states[state], command, ran.exit_code, ran.err);
    ck_assert_msg(state == WHOLE || strstr(ran.err, named), "%s, %s, %s: no '%s' in\n%s",
                  format->name, whole_states[state], command, named, ran.err);
    ck_assert_msg(fine || !is_there(".sluice/ready"), "%s, %s: ready", format->name,
                  whole_states[state]);
    ck_assert_msg(fine || !strstr(ran.err, "hashes: off"), "%s", ran.err);
    ck_assert_msg(!fine || state == WHOLE || strstr(ran.err, "warning"), "%s", ran.err);
}

/* tests/node/test_volumes_whole.c has the same for volumes. */
SL_TEST_LOOP(what_is_not_whole_is_not_ready, 0, STATES)
{
    for (size_t f = 0; f < WHOLE_FORMATS; f++)
        for (size_t c = 0; c < SL_COUNT(commands); c++)
            if (whole_has(&whole_formats[f], (enum whole_state)_i))
                expect_state(&whole_formats[f], (enum whole_state)_i, commands[c]);
}

/* ---- what a model says of itself ------------------------------------------------------------- */

#define EXPECT(code, word)                                                                         \
    ck_assert_msg(ran.exit_code == (code) && strstr(ran.err, word),                                \
                  "exit code %d, no '%s' in\n%s", ran.exit_code, word, ran.err)

static void put_weights(const char *name)
{
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a,b", 16, &bytes);
    write_file(name, data, bytes);
    free(data);
}

SL_TEST(an_index_that_names_what_is_not_there_is_refused_or_warned_of)
{
    begin_model();
    put_weights("sub/model-00001-of-00002.safetensors");
    write_text("sub/model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
               "\"zz\":\"model-00001-of-00002.safetensors\"}}");
    run_command("load", "");
    EXPECT(10, "tensor 'zz'");
    run_command("load", "source.incomplete=warn");
    EXPECT(0, "warning");
    write_text("sub/model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"../../etc/model-00001-of-00002.safetensors\"}}");
    run_command("load", "");
    EXPECT(10, "not a path below");
    write_text("sub/model.safetensors.index.json", "{\"weight_map\":{\"a\":");
    run_command("load", "");
    EXPECT(10, "sub/model.safetensors.index.json");
    run_command("load", "source.asIs=sub/model.safetensors.index.json");
    EXPECT(10, "model-00002-of-00002.safetensors");
    run_command("load", "source.exclude=*-00002-of-*,*.index.json");
    EXPECT(0, "");
}

SL_TEST(an_index_of_a_variant_counts_too)
{
    static const char *const names[] = {"model.fp16.safetensors.index.json",
                                        "model.safetensors.index.fp16.json",
                                        "tf_model.h5.index.json"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        begin_model();
        put_weights("model.safetensors");
        put_weights("one.fp16.safetensors");
        write_text(names[i], "{\"metadata\":{\"total_size\":9000000},\"weight_map\":{\"a\":"
                             "\"one.fp16.safetensors\",\"c\":\"two.fp16.safetensors\"}}");
        run_command("load", "");
        EXPECT(10, names[i]);
        EXPECT(10, "'two.fp16.safetensors'");
        write_text(names[i], "{\"metadata\":{\"total_size\":9000000},\"weight_map\":{\"a\":"
                             "\"one.fp16.safetensors\"}}");
        run_command("load", "");
        EXPECT(0, "9000000 bytes");
    }
}

/* ---- an index that is named itself ----------------------------------------------------------- */

static const char verbatim[] = "sink.tmpfs.layout=verbatim";

/* set: may be "". */
static void load_named(const char *name, const char *set, const char *layout)
{
    char uri[PATH_BYTES * 2], to[PATH_BYTES + 8];
    snprintf(uri, sizeof(uri), "%s/%s", model, name);
    snprintf(to, sizeof(to), "%s/to", scratch);
    RUN_COPY(&ran, "load", uri, "--to", to, "--set", layout, *set ? "--set" : NULL, set);
}

static void put_golden(const char *name, const char *golden)
{
    size_t bytes;
    uint8_t *data = golden_read(golden, &bytes);
    write_file(name, data, bytes);
    free(data);
}

struct named_index {
    const char *index, *there, *missing, *text;
    const char *golden; /* of the file that is there */
};

static const struct named_index named_indexes[] = {
    {"model.safetensors.index.json", "one.safetensors", "two.safetensors",
     "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}", NULL},
    {"model.safetensors.index.json", "one.safetensors", "'zz'",
     "{\"weight_map\":{\"a\":\"one.safetensors\",\"zz\":\"one.safetensors\"}}", NULL},
    {"pytorch_model.bin.index.json", "one.bin", "two.bin",
     "{\"weight_map\":{\"a\":\"one.bin\",\"b\":\"two.bin\"}}", "pytorch/records_2_7.pt"},
};

/* By its name, and by that of its folder. */
static void expect_missing(const struct named_index *is, const char *name, const char *layout)
{
    bool tensors = layout != verbatim;
    begin_model();
    if (is->golden)
        put_golden(is->there, is->golden);
    else
        put_weights(is->there);
    write_text(is->index, is->text);
    load_named(name, "", layout);
    EXPECT(10, is->missing);
    EXPECT(10, "source.incomplete: warn");
    load_named(name, "verify.hashes=off", layout);
    EXPECT(10, is->missing);
    ck_assert(!is_there(".sluice/ready"));
    load_named(name, "source.incomplete=warn", layout);
    EXPECT(0, "warning");
    EXPECT(0, is->missing);
    ck_assert(is_there(tensors ? "model.safetensors" : is->there));
    ck_assert(tensors || is_there(is->index));
}

SL_TEST_LOOP(what_a_named_index_misses_is_refused_or_warned_of, 0, SL_COUNT(named_indexes))
{
    static const char *const layouts[] = {verbatim, "sink.tmpfs.layout=safetensors"};
    for (size_t i = 0; i < SL_COUNT(layouts); i++) {
        expect_missing(&named_indexes[_i], named_indexes[_i].index, layouts[i]);
        expect_missing(&named_indexes[_i], "", layouts[i]);
    }
}

/* Whatever the index is called, its files come with it. */
SL_TEST(a_named_index_of_a_variant_brings_its_files)
{
    static const char name[] = "model.safetensors.index.fp16.json";
    begin_model();
    put_weights("one.fp16.safetensors");
    write_text(name, "{\"weight_map\":{\"a\":\"one.fp16.safetensors\"}}");
    load_named(name, "", verbatim);
    EXPECT(0, "");
    ck_assert(is_there(name) && is_there("one.fp16.safetensors"));
    write_text(name, "{\"weight_map\":{\"a\":\"two.fp16.safetensors\"}}");
    load_named(name, "", verbatim);
    EXPECT(10, "two.fp16.safetensors");
}

SL_TEST(what_is_only_called_like_an_index_is_a_file)
{
    static const char *const texts[] = {"{}", "[1, 2]", "{\"weight_map\": 3}", "{\"a\": \"b.c\"}"};
    begin_model();
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        write_text("search.index.json", texts[i]);
        load_named("search.index.json", "", verbatim);
        EXPECT(0, "");
        write_text("model.safetensors.index.json", texts[i]);
        load_named("model.safetensors.index.json", "", verbatim);
        EXPECT(10, "source.asIs");
    }
}

SL_TEST(what_is_left_out_on_purpose_is_not_missing)
{
    begin_model();
    put_weights("model-00001-of-00002.safetensors");
    put_weights("model-00002-of-00002.safetensors");
    put_weights("onnx/consolidated.safetensors");
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
               "\"b\":\"model-00002-of-00002.safetensors\"}}");
    run_command("load", "source.exclude=*-00002-of-*");
    EXPECT(0, "");
    ck_assert(is_there("model-00001-of-00002.safetensors"));
    ck_assert(!is_there("model-00002-of-00002.safetensors"));
    setenv("STORAGE_IGNORE_PATTERNS", "*-00001-of-*", 1);
    run_command("initializer", "");
    unsetenv("STORAGE_IGNORE_PATTERNS");
    EXPECT(0, "");
}

SL_TEST(folders_of_a_pipeline_are_not_missing)
{
    begin_model();
    put_weights("unet/model.safetensors");
    write_text(
        "model_index.json",
        "{\"_class_name\":\"P\",\"unet\":[\"diffusers\",\"U\"],\"vae\":[\"diffusers\",\"V\"],"
        "\"safety_checker\":[null,null],\"boundary\":0.5,\"deep\":{\"x\":[\"a\",\"b\"]}}");
    run_command("load", "");
    EXPECT(10, "'vae'");
    run_command("load", "source.include=unet/*,*.json");
    EXPECT(10, "'vae'");
    run_command("convert", "");
    EXPECT(10, "'vae'");
    run_command("load", "source.exclude=vae/*");
    EXPECT(0, "");
    write_text("vae/config.json", "{}");
    run_command("load", "");
    EXPECT(0, "");
}

SL_TEST(parts_of_ranks_are_not_missing)
{
    begin_model();
    put_weights("model-rank-0-part-0.safetensors");
    put_weights("model-rank-0-part-1.safetensors");
    put_weights("model-rank-2-part-0.safetensors");
    put_weights("lora_rank16.safetensors"); /* sizes, not numbers */
    put_weights("lora_rank64.safetensors");
    run_command("load", "");
    EXPECT(10, "model-rank-1-part-0.safetensors");
    put_weights("model-rank-1-part-0.safetensors");
    run_command("load", "");
    EXPECT(0, "");
}

SL_TEST(files_of_a_distributed_checkpoint_are_not_missing)
{
    static const char names[] = "\x80\x04.\x8c\x0c__0_0.distcp\x94.X\x0c\0\0\0__1_0.distcp.";
    begin_model();
    write_text("__0_0.distcp", "data");
    run_command("load", "");
    EXPECT(10, "'.metadata'");
    write_file(".metadata", names, sizeof(names) - 1);
    run_command("load", "");
    EXPECT(10, "'__1_0.distcp'");
    write_text("__1_0.distcp", "data");
    run_command("load", "");
    EXPECT(0, "");
}

/* ---- whole is never refused ------------------------------------------------------------------ */

static void put_unknown(const char *name, const char *dtype, unsigned more)
{
    char head[200], file[400];
    int bytes =
        snprintf(head, sizeof(head),
                 "{\"a\":{\"dtype\":\"%s\",\"shape\":[16],\"data_offsets\":[0,16]}}", dtype);
    memset(file, 1, sizeof(file));
    for (unsigned i = 0; i < 8; i++)
        file[i] = (char)((uint64_t)bytes >> 8 * i);
    memcpy(file + 8, head, (size_t)bytes);
    write_file(name, file, 8 + (size_t)bytes + 16 + more);
}

SL_TEST(a_type_that_is_not_known_is_a_warning)
{
    begin_model();
    put_unknown("model.safetensors", "NVFP8", 0);
    run_command("load", "");
    EXPECT(0, "NVFP8");
    ck_assert(is_there("model.safetensors"));
    run_command("convert", "");
    EXPECT(10, "NVFP8");
    put_unknown("model.safetensors", "NVFP8", 4);
    run_command("plan", "");
    EXPECT(10, "source.asIs");
    run_command("plan", "source.asIs=model.*");
    EXPECT(0, "");
}

SL_TEST(gguf_of_a_fork_is_a_warning)
{
    size_t bytes;
    uint8_t *data = golden_read("gguf/big_endian.gguf", &bytes);
    begin_model();
    write_file("model.gguf", data, bytes);
    run_command("load", "");
    EXPECT(0, "big-endian");
    free(data);
    data = golden_read("gguf/dims.gguf", &bytes);
    data[4] = 4; /* the version */
    write_file("model.gguf", data, bytes);
    run_command("plan", "");
    EXPECT(0, "version 4");
    free(data);
}

SL_TEST(real_repositories_are_whole)
{
    begin_model();
    put_weights("model-00001-of-00002.safetensors");
    put_weights("model-00002-of-00002.safetensors");
    put_weights("consolidated.safetensors");
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\","
               "\"b\":\"model-00002-of-00002.safetensors\"}}");
    write_text("tf_model.h5", "\x89HDF\r\n\x1a\n some");
    write_text("flax_model.msgpack", "\x81\xa1xxx");
    write_text("onnx/model.onnx", "\x08\x07\x12");
    write_text("tokenizer.bin", "");
    write_text("openvino_model.bin", "raw");
    write_file("__MACOSX/._model.safetensors", "\0\5\26\7 some", 9); /* of a Mac */
    write_file("._model-00001-of-00003.safetensors", "\0\5\26\7", 4);
    write_file("._model.safetensors.index.json", "\0\5\26\7", 4);
    write_text("._pytorch_model.bin", "");
    write_text(".DS_Store", "Bud1");
    write_text("original/consolidated.00.pth", "raw");
    write_text("search.index.json", "[1, 2]");
    write_text("README.md", "<html>");
    run_command("load", "");
    EXPECT(0, "");
    ck_assert(is_there("onnx/model.onnx") && is_there("original/consolidated.00.pth"));
}

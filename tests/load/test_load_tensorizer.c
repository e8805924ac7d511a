/*
 * Loads with `layout: tensorizer`: what is written is what the reference writer would write, with
 * all hashes right, however many connections bring the bytes, and wherever the load was broken off.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "golden.h"
#include "kill_load.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "model_maker.h"
#include "reader.h"
#include "scratch.h"
#include "tree.h"

enum { PLAIN_FILES = 22 };

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static uint8_t *parts[2]; /* of the model in memory */

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_scratch_close(scratch_fd, scratch);
    sl_memory_clear();
    free(sl_steal(&parts[0]));
    free(sl_steal(&parts[1]));
}

static void put(const char *name, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_memory_put(name, data, bytes, NULL), 0);
}

static void make_spec(struct sl_specs *specs, const char *uri, const char *sink, const char *more)
{
    char text[1200];
    snprintf(text, sizeof(text), "sink: {tmpfs: {path: \"%s\", layout: tensorizer%s}}\n%s", path,
             sink, more);
    sl_model_spec(specs, uri, path, text);
}

static int load_from(const char *uri, const char *sink, const char *more,
                     struct sl_load_result *result, struct sl_err *err)
{
    struct sl_specs specs;
    *err = (struct sl_err)SL_ERR_INIT;
    make_spec(&specs, uri, sink, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, result, err);
    sl_specs_release(&specs);
    return done;
}

static void expect_load(const char *uri, const char *sink, const char *more,
                        struct sl_load_result *result)
{
    struct sl_err err;
    int done = load_from(uri, sink, more, result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    ck_assert(sl_model_exists(path, ".sluice/ready"));
}

/* The written file; free() it. */
static uint8_t *take_file(size_t *bytes)
{
    uint8_t *file = sl_model_read(path, "model.tensors", bytes);
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(sl_tree_remove(scratch_fd, "model"), 0);
    return file;
}

/* ---- what is written ------------------------------------------------------------------------- */

static void load_golden(const char *name)
{
    struct sl_load_result result;
    char file[300];
    size_t bytes, found_bytes;
    snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
    uint8_t *golden = golden_read(file, &bytes);
    put("m/any.tensors", golden, bytes);
    expect_load("memory://m/", "", "", &result);
    uint8_t *found = take_file(&found_bytes);
    ck_assert_msg(found_bytes == bytes && memcmp(found, golden, bytes) == 0, "%s differs", name);
    free(found);
    free(golden);
    sl_memory_clear();
}

SL_TEST(a_file_of_the_reference_writer_comes_out_as_it_was)
{
    json_t *manifest = golden_json("tensorizer/MANIFEST.json");
    const json_t *files = json_object_get(manifest, "files");
    unsigned loaded = 0;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(file, "name"));
        const char *category = json_string_value(json_object_get(file, "category"));
        if (strcmp(category, "valid") != 0 || strcmp(name, "v4-meta-0d") == 0 ||
            strncmp(name, "v3-", 3) == 0 || strstr(name, "encrypted"))
            continue;
        load_golden(name);
        loaded++;
    }
    json_decref(manifest);
    ck_assert_uint_eq(loaded, PLAIN_FILES);
}

static int ignore(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                  struct sl_err *err)
{
    (void)tensor, (void)digest, (void)err;
    ++*(size_t *)arg;
    return 0;
}

/* All hashes of the file are right and it has so many tensors. */
static void check_hashes(const uint8_t *file, size_t bytes, size_t tensors)
{
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    size_t seen = 0;
    ck_assert_msg(golden_index(&open, "written.tensors", file, bytes, &err) == 0, "%s",
                  err.message);
    ck_assert_msg(sl_index_digest(open.index, true, ignore, &seen, &err) == 0, "%s", err.message);
    ck_assert_uint_eq(seen, tensors);
    for (size_t i = 0; i < tensors; i++)
        ck_assert_uint_eq(open.index->tensors[i].hash_count, 2);
    golden_release(&open);
}

/* Six tensors of very different sizes, some of them larger than what is read at once. */
static void put_model(void)
{
    size_t bytes;
    parts[0] = sl_model_safetensors("l.0,l.1", 300000, &bytes);
    put("m/a.safetensors", parts[0], bytes);
    parts[1] = sl_model_safetensors("s.0,s.1,s.2,s.3", 77, &bytes);
    put("m/b.safetensors", parts[1], bytes);
    put("m/config.json", "{}", 2);
}

SL_TEST(every_number_of_connections_writes_the_same_file)
{
    struct sl_load_result result;
    size_t first_bytes = 0, found_bytes;
    uint8_t *first = NULL;
    put_model();
    for (unsigned connections = 1; connections <= 8; connections++) {
        char more[100];
        snprintf(more, sizeof(more), "readers: {connections: %u, rangeBytes: %uKi}\n", connections,
                 64 << connections % 4);
        expect_load("memory://m/", "", more, &result);
        ck_assert_uint_eq(result.tensors, 6);
        ck_assert(sl_model_same(path, "config.json", "{}", 2));
        uint8_t *found = take_file(&found_bytes);
        if (!first) {
            first = found;
            first_bytes = found_bytes;
            check_hashes(first, first_bytes, 6);
            continue;
        }
        ck_assert_uint_eq(found_bytes, first_bytes);
        ck_assert_int_eq(memcmp(found, first, first_bytes), 0);
        free(found);
    }
    free(first);
}

SL_TEST(selected_tensors_lie_where_align_and_the_manifest_say)
{
    struct sl_load_result result;
    size_t found_bytes;
    put_model();
    expect_load("memory://m/", ", alignBytes: 4KiB", "tensors: {include: [\"*.1\"]}\n", &result);
    json_t *manifest = sl_model_manifest(path);
    json_t *tensors = json_object_get(manifest, "tensors");
    ck_assert_uint_eq(json_array_size(tensors), 2);
    for (size_t i = 0; i < 2; i++)
        ck_assert_uint_eq(sl_json_get_uint(json_array_get(tensors, i), "offset", 1) % 4096, 0);
    json_decref(manifest);
    uint8_t *found = take_file(&found_bytes);
    check_hashes(found, found_bytes, 2);
    free(found);
}

SL_TEST(what_cannot_be_written_is_refused_before_anything_is_read)
{
    struct sl_load_result result;
    struct sl_err err;
    put_model();
    ck_assert_int_eq(load_from("memory://m/", ", alignBytes: 100", "", &result, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_int_eq(load_from("memory://m/", "", "tensors: {include: [none]}\n", &result, &err),
                     -1);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

SL_TEST(a_damaged_source_publishes_nothing)
{
    struct sl_load_result result;
    struct sl_err err;
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/bad-hash-data.tensors.gz", &bytes);
    put("m/any.tensors", golden, bytes);
    ck_assert_int_eq(load_from("memory://m/", "", "", &result, &err), -1);
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
    free(golden);
}

/* ---- what is written of bytes that change on their way --------------------------------------- */

static void write_secret(const char *name, const json_t *how, const char *key)
{
    const json_t *value = json_object_get(how, key);
    char file[SL_SCRATCH_PATH_BYTES + 16];
    uint8_t secret[256];
    size_t bytes = json_string_length(value) / 2;
    ck_assert_int_eq(sl_unhex(json_string_value(value), secret, bytes), 0);
    snprintf(file, sizeof(file), "%s/%s", scratch, name);
    FILE *out = fopen(file, "w");
    ck_assert_uint_eq(fwrite(secret, 1, bytes, out), bytes);
    fclose(out);
    chmod(file, 0600);
}

/* `decrypt` for a golden file: the passphrase where it costs little, else the key. */
static void make_decrypt(const char *name, const json_t *sidecar, char *more, size_t bytes)
{
    const json_t *how = json_object_get(sidecar, "encryption");
    bool passphrase = strcmp(name, "v3-passphrase-min") == 0;
    bool derived = !json_object_get(how, "key_hex");
    write_secret("secret", how,
                 passphrase ? "passphrase_hex"
                 : derived  ? "derived_key_hex"
                            : "key_hex");
    snprintf(more, bytes, "decrypt: {%s: \"%s/secret\"}\n",
             passphrase ? "passphraseFile" : "keyFile", scratch);
}

static void load_encrypted(const char *name)
{
    struct sl_load_result result;
    struct sl_err err = SL_ERR_INIT;
    struct golden_open open;
    char file[300], more[SL_SCRATCH_PATH_BYTES + 64];
    size_t bytes, found_bytes;
    snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
    uint8_t *golden = golden_read(file, &bytes);
    snprintf(file, sizeof(file), "tensorizer/%s.json", name);
    json_t *sidecar = golden_json(file);
    make_decrypt(name, sidecar, more, sizeof(more));
    put("m/any.tensors", golden, bytes);
    expect_load("memory://m/", "", more, &result);
    uint8_t *found = take_file(&found_bytes);
    ck_assert_msg(golden_index(&open, "written.tensors", found, found_bytes, &err) == 0, "%s: %s",
                  name, err.message);
    ck_assert(!open.index->encrypted);
    ck_assert_msg(golden_same(open.index, json_object_get(sidecar, "tensors"), true, true),
                  "%s differs", name);
    golden_release(&open);
    json_decref(sidecar);
    free(found);
    free(golden);
    sl_memory_clear();
}

SL_TEST(an_encrypted_file_is_written_as_plaintext)
{
    static const char *const names[] = {
        "v3-key",    "v3-module",         "v3-chunks-1024",    "v3-chunks-2mib",
        "v3-shared", "v3-passphrase-min", "v4-meta-encrypted", "v5-long-encrypted"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        load_encrypted(names[i]);
}

/* Layout safetensors, of whose bytes other tests say that they are right, gives the same tensors.
 */
static void check_same_tensors(const uint8_t *file, size_t bytes, const char *more)
{
    struct sl_load_result result;
    struct sl_err err = SL_ERR_INIT;
    struct golden_open ours, other;
    char text[1200];
    size_t other_bytes;
    snprintf(text, sizeof(text), "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\n%s", path,
             more);
    struct sl_specs specs;
    sl_model_spec(&specs, "memory://m/", path, text);
    ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, &result, &err) == 0, "%s", err.message);
    sl_specs_release(&specs);
    uint8_t *wanted = sl_model_read(path, "model.safetensors", &other_bytes);
    ck_assert_int_eq(sl_tree_remove(scratch_fd, "model"), 0);
    ck_assert_int_eq(golden_index(&ours, "written.tensors", file, bytes, &err), 0);
    ck_assert_int_eq(golden_index(&other, "other.safetensors", wanted, other_bytes, &err), 0);
    ck_assert_uint_eq(ours.index->tensor_count, other.index->tensor_count);
    for (size_t i = 0; i < ours.index->tensor_count; i++) {
        const struct sl_tensor *a = &ours.index->tensors[i];
        const struct sl_tensor *b = sl_index_find(other.index, a->name, a->name_bytes, NULL);
        ck_assert(b && a->dtype == b->dtype && a->bytes == b->bytes);
        ck_assert_mem_eq(file + a->begin, wanted + b->begin, a->bytes);
    }
    golden_release(&ours);
    golden_release(&other);
    free(wanted);
}

static uint64_t load_as(const char *layout, const char *more)
{
    struct sl_load_result result;
    struct sl_err err = SL_ERR_INIT;
    struct sl_specs specs;
    char text[1200];
    snprintf(text, sizeof(text), "sink: {tmpfs: {path: \"%s\", layout: %s}}\n%s", path, layout,
             more);
    sl_model_spec(&specs, "memory://m/", path, text);
    ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, &result, &err) == 0, "%s", err.message);
    sl_specs_release(&specs);
    ck_assert_int_eq(sl_publish_verify(path, NULL, NULL, NULL, &err), 0);
    return result.inherited;
}

/* Of another object beside it the next version is made. */
SL_TEST(what_was_decrypted_is_taken_over_where_it_would_be_again)
{
    char decrypt[SL_SCRATCH_PATH_BYTES + 64];
    size_t bytes, first_bytes;
    uint8_t *golden = golden_read("tensorizer/v3-key.tensors.gz", &bytes);
    json_t *sidecar = golden_json("tensorizer/v3-key.json");
    make_decrypt("v3-key", sidecar, decrypt, sizeof(decrypt));
    put("m/any.tensors", golden, bytes);
    put("m/config.json", "1", 1);
    ck_assert_uint_eq(load_as("safetensors", decrypt), 0);
    uint8_t *first = sl_model_read(path, "model.safetensors", &first_bytes);
    put("m/config.json", "2", 1);
    ck_assert_uint_gt(load_as("safetensors", decrypt), 100);
    ck_assert(sl_model_same(path, "model.safetensors", first, first_bytes));
    ck_assert_uint_le(load_as("verbatim", ""), 1);
    ck_assert(sl_model_same(path, "any.tensors", golden, bytes));
    ck_assert_uint_le(load_as("safetensors", decrypt), 1);
    ck_assert(sl_model_same(path, "model.safetensors", first, first_bytes));
    free(first);
    json_decref(sidecar);
    free(golden);
    sl_memory_clear();
}

SL_TEST(cast_and_cut_tensors_have_right_hashes)
{
    static const char *const options[] = {
        "tensors: {cast: {F32: BF16}}\n",
        "tensors: {cast: {F32: F64}, include: [\"l.*\"]}\n",
        "tensors: {shard: {rank: 1, of: 3, rules: [{match: \"l.*\", dim: 0}]}}\n",
        "tensors: {cast: {F32: F16}, shard: {rank: 2, of: 4, rules: [{match: \"l.*\", dim: 0}]}}\n",
    };
    struct sl_load_result result;
    struct sl_err err;
    size_t bytes;
    for (size_t i = 0; i < SL_COUNT(options); i++) {
        char more[300];
        put_model();
        snprintf(more, sizeof(more), "%sreaders: {connections: 1, rangeBytes: 64Ki}\n", options[i]);
        sl_memory_fail_at(7); /* broken off, then resumed */
        ck_assert_int_eq(load_from("memory://m/", "", more, &result, &err), -1);
        sl_memory_fail_at(0);
        expect_load("memory://m/", "", options[i], &result);
        uint8_t *found = take_file(&bytes);
        check_hashes(found, bytes, i == 1 ? 2 : 6);
        check_same_tensors(found, bytes, options[i]);
        free(found);
        sl_memory_clear();
        free(sl_steal(&parts[0]));
        free(sl_steal(&parts[1]));
    }
}

/* ---- resume ---------------------------------------------------------------------------------- */

SL_TEST(a_broken_off_load_resumes_with_right_headers)
{
    struct sl_load_result result;
    struct sl_err err;
    size_t whole_bytes, found_bytes;
    put_model();
    expect_load("memory://m/", "", "", &result);
    uint8_t *whole = take_file(&whole_bytes);
    uint64_t resumed = 0;
    for (unsigned fail_at = 4; fail_at < 34; fail_at += 3) {
        sl_memory_fail_at(fail_at);
        int done = load_from("memory://m/", "",
                             "readers: {rangeBytes: 64Ki, connections: 1}\nverify: {hashes: off}\n",
                             &result, &err);
        sl_memory_fail_at(0);
        ck_assert_int_eq(done, -1);
        ck_assert(!sl_model_exists(path, ".sluice/ready"));
        expect_load("memory://m/", "", "readers: {rangeBytes: 128Ki}\nverify: {hashes: off}\n",
                    &result);
        resumed += result.resumed;
        uint8_t *found = take_file(&found_bytes);
        ck_assert_uint_eq(found_bytes, whole_bytes);
        ck_assert_int_eq(memcmp(found, whole, whole_bytes), 0);
        free(found);
    }
    ck_assert_uint_gt(resumed, 0);
    free(whole);
}

SL_TEST(a_killed_load_leaves_no_file_and_resumes)
{
    static const char one[] = "readers: {connections: 1, rangeBytes: 64Ki}\n";
    struct sl_server *server = sl_server_start();
    struct sl_load_result result;
    size_t bytes, found_bytes;
    uint8_t *model = sl_model_safetensors("a,b,c,d", 50000, &bytes);
    sl_server_put(server, "/m.safetensors", model, bytes, "\"one\"");
    const char *url = sl_server_url(server, "/m.safetensors");
    const char *const words[] = {"load",
                                 url,
                                 "--to",
                                 path,
                                 "--connections",
                                 "1",
                                 "--range-bytes",
                                 "64Ki",
                                 "--set",
                                 "sink.tmpfs.layout=tensorizer",
                                 NULL};
    expect_load(url, "", one, &result);
    free(take_file(&found_bytes));
    unsigned requests = sl_server_request_count(server);
    uint64_t fetched = result.fetched, last = 0, kept = 0;
    for (unsigned nth = 1; nth <= requests; nth++) {
        sl_kill_load(server, words, nth);
        ck_assert(!sl_model_exists(path, "model.tensors"));
        expect_load(url, "", one, &result);
        /* The first brings the header and what lies within 128 KiB of it, which lands without a
         * request; each of the others 64 KiB, or what a tensor has left. */
        if (nth == 2)
            kept = result.resumed;
        ck_assert(nth <= 2 ? result.resumed < 128 * 1024 : result.resumed > last + 32 * 1024);
        ck_assert_uint_eq(result.fetched, fetched - (result.resumed - kept));
        last = result.resumed;
        uint8_t *found = take_file(&found_bytes);
        check_hashes(found, found_bytes, 4);
        free(found);
    }
    ck_assert_uint_gt(last, bytes - 3 * 64 * 1024);
    sl_server_stop(server);
    free(model);
}

/* ---- the reader alone ------------------------------------------------------------------------ */

struct run {
    const struct sl_plan *plan;
    const uint8_t *expected;
    size_t bytes;
};

static int read_into_memory(void *arg, struct sl_err *err)
{
    const struct run *run = arg;
    struct sl_sink_file files[8];
    const struct sl_reader_config config = {.connections = 1, .threads = 1};
    uint32_t model = 0;
    ck_assert_uint_le(run->plan->file_count, SL_COUNT(files));
    for (uint32_t i = 0; i < run->plan->file_count; i++) {
        files[i] = (struct sl_sink_file){run->plan->files[i].name, run->plan->files[i].bytes};
        model = strcmp(files[i].name, "model.tensors") == 0 ? i : model;
    }
    SL_AUTO(sl_sink) sink = sl_heap_open(files, run->plan->file_count, err);
    if (!sink || sl_reader_run(run->plan, sink, NULL, &config, err) < 0)
        return -1;
    ck_assert_int_eq(memcmp(sl_heap_data(sink, model), run->expected, run->bytes), 0);
    return 0;
}

SL_TEST(memory_holds_the_same_file_and_failing_calls_are_reported)
{
    struct sl_load_result result;
    struct sl_specs specs;
    struct sl_plan *plan = NULL;
    struct sl_err err = SL_ERR_INIT;
    struct run run;
    put_model();
    expect_load("memory://m/", "", "", &result);
    uint8_t *expected = take_file(&run.bytes);
    make_spec(&specs, "memory://m/", "", "");
    ck_assert_int_eq(sl_model_plan(&specs, &plan, &err), 0);
    run.plan = plan;
    run.expected = expected;
    ck_assert_uint_gt(golden_each_allocation(read_into_memory, &run), 10);
    ck_assert_uint_gt(golden_each_read(read_into_memory, &run), 1);
    sl_plan_free(plan);
    sl_specs_release(&specs);
    free(expected);
}

static int plan_it(void *arg, struct sl_err *err)
{
    struct sl_plan *plan = NULL;
    int done = sl_model_plan(arg, &plan, err);
    sl_plan_free(plan);
    return done;
}

SL_TEST(planning_reports_every_failing_allocation)
{
    struct sl_specs specs;
    put_model();
    make_spec(&specs, "memory://m/", "", "");
    ck_assert_uint_gt(golden_each_allocation(plan_it, &specs), 30);
    sl_specs_release(&specs);
}

SL_CASE(.setup = setup, .teardown = teardown)

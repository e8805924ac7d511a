/* Whole loads of encrypted models: decrypted, cast, one rank's slices, into each layout. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "convert.h"
#include "golden.h"
#include "hash.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "publish.h"
#include "range_server.h"
#include "scratch.h"
#include "stores.h"

enum { ROWS = 256, COLUMNS = 300, LAYERS = 3, NORM = 500, PIECE_BYTES = 2048 };
enum { MATRIX_BYTES = ROWS * COLUMNS * 4 };

static const uint8_t key[SL_KEY_BYTES] = "the key of the model, 32 bytes..";
static char scratch[SL_SCRATCH_PATH_BYTES], key_file[SL_SCRATCH_PATH_BYTES + 16];
static char path[SL_SCRATCH_PATH_BYTES + 16], plain[SL_SCRATCH_PATH_BYTES + 32];
static char sealed[SL_SCRATCH_PATH_BYTES + 32];
static int scratch_fd;

static void write_file(const char *name, const void *data, size_t bytes)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    close(fd);
}

/* Three layers of two matrices and a vector, as a transformer has them. */
static void write_model(void)
{
    char header[4096];
    size_t used = 0, at = 0;
    header[used++] = '{';
    for (int i = 0; i < LAYERS; i++) {
        size_t q = at, o = q + MATRIX_BYTES, norm = o + MATRIX_BYTES;
        at = norm + NORM * 4;
        used += (size_t)snprintf(
            header + used, sizeof(header) - used,
            "%s\"l.%d.q\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%zu,%zu]},"
            "\"l.%d.o\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[%zu,%zu]},"
            "\"l.%d.norm\":{\"dtype\":\"F32\",\"shape\":[%d],\"data_offsets\":[%zu,%zu]}",
            i ? "," : "", i, ROWS, COLUMNS, q, o, i, ROWS, COLUMNS, o, norm, i, NORM, norm, at);
    }
    header[used++] = '}';
    while (used % 8)
        header[used++] = ' ';
    uint8_t *file = sl_model_noise(8 + used + at, 3);
    sl_put_le64(file, used);
    memcpy(file + 8, header, used);
    for (size_t i = 8 + used + 3; i < 8 + used + at; i += 4)
        file[i] &= 0xbf; /* small numbers */
    write_file(plain, file, 8 + used + at);
    free(file);
}

static void seal_model(void)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_specs specs;
    struct sl_convert_result result;
    SL_AUTO(sl_keys) keys = sl_keys_from_key(key, &err);
    sl_model_spec(&specs, plain, path, "");
    struct sl_convert_config config = {.spec = &specs.items[0],
                                       .to = sealed,
                                       .format = SL_CONVERT_TENSORIZER,
                                       .seal = keys,
                                       .threads = 1,
                                       .block_bytes = PIECE_BYTES};
    int done = sl_convert_run(&config, &result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    sl_specs_release(&specs);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/out", scratch);
    snprintf(plain, sizeof(plain), "%s/plain.safetensors", scratch);
    snprintf(sealed, sizeof(sealed), "%s/sealed.tensors", scratch);
    snprintf(key_file, sizeof(key_file), "%s/key", scratch);
    write_model();
    seal_model();
    write_file(key_file, key, sizeof(key));
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_scratch_close(scratch_fd, scratch);
}

static void make_spec(struct sl_specs *specs, const char *to, const char *uri, const char *layout,
                      const char *more)
{
    char text[4096];
    snprintf(text, sizeof(text), "sink: {tmpfs: {path: \"%s/%s\", layout: %s}}\n%s", scratch, to,
             layout, more);
    sl_model_spec(specs, uri, path, text);
}

/* Load into `to` below the scratch folder; more: YAML. */
static int load_into(const char *to, const char *uri, const char *layout, const char *more,
                     struct sl_load_result *result, struct sl_err *err)
{
    struct sl_specs specs;
    *err = (struct sl_err)SL_ERR_INIT;
    make_spec(&specs, to, uri, layout, more);
    int done = sl_load_run(&specs.items[0], NULL, NULL, result, err);
    sl_specs_release(&specs);
    return done;
}

static void must_load(const char *to, const char *uri, const char *layout, const char *more,
                      struct sl_load_result *result)
{
    struct sl_err err;
    int done = load_into(to, uri, layout, more, result, &err);
    ck_assert_msg(done == 0, "%s: %s", to, err.message);
}

static const char *with_key(const char *more)
{
    static char text[2048];
    snprintf(text, sizeof(text), "decrypt: {keyFile: \"%s\"}\n%s", key_file, more);
    return text;
}

static bool same_files(const char *a, const char *b)
{
    size_t bytes;
    char one[512], other[512];
    snprintf(one, sizeof(one), "%s/%s", scratch, a);
    snprintf(other, sizeof(other), "%s/%s", scratch, b);
    uint8_t *data = sl_model_read(one, "model.safetensors", &bytes);
    bool same = data && sl_model_same(other, "model.safetensors", data, bytes);
    free(data);
    return same;
}

SL_TEST(an_encrypted_model_is_there_as_safetensors)
{
    struct sl_load_result result;
    must_load("plain", plain, "safetensors", "", &result);
    must_load("sealed", sealed, "safetensors", with_key(""), &result);
    ck_assert_uint_eq(result.decrypted, 3 * LAYERS);
    ck_assert_uint_eq(result.unhashed, 0);
    ck_assert(same_files("plain", "sealed"));
    must_load("all", sealed, "safetensors", with_key("verify: {hashes: all}\n"), &result);
    ck_assert_uint_eq(result.checks, 3 * LAYERS);
    ck_assert(same_files("plain", "all"));
    must_load("require", sealed, "safetensors", with_key("verify: {hashes: require}\n"), &result);
    ck_assert(same_files("plain", "require"));
    must_load("all", sealed, "safetensors", with_key("verify: {hashes: all}\n"), &result);
    ck_assert(result.already);
}

/* The manifest tells of tensors as they lie there. */
static void must_be_listed(const char *to, const char *dtype)
{
    char directory[512];
    snprintf(directory, sizeof(directory), "%s/%s", scratch, to);
    json_t *manifest = sl_model_manifest(directory);
    json_t *tensors = json_object_get(manifest, "tensors");
    ck_assert_uint_eq(json_array_size(tensors), 3 * LAYERS);
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *tensor = json_array_get(tensors, i);
        ck_assert_str_eq(json_string_value(json_object_get(tensor, "dtype")), dtype);
        ck_assert(!json_object_get(tensor, "encrypted"));
    }
    json_decref(manifest);
}

SL_TEST(casts_agree_whatever_the_way)
{
    static const char *const casts[] = {"BF16", "F64", "F8_E4M3"};
    for (size_t i = 0; i < SL_COUNT(casts); i++) {
        char more[256], all[512];
        struct sl_load_result result;
        snprintf(more, sizeof(more), "tensors: {cast: {F32: %s}}\n", casts[i]);
        snprintf(all, sizeof(all), "%sverify: {hashes: all}\n", more);
        must_load("plain", plain, "safetensors", more, &result);
        must_load("sealed", sealed, "safetensors", with_key(more), &result);
        ck_assert_uint_eq(result.cast, 3 * LAYERS);
        ck_assert(same_files("plain", "sealed"));
        must_load("all", sealed, "safetensors", with_key(all), &result);
        ck_assert_uint_eq(result.checks, 3 * LAYERS);
        ck_assert(same_files("plain", "all"));
        must_be_listed("all", casts[i]);
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static const char *rank_text(unsigned rank, unsigned of, bool columns)
{
    static char text[512];
    snprintf(text, sizeof(text),
             "readers: {slices: least-bytes}\n" /* else a slow answer is worth what lies between */
             "tensors: {shard: {rank: %u, of: %u, rules: [{match: \"*.q\", dim: 0}, {match: "
             "\"*.o\", dim: %d}]}}\n",
             rank, of, columns);
    return text;
}

static void digest_of(const char *file, const char *name, const struct sl_slice *slice,
                      uint8_t digest[32])
{
    static const struct sl_source_config none;
    struct sl_err err = SL_ERR_INIT;
    struct sl_store *store;
    struct sl_source *source;
    struct sl_index *index;
    char *object;
    ck_assert_int_eq(sl_store_open(file, &none, &store, &object, &err), 0);
    ck_assert_int_eq(sl_source_open(store, object, SL_INDEX_HEAD_BYTES, &source, &err), 0);
    ck_assert_int_eq(sl_format_index(source, &index, &err), 0);
    const struct sl_tensor *tensor = sl_index_find(index, name, strlen(name), NULL);
    int done = slice ? sl_slice_digest(index, tensor, slice, digest, &err)
                     : sl_tensor_digest(index, tensor, false, digest, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    sl_index_free(index);
    sl_store_free(store);
    free(object);
}

/* The matrices of a rank's file against those of the whole model. */
static void must_be_rank(const char *to, unsigned rank, unsigned of, bool columns)
{
    char part_path[512], name[32];
    snprintf(part_path, sizeof(part_path), "%s/%s/model.safetensors", scratch, to);
    for (int i = 0; i < 2 * LAYERS; i++) {
        unsigned dim = i % 2 && columns;
        uint8_t digests[2][32];
        struct sl_slice slice = {.end = {ROWS, COLUMNS}};
        uint64_t part = slice.end[dim] / of;
        slice.begin[dim] = part * rank;
        slice.end[dim] = part * (rank + 1);
        snprintf(name, sizeof(name), "l.%d.%c", i / 2, i % 2 ? 'o' : 'q');
        digest_of(plain, name, &slice, digests[0]);
        digest_of(part_path, name, NULL, digests[1]);
        ck_assert_msg(memcmp(digests[0], digests[1], 32) == 0, "%s of rank %u", name, rank);
    }
}

SL_TEST(each_rank_fetches_only_its_slices)
{
    enum { RANKS = 4, INDEX_BYTES = 512 * 1024 };
    uint64_t matrices = 2 * LAYERS * (uint64_t)MATRIX_BYTES, norms = LAYERS * NORM * 4;
    uint64_t bound = matrices / RANKS + norms + (matrices + norms) / 50;
    size_t bytes;
    uint8_t *object = sl_model_read(scratch, "sealed.tensors", &bytes);
    struct sl_server *server = sl_server_start();
    sl_server_put(server, "/sealed.tensors", object, bytes, "\"v1\"");
    for (unsigned rank = 0; rank < RANKS; rank++) {
        struct sl_load_result result;
        must_load("rank", sl_server_url(server, "/sealed.tensors"), "safetensors",
                  with_key(rank_text(rank, RANKS, false)), &result);
        ck_assert(!result.already); /* each is a version of its own */
        ck_assert_uint_eq(result.sliced, 2 * LAYERS);
        ck_assert_uint_le(result.fetched, bound + INDEX_BYTES);
        must_be_rank("rank", rank, RANKS, false);
    }
    sl_server_stop(server);
    free(object);
    struct sl_plan *plan;
    struct sl_err err;
    struct sl_specs specs;
    make_spec(&specs, "rank", sealed, "safetensors", with_key(rank_text(1, RANKS, false)));
    ck_assert_int_eq(sl_model_plan(&specs, &plan, &err), 0);
    ck_assert_uint_le(plan->fetch_bytes, bound);
    sl_plan_free(plan);
    sl_specs_release(&specs);
}

SL_TEST(columns_arrive_from_plain_and_encrypted_files)
{
    for (unsigned rank = 0; rank < 2; rank++) {
        struct sl_load_result result;
        must_load("columns", sealed, "safetensors", with_key(rank_text(rank, 2, true)), &result);
        must_be_rank("columns", rank, 2, true);
        must_load("plain", plain, "safetensors", rank_text(rank, 2, true), &result);
        ck_assert(same_files("plain", "columns"));
    }
}

/* ---- tensors that no range of bytes gives ---------------------------------------------------- */

/* A checkpoint of the golden files, loaded as safetensors, against what it must hold. */
static void checkpoint_arrives(const char *name, const char *layout)
{
    char file[128], expect[160], uri[512], to[512];
    struct sl_load_result result;
    struct golden_open open;
    struct sl_err err;
    size_t bytes;
    snprintf(file, sizeof(file), "pytorch/%s", name);
    snprintf(expect, sizeof(expect), "pytorch/%s.expect.json", name);
    snprintf(uri, sizeof(uri), "%s/model.pt", scratch);
    snprintf(to, sizeof(to), "%s/out", scratch);
    uint8_t *data = golden_read(file, &bytes);
    write_file(uri, data, bytes);
    free(data);
    must_load("out", uri, layout, "", &result);
    bool tensors = strcmp(layout, "tensorizer") == 0;
    data = sl_model_read(to, tensors ? "model.tensors" : "model.safetensors", &bytes);
    ck_assert_msg(golden_index(&open, "out", data, bytes, &err) == 0, "%s", err.message);
    json_t *wanted = golden_json(expect);
    json_t *list = json_object_get(wanted, "tensors");
    ck_assert_uint_eq(open.index->tensor_count, json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *tensor = json_string_value(json_object_get(item, "name"));
        const struct sl_tensor *found = sl_index_find(open.index, tensor, strlen(tensor), NULL);
        uint8_t digest[32];
        char hex[65];
        ck_assert_msg(found != NULL, "%s: no %s", name, tensor);
        ck_assert_int_eq(sl_tensor_digest(open.index, found, tensors, digest, &err), 0);
        sl_hex(digest, 32, hex);
        ck_assert_str_eq(hex, json_string_value(json_object_get(item, "sha256")));
    }
    json_decref(wanted);
    golden_release(&open);
    free(data);
}

SL_TEST(views_and_big_endian_tensors_arrive)
{
    static const char *const names[] = {"noncontiguous.pt", "views.pt", "big_endian.pt",
                                        "small_view_of_big_storage.pt"};
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        checkpoint_arrives(names[i], "safetensors");
        checkpoint_arrives(names[i], "tensorizer");
    }
}

/* ---- into .tensors --------------------------------------------------------------------------- */

SL_TEST(an_encrypted_model_becomes_a_plain_one)
{
    struct sl_load_result result;
    char uri[512];
    must_load("tensors", sealed, "tensorizer", with_key("tensors: {cast: {F32: F16}}\n"), &result);
    must_load("casted", plain, "safetensors", "tensors: {cast: {F32: F16}}\n", &result);
    snprintf(uri, sizeof(uri), "%s/tensors/model.tensors", scratch);
    must_load("again", uri, "safetensors", "verify: {hashes: all}\n", &result);
    ck_assert_uint_eq(result.checks, 2 * 3 * LAYERS); /* the hashes that were written are right */
    ck_assert(same_files("casted", "again"));
}

/* ---- what must not pass ---------------------------------------------------------------------- */

static void must_not_load(const char *more, const char *code, const char *words)
{
    char to[512];
    struct sl_err err;
    struct sl_load_result result;
    snprintf(to, sizeof(to), "%s/none", scratch);
    ck_assert_int_eq(load_into("none", sealed, "safetensors", more, &result, &err), -1);
    ck_assert_str_eq(err.code, code);
    ck_assert_msg(strstr(err.message, words), "%s", err.message);
    ck_assert(!sl_model_exists(to, ".sluice/ready") && !sl_model_exists(to, "model.safetensors"));
}

SL_TEST(nothing_is_published_without_the_right_key)
{
    must_not_load("", "E_KEY_REQUIRED", "encrypted");
    write_file(key_file, "another key, 32 bytes as well...", 32);
    must_not_load(with_key(""), "E_DECRYPT", "probably wrong");
}

SL_TEST(nothing_is_published_of_damaged_data)
{
    size_t bytes;
    uint8_t *object = sl_model_read(scratch, "sealed.tensors", &bytes);
    object[bytes - 1000] ^= 4; /* the last tensor */
    write_file(sealed, object, bytes);
    must_not_load(with_key(""), "E_DECRYPT", "damaged");
    object[bytes - 1000] ^= 4;
    write_file(sealed, object, bytes);
    struct sl_load_result result;
    must_load("none", sealed, "safetensors", with_key(""), &result);
    free(object);
}

SL_TEST(a_broken_off_load_goes_on_where_it_was)
{
    size_t bytes;
    struct sl_err err;
    struct sl_load_result first, second, whole;
    uint8_t *object = sl_model_read(scratch, "sealed.tensors", &bytes);
    struct sl_server *server = sl_server_start();
    const char *more = with_key("tensors: {include: [\"*\"]}\n" /* it is not fetched whole */
                                "readers: {connections: 1, rangeBytes: 64KiB}\n");
    sl_server_put(server, "/m.tensors", object, bytes, "\"v1\"");
    SL_SCRIPT(server, {.first = 20, .fault = SL_FAULT_STATUS, .status = 403});
    const char *uri = sl_server_url(server, "/m.tensors");
    ck_assert_int_eq(load_into("out", uri, "safetensors", more, &first, &err), -1);
    ck_assert_msg(err.kind == SL_E_AUTH, "%s", err.message);
    SL_SCRIPT(server, {.first = 9999});
    must_load("out", uri, "safetensors", more, &second);
    must_load("whole", uri, "safetensors", more, &whole);
    ck_assert(same_files("out", "whole"));
    ck_assert_uint_gt(second.resumed, 0);
    ck_assert_uint_le(second.fetched + second.resumed, whole.fetched + 64 * 1024);
    sl_server_stop(server);
    free(object);
}

SL_TEST(every_failing_allocation_is_survived)
{
    const char *more = with_key("tensors: {cast: {F32: F64}, shard: {rank: 1, of: 2, rules: "
                                "[{match: \"*.q\", dim: 0}]}}\nverify: {hashes: all}\n");
    char ready[512];
    struct sl_specs specs;
    make_spec(&specs, "out", sealed, "safetensors", more);
    snprintf(ready, sizeof(ready), "%s/out/.sluice/ready", scratch);
    for (unsigned nth = 1, total = 1; nth <= total; nth += 1 + nth / 40) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_load_result result;
        sl_alloc_fail_at(nth);
        int failed = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
        total = failed ? UINT32_MAX : sl_alloc_count();
        sl_alloc_fail_at(0);
        ck_assert_msg(!failed || err.kind == SL_E_NO_SPACE, "%u: %s", nth, err.message);
        unlink(ready); /* the next one has all to do */
    }
    sl_specs_release(&specs);
}

SL_CASE(.setup = setup, .teardown = teardown)

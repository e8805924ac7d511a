/*
 * Models opened by the library: what every golden file holds, slices against brute force, what a
 * read fetches, errors, and what is left behind.
 */
#include "sluice.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "convert_case.h"
#include "golden.h"
#include "hash.h"
#include "memory_store.h"
#include "model_maker.h"
#include "open_case.h"
#include "range_server.h"

static void sha256_of(const void *data, size_t bytes, uint8_t digest[32])
{
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    sl_sha256_update(sha, data, bytes);
    sl_sha256_finish(sha, digest);
}

/* ---- golden files ---------------------------------------------------------------------------- */

static void compare_tensor(struct sluice_source *source, uint64_t number,
                           struct sl_case_opened *opened, const char *file)
{
    struct sluice_tensor tensor = tensor_of(source, number);
    const struct sl_tensor *known = &opened->index->tensors[number];
    ck_assert_uint_eq(tensor.name_bytes, known->name_bytes);
    ck_assert_int_eq(memcmp(tensor.name, known->name, tensor.name_bytes), 0);
    ck_assert_uint_eq(tensor.bytes, known->bytes);
    ck_assert_uint_eq(tensor.rank, known->rank);
    for (uint32_t d = 0; d < tensor.rank; d++)
        ck_assert_uint_eq(tensor.shape[d], known->shape[d]);
    ck_assert_int_eq(tensor.refused != 0, known->refused != 0);
    if (known->refused || known->bytes > 1 << 24)
        return;
    uint8_t expected[32], digest[32];
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_tensor_digest(opened->index, known, false, expected, &err) == 0, "%s: %s",
                  file, err.message);
    uint8_t *data = whole(source, number);
    sha256_of(data, tensor.bytes, digest);
    ck_assert_msg(memcmp(digest, expected, 32) == 0, "%s: %s", file, tensor.name);
    free(data);
}

/* 1 if it has tensors. */
static unsigned compare_model(const char *file)
{
    struct sl_case_opened opened;
    struct sl_err err = SL_ERR_INIT;
    unsigned done = 0;
    if (sl_case_open(&opened, "memory:golden", NULL, &err) == 0 && opened.index->tensor_count) {
        struct sluice_source *source = open_it("memory:golden", NULL);
        ck_assert_uint_eq(info_of(source).tensor_count, opened.index->tensor_count);
        for (uint64_t i = 0; i < opened.index->tensor_count; i++)
            compare_tensor(source, i, &opened, file);
        sluice_close(source);
        done = 1;
    }
    sl_case_close(&opened);
    return done;
}

static unsigned compare_all(const char *folder, const char *list, const char *key,
                            const char *format)
{
    char name[SL_CASE_PATH_BYTES];
    unsigned done = 0;
    snprintf(name, sizeof(name), "%s/MANIFEST.json", folder);
    json_t *manifest = golden_json(name), *items = json_object_get(manifest, list);
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        const char *file = json_string_value(json_object_get(item, key));
        const char *expect = json_string_value(json_object_get(item, "expect"));
        if (strcmp(file, "v4-meta-0d") == 0 || (expect && strcmp(expect, "ok") != 0) ||
            strchr(file, '/') || strncmp(file, "bad-", 4) == 0)
            continue;
        size_t bytes;
        snprintf(name, sizeof(name), format, folder, file);
        uint8_t *data = golden_read(name, &bytes);
        ck_assert_int_eq(sl_memory_put("golden", data, bytes, NULL), 0);
        done += compare_model(file);
        sl_memory_clear();
        free(data);
    }
    json_decref(manifest);
    return done;
}

SL_TEST(every_golden_tensor_is_read)
{
    ck_assert_uint_ge(compare_all("safetensors", "items", "file", "%s/%s"), 12);
    ck_assert_uint_ge(compare_all("pytorch", "items", "file", "%s/%s"), 30);
    ck_assert_uint_ge(compare_all("gguf", "items", "file", "%s/%s"), 10);
    ck_assert_uint_ge(compare_all("tensorizer", "files", "name", "%s/%s.tensors.gz"), 15);
}

/* Without a key everything is told of a tensor, and nothing read of it. */
static void check_locked(struct sluice_source *source)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_int_eq(info_of(source).encrypted, 1);
    ck_assert_int_eq(sluice_source_find(source, "f32", 0, &tensor, &error), 0);
    ck_assert_str_eq(tensor.dtype, "F32");
    ck_assert_int_eq(tensor.encrypted, 1);
    ck_assert_int_eq(tensor.refused, SLUICE_AUTH);
    uint8_t *to = malloc(tensor.bytes);
    const struct sluice_read read = {
        .size = sizeof(read), .number = tensor.number, .to = to, .bytes = tensor.bytes};
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_AUTH);
    ck_assert_str_eq(error.code, "E_KEY_REQUIRED");
    ck_assert_ptr_nonnull(strstr(error.message, "'f32'"));
    free(to);
}

SL_TEST(an_encrypted_model_is_listed_without_its_key_and_read_with_it_alone)
{
    size_t bytes;
    uint8_t key[32] = {0}, *data = golden_read("tensorizer/v3-key.tensors.gz", &bytes);
    struct sluice_source *source;
    json_t *about = golden_json("tensorizer/v3-key.json");
    const char *hex =
        json_string_value(json_object_get(json_object_get(about, "encryption"), "key_hex"));
    ck_assert_int_eq(sl_unhex(hex, key, 32), 0);
    sl_memory_put("golden", data, bytes, NULL);
    source = open_it("memory:golden", NULL);
    check_locked(source);
    sluice_close(source);
    struct sluice_key given = {.size = sizeof(given), .key = key};
    struct sluice_open_options options = {.size = sizeof(options), .key = &given};
    source = open_it("memory:golden", &options);
    memset(key, 0, sizeof(key)); /* it was copied */
    ck_assert_int_eq(info_of(source).encrypted, 1);
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_int_eq(sluice_source_find(source, "f32", 0, &tensor, &error), 0);
    uint8_t digest[32], expected[32], *read = whole(source, tensor.number);
    sha256_of(read, tensor.bytes, digest);
    sl_unhex("413da8b1f35cb35bc05ffc6ec030987e2e83a743b9e1b177c111cb5a916a6dc9", expected, 32);
    ck_assert_mem_eq(digest, expected, 32);
    sluice_close(source);
    key[0] = 1;
    ck_assert_int_eq(sluice_open("memory:golden", &options, &source, &error), 0);
    struct sluice_read again = {
        .size = sizeof(again), .number = tensor.number, .to = read, .bytes = tensor.bytes};
    ck_assert_int_eq(sluice_read(source, &again, 1, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    sluice_close(source);
    free(read);
    json_decref(about);
    sl_memory_clear();
    free(data);
}

/* ---- slices ---------------------------------------------------------------------------------- */

enum { DEEP = 19, ROWS = 37, COLUMNS = 53 }; /* more than opening it brings */

/* memory:cube, one F32 tensor of three dimensions. */
static uint8_t *put_cube(size_t *bytes)
{
    char head[200];
    size_t data = (size_t)DEEP * ROWS * COLUMNS * 4;
    int used = snprintf(head + 8, sizeof(head) - 8,
                        "{\"w\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],\"data_offsets\":[0,%zu]}}",
                        DEEP, ROWS, COLUMNS, data);
    uint8_t *noise = sl_model_noise(data, 7), *file = malloc(8 + (size_t)used + data);
    sl_put_le64((uint8_t *)head, (uint64_t)used);
    memcpy(file, head, 8 + (size_t)used);
    memcpy(file + 8 + used, noise, data);
    free(noise);
    *bytes = 8 + (size_t)used + data;
    sl_memory_put("cube", file, *bytes, NULL);
    return file;
}

static void random_range(struct sluice_range *range, uint64_t size)
{
    range->start = (uint64_t)rand() % (size + 1);
    range->stop = range->start + (uint64_t)rand() % (size - range->start + 1);
    range->step = (uint64_t)rand() % 5; /* 0 is 1 */
}

/* The elements one by one. */
static size_t brute_force(const uint8_t *all, const uint64_t *shape,
                          const struct sluice_range *ranges, size_t item, uint8_t *out)
{
    size_t used = 0;
    for (uint64_t i = ranges[0].start; i < ranges[0].stop; i += ranges[0].step ? ranges[0].step : 1)
        for (uint64_t j = ranges[1].start; j < ranges[1].stop;
             j += ranges[1].step ? ranges[1].step : 1)
            for (uint64_t k = ranges[2].start; k < ranges[2].stop;
                 k += ranges[2].step ? ranges[2].step : 1) {
                memcpy(out + used, all + ((i * shape[1] + j) * shape[2] + k) * item, item);
                used += item;
            }
    return used;
}

static void compare_slices(struct sluice_source *source, unsigned times)
{
    struct sluice_tensor tensor = tensor_of(source, 0);
    size_t item = tensor.dlpack_bits / 8;
    uint8_t *all = whole(source, 0), *expected = malloc(tensor.bytes), *got = malloc(tensor.bytes);
    for (unsigned i = 0; i < times; i++) {
        struct sluice_range ranges[3];
        uint64_t shape[3], bytes;
        for (unsigned d = 0; d < 3; d++)
            random_range(&ranges[d], tensor.shape[d]);
        size_t right = brute_force(all, tensor.shape, ranges, item, expected);
        ck_assert_int_eq(sluice_slice(source, 0, ranges, shape, &bytes, &error), 0);
        ck_assert_uint_eq(bytes, right);
        ck_assert_uint_eq(shape[0] * shape[1] * shape[2] * item, right);
        memset(got, 0xee, tensor.bytes);
        const struct sluice_read read = {
            .size = sizeof(read), .slice = ranges, .to = got, .bytes = bytes};
        ck_assert_msg(sluice_read(source, &read, 1, NULL, &error) == 0, "%s", error.message);
        ck_assert_mem_eq(got, expected, right);
    }
    free(all);
    free(expected);
    free(got);
}

SL_TEST(slices_are_what_brute_force_takes)
{
    size_t bytes;
    uint8_t *file = put_cube(&bytes);
    struct sluice_source *source = open_it("memory:cube", NULL);
    compare_slices(source, 300);
    sluice_close(source);
    struct sluice_open_options options = {.size = sizeof(options),
                                          .spec = "tensors: {cast: {F32: BF16}}"};
    source = open_it("memory:cube", &options);
    ck_assert_str_eq(tensor_of(source, 0).dtype, "BF16");
    compare_slices(source, 100);
    sluice_close(source);
    sl_memory_clear();
    free(file);
}

SL_TEST(slices_of_encrypted_tensors_are_too)
{
    size_t bytes;
    char path[SL_CASE_PATH_BYTES], key_path[SL_CASE_PATH_BYTES];
    uint8_t *file = put_cube(&bytes);
    const uint8_t key[32] = {1, 2, 3};
    struct sl_convert_config config = sl_case_tensorizer;
    SL_AUTO(sl_keys) keys = sl_keys_from_key(key, NULL);
    config.seal = keys;
    sl_case_expect("memory:cube", sl_case_path("m.tensors", path), &config, NULL);
    (void)key_path;
    struct sluice_key given = {.size = sizeof(given), .key = key};
    struct sluice_open_options options = {.size = sizeof(options), .key = &given};
    struct sluice_source *source = open_it(path, &options);
    ck_assert_ptr_null(tensor_of(source, 0).file);
    compare_slices(source, 100);
    sluice_close(source);
    sl_memory_clear();
    free(file);
}

SL_TEST(slices_that_cannot_be_are_refused)
{
    size_t bytes;
    uint8_t *file = put_cube(&bytes), byte[64];
    uint64_t size;
    struct sluice_source *source = open_it("memory:cube", NULL);
    struct sluice_range ranges[3] = {{0, DEEP + 1, 1}, {0, 1, 1}, {0, 1, 1}};
    ck_assert_int_eq(sluice_slice(source, 0, ranges, NULL, &size, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ranges[0] = (struct sluice_range){3, 2, 1};
    struct sluice_read read = {.size = sizeof(read), .slice = ranges, .to = byte, .bytes = 4};
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ranges[0] = (struct sluice_range){0, 1, 1};
    read.bytes = 5; /* memory of another length */
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    read = (struct sluice_read){.size = sizeof(read), .number = 1};
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    sluice_close(source);
    sl_memory_clear();
    free(file);
}

/* ---- over HTTP ------------------------------------------------------------------------------- */

SL_TEST(a_slice_fetches_its_rows_alone)
{
    size_t bytes;
    struct sl_server *server = sl_server_start();
    uint8_t *data = sl_model_safetensors("a,b", 1024 * 1024, &bytes);
    sl_server_put(server, "/m.safetensors", data, bytes, "\"1\"");
    struct sluice_source *source = open_it(sl_server_url(server, "/m.safetensors"), NULL);
    uint64_t before = info_of(source).bytes_fetched;
    struct sluice_tensor b = {.size = sizeof(b)};
    ck_assert_int_eq(sluice_source_find(source, "b", 0, &b, &error), 0);
    ck_assert_ptr_null(b.file);
    float rows[3];
    /* Half a MiB lies between the steps: three requests, not what lies between. */
    struct sluice_range range = {1000, 300000, 131072};
    const struct sluice_read read = {.size = sizeof(read),
                                     .number = b.number,
                                     .slice = &range,
                                     .to = rows,
                                     .bytes = sizeof(rows)};
    ck_assert_msg(sluice_read(source, &read, 1, NULL, &error) == 0, "%s", error.message);
    ck_assert_uint_le(info_of(source).bytes_fetched - before, 4096);
    uint8_t *all = whole(source, b.number);
    for (size_t i = 0; i < 3; i++)
        ck_assert_mem_eq(&rows[i], all + (1000 + i * 131072) * 4, 4);
    free(all);
    sluice_close(source);
    sl_server_stop(server);
    free(data);
}

SL_TEST(broken_answers_are_asked_for_again)
{
    size_t bytes;
    struct sl_server *server = sl_server_start();
    uint8_t *data = sl_model_safetensors("a,b,c", 100000, &bytes);
    sl_server_put(server, "/m.safetensors", data, bytes, "\"1\"");
    struct sluice_source *source = open_it(sl_server_url(server, "/m.safetensors"), NULL);
    SL_SCRIPT(server, {.first = 2, .last = 2, .fault = SL_FAULT_SHORT, .after = 1000},
              {.first = 3, .last = 3, .fault = SL_FAULT_RESET, .after = 5000});
    for (uint64_t i = 0; i < 3; i++) {
        uint8_t *read = whole(source, i);
        ck_assert_mem_eq(read, data + bytes - 3 * 400000 + i * 400000, 400000);
        free(read);
    }
    sl_server_put(server, "/m.safetensors", data, bytes, "\"2\"");
    uint8_t *room = malloc(400000);
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .to = room, .bytes = 400000};
    ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_str_eq(error.code, "changed");
    free(room);
    sluice_close(source);
    sl_server_stop(server);
    free(data);
}

/* ---- maps ------------------------------------------------------------------------------------ */

SL_TEST(a_map_is_private_and_of_the_opened_file)
{
    size_t bytes;
    char path[SL_CASE_PATH_BYTES], kept[SL_CASE_PATH_BYTES];
    uint8_t *data = sl_model_safetensors("a,b", 5000, &bytes);
    struct sluice_memory *memory, *other;
    FILE *file = fopen(sl_case_path("m.safetensors", path), "w");
    fwrite(data, 1, bytes, file);
    fclose(file);
    struct sluice_source *source = open_it(path, NULL);
    ck_assert_str_eq(tensor_of(source, 1).file, path);
    ck_assert_msg(sluice_map(source, 1, NULL, &memory, &error) == 0, "%s", error.message);
    ck_assert_uint_eq(memory->bytes, 20000);
    ck_assert_mem_eq(memory->data, data + bytes - 20000, 20000);
    memset(memory->data, 1, 20000);
    ck_assert_int_eq(sluice_map(source, 1, NULL, &other, &error), 0);
    ck_assert_mem_eq(other->data, data + bytes - 20000, 20000);
    sluice_unmap(other);
    ck_assert_int_eq(rename(path, sl_case_path("kept", kept)), 0);
    file = fopen(path, "w");
    fwrite(data, 1, bytes, file);
    fclose(file);
    ck_assert_int_eq(sluice_map(source, 1, NULL, &other, &error), -1);
    ck_assert_str_eq(error.code, "changed");
    ck_assert_int_eq(remove(path), 0);
    ck_assert_int_eq(sluice_map(source, 1, NULL, &other, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* which waits for nobody */
    ck_assert_int_eq(sluice_map(source, 1, NULL, &other, &error), -1);
    sluice_close(source);
    ck_assert_int_eq(((uint8_t *)memory->data)[19999], 1); /* it outlives the source */
    sluice_unmap(memory);
    free(data);
}

/* ---- folders, files -------------------------------------------------------------------------- */

SL_TEST(data_files_are_read_too)
{
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a,b", 5, &bytes);
    sl_memory_put("f/model.safetensors", data, bytes, NULL);
    sl_memory_put("f/config.json", "{\"x\": 1}", 8, NULL);
    struct sluice_source *source = open_it("memory://f/", NULL);
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_uint_eq(info_of(source).tensor_count, 3);
    ck_assert_int_eq(sluice_source_find(source, "config.json", 0, &tensor, &error), 0);
    ck_assert_int_eq(tensor.kind, SLUICE_KIND_FILE);
    ck_assert_uint_eq(tensor.number, 2);
    uint8_t *read = whole(source, 2);
    ck_assert_mem_eq(read, "{\"x\": 1}", 8);
    free(read);
    struct sluice_range range = {1, 8, 2};
    char part[4];
    const struct sluice_read slice = {
        .size = sizeof(slice), .number = 2, .slice = &range, .to = part, .bytes = 4};
    ck_assert_int_eq(sluice_read(source, &slice, 1, NULL, &error), 0);
    ck_assert_mem_eq(part, "\"\" }", 1);
    sluice_close(source);
    struct sluice_open_options options = {.size = sizeof(options), .flags = SLUICE_AS_FILES};
    source = open_it("memory://f/", &options);
    ck_assert_uint_eq(info_of(source).tensor_count, 2);
    ck_assert_int_eq(sluice_source_find(source, "model.safetensors", 0, &tensor, &error), 0);
    read = whole(source, tensor.number);
    ck_assert_mem_eq(read, data, bytes);
    free(read);
    sluice_close(source);
    sl_memory_clear();
    free(data);
}

SL_TEST(what_cannot_be_opened_is_told)
{
    struct sluice_source *source;
    struct sluice_open_options options = {.size = sizeof(options), .spec = "sourse: {}"};
    ck_assert_int_eq(sluice_open("", NULL, &source, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_int_eq(sluice_open("/no/such/model.safetensors", NULL, &source, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_NOT_FOUND);
    ck_assert_int_eq(sluice_open("/no/such", &options, &source, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_ptr_nonnull(strstr(error.message, "source"));
    ck_assert_int_eq(sluice_open("/no/such", &options, &source, NULL), -1);
    options.spec = "sink: {caches: {path: /c, url: '/s/', trust: store}}";
    ck_assert_int_eq(sluice_open("/no/such", &options, &source, &error), -1);
    ck_assert_ptr_nonnull(strstr(error.message, "only `sluice load` restores engine caches"));
}

/* ---- what is left ---------------------------------------------------------------------------- */

static unsigned open_files(void)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

SL_TEST(ten_thousand_opens_leave_nothing)
{
    size_t bytes;
    uint8_t *data = sl_model_safetensors("a", 5, &bytes), room[20];
    sl_memory_put("m.safetensors", data, bytes, NULL);
    unsigned before = open_files();
    for (unsigned i = 0; i < 10000; i++) {
        struct sluice_source *source = open_it("memory:m.safetensors", NULL);
        const struct sluice_read read = {.size = sizeof(read), .to = room, .bytes = 20};
        if (i % 100 == 0)
            ck_assert_int_eq(sluice_read(source, &read, 1, NULL, &error), 0);
        sluice_close(source);
    }
    ck_assert_uint_eq(open_files(), before);
    sl_memory_clear();
    free(data);
}

static int open_and_read(void *arg, struct sl_err *err)
{
    struct sluice_source *source;
    struct sluice_range ranges[3] = {{0, DEEP, 2}, {1, ROWS, 3}, {0, COLUMNS, 1}};
    uint64_t bytes;
    (void)arg;
    int done = sluice_open("memory:cube", NULL, &source, &error);
    if (done == 0) {
        ck_assert_int_eq(sluice_slice(source, 0, ranges, NULL, &bytes, NULL), 0);
        sl_autofree uint8_t *room = malloc(bytes);
        sl_autofree uint8_t *all = malloc((size_t)DEEP * ROWS * COLUMNS * 4);
        struct sluice_read reads[] = {
            {.size = sizeof(reads[0]), .slice = ranges, .to = room, .bytes = bytes},
            {.size = sizeof(reads[0]), .to = all, .bytes = (uint64_t)DEEP * ROWS * COLUMNS * 4}};
        done = sluice_read(source, reads, 2, NULL, &error);
        sluice_close(source);
    }
    if (done < 0)
        sl_fail(err, error.kind == SLUICE_NO_SPACE ? SL_E_NO_SPACE : (enum sl_err_kind)error.kind,
                "%s", error.message);
    return done;
}

SL_TEST(every_allocation_that_fails_is_told)
{
    size_t bytes;
    uint8_t *file = put_cube(&bytes);
    ck_assert_uint_gt(golden_each_allocation(open_and_read, NULL), 20);
    sl_memory_clear();
    free(file);
}

SL_TEST(every_read_that_fails_is_told)
{
    size_t bytes;
    uint8_t *file = put_cube(&bytes);
    ck_assert_uint_gt(golden_each_read(open_and_read, NULL), 1);
    sl_memory_clear();
    free(file);
}

struct many {
    struct sluice_source *source;
    unsigned seed;
};

static void *read_many(void *arg)
{
    const struct many *many = arg;
    for (unsigned i = 0; i < 50; i++) {
        uint64_t start = (many->seed * 7 + i) % ROWS;
        float row[COLUMNS];
        const struct sluice_range ranges[3] = {{1, 2, 1}, {start, start + 1, 1}, {0, COLUMNS, 1}};
        const struct sluice_read read = {
            .size = sizeof(read), .slice = ranges, .to = row, .bytes = sizeof(row)};
        struct sluice_error own;
        ck_assert_int_eq(sluice_read(many->source, &read, 1, NULL, &own), 0);
    }
    return NULL;
}

SL_TEST(several_threads_read_one_source)
{
    size_t bytes;
    uint8_t *file = put_cube(&bytes);
    pthread_t threads[4];
    struct many many[4];
    struct sluice_source *source = open_it("memory:cube", NULL);
    for (unsigned i = 0; i < 4; i++) {
        many[i] = (struct many){source, i};
        pthread_create(&threads[i], NULL, read_many, &many[i]);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    sluice_close(source);
    sl_memory_clear();
    free(file);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

/*
 * The CRC32 that an archive has of each entry: checked by every way that bytes take, known to be
 * absent where torch.save left it out; and headers that torch would find other bytes by.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "fill_case.h"
#include "golden.h"
#include "run_sluice.h"
#include "scratch.h"
#include "torch_maker.h"

enum { PATH_BYTES = 600 };
static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
    fill_case_setup();
}

static void teardown(void)
{
    ran_release(&ran);
    fill_case_teardown();
    sl_scratch_close(scratch_fd, scratch);
}

static const char *at(const char *name)
{
    static char paths[4][PATH_BYTES];
    static unsigned number;
    char *path = paths[number++ % 4];
    snprintf(path, PATH_BYTES, "%s/%s", scratch, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(at(name), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

/* Run it; it must end so and say this. */
#define EXPECT(code, word, ...)                                                                    \
    do {                                                                                           \
        ran_release(&ran);                                                                         \
        RUN(&ran, __VA_ARGS__);                                                                    \
        ck_assert_msg(ran.exit_code == (code) && (strstr(ran.out, word) || strstr(ran.err, word)), \
                      "exit code %d\n%s\n%s", ran.exit_code, ran.out, ran.err);                    \
    } while (0)

/* All ways that read m.pt whole; `require`: everything that is read must have a hash. */
static void expect_everywhere(int code, const char *word, bool require)
{
    static unsigned round;
    const char *hashes = require ? "verify.hashes=require" : "verify.hashes=auto";
    char to[64];
    static const char *const layouts[] = {"verbatim", "safetensors", "tensorizer"};
    for (size_t i = 0; i < SL_COUNT(layouts); i++) {
        char layout[64];
        snprintf(to, sizeof(to), "to%u", round++);
        snprintf(layout, sizeof(layout), "sink.tmpfs.layout=%s", layouts[i]);
        EXPECT(code, word, "load", at("m.pt"), "--to", at(to), "--set", layout, "--set", hashes);
    }
    snprintf(to, sizeof(to), "o%u.safetensors", round++);
    EXPECT(code, word, "convert", at("m.pt"), at(to), "--set", hashes);
    if (!require)
        EXPECT(code, word, "inspect", "--digest", at("m.pt"));
}

static uint8_t *place_golden(const char *golden, size_t *bytes)
{
    char name[200];
    snprintf(name, sizeof(name), "pytorch/%s", golden);
    uint8_t *data = golden_read(name, bytes);
    write_file("m.pt", data, *bytes);
    return data;
}

/* Where the data begin of a file's first tensor that is all of its storage, row by row. */
static uint64_t first_data(const uint8_t *data, size_t bytes)
{
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(golden_index(&open, "m.pt", data, bytes, &err) == 0, "%s", err.message);
    uint64_t begin = 0;
    for (size_t i = 0; i < open.index->tensor_count && !begin; i++)
        if (open.index->tensors[i].hash_count && !open.index->tensors[i].strides)
            begin = open.index->tensors[i].begin;
    golden_release(&open);
    ck_assert_uint_gt(begin, 0);
    return begin;
}

SL_TEST(a_damaged_storage_is_found_by_every_way)
{
    static const char *const files[] = {"records_2_7.pt", "repacked_stored.pt",
                                        "parameters_and_tied.pt"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        size_t bytes;
        uint8_t *data = place_golden(files[i], &bytes);
        expect_everywhere(0, "", false);
        EXPECT(0, " 0 wrong, 0 without a hash", "verify", "--require", at("m.pt"));
        data[first_data(data, bytes)] ^= 1;
        write_file("m.pt", data, bytes);
        expect_everywhere(5, "damaged", false);
        EXPECT(5, "BAD      entry", "verify", at("m.pt"));
        free(data);
    }
}

/* One that is put together cannot be checked on the way: that is told, and refused with require. */
SL_TEST(a_transposed_tensor_is_checked_where_it_is_read_alone)
{
    size_t bytes, i = 0;
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    uint8_t *data = place_golden("noncontiguous.pt", &bytes);
    ck_assert_int_eq(golden_index(&open, "m.pt", data, bytes, &err), 0);
    while (i < open.index->tensor_count &&
           !(open.index->tensors[i].strides && open.index->tensors[i].hash_count))
        i++;
    ck_assert_uint_lt(i, open.index->tensor_count);
    uint64_t begin = open.index->tensors[i].begin;
    golden_release(&open);
    EXPECT(0, "", "inspect", "--digest", at("m.pt"));
    EXPECT(5, "put together from bytes that lie in another order", "load", at("m.pt"), "--to",
           at("t"), "--set", "sink.tmpfs.layout=safetensors", "--set", "verify.hashes=require");
    data[begin] ^= 1;
    write_file("m.pt", data, bytes);
    free(data);
    EXPECT(5, "damaged", "inspect", "--digest", at("m.pt"));
    EXPECT(5, "damaged", "verify", at("m.pt"));
    EXPECT(5, "damaged", "load", at("m.pt"), "--to", at("t"));
    EXPECT(0, "came without a hash", "load", at("m.pt"), "--to", at("u"), "--set",
           "sink.tmpfs.layout=safetensors");
}

SL_TEST(elements_are_turned_round_after_they_are_checked)
{
    size_t bytes;
    uint8_t *data = place_golden("big_endian.pt", &bytes);
    EXPECT(0, "4 tensors", "load", "-v", at("m.pt"), "--to", at("t"), "--set",
           "sink.tmpfs.layout=safetensors");
    data[first_data(data, bytes)] ^= 1;
    write_file("m.pt", data, bytes);
    free(data);
    EXPECT(5, "damaged", "load", at("m.pt"), "--to", at("u"), "--set",
           "sink.tmpfs.layout=safetensors");
    EXPECT(5, "damaged", "inspect", "--digest", at("m.pt"));
}

SL_TEST(a_damaged_pickle_is_found_before_it_is_read)
{
    size_t bytes;
    uint8_t *data = place_golden("records_2_7.pt", &bytes), *at_name = NULL;
    static const uint8_t word[] = "_rebuild_tensor_v2";
    at_name = memmem(data, bytes, word, sizeof(word) - 1);
    ck_assert_ptr_nonnull(at_name);
    *at_name ^= 1;
    write_file("m.pt", data, bytes);
    EXPECT(5, "entry 'gen/data.pkl' is damaged: its CRC32 is", "inspect", at("m.pt"));
    EXPECT(5, "entry 'gen/data.pkl'", "load", at("m.pt"), "--to", at("t"));
    free(data);
}

SL_TEST(archives_without_checksums_raise_no_alarm)
{
    struct torch_options wanted = {.tensors = 3, .items = 1000, .unchecked = true};
    size_t bytes;
    uint8_t *data = torch_make(&wanted, &bytes);
    write_file("m.pt", data, bytes);
    free(data);
    expect_everywhere(0, "", false);
    expect_everywhere(5, "hash", true);
    EXPECT(0, "0 right, 0 wrong, 1 without a hash", "verify", at("m.pt"));
}

SL_TEST(require_is_content_with_the_checksums)
{
    struct torch_options wanted = {.tensors = 3, .items = 1000};
    size_t bytes;
    uint8_t *data = torch_make(&wanted, &bytes);
    write_file("m.pt", data, bytes);
    free(data);
    expect_everywhere(0, "", true);
}

/* torch.serialization.skip_data() leaves out those of the storages only. */
SL_TEST(require_wants_the_checksum_of_every_entry)
{
    struct torch_options wanted = {.tensors = 2, .items = 1000};
    size_t bytes;
    uint8_t *data = torch_make(&wanted, &bytes);
    static const uint8_t row_magic[] = {'P', 'K', 1, 2};
    for (size_t i = 0; i + 60 < bytes; i++)
        if (memcmp(data + i, row_magic, 4) == 0 && memcmp(data + i + 46, "m/data/1", 8) == 0)
            memset(data + i + 16, 0, 4);
    write_file("m.pt", data, bytes);
    free(data);
    expect_everywhere(0, "", false);
    EXPECT(5, "4000 bytes without a hash", "load", at("m.pt"), "--to", at("t"), "--set",
           "verify.hashes=require");
    EXPECT(0, "no hash  entry   m/data/1", "verify", at("m.pt"));
}

SL_TEST(a_part_has_no_hash)
{
    struct torch_options wanted = {.tensors = 2, .items = 1000};
    size_t bytes;
    uint8_t *data = torch_make(&wanted, &bytes);
    write_file("m.pt", data, bytes);
    free(data);
    EXPECT(5, "only a part of tensor 'model.layers.0.weight' is read", "load", at("m.pt"), "--to",
           at("t"), "--set", "sink.tmpfs.layout=safetensors", "--set", "verify.hashes=require",
           "--set", "tensors.shard.rank=0", "--set", "tensors.shard.of=2", "--set",
           "tensors.shard.rules=[{match: '*', dim: 0}]");
}

/* Of three tensors over one storage of several ranges each is checked where it lies. */
SL_TEST(tied_tensors_are_checked_in_each_place)
{
    struct torch_options wanted = {.tensors = 3, .items = 700 * 1000, .tied = true};
    size_t bytes;
    uint8_t *data = torch_make(&wanted, &bytes);
    write_file("m.pt", data, bytes);
    uint64_t begin = first_data(data, bytes);
    expect_everywhere(0, "", false);
    EXPECT(0, "\"checks\":3", "--json", "load", at("m.pt"), "--to", at("checked"), "--set",
           "sink.tmpfs.layout=safetensors", "--set", "verify.hashes=require", "--set",
           "tensors.cast.F32=BF16");
    data[begin + 2000 * 1000] ^= 1;
    write_file("m.pt", data, bytes);
    free(data);
    expect_everywhere(5, "damaged", false);
}

/* Loads into the pool: three times the same bytes, and views of a storage that overlap. */
SL_TEST(pool_loads_check_too)
{
    struct torch_options wanted = {.tensors = 3, .items = 10 * 1000, .tied = true};
    size_t bytes;
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    uint8_t *data = torch_make(&wanted, &bytes);
    fill_case_put("good.pt", data, bytes);
    struct sl_pool_model *model = fill_case_load("memory:good.pt", "verify: {hashes: require}\n");
    fill_case_compare("memory:good.pt", "", model);
    sl_pool_model_free(model);
    data[first_data(data, bytes) + 9] ^= 1;
    fill_case_put("bad.pt", data, bytes);
    model = fill_case_try("memory:bad.pt", "", &config, &err);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    sl_pool_model_free(model);
    free(data);
    data = golden_read("pytorch/views.pt", &bytes);
    fill_case_put("views.pt", data, bytes);
    model = fill_case_load("memory:views.pt", "");
    fill_case_compare("memory:views.pt", "", model);
    sl_pool_model_free(model);
    free(data);
}

/* ---- local headers --------------------------------------------------------------------------- */

static int keep_all(void *arg, const struct sl_tensor *tensor, const uint8_t digest[32],
                    struct sl_err *err)
{
    (void)err;
    for (int i = 0; i < 32; i++)
        *(uint64_t *)arg = *(uint64_t *)arg * 31 + digest[i] + tensor->name_bytes;
    return 0;
}

/* One number for all tensors; 0: refused. */
static uint64_t read_all(const uint8_t *data, size_t bytes, bool verify)
{
    struct golden_open open;
    struct sl_err err = SL_ERR_INIT;
    uint64_t sum = 1;
    if (golden_index(&open, "x.pt", data, bytes, &err) < 0 ||
        sl_index_digest(open.index, verify, keep_all, &sum, &err) < 0)
        sum = 0;
    golden_release(&open);
    ck_assert_msg(sum || err.kind == SL_E_FORMAT || err.kind == SL_E_INTEGRITY, "%s", err.message);
    return sum;
}

/* torch 1.13 and 2.15 gave other tensors than those that were saved, without a word, for each of
 * these bytes: never are they read as something that torch would not read. */
SL_TEST(bytes_that_torch_reads_otherwise_are_refused)
{
    FILE *table = fopen(SL_TEST_DATA "/pytorch/torch_reads_other_bytes.txt", "r");
    char name[100], path[200];
    unsigned place, flip, count = 0;
    ck_assert_ptr_nonnull(table);
    while (fscanf(table, "%99s %u %u", name, &place, &flip) == 3) {
        size_t bytes;
        snprintf(path, sizeof(path), "pytorch/%s", name);
        uint8_t *data = golden_read(path, &bytes);
        ck_assert_uint_lt(place, bytes);
        data[place] ^= (uint8_t)flip;
        ck_assert_msg(read_all(data, bytes, true) == 0, "%s is read with byte %u changed", name,
                      place);
        free(data);
        count++;
    }
    fclose(table);
    ck_assert_uint_ge(count, 25);
}

/* What is read of a file with one changed byte in a header is what was saved. */
SL_TEST(no_byte_of_a_header_changes_what_is_read)
{
    static const uint8_t flips[] = {1, 0x80, 0xff};
    size_t bytes, read = 0;
    uint8_t *data = golden_read("pytorch/repacked_stored.pt", &bytes);
    uint64_t right = read_all(data, bytes, true);
    ck_assert_uint_ne(right, 0);
    for (size_t i = 0; i < bytes; i++)
        for (size_t k = 0; k < SL_COUNT(flips); k++) {
            data[i] ^= flips[k];
            uint64_t sum = read_all(data, bytes, true);
            ck_assert_msg(sum == 0 || sum == right, "byte %zu", i);
            read += sum == right;
            data[i] ^= flips[k];
        }
    free(data);
    ck_assert_uint_gt(read, 100); /* times, attributes and the like say nothing */
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120)

/* New models that the library writes: read back they are what was given, in both formats, borrowed
 * and copied, in any order, encrypted, in folders; and what cannot be written leaves nothing. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "claims.h"
#include "convert_case.h"
#include "golden.h"
#include "model_maker.h"
#include "open_case.h"

enum { COUNT = 5 };

/* Tensor `i` of the tests: F32 [i, 1000 * i]. */
static struct sluice_tensor made(unsigned i, uint8_t **data, uint64_t shape[2], char name[16])
{
    shape[0] = i;
    shape[1] = 1000 * i;
    snprintf(name, 16, "t.%u", (i * 7 + 3) % 10);
    uint64_t bytes = shape[0] * shape[1] * 4;
    *data = sl_model_noise(bytes + 1, i);
    return (struct sluice_tensor){.size = sizeof(struct sluice_tensor),
                                  .name = name,
                                  .dtype = "F32",
                                  .shape = shape,
                                  .rank = 2,
                                  .data = *data,
                                  .bytes = bytes};
}

static int write_all(const char *to, const struct sluice_create_options *options)
{
    struct sluice_writer *writer;
    uint8_t *data[COUNT] = {0};
    int done = sluice_create(to, options, &writer, &error);
    for (unsigned i = 0; i < COUNT && done == 0; i++) {
        uint64_t shape[2];
        char name[16];
        struct sluice_tensor tensor = made(i, &data[i], shape, name);
        done = sluice_write(writer, &tensor, &error);
        if (!(options->flags & SLUICE_BORROW))
            memset(data[i], 0, tensor.bytes); /* it was copied */
        if (done < 0)
            sluice_abandon(writer);
    }
    if (done == 0)
        done = sluice_finish(writer, &error);
    for (unsigned i = 0; i < COUNT; i++)
        free(data[i]);
    return done;
}

static void compare_all(const char *uri, const struct sluice_open_options *options)
{
    struct sluice_source *source = open_it(uri, options);
    for (unsigned i = 0; i < COUNT; i++) {
        uint8_t *data;
        uint64_t shape[2];
        char name[16];
        struct sluice_tensor expected = made(i, &data, shape, name),
                             tensor = {.size = sizeof(tensor)};
        ck_assert_int_eq(sluice_source_find(source, name, 0, &tensor, &error), 0);
        ck_assert_uint_eq(tensor.bytes, expected.bytes);
        ck_assert_uint_eq(tensor.rank, 2);
        ck_assert_uint_eq(tensor.shape[1], shape[1]);
        uint8_t *read = whole(source, tensor.number);
        ck_assert_int_eq(memcmp(read, data, tensor.bytes), 0);
        free(read);
        free(data);
    }
    sluice_close(source);
}

SL_TEST_LOOP(what_is_written_is_read_back, 0, 4)
{
    char path[SL_CASE_PATH_BYTES];
    struct sluice_create_options options = {.size = sizeof(options),
                                            .flags = _i & 1 ? SLUICE_BORROW : 0};
    sl_case_path(_i & 2 ? "m.tensors" : "m.safetensors", path);
    ck_assert_msg(write_all(path, &options) == 0, "%s", error.message);
    compare_all(path, NULL);
    ck_assert_int_eq(write_all(path, &options), -1); /* it is there */
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    options.flags |= SLUICE_REPLACE;
    ck_assert_msg(write_all(path, &options) == 0, "%s", error.message);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 1);
}

/* A program may go elsewhere between the beginning and the end. */
SL_TEST_LOOP(a_relative_path_is_of_the_folder_of_the_beginning, 0, 2)
{
    char path[SL_CASE_PATH_BYTES];
    uint64_t shape[2];
    uint8_t *data;
    char name[16];
    struct sluice_writer *writer;
    const struct sluice_create_options options = {.size = sizeof(options)};
    sl_case_path(_i ? "folder/" : "m.safetensors", path);
    ck_assert_int_eq(chdir(sl_case_scratch), 0);
    ck_assert_int_eq(sluice_create(_i ? "folder/" : "m.safetensors", &options, &writer, &error), 0);
    ck_assert_int_eq(chdir("/"), 0);
    struct sluice_tensor tensor = made(3, &data, shape, name);
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
    ck_assert_int_eq(chdir(sl_case_scratch), 0);
    struct sluice_source *source = open_it(_i ? "folder/" : "m.safetensors", NULL);
    ck_assert_int_eq(chdir("/"), 0);
    uint8_t *read = whole(source, 0);
    ck_assert_int_eq(memcmp(read, data, tensor.bytes), 0);
    sluice_close(source);
    free(read);
    free(data);
}

/* What safetensors 0.8 writes of the same tensor. */
SL_TEST(a_bare_head_is_the_references)
{
    static const char expected[] = "@\0\0\0\0\0\0\0{\"test\":{\"dtype\":\"I32\",\"shape\":[2,2],"
                                   "\"data_offsets\":[0,16]}}    ABCDEFGHIJKLMNOP";
    const struct sluice_create_options options = {.size = sizeof(options),
                                                  .flags = SLUICE_BARE_HEAD};
    const struct sluice_tensor tensor = {.size = sizeof(tensor),
                                         .name = "test",
                                         .dtype = "I32",
                                         .shape = (const uint64_t[]){2, 2},
                                         .rank = 2,
                                         .data = "ABCDEFGHIJKLMNOP",
                                         .bytes = 16};
    char path[SL_CASE_PATH_BYTES], found[sizeof(expected) + 8];
    struct sluice_writer *writer;
    sl_case_path("m.safetensors", path);
    ck_assert_int_eq(sluice_create(path, &options, &writer, &error), 0);
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
    FILE *file = fopen(path, "rb");
    size_t bytes = fread(found, 1, sizeof(found), file);
    fclose(file);
    ck_assert_uint_eq(bytes, sizeof(expected) - 1);
    ck_assert_int_eq(memcmp(found, expected, bytes), 0);
}

/* A URI with a mistake is no path of this folder: its user and password are shown to nobody. */
SL_TEST_LOOP(a_mistaken_uri_tells_no_password, 0, 6)
{
    static const char *const uris[] = {"s4:/user:hush@bucket/m", "s3:/user:hush@bucket/m",
                                       "user:hush@host/m"};
    const struct sluice_create_options options = {.size = sizeof(options)};
    struct sluice_source *source;
    struct sluice_writer *writer;
    const char *uri = uris[_i / 2];
    int done = _i & 1 ? sluice_create(uri, &options, &writer, &error)
                      : sluice_open(uri, NULL, &source, &error);
    ck_assert_int_eq(done, -1);
    ck_assert_ptr_null(strstr(error.message, "hush"));
}

/* Both name the same 12 bytes: safetensors counts the elements of a row, .tensors their pairs. */
SL_TEST_LOOP(a_row_of_four_bits_is_what_the_format_has, 0, 4)
{
    bool given_pairs = _i & 1, tensors = _i & 2;
    const struct sluice_create_options options = {.size = sizeof(options)};
    const struct sluice_tensor tensor = {.size = sizeof(tensor),
                                         .name = "four",
                                         .dtype = given_pairs ? "F4_E2M1FN_X2" : "F4",
                                         .shape = (const uint64_t[]){3, given_pairs ? 4 : 8},
                                         .rank = 2,
                                         .data = "ABCDEFGHIJKL",
                                         .bytes = 12};
    char path[SL_CASE_PATH_BYTES];
    struct sluice_writer *writer;
    sl_case_path(tensors ? "m.tensors" : "m.safetensors", path);
    ck_assert_int_eq(sluice_create(path, &options, &writer, &error), 0);
    ck_assert_msg(sluice_write(writer, &tensor, &error) == 0, "%s", error.message);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
    struct sluice_source *source = open_it(path, NULL);
    struct sluice_tensor found = tensor_of(source, 0);
    ck_assert_str_eq(found.dtype, tensors ? "F4_E2M1FN_X2" : "F4");
    ck_assert_uint_eq(found.shape[0], 3);
    ck_assert_uint_eq(found.shape[1], tensors ? 4 : 8);
    sl_autofree uint8_t *read = whole(source, 0);
    ck_assert_int_eq(memcmp(read, tensor.data, 12), 0);
    sluice_close(source);
}

/* A pair across two rows, or none. */
SL_TEST(what_has_no_pairs_in_its_rows_is_refused_by_its_format)
{
    static const struct {
        const char *file, *dtype, *code;
        uint64_t shape[2], bytes;
        uint32_t rank;
    } rows[] = {{"m.tensors", "F4", "E_DTYPE", {2, 3}, 3, 2},
                {"m.safetensors", "F4_E2M1FN_X2", "st.dtype", {0}, 1, 0}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        const struct sluice_create_options options = {.size = sizeof(options)};
        const struct sluice_tensor tensor = {.size = sizeof(tensor),
                                             .name = "four",
                                             .dtype = rows[i].dtype,
                                             .shape = rows[i].shape,
                                             .rank = rows[i].rank,
                                             .data = "ABC",
                                             .bytes = rows[i].bytes};
        char path[SL_CASE_PATH_BYTES];
        struct sluice_writer *writer;
        sl_case_path(rows[i].file, path);
        ck_assert_int_eq(sluice_create(path, &options, &writer, &error), 0);
        int done = sluice_write(writer, &tensor, &error);
        if (done == 0)
            done = sluice_finish(writer, &error);
        else
            sluice_abandon(writer);
        ck_assert_int_eq(done, -1);
        ck_assert_str_eq(error.code, rows[i].code);
        ck_assert_int_eq(access(path, F_OK), -1);
    }
}

SL_TEST(an_encrypted_model_opens_with_its_key)
{
    char path[SL_CASE_PATH_BYTES];
    const uint8_t bytes[32] = {5};
    struct sluice_key key = {.size = sizeof(key), .key = bytes};
    struct sluice_create_options options = {.size = sizeof(options), .key = &key};
    ck_assert_msg(write_all(sl_case_path("m.tensors", path), &options) == 0, "%s", error.message);
    struct sluice_open_options with = {.size = sizeof(with), .key = &key};
    compare_all(path, &with);
    ck_assert_int_eq(write_all(sl_case_path("m.safetensors", path), &options), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
}

SL_TEST(a_passphrase_and_a_salt_make_the_key_of_a_file)
{
    char path[SL_CASE_PATH_BYTES];
    uint8_t derived[32], other[32];
    const struct sluice_key phrase = {.size = sizeof(phrase),
                                      .passphrase = "secret",
                                      .passphrase_bytes = 6,
                                      .opslimit = 1,
                                      .memlimit = 8192,
                                      .salt = "0123456789abcdef"};
    struct sluice_create_options options = {.size = sizeof(options), .key = &phrase};
    ck_assert_msg(write_all(sl_case_path("m.tensors", path), &options) == 0, "%s", error.message);
    ck_assert_msg(sluice_key_derive(&phrase, derived, &error) == 0, "%s", error.message);
    const struct sluice_key key = {.size = sizeof(key), .key = derived};
    struct sluice_open_options with = {.size = sizeof(with), .key = &key};
    compare_all(path, &with);
    with.key = &phrase; /* the file says the rest */
    compare_all(path, &with);
    struct sluice_key more = phrase;
    more.opslimit = 2;
    ck_assert_int_eq(sluice_key_derive(&more, other, &error), 0);
    ck_assert_int_ne(memcmp(derived, other, sizeof(derived)), 0);
}

static void refuse_key(struct sluice_key key, const char *words)
{
    uint8_t derived[32];
    ck_assert_int_eq(sluice_key_derive(&key, derived, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_msg(strstr(error.message, words), "%s", error.message);
}

SL_TEST(a_key_is_made_of_no_more_work_than_is_ever_read)
{
    const struct sluice_key good = {
        .size = sizeof(good), .passphrase = "p", .passphrase_bytes = 1, .salt = "0123456789abcdef"};
    struct sluice_key key = good;
    key.opslimit = 17;
    refuse_key(key, "opslimit is 17: give 1 to 16");
    key = good;
    key.memlimit = 8191;
    refuse_key(key, "memlimit is 8191 bytes");
    key.memlimit = (UINT64_C(2) << 30) + 1;
    refuse_key(key, "memlimit is 2147483649 bytes");
    key = good;
    key.salt = NULL;
    refuse_key(key, "a passphrase and a salt");
    key = good;
    key.passphrase_bytes = 0;
    refuse_key(key, "give 1 to");
    key =
        (struct sluice_key){.size = sizeof(key), .key = (const uint8_t[32]){0}, .salt = good.salt};
    refuse_key(key, "a passphrase and a salt");
}

SL_TEST(metadata_and_data_files_go_into_a_folder)
{
    char path[SL_CASE_PATH_BYTES], folder[SL_CASE_PATH_BYTES + 1];
    const struct sluice_meta metadata[] = {{sizeof(metadata[0]), "format", "np", 6, 2}};
    struct sluice_create_options options = {
        .size = sizeof(options), .metadata = metadata, .metadata_count = 1, .shard_bytes = 50000};
    struct sluice_writer *writer;
    uint64_t shape[2];
    char name[16];
    uint8_t *data[3];
    snprintf(folder, sizeof(folder), "%s/", sl_case_path("model", path));
    ck_assert_msg(sluice_create(folder, &options, &writer, &error) == 0, "%s", error.message);
    for (unsigned i = 1; i < 4; i++) {
        struct sluice_tensor tensor = made(i, &data[i - 1], shape, name);
        ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
        free(data[i - 1]);
    }
    const struct sluice_tensor file = {.size = sizeof(file),
                                       .name = "config.json",
                                       .kind = SLUICE_KIND_FILE,
                                       .data = "{}",
                                       .bytes = 2};
    ck_assert_int_eq(sluice_write(writer, &file, &error), 0);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
    struct sluice_source *source = open_it(folder, NULL);
    struct sluice_meta meta = {.size = sizeof(meta)};
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_uint_eq(info_of(source).tensor_count, 4);
    ck_assert_int_eq(sluice_source_meta(source, 0, &meta, &error), 0);
    ck_assert_str_eq(meta.value, "np");
    ck_assert_int_eq(sluice_source_find(source, "config.json", 0, &tensor, &error), 0);
    ck_assert_uint_eq(tensor.bytes, 2);
    sluice_close(source);
}

SL_TEST(names_of_parts_and_meta_tensors_stay)
{
    char path[SL_CASE_PATH_BYTES];
    struct sluice_writer *writer;
    uint64_t shape = 3;
    const struct sluice_path_part parts[] = {
        {.size = sizeof(parts[0]), .text = "a", .text_bytes = 1},
        {.size = sizeof(parts[0]), .index = 2}};
    struct sluice_tensor tensor = {.size = sizeof(tensor),
                                   .name = "meta",
                                   .dtype = "BF16",
                                   .shape = &shape,
                                   .rank = 1,
                                   .bytes = 6,
                                   .role = SLUICE_ROLE_BUFFER,
                                   .module = 4};
    ck_assert_int_eq(sluice_create(sl_case_path("m.tensors", path), NULL, &writer, &error), 0);
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    tensor.data = "abcdef";
    tensor.role = SLUICE_ROLE_ENTRY;
    ck_assert_msg(sluice_write_path(writer, &tensor, parts, 2, &error) == 0, "%s", error.message);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message);
    struct sluice_source *source = open_it(path, NULL);
    struct sluice_tensor first = tensor_of(source, 0), second = tensor_of(source, 1);
    ck_assert_int_eq(first.meta, 1);
    ck_assert_uint_eq(first.role, SLUICE_ROLE_BUFFER);
    ck_assert_uint_eq(first.module, 4);
    ck_assert_uint_eq(second.path_count, 2);
    struct sluice_path_part part = {.size = sizeof(part)};
    ck_assert_int_eq(sluice_source_path(source, 1, 1, &part, &error), 0);
    ck_assert_ptr_null(part.text);
    ck_assert_uint_eq(part.index, 2);
    sluice_close(source);
}

SL_TEST(what_cannot_be_written_leaves_nothing)
{
    char path[SL_CASE_PATH_BYTES];
    struct sluice_writer *writer;
    uint64_t shape[2];
    char name[16];
    uint8_t *data;
    struct sluice_tensor tensor = made(2, &data, shape, name);
    ck_assert_int_eq(sluice_create(sl_case_path("m.bin", path), NULL, &writer, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    sl_case_path("m.safetensors", path);
    ck_assert_int_eq(sluice_create(path, NULL, &writer, &error), 0);
    tensor.bytes--;
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    tensor.bytes++;
    tensor.dtype = "F33";
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), -1);
    tensor.dtype = "F32";
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0); /* again */
    ck_assert_int_eq(sluice_finish(writer, &error), -1);
    ck_assert_ptr_nonnull(strstr(error.message, name));
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
    ck_assert_int_eq(sluice_create(path, NULL, &writer, &error), 0);
    ck_assert_int_eq(sluice_write(writer, &tensor, &error), 0);
    sluice_abandon(writer);
    ck_assert_uint_eq(sl_case_files(sl_case_scratch), 0);
    ck_assert_int_eq(sluice_create(path, NULL, &writer, &error), 0);
    ck_assert_msg(sluice_finish(writer, &error) == 0, "%s", error.message); /* a model of none */
    free(data);
}

static int write_once(void *arg, struct sl_err *err)
{
    struct sluice_create_options options = {.size = sizeof(options), .flags = SLUICE_REPLACE};
    int done = write_all(arg, &options);
    if (done < 0)
        sl_fail(err, error.kind == SLUICE_NO_SPACE ? SL_E_NO_SPACE : SL_E_INTERNAL, "%s",
                error.message);
    return done;
}

SL_TEST(every_allocation_that_fails_is_told)
{
    char path[SL_CASE_PATH_BYTES];
    ck_assert_uint_gt(
        golden_each_allocation(write_once, (char *)(uintptr_t)sl_case_path("m.tensors", path)), 20);
}

SL_CASE(.setup = sl_case_setup, .teardown = sl_case_teardown, .seconds = 120)

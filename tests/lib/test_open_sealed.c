/* Slices of encrypted tensors where something is wrong: the key, a byte of the ciphertext, or the
 * file, which is another one by then. */
#include "sluice.h"

#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "convert_case.h"
#include "memory_store.h"
#include "model_maker.h"
#include "open_case.h"

enum { ITEMS = 1000000, TENSOR_BYTES = 4 * ITEMS };

static const uint8_t right[32] = {1, 2, 3}, wrong[32] = {3, 2, 1};
static uint8_t *data;
static size_t bytes;
static char path[SL_CASE_PATH_BYTES];

static void seal(const uint8_t key[32], const char *name)
{
    struct sl_convert_config config = sl_case_tensorizer;
    SL_AUTO(sl_keys) keys = sl_keys_from_key(key, NULL);
    config.seal = keys;
    sl_case_expect("memory:m.safetensors", sl_case_path(name, path), &config, NULL);
}

static void setup(void)
{
    sl_case_setup();
    data = sl_model_safetensors("a,b", ITEMS, &bytes);
    sl_memory_put("m.safetensors", data, bytes, NULL);
    seal(right, "m.tensors");
}

static void teardown(void)
{
    sl_memory_clear();
    free(sl_steal(&data));
    sl_case_teardown();
}

static struct sluice_source *open_with(const uint8_t key[32])
{
    struct sluice_key given = {.size = sizeof(given), .key = key};
    struct sluice_open_options options = {.size = sizeof(options), .key = &given};
    return open_it(path, &options);
}

static int read_items(struct sluice_source *source, struct sluice_range range)
{
    static float items[ITEMS];
    struct sluice_tensor b = {.size = sizeof(b)};
    ck_assert_int_eq(sluice_source_find(source, "b", 0, &b, &error), 0);
    uint64_t count = (range.stop - range.start + range.step - 1) / range.step;
    const struct sluice_read read = {
        .size = sizeof(read), .number = b.number, .slice = &range, .to = items, .bytes = 4 * count};
    if (sluice_read(source, &read, 1, NULL, &error) < 0)
        return -1;
    const uint8_t *from = data + bytes - TENSOR_BYTES;
    for (uint64_t i = 0; i < count; i++)
        ck_assert_mem_eq(&items[i], from + 4 * (range.start + i * range.step), 4);
    return 0;
}

static const struct sluice_range ranges[] = {
    {0, 10, 1}, {500000, 500001, 1}, {ITEMS - 1, ITEMS, 1}, {3, ITEMS, 7}};

SL_TEST(a_wrong_key_opens_no_slice)
{
    struct sluice_source *source = open_with(wrong);
    for (size_t i = 0; i < SL_COUNT(ranges); i++) {
        ck_assert_int_eq(read_items(source, ranges[i]), -1);
        ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
        ck_assert_str_eq(error.code, "E_DECRYPT");
    }
    sluice_close(source);
}

/* Whoever seals the model with another key replaces the file: what was opened is not there any
 * more, and its key does not open what is. */
SL_TEST(a_file_that_is_sealed_anew_is_another_one)
{
    char old[SL_CASE_PATH_BYTES];
    struct sluice_source *source = open_with(right);
    for (size_t i = 0; i < SL_COUNT(ranges); i++)
        ck_assert_msg(read_items(source, ranges[i]) == 0, "%s", error.message);
    memcpy(old, path, sizeof(old));
    seal(wrong, "other.tensors");
    ck_assert_int_eq(rename(path, old), 0);
    memcpy(path, old, sizeof(path));
    for (size_t i = 0; i < SL_COUNT(ranges); i++) {
        ck_assert_int_eq(read_items(source, ranges[i]), -1);
        ck_assert_str_eq(error.code, "changed");
    }
    sluice_close(source);
    source = open_with(right);
    ck_assert_int_eq(read_items(source, ranges[0]), -1);
    ck_assert_str_eq(error.code, "E_DECRYPT");
    sluice_close(source);
    source = open_with(wrong);
    ck_assert_msg(read_items(source, ranges[0]) == 0, "%s", error.message);
    sluice_close(source);
}

/* A piece has its own MAC: a wrong byte is found by the slice that needs the piece, and no other.
 */
SL_TEST(a_wrong_byte_is_found_by_the_slices_of_its_piece)
{
    FILE *file = fopen(path, "r+");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fseek(file, -100, SEEK_END), 0);
    int last = fgetc(file);
    ck_assert_int_eq(fseek(file, -100, SEEK_END), 0);
    ck_assert_int_eq(fputc(last ^ 1, file), last ^ 1);
    fclose(file);
    struct sluice_source *source = open_with(right);
    ck_assert_msg(read_items(source, ranges[0]) == 0, "%s", error.message);
    ck_assert_int_eq(read_items(source, ranges[2]), -1);
    ck_assert_str_eq(error.code, "E_DECRYPT");
    ck_assert_int_eq(read_items(source, ranges[3]), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    sluice_close(source);
}

SL_CASE(.setup = setup, .teardown = teardown)

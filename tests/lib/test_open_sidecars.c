/* Parts of tensors of an object that has a sidecar: a wrong byte within the part is found, and
 * fetched again where that helps; one elsewhere is nobody's business. */
#include "claims.h"
#include "gguf_maker.h"
#include "metrics.h"
#include "oms_maker.h"
#include "open_case.h"
#include "scratch.h"
#include "signed_model.h"
#include "sluice.h"
#include "tree.h"

enum { ITEMS = 400000, TENSOR_BYTES = 4 * ITEMS };

static char scratch[SL_SCRATCH_PATH_BYTES];
static int scratch_fd;

static void setup(void)
{
    scratch_fd = sl_scratch_open(scratch);
    server = sl_server_start();
    put_model("a", ITEMS);
    sl_server_handle(server, flip_bit, NULL);
    flip(0, 0);
}

static void teardown(void)
{
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(sl_steal(&data));
}

static uint64_t place_of(uint64_t item)
{
    return bytes - TENSOR_BYTES + 4 * item;
}

/* The first item of the range after the one that this item is in. */
static uint64_t next_range(uint64_t item)
{
    return ((place_of(item) / RANGE + 1) * RANGE - place_of(0) + 3) / 4;
}

static int read_items(struct sluice_source *source, struct sluice_range range)
{
    static float items[ITEMS];
    uint64_t count = (range.stop - range.start + range.step - 1) / range.step;
    const struct sluice_read read = {
        .size = sizeof(read), .slice = &range, .to = items, .bytes = 4 * count};
    memset(items, 0xee, sizeof(items));
    if (sluice_read(source, &read, 1, NULL, &error) < 0)
        return -1;
    for (uint64_t i = 0; i < count; i++)
        ck_assert_mem_eq(&items[i], data + place_of(range.start + i * range.step), 4);
    return 0;
}

/* ---- a file that is wrong for good ----------------------------------------------------------- */

static void put_folder(uint64_t wrong_at)
{
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    struct sl_sidecar *sidecar = make_sidecar(data);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_sidecar_free(sidecar);
    data[wrong_at] ^= 4;
    ck_assert_int_eq(sl_tree_write(scratch_fd, "m.safetensors", data, bytes, &err), 0);
    data[wrong_at] ^= 4;
    ck_assert_int_eq(
        sl_tree_write(scratch_fd, "m.safetensors.sluice.json", text.data, text.used, &err), 0);
}

static struct sluice_source *open_folder(uint32_t verify)
{
    char uri[SL_SCRATCH_PATH_BYTES + 8];
    const struct sluice_open_options options = {
        .size = sizeof(options), .verify = verify, .spec = "verify: {sidecar: auto}\n"};
    snprintf(uri, sizeof(uri), "%s/", scratch);
    return open_it(uri, &options);
}

SL_TEST(a_wrong_byte_is_found_by_the_part_that_has_its_range)
{
    uint64_t first = next_range(100000), wrong = first + 5000;
    put_folder(place_of(wrong));
    struct sluice_source *source = open_folder(SLUICE_VERIFY_DEFAULT);
    ck_assert_msg(read_items(source, (struct sluice_range){200000, 300000, 1}) == 0, "%s",
                  error.message);
    ck_assert_int_eq(read_items(source, (struct sluice_range){50000, 200000, 1}), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_msg(strstr(error.message, "m.safetensors"), "%s", error.message);
    ck_assert_msg(strstr(error.message, "changed after its sidecar was made"), "%s", error.message);
    ck_assert_int_eq(read_items(source, (struct sluice_range){50000, 200000, 3}), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    sluice_close(source);
}

/* A mapping is not checked, so that there is none. */
SL_TEST(a_wrong_byte_is_found_where_a_tensor_could_be_mapped)
{
    put_folder(place_of(next_range(100000) + 5000));
    static const struct {
        uint32_t verify;
        bool found;
    } rows[] = {{SLUICE_VERIFY_DEFAULT, true},
                {SLUICE_VERIFY_REQUIRE, true},
                {SLUICE_VERIFY_ALL, true},
                {SLUICE_VERIFY_OFF, false}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        struct sluice_source *source = open_folder(rows[i].verify);
        struct sluice_tensor tensor = tensor_of(source, 0);
        struct sluice_memory *memory = NULL;
        ck_assert_int_eq(tensor.file == NULL, rows[i].found);
        ck_assert_int_eq(sluice_map(source, 0, NULL, &memory, &error), rows[i].found ? -1 : 0);
        if (rows[i].found)
            ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
        sluice_unmap(memory);
        sluice_close(source);
    }
}

/* A part that has no whole range is not checked; who asks for hashes is told so. */
SL_TEST(a_part_that_no_range_covers_is_refused_where_hashes_are_required)
{
    put_folder(place_of(100000));
    struct sluice_source *source = open_folder(SLUICE_VERIFY_REQUIRE);
    ck_assert_int_eq(read_items(source, (struct sluice_range){100001, 100010, 1}), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_msg(strstr(error.message, "without a hash"), "%s", error.message);
    sluice_close(source);
}

/* Of GGUF: a value that is not kept is read once more, when it is asked for. */
SL_TEST(a_wrong_byte_of_a_long_value_is_found)
{
    enum { COUNT = 300 * 1024, WRONG = 200 * 1024 };
    static const uint32_t ways[] = {SLUICE_VERIFY_DEFAULT, SLUICE_VERIFY_ALL};
    static uint8_t value[COUNT];
    const uint64_t ne[] = {16};
    struct sl_buf file;
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    begin(&file, 1, 1);
    put_string(&file, "long");
    put_number(&file, SLUICE_VALUE_ARRAY, 4);
    put_number(&file, SLUICE_VALUE_U8, 4);
    put_number(&file, COUNT, 8);
    put_zeros(&file, COUNT);
    put_tensor(&file, "w", 1, ne, 0, 0);
    put_zeros(&file, 63 + 64);
    struct sl_sidecar *sidecar = make_sidecar_of("m.gguf", (uint8_t *)file.data, file.used);
    ck_assert_int_eq(sl_sidecar_write(sidecar, &text, &err), 0);
    sl_sidecar_free(sidecar);
    ck_assert_int_eq(sl_tree_write(scratch_fd, "m.gguf.sluice.json", text.data, text.used, &err),
                     0);
    for (size_t i = 0; i < 2 * SL_COUNT(ways); i++) {
        bool wrong = i % 2;
        ((uint8_t *)file.data)[WRONG] = wrong;
        ck_assert_int_eq(sl_tree_write(scratch_fd, "m.gguf", file.data, file.used, &err), 0);
        struct sluice_source *source = open_folder(ways[i / 2]);
        int done = sluice_source_value_read(source, 0, value, 0, &error);
        ck_assert_int_eq(done, wrong ? -1 : 0);
        if (wrong)
            ck_assert_msg(error.kind == SLUICE_INTEGRITY && strstr(error.message, "m.gguf"), "%s",
                          error.message);
        sluice_close(source);
    }
    sl_buf_release(&file);
}

/* ---- a way that is wrong for once ------------------------------------------------------------ */

static struct sluice_source *open_signed(void)
{
    const struct sluice_open_options options = {.size = sizeof(options),
                                                .spec = "verify: {sidecar: require}\n"};
    return open_it(sl_server_url(server, "/m.safetensors"), &options);
}

SL_TEST(a_byte_that_comes_wrong_once_is_fetched_again_for_a_part)
{
    struct sluice_source *source = open_signed();
    /* seven ranges: every third item from the first on has the last one among them */
    uint64_t first = next_range(100000), last = first + 7 * (RANGE / 4);
    ck_assert_uint_eq(place_of(first) % RANGE, 0);
    for (unsigned step = 1; step <= 3; step += 2) {
        uint64_t before = sl_metric_get(SL_M_REFETCHED_RANGES);
        flip(place_of(first + 30000), 1);
        ck_assert_msg(read_items(source, (struct sluice_range){first, last, step}) == 0, "%s",
                      error.message);
        ck_assert_uint_eq(sl_metric_get(SL_M_REFETCHED_RANGES) - before, 1);
    }
    ck_assert_int_eq(read_items(source, (struct sluice_range){first + 1, last, 1}), -1);
    ck_assert_str_eq(error.code, "E_SIDECAR");
    sluice_close(source);
}

/* ---- signed as a model ----------------------------------------------------------------------- */

static void put_signature(EVP_PKEY *key, uint64_t shard_bytes)
{
    const struct oms_file file = {"m.safetensors", data, bytes};
    sl_autofree char *bundle =
        oms_sign(&(struct oms_wanted){.files = &file, .count = 1, .shard_bytes = shard_bytes}, key);
    sl_server_put(server, "/model.sig", bundle, strlen(bundle), "\"s\"");
}

/* Ranges prove what they cover whole; hashes of files prove no part of one. */
SL_TEST(parts_of_a_signed_model_are_proved_by_whole_ranges_or_refused)
{
    char key_file[SL_SCRATCH_PATH_BYTES + 16], spec[SL_SCRATCH_PATH_BYTES + 128];
    EVP_PKEY *key = oms_key();
    snprintf(key_file, sizeof(key_file), "%s/key.pem", scratch);
    snprintf(spec, sizeof(spec), "verify: {modelSigning: {publicKeyFile: \"%s\"}}\n", key_file);
    oms_put_key(key, key_file, false);
    const struct sluice_open_options options = {.size = sizeof(options), .spec = spec};
    put_signature(key, RANGE);
    struct sluice_source *source = open_it(sl_server_url(server, "/m.safetensors"), &options);
    uint64_t first = next_range(100000), last = first + 7 * (RANGE / 4);
    uint64_t before = sl_metric_get(SL_M_REFETCHED_RANGES);
    flip(place_of(first + 30000), 1);
    ck_assert_msg(read_items(source, (struct sluice_range){first, last, 1}) == 0, "%s",
                  error.message);
    ck_assert_uint_eq(sl_metric_get(SL_M_REFETCHED_RANGES) - before, 1);
    ck_assert_int_eq(read_items(source, (struct sluice_range){first + 1, last, 1}), -1);
    ck_assert_str_eq(error.code, "E_SIGNATURE");
    sluice_close(source);
    put_signature(key, 0);
    ck_assert_int_lt(
        sluice_open(sl_server_url(server, "/m.safetensors"), &options, &source, &error), 0);
    ck_assert_msg(error.kind == SLUICE_USAGE && strstr(error.message, "sluice_pull()"), "%s",
                  error.message);
    EVP_PKEY_free(key);
}

SL_CASE(.setup = setup, .teardown = teardown)

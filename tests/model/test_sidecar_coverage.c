/* Sidecars of objects of which only tensors are read, from a server that sends wrong bytes: which
 * ranges are checked, that those alone are fetched again, and that what cannot be checked is told.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "alloc_fail.h"
#include "claims.h"
#include "load.h"
#include "log.h"
#include "memory_store.h"
#include "scratch.h"
#include "signed_model.h"

enum { ITEMS = 50000 };
#define PICK    "sink: {tmpfs: {path: \"%s\", layout: safetensors}}\n"
#define REQUIRE PICK "verify: {sidecar: require}\n"

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_load_result result;
static unsigned fail_at;

static void remove_model(void)
{
    if (scratch_fd >= 0)
        sl_scratch_close(scratch_fd, scratch);
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/model", scratch);
}

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    err = (struct sl_err)SL_ERR_INIT;
    scratch_fd = -1;
    fail_at = 0;
    flip(0, 0);
    remove_model();
    server = sl_server_start();
    put_model("a,b,c,d", ITEMS);
    sl_server_handle(server, flip_bit, NULL);
}

static void teardown(void)
{
    sl_alloc_fail_at(0);
    sl_server_stop(server);
    sl_scratch_close(scratch_fd, scratch);
    free(data);
    data = NULL;
}

/* more: a format for the path. */
static int load(const char *more)
{
    struct sl_specs specs;
    char yaml[2048];
    err = (struct sl_err)SL_ERR_INIT;
    ck_assert_int_lt(snprintf(yaml, sizeof(yaml), more, path), (int)sizeof(yaml));
    sl_model_spec(&specs, sl_server_url(server, "/m.safetensors"), path, yaml);
    sl_alloc_fail_at(fail_at);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    return done;
}

/* All tensors, in the order in which they lay: the data of the new file are those of the old. */
static bool same_data(void)
{
    size_t found, count;
    uint8_t *file = sl_model_read(path, "model.safetensors", &found);
    if (!file)
        return false;
    count = bytes - 8 - (size_t)sl_get_le64(data);
    bool same = found > count && memcmp(file + found - count, data + bytes - count, count) == 0;
    free(file);
    return same;
}

static void must_load(const char *more)
{
    ck_assert_msg(load(more) == 0, "%s: %s", more, err.message);
    ck_assert_uint_eq(result.sidecars, 1);
}

static void must_not_load(const char *more, enum sl_err_kind kind, const char *word)
{
    ck_assert_msg(load(more) < 0, "%s loads", more);
    ck_assert_msg(err.kind == kind && strstr(err.message, word), "%d: %s", err.kind, err.message);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

SL_TEST(a_wrong_bit_of_a_tensor_has_its_range_fetched_again)
{
    static const char *const more[] = {
        REQUIRE,
        REQUIRE "readers: {connections: 1}\n",
        REQUIRE "readers: {connections: 3, rangeBytes: 64Ki}\n",
        PICK "verify: {sidecar: require, hashes: all}\n",
        PICK "verify: {sidecar: require, hashes: off}\n",
        PICK "verify: {sidecar: require, hashes: require}\n",
    };
    for (size_t i = 0; i < SL_COUNT(more); i++)
        for (uint64_t at = bytes - 1; at > 3 * RANGE; at -= 5 * RANGE + 1000) {
            flip(at, 1);
            must_load(more[i]);
            ck_assert_uint_eq(result.refetched_ranges, 1);
            ck_assert_uint_eq(result.unhashed, 0);
            ck_assert_uint_eq(result.checks, (bytes + RANGE - 1) / RANGE);
            ck_assert_uint_le(result.fetched, bytes + 2 * RANGE + 256 * 1024);
            ck_assert(same_data());
            remove_model();
        }
}

SL_TEST(one_that_stays_wrong_fails_the_load)
{
    flip(bytes - 100, 1000);
    must_not_load(REQUIRE, SL_E_INTEGRITY, "bytes ");
    ck_assert_str_eq(err.code, "E_HASH_CRC32C");
}

/* The head lands nowhere, and the index is made of it: a name could be another. */
SL_TEST(a_wrong_head_is_found)
{
    uint8_t *right = malloc(bytes);
    memcpy(right, data, bytes);
    uint8_t *name = memmem(right, 200, "\"b\"", 3);
    ck_assert_ptr_nonnull(name);
    name[1] = 'e';
    put_sidecar(right);
    free(right);
    must_not_load(REQUIRE, SL_E_INTEGRITY, "bytes ");
}

SL_TEST(a_head_of_several_ranges_is_checked)
{
    enum { NAMES = 1300 };
    char *names = calloc(NAMES, 10);
    for (unsigned i = 0; i < NAMES; i++)
        snprintf(names + strlen(names), 10, "%sn%05u", i ? "," : "", i);
    put_model(names, 40);
    uint64_t head = 8 + sl_get_le64(data);
    ck_assert_uint_gt(head, RANGE);
    ck_assert_uint_lt(head, 2 * RANGE);
    must_load(REQUIRE);
    ck_assert(same_data());
    remove_model();
    uint64_t places[] = {RANGE / 2, head - 3};
    for (size_t i = 0; i < SL_COUNT(places); i++) {
        data[places[i]] ^= 1;
        put_sidecar(data);
        data[places[i]] ^= 1;
        must_not_load(REQUIRE, SL_E_INTEGRITY, "expected");
    }
    free(names);
}

SL_TEST(what_cannot_be_checked_is_refused_where_it_must_be)
{
    static const char *const more[] = {
        REQUIRE "tensors: {include: [a, c]}\n", REQUIRE "tensors: {cast: {F32: BF16}}\n",
        REQUIRE "tensors: {rename: [{match: ^a$, to: z}]}\n", /* another order */
    };
    for (size_t i = 0; i < SL_COUNT(more); i++) {
        must_not_load(more[i], SL_E_INTEGRITY, "cannot check");
        ck_assert_str_eq(err.code, "E_SIDECAR");
    }
}

/* Of a listing they are used as far as they go. */
SL_TEST(ranges_within_picked_tensors_are_checked)
{
    struct sl_specs specs;
    char yaml[1024];
    sl_autobuf sidecar = SL_BUF_INIT(1024 * 1024);
    struct sl_sidecar *made = sl_sidecar_new("m.safetensors", bytes, RANGE, &err);
    for (size_t i = 0; i < made->range_count; i++)
        made->ranges[i].crc32c =
            sl_crc32c(0, data + i * RANGE, (size_t)(sl_sidecar_range_end(made, i) - i * RANGE));
    sl_sidecar_tree(made, made->tree);
    ck_assert_int_eq(sl_memory_put("p/m.safetensors", data, bytes, NULL), 0);
    for (int wrong = 0; wrong < 2; wrong++) {
        made->ranges[8].crc32c ^= (uint32_t)wrong; /* within c */
        sl_sidecar_tree(made, made->tree);
        sl_buf_release(&sidecar);
        sidecar = (struct sl_buf)SL_BUF_INIT(1024 * 1024);
        ck_assert_int_eq(sl_sidecar_write(made, &sidecar, &err), 0);
        ck_assert_int_eq(
            sl_memory_put("p/m.safetensors.sluice.json", sidecar.data, sidecar.used, NULL), 0);
        snprintf(yaml, sizeof(yaml), PICK "tensors: {include: [a, c]}\n", path);
        sl_model_spec(&specs, "memory://p/", path, yaml);
        int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
        sl_specs_release(&specs);
        ck_assert_msg((done < 0) == wrong, "%s", err.message);
        if (!wrong) {
            /* 400,000 bytes of data, less the ends of both tensors */
            ck_assert_uint_gt(result.unhashed, 0);
            ck_assert_uint_lt(result.unhashed, 3 * RANGE);
            ck_assert_uint_eq(result.sidecars, 1);
            ck_assert(!sl_model_exists(path, "m.safetensors.sluice.json"));
        }
        remove_model();
    }
    ck_assert_str_eq(err.code, "E_HASH_CRC32C");
    sl_sidecar_free(made);
    sl_memory_clear();
}

/* The object was replaced and its sidecar was not: bytes that it does not cover tell them apart. */
SL_TEST(what_no_sidecar_covers_is_not_taken_over_for_its_sake)
{
    struct sl_specs specs;
    char yaml[1024];
    const size_t at = 3 * RANGE + 1000; /* of a, in a range with some of b */
    sl_autobuf text = SL_BUF_INIT(1024 * 1024);
    struct sl_sidecar *made = make_sidecar(data);
    ck_assert_int_eq(sl_sidecar_write(made, &text, &err), 0);
    sl_sidecar_free(made);
    ck_assert_int_eq(sl_memory_put("p/m.safetensors.sluice.json", text.data, text.used, NULL), 0);
    snprintf(yaml, sizeof(yaml), PICK "tensors: {include: [a, c]}\n", path);
    for (unsigned i = 0; i < 2; i++) {
        size_t found, head = 8 + (size_t)sl_get_le64(data);
        data[at] ^= (uint8_t)i;
        ck_assert_int_eq(sl_memory_put("p/m.safetensors", data, bytes, NULL), 0);
        sl_model_spec(&specs, "memory://p/", path, yaml);
        ck_assert_msg(sl_load_run(&specs.items[0], NULL, NULL, &result, &err) == 0, "%s",
                      err.message);
        sl_specs_release(&specs);
        ck_assert_uint_eq(result.sidecars, 1);
        ck_assert_uint_eq(result.inherited, 0);
        uint8_t *file = sl_model_read(path, "model.safetensors", &found);
        size_t own = 8 + (size_t)sl_get_le64(file);
        ck_assert(memcmp(file + own, data + head, 4 * ITEMS) == 0);
        free(file);
    }
    sl_memory_clear();
}

/* What an interrupted load left is read back by its place in the new file. */
SL_TEST(a_load_that_was_broken_off_checks_what_it_keeps)
{
    flip(bytes - 100, 1000);
    must_not_load(REQUIRE "readers: {connections: 1}\n", SL_E_INTEGRITY, "expected");
    flip(0, 0);
    must_load(REQUIRE);
    ck_assert_uint_eq(result.unhashed, 0);
    ck_assert(same_data());
}

SL_TEST(every_failing_allocation_ends_cleanly)
{
    unsigned step = 1;
    for (unsigned nth = 1;; nth += step) {
        flip(bytes - 100, 1);
        fail_at = nth;
        int done = load(REQUIRE);
        bool reached = sl_alloc_count() >= nth;
        sl_alloc_fail_at(fail_at = 0);
        if (done == 0)
            ck_assert(same_data());
        else
            ck_assert(!sl_model_exists(path, ".sluice/ready"));
        if (!reached)
            break;
        remove_model();
        step = 1 + nth / 12; /* those of the server, the index and the reader have their tests */
    }
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 120)

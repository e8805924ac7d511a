/* Loads of files that are held, fetched whole at their opening: beside other files, when they were
 * broken off, with sidecars, encrypted. A hub lists them and another host gives their bytes. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cgroup.h"
#include "claims.h"
#include "hf_hub.h"
#include "load.h"
#include "log.h"
#include "model_maker.h"
#include "range_blob.h"
#include "run_sluice.h"
#include "scratch.h"
#include "tree.h"

/* Tensors so far apart that each header is a request of its own, unless the file is held. */
enum { TENSORS = 40, ITEMS = 65536, TENSOR_BYTES = ITEMS * 4, OTHER_BYTES = 12 << 20 };
enum { FEW = 3 }; /* the first 128 KiB, 8 MiB, the rest */

static char scratch[SL_SCRATCH_PATH_BYTES], path[SL_SCRATCH_PATH_BYTES + 16];
static int scratch_fd;
static struct sl_hub hub;
static struct sl_err err;
static struct sl_load_result result;
static struct ran ran;
static uint8_t *plain, *file, *other; /* safetensors; the same as .tensors; of another file */
static size_t plain_bytes, file_bytes;

/* What is free in memory; 0: what the machine has. */
static uint64_t memory;

uint64_t __real_sl_memory_available(void);
uint64_t __wrap_sl_memory_available(void);
uint64_t __wrap_sl_memory_available(void)
{
    return memory ? memory : __real_sl_memory_available();
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    ck_assert_int_eq(sl_tree_write(scratch_fd, name, data, bytes, &err), 0);
}

static const char *at(const char *name)
{
    static char texts[4][SL_SCRATCH_PATH_BYTES + 32];
    static unsigned turn;
    char *text = texts[turn++ % SL_COUNT(texts)];
    snprintf(text, sizeof(texts[0]), "%s/%s", scratch, name);
    return text;
}

static void expect_run(void)
{
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
}

static void setup(void)
{
    char names[8 * TENSORS] = "";
    sl_log_setup(SL_LOG_ERROR, false);
    memory = 0;
    scratch_fd = sl_scratch_open(scratch);
    snprintf(path, sizeof(path), "%s/loaded", scratch);
    for (int i = 0; i < TENSORS; i++)
        snprintf(names + strlen(names), 8, "%st%02d", i ? "," : "", i);
    plain = sl_model_safetensors(names, ITEMS, &plain_bytes);
    other = sl_model_noise(OTHER_BYTES, 7);
    write_file("m.safetensors", plain, plain_bytes);
    RUN(&ran, "convert", at("m.safetensors"), at("m.tensors"));
    expect_run();
    file = sl_model_read(scratch, "m.tensors", &file_bytes);
    sl_hub_start(&hub);
    sl_hub_put(&hub, "m.tensors", file, file_bytes, true);
}

static void teardown(void)
{
    sl_hub_stop(&hub);
    sl_scratch_close(scratch_fd, scratch);
    ran_release(&ran);
    free(plain);
    free(file);
    free(other);
}

static int load(const char *layout, const char *more)
{
    struct sl_specs specs;
    char text[2 * SL_SCRATCH_PATH_BYTES + 500];
    snprintf(text, sizeof(text),
             "source: {uri: \"hf://org/name\", hf: {endpoint: \"%s\", xet: 'off'}}\n"
             "sink: {tmpfs: {path: \"%s\", layout: %s}}\n%s",
             sl_hub_url(&hub), path, layout, more);
    err = (struct sl_err)SL_ERR_INIT;
    sl_model_spec(&specs, "", path, text);
    int done = sl_load_run(&specs.items[0], NULL, NULL, &result, &err);
    sl_specs_release(&specs);
    return done;
}

static void must_load(const char *layout, const char *more)
{
    ck_assert_msg(load(layout, more) == 0, "%s", err.message);
}

/* For the bytes of m.tensors. */
static unsigned requests(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sl_server_request_count(hub.cdn); i++)
        count += strncmp(sl_server_request_at(hub.cdn, i)->target, "/m.tensors?", 11) == 0;
    return count;
}

static void expect_tensors(void)
{
    size_t bytes;
    uint8_t *found = sl_model_read(path, "model.safetensors", &bytes);
    ck_assert_ptr_nonnull(found);
    ck_assert_mem_eq(found + bytes - TENSORS * TENSOR_BYTES,
                     plain + plain_bytes - TENSORS * TENSOR_BYTES, TENSORS * TENSOR_BYTES);
    free(found);
}

/* ---- beside other files ---------------------------------------------------------------------- */

/* Four times what all of them have is to be free, or none is held. */
SL_TEST_LOOP(a_file_is_held_where_there_is_room_for_all_that_is_listed, 0, 2)
{
    sl_hub_put(&hub, "z.bin", other, OTHER_BYTES, true);
    memory = 4 * (uint64_t)(file_bytes + OTHER_BYTES) - (_i ? 4 : 0);
    must_load("verbatim", "");
    ck_assert(sl_model_same(path, "m.tensors", file, file_bytes));
    ck_assert(sl_model_same(path, "z.bin", other, OTHER_BYTES));
    if (_i)
        ck_assert_uint_gt(requests(), TENSORS);
    else
        ck_assert_uint_eq(requests(), FEW);
}

/* ---- broken off ------------------------------------------------------------------------------ */

/* What landed of a held file is not read again: it is held once more, since its index is needed. */
SL_TEST(what_landed_of_a_held_file_is_kept)
{
    static const char once[] = "readers: {connections: 1, attempts: 1}\n";
    sl_hub_put(&hub, "z.bin", other, OTHER_BYTES, true);
    SL_SCRIPT(hub.cdn, {.path = "/z.bin", .first = 2, .last = 99, .fault = SL_FAULT_RESET});
    ck_assert_int_eq(load("verbatim", once), -1);
    ck_assert_int_eq(err.kind, SL_E_NET);
    ck_assert_uint_eq(requests(), FEW);
    sl_server_script(hub.cdn, NULL, 0);
    must_load("verbatim", once);
    ck_assert_uint_ge(result.resumed, file_bytes);
    ck_assert_uint_eq(requests(), 2 * FEW);
    ck_assert(sl_model_same(path, "m.tensors", file, file_bytes));
    ck_assert(sl_model_same(path, "z.bin", other, OTHER_BYTES));
}

/* ---- sidecars -------------------------------------------------------------------------------- */

static struct {
    uint64_t at;
    unsigned times; /* answers that hold it, and are still to be wrong */
} flip;

static bool flip_bit(const struct sl_server_request *request, struct sl_server_reply *reply,
                     void *arg)
{
    uint64_t begin, end;
    (void)arg;
    if (strncmp(request->target, "/m.tensors?", 11) != 0 || !flip.times ||
        !sl_server_range(request, file_bytes, &begin, &end) || begin > flip.at || end <= flip.at)
        return false;
    flip.times--;
    sl_server_reply_range(reply, file, begin, end, file_bytes, NULL);
    reply->body[flip.at - begin] ^= 4;
    return true;
}

static void put_sidecar(void)
{
    size_t bytes;
    RUN(&ran, "sign", at("m.tensors"), "--range-bytes", "100KiB");
    expect_run();
    uint8_t *text = sl_model_read(scratch, "m.tensors.sluice.json", &bytes);
    sl_hub_put(&hub, "m.tensors.sluice.json", text, bytes, false);
    free(text);
    sl_server_handle(hub.cdn, flip_bit, NULL);
}

/* The header of the tensor before which half of the data lie. */
static uint64_t middle_header(void)
{
    const uint8_t *data = plain + plain_bytes - TENSOR_BYTES * (TENSORS / 2);
    const uint8_t *found = memmem(file, file_bytes, data, 4096);
    ck_assert_ptr_nonnull(found);
    return (uint64_t)(found - file) - 40; /* among the hashes and lengths at its end */
}

/* 0: of a tensor, 1: of a header, which no file gets: the sidecar's range is then no run. */
SL_TEST_LOOP(a_wrong_byte_of_a_held_file_is_asked_for_again, 0, 4)
{
    static const char *const layouts[] = {"verbatim", "safetensors"};
    bool in_header = _i % 2;
    put_sidecar();
    flip.at = middle_header() + (in_header ? 0 : TENSOR_BYTES / 2);
    flip.times = 1;
    must_load(layouts[_i / 2], "verify: {sidecar: auto}\n");
    ck_assert_uint_eq(flip.times, 0);
    if (_i / 2)
        expect_tensors();
    else
        ck_assert(sl_model_same(path, "m.tensors", file, file_bytes));
}

SL_TEST_LOOP(a_byte_that_stays_wrong_is_refused, 0, 4)
{
    static const char *const layouts[] = {"verbatim", "safetensors"};
    put_sidecar();
    flip.at = middle_header() + (_i % 2 ? 0 : TENSOR_BYTES / 2);
    flip.times = UINT32_MAX;
    ck_assert_int_eq(load(layouts[_i / 2], "verify: {sidecar: auto}\n"), -1);
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert(!sl_model_exists(path, ".sluice/ready"));
}

/* ---- encrypted ------------------------------------------------------------------------------- */

SL_TEST_LOOP(an_encrypted_file_is_held_as_any_other, 0, 2)
{
    char more[SL_SCRATCH_PATH_BYTES + 64];
    RUN(&ran, "keygen", at("key"));
    expect_run();
    RUN(&ran, "encrypt", at("m.tensors"), at("sealed.tensors"), "--key-file", at("key"));
    expect_run();
    free(file);
    file = sl_model_read(scratch, "sealed.tensors", &file_bytes);
    hub.file_count = 0;
    sl_hub_put(&hub, "m.tensors", file, file_bytes, true);
    snprintf(more, sizeof(more), "decrypt: {keyFile: \"%s\"}\n", at("key"));
    must_load(_i ? "safetensors" : "verbatim", _i ? more : "");
    ck_assert_uint_eq(requests(), FEW);
    if (_i)
        expect_tensors();
    else
        ck_assert(sl_model_same(path, "m.tensors", file, file_bytes));
}

static bool prepare(void)
{
    sl_test_environment();
    return true;
}

SL_CASE(.seconds = 60, .setup = setup, .teardown = teardown, .prepare = prepare)

/*
 * What a reader leaves to a device that does stages, and what it takes from it. The device is this
 * program: it opens and casts what it is given, and computes CRCs over what has landed.
 */
#include <check.h>
#include <string.h>

#include "cast.h"
#include "claims.h"
#include "form_maker.h"
#include "hash.h"
#include "metrics.h"
#include "reader.h"
#include "stages.h"
#include "thread.h"

enum { SEALED, CAST, HASHED, TENSORS };
enum { SIDE = 300, PIECE_BYTES = 1024, MAPPINGS = TENSORS };

/* How it does what it is to do. */
struct device {
    struct sl_stage_device ops;
    struct sl_form *form;
    struct sl_sink *sink;
    bool lies_once;    /* the first CRC that it tells is wrong */
    bool says_nothing; /* of CRCs */
    bool fails;        /* in the end */
    const struct sl_stage_results *results;
    unsigned begun, finished, ended, agreed;
    pthread_mutex_t lock;
    struct {
        uint64_t landed[MAPPINGS], cast_bytes;
        bool ragged; /* ciphertext was told that is not a whole pieces */
    } locked;
};

static struct sl_plan *plan_of(const struct device *device)
{
    return sl_form_planned(device->form);
}

/* ---- the device ------------------------------------------------------------------------------ */

static void put(struct sl_sink *sink, uint64_t offset, const void *data, uint64_t bytes)
{
    struct sl_place place;
    ck_assert_int_eq(sl_sink_reserve(sink, 0, offset, bytes, &place, NULL), 0);
    memcpy(place.memory, data, bytes);
    ck_assert_int_eq(sl_sink_commit(sink, &place, NULL), 0);
}

static void on_landed(void *arg, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct device *device = arg;
    const struct sl_mapping *mappings = plan_of(device)->mappings;
    size_t i = 0;
    ck_assert_uint_eq(file, 0);
    while (i + 1 < MAPPINGS && mappings[i + 1].file_offset <= offset)
        i++;
    uint64_t begin = offset - mappings[i].file_offset;
    uint64_t all = mappings[i].end - mappings[i].begin;
    SL_LOCKED(&device->lock);
    device->locked.landed[i] += bytes;
    if (i == SEALED &&
        (begin % PIECE_BYTES || ((begin + bytes) % PIECE_BYTES && begin + bytes != all)))
        device->locked.ragged = true;
}

static void on_agreed(void *arg, const struct sl_check *check)
{
    struct device *device = arg;
    ck_assert_ptr_eq(check, plan_of(device)->checks);
    device->agreed++;
}

static int cast(void *arg, const struct sl_mapping *mapping, uint64_t offset, const uint8_t *data,
                uint64_t bytes, struct sl_err *err)
{
    struct device *device = arg;
    size_t count = (size_t)(bytes / mapping->in_item);
    sl_autofree uint8_t *out = sl_alloc(count * mapping->out_item, err);
    ck_assert_ptr_eq(mapping, &plan_of(device)->mappings[CAST]);
    sl_cast(mapping->target->from->dtype, mapping->target->out.dtype, SL_CAST_IEEE, data, out,
            count);
    put(device->sink, offset, out, count * mapping->out_item);
    SL_LOCKED(&device->lock);
    device->locked.cast_bytes += bytes;
    return 0;
}

static void begin(void *arg, const struct sl_stage_results *results)
{
    struct device *device = arg;
    device->results = results;
    device->begun++;
}

static int finish(void *arg, struct sl_err *err)
{
    struct device *device = arg;
    struct sl_plan *plan = plan_of(device);
    const struct sl_check *check = plan->checks;
    size_t bytes = (size_t)(check->end - check->begin);
    sl_autofree uint8_t *data = sl_alloc(bytes, err);
    device->finished++;
    if (device->fails)
        return sl_fail(err, SL_E_GPU, "the device is gone");
    if (device->says_nothing)
        return 0;
    ck_assert_int_eq(sl_sink_read(device->sink, 0, check->file_offset, data, bytes, err), 0);
    uint32_t crc = sl_crc32(0, data, bytes);
    device->results->crc(device->results->arg, check, device->lies_once ? ~crc : crc);
    return 0;
}

static void end(void *arg)
{
    struct device *device = arg;
    device->results = NULL;
    device->ended++;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static int does(void *arg, enum sl_stage stage, bool *is_done, struct sl_err *err)
{
    (void)arg, (void)stage, (void)err;
    *is_done = true;
    return 0;
}

static bool has(void *arg, uint32_t file)
{
    (void)arg;
    return file == 0;
}

static void open_device(struct device *device)
{
    static const struct sl_stage_offer offer = {
        .does = does, .has = has, .piece_bytes_max = PIECE_BYTES};
    struct sl_err err = SL_ERR_INIT;
    struct sl_form_options wanted = {.hashes = SL_HASHES_AUTO, .range_bytes = 65536};
    struct sl_form_tensor tensor = {.dtype = SL_DTYPE_F32, .rank = 2, .shape = {SIDE, SIDE}};
    pthread_mutex_init(&device->lock, NULL);
    device->form = sl_form_new();
    tensor.encrypted = true;
    tensor.piece_bytes = PIECE_BYTES;
    sl_form_add(device->form, &tensor);
    tensor.encrypted = false;
    tensor.cast = SL_DTYPE_F64;
    sl_form_add(device->form, &tensor);
    tensor.cast = SL_DTYPE_NONE;
    tensor.crc32 = true;
    sl_form_add(device->form, &tensor);
    ck_assert_msg(sl_form_plan(device->form, &wanted, &err) == 0, "%s", err.message);
    struct sl_plan *plan = plan_of(device);
    ck_assert_uint_eq(plan->check_count, 1);
    plan->checks[0].repair = SL_REPAIR_FETCH;
    ck_assert_int_eq(sl_plan_stages(plan, &offer, &err), 0);
    for (int stage = 0; stage < SL_STAGES; stage++)
        ck_assert_uint_eq(sl_plan_on_device(plan, (enum sl_stage)stage), 1);
    device->sink = sl_heap_open(sl_form_file(device->form), 1, &err);
    ck_assert_ptr_nonnull(device->sink);
    device->ops = (struct sl_stage_device){.events = {on_landed, on_agreed, device},
                                           .cast = cast,
                                           .begin = begin,
                                           .finish = finish,
                                           .end = end,
                                           .arg = device};
}

static void close_device(struct device *device)
{
    sl_sink_free(device->sink);
    sl_form_free(device->form);
    pthread_mutex_destroy(&device->lock);
}

static int run(struct device *device, struct sl_err *err)
{
    struct sl_reader_config config = {.connections = 3, .threads = 2, .device = &device->ops};
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_reader_run(plan_of(device), device->sink, NULL, &config, err);
}

/* What a device makes of the ciphertext that landed. */
static void open_sealed(struct device *device)
{
    const struct sl_mapping *mapping = &plan_of(device)->mappings[SEALED];
    const struct sl_tensor *tensor = mapping->target->from;
    uint8_t piece[PIECE_BYTES];
    for (uint64_t at = 0; at < tensor->bytes; at += PIECE_BYTES) {
        size_t bytes = (size_t)SL_MIN(tensor->bytes - at, (uint64_t)PIECE_BYTES);
        ck_assert_int_eq(
            sl_sink_read(device->sink, 0, mapping->file_offset + at, piece, bytes, NULL), 0);
        sl_crypt_xor(tensor->key, tensor->crypt->nonce, at / PIECE_BYTES, 0, piece, piece, bytes);
        put(device->sink, mapping->file_offset + at, piece, bytes);
    }
}

/* ---- claims ---------------------------------------------------------------------------------- */

SL_TEST(what_is_the_devices_is_left_to_it_and_the_rest_is_done)
{
    struct device device = {.agreed = 0};
    struct sl_err err;
    open_device(&device);
    ck_assert_msg(run(&device, &err) == 0, "%s", err.message);
    ck_assert(!sl_form_matches(device.form, device.sink)); /* ciphertext is in it */
    open_sealed(&device);
    ck_assert(sl_form_matches(device.form, device.sink));
    ck_assert(!device.locked.ragged);
    ck_assert_uint_eq(device.locked.cast_bytes, SIDE * SIDE * 4);
    ck_assert_uint_eq(device.locked.landed[SEALED], SIDE * SIDE * 4);
    ck_assert_uint_eq(device.locked.landed[CAST], SIDE * SIDE * 8);
    ck_assert_uint_eq(device.locked.landed[HASHED], SIDE * SIDE * 4);
    ck_assert_uint_eq(device.agreed, 1);
    ck_assert_uint_eq(device.begun + device.finished + device.ended, 3);
    close_device(&device);
}

SL_TEST(what_a_device_finds_wrong_is_fetched_again)
{
    struct device device = {.lies_once = true};
    struct sl_err err;
    uint64_t before = (uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES);
    open_device(&device);
    ck_assert_msg(run(&device, &err) == 0, "%s", err.message);
    ck_assert_uint_eq((uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES) - before, 1);
    ck_assert_uint_eq(device.agreed, 1);
    open_sealed(&device);
    ck_assert(sl_form_matches(device.form, device.sink));
    close_device(&device);
}

SL_TEST(a_device_that_fails_in_the_end_fails_the_run)
{
    struct device device = {.fails = true};
    struct sl_err err;
    open_device(&device);
    ck_assert_int_eq(run(&device, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_GPU);
    ck_assert_uint_eq(device.ended, 1);
    ck_assert_uint_eq(device.agreed, 0);
    close_device(&device);
}

SL_TEST(a_crc_that_is_never_told_fails_the_run)
{
    struct device device = {.says_nothing = true};
    struct sl_err err;
    open_device(&device);
    ck_assert_int_eq(run(&device, &err), -1);
    ck_assert_msg(err.kind == SL_E_INTERNAL && strstr(err.message, "hashes"), "%s", err.message);
    ck_assert_uint_eq(device.ended, 1);
    close_device(&device);
}

SL_TEST(a_plan_that_leaves_work_to_nobody_is_not_read)
{
    struct device device = {.agreed = 0};
    struct sl_err err;
    for (int missing = 0; missing < 3; missing++) {
        open_device(&device);
        struct sl_stage_device less = device.ops;
        struct sl_reader_config config = {.connections = 1, .device = missing ? &less : NULL};
        less.cast = missing == 1 ? NULL : less.cast;
        less.finish = missing == 2 ? NULL : less.finish;
        err = (struct sl_err)SL_ERR_INIT;
        ck_assert_int_eq(sl_reader_run(plan_of(&device), device.sink, NULL, &config, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_INTERNAL);
        ck_assert_uint_eq(device.begun, 0);
        close_device(&device);
    }
}

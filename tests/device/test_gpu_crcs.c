/*
 * CRCs that are computed on a device: the same checks as the host's, with the same end, and what
 * breaks on its way to the device is noticed as well. Against the fake driver.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "await.h"
#include "claims.h"
#include "golden.h"
#include "gpu_fill_case.h"
#include "load.h"
#include "memory_store.h"
#include "metrics.h"
#include "pool_words.h"

#define GOLDEN     "v1-many"
#define ONE_BY_ONE "readers: {connections: 1, rangeBytes: 65536}\n"

static void setup(void)
{
    gpu_fill_setup();
    fill_case_where = SL_DECRYPT_GPU;
}

static uint64_t crc_bytes(void)
{
    return (uint64_t)sl_metric_get(SL_M_GPU_CRC_BYTES);
}

static uint64_t copied(void)
{
    return (uint64_t)sl_metric_get(SL_M_GPU_COPIED_BYTES);
}

static uint64_t again(void)
{
    return (uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES);
}

static void put_golden(const char *name)
{
    char file[300];
    size_t bytes;
    snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
    uint8_t *golden = golden_read(file, &bytes);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
}

/* What a load of m.tensors says that it verified. */
static uint64_t verified(int where, const char *more, uint64_t *checks)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_specs specs;
    struct sl_load_result result = {0};
    struct sl_pool_model *model = NULL;
    struct sl_fill_config config = {.name = "m", .places = &fill_case_place, .place_count = 1};
    fill_case_spec(&specs, "memory://m.tensors", more);
    specs.items[0].sink.pool.crc = specs.items[0].sink.pool.decrypt = where;
    int done = sl_fill_run(&specs.items[0], &config, &model, &result, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    fill_case_compare("memory://m.tensors", more, model);
    sl_pool_model_free(model);
    sl_specs_release(&specs);
    *checks = result.checks;
    return result.verified;
}

/* ---- claims ---------------------------------------------------------------------------------- */

SL_TEST(the_same_is_checked_as_on_the_host)
{
    static const char *const rests[] = {"", "verify: {hashes: all}\n",
                                        "readers: {connections: 3, rangeBytes: 65536}\n"};
    char more[SL_SCRATCH_PATH_BYTES + 300];
    json_t *manifest = golden_json("tensorizer/MANIFEST.json");
    const json_t *files = json_object_get(manifest, "files");
    uint64_t before = crc_bytes();
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(file, "name"));
        if (strcmp(json_string_value(json_object_get(file, "category")), "valid") != 0 ||
            strstr(name, "meta"))
            continue;
        uint64_t checks[2];
        put_golden(name);
        fill_case_decrypt(name, gpu_fill.directory, more, sizeof(more));
        strncat(more, rests[i % SL_COUNT(rests)], 100);
        uint64_t host = verified(SL_DECRYPT_HOST, more, &checks[0]);
        ck_assert_uint_eq(host, verified(SL_DECRYPT_GPU, more, &checks[1]));
        ck_assert_uint_eq(checks[0], checks[1]);
        sl_memory_clear();
    }
    json_decref(manifest);
    ck_assert_uint_gt(crc_bytes(), before);
}

SL_TEST(what_breaks_on_its_way_to_the_device_is_noticed)
{
    uint64_t before = again(), computed = crc_bytes();
    put_golden(GOLDEN);
    gpu_fill.fake->spoil(1, 1);
    struct sl_pool_model *model = fill_case_load("memory://m.tensors", "");
    ck_assert_uint_gt(crc_bytes(), computed);
    ck_assert_uint_eq(again() - before, 1);
    fill_case_compare("memory://m.tensors", "", model);
    sl_pool_model_free(model);
}

static bool on_planned(void *arg, struct sl_pool_model *model)
{
    struct sl_pool_model **last = arg;
    sl_pool_model_free(*last);
    *last = model;
    return true;
}

SL_TEST(a_tensor_with_a_wrong_hash_is_never_told)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *planned = NULL;
    struct sl_fill_config config = {.planned = on_planned, .arg = &planned};
    struct fill_view view;
    uint64_t before = again(), computed = crc_bytes();
    put_golden("bad-hash-data");
    ck_assert_ptr_null(fill_case_try("memory://m.tensors", "", &config, &err));
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strstr(err.message, "'second'") && strstr(err.message, "fetched 4 times"), "%s",
                  err.message);
    ck_assert_uint_gt(crc_bytes(), computed);
    ck_assert_uint_eq(again() - before, 3);
    fill_view_open(planned, &view);
    ck_assert_uint_eq(view.page->words[fill_view_find(&view, "second")], SL_WORD_FAILED);
    fill_view_close(&view);
    sl_pool_model_free(planned);
}

/* A load in a thread. */
struct run {
    struct sl_cancel *cancel;
    struct sl_pool_model *model;
    struct sl_err err;
};

static void *run_load(void *arg)
{
    struct run *run = arg;
    struct sl_fill_config config = {.cancel = run->cancel};
    run->model = fill_case_try("memory://m.tensors", ONE_BY_ONE, &config, &run->err);
    return NULL;
}

SL_TEST(a_load_that_waits_for_the_device_can_be_canceled)
{
    struct run run = {.cancel = sl_cancel_new(NULL)};
    pthread_t thread;
    put_golden(GOLDEN);
    gpu_fill.fake->hold(true);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_load, &run), 0);
    SL_AWAIT(gpu_fill.fake->calls("cuEventQuery") >= 5, "the fifth look at a copy");
    sl_cancel_raise(run.cancel, 0);
    SL_AWAIT(sl_cancel_raised(run.cancel), "the cancellation");
    gpu_fill.fake->hold(false);
    pthread_join(thread, NULL);
    ck_assert(run.model || run.err.kind == SL_E_CANCELED);
    sl_pool_model_free(run.model);
    sl_cancel_free(run.cancel);
}

/* Kernels take their time; what comes meanwhile is copied all the same. */
SL_TEST(no_copy_waits_for_a_crc)
{
    struct run run = {NULL};
    pthread_t thread;
    uint64_t computed = crc_bytes(), before = copied();
    put_golden(GOLDEN);
    sl_pool_model_free(fill_case_load("memory://m.tensors", ONE_BY_ONE));
    uint64_t whole = copied() - before, all = crc_bytes() - computed;
    ck_assert_uint_gt(all, 0);
    gpu_fill.fake->hold_kernels(true);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_load, &run), 0);
    SL_AWAIT(copied() == before + 2 * whole, "all copies");
    ck_assert_uint_eq(crc_bytes(), computed + all);
    gpu_fill.fake->hold_kernels(false);
    pthread_join(thread, NULL);
    ck_assert_msg(run.model, "%s", run.err.message);
    ck_assert_uint_eq(crc_bytes(), computed + 2 * all);
    fill_case_compare("memory://m.tensors", ONE_BY_ONE, run.model);
    sl_pool_model_free(run.model);
}

SL_TEST(a_load_that_waits_for_crcs_can_be_canceled)
{
    struct run run = {.cancel = sl_cancel_new(NULL)};
    pthread_t thread;
    uint64_t before = copied();
    put_golden(GOLDEN);
    sl_pool_model_free(fill_case_load("memory://m.tensors", ONE_BY_ONE));
    uint64_t whole = copied() - before;
    gpu_fill.fake->hold_kernels(true);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_load, &run), 0);
    SL_AWAIT(copied() == before + 2 * whole, "all copies");
    sl_cancel_raise(run.cancel, 0);
    SL_AWAIT(sl_cancel_raised(run.cancel), "the cancellation");
    gpu_fill.fake->hold_kernels(false);
    pthread_join(thread, NULL);
    ck_assert(run.model || run.err.kind == SL_E_CANCELED);
    sl_pool_model_free(run.model);
    sl_cancel_free(run.cancel);
}

SL_TEST(every_call_that_fails_leaves_nothing)
{
    static const char *const calls[] = {
        "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuMemcpyDtoHAsync",
        "cuMemHostAlloc",   "cuEventQuery",        "cuEventRecord",  "cuMemcpyHtoDAsync",
        "cuStreamCreate",   "cuEventCreate"};
    put_golden(GOLDEN);
    for (size_t i = 0; i < SL_COUNT(calls); i++)
        for (uint64_t nth = 1; nth <= 2; nth++) {
            struct sl_err err = SL_ERR_INIT;
            struct sl_fill_config config = {0};
            gpu_fill.fake->reset();
            gpu_fill.fake->fail_call(calls[i], nth, SL_CUDA_UNKNOWN);
            struct sl_pool_model *model = fill_case_try("memory://m.tensors", "", &config, &err);
            ck_assert_msg(nth > 1 || !model, "%s", calls[i]); /* some are the way back later */
            ck_assert_msg(model || err.kind == SL_E_GPU, "%s: %s", calls[i], err.message);
            sl_pool_model_free(model);
            check_no_cuda_left(gpu_fill.fake);
        }
}

static void spoil_one(struct sl_spec *spec)
{
    spec->sink.pool.crc = SL_DECRYPT_GPU;
    gpu_fill.fake->spoil(1, 1);
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    put_golden(GOLDEN);
    gpu_fill_fail_allocations("memory://m.tensors", "readers: {connections: 1}\n", spoil_one);
}

static bool prepare(void)
{
    gpu_fill.fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = gpu_fill_teardown, .prepare = prepare)

/*
 * Encrypted pieces that do not open on a device, because they came wrong over the network or on
 * their way to it: fetched again alone, a few times, and told when they are right. Against the fake
 * driver.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "await.h"
#include "claims.h"
#include "golden.h"
#include "gpu_fill_case.h"
#include "load.h"
#include "log.h"
#include "metrics.h"
#include "pool_words.h"
#include "range_server.h"

enum { MACS_BYTES = 1000 /* smaller copies bring MACs */ };
#define GOLDEN "v5-long-encrypted" /* one tensor of three pieces, one of one */

static char more[SL_SCRATCH_PATH_BYTES + 64];

static void setup(void)
{
    gpu_fill_setup();
    fill_case_decrypt(GOLDEN, gpu_fill.directory, more, sizeof(more));
    fill_case_where = SL_DECRYPT_GPU;
}

/* ---- a store whose bytes come wrong ---------------------------------------------------------- */

struct store {
    struct sl_server *server;
    uint8_t *object;
    size_t bytes;
    char uri[300];
    pthread_mutex_t lock; /* of the rest: the server's threads */
    uint64_t flip;        /* this byte is wrong in the first `planned` answers after planning */
    unsigned planned, times, requests;
    uint64_t last_begin, last_end; /* of the last request */
};

static bool flip_byte(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    struct store *store = arg;
    uint64_t begin, end;
    if (!sl_server_range(request, store->bytes, &begin, &end))
        return false;
    SL_LOCKED(&store->lock);
    store->requests++;
    store->last_begin = begin;
    store->last_end = end;
    if (!store->times || begin > store->flip || end <= store->flip)
        return false;
    store->times--;
    sl_server_reply_range(reply, store->object, begin, end, store->bytes, "\"1\"");
    reply->body[store->flip - begin] ^= 0x40;
    return true;
}

static bool on_planned(void *arg, struct sl_pool_model *model)
{
    struct store *store = arg;
    (void)model;
    SL_LOCKED(&store->lock);
    store->times = store->planned;
    store->requests = 0;
    return false;
}

static struct sl_pool_model *load_from(struct store *store, struct sl_cancel *cancel,
                                       struct sl_err *err)
{
    struct sl_fill_config config = {.cancel = cancel, .planned = on_planned, .arg = store};
    store->times = 0;
    return fill_case_try(store->uri, more, &config, err);
}

static void open_store(struct store *store)
{
    *store = (struct store){.lock = PTHREAD_MUTEX_INITIALIZER};
    store->object = golden_read("tensorizer/" GOLDEN ".tensors.gz", &store->bytes);
    store->server = sl_server_start();
    sl_server_put(store->server, "/m.tensors", store->object, store->bytes, "\"1\"");
    sl_server_handle(store->server, flip_byte, store);
    snprintf(store->uri, sizeof(store->uri), "%s", sl_server_url(store->server, "/m.tensors"));
}

static void close_store(struct store *store)
{
    sl_server_stop(store->server);
    free(store->object);
}

/* Where the pieces of tensor 'x' lie in the object, and how large they are. */
static uint64_t find_x(const char *uri, uint64_t *piece_bytes)
{
    struct sl_specs specs;
    struct sl_source_config config;
    struct sl_err err = SL_ERR_INIT;
    uint64_t begin = 0;
    fill_case_spec(&specs, uri, more);
    sl_spec_source_config(&specs.items[0], NULL, NULL, &config);
    SL_AUTO(sl_plan) plan = NULL;
    ck_assert_int_eq(sl_plan_make_targets(&specs.items[0], &config, &plan, &err), 0);
    for (size_t i = 0; i < plan->target_count; i++)
        if (strcmp(plan->targets[i].from->name, "x") == 0) {
            begin = plan->targets[i].from->begin;
            *piece_bytes = plan->targets[i].from->crypt->piece_bytes;
        }
    ck_assert_uint_gt(begin, 0);
    sl_plan_free(sl_steal(&plan));
    sl_specs_release(&specs);
    return begin;
}

static uint64_t again(void)
{
    return (uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES);
}

/* ---- claims ---------------------------------------------------------------------------------- */

SL_TEST(a_piece_that_comes_wrong_is_fetched_again_alone)
{
    struct store store;
    uint64_t piece = 0, begin;
    open_store(&store);
    begin = find_x(store.uri, &piece);
    for (unsigned number = 0; number < 3; number++)
        for (unsigned times = 1; times <= (number ? 3 : 1); times++) {
            uint64_t before = again(), failures = sl_metric_get(SL_M_VERIFY_FAILURES);
            struct sl_err err = SL_ERR_INIT;
            store.flip = begin + number * piece + 7;
            store.planned = times;
            struct sl_pool_model *model = load_from(&store, NULL, &err);
            ck_assert_msg(model, "%s", err.message);
            ck_assert_uint_eq(again() - before, times);
            ck_assert_uint_eq(sl_metric_get(SL_M_VERIFY_FAILURES) - failures, times);
            ck_assert_uint_eq(store.last_begin, begin + number * piece);
            ck_assert_uint_eq(store.last_end, SL_MIN(begin + (number + 1) * piece, begin + 2400));
            fill_case_compare(store.uri, more, model);
            sl_pool_model_free(model);
        }
    close_store(&store);
}

SL_TEST(a_piece_that_stays_wrong_ends_the_load_after_a_few_tries)
{
    struct store store;
    struct sl_err err = SL_ERR_INIT;
    uint64_t piece = 0, begin, before = again();
    open_store(&store);
    begin = find_x(store.uri, &piece);
    store.flip = begin + 2 * piece;
    store.planned = UINT32_MAX;
    ck_assert_ptr_null(load_from(&store, NULL, &err));
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_str_eq(err.code, "E_DECRYPT");
    ck_assert_msg(strstr(err.message, "fetched 4 times") && strstr(err.message, "'x'") &&
                      strstr(err.message, "piece 3 of 3") &&
                      strstr(err.message, "others open with this key"),
                  "%s", err.message);
    ck_assert_uint_eq(again() - before, 3);
    close_store(&store);
}

SL_TEST(a_wrong_key_is_told_from_damaged_data)
{
    struct store store;
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    char path[SL_SCRATCH_PATH_BYTES + 8], wrong[sizeof(more)];
    const uint8_t key[32] = {1, 2, 3};
    uint64_t before = again();
    open_store(&store);
    snprintf(path, sizeof(path), "%s/wrong", gpu_fill.directory);
    FILE *file = fopen(path, "w");
    ck_assert_uint_eq(fwrite(key, 1, sizeof(key), file), sizeof(key));
    fclose(file);
    ck_assert_int_eq(chmod(path, 0600), 0);
    snprintf(wrong, sizeof(wrong), "decrypt: {keyFile: \"%s\"}\n", path);
    ck_assert_ptr_null(fill_case_try(store.uri, wrong, &config, &err));
    ck_assert_int_eq(err.kind, SL_E_INTEGRITY);
    ck_assert_msg(strstr(err.message, "fetched 2 times") &&
                      strstr(err.message, "the key or passphrase is probably wrong"),
                  "%s", err.message);
    ck_assert_uint_eq(again() - before, 1);
    close_store(&store);
}

static void put_golden(void)
{
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/" GOLDEN ".tensors.gz", &bytes);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
}

SL_TEST(what_breaks_on_its_way_to_the_device_is_mended)
{
    uint64_t before = again();
    put_golden();
    gpu_fill.fake->spoil(1, MACS_BYTES);
    struct sl_pool_model *model = fill_case_load("memory://m.tensors", more);
    ck_assert_uint_eq(again() - before, 1);
    fill_case_compare("memory://m.tensors", more, model);
    sl_pool_model_free(model);
}

SL_TEST(a_device_that_opens_nothing_right_is_named)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    put_golden();
    gpu_fill.fake->spoil(UINT32_MAX, MACS_BYTES);
    ck_assert_ptr_null(fill_case_try("memory://m.tensors", more, &config, &err));
    ck_assert_int_eq(err.kind, SL_E_GPU);
    ck_assert_msg(strstr(err.message, "opens on the host, but not on the GPU"), "%s", err.message);
}

/* A load in a thread. */
struct run {
    struct store *store;
    struct sl_cancel *cancel;
    struct sl_pool_model *model;
    struct sl_err err;
};

static void *run_load(void *arg)
{
    struct run *run = arg;
    run->model = load_from(run->store, run->cancel, &run->err);
    return NULL;
}

SL_TEST(a_load_that_waits_for_a_piece_can_be_canceled)
{
    struct store store;
    struct run run = {.store = &store, .cancel = sl_cancel_new(NULL)};
    uint64_t piece = 0;
    pthread_t thread;
    open_store(&store);
    store.flip = find_x(store.uri, &piece);
    store.planned = 1;
    unsigned before = sl_server_request_count(store.server);
    sl_pool_model_free(load_from(&store, NULL, &run.err));
    unsigned all = sl_server_request_count(store.server) - before, last = store.requests;
    struct sl_step stall = {.path = "/m.tensors", .fault = SL_FAULT_STALL, .after = 10};
    stall.first = before + 2 * all; /* the one for the piece */
    sl_server_script(store.server, &stall, 1);
    store.requests = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, run_load, &run), 0);
    SL_AWAIT(sl_server_request_count(store.server) >= before + 2 * all, "the piece's request");
    sl_cancel_raise(run.cancel, 0);
    pthread_join(thread, NULL);
    ck_assert_ptr_null(run.model);
    ck_assert_uint_eq(store.requests, last);
    ck_assert_msg(run.err.kind == SL_E_CANCELED, "%s", run.err.message);
    sl_cancel_free(run.cancel);
    close_store(&store);
}

static void *load(void *arg)
{
    struct sl_pool_model **model = arg;
    *model = fill_case_load("memory://m.tensors", more);
    return NULL;
}

/* Kernels take their time; what comes meanwhile is copied all the same. */
SL_TEST(no_copy_waits_for_decryption)
{
    struct sl_pool_model *model = NULL;
    pthread_t thread;
    uint64_t opened = (uint64_t)sl_metric_get(SL_M_GPU_OPENED_BYTES);
    uint64_t before = (uint64_t)sl_metric_get(SL_M_GPU_COPIED_BYTES);
    put_golden();
    sl_pool_model_free(fill_case_load("memory://m.tensors", more));
    uint64_t whole = (uint64_t)sl_metric_get(SL_M_GPU_COPIED_BYTES) - before;
    uint64_t all = (uint64_t)sl_metric_get(SL_M_GPU_OPENED_BYTES) - opened;
    ck_assert_uint_gt(all, 0);
    gpu_fill.fake->hold_kernels(true);
    ck_assert_int_eq(pthread_create(&thread, NULL, load, &model), 0);
    SL_AWAIT((uint64_t)sl_metric_get(SL_M_GPU_COPIED_BYTES) == before + 2 * whole, "all copies");
    ck_assert_uint_eq((uint64_t)sl_metric_get(SL_M_GPU_OPENED_BYTES), opened + all);
    gpu_fill.fake->hold_kernels(false);
    pthread_join(thread, NULL);
    fill_case_compare_golden(GOLDEN, more);
    sl_pool_model_free(model);
}

SL_TEST(every_call_that_fails_in_mending_leaves_nothing)
{
    static const char *const calls[] = {"cuLaunchKernel", "cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync",
                                        "cuEventRecord", "cuEventQuery"};
    put_golden();
    for (size_t i = 0; i < SL_COUNT(calls); i++)
        for (uint64_t nth = 1; nth <= 4; nth++) {
            struct sl_err err = SL_ERR_INIT;
            struct sl_fill_config config = {0};
            gpu_fill.fake->reset();
            gpu_fill.fake->spoil(1, MACS_BYTES);
            gpu_fill.fake->fail_call(calls[i], nth, SL_CUDA_UNKNOWN);
            struct sl_pool_model *model = fill_case_try("memory://m.tensors", more, &config, &err);
            ck_assert_msg(gpu_fill.fake->calls(calls[i]) >= nth || model, "%s: %s", calls[i],
                          err.message);
            ck_assert_msg(nth > 1 || !model, "%s", calls[i]); /* some are the way back later */
            ck_assert_msg(model || err.kind == SL_E_GPU, "%s", err.message);
            sl_pool_model_free(model);
            check_no_cuda_left(gpu_fill.fake);
        }
}

static void spoil_one(struct sl_spec *spec)
{
    spec->sink.pool.decrypt = SL_DECRYPT_GPU;
    gpu_fill.fake->spoil(1, MACS_BYTES);
}

SL_TEST(every_failing_allocation_in_mending_leaves_nothing)
{
    put_golden();
    gpu_fill_fail_allocations("memory://m.tensors", more, spoil_one);
}

static bool prepare(void)
{
    gpu_fill.fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = gpu_fill_teardown, .prepare = prepare)

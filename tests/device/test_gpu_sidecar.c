/*
 * Loads into memory of GPUs from a store that has a sidecar and sends wrong bytes, at a rate that
 * is limited, or until they are canceled: what lands on its device is right, once, and of what ends
 * early nothing is left. Against the fake driver.
 */
#include <pthread.h>

#include "await.h"
#include "claims.h"
#include "gpu_fill_case.h"
#include "metrics.h"
#include "signed_model.h"

enum { ITEMS = 20 * RANGE / 4 };
#define SIDECAR "verify: {sidecar: require}\n"

static const char *uri;

/* Header and tensors are whole ranges, so that each can be checked wherever a tensor lands. */
static void put_padded(void)
{
    uint64_t header;
    put_model("a,b", ITEMS);
    memcpy(&header, data, sizeof(header));
    size_t tensors = bytes - 8 - (size_t)header;
    uint8_t *padded = malloc(RANGE + tensors);
    memset(padded, ' ', RANGE);
    memcpy(padded + 8, data + 8, header);
    memcpy(padded + RANGE, data + 8 + header, tensors);
    header = RANGE - 8;
    memcpy(padded, &header, sizeof(header));
    free(data);
    data = padded;
    bytes = RANGE + tensors;
    sl_server_put(server, "/m.safetensors", data, bytes, ETAG);
    put_sidecar(data);
}

static void setup(void)
{
    gpu_fill_setup();
    server = sl_server_start();
    put_padded();
    sl_server_handle(server, flip_bit, NULL);
    flip(0, 0);
    uri = sl_server_url(server, "/m.safetensors");
}

static void teardown(void)
{
    sl_server_stop(server);
    free(sl_steal(&data));
    gpu_fill_teardown();
}

static uint64_t again(void)
{
    return (uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES);
}

/* ---- what a sidecar finds -------------------------------------------------------------------- */

static void expect_mended(struct sl_fill_config *config, size_t copies)
{
    struct sl_err why = SL_ERR_INIT;
    uint64_t before = again();
    flip(bytes - 4 * ITEMS - 1000, 1);
    struct sl_pool_model *model = fill_case_try(uri, SIDECAR, config, &why);
    ck_assert_msg(model, "%s", why.message);
    ck_assert_uint_eq(again() - before, 1);
    for (size_t i = 0; i < copies; i++)
        fill_case_compare_copy(uri, SIDECAR, sl_pool_model_copy(model, i));
    sl_pool_model_free(model);
}

SL_TEST(a_range_that_comes_wrong_is_mended_on_the_device)
{
    static const int wheres[] = {SL_DECRYPT_AUTO, SL_DECRYPT_HOST, SL_DECRYPT_GPU};
    for (size_t i = 0; i < SL_COUNT(wheres); i++) {
        struct sl_fill_config config = {0};
        fill_case_where = wheres[i];
        expect_mended(&config, 1);
    }
}

SL_TEST(a_range_that_comes_wrong_is_mended_on_every_gpu)
{
    struct sl_slab_place places[2];
    struct sl_fill_config config = {
        .places = places, .place_count = 2, .placement = SL_PLACEMENT_GPUS};
    gpu_fill.fake->set_devices(2);
    SL_AUTO(sl_gpu) second = sl_gpu_open(1, &err);
    ck_assert_msg(second, "%s", err.message);
    sl_slab_place_gpu(gpu_fill.gpu, &places[0]);
    sl_slab_place_gpu(second, &places[1]);
    expect_mended(&config, 2);
}

SL_TEST(a_range_that_stays_wrong_fails_the_load_and_leaves_nothing)
{
    struct sl_err why = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    flip(bytes - 1000, UINT32_MAX);
    ck_assert_ptr_null(fill_case_try(uri, SIDECAR, &config, &why));
    ck_assert_msg(why.kind == SL_E_INTEGRITY, "%s", why.message);
    flip(0, 0);
    check_no_cuda_left(gpu_fill.fake);
    struct sl_pool_model *model = fill_case_load(uri, SIDECAR);
    fill_case_compare(uri, SIDECAR, model);
    sl_pool_model_free(model);
}

/* ---- a rate that is limited ------------------------------------------------------------------ */

SL_TEST(a_limit_of_bandwidth_holds_for_a_gpu)
{
    enum { RATE = 4 * 1024 * 1024, BURST_PART = 2 };
    struct sl_err why = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    uint64_t begin = sl_now_ns();
    struct sl_pool_model *model =
        fill_case_try(uri, SIDECAR "readers: {bandwidth: 4MiB/s}\n", &config, &why);
    ck_assert_msg(model, "%s", why.message);
    double seconds = (double)(sl_now_ns() - begin) / (double)SL_NS_PER_S;
    ck_assert_double_ge(seconds, (double)bytes / RATE / BURST_PART);
    fill_case_compare(uri, SIDECAR, model);
    sl_pool_model_free(model);
}

/* ---- an end before its end ------------------------------------------------------------------- */

struct run {
    const char *more;
    struct sl_cancel *cancel;
    struct sl_pool_model *model;
    struct sl_err err;
};

static void *run_load(void *arg)
{
    struct run *run = arg;
    struct sl_fill_config config = {.cancel = run->cancel};
    run->model = fill_case_try(uri, run->more, &config, &run->err);
    return NULL;
}

/* Of a source that is slow. The next load begins anew, since of a GPU nothing half full is kept. */
SL_TEST(a_load_that_is_canceled_between_copies_leaves_nothing)
{
    struct run run = {.more = SIDECAR "readers: {bandwidth: 1MiB/s, connections: 1}\n",
                      .cancel = sl_cancel_new(NULL)};
    pthread_t thread;
    uint64_t before = gpu_fill.fake->calls("cuMemcpyHtoDAsync");
    gpu_fill.fake->set_delay_us(2000);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_load, &run), 0);
    SL_AWAIT(gpu_fill.fake->calls("cuMemcpyHtoDAsync") > before, "the first copy");
    sl_cancel_raise(run.cancel, 0);
    pthread_join(thread, NULL);
    ck_assert_ptr_null(run.model);
    ck_assert_msg(run.err.kind == SL_E_CANCELED, "%s", run.err.message);
    sl_cancel_free(run.cancel);
    check_no_cuda_left(gpu_fill.fake);
    struct sl_pool_model *model = fill_case_load(uri, SIDECAR);
    fill_case_compare(uri, SIDECAR, model);
    sl_pool_model_free(model);
}

static bool prepare(void)
{
    gpu_fill.fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

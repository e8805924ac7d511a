/*
 * What stays of a GPU between loads: its context, kernels and pinned memory, and when they go.
 * Against the fake driver.
 */
#include <check.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "gpu_fill_case.h"
#include "metrics.h"

/* Longer than any test. */
#define LONG_NS (3600 * SL_NS_PER_S)

static void setup(void)
{
    gpu_fill_setup();
    fill_case_where = SL_DECRYPT_GPU;
    fill_case_put_model("m", "a,b,c", 20000);
}

static struct fake_cuda_counts counts(void)
{
    struct fake_cuda_counts now;
    gpu_fill.fake->counts(&now);
    return now;
}

/* With kernels, for casts, and without. */
static void load(void)
{
    sl_pool_model_free(fill_case_load("memory://m", "tensors: {cast: {F32: BF16}}\n"));
    struct sl_pool_model *model = fill_case_load("memory://m", "");
    fill_case_compare("memory://m", "", model);
    sl_pool_model_free(model);
}

SL_TEST(a_next_load_makes_and_pins_nothing_again)
{
    sl_gpu_set_warm(gpu_fill.gpu, LONG_NS);
    load();
    struct fake_cuda_counts first = counts();
    uint64_t pins = gpu_fill.fake->calls("cuMemHostAlloc");
    uint64_t modules = gpu_fill.fake->calls("cuModuleLoadData");
    ck_assert_uint_eq(first.contexts_made, 1);
    ck_assert_uint_gt(first.launches, 0);
    ck_assert_uint_eq(modules, 1);
    load();
    ck_assert_uint_eq(counts().contexts_made, 1);
    ck_assert_uint_gt(counts().launches, first.launches);
    ck_assert_uint_eq(gpu_fill.fake->calls("cuModuleLoadData"), modules);
    ck_assert_uint_eq(gpu_fill.fake->calls("cuMemHostAlloc"), pins);
    ck_assert_uint_eq(counts().streams + counts().events + counts().mappings, 0);
}

SL_TEST(what_is_not_used_goes_after_its_time)
{
    sl_gpu_set_warm(gpu_fill.gpu, SL_NS_PER_MS);
    load();
    SL_AWAIT(counts().contexts == 0, "the end of the context");
    check_no_cuda_left(gpu_fill.fake);
    sl_gpu_set_warm(gpu_fill.gpu, LONG_NS);
    load();
    ck_assert_uint_eq(counts().contexts, 1);
    ck_assert_uint_eq(counts().host_buffers, 1);
    sl_gpu_set_warm(gpu_fill.gpu, 0);
    SL_AWAIT(counts().contexts == 0, "the end of the context");
    check_no_cuda_left(gpu_fill.fake);
}

SL_TEST(pinned_memory_goes_though_the_context_is_used)
{
    sl_gpu_set_warm(gpu_fill.gpu, LONG_NS);
    ck_assert_int_eq(sl_gpu_hold(gpu_fill.gpu, NULL), 0);
    load();
    ck_assert_uint_eq(counts().host_buffers, 1);
    sl_gpu_set_warm(gpu_fill.gpu, SL_NS_PER_MS);
    SL_AWAIT(counts().host_buffers == 0, "the end of pinned memory");
    ck_assert_uint_eq(counts().contexts, 1);
    sl_gpu_unhold(gpu_fill.gpu);
}

/* One that was told while nothing was loading: by a call that needed the context alone. */
SL_TEST(of_a_lost_gpu_nothing_stays)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t free_bytes, total_bytes;
    sl_gpu_set_warm(gpu_fill.gpu, LONG_NS);
    load();
    ck_assert_uint_eq(counts().contexts, 1);
    gpu_fill.fake->fail_call("cuMemGetInfo", 1, SL_CUDA_ILLEGAL_ADDRESS);
    ck_assert_int_eq(sl_gpu_memory(gpu_fill.gpu, &free_bytes, &total_bytes, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_GPU);
    SL_AWAIT(counts().contexts == 0, "the end of the context");
    sl_gpu_free(gpu_fill.gpu);
    /* The driver takes nothing back any more: it has no counts to look at. */
    _exit(0);
}

SL_TEST(the_end_of_a_gpu_takes_all)
{
    sl_gpu_set_warm(gpu_fill.gpu, LONG_NS);
    load();
    sl_gpu_free(sl_steal(&gpu_fill.gpu));
    check_no_cuda_left(gpu_fill.fake);
}

static bool prepare(void)
{
    gpu_fill.fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = gpu_fill_teardown, .prepare = prepare)

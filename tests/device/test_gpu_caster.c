/*
 * Work of a load that a GPU may do, and who decides: what kernels cast is what the host casts, bit
 * for bit, and auto is a table. Against the fake driver.
 */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "fake_clock.h"
#include "fake_images.h"
#include "golden.h"
#include "gpu_fill_case.h"
#include "gpu_ring.h"
#include "log.h"
#include "memory_store.h"
#include "metrics.h"

/* The GPU is forgotten, with the kernels that it has. */
static void reopen(void)
{
    sl_gpu_free(gpu_fill.gpu);
    gpu_fill.fake->reset();
    gpu_fill_open();
}

static uint64_t cast_bytes(void)
{
    return (uint64_t)sl_metric_get(SL_M_GPU_CAST_BYTES);
}

static void compare(const struct sl_pool_model *a, const struct sl_pool_model *b)
{
    struct fill_view x, y;
    fill_view_open(a, &x);
    fill_view_open(b, &y);
    ck_assert_uint_eq(x.index.head->tensor_count, y.index.head->tensor_count);
    ck_assert_uint_eq(x.page->ready_count, x.page->count);
    for (uint32_t i = 0; i < x.index.head->tensor_count; i++) {
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&x.index, i);
        ck_assert_uint_eq(tensor->bytes, sl_pool_index_tensor(&y.index, i)->bytes);
        if (tensor->bytes)
            ck_assert_int_eq(
                memcmp(fill_view_data(&x, i), fill_view_data(&y, i), (size_t)tensor->bytes), 0);
    }
    fill_view_close(&x);
    fill_view_close(&y);
}

/* The same load with casts here and there. */
static void compare_casts(const char *uri, const char *more)
{
    uint64_t before = cast_bytes();
    fill_case_where = SL_DECRYPT_HOST;
    struct sl_pool_model *host = fill_case_load(uri, more);
    ck_assert_uint_eq(cast_bytes(), before);
    fill_case_where = SL_DECRYPT_GPU;
    struct sl_pool_model *device = fill_case_load(uri, more);
    ck_assert_uint_gt(cast_bytes(), before);
    compare(host, device);
    sl_pool_model_free(host);
    sl_pool_model_free(device);
}

/* ---- casts ----------------------------------------------------------------------------------- */

SL_TEST(what_the_gpu_casts_is_what_the_host_casts)
{
    static const char *const types[] = {"F16", "BF16", "F64", "F8_E4M3", "F8_E5M2"};
    static const char *const rests[] = {
        "", "verify: {hashes: all}\n",
        "readers: {connections: 3, rangeBytes: 65536, memoryBytes: 1048576}\n"};
    fill_case_put_model("m.safetensors", "a,b,c", 100 * 1000);
    fill_case_put_model("s.safetensors", "a,b,c,d,e,f,g,h,i,j,k", 7);
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        char more[300];
        snprintf(more, sizeof(more), "tensors: {cast: {F32: %s}}\n%s", types[i],
                 rests[i % SL_COUNT(rests)]);
        compare_casts("memory://m.safetensors", more);
        compare_casts("memory://s.safetensors", more);
    }
}

/* Each is a copy into the same scratch memory. */
SL_TEST(neighbours_are_one_copy_and_one_kernel)
{
    struct fake_cuda_counts counts;
    fill_case_put_model("m.safetensors", "a,b,c,d,e,f,g,h", 512);
    fill_case_where = SL_DECRYPT_GPU;
    fake_clock_hold(); /* the end of the load sends them, not a busy machine */
    sl_pool_model_free(fill_case_load("memory://m.safetensors", "tensors: {cast: {F32: F16}}\n"));
    fake_clock_release();
    gpu_fill.fake->counts(&counts);
    ck_assert_uint_eq(counts.launches, 1);
    ck_assert_uint_eq(counts.copied_bytes, 8 * 512 * 4);
}

static void *run_cast(void *arg)
{
    struct sl_pool_model **model = arg;
    *model = fill_case_load("memory://m.safetensors", "tensors: {cast: {F32: F16}}\n");
    return NULL;
}

static uint64_t copies_done(void)
{
    struct fake_cuda_counts counts;
    gpu_fill.fake->counts(&counts);
    ck_assert_uint_eq(counts.launches, 0);
    return counts.copies;
}

/* There are two pieces of scratch memory: a third buffer waits until the first was cast. */
SL_TEST(the_next_copy_does_not_wait_for_a_cast)
{
    struct sl_pool_model *model = NULL;
    pthread_t thread;
    fill_case_put_model("m.safetensors", "a,b,c", 1024 * 1024);
    fill_case_where = SL_DECRYPT_HOST;
    struct sl_pool_model *host =
        fill_case_load("memory://m.safetensors", "tensors: {cast: {F32: F16}}\n");
    gpu_fill.fake->reset();
    fill_case_where = SL_DECRYPT_GPU;
    gpu_fill.fake->hold_kernels(true);
    ck_assert_int_eq(pthread_create(&thread, NULL, run_cast, &model), 0);
    SL_AWAIT(copies_done() >= 2, "the second copy");
    ck_assert_uint_eq(copies_done(), 2);
    gpu_fill.fake->hold_kernels(false);
    pthread_join(thread, NULL);
    compare(host, model);
    sl_pool_model_free(host);
    sl_pool_model_free(model);
}

SL_TEST(only_some_are_cast)
{
    struct sl_err err = SL_ERR_INIT;
    size_t bytes;
    char more[SL_SCRATCH_PATH_BYTES + 300];
    json_t *manifest = golden_json("tensorizer/MANIFEST.json");
    const json_t *files = json_object_get(manifest, "files");
    unsigned compared = 0;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(files, i), "name"));
        const char *category =
            json_string_value(json_object_get(json_array_get(files, i), "category"));
        char file[300];
        if (strcmp(category, "valid") != 0 || strstr(name, "meta") || i % 3)
            continue;
        snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
        uint8_t *golden = golden_read(file, &bytes);
        fill_case_put("m.tensors", golden, bytes);
        free(golden);
        fill_case_decrypt(name, gpu_fill.directory, more, sizeof(more));
        strncat(more, "tensors: {cast: {F32: BF16, F16: F32}}\n", 64);
        struct sl_fill_config config = {0};
        fill_case_where = SL_DECRYPT_HOST;
        struct sl_pool_model *host = fill_case_try("memory://m.tensors", more, &config, &err);
        fill_case_where = SL_DECRYPT_GPU;
        struct sl_pool_model *device = host ? fill_case_load("memory://m.tensors", more) : NULL;
        if (host)
            compare(host, device);
        compared += host != NULL;
        sl_pool_model_free(host);
        sl_pool_model_free(device);
        sl_memory_clear();
    }
    json_decref(manifest);
    ck_assert_uint_gt(compared, 5);
    ck_assert_uint_gt(cast_bytes(), 0);
}

/* ---- who decides ----------------------------------------------------------------------------- */

static void put_golden(const char *name, char *more, size_t room)
{
    char file[300];
    size_t bytes;
    snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
    uint8_t *golden = golden_read(file, &bytes);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
    fill_case_decrypt(name, gpu_fill.directory, more, room);
}

SL_TEST(auto_is_the_gpu_but_for_casts_to_smaller_types)
{
    sl_test_adapts();
    char more[SL_SCRATCH_PATH_BYTES + 300];
    size_t bytes;
    uint8_t *plain = golden_read("tensorizer/v1-many.tensors.gz", &bytes);
    fill_case_put("plain.tensors", plain, bytes);
    free(plain);
    put_golden("v5-long-encrypted", more, sizeof(more));
    fill_case_put_model("m.safetensors", "a,b", 1000);
    const struct {
        const char *uri, *more;
        int metric;
        bool on_gpu;
    } cases[] = {
        {"memory://plain.tensors", "", SL_M_GPU_CRC_BYTES, true},
        {"memory://m.tensors", more, SL_M_GPU_OPENED_BYTES, true},
        {"memory://m.safetensors", "tensors: {cast: {F32: F16}}\n", SL_M_GPU_CAST_BYTES, false},
        {"memory://m.safetensors", "tensors: {cast: {F32: F64}}\n", SL_M_GPU_CAST_BYTES, true},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        uint64_t before = (uint64_t)sl_metric_get(cases[i].metric);
        sl_pool_model_free(fill_case_load(cases[i].uri, cases[i].more));
        ck_assert_int_eq((uint64_t)sl_metric_get(cases[i].metric) > before, cases[i].on_gpu);
    }
    ck_assert_uint_eq(gpu_fill.fake->calls("cuEventElapsedTime"), 0); /* nothing is measured */
}

/* What a load with casts logs. */
static void read_log(int where, const char *to, char *text, size_t room)
{
    int kept = dup(STDERR_FILENO), file = memfd_create("log", MFD_CLOEXEC);
    ck_assert_int_ge(file, 0);
    sl_log_setup(SL_LOG_INFO, false);
    dup2(file, STDERR_FILENO);
    fill_case_where = where;
    char more[64];
    snprintf(more, sizeof(more), "tensors: {cast: {F32: %s}}\n", to);
    struct sl_pool_model *model = fill_case_load("memory://m.safetensors", more);
    dup2(kept, STDERR_FILENO);
    ssize_t got = pread(file, text, room - 1, 0);
    text[SL_MAX(got, 0)] = 0;
    close(kept);
    close(file);
    sl_pool_model_free(model);
}

SL_TEST(the_log_says_of_each_load_who_does_what_and_why)
{
    sl_test_adapts();
    static const struct {
        int where;
        const char *to, *said;
    } cases[] = {
        {SL_DECRYPT_AUTO, "F64", "': casting on cuda:0: auto: what was stored is not larger"},
        {SL_DECRYPT_AUTO, "F16", "': casting on the host: auto: what was stored is larger"},
        {SL_DECRYPT_HOST, "F64", "': casting on the host: the spec says so"},
        {SL_DECRYPT_GPU, "F16", "': casting on cuda:0: the spec says so"},
    };
    char text[4000];
    fill_case_put_model("m.safetensors", "a,b", 1000);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        read_log(cases[i].where, cases[i].to, text, sizeof(text));
        ck_assert_msg(strstr(text, cases[i].said), "%s", text);
    }
}

SL_TEST(a_load_that_is_pinned_casts_where_the_pin_says)
{
    static const char *const pins[] = {"usual", "cast=host", "cast=gpu"};
    fill_case_put_model("m.safetensors", "a,b", 1000);
    for (size_t i = 0; i < SL_COUNT(pins); i++) {
        uint64_t before = cast_bytes();
        char more[128];
        snprintf(more, sizeof(more), "tensors: {cast: {F32: F16}}\nreaders: {fixed: %s}\n",
                 pins[i]);
        sl_pool_model_free(fill_case_load("memory://m.safetensors", more));
        ck_assert_int_eq(cast_bytes() > before, i == 2);
    }
}

SL_TEST(without_kernels_the_host_casts_unless_it_must_not)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    const char *more = "tensors: {cast: {F32: F16}}\n";
    uint64_t before = cast_bytes();
    fill_case_put_model("m.safetensors", "a,b", 1000);
    static const uint8_t data[] = "// none";
    static const struct sl_kernel_image other = {"sm_20", 20, false, data, data + 8};
    fake_images_set(&other, 1);
    sl_pool_model_free(fill_case_load("memory://m.safetensors", more));
    fill_case_where = SL_DECRYPT_GPU;
    ck_assert_ptr_null(fill_case_try("memory://m.safetensors", more, &config, &err));
    ck_assert_msg(err.kind == SL_E_GPU && strstr(err.message, "no kernels"), "%s", err.message);
    ck_assert_uint_eq(cast_bytes(), before);
}

/* ---- what fails ------------------------------------------------------------------------------ */

SL_TEST(kernels_that_the_driver_does_not_take_leave_the_host)
{
    sl_test_adapts();
    static const char *const calls[] = {"cuModuleLoadData", "cuModuleGetFunction"};
    fill_case_put_model("m.safetensors", "a,b", 1000);
    for (size_t i = 0; i < SL_COUNT(calls); i++) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_fill_config config = {0};
        uint64_t before = cast_bytes();
        reopen();
        gpu_fill.fake->fail_call(calls[i], 1, SL_CUDA_UNKNOWN);
        struct sl_pool_model *model =
            fill_case_try("memory://m.safetensors", "tensors: {cast: {F32: F64}}\n", &config, &err);
        ck_assert_msg(model, "%s: %s", calls[i], err.message);
        ck_assert_uint_eq(cast_bytes(), before);
        sl_pool_model_free(model);
        check_no_cuda_left(gpu_fill.fake);
    }
}

SL_TEST(every_call_that_fails_in_casting_leaves_nothing)
{
    static const char *const calls[] = {
        "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel",      "cuMemcpyHtoDAsync",
        "cuEventRecord",    "cuEventQuery",        "cuMemAddressReserve", "cuMemMap"};
    fill_case_put_model("m.safetensors", "a,b", 100 * 1000);
    fill_case_where = SL_DECRYPT_GPU;
    for (size_t i = 0; i < SL_COUNT(calls); i++)
        for (uint64_t nth = 1; nth <= 3; nth++) {
            struct sl_err err = SL_ERR_INIT;
            struct sl_fill_config config = {0};
            gpu_fill.fake->reset();
            gpu_fill.fake->fail_call(calls[i], nth, SL_CUDA_UNKNOWN);
            struct sl_pool_model *model = fill_case_try(
                "memory://m.safetensors", "tensors: {cast: {F32: F64}}\n", &config, &err);
            ck_assert_msg((gpu_fill.fake->calls(calls[i]) >= nth) == !model, "%s %d: %s", calls[i],
                          (int)nth, err.message);
            ck_assert_msg(model || err.kind == SL_E_GPU, "%s", err.message);
            sl_pool_model_free(model);
            check_no_cuda_left(gpu_fill.fake);
        }
}

static void measure(struct sl_spec *spec)
{
    spec->sink.pool.cast = SL_DECRYPT_AUTO;
}

static void insist(struct sl_spec *spec)
{
    spec->sink.pool.cast = SL_DECRYPT_GPU;
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    static const char more[] = "readers: {connections: 1}\ntensors: {cast: {F32: F16}}\n";
    fill_case_put_model("m.safetensors", "a,b", 1000);
    gpu_fill_fail_allocations("memory://m.safetensors", more, measure);
    gpu_fill_fail_allocations("memory://m.safetensors", more, insist);
}

static bool prepare(void)
{
    gpu_fill.fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = gpu_fill_setup, .teardown = gpu_fill_teardown, .prepare = prepare)

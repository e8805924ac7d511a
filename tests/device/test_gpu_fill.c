/*
 * Loads into memory of a GPU, against the fake driver: what lands is what the source holds, tensors
 * are told when their bytes are on the device, and whatever fails fails the load and leaves
 * nothing.
 */
#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "fake_images.h"
#include "fill_case.h"
#include "golden.h"
#include "memory_store.h"
#include "model_maker.h"
#include "pool_words.h"
#include "range_server.h"
#include "scratch.h"
#include "use_fake_cuda.h"

static const struct fake_cuda_control *fake;
static struct sl_gpu *gpu;
/* The fake driver has doubles of the kernels, and looks at no more than an image's begin. */
static const uint8_t image_data[] = "// none";
static const struct sl_kernel_image image = {"compute_80", 80, true, image_data, image_data + 8};

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    fill_case_setup();
    fake->reset();
    gpu = sl_gpu_open(0, &err);
    ck_assert_msg(gpu, "%s", err.message);
    sl_slab_place_gpu(gpu, &fill_case_place);
}

static void teardown(void)
{
    fill_case_teardown();
    sl_gpu_free(gpu);
    check_no_cuda_left(fake);
}

static uint64_t compare_all(const char *how)
{
    char directory[SL_SCRATCH_PATH_BYTES], more[SL_SCRATCH_PATH_BYTES + 64];
    int scratch = sl_scratch_open(directory);
    json_t *manifest = golden_json("tensorizer/MANIFEST.json");
    const json_t *files = json_object_get(manifest, "files");
    unsigned encrypted = 0;
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        const char *name = json_string_value(json_object_get(file, "name"));
        if (strcmp(json_string_value(json_object_get(file, "category")), "valid") != 0 ||
            strstr(name, "meta")) /* terabytes of nothing are memory on a device */
            continue;
        fill_case_decrypt(name, directory, more, sizeof(more));
        encrypted += more[0] != 0;
        strncat(more, how, sizeof(more) - strlen(more) - 1);
        fill_case_compare_golden(name, more);
        check_no_cuda_left(fake);
    }
    json_decref(manifest);
    sl_scratch_close(scratch, directory);
    struct fake_cuda_counts counts;
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 0);
    ck_assert_uint_gt(encrypted, 4);
    return counts.launches;
}

SL_TEST(every_tensor_of_reference_files_lies_on_the_device)
{
    fill_case_where = SL_DECRYPT_HOST;
    ck_assert_uint_eq(compare_all("verify: {hashes: all}\n"), 0);
}

SL_TEST(encrypted_tensors_are_decrypted_where_they_land)
{
    sl_test_adapts();
    fake_images_set(&image, 1);
    ck_assert_uint_gt(compare_all(""), 0);
    fake_images_set(NULL, 0);
}

/* A golden file with its key, into slabs; words: it fails so. */
static void fill_sealed(const char *name, int decrypt, const char *words, bool on_device)
{
    char directory[SL_SCRATCH_PATH_BYTES], more[SL_SCRATCH_PATH_BYTES + 64], file[300];
    int scratch = sl_scratch_open(directory);
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *model = NULL;
    struct sl_fill_config config = {.name = "m", .places = &fill_case_place, .place_count = 1};
    struct fake_cuda_counts counts;
    struct sl_specs specs;
    size_t bytes;
    fake->reset();
    snprintf(file, sizeof(file), "tensorizer/%s.tensors.gz", name);
    uint8_t *golden = golden_read(file, &bytes);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
    fill_case_decrypt(name, directory, more, sizeof(more));
    fill_case_spec(&specs, "memory://m.tensors", more);
    specs.items[0].sink.pool.decrypt = decrypt;
    int done = sl_fill_run(&specs.items[0], &config, &model, NULL, &err);
    ck_assert_msg(done == (words ? -1 : 0), "%s", err.message);
    if (words)
        ck_assert_msg(strstr(err.message, words), "%s", err.message);
    sl_pool_model_free(model);
    fake->counts(&counts);
    ck_assert_int_eq(counts.launches > 0, on_device);
    check_no_cuda_left(fake);
    sl_specs_release(&specs);
    sl_memory_clear();
    sl_scratch_close(scratch, directory);
}

SL_TEST(the_spec_says_where_to_decrypt)
{
    sl_test_adapts();
    fake_images_set(&image, 1);
    fill_sealed("v5-long-encrypted", SL_DECRYPT_AUTO, NULL, true);
    fill_sealed("v5-long-encrypted", SL_DECRYPT_GPU, NULL, true);
    fill_sealed("v5-long-encrypted", SL_DECRYPT_HOST, NULL, false);
    fake_images_set(&image, 0);
    size_t count;
    sl_kernel_images(&count);
    if (count == 0) {
        fill_sealed("v5-long-encrypted", SL_DECRYPT_AUTO, NULL, false);
        fill_sealed("v5-long-encrypted", SL_DECRYPT_GPU, "kernels", false);
    }
    fake_images_set(NULL, 0);
}

SL_TEST(a_wrong_mac_on_the_device_fails_the_load)
{
    fake_images_set(&image, 1);
    fill_sealed("bad-mac", SL_DECRYPT_GPU, "does not match its MAC", true);
    fake_images_set(NULL, 0);
}

/* With kernels the driver is asked for more. */
SL_TEST(every_call_that_fails_in_decrypting_leaves_nothing)
{
    static const char *const calls[] = {"cuModuleLoadData",  "cuModuleGetFunction",
                                        "cuLaunchKernel",    "cuEventQuery",
                                        "cuMemcpyDtoHAsync", "cuMemHostAlloc"};
    fake_images_set(&image, 1);
    for (size_t i = 0; i < SL_COUNT(calls); i++) {
        char directory[SL_SCRATCH_PATH_BYTES], more[SL_SCRATCH_PATH_BYTES + 64];
        int scratch = sl_scratch_open(directory);
        struct sl_err err = SL_ERR_INIT;
        struct sl_pool_model *model = NULL;
        struct sl_fill_config config = {.name = "m", .places = &fill_case_place, .place_count = 1};
        struct sl_specs specs;
        size_t bytes;
        uint8_t *golden = golden_read("tensorizer/v5-long-encrypted.tensors.gz", &bytes);
        fake->reset();
        fill_case_put("m.tensors", golden, bytes);
        free(golden);
        fill_case_decrypt("v5-long-encrypted", directory, more, sizeof(more));
        fill_case_spec(&specs, "memory://m.tensors", more);
        specs.items[0].sink.pool.decrypt = SL_DECRYPT_GPU;
        fake->fail_call(calls[i], 1, SL_CUDA_UNKNOWN);
        ck_assert_int_eq(sl_fill_run(&specs.items[0], &config, &model, NULL, &err), -1);
        ck_assert_msg(err.kind == SL_E_GPU, "%s: %s", calls[i], err.message);
        check_no_cuda_left(fake);
        sl_specs_release(&specs);
        sl_memory_clear();
        sl_scratch_close(scratch, directory);
    }
    fake_images_set(NULL, 0);
}

SL_TEST(data_files_lie_on_the_host)
{
    struct fill_view view;
    fill_case_put_model("m/model.safetensors", "a,b", 10);
    fill_case_put("m/config.json", "{}", 2);
    struct sl_pool_model *model = fill_case_load("memory://m/", "");
    fill_view_open(model, &view);
    uint32_t file = fill_view_find(&view, "config.json"), tensor = fill_view_find(&view, "a");
    const struct sl_wire_index_slab *slabs = view.index.slabs;
    ck_assert_uint_eq(slabs[sl_pool_index_tensor(&view.index, file)->slab].kind, SL_SLAB_MEMFD);
    const struct sl_wire_index_slab *slab = &slabs[sl_pool_index_tensor(&view.index, tensor)->slab];
    ck_assert_uint_eq(slab->kind, SL_SLAB_GPU);
    ck_assert_uint_eq(slab->bytes, 2 * 1024 * 1024);
    ck_assert_int_eq(memcmp(slab->device, sl_gpu_device(gpu)->uuid, 16), 0);
    ck_assert_int_eq(memcmp(fill_view_data(&view, file), "{}", 2), 0);
    fill_view_close(&view);
    sl_pool_model_free(model);
}

SL_TEST(a_ready_model_needs_no_context)
{
    struct fake_cuda_counts counts;
    fill_case_put_model("m.safetensors", "a,b", 1000);
    struct sl_pool_model *model = fill_case_load("memory://m.safetensors", "");
    fake->counts(&counts);
    ck_assert_uint_eq(counts.contexts + counts.handles + counts.mappings + counts.host_buffers, 0);
    ck_assert_uint_eq(counts.bytes, 2 * 1024 * 1024);
    sl_pool_model_free(model);
}

SL_TEST(casts_land_as_wanted)
{
    static const char *const more[] = {"tensors: {cast: {F32: F16}}\n",
                                       "tensors: {cast: {F32: F64}}\n"};
    fill_case_put_model("m.safetensors", "a,b,c", 100 * 1000);
    for (size_t i = 0; i < SL_COUNT(more); i++) {
        struct fill_view view;
        struct sl_pool_model *model = fill_case_load("memory://m.safetensors", more[i]);
        fill_view_open(model, &view);
        uint32_t number = fill_view_find(&view, "b");
        uint64_t bytes = sl_pool_index_tensor(&view.index, number)->bytes;
        ck_assert_uint_eq(bytes, 100 * 1000 * (i ? 8u : 2u));
        ck_assert_uint_eq(view.page->ready_count, 3);
        fill_view_close(&view);
        sl_pool_model_free(model);
    }
}

/* ---- when tensors are told ------------------------------------------------------------------- */

static bool on_planned(void *arg, struct sl_pool_model *model)
{
    struct sl_pool_model **last = arg;
    sl_pool_model_free(*last);
    *last = model;
    return true;
}

/* A load in a thread. */
struct run {
    char uri[300];
    const char *more;
    uint64_t slab_bytes;
    struct sl_cancel *cancel;
    pthread_t thread;
    pthread_mutex_t lock;
    struct sl_pool_model *planned; /* guarded by the lock */
    struct sl_pool_model *model;
};

static bool on_run_planned(void *arg, struct sl_pool_model *model)
{
    struct run *run = arg;
    SL_LOCKED(&run->lock);
    return on_planned(&run->planned, model);
}

static void *run_load(void *arg)
{
    struct run *run = arg;
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {.planned = on_run_planned,
                                    .arg = run,
                                    .cancel = run->cancel,
                                    .slab_bytes = run->slab_bytes};
    run->model = fill_case_try(run->uri, run->more, &config, &err);
    return NULL;
}

SL_TEST(no_tensor_is_told_before_its_copy_is_done)
{
    struct run run = {.uri = "memory://m.safetensors", .more = ""};
    struct fake_cuda_counts counts;
    struct sl_pool_view view;
    fill_case_put_model("m.safetensors", "a,b,c", 1000);
    fake->hold(true);
    ck_assert_int_eq(pthread_create(&run.thread, NULL, run_load, &run), 0);
    SL_AWAIT(fake->calls("cuEventQuery") >= 5, "the fifth look at a copy");
    sl_pool_model_view(run.planned, &view);
    ck_assert_uint_eq(view.ready_count, 0);
    ck_assert_int_eq(view.state, SL_POOL_LOADING);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.copies, 0);
    fake->hold(false);
    pthread_join(run.thread, NULL);
    sl_pool_model_view(run.model, &view);
    ck_assert_uint_eq(view.ready_count, 3);
    sl_pool_model_free(run.planned);
}

static uint32_t told_count(struct run *run)
{
    struct sl_pool_view view = {.ready_count = 0};
    SL_LOCKED(&run->lock);
    if (run->planned)
        sl_pool_model_view(run->planned, &view);
    return view.ready_count;
}

SL_TEST(tensors_are_told_while_the_load_goes_on)
{
    struct sl_server *server = sl_server_start();
    struct run run = {.cancel = sl_cancel_new(NULL), .slab_bytes = 16 * 1024 * 1024};
    struct sl_pool_view view = {.ready_count = 0};
    size_t bytes;
    uint8_t *blob = sl_model_safetensors("a,b,c,d", 256 * 1024, &bytes);
    sl_server_put(server, "/m.safetensors", blob, bytes, "\"1\"");
    SL_SCRIPT(server, {"/m.safetensors", 2, 1000, SL_FAULT_STALL, 2560 * 1024, 0, NULL, NULL});
    snprintf(run.uri, sizeof(run.uri), "%s", sl_server_url(server, "/m.safetensors"));
    run.more = "readers: {connections: 1, rangeBytes: 16777216}\n";
    ck_assert_int_eq(pthread_create(&run.thread, NULL, run_load, &run), 0);
    SL_AWAIT(told_count(&run) >= 2, "the second of four tensors"); /* no more ever comes */
    sl_cancel_raise(run.cancel, 0);
    pthread_join(run.thread, NULL);
    ck_assert_ptr_null(run.model);
    sl_pool_model_view(run.planned, &view);
    ck_assert_int_eq(view.state, SL_POOL_FAILED);
    ck_assert_uint_lt(view.ready_count, 4);
    sl_pool_model_free(run.planned);
    sl_cancel_free(run.cancel);
    sl_server_stop(server);
    free(blob);
}

SL_TEST(a_tensor_with_a_wrong_hash_is_never_told)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *planned = NULL;
    struct sl_fill_config config = {.planned = on_planned, .arg = &planned};
    struct fill_view view;
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/bad-hash-data.tensors.gz", &bytes);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
    ck_assert_ptr_null(fill_case_try("memory://m.tensors", "", &config, &err));
    ck_assert_msg(err.kind == SL_E_INTEGRITY, "%s", err.message);
    fill_view_open(planned, &view);
    ck_assert_uint_eq(view.page->words[fill_view_find(&view, "second")], SL_WORD_FAILED);
    fill_view_close(&view);
    sl_pool_model_free(planned);
}

/* ---- what fails ------------------------------------------------------------------------------ */

/* What stays a failure of the driver's alone: calls that give back are not in it. */
static const char *const names[] = {"cuDevicePrimaryCtxRetain",
                                    "cuCtxSetCurrent",
                                    "cuMemCreate",
                                    "cuMemExportToShareableHandle",
                                    "cuMemAddressReserve",
                                    "cuMemMap",
                                    "cuMemSetAccess",
                                    "cuMemHostAlloc",
                                    "cuStreamCreate",
                                    "cuEventCreate",
                                    "cuMemsetD8Async",
                                    "cuMemcpyHtoDAsync",
                                    "cuEventRecord",
                                    "cuEventQuery"};

SL_TEST(every_call_that_fails_fails_the_load_and_leaves_nothing)
{
    fill_case_put_model("m.safetensors", "a,b,c", 8000); /* two slabs */
    for (size_t i = 0; i < SL_COUNT(names); i++)
        for (int nth = 1; nth <= 3; nth++) {
            struct sl_err err = SL_ERR_INIT;
            struct sl_pool_model *planned = NULL;
            struct sl_fill_config config = {.planned = on_planned, .arg = &planned};
            fake->reset();
            fake->fail_call(names[i], (uint64_t)nth, nth & 1 ? SL_CUDA_OUT_OF_MEMORY : 999);
            struct sl_pool_model *model =
                fill_case_try("memory://m.safetensors", "", &config, &err);
            bool failed = fake->calls(names[i]) >= (uint64_t)nth;
            if (strcmp(names[i], "cuCtxSetCurrent") == 0 && nth > 1)
                failed = !model; /* it is also the way back */
            ck_assert_msg(failed == !model, "%s %d: %s", names[i], nth, err.message);
            if (failed)
                ck_assert_msg(err.kind == (nth & 1 ? SL_E_NO_SPACE : SL_E_GPU), "%s: %s", names[i],
                              err.message);
            sl_pool_model_free(planned);
            check_no_cuda_left(fake);
        }
}

SL_TEST(a_failed_model_that_a_client_keeps_needs_no_context)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_pool_model *planned = NULL;
    struct sl_fill_config config = {.planned = on_planned, .arg = &planned};
    struct fake_cuda_counts counts;
    fill_case_put_model("m.safetensors", "a,b,c", 8000);
    fake->fail_call("cuMemcpyHtoDAsync", 1, SL_CUDA_UNKNOWN);
    ck_assert_ptr_null(fill_case_try("memory://m.safetensors", "", &config, &err));
    fake->counts(&counts);
    ck_assert_uint_eq(counts.contexts + counts.handles + counts.mappings + counts.host_buffers, 0);
    sl_pool_model_free(planned);
}

SL_TEST(a_lost_device_fails_the_load_and_later_ones)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = {0};
    fill_case_put_model("m.safetensors", "a,b,c", 8000);
    fake->fail_call("cuEventQuery", 1, SL_CUDA_LAUNCH_FAILED);
    ck_assert_ptr_null(fill_case_try("memory://m.safetensors", "", &config, &err));
    ck_assert_int_eq(err.kind, SL_E_GPU);
    ck_assert_ptr_null(fill_case_try("memory://m.safetensors", "", &config, &err));
    ck_assert_msg(strstr(err.message, "cuda:0 is lost for this process"), "%s", err.message);
    /* The driver takes nothing back any more: it has no counts to look at. */
    sl_gpu_free(gpu);
    fake->reset();
    _exit(0);
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    struct sl_pool_model *model = NULL;
    fill_case_put_model("m/m.safetensors", "a,b,c", 1000);
    fill_case_put("m/config.json", "{}", 2);
    sl_pool_model_free(fill_case_load("memory://m/", ""));
    unsigned before = fill_case_fds(), nth = 0;
    while (!model) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_specs specs;
        fill_case_spec(&specs, "memory://m/", "readers: {connections: 1}\n");
        struct sl_fill_config config = {.name = "m", .places = &fill_case_place, .place_count = 1};
        sl_alloc_fail_at(++nth);
        int done = sl_fill_run(&specs.items[0], &config, &model, NULL, &err);
        sl_alloc_fail_at(0);
        ck_assert(done == 0 || model == NULL);
        sl_specs_release(&specs);
        ck_assert_uint_lt(nth, 5000);
        if (!model) {
            ck_assert_uint_eq(fill_case_fds(), before);
            check_no_cuda_left(fake);
        }
    }
    sl_pool_model_free(model);
    ck_assert_uint_gt(nth, 20);
}

static struct sl_gpu *find_gpu(void *arg, const uint8_t uuid[16], struct sl_err *err)
{
    (void)uuid, (void)err;
    return arg;
}

/* A context takes longer to make than many a model to load: one does for all slabs. */
SL_TEST(a_model_is_taken_over_with_one_context)
{
    const struct sl_pool_gpus gpus = {find_gpu, gpu};
    struct sl_err err = SL_ERR_INIT;
    struct fake_cuda_counts before, after;
    int fds[8];
    fill_case_put_model("m", "a,b,c", 20000);
    struct sl_pool_model *model = fill_case_load("memory://m", "");
    const struct sl_pool_copy *copy = sl_pool_model_copy(model, 0);
    size_t count = sl_pool_copy_fds(copy, 0, fds, SL_COUNT(fds));
    ck_assert_uint_eq(count, 2 + 3);
    for (size_t i = 0; i < count; i++)
        fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
    close(fds[1]);
    sl_pool_model_free(model);
    fake->counts(&before);
    model = sl_pool_model_adopt_where(&gpus, NULL, fds[0], fds + 2, count - 2, &err);
    ck_assert_msg(model, "%s", err.message);
    fake->counts(&after);
    ck_assert_uint_eq(after.contexts_made - before.contexts_made, 1);
    fill_case_compare("memory://m", "", model);
    sl_pool_model_free(model);
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

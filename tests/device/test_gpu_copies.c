/*
 * Loads into memory of several GPUs at once, against the fake driver: the source is read once,
 * every GPU has what it holds, tensors are told by each GPU's own copies, and whatever fails on one
 * of them fails the load and leaves nothing on any.
 */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "claims.h"
#include "fake_images.h"
#include "fill_case.h"
#include "golden.h"
#include "gpu_ring.h"
#include "metrics.h"
#include "scratch.h"
#include "use_fake_cuda.h"

enum { GPUS = 3, MIB = 1024 * 1024 };

static const struct fake_cuda_control *fake;
static struct sl_gpu *gpus[GPUS];
static struct sl_slab_place places[GPUS];
static const uint8_t image_data[] = "// none";
static const struct sl_kernel_image image = {"compute_80", 80, true, image_data, image_data + 8};

static void setup(void)
{
    struct sl_err err = SL_ERR_INIT;
    fill_case_setup();
    fake->reset();
    fake->set_devices(GPUS);
    for (int i = 0; i < GPUS; i++) {
        gpus[i] = sl_gpu_open(i, &err);
        ck_assert_msg(gpus[i], "%s", err.message);
        sl_slab_place_gpu(gpus[i], &places[i]);
    }
}

static void teardown(void)
{
    fill_case_teardown();
    for (int i = 0; i < GPUS; i++)
        sl_gpu_free(gpus[i]);
    check_no_cuda_left(fake);
}

static struct sl_fill_config on_all(void)
{
    return (struct sl_fill_config){
        .places = places, .place_count = GPUS, .placement = SL_PLACEMENT_GPUS};
}

static struct sl_pool_model *load(const char *uri, const char *more)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_fill_config config = on_all();
    struct sl_pool_model *model = fill_case_try(uri, more, &config, &err);
    ck_assert_msg(model, "%s", err.message);
    ck_assert_uint_eq(sl_pool_model_copies(model), GPUS);
    ck_assert_uint_eq(sl_pool_model_placement(model), SL_PLACEMENT_GPUS);
    ck_assert_ptr_null(sl_pool_model_copy(model, GPUS));
    return model;
}

static void check_copies(const char *uri, const char *more, struct sl_pool_model *model)
{
    for (int i = 0; i < GPUS; i++) {
        struct sl_pool_copy *copy = sl_pool_model_copy(model, (size_t)i);
        fill_case_compare_copy(uri, more, copy);
        ck_assert_int_eq(sl_pool_copy_device(copy)->ordinal, i);
        ck_assert_ptr_eq(sl_pool_model_copy_in(model, SL_SPACE_GPU + (unsigned)i), copy);
    }
}

SL_TEST(every_gpu_has_the_same_and_the_source_is_read_once)
{
    struct fake_cuda_counts counts;
    fill_case_put_model("m.safetensors", "a,b,c", 40 * 1000);
    struct sl_pool_model *model = load("memory://m.safetensors", "");
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 0);
    ck_assert_uint_eq(counts.copied_bytes, GPUS * 3u * 160 * 1000);
    ck_assert_uint_eq(fake->calls("cuMemHostAlloc"), 1); /* pinned once for all */
    ck_assert_uint_eq(counts.contexts + counts.handles + counts.mappings + counts.host_buffers, 0);
    check_copies("memory://m.safetensors", "", model);
    sl_pool_model_free(model);
}

SL_TEST(copies_have_one_set_of_data_files)
{
    struct fill_view views[2];
    fill_case_put_model("m/m.safetensors", "a", 10);
    fill_case_put("m/config.json", "{}", 2);
    struct sl_pool_model *model = load("memory://m/", "");
    for (size_t i = 0; i < 2; i++) {
        struct fill_view *view = &views[i];
        fill_view_open_copy(sl_pool_model_copy(model, i), view);
        uint32_t file = fill_view_find(view, "config.json"), tensor = fill_view_find(view, "a");
        const struct sl_wire_index_slab *slab =
            &view->index.slabs[sl_pool_index_tensor(&view->index, tensor)->slab];
        ck_assert_int_eq(memcmp(slab->device, sl_gpu_device(gpus[i])->uuid, 16), 0);
        ck_assert_int_eq(memcmp(fill_view_data(view, file), "{}", 2), 0);
        ck_assert_uint_eq(view->page->state, SL_WIRE_READY);
        fill_view_close(view);
    }
    sl_pool_model_free(model);
}

SL_TEST(encrypted_tensors_are_decrypted_on_each)
{
    sl_test_adapts();
    char directory[SL_SCRATCH_PATH_BYTES], more[SL_SCRATCH_PATH_BYTES + 64];
    struct fake_cuda_counts counts;
    int scratch = sl_scratch_open(directory);
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/v5-long-encrypted.tensors.gz", &bytes);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
    fill_case_decrypt("v5-long-encrypted", directory, more, sizeof(more));
    struct sl_pool_model *model;
    for (int on_device = 0; on_device < 2; on_device++) {
        fake->reset();
        fake->set_devices(GPUS);
        fake_images_set(&image, (size_t)on_device);
        model = load("memory://m.tensors", more);
        check_copies("memory://m.tensors", more, model);
        fake->counts(&counts);
        if (on_device)
            ck_assert_uint_gt(counts.launches, 0);
        sl_pool_model_free(model);
    }
    fake_images_set(NULL, 0);
    sl_scratch_close(scratch, directory);
}

/* ---- one GPU at a time ----------------------------------------------------------------------- */

struct told {
    unsigned count;
    pthread_mutex_t lock;
    pthread_cond_t moved;
};

static void tell(void *arg, const struct sl_gpu_note *note)
{
    struct told *told = arg;
    (void)note;
    SL_LOCKED(&told->lock);
    told->count++;
    pthread_cond_signal(&told->moved);
}

static void put(struct sl_gpu_ring *ring, uint64_t offset, struct told *told)
{
    struct sl_err err = SL_ERR_INIT;
    uint8_t *data;
    ck_assert_int_eq(sl_gpu_ring_reserve(ring, 0, offset, 1000, &data, &err), 0);
    memset(data, (int)offset / 1000 + 1, 1000);
    sl_gpu_ring_commit(ring, data);
    for (unsigned queue = 0; told && queue < 2; queue++) {
        const struct sl_gpu_note note = {
            .deliver = tell, .arg = &told[queue], .offset = offset, .bytes = 1000, .queue = queue};
        sl_gpu_ring_note(ring, &note);
    }
}

SL_TEST(each_queue_tells_of_its_own_copies)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_gpu_memory memory[2];
    uint64_t addresses[2];
    struct told told[2] = {{0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER},
                           {0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER}};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(sl_gpu_memory_make(gpus[i], 2 * MIB, &memory[i], &err), 0);
        addresses[i] = memory[i].address;
    }
    const struct sl_gpu_ring_config config = {.addresses = &addresses[0], .file_count = 1};
    struct sl_gpu_ring *ring = sl_gpu_ring_new(gpus[0], &config, &err);
    ck_assert_ptr_nonnull(ring);
    ck_assert_int_eq(sl_gpu_ring_add(ring, gpus[1], &addresses[1], NULL, &err), 1);
    put(ring, 0, told);
    for (int i = 0; i < 2; i++) {
        SL_LOCKED(&told[i].lock);
        while (!told[i].count)
            pthread_cond_wait(&told[i].moved, &told[i].lock);
    }
    ck_assert_int_eq(sl_gpu_ring_finish(ring, &err), 0);
    sl_gpu_ring_leave(ring, 1);
    sl_gpu_ring_free(ring);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(*(const uint8_t *)(uintptr_t)(addresses[i] + 999), 1);
        sl_gpu_memory_release(gpus[i], &memory[i]);
    }
}

SL_TEST(a_buffer_is_free_when_the_last_gpu_has_it)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_gpu_memory memory[2];
    uint64_t addresses[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(sl_gpu_memory_make(gpus[i], 2 * MIB, &memory[i], &err), 0);
        addresses[i] = memory[i].address;
    }
    const struct sl_gpu_ring_config config = {
        .addresses = &addresses[0], .file_count = 1, .buffers = 2, .buffer_bytes = 1000};
    struct sl_gpu_ring *ring = sl_gpu_ring_new(gpus[0], &config, &err);
    ck_assert_ptr_nonnull(ring);
    ck_assert_int_eq(sl_gpu_ring_add(ring, gpus[1], &addresses[1], NULL, &err), 1);
    fake->set_delay_us(200); /* the source of a copy is read when it is done */
    for (uint64_t at = 0; at < 200 * 1000; at += 1000)
        put(ring, at, NULL);
    ck_assert_int_eq(sl_gpu_ring_finish(ring, &err), 0);
    for (int i = 0; i < 2; i++)
        for (uint64_t at = 0; at < 200 * 1000; at++)
            ck_assert_uint_eq(((const uint8_t *)(uintptr_t)addresses[i])[at],
                              (uint8_t)(at / 1000 + 1));
    sl_gpu_ring_free(ring);
    for (int i = 0; i < 2; i++)
        sl_gpu_memory_release(gpus[i], &memory[i]);
}

/* ---- what fails ------------------------------------------------------------------------------ */

static bool on_planned(void *arg, struct sl_pool_model *model)
{
    struct sl_pool_model **last = arg;
    sl_pool_model_free(*last);
    *last = model;
    return true;
}

static const char *const names[] = {"cuDevicePrimaryCtxRetain",
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

SL_TEST(what_fails_on_one_gpu_fails_the_load_and_leaves_nothing)
{
    fill_case_put_model("m.safetensors", "a,b,c", 8000); /* two slabs */
    for (size_t i = 0; i < SL_COUNT(names); i++)
        for (uint64_t nth = 1; nth <= 7; nth += 3) {
            struct sl_err err = SL_ERR_INIT;
            struct sl_pool_model *planned = NULL;
            struct sl_fill_config config = on_all();
            config.planned = on_planned;
            config.arg = &planned;
            fake->reset();
            fake->set_devices(GPUS);
            fake->fail_call(names[i], nth, 999);
            struct sl_pool_model *model =
                fill_case_try("memory://m.safetensors", "", &config, &err);
            bool failed = fake->calls(names[i]) >= nth;
            ck_assert_msg(failed == !model, "%s %d: %s", names[i], (int)nth, err.message);
            ck_assert_msg(!failed || strstr(err.message, " on cuda:"), "%s: %s", names[i],
                          err.message);
            for (size_t n = 0; failed && planned && n < GPUS; n++) {
                struct sl_pool_view view;
                sl_pool_copy_view(sl_pool_model_copy(planned, n), &view);
                ck_assert_int_eq(view.state, SL_POOL_FAILED);
            }
            sl_pool_model_free(planned);
            check_no_cuda_left(fake);
        }
}

SL_TEST(every_failing_allocation_leaves_nothing)
{
    struct sl_pool_model *model = NULL;
    fill_case_put_model("m/m.safetensors", "a,b,c", 1000);
    fill_case_put("m/config.json", "{}", 2);
    sl_pool_model_free(load("memory://m/", ""));
    unsigned before = fill_case_fds(), nth = 0;
    while (!model) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_specs specs;
        fill_case_spec(&specs, "memory://m/", "readers: {connections: 1}\n");
        struct sl_fill_config config = on_all();
        config.place_count = 2;
        config.name = "m";
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

/* Others have theirs, and clients may be using it. */
SL_TEST(a_piece_that_breaks_on_its_way_to_one_gpu_is_fetched_again_for_it_alone)
{
    char directory[SL_SCRATCH_PATH_BYTES], more[SL_SCRATCH_PATH_BYTES + 64];
    int scratch = sl_scratch_open(directory);
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/v5-long-encrypted.tensors.gz", &bytes);
    fake_images_set(&image, 1);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
    fill_case_decrypt("v5-long-encrypted", directory, more, sizeof(more));
    fill_case_where = SL_DECRYPT_GPU;
    for (unsigned spoiled = 1; spoiled <= GPUS; spoiled++) {
        uint64_t again = (uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES);
        fake->spoil(spoiled, 2000); /* smaller copies bring MACs, and pieces again */
        struct sl_pool_model *model = load("memory://m.tensors", more);
        ck_assert_uint_eq((uint64_t)sl_metric_get(SL_M_REFETCHED_RANGES) - again, spoiled);
        check_copies("memory://m.tensors", more, model);
        sl_pool_model_free(model);
    }
    fake_images_set(NULL, 0);
    sl_scratch_close(scratch, directory);
}

SL_TEST(casts_and_crcs_for_several_are_the_hosts)
{
    size_t bytes;
    uint8_t *golden = golden_read("tensorizer/v1-many.tensors.gz", &bytes);
    uint64_t cast = (uint64_t)sl_metric_get(SL_M_GPU_CAST_BYTES);
    uint64_t crc = (uint64_t)sl_metric_get(SL_M_GPU_CRC_BYTES);
    fake_images_set(&image, 1);
    fill_case_put("m.tensors", golden, bytes);
    free(golden);
    fill_case_put_model("m.safetensors", "a,b", 1000);
    fill_case_where = SL_DECRYPT_GPU;
    struct sl_pool_model *model = load("memory://m.tensors", "");
    check_copies("memory://m.tensors", "", model);
    sl_pool_model_free(model);
    sl_pool_model_free(load("memory://m.safetensors", "tensors: {cast: {F32: F16}}\n"));
    ck_assert_uint_eq((uint64_t)sl_metric_get(SL_M_GPU_CAST_BYTES), cast);
    ck_assert_uint_eq((uint64_t)sl_metric_get(SL_M_GPU_CRC_BYTES), crc);
    fake_images_set(NULL, 0);
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

/* The image holds no code: the fake driver looks kernels up by name. */
#include "gpu_fill_case.h"

#include <check.h>

#include "alloc_fail.h"
#include "fake_images.h"
#include "seed.h"

struct gpu_fill_case gpu_fill;
static const uint8_t image_data[] = "// none";
static const struct sl_kernel_image image = {"compute_80", 80, true, image_data, image_data + 8};

void gpu_fill_open(void)
{
    struct sl_err err = SL_ERR_INIT;
    gpu_fill.gpu = sl_gpu_open(0, &err);
    ck_assert_msg(gpu_fill.gpu, "%s", err.message);
    sl_slab_place_gpu(gpu_fill.gpu, &fill_case_place);
}

void gpu_fill_setup(void)
{
    fill_case_setup();
    gpu_fill.fake->reset();
    gpu_fill_open();
    fake_images_set(&image, 1);
    gpu_fill.scratch = sl_scratch_open(gpu_fill.directory);
}

void gpu_fill_teardown(void)
{
    sl_scratch_close(gpu_fill.scratch, gpu_fill.directory);
    fake_images_set(NULL, 0);
    fill_case_teardown();
    sl_gpu_free(gpu_fill.gpu);
    check_no_cuda_left(gpu_fill.fake);
}

void gpu_fill_fail_allocations(const char *uri, const char *more,
                               void (*prepare)(struct sl_spec *spec))
{
    struct sl_pool_model *model = NULL;
    for (unsigned nth = 1; !model; nth += SL_TEST_STEP) {
        struct sl_err err = SL_ERR_INIT;
        struct sl_specs specs;
        struct sl_fill_config config = {.name = "m", .places = &fill_case_place, .place_count = 1};
        fill_case_spec(&specs, uri, more);
        prepare(&specs.items[0]);
        sl_alloc_fail_at(nth);
        int done = sl_fill_run(&specs.items[0], &config, &model, NULL, &err);
        sl_alloc_fail_at(0);
        ck_assert(done == 0 || model == NULL);
        sl_specs_release(&specs);
        ck_assert_uint_lt(nth, 5000);
        if (!model)
            check_no_cuda_left(gpu_fill.fake);
    }
    sl_pool_model_free(model);
}

/* Names of GPUs, against the fake driver and a daemon that follows a script: UUIDs as numbers. */
#include <check.h>
#include <string.h>

#include "claims.h"
#include "gpu_script.h"
#include "mem.h"
#include "pool_words.h"
#include "sluice.h"

static const struct fake_cuda_control *fake;
static const struct sl_cuda *cuda;
static struct pool_script script;
static struct sluice_error error;

static void setup(void)
{
    pool_script_init(&script);
    fake->set_devices(2);
    cuda = sl_cuda_open(NULL);
    ck_assert_ptr_nonnull(cuda);
}

static void teardown(void)
{
    pool_script_release(&script);
    check_no_cuda_left(fake);
}

static struct sluice_model *attach(const char *device, uint32_t flags)
{
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = "m",
                                                  .socket = script.socket,
                                                  .device = device,
                                                  .flags = flags,
                                                  .timeout_ms = 60000};
    memset(&error, 0, sizeof(error));
    return sluice_attach(&options, &model, &error) < 0 ? NULL : model;
}

static struct sluice_model *attached(const char *device, uint32_t flags)
{
    struct sluice_model *model = attach(device, flags);
    ck_assert_msg(model != NULL, "%s", error.message);
    return model;
}

static void refused(const char *device, uint32_t flags, int kind, const char *words)
{
    ck_assert_ptr_null(attach(device, flags));
    ck_assert_msg(error.kind == kind && strstr(error.message, words), "%d: %s", error.kind,
                  error.message);
    gpu_script_check_held(fake);
}

SL_TEST(a_gpu_is_named_by_its_uuid_too)
{
    static const char *const names[] = {"GPU-fb020910-171e-252c-333a-41484f565d64",
                                        "GPU-FB020910-171E-252C-333A-41484F565D64",
                                        "MIG-fb020910-171e-252c-333a-41484f565d64"};
    char asked[SL_WIRE_DEVICE_BYTES + 1];
    int32_t ordinal;
    gpu_script_start(&script, cuda, 1);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        struct sluice_tensor tensor = {.size = sizeof(tensor)};
        struct sluice_model *model = attached(names[i], 0);
        pool_script_asked(&script, asked);
        ck_assert_str_eq(asked, names[0]);
        ck_assert_int_eq(sluice_find(model, "a", &tensor, &error), 0);
        ck_assert_int_eq(tensor.device, 1);
        sluice_detach(model);
        ck_assert_int_eq(sluice_device(names[i], &ordinal, &error), 0);
        ck_assert_int_eq(ordinal, 1);
    }
}

SL_TEST(a_uuid_that_is_none_or_of_no_gpu_here_is_told)
{
    int32_t ordinal = 7;
    gpu_script_start(&script, cuda, 0);
    refused("GPU-fb020910-171e-252c-333a-41484f565d65", 0, SLUICE_GPU,
            "there is no 'GPU-fb020910-171e-252c-333a-41484f565d65' among the 2 GPUs");
    fake->set_devices(1);
    refused("GPU-fb020910-171e-252c-333a-41484f565d64", 0, SLUICE_GPU, "among the 1 GPUs");
    refused("GPU-fb020910", 0, SLUICE_USAGE, "'GPU-fb020910' does not name a GPU");
    refused("GPU-fb020910-171e-252c-333a-41484f565d64-", 0, SLUICE_USAGE, "does not name a GPU");
    refused("MIG-GPU-fb020910-171e-252c-333a-41484f565d64/1/0", 0, SLUICE_USAGE, "UUID");
    ck_assert_int_eq(sluice_device("cpu", &ordinal, &error), -1);
    ck_assert(error.kind == SLUICE_USAGE && ordinal == 7);
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

/*
 * A client of the pool by libsluice: when its first tensor is there, when all are, and what is in
 * them. Prints "attached S", "first S", "ready S BYTES", and "tensor SHA256 NAME" for each, or
 * "wrote RESULT" of an attempt that may not work.
 */
#include <stdio.h>
#include <string.h>

#include "gpu_check.h"
#include "mem.h"
#include "sluice.h"

static int fail(const struct sluice_error *error)
{
    fprintf(stderr, "gpu_check: %s\n", error->message);
    return error->kind;
}

static int print_digests(const struct gpu_check *check, const struct sluice_model *model,
                         uint64_t count)
{
    struct sluice_error error;
    for (uint64_t i = 0; i < count; i++) {
        struct sluice_tensor tensor = {.size = sizeof(tensor)};
        char hex[65];
        if (sluice_tensor_at(model, i, &tensor, &error) < 0)
            return fail(&error);
        if (tensor.kind != SLUICE_KIND_TENSOR || tensor.device < 0)
            continue;
        gpu_digest(check, (uint64_t)(uintptr_t)tensor.data, tensor.bytes, hex);
        printf("tensor %s %s\n", hex, tensor.name);
    }
    return 0;
}

/* Over the first tensor; the process is good for nothing more if the device finds out. */
static int try_write(const struct gpu_check *check, const struct sluice_model *model)
{
    struct sluice_error error;
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    if (sluice_tensor_at(model, 0, &tensor, &error) < 0)
        return fail(&error);
    int result = check->cuda->set_bytes((uint64_t)(uintptr_t)tensor.data, 0x5a,
                                        SL_MIN(tensor.bytes, 4096u), check->stream);
    if (result == 0)
        result = check->cuda->stream_synchronize(check->stream);
    printf("wrote %d\n", result);
    return 0;
}

int gpu_check_client(char **arguments, int count)
{
    struct gpu_check check = {0};
    struct sluice_error error;
    struct sluice_model *model;
    if (count < 3)
        return 2;
    bool digests = count < 4, writes = count == 4 && strcmp(arguments[3], "write") == 0;
    gpu_start(&check);
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .socket = arguments[0],
                                                  .model = arguments[1],
                                                  .device = arguments[2],
                                                  .timeout_ms = 120000};
    double begin = gpu_now();
    if (sluice_attach(&options, &model, &error) < 0)
        return fail(&error);
    printf("attached %.6f\n", gpu_now() - begin);
    struct sluice_model_info info = {.size = sizeof(info)};
    sluice_model_info(model, &info);
    if (info.tensor_count > 0 && sluice_wait(model, 0, 300000, -1, &error) < 0)
        return fail(&error);
    printf("first %.6f\n", gpu_now() - begin);
    if (sluice_wait_all(model, 300000, -1, &error) < 0)
        return fail(&error);
    printf("ready %.6f %llu\n", gpu_now() - begin, (unsigned long long)info.bytes);
    fflush(stdout);
    int status = digests  ? print_digests(&check, model, info.tensor_count)
                 : writes ? try_write(&check, model)
                          : 0;
    sluice_detach(model);
    return status;
}

/*
 * A client of the pool by libsluice: when its first tensor is there, when all are, and what is in
 * them. Prints "attached S", "first S", "ready S BYTES", and "tensor SHA256 NAME" for each, or
 * "wrote RESULT" of an attempt that may not work. Of a model on the host that is copied to a GPU:
 * "pinned" or "unpinned" and why, and "copied THREADS S".
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
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

/* ---- a model of the host, copied as engines do ------------------------------------------------
 */

enum { COPIERS_MAX = 8 };

/* A thread that copies every so many-th tensor of a model, in a stream of its own. */
struct copier {
    pthread_t thread;
    const struct gpu_check *check;
    struct sluice_model *model;
    uint64_t to, first, step, count;
    bool failed;
};

/* Tensors lie one behind another on the device, each from a multiple of 256 on. */
static uint64_t room_of(const struct sluice_model *model, uint64_t number)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_error error;
    if (sluice_tensor_at(model, number, &tensor, &error) < 0)
        return 0;
    return (tensor.bytes + 255) / 256 * 256;
}

static void *copy_some(void *arg)
{
    struct copier *copier = arg;
    const struct sl_cuda *cuda = copier->check->cuda;
    struct sl_cuda_stream *stream;
    struct sluice_error error = {0};
    gpu_must(copier->check, cuda->set_current(copier->check->context), "use the context");
    gpu_must(copier->check, cuda->stream_create(&stream, SL_CUDA_STREAM_NON_BLOCKING), "a stream");
    uint64_t at = copier->to;
    for (uint64_t i = 0; i < copier->count && !copier->failed; i++) {
        struct sluice_tensor tensor = {.size = sizeof(tensor)};
        sluice_tensor_at(copier->model, i, &tensor, &error);
        if (i % copier->step == copier->first)
            copier->failed =
                sluice_copy(copier->model, at, tensor.data, tensor.bytes, stream, &error) < 0;
        at += room_of(copier->model, i);
    }
    if (copier->failed)
        fail(&error);
    gpu_must(copier->check, cuda->stream_synchronize(stream), "wait for copies");
    cuda->stream_destroy(stream);
    return NULL;
}

/* Seconds; below 0: it failed. */
static double copy_all(const struct copier *like, unsigned threads)
{
    struct copier copiers[COPIERS_MAX];
    bool failed = false;
    double begin = gpu_now();
    for (unsigned i = 0; i < threads; i++) {
        copiers[i] = *like;
        copiers[i].first = i;
        copiers[i].step = threads;
        pthread_create(&copiers[i].thread, NULL, copy_some, &copiers[i]);
    }
    for (unsigned i = 0; i < threads; i++) {
        pthread_join(copiers[i].thread, NULL);
        failed |= copiers[i].failed;
    }
    return failed ? -1 : gpu_now() - begin;
}

static void print_copied(const struct gpu_check *check, const struct sluice_model *model,
                         uint64_t count, uint64_t at)
{
    for (uint64_t i = 0; i < count; i++) {
        struct sluice_tensor tensor = {.size = sizeof(tensor)};
        struct sluice_error error;
        char hex[65];
        sluice_tensor_at(model, i, &tensor, &error);
        gpu_digest(check, at, tensor.bytes, hex);
        if (tensor.kind == SLUICE_KIND_TENSOR)
            printf("tensor %s %s\n", hex, tensor.name);
        at += room_of(model, i);
    }
}

static int copy_model(const struct gpu_check *check, struct sluice_model *model, uint64_t count)
{
    struct sluice_model_info info = {.size = sizeof(info)};
    struct gpu_area area;
    uint64_t bytes = 256;
    sluice_model_info(model, &info);
    printf("%s %s\n", info.unpinned ? "unpinned" : "pinned", info.unpinned ? info.unpinned : "yes");
    for (uint64_t i = 0; i < count; i++)
        bytes += room_of(model, i);
    gpu_must(check, gpu_area_make(check, bytes, &area) < 0 ? SL_CUDA_OUT_OF_MEMORY : 0,
             "take memory");
    const struct copier like = {.check = check, .model = model, .to = area.address, .count = count};
    for (unsigned threads = 1; threads <= COPIERS_MAX; threads *= 2) {
        double seconds = copy_all(&like, threads);
        if (seconds < 0)
            return 1;
        printf("copied %u %.6f\n", threads, seconds);
    }
    print_copied(check, model, count, area.address);
    gpu_area_free(check, &area);
    return 0;
}

int gpu_check_client(char **arguments, int count)
{
    struct gpu_check check = {0};
    struct sluice_error error;
    struct sluice_model *model;
    if (count < 3)
        return 2;
    const char *work = count < 4 ? "digest" : arguments[3];
    bool copies = strcmp(work, "copy") == 0;
    gpu_start(&check);
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .socket = arguments[0],
                                                  .model = arguments[1],
                                                  .device = arguments[2],
                                                  .flags = copies ? SLUICE_REGISTER : 0,
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
    int status = copies                        ? copy_model(&check, model, info.tensor_count)
                 : strcmp(work, "digest") == 0 ? print_digests(&check, model, info.tensor_count)
                 : strcmp(work, "write") == 0  ? try_write(&check, model)
                                               : 0;
    sluice_detach(model);
    return status;
}

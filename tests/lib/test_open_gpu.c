/* Tensors and slices that are read onto a GPU, against the fake driver: the same bytes as on the
 * host, and nothing of the driver's remains whichever call fails. */
#include <stdio.h>
#include <string.h>

#include "api_device.h"
#include "claims.h"
#include "golden.h"
#include "mem.h"
#include "memory_store.h"
#include "model_maker.h"
#include "open_case.h"
#include "use_fake_cuda.h"

enum { ITEMS = 2500000, BYTES = ITEMS * 4 }; /* three pinned pieces */

static const struct fake_cuda_control *fake;
static struct sl_api_device gpu;
static uint64_t handle, room_bytes;
static uint8_t *file, *room; /* room: of the GPU; the fake driver's addresses can be read */
static size_t file_bytes;
static struct sluice_source *source;

static void setup(void)
{
    void *map;
    fake->reset();
    fake->set_devices(2);
    file = sl_model_safetensors("a,b", ITEMS, &file_bytes);
    sl_memory_put("m.safetensors", file, file_bytes, NULL);
    source = open_it("memory:m.safetensors", NULL);
    ck_assert_msg(sl_api_device_open(&gpu, 1, &error) == 0, "%s", error.message);
    room_bytes = sl_api_device_round(&gpu, BYTES);
    ck_assert_int_eq(sl_api_device_make(&gpu, room_bytes, &handle, &map, &error), 0);
    room = map;
    memset(room, 0xee, BYTES);
}

static void teardown(void)
{
    sl_api_device_unmap(&gpu, room, room_bytes);
    sl_api_device_drop(&gpu, handle);
    sl_api_device_close(&gpu);
    sluice_close(source);
    sl_memory_clear();
    free(file);
    check_no_cuda_left(fake);
}

static int read_to(void *to, uint64_t bytes, const struct sluice_range *slice, const char *device)
{
    const struct sluice_read read = {
        .size = sizeof(read), .number = 1, .slice = slice, .to = to, .bytes = bytes};
    const struct sluice_read_options options = {.size = sizeof(options), .device = device};
    memset(&error, 0, sizeof(error));
    return sluice_read(source, &read, 1, &options, &error);
}

SL_TEST(a_tensor_is_read_onto_a_gpu)
{
    struct fake_cuda_counts counts;
    ck_assert_msg(read_to(room, BYTES, NULL, "cuda:1") == 0, "%s", error.message);
    ck_assert_mem_eq(room, file + file_bytes - BYTES, BYTES);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 0);
    ck_assert_uint_eq(counts.host_buffers, 0);
    ck_assert_uint_eq(counts.streams, 0);
}

SL_TEST(a_gpu_is_named_by_its_uuid_too)
{
    char name[SL_API_DEVICE_TEXT_BYTES];
    sl_api_device_text(&gpu, name);
    ck_assert_msg(read_to(room, BYTES, NULL, name) == 0, "%s", error.message);
    ck_assert_mem_eq(room, file + file_bytes - BYTES, BYTES);
    name[strlen(name) - 1] ^= 1;
    ck_assert_int_eq(read_to(room, BYTES, NULL, name), -1);
    ck_assert_msg(error.kind == SLUICE_GPU && strstr(error.message, name), "%s", error.message);
    ck_assert_int_eq(read_to(room, BYTES, NULL, "GPU-1"), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
}

SL_TEST(slices_with_steps_and_without_are_too)
{
    for (uint64_t step = 1; step <= 100000; step *= 100) {
        const struct sluice_range range = {1000, 2000001, step};
        uint64_t bytes;
        ck_assert_int_eq(sluice_slice(source, 1, &range, NULL, &bytes, &error), 0);
        sl_autofree uint8_t *expected = malloc(bytes);
        ck_assert_int_eq(read_to(expected, bytes, &range, NULL), 0);
        ck_assert_msg(read_to(room, bytes, &range, "cuda:1") == 0, "%s", error.message);
        ck_assert_mem_eq(room, expected, bytes);
    }
}

SL_TEST(a_caller_keeps_its_context)
{
    struct sl_cuda_context *first, *now;
    const struct sl_cuda *cuda = gpu.cuda;
    ck_assert_int_eq(cuda->primary_retain(&first, 0), 0);
    ck_assert_int_eq(cuda->set_current(first), 0);
    ck_assert_int_eq(read_to(room, BYTES, NULL, "cuda:1"), 0);
    ck_assert_int_eq(cuda->get_current(&now), 0);
    ck_assert_ptr_eq(now, first);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    ck_assert_int_eq(cuda->primary_release(0), 0);
}

SL_TEST(what_is_no_gpu_is_told)
{
    ck_assert_int_eq(read_to(room, BYTES, NULL, "cuda:7"), -1);
    ck_assert_int_eq(error.kind, SLUICE_GPU);
    ck_assert_int_eq(read_to(room, BYTES, NULL, "gpu"), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_ptr_nonnull(strstr(error.message, "cuda:0"));
}

/* Every tensor of a golden file, to the host and to the GPU; how many went there. */
static unsigned compare_golden(struct sluice_source *golden)
{
    unsigned equal = 0;
    for (uint64_t i = 0; i < info_of(golden).tensor_count; i++) {
        struct sluice_tensor tensor = tensor_of(golden, i);
        if (!tensor.bytes || tensor.bytes > BYTES || tensor.refused)
            continue;
        sl_autofree uint8_t *expected = whole(golden, i);
        const struct sluice_read read = {
            .size = sizeof(read), .number = i, .to = room, .bytes = tensor.bytes};
        const struct sluice_read_options options = {.size = sizeof(options), .device = "cuda:1"};
        ck_assert_msg(sluice_read(golden, &read, 1, &options, &error) == 0, "%s", error.message);
        ck_assert_mem_eq(room, expected, tensor.bytes);
        equal++;
    }
    return equal;
}

SL_TEST(meta_tensors_are_zeros_there_too)
{
    size_t bytes;
    uint8_t *data = golden_read("tensorizer/v4-meta.tensors.gz", &bytes);
    sl_memory_put("golden.tensors", data, bytes, NULL);
    struct sluice_source *golden = open_it("memory:golden.tensors", NULL);
    ck_assert_uint_gt(compare_golden(golden), 0);
    sluice_close(golden);
    free(data);
}

SL_TEST(wrong_bytes_never_reach_a_gpu)
{
    size_t bytes;
    uint8_t *data = golden_read("tensorizer/base-plain.tensors.gz", &bytes);
    sl_memory_put("golden.tensors", data, bytes, NULL);
    struct sluice_source *golden = open_it("memory:golden.tensors", NULL);
    ck_assert_uint_gt(compare_golden(golden), 0);
    uint64_t last = info_of(golden).tensor_count - 1, calls = fake->calls("cuMemcpyHtoDAsync");
    struct sluice_tensor tensor = tensor_of(golden, last);
    sl_autofree uint8_t *right = whole(golden, last);
    uint8_t *there = memmem(data, bytes, right, tensor.bytes);
    ck_assert_ptr_nonnull(there);
    *there ^= 1;
    const struct sluice_read read = {
        .size = sizeof(read), .number = last, .to = room, .bytes = tensor.bytes};
    const struct sluice_read_options options = {.size = sizeof(options), .device = "cuda:1"};
    ck_assert_int_eq(sluice_read(golden, &read, 1, &options, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_INTEGRITY);
    ck_assert_uint_eq(fake->calls("cuMemcpyHtoDAsync"), calls);
    sluice_close(golden);
    free(data);
}

/* The nth call fails; false: there was none so late. */
static bool fail_call(const char *name, uint64_t nth)
{
    const struct sluice_range range = {0, ITEMS, 2};
    fake->reset();
    fake->set_devices(2);
    fake->fail_call(name, nth, SL_CUDA_UNKNOWN);
    int done = read_to(room, BYTES / 2, &range, "cuda:1");
    bool failed = fake->calls(name) >= nth;
    fake->reset();
    fake->set_devices(2);
    if (failed && done < 0)
        ck_assert_msg(error.kind == SLUICE_GPU && error.message[0], "%s %d: %d %s", name, (int)nth,
                      error.kind, error.message);
    return failed;
}

SL_TEST(every_call_that_fails_is_told_and_leaves_nothing)
{
    static const char *const calls[] = {
        "cuDevicePrimaryCtxRetain", "cuStreamCreate",    "cuMemHostAlloc", "cuEventCreate",
        "cuEventSynchronize",       "cuMemcpyHtoDAsync", "cuEventRecord",  "cuStreamSynchronize"};
    struct fake_cuda_counts counts;
    for (size_t i = 0; i < SL_COUNT(calls); i++)
        for (uint64_t nth = 1; fail_call(calls[i], nth); nth++) {
            fake->counts(&counts);
            ck_assert_msg(counts.host_buffers == 0 && counts.streams == 0 && counts.events == 0,
                          "%s %d leaves something", calls[i], (int)nth);
        }
    ck_assert_int_eq(read_to(room, BYTES, NULL, "cuda:1"), 0);
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

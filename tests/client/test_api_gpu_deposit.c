/* Deposits of a GPU's memory by libsluice, against the fake driver and a daemon that follows a
 * script. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "api_alloc_fail.h"
#include "claims.h"
#include "gpu_script.h"
#include "mem.h"
#include "pool_index.h"
#include "pool_words.h"
#include "sluice.h"
#include "thread.h"

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

static const uint64_t shape[] = {GPU_SCRIPT_COUNT};

static void renew(void)
{
    fake->reset();
    fake->set_devices(2);
}

static struct sluice_deposit *begin_on(const char *device, uint64_t bytes)
{
    struct sluice_deposit *deposit = NULL;
    const struct sluice_deposit_options options = {.size = sizeof(options),
                                                   .model = "m",
                                                   .key = "k",
                                                   .socket = script.socket,
                                                   .device = device,
                                                   .bytes = bytes,
                                                   .timeout_ms = 60000};
    memset(&error, 0, sizeof(error));
    return sluice_deposit_begin(&options, &deposit, &error) < 0 ? NULL : deposit;
}

static struct sluice_deposit *begin(uint64_t bytes)
{
    return begin_on("cuda:1", bytes);
}

static float *add(struct sluice_deposit *deposit, const char *name)
{
    void *data = NULL;
    return sluice_deposit_add(deposit, name, "F32", 1, shape, NULL, 4 * GPU_SCRIPT_COUNT, &data,
                              &error) < 0
               ? NULL
               : data;
}

/* What arrived at the daemon. */
static void expect_deposit(float first, float second)
{
    char why[SL_POOL_WHY_BYTES];
    struct sl_pool_index index;
    struct sl_cuda_device device;
    SL_LOCKED(&script.lock);
    size_t bytes = script.locked.deposited_index_bytes;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, script.locked.deposited_index, 0);
    ck_assert(map != MAP_FAILED);
    ck_assert_msg(sl_pool_index_check(map, bytes, &index, why) == 0, "%s", why);
    ck_assert_uint_eq(index.head->slab_count, 1);
    ck_assert_uint_eq(script.locked.deposited_count, 1);
    ck_assert_uint_eq(index.slabs[0].kind, SL_WIRE_SLAB_DEVICE);
    ck_assert_uint_eq(index.slabs[0].bytes, script.locked.announced);
    ck_assert_int_eq(sl_cuda_device(cuda, 1, &device, NULL), 0);
    ck_assert_mem_eq(index.slabs[0].device, device.uuid, sizeof(device.uuid));
    for (uint32_t i = 0; i < 2; i++) {
        float values[GPU_SCRIPT_COUNT];
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&index, i);
        int file = fake_cuda_file(script.locked.deposited[0]);
        ck_assert_int_eq(pread(file, values, sizeof(values), (off_t)tensor->offset),
                         sizeof(values));
        close(file);
        gpu_script_expect(values, i ? second : first);
    }
    munmap(map, bytes);
}

struct copying {
    struct sl_cuda_stream *stream;
    void *pinned;
};

/* Eights are on their way to a tensor, in the context of this GPU, which is current from now on. */
static struct copying begin_copy(int ordinal, float *to)
{
    struct sl_cuda_context *context;
    struct copying copying;
    uint64_t bytes = 4 * GPU_SCRIPT_COUNT;
    ck_assert_int_eq(cuda->primary_retain(&context, ordinal), 0);
    ck_assert_int_eq(cuda->set_current(context), 0);
    ck_assert_int_eq(cuda->stream_create(&copying.stream, SL_CUDA_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(cuda->host_alloc(&copying.pinned, bytes, 0), 0);
    for (int i = 0; i < GPU_SCRIPT_COUNT; i++)
        ((float *)copying.pinned)[i] = 8;
    fake->set_delay_us(20000);
    ck_assert_int_eq(cuda->copy_to_device((uintptr_t)to, copying.pinned, bytes, copying.stream), 0);
    return copying;
}

static void free_copy(struct copying *copying)
{
    ck_assert_int_eq(cuda->host_free(copying->pinned), 0);
    ck_assert_int_eq(cuda->stream_destroy(copying->stream), 0);
}

static void leave_context(int ordinal)
{
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    ck_assert_int_eq(cuda->primary_release(ordinal), 0);
}

SL_TEST(a_deposit_of_a_gpu_is_complete_when_it_is_committed)
{
    char asked[SL_WIRE_DEVICE_BYTES + 1];
    pool_script_start(&script);
    struct sluice_deposit *deposit = begin(3 * 4096);
    ck_assert_msg(deposit != NULL, "%s", error.message);
    pool_script_asked(&script, asked);
    ck_assert_str_eq(asked, "GPU-fb020910-171e-252c-333a-41484f565d64");
    ck_assert_uint_eq(script.locked.announced, GPU_SCRIPT_GRANULE);
    ck_assert_int_eq(sluice_deposit_device(deposit), 1);
    float *a = add(deposit, "a"), *b = add(deposit, "b");
    ck_assert(a && b);
    for (int i = 0; i < GPU_SCRIPT_COUNT; i++)
        a[i] = 7;
    struct copying copying = begin_copy(1, b);
    ck_assert_msg(sluice_deposit_commit(deposit, &error) == 0, "%s", error.message);
    expect_deposit(7, 8);
    ck_assert(!gpu_script_is_writable(a));
    gpu_script_expect(a, 7);
    free_copy(&copying);
    sluice_deposit_end(deposit);
    leave_context(1);
    gpu_script_check_held(fake);
}

/* Of the context that the depositor has current, too: here another GPU's, which may write there. */
SL_TEST(a_commit_waits_for_the_work_of_its_callers_context)
{
    const struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, 0}, SL_CUDA_READ_WRITE};
    pool_script_start(&script);
    struct sluice_deposit *deposit = begin(3 * 4096);
    ck_assert_msg(deposit != NULL, "%s", error.message);
    float *a = add(deposit, "a"), *b = add(deposit, "b");
    ck_assert(a && b);
    for (int i = 0; i < GPU_SCRIPT_COUNT; i++)
        a[i] = 7;
    ck_assert_int_eq(cuda->mem_set_access((uintptr_t)a, GPU_SCRIPT_GRANULE, &access, 1), 0);
    struct copying copying = begin_copy(0, b);
    ck_assert_msg(sluice_deposit_commit(deposit, &error) == 0, "%s", error.message);
    expect_deposit(7, 8);
    ck_assert_int_eq(cuda->stream_synchronize(copying.stream), 0);
    free_copy(&copying);
    sluice_deposit_end(deposit);
    leave_context(0);
    gpu_script_check_held(fake);
}

SL_TEST(a_deposit_is_made_on_a_gpu_that_its_uuid_names)
{
    pool_script_start(&script);
    struct sluice_deposit *deposit = begin_on("GPU-fb020910-171e-252c-333a-41484f565d64", 4096);
    ck_assert_msg(deposit != NULL, "%s", error.message);
    ck_assert_int_eq(sluice_deposit_device(deposit), 1);
    sluice_deposit_end(deposit);
    ck_assert_ptr_null(begin_on("GPU-fb020910", 4096));
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    gpu_script_check_held(fake);
}

SL_TEST(a_deposit_that_does_not_fit_the_gpu_is_refused)
{
    pool_script_start(&script);
    fake->set_bytes(GPU_SCRIPT_GRANULE);
    struct sluice_deposit *deposit = begin(GPU_SCRIPT_GRANULE + 1);
    ck_assert_ptr_nonnull(deposit);
    ck_assert_ptr_null(add(deposit, "a"));
    ck_assert_int_eq(error.kind, SLUICE_NO_SPACE);
    sluice_deposit_end(deposit);
    gpu_script_check_held(fake);
    ck_assert_ptr_null(begin(UINT64_MAX));
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    gpu_script_check_held(fake);
    deposit = begin(GPU_SCRIPT_GRANULE);
    ck_assert_ptr_nonnull(add(deposit, "a"));
    sluice_deposit_abort(deposit);
    ck_assert_int_eq(sluice_deposit_commit(deposit, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    sluice_deposit_end(deposit);
}

/* With the nth call of this name failing; false: there are not so many. */
static bool fail_deposit(const char *name, uint64_t nth)
{
    renew();
    fake->fail_call(name, nth, SL_CUDA_UNKNOWN);
    struct sluice_deposit *deposit = begin(2 * 4096);
    bool done = deposit && add(deposit, "a") && add(deposit, "b") &&
                sluice_deposit_commit(deposit, &error) == 0;
    bool failed = fake->calls(name) >= nth;
    ck_assert_msg(done || error.kind == SLUICE_GPU, "%s: %s", name, error.message);
    renew();
    sluice_deposit_end(deposit);
    gpu_script_check_held(fake);
    return failed;
}

static void forget_deposit(void)
{
    SL_LOCKED(&script.lock);
    for (uint32_t i = 0; i < script.locked.deposited_count; i++)
        close(script.locked.deposited[i]);
    script.locked.deposited_count = 0;
    if (script.locked.deposited_index >= 0)
        close(script.locked.deposited_index);
    script.locked.deposited_index = -1;
}

static bool deposit_without_memory(const char *device, uint64_t nth)
{
    api_alloc_fail_at(nth);
    struct sluice_deposit *deposit = begin_on(device, 2 * 4096);
    bool done = deposit && add(deposit, "a") && add(deposit, "b") &&
                sluice_deposit_commit(deposit, &error) == 0;
    api_alloc_fail_at(0);
    if (!done)
        ck_assert_str_eq(error.message, "out of memory");
    sluice_deposit_end(deposit);
    gpu_script_check_held(fake);
    forget_deposit();
    return done;
}

SL_TEST(a_deposit_without_memory_leaves_nothing)
{
    static const char *const devices[] = {"host", "cuda:1"};
    pool_script_start(&script);
    for (size_t i = 0; i < SL_COUNT(devices); i++) {
        uint64_t nth = 1;
        while (!deposit_without_memory(devices[i], nth))
            ck_assert_uint_lt(nth++, 100);
        ck_assert_uint_eq(nth, 9);
    }
}

SL_TEST(a_deposit_whose_call_fails_leaves_nothing)
{
    pool_script_start(&script);
    for (size_t i = 0; gpu_script_calls[i]; i++)
        for (uint64_t nth = 1; fail_deposit(gpu_script_calls[i], nth); nth++)
            forget_deposit();
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

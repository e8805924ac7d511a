/*
 * libsluice and memory of a GPU, against the fake driver and a daemon that follows a script: what
 * is attached to, pinned and deposited, and that nothing of the driver's remains whichever call
 * fails.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"
#include "mem.h"
#include "pool_index.h"
#include "pool_script.h"
#include "pool_words.h"
#include "sluice.h"
#include "thread.h"
#include "use_fake_cuda.h"

enum { GRANULE = 2 << 20, COUNT = 1000, TENSORS = 4 };

static const struct fake_cuda_control *fake;
static const struct sl_cuda *cuda;
static struct pool_script script;
static struct sluice_error error;
static const uint64_t shape[] = {COUNT}, config_shape[] = {2};

/* Two slabs on the GPU, one on the host: a, b, config.json, and an empty one. */
static const struct sl_pool_item items[TENSORS] = {
    {"a", "F32", 1, SL_WIRE_TENSOR, 1, shape, NULL, 1, 4, 0, 256, 4 * COUNT},
    {"b", "F32", 1, SL_WIRE_TENSOR, 1, shape, NULL, 1, 4, 1, 0, 4 * COUNT},
    {"config.json", "", 11, SL_WIRE_FILE, 1, config_shape, NULL, 1, 1, 2, 0, 2},
    {"none", "F32", 4, SL_WIRE_TENSOR, 1, (const uint64_t[]){0}, NULL, 1, 4, 0, 0, 0},
};

/* ---- the daemon's memory -------------------------------------------------------------------- */

/* Device memory is memory of this process with the fake driver: it is filled as such. */
static void add_device_slab(int ordinal, uint64_t bytes, uint64_t at, float value)
{
    struct sl_cuda_device device;
    struct sl_wire_index_slab *slab = &script.slabs[script.slab_count];
    const struct sl_cuda_prop prop = sl_cuda_shareable(ordinal);
    int *fd = &script.fds[script.slab_count++];
    uint64_t handle;
    ck_assert_int_eq(sl_cuda_device(cuda, ordinal, &device, NULL), 0);
    ck_assert_int_eq(cuda->mem_create(&handle, bytes, &prop, 0), 0);
    ck_assert_int_eq(cuda->mem_export(fd, handle, SL_CUDA_HANDLE_FD, 0), 0);
    ck_assert_int_eq(cuda->mem_release(handle), 0);
    for (uint64_t i = 0; i < COUNT; i++)
        ck_assert_int_eq(pwrite(*fd, &value, sizeof(value), (off_t)(at + i * sizeof(value))),
                         sizeof(value));
    *slab = (struct sl_wire_index_slab){.bytes = bytes, .kind = SL_WIRE_SLAB_DEVICE};
    memcpy(slab->device, device.uuid, sizeof(slab->device));
}

static void add_host_slab(const char *text)
{
    int fd = memfd_create("slab", MFD_CLOEXEC);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    script.fds[script.slab_count] = fd;
    script.slabs[script.slab_count++] =
        (struct sl_wire_index_slab){.bytes = strlen(text), .kind = SL_WIRE_SLAB_MEMFD};
}

static void set_ready(void)
{
    for (uint32_t i = 0; i < script.item_count; i++)
        sl_word_set(&script.page->words[i], SL_WORD_READY);
    sl_word_set(&script.page->state, SL_WIRE_READY);
}

static void start_on(int ordinal)
{
    add_device_slab(ordinal, GRANULE, 256, 1);
    add_device_slab(ordinal, 2 * GRANULE, 0, 2);
    add_host_slab("{}");
    script.items = items;
    script.item_count = TENSORS;
    pool_script_start(&script);
    set_ready();
}

/* Of the host alone: config.json in two slabs. */
static void start_on_host(void)
{
    static const struct sl_pool_item files[] = {
        {"one", "", 3, SL_WIRE_FILE, 1, config_shape, NULL, 1, 1, 0, 0, 2},
        {"two", "", 3, SL_WIRE_FILE, 1, config_shape, NULL, 1, 1, 1, 0, 2},
    };
    add_host_slab("{}");
    add_host_slab("[]");
    script.items = files;
    script.item_count = 2;
    pool_script_start(&script);
    set_ready();
}

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

/* What the process has of the driver, but for descriptors of the script. */
static void check_nothing_held(void)
{
    struct fake_cuda_counts counts;
    fake->counts(&counts);
    ck_assert_uint_eq(counts.handles + counts.mappings + counts.reservations, 0);
    ck_assert_uint_eq(counts.contexts + counts.host_buffers + counts.left, 0);
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
    check_nothing_held();
}

/* 'r', 'w' or '-' of the mapping at an address. */
static bool is_writable(const void *data)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false, writable = false;
    while (!found && fgets(line, sizeof(line), file)) {
        char *rest;
        uintptr_t from = strtoull(line, &rest, 16), to = strtoull(rest + 1, &rest, 16);
        found = from <= (uintptr_t)data && (uintptr_t)data < to;
        writable = found && rest[2] == 'w';
    }
    fclose(file);
    ck_assert(found);
    return writable;
}

static void expect_values(const void *data, float value)
{
    for (uint64_t i = 0; i < COUNT; i++)
        ck_assert_float_eq(((const float *)data)[i], value);
}

/* ---- attaching ------------------------------------------------------------------------------ */

START_TEST(tensors_of_a_gpu_are_mapped_to_be_read)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_model_info info = {.size = sizeof(info)};
    start_on(0);
    struct sluice_model *model = attached("cuda:0", 0);
    sluice_model_info(model, &info);
    ck_assert_int_eq(info.device, 0);
    ck_assert_int_eq(sluice_find(model, "b", &tensor, &error), 0);
    ck_assert_int_eq(sluice_wait(model, tensor.number, 0, -1, &error), 0);
    ck_assert_int_eq(tensor.device, 0);
    expect_values(tensor.data, 2);
    ck_assert(!is_writable(tensor.data));
    ck_assert_int_eq(sluice_find(model, "a", &tensor, &error), 0);
    expect_values(tensor.data, 1);
    ck_assert_uint_eq((uintptr_t)tensor.data % 256, 0);
    ck_assert_int_eq(sluice_find(model, "none", &tensor, &error), 0);
    ck_assert(tensor.device == 0 && tensor.data == NULL);
    ck_assert_int_eq(sluice_find(model, "config.json", &tensor, &error), 0);
    ck_assert(tensor.device == -1 && memcmp(tensor.data, "{}", 2) == 0);
    sluice_detach(model);
    check_nothing_held();
}
END_TEST

START_TEST(the_daemon_is_asked_for_the_gpu_by_its_uuid)
{
    char asked[SL_WIRE_DEVICE_BYTES + 1];
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    start_on(1);
    struct sluice_model *model = attached("cuda:1", 0);
    pool_script_asked(&script, asked);
    ck_assert_str_eq(asked, "GPU-fb020910-171e-252c-333a-41484f565d64");
    ck_assert_int_eq(sluice_find(model, "a", &tensor, &error), 0);
    ck_assert_int_eq(tensor.device, 1);
    sluice_detach(model);
    refused("cuda:0", 0, SLUICE_GPU, "on another GPU than cuda:0");
    refused(NULL, 0, SLUICE_USAGE, "in memory of a GPU: name it as the device");
    pool_script_asked(&script, asked);
    ck_assert_str_eq(asked, "host");
}
END_TEST

START_TEST(what_cannot_be_had_is_told)
{
    start_on(0);
    refused("cuda:2", 0, SLUICE_GPU, "there is no cuda:2");
    refused("cuda:99999999999999999999", 0, SLUICE_GPU, "there is no cuda:");
    refused("cuda:0", SLUICE_PRIVATE, SLUICE_USAGE, "no private views");
    refused("cuda:0", SLUICE_REGISTER, SLUICE_USAGE, "of the host");
    refused(NULL, SLUICE_REGISTER | SLUICE_PRIVATE, SLUICE_USAGE, "read-only");
    refused(NULL, SLUICE_REGISTER, SLUICE_USAGE, "in memory of a GPU");
}
END_TEST

START_TEST(a_machine_without_a_gpu_says_so)
{
    fake->set_devices(0); /* and the driver was never opened in this process */
    pool_script_init(&script);
    script.items = items;
    pool_script_start(&script);
    refused("cuda:0", 0, SLUICE_GPU, "give the container or the machine a GPU");
    refused(NULL, SLUICE_REGISTER, SLUICE_GPU, "give the container or the machine a GPU");
    struct sluice_model *model = attached(NULL, 0); /* which needs none */
    sluice_detach(model);
    pool_script_release(&script);
}
END_TEST

START_TEST(tensors_of_a_gpu_are_waited_for_as_others)
{
    start_on(0);
    sl_word_set(&script.page->words[1], SL_WORD_LOADING);
    sl_word_set(&script.page->state, SL_WIRE_LOADING);
    struct sluice_model *model = attached("cuda:0", 0);
    ck_assert_int_eq(sluice_ready(model, 0), 1);
    ck_assert_int_eq(sluice_wait(model, 1, 0, -1, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_TIMEOUT);
    sl_word_set(&script.page->words[1], SL_WORD_READY);
    ck_assert_int_eq(sluice_wait(model, 1, -1, -1, &error), 0);
    sluice_detach(model);
}
END_TEST

START_TEST(contexts_of_callers_stay)
{
    struct sl_cuda_context *own, *now;
    start_on(0);
    ck_assert_int_eq(cuda->primary_retain(&own, 1), 0);
    ck_assert_int_eq(cuda->set_current(own), 0);
    struct sluice_model *model = attached("cuda:0", 0);
    ck_assert(cuda->get_current(&now) == 0 && now == own);
    sluice_detach(model);
    ck_assert(cuda->get_current(&now) == 0 && now == own);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    model = attached("cuda:0", 0);
    ck_assert(cuda->get_current(&now) == 0 && now == NULL);
    sluice_detach(model);
    ck_assert_int_eq(cuda->primary_release(1), 0);
}
END_TEST

/* What can fail on the way; a call that gives something back and fails has not given it back. */
static const char *const calls[] = {
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceTotalMem",
    "cuDeviceGetAttribute",
    "cuMemGetAllocationGranularity",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuMemImportFromShareableHandle",
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemHostRegister",
    "cuCtxSynchronize",
    "cuMemExportToShareableHandle",
};

static void renew(void)
{
    fake->reset();
    fake->set_devices(2);
}

/* Attach with the nth call of this name failing; false: there are not so many. */
static bool fail_call(const char *name, uint64_t nth, const char *device, uint32_t flags,
                      int result)
{
    renew();
    fake->fail_call(name, nth, result);
    struct sluice_model *model = attach(device, flags);
    bool failed = fake->calls(name) >= nth;
    ck_assert_msg(model || error.kind == SLUICE_GPU || error.kind == SLUICE_NO_SPACE, "%s %s", name,
                  error.message);
    ck_assert(model || strchr(error.message, '\n') == NULL);
    if (!model)
        check_nothing_held();
    renew();
    sluice_detach(model);
    check_nothing_held();
    return failed;
}

static void fail_every_call(const char *device, uint32_t flags, int result)
{
    unsigned count = 0;
    for (size_t i = 0; i < SL_COUNT(calls); i++)
        for (uint64_t nth = 1; fail_call(calls[i], nth, device, flags, result); nth++)
            ck_assert_uint_lt(count++, 1000);
    ck_assert_uint_gt(count, 10);
}

START_TEST(a_failing_call_of_the_driver_leaves_nothing)
{
    start_on(0);
    fail_every_call("cuda:0", 0, SL_CUDA_UNKNOWN);
    fail_every_call("cuda:0", 0, SL_CUDA_OUT_OF_MEMORY);
}
END_TEST

/* ---- memory of the host, pinned ------------------------------------------------------------- */

static void copy_to_gpu(const struct sluice_model *model, struct sl_cuda_context *context)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct fake_cuda_counts counts;
    const struct sl_cuda_prop prop = sl_cuda_shareable(0);
    const struct sl_cuda_access access = {prop.location, SL_CUDA_READ_WRITE};
    struct sl_cuda_stream *stream;
    uint64_t handle, address;
    ck_assert_int_eq(sluice_tensor_at(model, 1, &tensor, &error), 0);
    ck_assert_int_eq(cuda->set_current(context), 0);
    ck_assert_int_eq(cuda->mem_create(&handle, GRANULE, &prop, 0), 0);
    ck_assert_int_eq(cuda->address_reserve(&address, GRANULE, 0, 0, 0), 0);
    ck_assert_int_eq(cuda->mem_map(address, GRANULE, 0, handle, 0), 0);
    ck_assert_int_eq(cuda->mem_set_access(address, GRANULE, &access, 1), 0);
    ck_assert_int_eq(cuda->stream_create(&stream, 0), 0);
    ck_assert_int_eq(cuda->copy_to_device(address, tensor.data, tensor.bytes, stream), 0);
    ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
    ck_assert_mem_eq((const void *)(uintptr_t)address, "[]", 2);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 0);
    ck_assert_int_eq(cuda->stream_destroy(stream), 0);
    ck_assert_int_eq(cuda->mem_unmap(address, GRANULE), 0);
    ck_assert_int_eq(cuda->address_free(address, GRANULE), 0);
    ck_assert_int_eq(cuda->mem_release(handle), 0);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
}

START_TEST(memory_of_the_host_is_pinned_for_copies)
{
    struct fake_cuda_counts counts;
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sl_cuda_context *context;
    start_on_host();
    ck_assert_int_eq(cuda->primary_retain(&context, 0), 0);
    struct sluice_model *model = attached(NULL, SLUICE_REGISTER);
    sluice_model_info(model, &info);
    ck_assert_int_eq(info.device, -1);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.host_buffers, 2);
    copy_to_gpu(model, context);
    sluice_detach(model);
    ck_assert_int_eq(cuda->primary_release(0), 0);
}
END_TEST

START_TEST(the_gpu_that_pins_is_the_callers)
{
    struct sl_cuda_context *first, *second;
    start_on_host();
    ck_assert_int_eq(cuda->primary_retain(&second, 1), 0);
    ck_assert_int_eq(cuda->set_current(second), 0);
    struct sluice_model *model = attached(NULL, SLUICE_REGISTER);
    ck_assert_int_eq(cuda->primary_release(1), 0); /* the model has its own */
    ck_assert_int_eq(cuda->set_current(second), 0);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    sluice_detach(model);
    check_nothing_held();
    ck_assert_int_eq(cuda->primary_retain(&first, 0), 0);
    ck_assert_ptr_ne(first, second);
    ck_assert_int_eq(cuda->primary_release(0), 0);
    fail_every_call(NULL, SLUICE_REGISTER, SL_CUDA_UNKNOWN);
}
END_TEST

/* ---- deposits ------------------------------------------------------------------------------- */

static struct sluice_deposit *begin(uint64_t bytes)
{
    struct sluice_deposit *deposit = NULL;
    const struct sluice_deposit_options options = {.size = sizeof(options),
                                                   .model = "m",
                                                   .key = "k",
                                                   .socket = script.socket,
                                                   .device = "cuda:1",
                                                   .bytes = bytes,
                                                   .timeout_ms = 60000};
    memset(&error, 0, sizeof(error));
    return sluice_deposit_begin(&options, &deposit, &error) < 0 ? NULL : deposit;
}

static float *add(struct sluice_deposit *deposit, const char *name)
{
    void *data = NULL;
    return sluice_deposit_add(deposit, name, "F32", 1, shape, NULL, 4 * COUNT, &data, &error) < 0
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
        float values[COUNT];
        const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(&index, i);
        ck_assert_int_eq(
            pread(script.locked.deposited[0], values, sizeof(values), (off_t)tensor->offset),
            sizeof(values));
        expect_values(values, i ? second : first);
    }
    munmap(map, bytes);
}

START_TEST(a_deposit_of_a_gpu_is_complete_when_it_is_committed)
{
    struct sl_cuda_context *context;
    struct sl_cuda_stream *stream;
    void *pinned;
    char asked[SL_WIRE_DEVICE_BYTES + 1];
    pool_script_start(&script);
    struct sluice_deposit *deposit = begin(3 * 4096);
    ck_assert_msg(deposit != NULL, "%s", error.message);
    pool_script_asked(&script, asked);
    ck_assert_str_eq(asked, "GPU-fb020910-171e-252c-333a-41484f565d64");
    ck_assert_uint_eq(script.locked.announced, GRANULE);
    ck_assert_int_eq(sluice_deposit_device(deposit), 1);
    float *a = add(deposit, "a"), *b = add(deposit, "b");
    ck_assert(a && b);
    for (int i = 0; i < COUNT; i++)
        a[i] = 7;
    ck_assert_int_eq(cuda->primary_retain(&context, 1), 0);
    ck_assert_int_eq(cuda->set_current(context), 0);
    ck_assert_int_eq(cuda->stream_create(&stream, SL_CUDA_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(cuda->host_alloc(&pinned, 4 * COUNT, 0), 0);
    for (int i = 0; i < COUNT; i++)
        ((float *)pinned)[i] = 8;
    fake->set_delay_us(20000);
    ck_assert_int_eq(cuda->copy_to_device((uintptr_t)b, pinned, 4 * COUNT, stream), 0);
    ck_assert_msg(sluice_deposit_commit(deposit, &error) == 0, "%s", error.message);
    expect_deposit(7, 8);
    ck_assert(!is_writable(a));
    expect_values(a, 7);
    ck_assert_int_eq(cuda->host_free(pinned), 0);
    ck_assert_int_eq(cuda->stream_destroy(stream), 0);
    sluice_deposit_end(deposit);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    ck_assert_int_eq(cuda->primary_release(1), 0);
    check_nothing_held();
}
END_TEST

START_TEST(a_deposit_that_does_not_fit_the_gpu_is_refused)
{
    pool_script_start(&script);
    fake->set_bytes(GRANULE);
    struct sluice_deposit *deposit = begin(GRANULE + 1);
    ck_assert_ptr_nonnull(deposit);
    ck_assert_ptr_null(add(deposit, "a"));
    ck_assert_int_eq(error.kind, SLUICE_NO_SPACE);
    sluice_deposit_end(deposit);
    check_nothing_held();
    ck_assert_ptr_null(begin(UINT64_MAX));
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    check_nothing_held();
    deposit = begin(GRANULE);
    ck_assert_ptr_nonnull(add(deposit, "a"));
    sluice_deposit_abort(deposit);
    ck_assert_int_eq(sluice_deposit_commit(deposit, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    sluice_deposit_end(deposit);
}
END_TEST

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
    check_nothing_held();
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

START_TEST(a_deposit_whose_call_fails_leaves_nothing)
{
    pool_script_start(&script);
    for (size_t i = 0; i < SL_COUNT(calls); i++)
        for (uint64_t nth = 1; fail_deposit(calls[i], nth); nth++)
            forget_deposit();
}
END_TEST

int main(void)
{
    fake = use_fake_cuda();
    Suite *suite = suite_create("api_gpu");
    TCase *tests = tcase_create("api_gpu"), *bare = tcase_create("without");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, tensors_of_a_gpu_are_mapped_to_be_read);
    tcase_add_test(tests, the_daemon_is_asked_for_the_gpu_by_its_uuid);
    tcase_add_test(tests, what_cannot_be_had_is_told);
    tcase_add_test(tests, tensors_of_a_gpu_are_waited_for_as_others);
    tcase_add_test(tests, contexts_of_callers_stay);
    tcase_add_test(tests, a_failing_call_of_the_driver_leaves_nothing);
    tcase_add_test(tests, memory_of_the_host_is_pinned_for_copies);
    tcase_add_test(tests, the_gpu_that_pins_is_the_callers);
    tcase_add_test(tests, a_deposit_of_a_gpu_is_complete_when_it_is_committed);
    tcase_add_test(tests, a_deposit_that_does_not_fit_the_gpu_is_refused);
    tcase_add_test(tests, a_deposit_whose_call_fails_leaves_nothing);
    tcase_add_test(bare, a_machine_without_a_gpu_says_so);
    suite_add_tcase(suite, tests);
    suite_add_tcase(suite, bare);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}

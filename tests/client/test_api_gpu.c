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

#include "api_alloc_fail.h"
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

/* ---- names of GPUs: UUIDs as numbers ----------------------------------------------------------
 */

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

/* ---- attaching ------------------------------------------------------------------------------ */

SL_TEST(a_daemon_of_another_version_is_refused_in_one_sentence)
{
    script.version = 2;
    pool_script_start(&script);
    refused("", 0, SLUICE_USAGE,
            "the pool speaks version 2 of its protocol, this library version 1: update the older");
}

static const struct sl_claim_case bare_claims;

SL_TEST(tensors_of_a_gpu_are_mapped_to_be_read)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_model_info info = {.size = sizeof(info)};
    gpu_script_start(&script, cuda, 0);
    struct sluice_model *model = attached("cuda:0", 0);
    sluice_model_info(model, &info);
    ck_assert_int_eq(info.device, 0);
    ck_assert_int_eq(sluice_find(model, "b", &tensor, &error), 0);
    ck_assert_int_eq(sluice_wait(model, tensor.number, 0, -1, &error), 0);
    ck_assert_int_eq(tensor.device, 0);
    gpu_script_expect(tensor.data, 2);
    ck_assert(!gpu_script_is_writable(tensor.data));
    ck_assert_int_eq(sluice_find(model, "a", &tensor, &error), 0);
    gpu_script_expect(tensor.data, 1);
    ck_assert_uint_eq((uintptr_t)tensor.data % 256, 0);
    ck_assert_int_eq(sluice_find(model, "none", &tensor, &error), 0);
    ck_assert(tensor.device == 0 && tensor.data == NULL);
    ck_assert_int_eq(sluice_find(model, "config.json", &tensor, &error), 0);
    ck_assert(tensor.device == -1 && memcmp(tensor.data, "{}", 2) == 0);
    sluice_detach(model);
    gpu_script_check_held(fake);
}

SL_TEST(slabs_of_a_gpu_lie_in_one_range)
{
    gpu_script_start(&script, cuda, 0);
    sluice_detach(attached("cuda:0", 0));
    ck_assert_uint_eq(fake->calls("cuMemMap"), 2);
    ck_assert_uint_eq(fake->calls("cuMemAddressReserve"), 1);
    ck_assert_uint_eq(fake->calls("cuMemSetAccess"), 1);
    gpu_script_check_held(fake);
}

SL_TEST(the_daemon_is_asked_for_the_gpu_by_its_uuid)
{
    char asked[SL_WIRE_DEVICE_BYTES + 1];
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    gpu_script_start(&script, cuda, 1);
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

SL_TEST(what_cannot_be_had_is_told)
{
    gpu_script_start(&script, cuda, 0);
    refused("cuda:2", 0, SLUICE_GPU, "there is no cuda:2");
    refused("cuda:99999999999999999999", 0, SLUICE_GPU, "there is no cuda:");
    refused("cuda:0", SLUICE_PRIVATE, SLUICE_USAGE, "no private views");
    refused("cuda:0", SLUICE_REGISTER, SLUICE_USAGE, "of the host");
    refused(NULL, SLUICE_REGISTER | SLUICE_PRIVATE, SLUICE_USAGE, "read-only");
    refused(NULL, SLUICE_REGISTER, SLUICE_USAGE, "in memory of a GPU");
}

SL_TEST(slabs_that_are_not_what_they_are_said_to_be_are_refused)
{
    static const struct {
        uint32_t kind;
        bool file;      /* instead of what it is */
        uint64_t bytes; /* that it is said to have; 0: twice what it has */
        const char *device;
        int error;
        const char *words;
    } cases[] = {
        {SL_WIRE_SLAB_DEVICE, true, 0, "cuda:0", SLUICE_GPU, "cannot import a slab"},
        {SL_WIRE_SLAB_DEVICE, false, 0, "cuda:0", SLUICE_GPU, "cannot map 4194304 bytes"},
        {SL_WIRE_SLAB_DEVICE, false, INT64_MAX, "cuda:0", SLUICE_FORMAT, "can be counted"},
        {4, true, 0, NULL, SLUICE_FORMAT, "the unknown kind 4"},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        gpu_script_add(&script, cuda, 0, GPU_SCRIPT_GRANULE);
        script.slabs[0].kind = cases[i].kind;
        script.slabs[0].bytes = cases[i].bytes ? cases[i].bytes : 2 * GPU_SCRIPT_GRANULE;
        if (cases[i].file) {
            close(script.fds[0]);
            script.fds[0] = memfd_create("a file", MFD_CLOEXEC);
        }
        pool_script_start(&script);
        refused(cases[i].device, 0, cases[i].error, cases[i].words);
        pool_script_release(&script);
        pool_script_init(&script);
    }
}

SL_TEST_OF(bare_claims, a_machine_without_a_gpu_says_so)
{
    fake->set_devices(0); /* and the driver was never opened in this process */
    pool_script_init(&script);
    pool_script_start(&script);
    refused("cuda:0", 0, SLUICE_GPU, "give the container or the machine a GPU");
    refused(NULL, SLUICE_REGISTER, SLUICE_GPU, "give the container or the machine a GPU");
    struct sluice_model *model = attached(NULL, 0); /* which needs none */
    sluice_detach(model);
    pool_script_release(&script);
}

SL_TEST(tensors_of_a_gpu_are_waited_for_as_others)
{
    gpu_script_start(&script, cuda, 0);
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

SL_TEST(contexts_of_callers_stay)
{
    struct sl_cuda_context *own, *now;
    gpu_script_start(&script, cuda, 0);
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
        gpu_script_check_held(fake);
    renew();
    sluice_detach(model);
    gpu_script_check_held(fake);
    return failed;
}

static void fail_every_call(const char *device, uint32_t flags, int result)
{
    unsigned count = 0;
    for (size_t i = 0; gpu_script_calls[i]; i++)
        for (uint64_t nth = 1; fail_call(gpu_script_calls[i], nth, device, flags, result); nth++)
            ck_assert_uint_lt(count++, 1000);
    ck_assert_uint_gt(count, 10);
}

static void fail_every_allocation(const char *device, uint32_t flags)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    uint64_t failed = 0;
    for (uint64_t nth = 1; nth <= failed + 1; nth++) {
        api_alloc_fail_at(nth);
        struct sluice_model *model = attach(device, flags);
        if (!model || sluice_find(model, "a", &tensor, &error) < 0) {
            ck_assert_str_eq(error.message, "out of memory");
            failed = nth;
        }
        api_alloc_fail_at(0);
        sluice_detach(model);
        gpu_script_check_held(fake);
    }
    ck_assert_uint_eq(failed, 3); /* the model, its slabs, their order by name */
}

SL_TEST(a_failing_allocation_leaves_nothing)
{
    gpu_script_start(&script, cuda, 0);
    fail_every_allocation("cuda:0", 0);
}

SL_TEST(a_failing_call_of_the_driver_leaves_nothing)
{
    gpu_script_start(&script, cuda, 0);
    fail_every_call("cuda:0", 0, SL_CUDA_UNKNOWN);
    fail_every_call("cuda:0", 0, SL_CUDA_OUT_OF_MEMORY);
}

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
    ck_assert_int_eq(cuda->mem_create(&handle, GPU_SCRIPT_GRANULE, &prop, 0), 0);
    ck_assert_int_eq(cuda->address_reserve(&address, GPU_SCRIPT_GRANULE, 0, 0, 0), 0);
    ck_assert_int_eq(cuda->mem_map(address, GPU_SCRIPT_GRANULE, 0, handle, 0), 0);
    ck_assert_int_eq(cuda->mem_set_access(address, GPU_SCRIPT_GRANULE, &access, 1), 0);
    ck_assert_int_eq(cuda->stream_create(&stream, 0), 0);
    ck_assert_int_eq(cuda->copy_to_device(address, tensor.data, tensor.bytes, stream), 0);
    ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
    ck_assert_mem_eq((const void *)(uintptr_t)address, "[]", 2);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 0);
    ck_assert_int_eq(cuda->stream_destroy(stream), 0);
    ck_assert_int_eq(cuda->mem_unmap(address, GPU_SCRIPT_GRANULE), 0);
    ck_assert_int_eq(cuda->address_free(address, GPU_SCRIPT_GRANULE), 0);
    ck_assert_int_eq(cuda->mem_release(handle), 0);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
}

SL_TEST(memory_of_the_host_is_pinned_for_copies)
{
    struct fake_cuda_counts counts;
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sl_cuda_context *context;
    gpu_script_start_on_host(&script);
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

/* Where the driver does not pin what is mapped to be read: attached to all the same, and copied
 * through pinned pieces. */
static void copy_by_sluice(struct sluice_model *model, struct sl_cuda_context *context)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct fake_cuda_counts counts;
    const struct sl_cuda_prop prop = sl_cuda_shareable(0);
    const struct sl_cuda_access access = {prop.location, SL_CUDA_READ_WRITE};
    struct sl_cuda_stream *stream;
    uint64_t handle, address;
    ck_assert_int_eq(sluice_tensor_at(model, 1, &tensor, &error), 0);
    ck_assert_int_eq(cuda->set_current(context), 0);
    ck_assert_int_eq(cuda->stream_create(&stream, SL_CUDA_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(cuda->mem_create(&handle, GPU_SCRIPT_GRANULE, &prop, 0), 0);
    ck_assert_int_eq(cuda->address_reserve(&address, GPU_SCRIPT_GRANULE, 0, 0, 0), 0);
    ck_assert_int_eq(cuda->mem_map(address, GPU_SCRIPT_GRANULE, 0, handle, 0), 0);
    ck_assert_int_eq(cuda->mem_set_access(address, GPU_SCRIPT_GRANULE, &access, 1), 0);
    for (int i = 0; i < 5; i++)
        ck_assert_msg(sluice_copy(model, address + 64 * (unsigned)i, tensor.data, tensor.bytes,
                                  i == 4 ? NULL : stream, &error) == 0,
                      "%s", error.message);
    ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
    for (int i = 0; i < 5; i++)
        ck_assert_mem_eq((const void *)(uintptr_t)(address + 64 * (unsigned)i), "[]", 2);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.unpinned, 0);
    ck_assert_int_eq(sluice_copy(model, address, &error, 8, stream, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    ck_assert_int_eq(sluice_copy(model, address, tensor.data, 1 << 30, stream, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    for (int i = 0; i < 100; i++) /* on its way when the model goes */
        ck_assert_int_eq(sluice_copy(model, address, tensor.data, tensor.bytes, stream, &error), 0);
    sluice_detach(model);
    ck_assert_int_eq(cuda->set_current(context), 0);
    ck_assert_int_eq(cuda->stream_synchronize(stream), 0);
    ck_assert_int_eq(cuda->stream_destroy(stream), 0);
    ck_assert_int_eq(cuda->mem_unmap(address, GPU_SCRIPT_GRANULE), 0);
    ck_assert_int_eq(cuda->address_free(address, GPU_SCRIPT_GRANULE), 0);
    ck_assert_int_eq(cuda->mem_release(handle), 0);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
}

SL_TEST(memory_that_cannot_be_pinned_is_staged)
{
    static const struct {
        bool any, read_only;
        const char *words; /* NULL: it is pinned */
    } cases[] = {{true, true, NULL}, {true, false, "says so"}, {false, false, "says so"}};
    struct sl_cuda_context *context;
    ck_assert_int_eq(cuda->primary_retain(&context, 0), 0);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        struct sluice_model_info info = {.size = sizeof(info)};
        struct fake_cuda_counts counts;
        fake->set_registers(cases[i].any, cases[i].read_only);
        gpu_script_start_on_host(&script);
        struct sluice_model *model = attached(NULL, SLUICE_REGISTER);
        sluice_model_info(model, &info);
        ck_assert_msg(!info.unpinned == !cases[i].words, "%s", info.unpinned);
        ck_assert(!info.unpinned || strstr(info.unpinned, cases[i].words));
        fake->counts(&counts);
        ck_assert_uint_eq(counts.host_buffers, cases[i].words ? 0 : 2);
        copy_by_sluice(model, context);
        pool_script_release(&script);
        pool_script_init(&script);
    }
    ck_assert_int_eq(cuda->primary_release(0), 0);
}

/* What the driver says of itself need not hold (confidential computing). */
SL_TEST(a_driver_that_refuses_to_pin_is_no_failure)
{
    struct sluice_model_info info = {.size = sizeof(info)};
    struct fake_cuda_counts counts;
    struct sl_cuda_context *context;
    ck_assert_int_eq(cuda->primary_retain(&context, 0), 0);
    gpu_script_start_on_host(&script);
    fake->fail_call("cuMemHostRegister", 2, SL_CUDA_NOT_SUPPORTED); /* the second slab */
    struct sluice_model *model = attached(NULL, SLUICE_REGISTER);
    sluice_model_info(model, &info);
    ck_assert_msg(info.unpinned && strstr(info.unpinned, "CUDA_ERROR_NOT_SUPPORTED"), "%s",
                  info.unpinned);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.host_buffers, 0);
    copy_by_sluice(model, context);
    ck_assert_int_eq(cuda->primary_release(0), 0);
    struct sluice_model *other = attached(NULL, 0);
    ck_assert_int_eq(sluice_copy(other, 1, NULL, 0, NULL, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_USAGE);
    sluice_detach(other);
}

/* ---- work in flight -------------------------------------------------------------------------- */

/* Whoever drops a tensor right after a launch: the work goes on, and the context lives. */
struct flight {
    struct sl_cuda_context *context;
    struct sl_cuda_stream *stream;
    void *pinned;
    uint64_t handle, address;
};

static void begin_flight(struct flight *flight, int ordinal)
{
    const struct sl_cuda_prop prop = sl_cuda_shareable(ordinal);
    const struct sl_cuda_access access = {prop.location, SL_CUDA_READ_WRITE};
    ck_assert_int_eq(cuda->primary_retain(&flight->context, ordinal), 0);
    ck_assert_int_eq(cuda->set_current(flight->context), 0);
    ck_assert_int_eq(cuda->stream_create(&flight->stream, SL_CUDA_STREAM_NON_BLOCKING), 0);
    ck_assert_int_eq(cuda->host_alloc(&flight->pinned, 4096, 0), 0);
    ck_assert_int_eq(cuda->mem_create(&flight->handle, GPU_SCRIPT_GRANULE, &prop, 0), 0);
    ck_assert_int_eq(cuda->address_reserve(&flight->address, GPU_SCRIPT_GRANULE, 0, 0, 0), 0);
    ck_assert_int_eq(cuda->mem_map(flight->address, GPU_SCRIPT_GRANULE, 0, flight->handle, 0), 0);
    ck_assert_int_eq(cuda->mem_set_access(flight->address, GPU_SCRIPT_GRANULE, &access, 1), 0);
    fake->set_delay_us(20000);
}

static void end_flight(struct flight *flight, int ordinal)
{
    ck_assert_int_eq(cuda->set_current(flight->context), 0);
    ck_assert_int_eq(cuda->stream_synchronize(flight->stream), 0);
    ck_assert_int_eq(cuda->stream_destroy(flight->stream), 0);
    ck_assert_int_eq(cuda->host_free(flight->pinned), 0);
    ck_assert_int_eq(cuda->mem_unmap(flight->address, GPU_SCRIPT_GRANULE), 0);
    ck_assert_int_eq(cuda->address_free(flight->address, GPU_SCRIPT_GRANULE), 0);
    ck_assert_int_eq(cuda->mem_release(flight->handle), 0);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    ck_assert_int_eq(cuda->primary_release(ordinal), 0);
}

/* Each call of a staged copy, and each allocation, failing in turn. */
SL_TEST(a_staged_copy_that_fails_leaves_nothing)
{
    static const char *const names[] = {"cuMemHostAlloc", "cuEventCreate", "cuMemcpyHtoDAsync",
                                        "cuEventRecord", "cuEventSynchronize"};
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct flight flight;
    for (size_t i = 0; i <= SL_COUNT(names); i++) {
        renew();
        fake->set_registers(true, false);
        gpu_script_start_on_host(&script);
        struct sluice_model *model = attached(NULL, SLUICE_REGISTER);
        begin_flight(&flight, 0);
        fake->set_delay_us(0);
        ck_assert_int_eq(sluice_tensor_at(model, 1, &tensor, &error), 0);
        if (i < SL_COUNT(names))
            fake->fail_call(names[i], 1, SL_CUDA_UNKNOWN);
        else
            api_alloc_fail_at(1);
        int failed = 0;
        for (int n = 0; n < 3; n++)
            failed += sluice_copy(model, flight.address, tensor.data, tensor.bytes, flight.stream,
                                  &error) < 0;
        api_alloc_fail_at(0);
        ck_assert_msg(failed == 1, "%d of case %zu", failed, i);
        end_flight(&flight, 0);
        sluice_detach(model);
        gpu_script_check_held(fake);
        pool_script_release(&script);
        pool_script_init(&script);
    }
}

/* One piece is written while the other is on its way, in calls of one piece each, too. */
SL_TEST(a_staged_copy_does_not_wait_for_the_one_before)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct flight flight;
    fake->set_registers(true, false);
    gpu_script_start_on_host(&script);
    struct sluice_model *model = attached(NULL, SLUICE_REGISTER);
    begin_flight(&flight, 0);
    ck_assert_int_eq(sluice_tensor_at(model, 1, &tensor, &error), 0);
    for (int round = 0; round < 3; round++) {
        fake->hold(true);
        for (int i = 0; i < 2; i++)
            ck_assert_int_eq(sluice_copy(model, flight.address, tensor.data, tensor.bytes,
                                         flight.stream, &error),
                             0);
        fake->hold(false);
        ck_assert_int_eq(cuda->stream_synchronize(flight.stream), 0);
    }
    end_flight(&flight, 0);
    sluice_detach(model);
    gpu_script_check_held(fake);
}

SL_TEST(memory_of_a_gpu_is_not_unmapped_under_work)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct flight flight;
    gpu_script_start(&script, cuda, 0);
    struct sluice_model *model = attached("cuda:0", 0);
    begin_flight(&flight, 0);
    ck_assert_int_eq(sluice_find(model, "a", &tensor, &error), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(
            cuda->copy_to_host(flight.pinned, (uintptr_t)tensor.data, tensor.bytes, flight.stream),
            0);
    ck_assert_int_eq(cuda->set_current(NULL), 0); /* as a garbage collector's thread has it */
    sluice_detach(model);
    ck_assert_int_eq(cuda->set_current(flight.context), 0);
    ck_assert_int_eq(cuda->stream_synchronize(flight.stream), 0);
    gpu_script_expect(flight.pinned, 1);
    end_flight(&flight, 0);
    gpu_script_check_held(fake);
}

SL_TEST(pinned_memory_is_not_let_go_under_work_of_any_gpu)
{
    for (int ordinal = 0; ordinal < 2; ordinal++) {
        struct sluice_tensor tensor = {.size = sizeof(tensor)};
        struct flight flight;
        gpu_script_start_on_host(&script);
        struct sluice_model *model = attached(NULL, SLUICE_REGISTER); /* the first GPU's */
        begin_flight(&flight, ordinal);
        ck_assert_int_eq(sluice_tensor_at(model, 1, &tensor, &error), 0);
        ck_assert_int_eq(
            cuda->copy_to_device(flight.address, tensor.data, tensor.bytes, flight.stream), 0);
        ck_assert_int_eq(cuda->set_current(NULL), 0);
        sluice_detach(model);
        end_flight(&flight, ordinal);
        gpu_script_check_held(fake);
        pool_script_release(&script);
        pool_script_init(&script);
    }
}

SL_TEST(the_gpu_that_pins_is_the_callers)
{
    struct sl_cuda_context *first, *second;
    gpu_script_start_on_host(&script);
    ck_assert_int_eq(cuda->primary_retain(&second, 1), 0);
    ck_assert_int_eq(cuda->set_current(second), 0);
    struct sluice_model *model = attached(NULL, SLUICE_REGISTER);
    ck_assert_int_eq(cuda->primary_release(1), 0); /* the model has its own */
    ck_assert_int_eq(cuda->set_current(second), 0);
    ck_assert_int_eq(cuda->set_current(NULL), 0);
    sluice_detach(model);
    gpu_script_check_held(fake);
    ck_assert_int_eq(cuda->primary_retain(&first, 0), 0);
    ck_assert_ptr_ne(first, second);
    ck_assert_int_eq(cuda->primary_release(0), 0);
    fail_every_call(NULL, SLUICE_REGISTER, SL_CUDA_UNKNOWN);
}

static const struct sl_claim_case bare_claims = {.seconds = 0};

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

/* The node with memory of GPUs, against the fake driver: real loads, real clients. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "gpu_case.h"
#include "metrics.h"
#include "model_maker.h"
#include "range_server.h"
#include "registry_settle.h"
#include "use_fake_cuda.h"

SL_TEST(a_client_reads_what_the_node_loaded)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:0"), NULL);
    struct sluice_model *model = gpu_case_attach("g", NULL, "cuda:0");
    ck_assert_msg(model, "%s", gpu_case_error.message);
    gpu_case_bytes(model);
    struct fake_cuda_counts counts;
    gpu_case_fake->counts(&counts);
    ck_assert_uint_eq(counts.bytes, 2 * GPU_CASE_MIB); /* one copy for both */
    sluice_detach(model);
}

SL_TEST(two_devices_hold_a_model_each)
{
    gpu_case_fake->set_devices(2);
    node_case_open(&gpu_case, "",
                   GPU_CASE_ON("one", "small", "cuda:0") GPU_CASE_ON("two", "small", "cuda:1"),
                   NULL);
    struct sluice_model *one = gpu_case_attach("one", NULL, "cuda:0"),
                        *two = gpu_case_attach("two", NULL, "cuda:1");
    ck_assert_msg(one && two, "%s", gpu_case_error.message);
    gpu_case_bytes(one);
    gpu_case_bytes(two);
    gpu_case_refused("two", "cuda:0", SLUICE_USAGE, "device", "in memory of 'cuda:1'");
    sluice_detach(one);
    sluice_detach(two);
}

SL_TEST(a_wrong_place_is_told_before_anything_is_loaded)
{
    node_case_open(&gpu_case, "",
                   GPU_CASE_ON("g", "small", "cuda:0") GPU_CASE_ON("h", "small", "host"), NULL);
    uint64_t loads = node_case_counts(&gpu_case).loads;
    gpu_case_refused("g", "host", SLUICE_USAGE, "device",
                     "in memory of 'cuda:0': attach to it there");
    gpu_case_refused("h", "cuda:0", SLUICE_USAGE, "device", "in memory of 'host'");
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, loads);
}

/* The object changes in mid-load, and back: the GPU has room for it once, not twice. */
SL_TEST(a_load_that_starts_over_needs_its_memory_once)
{
    enum { ITEMS = 300 * 1024 };
    char models[512];
    size_t bytes;
    struct sl_server *server = sl_server_start();
    uint8_t *blob = sl_model_safetensors("a,b", ITEMS, &bytes);
    sl_server_put(server, "/m.safetensors", blob, bytes, "\"1\"");
    SL_SCRIPT(server, {.path = "/m.safetensors", .first = 2, .fault = SL_FAULT_CHANGED});
    gpu_case_fake->set_bytes(6 * GPU_CASE_MIB);
    snprintf(models, sizeof(models),
             "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: g}\n"
             "source: {uri: \"%s\"}\nsink: {pool: {device: \"cuda:0\"}}\n",
             sl_server_url(server, "/m.safetensors"));
    node_case_open(&gpu_case, "", models, NULL);
    gpu_case_failure("g", "\"state\":\"ready\"");
    sl_server_stop(server);
    free(blob);
}

SL_TEST(without_a_driver_the_node_runs_and_says_why)
{
    struct sluice_model *model;
    gpu_case_fake->fail_call("cuInit", 1, SL_CUDA_SYSTEM_NOT_READY);
    gpu_case_fake->fail_call("cuInit", 2, SL_CUDA_SYSTEM_NOT_READY);
    node_case_open(&gpu_case, "",
                   GPU_CASE_ON("g", "small", "cuda:0") GPU_CASE_ON("h", "small", "host"), NULL);
    ck_assert_uint_eq(node_case_counts(&gpu_case).failed, 1);
    ck_assert_uint_eq(node_case_counts(&gpu_case).ready, 1);
    model = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(model, "%s", gpu_case_error.message);
    sluice_detach(model);
}

SL_TEST(a_device_that_is_not_there_is_named)
{
    struct sl_registry_counts counts;
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:3"), NULL);
    counts = node_case_counts(&gpu_case);
    ck_assert_uint_eq(counts.failed, 1);
    gpu_case_failure("g", "there is no cuda:3: this process sees 1 GPU");
}

/* The fake's first GPU, which the daemon has not opened. */
#define DIGITS "fa01080f-161d-242b-3239-40474e555c63"
#define UUID   "GPU-" DIGITS
/* The daemon's thread that opens GPUs; clients in this process ask the driver, too. */
#define OPENER "sluice-driver"

static void *attach_by_uuid(void *arg)
{
    (void)arg;
    gpu_case_refused("h", UUID, SLUICE_USAGE, "device", "in memory of 'host'");
    return NULL;
}

/* The daemon opens GPUs, which takes until the driver is let go, for whoever asks in `run`; others
 * are answered meanwhile. */
static pthread_t open_slowly(void *(*run)(void *arg), void *arg)
{
    struct sluice_error error = {0};
    pthread_t thread;
    gpu_case_fake->set_thread(OPENER);
    gpu_case_fake->hold_call("cuDeviceGetCount");
    pthread_create(&thread, NULL, run, arg);
    SL_AWAIT(gpu_case_fake->holding() == 1, "the driver's work");
    struct sluice_model *other = NULL;
    const struct sluice_attach_options options = {
        .size = sizeof(options), .model = "h", .socket = gpu_case.socket, .timeout_ms = 60000};
    ck_assert_msg(sluice_attach(&options, &other, &error) == 0, "%s", error.message);
    sluice_detach(other);
    return thread;
}

SL_TEST(others_are_served_while_a_gpu_is_looked_for)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    pthread_t thread = open_slowly(attach_by_uuid, NULL);
    gpu_case_fake->hold_call(NULL);
    pthread_join(thread, NULL);
}

/* A driver that hangs keeps those who asked it waiting, and nobody who needs memory of the host. */
SL_TEST(host_memory_is_given_back_while_a_driver_hangs)
{
    struct sluice_error error = {0};
    struct sluice_model_info info = {.size = sizeof(info)};
    char name[64];
    uint64_t bytes;
    node_case_put(&gpu_case, "other", GPU_CASE_ITEMS / 2);
    node_case_open(&gpu_case, ", uriPrefixes: [\"memory://m/other\"]",
                   GPU_CASE_ON("h", "small", "host"), NULL);
    uint64_t held = node_case_counts(&gpu_case).held_bytes;
    struct sluice_model *other = gpu_case_attach("memory://m/other", NULL, "host");
    ck_assert_msg(other, "%s", gpu_case_error.message);
    sluice_model_info(other, &info);
    snprintf(name, sizeof(name), "%s", info.name);
    sluice_detach(other);
    sl_registry_settle(gpu_case.node->registry);
    ck_assert_uint_gt(node_case_counts(&gpu_case).held_bytes, held);
    pthread_t thread = open_slowly(attach_by_uuid, NULL);
    ck_assert_msg(sluice_evict(gpu_case.socket, name, NULL, &bytes, &error) == 0, "%s",
                  error.message);
    SL_AWAIT(node_case_counts(&gpu_case).held_bytes == held, "the room of what was evicted");
    gpu_case_fake->hold_call(NULL);
    pthread_join(thread, NULL);
}

/* As nvidia-smi prints the UUID of a slice of a GPU. */
SL_TEST(a_slice_of_a_gpu_is_known_by_its_own_name)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    gpu_case_refused("h", "MIG-" DIGITS, SLUICE_USAGE, "device", "in memory of 'host'");
    gpu_case_refused("h", "MIG-" DIGITS "0", SLUICE_USAGE, "", "does not name a GPU");
    gpu_case_refused("h", "GPV-" DIGITS, SLUICE_NOT_FOUND, "absent", "is not memory that");
}

SL_TEST(each_device_has_a_budget_of_its_own)
{
    gpu_case_fake->set_devices(2);
    node_case_put(&gpu_case, "large",
                  600 * 1024); /* 4.7 MiB: 6 on a device, more than the host's 1 MiB */
    node_case_open(&gpu_case, ", gpuBudgetBytes: 6MiB",
                   GPU_CASE_ON("one", "large", "cuda:0") GPU_CASE_ON("two", "large", "cuda:1")
                       GPU_CASE_ON("three", "small", "cuda:0"),
                   NULL);
    struct sl_registry_counts counts = node_case_counts(&gpu_case);
    ck_assert_uint_eq(counts.ready, 2);
    ck_assert_uint_eq(counts.failed, 1); /* they are pinned */
    ck_assert_uint_eq(counts.held_bytes, 0);
    uint64_t held, budget;
    sl_registry_gpu_bytes(gpu_case.node->registry, 0, &held, &budget);
    ck_assert_uint_eq(budget, 6 * GPU_CASE_MIB);
    ck_assert_uint_le(held, 6 * GPU_CASE_MIB);
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    ck_assert_int_eq(sl_metrics_write(&text, 1, NULL), 0);
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    sl_json_object(&json);
    sl_registry_json(gpu_case.node->registry, true, &json);
    sl_json_end(&json);
    const char *shown = sl_json_text(&json, NULL);
    ck_assert_msg(strstr(shown, "{\"device\":\"cuda:1\",\"held_bytes\":6291456,"), "%s", shown);
    ck_assert_msg(strstr(shown, "\"holder\":\"pool\",\"device\":\"cuda:0\""), "%s", shown);
    sl_json_release(&json);
    const char *metrics = sl_buf_string(&text);
    ck_assert_ptr_nonnull(strstr(metrics, "sluice_gpu_budget_bytes{device=\"cuda:1\"} 6291456\n"));
    ck_assert_ptr_nonnull(strstr(metrics, "sluice_gpu_memory_bytes{device=\"cuda:0\"} 1073741824"));
}

SL_TEST(memory_that_others_use_is_not_taken)
{
    gpu_case_fake->set_bytes(4 * GPU_CASE_MIB);
    node_case_put(&gpu_case, "large", 600 * 1024);
    node_case_open(&gpu_case, ", gpuBudgetBytes: 100MiB", GPU_CASE_ON("g", "large", "cuda:0"),
                   NULL);
    gpu_case_failure("g", "are free on cuda:0: other processes use it");
    ck_assert_uint_eq(gpu_case_fake->calls("cuMemCreate"), 0);
}

SL_TEST(eviction_gives_the_memory_back)
{
    struct fake_cuda_counts counts;
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:0"), NULL);
    struct sluice_model *model = gpu_case_attach("g", NULL, "cuda:0");
    ck_assert_msg(model, "%s", gpu_case_error.message);
    gpu_case_bytes(model);
    ck_assert_int_eq(sluice_evict(gpu_case.socket, "g", NULL, NULL, &gpu_case_error), -1);
    sluice_detach(model);
    SL_AWAIT(!node_case_counts(&gpu_case).references, "the end of the last reference");
    ck_assert_int_eq(sl_registry_pin(gpu_case.node->registry, "g", false, NULL),
                     -1); /* by the config */
    node_case_end(&gpu_case);
    gpu_case_fake->counts(&counts);
    ck_assert_uint_eq(counts.bytes, 0);
}

SL_TEST(a_model_that_moves_to_another_device_is_loaded_there)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("m", "small", "host"), NULL);
    struct sluice_model *before = gpu_case_attach("m", NULL, "host");
    ck_assert_msg(before, "%s", gpu_case_error.message);
    gpu_case_reload(GPU_CASE_ON("m", "small", "cuda:0"));
    struct sluice_model *after = gpu_case_attach("m", NULL, "cuda:0");
    ck_assert_msg(after, "%s", gpu_case_error.message);
    gpu_case_bytes(after);
    gpu_case_bytes(before); /* who has it keeps it */
    sluice_detach(before);
    sluice_detach(after);
    gpu_case_reload(GPU_CASE_ON("m", "small", "host"));
    before = gpu_case_attach("m", NULL, "host");
    ck_assert_msg(before, "%s", gpu_case_error.message);
    gpu_case_bytes(before);
    sluice_detach(before);
}

/* ---- deposits -------------------------------------------------------------------------------- */

SL_TEST(a_deposit_lies_where_its_maker_put_it)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    node_case_open(&gpu_case, "",
                   GPU_CASE_ON("g", "small", "cuda:0") GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *gpu = gpu_case_attach("g", NULL, "cuda:0"),
                        *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(gpu && host, "%s", gpu_case_error.message);
    ck_assert_msg(gpu_case_deposit("k", "cuda:0", gpu) == 0, "%s", gpu_case_error.message);
    ck_assert_msg(gpu_case_deposit("k", "cuda:0", host) == 0, "%s",
                  gpu_case_error.message); /* of a host's model */
    sluice_detach(gpu);
    gpu = gpu_case_attach("h", "k", "cuda:0");
    ck_assert_msg(gpu, "%s", gpu_case_error.message);
    ck_assert_int_eq(sluice_find(gpu, "t", &tensor, &gpu_case_error), 0);
    ck_assert(((const float *)tensor.data)[GPU_CASE_ITEMS - 1] == GPU_CASE_ITEMS - 1);
    ck_assert_ptr_null(gpu_case_attach("h", "k", "host"));
    ck_assert_str_eq(gpu_case_error.code, "device");
    sluice_detach(gpu);
    sluice_detach(host);
}

/* A deposit, but for its commit. */
static float *almost_there; /* its tensor */

static struct sluice_deposit *almost(struct sluice_model *source, int cancel_fd)
{
    static const uint64_t shape[1] = {GPU_CASE_ITEMS};
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_deposit *made = NULL;
    void *data;
    sluice_model_info(source, &info);
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = info.name,
                                             .key = "k",
                                             .socket = gpu_case.socket,
                                             .device = "cuda:0",
                                             .bytes = 8192,
                                             .cancel_fd = cancel_fd,
                                             .timeout_ms = 60000};
    memcpy(options.identity, info.identity, sizeof(options.identity));
    ck_assert_msg(sluice_deposit_begin(&options, &made, &gpu_case_error) == 0, "%s",
                  gpu_case_error.message);
    ck_assert_int_eq(sluice_deposit_add(made, "t", "F32", 1, shape, NULL, 4 * GPU_CASE_ITEMS, &data,
                                        &gpu_case_error),
                     0);
    almost_there = data;
    for (unsigned i = 0; i < GPU_CASE_ITEMS; i++)
        almost_there[i] = (float)i;
    return made;
}

static void *commit(void *deposit)
{
    struct sluice_error error = {0};
    return sluice_deposit_commit(deposit, &error) < 0 ? deposit : NULL;
}

/* The driver makes a context and takes its time; until then the deposit is not there, and everybody
 * else is served. */
static void commit_slowly(struct sluice_deposit *deposit, struct sluice_model *host, int wake_fd)
{
    pthread_t thread;
    void *failed;
    uint64_t before = gpu_case_fake->calls("cuDevicePrimaryCtxRetain");
    gpu_case_fake->hold_contexts(true);
    pthread_create(&thread, NULL, commit, deposit);
    SL_AWAIT(gpu_case_fake->calls("cuDevicePrimaryCtxRetain") > before, "the driver's work");
    struct sluice_model *other = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(other, "%s", gpu_case_error.message);
    gpu_case_bytes(other);
    sluice_detach(other);
    if (wake_fd < 0)
        gpu_case_fake->hold_contexts(false);
    else
        ck_assert_int_eq(eventfd_write(wake_fd, 1), 0);
    pthread_join(thread, &failed);
    ck_assert(!failed == (wake_fd < 0));
    sluice_deposit_end(deposit);
    if (wake_fd >= 0) {
        SL_AWAIT(!sl_metric_get(SL_M_POOL_DEPOSITING), "the end of its connection");
        gpu_case_fake->hold_contexts(false);
    }
    sluice_detach(host);
}

SL_TEST(others_are_served_while_a_deposit_is_looked_at)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    commit_slowly(almost(host, -1), host, -1);
    struct sluice_model *gpu = gpu_case_attach("h", "k", "cuda:0");
    ck_assert_msg(gpu, "%s", gpu_case_error.message);
    sluice_detach(gpu);
}

SL_TEST(who_leaves_while_its_deposit_is_looked_at_has_deposited_nothing)
{
    int wake_fd = eventfd(0, EFD_CLOEXEC);
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    commit_slowly(almost(host, wake_fd), host, wake_fd);
    host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host && gpu_case_deposit("k", "cuda:0", host) == 0, "%s",
                  gpu_case_error.message); /* its place is free again */
    sluice_detach(host);
    close(wake_fd);
}

struct beginning {
    uint8_t identity[32];
    int cancel_fd; /* -1: none */
    struct sluice_deposit *made;
    struct sluice_error error;
};

static void *begin_by_uuid(void *arg)
{
    struct beginning *beginning = arg;
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = "h",
                                             .key = "k",
                                             .socket = gpu_case.socket,
                                             .device = UUID,
                                             .bytes = 2 * GPU_CASE_MIB,
                                             .cancel_fd = beginning->cancel_fd,
                                             .timeout_ms = 60000};
    memcpy(options.identity, beginning->identity, sizeof(options.identity));
    sluice_deposit_begin(&options, &beginning->made, &beginning->error);
    return NULL;
}

static struct beginning of_host(int cancel_fd)
{
    struct beginning beginning = {.cancel_fd = cancel_fd};
    struct sluice_model_info info = {.size = sizeof(info)};
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    sluice_model_info(host, &info);
    memcpy(beginning.identity, info.identity, sizeof(beginning.identity));
    sluice_detach(host);
    return beginning;
}

static void check_deposit(void)
{
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host && gpu_case_deposit("k", "cuda:0", host) == 0, "%s", gpu_case_error.message);
    sluice_detach(host);
}

SL_TEST(others_are_served_while_a_gpu_is_opened_for_a_deposit)
{
    struct beginning beginning = of_host(-1);
    pthread_t thread = open_slowly(begin_by_uuid, &beginning);
    gpu_case_fake->hold_call(NULL);
    pthread_join(thread, NULL);
    ck_assert_msg(beginning.made, "%s", beginning.error.message);
    uint64_t held, budget;
    sl_registry_gpu_bytes(gpu_case.node->registry, 0, &held, &budget);
    ck_assert_uint_eq(held, 2 * GPU_CASE_MIB);
    sluice_deposit_end(beginning.made);
    SL_AWAIT(!sl_metric_get(SL_M_POOL_DEPOSITING), "the end of the deposit");
    check_deposit();
}

SL_TEST(who_leaves_while_a_gpu_is_opened_has_begun_nothing)
{
    int wake_fd = eventfd(0, EFD_CLOEXEC);
    struct beginning beginning = of_host(wake_fd);
    pthread_t thread = open_slowly(begin_by_uuid, &beginning);
    ck_assert_int_eq(eventfd_write(wake_fd, 1), 0);
    pthread_join(thread, NULL);
    ck_assert_ptr_null(beginning.made);
    ck_assert_int_eq(beginning.error.kind, SLUICE_CANCELED);
    SL_AWAIT(!sl_metric_get(SL_M_POOL_DEPOSITING), "the end of its connection");
    gpu_case_fake->hold_call(NULL);
    check_deposit();
    close(wake_fd);
}

SL_TEST(a_deposit_on_a_gpu_that_does_not_open_is_refused)
{
    struct beginning beginning = of_host(-1);
    gpu_case_fake->set_thread(OPENER);
    gpu_case_fake->fail_call("cuDeviceGetUuid", 1, SL_CUDA_UNKNOWN);
    begin_by_uuid(&beginning);
    ck_assert_ptr_null(beginning.made);
    ck_assert_msg(beginning.error.kind == SLUICE_NOT_FOUND, "%s", beginning.error.message);
    check_deposit();
}

/* As many contexts as before, whatever the driver refuses. */
SL_TEST(a_deposit_that_the_driver_refuses_is_refused)
{
    static const char *const names[] = {"cuMemImportFromShareableHandle", "cuMemMap",
                                        "cuMemSetAccess", "cuDevicePrimaryCtxRetain"};
    node_case_open(&gpu_case, ", gpuWarmSeconds: 0", GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        struct sluice_error error = {0};
        struct sluice_deposit *deposit = almost(host, -1);
        gpu_case_fake->fail_call(names[i], 1, SL_CUDA_UNKNOWN);
        ck_assert_int_eq(sluice_deposit_commit(deposit, &error), -1);
        ck_assert_msg(error.kind == SLUICE_INTEGRITY || error.kind == SLUICE_GPU, "%s: %s",
                      names[i], error.message);
        sluice_deposit_end(deposit);
    }
    sluice_detach(host);
}

/* Such a driver takes rights of a mapping away only with the mapping. */
SL_TEST(memory_that_cannot_be_made_read_only_where_it_is_is_mapped_anew)
{
    static const int refusals[] = {SL_CUDA_INVALID_VALUE, SL_CUDA_NOT_SUPPORTED};
    struct sluice_error error = {0};
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    uint64_t bytes;
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    for (size_t i = 0; i < SL_COUNT(refusals); i++) {
        struct sluice_deposit *deposit = almost(host, -1);
        gpu_case_fake->fail_call("cuMemSetAccess", 1, refusals[i]);
        ck_assert_msg(sluice_deposit_commit(deposit, &error) == 0, "%s", error.message);
        sluice_deposit_end(deposit);
        struct sluice_model *gpu = gpu_case_attach("h", "k", "cuda:0");
        ck_assert_msg(gpu, "%s", gpu_case_error.message);
        ck_assert_int_eq(sluice_find(gpu, "t", &tensor, &gpu_case_error), 0);
        ck_assert(((const float *)tensor.data)[GPU_CASE_ITEMS - 1] == GPU_CASE_ITEMS - 1);
        sluice_detach(gpu);
        SL_AWAIT(sluice_evict(gpu_case.socket, "h", "k", &bytes, &error) == 0, "its eviction");
    }
    sluice_detach(host);
}

/* It was unmapped to be mapped anew, and is again what it was. */
SL_TEST(a_deposit_that_cannot_be_made_read_only_stays_its_makers)
{
    struct sluice_error error = {0};
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    struct sluice_deposit *deposit = almost(host, -1);
    for (uint64_t nth = 1; nth <= 2; nth++)
        gpu_case_fake->fail_call("cuMemSetAccess", nth, SL_CUDA_INVALID_VALUE);
    gpu_case_fake->fail_call("cuMemMap", 1, SL_CUDA_UNKNOWN);
    ck_assert_int_eq(sluice_deposit_commit(deposit, &error), -1);
    ck_assert_int_eq(error.kind, SLUICE_GPU);
    ck_assert_ptr_nonnull(strstr(error.message, "read-only"));
    for (unsigned i = 0; i < GPU_CASE_ITEMS; i++)
        ck_assert(almost_there[i]++ == (float)i);
    sluice_deposit_end(deposit);
    sluice_detach(host);
}

SL_TEST(a_deposit_on_a_full_device_is_refused)
{
    node_case_open(&gpu_case, ", gpuBudgetBytes: 3MiB", GPU_CASE_ON("g", "small", "cuda:0"), NULL);
    struct sluice_model *gpu = gpu_case_attach("g", NULL, "cuda:0");
    ck_assert_msg(gpu, "%s", gpu_case_error.message);
    ck_assert_int_eq(gpu_case_deposit("k", "cuda:0", gpu), -1);
    ck_assert_int_eq(gpu_case_error.kind, SLUICE_NO_SPACE);
    ck_assert_msg(strstr(gpu_case_error.message, "pool.gpuBudgetBytes"), "%s",
                  gpu_case_error.message);
    sluice_detach(gpu);
}

/* ---- URIs ------------------------------------------------------------------------------------ */

#define URI "memory://m/small"

SL_TEST(a_uri_is_loaded_where_it_is_wanted)
{
    gpu_case_fake->set_devices(2);
    node_case_open(&gpu_case, ", uriPrefixes: [\"memory://m/\"]", "", NULL);
    struct sluice_model *first = gpu_case_attach(URI, NULL, "cuda:1");
    ck_assert_msg(first, "%s", gpu_case_error.message);
    gpu_case_bytes(first);
    ck_assert_uint_eq(node_case_counts(&gpu_case).held_bytes, 0); /* nothing on the host */
    struct sluice_model *second = gpu_case_attach(URI, NULL, "cuda:1");
    ck_assert_msg(second, "%s", gpu_case_error.message);
    sl_registry_settle(gpu_case.node->registry);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 1);
    struct sluice_model *host = gpu_case_attach(URI, NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    gpu_case_bytes(host);
    sl_registry_settle(gpu_case.node->registry);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 2);
    sluice_detach(first);
    sluice_detach(second);
    sluice_detach(host);
}

SL_TEST(a_uri_on_a_gpu_needs_the_same_rights_and_room)
{
    node_case_put(&gpu_case, "large", 600 * 1024);
    node_case_open(&gpu_case,
                   ", gpuBudgetBytes: 3MiB, uriPrefixes: [\"memory://m/large\", \"" URI "\"]", "",
                   NULL);
    gpu_case_refused("memory://n/small", "cuda:0", SLUICE_AUTH, "", "pool.uriPrefixes");
    gpu_case_refused(URI, "cuda:5", SLUICE_GPU, "", "");
    gpu_case_refused(URI, "cuda:all", SLUICE_USAGE, "device", "memory of one GPU");
    gpu_case_refused("memory://m/large", "cuda:0", SLUICE_NO_SPACE, "budget",
                     "pool.gpuBudgetBytes");
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 0);
    ck_assert_uint_eq(gpu_case_fake->calls("cuMemCreate"), 0);
}

SL_TEST(what_was_made_from_a_uri_is_found_on_the_gpu)
{
    node_case_open(&gpu_case, ", uriPrefixes: [\"" URI "\"]", "", NULL);
    struct sluice_model *host = gpu_case_attach(URI, NULL, "host");
    struct sluice_model *gpu = gpu_case_attach(URI, NULL, "cuda:0");
    ck_assert_msg(host && gpu, "%s", gpu_case_error.message);
    ck_assert_msg(gpu_case_deposit("h", "cuda:0", host) == 0, "%s", gpu_case_error.message);
    ck_assert_msg(gpu_case_deposit("g", "cuda:0", gpu) == 0, "%s", gpu_case_error.message);
    sluice_detach(host);
    sluice_detach(gpu);
    host = gpu_case_attach(URI, "h", "cuda:0");
    gpu = gpu_case_attach(URI, "g", "cuda:0");
    ck_assert_msg(host && gpu, "%s", gpu_case_error.message);
    ck_assert_ptr_null(gpu_case_attach(URI, "x", "cuda:0"));
    ck_assert_msg(strcmp(gpu_case_error.code, "absent") == 0, "%s", gpu_case_error.message);
    sluice_detach(host);
    sluice_detach(gpu);
}

static bool prepare(void)
{
    gpu_case_fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = gpu_case_setup, .teardown = gpu_case_teardown, .prepare = prepare)

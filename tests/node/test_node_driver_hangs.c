/* A driver of GPUs that hangs: whose memory it is waits for it, and nobody else does. */
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

#define URI "memory://m/small"
/* The fake's first GPU. */
#define UUID "GPU-fa01080f-161d-242b-3239-40474e555c63"

struct asking {
    const char *model, *device;
    int cancel_fd; /* 0: none */
    struct sluice_model *got;
    struct sluice_error error;
};

static void *ask(void *arg)
{
    struct asking *asking = arg;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = asking->model,
                                                  .device = asking->device,
                                                  .socket = gpu_case.socket,
                                                  .cancel_fd = asking->cancel_fd,
                                                  .timeout_ms = 60000};
    sluice_attach(&options, &asking->got, &asking->error);
    return NULL;
}

/* From now on whoever calls this function of the driver waits: until somebody does. */
static pthread_t hang(const char *function, struct asking *asking)
{
    pthread_t thread;
    gpu_case_fake->hold_call(function);
    pthread_create(&thread, NULL, ask, asking);
    SL_AWAIT(gpu_case_fake->holding() > 0, "the driver's work");
    return thread;
}

static void expect_host_is_served(void)
{
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    gpu_case_bytes(host);
    sluice_detach(host);
}

/* ---- while a GPU is looked for --------------------------------------------------------------- */

SL_TEST(who_leaves_while_a_gpu_is_looked_for_begins_no_load)
{
    struct asking gone = {URI, UUID, eventfd(0, EFD_CLOEXEC), NULL, {0}};
    node_case_open(&gpu_case, ", uriPrefixes: [\"" URI "\"]", GPU_CASE_ON("h", "small", "host"),
                   NULL);
    struct sl_registry_counts before = node_case_counts(&gpu_case);
    gpu_case_fake->set_thread("sluice-driver"); /* the client finds the GPU by itself */
    pthread_t thread = hang("cuDeviceGetCount", &gone);
    ck_assert_int_eq(eventfd_write(gone.cancel_fd, 1), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(gone.error.kind, SLUICE_CANCELED);
    SL_AWAIT(!sl_metric_get(SL_M_POOL_CLIENTS), "the end of its connection");
    gpu_case_fake->hold_call(NULL);
    gpu_case_refused("h", UUID, SLUICE_USAGE, "device", "in memory of 'host'"); /* comes after it */
    sl_registry_settle(gpu_case.node->registry);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, before.loads);
    ck_assert_uint_eq(node_case_counts(&gpu_case).models, before.models);
    close(gone.cancel_fd);
}

/* ---- while a deposit is looked at ------------------------------------------------------------ */

static void *deposit_on_first(void *source)
{
    gpu_case_deposit("k", "cuda:0", source);
    return NULL;
}

SL_TEST(deposits_on_other_gpus_go_on_while_one_is_looked_at)
{
    pthread_t thread;
    gpu_case_fake->set_devices(2);
    node_case_open(&gpu_case, "", GPU_CASE_ON("h", "small", "host"), NULL);
    struct sluice_model *host = gpu_case_attach("h", NULL, "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    gpu_case_fake->set_thread("sluice-cuda0");
    gpu_case_fake->hold_call("cuMemImportFromShareableHandle");
    pthread_create(&thread, NULL, deposit_on_first, host);
    SL_AWAIT(gpu_case_fake->holding() > 0, "the driver's work");
    ck_assert_msg(gpu_case_deposit("k-1", "cuda:1", host) == 0, "%s", gpu_case_error.message);
    struct sluice_model *other = gpu_case_attach("h", "k-1", "cuda:1");
    ck_assert_msg(other, "%s", gpu_case_error.message);
    gpu_case_fake->hold_call(NULL);
    pthread_join(thread, NULL);
    sluice_detach(other);
    other = gpu_case_attach("h", "k", "cuda:0");
    ck_assert_msg(other, "%s", gpu_case_error.message);
    sluice_detach(other);
    sluice_detach(host);
}

/* ---- while memory of a GPU is unmapped ------------------------------------------------------- */

SL_TEST(others_are_served_while_a_full_model_is_unmapped)
{
    struct asking first = {URI, "cuda:0", 0, NULL, {0}};
    node_case_open(&gpu_case, ", uriPrefixes: [\"" URI "\"]", GPU_CASE_ON("h", "small", "host"),
                   NULL);
    pthread_t thread = hang("cuMemUnmap", &first);
    struct sluice_model *second = gpu_case_attach(URI, NULL, "cuda:0");
    ck_assert_msg(second, "%s", gpu_case_error.message);
    expect_host_is_served();
    gpu_case_fake->hold_call(NULL);
    pthread_join(thread, NULL);
    ck_assert_msg(first.got, "%s", first.error.message);
    gpu_case_bytes(first.got);
    gpu_case_bytes(second);
    sluice_detach(first.got);
    sluice_detach(second);
}

/* The object changes in mid-load: what has come goes, and all of it is read again. */
SL_TEST(others_are_served_while_a_load_that_starts_over_is_unmapped)
{
    enum { ITEMS = 300 * 1024 };
    char uri[128], keys[200];
    size_t bytes;
    struct asking first = {uri, "cuda:0", 0, NULL, {0}};
    struct sl_server *server = sl_server_start();
    uint8_t *blob = sl_model_safetensors("a,b", ITEMS, &bytes);
    sl_server_put(server, "/m.safetensors", blob, bytes, "\"1\"");
    snprintf(uri, sizeof(uri), "%s", sl_server_url(server, "/m.safetensors"));
    snprintf(keys, sizeof(keys), ", uriPrefixes: [\"%s\"]", uri);
    node_case_open(&gpu_case, keys, GPU_CASE_ON("h", "small", "host"), NULL);
    SL_SCRIPT(server, {.path = "/m.safetensors", .first = 2, .fault = SL_FAULT_CHANGED});
    pthread_t thread = hang("cuMemUnmap", &first);
    struct sluice_model *early = gpu_case_attach(uri, NULL, "cuda:0");
    ck_assert_msg(early || gpu_case_error.kind == SLUICE_INTEGRITY, "%s", gpu_case_error.message);
    expect_host_is_served();
    gpu_case_fake->hold_call(NULL);
    pthread_join(thread, NULL);
    ck_assert_msg(first.got, "%s", first.error.message);
    ck_assert_int_eq(sluice_wait_all(first.got, 60000, -1, &gpu_case_error), -1);
    ck_assert_msg(gpu_case_error.kind == SLUICE_INTEGRITY, "%s", gpu_case_error.message);
    sluice_detach(early);
    sluice_detach(first.got);
    sl_registry_settle(gpu_case.node->registry);
    struct sluice_model *last = gpu_case_attach(uri, NULL, "cuda:0");
    ck_assert_msg(last && sluice_wait_all(last, 60000, -1, &gpu_case_error) == 0, "%s",
                  gpu_case_error.message);
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_int_eq(sluice_find(last, "b", &tensor, &gpu_case_error), 0);
    ck_assert_mem_eq(tensor.data, blob + bytes - 4 * ITEMS, 4 * ITEMS);
    sluice_detach(last);
    sl_server_stop(server);
    free(blob);
}

/* ---- in loads -------------------------------------------------------------------------------- */

/* Two loads, as many as there are places, wait for one GPU: others, and the host, go on, though
 * what they load is not small beside these. */
SL_TEST(other_gpus_load_while_one_hangs)
{
    gpu_case_fake->set_devices(3);
    node_case_put(&gpu_case, "other", 2 * GPU_CASE_ITEMS);
    node_case_put(&gpu_case, "large", 64 * 1024);
    node_case_open(&gpu_case, "", "", NULL);
    gpu_case_fake->hold_device(0);
    struct asking asking[2] = {{"a", "cuda:0", 0, NULL, {0}}, {"b", "cuda:0", 0, NULL, {0}}};
    pthread_t threads[2];
    gpu_case_define(GPU_CASE_ON("a", "small", "cuda:0") GPU_CASE_ON("b", "other", "cuda:0"));
    for (unsigned i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, ask, &asking[i]);
    SL_AWAIT(node_case_counts(&gpu_case).loading == 2, "two loads that hang");
    gpu_case_define(GPU_CASE_ON("a", "small", "cuda:0") GPU_CASE_ON("b", "other", "cuda:0")
                        GPU_CASE_ON("c", "large", "cuda:1") GPU_CASE_ON("d", "large", "cuda:2")
                            GPU_CASE_ON("h", "large", "host"));
    const char *const devices[][2] = {{"c", "cuda:1"}, {"d", "cuda:2"}, {"h", "host"}};
    for (size_t i = 0; i < SL_COUNT(devices); i++) {
        struct sluice_model *model = gpu_case_attach(devices[i][0], NULL, devices[i][1]);
        ck_assert_msg(model, "%s", gpu_case_error.message);
        ck_assert_msg(sluice_wait_all(model, 60000, -1, &gpu_case_error) == 0, "%s",
                      gpu_case_error.message);
        sluice_detach(model);
    }
    SL_AWAIT(node_case_counts(&gpu_case).loading == 2, "the end of all loads but those that hang");
    gpu_case_fake->hold_device(-1);
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_msg(asking[i].got, "%s", asking[i].error.message);
        sluice_detach(asking[i].got);
    }
}

static bool prepare(void)
{
    gpu_case_fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = gpu_case_setup, .teardown = gpu_case_teardown, .prepare = prepare)

/* A GPU is lost: who asks is told, everything else goes on, and a new daemon has the GPU again. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "gpu_case.h"
#include "http_client.h"
#include "metrics.h"
#include "registry_settle.h"
#include "use_fake_cuda.h"
#include "web.h"

static struct sl_web *web;
static bool is_lost; /* the driver takes nothing back any more: it has no counts to look at */

static void start_web(void)
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_web_config config = {.listen = "127.0.0.1:0", .node = gpu_case.node};
    web = sl_web_start(&config, &err);
    ck_assert_msg(web != NULL, "%s", err.message);
}

static void open_case(const char *models)
{
    node_case_open(&gpu_case, "", models, NULL);
    start_web();
}

static void close_case(void)
{
    sl_web_free(sl_steal(&web));
    node_case_end(&gpu_case);
}

/* The next load on this GPU finds that the driver answers everything so. */
static void lose(const char *model, const char *object, int device, int result)
{
    is_lost = true;
    gpu_case_fake->lose(device, result);
    node_case_put(&gpu_case, object, 2 * GPU_CASE_ITEMS);
    ck_assert_int_eq(sl_registry_load(gpu_case.node->registry, model, NULL), 0);
    sl_registry_settle(gpu_case.node->registry);
}

/* words: in the answer; NULL: the answer tells of no GPU that is lost. */
static void expect(const char *path, int status, const char *words)
{
    struct http_reply reply = {0};
    ck_assert_int_eq(http_ask(sl_web_port(web), "GET", path, "", &reply), 0);
    const char *found = strstr(reply.body, words ? words : "is lost");
    ck_assert_msg(reply.status == status && !found == !words, "%s: %d %s", path, reply.status,
                  reply.body);
    http_release(&reply);
}

static void expect_metric(const char *line)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    ck_assert_int_eq(sl_metrics_write(&text, 1, NULL), 0);
    ck_assert_msg(strstr(sl_buf_string(&text), line), "%s", sl_buf_string(&text));
}

static void expect_served(const char *name, const char *device)
{
    struct sluice_model *model = gpu_case_attach(name, NULL, device);
    ck_assert_msg(model, "%s", gpu_case_error.message);
    gpu_case_bytes(model);
    sluice_detach(model);
}

#define ON_ONE   GPU_CASE_ON("g", "small", "cuda:0")
#define ON_HOST  GPU_CASE_ON("h", "other", "host")
#define ON_OTHER GPU_CASE_ON("o", "other", "cuda:1")

SL_TEST(a_lost_gpu_is_told_wherever_one_looks)
{
    open_case(ON_ONE);
    expect("/readyz", 200, NULL);
    expect("/v1/status", 200, "\"lost_gpus\":[]");
    expect("/v1/models", 200, "\"lost_gpus\":[]");
    expect_metric("sluice_gpu_lost{device=\"cuda:0\"} 0\n");
    lose("g", "small", 0, SL_CUDA_DEINITIALIZED);
    expect("/readyz", 503, "cuda:0 is lost for this process");
    expect("/v1/status", 200, "\"lost_gpus\":[{\"device\":\"cuda:0\",\"reason\":\"cuda:0 is lost");
    expect("/v1/models", 200, "\"lost_gpus\":[{\"device\":\"cuda:0\",\"reason\":\"cuda:0 is lost");
    expect("/healthz", 200, NULL);
    expect("/startupz", 200, "cuda:0 is lost");
    expect_metric("sluice_gpu_lost{device=\"cuda:0\"} 1\n");
}

SL_TEST(the_host_and_other_gpus_go_on)
{
    gpu_case_fake->set_devices(2);
    node_case_put(&gpu_case, "other", GPU_CASE_ITEMS);
    open_case(ON_ONE ON_HOST ON_OTHER);
    lose("g", "small", 0, SL_CUDA_DEINITIALIZED);
    expect("/readyz", 503, "cuda:0 is lost");
    expect_metric("sluice_gpu_lost{device=\"cuda:0\"} 1\n");
    expect_metric("sluice_gpu_lost{device=\"cuda:1\"} 0\n");
    uint64_t loads = node_case_counts(&gpu_case).loads;
    node_case_put(&gpu_case, "other", GPU_CASE_ITEMS); /* a new version of it */
    ck_assert_int_eq(sl_registry_load(gpu_case.node->registry, "o", NULL), 0);
    ck_assert_int_eq(sl_registry_load(gpu_case.node->registry, "h", NULL), 0);
    sl_registry_settle(gpu_case.node->registry);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, loads + 2);
    expect_served("o", "cuda:1");
    expect_served("h", "host");
}

SL_TEST(a_new_daemon_has_the_gpu_again)
{
    open_case(ON_ONE);
    lose("g", "small", 0, SL_CUDA_DEINITIALIZED);
    expect("/readyz", 503, "cuda:0 is lost");
    close_case();
    gpu_case_fake->reset(); /* as a new process finds the driver */
    node_case_put(&gpu_case, "small", GPU_CASE_ITEMS);
    open_case(ON_ONE);
    expect("/readyz", 200, NULL);
    expect_metric("sluice_gpu_lost{device=\"cuda:0\"} 0\n");
    expect_served("g", "cuda:0");
}

/* CUDA_ERROR_UNKNOWN says nothing: a GPU that fell off its bus gives it for ever, others once. */
SL_TEST(an_unknown_error_is_a_loss_if_the_driver_answers_nothing_else)
{
    open_case(ON_ONE);
    gpu_case_fake->fail_call("cuMemCreate", 1, SL_CUDA_UNKNOWN);
    node_case_put(&gpu_case, "small", 2 * GPU_CASE_ITEMS);
    ck_assert_int_eq(sl_registry_load(gpu_case.node->registry, "g", NULL), 0);
    sl_registry_settle(gpu_case.node->registry);
    gpu_case_failure("g", "CUDA_ERROR_UNKNOWN");
    expect("/readyz", 200, NULL);
    expect("/v1/status", 200, "\"lost_gpus\":[]");
    lose("g", "small", 0, SL_CUDA_UNKNOWN);
    expect("/readyz", 503, "cuda:0 is lost for this process");
}

static void teardown(void)
{
    sl_web_free(sl_steal(&web));
    if (!is_lost) {
        gpu_case_teardown();
        return;
    }
    node_case_end(&gpu_case);
    node_case_release(&gpu_case);
}

static bool prepare(void)
{
    gpu_case_fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = gpu_case_setup, .teardown = teardown, .prepare = prepare)

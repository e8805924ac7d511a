/* Models on every GPU, of a node against the fake driver: real loads, real clients. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "claims.h"
#include "gpu_case.h"
#include "metrics.h"
#include "registry_settle.h"
#include "use_fake_cuda.h"

enum { GPUS = 3, SLAB = 2 * GPU_CASE_MIB };

static void setup(void)
{
    gpu_case_setup();
    gpu_case_fake->set_devices(GPUS);
}

static const char *device(int number, char name[16])
{
    snprintf(name, 16, "cuda:%d", number);
    return name;
}

static void check_on(const char *model, int gpu)
{
    char name[16];
    struct sluice_model *attached = gpu_case_attach(model, NULL, device(gpu, name));
    ck_assert_msg(attached, "%s", gpu_case_error.message);
    gpu_case_bytes(attached);
    sluice_detach(attached);
}

static uint64_t held(unsigned gpu)
{
    uint64_t bytes, budget;
    sl_registry_gpu_bytes(gpu_case.node->registry, gpu, &bytes, &budget);
    return bytes;
}

SL_TEST(clients_attach_on_any_gpu)
{
    struct fake_cuda_counts counts;
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    for (int i = 0; i < GPUS; i++) {
        check_on("g", i);
        ck_assert_uint_ge(held((unsigned)i), SLAB);
    }
    gpu_case_fake->counts(&counts);
    ck_assert_uint_eq(counts.bytes, GPUS * SLAB);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 1);
    gpu_case_failure("g", "\"device\":\"cuda:all\",\"copies\":3,");
}

SL_TEST(elsewhere_is_refused_and_said_why)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    gpu_case_refused("g", "host", SLUICE_USAGE, "device", "on each GPU that the pool sees");
    gpu_case_refused("g", "cuda:7", SLUICE_GPU, "", "");
    ck_assert_uint_eq(node_case_counts(&gpu_case).references, 0);
}

SL_TEST(all_is_no_place_for_a_client)
{
    unsigned space;
    struct sl_err err = SL_ERR_INIT;
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    ck_assert_int_eq(sl_gpu_holders_find(gpu_case.node->gpus, "cuda:all", &space, &err), -1);
    ck_assert_str_eq(err.code, "device");
    ck_assert_msg(strstr(err.message, "ask for 'cuda:0'"), "%s", err.message);
}

SL_TEST(one_gpu_that_fails_fails_the_load_and_is_named)
{
    gpu_case_fake->fail_call("cuMemCreate", 2, SL_CUDA_UNKNOWN);
    node_case_open(&gpu_case, ", gpuWarmSeconds: 0", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    gpu_case_failure("g", "on cuda:1");
    for (unsigned i = 0; i < GPUS; i++)
        ck_assert_uint_eq(held(i), 0);
    check_no_cuda_left(gpu_case_fake);
    ck_assert_int_eq(sl_registry_load(gpu_case.node->registry, "g", NULL), 0);
    sl_registry_settle(gpu_case.node->registry);
    check_on("g", 2);
}

SL_TEST(a_gpu_that_cannot_be_opened_is_not_left_out)
{
    gpu_case_fake->fail_call("cuDeviceGet", 2, SL_CUDA_UNKNOWN);
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    gpu_case_failure("g", "cuda:1");
    ck_assert_uint_eq(gpu_case_fake->calls("cuMemCreate"), 0);
}

/* As a caller of the API would: not pinned. */
static void bring(const char *model)
{
    char names[SL_NODE_REQUEST_MODELS_MAX][64];
    size_t count;
    struct sl_err err = SL_ERR_INIT;
    int done = sl_node_request(gpu_case.node, model, strlen(model), names, &count, &err);
    ck_assert_msg(done == 0, "%s", err.message);
    sl_registry_settle(gpu_case.node->registry);
}

SL_TEST(the_budget_of_each_gpu_is_kept)
{
    node_case_put(&gpu_case, "large", 600 * 1024); /* 6 MiB of a GPU */
    node_case_open(&gpu_case, ", gpuBudgetBytes: 7MiB", GPU_CASE_ON("one", "small", "cuda:1"),
                   NULL);
    uint64_t taken = gpu_case_fake->calls("cuMemCreate");
    bring(GPU_CASE_ON("g", "large", "cuda:all"));
    gpu_case_failure("g", "of a budget of 7.00 MiB on cuda:1 these cannot be evicted: 'one'");
    ck_assert_uint_eq(gpu_case_fake->calls("cuMemCreate"), taken);
    ck_assert_uint_eq(held(0), 0);
    check_on("one", 1);
}

SL_TEST(what_is_on_one_gpu_goes_for_all_and_the_other_way)
{
    node_case_put(&gpu_case, "large", 600 * 1024);
    node_case_open(&gpu_case, ", gpuBudgetBytes: 7MiB", "", NULL);
    bring(GPU_CASE_ON("one", "small", "cuda:1"));
    bring(GPU_CASE_ON("two", "small", "cuda:2"));
    bring(GPU_CASE_ON("g", "large", "cuda:all"));
    struct sl_registry_counts counts = node_case_counts(&gpu_case);
    ck_assert_uint_eq(counts.evictions, 2);
    for (unsigned i = 0; i < GPUS; i++)
        ck_assert_uint_ge(held(i), 6 * GPU_CASE_MIB);
    bring(GPU_CASE_ON("one", "small", "cuda:0"));
    ck_assert_uint_eq(node_case_counts(&gpu_case).evictions, 3); /* of all GPUs at once */
    ck_assert_uint_eq(held(2), 0);
    check_on("one", 0);
}

SL_TEST(a_model_moves_from_one_gpu_to_all_and_back)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("m", "small", "cuda:0"), NULL);
    struct sluice_model *before = gpu_case_attach("m", NULL, "cuda:0");
    ck_assert_msg(before, "%s", gpu_case_error.message);
    gpu_case_reload(GPU_CASE_ON("m", "small", "cuda:all"));
    check_on("m", 2);
    gpu_case_bytes(before);
    sluice_detach(before);
    gpu_case_reload(GPU_CASE_ON("m", "small", "cuda:1"));
    check_on("m", 1);
}

static int check_row(void *arg, const struct sluice_row *row)
{
    unsigned *rows = arg;
    char name[16];
    ck_assert_str_eq(row->name, "g");
    ck_assert_str_eq(row->device, device((int)(*rows)++, name));
    ck_assert_uint_ge(row->bytes, SLAB);
    return 0;
}

SL_TEST(metrics_and_lists_tell_each_gpu)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    unsigned rows = 0;
    ck_assert_int_eq(sl_metrics_write(&text, 1, NULL), 0);
    const char *metrics = sl_buf_string(&text);
    for (int i = 0; i < GPUS; i++) {
        char line[80];
        snprintf(line, sizeof(line), "sluice_gpu_held_bytes{device=\"cuda:%d\"} 2", i);
        ck_assert_msg(strstr(metrics, line), "%s", line);
    }
    ck_assert_msg(strstr(metrics, "sluice_pool_models 1\n"), "%s", metrics);
    ck_assert_int_eq(sluice_list(gpu_case.socket, check_row, &rows, &gpu_case_error), 0);
    ck_assert_uint_eq(rows, GPUS);
}

static int take_row(void *arg, const struct sluice_row *row)
{
    struct sluice_row *taken = arg;
    taken->lease_count = row->lease_count;
    taken->bytes = row->bytes;
    return 0;
}

static int count_holder(void *arg, const struct sluice_holder *holder)
{
    ck_assert_uint_ne(holder->lease, 0);
    ((struct sluice_row *)arg)->slab_count++;
    return 0;
}

SL_TEST(who_holds_a_copy_holds_the_model)
{
    struct sluice_row row = {.size = sizeof(row)};
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    struct sluice_model *one = gpu_case_attach("g", NULL, "cuda:0");
    struct sluice_model *two = gpu_case_attach("g", NULL, "cuda:2");
    ck_assert_msg(one && two, "%s", gpu_case_error.message);
    ck_assert_int_eq(
        sluice_stat(gpu_case.socket, "g", NULL, take_row, count_holder, &row, &gpu_case_error), 0);
    ck_assert_uint_eq(row.lease_count, 2);
    ck_assert_uint_eq(row.slab_count, 2); /* holders */
    ck_assert_uint_ge(row.bytes, GPUS * SLAB);
    ck_assert_int_eq(sluice_evict(gpu_case.socket, "g", NULL, NULL, &gpu_case_error), -1);
    ck_assert_str_eq(gpu_case_error.code, "busy");
    sluice_detach(one);
    sluice_detach(two);
}

SL_TEST(deposits_lie_on_one_gpu_or_on_the_host)
{
    node_case_open(&gpu_case, "", GPU_CASE_ON("g", "small", "cuda:all"), NULL);
    struct sluice_model *source = gpu_case_attach("g", NULL, "cuda:0");
    ck_assert_msg(source, "%s", gpu_case_error.message);
    ck_assert_msg(gpu_case_deposit("k", "cuda:2", source) == 0, "%s", gpu_case_error.message);
    ck_assert_msg(gpu_case_deposit("h", "host", source) == 0, "%s", gpu_case_error.message);
    sluice_detach(source);
    struct sluice_model *gpu = gpu_case_attach("g", "k", "cuda:2");
    ck_assert_msg(gpu, "%s", gpu_case_error.message);
    sluice_detach(gpu);
    struct sluice_model *host = gpu_case_attach("g", "h", "host");
    ck_assert_msg(host, "%s", gpu_case_error.message);
    sluice_detach(host);
    ck_assert_uint_eq(sl_registry_placement(gpu_case.node->registry, "g"), SL_PLACEMENT_GPUS);
}

static bool prepare(void)
{
    gpu_case_fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = gpu_case_teardown, .prepare = prepare)

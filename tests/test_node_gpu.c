/* The node with memory of GPUs, against the fake driver: real loads, real clients. */
#include <check.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "metrics.h"
#include "model_maker.h"
#include "node_case.h"
#include "tree.h"
#include "use_fake_cuda.h"

enum { ITEMS = 1000, MIB = 1024 * 1024 };

#define ON(name, object, device)                                                                   \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                        \
    "}\nsource: {uri: \"memory://m/" object "\"}\nsink: {pool: {device: \"" device "\"}}\n"

static const struct fake_cuda_control *fake;
static struct node_case c;
static struct sluice_error error;

static void setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    fake->reset();
    node_case_init(&c);
    node_case_put(&c, "small", ITEMS);
}

static void teardown(void)
{
    node_case_end(&c);
    node_case_release(&c);
    check_no_cuda_left(fake);
}

static struct sluice_model *attach(const char *name, const char *key, const char *device)
{
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = name,
                                                  .key = key,
                                                  .device = device,
                                                  .socket = c.socket,
                                                  .timeout_ms = 60000};
    memset(&error, 0, sizeof(error));
    return sluice_attach(&options, &model, &error) < 0 ? NULL : model;
}

static void check_refused(const char *name, const char *device, int kind, const char *code,
                          const char *words)
{
    ck_assert_ptr_null(attach(name, NULL, device));
    ck_assert_msg(error.kind == kind, "%d: %s", error.kind, error.message);
    ck_assert_str_eq(error.code, code);
    ck_assert_msg(strstr(error.message, words), "%s", error.message);
}

/* As sl_model_safetensors() made them; the fake driver's addresses can be read. */
static void check_bytes(struct sluice_model *model)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    size_t bytes;
    uint8_t *blob = sl_model_safetensors("a,b", ITEMS, &bytes);
    ck_assert_msg(sluice_wait_all(model, 60000, -1, &error) == 0, "%s", error.message);
    ck_assert_int_eq(sluice_find(model, "b", &tensor, &error), 0);
    ck_assert_uint_eq(tensor.bytes, 4 * ITEMS);
    ck_assert_int_eq(memcmp(tensor.data, blob + bytes - 4 * ITEMS, 4 * ITEMS), 0);
    free(blob);
}

START_TEST(a_client_reads_what_the_node_loaded)
{
    node_case_open(&c, "", ON("g", "small", "cuda:0"), NULL);
    struct sluice_model *model = attach("g", NULL, "cuda:0");
    ck_assert_msg(model, "%s", error.message);
    check_bytes(model);
    struct fake_cuda_counts counts;
    fake->counts(&counts);
    ck_assert_uint_eq(counts.bytes, 2 * MIB); /* one copy for both */
    sluice_detach(model);
}
END_TEST

START_TEST(two_devices_hold_a_model_each)
{
    fake->set_devices(2);
    node_case_open(&c, "", ON("one", "small", "cuda:0") ON("two", "small", "cuda:1"), NULL);
    struct sluice_model *one = attach("one", NULL, "cuda:0"), *two = attach("two", NULL, "cuda:1");
    ck_assert_msg(one && two, "%s", error.message);
    check_bytes(one);
    check_bytes(two);
    check_refused("two", "cuda:0", SLUICE_USAGE, "device", "in memory of 'cuda:1'");
    sluice_detach(one);
    sluice_detach(two);
}
END_TEST

/* The last load of this model failed so. */
static void check_failure(const char *name, const char *words)
{
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    ck_assert(sl_registry_model_json(c.node->registry, name, &json));
    const char *text = sl_json_text(&json, NULL);
    ck_assert_msg(text && strstr(text, words), "%s", text);
    sl_json_release(&json);
}

START_TEST(a_wrong_place_is_told_before_anything_is_loaded)
{
    node_case_open(&c, "", ON("g", "small", "cuda:0") ON("h", "small", "host"), NULL);
    uint64_t loads = node_case_counts(&c).loads;
    check_refused("g", "host", SLUICE_USAGE, "device", "in memory of 'cuda:0': attach to it there");
    check_refused("h", "cuda:0", SLUICE_USAGE, "device", "in memory of 'host'");
    ck_assert_uint_eq(node_case_counts(&c).loads, loads);
}
END_TEST

START_TEST(without_a_driver_the_node_runs_and_says_why)
{
    struct sluice_model *model;
    fake->fail_call("cuInit", 1, SL_CUDA_SYSTEM_NOT_READY);
    fake->fail_call("cuInit", 2, SL_CUDA_SYSTEM_NOT_READY);
    node_case_open(&c, "", ON("g", "small", "cuda:0") ON("h", "small", "host"), NULL);
    ck_assert_uint_eq(node_case_counts(&c).failed, 1);
    ck_assert_uint_eq(node_case_counts(&c).ready, 1);
    model = attach("h", NULL, "host");
    ck_assert_msg(model, "%s", error.message);
    sluice_detach(model);
}
END_TEST

START_TEST(a_device_that_is_not_there_is_named)
{
    struct sl_registry_counts counts;
    node_case_open(&c, "", ON("g", "small", "cuda:3"), NULL);
    counts = node_case_counts(&c);
    ck_assert_uint_eq(counts.failed, 1);
    check_failure("g", "there is no cuda:3: this process sees 1 GPU");
}
END_TEST

START_TEST(each_device_has_a_budget_of_its_own)
{
    fake->set_devices(2);
    node_case_put(&c, "large", 600 * 1024); /* 4.7 MiB: 6 on a device, more than the host's 1 MiB */
    node_case_open(&c, ", gpuBudgetBytes: 6MiB",
                   ON("one", "large", "cuda:0") ON("two", "large", "cuda:1")
                       ON("three", "small", "cuda:0"),
                   NULL);
    struct sl_registry_counts counts = node_case_counts(&c);
    ck_assert_uint_eq(counts.ready, 2);
    ck_assert_uint_eq(counts.failed, 1); /* they are pinned */
    ck_assert_uint_eq(counts.held_bytes, 0);
    uint64_t held, budget;
    sl_registry_gpu_bytes(c.node->registry, 0, &held, &budget);
    ck_assert_uint_eq(budget, 6 * MIB);
    ck_assert_uint_le(held, 6 * MIB);
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    ck_assert_int_eq(sl_metrics_write(&text, 1, NULL), 0);
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    sl_json_object(&json);
    sl_registry_json(c.node->registry, &json);
    sl_json_end(&json);
    const char *shown = sl_json_text(&json, NULL);
    ck_assert_msg(strstr(shown, "{\"device\":\"cuda:1\",\"held_bytes\":6291456,"), "%s", shown);
    ck_assert_msg(strstr(shown, "\"holder\":\"pool\",\"device\":\"cuda:0\""), "%s", shown);
    sl_json_release(&json);
    const char *metrics = sl_buf_string(&text);
    ck_assert_ptr_nonnull(strstr(metrics, "sluice_gpu_budget_bytes{device=\"cuda:1\"} 6291456\n"));
    ck_assert_ptr_nonnull(strstr(metrics, "sluice_gpu_memory_bytes{device=\"cuda:0\"} 1073741824"));
}
END_TEST

START_TEST(memory_that_others_use_is_not_taken)
{
    fake->set_bytes(4 * MIB);
    node_case_put(&c, "large", 600 * 1024);
    node_case_open(&c, ", gpuBudgetBytes: 100MiB", ON("g", "large", "cuda:0"), NULL);
    check_failure("g", "are free on cuda:0: other processes use it");
    ck_assert_uint_eq(fake->calls("cuMemCreate"), 0);
}
END_TEST

START_TEST(eviction_gives_the_memory_back)
{
    struct fake_cuda_counts counts;
    node_case_open(&c, "", ON("g", "small", "cuda:0"), NULL);
    struct sluice_model *model = attach("g", NULL, "cuda:0");
    ck_assert_msg(model, "%s", error.message);
    check_bytes(model);
    ck_assert_int_eq(sluice_evict(c.socket, "g", NULL, NULL, &error), -1);
    sluice_detach(model);
    while (node_case_counts(&c).references)
        sched_yield();
    ck_assert_int_eq(sl_registry_pin(c.node->registry, "g", false, NULL), -1); /* by the config */
    node_case_end(&c);
    fake->counts(&counts);
    ck_assert_uint_eq(counts.bytes, 0);
}
END_TEST

static void reload(const char *models)
{
    struct sl_node_config config;
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    struct sl_err err = SL_ERR_INIT;
    char text[4096], path[SL_SCRATCH_PATH_BYTES + 16];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1MiB\n"
             "pool: {socket: %s}\n%s",
             c.path, c.socket, models);
    ck_assert_int_eq(sl_tree_write(c.scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(path, sizeof(path), "%s/node.yaml", c.path);
    ck_assert_int_eq(sl_node_config_read(path, &config, &complaints, &err), 0);
    sl_node_reload(c.node, &config);
    sl_node_config_release(&config);
    sl_registry_settle(c.node->registry);
}

START_TEST(a_model_that_moves_to_another_device_is_loaded_there)
{
    node_case_open(&c, "", ON("m", "small", "host"), NULL);
    struct sluice_model *before = attach("m", NULL, "host");
    ck_assert_msg(before, "%s", error.message);
    reload(ON("m", "small", "cuda:0"));
    struct sluice_model *after = attach("m", NULL, "cuda:0");
    ck_assert_msg(after, "%s", error.message);
    check_bytes(after);
    check_bytes(before); /* who has it keeps it */
    sluice_detach(before);
    sluice_detach(after);
    reload(ON("m", "small", "host"));
    before = attach("m", NULL, "host");
    ck_assert_msg(before, "%s", error.message);
    check_bytes(before);
    sluice_detach(before);
}
END_TEST

/* ---- deposits -------------------------------------------------------------------------------- */

static int deposit(const char *key, const char *device, struct sluice_model *source)
{
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_deposit *made = NULL;
    void *data;
    const uint64_t shape[1] = {ITEMS};
    sluice_model_info(source, &info);
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = info.name,
                                             .key = key,
                                             .socket = c.socket,
                                             .device = device,
                                             .bytes = 4 * ITEMS,
                                             .timeout_ms = 60000};
    memcpy(options.identity, info.identity, sizeof(options.identity));
    if (sluice_deposit_begin(&options, &made, &error) < 0)
        return -1;
    int done = sluice_deposit_add(made, "t", "F32", 1, shape, NULL, 4 * ITEMS, &data, &error);
    for (int i = 0; done == 0 && i < ITEMS; i++)
        ((float *)data)[i] = (float)i;
    if (done == 0)
        done = sluice_deposit_commit(made, &error);
    sluice_deposit_end(made);
    return done;
}

START_TEST(a_deposit_lies_where_its_maker_put_it)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    node_case_open(&c, "", ON("g", "small", "cuda:0") ON("h", "small", "host"), NULL);
    struct sluice_model *gpu = attach("g", NULL, "cuda:0"), *host = attach("h", NULL, "host");
    ck_assert_msg(gpu && host, "%s", error.message);
    ck_assert_msg(deposit("k", "cuda:0", gpu) == 0, "%s", error.message);
    ck_assert_msg(deposit("k", "cuda:0", host) == 0, "%s", error.message); /* of a host's model */
    sluice_detach(gpu);
    gpu = attach("h", "k", "cuda:0");
    ck_assert_msg(gpu, "%s", error.message);
    ck_assert_int_eq(sluice_find(gpu, "t", &tensor, &error), 0);
    ck_assert(((const float *)tensor.data)[ITEMS - 1] == ITEMS - 1);
    ck_assert_ptr_null(attach("h", "k", "host"));
    ck_assert_str_eq(error.code, "device");
    sluice_detach(gpu);
    sluice_detach(host);
}
END_TEST

START_TEST(a_deposit_on_a_full_device_is_refused)
{
    node_case_open(&c, ", gpuBudgetBytes: 3MiB", ON("g", "small", "cuda:0"), NULL);
    struct sluice_model *gpu = attach("g", NULL, "cuda:0");
    ck_assert_msg(gpu, "%s", error.message);
    ck_assert_int_eq(deposit("k", "cuda:0", gpu), -1);
    ck_assert_int_eq(error.kind, SLUICE_NO_SPACE);
    ck_assert_msg(strstr(error.message, "pool.gpuBudgetBytes"), "%s", error.message);
    sluice_detach(gpu);
}
END_TEST

int main(void)
{
    fake = use_fake_cuda();
    Suite *suite = suite_create("node_gpu");
    TCase *tests = tcase_create("node_gpu");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_client_reads_what_the_node_loaded);
    tcase_add_test(tests, two_devices_hold_a_model_each);
    tcase_add_test(tests, a_wrong_place_is_told_before_anything_is_loaded);
    tcase_add_test(tests, without_a_driver_the_node_runs_and_says_why);
    tcase_add_test(tests, a_device_that_is_not_there_is_named);
    tcase_add_test(tests, each_device_has_a_budget_of_its_own);
    tcase_add_test(tests, memory_that_others_use_is_not_taken);
    tcase_add_test(tests, eviction_gives_the_memory_back);
    tcase_add_test(tests, a_model_that_moves_to_another_device_is_loaded_there);
    tcase_add_test(tests, a_deposit_lies_where_its_maker_put_it);
    tcase_add_test(tests, a_deposit_on_a_full_device_is_refused);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}

/* Models on GPUs that a service manager keeps while there is no daemon, against the fake driver,
 * whose memory lives as long as somebody has its descriptor. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "gpu_case.h"
#include "memory_store.h"
#include "registry_settle.h"
#include "tree.h"
#include "use_fake_cuda.h"

enum { GPUS = 2, FDS = 2 };

static struct manager manager;
static struct sl_systemd_sockets given;

#define ONE GPU_CASE_ON("m", "small", "cuda:1")
#define ALL GPU_CASE_ON("m", "small", "cuda:all")

static void setup(void)
{
    gpu_case_setup();
    gpu_case_fake->set_devices(GPUS);
    manager_start(&manager, &gpu_case);
}

static void teardown(void)
{
    node_case_end(&gpu_case);
    manager_stop(&manager);
    gpu_case_teardown();
}

static void come_back(const char *models)
{
    manager_give(&manager, &given);
    node_case_open(&gpu_case, "", models, &given);
    sl_registry_settle(gpu_case.node->registry);
}

/* A daemon comes and goes; the manager has index and slab of each copy then. */
static void load_and_end(const char *models, unsigned fds)
{
    node_case_open(&gpu_case, "", models, NULL);
    sl_registry_settle(gpu_case.node->registry);
    manager_await(&manager, fds);
    node_case_end(&gpu_case);
}

static void check_on(const char *key, const char *device)
{
    struct sluice_model *model = gpu_case_attach("m", key, device);
    ck_assert_msg(model, "%s: %s", device, gpu_case_error.message);
    if (!key)
        gpu_case_bytes(model);
    sluice_detach(model);
    SL_AWAIT(!node_case_counts(&gpu_case).references, "the end of the last reference");
}

SL_TEST(the_next_daemon_has_the_same_memory)
{
    load_and_end(ONE, FDS);
    uint64_t made = gpu_case_fake->calls("cuMemCreate");
    ck_assert_uint_gt(made, 0);
    come_back(ONE);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 0);
    check_on(NULL, "cuda:1");
    node_case_end(&gpu_case);
    sl_memory_clear(); /* the source is gone */
    come_back(ONE);
    check_on(NULL, "cuda:1");
    ck_assert_uint_eq(gpu_case_fake->calls("cuMemCreate"), made);
    uint64_t held, budget;
    sl_registry_gpu_bytes(gpu_case.node->registry, 1, &held, &budget);
    ck_assert_uint_ge(held, 2 * GPU_CASE_MIB);
    manager_await(&manager, FDS);
}

/* Index and page lie on the host, and no load counts with them. */
SL_TEST(what_comes_back_takes_no_more_than_before)
{
    static const char full[] = ", gpuBudgetBytes: 2MiB";
    uint64_t held, budget;
    node_case_open(&gpu_case, full, ONE, NULL);
    manager_await(&manager, FDS);
    node_case_end(&gpu_case);
    manager_give(&manager, &given);
    node_case_open(&gpu_case, full, "", &given); /* nobody wants it, nor its place */
    sl_registry_settle(gpu_case.node->registry);
    sl_registry_gpu_bytes(gpu_case.node->registry, 1, &held, &budget);
    ck_assert_uint_eq(held, budget);
    manager_await(&manager, FDS);
}

SL_TEST(a_model_on_every_gpu_comes_back_whole)
{
    load_and_end(ALL, GPUS * FDS);
    uint64_t made = gpu_case_fake->calls("cuMemCreate");
    come_back(ALL);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 0);
    ck_assert_uint_eq(gpu_case_fake->calls("cuMemCreate"), made);
    gpu_case_failure("m", "\"device\":\"cuda:all\",\"copies\":2,");
    for (int twice = 0; twice < 2; twice++) {
        check_on(NULL, "cuda:0");
        check_on(NULL, "cuda:1");
    }
    gpu_case_reload(""); /* nobody wants it: it goes from everywhere */
    sl_registry_set_gpu_budget(gpu_case.node->registry, 1, 1);
    manager_await(&manager, 0);
}

SL_TEST(a_model_that_lacks_a_copy_is_loaded_again)
{
    load_and_end(ALL, GPUS * FDS);
    manager_give(&manager, &given);
    close(given.items[0].fd);
    given.items[0].fd = -1;
    node_case_open(&gpu_case, "", ALL, &given);
    sl_registry_settle(gpu_case.node->registry);
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 1);
    check_on(NULL, "cuda:0");
    check_on(NULL, "cuda:1");
}

SL_TEST(deposits_come_back_with_their_model)
{
    node_case_open(&gpu_case, "", ONE, NULL);
    struct sluice_model *source = gpu_case_attach("m", NULL, "cuda:1");
    ck_assert_msg(source, "%s", gpu_case_error.message);
    ck_assert_msg(gpu_case_deposit("k", "cuda:0", source) == 0, "%s", gpu_case_error.message);
    sluice_detach(source);
    manager_await(&manager, 2 * FDS);
    node_case_end(&gpu_case);
    come_back(ONE);
    check_on("k", "cuda:0");
    check_on(NULL, "cuda:1");
}

SL_TEST(what_is_evicted_leaves_the_store)
{
    load_and_end(ONE, FDS);
    come_back("");
    sl_registry_set_gpu_budget(gpu_case.node->registry, 1, 1000);
    manager_await(&manager, 0);
    sl_registry_settle(gpu_case.node->registry);
    struct fake_cuda_counts counts;
    gpu_case_fake->counts(&counts);
    ck_assert_uint_eq(counts.bytes, 0);
}

/* And then nothing is left for the next round. */
static void expect_loaded_again(void)
{
    come_back(ONE);
    check_on(NULL, "cuda:1");
    ck_assert_uint_ge(node_case_counts(&gpu_case).loads, 1);
    manager_await(&manager, FDS); /* the new one */
    node_case_end(&gpu_case);
    come_back("");
    sl_registry_set_gpu_budget(gpu_case.node->registry, 1, 1000);
    manager_await(&manager, 0);
    node_case_end(&gpu_case);
}

SL_TEST(a_driver_that_refuses_the_import_has_it_loaded_again)
{
    static const char *const calls[] = {"cuMemImportFromShareableHandle", "cuMemMap",
                                        "cuMemSetAccess", "cuDeviceGet"};
    for (size_t i = 0; i < SL_COUNT(calls); i++) {
        load_and_end(ONE, FDS);
        gpu_case_fake->reset();
        gpu_case_fake->set_devices(GPUS);
        gpu_case_fake->fail_call(calls[i], i == 3 ? 2 : 1, 999);
        expect_loaded_again();
    }
}

SL_TEST(a_driver_that_tells_too_little_has_it_loaded_again)
{
    load_and_end(ONE, FDS);
    gpu_case_fake->set_imported(0); /* the other GPU's */
    expect_loaded_again();
    gpu_case_fake->set_imported(-1);
    load_and_end(ONE, FDS);
    gpu_case_fake->set_map_rule(FAKE_MAP_LARGER);
    expect_loaded_again();
    gpu_case_fake->set_map_rule(FAKE_MAP_EXACT);
    load_and_end(ONE, FDS);
    gpu_case_fake->set_map_rule(FAKE_MAP_SMALLER); /* does no harm */
    come_back(ONE);
    check_on(NULL, "cuda:1");
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 0);
}

SL_TEST(a_gpu_that_is_not_seen_any_more_has_nothing)
{
    load_and_end(ONE, FDS);
    gpu_case_fake->set_devices(1);
    manager_give(&manager, &given);
    node_case_open(&gpu_case, "", GPU_CASE_ON("m", "small", "cuda:0"), &given);
    check_on(NULL, "cuda:0");
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 1);
}

/* What stands for memory of a GPU in the store, in turn. */
SL_TEST(what_is_no_memory_of_a_gpu_is_not_taken)
{
    load_and_end(ONE, FDS);
    manager_give(&manager, &given);
    for (unsigned i = 0; i < given.count; i++) {
        const char *dot = strrchr(given.items[i].name, '.');
        if (!dot || strcmp(dot, ".1") != 0)
            continue;
        close(given.items[i].fd);
        given.items[i].fd = sl_memfd_make("other", 2 * GPU_CASE_MIB, NULL);
    }
    node_case_open(&gpu_case, "", ONE, &given);
    check_on(NULL, "cuda:1");
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 1);
}

#define FILES                                                                                      \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: files}\n"                     \
    "source: {uri: \"memory://m/small\"}\nsink: {tmpfs: {path: /unused}}\n"

static struct sl_model_ref *mounted;

/* What is below a mount is held again. */
static int hold_files(void *arg, struct sl_node *node, struct sl_err *err)
{
    mounted =
        sl_registry_hold_version(node->registry, "files", arg, true, SL_REF_VOLUME, "a pod", err);
    return mounted ? 0 : -1;
}

/* A GPU that is opened on the way has a budget of its own. */
SL_TEST(nothing_goes_before_it_is_known_who_has_what)
{
    char version[SL_VERSION_TEXT], text[4096], path[SL_SCRATCH_PATH_BYTES + 16];
    struct sl_err err = SL_ERR_INIT;
    struct sl_node_config config;
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    node_case_open(&gpu_case, "", ONE FILES, NULL);
    manager_await(&manager, FDS);
    struct sl_model_ref *ref = sl_registry_wait_until(
        gpu_case.node->registry, "files", SL_REF_CALLER, "a test", NULL, UINT64_MAX, NULL, &err);
    ck_assert_msg(ref, "%s", err.message);
    snprintf(version, sizeof(version), "%s", sl_model_ref_version(ref));
    sl_registry_release(gpu_case.node->registry, ref);
    node_case_end(&gpu_case);
    manager_give(&manager, &given);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\n"
             "budgetBytes: 1MiB\n" ONE,
             gpu_case.path);
    ck_assert_int_eq(sl_tree_write(gpu_case.scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(path, sizeof(path), "%s/node.yaml", gpu_case.path);
    ck_assert_int_eq(sl_node_config_read(path, &config, &complaints, &err), 0);
    config.spec.budget_bytes = 1; /* less than it was */
    const struct sl_node_opening opening = {.given = &given, .found = hold_files, .arg = version};
    gpu_case.node = sl_node_open(&config, &opening, &err);
    sl_node_config_release(&config);
    sl_systemd_close(&given);
    ck_assert_msg(gpu_case.node, "%s", err.message);
    sl_registry_settle(gpu_case.node->registry);
    gpu_case_failure("files", "\"reference_count\":1");
    sl_registry_release(gpu_case.node->registry, mounted);
}

SL_TEST(without_a_store_models_are_loaded_again)
{
    unsetenv("NOTIFY_SOCKET");
    node_case_open(&gpu_case, "", ONE, NULL);
    check_on(NULL, "cuda:1");
    node_case_end(&gpu_case);
    node_case_open(&gpu_case, "", ONE, NULL);
    check_on(NULL, "cuda:1");
    ck_assert_uint_eq(node_case_counts(&gpu_case).loads, 1);
}

static bool prepare(void)
{
    gpu_case_fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)

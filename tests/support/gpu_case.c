/* A node, its clients and a driver that has no GPU. */
#include "gpu_case.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "log.h"
#include "model_maker.h"
#include "registry_settle.h"
#include "tree.h"
#include "use_fake_cuda.h"

const struct fake_cuda_control *gpu_case_fake;
struct node_case gpu_case;
struct sluice_error gpu_case_error;

void gpu_case_setup(void)
{
    sl_log_setup(SL_LOG_ERROR, false);
    gpu_case_fake->reset();
    node_case_init(&gpu_case);
    node_case_put(&gpu_case, "small", GPU_CASE_ITEMS);
}

void gpu_case_teardown(void)
{
    node_case_end(&gpu_case);
    node_case_release(&gpu_case);
    check_no_cuda_left(gpu_case_fake);
}

struct sluice_model *gpu_case_attach(const char *name, const char *key, const char *device)
{
    struct sluice_model *model = NULL;
    const struct sluice_attach_options options = {.size = sizeof(options),
                                                  .model = name,
                                                  .key = key,
                                                  .device = device,
                                                  .socket = gpu_case.socket,
                                                  .timeout_ms = 60000};
    memset(&gpu_case_error, 0, sizeof(gpu_case_error));
    return sluice_attach(&options, &model, &gpu_case_error) < 0 ? NULL : model;
}

void gpu_case_refused(const char *name, const char *device, int kind, const char *code,
                      const char *words)
{
    ck_assert_ptr_null(gpu_case_attach(name, NULL, device));
    ck_assert_msg(gpu_case_error.kind == kind, "%d: %s", gpu_case_error.kind,
                  gpu_case_error.message);
    ck_assert_str_eq(gpu_case_error.code, code);
    ck_assert_msg(strstr(gpu_case_error.message, words), "%s", gpu_case_error.message);
}

/* As sl_model_safetensors() made them; the fake driver's addresses can be read. */
void gpu_case_bytes(struct sluice_model *model)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    size_t bytes;
    uint8_t *blob = sl_model_safetensors("a,b", GPU_CASE_ITEMS, &bytes);
    ck_assert_msg(sluice_wait_all(model, 60000, -1, &gpu_case_error) == 0, "%s",
                  gpu_case_error.message);
    ck_assert_int_eq(sluice_find(model, "b", &tensor, &gpu_case_error), 0);
    ck_assert_uint_eq(tensor.bytes, 4 * GPU_CASE_ITEMS);
    ck_assert_int_eq(memcmp(tensor.data, blob + bytes - 4 * GPU_CASE_ITEMS, 4 * GPU_CASE_ITEMS), 0);
    free(blob);
}

/* The last load of this model failed so. */
void gpu_case_failure(const char *name, const char *words)
{
    struct sl_json json;
    sl_json_init(&json, 64 * 1024);
    ck_assert(sl_registry_model_json(gpu_case.node->registry, name, true, &json));
    const char *text = sl_json_text(&json, NULL);
    ck_assert_msg(text && strstr(text, words), "%s", text);
    sl_json_release(&json);
}

void gpu_case_define(const char *models)
{
    struct sl_node_config config;
    sl_autobuf complaints = SL_BUF_INIT(1 << 20);
    struct sl_err err = SL_ERR_INIT;
    char text[4096], path[SL_SCRATCH_PATH_BYTES + 16];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 1MiB\n"
             "pool: {socket: %s}\n%s",
             gpu_case.path, gpu_case.socket, models);
    ck_assert_int_eq(sl_tree_write(gpu_case.scratch, "node.yaml", text, strlen(text), &err), 0);
    snprintf(path, sizeof(path), "%s/node.yaml", gpu_case.path);
    ck_assert_int_eq(sl_node_config_read(path, &config, &complaints, &err), 0);
    sl_node_reload(gpu_case.node, &config);
    sl_node_config_release(&config);
}

void gpu_case_reload(const char *models)
{
    gpu_case_define(models);
    sl_registry_settle(gpu_case.node->registry);
}

int gpu_case_deposit(const char *key, const char *device, struct sluice_model *source)
{
    struct sluice_model_info info = {.size = sizeof(info)};
    struct sluice_deposit *made = NULL;
    void *data;
    const uint64_t shape[1] = {GPU_CASE_ITEMS};
    sluice_model_info(source, &info);
    struct sluice_deposit_options options = {.size = sizeof(options),
                                             .model = info.name,
                                             .key = key,
                                             .socket = gpu_case.socket,
                                             .device = device,
                                             .bytes = 8192,
                                             .timeout_ms = 60000};
    memcpy(options.identity, info.identity, sizeof(options.identity));
    if (sluice_deposit_begin(&options, &made, &gpu_case_error) < 0)
        return -1;
    int done = sluice_deposit_add(made, "t", "F32", 1, shape, NULL, 4 * GPU_CASE_ITEMS, &data,
                                  &gpu_case_error);
    for (int i = 0; done == 0 && i < GPU_CASE_ITEMS; i++)
        ((float *)data)[i] = (float)i;
    if (done == 0)
        done = sluice_deposit_commit(made, &gpu_case_error);
    sluice_deposit_end(made);
    return done;
}

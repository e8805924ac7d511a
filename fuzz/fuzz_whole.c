/* What an object says of the model that it belongs to: the first byte chooses its name, the rest is
 * its bytes. Beside it lie a shard of safetensors and files that it may name. */
#include "log.h"
#include "memory_store.h"
#include "plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char *const names[] = {
    "m/model.safetensors.index.json", "m/model_index.json",  "m/.metadata",
    "m/other.index.fp16.json",        "m/pytorch_model.bin", "m/model-00001-of-00002.safetensors"};

static void plan(const char *uri)
{
    struct sl_specs specs = {0};
    struct sl_err err = SL_ERR_INIT;
    struct sl_plan *made = NULL;
    sl_autobuf complaints = SL_BUF_INIT(64 * 1024);
    if (sl_spec_from_uri(uri, "/nowhere", NULL, 0, &specs, &complaints, &err) == 0) {
        const struct sl_plan_output output = sl_plan_output_of_spec(&specs.items[0]);
        (void)sl_plan_make(&specs.items[0], &output, NULL, &made, &err);
    }
    sl_plan_free(made);
    sl_specs_release(&specs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char shard[] = "\x37\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],"
                                "\"data_offsets\":[0,1]}}  x";
    if (bytes == 0)
        return 0;
    sl_log_setup(SL_LOG_ERROR, false);
    sl_memory_put("m/a.safetensors", shard, sizeof(shard) - 1, NULL);
    sl_memory_put("m/unet/x.json", "{}", 2, NULL);
    sl_memory_put("m/__0_0.distcp", "x", 1, NULL);
    sl_memory_put(names[data[0] % SL_COUNT(names)], data + 1, bytes - 1, NULL);
    plan("memory://m/");
    sl_memory_clear();
    return 0;
}

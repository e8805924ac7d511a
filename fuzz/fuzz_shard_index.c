/* Indexes of models in several files; m1.safetensors, with a tensor "a", is the shard that is
 * there. */
#include "fuzz_format.h"
#include "memory_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const uint8_t shard[] =
        "\x36\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}} \x07";
    sl_memory_put("m1.safetensors", shard, sizeof(shard) - 1, NULL);
    fuzz_index("memory:model.safetensors.index.json", "model.safetensors.index.json", data, bytes);
    return 0;
}

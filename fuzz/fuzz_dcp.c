/* Distributed checkpoints: two bytes with the length of .metadata, .metadata, then all of
 * __0_0.distcp. */
#include "buf.h"
#include "fuzz_format.h"
#include "memory_store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2)
        return 0;
    size_t metadata = SL_MIN((size_t)sl_get_le16(data), bytes - 2);
    sl_memory_put("__0_0.distcp", data + 2 + metadata, bytes - 2 - metadata, NULL);
    fuzz_index("memory:.metadata", ".metadata", data + 2, metadata);
    return 0;
}

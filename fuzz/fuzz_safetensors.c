/* safetensors files. */
#include "fuzz_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_index("memory:x.safetensors", "x.safetensors", data, bytes);
    return 0;
}

/* GGUF files, whole headers and damaged ones. */
#include "fuzz_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_index("memory:x.gguf", "x.gguf", data, bytes);
    return 0;
}

/* tensorizer files, with metadata blocks as small as their entries. */
#include "fuzz_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_index("memory:x.tensors", "x.tensors", data, bytes);
    return 0;
}

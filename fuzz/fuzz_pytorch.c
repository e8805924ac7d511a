/* Checkpoints, archives and streams. */
#include "fuzz_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    fuzz_index("memory:x.pt", "x.pt", data, bytes);
    return 0;
}

/* ZIP archives, stored and deflated. */
#include "fuzz_unpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    return fuzz_unpack(data, bytes, sl_unzip);
}

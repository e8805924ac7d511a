/* What the fake driver calls its results. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include "fake_cuda_parts.h"

static const struct {
    int result;
    const char *name, *text;
} results[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int describe(int result, const char **out, bool text)
{
    for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++)
        if (results[i].result == result) {
            *out = text ? results[i].text : results[i].name;
            return 0;
        }
    *out = NULL;
    return SL_CUDA_INVALID_VALUE;
}

int cuGetErrorName(int result, const char **name)
{
    FAKE_ENTER("cuGetErrorName", FAKE_EARLY);
    return describe(result, name, false);
}

int cuGetErrorString(int result, const char **text)
{
    FAKE_ENTER("cuGetErrorString", FAKE_EARLY);
    return describe(result, text, true);
}

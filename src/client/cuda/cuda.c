/*
 * Functions are asked of the driver by their base name and the version of the signature in cuda.def
 * (cuGetProcAddress): plain dlsym() of an old name gives its oldest ABI, with sizes of 32 bits. A
 * driver that has no cuGetProcAddress is searched for the versioned symbols.
 *
 * The library is never closed: threads of the driver's own run in it.
 */
#include "cuda.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { ASK_DEFAULT = 0 };

static const struct advice {
    int result;
    const char *text;
} advices[] = {
    {SL_CUDA_OUT_OF_MEMORY,
     "free memory of the GPU, load fewer models on it, or take a larger one"},
    {SL_CUDA_STUB_LIBRARY,
     "the libcuda.so.1 that was found is a link stub: install NVIDIA's driver"},
    {SL_CUDA_INSUFFICIENT_DRIVER, "update NVIDIA's driver"},
    {SL_CUDA_CALL_REQUIRES_NEWER_DRIVER, "update NVIDIA's driver"},
    {SL_CUDA_DEVICE_UNAVAILABLE,
     "another process uses the GPU exclusively: see its compute mode in nvidia-smi -q"},
    {SL_CUDA_NO_DEVICE, "give the container or the machine a GPU"},
    {SL_CUDA_INVALID_DEVICE, "see nvidia-smi -L and CUDA_VISIBLE_DEVICES for those there are"},
    {SL_CUDA_NO_BINARY_FOR_GPU, "this build has no kernels for this GPU"},
    {SL_CUDA_UNSUPPORTED_PTX_VERSION, "update NVIDIA's driver"},
    {SL_CUDA_ECC_UNCORRECTABLE, "the GPU has a memory error: see dmesg, restart, reset the GPU"},
    {SL_CUDA_NVLINK_UNCORRECTABLE, "a link of the GPU fails: see dmesg"},
    {SL_CUDA_OPERATING_SYSTEM, "is the limit of open files (ulimit -n) reached?"},
    {SL_CUDA_NOT_SUPPORTED,
     "this GPU, its driver or its mode (confidential computing) does not support it"},
    {SL_CUDA_SYSTEM_NOT_READY, "is nvidia-fabricmanager running?"},
    {SL_CUDA_SYSTEM_DRIVER_MISMATCH, "the driver's library is of another version than the kernel's "
                                     "module: restart the machine after an update"},
    {SL_CUDA_UNKNOWN, "see dmesg, restart the process"},
};

/* ---- errors --------------------------------------------------------------------------------- */

int sl_cuda_fail(struct sl_cuda_err *err, int result, const char *format, ...)
{
    va_list list;
    if (!err)
        return -1;
    err->result = result;
    va_start(list, format);
    vsnprintf(err->message, sizeof(err->message), format, list);
    va_end(list);
    return -1;
}

bool sl_cuda_is_sticky(int result)
{
    return result == SL_CUDA_DEINITIALIZED || result == SL_CUDA_ILLEGAL_ADDRESS ||
           result == SL_CUDA_CONTEXT_IS_DESTROYED || result == SL_CUDA_ASSERT ||
           (result >= SL_CUDA_HARDWARE_STACK_ERROR && result <= SL_CUDA_LAUNCH_FAILED) ||
           result == SL_CUDA_ECC_UNCORRECTABLE || result == SL_CUDA_NVLINK_UNCORRECTABLE ||
           result == SL_CUDA_CONTAINED || result == SL_CUDA_LAUNCH_TIMEOUT ||
           result == SL_CUDA_TENSOR_MEMORY_LEAK;
}

static const char *advice_for(int result)
{
    for (size_t i = 0; i < sizeof(advices) / sizeof(*advices); i++)
        if (advices[i].result == result)
            return advices[i].text;
    return sl_cuda_is_sticky(result) ? "the GPU's context is lost: restart the process" : NULL;
}

int sl_cuda_check(const struct sl_cuda *cuda, int result, struct sl_cuda_err *err, const char *what,
                  ...)
{
    const char *name = NULL, *text = NULL, *advice = advice_for(result);
    char did[200];
    va_list list;
    if (result == SL_CUDA_SUCCESS)
        return 0;
    va_start(list, what);
    vsnprintf(did, sizeof(did), what, list);
    va_end(list);
    if (cuda->error_name(result, &name) != 0 || !name)
        name = "an unknown error";
    if (cuda->error_string(result, &text) != 0 || !text)
        text = "unknown";
    return sl_cuda_fail(err, result, "cannot %s: %.60s (%d, %.100s)%s%s", did, name, result, text,
                        advice ? ": " : "", advice ? advice : "");
}

/* ---- opening -------------------------------------------------------------------------------- */

#ifdef SLUICE_NO_CUDA

const struct sl_cuda *sl_cuda_open(struct sl_cuda_err *err)
{
    sl_cuda_fail(err, 0,
                 "this build of sluice is fully static and has no GPU: a driver can only be opened "
                 "by a build with SLUICE_STATIC=most or none");
    return NULL;
}

#else

typedef int ask_v2(const char *name, void **function, int version, uint64_t flags, int *status);
typedef int ask_v1(const char *name, void **function, int version, uint64_t flags);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sl_cuda driver; /* guarded by the lock until `opened` */
static bool opened;

static void *find(void *library, const char *name, const char *symbol, int since)
{
    ask_v2 *second = (ask_v2 *)dlsym(library, "cuGetProcAddress_v2");
    ask_v1 *first = second ? NULL : (ask_v1 *)dlsym(library, "cuGetProcAddress");
    void *function = NULL;
    int status = 0;
    if (second && (second(name, &function, since, ASK_DEFAULT, &status) != 0 || status != 0))
        function = NULL;
    if (first && first(name, &function, since, ASK_DEFAULT) != 0)
        function = NULL;
    return second || function ? function : dlsym(library, symbol);
}

static int find_all(void *library, struct sl_cuda_err *err)
{
    enum { OPTIONAL, REQUIRED };
    const char *missing = NULL;
#define SL_CUDA(member, name, symbol, since, need, arguments)                                      \
    *(void **)&driver.member = find(library, name, symbol, since);                                 \
    if (!driver.member && need == REQUIRED && !missing)                                            \
        missing = name;
#include "cuda.def"
#undef SL_CUDA
    return missing
               ? sl_cuda_fail(err, SL_CUDA_NOT_FOUND,
                              "NVIDIA's driver has no function %s: update it (CUDA %d.%d, "
                              "driver 470, is the oldest that sluice can use)",
                              missing, SL_CUDA_VERSION_MIN / 1000, SL_CUDA_VERSION_MIN % 1000 / 10)
               : 0;
}

/* Old drivers lack functions: their version says more than the name of the first of them. */
static int check_version(void *library, struct sl_cuda_err *err)
{
    int (*ask)(int *version) = (int (*)(int *))dlsym(library, "cuDriverGetVersion");
    if (!ask || ask(&driver.version) != 0)
        return sl_cuda_fail(err, SL_CUDA_INSUFFICIENT_DRIVER,
                            "libcuda.so.1 does not report its version: reinstall NVIDIA's driver");
    if (driver.version >= SL_CUDA_VERSION_MIN)
        return 0;
    return sl_cuda_fail(err, SL_CUDA_INSUFFICIENT_DRIVER,
                        "NVIDIA's driver is too old: it has CUDA %d.%d, and sluice needs %d.%d "
                        "(driver 470) or newer: update it",
                        driver.version / 1000, driver.version % 1000 / 10,
                        SL_CUDA_VERSION_MIN / 1000, SL_CUDA_VERSION_MIN % 1000 / 10);
}

/* By the loader's own ways; else where container runtimes put it who change none of those. */
static const char *const libraries[] = {
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
};

/* Of several failures that of a file that is there tells most: the loader's first word is only that
 * it found none. */
static void *find_library(struct sl_cuda_err *err)
{
    char why[200] = "";
    for (size_t i = 0; i < sizeof(libraries) / sizeof(*libraries); i++) {
        void *library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
        const char *text = dlerror();
        if (text && (!*why || access(libraries[i], F_OK) == 0))
            snprintf(why, sizeof(why), "%s", text);
    }
    sl_cuda_fail(err, 0,
                 "no NVIDIA driver: %.180s; nor is it in /usr/local/nvidia/lib64 or lib (in a "
                 "container its runtime brings the driver, if NVIDIA_DRIVER_CAPABILITIES holds "
                 "'compute')",
                 *why ? why : "cannot open libcuda.so.1");
    return NULL;
}

static int open_driver(struct sl_cuda_err *err)
{
    void *library = find_library(err);
    if (!library)
        return -1;
    if (check_version(library, err) < 0 || find_all(library, err) < 0)
        return -1;
    return sl_cuda_check(&driver, driver.init(0), err, "initialise NVIDIA's driver");
}

const struct sl_cuda *sl_cuda_open(struct sl_cuda_err *err)
{
    pthread_mutex_lock(&lock);
    if (!opened)
        opened = open_driver(err) == 0;
    const struct sl_cuda *cuda = opened ? &driver : NULL;
    pthread_mutex_unlock(&lock);
    return cuda;
}

#endif

/*
 * One module for a context, from the image that fits the device, and its functions by the rows of
 * kernels.def. Each kernel has one argument, so a launch is one pointer.
 */
#include "kernels.h"

#include <limits.h>

#include "kernel_images.h"
#include "kernels_launch.h"

enum { BLOCKS_PER_MULTIPROCESSOR = 16 };

static const struct {
    const char *name;
    unsigned threads;
} rows[SL_KERNEL_COUNT] = {
#define SL_KERNEL(name, args_type, shared_type, thread_count, phase_count)                         \
    {"sl_" #name, thread_count},
#include "kernels.def"
#undef SL_KERNEL
};

static int from_driver(const struct sl_cuda_err *driver, struct sl_err *err)
{
    return sl_fail(err, SL_E_GPU, "%s", driver->message);
}

int sl_kernels_check(const struct sl_cuda_device *device, struct sl_err *err)
{
    size_t count;
    sl_kernel_images(&count);
    if (count == 0)
        return sl_fail(err, SL_E_GPU,
                       "no kernels for GPUs in this sluice (%s): build it after "
                       "scripts/cuda-compiler, or load what needs neither cast nor decryption",
                       sl_kernel_images_text());
    if (!sl_kernel_image_for(device->major, device->minor))
        return sl_fail(err, SL_E_GPU,
                       "no kernels for '%s' (compute capability %d.%d): this sluice has %s",
                       device->name, device->major, device->minor, sl_kernel_images_text());
    return 0;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* An image that this driver does not know the form of: PTX may still do. */
static bool is_refused(int result)
{
    return result == SL_CUDA_INVALID_IMAGE || result == SL_CUDA_NO_BINARY_FOR_GPU;
}

static int load(struct sl_kernels *kernels, const struct sl_cuda_device *device, struct sl_err *err)
{
    const struct sl_cuda *cuda = kernels->cuda;
    const struct sl_kernel_image *image = sl_kernel_image_for(device->major, device->minor);
    const struct sl_kernel_image *ptx = sl_kernel_ptx_for(device->major, device->minor);
    struct sl_cuda_err driver;
    int result = cuda->module_load(&kernels->module, image->data);
    if (is_refused(result) && ptx && ptx != image) {
        image = ptx;
        result = cuda->module_load(&kernels->module, image->data);
    }
    if (sl_cuda_check(cuda, result, &driver, "load the kernels for %s on '%s'", image->name,
                      device->name) < 0)
        return from_driver(&driver, err);
    for (unsigned i = 0; i < SL_KERNEL_COUNT; i++) {
        result = cuda->module_function(&kernels->functions[i], kernels->module, rows[i].name);
        if (sl_cuda_check(cuda, result, &driver, "find the kernel '%s' for %s", rows[i].name,
                          image->name) < 0)
            return from_driver(&driver, err);
    }
    return 0;
}

struct sl_kernels *sl_kernels_load(const struct sl_cuda *cuda, const struct sl_cuda_device *device,
                                   struct sl_err *err)
{
    if (sl_kernels_check(device, err) < 0)
        return NULL;
    SL_AUTO(sl_kernels) kernels = sl_alloc(sizeof(*kernels), err);
    if (!kernels)
        return NULL;
    kernels->cuda = cuda;
    kernels->multiprocessors = device->multiprocessors > 0 ? (unsigned)device->multiprocessors : 1;
    if (load(kernels, device, err) < 0)
        return NULL;
    return sl_steal(&kernels);
}

void sl_kernels_free(struct sl_kernels *kernels)
{
    if (!kernels)
        return;
    if (kernels->module)
        kernels->cuda->module_unload(kernels->module);
    free(kernels);
}

/* ---- launching ------------------------------------------------------------------------------- */

unsigned sl_kernel_threads(enum sl_kernel kernel)
{
    return rows[kernel].threads;
}

int sl_kernel_launch(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                     enum sl_kernel kernel, uint64_t blocks, const void *args, struct sl_err *err)
{
    struct sl_cuda_err driver;
    void *params[] = {(void *)(uintptr_t)args};
    int result = kernels->cuda->launch(kernels->functions[kernel], (unsigned)blocks, 1, 1,
                                       rows[kernel].threads, 1, 1, 0, stream, params, NULL);
    if (sl_cuda_check(kernels->cuda, result, &driver, "start the kernel '%s'", rows[kernel].name) <
        0)
        return from_driver(&driver, err);
    return 0;
}

uint64_t sl_kernel_blocks(const struct sl_kernels *kernels, enum sl_kernel kernel, uint64_t jobs)
{
    unsigned threads = rows[kernel].threads;
    uint64_t wanted = jobs / threads + (jobs % threads != 0);
    uint64_t most = (uint64_t)kernels->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    return SL_MAX(SL_MIN(wanted, most), UINT64_C(1));
}

bool sl_kernel_overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a < b ? b - a < a_bytes : a - b < b_bytes;
}

int sl_kernel_zero(struct sl_kernels *kernels, struct sl_cuda_stream *stream, uint64_t at,
                   uint64_t bytes, struct sl_err *err)
{
    struct sl_cuda_err driver;
    int result = bytes ? kernels->cuda->set_bytes(at, 0, bytes, stream) : 0;
    if (sl_cuda_check(kernels->cuda, result, &driver, "set %llu bytes to zero",
                      (unsigned long long)bytes) < 0)
        return from_driver(&driver, err);
    return 0;
}

/*
 *     gpu_check [--quick] [--peak GB/s] SECTION …
 *                                            device, rules, alone, kernels, costs, attach, copies,
 *                                            ring, holders, host, errors; --peak: what "copies"
 *                                            found in another process
 *     gpu_check client SOCKET MODEL DEVICE   attach by libsluice, wait, digest every tensor; "no"
 *                                            after it: no digests, "write": try to write, "copy":
 *                                            copy a model of the host to the GPU, digest that
 *
 * Sections follow each other in one process, so that the peak that "copies" finds is the measure of
 * "ring". Exit 1 if a row failed.
 */
#include "gpu_check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hash.h"
#include "kernel_images.h"
#include "kernels.h"

static unsigned failures;

void gpu_row(const char *section, const char *what, double value, const char *unit,
             const char *wanted, enum gpu_verdict verdict)
{
    static const char *const words[] = {"", "ok", "FAIL", "skip"};
    failures += verdict == GPU_FAIL;
    printf("%s,\"%s\",%.6g,%s,\"%s\",%s\n", section, what, value, unit, wanted, words[verdict]);
    fflush(stdout);
}

void gpu_claim(const char *section, const char *what, bool good, const char *wanted)
{
    gpu_row(section, what, good, "", wanted, good ? GPU_OK : GPU_FAIL);
}

void gpu_must(const struct gpu_check *check, int result, const char *what)
{
    struct sl_cuda_err err;
    if (sl_cuda_check(check->cuda, result, &err, "%s", what) == 0)
        return;
    fprintf(stderr, "gpu_check: %s\n", err.message);
    exit(9);
}

void gpu_start(struct gpu_check *check)
{
    struct sl_cuda_err err;
    check->cuda = sl_cuda_open(&err);
    if (!check->cuda || sl_cuda_device(check->cuda, 0, &check->device, &err) < 0) {
        fprintf(stderr, "gpu_check: %s\n", err.message);
        exit(9);
    }
    const struct sl_cuda *cuda = check->cuda;
    gpu_must(check, cuda->primary_retain(&check->context, check->device.handle),
             "retain a context");
    gpu_must(check, cuda->set_current(check->context), "make the context current");
    gpu_must(check, cuda->stream_create(&check->stream, SL_CUDA_STREAM_NON_BLOCKING),
             "create a stream");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void map_area(const struct gpu_check *check, struct gpu_area *area, int flags)
{
    const struct sl_cuda *cuda = check->cuda;
    struct sl_cuda_access access = {{SL_CUDA_LOCATION_DEVICE, check->device.ordinal}, flags};
    gpu_must(check,
             cuda->address_reserve(&area->address, area->bytes, check->device.granularity, 0, 0),
             "reserve addresses");
    gpu_must(check, cuda->mem_map(area->address, area->bytes, 0, area->handle, 0), "map memory");
    gpu_must(check, cuda->mem_set_access(area->address, area->bytes, &access, 1), "set access");
}

int gpu_area_make(const struct gpu_check *check, uint64_t bytes, struct gpu_area *area)
{
    struct sl_cuda_prop prop = sl_cuda_shared(&check->device);
    uint64_t grain = check->device.granularity;
    area->bytes = (bytes + grain - 1) / grain * grain;
    if (check->cuda->mem_create(&area->handle, area->bytes, &prop, 0) != 0)
        return -1;
    map_area(check, area, SL_CUDA_READ_WRITE);
    return 0;
}

void gpu_area_import(const struct gpu_check *check, int fd, uint64_t bytes, int access,
                     struct gpu_area *area)
{
    area->bytes = bytes;
    gpu_must(check,
             check->cuda->mem_import(&area->handle, (void *)(uintptr_t)fd, SL_CUDA_HANDLE_FD),
             "import memory");
    map_area(check, area, access);
}

void gpu_area_free(const struct gpu_check *check, struct gpu_area *area)
{
    gpu_must(check, check->cuda->mem_unmap(area->address, area->bytes), "unmap memory");
    gpu_must(check, check->cuda->address_free(area->address, area->bytes), "free addresses");
    gpu_must(check, check->cuda->mem_release(area->handle), "release memory");
}

void gpu_digest(const struct gpu_check *check, uint64_t address, uint64_t bytes, char hex[65])
{
    enum { STEP = 16 << 20 };
    void *buffer;
    uint8_t digest[32];
    struct sl_sha256 *sha = sl_sha256_new(NULL);
    gpu_must(check, check->cuda->host_alloc(&buffer, STEP, SL_CUDA_HOST_PORTABLE), "pin a buffer");
    for (uint64_t at = 0; at < bytes; at += STEP) {
        size_t step = bytes - at < STEP ? (size_t)(bytes - at) : STEP;
        gpu_must(check, check->cuda->copy_to_host(buffer, address + at, step, check->stream),
                 "copy to the host");
        gpu_must(check, check->cuda->stream_synchronize(check->stream), "wait for a copy");
        sl_sha256_update(sha, buffer, step);
    }
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
    gpu_must(check, check->cuda->host_free(buffer), "unpin a buffer");
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

/* ---- time and numbers ------------------------------------------------------------------------ */

double gpu_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void gpu_fill_random(void *data, uint64_t bytes)
{
    static uint64_t state = 88172645463325252u;
    uint8_t *at = data;
    for (; bytes >= 8; at += 8, bytes -= 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(at, &state, 8);
    }
    memcpy(at, &state, bytes);
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

double gpu_seconds(const struct gpu_check *check, unsigned rounds,
                   void (*work)(const struct gpu_check *check, void *arg), void *arg)
{
    enum { ROUNDS_MAX = 32 };
    double seconds[ROUNDS_MAX];
    struct sl_cuda_event *begin, *end;
    const struct sl_cuda *cuda = check->cuda;
    gpu_must(check, cuda->event_create(&begin, 0), "create an event");
    gpu_must(check, cuda->event_create(&end, 0), "create an event");
    for (unsigned i = 0; i < rounds; i++) {
        float ms = 0;
        gpu_must(check, cuda->event_record(begin, check->stream), "record an event");
        work(check, arg);
        gpu_must(check, cuda->event_record(end, check->stream), "record an event");
        gpu_must(check, cuda->event_synchronize(end), "wait for an event");
        gpu_must(check, cuda->event_elapsed(&ms, begin, end), "measure a time");
        seconds[i] = ms > 0 ? ms * 1e-3 : 1e-9;
    }
    cuda->event_destroy(begin);
    cuda->event_destroy(end);
    qsort(seconds, rounds, sizeof(*seconds), by_value);
    return seconds[rounds / 2];
}

/* ---- the device ------------------------------------------------------------------------------ */

/* Which images does this driver take? What the launcher takes must be among them. */
static void try_images(struct gpu_check *check)
{
    size_t count;
    char what[96], wanted[96];
    const struct sl_kernel_image *images = sl_kernel_images(&count);
    const struct sl_kernel_image *ours =
        sl_kernel_image_for(check->device.major, check->device.minor);
    for (size_t i = 0; i < count; i++) {
        struct sl_cuda_module *module = NULL;
        double begin = gpu_now();
        int result = check->cuda->module_load(&module, images[i].data);
        double ms = (gpu_now() - begin) * 1e3;
        bool must = &images[i] == ours || (images[i].ptx && ours);
        snprintf(what, sizeof(what), "load %s: result %d", images[i].name, result);
        snprintf(wanted, sizeof(wanted), "%s", must ? "result 0" : "any");
        gpu_row("matrix", what, ms, "ms", wanted,
                !must         ? GPU_MEASURED
                : result == 0 ? GPU_OK
                              : GPU_FAIL);
        if (module)
            check->cuda->module_unload(module);
    }
    if (count == 0)
        gpu_row("matrix", sl_kernel_images_text(), 0, "", "kernels", GPU_SKIP);
}

/* CUdevice_attribute */
static void tell_attributes(const struct gpu_check *check)
{
    static const struct {
        int number;
        const char *name;
    } attributes[] = {
        {20, "compute mode"},
        {40, "copy engines"},
        {99, "memory of the host can be registered"},
        {100, "it uses the host's page tables"},
        {102, "memory by handles"},
        {103, "handles as descriptors"},
        {110, "network cards can read such memory"},
        {113, "read-only memory can be registered"},
        {134, "NUMA node of the host"},
        {141, "such memory of a NUMA node"},
    };
    char what[96];
    for (unsigned i = 0; i < SL_COUNT(attributes); i++) {
        int value = -1, result = check->cuda->device_attribute(&value, attributes[i].number,
                                                               check->device.handle);
        snprintf(what, sizeof(what), "attribute %d, %s%s", attributes[i].number, attributes[i].name,
                 result ? ": not known" : "");
        gpu_row("device", what, value, "", "", GPU_MEASURED);
    }
}

void gpu_check_device(struct gpu_check *check)
{
    const struct sl_cuda_device *device = &check->device;
    char what[160];
    int driver = 0;
    check->cuda->driver_version(&driver);
    snprintf(what, sizeof(what), "%s, compute capability %d.%d", device->name, device->major,
             device->minor);
    gpu_row("device", what, device->multiprocessors, "multiprocessors", "", GPU_MEASURED);
    gpu_row("device", "memory", (double)device->total_bytes / 1e9, "GB", "", GPU_MEASURED);
    gpu_row("device", "granularity", (double)device->granularity / 1048576, "MiB", "2",
            GPU_MEASURED);
    gpu_row("device", "CUDA version of the driver", driver, "", "", GPU_MEASURED);
    tell_attributes(check);
    try_images(check);
}

void gpu_check_errors(struct gpu_check *check)
{
    struct sl_cuda_prop prop = sl_cuda_shared(&check->device);
    struct sl_cuda_device other;
    struct sl_cuda_err err;
    struct sl_cuda_module *module = NULL;
    uint64_t handle;
    uint64_t grain = check->device.granularity;
    uint64_t too_much = (check->device.total_bytes / grain + 16) * grain;
    static const char rubbish[4096] = "this is not an image";
    gpu_claim("errors", "more memory than there is is refused as out of memory",
              check->cuda->mem_create(&handle, too_much, &prop, 0) == SL_CUDA_OUT_OF_MEMORY,
              "result 2");
    gpu_claim("errors", "a size between granules is refused",
              check->cuda->mem_create(&handle, grain + 4096, &prop, 0) == SL_CUDA_INVALID_VALUE,
              "result 1");
    gpu_claim("errors", "a GPU that is not there is refused",
              sl_cuda_device(check->cuda, 99, &other, &err) < 0 &&
                  err.result == SL_CUDA_INVALID_DEVICE,
              "result 101");
    gpu_claim("errors", "an image that is none is refused",
              check->cuda->module_load(&module, rubbish) != 0, "an error");
    gpu_claim("errors", "after all that the device still works",
              check->cuda->stream_synchronize(check->stream) == 0, "result 0");
}

/* ---- the program ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(struct gpu_check *check);
} sections[] = {
    {"device", gpu_check_device},   {"rules", gpu_check_rules},   {"alone", gpu_check_alone},
    {"kernels", gpu_check_kernels}, {"costs", gpu_check_costs},   {"attach", gpu_check_attach},
    {"copies", gpu_check_copies},   {"ring", gpu_check_ring},     {"holders", gpu_check_holders},
    {"host", gpu_check_host},       {"errors", gpu_check_errors},
};

static int run(struct gpu_check *check, const char *name)
{
    for (unsigned i = 0; i < SL_COUNT(sections); i++)
        if (strcmp(sections[i].name, name) == 0) {
            double begin = gpu_now();
            sections[i].run(check);
            gpu_row(name, "time of this section", gpu_now() - begin, "s", "", GPU_MEASURED);
            return 0;
        }
    fprintf(stderr, "gpu_check: no section '%s'\n", name);
    return 2;
}

int main(int argc, char **argv)
{
    struct gpu_check check = {0};
    int status = 0;
    if (argc > 1 && strcmp(argv[1], "client") == 0)
        return gpu_check_client(argv + 2, argc - 2);
    if (argc > 1 && strcmp(argv[1], "child") == 0)
        return gpu_check_child(argv + 2, argc - 2);
    int first = 1;
    check.quick = argc > first && strcmp(argv[first], "--quick") == 0;
    first += check.quick;
    if (argc > first + 1 && strcmp(argv[first], "--peak") == 0) {
        check.peak = strtod(argv[first + 1], NULL);
        first += 2;
    }
    if (first >= argc || strcmp(argv[first], "alone") != 0)
        gpu_start(&check);
    for (int i = first; i < argc && status == 0; i++)
        status = run(&check, argv[i]);
    return status ? status : failures > 0;
}

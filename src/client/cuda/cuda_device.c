/* What is known of a device. Shareable memory takes two attributes and says its granularity. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static int attribute_or(const struct sl_cuda *cuda, const struct sl_cuda_device *device, int number,
                        int otherwise)
{
    int value = otherwise;
    return cuda->device_attribute(&value, number, device->handle) == 0 ? value : otherwise;
}

static int attribute(const struct sl_cuda *cuda, const struct sl_cuda_device *device, int number)
{
    return attribute_or(cuda, device, number, 0);
}

static int describe(const struct sl_cuda *cuda, struct sl_cuda_device *device,
                    struct sl_cuda_err *err)
{
    struct sl_cuda_uuid uuid = {{0}};
    size_t total = 0;
    int ordinal = device->ordinal;
    if (sl_cuda_check(cuda, cuda->device_uuid(&uuid, device->handle), err, "ask cuda:%d who it is",
                      ordinal) < 0 ||
        sl_cuda_check(cuda, cuda->device_total_mem(&total, device->handle), err,
                      "ask cuda:%d for its memory", ordinal) < 0)
        return -1;
    if (cuda->device_name(device->name, (int)sizeof(device->name), device->handle) != 0)
        snprintf(device->name, sizeof(device->name), "GPU");
    device->name[sizeof(device->name) - 1] = 0;
    memcpy(device->uuid, uuid.bytes, sizeof(device->uuid));
    device->total_bytes = total;
    device->major = attribute(cuda, device, SL_CUDA_COMPUTE_MAJOR);
    device->minor = attribute(cuda, device, SL_CUDA_COMPUTE_MINOR);
    device->multiprocessors = attribute(cuda, device, SL_CUDA_MULTIPROCESSORS);
    device->registers_read_only = attribute(cuda, device, SL_CUDA_HOST_REGISTER) &&
                                  attribute(cuda, device, SL_CUDA_READ_ONLY_HOST_REGISTER);
    device->has_rdma = attribute(cuda, device, SL_CUDA_RDMA);
    device->host_node = attribute_or(cuda, device, SL_CUDA_HOST_NODE, -1);
    return 0;
}

static int check_able(const struct sl_cuda *cuda, struct sl_cuda_device *device,
                      struct sl_cuda_err *err)
{
    const struct sl_cuda_prop prop = sl_cuda_shared(device);
    size_t granularity = 0;
    const char *lacks = NULL;
    if (!attribute(cuda, device, SL_CUDA_VMM))
        lacks = "virtual memory management";
    else if (!attribute(cuda, device, SL_CUDA_FD_HANDLES))
        lacks = "memory that can be exported as a descriptor";
    if (lacks)
        return sl_cuda_fail(err, 0, "cuda:%d (%s) has no %s: the pool cannot use it",
                            device->ordinal, device->name, lacks);
    if (sl_cuda_check(cuda, cuda->granularity(&granularity, &prop, SL_CUDA_GRANULARITY_MINIMUM),
                      err, "ask cuda:%d for its granularity", device->ordinal) < 0)
        return -1;
    if (granularity == 0 || (granularity & (granularity - 1)))
        return sl_cuda_fail(err, 0, "cuda:%d says its memory comes in pieces of %zu bytes",
                            device->ordinal, granularity);
    device->granularity = granularity;
    return 0;
}

int sl_cuda_device_count(const struct sl_cuda *cuda, int *count, struct sl_cuda_err *err)
{
    return sl_cuda_check(cuda, cuda->device_count(count), err, "count the GPUs");
}

static int take(const struct sl_cuda *cuda, int ordinal, struct sl_cuda_device *device,
                struct sl_cuda_err *err)
{
    memset(device, 0, sizeof(*device));
    device->ordinal = ordinal;
    if (sl_cuda_check(cuda, cuda->device_get(&device->handle, ordinal), err, "take cuda:%d",
                      ordinal) < 0)
        return -1;
    return describe(cuda, device, err);
}

int sl_cuda_device(const struct sl_cuda *cuda, int ordinal, struct sl_cuda_device *device,
                   struct sl_cuda_err *err)
{
    int count = 0;
    if (sl_cuda_device_count(cuda, &count, err) < 0)
        return -1;
    if (ordinal < 0 || ordinal >= count)
        return sl_cuda_fail(err, SL_CUDA_INVALID_DEVICE,
                            "there is no cuda:%d: this process sees %d GPU%s", ordinal, count,
                            count == 1 ? ", cuda:0" : "s, from cuda:0 on");
    return take(cuda, ordinal, device, err) < 0 ? -1 : check_able(cuda, device, err);
}

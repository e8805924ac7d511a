/* The fake driver's GPUs, what it tells of them, and their contexts. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <stdio.h>
#include <unistd.h>

#include "fake_cuda_parts.h"

/* ---- devices -------------------------------------------------------------------------------- */

int cuDeviceGetCount(int *count)
{
    FAKE_ENTER("cuDeviceGetCount", 0);
    *count = fake.visible_count;
    return 0;
}

int cuDeviceGet(int *device, int ordinal)
{
    FAKE_ENTER("cuDeviceGet", 0);
    *device = ordinal;
    return fake_device(ordinal) < 0 ? SL_CUDA_INVALID_DEVICE : 0;
}

int cuDeviceGetName(char *name, int bytes, int device)
{
    FAKE_ENTER("cuDeviceGetName", 0);
    snprintf(name, (size_t)bytes, "Fake %d", fake_device(device));
    return fake_device(device) < 0 ? SL_CUDA_INVALID_DEVICE : 0;
}

int cuDeviceGetUuid_v2(struct sl_cuda_uuid *uuid, int device)
{
    FAKE_ENTER("cuDeviceGetUuid", 0);
    for (int i = 0; i < 16; i++)
        uuid->bytes[i] = (uint8_t)(0xfa + i * 7 + fake_device(device));
    return fake_device(device) < 0 ? SL_CUDA_INVALID_DEVICE : 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    FAKE_ENTER("cuDeviceGetAttribute", 0);
    if (fake_device(device) < 0)
        return SL_CUDA_INVALID_DEVICE;
    *value = 0;
    if (attribute == SL_CUDA_VMM || attribute == SL_CUDA_FD_HANDLES)
        *value = 1;
    if (attribute == SL_CUDA_READ_ONLY_HOST_REGISTER)
        *value = fake.registers_read_only;
    if (attribute == SL_CUDA_HOST_REGISTER)
        *value = fake.registers;
    if (attribute == SL_CUDA_COMPUTE_MAJOR)
        *value = 9;
    if (attribute == SL_CUDA_MULTIPROCESSORS)
        *value = 8;
    if (attribute == SL_CUDA_RDMA)
        *value = fake.has_rdma;
    if (attribute == SL_CUDA_HOST_NODE)
        *value = fake.host_node;
    return *value < -1 ? SL_CUDA_INVALID_VALUE : 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    FAKE_ENTER("cuDeviceTotalMem", 0);
    *bytes = fake.bytes_each;
    return fake_device(device) < 0 ? SL_CUDA_INVALID_DEVICE : 0;
}

int cuDeviceGetPCIBusId(char *id, int bytes, int device)
{
    FAKE_ENTER("cuDeviceGetPCIBusId", 0);
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", fake_device(device) + 1);
    return fake_device(device) < 0 ? SL_CUDA_INVALID_DEVICE : 0;
}

/* ---- contexts ------------------------------------------------------------------------------- */

int cuDevicePrimaryCtxRetain(struct sl_cuda_context **context, int device)
{
    FAKE_ENTER("cuDevicePrimaryCtxRetain", 0);
    if (fake_device(device) < 0)
        return SL_CUDA_INVALID_DEVICE;
    pthread_mutex_lock(&fake.lock);
    while (fake.contexts_held || fake_device(device) == fake.held_device)
        pthread_cond_wait(&fake.unheld, &fake.lock);
    int lost = fake_lost(fake_device(device));
    if (lost) {
        pthread_mutex_unlock(&fake.lock);
        return lost;
    }
    *context = &fake.contexts[fake_device(device)];
    bool makes = (*context)->refs++ == 0;
    fake.counts.contexts_made += makes;
    pthread_mutex_unlock(&fake.lock);
    if (makes && fake.context_us)
        usleep(fake.context_us);
    return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    int result = fake_enter("cuDevicePrimaryCtxRelease", 0);
    if (fake_device(device) < 0)
        return SL_CUDA_INVALID_DEVICE;
    pthread_mutex_lock(&fake.lock);
    struct sl_cuda_context *context = &fake.contexts[fake_device(device)];
    bool ends = context->refs == 1;
    bool drains =
        ends && fake_lost(context->device) && !fake.held; /* nobody could wait for its streams */
    if (!context->refs)
        result = SL_CUDA_INVALID_CONTEXT;
    else if (--context->refs == 0)
        fake.counts.left += context->things + fake_is_busy(context);
    pthread_mutex_unlock(&fake.lock);
    if (ends && fake.context_us)
        usleep(fake.context_us);
    if (drains)
        fake_drain(context);
    return result;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    FAKE_ENTER("cuDevicePrimaryCtxGetState", 0);
    if (fake_device(device) < 0)
        return SL_CUDA_INVALID_DEVICE;
    pthread_mutex_lock(&fake.lock);
    *flags = 0;
    *active = fake.contexts[fake_device(device)].refs > 0;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

int cuCtxSetCurrent(struct sl_cuda_context *context)
{
    FAKE_ENTER("cuCtxSetCurrent", 0);
    pthread_mutex_lock(&fake.lock);
    bool ended = context && !context->refs;
    pthread_mutex_unlock(&fake.lock);
    if (ended)
        return SL_CUDA_INVALID_CONTEXT;
    fake_set_current(context);
    return 0;
}

int cuCtxGetCurrent(struct sl_cuda_context **context)
{
    FAKE_ENTER("cuCtxGetCurrent", 0);
    *context = fake_current();
    return 0;
}

int cuCtxGetDevice(int *device)
{
    FAKE_ENTER("cuCtxGetDevice", FAKE_CONTEXT);
    for (int ordinal = 0; ordinal < fake.visible_count; ordinal++)
        if (fake.visible[ordinal] == fake_current()->device)
            *device = ordinal;
    return 0;
}

int cuCtxSynchronize(void)
{
    FAKE_ENTER("cuCtxSynchronize", FAKE_CONTEXT);
    fake_drain(fake_current());
    return fake_lost(fake_current()->device);
}

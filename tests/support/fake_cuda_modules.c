/* Modules of the fake driver: images are not read, each has all the kernels that it knows. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <stdlib.h>
#include <string.h>

#include "fake_cuda_parts.h"

int cuModuleLoadData(struct sl_cuda_module **out, const void *image)
{
    static const uint8_t fatbin[] = {0x50, 0xed, 0x55, 0xba}, cubin[] = {0x7f, 'E', 'L', 'F'};
    FAKE_ENTER("cuModuleLoadData", FAKE_CONTEXT);
    if (!out || !image)
        return SL_CUDA_INVALID_VALUE;
    if (memcmp(image, fatbin, 4) != 0 && memcmp(image, cubin, 4) != 0 &&
        memcmp(image, "//", 2) != 0 && memcmp(image, ".ver", 4) != 0)
        return SL_CUDA_INVALID_IMAGE;
    struct sl_cuda_module *module = calloc(1, sizeof(*module));
    module->context = fake_current();
    for (int i = 0; i < FUNCTIONS_MAX && fake_kernels[i].name; i++)
        module->functions[i] = (struct sl_cuda_function){&fake_kernels[i], module};
    pthread_mutex_lock(&fake.lock);
    module->context->things++;
    fake.counts.modules++;
    pthread_mutex_unlock(&fake.lock);
    *out = module;
    return 0;
}

int cuModuleUnload(struct sl_cuda_module *module)
{
    int result = fake_enter("cuModuleUnload", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    if (fake_is_busy(module->context)) /* kernels of it may be among that */
        fake.lost[module->context->device] = SL_CUDA_ILLEGAL_ADDRESS;
    module->context->things--;
    fake.counts.modules--;
    pthread_mutex_unlock(&fake.lock);
    free(module);
    return result;
}

int cuModuleGetFunction(struct sl_cuda_function **function, struct sl_cuda_module *module,
                        const char *name)
{
    FAKE_ENTER("cuModuleGetFunction", FAKE_CONTEXT);
    for (int i = 0; module && i < FUNCTIONS_MAX && module->functions[i].kernel; i++)
        if (strcmp(module->functions[i].kernel->name, name) == 0) {
            *function = &module->functions[i];
            return 0;
        }
    return SL_CUDA_NOT_FOUND;
}

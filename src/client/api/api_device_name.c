/* Names of GPUs: "cuda:1", as a process counts them, which CUDA_VISIBLE_DEVICES changes, and UUIDs,
 * which are the same everywhere. Of a part of a GPU (MIG) the driver tells the part's own UUID. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "api_device.h"
#include "pool_link.h"

enum { MISSING_ORDINAL = 1000 }; /* which there is not */

static bool is_uuid(const char *name)
{
    return strncmp(name, "GPU-", 4) == 0 || strncmp(name, "MIG-", 4) == 0;
}

static bool is_ordinal(const char *name, int *ordinal)
{
    char *end;
    if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    unsigned long number = strtoul(name + 5, &end, 10);
    *ordinal = number < MISSING_ORDINAL ? (int)number : MISSING_ORDINAL;
    return *end == 0;
}

bool sl_api_device_named(const char *name)
{
    int ordinal;
    return is_uuid(name) || is_ordinal(name, &ordinal);
}

static int digit(char letter)
{
    int lower = tolower((unsigned char)letter);
    return lower >= '0' && lower <= '9' ? lower - '0' : lower - 'a' + 10;
}

/* "1c8a2b9e-0f1e-2d3c-4b5a-69788796a5b4", to its end. */
static bool parse_uuid(const char *text, struct sl_cuda_uuid *uuid)
{
    for (int i = 0; i < 16; i++) {
        if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-')
            return false;
        if (!isxdigit((unsigned char)text[0]) || !isxdigit((unsigned char)text[1]))
            return false;
        uuid->bytes[i] = (uint8_t)(digit(text[0]) * 16 + digit(text[1]));
        text += 2;
    }
    return *text == 0;
}

static int find_uuid(const char *name, const struct sl_cuda_uuid *wanted, int *ordinal,
                     struct sluice_error *error)
{
    struct sl_cuda_err err = {0};
    int count = 0, handle;
    const struct sl_cuda *cuda = sl_cuda_open(&err);
    if (!cuda || sl_cuda_device_count(cuda, &count, &err) < 0)
        return sl_api_device_fail(&err, error);
    for (int i = 0; i < count; i++) {
        struct sl_cuda_uuid uuid;
        if (cuda->device_get(&handle, i) != 0 || cuda->device_uuid(&uuid, handle) != 0 ||
            memcmp(&uuid, wanted, sizeof(uuid)) != 0)
            continue;
        *ordinal = i;
        return 0;
    }
    return sl_api_fail(error, SLUICE_GPU,
                       "there is no '%s' among the %d GPUs that this process sees: "
                       "CUDA_VISIBLE_DEVICES chooses them, nvidia-smi -L lists all",
                       name, count);
}

int sluice_device(const char *name, int32_t *ordinal, struct sluice_error *error)
{
    struct sl_cuda_uuid uuid;
    if (is_ordinal(name, ordinal))
        return 0;
    if (!is_uuid(name) || !parse_uuid(name + 4, &uuid))
        return sl_api_fail(error, SLUICE_USAGE,
                           "'%.80s' does not name a GPU: name it by its number, as cuda:0, or by "
                           "its UUID, as nvidia-smi -L prints it",
                           name);
    return find_uuid(name, &uuid, ordinal, error);
}

int sl_api_device_open_named(struct sl_api_device *device, const char *name,
                             struct sluice_error *error)
{
    int ordinal;
    memset(device, 0, sizeof(*device));
    return sluice_device(name, &ordinal, error) < 0 ? -1
                                                    : sl_api_device_open(device, ordinal, error);
}

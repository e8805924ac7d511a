/* Host memory that the fake driver has pinned. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_cuda_parts.h"

struct pinned {
    const uint8_t *data;
    size_t bytes;
    bool ours; /* made by cuMemHostAlloc */
    struct sl_cuda_context *context;
    struct pinned *next;
};
static struct pinned *pinneds;
static struct { /* the largest given back, for the next who wants as much: pages cost time */
    void *data;
    size_t bytes;
} spare;

bool fake_is_pinned(const void *data, size_t bytes)
{
    const uint8_t *begin = data;
    for (const struct pinned *at = pinneds; at; at = at->next)
        if (begin >= at->data && begin + bytes <= at->data + at->bytes)
            return true;
    return false;
}

static void add(const void *data, size_t bytes, bool ours)
{
    struct pinned *pinned = calloc(1, sizeof(*pinned));
    pthread_mutex_lock(&fake.lock);
    *pinned = (struct pinned){data, bytes, ours, fake_current(), pinneds};
    pinneds = pinned;
    pinned->context->things++;
    fake.counts.host_buffers++;
    pthread_mutex_unlock(&fake.lock);
}

static size_t drop(const void *data, bool ours)
{
    size_t bytes = 0;
    pthread_mutex_lock(&fake.lock);
    fake_untouched();
    for (struct pinned **at = &pinneds; *at && !bytes; at = &(*at)->next) {
        struct pinned *found = *at;
        if (found->data != data || found->ours != ours)
            continue;
        bytes = found->bytes;
        found->context->things--;
        fake.counts.host_buffers--;
        *at = found->next;
        free(found);
        break;
    }
    pthread_mutex_unlock(&fake.lock);
    return bytes;
}

/* Not zeros: nobody may count on them. And not memset(): a sanitizer would note every byte. */
__attribute__((no_sanitize("thread", "address"))) static void fill(void *data, size_t bytes)
{
    volatile uint64_t *words = data;
    for (size_t i = 0; i < bytes / sizeof(*words); i++)
        words[i] = 0xd5d5d5d5d5d5d5d5;
}

static void *take_spare(size_t bytes)
{
    void *data = NULL;
    pthread_mutex_lock(&fake.lock);
    if (spare.data && spare.bytes == bytes &&
        mprotect(spare.data, bytes, PROT_READ | PROT_WRITE) == 0) {
        data = spare.data;
        spare.data = NULL;
    }
    pthread_mutex_unlock(&fake.lock);
    return data;
}

/* Whoever touches it crashes as if it were gone. */
static void leave_spare(void *data, size_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    if (spare.data && spare.bytes > bytes) {
        fake_munmap(data, bytes);
    } else {
        if (spare.data)
            fake_munmap(spare.data, spare.bytes);
        spare.data = data;
        spare.bytes = bytes;
        if (mprotect(data, bytes, PROT_NONE) < 0)
            abort();
    }
    pthread_mutex_unlock(&fake.lock);
}

int cuMemHostAlloc(void **data, size_t bytes, unsigned flags)
{
    FAKE_ENTER("cuMemHostAlloc", FAKE_CONTEXT);
    if (!data || !bytes || flags > 7)
        return SL_CUDA_INVALID_VALUE;
    void *map = take_spare(bytes);
    if (!map) {
        map = fake_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (map == MAP_FAILED)
            return SL_CUDA_OUT_OF_MEMORY;
        fill(map, bytes);
    }
    add(map, bytes, true);
    *data = map;
    return 0;
}

int cuMemFreeHost(void *data)
{
    FAKE_ENTER("cuMemFreeHost", FAKE_CONTEXT);
    size_t bytes = drop(data, true);
    if (!bytes)
        return SL_CUDA_INVALID_VALUE;
    leave_spare(data, bytes);
    return 0;
}

/* Is any page of it mapped without the right to write? */
static bool is_read_only(const void *data, size_t bytes)
{
    FILE *file = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;
    uint64_t begin = (uint64_t)(uintptr_t)data;
    while (file && !found && fgets(line, sizeof(line), file)) {
        char *rest;
        uint64_t from = strtoull(line, &rest, 16), to = strtoull(rest + 1, &rest, 16);
        found = from < begin + bytes && begin < to && rest[2] != 'w';
    }
    if (file)
        fclose(file);
    return found;
}

int cuMemHostRegister_v2(void *data, size_t bytes, unsigned flags)
{
    FAKE_ENTER("cuMemHostRegister", FAKE_CONTEXT);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!data || !bytes || (uintptr_t)data % page || flags > 15)
        return SL_CUDA_INVALID_VALUE;
    if (bytes >= (size_t)FAKE_REGISTER_MAX_GIB << 30)
        return SL_CUDA_OUT_OF_MEMORY;
    if (!fake.registers || (flags & SL_CUDA_HOST_REGISTER_READ_ONLY && !fake.registers_read_only))
        return SL_CUDA_NOT_SUPPORTED;
    if (!(flags & SL_CUDA_HOST_REGISTER_READ_ONLY) && is_read_only(data, bytes))
        return SL_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    bool there = fake_is_pinned(data, 1);
    pthread_mutex_unlock(&fake.lock);
    if (there)
        return SL_CUDA_HOST_MEMORY_ALREADY_REGISTERED;
    add(data, bytes, false);
    return 0;
}

int cuMemHostUnregister(void *data)
{
    FAKE_ENTER("cuMemHostUnregister", FAKE_CONTEXT);
    return drop(data, false) ? 0 : SL_CUDA_INVALID_VALUE;
}

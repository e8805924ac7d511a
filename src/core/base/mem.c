/* Every allocation passes here, and says so in one way when there is no memory. */
#include "mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "allocator.h"

void *sl_alloc(size_t bytes, struct sl_err *err)
{
    void *memory = sl_allocator_zeroed(bytes ? bytes : 1);
    if (!memory)
        sl_fail(err, SL_E_NO_SPACE, "out of memory for %zu bytes", bytes);
    return memory;
}

void *sl_alloc_array(size_t count, size_t size, struct sl_err *err)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        sl_fail(err, SL_E_NO_SPACE, "out of memory for %zu items of %zu bytes", count, size);
        return NULL;
    }
    return sl_alloc(bytes, err);
}

int sl_grow(void *array_pointer, size_t *capacity, size_t need, size_t size, struct sl_err *err)
{
    if (need <= *capacity)
        return 0;
    size_t wanted = *capacity ? *capacity : 8, bytes;
    while (wanted < need)
        wanted = wanted > SIZE_MAX / 2 ? need : wanted * 2;
    if (__builtin_mul_overflow(wanted, size, &bytes))
        return sl_fail(err, SL_E_NO_SPACE, "out of memory for %zu items of %zu bytes", wanted,
                       size);
    void *old;
    memcpy(&old, array_pointer, sizeof(old));
    void *grown = sl_allocator_resize(old, bytes);
    if (!grown)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory for %zu bytes", bytes);
    memset((char *)grown + *capacity * size, 0, (wanted - *capacity) * size);
    memcpy(array_pointer, &grown, sizeof(grown));
    *capacity = wanted;
    return 0;
}

void *sl_alloc_aligned(size_t alignment, size_t bytes, struct sl_err *err)
{
    void *memory = sl_allocator_aligned(alignment, bytes ? bytes : alignment);
    if (!memory)
        sl_fail(err, SL_E_NO_SPACE, "out of memory for %zu bytes", bytes);
    return memory;
}

char *sl_strndup(const char *text, size_t bytes, struct sl_err *err)
{
    char *copy = bytes == SIZE_MAX ? NULL : sl_alloc(bytes + 1, err);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

bool sl_ends_with(const char *text, const char *end)
{
    size_t bytes = strlen(text), tail = strlen(end);
    return bytes >= tail && strcmp(text + bytes - tail, end) == 0;
}

char *sl_strdup(const char *text, struct sl_err *err)
{
    return sl_strndup(text, strlen(text), err);
}

char *sl_asprintf(struct sl_err *err, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = length < 0 ? NULL : sl_alloc((size_t)length + 1, err);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

void sl_autoclose_(int *fd)
{
    if (*fd >= 0)
        close(*fd);
}

/* libc's own allocators, in one place. */
#include "api_memory.h"

#include <stdlib.h>
#include <string.h>

void *sl_api_alloc(size_t bytes)
{
    return calloc(1, bytes);
}

void *sl_api_grow(void *old, size_t bytes)
{
    return realloc(old, bytes);
}

char *sl_api_copy(const char *text)
{
    return strdup(text);
}

void sl_api_give(void *to, size_t room, const void *from, size_t bytes)
{
    size_t own = room < bytes ? room : bytes;
    memcpy((char *)to + sizeof(size_t), (const char *)from + sizeof(size_t),
           own > sizeof(size_t) ? own - sizeof(size_t) : 0);
}

void sl_api_take(void *to, size_t bytes, const void *from)
{
    size_t theirs = from ? *(const size_t *)from : 0;
    memset(to, 0, bytes);
    if (theirs)
        memcpy(to, from, theirs < bytes ? theirs : bytes);
}

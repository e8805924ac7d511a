/* The C library's. */
#include "allocator.h"

#include <stdlib.h>

void *sl_allocator_zeroed(size_t bytes)
{
    return calloc(1, bytes);
}

void *sl_allocator_resize(void *old, size_t bytes)
{
    return realloc(old, bytes);
}

void *sl_allocator_aligned(size_t alignment, size_t bytes)
{
    void *memory;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

/* The count is the thread's own, so it needs no lock. */
#include "api_memory.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local uint64_t fail_at;

void sl_api_alloc_fail_at(uint64_t nth)
{
    fail_at = nth;
}

static bool fails(void)
{
    return fail_at && --fail_at == 0;
}

void *sl_api_alloc(size_t bytes)
{
    return fails() ? NULL : calloc(1, bytes);
}

void *sl_api_grow(void *old, size_t bytes)
{
    return fails() ? NULL : realloc(old, bytes);
}

char *sl_api_copy(const char *text)
{
    return fails() ? NULL : strdup(text);
}

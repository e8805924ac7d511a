/* In place of the allocators of api_memory.h (--wrap). */
#include "api_alloc_fail.h"

#include <stdbool.h>
#include <stddef.h>

void *__real_sl_api_alloc(size_t bytes);
void *__wrap_sl_api_alloc(size_t bytes);
void *__real_sl_api_grow(void *old, size_t bytes);
void *__wrap_sl_api_grow(void *old, size_t bytes);
char *__real_sl_api_copy(const char *text);
char *__wrap_sl_api_copy(const char *text);

static _Thread_local uint64_t fail_at;

void api_alloc_fail_at(uint64_t nth)
{
    fail_at = nth;
}

static bool fails(void)
{
    return fail_at && --fail_at == 0;
}

void *__wrap_sl_api_alloc(size_t bytes)
{
    return fails() ? NULL : __real_sl_api_alloc(bytes);
}

void *__wrap_sl_api_grow(void *old, size_t bytes)
{
    return fails() ? NULL : __real_sl_api_grow(old, bytes);
}

char *__wrap_sl_api_copy(const char *text)
{
    return fails() ? NULL : __real_sl_api_copy(text);
}

/* In place of the allocator that base/mem asks. */
#include "alloc_fail.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

void *__real_sl_allocator_zeroed(size_t bytes);
void *__real_sl_allocator_resize(void *old, size_t bytes);
void *__real_sl_allocator_aligned(size_t alignment, size_t bytes);
void *__wrap_sl_allocator_zeroed(size_t bytes);
void *__wrap_sl_allocator_resize(void *old, size_t bytes);
void *__wrap_sl_allocator_aligned(size_t alignment, size_t bytes);

static _Atomic unsigned fail_at, made;

void sl_alloc_fail_at(unsigned nth)
{
    atomic_store(&made, 0);
    atomic_store(&fail_at, nth);
}

unsigned sl_alloc_count(void)
{
    return atomic_load(&made);
}

static bool fails(void)
{
    return atomic_fetch_add(&made, 1) + 1 == atomic_load(&fail_at);
}

void *__wrap_sl_allocator_zeroed(size_t bytes)
{
    return fails() ? NULL : __real_sl_allocator_zeroed(bytes);
}

void *__wrap_sl_allocator_resize(void *old, size_t bytes)
{
    return fails() ? NULL : __real_sl_allocator_resize(old, bytes);
}

void *__wrap_sl_allocator_aligned(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __real_sl_allocator_aligned(alignment, bytes);
}

/*
 * Where base/mem gets its memory. These are calls into another file so that the linker can put
 * something else in their place (--wrap): tests let any of them fail.
 */
#ifndef SL_ALLOCATOR_H
#define SL_ALLOCATOR_H

#include <stddef.h>

/** bytes is at least 1; all of them are zero. NULL: there is no memory. */
void *sl_allocator_zeroed(size_t bytes);
/** As realloc(): what `old` held comes along, and it is gone; with NULL it stays. */
void *sl_allocator_resize(void *old, size_t bytes);
/** Not zeroed; alignment as posix_memalign() takes it. */
void *sl_allocator_aligned(size_t alignment, size_t bytes);

#endif

/* Memory of libsluice, which has libc alone. Any thread; none blocks. */
#ifndef SL_API_MEMORY_H
#define SL_API_MEMORY_H

#include <stddef.h>

/** Zeroed; NULL: there is none. The caller's, like that of the next two, until free(). */
void *sl_api_alloc(size_t bytes);
/** As realloc(): what there was stays on failure. */
void *sl_api_grow(void *old, size_t bytes);
/** A copy with its NUL, to be freed; NULL without memory. */
char *sl_api_copy(const char *text);

/**
 * Copy from our struct what the caller's has room for. Both begin with their size. The caller's
 * keeps its own, and members that ours does not have.
 *
 * @to     the caller's struct.
 * @room   its size, as it says.
 * @from   our struct.
 * @bytes  its size.
 */
void sl_api_give(void *to, size_t room, const void *from, size_t bytes);
/** The same the other way: what the caller's struct does not have is 0. NULL is fine. */
void sl_api_take(void *to, size_t bytes, const void *from);

#endif

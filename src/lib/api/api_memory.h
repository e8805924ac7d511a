/* Memory of libsluice, which has libc alone: a test can let each allocation of its thread fail. */
#ifndef SL_API_MEMORY_H
#define SL_API_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/** Zeroed; NULL: there is none. free() is for all of these. */
void *sl_api_alloc(size_t bytes);
/** As realloc(): what there was stays on failure. */
void *sl_api_grow(void *old, size_t bytes);
char *sl_api_copy(const char *text);
/** For tests: the nth from now on (1: the next one) of this thread fails; 0: none. */
void sl_api_alloc_fail_at(uint64_t nth);

#endif

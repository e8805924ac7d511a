/* memory: URIs: objects that are bytes of this process, for tests of everything above stores. */
#ifndef SL_MEMORY_STORE_H
#define SL_MEMORY_STORE_H

#include <stddef.h>

#include "err.h"

/**
 * Register bytes as memory:NAME (memory://NAME/ lists them all); data is borrowed until
 * sl_memory_clear(). fail_at: the nth read from now on fails with SL_E_NET not retryable, 0 never.
 */
int sl_memory_put(const char *name, const void *data, size_t bytes, struct sl_err *err);
void sl_memory_fail_at(unsigned nth);
void sl_memory_clear(void);

#endif

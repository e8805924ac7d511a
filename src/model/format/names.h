/* Tensors in the order of their names, to find one or a duplicate. Any thread. */
#ifndef SL_NAMES_H
#define SL_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "index.h"

/** For "%.*s" in messages: names are cut after some 200 bytes, not inside a character. */
int sl_names_shown(const char *name, size_t bytes);
#define SL_NAME_ARGS(name, bytes) sl_names_shown(name, bytes), (name)

/**
 * Compare as memcmp, a proper prefix first.
 *
 * @a       `a_bytes` bytes.
 * @b       `b_bytes` bytes.
 * @return  below 0, 0, or above 0: a comes first, they are equal, b does.
 */
int sl_bytes_compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes);

/** The numbers of the tensors sorted by name, equal names in their own order; free() it.
 * NULL: SL_E_NO_SPACE. */
uint32_t *sl_names_sort(const struct sl_tensor *tensors, size_t count, struct sl_err *err);

/** Two tensors of one name: the number of the later one, or SIZE_MAX. */
size_t sl_names_duplicate(const struct sl_tensor *tensors, const uint32_t *sorted, size_t count);

#endif

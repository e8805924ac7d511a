/*
 * A sort instead of a hash table: a hundred thousand names take some ten milliseconds, and no
 * choice of names makes it quadratic.
 */
#include "names.h"

#include <string.h>

enum { NAME_SHOWN_MAX = 200 };

int sl_names_shown(const char *name, size_t bytes)
{
    if (bytes <= NAME_SHOWN_MAX)
        return (int)bytes;
    size_t shown = NAME_SHOWN_MAX;
    while (shown > 0 && ((unsigned char)name[shown] & 0xc0) == 0x80)
        shown--;
    return (int)shown;
}

int sl_bytes_compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t common = SL_MIN(a_bytes, b_bytes);
    int order = common ? memcmp(a, b, common) : 0;
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    const struct sl_tensor *x = (const struct sl_tensor *)tensors + first;
    const struct sl_tensor *y = (const struct sl_tensor *)tensors + second;
    int order = sl_bytes_compare(x->name, x->name_bytes, y->name, y->name_bytes);
    return order ? order : (first > second) - (first < second);
}

uint32_t *sl_names_sort(const struct sl_tensor *tensors, size_t count, struct sl_err *err)
{
    uint32_t *sorted = sl_alloc_array(count, sizeof(*sorted), err);
    if (!sorted)
        return NULL;
    for (size_t i = 0; i < count; i++)
        sorted[i] = (uint32_t)i;
    if (count > 1)
        qsort_r(sorted, count, sizeof(*sorted), by_name, (void *)(uintptr_t)tensors);
    return sorted;
}

size_t sl_names_duplicate(const struct sl_tensor *tensors, const uint32_t *sorted, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        const struct sl_tensor *x = &tensors[sorted[i - 1]], *y = &tensors[sorted[i]];
        if (sl_bytes_compare(x->name, x->name_bytes, y->name, y->name_bytes) == 0)
            return sorted[i];
    }
    return SIZE_MAX;
}

/* Allocation that can be refused, and cleanup at the end of a scope. Any thread. */
#ifndef SL_MEM_H
#define SL_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "err.h"

/** Zeroed memory, free() it. NULL with SL_E_NO_SPACE ("out of memory"). bytes may be 0. */
void *sl_alloc(size_t bytes, struct sl_err *err);

/** count * size zeroed bytes with an overflow check; free() it. SL_E_NO_SPACE. */
void *sl_alloc_array(size_t count, size_t size, struct sl_err *err);

/**
 * Grow an array, if need be.
 *
 * @array_pointer  the address of the pointer to the items; NULL there is an empty array.
 * @capacity       in, out: how many items there is room for.
 * @need           how many items it is to hold at least.
 * @size           bytes of one item.
 * @return         0, or -1 with SL_E_NO_SPACE; then the array stays as it was.
 */
int sl_grow(void *array_pointer, size_t *capacity, size_t need, size_t size, struct sl_err *err);

/** Memory for I/O, aligned so, not zeroed; free() it. SL_E_NO_SPACE. */
void *sl_alloc_aligned(size_t alignment, size_t bytes, struct sl_err *err);

/** Copies, and text as printf() makes it; free() them. NULL: SL_E_NO_SPACE. */
char *sl_strdup(const char *text, struct sl_err *err);
char *sl_strndup(const char *text, size_t bytes, struct sl_err *err);
char *sl_asprintf(struct sl_err *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

bool sl_ends_with(const char *text, const char *end);

static inline void sl_autofree_(void *pointer)
{
    free(*(void **)pointer);
}
/** Declares a pointer that free() takes at the end of the scope. */
#define sl_autofree __attribute__((cleanup(sl_autofree_)))

/** Hand the pointer over: the variable becomes NULL. */
#define sl_steal(pointer)                                                                          \
    ({                                                                                             \
        __typeof__(*(pointer)) stolen_ = *(pointer);                                               \
        *(pointer) = NULL;                                                                         \
        stolen_;                                                                                   \
    })

/**
 * SL_AUTO_DEFINE(sl_index) after the declaration of sl_index_free(struct sl_index *) makes
 * SL_AUTO(sl_index) declare a `struct sl_index *` that sl_index_free() takes at the end of the
 * scope.
 */
#define SL_AUTO_DEFINE(name)                                                                       \
    static inline void name##_auto_(struct name **pointer)                                         \
    {                                                                                              \
        name##_free(*pointer);                                                                     \
    }
#define SL_AUTO(name) __attribute__((cleanup(name##_auto_))) struct name *

/** Closes a descriptor at the end of the scope; -1 is none. */
void sl_autoclose_(int *fd);
#define sl_autoclose __attribute__((cleanup(sl_autoclose_)))

/** a + b, or UINT64_MAX if that is more: sums of what strangers claim. */
static inline uint64_t sl_add_capped(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#define SL_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SL_MIN(a, b)    ((a) < (b) ? (a) : (b))
#define SL_MAX(a, b)    ((a) > (b) ? (a) : (b))

#endif

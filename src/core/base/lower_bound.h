/* Binary search, written once. */
#ifndef SL_LOWER_BOUND_H
#define SL_LOWER_BOUND_H

#include <stddef.h>

/**
 * How many of `count` sorted items come before what is looked for: the number of the first that
 * does not, count if all do. `before` is an expression that is true for the items at the front and
 * false for the rest; `i`, a name for the caller to choose, is the number of an item in it.
 *
 *     size_t first = SL_LOWER_BOUND(i, list->count, list->items[i].end <= begin);
 */
#define SL_LOWER_BOUND(i, count, before)                                                           \
    ({                                                                                             \
        size_t low_ = 0, high_ = (count);                                                          \
        while (low_ < high_) {                                                                     \
            size_t i = low_ + (high_ - low_) / 2;                                                  \
            if (before)                                                                            \
                low_ = i + 1;                                                                      \
            else                                                                                   \
                high_ = i;                                                                         \
        }                                                                                          \
        low_;                                                                                      \
    })

#endif

/*
 * An index of the pool, checked: after sl_pool_index_check() every place, text and number that the
 * functions below give lies within it, and every tensor within its slab. Server (deposits) and
 * client (answers) both pass here before they believe anything. Nothing is copied or allocated:
 * what is returned lies in the index and lasts as long as it is mapped. Any thread; none blocks.
 */
#ifndef SL_POOL_INDEX_H
#define SL_POOL_INDEX_H

#include <stddef.h>

#include "pool_wire.h"

struct sl_pool_index {
    const uint8_t *data; /* borrowed; must not change: a sealed memfd, mapped */
    const struct sl_wire_index *head;
    const struct sl_wire_index_slab *slabs;
    const struct sl_wire_index_meta *metas;
    const uint64_t *numbers;
    const char *texts;
    uint64_t slab_bytes; /* of all slabs; below 2^63 */
};

enum { SL_POOL_WHY_BYTES = 200 };
/**
 * Check an index before anything in it is believed.
 *
 * @data    `bytes` bytes, 8-byte aligned, which may hold anything; `index` borrows them.
 * @index   out: for the functions below; of no use after a failure.
 * @why     out, after a failure: one line, no full stop; no text of the index is quoted in it.
 * @return  0, or -1.
 */
int sl_pool_index_check(const void *data, size_t bytes, struct sl_pool_index *index,
                        char why[SL_POOL_WHY_BYTES]);

/** number is below head->tensor_count: it is not checked again. */
const struct sl_wire_index_tensor *sl_pool_index_tensor(const struct sl_pool_index *index,
                                                        uint32_t number);
/** Sizes, then strides (in elements; NULL if it lies row by row). Both have tensor->rank numbers.
 */
const uint64_t *sl_pool_index_shape(const struct sl_pool_index *index,
                                    const struct sl_wire_index_tensor *tensor);
const uint64_t *sl_pool_index_strides(const struct sl_pool_index *index,
                                      const struct sl_wire_index_tensor *tensor);
/** Text at a place of the index; it ends with a NUL that `bytes` does not count. */
static inline const char *sl_pool_index_text(const struct sl_pool_index *index, uint32_t at)
{
    return index->texts + at;
}

#endif

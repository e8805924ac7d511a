/*
 * An index in the making: what lies where, written out as the bytes of pool_wire.h. Nothing is kept
 * or allocated. Any thread; none blocks.
 */
#ifndef SL_POOL_INDEX_WRITE_H
#define SL_POOL_INDEX_WRITE_H

#include <stddef.h>

#include "pool_wire.h"

/** A tensor or a data file; the members mean what those of sl_wire_index_tensor do. */
struct sl_pool_item {
    const char *name, *dtype;
    uint32_t name_bytes;             /* without the NUL; a name may hold any byte */
    uint8_t kind;                    /* SL_WIRE_TENSOR or SL_WIRE_FILE */
    uint32_t rank;                   /* at most SL_WIRE_RANK_MAX */
    const uint64_t *shape, *strides; /* in elements; strides NULL: row by row */
    uint32_t block_elements, block_bytes;
    uint32_t slab;
    uint64_t offset, bytes; /* offset: in the slab, a multiple of SL_WIRE_ALIGN */
};
struct sl_pool_pair {
    const char *key, *value;
};
/** Everything is borrowed for the call. */
struct sl_pool_contents {
    const char *name, *key;
    uint8_t identity[32];
    const struct sl_wire_index_slab *slabs;
    uint32_t slab_count;
    const struct sl_pool_item *items;
    uint32_t item_count;
    const struct sl_pool_pair *metas;
    uint32_t meta_count;
};
/** Bytes of the index; 0: more than SL_WIRE_INDEX_BYTES_MAX. */
size_t sl_pool_index_size(const struct sl_pool_contents *contents);
/** Write it to memory of that size (which was not 0), 8-byte aligned. */
void sl_pool_index_write(const struct sl_pool_contents *contents, void *index);

/** How DLPack calls a type, and the bits of one element (github.com/dmlc/dlpack, dlpack.h: codes of
 * short floats are those of version 1.1). */
struct sl_pool_dtype {
    const char *name;
    uint8_t dlpack_code, dlpack_bits;
    uint16_t dlpack_lanes;
};
/** A constant. NULL: unknown here (a quantised type, say). */
const struct sl_pool_dtype *sl_pool_dtype_find(const char *name);

#endif

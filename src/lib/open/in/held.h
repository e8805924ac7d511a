/* Objects that are memory of this process, as a store: so that what writes a model from a store
 * writes one from memory, too. */
#ifndef SL_HELD_H
#define SL_HELD_H

#include "source.h"

/** Bytes [begin, begin + bytes) of an object. */
struct sl_held_piece {
    uint64_t begin, bytes;
    const uint8_t *data; /* borrowed */
};
/** Its pieces follow each other. */
struct sl_held_object {
    struct sl_held_piece *pieces;
    size_t count, capacity;
    uint64_t bytes;
};
/** One more piece at the end. SL_E_NO_SPACE. */
int sl_held_add(struct sl_held_object *object, const void *data, uint64_t bytes,
                struct sl_err *err);
/** objects are borrowed until the store and its sources are gone. SL_E_NO_SPACE. */
int sl_held_open(const struct sl_held_object *objects, struct sl_store **store, struct sl_err *err);
/** Object `number` of them. The caller's. SL_E_NO_SPACE. */
int sl_held_source(struct sl_store *store, size_t number, struct sl_source **source,
                   struct sl_err *err);

#endif

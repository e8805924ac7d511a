/* Golden files: objects made by the reference implementations, and what they expect (data/golden/).
 */
#ifndef SL_GOLDEN_H
#define SL_GOLDEN_H

#include <jansson.h>

#include "index.h"

/** A file below data/golden/, inflated if its name ends in .gz; free() it. Aborts if it cannot be
 * read. */
uint8_t *golden_read(const char *name, size_t *bytes);
/** The same with a NUL behind it; free() it. */
char *golden_text(const char *name, size_t *bytes);
/** A JSON file below data/golden/; json_decref() it. */
json_t *golden_json(const char *name);

/** Bytes as memory:NAME, opened and indexed as `sluice inspect` does. */
struct golden_open {
    struct sl_store *store;
    struct sl_index *index;
};
/** 0, or -1 with err; release either way. The bytes are borrowed. */
int golden_index(struct golden_open *open, const char *name, const void *data, size_t bytes,
                 struct sl_err *err);
void golden_release(struct golden_open *open);

/** Does index hold exactly these tensors (name, dtype, shape, bytes, SHA-256)? Prints the
 * difference. */
int golden_same(struct sl_index *index, const json_t *tensors, bool verify, bool digest);

/** Run `once` with allocation 1, 2, … failing until it succeeds with all of them; the number of
 * allocations. */
unsigned golden_each_allocation(int (*once)(void *arg, struct sl_err *err), void *arg);
/** The same with reads of memory objects. */
unsigned golden_each_read(int (*once)(void *arg, struct sl_err *err), void *arg);

#endif

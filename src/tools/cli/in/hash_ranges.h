/* Ranges of objects, read once by a few threads and hashed. */
#ifndef SL_HASH_RANGES_H
#define SL_HASH_RANGES_H

#include "source.h"

/** An object of which ranges are hashed; its name is borrowed. */
struct sl_hashed_object {
    const char *name;
    uint64_t bytes;
    struct sl_source *source; /* at the version that all ranges are read of. NULL: it is opened for
                                 its first range, and closed behind its last */
    size_t left;              /* ranges that are not hashed yet; sl_cli_hash_ranges() counts them */
    bool opening;             /* a thread is at it */
};
/** A range of at most what a thread reads in order. */
struct sl_hashed_range {
    struct sl_hashed_object *object;
    uint64_t begin, end;
    uint32_t crc32c; /* out, both */
    uint8_t sha256[32];
};

/**
 * Hash all of them, in their order as far as several threads can. Those of one object are
 * neighbours. A range is read in pieces, so memory does not grow with its size.
 *
 * @return  0, or -1: the first error of the store; SL_E_INTEGRITY: an object changed meanwhile, or
 *          has another length than it says here.
 *
 * Blocks.
 */
int sl_cli_hash_ranges(struct sl_store *store, struct sl_hashed_range *ranges, size_t count,
                       struct sl_err *err);

#endif

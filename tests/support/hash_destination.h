/* A destination that keeps no bytes: of a whole load only a sum of what landed remains. It shows
 * what a further destination takes, and notes what a load asks of one. */
#ifndef SL_HASH_DESTINATION_H
#define SL_HASH_DESTINATION_H

#include "load_destination.h"

struct hash_destination {
    struct sl_load_destination base;
    unsigned opened, prepared, begun, finished, ended, closed; /* calls */
    enum sl_err_kind why;                                      /* of the last attempt's end */
    bool published;                                            /* an attempt was finished */
    uint64_t sum, bytes;                                       /* of that one */
    struct sl_sink_file *files;                                /* of the attempt in hand */
};
struct hash_destination hash_destination(enum sl_sink_layout layout);
/** What the sum of these bytes of a file is; sums of parts add up. */
uint64_t hash_sum(uint32_t file, uint64_t offset, const uint8_t *data, uint64_t bytes);

#endif

/* What an index of a model in several files says: which tensor lies in which file. A map is one
 * thread's while it is parsed; then any may look into it. */
#ifndef SL_SHARD_MAP_H
#define SL_SHARD_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum { SL_SHARD_MAP_BYTES_MAX = 100 * 1000 * 1000 };

/** The end of the name of an index. */
#define SL_SHARD_INDEX_SUFFIX ".index.json"

/** One row of the map. */
struct sl_shard_place {
    const char *tensor;
    size_t tensor_bytes;
    const char *shard;
    size_t shard_bytes;
    uint32_t shard_number;
    bool found; /* for callers */
};

struct sl_shard_map {
    struct sl_shard_place *places; /* sorted by tensor */
    size_t place_count, place_capacity;
    const char **shards; /* sorted; paths below the folder of the index */
    size_t shard_count, shard_capacity;
    uint64_t total_bytes; /* of all tensors, as the index says; 0: it says nothing */
    bool is_map;          /* false: a JSON object without weight_map, which is no index */
};

/**
 * Parse the text of an index, which is changed, and lives as long as the map. The map is hostile:
 * names of files must be paths below the index, no tensor may be mapped twice. SL_E_FORMAT, codes
 * idx.json and idx.path; SL_E_NO_SPACE. Release the map after a failure, too.
 */
int sl_shard_map_parse(char *text, size_t bytes, struct sl_shard_map *map, struct sl_err *err);
void sl_shard_map_release(struct sl_shard_map *map);

/** Is the name, which ends in a NUL after `bytes` bytes, a path below the folder that names it, and
 * of no index? */
bool sl_shard_name_fits(const char *name, size_t bytes);

/** The row of a tensor, borrowed; NULL: the map has none. */
struct sl_shard_place *sl_shard_map_find(const struct sl_shard_map *map, const char *tensor,
                                         size_t bytes);

#endif

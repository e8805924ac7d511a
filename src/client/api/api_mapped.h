/* Memory with owners, made of a mapping; for who maps files. Any thread. */
#ifndef SL_API_MAPPED_H
#define SL_API_MAPPED_H

#include "sluice.h"

/** `bytes` bytes at `data`, within the mapping [map, map + map_bytes), which is unmapped with the
 * last owner. NULL: no memory, and the mapping stays the caller's. */
struct sluice_memory *sl_api_mapped(void *map, size_t map_bytes, void *data, uint64_t bytes);

#endif

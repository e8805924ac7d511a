/* Memory with owners, made of a mapping; for who maps files. Any thread. */
#ifndef SL_API_MAPPED_H
#define SL_API_MAPPED_H

#include "sluice.h"

/**
 * Make memory with owners of a part of a mapping.
 *
 * @map, map_bytes  the mapping, which is unmapped with the last owner; NULL, 0: there is none.
 * @data, bytes     what the owners see of it.
 * @return          the first owner's, until sluice_unmap(). NULL: no memory, and the mapping stays
 *                  the caller's.
 */
struct sluice_memory *sl_api_mapped(void *map, size_t map_bytes, void *data, uint64_t bytes);

#endif

/* Memory with owners: a mapping, and how many have it. */
#include "api_mapped.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "api_memory.h"
#include "pool_link.h"
#include "pool_words.h"

struct mapped {
    struct sluice_memory shown; /* first: a pointer to it is one to this */
    uint32_t owners;
    void *map;
    size_t map_bytes;
};

struct sluice_memory *sl_api_mapped(void *map, size_t map_bytes, void *data, uint64_t bytes)
{
    struct mapped *mapped = sl_api_alloc(sizeof(*mapped));
    if (!mapped)
        return NULL;
    *mapped = (struct mapped){{data, bytes}, 1, map, map_bytes};
    return &mapped->shown;
}

int sluice_memory_new(uint64_t bytes, struct sluice_memory **memory, struct sluice_error *error)
{
    void *map = NULL;
    if (bytes > SIZE_MAX / 2)
        return sl_api_fail(error, SLUICE_NO_SPACE, "%llu bytes are more than any memory has",
                           (unsigned long long)bytes);
    if (bytes)
        map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return sl_api_fail_errno(error, SLUICE_NO_SPACE, "no memory for %llu bytes",
                                 (unsigned long long)bytes);
    *memory = sl_api_mapped(map, bytes, map, bytes);
    if (*memory)
        return 0;
    if (map)
        munmap(map, bytes);
    return sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
}

void sluice_memory_hold(struct sluice_memory *memory)
{
    sl_refcount_add(&((struct mapped *)memory)->owners);
}

void sluice_unmap(struct sluice_memory *memory)
{
    struct mapped *mapped = (struct mapped *)memory;
    if (!mapped || !sl_refcount_drop(&mapped->owners))
        return;
    if (mapped->map)
        munmap(mapped->map, mapped->map_bytes);
    free(mapped);
}

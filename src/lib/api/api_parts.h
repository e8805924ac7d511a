/* Inside libsluice: a model that is attached to. */
#ifndef SL_API_PARTS_H
#define SL_API_PARTS_H

#include <pthread.h>
#include <stdbool.h>

#include "api_device.h"
#include "pool_index.h"
#include "pool_link.h"

struct sl_api_slab {
    void *map;
    uint64_t bytes;
    int fd; /* -1: closed */
    bool on_device;
};
struct sluice_model {
    struct sl_pool_link link;
    uint64_t lease;
    uint32_t flags;
    struct sl_api_device device; /* that was asked for; of SLUICE_REGISTER: that registers */
    size_t registered;           /* slabs, the first ones */
    uint8_t identity[32];
    void *index_map;
    size_t index_bytes;
    struct sl_pool_index index;
    const struct sl_wire_page *page;
    size_t page_bytes;
    struct sl_api_slab *slabs;
    size_t slab_count;
    pthread_mutex_t lock;
    uint32_t *by_name; /* guarded by the lock: made by the first sluice_find() */
};

#endif

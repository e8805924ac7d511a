/*
 * Inside libsluice: a model that is attached to. It is the owners' (sluice_hold()) and goes with
 * the last one. But for `owners` and what the lock guards it is written by sluice_attach() alone,
 * before any other thread has it.
 */
#ifndef SL_API_PARTS_H
#define SL_API_PARTS_H

#include <pthread.h>
#include <stdbool.h>

#include "api_device.h"
#include "pool_index.h"
#include "pool_link.h"

struct sl_api_slab {
    void *map; /* until the model goes; on a GPU a device pointer, in the model's range */
    uint64_t bytes;
    int fd; /* -1: closed */
    bool on_device;
};
struct sluice_model {
    uint32_t owners; /* sl_refcount_add() */
    struct sl_pool_link link;
    uint64_t lease;
    uint32_t flags;
    struct sl_api_device device; /* that was asked for; of SLUICE_REGISTER: that registers */
    struct sl_api_range range;   /* of the slabs on the device */
    size_t registered;           /* slabs, the first ones */
    char unpinned[512];          /* SLUICE_REGISTER: why they are not; "" if they are */
    uint8_t identity[32];
    void *index_map;
    size_t index_bytes;
    struct sl_pool_index index;
    const struct sl_wire_page *page;
    size_t page_bytes;
    struct sl_api_slab *slabs;
    size_t slab_count;
    pthread_mutex_t lock;
    struct sl_api_stage *stages; /* guarded by the lock: that no copy uses now */
    uint32_t *by_name;           /* guarded by the lock: made by the first sluice_find() */
    struct sl_api_place *places; /* the same, of the first sl_api_each_neighbour() */
    size_t place_count;
};
/**
 * Call each() for every tensor that has bytes on a page on which this one has some, itself
 * included.
 *
 * @number  of the tensor: it is not checked. One without bytes has no neighbours.
 * @each    gets the tensors' numbers, without the model's lock; -1 ends it.
 * @arg     for each().
 * @return  0, or -1: SLUICE_NO_SPACE, or what each() said.
 *
 * Any thread.
 */
int sl_api_each_neighbour(struct sluice_model *model, uint32_t number,
                          int (*each)(void *arg, uint32_t number), void *arg,
                          struct sluice_error *error);
/** Before the device is closed: give back what sluice_copy() has. */
void sl_api_stages_free(struct sluice_model *model);
/** As sluice_hold() of a model: what was made of the deposit's memory is one more owner, who calls
 * sluice_deposit_end() once; the last one frees it. Any thread. */
void sl_api_deposit_hold(struct sluice_deposit *deposit);

#endif

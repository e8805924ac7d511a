/* Inside the pool: how a model is made and filled. */
#ifndef SL_POOL_PARTS_H
#define SL_POOL_PARTS_H

#include "gpu_ring.h"
#include "pool_model.h"
#include "pool_wire.h"
#include "reader.h"
#include "thread.h"

/* What clients of one space get. */
struct sl_pool_copy {
    struct sl_pool_model *model;
    struct sl_gpu *gpu; /* that it is on; NULL: the host */
    struct sl_slab *slabs;
    size_t slab_count;
    uint32_t *slab_of_file; /* one a file of the plan; UINT32_MAX: it has no bytes */
    int index_fd;           /* read-only, sealed */
    size_t index_bytes;
    int page_fd;               /* read-only: what clients get */
    struct sl_wire_page *page; /* the only mapping that can be written */
    size_t page_bytes;
    size_t tensor_count; /* data files included */
    uint64_t bytes;      /* of its slabs */
    bool counted;        /* in the metrics */
    char memory[160];
};
struct sl_pool_model {
    char *name, *key;
    uint8_t identity[32];
    uint32_t owner; /* of a deposit: its user */
    uint32_t giver; /* and that one's uid */
    bool has_owner;
    bool counted; /* in the metrics */
    int64_t made_seconds;
    uint32_t placement;
    struct sl_pool_copy *copies[SL_POOL_COPIES_MAX];
    size_t copy_count;
    pthread_mutex_t lock; /* also of what is written to pages, and of how slabs are written */
    struct {
        struct sl_err err; /* once it has failed */
    } locked;
};

/** A model with nothing in it. */
struct sl_pool_model *sl_pool_model_new(const char *name, const char *key, struct sl_err *err);
/** One more copy of it, with nothing in it; gpu NULL: on the host. SL_E_NO_SPACE. */
struct sl_pool_copy *sl_pool_copy_new(struct sl_pool_model *model, struct sl_gpu *gpu,
                                      struct sl_err *err);
/** An index becomes the copy's: a copy of it, sealed. */
int sl_pool_copy_set_index(struct sl_pool_copy *copy, const void *index, size_t bytes,
                           struct sl_err *err);
/** The page for tensor_count words, all of them `word`, in this state. */
int sl_pool_copy_make_page(struct sl_pool_copy *copy, uint32_t word, enum sl_pool_state state,
                           struct sl_err *err);

/**
 * Make a model that is still to be filled, with a copy in each of these places: slabs, index and
 * page (pool_build.c).
 *
 * @name           of the model; copied.
 * @plan           of layout slabs; borrowed for the call. Numbers of tensors are those of
 *                 plan->tensors; data files follow.
 * @places, count  at least 1; what they point to is borrowed as struct sl_slab_place says.
 * @return         the model, the caller's. NULL: SL_E_NO_SPACE, also with too many tensors;
 *                 SL_E_GPU.
 *
 * Blocks for a GPU's driver.
 */
struct sl_pool_model *sl_pool_model_plan(const char *name, const struct sl_plan *plan,
                                         const struct sl_slab_place *places, size_t count,
                                         struct sl_err *err);

/** Tensor `number` can be used. Any thread, once for each. */
void sl_pool_copy_set_ready(struct sl_pool_copy *copy, size_t number);
/** Where a slab of the copy is written that was given out; NULL: as a file. Any thread. */
uint8_t *sl_pool_copy_map(struct sl_pool_copy *copy, const struct sl_slab *slab);
/** For all copies: they get the same bytes. */
void sl_pool_model_landed(struct sl_pool_model *model, uint64_t bytes);
/** Everything of every copy can be used: seal the slabs, and tell. */
int sl_pool_model_finish(struct sl_pool_model *model, struct sl_err *err);

/** It has failed, and nobody writes to it any more: clients may keep its memory for long, the rest
 * goes. */
void sl_pool_model_give_up(struct sl_pool_model *model);

/**
 * Open the files of a plan in the slabs of a copy, as a sink (slab_sink.c).
 *
 * @copy          made by sl_pool_model_plan(); it outlives the sink.
 * @files, count  the plan's; they outlive the sink.
 * @ring          through which those on a GPU are filled; outlives the sink. NULL: none is on a
 *                GPU.
 * @return        the sink, the caller's. NULL: SL_E_NO_SPACE.
 */
struct sl_sink *sl_slab_sink_open(struct sl_pool_copy *copy, const struct sl_sink_file *files,
                                  size_t count, struct sl_gpu_ring *ring, struct sl_err *err);

#endif

/* Inside the pool: how a model is made and filled. */
#ifndef SL_POOL_PARTS_H
#define SL_POOL_PARTS_H

#include "gpu_ring.h"
#include "pool_model.h"
#include "pool_wire.h"
#include "reader.h"
#include "thread.h"

struct sl_pool_model {
    char *name, *key;
    uint8_t identity[32];
    uint32_t owner; /* of a deposit: its user */
    bool has_owner;
    struct sl_slab *slabs;
    size_t slab_count;
    uint32_t *slab_of_file; /* one a file of the plan; UINT32_MAX: it has no bytes */
    int index_fd;           /* read-only, sealed */
    size_t index_bytes;
    int page_fd;               /* read-only: what clients get */
    struct sl_wire_page *page; /* the only mapping that can be written */
    size_t page_bytes;
    size_t tensor_count; /* data files included */
    uint64_t bytes;
    bool counted; /* in the metrics */
    char memory[160];
    int64_t made_seconds;
    struct sl_gpu *gpu; /* that it is on; NULL: the host */
    bool everywhere, is_twin;
    struct sl_pool_model *twins[SL_GPU_RING_LANES_MAX - 1]; /* on further GPUs; a count of each */
    size_t twin_count;
    pthread_mutex_t lock;
    struct {
        unsigned count;
        struct sl_err err; /* once it has failed */
    } locked;
};

/** A model that counts one, with nothing in it. */
struct sl_pool_model *sl_pool_model_new(const char *name, const char *key, struct sl_err *err);
/** An index becomes the model's: a copy of it, sealed. */
int sl_pool_model_set_index(struct sl_pool_model *model, const void *index, size_t bytes,
                            struct sl_err *err);
/** The page for tensor_count words, all of them `word`, in this state. */
int sl_pool_model_make_page(struct sl_pool_model *model, uint32_t word, enum sl_pool_state state,
                            struct sl_err *err);

/** pool_build.c: slabs, index and page of a plan of layout slabs. Numbers of tensors are those of
 * plan->tensors; data files follow. */
struct sl_pool_model *sl_pool_model_plan(const char *name, const struct sl_plan *plan,
                                         const struct sl_slab_place *place, struct sl_err *err);
/** A copy of it in another place, with the same data files: it becomes one of the model's twins. */
int sl_pool_model_plan_twin(struct sl_pool_model *model, const struct sl_plan *plan,
                            const struct sl_slab_place *place, struct sl_err *err);
/** The first file of such a plan that is a data file. */
size_t sl_pool_first_data_file(const struct sl_plan *plan);

/** Tensor `number` can be used. Any thread, once for each. */
void sl_pool_model_tell(struct sl_pool_model *model, size_t number);
/** Where a slab of the model is written that was given out; NULL: as a file. Any thread. */
uint8_t *sl_pool_model_map(struct sl_pool_model *model, const struct sl_slab *slab);
void sl_pool_model_landed(struct sl_pool_model *model, uint64_t bytes);
/** Everything can be used, of its twins, too: seal the slabs, and tell. */
int sl_pool_model_finish(struct sl_pool_model *model, struct sl_err *err);

/** It has failed, and nobody writes to it any more: clients may keep its memory for long, the rest
 * goes. */
void sl_pool_model_give_up(struct sl_pool_model *model);

/** slab_sink.c: the files of a plan in the slabs of a model; all borrowed. ring: through which
 * those on a GPU are filled. */
struct sl_sink *sl_slab_sink_open(struct sl_pool_model *model, const struct sl_sink_file *files,
                                  size_t count, struct sl_gpu_ring *ring, struct sl_err *err);

/** readiness.c: which tensors are complete, by what a run tells. */
struct sl_readiness;
struct sl_readiness *sl_readiness_new(const struct sl_plan *plan, struct sl_pool_model *model,
                                      struct sl_err *err);
void sl_readiness_free(struct sl_readiness *readiness);
SL_AUTO_DEFINE(sl_readiness)
struct sl_stage_events sl_readiness_events(struct sl_readiness *readiness);
/** Tensors that are not complete: none after a run that succeeded. */
size_t sl_readiness_left(struct sl_readiness *readiness);

#endif

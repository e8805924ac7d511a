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

/** pool_build.c: a model with a copy in each of these places: slabs, index and page of a plan of
 * layout slabs. Numbers of tensors are those of plan->tensors; data files follow. */
struct sl_pool_model *sl_pool_model_plan(const char *name, const struct sl_plan *plan,
                                         const struct sl_slab_place *places, size_t count,
                                         struct sl_err *err);

/** Tensor `number` can be used. Any thread, once for each. */
void sl_pool_copy_tell(struct sl_pool_copy *copy, size_t number);
/** Where a slab of the copy is written that was given out; NULL: as a file. Any thread. */
uint8_t *sl_pool_copy_map(struct sl_pool_copy *copy, const struct sl_slab *slab);
/** For all copies: they get the same bytes. */
void sl_pool_model_landed(struct sl_pool_model *model, uint64_t bytes);
/** Everything of every copy can be used: seal the slabs, and tell. */
int sl_pool_model_finish(struct sl_pool_model *model, struct sl_err *err);

/** It has failed, and nobody writes to it any more: clients may keep its memory for long, the rest
 * goes. */
void sl_pool_model_give_up(struct sl_pool_model *model);

/** slab_sink.c: the files of a plan in the slabs of a copy; all borrowed. ring: through which
 * those on a GPU are filled. */
struct sl_sink *sl_slab_sink_open(struct sl_pool_copy *copy, const struct sl_sink_file *files,
                                  size_t count, struct sl_gpu_ring *ring, struct sl_err *err);

/** gpu_fill.c: the way of a copy's files into memory of a GPU. wishes: of the spec. config: of
 * whose run it is part; its watch is told. */
struct sl_gpu_fill;
struct sl_gpu_fill *sl_gpu_fill_new(struct sl_gpu *gpu, struct sl_pool_copy *copy,
                                    const struct sl_plan *plan, const struct sl_spec_pool *wishes,
                                    const struct sl_reader_config *config, struct sl_err *err);
/** The same bytes into another GPU: what lands in the ring of the first fill goes to this copy,
 * too, and is opened on it if it is on the first. `told` is told. Freed before the first. */
struct sl_gpu_fill *sl_gpu_fill_follow(const struct sl_gpu_fill *first, struct sl_gpu *gpu,
                                       struct sl_pool_copy *copy, const struct sl_plan *plan,
                                       const struct sl_reader_watch *told, struct sl_err *err);
/** For the run's config: its watch, who casts and computes CRCs, what lands encrypted. */
void sl_gpu_fill_config(const struct sl_gpu_fill *fill, struct sl_reader_config *config);
/** How many tensors are decrypted, and cast, on the device. */
void sl_gpu_fill_counts(const struct sl_gpu_fill *fill, uint64_t *decrypted, uint64_t *cast);
void sl_gpu_fill_free(struct sl_gpu_fill *fill);
SL_AUTO_DEFINE(sl_gpu_fill)
struct sl_gpu_ring *sl_gpu_fill_ring(const struct sl_gpu_fill *fill);
/** The run has ended: wait until everything is on the device and right. */
int sl_gpu_fill_finish(struct sl_gpu_fill *fill, struct sl_err *err);
/** Tells the other watch what it is told, once the bytes are on the device. */
const struct sl_reader_watch *sl_gpu_fill_watch(const struct sl_gpu_fill *fill);

/** gpu_followers.c: the further copies of a model, filled with what `first` gets; a readiness for
 * each. */
struct sl_gpu_followers;
struct sl_gpu_followers *sl_gpu_followers_new(const struct sl_gpu_fill *first,
                                              const struct sl_pool_model *model,
                                              const struct sl_plan *plan, struct sl_err *err);
/** Where to decrypt, so that every GPU of the model can: the host if one has no kernels and the
 * spec leaves it to us. */
enum sl_pool_decrypt sl_gpu_followers_decrypt(const struct sl_pool_model *model,
                                              enum sl_pool_decrypt decrypt);
/** Before the first fill is freed. */
void sl_gpu_followers_free(struct sl_gpu_followers *followers);
SL_AUTO_DEFINE(sl_gpu_followers)
/** For the reader: tells the first fill, and all of these. */
const struct sl_reader_watch *sl_gpu_followers_watch(const struct sl_gpu_followers *followers);
/** As sl_gpu_fill_finish(), of all, after that of the first. */
int sl_gpu_followers_finish(struct sl_gpu_followers *followers, struct sl_err *err);
/** As sl_readiness_left(), of all. */
size_t sl_gpu_followers_left(const struct sl_gpu_followers *followers);

/** readiness.c: which tensors are complete; watch is for the reader. The copy is borrowed. */
struct sl_readiness;
struct sl_readiness *sl_readiness_new(const struct sl_plan *plan, struct sl_pool_copy *copy,
                                      struct sl_err *err);
void sl_readiness_free(struct sl_readiness *readiness);
SL_AUTO_DEFINE(sl_readiness)
const struct sl_reader_watch *sl_readiness_watch(const struct sl_readiness *readiness);
/** Tensors that are not complete: none after a run that succeeded. */
size_t sl_readiness_left(struct sl_readiness *readiness);

#endif

/*
 * A model as the pool holds it, in copies: one on the host or on a GPU, or one on each GPU, which
 * are loaded, fail and go together. A copy is slabs, an index that says which tensor lies where,
 * and a progress page with a word for each tensor. All three are descriptors that clients get; the
 * layouts of the index and of the page are in pool_wire.h and docs/pool-protocol.md.
 *
 * A model has one owner, who frees it when nobody is to get anything of it any more: the
 * descriptors are closed then, and memory that clients have mapped lives on until they unmap it.
 */
#ifndef SL_POOL_MODEL_H
#define SL_POOL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"
#include "slab.h"
#include "space.h"

enum {
    SL_POOL_SLABS_MAX = 4096, /* of a copy */
    SL_POOL_COPIES_MAX = SL_SPACES_MAX - SL_SPACE_GPU,
};

/** The numbers are those of the protocol. */
enum sl_pool_state { SL_POOL_LOADING = 0, SL_POOL_READY = 1, SL_POOL_FAILED = 2 };

struct sl_pool_model;
struct sl_pool_copy;

/** Any thread; NULL is fine. Closes everything, and blocks while the kernel frees what nobody else
 * has. */
void sl_pool_model_free(struct sl_pool_model *model);
SL_AUTO_DEFINE(sl_pool_model)

/* ---- what it is; set when it was made, any thread ------------------------------------------- */

/** As given to sl_fill_run() or to deposit; borrowed. */
const char *sl_pool_model_name(const struct sl_pool_model *model);
/** The key of a derived model; "" for one that was loaded. */
const char *sl_pool_model_key(const struct sl_pool_model *model);
/**
 * 32 bytes: of a loaded model sl_plan.identity (versions, tensors and places), of a derived one the
 * identity of the model it was made from.
 */
const uint8_t *sl_pool_model_identity(const struct sl_pool_model *model);
/** Where it is for: one space, or all GPUs, and then it has a copy on each that there is. */
uint32_t sl_pool_model_placement(const struct sl_pool_model *model);
/** As the placement, of a model that was taken over. Before others have it. */
void sl_pool_model_set_placement(struct sl_pool_model *model, uint32_t placement);
/** Of the slabs of all its copies; SL_SLAB_MEMFD if it has none. */
enum sl_slab_kind sl_pool_model_kind(const struct sl_pool_model *model);
/** Which kind of memory, of its first copy: the `why` of struct sl_slab_place. */
const char *sl_pool_model_memory(const struct sl_pool_model *model);

/* ---- its copies; they live as long as it does, and what is said here of them is set, too -------
 */

/** At least 1. */
size_t sl_pool_model_copies(const struct sl_pool_model *model);
/** NULL beyond the last. */
struct sl_pool_copy *sl_pool_model_copy(const struct sl_pool_model *model, size_t number);
/** The one in this space; NULL: there is none. */
struct sl_pool_copy *sl_pool_model_copy_in(const struct sl_pool_model *model, unsigned space);
/** The most that one of its copies takes: what it needs in each space. */
uint64_t sl_pool_model_bytes(const struct sl_pool_model *model);
/** After a restart: the only copy of `from`, which is freed, is the model's next. SL_E_NO_SPACE: it
 * has too many, and `from` stays the caller's. */
int sl_pool_model_join(struct sl_pool_model *model, struct sl_pool_model *from, struct sl_err *err);

/** Whose copy it is; borrowed, like all of it. */
struct sl_pool_model *sl_pool_copy_model(const struct sl_pool_copy *copy);
unsigned sl_pool_copy_space(const struct sl_pool_copy *copy);
/** The GPU that its slabs are on; NULL: all are on the host. */
const struct sl_cuda_device *sl_pool_copy_device(const struct sl_pool_copy *copy);
/** Bytes of all its slabs, index and page when full. */
uint64_t sl_pool_copy_bytes(const struct sl_pool_copy *copy);
size_t sl_pool_copy_index_bytes(const struct sl_pool_copy *copy);
size_t sl_pool_copy_page_bytes(const struct sl_pool_copy *copy);
size_t sl_pool_copy_slab_count(const struct sl_pool_copy *copy);
/** Data files included. */
size_t sl_pool_copy_tensor_count(const struct sl_pool_copy *copy);
/** As sl_pool_model_memory(). */
const char *sl_pool_copy_memory(const struct sl_pool_copy *copy);
/**
 * Tell what clients get, and what it takes to keep a ready copy over a restart: descriptors of
 * index, page and slabs, in this order; borrowed.
 *
 * @first   which to begin with.
 * @fds     out: at most `most` of them.
 * @return  how many there are in all, 2 + slab count.
 */
size_t sl_pool_copy_fds(const struct sl_pool_copy *copy, size_t first, int *fds, size_t most);

/* ---- how far it is; any thread -------------------------------------------------------------- */

struct sl_pool_view {
    enum sl_pool_state state;
    uint64_t ready_count; /* tensors whose bytes are in place and checked */
    uint64_t bytes_done;  /* in place, checked or not */
    int64_t made_seconds; /* wall clock */
    struct sl_err err;    /* SL_POOL_FAILED: why */
};
/** A copy of it, of one moment. */
void sl_pool_copy_view(const struct sl_pool_copy *copy, struct sl_pool_view *view);
/** Of its first copy; the state is that of all. */
void sl_pool_model_view(const struct sl_pool_model *model, struct sl_pool_view *view);
/** Tell everybody who has one of its copies that it will not become ready. Only the first call
 * counts, and none after it is ready. */
void sl_pool_model_fail(struct sl_pool_model *model, const struct sl_err *why);

/** The user who deposited it; false: nobody did, it was loaded. */
bool sl_pool_model_owner(const struct sl_pool_model *model, uint32_t *uid);
/** The uid of the process that deposited it: root and the daemon's own user are one owner. A
 * deposit that was taken over is told as the daemon's own, if it is of either. */
uint32_t sl_pool_model_giver(const struct sl_pool_model *model);
/** Before others have it. uid: of the giver. */
void sl_pool_model_set_owner(struct sl_pool_model *model, uint32_t owner, uint32_t uid);
/** A model that was taken over was made earlier: wall clock. Before others have it. */
void sl_pool_model_set_made(struct sl_pool_model *model, int64_t made_seconds);

/* ---- hand over to another process ----------------------------------------------------------- */

/**
 * Before a copy's descriptors leave the process, in whatever state it is: from now on nobody else
 * can write to what can be sealed. Any thread; may be called again. SL_E_INTEGRITY, SL_E_NO_SPACE;
 * then they are not to leave.
 */
int sl_pool_copy_give_out(struct sl_pool_copy *copy, struct sl_err *err);

/**
 * Make a model of what a restart or a deposit brings: an index that a stranger wrote and slabs
 * that it filled and sealed. Everything is checked: seals, sizes, every place, name and number of
 * the index, which identity and key are taken from.
 *
 * @gpu         slabs may be memory of this GPU, too, which outlives the model; NULL: none.
 * @name        of the model.
 * @most_bytes  that its slabs may have, which is looked at first.
 * @index_fd    owned by the model; on failure closed, as all of
 * @slab_fds    these `slab_count` are.
 * @return      the model, the caller's: it has one copy and is ready. NULL: SL_E_INTEGRITY,
 *              SL_E_FORMAT, SL_E_NO_SPACE, SL_E_GPU. Any thread.
 */
struct sl_pool_model *sl_pool_model_adopt_offer(struct sl_gpu *gpu, const char *name,
                                                uint64_t most_bytes, int index_fd,
                                                const int *slab_fds, size_t slab_count,
                                                struct sl_err *err);
/** Tells a GPU by its UUID. NULL with err refuses it. */
struct sl_pool_gpus {
    struct sl_gpu *(*find)(void *arg, const uint8_t uuid[16], struct sl_err *err);
    void *arg;
};
/**
 * Make a model as sl_pool_model_adopt_offer() does, of slabs that may be memory of any GPU.
 *
 * @gpus      tells a GPU by its UUID, which outlives the model; NULL: slabs of a GPU are refused.
 * @name      of the model; NULL: as the index says.
 * @index_fd  owned by the model; on failure closed, as all of
 * @slab_fds  these `slab_count` are.
 * @return    the model, the caller's: it has one copy and is ready. NULL: the same errors, and
 *            those of `find`. Any thread.
 */
struct sl_pool_model *sl_pool_model_adopt_where(const struct sl_pool_gpus *gpus, const char *name,
                                                int index_fd, const int *slab_fds,
                                                size_t slab_count, struct sl_err *err);

#endif

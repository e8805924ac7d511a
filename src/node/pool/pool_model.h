/*
 * A model as the pool holds it: slabs, an index that says which tensor lies where, and a progress
 * page with a word for each tensor. All three are descriptors that clients get; the layouts of the
 * index and of the page are in pool_wire.h and docs/pool-protocol.md.
 *
 * A model is counted: whoever holds a `struct sl_pool_model *` owns one count. When the last count
 * goes the descriptors are closed; memory that clients have mapped lives on until they unmap it.
 */
#ifndef SL_POOL_MODEL_H
#define SL_POOL_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "plan.h"
#include "slab.h"

enum {
    SL_POOL_SLABS_MAX = 4096,
    SL_POOL_NAME_BYTES_MAX = 255, /* of a model's name */
    SL_POOL_KEY_BYTES_MAX = 4096, /* of a derived model's key */
};

/** The numbers are those of the protocol. */
enum sl_pool_state { SL_POOL_LOADING = 0, SL_POOL_READY = 1, SL_POOL_FAILED = 2 };

struct sl_pool_model;

/** One count more, one less. Any thread; NULL is fine. */
struct sl_pool_model *sl_pool_model_hold(struct sl_pool_model *model);
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
/** Memory of all slabs, index and page when full. */
uint64_t sl_pool_model_bytes(const struct sl_pool_model *model);
size_t sl_pool_model_slab_count(const struct sl_pool_model *model);
/** Of all its slabs; SL_SLAB_MEMFD if it has none. */
enum sl_slab_kind sl_pool_model_kind(const struct sl_pool_model *model);
/** The GPU whose memory it is in; NULL: all on the host. */
const struct sl_cuda_device *sl_pool_model_device(const struct sl_pool_model *model);
/**
 * A model that was brought to every GPU is the one on the first, and has a twin on each of the
 * others: a model of its own, with its own index, slabs and page, which clients of that GPU get.
 * They are loaded, fail and go together.
 */
bool sl_pool_model_everywhere(const struct sl_pool_model *model);
/** How many copies there are, itself included. */
size_t sl_pool_model_copies(const struct sl_pool_model *model);
/** The copy on cuda:`number` of a model that is everywhere; 0: itself. Borrowed; NULL: none. */
struct sl_pool_model *sl_pool_model_copy(struct sl_pool_model *model, size_t number);
/** After a restart: the model is everywhere, and this is its next twin, whose count is the model's
 * then; NULL: it has none. SL_E_NO_SPACE: it has too many. */
int sl_pool_model_join(struct sl_pool_model *model, struct sl_pool_model *twin, struct sl_err *err);
/** Which kind of memory: the `why` of struct sl_slab_place. */
const char *sl_pool_model_memory(const struct sl_pool_model *model);

/* ---- how far it is; any thread -------------------------------------------------------------- */

struct sl_pool_view {
    enum sl_pool_state state;
    uint64_t ready_count; /* tensors whose bytes are in place and checked */
    uint64_t bytes_done;  /* in place, checked or not */
    int64_t made_seconds; /* wall clock */
    struct sl_err err;    /* SL_POOL_FAILED: why */
};
void sl_pool_model_view(const struct sl_pool_model *model, struct sl_pool_view *view);
/** Tell everybody who has it, or one of its twins, that it will not become ready. Only the first
 * call counts, and none after it is ready. */
void sl_pool_model_fail(struct sl_pool_model *model, const struct sl_err *why);

/** The user who deposited it; false: nobody did, it was loaded. */
bool sl_pool_model_owner(const struct sl_pool_model *model, uint32_t *uid);
/** Before others have it. */
void sl_pool_model_set_owner(struct sl_pool_model *model, uint32_t uid);
/** A model that was taken over was made earlier: wall clock. Before others have it. */
void sl_pool_model_set_made(struct sl_pool_model *model, int64_t made_seconds);

/* ---- hand over to another process ----------------------------------------------------------- */

/**
 * Before its descriptors leave the process, in whatever state it is: from now on nobody else can
 * write to what can be sealed. Any thread; may be called again. SL_E_INTEGRITY, SL_E_NO_SPACE; then
 * they are not to leave.
 */
int sl_pool_model_give_out(struct sl_pool_model *model, struct sl_err *err);

/**
 * What it takes to keep a ready model over a restart (in a service manager's descriptor store): the
 * descriptors of index, page and slabs, in this order; borrowed. *count is 2 + slab count.
 * fds: room for that many, or NULL to learn the count.
 */
void sl_pool_model_fds(const struct sl_pool_model *model, int *fds, size_t *count);
/**
 * The way back, and the way of a deposit: an index that a stranger wrote and slabs that it filled
 * and sealed. Everything is checked: seals, sizes, every place, name and number of the index. The
 * descriptors are owned by the model then; on failure all of them are closed. identity and key are
 * taken from the index. Slabs may be memory of this GPU, too, which outlives the model; NULL: none.
 * The model is ready. SL_E_INTEGRITY, SL_E_FORMAT, SL_E_NO_SPACE.
 */
struct sl_pool_model *sl_pool_model_adopt_on(struct sl_gpu *gpu, const char *name, int index_fd,
                                             const int *slab_fds, size_t slab_count,
                                             struct sl_err *err);
/** The same of a deposit, whose slabs may have so many bytes: SL_E_NO_SPACE before any of them is
 * looked at. */
struct sl_pool_model *sl_pool_model_adopt_offer(struct sl_gpu *gpu, const char *name,
                                                uint64_t most_bytes, int index_fd,
                                                const int *slab_fds, size_t slab_count,
                                                struct sl_err *err);
/** The same where the slabs may be memory of any GPU, which `find` tells by its UUID: it outlives
 * the model, too. NULL with err refuses it. */
struct sl_pool_gpus {
    struct sl_gpu *(*find)(void *arg, const uint8_t uuid[16], struct sl_err *err);
    void *arg;
};
struct sl_pool_model *sl_pool_model_adopt_where(const struct sl_pool_gpus *gpus, const char *name,
                                                int index_fd, const int *slab_fds,
                                                size_t slab_count, struct sl_err *err);

#endif

/*
 * One load into slabs: as sl_load_run() in load.h, but tensors land in shareable memory and each is
 * told as soon as its own bytes are there and checked. Any thread, several loads at once.
 */
#ifndef SL_FILL_H
#define SL_FILL_H

#include "load.h"
#include "pool_model.h"

enum { SL_SLAB_BYTES = 512 * 1024 * 1024 };

/** How a plan for slabs is laid out; slab_bytes 0: SL_SLAB_BYTES. */
struct sl_plan_output sl_slabs_output(uint64_t slab_bytes);
/** Bytes that the slabs of such a plan take in this place; on a GPU, whose allocations are larger,
 * without the data files, which stay on the host. */
uint64_t sl_slabs_needed(const struct sl_plan *plan, const struct sl_slab_place *place);
/** The most that this was for one of its copies, of a model that is there. */
uint64_t sl_slabs_taken(const struct sl_pool_model *model);
/** The first file of a plan of layout slabs that is a data file: they are the last. */
size_t sl_pool_first_data_file(const struct sl_plan *plan);

struct sl_fill_config {
    const char *name;                   /* of the model in the pool */
    const struct sl_slab_place *places; /* of its copies: one, or several of GPUs, which get the
                                           same; borrowed for the call */
    size_t place_count;
    uint32_t placement;  /* of the model; 0: these places */
    uint64_t slab_bytes; /* 0: SL_SLAB_BYTES. A slab holds whole tensors, and is
                            larger only for a tensor that is */
    /**
     * The plan is made and nothing allocated: bytes that the slabs will take, on each GPU. -1 (err
     * filled) to refuse, e.g. for a budget; 1 if the caller has exactly this already: the load ends
     * well, with *model NULL. May be called again (another mirror, a source that changed): only the
     * last amount counts. May be NULL.
     */
    int (*admit)(void *arg, uint64_t bytes, const uint8_t identity[32], struct sl_err *err);
    /**
     * The model can be attached to now; its tensors are still to come. True: it is the callee's,
     * who keeps it at least until sl_fill_run() has returned, or another is planned, since the load
     * starts over; what was planned before has failed then. False, or NULL: it stays the load's.
     */
    bool (*planned)(void *arg, struct sl_pool_model *model);
    void *arg;
    struct sl_cancel *cancel;
    struct sl_progress *progress; /* may be NULL; finished here */
};

/**
 * Load what a spec names (its sink is not looked at) into new slabs. Blocks.
 *
 * @config  where to; both its callbacks come from the calling thread.
 * @model   out: ready, and the caller's unless planned() has taken it.
 * @result  out: may be NULL.
 * @return  0, or -1 as sl_load_run(); every model that was planned is failed then.
 *
 * A source that changes in mid-load starts over once, mirrors are tried in turn.
 */
int sl_fill_run(const struct sl_spec *spec, const struct sl_fill_config *config,
                struct sl_pool_model **model, struct sl_load_result *result, struct sl_err *err);

#endif

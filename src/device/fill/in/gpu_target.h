/*
 * One GPU of a fill: what the reader told goes through the ring as notes, and reaches who waits for
 * this GPU's memory behind the copies before it. Encrypted pieces are opened before that.
 */
#ifndef SL_GPU_TARGET_H
#define SL_GPU_TARGET_H

#include "gpu_crcs.h"
#include "gpu_fill.h"
#include "gpu_opener.h"
#include "gpu_repair.h"

/** The tensors of a plan that are decrypted on a device, by file and offset. */
struct sl_gpu_sealed {
    const struct sl_mapping **mappings;
    size_t count;
    uint64_t piece_bytes; /* of the largest piece */
};
int sl_gpu_sealed_find(const struct sl_plan *plan, struct sl_gpu_sealed *sealed,
                       struct sl_err *err);
void sl_gpu_sealed_release(struct sl_gpu_sealed *sealed);

struct sl_gpu_target {
    struct sl_gpu_fill_target is;
    const struct sl_gpu_sealed *sealed; /* the fill's */
    struct sl_gpu_ring *ring;           /* the fill's */
    unsigned queue;                     /* of the ring */
    uint64_t *addresses, *bytes;        /* one a file; 0: not there */
    struct sl_gpu_opener *opener;       /* NULL: nothing is opened here */
    struct sl_opener_events events;
    struct sl_gpu_repair *repair; /* the same */
    struct sl_gpu_crcs *crcs;     /* borrowed; NULL: no CRC is computed here */
};
/**
 * Find the addresses of the plan's files on a GPU, and make what decrypts there.
 *
 * @target  zeroed before; released also after a failure.
 * @is      which GPU, and what goes there; copied.
 * @plan    borrowed for the call.
 * @sealed  what is decrypted on a device; borrowed until the release.
 * @return  0, or -1 with SL_E_GPU or SL_E_NO_SPACE.
 *
 * Any thread but a GPU's; blocks.
 */
int sl_gpu_target_init(struct sl_gpu_target *target, const struct sl_gpu_fill_target *is,
                       const struct sl_plan *plan, const struct sl_gpu_sealed *sealed,
                       struct sl_err *err);
/**
 * Give a target its ring, before anything is put into that.
 *
 * @target  initialized; its `crcs` are set.
 * @ring    the fill's; it outlives the target's stop.
 * @queue   the target's GPU in that ring.
 * @plan    borrowed until the release.
 * @config  the fill's: its cancel and its progress are borrowed until the stop.
 * @return  0, or -1 with the errors of sl_gpu_repair_new().
 */
int sl_gpu_target_join(struct sl_gpu_target *target, struct sl_gpu_ring *ring, unsigned queue,
                       const struct sl_plan *plan, const struct sl_gpu_fill_config *config,
                       struct sl_err *err);
/** No more of its own work. */
void sl_gpu_target_stop(struct sl_gpu_target *target);
/** It was stopped, and the ring is gone. */
void sl_gpu_target_release(struct sl_gpu_target *target);
/**
 * Tell that bytes of a file are in the ring, as struct sl_stage_events does.
 *
 * @file           number of the plan's file.
 * @offset, bytes  which bytes of it; tensors that are decrypted here come in whole pieces.
 *
 * The reader's threads; does not wait. Without memory for it the ring fails.
 */
void sl_gpu_target_landed(struct sl_gpu_target *target, uint32_t file, uint64_t offset,
                          uint64_t bytes);
void sl_gpu_target_agreed(struct sl_gpu_target *target, const struct sl_check *check);

#endif

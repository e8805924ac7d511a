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
/** Find the addresses, and what opens. */
int sl_gpu_target_init(struct sl_gpu_target *target, const struct sl_gpu_fill_target *is,
                       const struct sl_plan *plan, const struct sl_gpu_sealed *sealed,
                       struct sl_err *err);
/** This is its ring and its queue there. */
int sl_gpu_target_join(struct sl_gpu_target *target, struct sl_gpu_ring *ring, unsigned queue,
                       const struct sl_plan *plan, const struct sl_gpu_fill_config *config,
                       struct sl_err *err);
/** No more of its own work. */
void sl_gpu_target_stop(struct sl_gpu_target *target);
/** It was stopped, and the ring is gone. */
void sl_gpu_target_release(struct sl_gpu_target *target);
/** As struct sl_stage_events tells; the reader's threads. */
void sl_gpu_target_landed(struct sl_gpu_target *target, uint32_t file, uint64_t offset,
                          uint64_t bytes);
void sl_gpu_target_agreed(struct sl_gpu_target *target, const struct sl_check *check);

#endif

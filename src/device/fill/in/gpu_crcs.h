/*
 * CRCs where bytes lie: the hashes of tensors and ranges that landed as they came are computed by
 * kernels when the last of their bytes is on the device, so they hold for its way there, too.
 */
#ifndef SL_GPU_CRCS_H
#define SL_GPU_CRCS_H

#include "gpu.h"
#include "gpu_ring.h"
#include "plan.h"
#include "stage_device.h"

struct sl_gpu_crcs;
/** For the checks that the plan leaves to the device. addresses: of the plan's files; borrowed,
 * like the plan. Any thread but the GPU's; blocks. SL_E_GPU, SL_E_NO_SPACE. */
struct sl_gpu_crcs *sl_gpu_crcs_new(struct sl_gpu *gpu, const struct sl_plan *plan,
                                    const uint64_t *addresses, struct sl_err *err);
/** It was stopped, and the ring is gone. NULL is fine. */
void sl_gpu_crcs_free(struct sl_gpu_crcs *crcs);
SL_AUTO_DEFINE(sl_gpu_crcs)

/** Before anything has landed: the ring whose notes tell of it, which is failed if a CRC cannot be
 * computed, and whoever finishes it waits for those that are not told. Borrowed until the stop. */
void sl_gpu_crcs_join(struct sl_gpu_crcs *crcs, struct sl_gpu_ring *ring, unsigned queue);
/** Set the listener; NULL: none, and no call is under way when it returns. Any thread. */
void sl_gpu_crcs_bind(struct sl_gpu_crcs *crcs, const struct sl_stage_results *results);
/**
 * Note that bytes are on the device. Checks that have all of theirs are computed, and told later.
 *
 * @file           number of the plan's file.
 * @offset, bytes  which bytes of it, each only once; bytes is at least 1.
 * @return         0, or -1 with SL_E_GPU; nothing is told after a failure.
 *
 * From within a note of the ring, so on the GPU's thread; does not wait.
 */
int sl_gpu_crcs_landed(struct sl_gpu_crcs *crcs, uint32_t file, uint64_t offset, uint64_t bytes,
                       struct sl_err *err);
/** Before the ring goes: nobody is told any more, and nothing is under way when it returns. Any
 * thread but the GPU's. */
void sl_gpu_crcs_stop(struct sl_gpu_crcs *crcs);

#endif

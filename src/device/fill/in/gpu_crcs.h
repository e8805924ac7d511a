/*
 * CRCs where bytes lie: the hashes of tensors and ranges that landed as they came are computed by
 * kernels when the last of their bytes is on the device, so they hold for its way there, too.
 */
#ifndef SL_GPU_CRCS_H
#define SL_GPU_CRCS_H

#include "gpu_ring.h"
#include "reader.h"

struct sl_gpu_crcs;
/** Is there a check in this plan that could be computed there? */
bool sl_gpu_crcs_wanted(const struct sl_plan *plan);
/** addresses: of the plan's files, 0: not on the device; borrowed, like the plan. Any thread but
 * the GPU's; blocks. SL_E_GPU, SL_E_NO_SPACE. */
struct sl_gpu_crcs *sl_gpu_crcs_new(struct sl_gpu *gpu, const struct sl_plan *plan,
                                    const uint64_t *addresses, struct sl_err *err);
/** After the ring. NULL is fine. */
void sl_gpu_crcs_free(struct sl_gpu_crcs *crcs);
SL_AUTO_DEFINE(sl_gpu_crcs)

/** Whose failure ends the waiting for CRCs. */
void sl_gpu_crcs_bind(struct sl_gpu_crcs *crcs, struct sl_gpu_ring *ring);
const struct sl_reader_crcs *sl_gpu_crcs_ops(const struct sl_gpu_crcs *crcs);
/** These bytes are on the device: checks that have all of theirs are computed and told. Waits for
 * the kernels. The GPU's thread alone. */
int sl_gpu_crcs_landed(struct sl_gpu_crcs *crcs, uint32_t file, uint64_t offset, uint64_t bytes,
                       struct sl_err *err);

#endif

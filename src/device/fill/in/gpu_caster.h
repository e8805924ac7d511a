/*
 * Casts where bytes land: tensors that are cast are copied to a GPU as they are, and kernels make
 * of them what was wanted, on the way from a piece of scratch memory to their place.
 */
#ifndef SL_GPU_CASTER_H
#define SL_GPU_CASTER_H

#include "gpu_ring.h"
#include "pool_model.h"
#include "reader.h"

struct sl_gpu_caster;
/** Is there anything to cast in this plan? */
bool sl_gpu_caster_wanted(const struct sl_plan *plan);
/** All borrowed. Any thread but the GPU's; blocks. SL_E_GPU, SL_E_NO_SPACE. */
struct sl_gpu_caster *sl_gpu_caster_new(struct sl_gpu *gpu, const struct sl_plan *plan,
                                        struct sl_pool_model *model, struct sl_err *err);
/** After its ring. NULL is fine. */
void sl_gpu_caster_free(struct sl_gpu_caster *caster);
SL_AUTO_DEFINE(sl_gpu_caster)

/** For the ring's config. */
uint64_t sl_gpu_caster_scratch(const struct sl_gpu_caster *caster);
/** Through which bytes go from now on. */
void sl_gpu_caster_bind(struct sl_gpu_caster *caster, struct sl_gpu_ring *ring);
const struct sl_reader_caster *sl_gpu_caster_ops(const struct sl_gpu_caster *caster);
/** Tensors that it casts. */
uint64_t sl_gpu_caster_count(const struct sl_gpu_caster *caster);

#endif

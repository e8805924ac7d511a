/*
 * Casts where bytes land: tensors that are cast are copied to a GPU as they are, and kernels make
 * of them what was wanted, on the way from a piece of scratch memory to their place.
 */
#ifndef SL_GPU_CASTER_H
#define SL_GPU_CASTER_H

#include "gpu_ring.h"
#include "plan.h"

struct sl_gpu_caster;
/** For the casts that the plan leaves to the device. All borrowed. Any thread but the GPU's;
 * blocks. SL_E_GPU, SL_E_NO_SPACE. */
struct sl_gpu_caster *sl_gpu_caster_new(struct sl_gpu *gpu, const struct sl_plan *plan,
                                        struct sl_err *err);
/** After its ring. NULL is fine. */
void sl_gpu_caster_free(struct sl_gpu_caster *caster);
SL_AUTO_DEFINE(sl_gpu_caster)

/** For the ring's config. */
uint64_t sl_gpu_caster_scratch(const struct sl_gpu_caster *caster);
/** Through which bytes go from now on. */
void sl_gpu_caster_bind(struct sl_gpu_caster *caster, struct sl_gpu_ring *ring);
/**
 * Copy elements of a tensor to the GPU, where kernels cast them, as sl_stage_device.cast() asks.
 *
 * @mapping      of the caster's plan, one whose cast is the device's.
 * @offset       in the mapping's file: where the first element lies once it is cast.
 * @data, bytes  whole elements as they are before the cast; copied. At most what a buffer of the
 *               ring holds.
 * @return       0, or -1 as sl_gpu_ring_reserve_shaped().
 *
 * Any thread of the reader. Blocks while every buffer of the ring is on its way.
 */
int sl_gpu_caster_put(struct sl_gpu_caster *caster, const struct sl_mapping *mapping,
                      uint64_t offset, const uint8_t *data, uint64_t bytes, struct sl_err *err);

#endif

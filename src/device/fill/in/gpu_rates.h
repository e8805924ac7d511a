/*
 * What decides whether a GPU or this machine's processors do some work of a load: how fast each is,
 * measured once for each GPU of the process, when a load first asks.
 */
#ifndef SL_GPU_RATES_H
#define SL_GPU_RATES_H

#include "gpu.h"
#include "spec.h"

enum sl_gpu_work { SL_GPU_DECRYPT, SL_GPU_CAST, SL_GPU_CRC, SL_GPU_WORKS };

/**
 * Does the GPU do it? As the spec says; for auto it does where it is faster than all processors
 * together, which the log says once. -1: the spec wants the
 * GPU, which has no kernels, SL_E_GPU. A measurement that fails is no failure: the host it is.
 * Blocks, some ten milliseconds the first time. Any thread but the GPU's.
 */
int sl_gpu_rates_choose(struct sl_gpu *gpu, enum sl_gpu_work work, enum sl_pool_decrypt wish,
                        bool *on_gpu, struct sl_err *err);

#endif

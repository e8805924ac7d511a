/*
 * What decides whether a GPU or this machine's processors do some work of a load: how fast each is,
 * measured once for each GPU of the process, when a load first asks.
 */
#ifndef SL_GPU_RATES_H
#define SL_GPU_RATES_H

#include "gpu.h"
#include "spec.h"
#include "stage.h"

/** Where a stage is done, host or device, and why. */
struct sl_gpu_choice {
    bool on_gpu;
    char why[256]; /* for people */
};
/**
 * Does the GPU do it? As the spec says; for auto it does where the load is faster with it than with
 * all processors together, the way to the GPU included. share: how many bytes are there in the end
 * for each that comes; 1 but for casts. -1: the spec wants the GPU, which has no kernels, SL_E_GPU.
 * A measurement that fails is no failure: the host it is. Blocks, some ten milliseconds the first
 * time. Any thread but the GPU's.
 */
int sl_gpu_rates_choose(struct sl_gpu *gpu, enum sl_stage stage, double share,
                        enum sl_pool_decrypt setting, struct sl_gpu_choice *choice,
                        struct sl_err *err);
/** "decrypting" */
const char *sl_gpu_stage_name(enum sl_stage stage);

#endif

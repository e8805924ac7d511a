/* One load into memory of a GPU, or of all. Inside node/. */
#ifndef SL_GPU_LOADING_H
#define SL_GPU_LOADING_H

#include "gpu.h"
#include "holder.h"

struct sl_gpu_targets {
    struct sl_gpu *gpus[SL_SPACES_MAX - SL_SPACE_GPU];
    unsigned count;
    uint32_t placement; /* of the model; 0: these */
};
/** As sl_holder.load; *body is a struct sl_pool_model. */
int sl_gpu_load(const struct sl_gpu_targets *targets, const struct sl_holder_job *job, void **body,
                struct sl_err *err);

#endif

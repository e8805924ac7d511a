/* A scripted pool (pool_script.h) with memory of the fake driver: a model on a GPU, one on the
 * host. */
#ifndef SL_GPU_SCRIPT_H
#define SL_GPU_SCRIPT_H

#include <stdbool.h>

#include "cuda.h"
#include "pool_script.h"
#include "use_fake_cuda.h"

enum { GPU_SCRIPT_GRANULE = 2 << 20, GPU_SCRIPT_COUNT = 1000 };

/**
 * Tensors a and b of GPU_SCRIPT_COUNT floats (1 and 2), in two slabs of this GPU; in the first one
 * `half` (BF16, 2 elements) and `strided` (2 x 3 floats, 4 apart) of zeros, too; config.json ("{}")
 * in a slab of the host; `none` without bytes. All of it is ready.
 */
void gpu_script_start(struct pool_script *script, const struct sl_cuda *cuda, int ordinal);
/** A slab of this GPU, not filled. */
void gpu_script_add(struct pool_script *script, const struct sl_cuda *cuda, int ordinal,
                    uint64_t bytes);
/** Two files of the host, "{}" and "[]". */
void gpu_script_start_on_host(struct pool_script *script);
/** Abort unless there are GPU_SCRIPT_COUNT floats of this value. */
void gpu_script_expect(const void *data, float value);
/** May this process write there? */
bool gpu_script_is_writable(const void *data);
/** Abort unless the process has nothing of the driver but descriptors of the script. */
void gpu_script_check_held(const struct fake_cuda_control *fake);
/** Functions of the driver that can fail on the way; one that gives something back and fails has
 * not given it back. NULL at the end. */
extern const char *const gpu_script_calls[];

#endif

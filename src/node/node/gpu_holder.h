/*
 * Models in memory of GPUs: a holder for each GPU, which is opened by its first load. So a daemon
 * starts without a driver, too: loads fail then, and are tried again. Bodies are struct
 * sl_pool_model. Like those on the host they outlive the process in the service manager's
 * descriptor store, where there is one.
 *
 * Any thread, but new, bind and free, which belong to the node's start and end. What opens a GPU
 * blocks for its driver, a second or more, and so does whoever wants the same one meanwhile; who
 * only asks of those that are open does not.
 */
#ifndef SL_GPU_HOLDER_H
#define SL_GPU_HOLDER_H

#include "gpu.h"
#include "registry.h"

enum { SL_GPUS_MAX = SL_SPACES_MAX - SL_SPACE_GPU };

struct sl_gpu_holders;
/** Opens nothing. SL_E_NO_SPACE. */
struct sl_gpu_holders *sl_gpu_holders_new(struct sl_err *err);
/** No model is left. Closes the GPUs; NULL is fine. */
void sl_gpu_holders_free(struct sl_gpu_holders *holders);
SL_AUTO_DEFINE(sl_gpu_holders)
/** Whose budgets are to be set as GPUs are opened; before any load, and it outlives the last one.
 * Metrics tell of it until the holders are freed. */
void sl_gpu_holders_bind(struct sl_gpu_holders *holders, struct sl_registry *registry);
/** For each GPU: what models may take (SL_AUTO_VALUE: nine tenths of its memory), and how long its
 * context stays after a load. */
void sl_gpu_holders_set(struct sl_gpu_holders *holders, uint64_t budget_bytes,
                        uint64_t warm_seconds);
/** The holder of cuda:`ordinal`, below SL_GPUS_MAX, as long as these live. */
const struct sl_holder *sl_gpu_holders_ops(struct sl_gpu_holders *holders, unsigned ordinal);
/** The holder of models that are on each GPU that this process sees: bodies have a copy on
 * each. One GPU that fails fails the load. As long as these live. */
const struct sl_holder *sl_gpu_holders_all(struct sl_gpu_holders *holders);
/** The GPU with this ordinal, below SL_GPUS_MAX, opened if it is not; the holders' until they are
 * freed. Blocks. SL_E_GPU, SL_E_NO_SPACE. */
struct sl_gpu *sl_gpu_holders_open(struct sl_gpu_holders *holders, unsigned ordinal,
                                   struct sl_err *err);
/** The same for the GPU with this UUID; others may be opened, too, to look for it. */
struct sl_gpu *sl_gpu_holders_by_uuid(struct sl_gpu_holders *holders, const uint8_t uuid[16],
                                      struct sl_err *err);
/** Each GPU that is lost for this process, "cuda:0", and why. `call` must be quick. */
void sl_gpu_holders_each_lost(struct sl_gpu_holders *holders,
                              void (*call)(void *arg, const char *device, const char *why),
                              void *arg);
/**
 * What a client calls a place of memory: "host", "cuda:0" as this process counts, "GPU-1c8a2b9e-…".
 * "" is the host. GPUs are opened to look for a UUID, which blocks. SL_E_NOT_FOUND, code "absent";
 * SL_E_USAGE, code "device", for "cuda:all", which is no place for a client.
 */
int sl_gpu_holders_find(struct sl_gpu_holders *holders, const char *device, unsigned *space,
                        struct sl_err *err);
/** Would sl_gpu_holders_find() open GPUs to look for this one? Never blocks. */
bool sl_gpu_holders_opens(struct sl_gpu_holders *holders, const char *device);
/** Is this the host, or a GPU that is open? Never blocks. */
bool sl_gpu_holders_has_open(struct sl_gpu_holders *holders, const char *device);
/** "cuda:12": its number; false: it is no such name, or there are never so many. */
bool sl_gpu_ordinal(const char *device, unsigned *ordinal);
/** Is it "cuda:all"? */
bool sl_gpu_is_all(const char *device);

#endif

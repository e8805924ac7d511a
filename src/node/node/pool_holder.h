/*
 * Models as slabs of shareable memory: a model that is held is a struct sl_pool_model. What a load
 * brought goes with it if it fails. What is whole outlives the process: slabs in files of a tmpfs
 * have their names there, sealed memfds are in the service manager's descriptor store; where there
 * is neither, they go with the process. new, free and scan are for the node's start and end; the
 * ops are called by any thread.
 */
#ifndef SL_POOL_HOLDER_H
#define SL_POOL_HOLDER_H

#include "gpu_holder.h"
#include "registry.h"
#include "systemd.h"

struct sl_pool_holder;
/** directory: a tmpfs of ours for slabs, made if it is missing and locked as long as this lives; or
 * NULL: memfds. SL_E_NO_SPACE, also if another daemon has it or it is somebody else's. */
struct sl_pool_holder *sl_pool_holder_new(const char *directory, struct sl_err *err);
/** Every body was dropped or left. NULL is fine. */
void sl_pool_holder_free(struct sl_pool_holder *holder);
SL_AUTO_DEFINE(sl_pool_holder)
/** As long as the holder lives. Bodies are counts of struct sl_pool_model. */
const struct sl_holder *sl_pool_holder_ops(struct sl_pool_holder *holder);
/**
 * Tell the registry of every whole model that is left of the process before: in the directory, and
 * among what the service manager gave. What is of no use is removed, and logged.
 *
 * @gpus      whose holders get the models on GPUs.
 * @registry  which is told.
 * @given     from the service manager: models among it are taken out; may be NULL.
 *
 * Where there are models on GPUs it blocks for the driver's start.
 */
void sl_pool_holder_scan(struct sl_pool_holder *holder, struct sl_gpu_holders *gpus,
                         struct sl_registry *registry, struct sl_systemd_sockets *given);

#endif

/*
 * Models of the pool in the service manager's descriptor store: it has the descriptors of index and
 * slabs while the daemon is not there, and gives them to the next one. Memory stays as long as
 * somebody has it open, so nothing else is needed to find it again.
 * A keeper process of our own would die with the container, and be one more thing to update.
 */
#ifndef SL_POOL_STORE_H
#define SL_POOL_STORE_H

#include "pool_model.h"
#include "systemd.h"

/** Is there a service manager that could keep something? */
bool sl_pool_store_exists(void);
/** Give it a ready model of sealed memfds or memory of a GPU, all its copies. May block while
 * the manager is busy. SL_E_NO_SPACE: nothing of it is kept. */
int sl_pool_store_keep(struct sl_pool_model *model, struct sl_err *err);
/** It keeps this model no more; one that it never had is fine. */
void sl_pool_store_drop(struct sl_pool_model *model);
/**
 * Take every model out of what the manager gave. What is not whole, not sealed or not ours goes,
 * from the store, too, and is logged; what only lacked memory or descriptors is left in the store.
 *
 * @given  its descriptors of models are taken out.
 * @gpus   where models on GPUs are looked for; NULL: they go, too.
 * @found  gets each model, which is its own from then on. The copies of a model on all GPUs come
 *         one by one: they are still to be joined.
 * @arg    what `found` gets.
 */
void sl_pool_store_scan(struct sl_systemd_sockets *given, const struct sl_pool_gpus *gpus,
                        void (*found)(void *arg, struct sl_pool_model *model), void *arg);

#endif

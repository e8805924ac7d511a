/* The pool's socket in front of the registry: an attach is an ask, a lease is a reference. One
 * thread serves everybody (pool_server.h); the functions here are the main thread's. */
#ifndef SL_NODE_POOL_H
#define SL_NODE_POOL_H

#include "gpu_holder.h"
#include "node.h"
#include "node_spec.h"
#include "pool_server.h"
#include "registry.h"

struct sl_node_pool;
/**
 * Serve the pool as the config says.
 *
 * @registry   borrowed. It must be stopped before the pool is freed: then every request that waits
 *             has its answer.
 * @gpus       borrowed; may be NULL.
 * @spec       borrowed for the call.
 * @listen_fd  a socket that listens already, owned from now on, whatever comes of it; -1: one is
 *             made at the config's path.
 * @return     the pool, the caller's. NULL with the errors of sl_node_socket_open(); SL_E_USAGE: a
 *             group that there is not; SL_E_NO_SPACE.
 */
struct sl_node_pool *sl_node_pool_start_with(struct sl_registry *registry,
                                             struct sl_gpu_holders *gpus,
                                             const struct sl_node_spec *spec, int listen_fd,
                                             struct sl_err *err);
/** Clients may ask for URIs, as far as the node (borrowed) allows them; until then none may. */
void sl_node_pool_allow_uris(struct sl_node_pool *pool, struct sl_node *node);
/** Closes every connection, so their leases end, and takes the socket away. Blocks until its thread
 * has ended. NULL is fine. */
void sl_node_pool_free(struct sl_node_pool *pool);
SL_AUTO_DEFINE(sl_node_pool)
/** The rights of a new config, for requests from now on. What is wrong with them is logged, and
 * they stay as they were. */
void sl_node_pool_reload(struct sl_node_pool *pool, const struct sl_node_spec *spec);

#endif

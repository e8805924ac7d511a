/* What the config of a node says of who may do what with its pool, as the pool's server takes it.
 */
#ifndef SL_NODE_POOL_RIGHTS_H
#define SL_NODE_POOL_RIGHTS_H

#include "node_spec.h"
#include "pool_server.h"

/** The ids of a list that was checked before (node_spec.h); how many. */
unsigned sl_node_pool_ids(const struct sl_list *list, uint32_t ids[SL_POOL_RIGHTS_MAX]);

/** The socket that clients of the pool connect to. */
struct sl_node_pool_door {
    bool own;      /* the daemon makes it; the mode of a service manager's is not ours */
    uint32_t gid;  /* whose members a mode of 0660 lets in */
    unsigned mode; /* as the config wants it */
};
/** The door's mode, and the rights to attach, deposit and evict, into config. SL_E_USAGE. */
int sl_node_pool_rights(const struct sl_node_spec *spec, struct sl_node_pool_door *door,
                        struct sl_pool_server_config *config, struct sl_err *err);

#endif

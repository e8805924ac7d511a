/* The tmpfs that a node daemon mounts for its models. */
#ifndef SL_NODE_TMPFS_H
#define SL_NODE_TMPFS_H

#include "node_spec.h"

/**
 * Mount a tmpfs at spec->tmpfs.path, or give the one that is mounted there the size; nothing if the
 * config names none. It stays mounted when the daemon ends. Before any other thread needs the
 * folder. SL_E_NO_SPACE: it cannot be mounted, others could exchange the folder, or it has files
 * that the mount would hide. A size that the kernel refuses to an existing one is a warning.
 */
int sl_node_tmpfs_mount(const struct sl_node_spec *spec, struct sl_err *err);
/**
 * Make the one at path, which is mounted, as large as a new config's budget wants, if its size
 * follows the budget. It gets smaller at the next start alone: what is to go from it may still be
 * there. A size that the kernel refuses is a warning.
 */
void sl_node_tmpfs_grow(const struct sl_node_spec *spec, const char *path);

#endif

/* One directory has one daemon. */
#ifndef SL_NODE_LOCK_H
#define SL_NODE_LOCK_H

#include "err.h"

/**
 * Lock the directory at fd for as long as what is returned stays open: it ends with the process,
 * however that ends. -1 with SL_E_NO_SPACE if another process has it; path is for messages.
 */
int sl_node_lock(int fd, const char *path, struct sl_err *err);

#endif

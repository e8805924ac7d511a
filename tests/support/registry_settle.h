/* Waiting for a registry that has nothing left to do. */
#ifndef SL_REGISTRY_SETTLE_H
#define SL_REGISTRY_SETTLE_H

#include "registry.h"

/** Block until nothing is queued, loaded, dropped or left to the janitor. */
void sl_registry_settle(struct sl_registry *registry);

#endif

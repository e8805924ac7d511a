/* The config of the node daemon with every model that it names, read from all its files. A config
 * is its caller's; any thread. */
#ifndef SL_NODE_CONFIG_H
#define SL_NODE_CONFIG_H

#include "node_spec.h"

struct sl_node_model {
    struct sl_spec spec;
    bool pin;
};
struct sl_node_config {
    struct sl_node_spec spec;
    struct sl_node_model *models;
    size_t count, capacity;
};
/**
 * Read a config and the specs of its `models`, files and folders (their *.yaml and *.yml, in the
 * order of their names, none that begins with a dot). Every mistake of every file is a line in
 * complaints, and err has the first one (SL_E_USAGE). SL_E_NOT_FOUND: the config is not there.
 * SL_E_NO_SPACE. Release the config in either case. Blocks for reading.
 */
int sl_node_config_read(const char *path, struct sl_node_config *config, struct sl_buf *complaints,
                        struct sl_err *err);
/** Specs that were moved out of it stay. */
void sl_node_config_release(struct sl_node_config *config);

#endif

/* What the files of the node's config share. Not for others. */
#ifndef SL_NODE_SPEC_PARTS_H
#define SL_NODE_SPEC_PARTS_H

#include "node_spec.h"
#include "spec_node.h"

/** node_spec_check.c: single values. */
int node_spec_check_absolute(const char *text, struct sl_err *err);
int node_spec_check_socket(const char *text, struct sl_err *err);
int node_spec_check_prefix(const char *text, struct sl_err *err);

/** node_spec_csi.c: the section `csi`, and what it must be against the others. */
extern const struct sl_option_table node_spec_csi_table;
void node_spec_check_csi(const struct sl_yaml_node *root, const struct sl_node_spec *node,
                         struct sl_complaints *complaints);

#endif

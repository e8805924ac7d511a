/* The kind of store that OCI registries are, and its section of the spec. The values are their
 * spec's; the row is a constant, for any thread. */
#ifndef SL_OCI_OPTIONS_H
#define SL_OCI_OPTIONS_H

#include "option.h"

/** `source.oci`; rows in oci_options.c. */
struct sl_oci_options {
    char *docker_config;
    bool plain_http, credential_helpers;
    char *image_folder;
    uint64_t check_layers_up_to;
    struct sl_list mirrors;
    bool trust_mirrors;
};
extern const struct sl_option_table sl_oci_table;
extern const struct sl_store_kind sl_oci_store;

#endif

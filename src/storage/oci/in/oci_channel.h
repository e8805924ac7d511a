/* Registries as a transport: HTTP, beneath which blobs may be packed, and servers may know no
 * ranges. Channels as everywhere; struct sl_oci in store->impl. */
#ifndef SL_OCI_CHANNEL_H
#define SL_OCI_CHANNEL_H

#include "oci_store.h"

extern const struct sl_transport sl_oci_transport;
extern const struct sl_http_hooks sl_oci_hooks;

#endif

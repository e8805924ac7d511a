/*
 * The driver that a kubelet calls: the services Identity, Node and Controller of the Container
 * Storage Interface on a unix socket, and the registration with the kubelet on another one. What a
 * call means for models is volumes.h's; here are the protocol, its limits and its codes. Opened and
 * closed by the main thread.
 *
 * The protocol: container-storage-interface/spec on GitHub, spec.md; the registration: kubelet's
 * pluginregistration/v1 (k8s.io/kubelet/pkg/apis).
 */
#ifndef SL_CSI_H
#define SL_CSI_H

#include "volumes.h"

/** Every text is copied. */
struct sl_csi_config {
    const char *driver_name; /* at most 63 bytes: letters, digits, '-' and '.' */
    const char *node_id;     /* at most 192 bytes; the node's name */
    const char *socket;      /* as the kubelet sees it, too */
    const char
        *registration;   /* below the kubelet's plugins_registry; "" or NULL: somebody else's */
    const char *version; /* of the driver; not empty */
    uint64_t wait_ms;    /* for a load, at most, before a publish is answered "still loading" */
    /** Raised, with 0 for a signal, when the kubelet refuses the driver: it will not call, so the
     * process should end and say sl_csi_refused(). Borrowed; may be NULL. */
    struct sl_cancel *stop;
};

struct sl_csi;
/**
 * Serve; the registration's socket appears last, when calls are answered. volumes: outlives it.
 * SL_E_USAGE, SL_E_NET, SL_E_NO_SPACE, as sl_grpc_open(). Calls are answered by threads of its own.
 */
struct sl_csi *sl_csi_open(struct sl_volumes *volumes, const struct sl_csi_config *config,
                           struct sl_err *err);

/** -1 with SL_E_USAGE and the kubelet's words if it refused the driver, else 0. Any thread. */
int sl_csi_refused(struct sl_csi *csi, struct sl_err *err);

/** Withdraw from the kubelet, then end, as sl_grpc_close(). No call runs when it returns; what is
 * published stays. Blocks. NULL is allowed. */
void sl_csi_close(struct sl_csi *csi, unsigned drain_ms);

#endif

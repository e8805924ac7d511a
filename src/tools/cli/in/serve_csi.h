/* The part of `sluice serve` that gives models to pods: volumes, and the driver that the kubelet
 * calls. */
#ifndef SL_SERVE_CSI_H
#define SL_SERVE_CSI_H

#include "csi.h"
#include "json.h"
#include "web.h"

/** Zeroed: not there. */
struct sl_serve_csi {
    const struct sl_node_spec *spec; /* borrowed */
    struct sl_volumes *volumes;
    struct sl_csi *csi;
};
/** For sl_node_opening: arg is a struct sl_serve_csi with its spec. Nothing unless csi.enabled. */
int sl_serve_csi_found(void *arg, struct sl_node *node, struct sl_err *err);
/** Serve the kubelet; stop is raised when it refuses the driver. Nothing unless csi.enabled. */
int sl_serve_csi_start(struct sl_serve_csi *serve, struct sl_cancel *stop, struct sl_err *err);
/** What this machine is called: csi.nodeId, NODE_NAME, or its own name, which host takes. */
const char *sl_serve_csi_node_id(const struct sl_serve_csi *serve, char host[256]);
/** What /readyz and /v1/models tell of it; the answers are zeroed where there is none. */
struct sl_web_beside sl_serve_csi_beside(struct sl_serve_csi *serve);
void sl_serve_csi_reload(struct sl_serve_csi *serve, const struct sl_node_spec *spec);
/** The kubelet's words, if it refused the driver: -1 with SL_E_USAGE. */
int sl_serve_csi_refused(struct sl_serve_csi *serve, struct sl_err *err);
/** No call comes any more. */
void sl_serve_csi_close(struct sl_serve_csi *serve, unsigned drain_ms);
/** After that, and before the node goes. */
void sl_serve_csi_free(struct sl_serve_csi *serve);

#endif

/* Volumes take their references while the node opens, before anything can be evicted; the kubelet
 * is served last, when a publish can work. */
#include "serve_csi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

int sl_serve_csi_found(void *arg, struct sl_node *node, struct sl_err *err)
{
    struct sl_serve_csi *serve = arg;
    if (!serve->spec->csi.enabled)
        return 0;
    serve->volumes = sl_volumes_open(node, serve->spec, err);
    return serve->volumes ? 0 : -1;
}

const char *sl_serve_csi_node_id(const struct sl_serve_csi *serve, char host[256])
{
    const char *name = getenv("NODE_NAME");
    if (serve->spec->csi.node_id && *serve->spec->csi.node_id)
        return serve->spec->csi.node_id;
    if (name && *name)
        return name;
    memset(host, 0, 256);
    return gethostname(host, 255) == 0 ? host : "localhost";
}

int sl_serve_csi_start(struct sl_serve_csi *serve, struct sl_cancel *stop, struct sl_err *err)
{
    const struct sl_node_spec_csi *spec = &serve->spec->csi;
    char host[256];
    if (!serve->volumes)
        return 0;
    const struct sl_csi_config config = {.driver_name = spec->driver_name,
                                         .node_id = sl_serve_csi_node_id(serve, host),
                                         .socket = spec->socket,
                                         .registration = spec->registration,
                                         .version = SLUICE_VERSION,
                                         .wait_ms = spec->wait_seconds * 1000,
                                         .stop = stop};
    serve->csi = sl_csi_open(serve->volumes, &config, err);
    if (!serve->csi)
        return -1;
    sl_log(SL_LOG_INFO, "the CSI driver '%s' of node '%s' serves volumes at '%s'",
           spec->driver_name, config.node_id, spec->socket);
    return 0;
}

static bool is_ready(void *arg, struct sl_err *why_not)
{
    struct sl_serve_csi *serve = arg;
    return !serve->volumes || sl_volumes_ready(serve->volumes, why_not);
}

static void write_json(void *arg, struct sl_json *json)
{
    struct sl_serve_csi *serve = arg;
    if (serve->volumes)
        sl_volumes_json(serve->volumes, json);
}

struct sl_web_beside sl_serve_csi_beside(struct sl_serve_csi *serve)
{
    return (struct sl_web_beside){.is_ready = is_ready, .write_json = write_json, .arg = serve};
}

void sl_serve_csi_reload(struct sl_serve_csi *serve, const struct sl_node_spec *spec)
{
    struct sl_err why = SL_ERR_INIT;
    if (serve->volumes && sl_volumes_reload(serve->volumes, spec, &why) < 0)
        sl_log(SL_LOG_ERROR, "the new csi.namespaces is not used, the old one stays in force: %s",
               why.message);
}

int sl_serve_csi_refused(struct sl_serve_csi *serve, struct sl_err *err)
{
    return serve->csi ? sl_csi_refused(serve->csi, err) : 0;
}

void sl_serve_csi_close(struct sl_serve_csi *serve, unsigned drain_ms)
{
    sl_csi_close(serve->csi, drain_ms);
    serve->csi = NULL;
}

void sl_serve_csi_free(struct sl_serve_csi *serve)
{
    sl_volumes_free(serve->volumes);
    serve->volumes = NULL;
}

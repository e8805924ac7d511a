/*
 * The driver from its beginning to its end, what it says of itself, and the registration: a kubelet
 * that sees a socket appear in its folder of plugins asks it for a name and an endpoint, calls
 * NodeGetInfo there, and tells here how that went. It goes on asking, so that it learns of the end.
 */
#include "csi.h"

#include <string.h>

#include "csi_parts.h"
#include "log.h"

static bool is_letter(char one)
{
    return (one >= 'a' && one <= 'z') || (one >= 'A' && one <= 'Z');
}

static int check_driver_name(const char *name, struct sl_err *err)
{
    size_t bytes = strlen(name);
    bool right =
        bytes && bytes <= SL_CSI_DRIVER_BYTES && is_letter(name[0]) && is_letter(name[bytes - 1]);
    for (size_t i = 0; i < bytes; i++)
        right &= is_letter(name[i]) || (name[i] >= '0' && name[i] <= '9') || name[i] == '.' ||
                 name[i] == '-';
    return right ? 0
                 : sl_fail(err, SL_E_USAGE,
                           "'%.80s' is not a driver name: at most %d letters, digits, '-' and '.', "
                           "the first and the last a letter",
                           name, SL_CSI_DRIVER_BYTES);
}

static int copy_config(struct sl_csi *csi, const struct sl_csi_config *config, struct sl_err *err)
{
    struct sl_csi_config *own = &csi->config;
    *own = (struct sl_csi_config){.wait_ms = config->wait_ms, .stop = config->stop};
    if (check_driver_name(config->driver_name, err) < 0 ||
        sl_csi_check_id("the node's id", config->node_id, SL_CSI_NODE_BYTES, err) < 0)
        return -1;
    own->driver_name = sl_strdup(config->driver_name, err);
    own->node_id = sl_strdup(config->node_id, err);
    own->socket = sl_strdup(config->socket, err);
    own->registration = sl_strdup(config->registration ? config->registration : "", err);
    own->version = sl_strdup(config->version, err);
    return own->driver_name && own->node_id && own->socket && own->registration && own->version
               ? 0
               : -1;
}

static void forget(struct sl_csi *csi)
{
    const char *const texts[] = {csi->config.driver_name, csi->config.node_id, csi->config.socket,
                                 csi->config.registration, csi->config.version};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        free((char *)texts[i]);
    pthread_mutex_destroy(&csi->lock);
    free(csi);
}

struct sl_csi *sl_csi_open(struct sl_volumes *volumes, const struct sl_csi_config *config,
                           struct sl_err *err)
{
    struct sl_csi *csi = sl_alloc(sizeof(*csi), err);
    if (!csi)
        return NULL;
    csi->volumes = volumes;
    pthread_mutex_init(&csi->lock, NULL);
    if (copy_config(csi, config, err) == 0 &&
        (csi->services = sl_csi_serve(csi, SL_CSI_SERVICES, err)) &&
        (!csi->config.registration[0] ||
         (csi->registration = sl_csi_serve(csi, SL_CSI_REGISTRATION, err))))
        return csi;
    sl_grpc_close(csi->services, 0);
    forget(csi);
    return NULL;
}

void sl_csi_close(struct sl_csi *csi, unsigned drain_ms)
{
    if (!csi)
        return;
    sl_grpc_close(csi->registration, SL_MIN(drain_ms, SL_CSI_CALLS_DRAIN_MS));
    sl_grpc_close(csi->services, drain_ms);
    forget(csi);
}

int sl_csi_refused(struct sl_csi *csi, struct sl_err *err)
{
    SL_LOCKED(&csi->lock);
    if (csi->locked.refused.kind == SL_OK)
        return 0;
    if (err)
        *err = csi->locked.refused;
    return -1;
}

/* ---- Identity ------------------------------------------------------------------------------- */

int sl_csi_plugin_info(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    Csi__V1__GetPluginInfoResponse answer = CSI__V1__GET_PLUGIN_INFO_RESPONSE__INIT;
    answer.name = (char *)csi->config.driver_name;
    answer.vendor_version = (char *)csi->config.version;
    return sl_csi_respond(call, &answer.base, err);
}

int sl_csi_plugin_capabilities(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    Csi__V1__GetPluginCapabilitiesResponse answer = CSI__V1__GET_PLUGIN_CAPABILITIES_RESPONSE__INIT;
    Csi__V1__PluginCapability one = CSI__V1__PLUGIN_CAPABILITY__INIT, *list[] = {&one};
    Csi__V1__PluginCapability__Service service = CSI__V1__PLUGIN_CAPABILITY__SERVICE__INIT;
    (void)csi;
    service.type = CSI__V1__PLUGIN_CAPABILITY__SERVICE__TYPE__CONTROLLER_SERVICE;
    one.type_case = CSI__V1__PLUGIN_CAPABILITY__TYPE_SERVICE;
    one.service = &service;
    answer.n_capabilities = SL_COUNT(list);
    answer.capabilities = list;
    return sl_csi_respond(call, &answer.base, err);
}

/* What cannot work is an error, by which livenessprobe and the operator see why. */
int sl_csi_probe(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    Csi__V1__ProbeResponse answer = CSI__V1__PROBE_RESPONSE__INIT;
    Csi__V1__BoolValue ready = CSI__V1__BOOL_VALUE__INIT;
    struct sl_err why = SL_ERR_INIT;
    if (!sl_volumes_ready(csi->volumes, &why))
        return sl_fail_code(err, why.kind ? why.kind : SL_E_INTERNAL, "precondition", "%s",
                            why.message);
    ready.value = true;
    answer.ready = &ready;
    return sl_csi_respond(call, &answer.base, err);
}

/* ---- the registration ----------------------------------------------------------------------- */

int sl_csi_registration_info(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    Pluginregistration__PluginInfo answer = PLUGINREGISTRATION__PLUGIN_INFO__INIT;
    char version[] = "1.0.0", type[] = "CSIPlugin", *versions[] = {version};
    answer.type = type;
    answer.name = (char *)csi->config.driver_name;
    answer.endpoint = (char *)csi->config.socket;
    answer.n_supported_versions = SL_COUNT(versions);
    answer.supported_versions = versions;
    return sl_csi_respond(call, &answer.base, err);
}

int sl_csi_registration_status(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    const Pluginregistration__RegistrationStatus *status = call->request;
    Pluginregistration__RegistrationStatusResponse answer =
        PLUGINREGISTRATION__REGISTRATION_STATUS_RESPONSE__INIT;
    if (status->plugin_registered) {
        sl_log(SL_LOG_INFO, "the kubelet has registered the CSI driver '%s'",
               csi->config.driver_name);
        return sl_csi_respond(call, &answer.base, err);
    }
    {
        SL_LOCKED(&csi->lock);
        sl_fail(&csi->locked.refused, SL_E_USAGE,
                "the kubelet refuses the CSI driver '%s' (is one of that name registered already, "
                "or another node's id in use?): %.400s",
                csi->config.driver_name, status->error);
        sl_log(SL_LOG_ERROR, "%s", csi->locked.refused.message);
    }
    if (csi->config.stop)
        sl_cancel_raise(csi->config.stop, 0);
    return sl_csi_respond(call, &answer.base, err);
}

/*
 * What the driver says of itself, and the registration: a kubelet that sees a socket appear in its
 * folder of plugins asks it for a name and an endpoint, calls NodeGetInfo there, and tells here how
 * that went. It goes on asking, so that it learns of the end.
 */
#include <string.h>

#include "csi_parts.h"
#include "log.h"

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

/* The Node service: what a kubelet asks for on behalf of a pod. */
#include <stdint.h>
#include <string.h>

#include "csi_parts.h"

#define EPHEMERAL  "csi.storage.k8s.io/ephemeral"
#define INLINE_ID  "csi-"
#define INLINE_HEX 64

int sl_csi_node_capabilities(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    static const Csi__V1__NodeServiceCapability__RPC__Type types[] = {
        CSI__V1__NODE_SERVICE_CAPABILITY__RPC__TYPE__GET_VOLUME_STATS,
        CSI__V1__NODE_SERVICE_CAPABILITY__RPC__TYPE__VOLUME_CONDITION,
    };
    Csi__V1__NodeGetCapabilitiesResponse answer = CSI__V1__NODE_GET_CAPABILITIES_RESPONSE__INIT;
    Csi__V1__NodeServiceCapability all[SL_COUNT(types)], *list[SL_COUNT(types)];
    Csi__V1__NodeServiceCapability__RPC rpcs[SL_COUNT(types)];
    (void)csi;
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        rpcs[i] = (Csi__V1__NodeServiceCapability__RPC)CSI__V1__NODE_SERVICE_CAPABILITY__RPC__INIT;
        rpcs[i].type = types[i];
        all[i] = (Csi__V1__NodeServiceCapability)CSI__V1__NODE_SERVICE_CAPABILITY__INIT;
        all[i].type_case = CSI__V1__NODE_SERVICE_CAPABILITY__TYPE_RPC;
        all[i].rpc = &rpcs[i];
        list[i] = &all[i];
    }
    answer.n_capabilities = SL_COUNT(list);
    answer.capabilities = list;
    return sl_csi_respond(call, &answer.base, err);
}

int sl_csi_node_info(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    Csi__V1__NodeGetInfoResponse answer = CSI__V1__NODE_GET_INFO_RESPONSE__INIT;
    answer.node_id = (char *)csi->config.node_id;
    return sl_csi_respond(call, &answer.base, err);
}

/* Within the caller's time, with a margin for the answer; half of a time that is short. */
static uint64_t wait_ms(const struct sl_csi *csi, const struct sl_grpc_call *call)
{
    uint64_t now_ns = sl_now_ns(), left_ns;
    if (call->deadline_ns == UINT64_MAX)
        return csi->config.wait_ms;
    left_ns = call->deadline_ns > now_ns ? call->deadline_ns - now_ns : 0;
    left_ns -= SL_MIN(left_ns / 2, SL_CSI_MARGIN_NS);
    return SL_MIN(csi->config.wait_ms, left_ns / SL_NS_PER_MS);
}

/* By what the kubelet says; without it by the id that it makes for inline volumes, since that is
 * how a missing CSIDriver object shows. */
static bool is_ephemeral(const char *id, const struct sl_csi_pairs *attributes)
{
    const char *hex = id + strlen(INLINE_ID);
    for (size_t i = 0; i < attributes->count; i++)
        if (strcmp(attributes->pairs[i].key, EPHEMERAL) == 0)
            return strcmp(attributes->pairs[i].value, "true") == 0;
    return strncmp(id, INLINE_ID, strlen(INLINE_ID)) == 0 && strlen(hex) == INLINE_HEX &&
           strspn(hex, "0123456789abcdef") == INLINE_HEX;
}

/* Whatever is asked for is mounted read-only. A pod that names the model itself should say so; for
 * a persistent volume the claim does, by its access mode, and the kubelet repeats only the pod's
 * own. */
static bool is_read_only(const Csi__V1__NodePublishVolumeRequest *request, bool ephemeral)
{
    return request->readonly || !ephemeral ||
           request->volume_capability->access_mode->mode !=
               CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
}

int sl_csi_node_publish(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    const Csi__V1__NodePublishVolumeRequest *request = call->request;
    Csi__V1__NodePublishVolumeResponse answer = CSI__V1__NODE_PUBLISH_VOLUME_RESPONSE__INIT;
    struct sl_csi_pairs attributes, secrets;
    if (sl_csi_check_id("volume_id", request->volume_id, SL_CSI_ID_BYTES, err) < 0 ||
        sl_csi_check_path("target_path", request->target_path, err) < 0 ||
        sl_csi_check_capability(request->volume_capability, err) < 0 ||
        sl_csi_pairs_read("volume attribute", request->volume_context, request->n_volume_context,
                          SL_CSI_VALUE_BYTES, &attributes, err) < 0 ||
        sl_csi_pairs_read("secret", request->secrets, request->n_secrets, SL_CSI_SECRET_BYTES,
                          &secrets, err) < 0)
        return -1;
    bool ephemeral = is_ephemeral(request->volume_id, &attributes);
    const struct sl_volume_ask ask = {
        .volume_id = request->volume_id,
        .target = request->target_path,
        .attributes = attributes.pairs,
        .attribute_count = attributes.count,
        .secrets = secrets.pairs,
        .secret_count = secrets.count,
        .mount_group = request->volume_capability->mount->volume_mount_group,
        .readonly = is_read_only(request, ephemeral),
        .ephemeral = ephemeral,
        .wait_ms = wait_ms(csi, call->grpc),
    };
    if (sl_volumes_publish(csi->volumes, &ask, call->grpc->cancel, err) < 0)
        return -1;
    return sl_csi_respond(call, &answer.base, err);
}

int sl_csi_node_unpublish(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    const Csi__V1__NodeUnpublishVolumeRequest *request = call->request;
    Csi__V1__NodeUnpublishVolumeResponse answer = CSI__V1__NODE_UNPUBLISH_VOLUME_RESPONSE__INIT;
    if (sl_csi_check_id("volume_id", request->volume_id, SL_CSI_ID_BYTES, err) < 0 ||
        sl_csi_check_path("target_path", request->target_path, err) < 0 ||
        sl_volumes_unpublish(csi->volumes, request->volume_id, request->target_path, err) < 0)
        return -1;
    return sl_csi_respond(call, &answer.base, err);
}

int sl_csi_node_stats(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    const Csi__V1__NodeGetVolumeStatsRequest *request = call->request;
    Csi__V1__NodeGetVolumeStatsResponse answer = CSI__V1__NODE_GET_VOLUME_STATS_RESPONSE__INIT;
    Csi__V1__VolumeUsage usage = CSI__V1__VOLUME_USAGE__INIT, *list[] = {&usage};
    Csi__V1__VolumeCondition condition = CSI__V1__VOLUME_CONDITION__INIT;
    struct sl_volume_stats stats = {0};
    if (sl_csi_check_id("volume_id", request->volume_id, SL_CSI_ID_BYTES, err) < 0 ||
        sl_csi_check_id("volume_path", request->volume_path, SL_CSI_PATH_BYTES, err) < 0 ||
        sl_volumes_stats(csi->volumes, request->volume_id, request->volume_path, &stats, err) < 0)
        return -1;
    usage.unit = CSI__V1__VOLUME_USAGE__UNIT__BYTES;
    usage.total = (int64_t)SL_MIN(stats.total_bytes, (uint64_t)INT64_MAX);
    usage.used = (int64_t)SL_MIN(stats.used_bytes, (uint64_t)INT64_MAX);
    usage.available = (int64_t)SL_MIN(stats.available_bytes, (uint64_t)INT64_MAX);
    condition.abnormal = stats.abnormal;
    condition.message = stats.message;
    answer.n_usage = SL_COUNT(list);
    answer.usage = list;
    answer.volume_condition = &condition;
    return sl_csi_respond(call, &answer.base, err);
}

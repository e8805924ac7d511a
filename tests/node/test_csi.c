/* The services Identity and Node, and the registration with the kubelet. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "alloc_fail.h"
#include "await.h"
#include "claims.h"
#include "csi_case.h"
#include "metrics.h"

#define PUBLISH   "/csi.v1.Node/NodePublishVolume"
#define UNPUBLISH "/csi.v1.Node/NodeUnpublishVolume"
#define STATS     "/csi.v1.Node/NodeGetVolumeStats"
#define PROBE     "/csi.v1.Identity/Probe"

SL_CASE(.setup = csi_case_open, .teardown = csi_case_close)

/* ---- Identity, and what a node is ----------------------------------------------------------- */

SL_TEST(the_driver_says_what_it_is)
{
    Csi__V1__GetPluginInfoResponse *info =
        csi_case_unpack(csi_case_call("/csi.v1.Identity/GetPluginInfo", NULL, NULL),
                        &csi__v1__get_plugin_info_response__descriptor);
    ck_assert_str_eq(info->name, CSI_DRIVER);
    ck_assert_str_eq(info->vendor_version, "1.2.3");
    csi__v1__get_plugin_info_response__free_unpacked(info, NULL);
    Csi__V1__GetPluginCapabilitiesResponse *can =
        csi_case_unpack(csi_case_call("/csi.v1.Identity/GetPluginCapabilities", NULL, NULL),
                        &csi__v1__get_plugin_capabilities_response__descriptor);
    ck_assert_uint_eq(can->n_capabilities, 1);
    ck_assert_int_eq(can->capabilities[0]->service->type, 1);
    csi__v1__get_plugin_capabilities_response__free_unpacked(can, NULL);
}

SL_TEST(a_node_says_its_name_and_what_it_can)
{
    Csi__V1__NodeGetInfoResponse *info =
        csi_case_unpack(csi_case_call("/csi.v1.Node/NodeGetInfo", NULL, NULL),
                        &csi__v1__node_get_info_response__descriptor);
    ck_assert_str_eq(info->node_id, "node-1");
    csi__v1__node_get_info_response__free_unpacked(info, NULL);
    Csi__V1__NodeGetCapabilitiesResponse *can =
        csi_case_unpack(csi_case_call("/csi.v1.Node/NodeGetCapabilities", NULL, NULL),
                        &csi__v1__node_get_capabilities_response__descriptor);
    ck_assert_uint_eq(can->n_capabilities, 2);
    ck_assert_int_eq(can->capabilities[0]->rpc->type, 2); /* GET_VOLUME_STATS, and no stages */
    ck_assert_int_eq(can->capabilities[1]->rpc->type, 4); /* VOLUME_CONDITION, which they hold */
    csi__v1__node_get_capabilities_response__free_unpacked(can, NULL);
}

SL_TEST(what_is_not_advertised_is_unimplemented)
{
    static const char *const paths[] = {"/csi.v1.Node/NodeStageVolume",
                                        "/csi.v1.Node/NodeUnstageVolume",
                                        "/csi.v1.Node/NodeExpandVolume",
                                        "/csi.v1.Controller/ListVolumes",
                                        "/csi.v1.Controller/ControllerPublishVolume",
                                        "/csi.v0.Identity/Probe",
                                        "/pluginregistration.Registration/Other"};
    for (size_t i = 0; i < SL_COUNT(paths); i++)
        csi_case_check(paths[i], NULL, SL_GRPC_UNIMPLEMENTED, "unknown method");
}

SL_TEST(a_probe_tells_why_nothing_can_be_published)
{
    Csi__V1__ProbeResponse *probe =
        csi_case_unpack(csi_case_call(PROBE, NULL, NULL), &csi__v1__probe_response__descriptor);
    ck_assert(probe->ready && probe->ready->value);
    csi__v1__probe_response__free_unpacked(probe, NULL);
    struct sl_err why = SL_ERR_INIT;
    sl_fail(&why, SL_E_NO_SPACE, "the directory is not a tmpfs");
    FAKE_VOLUMES_SET(unready, why);
    csi_case_check(PROBE, NULL, SL_GRPC_FAILED_PRECONDITION, "the directory is not a tmpfs");
}

/* ---- publish -------------------------------------------------------------------------------- */

SL_TEST(a_publish_hands_on_what_the_kubelet_says)
{
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    csi_case_attribute("model", "m");
    csi_case_attribute("csi.storage.k8s.io/ephemeral", "true");
    csi_case_secret("token", "hush");
    publish->volume_capability->mount->volume_mount_group = (char *)"2000";
    csi_case_check(PUBLISH, &publish->base, 0, "");
    ck_assert_str_eq(fake_volumes.volume_id, "volume-1");
    ck_assert_str_eq(fake_volumes.target, csi_case.target);
    ck_assert_str_eq(fake_volumes.attributes, "csi.storage.k8s.io/ephemeral=true,model=m");
    ck_assert_str_eq(fake_volumes.secrets, "token=hush");
    ck_assert_str_eq(fake_volumes.mount_group, "2000");
    ck_assert(fake_volumes.readonly && fake_volumes.ephemeral);
    ck_assert_uint_eq(fake_volumes.wait_ms, 90000);
    ck_assert_int_eq(access(csi_case.target, F_OK), 0);
    csi_case_check(PUBLISH, &publish->base, 0, "");
}

SL_TEST(an_inline_volume_is_known_by_its_id_when_nobody_says_so)
{
    static const char id[] = "csi-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    csi_case_check(PUBLISH, &publish->base, 0, "");
    ck_assert(!fake_volumes.ephemeral);
    publish->volume_id = (char *)id;
    csi_case_check(PUBLISH, &publish->base, 0, "");
    ck_assert(fake_volumes.ephemeral);
    csi_case_attribute("csi.storage.k8s.io/ephemeral", "false");
    csi_case_check(PUBLISH, &publish->base, 0, "");
    ck_assert(!fake_volumes.ephemeral);
}

SL_TEST(a_pod_that_names_a_model_itself_says_that_it_only_reads)
{
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    publish->readonly = false;
    csi_case_check(PUBLISH, &publish->base, 0, "");
    ck_assert(fake_volumes.readonly); /* of a persistent volume the claim does */
    csi_case_attribute("csi.storage.k8s.io/ephemeral", "true");
    csi_case_check(PUBLISH, &publish->base, 0, "");
    ck_assert(!fake_volumes.readonly);
    publish->volume_capability->access_mode->mode =
        CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__MULTI_NODE_READER_ONLY;
    csi_case_check(PUBLISH, &publish->base, 0, "");
    ck_assert(fake_volumes.readonly);
}

SL_TEST(a_publish_waits_less_than_its_caller)
{
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    static const struct {
        const char *timeout;
        uint64_t least, most;
    } rows[] = {{"119997m", 90000, 90000}, {"60S", 40000, 55000}, {"4S", 500, 2000}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        ck_assert_int_eq(csi_case_call(PUBLISH, &publish->base, rows[i].timeout)->code, 0);
        ck_assert_uint_le(fake_volumes.wait_ms, rows[i].most);
        ck_assert_uint_ge(fake_volumes.wait_ms, rows[i].least);
    }
}

SL_TEST(what_a_publish_lacks_is_said)
{
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    publish->volume_id = (char *)"";
    csi_case_check(PUBLISH, &publish->base, 3, "volume_id is missing");
    publish = csi_case_publish();
    publish->target_path = (char *)"";
    csi_case_check(PUBLISH, &publish->base, 3, "target_path is missing");
    publish = csi_case_publish();
    publish->volume_capability = NULL;
    csi_case_check(PUBLISH, &publish->base, 3, "volume_capability is missing");
    publish = csi_case_publish();
    publish->volume_capability->access_mode = NULL;
    csi_case_check(PUBLISH, &publish->base, 3, "no access mode");
    publish = csi_case_publish();
    publish->volume_capability->access_type_case = 0;
    csi_case_check(PUBLISH, &publish->base, 3, "neither block nor mount");
    csi_case_check(PUBLISH, NULL, 3, "volume_id is missing");
    ck_assert_uint_eq(fake_volumes.publishes, 0);
}

SL_TEST(capabilities_that_no_model_has_are_refused)
{
    Csi__V1__VolumeCapability__BlockVolume block = CSI__V1__VOLUME_CAPABILITY__BLOCK_VOLUME__INIT;
    char *flags[] = {(char *)"ro", (char *)"suid"};
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    publish->volume_capability->access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
    publish->volume_capability->block = &block;
    csi_case_check(PUBLISH, &publish->base, 3, "cannot be a block device");
    publish = csi_case_publish();
    publish->volume_capability->mount->fs_type = (char *)"ext4";
    csi_case_check(PUBLISH, &publish->base, 3, "fs_type 'ext4'");
    publish = csi_case_publish();
    publish->volume_capability->mount->mount_flags = flags;
    publish->volume_capability->mount->n_mount_flags = 2;
    csi_case_check(PUBLISH, &publish->base, 3, "mount flag 'suid'");
    publish->volume_capability->mount->n_mount_flags = 1;
    csi_case_check(PUBLISH, &publish->base, 0, "");
    for (int mode = 0; mode < 10; mode++) {
        publish = csi_case_publish();
        publish->volume_capability->access_mode->mode = mode;
        if (mode >= 1 && mode <= 3)
            csi_case_check(PUBLISH, &publish->base, 0, "");
        else
            csi_case_check(PUBLISH, &publish->base, 3, "volumes of models are read-only");
    }
}

SL_TEST(hostile_texts_are_refused_by_the_name_of_their_field)
{
    static char longer[SL_CSI_VALUE_BYTES + 2];
    static const char *const paths[] = {"relative", "/a/../b", "/a/..", "/..", "/a\nb", "/\xff"};
    memset(longer, 'x', sizeof(longer) - 1);
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        publish->target_path = (char *)paths[i];
        csi_case_check(PUBLISH, &publish->base, 3, "target_path ");
    }
    longer[0] = '/';
    publish->target_path = longer + sizeof(longer) - 2 - SL_CSI_PATH_BYTES;
    csi_case_check(PUBLISH, &publish->base, 3, "target_path ");
    publish = csi_case_publish();
    publish->volume_id = longer + sizeof(longer) - 2 - SL_CSI_ID_BYTES;
    csi_case_check(PUBLISH, &publish->base, 3, "volume_id is longer than 128 bytes");
    publish->volume_id = (char *)"a\x1b[2J";
    csi_case_check(PUBLISH, &publish->base, 3, "volume_id contains control characters");
    publish = csi_case_publish();
    csi_case_attribute("model", longer);
    csi_case_check(PUBLISH, &publish->base, 3, "volume attribute 'model' is longer");
    publish = csi_case_publish();
    csi_case_attribute("a\nb", "x");
    csi_case_check(PUBLISH, &publish->base, 3, "a key contains control characters");
    publish = csi_case_publish();
    csi_case_attribute("model", "a");
    csi_case_attribute("uri", "x");
    csi_case_attribute("model", "b");
    csi_case_check(PUBLISH, &publish->base, 3, "'model' is given twice");
    publish = csi_case_publish();
    csi_case_secret("key", "not \xff text");
    csi_case_check(PUBLISH, &publish->base, 3, "secret 'key' is not UTF-8");
    static char keys[SL_CSI_PAIRS_MAX + 1][8];
    publish = csi_case_publish();
    for (int i = 0; i <= SL_CSI_PAIRS_MAX; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        csi_case_attribute(keys[i], "");
    }
    csi_case_check(PUBLISH, &publish->base, 3, "more than 64 entries");
    publish->n_volume_context--;
    ck_assert_uint_eq(fake_volumes.publishes, 0);
    csi_case_check(PUBLISH, &publish->base, 0, "");
}

SL_TEST(malformed_messages_and_those_of_many_parts_are_refused)
{
    static uint8_t parts[2 << 20]; /* of empty entries of a map, which are far larger in memory */
    struct grpc_wish request = {.path = PUBLISH, .message = "\xff\xff\xff", .bytes = 3};
    struct grpc_answer *answer = grpc_client_call(csi_case.client, &request);
    ck_assert_int_eq(answer->code, 3);
    ck_assert_ptr_nonnull(strstr(answer->text, "malformed"));
    for (size_t i = 0; i < sizeof(parts); i += 2)
        parts[i] = 8 << 3 | 2;
    request.message = parts;
    request.bytes = sizeof(parts);
    answer = grpc_client_call(csi_case.client, &request);
    ck_assert_int_eq(answer->code, 3);
    ck_assert_ptr_nonnull(strstr(answer->text, "too many parts"));
}

SL_TEST(every_prefix_of_a_publish_is_survived)
{
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    uint8_t packed[1024];
    csi_case_attribute("model", "m");
    csi_case_secret("token", "hush");
    size_t bytes = protobuf_c_message_pack(&publish->base, packed);
    for (size_t i = 0; i < bytes; i++) {
        const struct grpc_wish request = {.path = PUBLISH, .message = packed, .bytes = i};
        int code = grpc_client_call(csi_case.client, &request)->code;
        ck_assert_msg(code == 3 || code == 0, "%zu bytes: code %d", i, code);
    }
}

SL_TEST_LOOP(failures_have_the_codes_of_csi, 0, 10)
{
    static const struct {
        enum sl_err_kind kind;
        const char *code;
        int grpc;
    } rows[] = {{SL_E_USAGE, "", 3},
                {SL_E_AUTH, "", 7},
                {SL_E_NOT_FOUND, "", 5},
                {SL_E_NO_SPACE, "", 8},
                {SL_E_NET, "", 14},
                {SL_E_NET, "aborted", 10},
                {SL_E_USAGE, "exists", 6},
                {SL_E_USAGE, "precondition", 9},
                {SL_E_USAGE, "full", 8}, /* of a share: the kubelet asks again */
                {SL_E_NOT_FOUND, "NoSuchKey", 5}};
    struct sl_err fail = SL_ERR_INIT;
    sl_fail_code(&fail, rows[_i].kind, rows[_i].code, "model m: 41 %% of 131 GiB");
    FAKE_VOLUMES_SET(fail, fail);
    csi_case_check(PUBLISH, &csi_case_publish()->base, rows[_i].grpc,
                   "model m: 41 %EF%BC%85 of 131 GiB");
}

SL_TEST(attributes_and_secrets_are_never_logged)
{
    char path[SL_SCRATCH_PATH_BYTES + 8], text[8192] = "";
    snprintf(path, sizeof(path), "%s/log", csi_case.path);
    int before = dup(2);
    ck_assert_ptr_nonnull(freopen(path, "w", stderr));
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    csi_case_attribute("csi.storage.k8s.io/serviceAccount.tokens", "hush-attribute");
    csi_case_secret("key", "hush-secret");
    csi_case_check(PUBLISH, &publish->base, 0, "");
    csi_case_secret("key", "hush-again");
    csi_case_check(PUBLISH, &publish->base, 3, "secret 'key' is given twice");
    fflush(stderr);
    dup2(before, 2);
    FILE *file = fopen(path, "r");
    ck_assert_uint_gt(fread(text, 1, sizeof(text) - 1, file), 0);
    fclose(file);
    ck_assert_ptr_nonnull(strstr(text, "INVALID_ARGUMENT"));
    ck_assert_ptr_null(strstr(text, "hush"));
}

SL_TEST(a_publish_whose_caller_leaves_is_canceled_and_probes_go_on)
{
    uint8_t packed[1024];
    Csi__V1__NodePublishVolumeRequest *publish = csi_case_publish();
    struct grpc_wish request = {.path = PUBLISH, .message = packed};
    request.bytes = protobuf_c_message_pack(&publish->base, packed);
    FAKE_VOLUMES_SET(hold, true);
    int32_t ids[60];
    for (size_t i = 0; i < SL_COUNT(ids); i++)
        ids[i] = grpc_client_begin(csi_case.client, &request);
    SL_AWAIT((grpc_client_step(csi_case.client, 0), FAKE_VOLUMES_GET(held) == SL_CSI_PUBLISHES),
             "as many publishes as may be");
    csi_case_check(PROBE, NULL, 0, "");
    Csi__V1__NodeUnpublishVolumeRequest unpublish = CSI__V1__NODE_UNPUBLISH_VOLUME_REQUEST__INIT;
    unpublish.volume_id = (char *)"another";
    unpublish.target_path = csi_case.target;
    csi_case_check(UNPUBLISH, &unpublish.base, 0, "");
    for (size_t i = 0; i < SL_COUNT(ids); i++)
        grpc_client_reset(csi_case.client, ids[i], 8);
    SL_AWAIT(FAKE_VOLUMES_GET(canceled) >= SL_CSI_PUBLISHES, "their cancel");
    FAKE_VOLUMES_SET(hold, false);
    csi_case_check(PUBLISH, &publish->base, 0, "");
}

/* ---- unpublish and stats -------------------------------------------------------------------- */

SL_TEST(an_unpublish_is_the_same_twice)
{
    Csi__V1__NodeUnpublishVolumeRequest unpublish = CSI__V1__NODE_UNPUBLISH_VOLUME_REQUEST__INIT;
    csi_case_check(PUBLISH, &csi_case_publish()->base, 0, "");
    csi_case_check(UNPUBLISH, &unpublish.base, 3, "volume_id is missing");
    unpublish.volume_id = (char *)"volume-1";
    csi_case_check(UNPUBLISH, &unpublish.base, 3, "target_path is missing");
    unpublish.target_path = csi_case.target;
    csi_case_check(UNPUBLISH, &unpublish.base, 0, "");
    ck_assert_int_ne(access(csi_case.target, F_OK), 0);
    csi_case_check(UNPUBLISH, &unpublish.base, 0, "");
}

SL_TEST(stats_tell_bytes_and_health)
{
    Csi__V1__NodeGetVolumeStatsRequest stats = CSI__V1__NODE_GET_VOLUME_STATS_REQUEST__INIT;
    csi_case_check(PUBLISH, &csi_case_publish()->base, 0, "");
    csi_case_check(STATS, &stats.base, 3, "volume_id is missing");
    stats.volume_id = (char *)"volume-1";
    csi_case_check(STATS, &stats.base, 3, "volume_path is missing");
    stats.volume_path = (char *)"elsewhere";
    csi_case_check(STATS, &stats.base, 5, "is not there");
    stats.volume_path = csi_case.target;
    Csi__V1__NodeGetVolumeStatsResponse *answer =
        csi_case_unpack(csi_case_call(STATS, &stats.base, NULL),
                        &csi__v1__node_get_volume_stats_response__descriptor);
    ck_assert_uint_eq(answer->n_usage, 1);
    ck_assert_int_eq(answer->usage[0]->unit, 1);
    ck_assert_int_eq(answer->usage[0]->used, 7);
    ck_assert_int_eq(answer->usage[0]->total, INT64_MAX); /* more does not fit */
    ck_assert(answer->volume_condition->abnormal);
    ck_assert_str_eq(answer->volume_condition->message, "damaged");
    csi__v1__node_get_volume_stats_response__free_unpacked(answer, NULL);
}

/* ---- the registration ----------------------------------------------------------------------- */

SL_TEST(the_kubelet_is_told_where_the_driver_is)
{
    Pluginregistration__PluginInfo *info =
        csi_case_unpack(csi_case_call("/pluginregistration.Registration/GetInfo", NULL, NULL),
                        &pluginregistration__plugin_info__descriptor);
    ck_assert_str_eq(info->type, "CSIPlugin");
    ck_assert_str_eq(info->name, CSI_DRIVER);
    ck_assert_str_eq(info->endpoint, csi_case.socket);
    ck_assert_uint_eq(info->n_supported_versions, 1);
    ck_assert_str_eq(info->supported_versions[0], "1.0.0");
    pluginregistration__plugin_info__free_unpacked(info, NULL);
}

SL_TEST(a_kubelet_that_refuses_ends_the_daemon)
{
    static const char path[] = "/pluginregistration.Registration/NotifyRegistrationStatus";
    Pluginregistration__RegistrationStatus status = PLUGINREGISTRATION__REGISTRATION_STATUS__INIT;
    struct sl_err err = SL_ERR_INIT;
    status.plugin_registered = true;
    csi_case_check(path, &status.base, 0, "");
    ck_assert_int_eq(sl_csi_refused(csi_case.csi, &err), 0);
    ck_assert(!sl_cancel_raised(csi_case.stop));
    status.plugin_registered = false;
    status.error = (char *)"already registered at a higher version";
    csi_case_check(path, &status.base, 0, "");
    ck_assert(sl_cancel_raised(csi_case.stop));
    ck_assert_int_eq(sl_csi_refused(csi_case.csi, &err), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "already registered at a higher version"));
}

SL_TEST(the_end_takes_both_sockets_away)
{
    sl_csi_close(sl_steal(&csi_case.csi), 0);
    ck_assert_int_ne(access(csi_case.registration, F_OK), 0);
    ck_assert_int_ne(access(csi_case.socket, F_OK), 0);
}

SL_TEST(configs_that_no_kubelet_takes_are_refused)
{
    static const char *const names[] = {"",
                                        "1st",
                                        "ends-in-2",
                                        "a_b",
                                        "-a",
                                        "a.",
                                        "a234567890123456789012345678901234567890123456789012345678"
                                        "90123z"};
    static char node[SL_CSI_NODE_BYTES + 2];
    struct sl_csi_config config = csi_case_config();
    struct sl_err err = SL_ERR_INIT;
    sl_csi_close(sl_steal(&csi_case.csi), 0);
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        config.driver_name = names[i];
        ck_assert_ptr_null(sl_csi_open(NULL, &config, &err));
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_ptr_nonnull(strstr(err.message, "is not a driver name"));
    }
    config = csi_case_config();
    memset(node, 'n', sizeof(node) - 1);
    config.node_id = node;
    ck_assert_ptr_null(sl_csi_open(NULL, &config, &err));
    ck_assert_ptr_nonnull(strstr(err.message, "the node's id is longer than 192 bytes"));
    config = csi_case_config();
    config.registration = NULL;
    csi_case.csi = sl_csi_open(NULL, &config, &err);
    ck_assert_ptr_nonnull(csi_case.csi);
    ck_assert_int_ne(access(csi_case.registration, F_OK), 0);
}

SL_TEST(opening_fails_cleanly_at_every_allocation)
{
    const struct sl_csi_config config = csi_case_config();
    sl_csi_close(sl_steal(&csi_case.csi), 0);
    for (unsigned nth = 1; !csi_case.csi; nth++) {
        struct sl_err err = SL_ERR_INIT;
        sl_alloc_fail_at(nth);
        csi_case.csi = sl_csi_open(NULL, &config, &err);
        sl_alloc_fail_at(0);
        ck_assert_int_eq(err.kind, csi_case.csi ? SL_OK : SL_E_NO_SPACE);
    }
}

SL_TEST(calls_are_counted_by_method_and_code)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    csi_case_check(PUBLISH, NULL, 3, "");
    csi_case_check(PROBE, NULL, 0, "");
    csi_case_check(PROBE, NULL, 0, "");
    ck_assert_int_eq(sl_metrics_write(&text, 0, NULL), 0);
    ck_assert_ptr_nonnull(
        strstr(text.data,
               "sluice_csi_calls_total{method=\"NodePublishVolume\",code=\"INVALID_ARGUMENT\"} 1"));
    ck_assert_ptr_nonnull(
        strstr(text.data, "sluice_csi_calls_total{method=\"Probe\",code=\"OK\"} 2"));
    ck_assert_uint_eq(sl_metric_get(SL_M_CSI_SECONDS), 3);
}

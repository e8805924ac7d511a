/* A publish is put together in static memory, so that a test changes what it is about. */
#include "csi_case.h"

#include <stdio.h>
#include <string.h>

#include "claims.h"

enum { ENTRIES_MAX = 100 };

struct csi_case csi_case;

static Csi__V1__NodePublishVolumeRequest publish;
static Csi__V1__VolumeCapability capability;
static Csi__V1__VolumeCapability__MountVolume mount;
static Csi__V1__VolumeCapability__AccessMode mode;
static Csi__V1__NodePublishVolumeRequest__VolumeContextEntry attributes[ENTRIES_MAX];
static Csi__V1__NodePublishVolumeRequest__VolumeContextEntry *attribute_list[ENTRIES_MAX];
static Csi__V1__NodePublishVolumeRequest__SecretsEntry secrets[ENTRIES_MAX];
static Csi__V1__NodePublishVolumeRequest__SecretsEntry *secret_list[ENTRIES_MAX];

struct sl_csi_config csi_case_config(void)
{
    return (struct sl_csi_config){.driver_name = CSI_DRIVER,
                                  .node_id = "node-1",
                                  .socket = csi_case.socket,
                                  .registration = csi_case.registration,
                                  .version = "1.2.3",
                                  .wait_ms = 90000,
                                  .stop = csi_case.stop};
}

void csi_case_open(void)
{
    struct sl_err err = SL_ERR_INIT;
    csi_case.directory = sl_scratch_open(csi_case.path);
    snprintf(csi_case.socket, sizeof(csi_case.socket), "%s/csi.sock", csi_case.path);
    snprintf(csi_case.registration, sizeof(csi_case.registration), "%s/reg.sock", csi_case.path);
    snprintf(csi_case.target, sizeof(csi_case.target), "%s/target", csi_case.path);
    csi_case.stop = sl_cancel_new(&err);
    const struct sl_csi_config config = csi_case_config();
    csi_case.csi = sl_csi_open(NULL, &config, &err);
    ck_assert_msg(csi_case.csi != NULL, "%s", err.message);
    csi_case.client = grpc_client_open(csi_case.socket);
    csi_case.kubelet = grpc_client_open(csi_case.registration);
}

void csi_case_close(void)
{
    FAKE_VOLUMES_SET(hold, false);
    grpc_client_close(csi_case.client);
    grpc_client_close(csi_case.kubelet);
    sl_csi_close(csi_case.csi, 1000);
    sl_cancel_free(csi_case.stop);
    sl_scratch_close(csi_case.directory, csi_case.path);
}

struct grpc_answer *csi_case_call(const char *path, const ProtobufCMessage *message,
                                  const char *timeout)
{
    size_t bytes = message ? protobuf_c_message_get_packed_size(message) : 0;
    sl_autofree uint8_t *packed = sl_alloc(bytes, NULL);
    ck_assert_ptr_nonnull(packed);
    if (message)
        protobuf_c_message_pack(message, packed);
    const struct grpc_wish wish = {
        .path = path, .message = packed, .bytes = bytes, .timeout = timeout};
    bool ours = strncmp(path, "/csi.v1.", 8) == 0;
    return grpc_client_call(ours ? csi_case.client : csi_case.kubelet, &wish);
}

void *csi_case_unpack(const struct grpc_answer *answer, const ProtobufCMessageDescriptor *type)
{
    ck_assert_msg(answer->code == 0, "code %d: %s", answer->code, answer->text);
    ck_assert_uint_ge(answer->body.used, 5);
    void *message = protobuf_c_message_unpack(type, NULL, answer->body.used - 5,
                                              (const uint8_t *)answer->body.data + 5);
    ck_assert_ptr_nonnull(message);
    return message;
}

void csi_case_check(const char *path, const ProtobufCMessage *message, int code, const char *words)
{
    struct grpc_answer *answer = csi_case_call(path, message, NULL);
    ck_assert_msg(answer->code == code, "%s: code %d, not %d: %s", path, answer->code, code,
                  answer->text);
    ck_assert_msg(strstr(answer->text, words) != NULL, "%s: '%s' lacks '%s'", path, answer->text,
                  words);
}

Csi__V1__NodePublishVolumeRequest *csi_case_publish(void)
{
    csi__v1__node_publish_volume_request__init(&publish);
    csi__v1__volume_capability__init(&capability);
    csi__v1__volume_capability__mount_volume__init(&mount);
    csi__v1__volume_capability__access_mode__init(&mode);
    mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
    capability.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
    capability.mount = &mount;
    capability.access_mode = &mode;
    publish.volume_id = (char *)"volume-1";
    publish.target_path = csi_case.target;
    publish.volume_capability = &capability;
    publish.readonly = true;
    publish.volume_context = attribute_list;
    publish.secrets = secret_list;
    return &publish;
}

void csi_case_attribute(const char *key, const char *value)
{
    size_t at = publish.n_volume_context++;
    ck_assert_uint_lt(at, ENTRIES_MAX);
    csi__v1__node_publish_volume_request__volume_context_entry__init(&attributes[at]);
    attributes[at].key = (char *)key;
    attributes[at].value = (char *)value;
    attribute_list[at] = &attributes[at];
}

void csi_case_secret(const char *key, const char *value)
{
    size_t at = publish.n_secrets++;
    ck_assert_uint_lt(at, ENTRIES_MAX);
    csi__v1__node_publish_volume_request__secrets_entry__init(&secrets[at]);
    secrets[at].key = (char *)key;
    secrets[at].value = (char *)value;
    secret_list[at] = &secrets[at];
}

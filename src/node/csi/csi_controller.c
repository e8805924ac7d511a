/*
 * The Controller service, as far as dynamic persistent volumes need it. There is nothing to make:
 * a volume is its attributes, which go back to whoever asked as the volume's context, and come
 * again with each publish. So nothing is kept but a memory of recent names, by which a name that is
 * asked for again with something else is told apart; after a restart it is empty.
 *
 * An id is "model-", a hash of the name and a hash of the attributes.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "buf.h"
#include "csi_parts.h"
#include "hash.h"

#define ID_PREFIX  "model-"
#define OF_KUBELET "csi.storage.k8s.io/"
#define HASH_HEX   32
#define NAME_TEXT  (sizeof(ID_PREFIX) - 1 + HASH_HEX + 1) /* with the '-' behind it */
#define ID_TEXT    (NAME_TEXT + HASH_HEX)

static int hash_pairs(const struct sl_csi_pairs *pairs, char hex[HASH_HEX + 1], struct sl_err *err)
{
    uint8_t digest[32];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    for (size_t i = 0; i < pairs->count; i++) {
        sl_sha256_update(sha, pairs->pairs[i].key, strlen(pairs->pairs[i].key) + 1);
        sl_sha256_update(sha, pairs->pairs[i].value, strlen(pairs->pairs[i].value) + 1);
    }
    sl_sha256_finish(sha, digest);
    sl_hex(digest, HASH_HEX / 2, hex);
    return 0;
}

static int make_id(const char *name, const struct sl_csi_pairs *attributes,
                   char id[SL_CSI_VOLUME_TEXT], struct sl_err *err)
{
    const struct sl_csi_pairs named = {.pairs = {{"name", name}}, .count = 1};
    char first[HASH_HEX + 1], second[HASH_HEX + 1];
    if (hash_pairs(&named, first, err) < 0 || hash_pairs(attributes, second, err) < 0)
        return -1;
    snprintf(id, SL_CSI_VOLUME_TEXT, ID_PREFIX "%s-%s", first, second);
    return 0;
}

static bool is_our_id(const char *id)
{
    static const char digits[] = "0123456789abcdef";
    size_t prefix = strlen(ID_PREFIX);
    return strlen(id) == ID_TEXT && strncmp(id, ID_PREFIX, prefix) == 0 &&
           strspn(id + prefix, digits) == HASH_HEX && id[NAME_TEXT - 1] == '-' &&
           strspn(id + NAME_TEXT, digits) == HASH_HEX;
}

/* ---- the memory of names -------------------------------------------------------------------- */

/* With the lock held: of the volume with this name; NULL: it is not remembered. */
static struct sl_csi_created *find_created(struct sl_csi *csi, const char *id)
{
    for (size_t i = 0; i < csi->locked.created_count; i++)
        if (strncmp(csi->locked.created[i].id, id, NAME_TEXT) == 0)
            return &csi->locked.created[i];
    return NULL;
}

static int remember(struct sl_csi *csi, const struct sl_csi_created *volume, struct sl_err *err)
{
    SL_LOCKED(&csi->lock);
    const struct sl_csi_created *known = find_created(csi, volume->id);
    if (!known) {
        csi->locked.created[csi->locked.created_next] = *volume;
        csi->locked.created_next = (csi->locked.created_next + 1) % SL_CSI_CREATED_MAX;
        csi->locked.created_count =
            SL_MIN(csi->locked.created_count + 1, (size_t)SL_CSI_CREATED_MAX);
        return 0;
    }
    if (strcmp(known->id, volume->id) == 0 && known->required_bytes == volume->required_bytes &&
        known->limit_bytes == volume->limit_bytes)
        return 0;
    return sl_fail_code(err, SL_E_USAGE, "exists",
                        "a volume of that name was made with other parameters or another capacity");
}

static void forget_name(struct sl_csi *csi, const char *id)
{
    SL_LOCKED(&csi->lock);
    struct sl_csi_created *known = find_created(csi, id);
    if (known)
        memset(known, 0, sizeof(*known));
}

/* ---- the calls ------------------------------------------------------------------------------ */

int sl_csi_controller_capabilities(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    Csi__V1__ControllerGetCapabilitiesResponse answer =
        CSI__V1__CONTROLLER_GET_CAPABILITIES_RESPONSE__INIT;
    Csi__V1__ControllerServiceCapability one = CSI__V1__CONTROLLER_SERVICE_CAPABILITY__INIT;
    Csi__V1__ControllerServiceCapability *list[] = {&one};
    Csi__V1__ControllerServiceCapability__RPC rpc =
        CSI__V1__CONTROLLER_SERVICE_CAPABILITY__RPC__INIT;
    (void)csi;
    rpc.type = CSI__V1__CONTROLLER_SERVICE_CAPABILITY__RPC__TYPE__CREATE_DELETE_VOLUME;
    one.type_case = CSI__V1__CONTROLLER_SERVICE_CAPABILITY__TYPE_RPC;
    one.rpc = &rpc;
    answer.n_capabilities = SL_COUNT(list);
    answer.capabilities = list;
    return sl_csi_respond(call, &answer.base, err);
}

static int check_range(const Csi__V1__CapacityRange *range, struct sl_err *err)
{
    if (!range)
        return 0;
    if (range->required_bytes < 0 || range->limit_bytes < 0 ||
        (range->limit_bytes && range->limit_bytes < range->required_bytes))
        return sl_fail_code(err, SL_E_USAGE, "range",
                            "capacity_range asks for %lld bytes with a limit of %lld",
                            (long long)range->required_bytes, (long long)range->limit_bytes);
    return 0;
}

/* What the kubelet and the provisioner say for themselves is not the volume's. */
static void drop_kubelets(struct sl_csi_pairs *pairs)
{
    size_t kept = 0;
    for (size_t i = 0; i < pairs->count; i++)
        if (strncmp(pairs->pairs[i].key, OF_KUBELET, strlen(OF_KUBELET)) != 0)
            pairs->pairs[kept++] = pairs->pairs[i];
    pairs->count = kept;
}

static int respond_volume(struct sl_csi_call *call, const struct sl_csi_created *created,
                          const struct sl_csi_pairs *attributes, struct sl_err *err)
{
    Csi__V1__CreateVolumeResponse answer = CSI__V1__CREATE_VOLUME_RESPONSE__INIT;
    Csi__V1__Volume volume = CSI__V1__VOLUME__INIT;
    Csi__V1__Volume__VolumeContextEntry entries[SL_CSI_PAIRS_MAX], *list[SL_CSI_PAIRS_MAX];
    for (size_t i = 0; i < attributes->count; i++) {
        csi__v1__volume__volume_context_entry__init(&entries[i]);
        entries[i].key = (char *)attributes->pairs[i].key;
        entries[i].value = (char *)attributes->pairs[i].value;
        list[i] = &entries[i];
    }
    volume.volume_id = (char *)created->id;
    volume.capacity_bytes = created->required_bytes;
    volume.n_volume_context = attributes->count;
    volume.volume_context = list;
    answer.volume = &volume;
    return sl_csi_respond(call, &answer.base, err);
}

int sl_csi_create_volume(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    const Csi__V1__CreateVolumeRequest *request = call->request;
    struct sl_csi_created created = {.id = ""};
    struct sl_csi_pairs attributes;
    if (sl_csi_check_id("name", request->name, SL_CSI_ID_BYTES, err) < 0 ||
        sl_csi_check_capabilities(request->volume_capabilities, request->n_volume_capabilities,
                                  err) < 0 ||
        check_range(request->capacity_range, err) < 0 ||
        sl_csi_pairs_read("parameter", request->parameters, request->n_parameters,
                          SL_CSI_VALUE_BYTES, &attributes, err) < 0)
        return -1;
    if (request->volume_content_source)
        return sl_fail(err, SL_E_USAGE,
                       "a volume cannot be created from another volume or a snapshot: its "
                       "parameters name the model");
    drop_kubelets(&attributes);
    if (sl_volumes_check(csi->volumes, attributes.pairs, attributes.count, err) < 0 ||
        make_id(request->name, &attributes, created.id, err) < 0)
        return -1;
    if (request->capacity_range) {
        created.required_bytes = request->capacity_range->required_bytes;
        created.limit_bytes = request->capacity_range->limit_bytes;
    }
    if (remember(csi, &created, err) < 0)
        return -1;
    return respond_volume(call, &created, &attributes, err);
}

int sl_csi_delete_volume(struct sl_csi *csi, struct sl_csi_call *call, struct sl_err *err)
{
    const Csi__V1__DeleteVolumeRequest *request = call->request;
    Csi__V1__DeleteVolumeResponse answer = CSI__V1__DELETE_VOLUME_RESPONSE__INIT;
    if (sl_csi_check_id("volume_id", request->volume_id, SL_CSI_ID_BYTES, err) < 0)
        return -1;
    if (is_our_id(request->volume_id))
        forget_name(csi, request->volume_id);
    return sl_csi_respond(call, &answer.base, err);
}

/* Why not; 0: they can be had. Maps are those of the volume, or not told. */
static int confirm(const Csi__V1__ValidateVolumeCapabilitiesRequest *request, struct sl_err *err)
{
    struct sl_csi_pairs context, parameters;
    const struct sl_csi_pairs *const both[] = {&context, &parameters};
    if (sl_csi_pairs_read("volume attribute", request->volume_context, request->n_volume_context,
                          SL_CSI_VALUE_BYTES, &context, err) < 0 ||
        sl_csi_pairs_read("parameter", request->parameters, request->n_parameters,
                          SL_CSI_VALUE_BYTES, &parameters, err) < 0)
        return -1;
    drop_kubelets(&context);
    drop_kubelets(&parameters);
    for (size_t i = 0; i < SL_COUNT(both); i++) {
        char hex[HASH_HEX + 1];
        if (!both[i]->count)
            continue;
        if (hash_pairs(both[i], hex, err) < 0)
            return -1;
        if (strcmp(hex, request->volume_id + NAME_TEXT) != 0)
            return sl_fail(err, SL_E_USAGE, "the volume was made with other %s",
                           i == 0 ? "attributes" : "parameters");
    }
    return sl_csi_check_capabilities(request->volume_capabilities, request->n_volume_capabilities,
                                     err);
}

int sl_csi_validate_volume_capabilities(struct sl_csi *csi, struct sl_csi_call *call,
                                        struct sl_err *err)
{
    const Csi__V1__ValidateVolumeCapabilitiesRequest *request = call->request;
    Csi__V1__ValidateVolumeCapabilitiesResponse answer =
        CSI__V1__VALIDATE_VOLUME_CAPABILITIES_RESPONSE__INIT;
    Csi__V1__ValidateVolumeCapabilitiesResponse__Confirmed confirmed =
        CSI__V1__VALIDATE_VOLUME_CAPABILITIES_RESPONSE__CONFIRMED__INIT;
    struct sl_err why = SL_ERR_INIT;
    (void)csi;
    if (sl_csi_check_id("volume_id", request->volume_id, SL_CSI_ID_BYTES, err) < 0)
        return -1;
    if (!request->n_volume_capabilities)
        return sl_fail(err, SL_E_USAGE, "volume_capabilities are missing");
    if (!is_our_id(request->volume_id))
        return sl_fail(err, SL_E_NOT_FOUND, "this driver has not created a volume '%.128s'",
                       request->volume_id);
    if (confirm(request, &why) == 0) {
        confirmed.n_volume_capabilities = request->n_volume_capabilities;
        confirmed.volume_capabilities = request->volume_capabilities;
        confirmed.n_volume_context = request->n_volume_context;
        confirmed.volume_context = /* of the same layout */
            (Csi__V1__ValidateVolumeCapabilitiesResponse__Confirmed__VolumeContextEntry **)
                request->volume_context;
        confirmed.n_parameters = request->n_parameters;
        confirmed.parameters =
            (Csi__V1__ValidateVolumeCapabilitiesResponse__Confirmed__ParametersEntry **)
                request->parameters;
        answer.confirmed = &confirmed;
    } else {
        answer.message = why.message;
    }
    return sl_csi_respond(call, &answer.base, err);
}

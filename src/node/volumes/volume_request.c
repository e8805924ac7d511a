/*
 * Attributes are matched whole: what is not known is refused by its name, so that a request which a
 * later version would grant is never passed over in silence. Values are for the message only as far
 * as they are no secrets: the tokens of a service account are told by their key alone.
 */
#include "volume_request.h"

#include <string.h>

#include "node_uri.h"

#define OF_KUBELET "csi.storage.k8s.io/"
#define TOKENS     OF_KUBELET "serviceAccount.tokens"
/* external-provisioner puts it into every volume that it makes: which of its processes it was. */
#define PROVISIONER "storage.kubernetes.io/csiProvisionerIdentity"

static bool is_printable(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return false;
    return true;
}

static int check_pair(const struct sl_volume_pair *pair, struct sl_err *err)
{
    size_t limit = strcmp(pair->key, TOKENS) == 0 ? SL_VOLUME_TOKENS_MAX : SL_VOLUME_TEXT_MAX;
    if (strlen(pair->key) > SL_VOLUME_TEXT_MAX || !is_printable(pair->key))
        return sl_fail(err, SL_E_USAGE,
                       "the name of a volume attribute is too long or unprintable");
    if (strlen(pair->value) > limit)
        return sl_fail(err, SL_E_USAGE,
                       "the volume attribute '%.100s' has %zu bytes, the limit is %zu", pair->key,
                       strlen(pair->value), limit);
    if (!is_printable(pair->value))
        return sl_fail(err, SL_E_USAGE, "the volume attribute '%.100s' holds control characters",
                       pair->key);
    return 0;
}

static int take_pool(const char *value, bool *pool, struct sl_err *err)
{
    *pool = strcmp(value, "true") == 0;
    if (*pool || strcmp(value, "false") == 0)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "the volume attribute 'pool' is '%.80s': write \"true\" or leave it out", value);
}

static int take(const struct sl_volume_pair *pair, struct sl_volume_request *request,
                struct sl_err *err)
{
    const struct {
        const char *key;
        const char **text;
    } known[] = {
        {"model", &request->model},
        {"uri", &request->uri},
        {OF_KUBELET "pod.name", &request->pod},
        {OF_KUBELET "pod.namespace", &request->pod_namespace},
        {OF_KUBELET "pod.uid", &request->pod_uid},
        {OF_KUBELET "serviceAccount.name", &request->account},
        {TOKENS, &request->tokens},
    };
    if (strcmp(pair->key, "pool") == 0)
        return take_pool(pair->value, &request->pool, err);
    for (size_t i = 0; i < SL_COUNT(known); i++) {
        if (strcmp(pair->key, known[i].key) != 0)
            continue;
        if (*known[i].text)
            return sl_fail(err, SL_E_USAGE, "the volume attribute '%s' is given twice", pair->key);
        *known[i].text = pair->value;
        return 0;
    }
    if (strncmp(pair->key, OF_KUBELET, strlen(OF_KUBELET)) == 0 ||
        strcmp(pair->key, PROVISIONER) == 0)
        return 0; /* newer kubelets say more */
    if (strcmp(pair->key, "device") == 0)
        return sl_fail(err, SL_E_USAGE,
                       "volumes hold files on the host: remove 'device', or use 'pool' and ask the "
                       "pool for a GPU");
    return sl_fail(err, SL_E_USAGE,
                   "the volume attribute '%.100s' is not known: use 'model', 'uri' or 'pool'",
                   pair->key);
}

static int check_what(const struct sl_volume_request *request, struct sl_err *err)
{
    int given = (request->model != NULL) + (request->uri != NULL) + request->pool;
    if (given != 1)
        return sl_fail(err, SL_E_USAGE,
                       "a volume names exactly one of 'model', 'uri' and 'pool', this one names %s",
                       given ? "more" : "none");
    if (request->model && !sl_is_model_name(request->model))
        return sl_fail(err, SL_E_USAGE, "'%.100s' is not a model name", request->model);
    if (request->uri && !sl_node_is_uri(request->uri))
        return sl_fail(err, SL_E_USAGE, "'%.100s' is not a URI such as s3://models/gpt-j-6b/",
                       request->uri);
    return 0;
}

int sl_volume_request_read(const struct sl_volume_pair *attributes, size_t count,
                           struct sl_volume_request *request, struct sl_err *err)
{
    *request = (struct sl_volume_request){.pool = false};
    if (count > SL_VOLUME_PAIRS_MAX)
        return sl_fail(err, SL_E_USAGE, "%zu volume attributes, the limit is %d", count,
                       SL_VOLUME_PAIRS_MAX);
    for (size_t i = 0; i < count; i++)
        if (check_pair(&attributes[i], err) < 0 || take(&attributes[i], request, err) < 0)
            return -1;
    return check_what(request, err);
}

/* One folder's or object's name of Kubernetes: it becomes a part of a path and of log lines. */
static bool is_kubernetes_name(const char *text)
{
    size_t bytes = strlen(text);
    return bytes && bytes <= 253 && *text != '.' && *text != '-' &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789.-") == bytes;
}

int sl_volume_request_check_pod(const struct sl_volume_request *request, const char *driver,
                                struct sl_err *err)
{
    if (!request->pod_uid || !request->pod_namespace || !request->pod)
        return sl_fail(
            err, SL_E_USAGE,
            "the kubelet does not say which pod asks: the cluster has no CSIDriver object "
            "'%s' with podInfoOnMount: true",
            driver);
    const char *names[] = {request->pod_uid, request->pod_namespace, request->pod,
                           request->account};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        if (names[i] && !is_kubernetes_name(names[i]))
            return sl_fail(err, SL_E_USAGE, "'%.100s' is not a Kubernetes name", names[i]);
    return 0;
}

/*
 * A tenant gets nothing with another's rights. What is read with the daemon's rights is one copy
 * for all namespaces whose rows allow the URI, since each of them may read it; what is read with
 * rights of a volume's own is a copy of its namespace and of exactly these rights, so who finds it
 * in memory has shown the same secret, or is the same service account, by the kubelet's word. A
 * namespace that must bring credentials cannot leave them out to have the daemon's.
 */
#include "volume_rights.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "json.h"
#include "stores.h"
#include "uri_text.h"

/* ---- the rows ------------------------------------------------------------------------------- */

static int copy_list(const struct sl_list *from, struct sl_list *to, struct sl_err *err)
{
    for (size_t i = 0; i < from->count; i++)
        if (sl_list_add(to, from->items[i], strlen(from->items[i]), err) < 0)
            return -1;
    return 0;
}

static void list_release(struct sl_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
}

void sl_volume_rights_release(struct sl_volume_rights *rights)
{
    for (size_t i = 0; i < rights->count; i++) {
        struct sl_node_spec_namespace *row = &rights->rows[i];
        free(row->name);
        free(row->role_arn);
        list_release(&row->models);
        list_release(&row->uri_prefixes);
        list_release(&row->credentials);
    }
    free(rights->rows);
    *rights = (struct sl_volume_rights){NULL};
}

static int copy_row(const struct sl_node_spec_namespace *from, struct sl_node_spec_namespace *to,
                    struct sl_err *err)
{
    to->pool = from->pool;
    if (!(to->name = sl_strdup(from->name, err)) ||
        (from->role_arn && !(to->role_arn = sl_strdup(from->role_arn, err))))
        return -1;
    return copy_list(&from->models, &to->models, err) < 0 ||
                   copy_list(&from->uri_prefixes, &to->uri_prefixes, err) < 0
               ? -1
               : copy_list(&from->credentials, &to->credentials, err);
}

int sl_volume_rights_copy(const struct sl_node_spec_csi *csi, struct sl_volume_rights *rights,
                          struct sl_err *err)
{
    const struct sl_node_spec_namespace *rows = csi->namespaces.items;
    *rights = (struct sl_volume_rights){NULL};
    rights->rows = sl_alloc_array(csi->namespaces.count, sizeof(*rights->rows), err);
    if (!rights->rows)
        return -1;
    for (size_t i = 0; i < csi->namespaces.count; i++) {
        rights->count++;
        if (copy_row(&rows[i], &rights->rows[i], err) == 0)
            continue;
        sl_volume_rights_release(rights);
        return -1;
    }
    return 0;
}

/* Where the config names no namespaces: every one may mount the config's models. */
static const struct sl_node_spec_namespace anybody = {.name = (char *)(uintptr_t) "*"};

static const struct sl_node_spec_namespace *find_row(const struct sl_volume_rights *rights,
                                                     const char *name)
{
    const struct sl_node_spec_namespace *others = NULL;
    for (size_t i = 0; i < rights->count; i++) {
        if (name && strcmp(rights->rows[i].name, name) == 0)
            return &rights->rows[i];
        if (strcmp(rights->rows[i].name, "*") == 0)
            others = &rights->rows[i];
    }
    return rights->count ? others : &anybody;
}

static bool may_model(const struct sl_node_spec_namespace *row, const char *model)
{
    for (size_t i = 0; i < row->models.count; i++)
        if (fnmatch(row->models.items[i], model, 0) == 0)
            return true;
    return row->models.count == 0;
}

static bool takes(const struct sl_node_spec_namespace *row, const char *rights)
{
    for (size_t i = 0; i < row->credentials.count; i++)
        if (strcmp(row->credentials.items[i], rights) == 0)
            return true;
    return row->credentials.count == 0 && strcmp(rights, "daemon") == 0;
}

/* ---- credentials of the volume's own -------------------------------------------------------- */

static const char *secret(const struct sl_volume_pair *secrets, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(secrets[i].key, key) == 0 && *secrets[i].value)
            return secrets[i].value;
    return NULL;
}

static int set(char **text, const char *value, struct sl_err *err)
{
    if (!value)
        return 0;
    *text = sl_strdup(value, err);
    return *text ? 0 : -1;
}

static void put(struct sl_sha256 *sha, const char *text)
{
    text = text ? text : "";
    sl_sha256_update(sha, text, strlen(text) + 1);
}

/* A text that only equal rights of one namespace give. */
static int name_sharing(const char *kind, const char *pod_namespace, const char *account,
                        const uint8_t salt[SL_VOLUME_SALT], struct sl_volume_grant *grant,
                        struct sl_err *err)
{
    uint8_t digest[32];
    char hex[65];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, salt, SL_VOLUME_SALT);
    put(sha, kind);
    put(sha, pod_namespace);
    put(sha, account);
    put(sha, grant->credentials.access_key);
    put(sha, grant->credentials.secret_key);
    put(sha, grant->credentials.session_token);
    put(sha, grant->credentials.role_arn);
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), hex);
    snprintf(grant->sharing, sizeof(grant->sharing), "%s %s", kind, hex);
    grant->has_credentials = true;
    return 0;
}

static int take_secret(const struct sl_volume_request *request,
                       const struct sl_volume_pair *secrets, size_t count,
                       const uint8_t salt[SL_VOLUME_SALT], struct sl_volume_grant *grant,
                       struct sl_err *err)
{
    const char *access = secret(secrets, count, "access_key_id");
    const char *key = secret(secrets, count, "secret_access_key");
    if (!access || !key)
        return sl_fail(err, SL_E_AUTH,
                       "the volume's secret needs access_key_id and secret_access_key, and "
                       "session_token for temporary keys");
    if (set(&grant->credentials.access_key, access, err) < 0 ||
        set(&grant->credentials.secret_key, key, err) < 0 ||
        set(&grant->credentials.session_token, secret(secrets, count, "session_token"), err) < 0)
        return -1;
    return name_sharing("secret", request->pod_namespace, NULL, salt, grant, err);
}

#define STS_AUDIENCE "sts.amazonaws.com"

/* Of the audience that the STS wants, or of the only one. */
static int take_token(const char *text, char **token, struct sl_err *err)
{
    json_t *root = sl_json_parse(text, strlen(text), "serviceAccount.tokens", NULL);
    json_t *entry = json_object_get(root, STS_AUDIENCE);
    if (!entry && json_object_size(root) == 1)
        entry = json_object_iter_value(json_object_iter(root));
    const char *value = sl_json_get_string(entry, "token");
    int done = value && *value ? set(token, value, err)
                               : sl_fail(err, SL_E_AUTH,
                                         "the kubelet sent no token for the audience " STS_AUDIENCE
                                         ": add it to tokenRequests of the CSIDriver object");
    json_decref(root);
    return done;
}

static int use_token(const struct sl_node_spec_namespace *row,
                     const struct sl_volume_request *request, const char *tokens,
                     const uint8_t salt[SL_VOLUME_SALT], struct sl_volume_grant *grant,
                     struct sl_err *err)
{
    if (!request->account || !request->pod_namespace)
        return sl_fail(err, SL_E_AUTH,
                       "the kubelet does not say which service account the token belongs to");
    if (take_token(tokens, &grant->credentials.identity_token, err) < 0 ||
        set(&grant->credentials.role_arn, row->role_arn, err) < 0)
        return -1;
    return name_sharing("token", request->pod_namespace, request->account, salt, grant, err);
}

/* ---- granting ------------------------------------------------------------------------------- */

static int refuse_uri(int fits, const struct sl_volume_request *request, struct sl_err *err)
{
    const char *name = request->pod_namespace ? request->pod_namespace : "";
    sl_autofree char *uri = sl_uri_sanitize(request->uri, err);
    if (!uri)
        return -1;
    if (fits == -2)
        return sl_fail(err, SL_E_USAGE,
                       "a volume may not ask for '%.200s': '.', '..', empty parts, '?', '#', '\\', "
                       "encoded dots and slashes are not allowed in it",
                       uri);
    return sl_fail(
        err, SL_E_AUTH,
        "namespace '%.63s' may not ask for '%.200s': its uriPrefixes in csi.namespaces do "
        "not allow it",
        name, uri);
}

static bool takes_credentials(const char *uri)
{
    const struct sl_store_kind *kind = sl_stores_find(uri);
    return kind && kind->traits.caller_credentials;
}

static int grant_uri(const struct sl_node_spec_namespace *row,
                     const struct sl_volume_request *request, const struct sl_volume_pair *secrets,
                     size_t count, const uint8_t salt[SL_VOLUME_SALT],
                     struct sl_volume_grant *grant, struct sl_err *err)
{
    int fits = sl_node_uri_below(&row->uri_prefixes, request->uri, &grant->prefix_bytes);
    if (fits < 0)
        return refuse_uri(fits, request, err);
    const char *tokens = secret(secrets, count, "csi.storage.k8s.io/serviceAccount.tokens");
    tokens = tokens ? tokens : request->tokens;
    bool has_keys =
        secret(secrets, count, "access_key_id") || secret(secrets, count, "secret_access_key");
    bool by_token = tokens && takes(row, "token") && takes_credentials(request->uri);
    if (has_keys && !takes(row, "secret"))
        return sl_fail(err, SL_E_AUTH,
                       "volumes of namespace '%.63s' may not use a secret: remove "
                       "nodePublishSecretRef, or add secret to its credentials in csi.namespaces",
                       row->name);
    if (has_keys && !takes_credentials(request->uri))
        return sl_fail(err, SL_E_AUTH, "a secret cannot be used for '%.200s', only for s3://",
                       request->uri);
    if (has_keys)
        return take_secret(request, secrets, count, salt, grant, err);
    if (by_token)
        return use_token(row, request, tokens, salt, grant, err);
    if (takes(row, "daemon")) {
        if (!sl_uri_is_local(request->uri))
            grant->prefix_bytes = 0; /* which of several prefixes allowed it makes no other model */
        snprintf(grant->sharing, sizeof(grant->sharing), "daemon %zu", grant->prefix_bytes);
        return 0;
    }
    return sl_fail(
        err, SL_E_AUTH,
        "a volume of namespace '%.63s' must bring its own credentials for a URI: %s", row->name,
        takes(row, "secret") ? "name a secret with access_key_id and secret_access_key as "
                               "nodePublishSecretRef"
                             : "the kubelet sent no token of the pod's service account");
}

int sl_volume_rights_grant(const struct sl_volume_rights *rights,
                           const struct sl_volume_request *request,
                           const struct sl_volume_pair *secrets, size_t secret_count,
                           const uint8_t salt[SL_VOLUME_SALT], struct sl_volume_grant *grant,
                           struct sl_err *err)
{
    *grant = (struct sl_volume_grant){.prefix_bytes = 0};
    const char *name = request->pod_namespace;
    const struct sl_node_spec_namespace *row = find_row(rights, name);
    if (!row)
        return sl_fail(err, SL_E_AUTH,
                       "namespace '%.63s' may mount nothing on this node: it has no entry in "
                       "csi.namespaces",
                       name ? name : "");
    if (request->pool && !row->pool)
        return sl_fail(err, SL_E_AUTH,
                       "namespace '%.63s' may not use the pool: its entry in csi.namespaces needs "
                       "pool: true",
                       name ? name : "");
    if (request->model && !may_model(row, request->model))
        return sl_fail(err, SL_E_AUTH,
                       "namespace '%.63s' may not mount the model '%s': its models in "
                       "csi.namespaces do not list it",
                       name ? name : "", request->model);
    if (!request->uri)
        return 0;
    if (grant_uri(row, request, secrets, secret_count, salt, grant, err) == 0)
        return 0;
    sl_caller_credentials_release(&grant->credentials);
    return -1;
}

int sl_volume_rights_conceivable(const struct sl_volume_rights *rights,
                                 const struct sl_volume_request *request, struct sl_err *err)
{
    size_t prefix_bytes;
    int fits = -1;
    bool any = !rights->count && request->model;
    for (size_t i = 0; i < rights->count; i++) {
        const struct sl_node_spec_namespace *row = &rights->rows[i];
        if (request->uri)
            fits = sl_node_uri_below(&row->uri_prefixes, request->uri, &prefix_bytes);
        any = any || (request->pool && row->pool) ||
              (request->model && may_model(row, request->model)) || (request->uri && fits == 0);
        if (fits == -2)
            return refuse_uri(fits, request, err);
    }
    if (any)
        return 0;
    return sl_fail(err, SL_E_AUTH,
                   "no namespace may mount it: no entry of csi.namespaces allows %.200s",
                   request->pool    ? "the pool"
                   : request->model ? request->model
                                    : request->uri);
}

/*
 * The section `csi` of the node's config. A namespace that has a row of its own is judged by that
 * alone, and "*" stands for all others, so that a row can take away as well as grant.
 */
#include <string.h>

#include "node_spec_parts.h"

enum { DRIVER_NAME_MAX = 63, NODE_ID_MAX = 192, NAMESPACE_MAX = 63 };

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* It names files, labels and the CSIDriver object; its ends must be letters or digits. */
static int check_driver(const char *text, struct sl_err *err)
{
    size_t bytes = strlen(text);
    if (bytes && bytes <= DRIVER_NAME_MAX && *text >= 'a' && *text <= 'z' &&
        text[bytes - 1] >= 'a' && text[bytes - 1] <= 'z' &&
        strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789.-") == bytes)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%.80s' is not a CSI driver name: at most %d small letters, digits, dots and "
                   "dashes, a letter first and last",
                   text, DRIVER_NAME_MAX);
}

static int check_node_id(const char *text, struct sl_err *err)
{
    if (strlen(text) <= NODE_ID_MAX)
        return 0;
    return sl_fail(err, SL_E_USAGE, "the id of a node has at most %d bytes, this has %zu",
                   NODE_ID_MAX, strlen(text));
}

static int check_registration(const char *text, struct sl_err *err)
{
    return *text ? node_spec_check_socket(text, err) : 0;
}

static int check_namespace(const char *text, struct sl_err *err)
{
    size_t bytes = strlen(text);
    if (strcmp(text, "*") == 0 || (bytes && bytes <= NAMESPACE_MAX && is_alphanumeric(*text) &&
                                   is_alphanumeric(text[bytes - 1]) &&
                                   strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == bytes))
        return 0;
    return sl_fail(err, SL_E_USAGE, "'%.80s' is not a namespace: expected its name, or '*'", text);
}

static int check_credentials(const char *text, struct sl_err *err)
{
    if (strcmp(text, "daemon") == 0 || strcmp(text, "secret") == 0 || strcmp(text, "token") == 0)
        return 0;
    return sl_fail(err, SL_E_USAGE, "expected daemon, secret or token, not '%.80s'", text);
}

static int check_role(const char *text, struct sl_err *err)
{
    if (strncmp(text, "arn:", 4) == 0 && strlen(text) <= 2048)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "'%.100s' is not a role such as arn:aws:iam::123456789012:role/x", text);
}

static const struct sl_option namespace_rows[] = {
    SL_OPTION(sl_node_spec_namespace, name, STRING, "",
              "a namespace, or `*` for all that have no entry of their own", .required = true,
              .check = check_namespace, .value = "NAME"),
    SL_OPTION(
        sl_node_spec_namespace, models, LIST, "",
        "models of the config that its pods may mount, as names or shell patterns; not given: all"),
    SL_OPTION(
        sl_node_spec_namespace, uri_prefixes, LIST, "",
        "its pods may mount any URI below one of these, such as `s3://team-a/`; not given: no URIs",
        .check = node_spec_check_prefix),
    SL_OPTION(sl_node_spec_namespace, credentials, LIST, "",
              "whose credentials read URIs. `daemon`: the daemon's own; namespaces that read a URI "
              "this way share one copy. `secret`: those in the volume's nodePublishSecretRef. "
              "`token`: those of `roleArn`, through the pod's service account. Without `daemon` in "
              "the list, volumes without credentials are refused; not given: `daemon`",
              .check = check_credentials),
    SL_OPTION(sl_node_spec_namespace, role_arn, STRING, "",
              "role for which the tokens of its pods are exchanged at STS", .check = check_role,
              .value = "ARN"),
    SL_OPTION(sl_node_spec_namespace, pool, BOOL, "false",
              "its pods may mount the folder of the pool's socket; `pool.uids` and `pool.gids` "
              "say which users can attach there"),
    SL_OPTION_END,
};
static const struct sl_option_table namespace_table = {
    "namespaces", sizeof(struct sl_node_spec_namespace), namespace_rows};

static const struct sl_option rows[] = {
    SL_OPTION(sl_node_spec_csi, enabled, BOOL, "false", "serve volumes to the kubelet"),
    SL_OPTION(sl_node_spec_csi, driver_name, STRING, "csi.sluice.dev",
              "name of the driver; the CSIDriver object must have the same", .check = check_driver,
              .value = "NAME"),
    SL_OPTION(sl_node_spec_csi, node_id, STRING, "",
              "name of this node in the cluster; empty: the environment variable NODE_NAME, else "
              "the host's name",
              .check = check_node_id, .value = "NAME"),
    SL_OPTION(sl_node_spec_csi, socket, STRING, "/var/lib/kubelet/plugins/csi.sluice.dev/csi.sock",
              "unix socket for the kubelet's calls; the path must be the same on the host",
              .check = node_spec_check_socket, .value = "FILE"),
    SL_OPTION(
        sl_node_spec_csi, registration, STRING,
        "/var/lib/kubelet/plugins_registry/csi.sluice.dev-reg.sock",
        "unix socket that registers the driver with the kubelet; empty: a sidecar registers it",
        .check = check_registration, .value = "FILE"),
    SL_OPTION(sl_node_spec_csi, kubelet_directory, STRING, "/var/lib/kubelet",
              "the kubelet's directory; volumes are mounted only below it",
              .check = node_spec_check_absolute, .value = "DIR"),
    SL_OPTION(sl_node_spec_csi, wait_seconds, UINT, "90",
              "how long mounting waits for a load before the kubelet is asked to try again; the "
              "load goes on",
              .minimum = 1, .maximum = SL_NODE_CSI_WAIT_SECONDS_MAX),
    SL_OPTION(
        sl_node_spec_csi, hide_volumes, BOOL, "false",
        "show which volumes there are (their URIs, namespaces and pods) only to those who can "
        "change something at `control`; `listen` shows them to all without it"),
    SL_OPTION(
        sl_node_spec_csi, namespaces, ITEMS, "",
        "what pods may mount. Without entries every namespace may mount the models of the config, "
        "but no URIs and not the pool. With entries a namespace without one may mount nothing",
        .section = &namespace_table),
    SL_OPTION_END,
};
const struct sl_option_table node_spec_csi_table = {"csi", sizeof(struct sl_node_spec_csi), rows};

/* ---- against each other --------------------------------------------------------------------- */

static bool lists(const struct sl_list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i], text) == 0)
            return true;
    return false;
}

static bool takes_stranger_rights(const struct sl_node_spec_namespace *space)
{
    return lists(&space->credentials, "secret") || lists(&space->credentials, "token");
}

static void check_namespace_row(struct sl_mark mark, const struct sl_node_spec *node,
                                const struct sl_node_spec_namespace *space,
                                struct sl_complaints *complaints)
{
    const char *name = space->name ? space->name : "";
    if (space->credentials.count && !space->uri_prefixes.count)
        sl_complain(
            complaints, mark,
            "namespace '%.63s' has 'credentials' and no 'uriPrefixes': it may ask for no URI",
            name);
    if (lists(&space->credentials, "token") && !space->role_arn)
        sl_complain(complaints, mark, "namespace '%.63s' takes tokens and has no 'roleArn'", name);
    if (space->role_arn && !lists(&space->credentials, "token"))
        sl_complain(complaints, mark,
                    "namespace '%.63s' has a 'roleArn' and takes no tokens: add token to its "
                    "'credentials'",
                    name);
    for (size_t i = 0; takes_stranger_rights(space) && i < space->uri_prefixes.count; i++)
        if (strncmp(space->uri_prefixes.items[i], "s3://", 5) != 0 &&
            !lists(&space->credentials, "daemon"))
            sl_complain(complaints, mark,
                        "namespace '%.63s': secrets and tokens are for s3://, not for '%.200s'",
                        name, space->uri_prefixes.items[i]);
    if (space->pool && !node->pool.socket)
        sl_complain(complaints, mark,
                    "namespace '%.63s' may use the pool, and 'pool.socket' is not set", name);
}

static void check_namespaces(const struct sl_yaml_pair *pair, const struct sl_node_spec *node,
                             struct sl_complaints *complaints)
{
    const struct sl_node_spec_namespace *spaces = node->csi.namespaces.items;
    size_t count = node->csi.namespaces.count;
    if (count > SL_NODE_NAMESPACES_MAX) {
        sl_complain(complaints, pair->mark, "%zu namespaces, at most %d are taken", count,
                    SL_NODE_NAMESPACES_MAX);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        check_namespace_row(pair->mark, node, &spaces[i], complaints);
        for (size_t j = 0; j < i; j++)
            if (spaces[i].name && spaces[j].name && strcmp(spaces[i].name, spaces[j].name) == 0)
                sl_complain(complaints, pair->mark, "namespace '%.63s' has two entries",
                            spaces[i].name);
    }
}

static bool same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

void node_spec_check_csi(const struct sl_yaml_node *root, const struct sl_node_spec *node,
                         struct sl_complaints *complaints)
{
    const struct sl_node_spec_csi *csi = &node->csi;
    const struct sl_yaml_pair *pair = sl_yaml_find(root, "csi");
    if (!pair)
        return;
    if (csi->enabled &&
        (same(csi->socket, csi->registration) || same(csi->socket, node->control.socket) ||
         same(csi->socket, node->pool.socket) || same(csi->registration, node->control.socket) ||
         same(csi->registration, node->pool.socket)))
        sl_complain(complaints, pair->mark,
                    "'csi.socket', 'csi.registration', 'control' and 'pool' need a socket each");
    if (csi->kubelet_directory &&
        strspn(csi->kubelet_directory, "/") == strlen(csi->kubelet_directory))
        sl_complain(complaints, pair->mark, "'csi.kubeletDirectory' must be a folder, not '/'");
    pair = sl_yaml_find(root, "csi.namespaces");
    if (pair)
        check_namespaces(pair, node, complaints);
}

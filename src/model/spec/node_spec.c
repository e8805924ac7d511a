/*
 * The keys of `kind: Node` in the order of the reference page, and what they must be against each
 * other. Reading the file is spec.c's work, since models may follow in it.
 */
#include "node_spec.h"

#include <stdlib.h>
#include <string.h>

#include "node_spec_parts.h"
#include "spec_decode.h"

enum {
    SELINUX_LABEL_MAX = 255,
};

int sl_node_spec_id(const char *text, uint32_t *id, struct sl_err *err)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long long value = digits && digits < 11 ? strtoull(text, NULL, 10) : UINT32_MAX;
    if (text[digits] || value >= UINT32_MAX)
        return sl_fail(err, SL_E_USAGE, "'%.80s' is not a numeric id, such as 1000", text);
    *id = (uint32_t)value;
    return 0;
}

static int check_id(const char *text, struct sl_err *err)
{
    uint32_t id;
    return sl_node_spec_id(text, &id, err);
}

/* The octal digits of a mode, as 660 for 0660; SL_E_USAGE. */
static int mode_of(const char *text, unsigned *mode, struct sl_err *err)
{
    size_t digits = strspn(text, "01234567");
    if (digits < 3 || digits > 4 || text[digits])
        return sl_fail(err, SL_E_USAGE, "'%.80s' is not a mode of a socket, such as 0660", text);
    *mode = (unsigned)strtoul(text, NULL, 8) & 0777;
    return 0;
}

static bool is_auto(const char *text)
{
    return !text || strcmp(text, "auto") == 0;
}

static int check_mode(const char *text, struct sl_err *err)
{
    unsigned mode;
    return is_auto(text) ? 0 : mode_of(text, &mode, err);
}

int sl_node_spec_pool_mode(const struct sl_node_spec *node, unsigned *mode, bool *opened,
                           struct sl_err *err)
{
    const struct sl_node_spec_socket *pool = &node->pool;
    *opened = is_auto(pool->mode) &&
              (pool->uids.count || pool->gids.count || pool->deposit_uids.count ||
               pool->deposit_gids.count || node->control.uids.count || node->control.gids.count);
    *mode = *opened ? 0666 : 0660;
    return is_auto(pool->mode) ? 0 : mode_of(pool->mode, mode, err);
}

int sl_node_spec_control_mode(const struct sl_node_spec_control *control, unsigned *mode,
                              struct sl_err *err)
{
    *mode = control->uids.count || control->gids.count ? 0666 : 0600;
    return is_auto(control->mode) ? 0 : mode_of(control->mode, mode, err);
}

/* As it stands between quotes in the options of a mount. */
static int check_label(const char *text, struct sl_err *err)
{
    size_t colons = 0, bytes = strlen(text);
    bool plain = bytes <= SELINUX_LABEL_MAX;
    for (size_t i = 0; i < bytes; i++) {
        colons += text[i] == ':';
        plain = plain && text[i] > ' ' && text[i] < 0x7f && !strchr("\"'\\", text[i]);
    }
    if (strcmp(text, "auto") == 0 || strcmp(text, "none") == 0 ||
        (plain && colons >= 2 && text[0] != ':'))
        return 0;
    return sl_fail(
        err, SL_E_USAGE,
        "'%.200s' is not a label of SELinux: auto, none, or USER:ROLE:TYPE:LEVEL, such as "
        "system_u:object_r:container_file_t:s0",
        text);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static const struct sl_option models_rows[] = {
    SL_OPTION(
        sl_node_spec_models, file, STRING, "",
        "a model spec, or a folder whose *.yaml and *.yml files are all read; relative to the "
        "config",
        .required = true, .value = "FILE"),
    SL_OPTION(sl_node_spec_models, pin, BOOL, "true",
              "keep these models in memory, whatever others need; without it they are loaded once, "
              "and may be evicted"),
    SL_OPTION_END,
};
static const struct sl_option_table models_table = {"models", sizeof(struct sl_node_spec_models),
                                                    models_rows};

static const struct sl_option tmpfs_rows[] = {
    SL_OPTION(sl_node_spec_tmpfs, path, STRING, "",
              "mount a tmpfs here when the daemon starts; one that is mounted already gets the new "
              "size. It stays when the daemon ends. `directory` and `pool.directory` must be below "
              "it. Needs CAP_SYS_ADMIN. Not set: no tmpfs is mounted",
              .check = node_spec_check_absolute, .value = "DIR"),
    SL_OPTION(sl_node_spec_tmpfs, size_bytes, BYTES, "auto",
              "its size; auto is `budgetBytes` and a sixteenth and 64 MiB more, or half of the "
              "machine's memory if `budgetBytes` is auto",
              .minimum = 1 << 20, .maximum = 1ull << 51),
    SL_OPTION(sl_node_spec_tmpfs, huge, CHOICE, "auto",
              "whether its pages are huge, as in the kernel's mount option `huge=`; auto is "
              "within_size where the kernel has it: models are filled for half of the processor "
              "time",
              .choices = SL_NODE_TMPFS_HUGE),
    SL_OPTION_END,
};
static const struct sl_option_table tmpfs_table = {"tmpfs", sizeof(struct sl_node_spec_tmpfs),
                                                   tmpfs_rows};

static const struct sl_option control_rows[] = {
    SL_OPTION(sl_node_spec_control, socket, STRING, "",
              "unix socket that answers all that `listen` answers, and requests that change "
              "something; none unless given",
              .check = node_spec_check_socket, .value = "FILE"),
    SL_OPTION(sl_node_spec_control, mode, STRING, "auto",
              "mode of the socket; auto is 0600, and 0666 where `uids` or `gids` list users who "
              "can change something: then all users can connect and read, as at `listen`",
              .check = check_mode, .value = "MODE"),
    SL_OPTION(sl_node_spec_control, group, STRING, "", "numeric group that the socket is given to",
              .check = check_id, .value = "GID"),
    SL_OPTION(sl_node_spec_control, uids, LIST, "",
              "users allowed to change something, besides root and the daemon's own in its own "
              "namespaces; root of a container is \"0\"",
              .check = check_id),
    SL_OPTION(sl_node_spec_control, gids, LIST, "", "groups whose members may", .check = check_id),
    SL_OPTION(sl_node_spec_control, token_file, STRING, "",
              "file with a token of at least 16 characters: requests with this bearer token can "
              "change something through `listen`. It is read again for every such request",
              .check = node_spec_check_absolute, .value = "FILE"),
    SL_OPTION_END,
};
static const struct sl_option_table control_table = {"control", sizeof(struct sl_node_spec_control),
                                                     control_rows};

static const struct sl_option pool_rows[] = {
    SL_OPTION(sl_node_spec_socket, socket, STRING, "",
              "unix socket where clients attach to models; none unless given",
              .check = node_spec_check_socket, .value = "FILE"),
    SL_OPTION(
        sl_node_spec_socket, mode, STRING, "auto",
        "mode of the socket; auto is 0660, and 0666 where users or groups are listed here or in "
        "`control`: then these lists alone decide",
        .check = check_mode, .value = "MODE"),
    SL_OPTION(sl_node_spec_socket, group, STRING, "", "numeric group that the socket is given to",
              .check = check_id, .value = "GID"),
    SL_OPTION(
        sl_node_spec_socket, uids, LIST, "",
        "users that can attach, besides root and the daemon's own in its own namespaces; root "
        "of a container is \"0\". Without users and groups here: the socket's group (0 only "
        "where `group` says so) and the users that can deposit, or all users where `mode` "
        "lets all in",
        .check = check_id),
    SL_OPTION(sl_node_spec_socket, gids, LIST, "", "groups whose members may attach",
              .check = check_id),
    SL_OPTION(sl_node_spec_socket, deposit_uids, LIST, "",
              "users allowed to deposit derived models, besides root and the daemon's own",
              .check = check_id),
    SL_OPTION(sl_node_spec_socket, deposit_gids, LIST, "", "groups whose members may deposit",
              .check = check_id),
    SL_OPTION(
        sl_node_spec_socket, shared_uids, LIST, "",
        "users whose deposits every user allowed to attach finds, as those of root and of the "
        "daemon's own user; deposits of others are found by their own user alone",
        .check = check_id),
    SL_OPTION(sl_node_spec_socket, deposit_bytes, BYTES, "auto",
              "limit for the derived models of one user who is neither root nor the daemon's own, "
              "on the host and on each GPU; auto is half of the budget there",
              .minimum = 1 << 12, .maximum = 1ull << 50),
    SL_OPTION(
        sl_node_spec_socket, directory, STRING, "",
        "a tmpfs folder of the daemon's own for slabs, which the next daemon finds there; they "
        "have huge pages if it is mounted with huge=always. Without it slabs are sealed memfds, "
        "which end with the daemon unless the service manager keeps them",
        .check = node_spec_check_absolute, .value = "DIR"),
    SL_OPTION(sl_node_spec_socket, gpu_budget_bytes, BYTES, "auto",
              "limit for all models on one GPU, on each; auto is 90 % of its memory",
              .minimum = 1 << 20, .maximum = 1ull << 50),
    SL_OPTION(
        sl_node_spec_socket, gpu_warm_seconds, UINT, "10",
        "how long a GPU's context (some hundred MiB of its memory), kernels and 129 MiB of pinned "
        "memory are kept after a load for the next one; 0: they are released after each load",
        .maximum = 86400),
    SL_OPTION(sl_node_spec_socket, uri_prefixes, LIST, "",
              "prefixes, such as `s3://models/`, below which clients may ask for any URI instead "
              "of a name: it is loaded with the daemon's credentials and may be evicted. In a "
              "folder, such as `/srv/models/`, links that lead out are refused. None unless given",
              .check = node_spec_check_prefix),
    SL_OPTION_END,
};
static const struct sl_option_table pool_table = {"pool", sizeof(struct sl_node_spec_socket),
                                                  pool_rows};

static int check_rule_prefix(const char *text, struct sl_err *err)
{
    return strcmp(text, "*") == 0 ? 0 : node_spec_check_prefix(text, err);
}

static const struct sl_option signing_rows[] = {
    SL_OPTION(sl_node_spec_signing, prefix, STRING, "",
              "where models come from, such as `s3://prod/`, by whole parts of the path; `*`: "
              "everywhere. The longest that fits counts, of a model and of its mirrors",
              .required = true, .check = check_rule_prefix, .value = "URI"),
    SL_OPTION(sl_node_spec_signing, model_signing, SECTION, "",
              "as `verify.modelSigning` of a model, which can ask for more and for nothing less; "
              "without it these models need no signature",
              .section = &sl_spec_signing_table),
    SL_OPTION_END,
};
const struct sl_option_table sl_node_spec_signing_table = {
    "signing", sizeof(struct sl_node_spec_signing), signing_rows};

static const struct sl_option rows[] = {
    SL_OPTION(sl_node_spec, api_version, STRING, "", "version of this format", .required = true,
              .pattern = "^sluice/v1alpha1$", .value = "sluice/v1alpha1"),
    SL_OPTION(sl_node_spec, kind, STRING, "", "what the document describes", .required = true,
              .pattern = "^Node$", .value = "Node"),
    SL_OPTION(sl_node_spec, directory, STRING, "",
              "where the models lie, on a tmpfs: each version in a folder of its own, "
              "`NAME/VERSION`, and the link `NAME/current`",
              .required = true, .check = node_spec_check_absolute, .value = "DIR"),
    SL_OPTION(sl_node_spec, budget_bytes, BYTES, "auto",
              "limit for all models together, those being loaded included; auto is 80 % of the "
              "smaller of the file system and the container's memory limit",
              .minimum = 1 << 20, .maximum = 1ull << 50),
    SL_OPTION(sl_node_spec, loads_at_once, UINT, "2",
              "models loaded at the same time; one more place is for a model that is small beside "
              "them",
              .minimum = 1, .maximum = SL_NODE_LOADS_MAX),
    SL_OPTION(sl_node_spec, listen, STRING, "",
              "address of health, metrics, progress and the page; SLUICE_LISTEN, else "
              "0.0.0.0:9464",
              .value = "ADDR:PORT"),
    SL_OPTION(sl_node_spec, selinux_label, STRING, "auto",
              "where SELinux is on: label of the tmpfs that the daemon mounts and of the pool's "
              "socket, so that containers may reach them. auto is "
              "system_u:object_r:container_file_t:s0, and a warning where the policy does not know "
              "it; none leaves what the policy gives",
              .check = check_label, .value = "LABEL"),
    SL_OPTION(sl_node_spec, models, ITEMS, "", "models to load when the daemon starts",
              .section = &models_table),
    SL_OPTION(sl_node_spec, through, SECTION, "",
              "caches of models whose `source.through` does not say which, as there",
              .section = &sl_spec_through_table, .brief = "caches"),
    SL_OPTION(sl_node_spec, signing, ITEMS, "",
              "which models must be signed, and by whom, whatever their specs say",
              .section = &sl_node_spec_signing_table),
    SL_OPTION(sl_node_spec, tmpfs, SECTION, "", "memory that the daemon mounts for its models",
              .section = &tmpfs_table),
    SL_OPTION(sl_node_spec, control, SECTION, "",
              "users allowed to load, pin, evict and forget models", .section = &control_table),
    SL_OPTION(sl_node_spec, pool, SECTION, "", "users allowed to attach to models, and the socket",
              .section = &pool_table),
    SL_OPTION(sl_node_spec, csi, SECTION, "", "models as volumes of pods",
              .section = &node_spec_csi_table),
    SL_OPTION_END,
};
const struct sl_option_table sl_node_spec_table = {"", sizeof(struct sl_node_spec), rows};

void sl_node_spec_release(struct sl_node_spec *node)
{
    sl_options_release(&sl_node_spec_table, node);
}

/* What is not taken from a list would be refused later, without a word. */
static void check_lists(const struct sl_yaml_node *root, const struct sl_node_spec *node,
                        struct sl_complaints *complaints)
{
    const struct {
        const char *key;
        const struct sl_list *list;
    } lists[] = {
        {"pool.uids", &node->pool.uids},
        {"pool.gids", &node->pool.gids},
        {"pool.depositUids", &node->pool.deposit_uids},
        {"pool.depositGids", &node->pool.deposit_gids},
        {"pool.sharedUids", &node->pool.shared_uids},
        {"control.uids", &node->control.uids},
        {"control.gids", &node->control.gids},
    };
    for (size_t i = 0; i < SL_COUNT(lists); i++) {
        const struct sl_yaml_pair *pair = sl_yaml_find(root, lists[i].key);
        if (pair && lists[i].list->count > SL_NODE_LIST_MAX)
            sl_complain(complaints, pair->mark, "'%s' has %zu ids, at most %d are taken",
                        lists[i].key, lists[i].list->count, SL_NODE_LIST_MAX);
    }
}

static void check_signing(const struct sl_yaml_node *root, const struct sl_node_spec *node,
                          struct sl_complaints *complaints)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, "signing");
    const struct sl_node_spec_signing *rules = node->signing.items;
    if (!pair || pair->value->kind != SL_YAML_LIST)
        return;
    if (node->signing.count > SL_NODE_SIGNING_MAX)
        sl_complain(complaints, pair->mark, "'signing' has %zu rules, at most %d are taken",
                    node->signing.count, SL_NODE_SIGNING_MAX);
    for (size_t i = 0; i < pair->value->count && i < node->signing.count; i++) {
        const struct sl_yaml_node *row = pair->value->items[i];
        if (row->kind == SL_YAML_MAP)
            sl_spec_check_signing(sl_yaml_get(row, "modelSigning"), &rules[i].model_signing,
                                  complaints);
        for (size_t j = 0; j < i; j++)
            if (rules[i].prefix && rules[j].prefix &&
                strcasecmp(rules[i].prefix, rules[j].prefix) == 0)
                sl_complain(complaints, row->mark, "'%.200s' has two rules", rules[i].prefix);
    }
}

/* Below a tmpfs of the daemon's own the models are in memory; elsewhere it would be for nothing. */
static void check_tmpfs(const struct sl_yaml_node *root, const struct sl_node_spec *node,
                        struct sl_complaints *complaints)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, "tmpfs");
    const char *path = node->tmpfs.path;
    if (!pair)
        return;
    if (!path) {
        sl_complain(complaints, pair->mark, "'tmpfs' needs a 'path', the folder to mount it at");
        return;
    }
    size_t bytes = strlen(path);
    while (bytes > 1 && path[bytes - 1] == '/')
        bytes--;
    if (bytes == 1)
        sl_complain(complaints, pair->mark, "'tmpfs.path' must be a folder of its own, not '/'");
    else if (node->directory &&
             (strncmp(node->directory, path, bytes) != 0 || node->directory[bytes] != '/'))
        sl_complain(complaints, pair->mark,
                    "'directory' is not below 'tmpfs.path', so no model would lie there: set it to "
                    "'%.*s/models'",
                    (int)SL_MIN(bytes, 200u), path);
}

void sl_node_spec_check(const struct sl_yaml_node *root, const struct sl_node_spec *node,
                        struct sl_complaints *complaints)
{
    const struct sl_yaml_pair *pair = sl_yaml_find(root, "apiVersion");
    if (pair && node->api_version && strcmp(node->api_version, "sluice/v1alpha1") != 0)
        sl_complain(complaints, pair->mark,
                    "apiVersion '%.80s' is not known here, this sluice reads 'sluice/v1alpha1'",
                    node->api_version);
    pair = sl_yaml_find(root, "pool.socket");
    if (pair && node->pool.socket && node->control.socket &&
        strcmp(node->pool.socket, node->control.socket) == 0)
        sl_complain(complaints, pair->mark, "'pool' and 'control' need a socket each");
    check_lists(root, node, complaints);
    check_tmpfs(root, node, complaints);
    check_signing(root, node, complaints);
    pair = sl_yaml_find(root, "pool.directory");
    if (pair && node->pool.directory && node->directory &&
        strcmp(node->pool.directory, node->directory) == 0)
        sl_complain(complaints, pair->mark,
                    "'pool.directory' and 'directory' must be a folder each");
    pair = sl_yaml_find(root, "directory");
    if (pair && node->directory && strspn(node->directory, "/") == strlen(node->directory))
        sl_complain(complaints, pair->mark, "'directory' must be a folder of its own, not '/'");
    node_spec_check_csi(root, node, complaints);
}

/* ---- the reference page --------------------------------------------------------------------- */

int sl_node_spec_write_reference(struct sl_buf *out, struct sl_err *err)
{
    if (sl_buf_text(
            out,
            "# The config of the node daemon\n\n"
            "<!-- Written by `sluice docs node` from the rows that parse it; do not edit. -->\n\n"
            "`sluice serve CONFIG` reads a YAML file whose first document is of `kind: Node`; "
            "models may follow in the\n"
            "same file, as in [the model spec](spec.md), parted by `---`. They are pinned, and "
            "need no `sink`: the\n"
            "node has its own place for them. Rules, sizes and variables are those of the model "
            "spec.\n\n"
            "```yaml\n"
            "apiVersion: sluice/v1alpha1\n"
            "kind: Node\n"
            "directory: /run/sluice/models\n"
            "budgetBytes: 200GiB\n"
            "models:\n"
            "  - file: models/           # every *.yaml in it\n"
            "control: {socket: /run/sluice/control.sock}\n"
            "---\n"
            "apiVersion: sluice/v1alpha1\n"
            "kind: Model\n"
            "metadata: {name: gpt-j-6b}\n"
            "source: {uri: s3://models/gpt-j-6b/}\n"
            "```\n\n## Keys\n\n",
            err) < 0)
        return -1;
    return sl_spec_write_keys(&sl_node_spec_table, out, err);
}

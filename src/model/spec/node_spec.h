/*
 * The YAML document `kind: Node`, the config of `sluice serve`: rows as those of a model spec, the
 * same complaints. Model documents may follow it in the same file. Any thread; no file is read.
 * Strings live until sl_node_spec_release().
 */
#ifndef SL_NODE_SPEC_H
#define SL_NODE_SPEC_H

#include "spec.h"

enum { SL_NODE_LOADS_MAX = 64, SL_NODE_LIST_MAX = 256 /* ids in a list */ };

/** One entry of `models`. */
struct sl_node_spec_models {
    char *file; /* a spec, or a folder of them; relative to the config */
    bool pin;
};
/** Where clients attach, and who may, besides root and the daemon's own user. */
struct sl_node_spec_socket {
    char *socket; /* path; NULL: none */
    char *mode;   /* octal digits, or "auto" (sl_node_spec_pool_mode()) */
    char *group;  /* numeric id that the socket is given to; NULL: leave */
    struct sl_list uids, gids;
    struct sl_list deposit_uids, deposit_gids;
    struct sl_list shared_uids; /* whose deposits others find, too */
    uint64_t deposit_bytes;     /* of one user; SL_AUTO_VALUE: half of the budget */
    char *directory;            /* a tmpfs for slabs; NULL: none */
    uint64_t gpu_budget_bytes;  /* of each GPU; SL_AUTO_VALUE: of its memory */
    uint64_t gpu_warm_seconds;  /* that its context stays after a load */
    struct sl_list uri_prefixes;
};
struct sl_node_spec_control {
    char *socket, *mode, *group;
    struct sl_list uids, gids;
    char *token_file;
};
/** A tmpfs that the daemon mounts for itself. */
struct sl_node_spec_tmpfs {
    char *path;          /* NULL: none */
    uint64_t size_bytes; /* SL_AUTO_VALUE: from the budget */
    int huge;            /* index into SL_NODE_TMPFS_HUGE */
};
#define SL_NODE_TMPFS_HUGE "auto|never|within_size|advise|always"
/** The rights of a namespace's pods. */
struct sl_node_spec_namespace {
    char *name;            /* or "*" */
    struct sl_list models; /* names or shell patterns; none: every model of the config */
    struct sl_list uri_prefixes;
    struct sl_list credentials; /* "daemon", "secret", "token"; none: the daemon's */
    char *role_arn;             /* which a pod's token is exchanged for */
    bool pool;                  /* may attach to the pool, as far as `pool` lets its users */
};
enum { SL_NODE_NAMESPACES_MAX = 1024, SL_NODE_CSI_WAIT_SECONDS_MAX = 110 };
struct sl_node_spec_csi {
    bool enabled;
    char *driver_name;
    char *node_id; /* NULL: NODE_NAME of the environment, else the host's name */
    char *socket;
    char *registration; /* NULL or "": somebody else registers */
    char *kubelet_directory;
    uint64_t wait_seconds;
    bool hide_volumes;
    struct sl_items namespaces; /* struct sl_node_spec_namespace */
};
/** Models below a URI must be signed, by whom this says; by nobody: they need not be. */
struct sl_node_spec_signing {
    char *prefix; /* or "*" */
    struct sl_spec_model_signing model_signing;
};
enum { SL_NODE_SIGNING_MAX = 256 };
struct sl_node_spec {
    char *api_version, *kind;
    char *listen, *directory;
    char *selinux_label;   /* "auto", "none", or a label (context) of SELinux */
    uint64_t budget_bytes; /* SL_AUTO_VALUE: from what the machine has */
    uint64_t loads_at_once;
    struct sl_items models; /* struct sl_node_spec_models */
    struct sl_spec_through through;
    struct sl_items signing; /* struct sl_node_spec_signing */
    struct sl_node_spec_tmpfs tmpfs;
    struct sl_node_spec_control control;
    struct sl_node_spec_socket pool;
    struct sl_node_spec_csi csi;
};
extern const struct sl_option_table sl_node_spec_table, sl_node_spec_signing_table;

/**
 * Parse a config: one document `kind: Node`, the first, and any number of models after it, which
 * need no `sink`: the node has its own place for them. ${VAR} is replaced.
 *
 * @text        `bytes` bytes of YAML.
 * @file_name   for messages.
 * @node        out: release it also after a mistake: then it has what was understood.
 * @specs       zeroed; out: the models, to be released; after a mistake none.
 * @complaints  as of sl_spec_parse().
 * @return      the same.
 */
int sl_node_spec_parse(const char *text, size_t bytes, const char *file_name,
                       struct sl_node_spec *node, struct sl_specs *specs, struct sl_buf *complaints,
                       struct sl_err *err);
/** Half-made and zeroed ones are fine. */
void sl_node_spec_release(struct sl_node_spec *node);
/**
 * Parse models for a node, which has its own place for them: `sink` may be left out, and its path
 * does not count.
 *
 * @text        `bytes` bytes of YAML.
 * @file_name   for messages.
 * @variables   replace ${VAR}; text of callers is not to see this process's environment.
 * @specs       zeroed; out: to be released; after a mistake none.
 * @complaints  as of sl_spec_parse().
 * @return      the same.
 */
int sl_spec_parse_placed(const char *text, size_t bytes, const char *file_name, bool variables,
                         struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err);
/** Of a socket whose `mode` may be auto. opened: it is for everybody, since the lists decide.
 * SL_E_USAGE, here and below. */
int sl_node_spec_pool_mode(const struct sl_node_spec *node, unsigned *mode, bool *opened,
                           struct sl_err *err);
int sl_node_spec_control_mode(const struct sl_node_spec_control *control, unsigned *mode,
                              struct sl_err *err);
/** A numeric id below UINT32_MAX; SL_E_USAGE. */
int sl_node_spec_id(const char *text, uint32_t *id, struct sl_err *err);
/** The reference page, appended. SL_E_NO_SPACE. */
int sl_node_spec_write_reference(struct sl_buf *out, struct sl_err *err);

#endif

/*
 * The YAML document `kind: Node`, the config of `sluice serve`: rows as those of a model spec, the
 * same complaints. Model documents may follow it in the same file.
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
    char *mode;   /* octal */
    char *group;  /* numeric id that the socket is given to; NULL: leave */
    struct sl_list uids, gids;
    struct sl_list deposit_uids, deposit_gids;
    struct sl_list shared_uids; /* whose deposits others find, too */
    uint64_t deposit_bytes;     /* of one user; SL_AUTO_VALUE: half of the budget */
    char *directory;
    uint64_t gpu_budget_bytes;
    struct sl_list uri_prefixes;
};
struct sl_node_spec_control {
    char *socket, *mode, *group;
    struct sl_list uids, gids;
    char *token_file;
};
struct sl_node_spec {
    char *api_version, *kind;
    char *listen, *directory;
    uint64_t budget_bytes; /* SL_AUTO_VALUE: from what the machine has */
    uint64_t loads_at_once;
    struct sl_items models; /* struct sl_node_spec_models */
    struct sl_node_spec_control control;
    struct sl_node_spec_socket pool;
};
extern const struct sl_option_table sl_node_spec_table;

/**
 * Parse a config: one document `kind: Node`, the first, and any number of models after it, which
 * need no `sink`: the node has its own place for them. Mistakes as in sl_spec_parse(). Release both
 * results: node with sl_node_spec_release().
 */
int sl_node_spec_parse(const char *text, size_t bytes, const char *file_name,
                       struct sl_node_spec *node, struct sl_specs *specs, struct sl_buf *complaints,
                       struct sl_err *err);
void sl_node_spec_release(struct sl_node_spec *node);
/**
 * Models for a node, which has its own place for them: `sink` may be left out, and its path does
 * not count. variables: replace ${VAR}; text of callers is not to see this process's environment.
 */
int sl_spec_parse_placed(const char *text, size_t bytes, const char *file_name, bool variables,
                         struct sl_specs *specs, struct sl_buf *complaints, struct sl_err *err);
/** The octal digits of a mode, as 660 for 0660; SL_E_USAGE. */
int sl_node_spec_mode(const char *text, unsigned *mode, struct sl_err *err);
/** Of a socket whose `mode` may be auto. opened: it is for everybody, since the lists decide. */
int sl_node_spec_pool_mode(const struct sl_node_spec *node, unsigned *mode, bool *opened,
                           struct sl_err *err);
int sl_node_spec_control_mode(const struct sl_node_spec_control *control, unsigned *mode,
                              struct sl_err *err);
/** A numeric id below UINT32_MAX; SL_E_USAGE. */
int sl_node_spec_id(const char *text, uint32_t *id, struct sl_err *err);
/** The reference page. */
int sl_node_spec_write_reference(struct sl_buf *out, struct sl_err *err);

#endif

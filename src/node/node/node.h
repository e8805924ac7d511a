/*
 * The node: the registry with its holders and rights, made from a config and changed by new ones.
 * What serves it (HTTP, the pool's socket) is above.
 */
#ifndef SL_NODE_H
#define SL_NODE_H

#include "directory_holder.h"
#include "gpu_holder.h"
#include "node_config.h"
#include "node_rights.h"
#include "node_uri.h"
#include "pool_holder.h"
#include "registry.h"

struct sl_node {
    struct sl_registry *registry;
    struct sl_directory_holder *directory;
    struct sl_pool_holder *pool;
    struct sl_gpu_holders *gpus;
    struct sl_node_rights rights;
    unsigned loads_at_once;
    pthread_mutex_t lock;
    struct {
        struct sl_list uri_prefixes;
    } locked;
};
/**
 * Take the directory, look at what lies in it, begin to load what the config names. Blocks only for
 * the look. SL_E_NO_SPACE, SL_E_USAGE. The specs of the config are moved out of it.
 */
struct sl_node *sl_node_open(struct sl_node_config *config, struct sl_err *err);
/** The same, with what the service manager gave: models among it are taken out. */
struct sl_node *sl_node_open_with(struct sl_node_config *config, struct sl_systemd_sockets *given,
                                  struct sl_err *err);
/** Loads end and can be resumed; every reference must have been released. */
void sl_node_free(struct sl_node *node);
SL_AUTO_DEFINE(sl_node)
/**
 * Models, pins, budget and rights of a new config; its specs are moved out. References stay. What
 * was wrong with one model is logged, and the others are taken.
 */
void sl_node_reload(struct sl_node *node, struct sl_node_config *config);
/**
 * What a caller brought: a text of one or several models, which are loaded from now on and known
 * again after a restart. names: of each, "" at the end. SL_E_USAGE tells the first mistake; nothing
 * was done then. Code "exists": the config has the name.
 */
enum { SL_NODE_REQUEST_MODELS_MAX = 16 };
int sl_node_request(struct sl_node *node, const char *text, size_t bytes,
                    char names[SL_NODE_REQUEST_MODELS_MAX][64], size_t *count, struct sl_err *err);
/**
 * A client asks for a URI on a device ("host", "cuda:0"): is it allowed, and what is it called? It
 * is known from now on, for as long as something of it is in memory. Any thread. Errors as
 * sl_node_uri_check().
 */
int sl_node_define_uri(struct sl_node *node, const char *uri, const char *device, uint32_t uid,
                       char name[SL_NODE_URI_NAME], struct sl_err *err);
/** As sl_registry_forget(), after a restart, too. */
int sl_node_forget(struct sl_node *node, const char *name, struct sl_err *err);
/** What `auto` means for a directory: 80 % of the smaller of its file system and our cgroups. */
uint64_t sl_node_auto_budget(const char *directory);

#endif

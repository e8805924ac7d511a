/*
 * The node: the registry with its holders and rights, made from a config and changed by new ones.
 * What serves it (HTTP, the pool's socket) is above. Any thread may call what is below, but open,
 * free and sl_node_reload(), which are the main thread's.
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

/** What it points to is the node's, until sl_node_free(). */
struct sl_node {
    struct sl_registry *registry;
    struct sl_directory_holder *directory;
    struct sl_pool_holder *pool;
    struct sl_gpu_holders *gpus;
    struct sl_node_rights rights;
    unsigned loads_at_once;
    char *tmpfs;             /* that it mounts; NULL: none */
    pthread_mutex_t keeping; /* who brings or forgets a spec: what is known is what is kept */
    pthread_mutex_t lock;
    struct {
        struct sl_list uri_prefixes;
        struct sl_items signing;        /* struct sl_node_spec_signing */
        struct sl_spec_through through; /* for models that name no caches */
        bool hides_volumes;
    } locked;
};
struct sl_node_opening {
    /** What the service manager gave, or NULL: models among it are taken out. */
    struct sl_systemd_sockets *given;
    /** Called when it is known what lies in memory, and before any of it could go: references that
     * are taken then keep it. NULL: nobody cares. */
    int (*found)(void *arg, struct sl_node *node, struct sl_err *err);
    void *arg;
};
/**
 * Take the directory, look at what lies in it, begin to load what the config names. Blocks only for
 * the look, and for a GPU's driver where models on GPUs were left. SL_E_NO_SPACE, SL_E_USAGE. The
 * specs of the config are moved out of it.
 */
struct sl_node *sl_node_open(struct sl_node_config *config, const struct sl_node_opening *opening,
                             struct sl_err *err);
/** Loads end and can be resumed; every reference must have been released. Blocks until they have.
 */
void sl_node_free(struct sl_node *node);
SL_AUTO_DEFINE(sl_node)
/**
 * Models, pins, budget and rights of a new config; its specs are moved out. References stay. What
 * was wrong with one model is logged, and the others are taken. What callers brought keeps the
 * caches that it was defined with. Reads files; blocks for no load.
 */
void sl_node_reload(struct sl_node *node, struct sl_node_config *config);
enum { SL_NODE_REQUEST_MODELS_MAX = 16 };
/**
 * Take what a caller brought: one or several models, which are loaded from now on and known again
 * after a restart.
 *
 * @text, bytes  YAML, not trusted; `text` ends with a 0 behind its bytes.
 * @names        out: the names of those that are taken.
 * @count        out: how many they are, also after a failure.
 * @return       0, or -1. SL_E_USAGE tells the first mistake of the text, and nothing was done
 *               then; code "exists": the config has the name. SL_E_NO_SPACE. Where some are taken
 *               and the others not, the message says so.
 *
 * Waits for no load.
 */
int sl_node_request(struct sl_node *node, const char *text, size_t bytes,
                    char names[SL_NODE_REQUEST_MODELS_MAX][64], size_t *count, struct sl_err *err);
/**
 * Find out whether a client may have a URI, and what it is called. It is known from now on, for as
 * long as something of it is in memory.
 *
 * @uri     not trusted.
 * @device  "host", "cuda:0".
 * @user    as whom the client counts (sl_peer_user).
 * @name    out: as sl_node_uri_name() has it.
 * @return  0, or -1 with the errors of sl_node_uri_check() and sl_registry_define().
 *
 * Any thread.
 */
int sl_node_define_uri(struct sl_node *node, const char *uri, const char *device, uint32_t user,
                       char name[SL_NODE_URI_NAME], struct sl_err *err);
/**
 * A URI as files in the node's directory, for somebody who may have it: the caller has seen to
 * that. It is known for as long as something of it is in memory. SL_E_USAGE.
 */
struct sl_node_files_options {
    const char *uri;
    size_t prefix_bytes;    /* of the URI: local files lie below them */
    const char *sharing;    /* options with equal texts share one copy */
    const char *name_space; /* in whose share of loads and names it counts; "" of none */
    bool has_credentials;   /* it is read with those that are kept under its name alone */
};
int sl_node_define_files(struct sl_node *node, const struct sl_node_files_options *options,
                         char name[SL_NODE_URI_NAME], struct sl_err *err);
/** Is what volumes asked for told only to those who may change something (csi.hideVolumes)? */
bool sl_node_hides_volumes(struct sl_node *node);
/** In whose share a user of sl_peer_user() counts; NULL: in none. sharer: where the text lies. */
const char *sl_node_sharer(uint32_t user, char sharer[SL_SHARER_BYTES]);
/** The same of a namespace of volumes. */
const char *sl_node_sharer_of_namespace(const char *name, char sharer[SL_SHARER_BYTES]);
/** As sl_registry_forget(), after a restart, too: its kept spec is removed, SL_E_NO_SPACE. */
int sl_node_forget(struct sl_node *node, const char *name, struct sl_err *err);
/** The machine's, or what control groups leave of it to this process. */
uint64_t sl_node_memory(void);

#endif

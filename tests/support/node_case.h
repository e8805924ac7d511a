/* A node with a pool in a scratch directory on a tmpfs, that ends and comes back, and a service
 * manager that keeps descriptors for it. Whatever fails here aborts the test. */
#ifndef SL_NODE_CASE_H
#define SL_NODE_CASE_H

#include "node.h"
#include "node_pool.h"
#include "scratch.h"
#include "sluice.h"

enum { NODE_CASE_STORED_MAX = 64, NODE_CASE_BLOBS = 4 };

struct node_case {
    char path[SL_SCRATCH_PATH_BYTES], socket[SL_SCRATCH_PATH_BYTES + 16];
    int scratch;
    struct sl_node *node;
    struct sl_node_pool *pool;
    struct sluice_error error; /* of the last attach or deposit */
    uint8_t *blobs[NODE_CASE_BLOBS];
    size_t blob_count;
};
void node_case_init(struct node_case *c);
void node_case_release(struct node_case *c);
/** Whatever was at "memory://m/NAME" is replaced by a model of tensors a and b. */
void node_case_put(struct node_case *c, const char *name, unsigned items);
/** Open a node: keys of `pool:` beside its socket, with a comma in front, and models, which may be
 * made with NODE_CASE_MODEL. given: of a service manager, or NULL. */
void node_case_open(struct node_case *c, const char *keys, const char *models,
                    struct sl_systemd_sockets *given);
/** As open, but it may fail. */
int node_case_try(struct node_case *c, const char *keys, const char *models,
                  struct sl_systemd_sockets *given, struct sl_err *err);
/** Give its pool other keys, as by SIGHUP. */
void node_case_reload(struct node_case *c, const char *keys, const char *models);
/** It ends as by SIGTERM. */
void node_case_end(struct node_case *c);
#define NODE_CASE_MODEL(name, object)                                                              \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                        \
    "}\nsource: {uri: \"memory://m/" object "\"}\nsink: {pool: {}}\n"

struct sl_registry_counts node_case_counts(struct node_case *c);
/** Attach; NULL with c->error. */
struct sluice_model *node_case_load(struct node_case *c, const char *name);
/** Attach without beginning a load; key may be NULL. NULL with c->error. */
struct sluice_model *node_case_attach(struct node_case *c, const char *name, const char *key);
/** … and the inode of its first slab; 0: it cannot be attached to. */
uint64_t node_case_inode(struct node_case *c, const char *name, const char *key);
/** Deposit one tensor t of so many floats that was made from the model. */
void node_case_deposit(struct node_case *c, const char *name, const char *key, uint64_t count);

/* ---- the service manager -------------------------------------------------------------------- */

struct manager {
    char path[SL_SCRATCH_PATH_BYTES + 16];
    int fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct {
        struct {
            char name[64];
            int fd;
        } stored[NODE_CASE_STORED_MAX];
        unsigned count, synced;
    } locked;
};
/** NOTIFY_SOCKET names it from now on. */
void manager_start(struct manager *manager, const struct node_case *c);
void manager_stop(struct manager *manager);
/** Until it has heard what was sent by now, and has so many descriptors. */
void manager_await(struct manager *manager, unsigned count);
/** What the next process gets: copies of all that it has when it has heard what was sent by now. */
void manager_give(struct manager *manager, struct sl_systemd_sockets *given);

#endif

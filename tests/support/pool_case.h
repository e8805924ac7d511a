/* A pool for the tests: a server on a socket in a scratch directory, and an owner of a few models
 * that counts what it is told. Whatever fails here aborts the test. */
#ifndef SL_POOL_CASE_H
#define SL_POOL_CASE_H

#include "fill.h"
#include "node_socket.h"
#include "pool_parts.h"
#include "pool_server.h"
#include "pool_server_parts.h"
#include "sluice.h"

enum { POOL_CASE_MODELS = 8 };

/** A cookie: what the owner has given with a grant, and gets back. */
struct pool_case_lease {
    struct pool_case_lease *next;
    struct sl_pool_model *model;
};

struct pool_case {
    struct sl_pool_server *server;
    struct sl_pool_server_config config; /* set before pool_case_start() */
    uint32_t kept_uid; /* who has deposited models of so many descriptors: set before, too */
    size_t kept_fds;
    char socket[300];
    struct sl_node_socket listening; /* there; its fd is the server's */
    pthread_mutex_t lock;
    struct {
        struct sl_pool_model *models[POOL_CASE_MODELS];
        struct pool_case_lease *leases;   /* that were given, and are not back */
        bool hold;                        /* keep requests instead of answering */
        struct sl_pool_request *held[64]; /* in the order in which they came */
        unsigned held_count;
        unsigned granted, released, withdrawn, begun, committed, aborted, evicted;
        bool refuse_deposits;
        bool hold_laters; /* keep what is left to another thread, for pool_case_run_laters() */
        struct sl_deferred_call *deferred;
    } locked;
};

void pool_case_init(struct pool_case *pool);
void pool_case_start(struct pool_case *pool);
/** The server alone. */
void pool_case_stop(struct pool_case *pool);
void pool_case_release(struct pool_case *pool);
/** A model of F32 vectors, as sl_model_safetensors() makes them: nothing of it is ready. It belongs
 * to the pool. Its bytes are data + the header; the caller fills it with pool_case_fill(). */
struct sl_pool_model *pool_case_add(struct pool_case *pool, const char *name, const char *tensors,
                                    unsigned items, uint64_t slab_bytes);
/** The first of the pool's models from now on; the one before goes with its last lease. */
void pool_case_publish(struct pool_case *pool, struct sl_pool_model *model);
/** Answer a request that was held; as sl_pool_request_grant(). */
bool pool_case_grant(struct pool_case *pool, struct sl_pool_request *request,
                     struct sl_pool_model *model);
/** Write tensor `number` (of `items` floats, all of this value) and tell it. */
void pool_case_fill(struct sl_pool_model *model, size_t number, float value);
/** All of it: tensor i holds i + 1. */
void pool_case_fill_all(struct sl_pool_model *model);
/** How many there were. */
unsigned pool_case_run_laters(struct pool_case *pool);
/** Wait until a counter has this value; a minute at most. */
void pool_case_await(struct pool_case *pool, const unsigned *counter, unsigned value);
/** What the server counts now. */
void pool_case_counts(struct pool_case *pool, struct sl_pool_counts *counts);
/** Wait until the server has so many clients and leases. */
void pool_case_settle(struct pool_case *pool, uint64_t clients, uint64_t leases);
unsigned pool_case_count_fds(void);
/** Attach to a model of this pool; the options may be NULL. */
struct sluice_model *pool_case_attach(struct pool_case *pool, const char *name);
int pool_case_try(struct pool_case *pool, const char *name, struct sluice_model **model,
                  struct sluice_error *error);

/** One of its counts, under its lock. */
unsigned pool_case_count(struct pool_case *pool, const unsigned *count);

#endif

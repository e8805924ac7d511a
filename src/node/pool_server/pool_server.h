/*
 * The socket that hands out models: SOCK_SEQPACKET, one request and one answer at a time on each
 * connection, descriptors beside the answers (docs/pool-protocol.md). One thread serves everybody
 * and never waits for one of them. Leases live here, each with a cookie of the owner's; which
 * models there are, and how one comes to be, the owner decides through the handler.
 */
#ifndef SL_POOL_SERVER_H
#define SL_POOL_SERVER_H

#include "deferred_call.h"
#include "pool_model.h"
#include "thread.h"

enum {
    SL_POOL_CLIENTS_MAX = 1024,
    SL_POOL_LEASES_MAX = 64,  /* of one connection */
    SL_POOL_RIGHTS_MAX = 256, /* ids in a list */
    SL_POOL_CLIENT_NAME_BYTES = 64,
};

/** A client; what the kernel says of it, and the name it gives itself. */
struct sl_pool_peer {
    int32_t pid; /* 0: of a PID namespace that is not seen from here */
    uint32_t uid, gid;
    uint32_t user;                        /* as whom it counts (sl_peer_user) */
    char name[SL_POOL_CLIENT_NAME_BYTES]; /* by sl_sanitize(); "" if it has no login */
};

/** Who may: any of these users, or whoever is in any of these groups. all: everybody whom the
 * socket's mode lets in. Who is privileged (sl_peer_is_privileged) always may. */
struct sl_pool_right {
    bool all;
    uint32_t uids[SL_POOL_RIGHTS_MAX], gids[SL_POOL_RIGHTS_MAX + 1]; /* one: the socket's own */
    unsigned uid_count, gid_count;
};

struct sl_pool_server_config {
    int listen_fd; /* listens, SOCK_SEQPACKET; the server's from then on, whatever comes of it */
    unsigned clients_max; /* 0: SL_POOL_CLIENTS_MAX, or less if few files may be open */
    unsigned take_ms;     /* for taking an answer; 0: 30 s */
    struct sl_pool_right attach, deposit, evict;
};

/* ---- requests that take time ----------------------------------------------------------------- */

/** An attach that waits for its answer. Every request is to be answered once. */
struct sl_pool_request;
/** What is wanted; borrowed until the answer. */
struct sl_pool_attach_args {
    struct sl_pool_peer peer;
    const char *model;  /* name or URI, as the client wrote it: hostile text, UTF-8, no controls */
    const char *key;    /* of a derived model; "" for a loaded one */
    const char *device; /* "host", "cuda:0" */
    bool present_only;  /* do not begin a load */
};
/** Borrowed until the answer. Any thread. */
const struct sl_pool_attach_args *sl_pool_request_args(const struct sl_pool_request *request);
/**
 * Answer with a copy of a model (loading ones are fine), or with an error. Any thread; never
 * blocks; the request is gone then. grant: true if there is a lease now; released() gives the
 * cookie back when it ends, once, perhaps before grant has returned, and the owner keeps the model
 * until then. False: there is none, since the client has left meanwhile, or was refused a model
 * that cannot be sealed, and the cookie stays the caller's.
 */
bool sl_pool_request_grant(struct sl_pool_request *request, struct sl_pool_copy *copy,
                           void *cookie);
/** The same with an error, which is copied. */
void sl_pool_request_refuse(struct sl_pool_request *request, const struct sl_err *why);
/** The same for a deposit: it may go on. */
void sl_pool_request_accept(struct sl_pool_request *request);

/* ---- deposits -------------------------------------------------------------------------------- */

/** What a client wants to publish; borrowed for the call. */
struct sl_pool_offer {
    struct sl_pool_peer peer;
    const char *model, *key, *device;
    uint8_t identity[32];            /* of the model that it was made from */
    uint64_t bytes;                  /* at most, of all slabs */
    uint64_t id;                     /* the same in begin and in commit or abort */
    struct sl_pool_request *request; /* of deposit_begin(): to be answered where it returns 1 */
};

/* ---- lists ----------------------------------------------------------------------------------- */

/** One copy of a model for `list` and `stat`. Strings are borrowed for the call. */
struct sl_pool_entry {
    const char *name, *key, *device;
    struct sl_pool_copy *copy; /* NULL: known, not in memory (yet) */
    uint32_t owner;            /* of a derived model */
    bool pinned;
    int64_t used_seconds;  /* wall clock of the last lease's end or begin; 0: never */
    uint64_t left_bytes;   /* copy NULL: it was evicted, and clients still keep so much … */
    const char *left_text; /* … which this tells; NULL: none */
};
struct sl_pool_listing;
/** From within list() only. -1: the answer is full, stop. */
int sl_pool_listing_add(struct sl_pool_listing *listing, const struct sl_pool_entry *entry);

/**
 * The owner's side. Every callback comes from the server's thread, one at a time, and must not
 * block for long (no network, no load); a NULL one means that this is not offered.
 */
struct sl_pool_handler {
    /** Find the model or begin to load it; sl_pool_request_grant() or _refuse(), now or later. */
    void (*attach)(void *arg, struct sl_pool_request *request);
    /** The client of a request that is not answered yet has gone, or its time is up. The request
     * still wants its answer, which nobody gets. */
    void (*withdrawn)(void *arg, struct sl_pool_request *request);
    /** A lease ended: the cookie of its grant. The server has let go of the model. */
    void (*released)(void *arg, void *cookie);
    /** sl_pool_listing_add() for every model. */
    void (*list)(void *arg, struct sl_pool_listing *listing);
    /** Take an unreferenced model out of memory; *bytes: what it held. */
    int (*evict)(void *arg, const char *model, const char *key, uint64_t *bytes,
                 struct sl_err *err);
    /**
     * May this be deposited: is there room, is the key new, is the source the one that we have?
     * Keep room until commit or abort. -1: code "exists" if there is one with this key already
     * (attach to it), "busy" if somebody else is depositing it, "stale" if the source has changed.
     * 1: room is still being made; offer->request wants its answer, in any case, and deposit_abort
     * may come before.
     */
    int (*deposit_begin)(void *arg, const struct sl_pool_offer *offer, struct sl_err *err);
    /** On which GPU its slabs are; NULL: on the host, or there is no such GPU. May be left out. */
    struct sl_gpu *(*deposit_gpu)(void *arg, const struct sl_pool_offer *offer);
    /** It is there: the model is the callee's. -1 refuses it, and the model stays the server's;
     * then no abort follows. */
    int (*deposit_commit)(void *arg, const struct sl_pool_offer *offer, struct sl_pool_model *model,
                          struct sl_err *err);
    void (*deposit_abort)(void *arg, const struct sl_pool_offer *offer);
    /** Descriptors that models have which this user deposited, as a process of this uid. May be
     * left out. */
    size_t (*deposited_fds)(void *arg, uint32_t user, uint32_t uid);
    /** Have call->run(call) called soon by another thread: it gives back memory of clients, which
     * takes the kernel a while. NULL: the server's thread does it itself. */
    void (*defer)(void *arg, struct sl_deferred_call *call);
    /** The same by a thread that does nothing else for others than this GPU: it asks its driver,
     * which may never answer. NULL: the server's thread asks. */
    void (*ask_driver)(void *arg, const struct sl_gpu *gpu, struct sl_deferred_call *call);
};

/* ---- the server ------------------------------------------------------------------------------ */

struct sl_pool_server;
/** handler is copied, arg borrowed until sl_pool_server_free(). SL_E_NO_SPACE, SL_E_USAGE. The
 * thread runs from now on. */
struct sl_pool_server *sl_pool_server_start(const struct sl_pool_server_config *config,
                                            const struct sl_pool_handler *handler, void *arg,
                                            struct sl_err *err);
/**
 * Close every connection (each lease ends, with its callback) and the listening socket, whose file
 * is its maker's to remove; end the thread, for which it blocks. Requests that are still unanswered
 * stay valid and must still be answered, by their owner. Clients keep what they have mapped.
 */
void sl_pool_server_free(struct sl_pool_server *server);
SL_AUTO_DEFINE(sl_pool_server)
/** New rights, of the config's three lists alone, for requests from now on (a config was read
 * again); leases stay. Any thread. */
void sl_pool_server_set_rights(struct sl_pool_server *server,
                               const struct sl_pool_server_config *config);

#endif

/* Inside the pool's server. All of it runs on the server's thread, but for what says otherwise. */
#ifndef SL_POOL_SERVER_PARTS_H
#define SL_POOL_SERVER_PARTS_H

#include "pool_packet.h"
#include "pool_parts.h"
#include "pool_server.h"

/* ---- requests and their mailbox -------------------------------------------------------------- */

/** Where answers arrive, from any thread; outlives the server while requests are unanswered. */
struct sl_pool_mailbox {
    pthread_mutex_t lock;
    int wake_fd; /* an eventfd */
    struct {
        unsigned count; /* who holds it: the server and every request */
        struct sl_pool_request *answered;
    } locked;
};
struct sl_pool_mailbox *sl_pool_mailbox_new(struct sl_err *err);
void sl_pool_mailbox_free(struct sl_pool_mailbox *mailbox);

struct sl_pool_connection;
struct sl_pool_request {
    struct sl_pool_mailbox *mailbox;
    struct sl_pool_wish wish; /* its texts follow the struct */
    uint64_t since_ns;
    struct sl_pool_connection *connection;
    /* Guarded by the mailbox: */
    struct sl_pool_request *next; /* answered */
    bool answered, gone;          /* gone: nobody waits for it */
    struct sl_pool_model *model;  /* the answer, or */
    struct sl_err err;            /* why there is none */
};
struct sl_pool_request *sl_pool_request_new(struct sl_pool_mailbox *mailbox,
                                            const struct sl_pool_packet *packet,
                                            const struct sl_pool_peer *peer, struct sl_err *err);
/** Free the memory of one that was answered. */
void sl_pool_request_end(struct sl_pool_request *request);
/** The next that was answered, or NULL. */
struct sl_pool_request *sl_pool_mailbox_take(struct sl_pool_mailbox *mailbox);
/** Nobody waits for it any more: true if it was answered meanwhile, and then it is the caller's. */
bool sl_pool_request_leave(struct sl_pool_request *request);

/* ---- connections ----------------------------------------------------------------------------- */

struct sl_pool_own_lease {
    uint64_t id, since_ns;
    struct sl_pool_model *model; /* one count */
};
struct sl_pool_deposit {
    struct sl_later later; /* first: its end */
    struct sl_pool_packet begun;
    struct sl_pool_offer offer; /* borrows from begun */
    bool waiting;               /* for room */
    int fds[SL_WIRE_SLABS_MAX];
    size_t fd_count;
    /* While it is being committed: the same once more, and its index, so that nothing of it goes
     * here if it is refused. */
    int kept[SL_WIRE_SLABS_MAX + 1];
    size_t kept_count;
};
struct sl_pool_connection {
    struct sl_pool_server *server;
    struct sl_pool_connection *next, *previous;
    int fd;
    bool greeted, closing; /* closing: once what is to be sent has been sent */
    bool retry;            /* too many descriptors are on their way: try again at the tick */
    bool dead;             /* closed, to be freed at the end of the turn */
    struct sl_pool_peer peer;
    uint32_t *groups; /* of the peer, beside its first */
    size_t group_count;
    uint64_t deadline_ns; /* for its hello, for taking an answer; 0: none */
    struct sl_pool_request *request;
    uint32_t serial; /* of the request that is being answered */
    struct {
        uint8_t *data; /* a packet that waits to be sent; NULL: none */
        size_t bytes;
        int fds[SL_WIRE_FDS_MAX]; /* borrowed */
        size_t fd_count;
    } out;
    struct sl_pool_model *sending; /* its slabs from next_slab on are still to be sent; borrowed */
    uint64_t sending_lease;
    size_t next_slab;
    struct sl_pool_own_lease leases[SL_POOL_LEASES_MAX]; /* guarded by the server's lock */
    size_t lease_count;
    struct sl_pool_deposit *deposit;
};

/** Take over a connection that was accepted; it closes fd on failure. */
int sl_pool_connection_open(struct sl_pool_server *server, int fd, struct sl_err *err);
/** Something has happened on it. */
void sl_pool_connection_turn(struct sl_pool_connection *connection, uint32_t events);
/** End it: leases, request and deposit with it. It is freed by the server after the turn. */
void sl_pool_connection_close(struct sl_pool_connection *connection);
/** Its request was answered. */
void sl_pool_connection_answer(struct sl_pool_connection *connection,
                               struct sl_pool_request *request);

/** Send a packet with these descriptors (borrowed until it is sent). head.bytes, type and serial
 * are filled in. */
void sl_pool_send(struct sl_pool_connection *connection, uint16_t type, void *packet, size_t bytes,
                  const int *fds, size_t fd_count);
void sl_pool_send_error(struct sl_pool_connection *connection, const struct sl_err *err);
/** The answers to detach and the like. */
void sl_pool_send_id(struct sl_pool_connection *connection, uint16_t type, uint64_t id);

/* ---- requests, by type ----------------------------------------------------------------------- */

/** Carry out a request; whoever fails leaves the answer to the caller. */
int sl_pool_serve(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                  int *fds, struct sl_err *err);
int sl_pool_serve_detach(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                         struct sl_err *err);
int sl_pool_serve_list(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                       struct sl_err *err);
int sl_pool_serve_stat(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                       struct sl_err *err);
int sl_pool_serve_deposit(struct sl_pool_connection *connection,
                          const struct sl_pool_packet *packet, struct sl_err *err);
/** Descriptors that are taken over become -1. */
int sl_pool_serve_deposit_slabs(struct sl_pool_connection *connection,
                                const struct sl_pool_packet *packet, int *fds, struct sl_err *err);
int sl_pool_serve_commit(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                         int *fds, struct sl_err *err);
int sl_pool_serve_abort(struct sl_pool_connection *connection, const struct sl_pool_packet *packet,
                        struct sl_err *err);
/** Whether there is room for it in the end. */
void sl_pool_deposit_answer(struct sl_pool_connection *connection,
                            const struct sl_pool_request *request);
/** A deposit that was begun and will not be committed. */
void sl_pool_deposit_drop(struct sl_pool_connection *connection, bool tell);

/* ---- what takes a while ---------------------------------------------------------------------- */

/** By the handler, or at once. */
void sl_pool_later(struct sl_pool_server *server, struct sl_later *later);
/** Close those that are not -1, which they are then. */
void sl_pool_close_later(struct sl_pool_server *server, int *fds, size_t count);
/** Close a client's socket, in which there may still be descriptors. */
void sl_pool_close_socket(struct sl_pool_server *server, int fd);

/* ---- rights ---------------------------------------------------------------------------------- */

/** Who is at the other end. */
int sl_pool_peer_find(struct sl_pool_connection *connection, struct sl_err *err);
/** SL_WIRE_MAY_… of this client. */
uint32_t sl_pool_rights(const struct sl_pool_connection *connection);

/* ---- the server ------------------------------------------------------------------------------ */

struct sl_pool_server {
    struct sl_pool_handler handler;
    void *arg;
    char *path; /* NULL: the socket is not ours to take away */
    unsigned clients_max;
    int listen_fd, epoll_fd;
    uint64_t socket_inode;
    bool accepting;
    pthread_t thread;
    bool started;
    struct sl_pool_mailbox *mailbox;
    struct sl_pool_connection *dead; /* to be freed at the end of the turn */
    uint64_t next_id;
    pthread_mutex_t lock;
    struct {
        bool stop;
        struct sl_pool_right attach, deposit, evict;
        struct sl_pool_connection *first;
        struct sl_pool_counts counts;
        struct sl_pool_counts told; /* what the metrics show */
    } locked;
};
/** pool_counts.c: after every turn. */
void sl_pool_server_tell(struct sl_pool_server *server);
/** What is waited for on a connection's descriptor. */
void sl_pool_server_watch(struct sl_pool_connection *connection, uint32_t events);

#endif

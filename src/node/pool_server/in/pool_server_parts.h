/* Inside the pool's server. All of it runs on the server's thread, but for what says otherwise. */
#ifndef SL_POOL_SERVER_PARTS_H
#define SL_POOL_SERVER_PARTS_H

#include "peer.h"
#include "pool_packet.h"
#include "pool_server.h"

/* ---- requests and their mailbox -------------------------------------------------------------- */

/** Where answers arrive, from any thread; outlives the server while requests are unanswered. */
struct sl_pool_mailbox {
    pthread_mutex_t lock;
    int wake_fd; /* an eventfd */
    struct {
        unsigned count; /* holders: the server, every request, everything still to close */
        struct sl_pool_request *answered;
        size_t closing_fds; /* left to another thread, and not closed yet */
    } locked;
};
struct sl_pool_mailbox *sl_pool_mailbox_new(struct sl_err *err);
void sl_pool_mailbox_free(struct sl_pool_mailbox *mailbox);
/** So many descriptors are to be closed by another thread; false: too many are already, and this
 * one has to. */
bool sl_pool_mailbox_defer(struct sl_pool_mailbox *mailbox, size_t fds, size_t most);
/** They are closed; any thread, the server may have gone. */
void sl_pool_mailbox_closed(struct sl_pool_mailbox *mailbox, size_t fds);

struct sl_pool_connection;
struct sl_pool_adopting;
struct sl_pool_request {
    struct sl_pool_mailbox *mailbox;
    struct sl_pool_attach_args args; /* its texts follow the struct */
    uint64_t since_ns;
    struct sl_pool_connection *connection;
    /* Guarded by the mailbox: */
    struct sl_pool_request *next; /* answered */
    bool answered, gone;          /* gone: nobody waits for it */
    struct sl_pool_copy *copy;    /* the answer, with the owner's cookie for the lease, or */
    void *cookie;
    struct sl_err err;                 /* why there is none */
    struct sl_pool_adopting *adopting; /* of a commit, whose answer it is; else NULL */
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

/* What a client has been given, until it detaches or ends. */
struct sl_pool_lease {
    uint64_t id, since_ns;
    struct sl_pool_copy *copy; /* there until … */
    void *cookie;              /* … the owner gets this back */
};
struct sl_pool_deposit {
    struct sl_deferred_call call; /* first: its end */
    struct sl_pool_packet begun;
    struct sl_pool_offer offer;      /* borrows from begun */
    bool waiting;                    /* for room */
    struct sl_pool_mailbox *mailbox; /* that counts what is to be closed; NULL: closed here */
    uint64_t slab_bytes;             /* of the slabs so far */
    size_t charged;                  /* descriptors that its user's share has given */
    int fds[SL_WIRE_SLABS_MAX];
    size_t fd_count;
    /* While it is being committed: the same once more, and its index, so that nothing of it goes
     * here if it is refused. */
    int kept[SL_WIRE_SLABS_MAX + 1];
    size_t kept_count;
};
/* What all connections of one user have together. */
struct sl_pool_user {
    struct sl_pool_user *next;
    uint32_t user; /* as sl_pool_peer.user */
    uint32_t uid;  /* for people */
    bool privileged;
    unsigned connections; /* those that only wait to be refused included */
    unsigned places;      /* those that count */
    size_t sent_fds;      /* in answers that were not taken yet */
    size_t given_fds;     /* of deposits that are open */
};
/*
 * A connection:
 *
 *     GREETING ----> SERVED ----> LEFT ----> DEAD ----> freed
 *         |            |                      ^
 *         +------------+---> CLOSING ---------+         DEAD at any time
 *
 *     GREETING  sl_pool_connection_open(): its hello is awaited
 *     SERVED    serve_hello()
 *     CLOSING   refuse(), serve(): it broke the protocol, or is beyond its user's share; it ends as
 *               soon as it was told so
 *     LEFT      leave(): it does not take its answer. Nothing is its any more, but the answer holds
 *               descriptors
 *     DEAD      sl_pool_connection_close()
 *     freed     bury(), at the end of the turn
 */
enum sl_pool_stage {
    SL_POOL_GREETING,
    SL_POOL_SERVED,
    SL_POOL_CLOSING,
    SL_POOL_LEFT,
    SL_POOL_DEAD,
};
struct sl_pool_connection {
    struct sl_pool_server *server;
    struct sl_pool_connection *next, *previous;
    struct sl_pool_user *user;
    int fd;
    enum sl_pool_stage stage;
    bool over;        /* beyond its user's share: its first request is refused */
    bool retry;       /* too many descriptors are on their way: try again at the tick */
    bool untaken;     /* the last answer is still in the socket */
    bool held;        /* so the next request, which is there, is not read */
    size_t sent_fds;  /* of the answers that are in the socket */
    uint64_t idle_ns; /* since when it asks for nothing */
    struct sl_pool_peer peer;
    struct sl_peer who;   /* with its groups */
    uint64_t deadline_ns; /* for its hello, for taking an answer; 0: none */
    struct sl_pool_request *request;
    uint32_t serial; /* of the request that is being answered */
    struct {
        uint8_t *data; /* a packet that waits to be sent; NULL: none */
        size_t bytes;
        int fds[SL_WIRE_FDS_MAX]; /* borrowed */
        size_t fd_count;
    } out;
    struct sl_pool_copy *sending; /* its slabs from next_slab on are still to be sent; borrowed */
    uint64_t sending_lease;       /* that the packet with descriptors is for */
    size_t next_slab;
    struct sl_pool_lease leases[SL_POOL_LEASES_MAX]; /* guarded by the server's lock */
    size_t lease_count;
    struct sl_pool_deposit *deposit;
};

/** Take over a connection that was accepted; it closes fd on failure, and tells of which user. */
int sl_pool_connection_open(struct sl_pool_server *server, int fd, uint32_t *who,
                            struct sl_err *err);
/** A while has passed. True: it is to be called again. */
bool sl_pool_connection_tick(struct sl_pool_connection *connection, uint64_t now);
/** Something has happened on it. */
void sl_pool_connection_turn(struct sl_pool_connection *connection, uint32_t events);
/** The only way to change its stage. */
void sl_pool_connection_enter(struct sl_pool_connection *connection, enum sl_pool_stage to);
/** End it: leases, request and deposit with it. It is freed by the server after the turn. */
void sl_pool_connection_close(struct sl_pool_connection *connection);
bool sl_pool_is_dead(const struct sl_pool_connection *connection);
/** Wait for what it can do next: take an answer, or ask. */
void sl_pool_watch(struct sl_pool_connection *connection);
/** Everything that it has goes: answer, request, deposit, leases. */
void sl_pool_drop_all(struct sl_pool_connection *connection);
/** number: of its leases. */
void sl_pool_end_lease(struct sl_pool_connection *connection, size_t number);
/** As much of its answer as its socket takes. */
void sl_pool_flush(struct sl_pool_connection *connection);
/** Its request was answered. */
void sl_pool_connection_answer(struct sl_pool_connection *connection,
                               struct sl_pool_request *request);

/**
 * Send a packet, now or when the socket takes it. No other may wait to be sent.
 *
 * @type           with SL_WIRE_ANSWER in it, or SL_WIRE_ERROR.
 * @packet, bytes  begins with a struct sl_wire_head, which is filled in here; copied.
 * @fds, fd_count  at most SL_WIRE_FDS_MAX; borrowed until they are sent. NULL: none.
 *
 * Without memory for it the connection is closed.
 */
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
/** Whether there is room for it in the end, or the model that was made of it. */
void sl_pool_deposit_answer(struct sl_pool_connection *connection,
                            const struct sl_pool_request *request);
/** A deposit that was begun and will not be committed. */
void sl_pool_deposit_drop(struct sl_pool_connection *connection, bool notify);

/** pool_adopting.c: have its slabs, which are memory of this GPU, looked at by another thread; the
 * answer comes as any. The descriptors are taken, but not on failure. */
int sl_pool_adopt_later(struct sl_pool_connection *connection, struct sl_gpu *gpu, int index_fd,
                        struct sl_err *err);
/** The model that it has become, if any, which is the caller's. */
struct sl_pool_model *sl_pool_adopting_take(struct sl_pool_adopting *adopting);
void sl_pool_adopting_free(struct sl_pool_adopting *adopting);
/** The answer of a commit; why: there is none. Any thread. False: nobody waits for it, and the
 * request is gone. */
bool sl_pool_request_adopted(struct sl_pool_request *request, const struct sl_err *why);

/* ---- what takes a while ---------------------------------------------------------------------- */

/** So many descriptors are to be closed. By another thread: the mailbox, which is notified when
 * they are; NULL: here. */
struct sl_pool_mailbox *sl_pool_later(struct sl_pool_server *server, size_t fds);
void sl_pool_defer(struct sl_pool_server *server, struct sl_deferred_call *call, bool to_other);
/** Close every descriptor that is not -1, and set it to -1. Another thread closes them. */
void sl_pool_close_later(struct sl_pool_server *server, int *fds, size_t count);
/** Close a client's socket, in which there may still be descriptors. */
void sl_pool_close_socket(struct sl_pool_server *server, int fd);

/* ---- rights ---------------------------------------------------------------------------------- */

/** Who is at the other end. */
int sl_pool_peer_find(struct sl_pool_connection *connection, struct sl_err *err);
/** SL_WIRE_MAY_… of this client. */
uint32_t sl_pool_rights(const struct sl_pool_connection *connection);

/* ---- shares: pool_places.c, pool_shares.c --------------------------------------------------- */

/** Somebody was refused, or sent away. */
void sl_pool_count_limited(struct sl_pool_server *server);

/** Of the server, and of one user of it who is neither root nor the server's own. */
struct sl_pool_shares {
    unsigned clients, others_clients, user_clients; /* all; all but the privileged; one user */
    size_t fds, others_fds, user_fds;               /* the same, of descriptors of each kind */
};
/** From the config and the limit of open files. */
struct sl_pool_shares sl_pool_shares_find(const struct sl_pool_server_config *config);
/** The connection counts for its user from now on, or, if its share is used up and no idle
 * connection can go for it, is `over`. -1: there is no memory, or too many wait to be refused. */
int sl_pool_share_enter(struct sl_pool_connection *connection, struct sl_err *err);
/** It is freed. */
void sl_pool_share_leave(struct sl_pool_connection *connection);
/** May another be accepted? False: even root has to wait. */
bool sl_pool_share_is_open(struct sl_pool_server *server);
/** Why the first request of one that is `over` is refused. */
int sl_pool_share_refuse(const struct sl_pool_connection *connection, struct sl_err *err);
/** May so many descriptors be sent on it now? */
bool sl_pool_share_may_send(const struct sl_pool_connection *connection, size_t fds);
/** Nobody took what others were sent, for too long. */
void sl_pool_share_explain(const struct sl_pool_connection *connection, struct sl_err *err);
/** May its deposit have so many more? SL_E_NO_SPACE, code "descriptors". */
int sl_pool_share_take(struct sl_pool_connection *connection, size_t fds, struct sl_err *err);
void sl_pool_share_give_back(struct sl_pool_connection *connection, size_t fds);
/** Its answers have been taken, all of them. */
void sl_pool_share_arrived(struct sl_pool_connection *connection);

/* ---- what is said of clients: pool_quiet.c -------------------------------------------------- */

enum sl_pool_said { SL_POOL_SAID_MALFORMED, SL_POOL_SAID_OVER, SL_POOL_SAID_ACCEPT };
enum { SL_POOL_QUIET_SLOTS = 32 };
/** Who could write the log full: a few lines a minute for each user and kind, then a count. */
struct sl_pool_quiet {
    struct {
        bool used;
        uint32_t uid;
        enum sl_pool_said said;
        uint64_t since_ns;
        unsigned lines;
        uint64_t left_out;
    } slots[SL_POOL_QUIET_SLOTS];
};
/**
 * Log a warning about a client, unless there were a few of this kind within a minute.
 *
 * @uid   of whom: each user has a count of its own.
 * @said  the kind.
 * @text  what is said, without a full stop.
 */
void sl_pool_quiet_warn(struct sl_pool_quiet *quiet, uint32_t uid, enum sl_pool_said said,
                        const char *text);
/** Tell what was left out so far. */
void sl_pool_quiet_end(struct sl_pool_quiet *quiet);

/* ---- the server ------------------------------------------------------------------------------ */

struct sl_pool_counts {
    uint64_t clients, leases, deposits;                                       /* now */
    uint64_t connects, attaches, commits, refusals, protocol_errors, limited; /* ever */
    uint64_t oldest_lease_seconds; /* wall clock of its begin; 0: there is none */
};
/*
 * What holds at the end of each turn (check() in pool_server.c):
 *
 * 1. Only what is SERVED or CLOSING has anything: request, deposit, leases, a packet to be sent.
 * 2. What is CLOSING has one packet to be sent, no request, and nothing untaken.
 * 3. Slabs that follow, and another try, are of a packet that waits to be sent.
 * 4. A request is held, and descriptors are sent, only while an answer is untaken.
 * 5. A user's counts are the sums of its connections; over_count is of all that have no place.
 * 6. The counts that are shown are the sums of all connections.
 */
struct sl_pool_server {
    struct sl_pool_handler handler;
    void *arg;
    struct sl_pool_shares shares;
    struct sl_pool_user *users;
    unsigned over_count; /* connections that only wait to be refused */
    uint64_t take_ns;    /* for taking an answer */
    struct sl_pool_quiet quiet;
    int listen_fd, epoll_fd;
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
        struct sl_pool_counts shown; /* what the metrics show */
    } locked;
};
/** pool_counts.c: after every turn. */
void sl_pool_server_update_metrics(struct sl_pool_server *server);

#endif

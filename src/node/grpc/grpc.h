/*
 * A server of unary gRPC calls on a unix socket: HTTP/2 without TLS, as clients speak it that know
 * beforehand. It knows no service: methods are rows, messages are bytes. One thread reads and
 * writes the sockets, workers run the methods.
 *
 * The protocol: grpc/grpc on GitHub, doc/PROTOCOL-HTTP2.md; the codes: doc/statuscodes.md there.
 */
#ifndef SL_GRPC_H
#define SL_GRPC_H

#include "buf.h"
#include "thread.h"

/** The codes of gRPC; their numbers are the protocol's. */
enum sl_grpc_code {
    SL_GRPC_OK = 0,
    SL_GRPC_CANCELLED = 1,
    SL_GRPC_UNKNOWN = 2,
    SL_GRPC_INVALID_ARGUMENT = 3,
    SL_GRPC_DEADLINE_EXCEEDED = 4,
    SL_GRPC_NOT_FOUND = 5,
    SL_GRPC_ALREADY_EXISTS = 6,
    SL_GRPC_PERMISSION_DENIED = 7,
    SL_GRPC_RESOURCE_EXHAUSTED = 8,
    SL_GRPC_FAILED_PRECONDITION = 9,
    SL_GRPC_ABORTED = 10,
    SL_GRPC_OUT_OF_RANGE = 11,
    SL_GRPC_UNIMPLEMENTED = 12,
    SL_GRPC_INTERNAL = 13,
    SL_GRPC_UNAVAILABLE = 14,
    SL_GRPC_DATA_LOSS = 15,
    SL_GRPC_UNAUTHENTICATED = 16,
    SL_GRPC_CODE_COUNT
};

enum {
    SL_GRPC_REQUEST_BYTES = 4 * 1024 * 1024, /* of one message; gRPC's own default */
    SL_GRPC_RESPONSE_BYTES = 1024 * 1024,
    SL_GRPC_TEXT_BYTES = 900, /* of a message with an error, before it is escaped */
    SL_GRPC_CONNECTIONS_MAX = 128,
    SL_GRPC_STREAMS_MAX = 100,             /* of one connection at a time */
    SL_GRPC_HELD_BYTES = 64 * 1024 * 1024, /* requests of all connections together */
    SL_GRPC_QUEUE_MAX = 1024,              /* calls that wait for a worker */
    SL_GRPC_METHODS_MAX = 32,
};

/** One call, in the hands of its method until that returns. */
struct sl_grpc_call {
    const uint8_t *request; /* the message; borrowed */
    size_t request_bytes;
    uint64_t deadline_ns; /* the caller's, by sl_now_ns(); UINT64_MAX: it has none */
    /** Of the call. Raised when the caller has left, its time is over, or the server ends: the
     * answer is for nobody then. NULL in fast methods. */
    struct sl_cancel *cancel;
    struct sl_buf response;        /* out, if the code is OK; the server releases it */
    char text[SL_GRPC_TEXT_BYTES]; /* out, if it is another: UTF-8, one line */
};

/** A row of what a server does. */
struct sl_grpc_method {
    const char *path; /* "/package.Service/Method" */
    /** A call that neither blocks nor takes time is answered by the socket thread, so it never
     * waits behind others. */
    bool fast;
    /** Calls of this method at a time, fewer than workers so that other methods have some left;
     * 0: no limit but the workers. More of them wait. */
    unsigned at_once;
    /** By any worker, several at once; fast ones by the sockets' thread. `call` is lent to it. */
    enum sl_grpc_code (*answer)(void *arg, const struct sl_grpc_method *method,
                                struct sl_grpc_call *call);
    /** Not looked at here. */
    const void *more;
};

struct sl_grpc_config {
    const char *socket;                   /* a path of at most 107 bytes; copied */
    const struct sl_grpc_method *methods; /* borrowed until sl_grpc_close() */
    size_t method_count;
    void *arg;
    unsigned
        workers; /* threads for what is not fast, made when they are needed; 0: 32, at most 128 */
    const char *name; /* of its threads, at most 10 bytes; copied */
};

struct sl_grpc;
/**
 * Listen, and answer from now on. The socket is for this process's user and for root alone: others
 * that come in by another way are turned away. When its file vanishes it is made again.
 *
 * SL_E_USAGE: the path is too long; SL_E_NET: somebody serves it, or something else is there;
 * SL_E_NO_SPACE: its folder cannot be written, or no memory.
 */
struct sl_grpc *sl_grpc_open(const struct sl_grpc_config *config, struct sl_err *err);

/**
 * No new calls from now on, the socket's file goes. Calls under way get drain_ms to end; then their
 * cancel is raised, their callers are answered UNAVAILABLE, and their methods are waited for.
 * Blocks. NULL is allowed.
 */
void sl_grpc_close(struct sl_grpc *grpc, unsigned drain_ms);

/** "ABORTED"; a text for what is none, too. A constant; any thread. */
const char *sl_grpc_code_name(enum sl_grpc_code code);

#endif

/*
 * A client's connection: packets and descriptors, with deadlines and cancellation. A connection is
 * for one thread at a time, but for sl_pool_link_lost(), which any may ask while it is open. What
 * waits does so until the connection's limit: SLUICE_TIMEOUT, SLUICE_CANCELED. Besides,
 * SLUICE_NETWORK is a daemon that is not there or has gone, and SLUICE_INTERNAL one that answers
 * something else than was asked; after either the connection is of no use.
 */
#ifndef SL_POOL_LINK_H
#define SL_POOL_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "pool_wire.h"
#include "sluice.h"

/**
 * Fill an error.
 *
 * @error   out: no code; NULL: nobody asks.
 * @kind    SLUICE_….
 * @format  of the message, as of printf().
 * @return  -1.
 *
 * Any thread, like the next one.
 */
int sl_api_fail(struct sluice_error *error, int kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** As sl_api_fail(), with errno's text at the end. */
int sl_api_fail_errno(struct sluice_error *error, int kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** SLUICE_USAGE: a caller's struct says of itself that it is nothing; flags has one that is not
 * known. */
int sl_api_check_size(size_t size, struct sluice_error *error);
int sl_api_check_flags(uint32_t flags, uint32_t known, struct sluice_error *error);

/** When to give up. */
struct sl_limit {
    uint64_t deadline_ns; /* monotonic; 0: never */
    int cancel_fd;        /* -1: none */
    bool awaits_socket;   /* where nobody listens yet somebody may until then */
};
/** timeout_ms from now on, negative: never; cancel_fd stays the caller's and open, -1: none. */
struct sl_limit sl_limit_make(int timeout_ms, int cancel_fd);
/** Milliseconds until then, at most `most`; -1 with SLUICE_TIMEOUT or SLUICE_CANCELED. Never
 * blocks. */
int sl_limit_left(const struct sl_limit *limit, int most, struct sluice_error *error);

struct sl_pool_link {
    int fd;
    pid_t process; /* that opened it: what forked ones would send is refused */
    uint32_t serial;
    struct sl_limit limit; /* of all that is sent and received, from its opening on */
    uint32_t rights;       /* SL_WIRE_MAY_… */
};
/**
 * Connect and greet.
 *
 * @socket  NULL or "": the environment's, else the usual place.
 * @client  name of this client; NULL: the program's.
 * @limit   of time, and what cancels.
 * @return  0, or -1, the connection closed: SLUICE_AUTH: the socket's mode; SLUICE_USAGE: a path
 *          that is too long, or a daemon of another version; SLUICE_NO_SPACE: no descriptor.
 */
int sl_pool_link_open(struct sl_pool_link *link, const char *socket, const char *client,
                      struct sl_limit limit, struct sluice_error *error);
/** SLUICE_USAGE, code "forked": it is of the process that this one was forked from. */
int sl_pool_link_check_process(const struct sl_pool_link *link, struct sluice_error *error);
/** Ends the lease or the deposit that it stands for. One that is closed (fd -1) is fine. */
void sl_pool_link_close(struct sl_pool_link *link);

struct sl_pool_reply {
    uint64_t storage[SL_WIRE_PACKET_BYTES / 8]; /* the packet, aligned */
    size_t bytes;
    int fds[SL_WIRE_FDS_MAX]; /* owned; -1 once taken */
    size_t fd_count;
};
static inline const void *sl_pool_reply_data(const struct sl_pool_reply *reply)
{
    return reply->storage;
}
/** Close what descriptors are left. */
void sl_pool_reply_release(struct sl_pool_reply *reply);

/**
 * Send a request.
 *
 * @type    enum sl_wire_type.
 * @packet  `bytes` bytes, whose head is filled in.
 * @fds     `fd_count` of them, at most SL_WIRE_FDS_MAX; they stay the caller's.
 */
int sl_pool_link_send(struct sl_pool_link *link, uint16_t type, void *packet, size_t bytes,
                      const int *fds, size_t fd_count, struct sluice_error *error);
/**
 * Receive the answer to the last request. An error of the server's is one here, with its kind and
 * code.
 *
 * @type    of the answer: SL_WIRE_ANSWER with that of the request.
 * @least   bytes that the answer has at least.
 * @reply   out: release it; on failure it holds no descriptors.
 * @return  0, or -1; SLUICE_NO_SPACE: this process may not open so many files.
 */
int sl_pool_link_receive(struct sl_pool_link *link, uint16_t type, size_t least,
                         struct sl_pool_reply *reply, struct sluice_error *error);
/**
 * Send a request and receive its answer.
 *
 * @type           of the request: enum sl_wire_type.
 * @packet, bytes  as of sl_pool_link_send().
 * @fds, fd_count  the same; NULL, 0: none.
 * @least          bytes that the answer has at least.
 * @reply          out: as of sl_pool_link_receive().
 * @return         0, or -1 with the errors of both.
 */
int sl_pool_link_ask(struct sl_pool_link *link, uint16_t type, void *packet, size_t bytes,
                     const int *fds, size_t fd_count, size_t least, struct sl_pool_reply *reply,
                     struct sluice_error *error);
/** Has the server gone? Any thread; never blocks. */
bool sl_pool_link_lost(const struct sl_pool_link *link);

/** A request with texts: `packet` holds SL_WIRE_PACKET_BYTES, its fixed part of `bytes` is filled
 * in. Returns the new length. Texts that are too long were refused before. */
size_t sl_pool_put_text(void *packet, size_t bytes, const char *text);
/**
 * Check that the protocol takes these names.
 *
 * @model   1 to SL_WIRE_MODEL_BYTES bytes; NULL is refused.
 * @key     "" or at most SL_WIRE_KEY_BYTES bytes; not NULL.
 * @device  "" or at most SL_WIRE_DEVICE_BYTES bytes; not NULL.
 * @return  0, or -1 with SLUICE_USAGE.
 */
int sl_pool_check_texts(const char *model, const char *key, const char *device,
                        struct sluice_error *error);

/**
 * Judge the head, type and length of an answer, without a server (the fuzzer does).
 *
 * @type    as of sl_pool_link_receive().
 * @serial  of the request.
 * @least   bytes that the answer has at least.
 * @return  0, or -1: SLUICE_INTERNAL, or the error that the server sent.
 */
int sl_pool_reply_check(const struct sl_pool_reply *reply, uint16_t type, uint32_t serial,
                        size_t least, struct sluice_error *error);

#endif

/* A client's connection: packets and descriptors, with deadlines and cancellation. */
#ifndef SL_POOL_LINK_H
#define SL_POOL_LINK_H

#include <stdbool.h>
#include <stddef.h>

#include "pool_wire.h"
#include "sluice.h"

/** -1 with the error filled (which may be NULL). */
int sl_api_fail(struct sluice_error *error, int kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** The same with errno's text at the end. */
int sl_api_fail_errno(struct sluice_error *error, int kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** When to give up. */
struct sl_limit {
    uint64_t deadline_ns; /* monotonic; 0: never */
    int cancel_fd;        /* -1: none */
};
struct sl_limit sl_limit_make(int timeout_ms, int cancel_fd);
/** Milliseconds until then, at most `most`; -1 with SLUICE_TIMEOUT or SLUICE_CANCELED. */
int sl_limit_left(const struct sl_limit *limit, int most, struct sluice_error *error);

struct sl_pool_link {
    int fd;
    uint32_t serial;
    struct sl_limit limit; /* of what is going on */
    uint32_t rights;
};
/** Connect and greet. socket NULL: the environment's, else the usual place. */
int sl_pool_link_open(struct sl_pool_link *link, const char *socket, const char *client,
                      struct sl_limit limit, struct sluice_error *error);
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

/** Send a request: its head is filled in. */
int sl_pool_link_send(struct sl_pool_link *link, uint16_t type, void *packet, size_t bytes,
                      const int *fds, size_t fd_count, struct sluice_error *error);
/** The answer of this type, at least so long; an error of the server's is one here. */
int sl_pool_link_receive(struct sl_pool_link *link, uint16_t type, size_t least,
                         struct sl_pool_reply *reply, struct sluice_error *error);
/** Both. */
int sl_pool_link_ask(struct sl_pool_link *link, uint16_t type, void *packet, size_t bytes,
                     const int *fds, size_t fd_count, size_t least, struct sl_pool_reply *reply,
                     struct sluice_error *error);
/** Has the server gone? Never blocks. */
bool sl_pool_link_lost(const struct sl_pool_link *link);

/** A request with texts: `packet` holds SL_WIRE_PACKET_BYTES, its fixed part of `bytes` is filled
 * in. Returns the new length. Texts that are too long were refused before. */
size_t sl_pool_put_text(void *packet, size_t bytes, const char *text);
/** Are these what the protocol takes? */
int sl_pool_check_texts(const char *model, const char *key, const char *device,
                        struct sluice_error *error);

/** Judge an answer without a server (the fuzzer does): head, type, length. */
int sl_pool_reply_check(const struct sl_pool_reply *reply, uint16_t type, uint32_t serial,
                        size_t least, struct sluice_error *error);

#endif

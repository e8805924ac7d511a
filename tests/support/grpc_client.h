/* A client of gRPC over HTTP/2, on nghttp2's other side: for tests of the server. One thread. */
#ifndef SL_GRPC_CLIENT_H
#define SL_GRPC_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buf.h"

/** A request; what is NULL is as a usual client has it, "" leaves the header out. */
struct grpc_wish {
    const char *path;
    const char *method, *content_type, *timeout, *authority;
    const char *more_name, *more_value; /* one header more */
    const void *message;
    size_t bytes;
    const void *body; /* instead of a message behind its prefix: bytes as they are */
    size_t body_bytes;
    bool open; /* without an end */
};
struct grpc_answer {
    bool ended;     /* the stream has */
    uint32_t reset; /* with this error, 0: none */
    int http_status;
    int code; /* grpc-status, -1: none came */
    unsigned header_frames;
    char content_type[64], text[1100]; /* grpc-message as it came */
    struct sl_buf body;
};

struct grpc_client;
/** Aborts the test if nobody listens there. */
struct grpc_client *grpc_client_open(const char *path);
void grpc_client_close(struct grpc_client *client);
/** The id of the stream. */
int32_t grpc_client_begin(struct grpc_client *client, const struct grpc_wish *wish);
/** Take what comes until this stream has ended or the connection is closed; false: the latter. */
bool grpc_client_await(struct grpc_client *client, int32_t id);
/** Of a stream; borrowed until it is closed. */
struct grpc_answer *grpc_client_answer(struct grpc_client *client, int32_t id);
/** begin, await and the answer. */
struct grpc_answer *grpc_client_call(struct grpc_client *client, const struct grpc_wish *wish);
void grpc_client_reset(struct grpc_client *client, int32_t id, uint32_t error);
/** Send what is to be sent, take what is there. False: the connection is closed. */
bool grpc_client_step(struct grpc_client *client, int ms);
bool grpc_client_got_goaway(const struct grpc_client *client);

/** A whole connection of one request, as bytes: preface, SETTINGS, the request. */
void grpc_client_bytes(const struct grpc_wish *wish, struct sl_buf *bytes);
/** A connected socket; -1: nobody listens. */
int grpc_client_connect(const char *path);

#endif

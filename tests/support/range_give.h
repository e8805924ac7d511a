/* A connection of the range server, and what goes over it. */
#ifndef SL_RANGE_GIVE_H
#define SL_RANGE_GIVE_H

#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/types.h>

#include "range_answer.h"

struct connection {
    struct sl_server *server;
    pthread_t thread;
    unsigned number;
    int fd;
    bool joined; /* its thread */
    SSL *tls;
    char in[65536];
    size_t in_bytes;
};

/** How many requests of those that came after this one were answered or broken off. */
unsigned sl_server_over_since(struct sl_server *server, const struct sl_server_request *request);

/** How long so many bytes have to wait for their turn. */
int sl_server_paced_ms(struct sl_server *server, size_t bytes);
/** An answer has stopped, and the client's kernel has all of it. */
void sl_server_stalled(struct sl_server *server);

/** As recv(). */
ssize_t sl_take(struct connection *c, void *data, size_t bytes);
/** All of it; false: the client went away. */
bool sl_give(struct connection *c, const void *data, size_t bytes);
#define SL_GIVE_TEXT(c, text) sl_give(c, text, strlen(text))
/** Wait until the client goes away or the server stops. */
void sl_wait_gone(struct connection *c);

/** An answer as it should be; false: the client went away. */
bool sl_give_status(struct connection *c, int status, const char *headers, const char *body,
                    size_t bytes, bool bodiless);
/** An answer with the fault of its step; true: the connection can go on. */
bool sl_give_answer(struct connection *c, const struct sl_server_request *request,
                    struct answer *answer);

#endif

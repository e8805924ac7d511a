/* The inside of an exchange, for exchange.c and the blocking calls of exchange_simple.c. */
#ifndef SL_EXCHANGE_STATE_H
#define SL_EXCHANGE_STATE_H

#include "bandwidth.h"
#include "exchange.h"
#include "http_head.h"
#include "link.h"
#include "thread.h"

enum sl_exchange_phase {
    SL_X_IDLE,
    SL_X_CONNECTING,
    SL_X_SENDING,
    SL_X_STREAM, /* the head is sent, the body comes from the caller */
    SL_X_HEAD,
    SL_X_BODY,
    SL_X_DRAINED
};
enum sl_exchange_chunk {
    SL_X_CHUNK_SIZE,
    SL_X_CHUNK_DATA,
    SL_X_CHUNK_END,
    SL_X_CHUNK_TRAILER,
    SL_X_CHUNK_DONE
};

struct sl_exchange {
    struct sl_connect connect;
    struct sl_link *link;
    char *route; /* origin and proxy that the link leads to, NULL: none */
    char *open_url, *open_proxy;
    char *subject;     /* "GET https://host/path", for messages */
    bool forwarded;    /* the request goes to a proxy, which answers for the host */
    unsigned answers;  /* on this connection */
    bool anew;         /* something went wrong: it takes no connection that others have used */
    bool preconnected; /* it was made before there was a request, and has not answered one yet */
    uint64_t preconnected_ns; /* when */
    enum sl_exchange_phase phase;

    struct sl_buf out;
    const char *body; /* lent: it follows what is in out */
    size_t body_bytes;
    size_t sent; /* of out and body */
    uint64_t stream_bytes, streamed;
    uint64_t asked_ns;   /* when the head was sent that a stream follows */
    uint64_t sending_ns; /* before its first byte was sent */
    uint64_t answer_ns;  /* how long after that its answer began; 0: it has not */
    bool wanted;         /* 100 Continue came */

    char *in; /* received and not yet taken: [in_begin, in_end) */
    size_t in_capacity, in_begin, in_end;
    char *head_text; /* of the answer in hand */
    size_t head_bytes;
    struct sl_head head;
    bool bodiless; /* HEAD */
    bool answered; /* a byte of this answer came */
    unsigned interim;

    uint64_t left; /* LENGTH: of the body; CHUNKED: of the chunk */
    enum sl_exchange_chunk chunk;
    size_t trailer_bytes;

    struct sl_err pending;             /* the body failed behind bytes that were delivered */
    uint64_t window_ns, window_bytes;  /* stall */
    unsigned hedge;                    /* of this request */
    bool distant;                      /* the server is known to be far away */
    bool twice;                        /* it has been sent twice */
    uint64_t hedge_ns;                 /* it is when this has passed; 0: never */
    struct sl_exchange *hedged;        /* which of the two answers first? NULL: there is one */
    uint64_t away_ns;                  /* when the caller was given data, 0: not */
    uint64_t moved_ns;                 /* when bytes of the answer came last */
    uint64_t linger_ns, linger_end_ns; /* sl_exchange_linger(); 0: not yet */
    uint64_t came,
        absent_ns; /* of this request: bytes of the body; time that was not the server's */
    struct sl_bandwidth pace; /* turn_ns: nothing is read before */
};

struct sl_url;
/**
 * Write a request's head, and its body unless that is lent, into exchange->out.
 *
 * @request  its body, if it is lent, is borrowed until the answer's head came.
 * @url      of the request, taken apart.
 * @forward  the proxy that the request is sent to, with its login; NULL: none.
 * @return   0, or -1 with SL_E_USAGE or SL_E_NO_SPACE.
 */
int sl_exchange_build(struct sl_exchange *exchange, const struct sl_request *request,
                      const struct sl_url *url, const struct sl_url *forward, struct sl_err *err);

#endif

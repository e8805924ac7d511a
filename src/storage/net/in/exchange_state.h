/* The inside of an exchange, shared by exchange.c (connect, request, head) and exchange_body.c
 * (body framing). */
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

/* How long a server may take to say 100 Continue: RFC 9110 section 10.1.1 has it no longer than
 * need be, since old ones never do; but a busy one that would have sent the body elsewhere cannot
 * any more when it has begun. */
#define SL_X_OFFER_NS (3 * SL_NS_PER_S)

struct sl_exchange {
    struct sl_connect connect;
    struct sl_link *link;
    char *route; /* origin and proxy that the link leads to, NULL: none */
    char *open_url, *open_proxy;
    char *subject;     /* "GET https://host/path", for messages */
    bool forwarded;    /* the request goes to a proxy, which answers for the host */
    unsigned answers;  /* on this connection */
    bool preconnected; /* it was made before there was a request, and has not answered one yet */
    uint64_t ahead_ns; /* when */
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

    struct sl_err pending;            /* the body failed behind bytes that were delivered */
    uint64_t window_ns, window_bytes; /* stall */
    unsigned hedge;                   /* of this request */
    bool distant;                     /* the server is known to be far away */
    bool twice;                       /* it has been sent twice */
    uint64_t hedge_ns;                /* it is when this has passed; 0: never */
    struct sl_exchange *hedged;       /* which of the two answers first? NULL: there is one */
    uint64_t away_ns;                 /* when the caller was given data, 0: not */
    uint64_t moved_ns;                /* when bytes of the answer came last */
    uint64_t came,
        absent_ns; /* of this request: bytes of the body; time that was not the server's */
    struct sl_bandwidth pace; /* turn_ns: nothing is read before */
};

/** Lead where another one does. */
int sl_exchange_follow(struct sl_exchange *exchange, const struct sl_exchange *like,
                       struct sl_err *err);
/** Send what is prepared on a new connection. */
int sl_exchange_reconnect(struct sl_exchange *exchange, struct sl_err *err);
/** Drop the connection, but not that of the hedged request. */
void sl_exchange_drop(struct sl_exchange *exchange);
/** The request is on its way: how long may its answer take until it is sent twice? */
void sl_exchange_set_hedge(struct sl_exchange *exchange);
/** When the server has been silent for too long; UINT64_MAX: never. */
uint64_t sl_exchange_hedge_at(const struct sl_exchange *exchange);
/**
 * The answer's head is there, or not yet, or there will be none: have it from the hedged request,
 * if that is better, and make one where it is time to. Returns the state of both, err as that says.
 */
enum sl_io_state sl_exchange_race(struct sl_exchange *exchange, enum sl_io_state state,
                                  const struct sl_err *why, struct sl_err *err);
/** Tell, once, whoever would connect ahead, if the server is far away. */
void sl_exchange_report_distance(struct sl_exchange *exchange);
/** When that is known, if no answer comes before; UINT64_MAX: it is told. */
uint64_t sl_exchange_distance_end(const struct sl_exchange *exchange);
/** As sl_exchange_head(), on one connection. */
enum sl_io_state sl_exchange_own_head(struct sl_exchange *exchange, struct sl_err *err);
/** The hedged request is not needed any more. */
void sl_exchange_drop_hedged(struct sl_exchange *exchange);
/** The caller came back with a call: the time that it was away was not the server's. */
void sl_exchange_enter(struct sl_exchange *exchange);
/** Bytes came or went. */
void sl_exchange_progress(struct sl_exchange *exchange, size_t bytes);
/** The answer has ended, or is given up. */
void sl_exchange_note_answer(struct sl_exchange *exchange, bool whole);
/** Something went wrong on the connection: drop it; FAILED. */
enum sl_io_state sl_exchange_fail(struct sl_exchange *exchange);
/** SL_E_NET about the request in hand; FAILED. */
enum sl_io_state sl_exchange_refuse(struct sl_exchange *exchange, bool retryable, const char *why,
                                    struct sl_err *err);
/** Nothing is there now: WAIT, or FAILED if it has been too little for too long. */
enum sl_io_state sl_exchange_stay(struct sl_exchange *exchange, struct sl_err *err);
/** Send what was started; DATA when it is sent or answered, in the phase that follows. */
enum sl_io_state sl_exchange_send_start(struct sl_exchange *exchange, struct sl_err *err);
/** DATA when the answer's head is there (phase BODY), WAIT, FAILED. */
enum sl_io_state sl_exchange_read_head(struct sl_exchange *exchange, struct sl_err *err);
/** The connection broke: begin again on a new one if the old had been idle (WAIT), else FAILED. */
enum sl_io_state sl_exchange_broken(struct sl_exchange *exchange, struct sl_err *err);
/** Connect and send as far as it goes: DATA in the phase that follows, WAIT, FAILED. */
enum sl_io_state sl_exchange_begin(struct sl_exchange *exchange, struct sl_err *err);
/** More bytes behind in_end: DATA if any came or the stream *ended, WAIT, FAILED. */
enum sl_io_state sl_exchange_receive(struct sl_exchange *exchange, bool *ended, struct sl_err *err);

#endif

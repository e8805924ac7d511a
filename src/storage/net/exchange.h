/*
 * HTTP/1.1 over one connection: one request and its answer at a time, without blocking.
 *
 * http_channel.c puts ranges through it, listings, credential services and probes use the blocking
 * sl_exchange_simple(). The connection (DNS, proxy, TLS) is libcurl's in CONNECT_ONLY mode; head
 * parsing, body framing (Content-Length, chunked, close) and keep-alive are ours (RFC 9110, RFC
 * 9112).
 * libcurl's own transfer would hand a body out in pieces of its own buffer, one copy more; it can
 * neither wait for a full window (SO_RCVLOWAT) nor pause between two answers of a connection, so
 * that another load may have it.
 *
 * One thread at a time. None blocks but sl_exchange_pause(), _wait(), _simple() and _answer(),
 * which end on cancellation. FAILED and -1: SL_E_NET for what the network or the server does,
 * SL_E_USAGE for a URL or proxy, SL_E_AUTH for what a proxy refuses, SL_E_NO_SPACE; the connection
 * is closed then.
 */
#ifndef SL_EXCHANGE_H
#define SL_EXCHANGE_H

#include "buf.h"
#include "io.h"

struct sl_exchange;

enum { SL_HEADERS_BYTES_MAX = 64 * 1024 };

/** How to connect. Borrowed until the exchange is freed. */
struct sl_connect {
    const struct sl_tls_options *tls; /* NULL: system store, verify */
    struct sl_cancel *cancel;
    unsigned stall_seconds;    /* 0: 30; also bounds connecting and waiting for the answer's head */
    unsigned connect_seconds;  /* 0: 10 */
    bool once;                 /* requests that may be hedged are waited for like others */
    bool direct;               /* never through a proxy: metadata services */
    const void *owner;         /* whose load it serves: permits of a host are shared among loads */
    unsigned host_connections; /* of this process to one host; 0: any number */
    unsigned idle_seconds;     /* its connection is kept for others of the process for so long when
                                  it is freed, and taken from those: idle_links.h; 0: neither */
    uint64_t bandwidth;        /* bytes/s of all loads of the process; 0: no limit */
    struct sl_progress *progress; /* may be NULL: requests sent twice are counted there */
    /* Called once for a request that may be hedged whose server turns out to be far away, while its
     * answer is on its way: time to sl_exchange_connect() others. May be NULL */
    void (*distant)(void *arg, const struct sl_exchange *exchange);
    void *distant_arg;
    bool distant_always;    /* it is called wherever the server is */
    struct sl_cancel *stop; /* ends sl_exchange_simple() as cancel does: the caller's own reason */
};

/** One request. Everything is copied by sl_exchange_start(), but for a body that is lent. */
struct sl_request {
    const char *method;         /* GET, HEAD, PUT, POST, DELETE */
    const char *url;            /* absolute, http or https, percent-encoded; sent as it is (no dot
                                   squashing), without its fragment */
    const char *const *headers; /* "Name: value", NULL-terminated; NULL for none. Host, Connection,
                                   Accept-Encoding: identity and Content-Length are added */
    const void *body;
    size_t body_bytes;
    bool lent;      /* the body is not copied: it stays where it is until the answer's head came */
    unsigned hedge; /* of GET and HEAD: without an answer for so many times the host's usual it is
                       sent once more, on a connection of its own, and what answers first is taken;
                       a body that falls silent as long is a stall. 0: never */
    uint64_t stream_bytes; /* instead of body: so many bytes follow by sl_exchange_send() */
    /* "http://host:port", which answers for the URL's origin, such as a cache: the connection leads
     * there, without a proxy; the request stays the origin's, with its Host. NULL: the origin */
    const char *via;
};

/** No network yet. SL_E_NO_SPACE. */
struct sl_exchange *sl_exchange_new(const struct sl_connect *connect, struct sl_err *err);
/** Closes the connection, in mid-answer too; NULL is fine. */
void sl_exchange_free(struct sl_exchange *exchange);
SL_AUTO_DEFINE(sl_exchange)

/**
 * Begin a request. A live connection to the same origin (scheme, host, port, proxy) is used again,
 * else it is closed and a new one made. A reset before the first byte of the answer on a connection
 * that was used before is tried once on a new connection, uncounted. The previous answer must be
 * drained or aborted.
 */
int sl_exchange_start(struct sl_exchange *exchange, const struct sl_request *request,
                      struct sl_err *err);

/**
 * Begin to connect to where another one leads, without a request: the next sl_exchange_start()
 * goes on with it. -1: the host has no permit left, or nothing answers. Does not block.
 */
int sl_exchange_connect(struct sl_exchange *exchange, const struct sl_exchange *like,
                        struct sl_err *err);

/**
 * Progress until the answer's head is complete: DATA when it is, WAIT, or FAILED (SL_E_NET: cannot
 * connect, reset, bad head, stall). 1xx answers are skipped.
 */
enum sl_io_state sl_exchange_head(struct sl_exchange *exchange, struct sl_err *err);
/**
 * With stream_bytes, before the first of them: DATA when the server wants the body (100 Continue,
 * or three seconds without a word, where the caller sent Expect: 100-continue), END when it has
 * answered already: sl_exchange_head() has it. WAIT, FAILED.
 */
enum sl_io_state sl_exchange_ready(struct sl_exchange *exchange, struct sl_err *err);
/**
 * Send of the body what the socket takes.
 *
 * @data    the next `bytes` bytes of it; borrowed for the call.
 * @taken   out: how many were sent.
 * @return  DATA with at least 1 byte taken, END when the server has answered before it got all of
 *          it, WAIT, FAILED.
 *
 * After the last byte comes sl_exchange_head(). A connection that breaks off after the first byte
 * is never made anew.
 */
enum sl_io_state sl_exchange_send(struct sl_exchange *exchange, const void *data, size_t bytes,
                                  size_t *taken, struct sl_err *err);
/** How the request in hand, or the last one, was answered. */
struct sl_answered {
    uint64_t ns; /* from its first byte to the answer's head; 0: not known */
    bool twice;  /* it was sent twice */
};
struct sl_answered sl_exchange_answered(const struct sl_exchange *exchange);
/** Of the answer to the last request; 0: its head has not come. */
int sl_exchange_status(const struct sl_exchange *exchange);
/**
 * The header's value, trimmed; the first of several; NULL if absent. Borrowed until the next start.
 */
const char *sl_exchange_header(const struct sl_exchange *exchange, const char *name);
/** The body's length as announced, -1 if not. */
int64_t sl_exchange_content_length(const struct sl_exchange *exchange);
/**
 * Take body bytes, as sl_fetch_read().
 *
 * @data    out: room for `bytes`.
 * @got     out: how many came.
 * @return  END when the body is complete; a body that ends early is FAILED, SL_E_NET, code "stall"
 *          where it fell silent.
 */
enum sl_io_state sl_exchange_body(struct sl_exchange *exchange, void *data, size_t bytes,
                                  size_t *got, struct sl_err *err);
/** What WAIT waits for, as sl_fetch_poll(). */
int sl_exchange_poll(struct sl_exchange *exchange, struct pollfd fds[SL_IO_POLL_MAX],
                     uint64_t *deadline_ns);
/** Give up the request, if there is one, and close the connection. Whatever comes next goes by one
 * that nobody has used. */
void sl_exchange_abort(struct sl_exchange *exchange);
struct sl_host;
/** Whether it holds a connection to this host, or a permit for one. */
bool sl_exchange_leads_to(const struct sl_exchange *exchange, const struct sl_host *host);
/** Sleep, unless cancel or stop ends it: -1 with SL_E_CANCELED. */
int sl_exchange_pause(struct sl_exchange *exchange, unsigned ms, struct sl_err *err);
/** From now on the answer to a request that was sent is waited for so long after the cancellation:
 * it tells what must be undone. 0: it is not. */
void sl_exchange_linger(struct sl_exchange *exchange, unsigned seconds);
/** Block until there is something to do; -1 with SL_E_CANCELED. */
int sl_exchange_wait(struct sl_exchange *exchange, struct sl_err *err);

/** A small answer read whole. */
struct sl_answer {
    int status;
    struct sl_buf body;
    char *head; /* raw header lines, for sl_answer_header(); all of it is the caller's */
};
/** Zeroed, and released again, is fine. */
void sl_answer_release(struct sl_answer *answer);
/**
 * Copy the value of a header, the first of several.
 *
 * @name         in any case.
 * @text, bytes  out: the value, cut to bytes - 1; left alone if it is absent.
 * @return       false: it is absent.
 */
bool sl_answer_header(const struct sl_answer *answer, const char *name, char *text, size_t bytes);
/**
 * The value of a header, whole; of several, all of them with ", " between (RFC 9110 section 5.3).
 *
 * @name    in any case.
 * @return  free() it; "": it is absent. NULL: SL_E_NO_SPACE.
 */
char *sl_answer_header_whole(const struct sl_answer *answer, const char *name, struct sl_err *err);
/**
 * Send a request and read its answer, with no retry and no redirect.
 *
 * @request     borrowed for the call.
 * @body_limit  a larger body is an error.
 * @answer      out: release it. Any status is a success here.
 * @return      0, or -1 for failures of the transport, and SL_E_CANCELED. Blocks.
 */
int sl_exchange_simple(struct sl_exchange *exchange, const struct sl_request *request,
                       size_t body_limit, struct sl_answer *answer, struct sl_err *err);
/** The same for a request that was started (and its stream sent) before. */
int sl_exchange_answer(struct sl_exchange *exchange, size_t body_limit, struct sl_answer *answer,
                       struct sl_err *err);

/**
 * Fail as an HTTP status says.
 *
 * @retry_after  the header's text, or NULL: how long to wait before the next try.
 * @what         the subject: "cannot read 's3://…'".
 * @detail       what the server said; may be "".
 * @return       always -1: SL_E_AUTH for 401, 403 and 407, SL_E_NOT_FOUND for 404 and 410,
 *               SL_E_INTEGRITY, code "changed", for 412, SL_E_USAGE for others of 400 to 499 that
 *               will be answered again and again, else SL_E_NET.
 *
 * Any thread.
 */
int sl_http_fail(struct sl_err *err, int status, const char *retry_after, const char *what,
                 const char *detail);

/** "Basic …" for user and password (RFC 7617); free() it. NULL: SL_E_NO_SPACE. */
char *sl_http_basic(const char *user, const char *password, struct sl_err *err);

#endif

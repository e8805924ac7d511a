/*
 * A web server in threads of the test, on 127.0.0.1, that serves blobs by ranges and misbehaves by
 * script.
 *
 * Set it up (put, script, handler) before the first request, or between requests. What goes in is
 * copied unless said otherwise.
 */
#ifndef SL_RANGE_SERVER_H
#define SL_RANGE_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_server;

/** Listens on a free port; never NULL (aborts the test if it cannot). */
struct sl_server *sl_server_start(void);
/** The same on another address of this machine ("127.0.0.2") and, unless it is 0, on this port.
 * NULL if somebody else has that port. */
struct sl_server *sl_server_start_at(const char *address, unsigned port);
/** In two steps, for clients that come by themselves: they wait until sl_server_accept(), by when
 * there is what they ask for. */
struct sl_server *sl_server_listen_at(const char *address, unsigned port);
void sl_server_accept(struct sl_server *server);
/** As sl_server_start(), with TLS and a certificate of its own for 127.0.0.1 and localhost; its PEM
 * is at sl_server_ca(). */
struct sl_server *sl_server_start_tls(void);
/** The suite of the last connection, in OpenSSL's terms; "" before the first. */
const char *sl_server_last_suite(struct sl_server *server);
/** From now on each handshake turns the clock by so much; it is held (fake_clock_hold()). */
void sl_server_tls_delay(struct sl_server *server, unsigned ms);
void sl_server_stop(struct sl_server *server);
/** The same, but nobody gets its port before the result is closed: who connects is refused, and
 * sl_server_start_at() can have it again. */
int sl_server_leave(struct sl_server *server);
unsigned sl_server_port(const struct sl_server *server);
/** Path of a file with the certificate; removed by sl_server_stop(). */
const char *sl_server_ca(const struct sl_server *server);
/** "http://127.0.0.1:PORT" + path; borrowed, one of 16 that take turns. */
const char *sl_server_url(struct sl_server *server, const char *path);

/** Serve a copy of data at target path (compared as sent, without the query). etag with quotes,
 * NULL for none. Replaces. */
void sl_server_put(struct sl_server *server, const char *path, const void *data, size_t bytes,
                   const char *etag);

/** From now on the bodies of all right answers together come no faster than this; 0: as fast as
 * they can. */
void sl_server_pace(struct sl_server *server, uint64_t bytes_per_second);

enum sl_fault {
    SL_FAULT_NONE,
    SL_FAULT_RESET, /* RST after `after` body bytes (-1: before the head) */
    SL_FAULT_SHORT, /* close in order after `after` body bytes (-1: before the head) */
    SL_FAULT_STALL, /* nothing more after `after` body bytes (-1: before the head), until the client
                       goes */
    SL_FAULT_LATE_STALL,  /* a byte, after 50 ms the others of `after`, then as SL_FAULT_STALL */
    SL_FAULT_TRICKLE,     /* after `after` bytes one byte every 20 ms */
    SL_FAULT_WRONG_RANGE, /* Content-Range shifted by one */
    SL_FAULT_WRONG_TOTAL, /* Content-Range with another total */
    SL_FAULT_NO_RANGE,    /* 206 without Content-Range */
    SL_FAULT_WRONG_ETAG,  /* another ETag, precondition ignored */
    SL_FAULT_CHANGED,     /* 412 */
    SL_FAULT_WHOLE,       /* 200 with the whole blob */
    SL_FAULT_BARE,        /* the right bytes, with 200 and without Content-Range */
    SL_FAULT_LONG,        /* Content-Length and body one byte longer than the range */
    SL_FAULT_GZIP,        /* Content-Encoding: gzip */
    SL_FAULT_MULTIPART,   /* multipart/byteranges */
    SL_FAULT_CHUNKED,     /* the right answer, chunked */
    SL_FAULT_CLOSE,       /* the right answer with Connection: close, then close */
    SL_FAULT_UNTIL_CLOSE, /* the right answer without a length, then close */
    SL_FAULT_DROP_AFTER,  /* the right answer, promising to keep the connection, then close */
    SL_FAULT_HEAD,        /* `text` instead of an answer's head, then close */
    SL_FAULT_STATUS,      /* `status`, `headers`, `text` as body */
    SL_FAULT_SLOW,        /* the right answer after 800 ms, or `after` ms */
    SL_FAULT_BEHIND,      /* the right answer, from byte `after` of its body on (0: with its head)
                             behind those of `others` requests that come later: when these have been
                             answered, or broken off. Ends the test when they do not come */
};

/** One line of the script. The first line that matches a request is used. */
struct sl_step {
    const char *path;     /* NULL: any (without query) */
    unsigned first, last; /* which of the requests of that path (NULL: of all), from 1; 0,0: every
                             one; last 0: only first */
    enum sl_fault fault;
    int64_t after; /* body bytes */
    int status;
    const char *headers; /* extra lines "Name: value\r\n"; also added to right answers */
    const char *text;
    unsigned others; /* SL_FAULT_BEHIND */
    uint64_t begin;  /* only for ranges that begin there; 0: any */
    bool unhandled;  /* the handler is not asked */
    bool whole;      /* it knows no ranges: 200 with the whole blob, and `fault` with that */
};
void sl_server_script(struct sl_server *server, const struct sl_step *steps, size_t count);
#define SL_SCRIPT(server, ...)                                                                     \
    sl_server_script(server, (const struct sl_step[]){__VA_ARGS__},                                \
                     sizeof((const struct sl_step[]){__VA_ARGS__}) / sizeof(struct sl_step))

/** What came. */
struct sl_server_request {
    char method[16];
    char target[4096];  /* with query */
    char headers[8192]; /* lines "Name: value\n" */
    char *body;         /* NUL-terminated */
    size_t body_bytes;
    unsigned connection; /* number of its connection, from 1 */
    bool unread;         /* its body was not read: SL_EXPECT_ANSWER */
    bool over;           /* the server is done with it; under the server's lock */
};
/** The value of a header of the request copied to text; false if absent. */
bool sl_server_header(const struct sl_server_request *request, const char *name, char *text,
                      size_t bytes);
/** The bytes [begin, end) of an object of `total` that are asked for; false: no range is. */
bool sl_server_range(const struct sl_server_request *request, uint64_t total, uint64_t *begin,
                     uint64_t *end);

/** What a handler answers. */
struct sl_server_reply {
    int status;         /* 200 */
    char headers[4096]; /* "Name: value\r\n" lines, Content-Length is added */
    char *body;         /* malloc'ed, freed by the server; may be NULL */
    size_t body_bytes;
};
/** 206 with a copy of bytes [begin, end) of an object; etag with quotes, NULL for none. */
void sl_server_reply_range(struct sl_server_reply *reply, const void *object, uint64_t begin,
                           uint64_t end, uint64_t total, const char *etag);
/** Asked first for every request; false: not mine, go on with script and blobs. Called under the
 * server's lock. */
typedef bool sl_server_handler(const struct sl_server_request *request,
                               struct sl_server_reply *reply, void *arg);
void sl_server_handle(struct sl_server *server, sl_server_handler *handler, void *arg);

/** What becomes of requests with Expect: 100-continue. */
enum sl_server_expect {
    SL_EXPECT_CONTINUE, /* 100, as servers do */
    SL_EXPECT_SILENT,   /* nothing is said, the body is read */
    SL_EXPECT_ANSWER,   /* the handler answers without the body, and the connection ends */
    SL_EXPECT_EARLY,    /* the same after a 100: the answer comes while the body is on its way */
};
/** For the next `times` of them, then 100 again; 0: for all. */
void sl_server_expect(struct sl_server *server, enum sl_server_expect what, unsigned times);

/** How many requests came; the nth (from 0), valid until stop. */
unsigned sl_server_request_count(struct sl_server *server);
const struct sl_server_request *sl_server_request_at(struct sl_server *server, unsigned nth);
unsigned sl_server_connection_count(struct sl_server *server);
/** Wait until all connections and their threads have ended: before a fork() whose child allocates,
 * since a thread may hold the allocator's lock, and AddressSanitizer's is not let go in the child.
 */
void sl_server_quiet(struct sl_server *server);
/** Answers that stopped (SL_FAULT_STALL), all bytes of which the client's kernel has. */
unsigned sl_server_stalled_count(struct sl_server *server);

#endif

/* A tiny HTTP client over plain sockets, for tests that must see the bytes themselves. */
#ifndef SL_HTTP_CLIENT_H
#define SL_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>

struct http_reply {
    int status;
    char head[8192]; /* status line and headers, each line ending in \r\n */
    char *body;      /* with a 0 behind it */
    size_t bytes;
};

/** A connection to 127.0.0.1; -1 if refused. Reads time out after 10 s. */
int http_connect(unsigned port);
/** All of it, or -1. */
int http_send(int fd, const char *text);
/** One answer, by Content-Length, chunks or the end of the connection; -1 if it is broken off.
 * Release it. */
int http_receive(int fd, int head_only, struct http_reply *reply);
void http_release(struct http_reply *reply);

/** One request on its own connection. headers: "Name: value\r\n" lines, may be "". -1 if none is
 * answered. */
int http_ask(unsigned port, const char *method, const char *path, const char *headers,
             struct http_reply *reply);
/** The value of a header, in a buffer of this thread until its next call, or NULL. */
const char *http_header(const struct http_reply *reply, const char *name);

#endif

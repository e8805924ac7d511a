/* Every fault that lies in the bytes of an answer, or in their time, is made here. */
#include "range_give.h"

#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "await.h"
#include "fake_clock.h"
#include "mem.h"

enum {
    SLOW_MS = 800, /* a connection that looks every 250 ms sees it */
    TRICKLE_MS = 20,
    LATE_MS = 50,
    PACED_BYTES = 16 * 1024
};

ssize_t sl_take(struct connection *c, void *data, size_t bytes)
{
    return c->tls ? SSL_read(c->tls, data, (int)bytes) : recv(c->fd, data, bytes, 0);
}

bool sl_give(struct connection *c, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes) {
        ssize_t sent = c->tls ? SSL_write(c->tls, at, (int)(bytes > 16384 ? 16384 : bytes))
                              : send(c->fd, at, bytes, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

void sl_wait_gone(struct connection *c)
{
    char byte[512];
    while (sl_take(c, byte, sizeof(byte)) > 0)
        ;
}

/* false: the client went away meanwhile. 0: no time at all. */
static bool pause_ms(struct connection *c, int ms)
{
    struct pollfd fd = {c->fd, POLLRDHUP, 0};
    return fake_clock_poll(&fd, 1, ms) == 0;
}

/* Until the client's kernel has all that was sent. false: the client went away meanwhile. */
static bool wait_for_arrival(struct connection *c)
{
    struct sl_waiting waiting = {0};
    for (int unsent = 1;; sl_waiting_step(&waiting, "what was sent to come", __FILE__, __LINE__)) {
        if (ioctl(c->fd, SIOCOUTQ, &unsent) < 0 || !pause_ms(c, 0))
            return false;
        if (!unsent)
            return true;
    }
}

static void reset(struct connection *c)
{
    struct linger linger = {1, 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

/* false: the client went away meanwhile. */
static bool wait_for_others(struct connection *c, const struct sl_server_request *request,
                            unsigned others)
{
    struct sl_waiting waiting = {0};
    while (sl_server_over_since(c->server, request) < others) {
        if (!pause_ms(c, 0))
            return false;
        sl_waiting_step(&waiting, "what an answer is to come behind", __FILE__, __LINE__);
    }
    return true;
}

static bool give_chunked(struct connection *c, const uint8_t *data, size_t bytes, const char *last)
{
    char line[32];
    while (bytes) {
        size_t piece = bytes < 1000 ? bytes : 1000;
        snprintf(line, sizeof(line), "%zX;x=y\r\n", piece);
        if (!SL_GIVE_TEXT(c, line) || !sl_give(c, data, piece) || !SL_GIVE_TEXT(c, "\r\n"))
            return false;
        data += piece;
        bytes -= piece;
    }
    return SL_GIVE_TEXT(c, last ? last : "0\r\nX-Trailer: 1\r\n\r\n");
}

/* As fast as the server may. */
static bool give_paced(struct connection *c, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        size_t piece = bytes < PACED_BYTES ? bytes : PACED_BYTES;
        int ms = sl_server_paced_ms(c->server, piece);
        if ((ms > 0 && !pause_ms(c, ms)) || !sl_give(c, data, piece))
            return false;
        data += piece;
        bytes -= piece;
    }
    return true;
}

/* The body, cut, slowed or stopped as the step says. true: the connection can go on. */
static bool give_body(struct connection *c, const struct sl_server_request *request,
                      const struct answer *answer)
{
    const uint8_t *data = answer->data + answer->begin;
    size_t bytes = answer->end - answer->begin;
    enum sl_fault fault = answer->step.fault;
    if (fault == SL_FAULT_CHUNKED)
        return give_chunked(c, data, bytes, answer->step.text);
    if (fault == SL_FAULT_LATE_STALL) {
        size_t wanted = (size_t)answer->step.after, before = wanted < bytes ? wanted : bytes;
        if (sl_give(c, data, 1) && pause_ms(c, LATE_MS) && sl_give(c, data + 1, before - 1))
            sl_wait_gone(c);
        return false;
    }
    if (fault == SL_FAULT_BEHIND && answer->step.after > 0) {
        size_t before = (size_t)answer->step.after < bytes ? (size_t)answer->step.after : bytes;
        return sl_give(c, data, before) && wait_for_others(c, request, answer->step.others) &&
               sl_give(c, data + before, bytes - before);
    }
    if (fault == SL_FAULT_RESET || fault == SL_FAULT_SHORT || fault == SL_FAULT_STALL ||
        fault == SL_FAULT_TRICKLE) {
        size_t before = (size_t)answer->step.after < bytes ? (size_t)answer->step.after : bytes;
        if (!sl_give(c, data, before))
            return false;
        for (size_t i = before; fault == SL_FAULT_TRICKLE && i < bytes; i++)
            if (!pause_ms(c, TRICKLE_MS) || !sl_give(c, data + i, 1))
                return false;
        if (fault == SL_FAULT_TRICKLE)
            return true;
        if (fault == SL_FAULT_STALL) {
            if (wait_for_arrival(c))
                sl_server_stalled(c->server);
            sl_wait_gone(c);
        }
        if (fault == SL_FAULT_RESET)
            reset(c);
        return false;
    }
    if (!give_paced(c, data, bytes) || (fault == SL_FAULT_LONG && !sl_give(c, "!", 1)))
        return false;
    return fault != SL_FAULT_CLOSE && fault != SL_FAULT_UNTIL_CLOSE && fault != SL_FAULT_DROP_AFTER;
}

bool sl_give_status(struct connection *c, int status, const char *headers, const char *body,
                    size_t bytes, bool bodiless)
{
    sl_autofree char *head = NULL; /* not of the memory that fails in tests */
    if (asprintf(&head, "HTTP/1.1 %d Status\r\nContent-Length: %zu\r\n%s\r\n", status, bytes,
                 headers ? headers : "") < 0)
        head = NULL;
    return head && SL_GIVE_TEXT(c, head) && (bodiless || sl_give(c, body ? body : "", bytes));
}

bool sl_give_answer(struct connection *c, const struct sl_server_request *request,
                    struct answer *answer)
{
    char head[8192], match[256];
    enum sl_fault fault = answer->step.fault;
    bool bodiless = strcmp(request->method, "HEAD") == 0;
    if (fault == SL_FAULT_SLOW)
        pause_ms(c, answer->step.after > 0 ? (int)answer->step.after : SLOW_MS);
    if (fault == SL_FAULT_BEHIND && answer->step.after <= 0 &&
        !wait_for_others(c, request, answer->step.others))
        return false;
    if (fault == SL_FAULT_STATUS) {
        const char *text = answer->step.text ? answer->step.text : "";
        return sl_give_status(c, answer->step.status, answer->step.headers, text, strlen(text),
                              bodiless);
    }
    if (fault == SL_FAULT_HEAD)
        return SL_GIVE_TEXT(c, answer->step.text) && false;
    if ((fault == SL_FAULT_RESET || fault == SL_FAULT_SHORT || fault == SL_FAULT_STALL) &&
        answer->step.after < 0) {
        if (fault == SL_FAULT_STALL)
            sl_wait_gone(c);
        if (fault == SL_FAULT_RESET)
            reset(c);
        return false;
    }
    if (!answer->data)
        return sl_give_status(c, 404, "Content-Type: text/plain\r\n", "no such thing", 13,
                              bodiless);
    bool stale = sl_server_header(request, "If-Match", match, sizeof(match)) &&
                 strcmp(match, answer->etag) != 0;
    if (fault == SL_FAULT_CHANGED || (stale && fault != SL_FAULT_WRONG_ETAG))
        return sl_give_status(c, 412, "", "", 0, bodiless);
    if (fault == SL_FAULT_WHOLE || answer->step.whole)
        answer->begin = 0, answer->end = answer->bytes;
    else if (!answer->satisfiable) {
        snprintf(head, sizeof(head), "Content-Range: bytes */%zu\r\n%s", answer->bytes,
                 answer->step.headers ? answer->step.headers : "");
        return sl_give_status(c, 416, head, "", 0, bodiless);
    }
    sl_answer_write_head(answer, head, sizeof(head));
    return SL_GIVE_TEXT(c, head) && (bodiless || give_body(c, request, answer));
}

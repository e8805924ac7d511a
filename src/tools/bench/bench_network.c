/*
 * The limit: what the same server sends to a program that does nothing else. Each thread has one
 * connection (libcurl's, for TLS and names), sends GETs of ranges with the headers of a load, and
 * recv()s the bodies into a buffer that stays in cache. No source layer, no retry, no hash, no
 * destination; a connection that the server closes between two answers is made anew.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "bench_parts.h"
#include "link.h"
#include "proxy.h"
#include "raw_request.h"

enum { HEAD_BYTES_MAX = 64 * 1024, REQUEST_BYTES_MAX = 64 * 1024, STALL_SECONDS = 30 };

struct line {
    struct sl_link *link;
    struct sl_cancel *cancel;
    uint8_t *buffer;
    size_t held;      /* bytes of the answer that came with its head, at the buffer's begin */
    bool open;        /* connected */
    bool closing;     /* the server closes after this answer */
    bool used;        /* has had an answer before */
    bool silent;      /* nothing of the present answer has come */
    const char *name; /* of the object, for messages */
};

static void line_release(struct line *line)
{
    sl_link_free(line->link);
    free(line->buffer);
}

static int fail_line(struct line *line, struct sl_err *err, const char *why)
{
    return sl_fail(err, SL_E_NET, "the network cannot be measured with '%.200s': %s", line->name,
                   why);
}

static int wait_for(struct line *line, bool write, struct sl_err *err)
{
    struct pollfd fds[SL_IO_POLL_MAX + 1];
    uint64_t deadline = UINT64_MAX, now = sl_now_ns();
    uint64_t limit = now + STALL_SECONDS * SL_NS_PER_S;
    int count = sl_link_poll(line->link, write, fds, &deadline);
    fds[count++] = (struct pollfd){.fd = sl_cancel_fd(line->cancel), .events = POLLIN};
    uint64_t end = SL_MIN(deadline, limit);
    int ready = poll(fds, (nfds_t)count, end <= now ? 0 : (int)((end - now) / SL_NS_PER_MS + 1));
    if (sl_cancel_check(line->cancel, err) < 0)
        return -1;
    if (ready == 0 && sl_now_ns() >= limit)
        return fail_line(line, err, "nothing came for 30 s");
    return 0;
}

static int connect_line(struct line *line, const char *url, const char *proxy, struct sl_err *err)
{
    if (line->open && !line->closing && sl_link_idle(line->link))
        return 0;
    line->open = line->closing = line->used = false;
    if (sl_link_open(line->link, url, proxy, err) < 0)
        return -1;
    for (;;) {
        enum sl_io_state state = sl_link_connect(line->link, err);
        if (state == SL_IO_DATA)
            break;
        if (state == SL_IO_FAILED || wait_for(line, false, err) < 0)
            return -1;
    }
    line->open = true;
    return 0;
}

static int send_all(struct line *line, const struct sl_buf *text, struct sl_err *err)
{
    for (size_t sent = 0; sent < text->used;) {
        ssize_t took = sl_link_send(line->link, text->data + sent, text->used - sent, err);
        if (took == SL_LINK_AGAIN) {
            if (wait_for(line, true, err) < 0)
                return -1;
            continue;
        }
        if (took < 0)
            return -1;
        sent += (size_t)took;
    }
    return 0;
}

/* Bytes that came, at least 1. */
static ssize_t receive(struct line *line, uint8_t *data, size_t bytes, struct sl_err *err)
{
    for (;;) {
        ssize_t came = sl_link_recv(line->link, data, bytes, err);
        if (came > 0) {
            line->silent = false;
            return came;
        }
        if (came == 0)
            return fail_line(line, err, "the server closed the connection early");
        if (came != SL_LINK_AGAIN || wait_for(line, false, err) < 0)
            return -1;
    }
}

/* ---- the answer's head ---------------------------------------------------------------------- */

/* The value of a header line in a head that ends in an empty line; NULL if it has none. */
static const char *find_header(const char *head, const char *name)
{
    size_t bytes = strlen(name);
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n"))
        if (strncasecmp(line + 2, name, bytes) == 0 && line[2 + bytes] == ':')
            return line + 2 + bytes + 1 + strspn(line + 2 + bytes + 1, " \t");
    return NULL;
}

/* Only an answer of exactly the bytes that were asked for is a measure of anything. */
static int judge_head(struct line *line, const char *head, uint64_t bytes, struct sl_err *err)
{
    char why[160];
    int status = 0;
    uint64_t length = 0;
    const char *announced = find_header(head, "Content-Length");
    const char *connection = find_header(head, "Connection");
    if (sscanf(head, "HTTP/1.%*1[01] %3d", &status) != 1)
        return fail_line(line, err, "the answer is not HTTP/1.1");
    snprintf(why, sizeof(why), "the server answered a range with status %d", status);
    if (status != 206)
        return fail_line(line, err, why);
    if (!announced || sscanf(announced, "%20" SCNu64, &length) != 1 || length != bytes)
        return fail_line(line, err, "the answer has not the length that was asked for");
    line->closing = connection && strncasecmp(connection, "close", 5) == 0;
    return 0;
}

/* Reads the head into the buffer and moves what came behind it to the begin. */
static int read_head(struct line *line, uint64_t bytes, struct sl_err *err)
{
    size_t used = 0;
    sl_link_expect(line->link, 1);
    while (used < HEAD_BYTES_MAX) {
        ssize_t came = receive(line, line->buffer + used, HEAD_BYTES_MAX - used, err);
        if (came < 0)
            return -1;
        used += (size_t)came;
        uint8_t *end = memmem(line->buffer, used, "\r\n\r\n", 4);
        if (!end)
            continue;
        size_t head_bytes = (size_t)(end - line->buffer) + 4;
        uint8_t after = line->buffer[head_bytes];
        line->buffer[head_bytes] = 0;
        if (judge_head(line, (const char *)line->buffer, bytes, err) < 0)
            return -1;
        line->buffer[head_bytes] = after;
        line->held = used - head_bytes;
        return 0;
    }
    return fail_line(line, err, "the answer's head is over 64 KiB");
}

/* ---- ranges --------------------------------------------------------------------------------- */

static int read_body(struct line *line, uint64_t bytes, struct sl_err *err)
{
    if (line->held > bytes)
        return fail_line(line, err, "more came than was asked for");
    for (uint64_t left = bytes - line->held; left;) {
        size_t part = (size_t)SL_MIN(left, (uint64_t)SL_BENCH_BUFFER_BYTES);
        sl_link_expect(line->link, part);
        ssize_t came = receive(line, line->buffer, part, err);
        if (came < 0)
            return -1;
        left -= (uint64_t)came;
    }
    return 0;
}

static int ask(struct line *line, const char *url, const char *proxy, const struct sl_buf *text,
               uint64_t bytes, struct sl_err *err)
{
    line->silent = true;
    if (connect_line(line, url, proxy, err) < 0 || send_all(line, text, err) < 0 ||
        read_head(line, bytes, err) < 0)
        return -1;
    line->used = true;
    return read_body(line, bytes, err);
}

/* A connection that was closed while it waited is not a failure of the server's. */
static int ask_again(struct line *line, const char *url, const char *proxy,
                     const struct sl_buf *text, uint64_t bytes, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (ask(line, url, proxy, text, bytes, &why) == 0)
        return 0;
    if (why.kind == SL_E_NET && line->used && line->silent) {
        line->open = false;
        return ask(line, url, proxy, text, bytes, err);
    }
    *err = why;
    return -1;
}

static int read_piece(struct line *line, const struct sl_bench_piece *piece, struct sl_err *err)
{
    sl_autofree char *url = NULL, *proxy = NULL;
    sl_autobuf text = SL_BUF_INIT(REQUEST_BYTES_MAX);
    sl_autourl parsed = {0};
    line->name = sl_source_uri(piece->source);
    if (sl_source_raw_request(piece->source, piece->begin, piece->end, &url, &text, err) < 0 ||
        sl_url_parse(url, &parsed, err) < 0 || sl_proxy_find(&parsed, &proxy, err) < 0)
        return -1;
    if (proxy && !parsed.tls)
        return sl_fail(err, SL_E_USAGE,
                       "the network cannot be measured through a proxy that reads along: set "
                       "no_proxy for '%.200s', or measure without network",
                       parsed.host);
    return ask_again(line, url, proxy ? proxy : "", &text, piece->end - piece->begin, err);
}

static int read_all(struct sl_bench_work *work, struct sl_err *err)
{
    struct sl_bench_piece piece;
    __attribute__((cleanup(line_release))) struct line line = {0};
    const struct sl_connect *connect = work->connect;
    line.cancel = connect->cancel;
    line.buffer = sl_alloc_aligned(4096, SL_BENCH_BUFFER_BYTES, err);
    line.link = line.buffer ? sl_link_new(connect, err) : NULL;
    if (!line.link)
        return -1;
    while (sl_bench_work_next(work, &piece))
        if (read_piece(&line, &piece, err) < 0)
            return -1;
    return 0;
}

int sl_bench_network(const struct sl_spec *spec, const struct sl_plan *plan, uint64_t range_bytes,
                     unsigned connections, uint64_t limit_bytes, struct sl_cancel *cancel,
                     struct sl_err *err)
{
    const struct sl_connect connect = {.tls = &spec->source.tls, .cancel = cancel};
    struct sl_bench_work work = {.plan = plan,
                                 .range_bytes = range_bytes,
                                 .limit_bytes = sl_bench_work_bytes(plan, limit_bytes),
                                 .connect = &connect};
    return sl_bench_work_run(&work, connections, read_all, err);
}

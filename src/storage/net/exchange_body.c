/*
 * Body framing: Content-Length, chunked, until close. Bytes are read into the caller's memory; the
 * buffer of the exchange holds only what came with the head and the lines between chunks.
 *
 * While a plain connection is in the middle of a body, poll() wakes only for 256 KiB or the rest
 * (SO_RCVLOWAT): fewer, fuller reads. Four connections that got 11 KiB every 200 us each took 0.20
 * CPU seconds per GB this way and 0.70 without; at memory speed it makes no difference. What
 * trickles in below the mark is read when the stall is judged.
 */
#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "exchange_state.h"

enum {
    CHUNK_LINE_MAX = 4 * 1024,
    TRAILER_BYTES_MAX = 16 * 1024,
    EXPECT_BYTES = 256 * 1024,
};

static enum sl_io_state end_body(struct sl_exchange *exchange)
{
    bool leftover = exchange->in_begin != exchange->in_end;
    exchange->answers++;
    sl_exchange_note_answer(exchange, true);
    exchange->phase = SL_X_DRAINED;
    exchange->away_ns = 0;
    if (exchange->head.close || exchange->head.framing == SL_FRAMING_CLOSE || leftover)
        sl_exchange_abort(exchange);
    exchange->phase = SL_X_DRAINED;
    return SL_IO_END;
}

static void count_body(struct sl_exchange *exchange, size_t bytes)
{
    exchange->came += bytes;
    exchange->moved_ns = sl_now_ns();
    if (exchange->connect.bandwidth)
        sl_bandwidth_used(exchange->connect.bandwidth, bytes, exchange->moved_ns);
}

/* Body bytes as they lie on the wire, at most `bytes`: from the buffer first, then from the link. 0
 * with DATA is the stream's end. */
static enum sl_io_state take_bytes(struct sl_exchange *exchange, char *data, uint64_t bytes,
                                   size_t *got, struct sl_err *err)
{
    size_t kept = exchange->in_end - exchange->in_begin;
    if (kept) {
        *got = (size_t)SL_MIN(bytes, kept);
        memcpy(data, exchange->in + exchange->in_begin, *got);
        exchange->in_begin += *got;
        count_body(exchange, *got);
        return SL_IO_DATA;
    }
    *got = 0;
    bytes = SL_MIN(bytes, (uint64_t)SSIZE_MAX);
    if (exchange->connect.bandwidth)
        bytes = sl_bandwidth_ask(&exchange->pace, exchange->connect.bandwidth, (size_t)bytes,
                                 sl_now_ns());
    if (!bytes) { /* the time until its turn is not the server's */
        exchange->away_ns = sl_now_ns();
        return SL_IO_WAIT;
    }
    ssize_t came = sl_link_recv(exchange->link, data, (size_t)bytes, err);
    if (came == SL_LINK_AGAIN)
        return SL_IO_WAIT;
    if (came < 0)
        return SL_IO_FAILED;
    *got = (size_t)came;
    count_body(exchange, *got);
    sl_exchange_progress(exchange, *got);
    return SL_IO_DATA;
}

/* One line of the chunked framing: DATA with *line (ended), or as sl_exchange_receive(). */
static enum sl_io_state take_line(struct sl_exchange *exchange, char **line, struct sl_err *err)
{
    for (;;) {
        char *begin = exchange->in + exchange->in_begin;
        size_t there = exchange->in_end - exchange->in_begin;
        char *newline = there ? memchr(begin, '\n', there) : NULL;
        if (newline) {
            exchange->in_begin += (size_t)(newline - begin) + 1;
            *newline = 0;
            if (newline > begin && newline[-1] == '\r')
                newline[-1] = 0;
            *line = begin;
            return SL_IO_DATA;
        }
        if (there > CHUNK_LINE_MAX)
            return sl_exchange_refuse(exchange, false, "a line of the chunked body is too long",
                                      err);
        bool ended;
        enum sl_io_state state = sl_exchange_receive(exchange, &ended, err);
        if (state == SL_IO_DATA && ended)
            return sl_exchange_refuse(exchange, true, "the body broke off", err);
        if (state != SL_IO_DATA)
            return state;
    }
}

static bool parse_chunk_size(const char *line, uint64_t *bytes)
{
    unsigned digits = 0;
    *bytes = 0;
    for (; isxdigit((unsigned char)*line); line++, digits++)
        *bytes =
            *bytes << 4 |
            (uint64_t)(isdigit((unsigned char)*line) ? *line - '0' : (*line | 0x20) - 'a' + 10);
    return digits > 0 && digits <= 15 &&
           (*line == 0 || *line == ';' || *line == ' ' || *line == '\t');
}

/* Walk the framing until chunk data is next (DATA, left > 0), the body ended (END), or as
 * sl_exchange_receive(). */
static enum sl_io_state next_chunk(struct sl_exchange *exchange, struct sl_err *err)
{
    char *line = NULL;
    while (exchange->chunk != SL_X_CHUNK_DATA) {
        if (exchange->chunk == SL_X_CHUNK_DONE)
            return SL_IO_END;
        enum sl_io_state state = take_line(exchange, &line, err);
        if (state != SL_IO_DATA)
            return state;
        if (exchange->chunk == SL_X_CHUNK_END) {
            if (*line)
                return sl_exchange_refuse(exchange, false,
                                          "a chunk of the body is longer than it said", err);
            exchange->chunk = SL_X_CHUNK_SIZE;
        } else if (exchange->chunk == SL_X_CHUNK_SIZE) {
            if (!parse_chunk_size(line, &exchange->left))
                return sl_exchange_refuse(exchange, false, "bad chunk size in the body", err);
            exchange->chunk = exchange->left ? SL_X_CHUNK_DATA : SL_X_CHUNK_TRAILER;
        } else if (!*line) {
            exchange->chunk = SL_X_CHUNK_DONE;
        } else if ((exchange->trailer_bytes += strlen(line)) > TRAILER_BYTES_MAX) {
            return sl_exchange_refuse(exchange, false, "too many trailers behind the body", err);
        }
    }
    return SL_IO_DATA;
}

/* Some bytes of the body: DATA with *got > 0, END, WAIT or FAILED. */
static enum sl_io_state body_some(struct sl_exchange *exchange, char *data, size_t bytes,
                                  size_t *got, struct sl_err *err)
{
    enum sl_framing framing = exchange->head.framing;
    uint64_t limit = framing == SL_FRAMING_CLOSE ? bytes : exchange->left;
    if (framing == SL_FRAMING_LENGTH && !exchange->left)
        return SL_IO_END;
    if (framing == SL_FRAMING_CHUNKED) {
        enum sl_io_state state = next_chunk(exchange, err);
        if (state != SL_IO_DATA)
            return state;
        limit = exchange->left;
    }
    enum sl_io_state state = take_bytes(exchange, data, SL_MIN(bytes, limit), got, err);
    if (state == SL_IO_WAIT)
        return exchange->pace.turn_ns ? state : sl_exchange_stay(exchange, err);
    if (state == SL_IO_FAILED) {
        sl_wrap(err, "%s", exchange->subject);
        return sl_exchange_fail(exchange);
    }
    if (*got == 0)
        return framing == SL_FRAMING_CLOSE
                   ? SL_IO_END
                   : sl_exchange_refuse(exchange, true,
                                        "the connection closed before the body was complete", err);
    if (framing != SL_FRAMING_CLOSE) {
        exchange->left -= *got;
        if (framing == SL_FRAMING_CHUNKED && !exchange->left)
            exchange->chunk = SL_X_CHUNK_END;
    }
    return state;
}

enum sl_io_state sl_exchange_body(struct sl_exchange *exchange, void *data, size_t bytes,
                                  size_t *got, struct sl_err *err)
{
    *got = 0;
    if (exchange->pending.kind != SL_OK) {
        if (err)
            *err = exchange->pending;
        exchange->pending.kind = SL_OK;
        return SL_IO_FAILED;
    }
    if (exchange->phase == SL_X_DRAINED)
        return SL_IO_END;
    if (exchange->phase != SL_X_BODY)
        return sl_exchange_refuse(exchange, false, "the body was asked for before the head", err);
    sl_exchange_enter(exchange);
    struct sl_err problem = SL_ERR_INIT;
    enum sl_io_state state = SL_IO_DATA;
    while (*got < bytes && state == SL_IO_DATA) {
        size_t came = 0;
        state = body_some(exchange, (char *)data + *got, bytes - *got, &came, &problem);
        *got += came;
    }
    if (*got) { /* what came is good; a failure behind it is told next time */
        if (state == SL_IO_FAILED)
            exchange->pending = problem;
        exchange->away_ns = sl_now_ns();
        return SL_IO_DATA;
    }
    if (state == SL_IO_FAILED && err)
        *err = problem;
    if (state == SL_IO_END)
        return end_body(exchange);
    if (state == SL_IO_WAIT && exchange->head.framing == SL_FRAMING_LENGTH &&
        !exchange->pace.turn_ns)
        sl_link_expect(exchange->link, (size_t)SL_MIN(exchange->left, (uint64_t)EXPECT_BYTES));
    return state;
}

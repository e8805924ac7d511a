/*
 * The way out: the head of a request with a body that was copied, lent, or comes in pieces.
 *
 * A server may answer before it has read the whole body (a refusal, a full disk) and close: what it
 * says is worth more than the broken pipe that follows. So whenever the socket is full, before each
 * of the first pieces of a stream, which the caller may still be able to send elsewhere, and once
 * more when it breaks, we look for an answer. The rest of the body is then not sent, and the
 * connection is not used again.
 */
#include "exchange_state.h"

enum {
    BEGINNING_BYTES = 8 * 1024 * 1024, /* sockets alone may take as much */
};

/* An answer before its time: DATA if it is whole, WAIT, FAILED. */
static enum sl_io_state listen_early(struct sl_exchange *exchange, struct sl_err *err)
{
    enum sl_io_state state = sl_exchange_read_head(exchange, err);
    if (state == SL_IO_DATA)
        exchange->head.close = true;
    return state;
}

/* Sending failed: DATA if the server had answered before, else as sl_exchange_broken(). */
static enum sl_io_state last_words(struct sl_exchange *exchange, struct sl_err *err)
{
    struct sl_err ignored = SL_ERR_INIT;
    unsigned answers = exchange->answers;
    exchange->answers = 0; /* no new connection from here */
    enum sl_io_state state =
        exchange->sent || exchange->streamed ? listen_early(exchange, &ignored) : SL_IO_FAILED;
    if (state == SL_IO_DATA) {
        if (err)
            *err = (struct sl_err)SL_ERR_INIT;
        return state;
    }
    exchange->answers = answers;
    return sl_exchange_broken(exchange, err);
}

static void sent_all(struct sl_exchange *exchange)
{
    bool stream = exchange->streamed < exchange->stream_bytes;
    exchange->phase = stream ? SL_X_STREAM : SL_X_HEAD;
    exchange->asked_ns = exchange->window_ns = sl_now_ns();
    exchange->window_bytes = 0;
    exchange->answer_ns = 0;
    sl_exchange_set_hedge(exchange);
}

enum sl_io_state sl_exchange_send_start(struct sl_exchange *exchange, struct sl_err *err)
{
    size_t all = exchange->out.used + exchange->body_bytes;
    if (!exchange->sent)
        exchange->sending_ns = sl_now_ns();
    while (exchange->sent < all) {
        bool head = exchange->sent < exchange->out.used;
        const char *data = head ? exchange->out.data + exchange->sent
                                : exchange->body + (exchange->sent - exchange->out.used);
        size_t end = head ? exchange->out.used : all;
        ssize_t sent = sl_link_send(exchange->link, data, end - exchange->sent, err);
        if (sent == SL_LINK_AGAIN)
            return listen_early(exchange, err);
        if (sent < 0)
            return last_words(exchange, err);
        exchange->sent += (size_t)sent;
        sl_exchange_progress(exchange, (size_t)sent);
    }
    sent_all(exchange);
    return SL_IO_DATA;
}

enum sl_io_state sl_exchange_ready(struct sl_exchange *exchange, struct sl_err *err)
{
    sl_exchange_enter(exchange);
    for (;;) {
        bool connecting = exchange->phase == SL_X_CONNECTING;
        enum sl_io_state state = sl_exchange_begin(exchange, err);
        if (exchange->phase == SL_X_STREAM) {
            state = exchange->wanted ? SL_IO_WAIT : listen_early(exchange, err);
            bool late = sl_now_ns() >= exchange->asked_ns + SL_X_OFFER_NS;
            if (state == SL_IO_WAIT && exchange->phase == SL_X_STREAM &&
                (exchange->wanted || late)) {
                exchange->wanted = true;
                exchange->away_ns = sl_now_ns();
                return SL_IO_DATA;
            }
        }
        if (exchange->phase == SL_X_CONNECTING && !connecting)
            continue;
        if (exchange->phase == SL_X_BODY)
            return SL_IO_END;
        return state;
    }
}

enum sl_io_state sl_exchange_send(struct sl_exchange *exchange, const void *data, size_t bytes,
                                  size_t *taken, struct sl_err *err)
{
    *taken = 0;
    sl_exchange_enter(exchange);
    if (exchange->phase == SL_X_BODY)
        return SL_IO_END;
    if (exchange->phase != SL_X_STREAM || bytes > exchange->stream_bytes - exchange->streamed)
        return sl_exchange_refuse(exchange, false, "more body than was announced", err);
    enum sl_io_state state = SL_IO_WAIT;
    if (exchange->streamed < BEGINNING_BYTES)
        state = listen_early(exchange, err);
    if (state != SL_IO_WAIT)
        return state == SL_IO_DATA ? SL_IO_END : state;
    if (exchange->phase != SL_X_STREAM)
        return sl_exchange_refuse(exchange, true, "the server closed the connection", err);
    ssize_t sent = sl_link_send(exchange->link, data, bytes, err);
    if (sent > 0) {
        *taken = (size_t)sent;
        exchange->streamed += (uint64_t)sent;
        sl_exchange_progress(exchange, (size_t)sent);
        if (exchange->streamed == exchange->stream_bytes)
            sent_all(exchange);
        exchange->away_ns = sl_now_ns();
        return SL_IO_DATA;
    }
    state = sent == SL_LINK_AGAIN ? listen_early(exchange, err) : last_words(exchange, err);
    return state == SL_IO_DATA ? SL_IO_END : state;
}

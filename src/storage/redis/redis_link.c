/*
 * Redis' protocol (RESP2) over one link.
 *
 * hiredis writes the commands and reads the replies, with one exception: it reads in pieces of
 * 16 KiB and copies each byte twice more before a caller sees it, so the bytes of values are
 * received by us, into the caller's memory. Connecting is link.c's, because hiredis has no TLS in
 * the versions that distributions carry, and names, certificates and time-outs are decided there
 * already.
 *
 * A reply ends with a CRLF, so hiredis is fed up to one CRLF at a time until it has a reply: it
 * never takes bytes of the next one, which may be a value's.
 *
 *     CLOSED ──▶ CONNECTING ──▶ GREETING ──▶ READY        failures, and closing it: CLOSED
 */
#include "redis_link.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "link.h"
#include "redis_reader.h"
#include "thread.h"

enum {
    STALL_SECONDS_DEFAULT = 30,
    STALL_BYTES = 64 * 1024, /* fewer in that time is a stall */
    IN_BYTES = 16 * 1024,
    OUT_BYTES_MAX = 64 << 20,
    REPLY_BYTES_MAX = 64 << 20,
    LENGTH_DIGITS_MAX = 18,
};

enum phase { CLOSED, CONNECTING, GREETING, READY };

struct sl_redis_link {
    const struct sl_redis_place *place;
    const struct sl_source_config *config;
    struct sl_connect connect;
    struct sl_link *link;
    enum phase phase;
    unsigned greetings; /* replies of the greeting that are still to come */
    struct sl_buf out;
    size_t sent;
    struct sl_redis_word lent; /* goes behind out, with a CRLF */
    size_t lent_sent;
    char in[IN_BYTES]; /* received and not yet taken: [in_begin, in_end) */
    size_t in_begin, in_end;
    redisReader *reader; /* holds no more than the reply in hand */
    size_t reply_bytes;
    unsigned waiting;                 /* commands without a reply */
    uint64_t left;                    /* of the value in hand */
    uint64_t window_ns, window_bytes; /* stall */
    uint64_t away_ns;                 /* when the caller was given something, 0: not */
};

static void set_phase(struct sl_redis_link *link, enum phase to)
{
#ifndef NDEBUG
#define TO(phase) (1u << (phase))
    static const unsigned steps[] = {
        [CLOSED] = TO(CLOSED) | TO(CONNECTING),
        [CONNECTING] = TO(CLOSED) | TO(GREETING),
        [GREETING] = TO(CLOSED) | TO(READY),
        [READY] = TO(CLOSED) | TO(READY),
    };
#undef TO
    assert(steps[link->phase] & 1u << to);
#endif
    link->phase = to;
}

struct sl_redis_link *sl_redis_link_new(const struct sl_redis_place *place,
                                        const struct sl_source_config *config, struct sl_err *err)
{
    SL_AUTO(sl_redis_link) link = sl_alloc(sizeof(*link), err);
    if (!link)
        return NULL;
    link->place = place;
    link->config = config;
    link->connect = (struct sl_connect){.tls = config->tls,
                                        .cancel = config->cancel,
                                        .stall_seconds = config->stall_seconds,
                                        .owner = config,
                                        .host_connections = config->host_connections,
                                        .direct = true};
    link->out.limit = OUT_BYTES_MAX;
    link->link = sl_link_new(&link->connect, err);
    return link->link ? sl_steal(&link) : NULL;
}

void sl_redis_link_close(struct sl_redis_link *link)
{
    if (link->link)
        sl_link_close(link->link);
    if (link->reader)
        redisReaderFree(link->reader);
    link->reader = NULL;
    set_phase(link, CLOSED);
    link->waiting = link->greetings = 0;
    link->in_begin = link->in_end = link->out.used = link->sent = link->reply_bytes = 0;
    link->left = 0;
    link->lent = (struct sl_redis_word){0};
    link->lent_sent = 0;
}

void sl_redis_link_hang_up(struct sl_redis_link *link, unsigned seconds)
{
    struct pollfd fds[SL_IO_POLL_MAX];
    uint64_t end_ns = sl_now_ns() + seconds * SL_NS_PER_S, now, ignored;
    char taken[4096];
    ssize_t got = -1;
    bool open = link->phase == GREETING || link->phase == READY;
    if (open && sl_link_poll(link->link, false, fds, &ignored) > 0 &&
        shutdown(fds[0].fd, SHUT_WR) == 0) {
        fds[0].events = POLLIN;
        while ((now = sl_now_ns()) < end_ns && got != 0) {
            if (poll(fds, 1, (int)((end_ns - now) / SL_NS_PER_MS) + 1) > 0)
                got = recv(fds[0].fd, taken, sizeof(taken), MSG_DONTWAIT);
            if (got < 0 && errno != EAGAIN && errno != EINTR)
                break;
        }
    }
    sl_redis_link_close(link);
}

void sl_redis_link_free(struct sl_redis_link *link)
{
    if (!link)
        return;
    sl_redis_link_close(link);
    sl_link_free(link->link);
    sl_buf_release(&link->out);
    free(link);
}

/* ---- progress -------------------------------------------------------------------------------- */

static void begin_window(struct sl_redis_link *link)
{
    link->window_ns = sl_now_ns();
    link->window_bytes = link->away_ns = 0;
}

/* The caller came back: the time that it was away was not the server's. */
static void enter(struct sl_redis_link *link)
{
    if (link->away_ns)
        link->window_ns += sl_now_ns() - link->away_ns;
    link->away_ns = 0;
}

static enum sl_io_state leave(struct sl_redis_link *link)
{
    link->away_ns = sl_now_ns();
    return SL_IO_DATA;
}

static void progress(struct sl_redis_link *link, size_t bytes)
{
    link->window_bytes += bytes;
    if (link->window_bytes >= STALL_BYTES)
        begin_window(link);
}

static uint64_t stall_ns(const struct sl_redis_link *link)
{
    unsigned seconds = link->config->stall_seconds;
    return link->window_ns + (seconds ? seconds : STALL_SECONDS_DEFAULT) * SL_NS_PER_S;
}

static enum sl_io_state fail(struct sl_redis_link *link)
{
    sl_redis_link_close(link);
    return SL_IO_FAILED;
}

static enum sl_io_state stay(struct sl_redis_link *link, struct sl_err *err)
{
    if (sl_now_ns() < stall_ns(link))
        return SL_IO_WAIT;
    sl_fail_code(err, SL_E_NET, "stall", "'%s' stalled: %" PRIu64 " bytes in %u s",
                 link->place->label, link->window_bytes,
                 link->config->stall_seconds ? link->config->stall_seconds : STALL_SECONDS_DEFAULT);
    return fail(link);
}

/* The server does not speak Redis' protocol, or no longer. */
static enum sl_io_state break_protocol(struct sl_redis_link *link, const char *why,
                                       struct sl_err *err)
{
    sl_fail_code(err, SL_E_NET, "protocol", "'%s' %s: is it a Redis server?", link->place->label,
                 why);
    if (err)
        err->retryable = false;
    return fail(link);
}

/* ---- connecting ------------------------------------------------------------------------------ */

/* DATA: all of [*sent, bytes) went. */
static enum sl_io_state send_from(struct sl_redis_link *link, const char *data, size_t bytes,
                                  size_t *sent, struct sl_err *err)
{
    while (*sent < bytes) {
        ssize_t went = sl_link_send(link->link, data + *sent, bytes - *sent, err);
        if (went == SL_LINK_AGAIN)
            return SL_IO_WAIT;
        if (went < 0)
            return fail(link);
        *sent += (size_t)went;
        progress(link, (size_t)went);
    }
    return SL_IO_DATA;
}

static enum sl_io_state send_some(struct sl_redis_link *link, struct sl_err *err)
{
    enum sl_io_state state = send_from(link, link->out.data, link->out.used, &link->sent, err);
    if (state == SL_IO_DATA && link->lent.data) {
        state = send_from(link, link->lent.data, link->lent.bytes, &link->lent_sent, err);
        if (state != SL_IO_DATA)
            return state;
        link->lent = (struct sl_redis_word){0};
        link->lent_sent = link->sent = link->out.used = 0;
        if (sl_buf_text(&link->out, "\r\n", err) < 0)
            return fail(link);
        state = send_from(link, link->out.data, link->out.used, &link->sent, err);
    }
    if (state == SL_IO_DATA)
        link->sent = link->out.used = 0;
    return state;
}

static int add_command(struct sl_redis_link *link, const struct sl_redis_word *words,
                       unsigned count, struct sl_err *err)
{
    const char *data[SL_REDIS_WORDS_MAX];
    size_t bytes[SL_REDIS_WORDS_MAX];
    for (unsigned i = 0; i < count; i++) {
        data[i] = words[i].data;
        bytes[i] = words[i].bytes;
    }
    char *text = NULL;
    int length = redisFormatCommandArgv(&text, (int)count, data, bytes);
    if (length < 0)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory");
    int result = sl_buf_append(&link->out, text, (size_t)length, err);
    explicit_bzero(text, (size_t)length);
    redisFreeCommand(text);
    return result;
}

static struct sl_redis_word word(const char *text)
{
    return (struct sl_redis_word){text, strlen(text)};
}

/* AUTH and SELECT, as far as they are needed. */
static int greet(struct sl_redis_link *link, struct sl_err *err)
{
    const struct sl_redis_place *place = link->place;
    char number[24];
    if (place->password) {
        struct sl_redis_word words[3] = {word("AUTH")};
        unsigned count = 1;
        if (place->user)
            words[count++] = word(place->user);
        words[count++] = word(place->password);
        if (add_command(link, words, count, err) < 0)
            return -1;
        link->greetings++;
    }
    if (place->database) {
        snprintf(number, sizeof(number), "%" PRIu64, place->database);
        if (add_command(link, (struct sl_redis_word[]){word("SELECT"), word(number)}, 2, err) < 0)
            return -1;
        link->greetings++;
    }
    return 0;
}

int sl_redis_link_open(struct sl_redis_link *link, struct sl_err *err)
{
    begin_window(link);
    if (link->phase == READY && !link->waiting && !link->left && link->in_begin == link->in_end &&
        sl_link_idle(link->link))
        return 0;
    sl_redis_link_close(link);
    link->reader = sl_redis_reader_new();
    if (!link->reader)
        return sl_fail(err, SL_E_NO_SPACE, "out of memory");
    if (sl_link_open(link->link, link->place->url, "", err) < 0 || greet(link, err) < 0) {
        sl_redis_link_close(link);
        return -1;
    }
    set_phase(link, CONNECTING);
    return 0;
}

static enum sl_io_state read_reply(struct sl_redis_link *link, redisReply **reply,
                                   struct sl_err *err);

/* One reply of the greeting; both have the same form, so they need no telling apart. */
static enum sl_io_state take_greeting(struct sl_redis_link *link, struct sl_err *err)
{
    redisReply *reply = NULL;
    enum sl_io_state state = read_reply(link, &reply, err);
    if (state != SL_IO_DATA)
        return state;
    if (reply->type == REDIS_REPLY_ERROR) {
        sl_redis_fail(link->place, reply->str, err);
        state = fail(link);
    }
    freeReplyObject(reply);
    return state;
}

enum sl_io_state sl_redis_link_ready(struct sl_redis_link *link, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    enter(link);
    if (link->phase == CLOSED) {
        sl_fail(err, SL_E_INTERNAL, "a connection to '%s' that was not begun", link->place->label);
        return SL_IO_FAILED;
    }
    if (link->phase == CONNECTING) {
        state = sl_link_connect(link->link, err);
        if (state == SL_IO_FAILED)
            return fail(link);
        if (state == SL_IO_WAIT)
            return state;
        set_phase(link, GREETING);
        begin_window(link);
    }
    while (link->phase == GREETING && link->greetings) {
        state = take_greeting(link, err);
        if (state != SL_IO_DATA)
            return state;
        link->greetings--;
    }
    set_phase(link, READY);
    return SL_IO_DATA;
}

int sl_redis_link_command(struct sl_redis_link *link, const struct sl_redis_word *words,
                          unsigned count, struct sl_err *err)
{
    if (!link->waiting)
        begin_window(link);
    if (add_command(link, words, count, err) < 0)
        return -1;
    link->waiting++;
    return 0;
}

/* hiredis would copy the value into the command; this writes what stands around it. */
int sl_redis_link_store(struct sl_redis_link *link, const struct sl_redis_word *words,
                        unsigned count, const void *data, size_t bytes, struct sl_err *err)
{
    if (!link->waiting)
        begin_window(link);
    int result = sl_buf_printf(&link->out, err, "*%u\r\n", count + 1);
    for (unsigned i = 0; i < count && result == 0; i++) {
        result = sl_buf_printf(&link->out, err, "$%zu\r\n", words[i].bytes);
        if (result == 0)
            result = sl_buf_append(&link->out, words[i].data, words[i].bytes, err);
        if (result == 0)
            result = sl_buf_text(&link->out, "\r\n", err);
    }
    if (result < 0 || sl_buf_printf(&link->out, err, "$%zu\r\n", bytes) < 0)
        return -1;
    link->lent = (struct sl_redis_word){data, bytes};
    link->lent_sent = 0;
    link->waiting++;
    return 0;
}

/* Bytes that are queued and not sent. */
static size_t unsent_bytes(const struct sl_redis_link *link)
{
    return link->out.used - link->sent + link->lent.bytes - link->lent_sent;
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Bytes into [data, data + bytes): DATA if any came. */
static enum sl_io_state receive(struct sl_redis_link *link, void *data, size_t bytes, size_t *got,
                                struct sl_err *err)
{
    if (send_some(link, err) == SL_IO_FAILED)
        return SL_IO_FAILED;
    ssize_t came = sl_link_recv(link->link, data, bytes, err);
    if (came == SL_LINK_AGAIN)
        return stay(link, err);
    if (came == 0)
        sl_fail(err, SL_E_NET, "'%s' closed the connection", link->place->label);
    if (came <= 0)
        return fail(link);
    *got = (size_t)came;
    progress(link, (size_t)came);
    return SL_IO_DATA;
}

static enum sl_io_state fill(struct sl_redis_link *link, struct sl_err *err)
{
    size_t got = 0;
    if (link->in_begin) {
        memmove(link->in, link->in + link->in_begin, link->in_end - link->in_begin);
        link->in_end -= link->in_begin;
        link->in_begin = 0;
    }
    enum sl_io_state state =
        receive(link, link->in + link->in_end, IN_BYTES - link->in_end, &got, err);
    link->in_end += got;
    return state;
}

/* Bytes of the buffer up to and with the first CRLF; all of a full buffer without one; 0: more must
 * come. */
static size_t line_bytes(const struct sl_redis_link *link)
{
    const char *begin = link->in + link->in_begin;
    size_t bytes = link->in_end - link->in_begin;
    for (const char *at = begin; (at = memchr(at, '\n', bytes - (size_t)(at - begin))); at++)
        if (at > begin && at[-1] == '\r')
            return (size_t)(at - begin) + 1;
    /* The CR may be the last byte, and its LF the next. */
    return bytes == IN_BYTES ? bytes - 1 : 0;
}

static enum sl_io_state read_reply(struct sl_redis_link *link, redisReply **reply,
                                   struct sl_err *err)
{
    void *made = NULL;
    while (!made) {
        size_t bytes = line_bytes(link);
        if (!bytes) {
            enum sl_io_state state = fill(link, err);
            if (state != SL_IO_DATA)
                return state;
            continue;
        }
        link->reply_bytes += bytes;
        if (link->reply_bytes > REPLY_BYTES_MAX)
            return break_protocol(link, "answers with more than 64 MiB", err);
        if (redisReaderFeed(link->reader, link->in + link->in_begin, bytes) != REDIS_OK ||
            redisReaderGetReply(link->reader, &made) != REDIS_OK)
            return break_protocol(link, "sends what is not a reply", err);
        link->in_begin += bytes;
    }
    link->reply_bytes = 0;
    *reply = made;
    return SL_IO_DATA;
}

enum sl_io_state sl_redis_link_reply(struct sl_redis_link *link, redisReply **reply,
                                     struct sl_err *err)
{
    enter(link);
    enum sl_io_state state = read_reply(link, reply, err);
    if (state != SL_IO_DATA)
        return state;
    link->waiting -= link->waiting > 0;
    return leave(link);
}

/* A reply that is not what was asked for: an error of the server, or nonsense. */
static enum sl_io_state refuse(struct sl_redis_link *link, const redisReply *reply,
                               struct sl_err *err)
{
    if (reply->type != REDIS_REPLY_ERROR)
        return break_protocol(link, "answers with another kind of reply than was asked for", err);
    sl_redis_fail(link->place, reply->str, err);
    return fail(link);
}

enum sl_io_state sl_redis_link_number(struct sl_redis_link *link, int64_t *number,
                                      struct sl_err *err)
{
    redisReply *reply = NULL;
    enum sl_io_state state = sl_redis_link_reply(link, &reply, err);
    if (state != SL_IO_DATA)
        return state;
    if (reply->type == REDIS_REPLY_INTEGER)
        *number = reply->integer;
    else
        state = refuse(link, reply, err);
    freeReplyObject(reply);
    return state;
}

/* "$1234\r\n", or "$-1\r\n" for none; -2 if it is neither. */
static int64_t parse_length(const char *line, size_t bytes)
{
    int64_t value = 0;
    if (bytes == 5 && memcmp(line, "$-1\r\n", 5) == 0)
        return -1;
    if (bytes < 4 || bytes > 3 + LENGTH_DIGITS_MAX)
        return -2;
    for (size_t i = 1; i < bytes - 2; i++) {
        if (line[i] < '0' || line[i] > '9')
            return -2;
        value = value * 10 + (line[i] - '0');
    }
    return value;
}

enum sl_io_state sl_redis_link_value(struct sl_redis_link *link, int64_t *bytes, struct sl_err *err)
{
    enum sl_io_state state;
    size_t line;
    enter(link);
    while (!(line = line_bytes(link))) {
        state = fill(link, err);
        if (state != SL_IO_DATA)
            return state;
    }
    if (link->in[link->in_begin] != '$') {
        redisReply *reply = NULL;
        state = read_reply(link, &reply, err);
        if (state != SL_IO_DATA)
            return state;
        state = refuse(link, reply, err);
        freeReplyObject(reply);
        return state;
    }
    *bytes = parse_length(link->in + link->in_begin, line);
    if (*bytes < -1)
        return break_protocol(link, "sends a value without a length", err);
    link->in_begin += line;
    link->left = *bytes < 0 ? 0 : (uint64_t)*bytes + 2;
    link->waiting -= link->waiting > 0;
    return leave(link);
}

/* The CRLF behind a value: END. */
static enum sl_io_state end_value(struct sl_redis_link *link, struct sl_err *err)
{
    while (link->left) {
        if (link->in_begin == link->in_end) {
            enum sl_io_state state = fill(link, err);
            if (state != SL_IO_DATA)
                return state;
        }
        if (link->in[link->in_begin] != (link->left == 2 ? '\r' : '\n'))
            return break_protocol(link, "sends a value of another length than it says", err);
        link->in_begin++;
        link->left--;
    }
    leave(link);
    return SL_IO_END;
}

enum sl_io_state sl_redis_link_value_read(struct sl_redis_link *link, void *data, size_t bytes,
                                          size_t *got, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    *got = 0;
    enter(link);
    if (link->left <= 2)
        return end_value(link, err);
    uint64_t value = link->left - 2;
    size_t wanted = (size_t)SL_MIN(bytes, value);
    /* What is short brings what follows it in the same call. */
    if (link->in_begin == link->in_end && value < IN_BYTES) {
        state = fill(link, err);
        if (state != SL_IO_DATA)
            return state;
    }
    if (link->in_begin < link->in_end) {
        *got = SL_MIN(wanted, link->in_end - link->in_begin);
        memcpy(data, link->in + link->in_begin, *got);
        link->in_begin += *got;
    } else {
        state = receive(link, data, wanted, got, err);
        if (state != SL_IO_DATA)
            return state;
    }
    link->left -= *got;
    return leave(link);
}

/* ---- waiting --------------------------------------------------------------------------------- */

int sl_redis_link_poll(struct sl_redis_link *link, struct pollfd fds[SL_IO_POLL_MAX],
                       uint64_t *deadline_ns)
{
    if (link->phase == CLOSED) {
        *deadline_ns = 0;
        return 0;
    }
    bool unsent = link->phase != CONNECTING && unsent_bytes(link);
    int count = sl_link_poll(link->link, unsent, fds, deadline_ns);
    if (link->phase == CONNECTING)
        return count;
    /* A server that waits for us to take its replies takes no commands. */
    fds[0].events |= POLLIN;
    *deadline_ns = stall_ns(link);
    return count;
}

int sl_redis_link_wait(struct sl_redis_link *link, struct sl_err *err)
{
    struct pollfd fds[SL_IO_POLL_MAX + 1];
    uint64_t deadline_ns, now = sl_now_ns();
    int count = sl_redis_link_poll(link, fds, &deadline_ns), timeout_ms = -1;
    fds[count] = (struct pollfd){sl_cancel_fd(link->config->cancel), POLLIN, 0};
    if (deadline_ns <= now)
        timeout_ms = 0;
    else if (deadline_ns != UINT64_MAX)
        timeout_ms = (int)SL_MIN((deadline_ns - now) / SL_NS_PER_MS + 1, 60000u);
    if (timeout_ms)
        poll(fds, (nfds_t)count + 1, timeout_ms);
    return sl_cancel_check(link->config->cancel, err);
}

/*
 * One connection to a Redis server, for its source and its upload. Non-blocking, one thread at a
 * time. Names, TLS and bytes are link.c's; commands and replies are hiredis', but for large values,
 * which are received straight into the caller's memory.
 */
#ifndef SL_REDIS_LINK_H
#define SL_REDIS_LINK_H

#include <hiredis/hiredis.h>

#include "buf.h"
#include "fetch.h"
#include "redis_options.h"
#include "source.h"

/** Which server, and as whom. */
struct sl_redis_place {
    char *url;             /* http(s)://host:port/, for link.c */
    char *label;           /* redis(s)://host[:port], without secrets, for people */
    char *user, *password; /* NULL: none */
    uint64_t database;
};
struct sl_url;
/** The URI as one of http, with Redis' port; SL_E_USAGE. */
int sl_redis_uri_parse(const char *uri, struct sl_url *url, struct sl_err *err);
/**
 * Take apart redis[s]://[user[:password]@]host[:port]/PREFIX.
 *
 * @options  of the spec; NULL: defaults. The password comes from the URI, else from
 *           source.redis.passwordFile, else from REDIS_PASSWORD.
 * @place    out: release it, after a failure too.
 * @prefix   out: percent-decoded, without '/' at its end; "" if there is none. free() it; NULL
 *           after a failure.
 * @return   0, or -1: SL_E_USAGE, which quotes nothing secret; SL_E_NO_SPACE.
 */
int sl_redis_place_parse(const char *uri, const struct sl_redis_options *options,
                         struct sl_redis_place *place, char **prefix, struct sl_err *err);
void sl_redis_place_release(struct sl_redis_place *place);

struct sl_redis_link;
/** place and config are borrowed until it is freed. No network. */
struct sl_redis_link *sl_redis_link_new(const struct sl_redis_place *place,
                                        const struct sl_source_config *config, struct sl_err *err);
void sl_redis_link_free(struct sl_redis_link *link);
SL_AUTO_DEFINE(sl_redis_link)
/** Connect, unless there is a connection that is idle and alive. Does not block. */
int sl_redis_link_open(struct sl_redis_link *link, struct sl_err *err);
void sl_redis_link_close(struct sl_redis_link *link);
/**
 * End the connection, and wait (at most so long) until the server has ended it, too: what was sent
 * is carried out by then, and nothing later. Blocks, and is not canceled.
 */
void sl_redis_link_hang_up(struct sl_redis_link *link, unsigned seconds);
/** WAIT until DATA: connected, logged in, the database selected. */
enum sl_io_state sl_redis_link_ready(struct sl_redis_link *link, struct sl_err *err);

struct sl_redis_word {
    const void *data;
    size_t bytes;
};
enum { SL_REDIS_WORDS_MAX = 8 };
/** Queue one command once the link is ready; it leaves while replies are waited for. */
int sl_redis_link_command(struct sl_redis_link *link, const struct sl_redis_word *words,
                          unsigned count, struct sl_err *err);
/**
 * As sl_redis_link_command(), with one more word, which is lent.
 *
 * @words, count  those before it; copied.
 * @data, bytes   the word: it must stay until its reply has come, and no other command may follow
 *                before that.
 * @return        0, or -1 with SL_E_NO_SPACE.
 */
int sl_redis_link_store(struct sl_redis_link *link, const struct sl_redis_word *words,
                        unsigned count, const void *data, size_t bytes, struct sl_err *err);
/**
 * The next reply, whatever it is, errors included; freeReplyObject() it. DATA, WAIT or FAILED.
 * For replies of at most 64 MiB.
 */
enum sl_io_state sl_redis_link_reply(struct sl_redis_link *link, redisReply **reply,
                                     struct sl_err *err);
/** The next reply, which must be an integer; an error reply is FAILED. */
enum sl_io_state sl_redis_link_number(struct sl_redis_link *link, int64_t *number,
                                      struct sl_err *err);
/**
 * The next reply, which must be a value: DATA and its length (-1: there is no such key); its bytes
 * follow. An error reply is FAILED.
 */
enum sl_io_state sl_redis_link_value(struct sl_redis_link *link, int64_t *bytes,
                                     struct sl_err *err);
/**
 * Take bytes of that value.
 *
 * @data, bytes  room for what comes.
 * @got          out: how many came.
 * @return       DATA, WAIT, END behind the last, FAILED.
 */
enum sl_io_state sl_redis_link_value_read(struct sl_redis_link *link, void *data, size_t bytes,
                                          size_t *got, struct sl_err *err);
int sl_redis_link_poll(struct sl_redis_link *link, struct pollfd fds[SL_IO_POLL_MAX],
                       uint64_t *deadline_ns);

/** An error reply ("WRONGPASS invalid …") as our error, with advice. Always -1. */
int sl_redis_fail(const struct sl_redis_place *place, const char *reply, struct sl_err *err);

/** Blocking: wait until the link can go on, or cancel. */
int sl_redis_link_wait(struct sl_redis_link *link, struct sl_err *err);

#endif

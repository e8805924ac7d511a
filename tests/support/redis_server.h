/*
 * A Redis server in threads of the test: the commands that sluice uses, over keys in memory, and
 * faults in place of chosen replies.
 */
#ifndef SL_REDIS_SERVER_H
#define SL_REDIS_SERVER_H

#include <stddef.h>
#include <stdint.h>

struct sl_redis_server;

/** On a free port of 127.0.0.1; aborts if it cannot. */
struct sl_redis_server *sl_redis_server_start(void);
void sl_redis_server_stop(struct sl_redis_server *server);
int sl_redis_server_port(const struct sl_redis_server *server);
/** "redis://127.0.0.1:PORT/prefix"; valid until the next call in this thread. */
const char *sl_redis_server_url(const struct sl_redis_server *server, const char *prefix);

/** Want AUTH with this password; borrowed. */
void sl_redis_server_password(struct sl_redis_server *server, const char *password);
/** Lay a .tensors file out below prefix; aborts if it is none. */
void sl_redis_server_put_model(struct sl_redis_server *server, const char *prefix,
                               const uint8_t *data, size_t bytes);
void sl_redis_server_put(struct sl_redis_server *server, const char *key, size_t key_bytes,
                         const void *data, size_t bytes);
/** A copy of the value (free() it), or NULL. */
uint8_t *sl_redis_server_get(struct sl_redis_server *server, const char *key, size_t key_bytes,
                             size_t *bytes);
void sl_redis_server_remove(struct sl_redis_server *server, const char *key, size_t key_bytes);
size_t sl_redis_server_key_count(struct sl_redis_server *server);
/** How often the command came. */
unsigned sl_redis_server_count(struct sl_redis_server *server, const char *verb);
unsigned sl_redis_server_connections(struct sl_redis_server *server);

/**
 * From the nth time (1 is the next) that `verb` comes to the last-th: answer `reply` instead of
 * carrying it out (NULL: carry it out and answer as usual), and of the answer send only `cut` bytes
 * and then close (-1: all of it). Borrowed. One fault at a time.
 */
void sl_redis_server_fault(struct sl_redis_server *server, const char *verb, unsigned nth,
                           unsigned last, const char *reply, long cut);
/** Before the nth `verb` is carried out, remove or replace (data) a key. */
void sl_redis_server_meddle(struct sl_redis_server *server, const char *verb, unsigned nth,
                            const char *key, const char *data);

/** Before the nth `verb` is carried out, call this in its connection's thread. */
void sl_redis_server_pause(struct sl_redis_server *server, const char *verb, unsigned nth,
                           void (*pause)(void *arg), void *arg);

#endif

/* The inside of Redis' sources, shared by redis.c (stores, ranges), redis_channel.c (channels)
 * and redis_model.c (reading the table of a model's keys). */
#ifndef SL_REDIS_CHANNEL_H
#define SL_REDIS_CHANNEL_H

#include "redis_link.h"
#include "redis_options.h"
#include "redis_table.h"

enum { SL_REDIS_PIECES_MAX = 64 }; /* that are asked for ahead */

struct sl_redis_store {
    struct sl_redis_place place;
    char *base; /* of prefixes: up to the last '/' */
};

/* A table with its bytes; unchanged once it stands in a source. */
struct sl_redis_model {
    struct sl_redis_table table;
    uint8_t *head, *kept;
    size_t head_bytes;
};

struct sl_redis_source {
    char *prefix;
    struct {
        pthread_mutex_t mutex;
        struct sl_redis_model *model; /* NULL until a channel has read it; then it stays */
    } locked;
};

struct sl_redis_piece {
    uint64_t begin, end;
    size_t part;
};

/** Of a request: CONNECT, then HEAD to HEADERS where the table is not known, then RANGE. */
enum sl_redis_phase {
    SL_REDIS_IDLE,
    SL_REDIS_CONNECT,
    SL_REDIS_HEAD,
    SL_REDIS_HEAD_BYTES,
    SL_REDIS_HEADERS,
    SL_REDIS_RANGE,
};

struct sl_channel {
    struct sl_store *store;
    struct sl_redis_link *link;
    struct sl_source *source;
    uint64_t at, end; /* to deliver */
    bool first;
    enum sl_redis_phase phase;
    struct sl_buf key;
    struct sl_redis_model *made;        /* the table in the making */
    size_t made_asked, made_taken;      /* parts */
    const struct sl_redis_model *model; /* of the source */
    uint64_t asked;                     /* SL_REDIS_RANGE: up to here */
    struct sl_redis_piece pieces[SL_REDIS_PIECES_MAX];
    unsigned piece_first, piece_count;
    enum {
        SL_REDIS_MEASURE,
        SL_REDIS_OPEN_VALUE,
        SL_REDIS_VALUE
    } step;            /* SL_REDIS_HEADERS, SL_REDIS_RANGE: of the piece in hand */
    uint64_t value_at; /* of the kept bytes that come */
};

/** The one way from phase to phase. */
void sl_redis_set_phase(struct sl_channel *channel, enum sl_redis_phase to);
/** NULL is fine. */
void sl_redis_model_free(struct sl_redis_model *model);
/** Drop what the channel has read of a table that is not complete. */
void sl_redis_drop_made(struct sl_channel *channel);
/** The key of a part into channel->key. */
int sl_redis_make_key(struct sl_channel *channel, const struct sl_redis_part *part,
                      struct sl_err *err);
/** Queue a command whose only argument is channel->key. */
int sl_redis_ask_key(struct sl_channel *channel, const char *verb, struct sl_err *err);
/** End the channel's request and its connection. */
void sl_redis_channel_abort(struct sl_channel *channel);
/** The same; FAILED. */
enum sl_io_state sl_redis_channel_fail(struct sl_channel *channel);

/** Begin to read the table; then sl_redis_model_read() until DATA: channel->model is the source's.
 */
int sl_redis_model_ask(struct sl_channel *channel, struct sl_err *err);
enum sl_io_state sl_redis_model_read(struct sl_channel *channel, struct sl_err *err);
/** The reply to STRLEN of a part, which must be its length. */
enum sl_io_state sl_redis_take_length(struct sl_channel *channel, const struct sl_redis_part *part,
                                      struct sl_err *err);
/** SL_E_NOT_FOUND about the key of a part; FAILED. */
enum sl_io_state sl_redis_fail_missing(struct sl_channel *channel, const struct sl_redis_part *part,
                                       struct sl_err *err);

#endif

/* The inside of an upload to Redis, shared by upload_redis.c (values on their way),
 * upload_redis_commit.c (making them visible) and upload_redis_link.c (connections). */
#ifndef SL_UPLOAD_REDIS_H
#define SL_UPLOAD_REDIS_H

#include "redis_link.h"
#include "redis_table.h"
#include "thread.h"
#include "upload_backend.h"

enum {
    SL_REDIS_IDLE_LINKS_MAX = 16,
    SL_REDIS_BATCH = 512,          /* commands that are sent before their replies are read */
    SL_REDIS_KEEP_SECONDS = 86400, /* what a killed upload leaves is gone after a day */
    SL_REDIS_TEMPORARY_BYTES = 64,
};

enum sl_redis_value {
    SL_REDIS_ABSENT,
    SL_REDIS_BEGINNING,
    SL_REDIS_BEGUN, /* has its full length, with zeros where nothing was written */
};

struct sl_redis_upload {
    struct sl_upload *upload;
    struct sl_redis_place place;
    char *prefix;
    char temporary[SL_REDIS_TEMPORARY_BYTES]; /* what temporary keys begin with */
    uint64_t value_bytes_max;
    uint8_t *head;               /* P:header:0; set by the first write, as is … */
    struct sl_redis_table table; /* … the table */
    struct {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        bool failed;
        enum sl_redis_value *values; /* of each part */
        struct sl_redis_link *links[SL_REDIS_IDLE_LINKS_MAX];
        unsigned link_count;
    } locked;
};

#define SL_REDIS_WORD(text) ((struct sl_redis_word){text, strlen(text)})

/** Connect, if it is not. Blocks. */
int sl_redis_connect(struct sl_redis_link *link, struct sl_err *err);
/** A connection, ready: an idle one or a new one; give it back or free it. Blocks. */
struct sl_redis_link *sl_redis_borrow(struct sl_redis_upload *redis, struct sl_err *err);
/** The next reply, whatever it is, blocking; freeReplyObject() it. */
int sl_redis_await_any(struct sl_redis_link *link, redisReply **reply, struct sl_err *err);
/** The same; an error reply is -1. freeReplyObject() it. */
int sl_redis_await(struct sl_redis_upload *redis, struct sl_redis_link *link, redisReply **reply,
                   struct sl_err *err);
/** The next reply, which must be an integer. */
int sl_redis_await_number(struct sl_redis_upload *redis, struct sl_redis_link *link,
                          int64_t *number, struct sl_err *err);
/** The temporary key of a part; text holds SL_REDIS_TEMPORARY_BYTES + 24. */
const char *sl_redis_temporary(const struct sl_redis_upload *redis, size_t part, char *text);

/** Every value is there: give all of them their names in one transaction. */
int sl_redis_commit(struct sl_redis_upload *redis, struct sl_err *err);
/** Remove the temporary keys. */
int sl_redis_discard(struct sl_redis_upload *redis, struct sl_redis_link *link, struct sl_err *err);

#endif

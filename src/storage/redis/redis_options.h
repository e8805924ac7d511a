/* Models in Redis servers: the row, and `source.redis`. The values are
 * their spec's; the row and the ops are constants, for any thread. */
#ifndef SL_REDIS_OPTIONS_H
#define SL_REDIS_OPTIONS_H

#include "store_kind.h"

/** Rows in redis_place.c. */
struct sl_redis_options {
    char *username, *password_file;
    uint64_t database;
};
extern const struct sl_option_table sl_redis_table;
extern const struct sl_store_kind sl_redis_store;

/** Writing (upload_redis.c). */
extern const struct sl_upload_ops sl_upload_redis_ops;

#endif

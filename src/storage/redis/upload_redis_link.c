/* Connections of an upload to Redis, and the answers that it waits for. */
#include <stdio.h>
#include <string.h>

#include "upload_redis.h"

static struct sl_redis_link *take_idle(struct sl_redis_upload *redis)
{
    SL_LOCKED(&redis->locked.mutex);
    return redis->locked.link_count ? redis->locked.links[--redis->locked.link_count] : NULL;
}

int sl_redis_connect(struct sl_redis_link *link, struct sl_err *err)
{
    if (sl_redis_link_open(link, err) < 0)
        return -1;
    for (;;) {
        enum sl_io_state state = sl_redis_link_ready(link, err);
        if (state == SL_IO_DATA)
            return 0;
        if (state == SL_IO_FAILED || sl_redis_link_wait(link, err) < 0)
            return -1;
    }
}

struct sl_redis_link *sl_redis_borrow(struct sl_redis_upload *redis, struct sl_err *err)
{
    SL_AUTO(sl_redis_link) link = take_idle(redis);
    if (!link)
        link = sl_redis_link_new(&redis->place, &redis->upload->source, err);
    if (!link || sl_redis_connect(link, err) < 0)
        return NULL;
    return sl_steal(&link);
}

int sl_redis_await_any(struct sl_redis_link *link, redisReply **reply, struct sl_err *err)
{
    for (;;) {
        enum sl_io_state state = sl_redis_link_reply(link, reply, err);
        if (state == SL_IO_DATA)
            return 0;
        if (state == SL_IO_FAILED || sl_redis_link_wait(link, err) < 0)
            return -1;
    }
}

int sl_redis_await(struct sl_redis_upload *redis, struct sl_redis_link *link, redisReply **reply,
                   struct sl_err *err)
{
    if (sl_redis_await_any(link, reply, err) < 0)
        return -1;
    if ((*reply)->type != REDIS_REPLY_ERROR)
        return 0;
    sl_redis_fail(&redis->place, (*reply)->str, err);
    freeReplyObject(*reply);
    *reply = NULL;
    return -1;
}

int sl_redis_await_number(struct sl_redis_upload *redis, struct sl_redis_link *link,
                          int64_t *number, struct sl_err *err)
{
    redisReply *reply = NULL;
    if (sl_redis_await(redis, link, &reply, err) < 0)
        return -1;
    *number = reply->type == REDIS_REPLY_INTEGER ? reply->integer : -1;
    freeReplyObject(reply);
    return 0;
}

const char *sl_redis_temporary(const struct sl_redis_upload *redis, size_t part, char *text)
{
    snprintf(text, SL_REDIS_TEMPORARY_BYTES + 24, "%s:%zu", redis->temporary, part);
    return text;
}

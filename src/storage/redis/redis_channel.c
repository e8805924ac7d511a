/* What both halves of a channel need: its phases, keys, and its end. */
#include "redis_channel.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void sl_redis_model_free(struct sl_redis_model *model)
{
    if (!model)
        return;
    sl_redis_table_release(&model->table);
    free(model->head);
    free(model->kept);
    free(model);
}

void sl_redis_set_phase(struct sl_channel *channel, enum sl_redis_phase to)
{
#ifndef NDEBUG
#define TO(phase) (1u << SL_REDIS_##phase)
    static const unsigned steps[] = {
        [SL_REDIS_IDLE] = TO(IDLE) | TO(CONNECT),
        [SL_REDIS_CONNECT] = TO(IDLE) | TO(CONNECT) | TO(HEAD) | TO(RANGE),
        [SL_REDIS_HEAD] = TO(IDLE) | TO(HEAD_BYTES),
        [SL_REDIS_HEAD_BYTES] = TO(IDLE) | TO(HEADERS),
        [SL_REDIS_HEADERS] = TO(IDLE) | TO(RANGE),
        [SL_REDIS_RANGE] = TO(IDLE),
    };
#undef TO
    assert(steps[channel->phase] & 1u << to);
#endif
    channel->phase = to;
}

void sl_redis_drop_made(struct sl_channel *channel)
{
    sl_redis_model_free(channel->made);
    channel->made = NULL;
    channel->made_asked = channel->made_taken = 0;
}

void sl_redis_channel_abort(struct sl_channel *channel)
{
    sl_redis_link_close(channel->link);
    sl_redis_drop_made(channel);
    sl_redis_set_phase(channel, SL_REDIS_IDLE);
}

enum sl_io_state sl_redis_channel_fail(struct sl_channel *channel)
{
    sl_redis_channel_abort(channel);
    return SL_IO_FAILED;
}

/* The key of a part into channel->key. */
int sl_redis_make_key(struct sl_channel *channel, const struct sl_redis_part *part,
                      struct sl_err *err)
{
    const struct sl_redis_source *redis = channel->source->impl;
    return sl_redis_key(&channel->key, redis->prefix, part->name, part->name_bytes, part->begin,
                        err);
}

int sl_redis_ask_key(struct sl_channel *channel, const char *verb, struct sl_err *err)
{
    struct sl_redis_word words[] = {{verb, strlen(verb)}, {channel->key.data, channel->key.used}};
    return sl_redis_link_command(channel->link, words, 2, err);
}

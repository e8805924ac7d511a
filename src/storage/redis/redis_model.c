/*
 * Reading the table of a model's keys, and with it all that is kept: P:header:0, then the header of
 * every tensor and the length of its data, asked for ahead and answered in order.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "redis_channel.h"

enum { PARTS_AHEAD = 1024 }; /* parts that are asked for ahead */

enum sl_io_state sl_redis_fail_missing(struct sl_channel *channel, const struct sl_redis_part *part,
                                       struct sl_err *err)
{
    const struct sl_redis_source *redis = channel->source->impl;
    sl_fail(err, SL_E_NOT_FOUND,
            "'%s' lacks the key '%s:%.*s:%" PRIu64 "': it was removed or evicted (see maxmemory-"
            "policy), or writing it has not ended",
            channel->source->uri, redis->prefix, (int)SL_MIN(part->name_bytes, 128u), part->name,
            part->begin);
    return sl_redis_channel_fail(channel);
}

/* A value of another length than the table says. */
static enum sl_io_state fail_length(struct sl_channel *channel, const struct sl_redis_part *part,
                                    int64_t bytes, struct sl_err *err)
{
    const struct sl_redis_source *redis = channel->source->impl;
    if (bytes <= 0)
        return sl_redis_fail_missing(channel, part, err);
    sl_fail_code(err, SL_E_INTEGRITY, "changed",
                 "'%s' changed or is mixed with another model: the key '%s:%.*s:%" PRIu64
                 "' holds %" PRId64 " bytes instead of %" PRIu64,
                 channel->source->uri, redis->prefix, (int)SL_MIN(part->name_bytes, 128u),
                 part->name, part->begin, bytes, part->end - part->begin);
    return sl_redis_channel_fail(channel);
}

int sl_redis_model_ask(struct sl_channel *channel, struct sl_err *err)
{
    const struct sl_redis_source *redis = channel->source->impl;
    sl_redis_set_phase(channel, SL_REDIS_HEAD);
    channel->made = sl_alloc(sizeof(*channel->made), err);
    if (!channel->made || sl_redis_key(&channel->key, redis->prefix, "header", 6, 0, err) < 0)
        return -1;
    return sl_redis_ask_key(channel, "GET", err);
}

static enum sl_io_state take_head(struct sl_channel *channel, struct sl_err *err)
{
    int64_t bytes;
    enum sl_io_state state = sl_redis_link_value(channel->link, &bytes, err);
    if (state == SL_IO_FAILED)
        return sl_redis_channel_fail(channel);
    if (state == SL_IO_WAIT)
        return state;
    if (bytes < 0) {
        const struct sl_redis_source *redis = channel->source->impl;
        sl_fail(err, SL_E_NOT_FOUND,
                "there is no model '%s': the server has no key '%s:header:0'; is the database the "
                "right one?",
                channel->source->uri, redis->prefix);
        return sl_redis_channel_fail(channel);
    }
    if (bytes == 0 || bytes > SL_REDIS_HEAD_BYTES_MAX) {
        sl_fail_code(err, SL_E_FORMAT, "E_METADATA",
                     "the header of '%s' has %" PRId64 " bytes, limit %d", channel->source->uri,
                     bytes, SL_REDIS_HEAD_BYTES_MAX);
        return sl_redis_channel_fail(channel);
    }
    channel->made->head = sl_alloc((size_t)bytes, err);
    if (!channel->made->head)
        return sl_redis_channel_fail(channel);
    channel->made->head_bytes = (size_t)bytes;
    channel->value_at = 0;
    sl_redis_set_phase(channel, SL_REDIS_HEAD_BYTES);
    return SL_IO_DATA;
}

/* END: [value_at, bytes) of what is kept has come. */
static enum sl_io_state take_kept(struct sl_channel *channel, uint8_t *data, uint64_t bytes,
                                  struct sl_err *err)
{
    uint8_t none;
    for (;;) {
        size_t got, room = (size_t)(bytes - channel->value_at);
        enum sl_io_state state = sl_redis_link_value_read(
            channel->link, room ? data + channel->value_at : &none, room, &got, err);
        if (state != SL_IO_DATA)
            return state == SL_IO_FAILED ? sl_redis_channel_fail(channel) : state;
        channel->value_at += got;
    }
}

static enum sl_io_state take_head_bytes(struct sl_channel *channel, struct sl_err *err)
{
    struct sl_redis_model *made = channel->made;
    enum sl_io_state state = take_kept(channel, made->head, made->head_bytes, err);
    if (state != SL_IO_END)
        return state;
    if (sl_redis_table_parse(made->head, made->head_bytes, &made->table, err) < 0) {
        sl_wrap(err, "'%s'", channel->source->uri);
        return sl_redis_channel_fail(channel);
    }
    made->kept = sl_alloc(made->table.kept_bytes, err);
    if (!made->kept)
        return sl_redis_channel_fail(channel);
    channel->made_asked = channel->made_taken = 1;
    channel->step = SL_REDIS_MEASURE;
    sl_redis_set_phase(channel, SL_REDIS_HEADERS);
    return SL_IO_DATA;
}

/* Of a tensor's header all bytes, of its data the length. */
static int ask_parts(struct sl_channel *channel, struct sl_err *err)
{
    const struct sl_redis_table *table = &channel->made->table;
    while (channel->made_asked < table->count &&
           channel->made_asked < channel->made_taken + PARTS_AHEAD) {
        const struct sl_redis_part *part = &table->parts[channel->made_asked++];
        if (part->begin == part->end)
            continue;
        if (sl_redis_make_key(channel, part, err) < 0 ||
            sl_redis_ask_key(channel, part->data ? "STRLEN" : "GET", err) < 0)
            return -1;
    }
    return 0;
}

enum sl_io_state sl_redis_take_length(struct sl_channel *channel, const struct sl_redis_part *part,
                                      struct sl_err *err)
{
    int64_t bytes;
    enum sl_io_state state = sl_redis_link_number(channel->link, &bytes, err);
    if (state == SL_IO_FAILED)
        return sl_redis_channel_fail(channel);
    if (state == SL_IO_DATA && (bytes < 0 || (uint64_t)bytes != part->end - part->begin))
        return fail_length(channel, part, bytes, err);
    return state;
}

static enum sl_io_state take_header(struct sl_channel *channel, const struct sl_redis_part *part,
                                    struct sl_err *err)
{
    uint64_t bytes = part->end - part->begin;
    if (channel->step != SL_REDIS_VALUE) {
        int64_t length;
        enum sl_io_state state = sl_redis_link_value(channel->link, &length, err);
        if (state == SL_IO_FAILED)
            return sl_redis_channel_fail(channel);
        if (state == SL_IO_WAIT)
            return state;
        if (length < 0 || (uint64_t)length != bytes)
            return fail_length(channel, part, length, err);
        channel->value_at = 0;
        channel->step = SL_REDIS_VALUE;
    }
    enum sl_io_state state = take_kept(channel, channel->made->kept + part->kept_at, bytes, err);
    if (state != SL_IO_END)
        return state;
    channel->step = SL_REDIS_MEASURE;
    return SL_IO_DATA;
}

/* The version: equal headers, which hold the hashes of the data, mean equal bytes. */
static int name_version(const struct sl_redis_model *model, struct sl_version *version,
                        struct sl_err *err)
{
    uint8_t digest[32];
    char text[65];
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, model->head, model->head_bytes);
    sl_sha256_update(sha, model->kept, model->table.kept_bytes);
    sl_sha256_finish(sha, digest);
    sl_hex(digest, sizeof(digest), text);
    *version = (struct sl_version){0};
    snprintf(version->etag, sizeof(version->etag), "\"%s\"", text);
    return 0;
}

/* The table is complete: hold it against what is known of the source, and let it stay there. */
static enum sl_io_state install(struct sl_channel *channel, struct sl_err *err)
{
    struct sl_source *source = channel->source;
    struct sl_redis_source *redis = source->impl;
    struct sl_version version;
    if (name_version(channel->made, &version, err) < 0)
        return sl_redis_channel_fail(channel);
    if (!channel->first && (strcmp(version.etag, source->version.etag) != 0 ||
                            channel->made->table.bytes != source->bytes)) {
        sl_fail_code(err, SL_E_INTEGRITY, "changed",
                     "'%s' changed while it was read: its headers are different now", source->uri);
        return sl_redis_channel_fail(channel);
    }
    if (channel->first) {
        source->version = version;
        source->bytes = channel->made->table.bytes;
    }
    SL_LOCKED(&redis->locked.mutex);
    if (!redis->locked.model)
        redis->locked.model = sl_steal(&channel->made);
    channel->model = redis->locked.model;
    return SL_IO_DATA;
}

static enum sl_io_state take_parts(struct sl_channel *channel, struct sl_err *err)
{
    const struct sl_redis_table *table = &channel->made->table;
    while (channel->made_taken < table->count) {
        if (channel->made_asked < channel->made_taken + PARTS_AHEAD / 2 &&
            ask_parts(channel, err) < 0)
            return sl_redis_channel_fail(channel);
        const struct sl_redis_part *part = &table->parts[channel->made_taken];
        enum sl_io_state state = SL_IO_DATA;
        if (part->begin < part->end)
            state = part->data ? sl_redis_take_length(channel, part, err)
                               : take_header(channel, part, err);
        if (state != SL_IO_DATA)
            return state;
        channel->made_taken++;
    }
    return install(channel, err);
}

enum sl_io_state sl_redis_model_read(struct sl_channel *channel, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    if (channel->phase == SL_REDIS_HEAD)
        state = take_head(channel, err);
    if (state == SL_IO_DATA && channel->phase == SL_REDIS_HEAD_BYTES)
        state = take_head_bytes(channel, err);
    if (state == SL_IO_DATA)
        state = take_parts(channel, err);
    if (state == SL_IO_DATA)
        sl_redis_drop_made(channel);
    return state;
}

/*
 * Models in Redis, in the reference program's layout (redis_table.h). The object "P" is a virtual
 * `.tensors` file that is put together from its keys.
 *
 * Opening reads P:header:0 and the header of every tensor, in two round trips, and keeps them: they
 * are what the format's reader asks for next, and they hold the hashes of the data. Redis knows no
 * versions, so the SHA-256 over these headers is the version. Data are read with GETRANGE, each
 * piece behind a STRLEN that must agree with the table: a key that was evicted or replaced is an
 * error, never zeros.
 *
 * A source that was opened before (sl_source_known) begins with reading the table again; its
 * version must be the one that is known. Several channels may do that at once, and the first one's
 * table stays.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis_channel.h"
#include "url.h"

enum {
    /* One GETRANGE. The server copies it whole before it sends: 8 MiB cost it twice the CPU. */
    PIECE_BYTES = 1 << 20,
    AHEAD_BYTES_MAX = 4 << 20, /* asked for ahead of what has come */
};

/* ---- stores and sources ---------------------------------------------------------------------- */

static int redis_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    sl_autofree char *prefix = NULL;
    struct sl_redis_store *redis = store->impl = sl_alloc(sizeof(*redis), err);
    if (!redis || sl_redis_place_parse(uri, sl_source_options(&store->config, &sl_redis_table),
                                       &redis->place, &prefix, err) < 0)
        return -1;
    if (!*prefix)
        return sl_fail(err, SL_E_USAGE,
                       "'%s' names no model: write redis://host/PREFIX, where the model's keys "
                       "begin with PREFIX and a colon",
                       redis->place.label);
    const char *slash = strrchr(prefix, '/');
    size_t base = slash ? (size_t)(slash - prefix) + 1 : 0;
    redis->base = sl_strndup(prefix, base, err);
    store->uri = redis->base ? sl_asprintf(err, "%s/%s", redis->place.label, redis->base) : NULL;
    *key = store->uri ? sl_strdup(prefix + base, err) : NULL;
    return *key ? 0 : -1;
}

static int redis_check(const char *uri, struct sl_err *err)
{
    sl_autourl url = {0};
    return sl_redis_uri_parse(uri, &url, err);
}

static void redis_close(struct sl_store *store)
{
    struct sl_redis_store *redis = store->impl;
    if (!redis)
        return;
    sl_redis_place_release(&redis->place);
    free(redis->base);
    free(redis);
}

static int redis_list(struct sl_store *store, const struct sl_listing *listing, struct sl_err *err)
{
    (void)listing;
    return sl_fail(err, SL_E_USAGE, "'%s' has no listing: name one model, redis://host/PREFIX",
                   store->uri);
}

static int redis_locate(struct sl_source *source, struct sl_err *err)
{
    const struct sl_redis_store *store = source->store->impl;
    struct sl_redis_source *redis = source->impl = sl_alloc(sizeof(*redis), err);
    if (!redis)
        return -1;
    pthread_mutex_init(&redis->locked.mutex, NULL);
    redis->prefix = sl_asprintf(err, "%s%s", store->base, source->name);
    source->uri =
        redis->prefix ? sl_asprintf(err, "%s/%s", store->place.label, redis->prefix) : NULL;
    return source->uri ? 0 : -1;
}

static void redis_forget(struct sl_source *source)
{
    struct sl_redis_source *redis = source->impl;
    if (!redis)
        return;
    sl_redis_model_free(redis->locked.model);
    pthread_mutex_destroy(&redis->locked.mutex);
    free(redis->prefix);
    free(redis);
}

static const struct sl_redis_model *known_model(struct sl_source *source)
{
    struct sl_redis_source *redis = source->impl;
    SL_LOCKED(&redis->locked.mutex);
    return redis->locked.model;
}

/* ---- channels -----------------------------------------------------------------------------------
 */

static void redis_channel_free(struct sl_channel *channel)
{
    if (!channel)
        return;
    sl_redis_link_free(channel->link);
    sl_redis_model_free(channel->made);
    sl_buf_release(&channel->key);
    free(channel);
}

static struct sl_channel *redis_channel_new(struct sl_store *store, struct sl_err *err)
{
    struct sl_redis_store *redis = store->impl;
    struct sl_channel *channel = sl_alloc(sizeof(*channel), err);
    if (!channel)
        return NULL;
    channel->store = store;
    channel->key.limit = SL_REDIS_KEY_BYTES_MAX;
    channel->link = sl_redis_link_new(&redis->place, &store->config, err);
    if (!channel->link) {
        redis_channel_free(channel);
        return NULL;
    }
    return channel;
}

static void begin_range(struct sl_channel *channel)
{
    sl_redis_set_phase(channel, SL_REDIS_RANGE);
    channel->step = SL_REDIS_MEASURE;
    channel->asked = channel->at;
    channel->piece_first = channel->piece_count = 0;
}

static int redis_channel_start(struct sl_channel *channel, struct sl_source *source,
                               const struct sl_try *try, struct sl_err *err)
{
    sl_redis_drop_made(channel);
    channel->source = source;
    channel->at = try->begin;
    channel->end = try->end;
    channel->first = try->first;
    sl_redis_set_phase(channel, SL_REDIS_CONNECT);
    channel->model = known_model(source);
    return sl_redis_link_open(channel->link, err);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Queue what is worth asking for ahead: STRLEN and GETRANGE of each piece. */
static int ask_pieces(struct sl_channel *channel, struct sl_err *err)
{
    const struct sl_redis_table *table = &channel->model->table;
    while (channel->asked < channel->end && channel->piece_count < SL_REDIS_PIECES_MAX &&
           channel->asked < channel->at + AHEAD_BYTES_MAX) {
        size_t number = sl_redis_table_find(table, channel->asked);
        if (number == table->count) {
            channel->asked = channel->end;
            break;
        }
        const struct sl_redis_part *part = &table->parts[number];
        if (!part->data) {
            channel->asked = part->end;
            continue;
        }
        struct sl_redis_piece piece = {
            channel->asked, SL_MIN(SL_MIN(part->end, channel->end), channel->asked + PIECE_BYTES),
            number};
        char from[24], to[24];
        snprintf(from, sizeof(from), "%" PRIu64, piece.begin - part->begin);
        snprintf(to, sizeof(to), "%" PRIu64, piece.end - part->begin - 1);
        if (sl_redis_make_key(channel, part, err) < 0 ||
            sl_redis_ask_key(channel, "STRLEN", err) < 0)
            return -1;
        struct sl_redis_word words[] = {{"GETRANGE", 8},
                                        {channel->key.data, channel->key.used},
                                        {from, strlen(from)},
                                        {to, strlen(to)}};
        if (sl_redis_link_command(channel->link, words, 4, err) < 0)
            return -1;
        channel->pieces[(channel->piece_first + channel->piece_count++) % SL_REDIS_PIECES_MAX] =
            piece;
        channel->asked = piece.end;
    }
    return 0;
}

/* The replies before the first byte of a piece. */
static enum sl_io_state open_piece(struct sl_channel *channel, const struct sl_redis_piece *piece,
                                   struct sl_err *err)
{
    const struct sl_redis_part *part = &channel->model->table.parts[piece->part];
    enum sl_io_state state = SL_IO_DATA;
    int64_t bytes;
    if (channel->step == SL_REDIS_MEASURE) {
        state = sl_redis_take_length(channel, part, err);
        if (state != SL_IO_DATA)
            return state;
        channel->step = SL_REDIS_OPEN_VALUE;
    }
    if (channel->step == SL_REDIS_OPEN_VALUE) {
        state = sl_redis_link_value(channel->link, &bytes, err);
        if (state == SL_IO_FAILED)
            return sl_redis_channel_fail(channel);
        if (state == SL_IO_WAIT)
            return state;
        if (bytes <= 0)
            return sl_redis_fail_missing(channel, part, err);
        if ((uint64_t)bytes != piece->end - piece->begin) {
            sl_fail_code(err, SL_E_INTEGRITY, "changed",
                         "'%s' changed while it was read: a piece of %" PRIu64
                         " bytes came with %" PRId64,
                         channel->source->uri, piece->end - piece->begin, bytes);
            return sl_redis_channel_fail(channel);
        }
        channel->step = SL_REDIS_VALUE;
    }
    return state;
}

static enum sl_io_state read_piece(struct sl_channel *channel, uint8_t *data, size_t bytes,
                                   size_t *got, struct sl_err *err)
{
    const struct sl_redis_piece *piece = &channel->pieces[channel->piece_first];
    enum sl_io_state state = open_piece(channel, piece, err);
    if (state == SL_IO_DATA)
        state = sl_redis_link_value_read(channel->link, data, bytes, got, err);
    if (state == SL_IO_FAILED)
        return sl_redis_channel_fail(channel);
    channel->at += *got;
    if (state == SL_IO_END) {
        channel->piece_first = (channel->piece_first + 1) % SL_REDIS_PIECES_MAX;
        channel->piece_count--;
        channel->step = SL_REDIS_MEASURE;
        state = SL_IO_DATA;
    }
    return state;
}

/* Bytes that are kept, and the zeros at the end. */
static size_t copy_kept(struct sl_channel *channel, size_t number, uint8_t *data, size_t bytes)
{
    const struct sl_redis_model *model = channel->model;
    if (number == model->table.count) {
        bytes = (size_t)SL_MIN(bytes, channel->end - channel->at);
        memset(data, 0, bytes);
        return bytes;
    }
    const struct sl_redis_part *part = &model->table.parts[number];
    const uint8_t *from = number ? model->kept + part->kept_at : model->head;
    bytes = (size_t)SL_MIN(bytes, SL_MIN(channel->end, part->end) - channel->at);
    memcpy(data, from + (channel->at - part->begin), bytes);
    return bytes;
}

/* As much as is there: several pieces, if they are short. */
static enum sl_io_state read_range(struct sl_channel *channel, uint8_t *data, size_t bytes,
                                   size_t *got, struct sl_err *err)
{
    while (*got < bytes && (channel->at < channel->end || channel->piece_count)) {
        if (ask_pieces(channel, err) < 0)
            return sl_redis_channel_fail(channel);
        const struct sl_redis_piece *piece =
            channel->piece_count ? &channel->pieces[channel->piece_first] : NULL;
        if (piece && channel->at >= piece->begin) {
            size_t came = 0;
            enum sl_io_state state = read_piece(channel, data + *got, bytes - *got, &came, err);
            *got += came;
            if (state == SL_IO_WAIT && *got)
                return SL_IO_DATA;
            if (state != SL_IO_DATA)
                return state;
        } else {
            size_t number = sl_redis_table_find(&channel->model->table, channel->at);
            size_t came = copy_kept(channel, number, data + *got, bytes - *got);
            channel->at += came;
            *got += came;
        }
    }
    if (*got)
        return SL_IO_DATA;
    sl_redis_set_phase(channel, SL_REDIS_IDLE);
    return SL_IO_END;
}

/* Connected: the table is known, or read first. */
static enum sl_io_state begin_work(struct sl_channel *channel, struct sl_err *err)
{
    enum sl_io_state state = sl_redis_link_ready(channel->link, err);
    if (state == SL_IO_FAILED)
        return sl_redis_channel_fail(channel);
    if (state == SL_IO_WAIT)
        return state;
    if (channel->model)
        begin_range(channel);
    else if (sl_redis_model_ask(channel, err) < 0)
        return sl_redis_channel_fail(channel);
    return SL_IO_DATA;
}

static enum sl_io_state redis_channel_read(struct sl_channel *channel, void *data, size_t bytes,
                                           size_t *got, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    *got = 0;
    if (channel->phase == SL_REDIS_IDLE)
        return SL_IO_END;
    if (channel->phase == SL_REDIS_CONNECT)
        state = begin_work(channel, err);
    if (state == SL_IO_DATA && channel->phase != SL_REDIS_RANGE) {
        state = sl_redis_model_read(channel, err);
        if (state == SL_IO_DATA) {
            channel->end = SL_MIN(channel->end, channel->source->bytes);
            begin_range(channel);
        }
    }
    if (state != SL_IO_DATA)
        return state;
    state = read_range(channel, data, bytes, got, err);
    if (state == SL_IO_FAILED)
        *got = 0; /* what came is asked for again */
    return state;
}

static int redis_channel_poll(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                              uint64_t *deadline_ns)
{
    return sl_redis_link_poll(channel->link, fds, deadline_ns);
}

static const struct sl_transport transport = {
    .channel_new = redis_channel_new,
    .channel_free = redis_channel_free,
    .channel_start = redis_channel_start,
    .channel_read = redis_channel_read,
    .channel_poll = redis_channel_poll,
    .channel_abort = sl_redis_channel_abort,
};

const struct sl_store_kind sl_redis_store = {
    .name = "redis",
    .schemes = {"redis", "rediss"},
    .example = "redis://host/prefix",
    .help = "models that tensorizer or sluice wrote into a Redis server; redis and rediss (TLS)",
    .options = &sl_redis_table,
    .options_help = "Redis servers",
    .traits = {.tensors = true},
    .open = redis_open,
    .close = redis_close,
    .locate = redis_locate,
    .transport = &transport,
    .check = redis_check,
    .list = redis_list,
    .forget = redis_forget,
    .upload = &sl_upload_redis_ops,
};

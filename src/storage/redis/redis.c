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
 * version must be the one that is known. Several lanes may do that at once, and the first one's
 * table stays.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "redis_lane.h"
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

static int redis_list(struct sl_store *store,
                      int (*each)(const struct sl_entry *entry, void *arg, struct sl_err *err),
                      void *arg, struct sl_err *err)
{
    (void)each, (void)arg;
    return sl_fail(err, SL_E_USAGE,
                   "'%s' has no listing: name one model, redis://host/PREFIX without a slash at "
                   "its end",
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

void sl_redis_model_free(struct sl_redis_model *model)
{
    if (!model)
        return;
    sl_redis_table_release(&model->table);
    free(model->head);
    free(model->kept);
    free(model);
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

/* ---- lanes ----------------------------------------------------------------------------------- */

static void redis_lane_free(struct sl_lane *lane)
{
    if (!lane)
        return;
    sl_redis_link_free(lane->link);
    sl_redis_model_free(lane->made);
    sl_buf_release(&lane->key);
    free(lane);
}

static struct sl_lane *redis_lane_new(struct sl_store *store, struct sl_err *err)
{
    struct sl_redis_store *redis = store->impl;
    struct sl_lane *lane = sl_alloc(sizeof(*lane), err);
    if (!lane)
        return NULL;
    lane->store = store;
    lane->key.limit = SL_REDIS_KEY_BYTES_MAX;
    lane->link = sl_redis_link_new(&redis->place, &store->config, err);
    if (!lane->link) {
        redis_lane_free(lane);
        return NULL;
    }
    return lane;
}

void sl_redis_drop_made(struct sl_lane *lane)
{
    sl_redis_model_free(lane->made);
    lane->made = NULL;
    lane->made_asked = lane->made_taken = 0;
}

static void redis_lane_abort(struct sl_lane *lane)
{
    sl_redis_link_close(lane->link);
    sl_redis_drop_made(lane);
    lane->phase = SL_REDIS_IDLE;
}

enum sl_io_state sl_redis_lane_fail(struct sl_lane *lane)
{
    redis_lane_abort(lane);
    return SL_IO_FAILED;
}

static void begin_range(struct sl_lane *lane)
{
    lane->phase = SL_REDIS_RANGE;
    lane->step = SL_REDIS_MEASURE;
    lane->asked = lane->at;
    lane->piece_first = lane->piece_count = 0;
}

static int redis_lane_start(struct sl_lane *lane, struct sl_source *source, uint64_t begin,
                            uint64_t end, bool first, struct sl_err *err)
{
    sl_redis_drop_made(lane);
    lane->source = source;
    lane->at = begin;
    lane->end = end;
    lane->first = first;
    lane->phase = SL_REDIS_CONNECT;
    lane->model = known_model(source);
    return sl_redis_link_open(lane->link, err);
}

/* The key of a part into lane->key. */
int sl_redis_make_key(struct sl_lane *lane, const struct sl_redis_part *part, struct sl_err *err)
{
    const struct sl_redis_source *redis = lane->source->impl;
    return sl_redis_key(&lane->key, redis->prefix, part->name, part->name_bytes, part->begin, err);
}

int sl_redis_ask_key(struct sl_lane *lane, const char *verb, struct sl_err *err)
{
    struct sl_redis_word words[] = {{verb, strlen(verb)}, {lane->key.data, lane->key.used}};
    return sl_redis_link_command(lane->link, words, 2, err);
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Queue what is worth asking for ahead: STRLEN and GETRANGE of each piece. */
static int ask_pieces(struct sl_lane *lane, struct sl_err *err)
{
    const struct sl_redis_table *table = &lane->model->table;
    while (lane->asked < lane->end && lane->piece_count < SL_REDIS_PIECES_MAX &&
           lane->asked < lane->at + AHEAD_BYTES_MAX) {
        size_t number = sl_redis_table_find(table, lane->asked);
        if (number == table->count) {
            lane->asked = lane->end;
            break;
        }
        const struct sl_redis_part *part = &table->parts[number];
        if (!part->data) {
            lane->asked = part->end;
            continue;
        }
        struct sl_redis_piece piece = {
            lane->asked, SL_MIN(SL_MIN(part->end, lane->end), lane->asked + PIECE_BYTES), number};
        char from[24], to[24];
        snprintf(from, sizeof(from), "%" PRIu64, piece.begin - part->begin);
        snprintf(to, sizeof(to), "%" PRIu64, piece.end - part->begin - 1);
        if (sl_redis_make_key(lane, part, err) < 0 || sl_redis_ask_key(lane, "STRLEN", err) < 0)
            return -1;
        struct sl_redis_word words[] = {{"GETRANGE", 8},
                                        {lane->key.data, lane->key.used},
                                        {from, strlen(from)},
                                        {to, strlen(to)}};
        if (sl_redis_link_command(lane->link, words, 4, err) < 0)
            return -1;
        lane->pieces[(lane->piece_first + lane->piece_count++) % SL_REDIS_PIECES_MAX] = piece;
        lane->asked = piece.end;
    }
    return 0;
}

/* The replies before the first byte of a piece. */
static enum sl_io_state open_piece(struct sl_lane *lane, const struct sl_redis_piece *piece,
                                   struct sl_err *err)
{
    const struct sl_redis_part *part = &lane->model->table.parts[piece->part];
    enum sl_io_state state = SL_IO_DATA;
    int64_t bytes;
    if (lane->step == SL_REDIS_MEASURE) {
        state = sl_redis_take_length(lane, part, err);
        if (state != SL_IO_DATA)
            return state;
        lane->step = SL_REDIS_OPEN_VALUE;
    }
    if (lane->step == SL_REDIS_OPEN_VALUE) {
        state = sl_redis_link_value(lane->link, &bytes, err);
        if (state == SL_IO_FAILED)
            return sl_redis_lane_fail(lane);
        if (state == SL_IO_WAIT)
            return state;
        if (bytes <= 0)
            return sl_redis_fail_missing(lane, part, err);
        if ((uint64_t)bytes != piece->end - piece->begin) {
            sl_fail_code(err, SL_E_INTEGRITY, "changed",
                         "'%s' changed while it was read: a piece of %" PRIu64
                         " bytes came with %" PRId64,
                         lane->source->uri, piece->end - piece->begin, bytes);
            return sl_redis_lane_fail(lane);
        }
        lane->step = SL_REDIS_VALUE;
    }
    return state;
}

static enum sl_io_state read_piece(struct sl_lane *lane, uint8_t *data, size_t bytes, size_t *got,
                                   struct sl_err *err)
{
    const struct sl_redis_piece *piece = &lane->pieces[lane->piece_first];
    enum sl_io_state state = open_piece(lane, piece, err);
    if (state == SL_IO_DATA)
        state = sl_redis_link_value_read(lane->link, data, bytes, got, err);
    if (state == SL_IO_FAILED)
        return sl_redis_lane_fail(lane);
    lane->at += *got;
    if (state == SL_IO_END) {
        lane->piece_first = (lane->piece_first + 1) % SL_REDIS_PIECES_MAX;
        lane->piece_count--;
        lane->step = SL_REDIS_MEASURE;
        state = SL_IO_DATA;
    }
    return state;
}

/* Bytes that are kept, and the zeros at the end. */
static size_t copy_kept(struct sl_lane *lane, size_t number, uint8_t *data, size_t bytes)
{
    const struct sl_redis_model *model = lane->model;
    if (number == model->table.count) {
        bytes = (size_t)SL_MIN(bytes, lane->end - lane->at);
        memset(data, 0, bytes);
        return bytes;
    }
    const struct sl_redis_part *part = &model->table.parts[number];
    const uint8_t *from = number ? model->kept + part->kept_at : model->head;
    bytes = (size_t)SL_MIN(bytes, SL_MIN(lane->end, part->end) - lane->at);
    memcpy(data, from + (lane->at - part->begin), bytes);
    return bytes;
}

/* As much as is there: several pieces, if they are short. */
static enum sl_io_state read_range(struct sl_lane *lane, uint8_t *data, size_t bytes, size_t *got,
                                   struct sl_err *err)
{
    while (*got < bytes && (lane->at < lane->end || lane->piece_count)) {
        if (ask_pieces(lane, err) < 0)
            return sl_redis_lane_fail(lane);
        const struct sl_redis_piece *piece =
            lane->piece_count ? &lane->pieces[lane->piece_first] : NULL;
        if (piece && lane->at >= piece->begin) {
            size_t came = 0;
            enum sl_io_state state = read_piece(lane, data + *got, bytes - *got, &came, err);
            *got += came;
            if (state == SL_IO_WAIT && *got)
                return SL_IO_DATA;
            if (state != SL_IO_DATA)
                return state;
        } else {
            size_t number = sl_redis_table_find(&lane->model->table, lane->at);
            size_t came = copy_kept(lane, number, data + *got, bytes - *got);
            lane->at += came;
            *got += came;
        }
    }
    if (*got)
        return SL_IO_DATA;
    lane->phase = SL_REDIS_IDLE;
    return SL_IO_END;
}

/* Connected: the table is known, or read first. */
static enum sl_io_state begin_work(struct sl_lane *lane, struct sl_err *err)
{
    enum sl_io_state state = sl_redis_link_ready(lane->link, err);
    if (state == SL_IO_FAILED)
        return sl_redis_lane_fail(lane);
    if (state == SL_IO_WAIT)
        return state;
    if (lane->model)
        begin_range(lane);
    else if (sl_redis_model_ask(lane, err) < 0)
        return sl_redis_lane_fail(lane);
    return SL_IO_DATA;
}

static enum sl_io_state redis_lane_read(struct sl_lane *lane, void *data, size_t bytes, size_t *got,
                                        struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    *got = 0;
    if (lane->phase == SL_REDIS_IDLE)
        return SL_IO_END;
    if (lane->phase == SL_REDIS_CONNECT)
        state = begin_work(lane, err);
    if (state == SL_IO_DATA && lane->phase != SL_REDIS_RANGE) {
        state = sl_redis_model_read(lane, err);
        if (state == SL_IO_DATA) {
            lane->end = SL_MIN(lane->end, lane->source->bytes);
            begin_range(lane);
        }
    }
    if (state != SL_IO_DATA)
        return state;
    state = read_range(lane, data, bytes, got, err);
    if (state == SL_IO_FAILED)
        *got = 0; /* what came is asked for again */
    return state;
}

static int redis_lane_poll(struct sl_lane *lane, struct pollfd fds[SL_IO_POLL_MAX],
                           uint64_t *deadline_ns)
{
    return sl_redis_link_poll(lane->link, fds, deadline_ns);
}

static const struct sl_transport transport = {
    .lane_new = redis_lane_new,
    .lane_free = redis_lane_free,
    .lane_start = redis_lane_start,
    .lane_read = redis_lane_read,
    .lane_poll = redis_lane_poll,
    .lane_abort = redis_lane_abort,
};

const struct sl_store_kind sl_redis_store = {
    .name = "redis",
    .schemes = {"redis", "rediss"},
    .example = "redis://host/prefix",
    .help = "models that tensorizer or sluice wrote into a Redis server; redis and rediss (TLS)",
    .options = &sl_redis_table,
    .options_help = "Redis servers",
    .traits = {.tensors = true},
    .check = redis_check,
    .open = redis_open,
    .close = redis_close,
    .list = redis_list,
    .locate = redis_locate,
    .forget = redis_forget,
    .transport = &transport,
    .upload = &sl_upload_redis_ops,
};

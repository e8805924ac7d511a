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

#include "backend.h"
#include "hash.h"
#include "redis_link.h"
#include "redis_table.h"

enum {
    PIECE_BYTES = 1 << 20,      /* one GETRANGE; the server copies it whole before it sends */
    AHEAD_BYTES_MAX = 4 << 20,  /* asked for ahead of what has come */
    AHEAD_PIECES_MAX = 64,      /* a power of two */
    TABLE_TENSORS_AHEAD = 1024, /* tensors whose headers are asked for ahead */
};

struct redis_store {
    struct sl_redis_place place;
    char *base; /* of prefixes: up to the last '/' */
};

/* A table with its bytes; unchanged once it stands in a source. */
struct model {
    struct sl_redis_table table;
    uint8_t *head, *kept;
    size_t head_bytes;
};

struct redis_source {
    char *prefix;
    struct {
        pthread_mutex_t mutex;
        struct model *model; /* NULL until a lane has read it; then it stays */
    } locked;
};

struct piece {
    uint64_t begin, end;
    size_t part;
};

struct sl_lane {
    struct sl_store *store;
    struct sl_redis_link *link;
    struct sl_source *source;
    uint64_t at, end; /* to deliver */
    bool first;
    enum { IDLE, CONNECT, HEAD, HEAD_BYTES, HEADERS, RANGE } phase;
    struct sl_buf key;
    struct model *made;            /* the table in the making */
    size_t made_asked, made_taken; /* parts */
    const struct model *model;     /* of the source */
    uint64_t asked;                /* RANGE: up to here */
    struct piece pieces[AHEAD_PIECES_MAX];
    unsigned piece_first, piece_count;
    enum { MEASURE, OPEN_VALUE, VALUE } step; /* HEADERS, RANGE: of the piece in hand */
    uint64_t value_at;                        /* of the kept bytes that come */
};

/* ---- stores and sources ---------------------------------------------------------------------- */

static int redis_open(struct sl_store *store, const char *uri, char **key, struct sl_err *err)
{
    sl_autofree char *prefix = NULL;
    struct redis_store *redis = store->impl = sl_alloc(sizeof(*redis), err);
    if (!redis || sl_redis_place_parse(uri, store->config.redis, &redis->place, &prefix, err) < 0)
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

static void redis_close(struct sl_store *store)
{
    struct redis_store *redis = store->impl;
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
    const struct redis_store *store = source->store->impl;
    struct redis_source *redis = source->impl = sl_alloc(sizeof(*redis), err);
    if (!redis)
        return -1;
    pthread_mutex_init(&redis->locked.mutex, NULL);
    redis->prefix = sl_asprintf(err, "%s%s", store->base, source->name);
    source->uri =
        redis->prefix ? sl_asprintf(err, "%s/%s", store->place.label, redis->prefix) : NULL;
    return source->uri ? 0 : -1;
}

static void model_free(struct model *model)
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
    struct redis_source *redis = source->impl;
    if (!redis)
        return;
    model_free(redis->locked.model);
    pthread_mutex_destroy(&redis->locked.mutex);
    free(redis->prefix);
    free(redis);
}

static const struct model *known_model(struct sl_source *source)
{
    struct redis_source *redis = source->impl;
    SL_LOCKED(&redis->locked.mutex);
    return redis->locked.model;
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void redis_lane_free(struct sl_lane *lane)
{
    if (!lane)
        return;
    sl_redis_link_free(lane->link);
    model_free(lane->made);
    sl_buf_release(&lane->key);
    free(lane);
}

static struct sl_lane *redis_lane_new(struct sl_store *store, struct sl_err *err)
{
    struct redis_store *redis = store->impl;
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

static void drop_made(struct sl_lane *lane)
{
    model_free(lane->made);
    lane->made = NULL;
    lane->made_asked = lane->made_taken = 0;
}

static void redis_lane_abort(struct sl_lane *lane)
{
    sl_redis_link_close(lane->link);
    drop_made(lane);
    lane->phase = IDLE;
}

static enum sl_fetch_state fail(struct sl_lane *lane)
{
    redis_lane_abort(lane);
    return SL_FETCH_FAILED;
}

static void begin_range(struct sl_lane *lane)
{
    lane->phase = RANGE;
    lane->step = MEASURE;
    lane->asked = lane->at;
    lane->piece_first = lane->piece_count = 0;
}

static int redis_lane_start(struct sl_lane *lane, struct sl_source *source, uint64_t begin,
                            uint64_t end, bool first, struct sl_err *err)
{
    drop_made(lane);
    lane->source = source;
    lane->at = begin;
    lane->end = end;
    lane->first = first;
    lane->phase = CONNECT;
    lane->model = known_model(source);
    return sl_redis_link_open(lane->link, err);
}

/* The key of a part into lane->key. */
static int make_key(struct sl_lane *lane, const struct sl_redis_part *part, struct sl_err *err)
{
    const struct redis_source *redis = lane->source->impl;
    return sl_redis_key(&lane->key, redis->prefix, part->name, part->name_bytes, part->begin, err);
}

static int command(struct sl_lane *lane, const char *verb, struct sl_err *err)
{
    struct sl_redis_word words[] = {{verb, strlen(verb)}, {lane->key.data, lane->key.used}};
    return sl_redis_link_command(lane->link, words, 2, err);
}

/* ---- the table ------------------------------------------------------------------------------- */

static enum sl_fetch_state fail_missing(struct sl_lane *lane, const struct sl_redis_part *part,
                                        struct sl_err *err)
{
    const struct redis_source *redis = lane->source->impl;
    sl_fail(err, SL_E_NOT_FOUND,
            "'%s' lacks the key '%s:%.*s:%" PRIu64 "': it was removed or evicted (see maxmemory-"
            "policy), or writing it has not ended",
            lane->source->uri, redis->prefix, (int)SL_MIN(part->name_bytes, 128u), part->name,
            part->begin);
    return fail(lane);
}

/* A value of another length than the table says. */
static enum sl_fetch_state fail_length(struct sl_lane *lane, const struct sl_redis_part *part,
                                       int64_t bytes, struct sl_err *err)
{
    const struct redis_source *redis = lane->source->impl;
    if (bytes <= 0)
        return fail_missing(lane, part, err);
    sl_fail_code(err, SL_E_INTEGRITY, "changed",
                 "'%s' changed or is mixed with another model: the key '%s:%.*s:%" PRIu64
                 "' holds %" PRId64 " bytes instead of %" PRIu64,
                 lane->source->uri, redis->prefix, (int)SL_MIN(part->name_bytes, 128u), part->name,
                 part->begin, bytes, part->end - part->begin);
    return fail(lane);
}

static enum sl_fetch_state ask_head(struct sl_lane *lane, struct sl_err *err)
{
    const struct redis_source *redis = lane->source->impl;
    lane->made = sl_alloc(sizeof(*lane->made), err);
    if (!lane->made || sl_redis_key(&lane->key, redis->prefix, "header", 6, 0, err) < 0 ||
        command(lane, "GET", err) < 0)
        return fail(lane);
    lane->phase = HEAD;
    return SL_FETCH_DATA;
}

static enum sl_fetch_state take_head(struct sl_lane *lane, struct sl_err *err)
{
    int64_t bytes;
    enum sl_fetch_state state = sl_redis_link_value(lane->link, &bytes, err);
    if (state == SL_FETCH_FAILED)
        return fail(lane);
    if (state == SL_FETCH_WAIT)
        return state;
    if (bytes < 0) {
        const struct redis_source *redis = lane->source->impl;
        sl_fail(err, SL_E_NOT_FOUND,
                "there is no model '%s': the server has no key '%s:header:0'; is the database the "
                "right one?",
                lane->source->uri, redis->prefix);
        return fail(lane);
    }
    if (bytes == 0 || bytes > SL_REDIS_HEAD_BYTES_MAX) {
        sl_fail_code(err, SL_E_FORMAT, "E_METADATA",
                     "the header of '%s' has %" PRId64 " bytes, limit %d", lane->source->uri, bytes,
                     SL_REDIS_HEAD_BYTES_MAX);
        return fail(lane);
    }
    lane->made->head = sl_alloc((size_t)bytes, err);
    if (!lane->made->head)
        return fail(lane);
    lane->made->head_bytes = (size_t)bytes;
    lane->value_at = 0;
    lane->phase = HEAD_BYTES;
    return SL_FETCH_DATA;
}

/* END: [value_at, bytes) of what is kept has come. */
static enum sl_fetch_state take_kept(struct sl_lane *lane, uint8_t *data, uint64_t bytes,
                                     struct sl_err *err)
{
    uint8_t none;
    for (;;) {
        size_t got, room = (size_t)(bytes - lane->value_at);
        enum sl_fetch_state state = sl_redis_link_value_read(
            lane->link, room ? data + lane->value_at : &none, room, &got, err);
        if (state != SL_FETCH_DATA)
            return state == SL_FETCH_FAILED ? fail(lane) : state;
        lane->value_at += got;
    }
}

static enum sl_fetch_state take_head_bytes(struct sl_lane *lane, struct sl_err *err)
{
    struct model *made = lane->made;
    enum sl_fetch_state state = take_kept(lane, made->head, made->head_bytes, err);
    if (state != SL_FETCH_END)
        return state;
    if (sl_redis_table_parse(made->head, made->head_bytes, &made->table, err) < 0) {
        sl_wrap(err, "'%s'", lane->source->uri);
        return fail(lane);
    }
    made->kept = sl_alloc(made->table.kept_bytes, err);
    if (!made->kept)
        return fail(lane);
    lane->made_asked = lane->made_taken = 1;
    lane->step = MEASURE;
    lane->phase = HEADERS;
    return SL_FETCH_DATA;
}

/* Of a tensor's header all bytes, of its data the length. */
static int ask_parts(struct sl_lane *lane, struct sl_err *err)
{
    const struct sl_redis_table *table = &lane->made->table;
    while (lane->made_asked < table->count &&
           lane->made_asked < lane->made_taken + TABLE_TENSORS_AHEAD) {
        const struct sl_redis_part *part = &table->parts[lane->made_asked++];
        if (part->begin == part->end)
            continue;
        if (make_key(lane, part, err) < 0 || command(lane, part->data ? "STRLEN" : "GET", err) < 0)
            return -1;
    }
    return 0;
}

static enum sl_fetch_state take_length(struct sl_lane *lane, const struct sl_redis_part *part,
                                       struct sl_err *err)
{
    int64_t bytes;
    enum sl_fetch_state state = sl_redis_link_number(lane->link, &bytes, err);
    if (state == SL_FETCH_FAILED)
        return fail(lane);
    if (state == SL_FETCH_DATA && (bytes < 0 || (uint64_t)bytes != part->end - part->begin))
        return fail_length(lane, part, bytes, err);
    return state;
}

static enum sl_fetch_state take_header(struct sl_lane *lane, const struct sl_redis_part *part,
                                       struct sl_err *err)
{
    uint64_t bytes = part->end - part->begin;
    if (lane->step != VALUE) {
        int64_t length;
        enum sl_fetch_state state = sl_redis_link_value(lane->link, &length, err);
        if (state == SL_FETCH_FAILED)
            return fail(lane);
        if (state == SL_FETCH_WAIT)
            return state;
        if (length < 0 || (uint64_t)length != bytes)
            return fail_length(lane, part, length, err);
        lane->value_at = 0;
        lane->step = VALUE;
    }
    enum sl_fetch_state state = take_kept(lane, lane->made->kept + part->kept_at, bytes, err);
    if (state != SL_FETCH_END)
        return state;
    lane->step = MEASURE;
    return SL_FETCH_DATA;
}

/* The version: equal headers, which hold the hashes of the data, mean equal bytes. */
static int name_version(const struct model *model, struct sl_version *version, struct sl_err *err)
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
static enum sl_fetch_state install(struct sl_lane *lane, struct sl_err *err)
{
    struct sl_source *source = lane->source;
    struct redis_source *redis = source->impl;
    struct sl_version version;
    if (name_version(lane->made, &version, err) < 0)
        return fail(lane);
    if (!lane->first && (strcmp(version.etag, source->version.etag) != 0 ||
                         lane->made->table.bytes != source->bytes)) {
        sl_fail_code(err, SL_E_INTEGRITY, "changed",
                     "'%s' changed while it was read: its headers are others", source->uri);
        return fail(lane);
    }
    if (lane->first) {
        source->version = version;
        source->bytes = lane->made->table.bytes;
    }
    SL_LOCKED(&redis->locked.mutex);
    if (!redis->locked.model)
        redis->locked.model = sl_steal(&lane->made);
    lane->model = redis->locked.model;
    return SL_FETCH_DATA;
}

static enum sl_fetch_state take_parts(struct sl_lane *lane, struct sl_err *err)
{
    const struct sl_redis_table *table = &lane->made->table;
    while (lane->made_taken < table->count) {
        if (lane->made_asked < lane->made_taken + TABLE_TENSORS_AHEAD / 2 &&
            ask_parts(lane, err) < 0)
            return fail(lane);
        const struct sl_redis_part *part = &table->parts[lane->made_taken];
        enum sl_fetch_state state = SL_FETCH_DATA;
        if (part->begin < part->end)
            state = part->data ? take_length(lane, part, err) : take_header(lane, part, err);
        if (state != SL_FETCH_DATA)
            return state;
        lane->made_taken++;
    }
    enum sl_fetch_state state = install(lane, err);
    if (state == SL_FETCH_DATA) {
        drop_made(lane);
        lane->end = SL_MIN(lane->end, lane->source->bytes);
        begin_range(lane);
    }
    return state;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

/* Queue what is worth asking for ahead: STRLEN and GETRANGE of each piece. */
static int ask_pieces(struct sl_lane *lane, struct sl_err *err)
{
    const struct sl_redis_table *table = &lane->model->table;
    while (lane->asked < lane->end && lane->piece_count < AHEAD_PIECES_MAX &&
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
        struct piece piece = {
            lane->asked, SL_MIN(SL_MIN(part->end, lane->end), lane->asked + PIECE_BYTES), number};
        char from[24], to[24];
        snprintf(from, sizeof(from), "%" PRIu64, piece.begin - part->begin);
        snprintf(to, sizeof(to), "%" PRIu64, piece.end - part->begin - 1);
        if (make_key(lane, part, err) < 0 || command(lane, "STRLEN", err) < 0)
            return -1;
        struct sl_redis_word words[] = {{"GETRANGE", 8},
                                        {lane->key.data, lane->key.used},
                                        {from, strlen(from)},
                                        {to, strlen(to)}};
        if (sl_redis_link_command(lane->link, words, 4, err) < 0)
            return -1;
        lane->pieces[(lane->piece_first + lane->piece_count++) % AHEAD_PIECES_MAX] = piece;
        lane->asked = piece.end;
    }
    return 0;
}

/* The replies before the first byte of a piece. */
static enum sl_fetch_state open_piece(struct sl_lane *lane, const struct piece *piece,
                                      struct sl_err *err)
{
    const struct sl_redis_part *part = &lane->model->table.parts[piece->part];
    enum sl_fetch_state state = SL_FETCH_DATA;
    int64_t bytes;
    if (lane->step == MEASURE) {
        state = take_length(lane, part, err);
        if (state != SL_FETCH_DATA)
            return state;
        lane->step = OPEN_VALUE;
    }
    if (lane->step == OPEN_VALUE) {
        state = sl_redis_link_value(lane->link, &bytes, err);
        if (state == SL_FETCH_FAILED)
            return fail(lane);
        if (state == SL_FETCH_WAIT)
            return state;
        if (bytes <= 0)
            return fail_missing(lane, part, err);
        if ((uint64_t)bytes != piece->end - piece->begin) {
            sl_fail_code(err, SL_E_INTEGRITY, "changed",
                         "'%s' changed while it was read: a piece of %" PRIu64
                         " bytes came with %" PRId64,
                         lane->source->uri, piece->end - piece->begin, bytes);
            return fail(lane);
        }
        lane->step = VALUE;
    }
    return state;
}

static enum sl_fetch_state read_piece(struct sl_lane *lane, uint8_t *data, size_t bytes,
                                      size_t *got, struct sl_err *err)
{
    const struct piece *piece = &lane->pieces[lane->piece_first];
    enum sl_fetch_state state = open_piece(lane, piece, err);
    if (state == SL_FETCH_DATA)
        state = sl_redis_link_value_read(lane->link, data, bytes, got, err);
    if (state == SL_FETCH_FAILED)
        return fail(lane);
    lane->at += *got;
    if (state == SL_FETCH_END) {
        lane->piece_first = (lane->piece_first + 1) % AHEAD_PIECES_MAX;
        lane->piece_count--;
        lane->step = MEASURE;
        state = SL_FETCH_DATA;
    }
    return state;
}

/* Bytes that are kept, and the zeros at the end. */
static size_t copy_kept(struct sl_lane *lane, size_t number, uint8_t *data, size_t bytes)
{
    const struct model *model = lane->model;
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
static enum sl_fetch_state read_range(struct sl_lane *lane, uint8_t *data, size_t bytes,
                                      size_t *got, struct sl_err *err)
{
    while (*got < bytes && (lane->at < lane->end || lane->piece_count)) {
        if (ask_pieces(lane, err) < 0)
            return fail(lane);
        const struct piece *piece = lane->piece_count ? &lane->pieces[lane->piece_first] : NULL;
        if (piece && lane->at >= piece->begin) {
            size_t came = 0;
            enum sl_fetch_state state = read_piece(lane, data + *got, bytes - *got, &came, err);
            *got += came;
            if (state == SL_FETCH_WAIT && *got)
                return SL_FETCH_DATA;
            if (state != SL_FETCH_DATA)
                return state;
        } else {
            size_t number = sl_redis_table_find(&lane->model->table, lane->at);
            size_t came = copy_kept(lane, number, data + *got, bytes - *got);
            lane->at += came;
            *got += came;
        }
    }
    if (*got)
        return SL_FETCH_DATA;
    lane->phase = IDLE;
    return SL_FETCH_END;
}

/* Connected: the table is known, or read first. */
static enum sl_fetch_state begin_work(struct sl_lane *lane, struct sl_err *err)
{
    enum sl_fetch_state state = sl_redis_link_ready(lane->link, err);
    if (state == SL_FETCH_FAILED)
        return fail(lane);
    if (state == SL_FETCH_WAIT)
        return state;
    if (!lane->model)
        return ask_head(lane, err);
    begin_range(lane);
    return SL_FETCH_DATA;
}

static enum sl_fetch_state redis_lane_read(struct sl_lane *lane, void *data, size_t bytes,
                                           size_t *got, struct sl_err *err)
{
    enum sl_fetch_state state = SL_FETCH_DATA;
    *got = 0;
    while (state == SL_FETCH_DATA && lane->phase != RANGE) {
        switch (lane->phase) {
        case CONNECT:
            state = begin_work(lane, err);
            break;
        case HEAD:
            state = take_head(lane, err);
            break;
        case HEAD_BYTES:
            state = take_head_bytes(lane, err);
            break;
        case HEADERS:
            state = take_parts(lane, err);
            break;
        default:
            return SL_FETCH_END;
        }
    }
    if (state != SL_FETCH_DATA)
        return state;
    state = read_range(lane, data, bytes, got, err);
    if (state == SL_FETCH_FAILED)
        *got = 0; /* what came is asked for again */
    return state;
}

static int redis_lane_poll(struct sl_lane *lane, struct pollfd fds[SL_FETCH_POLL_MAX],
                           uint64_t *deadline_ns)
{
    return sl_redis_link_poll(lane->link, fds, deadline_ns);
}

const struct sl_backend sl_redis_backend = {
    .name = "redis",
    .open = redis_open,
    .close = redis_close,
    .list = redis_list,
    .locate = redis_locate,
    .forget = redis_forget,
    .lane_new = redis_lane_new,
    .lane_free = redis_lane_free,
    .lane_start = redis_lane_start,
    .lane_read = redis_lane_read,
    .lane_poll = redis_lane_poll,
    .lane_abort = redis_lane_abort,
};

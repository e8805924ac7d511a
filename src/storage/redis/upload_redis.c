/*
 * A `.tensors` file as keys of Redis (redis_table.h).
 *
 * Values are written under temporary keys, and one transaction gives them their names at the end
 * (upload_redis_commit.c): neither a reader of an older model nor one that scans for keys, as the
 * reference program does, ever meets a mixture. A new model is in memory once, one that replaces
 * another beside it until then. Temporary keys expire after a day, so that a killed upload does not
 * stay for ever.
 *
 * The keys follow from the metadata, so the head of the file must come first, and whole. A value
 * that comes in blocks is first made as long as it will be, by its last byte: blocks may then come
 * in any order, and the server moves no memory as it grows. Before each block its length is asked
 * for: a server that lost it (restarted, or out of memory and evicting) would fill the gap with
 * zeros.
 *
 * A block is sent by the thread that brings it. Redis works on one command at a time, so more
 * connections than there are such threads would gain nothing.
 */
#include "upload_redis.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "log.h"
#include "retry.h"
#include "thread_cancel.h"

enum {
    BLOCK_BYTES = 8 << 20,
    BULK_BYTES_DEFAULT = 512 << 20, /* proto-max-bulk-len where it is not told */
    CLEAN_UP_SECONDS = 5,
};

/* ---- connections ----------------------------------------------------------------------------- */

static void give_back(struct sl_redis_upload *redis, struct sl_redis_link *link)
{
    {
        SL_LOCKED(&redis->locked.mutex);
        if (redis->locked.link_count < SL_REDIS_IDLE_LINKS_MAX) {
            redis->locked.links[redis->locked.link_count++] = link;
            return;
        }
    }
    sl_redis_link_free(link);
}

static int await_nothing(struct sl_redis_upload *redis, struct sl_redis_link *link,
                         struct sl_err *err)
{
    redisReply *reply = NULL;
    if (sl_redis_await(redis, link, &reply, err) < 0)
        return -1;
    freeReplyObject(reply);
    return 0;
}

/* ---- before the first byte ------------------------------------------------------------------- */

/* What the server says it takes; those that do not say have the default. */
static int ask_limit(struct sl_redis_upload *redis, struct sl_redis_link *link, struct sl_err *err)
{
    redisReply *reply = NULL;
    struct sl_redis_word words[] = {SL_REDIS_WORD("CONFIG"), SL_REDIS_WORD("GET"),
                                    SL_REDIS_WORD("proto-max-bulk-len")};
    redis->value_bytes_max = BULK_BYTES_DEFAULT;
    if (sl_redis_link_command(link, words, 3, err) < 0 || sl_redis_await_any(link, &reply, err) < 0)
        return -1;
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 2 && reply->element[1]->str) {
        uint64_t bytes = strtoull(reply->element[1]->str, NULL, 10);
        redis->value_bytes_max = bytes ? bytes : BULK_BYTES_DEFAULT;
    }
    freeReplyObject(reply);
    return 0;
}

static int check_absent(struct sl_redis_upload *redis, struct sl_redis_link *link,
                        struct sl_err *err)
{
    int64_t there = 0;
    sl_autofree char *key = sl_asprintf(err, "%s:header:0", redis->prefix);
    if (!key)
        return -1;
    struct sl_redis_word words[] = {SL_REDIS_WORD("EXISTS"), SL_REDIS_WORD(key)};
    if (sl_redis_link_command(link, words, 2, err) < 0 ||
        sl_redis_await_number(redis, link, &there, err) < 0)
        return -1;
    if (there && !redis->upload->config.replace)
        return sl_fail(err, SL_E_USAGE, "there is a model '%s' already: replace it with --replace",
                       redis->upload->uri);
    return 0;
}

static int name_temporary(struct sl_redis_upload *redis, struct sl_err *err)
{
    uint8_t random[16];
    char text[2 * sizeof(random) + 1];
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return sl_fail(err, SL_E_INTERNAL, "the system has no random bytes");
    sl_hex(random, sizeof(random), text);
    snprintf(redis->temporary, sizeof(redis->temporary), "sluice-upload:%s", text);
    return 0;
}

static int redis_open(struct sl_upload *upload, const char *uri, struct sl_err *err)
{
    struct sl_redis_upload *redis = upload->impl = sl_alloc(sizeof(*redis), err);
    if (!redis)
        return -1;
    redis->upload = upload;
    pthread_mutex_init(&redis->locked.mutex, NULL);
    sl_thread_cancel_cond_init(&redis->locked.changed);
    if (sl_redis_place_parse(uri, sl_source_options(&upload->source, &sl_redis_table),
                             &redis->place, &redis->prefix, err) < 0)
        return -1;
    if (!*redis->prefix)
        return sl_fail(err, SL_E_USAGE, "'%s' names no model: write redis://host/PREFIX",
                       redis->place.label);
    free(upload->uri);
    upload->uri = sl_asprintf(err, "%s/%s", redis->place.label, redis->prefix);
    if (!upload->uri || name_temporary(redis, err) < 0)
        return -1;
    SL_AUTO(sl_redis_link) link = sl_redis_borrow(redis, err);
    if (!link || ask_limit(redis, link, err) < 0 || check_absent(redis, link, err) < 0)
        return -1;
    give_back(redis, sl_steal(&link));
    return 0;
}

/* ---- the head -------------------------------------------------------------------------------- */

static int check_values(const struct sl_redis_upload *redis, struct sl_err *err)
{
    for (size_t i = 0; i < redis->table.count; i++) {
        const struct sl_redis_part *part = &redis->table.parts[i];
        if (part->end - part->begin > redis->value_bytes_max)
            return sl_fail(err, SL_E_USAGE,
                           "'%s' cannot hold tensor '%.*s' of %" PRIu64
                           " bytes: the server takes values of at most %" PRIu64
                           "; raise its proto-max-bulk-len",
                           redis->upload->uri, (int)SL_MIN(part->name_bytes, 128u), part->name,
                           part->end - part->begin, redis->value_bytes_max);
    }
    return 0;
}

/* The head, or as much of the file as came with it, tells all keys. It comes first, while no other
 * thread writes. */
static int take_head(struct sl_redis_upload *redis, const uint8_t *data, size_t bytes,
                     struct sl_err *err)
{
    if (bytes < 73 || memcmp(data, "|TZR|", 5) != 0)
        return sl_fail(err, SL_E_USAGE,
                       "'%s': models are kept in Redis as .tensors only: choose --to-format "
                       "tensorizer, and one file",
                       redis->upload->uri);
    uint64_t head_bytes = sl_get_le64(data + 65);
    if (head_bytes > bytes - 73)
        return sl_fail(err, SL_E_INTERNAL, "the head of '%s' came in pieces", redis->upload->uri);
    head_bytes += 73;
    if (head_bytes > SL_REDIS_HEAD_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "the metadata of '%s' have %" PRIu64 " bytes, limit %d",
                       redis->upload->uri, head_bytes, SL_REDIS_HEAD_BYTES_MAX);
    redis->head = sl_alloc((size_t)head_bytes, err);
    if (!redis->head)
        return -1;
    memcpy(redis->head, data, (size_t)head_bytes);
    if (sl_redis_table_parse(redis->head, (size_t)head_bytes, &redis->table, err) < 0)
        return -1;
    if (redis->table.bytes != redis->upload->bytes)
        return sl_fail(err, SL_E_INTERNAL, "'%s' has %" PRIu64 " bytes, its keys %" PRIu64,
                       redis->upload->uri, redis->upload->bytes, redis->table.bytes);
    redis->locked.values = sl_alloc_array(redis->table.count, sizeof(*redis->locked.values), err);
    return redis->locked.values ? check_values(redis, err) : -1;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* One block of a part: [at, at + bytes) of its value. */
struct block {
    size_t part;
    uint64_t at;
    const void *data;
    size_t bytes;
};

static int lost(struct sl_redis_upload *redis, struct sl_err *err)
{
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' lost a value that was written: it was restarted, or removes keys for want "
                   "of memory (maxmemory, maxmemory-policy)",
                   redis->place.label);
}

static int store_whole(struct sl_redis_upload *redis, struct sl_redis_link *link, const char *key,
                       const struct block *block, struct sl_err *err)
{
    char seconds[16];
    snprintf(seconds, sizeof(seconds), "%d", SL_REDIS_KEEP_SECONDS);
    struct sl_redis_word words[] = {SL_REDIS_WORD("SETEX"), SL_REDIS_WORD(key),
                                    SL_REDIS_WORD(seconds)};
    if (sl_redis_link_store(link, words, 3, block->data, block->bytes, err) < 0)
        return -1;
    return await_nothing(redis, link, err);
}

/* The value at its full length, of zeros. */
static int store_room(struct sl_redis_upload *redis, struct sl_redis_link *link, const char *key,
                      uint64_t bytes, struct sl_err *err)
{
    char last[24], seconds[16];
    snprintf(last, sizeof(last), "%" PRIu64, bytes - 1);
    snprintf(seconds, sizeof(seconds), "%d", SL_REDIS_KEEP_SECONDS);
    struct sl_redis_word room[] = {
        SL_REDIS_WORD("SETRANGE"), SL_REDIS_WORD(key), SL_REDIS_WORD(last), {"", 1}};
    struct sl_redis_word expire[] = {SL_REDIS_WORD("EXPIRE"), SL_REDIS_WORD(key),
                                     SL_REDIS_WORD(seconds)};
    if (sl_redis_link_command(link, room, 4, err) < 0 ||
        sl_redis_link_command(link, expire, 3, err) < 0 || await_nothing(redis, link, err) < 0)
        return -1;
    return await_nothing(redis, link, err);
}

static int store_block(struct sl_redis_upload *redis, struct sl_redis_link *link, const char *key,
                       const struct block *block, struct sl_err *err)
{
    const struct sl_redis_part *part = &redis->table.parts[block->part];
    int64_t before = -1, after = -1;
    char offset[24];
    snprintf(offset, sizeof(offset), "%" PRIu64, block->at);
    struct sl_redis_word length[] = {SL_REDIS_WORD("STRLEN"), SL_REDIS_WORD(key)};
    struct sl_redis_word set[] = {SL_REDIS_WORD("SETRANGE"), SL_REDIS_WORD(key),
                                  SL_REDIS_WORD(offset)};
    if (sl_redis_link_command(link, length, 2, err) < 0 ||
        sl_redis_link_store(link, set, 3, block->data, block->bytes, err) < 0 ||
        sl_redis_await_number(redis, link, &before, err) < 0 ||
        sl_redis_await_number(redis, link, &after, err) < 0)
        return -1;
    int64_t wanted = (int64_t)(part->end - part->begin);
    return before == wanted && after == wanted ? 0 : lost(redis, err);
}

/* The first block of a value makes room; others wait until there is. *begin: it is ours to do. */
static int enter_value(struct sl_redis_upload *redis, size_t part, bool *begin, struct sl_err *err)
{
    SL_LOCKED(&redis->locked.mutex);
    enum sl_redis_value *value = &redis->locked.values[part];
    while (*value == SL_REDIS_BEGINNING && !redis->locked.failed)
        if (sl_thread_cancel_wait(&redis->locked.changed, &redis->locked.mutex,
                                  redis->upload->source.cancel, err) < 0)
            return -1;
    if (redis->locked.failed)
        return sl_fail(err, SL_E_CANCELED, "writing '%s' has failed", redis->upload->uri);
    *begin = *value == SL_REDIS_ABSENT;
    if (*begin)
        *value = SL_REDIS_BEGINNING;
    return 0;
}

static void note(struct sl_redis_upload *redis, size_t part, bool good)
{
    SL_LOCKED(&redis->locked.mutex);
    redis->locked.values[part] = SL_REDIS_BEGUN;
    redis->locked.failed = redis->locked.failed || !good;
    pthread_cond_broadcast(&redis->locked.changed);
}

static int store(struct sl_redis_upload *redis, struct sl_redis_link *link,
                 const struct block *block, bool *begin, struct sl_err *err)
{
    const struct sl_redis_part *part = &redis->table.parts[block->part];
    char key[SL_REDIS_TEMPORARY_BYTES + 24];
    sl_redis_temporary(redis, block->part, key);
    if (block->bytes == part->end - part->begin)
        return store_whole(redis, link, key, block, err);
    if (*begin && store_room(redis, link, key, part->end - part->begin, err) < 0)
        return -1;
    if (*begin)
        note(redis, block->part, true);
    *begin = false;
    return store_block(redis, link, key, block, err);
}

static int try_block(struct sl_redis_upload *redis, const struct block *block, bool *begin,
                     struct sl_err *err)
{
    SL_AUTO(sl_redis_link) link = sl_redis_borrow(redis, err);
    if (!link)
        return -1;
    if (store(redis, link, block, begin, err) < 0) {
        /* A block that is carried out after the keys were removed would make one, for ever. */
        if (err->kind == SL_E_CANCELED)
            sl_redis_link_hang_up(link, CLEAN_UP_SECONDS);
        return -1;
    }
    give_back(redis, sl_steal(&link));
    return 0;
}

/* All of it is safe to do again: a block is written at its place. */
static int send_block(struct sl_redis_upload *redis, const struct block *block, struct sl_err *err)
{
    struct sl_retry retry = sl_store_retry(&redis->upload->source);
    bool begin = false;
    if (enter_value(redis, block->part, &begin, err) < 0)
        return -1;
    for (;;) {
        uint64_t wait_ms = 0;
        struct sl_err why = SL_ERR_INIT;
        int result = try_block(redis, block, &begin, &why);
        if (result == 0 || !sl_retry_again(&retry, &why, 0, &wait_ms)) {
            if (begin || result < 0)
                note(redis, block->part, result == 0);
            if (result < 0)
                *err = why;
            return result;
        }
        sl_log(SL_LOG_DEBUG, "writing a block of '%s' again: %s", redis->upload->uri, why.message);
        if (sl_sleep_ms((unsigned)wait_ms, redis->upload->source.cancel, err) < 0) {
            note(redis, block->part, false);
            return -1;
        }
    }
}

/* `values` is there since the head came, when no other thread wrote. */
static int redis_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                       struct sl_err *err)
{
    struct sl_redis_upload *redis = upload->impl;
    const uint8_t *from = data;
    if (!redis->locked.values) {
        if (offset)
            return sl_fail(err, SL_E_INTERNAL, "the head of '%s' must come first", upload->uri);
        if (take_head(redis, data, bytes, err) < 0)
            return -1;
    }
    while (bytes) {
        size_t number = sl_redis_table_find(&redis->table, offset);
        if (number == redis->table.count)
            return 0; /* the terminator is not stored */
        const struct sl_redis_part *part = &redis->table.parts[number];
        size_t piece = (size_t)SL_MIN(bytes, part->end - offset);
        struct block block = {number, offset - part->begin, from, SL_MIN(piece, BLOCK_BYTES)};
        if (block.at == 0 && piece == part->end - part->begin)
            block.bytes = piece;
        if (send_block(redis, &block, err) < 0)
            return -1;
        from += block.bytes, offset += block.bytes, bytes -= block.bytes;
    }
    return 0;
}

static int redis_finish(struct sl_upload *upload, struct sl_err *err)
{
    return sl_redis_commit(upload->impl, err);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void clean_up(struct sl_redis_upload *redis)
{
    struct sl_err err = SL_ERR_INIT;
    /* The load may be canceled; this is to happen all the same, but not to take long. */
    redis->upload->source.cancel = NULL;
    redis->upload->source.stall_seconds = CLEAN_UP_SECONDS;
    SL_AUTO(sl_redis_link) link = sl_redis_link_new(&redis->place, &redis->upload->source, &err);
    if (!link || sl_redis_connect(link, &err) < 0 || sl_redis_discard(redis, link, &err) < 0)
        sl_log(SL_LOG_WARN,
               "keys '%s:*' are left at '%s' and will expire in a day: cannot remove them: %s",
               redis->temporary, redis->place.label, err.message);
}

static void redis_close(struct sl_upload *upload)
{
    struct sl_redis_upload *redis = upload->impl;
    if (!redis)
        return;
    for (unsigned i = 0; i < redis->locked.link_count; i++)
        sl_redis_link_free(redis->locked.links[i]);
    if (!upload->finished && redis->locked.values)
        clean_up(redis);
    sl_redis_table_release(&redis->table);
    sl_redis_place_release(&redis->place);
    free(redis->locked.values);
    free(redis->head);
    free(redis->prefix);
    pthread_cond_destroy(&redis->locked.changed);
    pthread_mutex_destroy(&redis->locked.mutex);
    free(redis);
}

const struct sl_upload_ops sl_upload_redis_ops = {
    .open = redis_open,
    .write = redis_write,
    .finish = redis_finish,
    .close = redis_close,
};

/*
 * The end of an upload to Redis: WATCH the model's first key, look at what is there, and in one
 * MULTI … EXEC rename every temporary key and remove what only the older model had. Whoever wrote
 * that first key meanwhile makes EXEC do nothing.
 *
 * Redis does not undo a transaction whose commands fail. A rename fails only if its temporary key
 * is gone (evicted), so all of them are looked at just before, and if one is lost all the same the
 * model is taken away: no reader can then take the rest for a model.
 *
 * A connection that breaks during EXEC leaves open whether it happened; the temporary key of the
 * head tells: it was renamed, or it is still there.
 */
#include <inttypes.h>
#include <string.h>

#include "log.h"
#include "upload_redis.h"

/* The model that is replaced. */
struct older {
    redisReply *head; /* NULL: there is none, or none that makes sense */
    struct sl_redis_table table;
};

static void older_release(struct older *older)
{
    sl_redis_table_release(&older->table);
    if (older->head)
        freeReplyObject(older->head);
    *older = (struct older){0};
}

static int final_key(const struct sl_redis_upload *redis, const struct sl_redis_part *part,
                     struct sl_buf *key, struct sl_err *err)
{
    return sl_redis_key(key, redis->prefix, part->name, part->name_bytes, part->begin, err);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Commands whose replies are read when there are enough of them. */
struct batch {
    struct sl_redis_upload *redis;
    struct sl_redis_link *link;
    unsigned count;
    /** What each reply must be; NULL: anything but an error. -1 with err ends it. */
    int (*check)(struct batch *batch, const redisReply *reply, struct sl_err *err);
    size_t checked; /* replies so far */
};

static int drain(struct batch *batch, struct sl_err *err)
{
    while (batch->count) {
        redisReply *reply = NULL;
        if (sl_redis_await(batch->redis, batch->link, &reply, err) < 0)
            return -1;
        batch->count--;
        int result = batch->check ? batch->check(batch, reply, err) : 0;
        batch->checked++;
        freeReplyObject(reply);
        if (result < 0)
            return -1;
    }
    return 0;
}

static int add(struct batch *batch, const struct sl_redis_word *words, unsigned count,
               struct sl_err *err)
{
    if (sl_redis_link_command(batch->link, words, count, err) < 0)
        return -1;
    return ++batch->count < SL_REDIS_BATCH ? 0 : drain(batch, err);
}

static int add_key(struct batch *batch, const char *verb, const void *key, size_t bytes,
                   struct sl_err *err)
{
    return add(batch, (struct sl_redis_word[]){SL_REDIS_WORD(verb), {key, bytes}}, 2, err);
}

/* No other thread writes any more. */
int sl_redis_discard(struct sl_redis_upload *redis, struct sl_redis_link *link, struct sl_err *err)
{
    struct batch batch = {redis, link};
    char key[SL_REDIS_TEMPORARY_BYTES + 24];
    for (size_t i = 0; i < redis->table.count; i++) {
        sl_redis_temporary(redis, i, key);
        if (redis->locked.values[i] != SL_REDIS_ABSENT &&
            add_key(&batch, "UNLINK", key, strlen(key), err) < 0)
            return -1;
    }
    return drain(&batch, err);
}

/* ---- before the transaction ------------------------------------------------------------------ */

/* Tensors without data have a key as well. */
static int store_empty(struct sl_redis_upload *redis, struct batch *batch, struct sl_err *err)
{
    char key[SL_REDIS_TEMPORARY_BYTES + 24];
    for (size_t i = 0; i < redis->table.count; i++) {
        const struct sl_redis_part *part = &redis->table.parts[i];
        if (part->begin < part->end)
            continue;
        redis->locked.values[i] = SL_REDIS_BEGUN;
        sl_redis_temporary(redis, i, key);
        if (add(batch, (struct sl_redis_word[]){SL_REDIS_WORD("SET"), SL_REDIS_WORD(key), {"", 0}},
                3, err) < 0)
            return -1;
    }
    return drain(batch, err);
}

static int check_length(struct batch *batch, const redisReply *reply, struct sl_err *err)
{
    const struct sl_redis_part *part = &batch->redis->table.parts[batch->checked];
    if (reply->type == REDIS_REPLY_INTEGER && (uint64_t)reply->integer == part->end - part->begin)
        return 0;
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' lost tensor '%.*s' while others were written: it removes keys for want of "
                   "memory (maxmemory, maxmemory-policy)",
                   batch->redis->place.label, (int)SL_MIN(part->name_bytes, 128u), part->name);
}

/* Is every value there with all its bytes, under its temporary key or its name? */
static int check_lengths(struct sl_redis_upload *redis, struct sl_redis_link *link, bool named,
                         struct sl_err *err)
{
    struct batch batch = {redis, link, .check = check_length};
    struct sl_buf key = SL_BUF_INIT(SL_REDIS_KEY_BYTES_MAX);
    char text[SL_REDIS_TEMPORARY_BYTES + 24];
    int result = 0;
    for (size_t i = 0; i < redis->table.count && result == 0; i++) {
        if (named) {
            result = final_key(redis, &redis->table.parts[i], &key, err);
            if (result == 0)
                result = add_key(&batch, "STRLEN", key.data, key.used, err);
        } else {
            sl_redis_temporary(redis, i, text);
            result = add_key(&batch, "STRLEN", text, strlen(text), err);
        }
    }
    sl_buf_release(&key);
    return result == 0 ? drain(&batch, err) : -1;
}

/* From here on nobody else writes the first key unnoticed. */
static int watch(struct sl_redis_upload *redis, struct sl_redis_link *link, struct older *older,
                 struct sl_err *err)
{
    sl_autofree char *key = sl_asprintf(err, "%s:header:0", redis->prefix);
    struct batch batch = {redis, link};
    if (!key || add_key(&batch, "WATCH", key, strlen(key), err) < 0 || drain(&batch, err) < 0)
        return -1;
    struct sl_redis_word words[] = {SL_REDIS_WORD("GET"), SL_REDIS_WORD(key)};
    if (sl_redis_link_command(link, words, 2, err) < 0 ||
        sl_redis_await(redis, link, &older->head, err) < 0)
        return -1;
    if (older->head->type == REDIS_REPLY_STRING && !redis->upload->config.replace)
        return sl_fail(err, SL_E_USAGE,
                       "a model '%s' was written meanwhile: replace it with "
                       "--replace",
                       redis->upload->uri);
    if (older->head->type == REDIS_REPLY_STRING)
        sl_redis_table_parse((const uint8_t *)older->head->str, older->head->len, &older->table,
                             NULL);
    return 0;
}

/* ---- the transaction ------------------------------------------------------------------------- */

static bool same_key(const struct sl_redis_part *a, const struct sl_redis_part *b)
{
    return a->begin == b->begin && a->name_bytes == b->name_bytes &&
           memcmp(a->name, b->name, a->name_bytes) == 0;
}

static bool has_key(const struct sl_redis_table *table, const struct sl_redis_part *part)
{
    size_t i = sl_redis_table_find(table, part->begin);
    while (i > 0 && table->parts[i - 1].begin == part->begin)
        i--;
    for (; i < table->count && table->parts[i].begin <= part->begin; i++)
        if (same_key(&table->parts[i], part))
            return true;
    return false;
}

static int queue_renames(struct sl_redis_upload *redis, struct batch *batch, struct sl_buf *key,
                         struct sl_err *err)
{
    char from[SL_REDIS_TEMPORARY_BYTES + 24];
    for (size_t i = 0; i < redis->table.count; i++) {
        if (final_key(redis, &redis->table.parts[i], key, err) < 0)
            return -1;
        sl_redis_temporary(redis, i, from);
        struct sl_redis_word rename[] = {
            SL_REDIS_WORD("RENAME"), SL_REDIS_WORD(from), {key->data, key->used}};
        if (add(batch, rename, 3, err) < 0 ||
            add_key(batch, "PERSIST", key->data, key->used, err) < 0)
            return -1;
    }
    return 0;
}

static int queue_removals(struct sl_redis_upload *redis, const struct older *older,
                          struct batch *batch, struct sl_buf *key, struct sl_err *err)
{
    for (size_t i = 0; i < older->table.count; i++) {
        const struct sl_redis_part *part = &older->table.parts[i];
        if (has_key(&redis->table, part))
            continue;
        if (final_key(redis, part, key, err) < 0 ||
            add_key(batch, "UNLINK", key->data, key->used, err) < 0)
            return -1;
    }
    return 0;
}

/* Some values did not get their names: no part of the model may stay. */
static int take_away(struct sl_redis_upload *redis, struct sl_redis_link *link, const char *why,
                     struct sl_err *err)
{
    struct batch batch = {redis, link};
    struct sl_buf key = SL_BUF_INIT(SL_REDIS_KEY_BYTES_MAX);
    int result = 0;
    for (size_t i = 0; i < redis->table.count && result == 0; i++) {
        result = final_key(redis, &redis->table.parts[i], &key, err);
        if (result == 0)
            result = add_key(&batch, "UNLINK", key.data, key.used, err);
    }
    sl_buf_release(&key);
    if (result == 0)
        result = drain(&batch, err);
    return sl_fail(err, SL_E_NO_SPACE,
                   "'%s' lost values of '%s' at the last moment (%.100s), and %s: give it more "
                   "memory or another maxmemory-policy",
                   redis->place.label, redis->upload->uri, why,
                   result == 0 ? "the model was taken away" : "keys of it are left");
}

static int execute(struct sl_redis_upload *redis, struct sl_redis_link *link, struct sl_err *err)
{
    redisReply *reply = NULL;
    struct sl_redis_word word = SL_REDIS_WORD("EXEC");
    int result = 0;
    if (sl_redis_link_command(link, &word, 1, err) < 0 ||
        sl_redis_await(redis, link, &reply, err) < 0)
        return -1;
    if (reply->type == REDIS_REPLY_NIL)
        result = sl_fail(
            err, SL_E_USAGE,
            "'%s' was written by another client at the same time: try again when that has ended",
            redis->upload->uri);
    else if (reply->type != REDIS_REPLY_ARRAY)
        result = sl_fail(err, SL_E_NET, "'%s' answers EXEC without results", redis->place.label);
    for (size_t i = 0; result == 0 && i < reply->elements; i++)
        if (reply->element[i]->type == REDIS_REPLY_ERROR)
            result = take_away(redis, link, reply->element[i]->str, err);
    freeReplyObject(reply);
    return result;
}

static int transact(struct sl_redis_upload *redis, struct sl_redis_link *link,
                    const struct older *older, bool *sent, struct sl_err *err)
{
    struct batch batch = {redis, link};
    struct sl_buf key = SL_BUF_INIT(SL_REDIS_KEY_BYTES_MAX);
    struct sl_redis_word multi = SL_REDIS_WORD("MULTI");
    int result = add(&batch, &multi, 1, err);
    if (result == 0)
        result = queue_renames(redis, &batch, &key, err);
    if (result == 0)
        result = queue_removals(redis, older, &batch, &key, err);
    if (result == 0)
        result = drain(&batch, err);
    sl_buf_release(&key);
    if (result < 0)
        return -1;
    *sent = true;
    return execute(redis, link, err);
}

/* After a connection that broke during EXEC: 1: it happened, 0: it did not. */
static int was_executed(struct sl_redis_upload *redis, struct sl_err *err)
{
    char key[SL_REDIS_TEMPORARY_BYTES + 24];
    int64_t there = 0;
    SL_AUTO(sl_redis_link) link = sl_redis_borrow(redis, err);
    if (!link)
        return -1;
    sl_redis_temporary(redis, 0, key);
    struct sl_redis_word words[] = {SL_REDIS_WORD("EXISTS"), SL_REDIS_WORD(key)};
    if (sl_redis_link_command(link, words, 2, err) < 0 ||
        sl_redis_await_number(redis, link, &there, err) < 0)
        return -1;
    if (there)
        return 0;
    return check_lengths(redis, link, true, err) < 0 ? -1 : 1;
}

static int commit_once(struct sl_redis_upload *redis, bool *sent, struct sl_err *err)
{
    struct older older = {0};
    SL_AUTO(sl_redis_link) link = sl_redis_borrow(redis, err);
    if (!link)
        return -1;
    struct batch batch = {redis, link};
    int result = store_empty(redis, &batch, err);
    if (result == 0)
        result = watch(redis, link, &older, err);
    if (result == 0)
        result = check_lengths(redis, link, false, err);
    if (result == 0)
        result = transact(redis, link, &older, sent, err);
    older_release(&older);
    return result;
}

/* No other thread writes any more. */
int sl_redis_commit(struct sl_redis_upload *redis, struct sl_err *err)
{
    enum { TRIES = 3 };
    for (unsigned i = 1;; i++) {
        struct sl_err why = SL_ERR_INIT;
        bool sent = false;
        if (!redis->locked.values)
            return sl_fail(err, SL_E_INTERNAL, "'%s' has no head", redis->upload->uri);
        if (commit_once(redis, &sent, &why) == 0)
            return 0;
        if (!why.retryable || i == TRIES ||
            sl_cancel_check(redis->upload->source.cancel, &why) < 0) {
            *err = why;
            return -1;
        }
        int executed = sent ? was_executed(redis, err) : 0;
        if (executed)
            return executed < 0 ? -1 : 0;
        sl_log(SL_LOG_DEBUG, "finishing '%s' again: %s", redis->upload->uri, why.message);
    }
}

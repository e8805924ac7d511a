/*
 * Bytes that came wrong are fetched again, alone: by a thread of its own, which is started for the
 * first of them, so that no connection of the load waits, and on a new connection each time, since
 * the way of the bytes may be what is wrong. What comes is hashed and written over what was there,
 * in files that nobody sees yet.
 *
 * The journal hears of it when every lane is gone: until then a lane may still have had the wrong
 * bytes to note. A load that is killed before finds what was noted of wrong bytes either changed
 * since, and reads it again, or wrong still, and fetches it again then.
 */
#include <inttypes.h>
#include <stdio.h>

#include "hash.h"
#include "log.h"
#include "metrics.h"
#include "reader_parts.h"
#include "source.h"

enum {
    TRIES_MAX = 3,
    WAITING_MAX = 4096, /* a store that breaks more than this at a time is broken */
    CHUNK_BYTES = 256 * 1024,
    LOOK_AGAIN_MS = 50,
};

void sl_refetch_init(struct sl_refetch *refetch)
{
    pthread_mutex_init(&refetch->lock, NULL);
    pthread_cond_init(&refetch->more, NULL);
}

void sl_refetch_stop(struct sl_refetch *refetch)
{
    {
        SL_LOCKED(&refetch->lock);
        refetch->locked.stop = true;
        pthread_cond_signal(&refetch->more);
    }
    if (refetch->locked.started)
        pthread_join(refetch->thread, NULL);
    refetch->locked.started = false;
}

void sl_refetch_release(struct sl_refetch *refetch)
{
    free(refetch->locked.checks);
    free(refetch->mended);
    pthread_cond_destroy(&refetch->more);
    pthread_mutex_destroy(&refetch->lock);
}

/* ---- one range ------------------------------------------------------------------------------- */

/* One try. */
struct again {
    struct sl_reader *reader;
    const struct sl_check *check;
    struct sl_fetch *fetch;
    struct sl_hasher *hasher; /* NULL: a CRC */
    uint8_t *chunk;
    uint64_t at;
    uint64_t crc;    /* of the check's kind */
    uint32_t crc32c; /* of the file's bytes */
};

static void hash(struct again *again, const void *data, size_t bytes)
{
    if (again->hasher)
        sl_hasher_update(again->hasher, data, bytes);
    else
        again->crc = sl_crc_of(again->check->kind, again->crc, data, bytes);
}

static void finish_hash(struct again *again, uint8_t digest[SL_HASH_BYTES_MAX])
{
    if (again->hasher) {
        sl_hasher_finish(again->hasher, digest);
        return;
    }
    sl_crc_digest(again->check->kind, again->crc, digest);
}

static int wait_for_bytes(struct again *again, struct sl_err *err)
{
    struct pollfd fds[SL_FETCH_POLL_MAX + 2];
    struct sl_reader *reader = again->reader;
    uint64_t deadline_ns, now = sl_now_ns();
    int count = sl_fetch_poll(again->fetch, fds, &deadline_ns), timeout_ms = LOOK_AGAIN_MS;
    fds[count++] = (struct pollfd){sl_cancel_fd(reader->config->cancel), POLLIN, 0};
    fds[count++] = (struct pollfd){sl_cancel_fd(reader->stop), POLLIN, 0};
    if (deadline_ns <= now)
        timeout_ms = 0;
    else if (deadline_ns - now < LOOK_AGAIN_MS * SL_NS_PER_MS)
        timeout_ms = (int)((deadline_ns - now) / SL_NS_PER_MS) + 1;
    poll(fds, (nfds_t)count, timeout_ms);
    if (sl_cancel_check(reader->config->cancel, err) < 0)
        return -1;
    return sl_cancel_check(reader->stop, err);
}

static int take_bytes(struct again *again, size_t bytes, struct sl_err *err)
{
    const struct sl_check *check = again->check;
    hash(again, again->chunk, bytes);
    again->crc32c = sl_crc32c(again->crc32c, again->chunk, bytes);
    uint64_t offset = check->file_offset + (again->at - check->begin);
    again->at += bytes;
    return sl_landing_put(again->reader, check->file, offset, again->chunk, bytes, err);
}

static int read_range(struct again *again, struct sl_err *err)
{
    struct sl_source *source = again->reader->plan->sources[again->check->source].source;
    if (sl_fetch_start(again->fetch, source, again->check->begin, again->check->end, err) < 0)
        return -1;
    for (;;) {
        size_t got = 0;
        switch (sl_fetch_read(again->fetch, again->chunk, CHUNK_BYTES, &got, err)) {
        case SL_FETCH_WAIT:
            if (wait_for_bytes(again, err) < 0)
                return -1;
            break;
        case SL_FETCH_DATA:
            if (take_bytes(again, got, err) < 0)
                return -1;
            break;
        case SL_FETCH_END:
            return 0;
        case SL_FETCH_FAILED:
            return -1;
        }
    }
}

/* 1: the bytes are right now. 0: they are not; *err says how. */
static int try_once(struct sl_reader *reader, const struct sl_check *check, uint32_t *crc32c,
                    struct sl_err *err)
{
    struct sl_store *store = sl_source_store(reader->plan->sources[check->source].source);
    uint8_t digest[SL_HASH_BYTES_MAX] = {0};
    sl_autofree uint8_t *chunk = sl_alloc_aligned(4096, CHUNK_BYTES, err);
    SL_AUTO(sl_fetch) fetch = chunk ? sl_fetch_new_apart(store, err) : NULL;
    bool ordered = sl_hash_is_ordered(check->kind);
    SL_AUTO(sl_hasher) hasher = fetch && ordered ? sl_hasher_new(check->kind, err) : NULL;
    if (!fetch || (ordered && !hasher))
        return -1;
    struct again again = {.reader = reader,
                          .check = check,
                          .fetch = fetch,
                          .hasher = hasher,
                          .chunk = chunk,
                          .at = check->begin};
    hash(&again, check->prefix, check->prefix_bytes);
    if (read_range(&again, err) < 0)
        return -1;
    finish_hash(&again, digest);
    *crc32c = again.crc32c;
    if (sl_verify_agrees(check, digest))
        return 1;
    sl_verify_mismatch(check, digest, err);
    return 0;
}

static int note_mended(struct sl_reader *reader, const struct sl_check *check, uint32_t crc32c,
                       struct sl_err *err)
{
    struct sl_refetch *refetch = &reader->refetch;
    if (sl_grow(&refetch->mended, &refetch->mended_capacity, refetch->mended_count + 1,
                sizeof(*refetch->mended), err) < 0)
        return -1;
    refetch->mended[refetch->mended_count++] = (struct sl_mended){
        check->file, crc32c, check->file_offset, check->file_offset + (check->end - check->begin)};
    return 0;
}

static int fetch_again(struct sl_reader *reader, const struct sl_check *check, struct sl_err *err)
{
    const char *uri = sl_source_uri(reader->plan->sources[check->source].source);
    for (unsigned tries = 1; tries <= TRIES_MAX; tries++) {
        uint32_t crc32c;
        struct sl_err why = SL_ERR_INIT;
        sl_log(SL_LOG_WARN,
               "%s: bytes %" PRIu64 " to %" PRIu64 " of '%s' came wrong: fetching them again",
               check->what, check->begin, check->end, uri);
        sl_metric_add(SL_M_REFETCHED_RANGES, 1);
        sl_progress_add_refetched(reader->config->progress);
        int right = try_once(reader, check, &crc32c, &why);
        if (right > 0)
            return note_mended(reader, check, crc32c, err);
        *err = why;
        if (right < 0)
            return -1;
        sl_metric_add(SL_M_VERIFY_FAILURES, 1);
    }
    return sl_wrap(err, "fetched %d times", TRIES_MAX + 1);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static const struct sl_check *take(struct sl_refetch *refetch)
{
    SL_LOCKED(&refetch->lock);
    while (!refetch->locked.stop && refetch->locked.next == refetch->locked.count)
        pthread_cond_wait(&refetch->more, &refetch->lock);
    return refetch->locked.stop ? NULL : refetch->locked.checks[refetch->locked.next++];
}

static void *run(void *arg)
{
    struct sl_reader *reader = arg;
    const struct sl_check *check;
    while ((check = take(&reader->refetch))) {
        struct sl_err err = SL_ERR_INIT;
        int failed = fetch_again(reader, check, &err);
        sl_verify_settle(reader->verify, check, failed ? &err : NULL);
        if (!failed)
            continue;
        sl_reader_fail(reader, &err);
        break;
    }
    return NULL;
}

int sl_refetch_add(struct sl_reader *reader, const struct sl_check *check, struct sl_err *err)
{
    struct sl_refetch *refetch = &reader->refetch;
    SL_LOCKED(&refetch->lock);
    if (refetch->locked.count - refetch->locked.next == WAITING_MAX)
        return sl_fail(err, SL_E_INTEGRITY,
                       "more than %d ranges of '%s' came wrong: the store or the way to it is "
                       "broken",
                       WAITING_MAX, sl_plan_uri(reader->plan));
    if (sl_grow(&refetch->locked.checks, &refetch->locked.capacity, refetch->locked.count + 1,
                sizeof(*refetch->locked.checks), err) < 0)
        return -1;
    if (!refetch->locked.started &&
        sl_thread_start(&refetch->thread, "sluice-again", run, reader, err) < 0)
        return -1;
    refetch->locked.started = true;
    refetch->locked.checks[refetch->locked.count++] = check;
    pthread_cond_signal(&refetch->more);
    return 0;
}

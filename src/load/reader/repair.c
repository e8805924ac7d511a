/*
 * Bytes that came wrong are fetched again, alone: by a thread of its own, which is started for the
 * first of them, so that no connection of the load waits, and on a new connection each time, since
 * the way of the bytes may be what is wrong. What comes is hashed and written over what was there,
 * in files that nobody sees yet.
 *
 * The journal hears of it when every slot is gone: until then a slot may still have had the wrong
 * bytes to note. A load that is killed before finds what was noted of wrong bytes either changed
 * since, and reads it again, or wrong still, and fetches it again then.
 */
#include <inttypes.h>

#include "hash.h"
#include "log.h"
#include "metrics.h"
#include "reader_parts.h"
#include "reread.h"
#include "source.h"
#include "thread_cancel.h"

enum {
    WAITING_MAX = 4096, /* a store that breaks more than this at a time is broken */
};

void sl_repair_init(struct sl_repair *repair)
{
    pthread_mutex_init(&repair->lock, NULL);
    pthread_cond_init(&repair->more, NULL);
}

void sl_repair_stop(struct sl_repair *repair)
{
    bool started;
    {
        SL_LOCKED(&repair->lock);
        started = repair->locked.started;
        repair->locked.started = false;
        repair->locked.stop = true;
        pthread_cond_signal(&repair->more);
    }
    if (started)
        pthread_join(repair->thread, NULL);
}

void sl_repair_release(struct sl_repair *repair)
{
    free(repair->locked.checks);
    free(repair->repaired);
    pthread_cond_destroy(&repair->more);
    pthread_mutex_destroy(&repair->lock);
}

/* ---- one range ------------------------------------------------------------------------------- */

/* One try. */
struct again {
    struct sl_reader *reader;
    const struct sl_check *check;
    struct sl_digest *digest;
    uint64_t at;
    uint32_t crc32c; /* of the file's bytes */
};

static int take_bytes(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct again *again = arg;
    const struct sl_check *check = again->check;
    sl_digest_update(again->digest, data, bytes);
    again->crc32c = sl_crc32c(again->crc32c, data, bytes);
    uint64_t offset = check->file_offset + (again->at - check->begin);
    again->at += bytes;
    return sl_writer_put(again->reader, check->file, offset, data, bytes, err);
}

/* 1: the bytes are right now. 0: they are not; *err says how. */
static int try_once(struct sl_reader *reader, const struct sl_check *check, uint32_t *crc32c,
                    struct sl_err *err)
{
    struct sl_source *source = reader->plan->sources[check->source].source;
    uint8_t digest[SL_HASH_BYTES_MAX] = {0};
    sl_autodigest sum = {0};
    if (sl_digest_begin(&sum, check->kind, check->prefix, check->prefix_bytes, err) < 0)
        return -1;
    struct again again = {.reader = reader, .check = check, .digest = &sum, .at = check->begin};
    const struct sl_reread how = {reader->config->cancel, reader->stop, take_bytes, &again,
                                  SL_MIN(sl_reader_vouch(reader, check->source), SL_VOUCH_RANGES)};
    if (sl_reread_range(source, check->begin, check->end, &how, err) < 0)
        return -1;
    sl_digest_finish(&sum, digest);
    *crc32c = again.crc32c;
    if (sl_verify_agrees(check, digest))
        return 1;
    sl_verify_mismatch(check, digest, err);
    return 0;
}

static int note_repaired(struct sl_reader *reader, const struct sl_check *check, uint32_t crc32c,
                         struct sl_err *err)
{
    struct sl_repair *repair = &reader->repair;
    if (sl_grow(&repair->repaired, &repair->repaired_capacity, repair->repaired_count + 1,
                sizeof(*repair->repaired), err) < 0)
        return -1;
    repair->repaired[repair->repaired_count++] = (struct sl_repaired){
        check->file, crc32c, check->file_offset, check->file_offset + (check->end - check->begin)};
    return 0;
}

static int fetch_again(struct sl_reader *reader, const struct sl_check *check, struct sl_err *err)
{
    const char *uri = sl_source_uri(reader->plan->sources[check->source].source);
    for (unsigned tries = 1; tries <= SL_REREAD_TRIES_MAX; tries++) {
        uint32_t crc32c;
        struct sl_err why = SL_ERR_INIT;
        sl_log(SL_LOG_WARN,
               "%s: checksum mismatch in bytes %" PRIu64 " to %" PRIu64
               " of '%s': fetching them again",
               check->what, check->begin, check->end, uri);
        sl_metric_add(SL_M_REFETCHED_RANGES, 1);
        sl_progress_add_refetched(reader->config->progress);
        int right = try_once(reader, check, &crc32c, &why);
        if (right > 0)
            return note_repaired(reader, check, crc32c, err);
        *err = why;
        if (right < 0)
            return -1;
        sl_metric_add(SL_M_VERIFY_FAILURES, 1);
    }
    return sl_wrap(err, "fetched %d times", SL_REREAD_TRIES_MAX + 1);
}

/* ---- the thread ------------------------------------------------------------------------------ */

static const struct sl_check *take(struct sl_repair *repair)
{
    SL_LOCKED(&repair->lock);
    while (!repair->locked.stop && repair->locked.next == repair->locked.count)
        pthread_cond_wait(&repair->more, &repair->lock);
    return repair->locked.stop ? NULL : repair->locked.checks[repair->locked.next++];
}

static void *run(void *arg)
{
    struct sl_reader *reader = arg;
    const struct sl_check *check;
    sl_thread_cancel_set(reader->config->cancel);
    while ((check = take(&reader->repair))) {
        struct sl_err err = SL_ERR_INIT;
        int failed = fetch_again(reader, check, &err);
        sl_source_settle(reader->plan->sources[check->source].source, check->begin, check->end,
                         !failed);
        sl_verify_settle(reader->verify, check, failed ? &err : NULL);
        if (!failed)
            continue;
        sl_reader_fail(reader, &err);
        break;
    }
    return NULL;
}

/* Before anything more is asked for: what vouched bytes came from is left, and what gave others
 * rests until it is known whether they were wrong at the origin. */
static void doubt(const struct sl_reader *reader, const struct sl_check *check)
{
    struct sl_source *source = reader->plan->sources[check->source].source;
    struct sl_err why = SL_ERR_INIT;
    sl_source_doubt(source, check->begin, check->end);
    if (sl_reader_vouch(reader, check->source) != SL_VOUCH_WHOLE)
        return;
    sl_fail(&why, SL_E_INTEGRITY, "%s is not what its hash says", check->what);
    sl_store_blame_mirrors(sl_source_store(source), &why);
}

int sl_repair_add(struct sl_reader *reader, const struct sl_check *check, struct sl_err *err)
{
    struct sl_repair *repair = &reader->repair;
    SL_LOCKED(&repair->lock);
    if (repair->locked.stop)
        return sl_fail(err, SL_E_CANCELED, "the load has ended");
    doubt(reader, check);
    if (repair->locked.count - repair->locked.next == WAITING_MAX)
        return sl_fail(err, SL_E_INTEGRITY,
                       "more than %d ranges of '%s' do not match their checksums: the store or the "
                       "network changes data",
                       WAITING_MAX, sl_plan_uri(reader->plan));
    if (sl_grow(&repair->locked.checks, &repair->locked.capacity, repair->locked.count + 1,
                sizeof(*repair->locked.checks), err) < 0)
        return -1;
    if (!repair->locked.started &&
        sl_thread_start(&repair->thread, "sluice-again", run, reader, err) < 0)
        return -1;
    repair->locked.started = true;
    repair->locked.checks[repair->locked.count++] = check;
    pthread_cond_signal(&repair->more);
    return 0;
}

/*
 * One thread, started for the first bad piece, so that neither the GPU's thread nor a connection of
 * the load waits. It only compares MACs: plaintext of what is decrypted on a device is nowhere
 * else. What agrees goes through the ring as the first bytes did, and a note behind it has the
 * piece opened once more.
 *
 * As with readers that decrypt: as long as nothing has opened the key may be to blame, and the
 * first piece that comes no better a second time ends the load; later a piece has more tries.
 */
#include "gpu_repair.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "crypt.h"
#include "log.h"
#include "metrics.h"
#include "reread.h"

enum {
    WAITING_MAX = 4096, /* a store that breaks more than this at a time is broken */
    PUT_BYTES = 1024 * 1024,
    WAIT_SLICE_MS = 50,
};

struct sl_gpu_repair {
    struct sl_gpu_repair_config config;
    struct sl_cancel *stop;
    struct sl_counter opened; /* pieces whose MAC agreed, here and on the device */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    struct {
        struct sl_gpu_bad *first, **last; /* all, until the end */
        struct sl_gpu_bad *next;          /* to be fetched; NULL: none waits */
        unsigned waiting;                 /* from next on */
        uint64_t unsettled;               /* added and not done */
        bool started;
    } locked;
};

/* ---- one piece; the thread ------------------------------------------------------------------- */

static uint64_t begin_of(const struct sl_mapping *mapping, uint64_t number, uint64_t *end)
{
    uint64_t begin = mapping->begin + number * mapping->piece_bytes;
    *end = SL_MIN(begin + mapping->piece_bytes, mapping->end);
    return begin;
}

struct piece {
    struct sl_opening opening;
    uint8_t *data;
    uint64_t begin, bytes, got;
};

static int take_bytes(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct piece *piece = arg;
    if (bytes > piece->bytes - piece->got)
        return sl_fail(err, SL_E_INTERNAL, "a range brought more bytes than were asked for");
    memcpy(piece->data + piece->got, data, bytes);
    piece->got += bytes;
    return 0;
}

/* 1: what came has the right MAC. 0: it has not. */
static int try_once(struct sl_gpu_repair *repair, const struct sl_gpu_bad *bad, struct piece *piece,
                    struct sl_err *err)
{
    const struct sl_mapping *mapping = bad->mapping;
    const struct sl_tensor *tensor = mapping->target->from;
    const struct sl_reread again = {repair->config.cancel, repair->stop, take_bytes, piece,
                                    SL_VOUCH_NONE};
    struct sl_source *source = repair->config.plan->sources[mapping->source].source;
    piece->got = 0;
    if (sl_reread_range(source, piece->begin, piece->begin + piece->bytes, &again, err) < 0)
        return -1;
    sl_opening_begin(&piece->opening, tensor->key, tensor->crypt->nonce, bad->number);
    sl_opening_update(&piece->opening, piece->data, NULL, (size_t)piece->bytes);
    return sl_opening_end(&piece->opening, tensor->crypt->macs + bad->number * SL_MAC_BYTES);
}

static int fetch_again(struct sl_gpu_repair *repair, const struct sl_gpu_bad *bad,
                       struct piece *piece, struct sl_err *err)
{
    for (unsigned tries = 1;; tries++) {
        sl_log(SL_LOG_WARN,
               "piece %" PRIu64
               " of tensor '%s' does not match its MAC: fetching it again (bytes %" PRIu64
               " to %" PRIu64 " of '%s')",
               bad->number + 1, bad->mapping->target->from->name, piece->begin,
               piece->begin + piece->bytes,
               sl_source_uri(repair->config.plan->sources[bad->mapping->source].source));
        sl_metric_add(SL_M_REFETCHED_RANGES, 1);
        sl_progress_add_refetched(repair->config.progress);
        int right = try_once(repair, bad, piece, err);
        if (right)
            return right < 0 ? -1 : 0;
        sl_metric_add(SL_M_VERIFY_FAILURES, 1);
        bool opened = sl_counter_get(&repair->opened) > 0;
        if (opened && tries < SL_REREAD_TRIES_MAX)
            continue;
        sl_reread_blame(bad->mapping->target, bad->number, opened, err);
        return sl_wrap(err, "fetched %u times", tries + 1);
    }
}

/* Over what is there, and a note. */
static int put(struct sl_gpu_repair *repair, const struct sl_gpu_bad *bad,
               const struct piece *piece, struct sl_err *err)
{
    const struct sl_mapping *mapping = bad->mapping;
    uint64_t offset = mapping->file_offset + (piece->begin - mapping->begin);
    for (uint64_t done = 0; done < piece->bytes;) {
        uint64_t bytes = SL_MIN(piece->bytes - done, (uint64_t)PUT_BYTES);
        uint8_t *to;
        if (sl_gpu_ring_reserve_alone(repair->config.ring, repair->config.queue, mapping->file,
                                      offset + done, bytes, &to, err) < 0)
            return -1;
        memcpy(to, piece->data + done, (size_t)bytes);
        sl_gpu_ring_commit(repair->config.ring, to);
        done += bytes;
    }
    const struct sl_gpu_note note = {.deliver = repair->config.deliver,
                                     .arg = repair->config.arg,
                                     .subject = bad,
                                     .file = mapping->file,
                                     .offset = offset,
                                     .bytes = piece->bytes,
                                     .queue = repair->config.queue};
    sl_gpu_ring_note(repair->config.ring, &note);
    return 0;
}

static int repair_one(struct sl_gpu_repair *repair, const struct sl_gpu_bad *bad,
                      struct sl_err *err)
{
    const struct sl_mapping *mapping = bad->mapping;
    uint64_t end, begin = begin_of(mapping, bad->number, &end);
    sl_autofree uint8_t *data = sl_alloc_aligned(4096, (size_t)(end - begin), err);
    struct piece piece = {.data = data, .begin = begin, .bytes = end - begin};
    int failed = data ? fetch_again(repair, bad, &piece, err) : -1;
    sl_source_settle(repair->config.plan->sources[mapping->source].source, begin, end, !failed);
    if (failed)
        return -1;
    sl_counter_add(&repair->opened, 1);
    return put(repair, bad, &piece, err);
}

static const struct sl_gpu_bad *take(struct sl_gpu_repair *repair)
{
    SL_LOCKED(&repair->lock);
    while (!repair->locked.next && !sl_cancel_raised(repair->stop))
        pthread_cond_wait(&repair->more, &repair->lock);
    const struct sl_gpu_bad *bad = repair->locked.next;
    if (!bad || sl_cancel_raised(repair->stop))
        return NULL;
    repair->locked.next = bad->next;
    repair->locked.waiting--;
    return bad;
}

static void *run(void *arg)
{
    struct sl_gpu_repair *repair = arg;
    const struct sl_gpu_bad *bad;
    while ((bad = take(repair))) {
        struct sl_err err = SL_ERR_INIT;
        if (repair_one(repair, bad, &err) == 0)
            continue;
        sl_gpu_ring_fail(repair->config.ring, &err);
        break;
    }
    return NULL;
}

/* ---- what is asked of it --------------------------------------------------------------------- */

void sl_gpu_repair_decrypted(struct sl_gpu_repair *repair, uint64_t pieces)
{
    sl_counter_add(&repair->opened, pieces);
}

int sl_gpu_repair_add(struct sl_gpu_repair *repair, const struct sl_mapping *mapping,
                      uint64_t number, struct sl_err *err)
{
    uint64_t end, begin = begin_of(mapping, number, &end);
    sl_source_doubt(repair->config.plan->sources[mapping->source].source, begin, end);
    SL_LOCKED(&repair->lock);
    /* With a wrong key all are bad, which is found out before long. */
    if (repair->locked.waiting >= WAITING_MAX && sl_counter_get(&repair->opened) > 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "more than %d pieces of '%s' do not match their MACs: the store or the "
                       "network changes data",
                       WAITING_MAX, sl_plan_uri(repair->config.plan));
    struct sl_gpu_bad *bad = sl_alloc(sizeof(*bad), err);
    if (!bad)
        return -1;
    *bad = (struct sl_gpu_bad){mapping, number, NULL};
    *repair->locked.last = bad;
    repair->locked.last = &bad->next;
    if (!repair->locked.next)
        repair->locked.next = bad;
    repair->locked.waiting++;
    repair->locked.unsettled++;
    if (!repair->locked.started && !sl_cancel_raised(repair->stop) &&
        sl_thread_start(&repair->thread, "sluice-again", run, repair, err) < 0)
        return -1;
    repair->locked.started = true;
    pthread_cond_signal(&repair->more);
    return 0;
}

void sl_gpu_repair_done(struct sl_gpu_repair *repair)
{
    SL_LOCKED(&repair->lock);
    if (--repair->locked.unsettled == 0)
        pthread_cond_broadcast(&repair->done);
}

int sl_gpu_repair_wait(struct sl_gpu_repair *repair, struct sl_err *err)
{
    for (;;) {
        if (sl_gpu_ring_check(repair->config.ring, err) < 0)
            return -1;
        SL_LOCKED(&repair->lock);
        if (!repair->locked.unsettled)
            return 0;
        uint64_t when = sl_now_ns() + WAIT_SLICE_MS * SL_NS_PER_MS;
        const struct timespec at = {(time_t)(when / SL_NS_PER_S), (long)(when % SL_NS_PER_S)};
        pthread_cond_timedwait(&repair->done, &repair->lock, &at);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

struct sl_gpu_repair *sl_gpu_repair_new(const struct sl_gpu_repair_config *config,
                                        struct sl_err *err)
{
    pthread_condattr_t clock; /* as sl_now_ns() */
    SL_AUTO(sl_gpu_repair) repair = sl_alloc(sizeof(*repair), err);
    if (!repair)
        return NULL;
    repair->config = *config;
    repair->locked.last = &repair->locked.first;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&repair->lock, NULL);
    pthread_cond_init(&repair->more, NULL);
    pthread_cond_init(&repair->done, &clock);
    pthread_condattr_destroy(&clock);
    repair->stop = sl_cancel_new(err);
    return repair->stop ? sl_steal(&repair) : NULL;
}

void sl_gpu_repair_stop(struct sl_gpu_repair *repair)
{
    struct sl_err why = SL_ERR_INIT;
    bool started;
    sl_cancel_raise(repair->stop, 0);
    {
        SL_LOCKED(&repair->lock);
        started = repair->locked.started;
        repair->locked.started = false;
        pthread_cond_signal(&repair->more);
    }
    if (!started)
        return;
    sl_fail(&why, SL_E_CANCELED, "the load has ended");
    sl_gpu_ring_fail(repair->config.ring, &why); /* who waits for a buffer of it goes on */
    pthread_join(repair->thread, NULL);
}

void sl_gpu_repair_free(struct sl_gpu_repair *repair)
{
    if (!repair)
        return;
    sl_cancel_free(repair->stop);
    for (struct sl_gpu_bad *bad = repair->locked.first; bad;) {
        struct sl_gpu_bad *next = bad->next;
        free(bad);
        bad = next;
    }
    pthread_mutex_destroy(&repair->lock);
    pthread_cond_destroy(&repair->more);
    pthread_cond_destroy(&repair->done);
    free(repair);
}

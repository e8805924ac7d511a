/*
 * One thread, started for the first bad piece, so that neither the GPU's thread nor a connection of
 * the load waits. It only compares MACs: plaintext of what is decrypted on a device is nowhere
 * else. What agrees goes through the ring as the first bytes did, and a note behind it has the
 * piece opened once more.
 *
 * As with readers that decrypt: as long as nothing has opened the key may be to blame, and the
 * first piece that comes no better a second time ends the load; later a piece has more tries.
 */
#include "gpu_mend.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "again.h"
#include "crypt.h"
#include "log.h"
#include "metrics.h"

enum {
    WAITING_MAX = 4096, /* a store that breaks more than this at a time is broken */
    PUT_BYTES = 1024 * 1024,
    WAIT_SLICE_MS = 50,
};

struct sl_gpu_mend {
    struct sl_gpu_mend_config config;
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
static int try_once(struct sl_gpu_mend *mend, const struct sl_gpu_bad *bad, struct piece *piece,
                    struct sl_err *err)
{
    const struct sl_mapping *mapping = bad->mapping;
    const struct sl_tensor *tensor = mapping->target->from;
    const struct sl_again again = {mend->config.cancel, mend->stop, take_bytes, piece};
    struct sl_source *source = mend->config.plan->sources[mapping->source].source;
    piece->got = 0;
    if (sl_again_read(source, piece->begin, piece->begin + piece->bytes, &again, err) < 0)
        return -1;
    sl_opening_begin(&piece->opening, tensor->key, tensor->crypt->nonce, bad->number);
    sl_opening_update(&piece->opening, piece->data, NULL, (size_t)piece->bytes);
    return sl_opening_end(&piece->opening, tensor->crypt->macs + bad->number * SL_MAC_BYTES);
}

static int fetch_again(struct sl_gpu_mend *mend, const struct sl_gpu_bad *bad, struct piece *piece,
                       struct sl_err *err)
{
    for (unsigned tries = 1;; tries++) {
        sl_log(SL_LOG_WARN,
               "piece %" PRIu64 " of tensor '%s' came wrong: fetching it again (bytes %" PRIu64
               " to %" PRIu64 " of '%s')",
               bad->number + 1, bad->mapping->target->from->name, piece->begin,
               piece->begin + piece->bytes,
               sl_source_uri(mend->config.plan->sources[bad->mapping->source].source));
        sl_metric_add(SL_M_REFETCHED_RANGES, 1);
        sl_progress_add_refetched(mend->config.progress);
        int right = try_once(mend, bad, piece, err);
        if (right)
            return right < 0 ? -1 : 0;
        sl_metric_add(SL_M_VERIFY_FAILURES, 1);
        bool opened = sl_counter_get(&mend->opened) > 0;
        if (opened && tries < SL_AGAIN_TRIES_MAX)
            continue;
        sl_again_blame(bad->mapping->target, bad->number, opened, err);
        return sl_wrap(err, "fetched %u times", tries + 1);
    }
}

/* Over what is there, and a note. */
static int put(struct sl_gpu_mend *mend, const struct sl_gpu_bad *bad, const struct piece *piece,
               struct sl_err *err)
{
    const struct sl_mapping *mapping = bad->mapping;
    uint64_t offset = mapping->file_offset + (piece->begin - mapping->begin);
    for (uint64_t done = 0; done < piece->bytes;) {
        uint64_t bytes = SL_MIN(piece->bytes - done, (uint64_t)PUT_BYTES);
        uint8_t *to;
        if (sl_gpu_ring_reserve_alone(mend->config.ring, mend->config.lane, mapping->file,
                                      offset + done, bytes, &to, err) < 0)
            return -1;
        memcpy(to, piece->data + done, (size_t)bytes);
        sl_gpu_ring_commit(mend->config.ring, to);
        done += bytes;
    }
    const struct sl_gpu_note note = {.tell = mend->config.tell,
                                     .arg = mend->config.arg,
                                     .subject = bad,
                                     .file = mapping->file,
                                     .offset = offset,
                                     .bytes = piece->bytes,
                                     .lane = mend->config.lane};
    sl_gpu_ring_note(mend->config.ring, &note);
    return 0;
}

static int mend_one(struct sl_gpu_mend *mend, const struct sl_gpu_bad *bad, struct sl_err *err)
{
    const struct sl_mapping *mapping = bad->mapping;
    uint64_t begin = mapping->begin + bad->number * mapping->piece_bytes;
    uint64_t bytes = SL_MIN(mapping->piece_bytes, mapping->end - begin);
    sl_autofree uint8_t *data = sl_alloc_aligned(4096, (size_t)bytes, err);
    struct piece piece = {.data = data, .begin = begin, .bytes = bytes};
    if (!data || fetch_again(mend, bad, &piece, err) < 0)
        return -1;
    sl_counter_add(&mend->opened, 1);
    return put(mend, bad, &piece, err);
}

static const struct sl_gpu_bad *take(struct sl_gpu_mend *mend)
{
    SL_LOCKED(&mend->lock);
    while (!mend->locked.next && !sl_cancel_raised(mend->stop))
        pthread_cond_wait(&mend->more, &mend->lock);
    const struct sl_gpu_bad *bad = mend->locked.next;
    if (!bad || sl_cancel_raised(mend->stop))
        return NULL;
    mend->locked.next = bad->next;
    mend->locked.waiting--;
    return bad;
}

static void *run(void *arg)
{
    struct sl_gpu_mend *mend = arg;
    const struct sl_gpu_bad *bad;
    while ((bad = take(mend))) {
        struct sl_err err = SL_ERR_INIT;
        if (mend_one(mend, bad, &err) == 0)
            continue;
        sl_gpu_ring_fail(mend->config.ring, &err);
        break;
    }
    return NULL;
}

/* ---- what is asked of it --------------------------------------------------------------------- */

void sl_gpu_mend_opened(struct sl_gpu_mend *mend, uint64_t pieces)
{
    sl_counter_add(&mend->opened, pieces);
}

int sl_gpu_mend_add(struct sl_gpu_mend *mend, const struct sl_mapping *mapping, uint64_t number,
                    struct sl_err *err)
{
    SL_LOCKED(&mend->lock);
    /* With a wrong key all are bad, which is found out before long. */
    if (mend->locked.waiting >= WAITING_MAX && sl_counter_get(&mend->opened) > 0)
        return sl_fail(err, SL_E_INTEGRITY,
                       "more than %d pieces of '%s' came wrong: the store or the way to it is "
                       "broken",
                       WAITING_MAX, sl_plan_uri(mend->config.plan));
    struct sl_gpu_bad *bad = sl_alloc(sizeof(*bad), err);
    if (!bad)
        return -1;
    *bad = (struct sl_gpu_bad){mapping, number, NULL};
    *mend->locked.last = bad;
    mend->locked.last = &bad->next;
    if (!mend->locked.next)
        mend->locked.next = bad;
    mend->locked.waiting++;
    mend->locked.unsettled++;
    if (!mend->locked.started && !sl_cancel_raised(mend->stop) &&
        sl_thread_start(&mend->thread, "sluice-again", run, mend, err) < 0)
        return -1;
    mend->locked.started = true;
    pthread_cond_signal(&mend->more);
    return 0;
}

void sl_gpu_mend_done(struct sl_gpu_mend *mend)
{
    SL_LOCKED(&mend->lock);
    if (--mend->locked.unsettled == 0)
        pthread_cond_broadcast(&mend->done);
}

int sl_gpu_mend_wait(struct sl_gpu_mend *mend, struct sl_err *err)
{
    for (;;) {
        if (sl_gpu_ring_check(mend->config.ring, err) < 0)
            return -1;
        SL_LOCKED(&mend->lock);
        if (!mend->locked.unsettled)
            return 0;
        uint64_t when = sl_now_ns() + WAIT_SLICE_MS * SL_NS_PER_MS;
        const struct timespec at = {(time_t)(when / SL_NS_PER_S), (long)(when % SL_NS_PER_S)};
        pthread_cond_timedwait(&mend->done, &mend->lock, &at);
    }
}

/* ---- life ------------------------------------------------------------------------------------ */

struct sl_gpu_mend *sl_gpu_mend_new(const struct sl_gpu_mend_config *config, struct sl_err *err)
{
    pthread_condattr_t clock; /* as sl_now_ns() */
    SL_AUTO(sl_gpu_mend) mend = sl_alloc(sizeof(*mend), err);
    if (!mend)
        return NULL;
    mend->config = *config;
    mend->locked.last = &mend->locked.first;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&mend->lock, NULL);
    pthread_cond_init(&mend->more, NULL);
    pthread_cond_init(&mend->done, &clock);
    pthread_condattr_destroy(&clock);
    mend->stop = sl_cancel_new(err);
    return mend->stop ? sl_steal(&mend) : NULL;
}

void sl_gpu_mend_stop(struct sl_gpu_mend *mend)
{
    struct sl_err why = SL_ERR_INIT;
    bool started;
    sl_cancel_raise(mend->stop, 0);
    {
        SL_LOCKED(&mend->lock);
        started = mend->locked.started;
        mend->locked.started = false;
        pthread_cond_signal(&mend->more);
    }
    if (!started)
        return;
    sl_fail(&why, SL_E_CANCELED, "the load has ended");
    sl_gpu_ring_fail(mend->config.ring, &why); /* who waits for a buffer of it goes on */
    pthread_join(mend->thread, NULL);
}

void sl_gpu_mend_free(struct sl_gpu_mend *mend)
{
    if (!mend)
        return;
    sl_cancel_free(mend->stop);
    for (struct sl_gpu_bad *bad = mend->locked.first; bad;) {
        struct sl_gpu_bad *next = bad->next;
        free(bad);
        bad = next;
    }
    pthread_mutex_destroy(&mend->lock);
    pthread_cond_destroy(&mend->more);
    pthread_cond_destroy(&mend->done);
    free(mend);
}

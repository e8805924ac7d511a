/*
 * Ordered hashes behind the commits. A check whose landed bytes reach beyond what is hashed waits
 * in a queue; a thread takes it, reads on from the sink (the page cache still holds the bytes)
 * until it has caught up, and takes the next. Several tensors are hashed in parallel, one tensor by
 * one thread at a time. Threads are started when there is more queued work than threads, so loads
 * without such hashes have none.
 */
#include "hash_workers.h"

#include <errno.h>
#include <time.h>

#include "hash.h"

enum { CHUNK_BYTES = 256 * 1024, CANCEL_LOOK_MS = 50 };

struct sl_follow {
    struct sl_verify_item *item;
    struct sl_digest digest;
    uint64_t hashed; /* position in the source; only the thread that took it moves it */
    bool taken;      /* queued or in a thread's hands */
    struct sl_follow *next_of_all, *next;
};

static uint64_t landed_end(const struct sl_verify_item *item)
{
    bool from_begin = item->piece_count && item->pieces[0].begin == item->check->begin;
    return from_begin ? item->pieces[0].end : item->check->begin;
}

static void fail_with(struct sl_verify *verify, const struct sl_err *err)
{
    SL_LOCKED(&verify->lock);
    if (!verify->locked.err.kind)
        verify->locked.err = *err;
    pthread_cond_broadcast(&verify->idle);
}

static struct sl_follow *take(struct sl_verify *verify)
{
    SL_LOCKED(&verify->lock);
    while (!verify->locked.stop && !verify->locked.head)
        pthread_cond_wait(&verify->work, &verify->lock);
    if (verify->locked.stop)
        return NULL;
    struct sl_follow *follow = verify->locked.head;
    verify->locked.head = follow->next;
    verify->locked.busy++;
    return follow;
}

/* How far may be hashed now; if that is no further than before, the follow is given back. */
static bool may_go_on(struct sl_verify *verify, struct sl_follow *follow, uint64_t *end)
{
    SL_LOCKED(&verify->lock);
    *end = landed_end(follow->item);
    if (*end > follow->hashed && !verify->locked.stop)
        return true;
    follow->taken = false;
    return false;
}

static int hash_to(struct sl_verify *verify, struct sl_follow *follow, uint64_t end,
                   uint8_t *buffer, struct sl_err *err)
{
    const struct sl_check *check = follow->item->check;
    size_t bytes = (size_t)SL_MIN(end - follow->hashed, (uint64_t)CHUNK_BYTES);
    uint64_t offset = check->file_offset + (follow->hashed - check->begin);
    if (verify->config.read(verify->config.arg, check->file, offset, buffer, bytes, err) < 0)
        return -1;
    sl_digest_update(&follow->digest, buffer, bytes);
    follow->hashed += bytes;
    if (follow->hashed < check->end)
        return 0;
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_digest_finish(&follow->digest, digest);
    return sl_verify_complete(verify, follow->item, digest, err);
}

static void *run(void *arg)
{
    struct sl_verify *verify = arg;
    struct sl_err err = SL_ERR_INIT;
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, CHUNK_BYTES, &err);
    if (!buffer)
        fail_with(verify, &err);
    for (struct sl_follow *follow; buffer && (follow = take(verify));) {
        uint64_t end;
        int failed = 0;
        while (!failed && may_go_on(verify, follow, &end))
            failed = hash_to(verify, follow, end, buffer, &err);
        if (failed)
            fail_with(verify, &err);
        SL_LOCKED(&verify->lock);
        verify->locked.busy--;
        pthread_cond_broadcast(&verify->idle);
    }
    return NULL;
}

static struct sl_follow *begin_follow(struct sl_verify *verify, struct sl_verify_item *item,
                                      struct sl_err *err)
{
    struct sl_follow *follow = sl_alloc(sizeof(*follow), err);
    if (!follow)
        return NULL;
    const struct sl_check *check = item->check;
    if (sl_digest_begin(&follow->digest, check->kind, check->prefix, check->prefix_bytes, err) <
        0) {
        free(follow);
        return NULL;
    }
    follow->item = item;
    follow->hashed = check->begin;
    follow->next_of_all = verify->locked.all;
    verify->locked.all = item->follow = follow;
    return follow;
}

static int see_to_thread(struct sl_verify *verify, struct sl_err *err)
{
    unsigned limit = verify->config.threads ? verify->config.threads : sl_cpu_count();
    limit = SL_MIN(limit, (unsigned)SL_FOLLOW_THREADS_MAX);
    unsigned started = verify->locked.started;
    if (started == limit || started > verify->locked.busy)
        return 0;
    if (sl_thread_start(&verify->locked.threads[started], "sluice-hash", run, verify, err) < 0)
        return started ? 0 : -1; /* with fewer threads it is only slower */
    verify->locked.started++;
    return 0;
}

int sl_verify_follow(struct sl_verify *verify, struct sl_verify_item *item, struct sl_err *err)
{
    struct sl_follow *follow = item->follow;
    if (landed_end(item) == item->check->begin || (follow && follow->taken))
        return 0;
    if (!follow && !(follow = begin_follow(verify, item, err)))
        return -1;
    follow->taken = true;
    follow->next = NULL;
    if (verify->locked.head)
        verify->locked.tail->next = follow;
    else
        verify->locked.head = follow;
    verify->locked.tail = follow;
    pthread_cond_signal(&verify->work);
    return see_to_thread(verify, err);
}

static void wait_a_moment(struct sl_verify *verify)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += CANCEL_LOOK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&verify->idle, &verify->lock, &until);
}

/* Wait until what remains is to be judged later. */
static int await_checks(struct sl_verify *verify, const struct sl_cancel *cancel,
                        struct sl_err *err)
{
    SL_LOCKED(&verify->lock);
    while (!verify->locked.err.kind && verify->locked.remaining > verify->locked.later) {
        if (!verify->locked.head && !verify->locked.busy && !verify->locked.doubtful)
            return sl_fail(err, SL_E_INTERNAL, "%zu hashes never got all their bytes",
                           verify->locked.remaining - verify->locked.later);
        if (sl_cancel_check(cancel, err) < 0)
            return -1;
        wait_a_moment(verify);
    }
    if (!verify->locked.err.kind)
        return 0;
    if (err)
        *err = verify->locked.err;
    return -1;
}

int sl_verify_finish(struct sl_verify *verify, const struct sl_cancel *cancel, struct sl_err *err)
{
    if (await_checks(verify, cancel, err) < 0)
        return -1;
    return sl_verify_judge_later(verify, err);
}

void sl_verify_follow_init(struct sl_verify *verify)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&verify->lock, NULL);
    pthread_cond_init(&verify->work, NULL);
    pthread_cond_init(&verify->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void sl_verify_follow_release(struct sl_verify *verify)
{
    {
        SL_LOCKED(&verify->lock);
        verify->locked.stop = true;
        pthread_cond_broadcast(&verify->work);
    }
    for (unsigned i = 0; i < verify->locked.started; i++)
        pthread_join(verify->locked.threads[i], NULL);
    for (struct sl_follow *follow = verify->locked.all; follow;) {
        struct sl_follow *next = follow->next_of_all;
        sl_digest_release(&follow->digest);
        free(follow);
        follow = next;
    }
    pthread_cond_destroy(&verify->work);
    pthread_cond_destroy(&verify->idle);
    pthread_mutex_destroy(&verify->lock);
}

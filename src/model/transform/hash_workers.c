/*
 * Ordered hashes behind the commits. A check whose landed bytes reach beyond what is hashed waits
 * in a queue; a thread takes it, reads on from the sink (the page cache still holds the bytes)
 * until it has caught up, and takes the next. Several tensors are hashed in parallel, one tensor by
 * one thread at a time. Threads are started when there is more queued work than threads, so loads
 * without such hashes have none.
 */
#include "hash_workers.h"

#include <time.h>

#include "hash.h"

enum { CHUNK_BYTES = 256 * 1024, CANCEL_LOOK_MS = 50 };

struct sl_hash_task {
    struct sl_verify_item *item;
    struct sl_digest digest;
    uint64_t hashed; /* position in the source; only the thread that took it moves it */
    bool taken;      /* queued or in a thread's hands */
    struct sl_hash_task *next_of_all, *next;
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

static struct sl_hash_task *take(struct sl_verify *verify)
{
    SL_LOCKED(&verify->lock);
    while (!verify->locked.stop && !verify->locked.head)
        pthread_cond_wait(&verify->work, &verify->lock);
    if (verify->locked.stop)
        return NULL;
    struct sl_hash_task *task = verify->locked.head;
    verify->locked.head = task->next;
    verify->locked.busy++;
    return task;
}

/* How far may be hashed now; if that is no further than before, the task is given back. */
static bool may_go_on(struct sl_verify *verify, struct sl_hash_task *task, uint64_t *end)
{
    SL_LOCKED(&verify->lock);
    *end = landed_end(task->item);
    if (*end > task->hashed && !verify->locked.stop)
        return true;
    task->taken = false;
    return false;
}

static int hash_to(struct sl_verify *verify, struct sl_hash_task *task, uint64_t end,
                   uint8_t *buffer, struct sl_err *err)
{
    const struct sl_check *check = task->item->check;
    size_t bytes = (size_t)SL_MIN(end - task->hashed, (uint64_t)CHUNK_BYTES);
    uint64_t offset = check->file_offset + (task->hashed - check->begin);
    if (verify->config.read(verify->config.arg, check->file, offset, buffer, bytes, err) < 0)
        return -1;
    sl_digest_update(&task->digest, buffer, bytes);
    task->hashed += bytes;
    if (task->hashed < check->end)
        return 0;
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_digest_finish(&task->digest, digest);
    return sl_verify_complete(verify, task->item, digest, err);
}

static void *run(void *arg)
{
    struct sl_verify *verify = arg;
    struct sl_err err = SL_ERR_INIT;
    sl_autofree uint8_t *buffer = sl_alloc_aligned(4096, CHUNK_BYTES, &err);
    if (!buffer)
        fail_with(verify, &err);
    for (struct sl_hash_task *task; buffer && (task = take(verify));) {
        uint64_t end;
        int failed = 0;
        while (!failed && may_go_on(verify, task, &end))
            failed = hash_to(verify, task, end, buffer, &err);
        if (failed)
            fail_with(verify, &err);
        SL_LOCKED(&verify->lock);
        verify->locked.busy--;
        pthread_cond_broadcast(&verify->idle);
    }
    return NULL;
}

static struct sl_hash_task *begin_task(struct sl_verify *verify, struct sl_verify_item *item,
                                       struct sl_err *err)
{
    struct sl_hash_task *task = sl_alloc(sizeof(*task), err);
    if (!task)
        return NULL;
    const struct sl_check *check = item->check;
    if (sl_digest_begin(&task->digest, check->kind, check->prefix, check->prefix_bytes, err) < 0) {
        free(task);
        return NULL;
    }
    task->item = item;
    task->hashed = check->begin;
    task->next_of_all = verify->locked.all;
    verify->locked.all = item->task = task;
    return task;
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

int sl_verify_add_task(struct sl_verify *verify, struct sl_verify_item *item, struct sl_err *err)
{
    struct sl_hash_task *task = item->task;
    if (landed_end(item) == item->check->begin || (task && task->taken))
        return 0;
    if (!task && !(task = begin_task(verify, item, err)))
        return -1;
    task->taken = true;
    task->next = NULL;
    if (verify->locked.head)
        verify->locked.tail->next = task;
    else
        verify->locked.head = task;
    verify->locked.tail = task;
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

void sl_verify_tasks_init(struct sl_verify *verify)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&verify->lock, NULL);
    pthread_cond_init(&verify->work, NULL);
    pthread_cond_init(&verify->idle, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void sl_verify_tasks_release(struct sl_verify *verify)
{
    {
        SL_LOCKED(&verify->lock);
        verify->locked.stop = true;
        pthread_cond_broadcast(&verify->work);
    }
    for (unsigned i = 0; i < verify->locked.started; i++)
        pthread_join(verify->locked.threads[i], NULL);
    for (struct sl_hash_task *task = verify->locked.all; task;) {
        struct sl_hash_task *next = task->next_of_all;
        sl_digest_release(&task->digest);
        free(task);
        task = next;
    }
    pthread_cond_destroy(&verify->work);
    pthread_cond_destroy(&verify->idle);
    pthread_mutex_destroy(&verify->lock);
}

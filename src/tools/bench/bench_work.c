/*
 * Ranges for several threads: one cursor over the objects of a plan, moved under a lock, so that
 * whoever is free takes the next range, as in a load. A thread each connection is the plainest way
 * to read, and for figures of the network and the store plain is right.
 */
#include "bench_parts.h"

struct job {
    struct sl_bench_work *work;
    int (*each)(struct sl_bench_work *work, struct sl_err *err);
};

uint64_t sl_bench_work_bytes(const struct sl_plan *plan, uint64_t limit)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->source_count; i++)
        bytes += sl_source_bytes(plan->sources[i].source);
    return limit ? SL_MIN(bytes, limit) : bytes;
}

bool sl_bench_work_next(struct sl_bench_work *work, struct sl_bench_piece *piece)
{
    SL_LOCKED(&work->mutex);
    for (; !work->locked.stopped && work->locked.object < work->plan->source_count;
         work->locked.object++, work->locked.at = 0) {
        struct sl_source *source = work->plan->sources[work->locked.object].source;
        uint64_t left = sl_source_bytes(source) - work->locked.at;
        uint64_t allowed = work->limit_bytes - work->locked.given;
        uint64_t bytes = SL_MIN(SL_MIN(left, allowed), work->range_bytes);
        if (!allowed)
            return false;
        if (!bytes)
            continue;
        *piece = (struct sl_bench_piece){source, work->locked.at, work->locked.at + bytes};
        work->locked.at += bytes;
        work->locked.given += bytes;
        return true;
    }
    return false;
}

static void stop(struct sl_bench_work *work, const struct sl_err *why)
{
    SL_LOCKED(&work->mutex);
    if (!work->locked.stopped)
        work->locked.err = *why;
    work->locked.stopped = true;
}

static void *run_thread(void *arg)
{
    struct job *job = arg;
    struct sl_err why = SL_ERR_INIT;
    if (job->each(job->work, &why) < 0)
        stop(job->work, &why);
    return NULL;
}

int sl_bench_work_run(struct sl_bench_work *work, unsigned threads,
                      int (*each)(struct sl_bench_work *work, struct sl_err *err),
                      struct sl_err *err)
{
    struct job job = {work, each};
    sl_autofree pthread_t *started = sl_alloc_array(threads, sizeof(*started), err);
    unsigned count = 0;
    if (!started)
        return -1;
    pthread_mutex_init(&work->mutex, NULL);
    for (; count < threads; count++) {
        struct sl_err why = SL_ERR_INIT;
        if (sl_thread_start(&started[count], "sluice-bench", run_thread, &job, &why) < 0) {
            stop(work, &why);
            break;
        }
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(started[i], NULL);
    pthread_mutex_destroy(&work->mutex); /* no other thread is left */
    if (!work->locked.stopped)
        return 0;
    if (err)
        *err = work->locked.err;
    return -1;
}

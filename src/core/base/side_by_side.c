/* Threads take the next number until there is none or a job has failed; the caller is one of them.
 */
#include "side_by_side.h"

#include "mem.h"
#include "thread.h"

enum { THREADS_MAX = 64 };

struct jobs {
    int (*job)(void *arg, size_t number, struct sl_err *err);
    void *arg;
    size_t count;
    pthread_mutex_t lock;
    struct {
        size_t next, failed; /* failed: number of the job, SIZE_MAX: none */
        struct sl_err err;
    } locked;
};

static size_t take(struct jobs *jobs)
{
    SL_LOCKED(&jobs->lock);
    if (jobs->locked.failed != SIZE_MAX || jobs->locked.next == jobs->count)
        return SIZE_MAX;
    return jobs->locked.next++;
}

static void *work(void *arg)
{
    struct jobs *jobs = arg;
    size_t number;
    while ((number = take(jobs)) != SIZE_MAX) {
        struct sl_err err = SL_ERR_INIT;
        if (jobs->job(jobs->arg, number, &err) == 0)
            continue;
        SL_LOCKED(&jobs->lock);
        if (number < jobs->locked.failed) {
            jobs->locked.failed = number;
            jobs->locked.err = err;
        }
    }
    return NULL;
}

/* There is no other thread before they start, and none behind the joins. */
int sl_side_by_side(size_t count, unsigned most, const char *name,
                    int (*job)(void *arg, size_t number, struct sl_err *err), void *arg,
                    struct sl_err *err)
{
    struct jobs jobs = {.job = job, .arg = arg, .count = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[THREADS_MAX];
    size_t wanted = SL_MIN(SL_MIN(count, (size_t)most), (size_t)THREADS_MAX), started = 0;
    jobs.locked.failed = SIZE_MAX;
    while (started + 1 < wanted && sl_thread_start(&threads[started], name, work, &jobs, NULL) == 0)
        started++;
    work(&jobs);
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&jobs.lock);
    if (jobs.locked.failed == SIZE_MAX)
        return 0;
    if (err)
        *err = jobs.locked.err;
    return -1;
}

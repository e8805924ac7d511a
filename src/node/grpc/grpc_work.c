/*
 * Workers: threads that carry out what may block. A job waits in one queue, in the order in which
 * it came; a method that has as many running as it may is passed over, so that those behind it
 * go on. A thread is made when a job comes and none is idle.
 *
 * A job that nobody waits for any more is told so by its cancel, and comes back all the same: its
 * memory is the loop's to count and to free.
 */
#include <stdio.h>
#include <sys/eventfd.h>

#include "grpc_parts.h"
#include "log.h"

/* With the lock held: the first job that may run. NULL: none. */
static struct sl_grpc_job *take(struct sl_grpc *grpc)
{
    for (struct sl_grpc_job **at = &grpc->locked.first; *at; at = &(*at)->next) {
        struct sl_grpc_job *job = *at;
        if (job->method->at_once && grpc->locked.running[job->row] >= job->method->at_once)
            continue;
        *at = job->next;
        if (grpc->locked.last == &job->next)
            grpc->locked.last = at;
        job->next = NULL;
        grpc->locked.queued--;
        grpc->locked.running[job->row]++;
        return job;
    }
    return NULL;
}

/* With the lock held. */
static void put_done(struct sl_grpc *grpc, struct sl_grpc_job *job)
{
    job->next = grpc->locked.done;
    grpc->locked.done = job;
    eventfd_write(grpc->wake_fd, 1);
}

static void *work(void *arg)
{
    struct sl_grpc *grpc = arg;
    SL_LOCKED(&grpc->lock);
    while (!grpc->locked.is_over) {
        struct sl_grpc_job *job = take(grpc);
        if (!job) {
            grpc->locked.idle++;
            pthread_cond_wait(&grpc->work, &grpc->lock);
            grpc->locked.idle--;
            continue;
        }
        pthread_mutex_unlock(&grpc->lock);
        job->code = job->method->answer(grpc->config.arg, job->method, &job->call);
        pthread_mutex_lock(&grpc->lock);
        grpc->locked.running[job->row]--;
        put_done(grpc, job);
    }
    return NULL;
}

/* With the lock held: one more thread, if that helps. False: there is not even one. */
static bool have_worker(struct sl_grpc *grpc)
{
    struct sl_err err = SL_ERR_INIT;
    char name[16];
    unsigned count = grpc->locked.workers;
    if (grpc->locked.idle >= grpc->locked.queued || count == grpc->config.workers)
        return true;
    snprintf(name, sizeof(name), "%.10s-%u", grpc->name, count);
    if (sl_thread_start(&grpc->locked.threads[count], name, work, grpc, &err) == 0)
        grpc->locked.workers++;
    else
        sl_log(SL_LOG_WARN, "no more threads for calls on '%s': %s", grpc->socket, err.message);
    return grpc->locked.workers > 0;
}

bool sl_grpc_work_add(struct sl_grpc *grpc, struct sl_grpc_job *job)
{
    SL_LOCKED(&grpc->lock);
    if (grpc->locked.queued == SL_GRPC_QUEUE_MAX)
        return false;
    grpc->locked.queued++;
    if (!have_worker(grpc)) {
        grpc->locked.queued--;
        return false;
    }
    *grpc->locked.last = job;
    grpc->locked.last = &job->next;
    grpc->job_count++;
    pthread_cond_signal(&grpc->work);
    return true;
}

void sl_grpc_work_leave(struct sl_grpc *grpc, struct sl_grpc_job *job)
{
    SL_LOCKED(&grpc->lock);
    job->stream = NULL;
    for (struct sl_grpc_job **at = &grpc->locked.first; *at; at = &(*at)->next) {
        if (*at != job)
            continue;
        *at = job->next;
        if (grpc->locked.last == &job->next)
            grpc->locked.last = at;
        grpc->locked.queued--;
        put_done(grpc, job);
        return;
    }
    sl_cancel_raise(job->call.cancel, 0);
}

struct sl_grpc_job *sl_grpc_work_done(struct sl_grpc *grpc)
{
    SL_LOCKED(&grpc->lock);
    return sl_steal(&grpc->locked.done);
}

void sl_grpc_job_free(struct sl_grpc *grpc, struct sl_grpc_job *job)
{
    grpc->held_bytes -= job->held_bytes;
    sl_buf_release(&job->call.response);
    sl_cancel_free(job->call.cancel);
    free(job->message);
    free(job);
}

void sl_grpc_work_end(struct sl_grpc *grpc)
{
    unsigned count;
    {
        SL_LOCKED(&grpc->lock);
        grpc->locked.is_over = true;
        count = grpc->locked.workers;
        pthread_cond_broadcast(&grpc->work);
    }
    for (unsigned i = 0; i < count; i++) /* no other thread makes one now */
        pthread_join(grpc->locked.threads[i], NULL);
}

/* A list of calls under a lock, and the thread that takes them out in order. */
#include "deferred_thread.h"

#include "thread.h"

struct sl_deferred_thread {
    const char *name;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct {
        struct sl_deferred_call *first, **end;
        pthread_t thread;
        bool started, ends;
    } locked;
};

/* NULL: the end. */
static struct sl_deferred_call *take(struct sl_deferred_thread *thread)
{
    SL_LOCKED(&thread->lock);
    while (!thread->locked.first && !thread->locked.ends)
        pthread_cond_wait(&thread->more, &thread->lock);
    struct sl_deferred_call *call = thread->locked.first;
    if (call && !(thread->locked.first = call->next))
        thread->locked.end = &thread->locked.first;
    return call;
}

static void *run(void *arg)
{
    struct sl_deferred_call *call;
    while ((call = take(arg)))
        call->run(call);
    return NULL;
}

static bool put(struct sl_deferred_thread *thread, struct sl_deferred_call *call)
{
    SL_LOCKED(&thread->lock);
    if (!thread->locked.started &&
        sl_thread_start(&thread->locked.thread, thread->name, run, thread, NULL) < 0)
        return false;
    thread->locked.started = true;
    call->next = NULL;
    *thread->locked.end = call;
    thread->locked.end = &call->next;
    pthread_cond_signal(&thread->more);
    return true;
}

void sl_deferred_thread_add(struct sl_deferred_thread *thread, struct sl_deferred_call *call)
{
    if (!put(thread, call))
        call->run(call);
}

struct sl_deferred_thread *sl_deferred_thread_new(const char *name, struct sl_err *err)
{
    struct sl_deferred_thread *thread = sl_alloc(sizeof(*thread), err);
    if (!thread)
        return NULL;
    thread->name = name;
    thread->locked.end = &thread->locked.first;
    pthread_mutex_init(&thread->lock, NULL);
    pthread_cond_init(&thread->more, NULL);
    return thread;
}

static bool begin_end(struct sl_deferred_thread *thread)
{
    SL_LOCKED(&thread->lock);
    thread->locked.ends = true;
    pthread_cond_signal(&thread->more);
    return thread->locked.started;
}

void sl_deferred_thread_free(struct sl_deferred_thread *thread)
{
    if (!thread)
        return;
    if (begin_end(thread))
        pthread_join(thread->locked.thread, NULL);
    pthread_cond_destroy(&thread->more);
    pthread_mutex_destroy(&thread->lock);
    free(thread);
}

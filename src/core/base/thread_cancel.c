/* Borrowed by each thread while it works for somebody: nothing to free, nothing to lock. */
#include "thread_cancel.h"

static _Thread_local struct sl_cancel *set;

struct sl_cancel *sl_thread_cancel_set(struct sl_cancel *cancel)
{
    struct sl_cancel *before = set;
    set = cancel;
    return before;
}

struct sl_cancel *sl_thread_cancel(struct sl_cancel *store)
{
    return set ? set : store;
}

void sl_thread_cancel_cond_init(pthread_cond_t *condition)
{
    pthread_condattr_t clock; /* as sl_now_ns() */
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &clock);
    pthread_condattr_destroy(&clock);
}

int sl_thread_cancel_look(pthread_cond_t *condition, pthread_mutex_t *mutex,
                          struct sl_cancel *store, struct sl_err *err)
{
    struct sl_cancel *cancel = sl_thread_cancel(store);
    if (sl_cancel_check(cancel, err) < 0)
        return -1;
    uint64_t when = sl_now_ns() + SL_THREAD_CANCEL_LOOK_MS * SL_NS_PER_MS;
    const struct timespec at = {(time_t)(when / SL_NS_PER_S), (long)(when % SL_NS_PER_S)};
    pthread_cond_timedwait(condition, mutex, &at);
    return sl_cancel_check(cancel, err);
}

/* Raising is safe in a signal handler, so it cannot wake a condition: it is looked at. */
int sl_thread_cancel_wait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                          struct sl_cancel *store, struct sl_err *err)
{
    if (sl_thread_cancel(store))
        return sl_thread_cancel_look(condition, mutex, store, err);
    pthread_cond_wait(condition, mutex);
    return 0;
}

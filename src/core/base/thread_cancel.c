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

/*
 * What ends the work that a thread is doing. A store that stays open is read by many, each of whom
 * has an end of its own, and the store's cancel ends them all. What a read waits for within the
 * store, such as a login, has no other way to learn whose it is. Each thread has its own.
 */
#ifndef SL_THREAD_CANCEL_H
#define SL_THREAD_CANCEL_H

#include "thread.h"

/** From now on this ends what the calling thread does; NULL: nothing of its own. It is raised, too,
 * when the store's is. Borrowed until the next call. Returns what was there before. */
struct sl_cancel *sl_thread_cancel_set(struct sl_cancel *cancel);
/** The cancel of the calling thread's work; `store` where none was set. */
struct sl_cancel *sl_thread_cancel(struct sl_cancel *store);

enum { SL_THREAD_CANCEL_LOOK_MS = 20 };

/** A condition for sl_thread_cancel_wait(): its timed waits go by sl_now_ns(). */
void sl_thread_cancel_cond_init(pthread_cond_t *condition);
/**
 * Wait as pthread_cond_wait() for what another thread does, but end when the calling thread's work
 * is canceled.
 *
 * @condition  what is signaled.
 * @mutex      held by the caller; held again in any case.
 * @store      as of sl_thread_cancel(); may be NULL.
 * @return     0: look again, which may be without a reason; -1 with SL_E_CANCELED, at most
 *             SL_THREAD_CANCEL_LOOK_MS late.
 */
int sl_thread_cancel_wait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                          struct sl_cancel *store, struct sl_err *err);
/** The same, and no longer than SL_THREAD_CANCEL_LOOK_MS: for whoever looks at more than this. */
int sl_thread_cancel_look(pthread_cond_t *condition, pthread_mutex_t *mutex,
                          struct sl_cancel *store, struct sl_err *err);

#endif

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
/** What ends the calling thread's work: `store` where nothing was set. */
struct sl_cancel *sl_thread_cancel(struct sl_cancel *store);

#endif

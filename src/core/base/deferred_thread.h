/*
 * A thread of its own for calls that may take long, or never return: whoever leaves them to it goes
 * on. It is started with the first of them and does one after another.
 */
#ifndef SL_DEFERRED_THREAD_H
#define SL_DEFERRED_THREAD_H

#include "deferred_call.h"
#include "err.h"
#include "mem.h"

struct sl_deferred_thread;

/** The name is borrowed, 15 bytes of it are shown. SL_E_NO_SPACE. */
struct sl_deferred_thread *sl_deferred_thread_new(const char *name, struct sl_err *err);
/** Have call->run(call) called by the thread; by the caller, at once, if the thread cannot be
 * started. Any thread. */
void sl_deferred_thread_add(struct sl_deferred_thread *thread, struct sl_deferred_call *call);
/** Nobody adds anything any more. Blocks until all that was added has been done; NULL is fine. */
void sl_deferred_thread_free(struct sl_deferred_thread *thread);

#endif

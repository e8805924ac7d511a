/* A limit for how long something may take. Any thread. */
#ifndef SL_DEADLINE_H
#define SL_DEADLINE_H

#include "thread.h"

/**
 * Do the work with a cancel of its own, which is raised when `outer` (may be NULL) is or when the
 * seconds are over: then SL_E_TIMEOUT instead of SL_E_CANCELED. 0 seconds: no limit, and the work
 * gets `outer` itself. Blocks until the work ends. Returns what the work does; SL_E_NO_SPACE.
 */
int sl_deadline_run(uint64_t seconds, struct sl_cancel *outer,
                    int (*work)(void *arg, struct sl_cancel *cancel, struct sl_err *err), void *arg,
                    struct sl_err *err);

#endif

/* A limit for how long something may take. Any thread. */
#ifndef SL_DEADLINE_H
#define SL_DEADLINE_H

#include "thread.h"

/**
 * Do some work, and cancel it when its time is over.
 *
 * @seconds  0: no limit, and the work gets `outer` itself.
 * @outer    its being raised cancels the work; NULL: nothing does.
 * @work     is given a cancel of its own; its return value is handed on.
 * @arg      of work().
 * @return   what the work returns, with SL_E_TIMEOUT in place of SL_E_CANCELED where the time was
 *           over, which the message calls readers.timeoutSeconds; or -1 with SL_E_NO_SPACE.
 *
 * Blocks until the work ends.
 */
int sl_deadline_run(uint64_t seconds, struct sl_cancel *outer,
                    int (*work)(void *arg, struct sl_cancel *cancel, struct sl_err *err), void *arg,
                    struct sl_err *err);

#endif

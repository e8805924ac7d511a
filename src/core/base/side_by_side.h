/* Small jobs that mostly wait, done by several threads. */
#ifndef SL_SIDE_BY_SIDE_H
#define SL_SIDE_BY_SIDE_H

#include <stddef.h>

#include "err.h"

/**
 * Do job(arg, 0), job(arg, 1), … job(arg, count - 1), each once, several at a time.
 *
 * @count   of the jobs; 0 is fine.
 * @most    so many at a time, and never more than 64.
 * @name    of the threads.
 * @job     called by several threads at once; the calling thread does some.
 * @arg     of job().
 * @return  0, or -1 with the error of the first job, by number, that failed. After a failure no
 *          other one is begun.
 *
 * Blocks until all that were begun have ended. A thread that cannot start costs time only.
 */
int sl_side_by_side(size_t count, unsigned most, const char *name,
                    int (*job)(void *arg, size_t number, struct sl_err *err), void *arg,
                    struct sl_err *err);

#endif

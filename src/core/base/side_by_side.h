/* Small jobs that mostly wait, done by several threads. */
#ifndef SL_SIDE_BY_SIDE_H
#define SL_SIDE_BY_SIDE_H

#include <stddef.h>

#include "err.h"

/**
 * Do job(arg, 0), job(arg, 1), … job(arg, count - 1), each once, up to `most` at a time; the
 * calling thread does some of them. After a failure no other one is begun. Blocks until all that
 * were begun have ended. -1 with the error of the first one, by number, that failed.
 *
 * job may be called by any of these threads, and by several at once. name: of the threads. A thread
 * that cannot start costs time only.
 */
int sl_side_by_side(size_t count, unsigned most, const char *name,
                    int (*job)(void *arg, size_t number, struct sl_err *err), void *arg,
                    struct sl_err *err);

#endif

/* A process of a test's own that is made before the test has threads: what it does later it may do
 * in full. (A copy of a process with threads may find every lock held for ever by a thread that it
 * does not have; under a sanitizer its first allocation can hang.) */
#ifndef SL_EARLY_CHILD_H
#define SL_EARLY_CHILD_H

#include <stddef.h>

struct sl_early_child;

enum { SL_EARLY_ORDER_BYTES = 256 };

/** The child sleeps until it gets its order, then ends with what `run` returns. It dies with its
 * parent. Whatever fails here aborts the test. */
struct sl_early_child *sl_early_child_start(int (*run)(struct sl_early_child *self,
                                                       const void *order));
/** Begin, with a copy of these bytes as the order. */
void sl_early_child_go(struct sl_early_child *child, const void *order, size_t bytes);
/** By the child: it has come as far as it should, and waits to be killed. */
_Noreturn void sl_early_child_arrive(struct sl_early_child *self);
/** Until it has arrived; if it ends instead the test fails. */
void sl_early_child_await(struct sl_early_child *child);
/** Its status, as of waitpid(), when it has ended; the child is freed. */
int sl_early_child_end(struct sl_early_child *child);
/** The same after SIGKILL. */
int sl_early_child_kill(struct sl_early_child *child);

#endif

/*
 * What a process that was forked must not find as it was: locks of the whole process that threads
 * held which it does not have, and tables of what such threads were doing. For the library, whose
 * users fork; the program never goes on in a copy of itself.
 *
 * A file with such a lock names it once, with what of its tables a child forgets:
 *
 *     SL_FORK_GUARD(&table.mutex, forget)
 *
 * A fork then waits until no thread holds any of them, so that what they guard is whole.
 */
#ifndef SL_FORK_GUARD_H
#define SL_FORK_GUARD_H

#include <pthread.h>

struct sl_fork_guard {
    pthread_mutex_t *mutex;
    /** By the child, with all locks held; it frees and closes nothing, since what it forgets is the
     * parent's. NULL: there is nothing to forget. */
    void (*forget)(void);
    struct sl_fork_guard *next;
};

/** Before main(), by the macro. */
void sl_fork_guard_add(struct sl_fork_guard *guard);
/** From now on; any thread, any number of times. */
void sl_fork_guard_begin(void);

#define SL_FORK_GUARD(lock, forgets)                                                               \
    __attribute__((constructor)) static void sl_fork_guard_here(void)                              \
    {                                                                                              \
        static struct sl_fork_guard guard = {.mutex = (lock), .forget = (forgets)};                \
        sl_fork_guard_add(&guard);                                                                 \
    }

#endif

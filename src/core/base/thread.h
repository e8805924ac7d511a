/*
 * Threads, locks, cancellation and clocks. Cancellation is a descriptor, so whatever polls can wait
 * for it. Any thread; only sl_sleep_ms() and locks wait.
 */
#ifndef SL_THREAD_H
#define SL_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "err.h"

/* ---- clocks -------------------------------------------------------------------------------- */

/** Monotonic nanoseconds. */
uint64_t sl_now_ns(void);
/** Wall clock, seconds since 1970. */
int64_t sl_wall_seconds(void);
/** The same in nanoseconds: the clock that file systems take their times from, a tick late. */
int64_t sl_wall_ns(void);
#define SL_NS_PER_S  1000000000ull
#define SL_NS_PER_MS 1000000ull

/* ---- cancellation -------------------------------------------------------------------------- */

/**
 * A flag that is raised once, with a reason, and a descriptor that becomes readable then. Any
 * thread may raise and read it; raising is safe in a signal handler.
 */
struct sl_cancel;
/** Nobody else has it. NULL is fine. */
void sl_cancel_free(struct sl_cancel *cancel);
/** NULL: SL_E_NO_SPACE, no memory or no descriptor. */
struct sl_cancel *sl_cancel_new(struct sl_err *err);
/** signal_number is 0 for a client that asks. Only the first call counts. */
void sl_cancel_raise(struct sl_cancel *cancel, int signal_number);
/** NULL is never canceled. */
bool sl_cancel_raised(const struct sl_cancel *cancel);
/** The signal that raised it, 0 if none. */
int sl_cancel_signal(const struct sl_cancel *cancel);
/** For poll(POLLIN); the cancel's. -1 if cancel is NULL. */
int sl_cancel_fd(const struct sl_cancel *cancel);
/** 0, or -1 with SL_E_CANCELED if raised. */
int sl_cancel_check(const struct sl_cancel *cancel, struct sl_err *err);
/** Sleep; 0 after the whole time, -1 with SL_E_CANCELED if raised meanwhile. cancel may be NULL. */
int sl_sleep_ms(unsigned ms, struct sl_cancel *cancel, struct sl_err *err);

/* ---- threads ------------------------------------------------------------------------------- */

/**
 * Start a thread with all signals blocked.
 *
 * @thread  out: for pthread_join(), by the caller.
 * @name    of the thread; 15 bytes of it count.
 * @run     what it does, with `arg`.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                    struct sl_err *err);

/** Keep the calling thread, and with it the memory that it takes, on the processors that a file of
 * the kernel's lists ("0-3,8"), as far as it may use them. False: there is no such file, or none of
 * those is the thread's; nothing has changed then. */
bool sl_thread_stay(const char *path);

/** Processors this process may use: affinity and, of the last second, cgroup quota (v1 and
 * v2); at least 1. */
unsigned sl_cpu_count(void);

/* ---- counters shared by threads ------------------------------------------------------------ */

/** A counter that any thread may add to and read without a lock. */
struct sl_counter {
    _Atomic uint64_t value;
};
void sl_counter_add(struct sl_counter *counter, uint64_t amount);
uint64_t sl_counter_get(const struct sl_counter *counter);

/* ---- locks --------------------------------------------------------------------------------- */

static inline void sl_unlock_(pthread_mutex_t **lock)
{
    if (*lock)
        pthread_mutex_unlock(*lock);
}
static inline pthread_mutex_t *sl_lock_(pthread_mutex_t *lock)
{
    pthread_mutex_lock(lock);
    return lock;
}
#define SL_LOCK_NAME_(a, b) a##b
#define SL_LOCK_NAME(line)  SL_LOCK_NAME_(held_, line)
/** Hold a mutex to the end of the scope. */
#define SL_LOCKED(mutex)                                                                           \
    __attribute__((cleanup(sl_unlock_), unused)) pthread_mutex_t *SL_LOCK_NAME(__LINE__) =         \
        sl_lock_(mutex)

/**
 * The same for a struct `type` with a member `lock` and invariants: check(thing) asserts them when
 * the lock was taken, and before it is given back. SL_LOCKED_DEFINE() stands once, in a header.
 */
#define SL_LOCKED_DEFINE(type, check)                                                              \
    static inline void type##_unlock_(struct type **thing)                                         \
    {                                                                                              \
        check(*thing);                                                                             \
        pthread_mutex_unlock(&(*thing)->lock);                                                     \
    }                                                                                              \
    static inline struct type *type##_lock_(struct type *thing)                                    \
    {                                                                                              \
        pthread_mutex_lock(&thing->lock);                                                          \
        check(thing);                                                                              \
        return thing;                                                                              \
    }
#define SL_LOCKED_CHECKED(type, thing)                                                             \
    __attribute__((cleanup(type##_unlock_), unused)) struct type *SL_LOCK_NAME(__LINE__) =         \
        type##_lock_(thing)

#endif

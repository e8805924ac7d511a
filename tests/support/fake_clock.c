/*
 * The linker gives us every call of another file to the functions below (--wrap), and the real ones
 * as __real_NAME. A wait that goes by the clock in hand is made of short real ones.
 *
 * A thread may have read the time just before a turn and wait just after it, so its first wait
 * after a turn ends at once: the second is that of a round that saw nothing but the new time.
 */
#include "fake_clock.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "await.h"
#include "mem.h"
#include "quiet.h"

enum {
    SLICE_MS = 1,        /* of who cannot be woken */
    LONG_SLICE_MS = 100, /* of who is, by each turn */
    LOOK_US = 200,
    POLL_MAX = 64,
};

#define WRAPPED(type, name, ...)                                                                   \
    type __real_##name(__VA_ARGS__);                                                               \
    type __wrap_##name(__VA_ARGS__)
WRAPPED(uint64_t, sl_now_ns, void);
WRAPPED(int64_t, sl_wall_seconds, void);
WRAPPED(int64_t, sl_wall_ns, void);
WRAPPED(int, sl_sleep_ms, unsigned ms, struct sl_cancel *cancel, struct sl_err *err);
WRAPPED(int, poll, struct pollfd *fds, nfds_t count, int ms);
WRAPPED(int, __poll_chk, struct pollfd *fds, nfds_t count, int ms, size_t bytes);
WRAPPED(int, pthread_cond_timedwait, pthread_cond_t *condition, pthread_mutex_t *mutex,
        const struct timespec *end);

struct wait {
    uint64_t turn, end_ns;
    struct wait *next;
    int wake; /* an eventfd that a turn makes ready; -1: none */
    pthread_cond_t *condition;
};

static _Atomic uint64_t turns;    /* 0: the clock is not in hand */
static _Atomic uint64_t held_ns;  /* 0: it goes */
static _Atomic uint64_t ahead_ns; /* of the machine's clock, while it goes */
static atomic_bool runs;          /* fake_clock_run() */
static struct {
    pthread_mutex_t mutex;
    unsigned settled; /* threads, since the last turn */
    struct wait *waits;
} hand = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local struct {
    uint64_t read, seen, settled; /* the turn in which it last did so */
} self;

/* ---- the time -------------------------------------------------------------------------------- */

uint64_t fake_clock_real_ns(void)
{
    return __real_sl_now_ns();
}

static uint64_t now_ns(void)
{
    uint64_t held = atomic_load(&held_ns);
    return held ? held : __real_sl_now_ns() + atomic_load(&ahead_ns);
}

uint64_t __wrap_sl_now_ns(void)
{
    self.read = atomic_load(&turns);
    return now_ns();
}

/* Of the machine's clock; negative if this one is behind. */
static int64_t ahead_of_real_ns(void)
{
    return (int64_t)now_ns() - (int64_t)__real_sl_now_ns();
}

int64_t __wrap_sl_wall_seconds(void)
{
    return __real_sl_wall_seconds() + ahead_of_real_ns() / (int64_t)SL_NS_PER_S;
}

int64_t __wrap_sl_wall_ns(void)
{
    return __real_sl_wall_ns() + ahead_of_real_ns();
}

static void begin_turn(void)
{
    hand.settled = 0;
    atomic_fetch_add(&turns, 1);
    for (struct wait *wait = hand.waits; wait; wait = wait->next) {
        if (wait->wake >= 0)
            eventfd_write(wait->wake, 1);
        if (wait->condition)
            pthread_cond_broadcast(wait->condition);
    }
}

void fake_clock_hold(void)
{
    SL_LOCKED(&hand.mutex);
    atomic_store(&runs, false);
    atomic_store(&held_ns, now_ns());
    begin_turn();
}

void fake_clock_release(void)
{
    SL_LOCKED(&hand.mutex);
    uint64_t held = atomic_load(&held_ns);
    if (!held)
        return;
    atomic_store(&runs, false);
    atomic_store(&ahead_ns, held - __real_sl_now_ns());
    atomic_store(&held_ns, 0);
    begin_turn();
}

void fake_clock_turn(uint64_t ns)
{
    SL_LOCKED(&hand.mutex);
    atomic_fetch_add(atomic_load(&held_ns) ? &held_ns : &ahead_ns, ns);
    begin_turn();
}

/* ---- waits ----------------------------------------------------------------------------------- */

/* Under the mutex. */
static void list_wait(struct wait *wait)
{
    /* -1: one slice after another */
    wait->wake = wait->condition ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    wait->next = hand.waits;
    hand.waits = wait;
}

/* false: look again first. */
static bool begin_wait(struct wait *wait, uint64_t end_ns)
{
    SL_LOCKED(&hand.mutex);
    wait->turn = atomic_load(&turns);
    wait->end_ns = end_ns;
    if (self.seen != wait->turn) {
        self.seen = wait->turn;
        return false;
    }
    if (self.read == wait->turn && self.settled != wait->turn) {
        self.settled = wait->turn;
        hand.settled++;
    }
    list_wait(wait);
    return true;
}

static void end_wait(struct wait *wait)
{
    SL_LOCKED(&hand.mutex);
    struct wait **at = &hand.waits;
    while (*at != wait)
        at = &(*at)->next;
    *at = wait->next;
    if (wait->wake >= 0)
        close(wait->wake);
}

static bool goes_on(const struct wait *wait)
{
    return atomic_load(&turns) == wait->turn && now_ns() < wait->end_ns;
}

/* Of real time, until it is time to look at the clock. */
static unsigned slice_ms(const struct wait *wait)
{
    uint64_t now = now_ns();
    if (now >= wait->end_ns)
        return 0;
    if (atomic_load(&held_ns))
        return LONG_SLICE_MS;
    return (unsigned)SL_MIN((wait->end_ns - now) / SL_NS_PER_MS + 1, (uint64_t)LONG_SLICE_MS);
}

/* Until a file is ready, or it is time to look at the clock. */
static int poll_slice(const struct wait *wait, struct pollfd *fds, nfds_t count)
{
    struct pollfd all[POLL_MAX + 1];
    eventfd_t turned;
    if (wait->wake < 0 || count > POLL_MAX)
        return __real_poll(fds, count, SLICE_MS);
    if (count)
        memcpy(all, fds, count * sizeof(*fds));
    all[count] = (struct pollfd){wait->wake, POLLIN, 0};
    int ready = __real_poll(all, count + 1, (int)slice_ms(wait));
    if (count)
        memcpy(fds, all, count * sizeof(*fds));
    if (ready > 0 && all[count].revents) {
        eventfd_read(wait->wake, &turned);
        ready--;
    }
    return ready;
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int ms)
{
    struct wait wait = {.condition = NULL};
    if (ms <= 0 || !atomic_load(&turns))
        return __real_poll(fds, count, ms);
    int ready = __real_poll(fds, count, 0);
    if (ready || !begin_wait(&wait, now_ns() + (uint64_t)ms * SL_NS_PER_MS))
        return ready;
    while (!(ready = poll_slice(&wait, fds, count)) && goes_on(&wait))
        ;
    end_wait(&wait);
    return ready;
}

/* What _FORTIFY_SOURCE makes of poll(). */
int __wrap___poll_chk(struct pollfd *fds, nfds_t count, int ms, size_t bytes)
{
    if (ms <= 0 || !atomic_load(&turns))
        return __real___poll_chk(fds, count, ms, bytes);
    return __wrap_poll(fds, count, ms);
}

int fake_clock_poll(struct pollfd *fds, nfds_t count, int ms)
{
    struct wait wait = {.end_ns = now_ns() + (uint64_t)(ms > 0 ? ms : 0) * SL_NS_PER_MS};
    int ready;
    if (ms <= 0)
        return __real_poll(fds, count, ms);
    pthread_mutex_lock(&hand.mutex);
    list_wait(&wait);
    pthread_mutex_unlock(&hand.mutex);
    while (!(ready = poll_slice(&wait, fds, count)) && now_ns() < wait.end_ns)
        ;
    end_wait(&wait);
    return ready;
}

int __wrap_sl_sleep_ms(unsigned ms, struct sl_cancel *cancel, struct sl_err *err)
{
    if (!atomic_load(&turns))
        return __real_sl_sleep_ms(ms, cancel, err);
    uint64_t end_ns = __wrap_sl_now_ns() + ms * SL_NS_PER_MS, now;
    while (sl_cancel_check(cancel, err) == 0) {
        if ((now = __wrap_sl_now_ns()) >= end_ns)
            return 0;
        struct pollfd fd = {sl_cancel_fd(cancel), POLLIN, 0};
        __wrap_poll(&fd, 1, (int)((end_ns - now + SL_NS_PER_MS - 1) / SL_NS_PER_MS));
    }
    return -1;
}

static uint64_t ns_of(const struct timespec *time)
{
    return (uint64_t)time->tv_sec * SL_NS_PER_S + (uint64_t)time->tv_nsec;
}

/* It wakes after every slice: what it waits for may have come between two of them. */
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *end)
{
    struct wait wait = {.condition = condition};
    if (!atomic_load(&turns))
        return __real_pthread_cond_timedwait(condition, mutex, end);
    if (!begin_wait(&wait, ns_of(end)))
        return 0;
    uint64_t slice = __real_sl_now_ns() + slice_ms(&wait) * SL_NS_PER_MS;
    struct timespec at = {(time_t)(slice / SL_NS_PER_S), (long)(slice % SL_NS_PER_S)};
    int result = pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &at);
    end_wait(&wait);
    return result == ETIMEDOUT && now_ns() < wait.end_ns ? 0 : result;
}

/* ---- a clock that runs ----------------------------------------------------------------------- */

/* To what is waited for first. */
static void turn_on(void)
{
    SL_LOCKED(&hand.mutex);
    uint64_t first = UINT64_MAX;
    for (const struct wait *wait = hand.waits; wait; wait = wait->next)
        first = SL_MIN(first, wait->end_ns);
    if (!atomic_load(&runs) || first == UINT64_MAX || first <= atomic_load(&held_ns))
        return;
    atomic_store(&held_ns, first);
    begin_turn();
}

static struct {
    pthread_t thread;
    pid_t process; /* whose it is; 0: there is none */
    atomic_bool over;
} runner;

static void *run_on(void *unused)
{
    const struct timespec pause = {.tv_nsec = LOOK_US * 1000};
    (void)unused;
    while (!atomic_load(&runner.over)) {
        nanosleep(&pause, NULL);
        if (atomic_load(&runs) && quiet_now())
            turn_on();
    }
    return NULL;
}

/* At the end of a process, which may be a child without the thread. */
static void end_runner(void)
{
    if (runner.process != getpid())
        return;
    atomic_store(&runner.over, true);
    pthread_join(runner.thread, NULL);
}

void fake_clock_run(void)
{
    struct sl_err err = SL_ERR_INIT;
    SL_LOCKED(&hand.mutex);
    atomic_store(&runs, true);
    atomic_store(&held_ns, now_ns());
    begin_turn();
    if (runner.process)
        return;
    runner.process = getpid();
    ck_assert_int_eq(sl_thread_start(&runner.thread, "clock", run_on, NULL, &err), 0);
    atexit(end_runner);
}

/* ---- for the test ---------------------------------------------------------------------------- */

static bool is_settled(unsigned threads)
{
    SL_LOCKED(&hand.mutex);
    return hand.settled >= threads;
}

void fake_clock_settle(unsigned threads)
{
    char what[64];
    snprintf(what, sizeof(what), "%u threads that look at the clock and wait", threads);
    SL_AWAIT(is_settled(threads), what);
}

static unsigned count_waits(uint64_t least, uint64_t most)
{
    SL_LOCKED(&hand.mutex);
    unsigned count = 0;
    uint64_t now = now_ns();
    for (const struct wait *wait = hand.waits; wait; wait = wait->next)
        count += wait->end_ns >= now + least && wait->end_ns <= now + most;
    return count;
}

static void await_waits(unsigned count, uint64_t least, uint64_t most)
{
    char what[80];
    snprintf(what, sizeof(what), "%u waits of %llu to %llu ms", count,
             (unsigned long long)(least / SL_NS_PER_MS), (unsigned long long)(most / SL_NS_PER_MS));
    SL_AWAIT(count_waits(least, most) >= count, what);
}

void fake_clock_await(uint64_t ns)
{
    await_waits(1, ns, ns + SL_NS_PER_MS);
}

void fake_clock_await_between(uint64_t least, uint64_t most)
{
    await_waits(1, least, most);
}

void fake_clock_await_all(unsigned waits, uint64_t ns)
{
    await_waits(waits, ns, ns + SL_NS_PER_MS);
}

void fake_clock_turn_until(const struct sl_counter *done, uint64_t step, unsigned threads)
{
    while (!sl_counter_get(done)) {
        fake_clock_turn(step);
        SL_AWAIT((is_settled(threads) && quiet_now()) || sl_counter_get(done),
                 "those who wait, or their end");
    }
}

/* ---- work ------------------------------------------------------------------------------------ */

static void *run_work(void *arg)
{
    struct fake_clock_work *work = arg;
    uint64_t begin_ns = now_ns();
    work->run(work->arg);
    work->took_ns = now_ns() - begin_ns;
    sl_counter_add(&work->done, 1);
    return NULL;
}

void fake_clock_begin(struct fake_clock_work *work, void (*run)(void *arg), void *arg)
{
    struct sl_err err = SL_ERR_INIT;
    *work = (struct fake_clock_work){.run = run, .arg = arg};
    ck_assert_int_eq(sl_thread_start(&work->thread, "work", run_work, work, &err), 0);
}

void fake_clock_end(struct fake_clock_work *work)
{
    pthread_join(work->thread, NULL);
}

void fake_clock_pass(const struct fake_clock_work *work, uint64_t ns)
{
    fake_clock_await(ns);
    fake_clock_turn(ns - 1);
    fake_clock_settle(1);
    ck_assert_uint_eq(sl_counter_get(&work->done), 0);
    fake_clock_turn(1);
}

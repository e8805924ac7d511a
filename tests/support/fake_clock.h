/*
 * The clock in a test's hand: sl_now_ns(), sl_wall_seconds() and sl_wall_ns() for all threads of
 * its process.
 *
 * A test whose subject is time holds the clock, so that nothing is late because the machine is, and
 * turns it by what is to pass:
 *
 *     fake_clock_hold();
 *     start(work);                             in another thread
 *     fake_clock_await(5 * SL_NS_PER_S);       somebody waits for five seconds, not more or less
 *     fake_clock_turn(5 * SL_NS_PER_S - 1);
 *     fake_clock_settle(1);                    whoever waits has looked, and waits again
 *     ck_assert(nothing has come of it);
 *     fake_clock_turn(1);
 *
 * Waits go by this clock once it is in hand: poll() with a time-out, sl_sleep_ms() and
 * pthread_cond_timedwait() end when it was turned far enough. What else they wait for comes as
 * ever. Each turn makes those who wait look again: poll() tells of nothing, a condition wakes
 * without a reason. A wait that began before the clock was in hand knows nothing of it, so hold the
 * clock first.
 *
 * Not in hand: sockets, other processes, epoll_wait(), what curl and libmicrohttpd measure
 * themselves, libsluice's own deadlines, and SL_AWAIT(), whose end is a real one.
 *
 * tests/CMakeLists.txt links every test program with --wrap, so the program itself has no hook. A
 * test that does not take the clock has the machine's. Any thread may call any of these.
 */
#ifndef SL_FAKE_CLOCK_H
#define SL_FAKE_CLOCK_H

#include <poll.h>
#include <stdint.h>

#include "thread.h"

/** Stand still, at the time that it is. */
void fake_clock_hold(void);
/** Let it go on from where it stands. */
void fake_clock_release(void);
/** So much later from now on, held or not. */
void fake_clock_turn(uint64_t ns);
/**
 * Stand still while anything goes on in this process, and be turned to what is waited for first
 * each time when nothing does (quiet.h), until it is held or released. For tests in which time only
 * takes long: what waits for time and for nothing else has it at once, and nothing is late. Not
 * where another process answers, or somebody goes by another clock.
 */
void fake_clock_run(void);

/** Until so many threads have read the time that it is since the last turn, gone once more through
 * what they do, and wait for a later one. */
void fake_clock_settle(unsigned threads);
/** Until a thread waits for what comes in so many ns. Waits are whole milliseconds: up to one more
 * is the same. */
void fake_clock_await(uint64_t ns);
/** As before, for what comes in `least` to `most` ns, and for so many waits. */
void fake_clock_await_between(uint64_t least, uint64_t most);
void fake_clock_await_all(unsigned waits, uint64_t ns);
/** Turn it by `step`, again and again, until `done` is not 0; each time when so many threads have
 * settled and nothing goes on in this process (quiet.h): its servers answer between two turns, and
 * nothing is late because the machine is. */
void fake_clock_turn_until(const struct sl_counter *done, uint64_t step, unsigned threads);

/** Work in a thread of its own, while the test turns the clock for it. */
struct fake_clock_work {
    void (*run)(void *arg);
    void *arg;
    pthread_t thread;
    struct sl_counter done;
    uint64_t took_ns; /* by this clock; set when it has ended */
};
void fake_clock_begin(struct fake_clock_work *work, void (*run)(void *arg), void *arg);
/** It ends without another turn. */
void fake_clock_end(struct fake_clock_work *work);
/** The work, or what it started, waits for what comes in so many ns: let them pass. Just before, it
 * has looked, and not ended. */
void fake_clock_pass(const struct fake_clock_work *work, uint64_t ns);

/** The machine's clock, whatever this one shows. */
uint64_t fake_clock_real_ns(void);
/** For servers of tests: as poll(), but a turn alone does not end it, and it does not settle. It
 * can be awaited. */
int fake_clock_poll(struct pollfd *fds, nfds_t count, int ms);

#endif

/*
 * Whether this process stands still: nothing in it goes on until time has passed, or somebody
 * outside does something.
 *
 * It does if every thread but the caller's sleeps in the kernel and none ran between two looks, and
 * nothing is under way between its sockets: no packet in the loopback device, no byte that the
 * kernel has yet to send and its reader has room for, no connection half made. A thread that waits
 * for the disk does not sleep; one in SL_AWAIT() counts as at work. What it cannot see are answers
 * of other processes, and real timers (nanosleep(), epoll_wait(), what curl measures): who has such
 * must not ask.
 */
#ifndef SL_QUIET_H
#define SL_QUIET_H

#include <stdbool.h>

/** One caller at a time. It takes some hundred microseconds, and lets nothing of the process wait.
 */
bool quiet_now(void);

/** Around a wait that is not one for time: the thread counts as at work. */
void quiet_busy_begin(void);
void quiet_busy_end(void);

#endif

/*
 * What this process has had of the processors, and how long its threads have waited for one.
 * Any thread.
 */
#ifndef SL_CPU_TIME_H
#define SL_CPU_TIME_H

#include <stdint.h>

struct sl_cpu_time {
    uint64_t used_ns;
    uint64_t waited_ns; /* ready to run, of the threads that live: less when one has ended. 0 where
                           the kernel does not count it */
};
/** Reads a small file for each thread. */
struct sl_cpu_time sl_cpu_time(void);
/** From `before` to `now`: never negative. */
struct sl_cpu_time sl_cpu_time_between(struct sl_cpu_time before, struct sl_cpu_time now);

#endif

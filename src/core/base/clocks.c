/* The two clocks, each a function that tests may hold. */
#include <time.h>

#include "thread.h"

uint64_t sl_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SL_NS_PER_S + (uint64_t)now.tv_nsec;
}

int64_t sl_wall_seconds(void)
{
    return (int64_t)time(NULL);
}

int64_t sl_wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * (int64_t)SL_NS_PER_S + now.tv_nsec;
}

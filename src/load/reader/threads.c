/*
 * Threads are for processors, so their number is bounded for the process and not for each load:
 * several models that are loaded side by side share what one would have. A load that finds all
 * taken has its own thread, which drives any number of connections.
 */
#include "metrics.h"
#include "reader_parts.h"

enum { AUTO_THREADS_MAX = 8 };

static struct {
    pthread_mutex_t mutex;
    unsigned count;
} taken = {.mutex = PTHREAD_MUTEX_INITIALIZER};

unsigned sl_reader_take_threads(unsigned given, unsigned useful)
{
    unsigned bound = SL_MIN(sl_cpu_count(), (unsigned)AUTO_THREADS_MAX);
    uint64_t loads = SL_MAX(sl_metric_get(SL_M_LOADS_ACTIVE), UINT64_C(1));
    SL_LOCKED(&taken.mutex);
    unsigned left = bound > taken.count ? bound - taken.count : 0;
    unsigned part = (unsigned)SL_MIN(bound / loads, left);
    unsigned count = given ? given : SL_MAX(SL_MIN(part, useful), 1u);
    taken.count += count;
    return count;
}

void sl_reader_return_threads(unsigned count)
{
    SL_LOCKED(&taken.mutex);
    taken.count -= count;
}

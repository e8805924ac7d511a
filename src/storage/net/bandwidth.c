/*
 * A bucket of time: every byte that is read moves the moment until which the link is taken by its
 * own time at its load's rate. Loads with different rates share that time, so none of them exceeds
 * its own rate, nor all together the largest.
 *
 * Readers that come too early get turns, one behind another and a slice of bytes apart: else the
 * first of a thread's connections would always find what the others wait for. A turn is only a time
 * to ask again, so one that finds nothing to read delays nobody: what it leaves is there for the
 * next.
 */
#include "bandwidth.h"

#include "mem.h"
#include "thread.h"

enum { SLICE_BYTES = 64 * 1024 };

static struct {
    pthread_mutex_t mutex;
    double taken_ns; /* the link is taken until then */
    double turn_ns;  /* the last turn that was given ends */
} bucket = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static double ns_of(uint64_t rate, double bytes)
{
    return bytes * (double)SL_NS_PER_S / (double)SL_MAX(rate, UINT64_C(1));
}

size_t sl_bandwidth_ask(struct sl_bandwidth *reader, uint64_t rate, size_t bytes, uint64_t now_ns)
{
    if (reader->turn_ns > now_ns)
        return 0;
    SL_LOCKED(&bucket.mutex);
    double now = (double)now_ns, floor = now - (double)SL_BANDWIDTH_BURST_NS;
    bool queued = bucket.turn_ns > now && !reader->turn_ns;
    bucket.taken_ns = SL_MAX(bucket.taken_ns, floor);
    double slice_ns = ns_of(rate, (double)SL_MIN(bytes, (size_t)SLICE_BYTES));
    slice_ns = SL_MIN(slice_ns, (double)SL_BANDWIDTH_BURST_NS);
    if (now - bucket.taken_ns >= slice_ns && !queued) {
        double there = (now - bucket.taken_ns) * (double)rate / (double)SL_NS_PER_S;
        reader->turn_ns = 0;
        return SL_MIN(SL_MAX((size_t)there, 1), bytes);
    }
    bucket.turn_ns = SL_MAX(SL_MAX(bucket.turn_ns, bucket.taken_ns), now) + slice_ns;
    reader->turn_ns = (uint64_t)bucket.turn_ns + 1;
    return 0;
}

void sl_bandwidth_used(uint64_t rate, size_t bytes, uint64_t now_ns)
{
    SL_LOCKED(&bucket.mutex);
    bucket.taken_ns = SL_MAX(bucket.taken_ns, (double)now_ns - (double)SL_BANDWIDTH_BURST_NS);
    bucket.taken_ns += ns_of(rate, (double)bytes);
}

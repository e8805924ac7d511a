/*
 * The median over the last ranges. A sample of a smaller range is scaled up, one of a larger range
 * counts as it is, since a range costs a round trip however small it is: both err to the patient
 * side, and what follows from an estimate that is too short is a request too many.
 */
#include "pace.h"

#include "mem.h"

void sl_pace_add(struct sl_pace *pace, uint64_t bytes, uint64_t ns)
{
    if (!bytes)
        return;
    unsigned place = pace->count++ % SL_PACE_SAMPLES;
    pace->samples[place].bytes = bytes;
    pace->samples[place].ns = ns;
}

uint64_t sl_pace_expect(const struct sl_pace *pace, uint64_t bytes)
{
    double sorted[SL_PACE_SAMPLES];
    unsigned count = SL_MIN(pace->count, (unsigned)SL_PACE_SAMPLES);
    if (!count)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        double ns = (double)pace->samples[i].ns;
        if (pace->samples[i].bytes < bytes)
            ns *= (double)bytes / (double)pace->samples[i].bytes;
        unsigned place = i;
        for (; place && sorted[place - 1] > ns; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = ns;
    }
    return (uint64_t)sorted[count / 2] + 1;
}

struct sl_latency_delays sl_pace_delays(const struct sl_pace *pace, uint64_t store_first_ns)
{
    return sl_latency_range_delays(&pace->first, &pace->fresh, &pace->gaps, store_first_ns);
}

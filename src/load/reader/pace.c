/*
 * The median over the last ranges. A sample of a smaller range is scaled up, one of a larger range
 * counts as it is, since a range costs a round trip however small it is: both err to the patient
 * side, and what follows from an estimate that is too short is a request too many.
 *
 * Patience is several times what nine of ten waits stayed within, so that it follows the link: a
 * store that begins its answers within a millisecond is doubted after some tens, a distant one
 * later, and one in a hundred that stalls does not change what is usual. What was given up counts
 * as a wait of that length, so where much is slow patience grows. The floors are what a busy
 * machine, a lost packet or a handshake cost now and then; within an answer a lost packet is sent
 * again only after 200 ms or so, but to ask anew is cheaper than that at most times.
 */
#include "pace.h"

#include "mem.h"
#include "thread.h"

enum {
    WAITS_FEW = 4,
    PATIENT_TIMES = 4,
    FRESH_TIMES = 3, /* a connection and its TLS are some round trips more */
    UNSURE_TIMES = 8,
};
#define FIRST_NS  (25 * SL_NS_PER_MS)
#define FRESH_NS  (150 * SL_NS_PER_MS)
#define GAP_NS    (100 * SL_NS_PER_MS)
#define UNSURE_NS (250 * SL_NS_PER_MS)

void sl_waits_add(struct sl_waits *waits, uint64_t ns)
{
    waits->ns[waits->count++ % SL_PACE_SAMPLES] = ns;
}

uint64_t sl_waits_usual(const struct sl_waits *waits)
{
    uint64_t sorted[SL_PACE_SAMPLES];
    unsigned count = SL_MIN(waits->count, (unsigned)SL_PACE_SAMPLES);
    if (count < WAITS_FEW)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned place = i;
        for (; place && sorted[place - 1] > waits->ns[i]; place--)
            sorted[place] = sorted[place - 1];
        sorted[place] = waits->ns[i];
    }
    return sorted[(count - 1) * 9 / 10] + 1;
}

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

struct sl_patience sl_pace_patience(const struct sl_pace *pace, uint64_t store_first_ns)
{
    uint64_t first = sl_waits_usual(&pace->first), fresh = sl_waits_usual(&pace->fresh);
    uint64_t gap = sl_waits_usual(&pace->gaps);
    uint64_t unsure_ns = SL_MAX(UNSURE_NS, UNSURE_TIMES * store_first_ns);
    struct sl_patience patience = {.first_ns = unsure_ns, .fresh_ns = unsure_ns};
    if (first)
        patience.first_ns = SL_MAX(FIRST_NS, PATIENT_TIMES * first);
    if (fresh)
        patience.fresh_ns = SL_MAX(FRESH_NS, PATIENT_TIMES * fresh);
    else if (first)
        patience.fresh_ns = SL_MAX(unsure_ns, FRESH_TIMES * patience.first_ns);
    if (!first)
        patience.first_ns = patience.fresh_ns;
    patience.gap_ns =
        SL_MAX(SL_MAX(GAP_NS, gap ? PATIENT_TIMES * gap : UNSURE_NS), patience.first_ns);
    return patience;
}

/*
 * Ranges: how long to wait is several times what nine of ten waits stayed within, so that it
 * follows the link: a store that begins its answers within a millisecond is doubted after some
 * tens, a distant one later, and one in a hundred that stalls does not change what is usual. What
 * was given up counts as a wait of that length, so where much is slow the delay grows. The floors
 * are what a busy machine, a lost packet or a handshake cost now and then; within an answer a lost
 * packet is sent again only after 200 ms or so, but to ask anew is cheaper than that at most times.
 *
 * Answers without siblings: one that takes longer than the delay would, on most machines, not have
 * taken so long if it came from elsewhere; one that is asked for needlessly costs its server a
 * request. Below a second lie garbage collections, cold caches, a lost packet or two, and what a
 * busy machine does to us.
 */
#include "latency.h"

#include "mem.h"
#include "thread.h"

enum {
    CONNECT_SECONDS = 10,
    STALL_SECONDS = 30,
    ADDRESS_PARTS = 5, /* of the time to connect */
    CONNECT_TIMES = 8, /* far away everything takes longer */
    HOST_TIMES = 2,    /* what an answer took */
    HOST_FORGETS = 4,  /* a part of it, with each that is faster */
    WAITS_FEW = 4,     /* samples that tell nothing yet */
    PATIENT_TIMES = 4, /* what is usual */
    FRESH_TIMES = 3,   /* a connection and its TLS are some round trips more */
    UNSURE_TIMES = 8,  /* what the store has shown, where siblings have shown nothing */
};
#define SILENT_NS (250 * SL_NS_PER_MS)
#define FIRST_NS  (25 * SL_NS_PER_MS)
#define FRESH_NS  (150 * SL_NS_PER_MS)
#define GAP_NS    (100 * SL_NS_PER_MS)
#define UNSURE_NS (250 * SL_NS_PER_MS)
_Static_assert(SL_LATENCY_ANSWER_LEAST_NS == SL_NS_PER_S, "a second");

/* ---- limits ---------------------------------------------------------------------------------- */

uint64_t sl_latency_connect_limit(unsigned seconds)
{
    return (seconds ? seconds : CONNECT_SECONDS) * SL_NS_PER_S;
}

unsigned sl_latency_stall_seconds(unsigned seconds)
{
    return seconds ? seconds : STALL_SECONDS;
}

bool sl_latency_is_silent(uint64_t quiet_ns)
{
    return quiet_ns >= SILENT_NS;
}

uint64_t sl_latency_address_delay(unsigned connect_seconds)
{
    return sl_latency_connect_limit(connect_seconds) / ADDRESS_PARTS;
}

/* ---- answers that have no siblings ----------------------------------------------------------- */

uint64_t sl_latency_host_add(uint64_t host_ns, uint64_t waited_ns)
{
    return SL_MAX(HOST_TIMES * waited_ns, host_ns - host_ns / HOST_FORGETS);
}

uint64_t sl_latency_answer_delay(uint64_t connect_ns, uint64_t host_ns, uint64_t least_ns)
{
    return SL_MAX(SL_MAX(least_ns, CONNECT_TIMES * connect_ns), host_ns);
}

uint64_t sl_latency_hedge_delay(unsigned hedge, uint64_t delay_ns, unsigned stall_seconds)
{
    uint64_t ns = hedge * delay_ns;
    return stall_seconds && ns >= stall_seconds * SL_NS_PER_S ? 0 : ns;
}

/* ---- ranges ---------------------------------------------------------------------------------- */

void sl_waits_add(struct sl_waits *waits, uint64_t ns)
{
    waits->ns[waits->count++ % SL_WAITS_SAMPLES] = ns;
}

uint64_t sl_waits_usual(const struct sl_waits *waits)
{
    uint64_t sorted[SL_WAITS_SAMPLES];
    unsigned count = SL_MIN(waits->count, (unsigned)SL_WAITS_SAMPLES);
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

struct sl_latency_delays sl_latency_range_delays(const struct sl_waits *first_waits,
                                                 const struct sl_waits *fresh_waits,
                                                 const struct sl_waits *gap_waits,
                                                 uint64_t store_ns)
{
    uint64_t first = sl_waits_usual(first_waits), fresh = sl_waits_usual(fresh_waits);
    uint64_t gap = sl_waits_usual(gap_waits);
    uint64_t unsure_ns = SL_MAX(UNSURE_NS, UNSURE_TIMES * store_ns);
    struct sl_latency_delays delays = {.first_ns = unsure_ns, .fresh_ns = unsure_ns};
    if (first)
        delays.first_ns = SL_MAX(FIRST_NS, PATIENT_TIMES * first);
    if (fresh)
        delays.fresh_ns = SL_MAX(FRESH_NS, PATIENT_TIMES * fresh);
    else if (first)
        delays.fresh_ns = SL_MAX(unsure_ns, FRESH_TIMES * delays.first_ns);
    if (!first)
        delays.first_ns = delays.fresh_ns;
    delays.gap_ns = SL_MAX(SL_MAX(GAP_NS, gap ? PATIENT_TIMES * gap : UNSURE_NS), delays.first_ns);
    return delays;
}

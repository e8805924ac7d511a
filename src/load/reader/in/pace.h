/* How long things take on this link now: what a slow request is compared with. */
#ifndef SL_PACE_H
#define SL_PACE_H

#include <stdint.h>

#include "latency.h"

enum { SL_PACE_SAMPLES = 32 };

/** Zeroed: nothing is known yet. */
struct sl_pace {
    struct {
        uint64_t bytes, ns;
    } samples[SL_PACE_SAMPLES]; /* the last ranges that ended */
    unsigned count;             /* of all that ended */
    /* For the first byte of an answer, on a connection that was there, and on a new one; within an
     * answer, the longest. */
    struct sl_waits first, fresh, gaps;
};

/** A range of so many bytes (0 is ignored) took ns. */
void sl_pace_add(struct sl_pace *pace, uint64_t bytes, uint64_t ns);
/** Time that a range of this size takes, at least 1 ns; 0 until a range has ended. */
uint64_t sl_pace_expect(const struct sl_pace *pace, uint64_t bytes);

/** How long to bear without a byte. store_first_ns: the shortest time to a first byte that the
 * store has shown, 0: unknown. */
struct sl_latency_delays sl_pace_delays(const struct sl_pace *pace, uint64_t store_first_ns);

#endif

/* How long a range of some size takes on this link now: what a slow request is compared with. */
#ifndef SL_PACE_H
#define SL_PACE_H

#include <stdint.h>

enum { SL_PACE_SAMPLES = 32 };
/** Zeroed: nothing is known yet. */
struct sl_pace {
    struct {
        uint64_t bytes, ns;
    } samples[SL_PACE_SAMPLES]; /* the last ranges that ended */
    unsigned count;             /* of all that ended */
};

/** A range of so many bytes (0 is ignored) took ns. */
void sl_pace_add(struct sl_pace *pace, uint64_t bytes, uint64_t ns);
/** What a range of so many bytes takes, at least 1 ns; 0 while no range has ended. */
uint64_t sl_pace_expect(const struct sl_pace *pace, uint64_t bytes);

#endif

/*
 * How many bytes came from sources in each of the last steps of two seconds: what a page shows
 * before it was opened. A ring of fixed size; not safe for several threads at once, its owner has a
 * lock.
 */
#ifndef SL_HISTORY_H
#define SL_HISTORY_H

#include <stdint.h>

#include "json.h"

enum { SL_HISTORY_STEP_SECONDS = 2, SL_HISTORY_STEPS = 1800 };

struct sl_history {
    uint64_t begun_ns;   /* of its first step; 0: not begun */
    uint64_t step;       /* the one that is being filled: 0, 1, … */
    uint64_t seen_bytes; /* of the counter, when it was last looked at */
    uint64_t bytes[SL_HISTORY_STEPS];
};

/** What has come since the last call counts for the step of now_ns (sl_now_ns()); steps between are
 * empty. The first call begins the history. A zeroed history is new. */
void sl_history_note(struct sl_history *history, uint64_t now_ns);
/** Members of an open object: step_seconds, and bytes of each whole step, the oldest first, the
 * last one ended less than a step before the latest note. */
void sl_history_json(const struct sl_history *history, struct sl_json *json);

#endif

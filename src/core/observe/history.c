/* Differences of the counter of bytes from sources, so that nothing is lost between two looks,
 * however short a load was. */
#include "history.h"

#include <string.h>

#include "metrics.h"
#include "thread.h"

#define STEP_NS (SL_HISTORY_STEP_SECONDS * SL_NS_PER_S)

/* The steps between are empty; more than the ring has need no second round. */
static void advance(struct sl_history *history, uint64_t step)
{
    if (step - history->step >= SL_HISTORY_STEPS) {
        memset(history->bytes, 0, sizeof(history->bytes));
        history->step = step;
    }
    while (history->step < step)
        history->bytes[++history->step % SL_HISTORY_STEPS] = 0;
}

void sl_history_note(struct sl_history *history, uint64_t now_ns)
{
    uint64_t seen = sl_metric_get(SL_M_SOURCE_BYTES);
    if (!history->begun_ns) {
        history->begun_ns = now_ns;
        history->seen_bytes = seen;
    }
    advance(history, (now_ns - history->begun_ns) / STEP_NS);
    history->bytes[history->step % SL_HISTORY_STEPS] += seen - history->seen_bytes;
    history->seen_bytes = seen;
}

void sl_history_json(const struct sl_history *history, struct sl_json *json)
{
    uint64_t whole = SL_MIN(history->step, (uint64_t)SL_HISTORY_STEPS - 1);
    sl_json_key_uint(json, "step_seconds", SL_HISTORY_STEP_SECONDS);
    sl_json_key(json, "bytes");
    sl_json_array(json);
    for (uint64_t step = history->step - whole; step < history->step; step++)
        sl_json_uint(json, history->bytes[step % SL_HISTORY_STEPS]);
    sl_json_end(json);
}

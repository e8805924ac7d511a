/*
 * Lines of the log that a client can cause. The first few of each minute are written; what comes
 * after is counted (the metrics count all of it), and told with the next line that is written. A
 * flood of many users takes the slots from each other, oldest first: their number, and so what can
 * be written in a minute, is bounded.
 */
#include <inttypes.h>
#include <string.h>

#include "log.h"
#include "pool_server_parts.h"

enum { LINES = 4, WINDOW_SECONDS = 60 };

static const char *const names[] = {[SL_POOL_SAID_MALFORMED] = "malformed requests",
                                    [SL_POOL_SAID_OVER] = "refusals for its share",
                                    [SL_POOL_SAID_ACCEPT] = "connections that failed"};

/* The slot's window ends. */
static void roll(struct sl_pool_quiet *quiet, size_t i, uint32_t uid, enum sl_pool_said said,
                 uint64_t now)
{
    if (quiet->slots[i].used && quiet->slots[i].left_out)
        sl_log(SL_LOG_WARN, "pool: %" PRIu64 " more lines of uid %u were left out: %s",
               quiet->slots[i].left_out, quiet->slots[i].uid, names[quiet->slots[i].said]);
    memset(&quiet->slots[i], 0, sizeof(quiet->slots[i]));
    quiet->slots[i].used = true;
    quiet->slots[i].uid = uid;
    quiet->slots[i].said = said;
    quiet->slots[i].since_ns = now;
}

/* Its own slot, else a free one, else the oldest. */
static size_t find_slot(struct sl_pool_quiet *quiet, uint32_t uid, enum sl_pool_said said,
                        uint64_t now)
{
    size_t oldest = 0;
    for (size_t i = 0; i < SL_POOL_QUIET_SLOTS; i++) {
        if (quiet->slots[i].used && quiet->slots[i].uid == uid && quiet->slots[i].said == said) {
            if (now - quiet->slots[i].since_ns > WINDOW_SECONDS * SL_NS_PER_S)
                roll(quiet, i, uid, said, now);
            return i;
        }
        if (quiet->slots[i].since_ns < quiet->slots[oldest].since_ns)
            oldest = i;
    }
    roll(quiet, oldest, uid, said, now);
    return oldest;
}

void sl_pool_quiet_warn(struct sl_pool_quiet *quiet, uint32_t uid, enum sl_pool_said said,
                        const char *text)
{
    size_t i = find_slot(quiet, uid, said, sl_now_ns());
    if (quiet->slots[i].lines >= LINES) {
        quiet->slots[i].left_out++;
        return;
    }
    quiet->slots[i].lines++;
    sl_log(SL_LOG_WARN, "pool: %s%s", text,
           quiet->slots[i].lines == LINES ? " (more of it in the next minute is only counted)"
                                          : "");
}

void sl_pool_quiet_end(struct sl_pool_quiet *quiet)
{
    for (size_t i = 0; i < SL_POOL_QUIET_SLOTS; i++)
        if (quiet->slots[i].used)
            roll(quiet, i, quiet->slots[i].uid, quiet->slots[i].said, 0);
}

/*
 * When a request is slow, and what becomes of it. It is compared with what ranges of its size took
 * before (pace.h): too long without a byte, or too few bytes in too long a time, twice.
 */
#include <inttypes.h>

#include "lane_parts.h"
#include "log.h"
#include "metrics.h"

enum { HEDGES_MAX = 2 };
/* No request is slow sooner, or within so many times what its siblings take. */
#define SLOW_NS SL_NS_PER_S
enum { SLOW_TIMES = 3, SLOW_PART = 4 /* a rate below this part of theirs is slow */ };

/* Once is a doubt: by the second time every lane of a link that became slow has had its first. */
static enum sl_lane_pace lags_pace(const struct sl_reader_lane *lane)
{
    return lane->lags > 1 ? SL_PACE_SLOW : lane->lags ? SL_PACE_DOUBTFUL : SL_PACE_FINE;
}

enum sl_lane_pace sl_reader_lane_pace(struct sl_reader_lane *lane, bool quiet)
{
    uint64_t now_ns = sl_now_ns();
    if (!lane->busy || lane->at == lane->range.end)
        return SL_PACE_FINE;
    if (lane->backs_off) /* the server asked for it, or is down: another connection is no help */
        sl_lane_start_clock(lane, now_ns);
    uint64_t quiet_ns = quiet ? now_ns - lane->moved_ns : 0, window_ns = now_ns - lane->mark_ns;
    if (SL_MAX(quiet_ns, window_ns) < SLOW_NS / 2)
        return lags_pace(lane);
    uint64_t bytes = sl_lane_weight(lane, lane->range.begin, lane->range.end);
    uint64_t expected_ns = sl_reader_expect(lane->reader, bytes);
    if (!expected_ns)
        return SL_PACE_FINE;
    uint64_t slow_ns = SL_MAX(SLOW_NS, SLOW_TIMES * expected_ns);
    if (window_ns >= slow_ns) {
        double come = (double)(lane->got - lane->mark_got) / (double)window_ns;
        bool low = !sl_lane_comb(lane) && come * SLOW_PART < (double)bytes / (double)expected_ns;
        lane->lags = low ? lane->lags + 1 : 0;
        lane->mark_ns = now_ns;
        lane->mark_got = lane->got;
    }
    if (quiet_ns >= SLOW_TIMES * slow_ns)
        return SL_PACE_STUCK;
    if (quiet_ns >= slow_ns)
        return SL_PACE_SLOW;
    return SL_MAX(lags_pace(lane), quiet_ns >= slow_ns / 2 ? SL_PACE_DOUBTFUL : SL_PACE_FINE);
}

bool sl_reader_lane_hedge(struct sl_reader_lane *lane, enum sl_lane_pace pace)
{
    struct sl_reader *reader = lane->reader;
    struct sl_job rest = {lane->range, lane->hedges + 1};
    rest.range.begin = sl_lane_unfinished(lane);
    if (lane->formed || lane->hedges == HEDGES_MAX ||
        !sl_reader_give_back(reader, &rest, pace == SL_PACE_STUCK))
        return false;
    sl_metric_add(SL_M_SOURCE_HEDGES, 1);
    sl_log(SL_LOG_DEBUG,
           "fetching '%s' from byte %" PRIu64 " again: its request brought %" PRIu64
           " bytes in %.1f s, others are much faster",
           sl_source_uri(reader->plan->sources[lane->range.source].source), rest.range.begin,
           lane->got, (double)(sl_now_ns() - lane->started_ns) / (double)SL_NS_PER_S);
    if (lane->place.memory)
        sl_sink_abandon(reader->sink, &lane->place);
    lane->place.memory = NULL;
    sl_fetch_free(sl_steal(&lane->fetch));
    lane->busy = false;
    return true;
}

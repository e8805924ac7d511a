/*
 * When a request is slow, and what becomes of it.
 *
 * It is slow when nothing comes for several times what others wait (pace.h), or too little for a
 * second, twice in a row. Half way there it is in doubt: another lane takes its place in the load
 * meanwhile (crew.c). Then its connection is dropped and what has not come is asked for on another
 * one, since of all that could be done this costs the fewest bytes: nothing had come that was not
 * taken. To keep the first request and take what comes first would save a new connection where the
 * doubt was wrong, but then both come. Each time the lane is twice as patient, so that an answer
 * that simply takes long is waited for in the end.
 */
#include <inttypes.h>

#include "lane_parts.h"
#include "log.h"
#include "metrics.h"

enum { HEDGES_MAX = 3 };
/* A rate is measured over a second or more, and over several times what its siblings take. */
#define RATE_NS SL_NS_PER_S
enum { SLOW_TIMES = 3, SLOW_PART = 4 /* a rate below this part of theirs is slow */ };
/* With nobody to compare with, a request is not stuck sooner. */
#define STUCK_NS (SL_NS_PER_S / 2)

/* Whether what came since the mark is little, beside the ranges before. */
static void measure_rate(struct sl_reader_lane *lane, uint64_t now_ns)
{
    uint64_t window_ns = now_ns - lane->mark_ns;
    if (window_ns < RATE_NS)
        return;
    uint64_t bytes = sl_lane_weight(lane, lane->range.begin, lane->range.end);
    uint64_t expected_ns = sl_reader_expect(lane->reader, bytes);
    if (!expected_ns || window_ns < SLOW_TIMES * expected_ns)
        return;
    double come = (double)(lane->got - lane->mark_got) / (double)window_ns;
    bool low = !sl_lane_comb(lane) && come * SLOW_PART < (double)bytes / (double)expected_ns;
    lane->lags = low ? lane->lags + 1 : 0;
    lane->mark_ns = now_ns;
    lane->mark_got = lane->got;
}

/* Once is a doubt: by the second time every lane of a link that became slow has had its first. */
static enum sl_lane_pace lags_pace(const struct sl_reader_lane *lane)
{
    return lane->lags > 1 ? SL_PACE_SLOW : lane->lags ? SL_PACE_DOUBTFUL : SL_PACE_FINE;
}

static enum sl_lane_pace quiet_pace(const struct sl_reader_lane *lane, uint64_t quiet_ns,
                                    const struct sl_patience *patience)
{
    uint64_t slow_ns = lane->begun   ? patience->gap_ns
                       : lane->fresh ? patience->fresh_ns
                                     : patience->first_ns;
    slow_ns <<= lane->hedges;
    if (quiet_ns >= SL_MAX(SLOW_TIMES * slow_ns, STUCK_NS))
        return SL_PACE_STUCK;
    return quiet_ns >= slow_ns       ? SL_PACE_SLOW
           : quiet_ns >= slow_ns / 2 ? SL_PACE_DOUBTFUL
                                     : SL_PACE_FINE;
}

/* What is awaited; nothing if it is only the end of an answer, or a turn to write. */
static bool awaits_bytes(const struct sl_reader_lane *lane)
{
    return lane->busy && !lane->formed &&
           sl_lane_awaits(lane) < SL_MIN(lane->range.end, lane->fetch_end);
}

enum sl_lane_pace sl_reader_lane_pace(struct sl_reader_lane *lane, bool quiet,
                                      const struct sl_patience *patience)
{
    enum sl_lane_pace pace = SL_PACE_FINE;
    if (awaits_bytes(lane)) {
        uint64_t now_ns = sl_now_ns();
        if (lane->backs_off) /* the server asked for it, or is down: another connection is no help
                              */
            sl_lane_start_clock(lane, now_ns);
        measure_rate(lane, now_ns);
        pace = SL_MAX(lags_pace(lane),
                      quiet_pace(lane, quiet ? now_ns - lane->moved_ns : 0, patience));
    }
    if (pace != SL_PACE_FINE && !lane->doubted)
        lane->landed_then = sl_counter_get(&lane->reader->landed);
    lane->doubted = pace != SL_PACE_FINE;
    return pace;
}

bool sl_reader_lane_unread(const struct sl_reader_lane *lane)
{
    return awaits_bytes(lane) && sl_lane_unread(lane) > 0;
}

int sl_reader_lane_hedge(struct sl_reader_lane *lane, enum sl_lane_pace pace, struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    struct sl_source *source = reader->plan->sources[lane->range.source].source;
    uint64_t now_ns = sl_now_ns(), awaited = sl_lane_awaits(lane);
    if (lane->hedges == HEDGES_MAX || reader->config->hedge == SL_HEDGE_OFF)
        return 0;
    struct sl_slow slow = {.landed_then = lane->landed_then,
                           .quiet_ns = now_ns - lane->moved_ns,
                           .unread = sl_lane_unread(lane),
                           .range_bytes = lane->range.end - lane->range.begin,
                           .begun = lane->begun,
                           .fresh = lane->fresh,
                           .stuck = pace == SL_PACE_STUCK};
    if (!sl_reader_may_hedge(reader, &slow))
        return 0;
    sl_metric_add(SL_M_SOURCE_HEDGES, 1);
    sl_progress_add_hedge(reader->config->progress);
    sl_log(SL_LOG_DEBUG,
           "fetching '%s' from byte %" PRIu64 " on another connection: nothing came for %" PRIu64
           " ms, others are much faster",
           sl_source_uri(source), awaited, slow.quiet_ns / (uint64_t)SL_NS_PER_MS);
    sl_lane_waste(lane);
    sl_fetch_free(sl_steal(&lane->fetch));
    lane->fetch = sl_fetch_new(lane->store, err);
    lane->fetch_end = SL_MIN(lane->fetch_end, lane->range.end);
    lane->hedges++;
    lane->fresh = true;
    sl_lane_start_clock(lane, now_ns);
    sl_lane_asks(lane, now_ns);
    bool going =
        lane->fetch && sl_fetch_start(lane->fetch, source, awaited, lane->fetch_end, err) == 0;
    return going ? 1 : -1;
}

/*
 * When a request is slow, and what becomes of it.
 *
 * It is slow when nothing comes for several times what others wait (pace.h), or too little for a
 * second, twice in a row. Half way there it is in doubt: another slot takes its place in the load
 * meanwhile (reader_thread.c). Then its connection is dropped and what has not come is asked for on
 * another one, since of all that could be done this costs the fewest bytes: nothing had come that
 * was not taken. To keep the first request and take what comes first would save a new connection
 * where the doubt was wrong, but then both come. Each time the slot is twice as patient, so that an
 * answer that simply takes long is waited for in the end.
 */
#include <inttypes.h>

#include "log.h"
#include "metrics.h"
#include "slot_parts.h"

enum { HEDGES_MAX = 3 };
/* A rate is measured over a second or more, and over several times what its siblings take. */
#define RATE_NS SL_NS_PER_S
enum { SLOW_TIMES = 3, SLOW_PART = 4 /* a rate below this part of theirs is slow */ };
/* With nobody to compare with, a request is not stuck sooner. */
#define STUCK_NS (SL_NS_PER_S / 2)

/* Whether what came since the mark is little, beside the ranges before. */
static void measure_rate(struct sl_slot *slot, uint64_t now_ns)
{
    uint64_t window_ns = now_ns - slot->mark_ns;
    if (window_ns < RATE_NS)
        return;
    uint64_t bytes = sl_slot_weight(slot, slot->range.begin, slot->range.end);
    uint64_t expected_ns = sl_reader_expect(slot->reader, bytes);
    if (!expected_ns || window_ns < SLOW_TIMES * expected_ns)
        return;
    double come = (double)(slot->got - slot->mark_got) / (double)window_ns;
    bool low = !sl_slot_sparse(slot) && come * SLOW_PART < (double)bytes / (double)expected_ns;
    slot->lags = low ? slot->lags + 1 : 0;
    slot->mark_ns = now_ns;
    slot->mark_got = slot->got;
}

/* Once is a doubt: by the second time every slot of a link that became slow has had its first. */
static enum sl_slot_pace lags_pace(const struct sl_slot *slot)
{
    return slot->lags > 1 ? SL_PACE_SLOW : slot->lags ? SL_PACE_DOUBTFUL : SL_PACE_FINE;
}

static enum sl_slot_pace quiet_pace(const struct sl_slot *slot, uint64_t quiet_ns,
                                    const struct sl_latency_delays *delays)
{
    bool begun = slot->request == SL_REQUEST_BEGUN;
    uint64_t slow_ns = begun ? delays->gap_ns : slot->fresh ? delays->fresh_ns : delays->first_ns;
    slow_ns <<= slot->hedges;
    if (quiet_ns >= SL_MAX(SLOW_TIMES * slow_ns, STUCK_NS))
        return SL_PACE_STUCK;
    return quiet_ns >= slow_ns       ? SL_PACE_SLOW
           : quiet_ns >= slow_ns / 2 ? SL_PACE_DOUBTFUL
                                     : SL_PACE_FINE;
}

/* What is awaited; nothing if it is only the end of an answer, or a turn to write. */
static bool awaits_bytes(const struct sl_slot *slot)
{
    return slot->request != SL_REQUEST_NONE && slot->window < SL_WINDOW_FORMED &&
           sl_slot_awaits(slot) < SL_MIN(slot->range.end, slot->fetch_end);
}

enum sl_slot_pace sl_slot_pace(struct sl_slot *slot, bool quiet,
                               const struct sl_latency_delays *delays)
{
    enum sl_slot_pace pace = SL_PACE_FINE;
    if (awaits_bytes(slot)) {
        struct pollfd fds[SL_IO_POLL_MAX];
        uint64_t now_ns = sl_now_ns(), deadline_ns;
        sl_slot_poll(slot, fds, &deadline_ns); /* its try may have failed since the last poll() */
        if (slot->request == SL_REQUEST_BACKS_OFF) /* the server asked for it, or is down: another
                                                    * connection is no help
                                                    */
            sl_slot_start_clock(slot, now_ns);
        measure_rate(slot, now_ns);
        pace =
            SL_MAX(lags_pace(slot), quiet_pace(slot, quiet ? now_ns - slot->moved_ns : 0, delays));
    }
    if (pace != SL_PACE_FINE && !slot->doubted)
        slot->landed_then = sl_counter_get(&slot->reader->landed);
    slot->doubted = pace != SL_PACE_FINE;
    return pace;
}

bool sl_slot_has_unread(const struct sl_slot *slot)
{
    return awaits_bytes(slot) && sl_slot_unread_bytes(slot) > 0;
}

int sl_slot_hedge(struct sl_slot *slot, enum sl_slot_pace pace, struct sl_err *err)
{
    struct sl_reader *reader = slot->reader;
    struct sl_source *source = reader->plan->sources[slot->range.source].source;
    uint64_t now_ns = sl_now_ns(), awaited = sl_slot_awaits(slot);
    if (slot->hedges == HEDGES_MAX || reader->config->hedge == SL_HEDGE_OFF ||
        reader->plan->fixed.on || sl_fetch_cache(slot->fetch) != SL_THROUGH_ORIGIN)
        return 0; /* a fetch leaves a slow cache by itself */
    struct sl_slow slow = {.landed_then = slot->landed_then,
                           .quiet_ns = now_ns - slot->moved_ns,
                           .unread = sl_slot_unread_bytes(slot),
                           .range_bytes = slot->range.end - slot->range.begin,
                           .begun = slot->request == SL_REQUEST_BEGUN,
                           .fresh = slot->fresh,
                           .stuck = pace == SL_PACE_STUCK};
    if (!sl_reader_may_hedge(reader, &slow))
        return 0;
    sl_metric_add(SL_M_SOURCE_HEDGES, 1);
    sl_progress_add_hedge(reader->config->progress);
    sl_log(SL_LOG_DEBUG,
           "fetching '%s' from byte %" PRIu64 " on another connection: nothing came for %" PRIu64
           " ms, others are much faster",
           sl_source_uri(source), awaited, slow.quiet_ns / (uint64_t)SL_NS_PER_MS);
    sl_slot_waste(slot);
    sl_fetch_free(sl_steal(&slot->fetch));
    slot->fetch = sl_fetch_new(slot->store, err);
    slot->fetch_end = SL_MIN(slot->fetch_end, slot->range.end);
    slot->hedges++;
    slot->fresh = true;
    sl_slot_start_clock(slot, now_ns);
    sl_slot_asks(slot, now_ns);
    bool going = slot->fetch && sl_slot_fetch(slot, awaited, slot->fetch_end, err) == 0;
    return going ? 1 : -1;
}

/*
 * What a lane gives away to one that is idle: half of what it has not begun to read, from the end,
 * so that its own request goes on. It stops there and leaves the rest of the answer, of which some
 * is on its way then and comes in vain: the fuller the socket the more, and the less does it help.
 */
#include "lane_parts.h"

enum { SPLIT_BYTES_MIN = 1024 * 1024 /* a smaller part is not worth another request */ };
/* Nor is one that its own connection brings soon. */
#define SPLIT_NS (250 * SL_NS_PER_MS)

uint64_t sl_reader_lane_left(const struct sl_reader_lane *lane)
{
    return lane->busy ? sl_lane_weight(lane, lane->window_end, lane->range.end) : 0;
}

bool sl_reader_lane_may_split(const struct sl_reader_lane *lane)
{
    uint64_t left = sl_reader_lane_left(lane);
    if (left < 2 * SPLIT_BYTES_MIN)
        return false;
    uint64_t ns = sl_now_ns() - lane->started_ns,
             come = sl_lane_weight(lane, lane->range.begin, lane->at);
    return ns >= SPLIT_NS && (double)left * (double)ns >= (double)come * (double)SPLIT_NS;
}

/* Where to part what is left: at a page, or the next place where a unit ends. */
static uint64_t part_at(const struct sl_reader_lane *lane)
{
    uint64_t left, half = (lane->range.end - lane->window_end) / 2 / SL_PAGE_BYTES * SL_PAGE_BYTES;
    uint64_t place = lane->window_end + half;
    const struct sl_mapping *comb = sl_lane_comb(lane);
    if (comb) {
        uint64_t taken = sl_runs_before(&comb->fetched, place - comb->begin);
        taken -= taken ? 1 : 0; /* the last byte before the middle: a range ends with a tooth */
        place = comb->begin + sl_runs_at(&comb->fetched, taken, &left);
        return place + left;
    }
    const struct sl_extent *extent = sl_lane_extent_around(lane, place);
    const struct sl_mapping *mapping =
        extent ? sl_extent_mapping(lane->reader->plan, extent) : NULL;
    return mapping ? SL_MIN(sl_mapping_ceil(mapping, place), extent->end) : place;
}

bool sl_reader_lane_split(struct sl_reader_lane *lane)
{
    struct sl_reader_job rest = {lane->range};
    rest.range.begin = part_at(lane);
    if (rest.range.begin >= lane->range.end || !sl_reader_hungry(lane->reader) ||
        !sl_reader_may_waste(lane->reader, sl_lane_unread(lane)) ||
        !sl_reader_give(lane->reader, &rest))
        return false;
    lane->range.end = rest.range.begin;
    return true;
}

/*
 * What a slot gives away to one that is idle: half of what it has not begun to read, from the end,
 * so that its own request goes on. It stops there and leaves the rest of the answer, of which some
 * is on its way then and comes in vain: the fuller the socket the more, and the less does it help.
 */
#include "slot_parts.h"

enum { SPLIT_BYTES_MIN = 1024 * 1024 /* a smaller part is not worth another request */ };
/* Nor is one that its own connection brings soon. */
#define SPLIT_NS (250 * SL_NS_PER_MS)

uint64_t sl_slot_left(const struct sl_slot *slot)
{
    return slot->request != SL_REQUEST_NONE
               ? sl_slot_weight(slot, slot->window_end, slot->range.end)
               : 0;
}

bool sl_slot_may_split(const struct sl_slot *slot)
{
    uint64_t left = sl_slot_left(slot);
    if (left < 2 * SPLIT_BYTES_MIN)
        return false;
    uint64_t ns = sl_now_ns() - slot->started_ns,
             come = sl_slot_weight(slot, slot->range.begin, slot->at);
    return ns >= SPLIT_NS && (double)left * (double)ns >= (double)come * (double)SPLIT_NS;
}

/* Where to part what is left: at a page, or the next place where a unit ends. */
static uint64_t part_at(const struct sl_slot *slot)
{
    uint64_t left, half = (slot->range.end - slot->window_end) / 2 / SL_PAGE_BYTES * SL_PAGE_BYTES;
    uint64_t place = slot->window_end + half;
    const struct sl_mapping *sparse = sl_slot_sparse(slot);
    if (sparse) {
        uint64_t taken = sl_runs_before(&sparse->fetched, place - sparse->begin);
        taken -= taken ? 1 : 0; /* the last byte before the middle: a range ends with a row */
        place = sparse->begin + sl_runs_at(&sparse->fetched, taken, &left);
        return place + left;
    }
    const struct sl_extent *extent = sl_slot_extent_around(slot, place);
    const struct sl_mapping *mapping =
        extent ? sl_extent_mapping(slot->reader->plan, extent) : NULL;
    return mapping ? SL_MIN(sl_mapping_ceil(mapping, place), extent->end) : place;
}

bool sl_slot_split(struct sl_slot *slot)
{
    struct sl_reader_job rest = {slot->range};
    rest.range.begin = part_at(slot);
    if (rest.range.begin >= slot->range.end || !sl_reader_hungry(slot->reader) ||
        !sl_reader_may_waste(slot->reader, sl_slot_unread_bytes(slot)) ||
        !sl_reader_give(slot->reader, &rest))
        return false;
    slot->range.end = rest.range.begin;
    return true;
}

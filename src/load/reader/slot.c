/*
 * One connection. Its range is read in windows (window.c), each filled completely, then landed.
 *
 *     NONE ──▶ ASKED ──▶ BEGUN ──all bytes──▶ NONE, from each, once all bytes are there or are
 *                │ ▲        │                   another slot's
 *                ▼ │        │ asked again (the next row, a slow request, what came wrong): ASKED
 *            BACKS_OFF ◀────┘ it failed, and waits to try again
 *
 *     sl_slot_asks()  ASKED      note_wait()    BEGUN
 *     sl_slot_poll()  BACKS_OFF  leave_range()  NONE
 *
 * A slot gives away from the end of its range (split.c), which so comes nearer, and asks for the
 * rest of it again where its request is slow (slow.c), from the first byte that has not come. What
 * comes twice is only what an answer brought beyond the new end, or on a connection given up, and
 * that is counted. What changes on its way (transform_stage.c) is parted only where its mapping
 * allows.
 *
 * Of a sparse range a window holds only rows, one behind another. A request is for one row, or for
 * several with the gaps between them, where these are shorter than a request is worth (weigh.h):
 * then a read takes what comes into the window's rest, and its rows are moved together there.
 */
#include <assert.h>
#include <sys/ioctl.h>

#include "metrics.h"
#include "slot_parts.h"

enum { REQUEST_BYTES = 64 * 1024 /* that a request costs as much as */ };

#ifndef NDEBUG

#define TO(state) (1U << SL_##state)

static const unsigned request_steps[] = {
    [SL_REQUEST_NONE] = TO(REQUEST_ASKED),
    [SL_REQUEST_ASKED] =
        TO(REQUEST_NONE) | TO(REQUEST_ASKED) | TO(REQUEST_BEGUN) | TO(REQUEST_BACKS_OFF),
    [SL_REQUEST_BEGUN] =
        TO(REQUEST_NONE) | TO(REQUEST_ASKED) | TO(REQUEST_BEGUN) | TO(REQUEST_BACKS_OFF),
    [SL_REQUEST_BACKS_OFF] =
        TO(REQUEST_NONE) | TO(REQUEST_ASKED) | TO(REQUEST_BEGUN) | TO(REQUEST_BACKS_OFF),
};
static const unsigned window_steps[] = {
    [SL_WINDOW_NONE] = TO(WINDOW_FILLING),
    [SL_WINDOW_FILLING] = TO(WINDOW_FULL),
    [SL_WINDOW_FULL] = TO(WINDOW_NONE) | TO(WINDOW_FORMED) | TO(WINDOW_WRONG),
    [SL_WINDOW_FORMED] = TO(WINDOW_NONE),
    [SL_WINDOW_WRONG] = TO(WINDOW_NONE),
};

void sl_slot_check(const struct sl_slot *slot)
{
    /* 1: a window is of a range. */
    assert(slot->request != SL_REQUEST_NONE || slot->window == SL_WINDOW_NONE);
    /* 2: no window is open where nothing is left of the last one. */
    assert((slot->window == SL_WINDOW_NONE) == (slot->at == slot->window_end));
    /* 3: it ends within the range, whatever of that was given away. */
    assert(slot->at <= slot->window_end && slot->window_end <= slot->range.end);
    /* 4: it is FILLING as long as bytes are missing. */
    assert(slot->window == SL_WINDOW_NONE ||
           (slot->window == SL_WINDOW_FILLING) == (slot->filled < slot->window_bytes));
    /* 5: it lies in the buffer, or in the sink's memory, where nothing is formed. */
    assert(slot->place.memory || slot->window == SL_WINDOW_NONE ||
           slot->window_bytes <= slot->buffer_bytes);
    assert(!slot->place.memory || slot->window == SL_WINDOW_FILLING ||
           slot->window == SL_WINDOW_FULL);
    /* 6: the writer's stretch is of one file, and forward. */
    assert(slot->writer.begin <= slot->writer.end);
}

#else
void sl_slot_check(const struct sl_slot *slot)
{
    (void)slot;
}
#endif

void sl_slot_set_request(struct sl_slot *slot, enum sl_slot_request to)
{
    assert(request_steps[slot->request] & 1U << to);
    slot->request = to;
}

void sl_slot_set_window(struct sl_slot *slot, enum sl_slot_window to)
{
    assert(window_steps[slot->window] & 1U << to);
    slot->window = to;
}

struct sl_slot *sl_slot_new(struct sl_reader *reader, bool large, struct sl_err *err)
{
    const struct sl_concurrency *concurrency = &reader->concurrency;
    struct sl_slot *slot = sl_alloc_aligned(64, sizeof(*slot), err);
    if (!slot)
        return NULL;
    memset(slot, 0, sizeof(*slot));
    slot->reader = reader;
    slot->writer.reader = reader;
    slot->window_most = concurrency->buffer_bytes;
    slot->buffer_bytes = large ? concurrency->large_bytes : concurrency->buffer_bytes;
    slot->buffer = sl_alloc_aligned(SL_PAGE_BYTES, slot->buffer_bytes, err);
    if (slot->buffer && sl_transform_init(&slot->transform, reader, err) == 0)
        return slot;
    free(slot->buffer);
    free(slot);
    return NULL;
}

void sl_slot_free(struct sl_slot *slot)
{
    if (!slot)
        return;
    struct sl_err err = SL_ERR_INIT;
    {
        SL_LOCKED(&slot->reader->lock);
        size_t *most = &slot->reader->locked.window_most;
        *most = SL_MAX(*most, slot->window_most);
    }
    if (slot->place.memory)
        sl_sink_abandon(slot->reader->sink, &slot->place);
    if (sl_writer_flush(&slot->writer, &err) < 0)
        sl_reader_fail(slot->reader, &err);
    sl_transform_release(&slot->transform);
    sl_fetch_free(slot->fetch);
    free(slot->buffer);
    free(slot);
}

const struct sl_mapping *sl_slot_sparse(const struct sl_slot *slot)
{
    return slot->extents_end > slot->first_extent
               ? sl_extent_sparse(slot->reader->plan, slot->first_extent)
               : NULL;
}

uint64_t sl_slot_weight(const struct sl_slot *slot, uint64_t begin, uint64_t end)
{
    const struct sl_mapping *sparse = sl_slot_sparse(slot);
    if (!sparse)
        return end - begin;
    uint64_t bytes = sl_mapping_fetched(sparse, begin, end);
    return SL_MIN(bytes + bytes / sparse->fetched.bytes * REQUEST_BYTES, end - begin);
}

void sl_slot_start_clock(struct sl_slot *slot, uint64_t now_ns)
{
    slot->moved_ns = slot->mark_ns = now_ns;
    slot->mark_got = slot->got;
    slot->lags = 0;
}

void sl_slot_asks(struct sl_slot *slot, uint64_t now_ns)
{
    slot->asked_ns = now_ns;
    slot->doubted = false;
    sl_slot_set_request(slot, SL_REQUEST_ASKED);
}

uint64_t sl_slot_awaits(const struct sl_slot *slot)
{
    if (sl_slot_sparse(slot))
        return slot->row_at;
    return slot->window == SL_WINDOW_NONE ? slot->at : slot->at + slot->filled;
}

uint64_t sl_slot_unread_bytes(const struct sl_slot *slot)
{
    struct pollfd fds[SL_IO_POLL_MAX];
    uint64_t deadline_ns, bytes = 0;
    int count = sl_fetch_poll(slot->fetch, fds, &deadline_ns), unread;
    for (int i = 0; i < count; i++)
        if (ioctl(fds[i].fd, FIONREAD, &unread) == 0 && unread > 0)
            bytes += (uint64_t)unread;
    return bytes;
}

void sl_slot_waste(struct sl_slot *slot)
{
    uint64_t wasted = sl_slot_unread_bytes(slot);
    if (!wasted)
        return;
    sl_metric_add(SL_M_SOURCE_WASTED_BYTES, (int64_t)wasted);
    sl_progress_add_wasted(slot->reader->config->progress, wasted);
}

struct sl_source *sl_slot_source(const struct sl_slot *slot)
{
    return slot->reader->plan->sources[slot->range.source].source;
}

int sl_slot_fetch(struct sl_slot *slot, uint64_t begin, uint64_t end, struct sl_err *err)
{
    sl_fetch_vouch(slot->fetch, sl_reader_vouch(slot->reader, slot->range.source));
    return sl_fetch_start(slot->fetch, sl_slot_source(slot), begin, end, err);
}

const struct sl_extent *sl_slot_extent_around(const struct sl_slot *slot, uint64_t place)
{
    const struct sl_extent *extent = slot->extent;
    while (extent < slot->extents_end && extent->end <= place)
        extent++;
    return extent < slot->extents_end && extent->begin < place ? extent : NULL;
}

uint64_t sl_slot_unfinished(const struct sl_slot *slot)
{
    const struct sl_extent *extent = sl_slot_extent_around(slot, slot->at);
    const struct sl_mapping *mapping =
        extent ? sl_extent_mapping(slot->reader->plan, extent) : NULL;
    if (!mapping || sl_extent_sparse(slot->reader->plan, extent))
        return slot->at;
    return SL_MAX(sl_mapping_floor(mapping, slot->at), extent->begin);
}

/*
 * A window is filled completely, then landed in one go, so that a file gets whole pages at aligned
 * offsets in few calls (half the CPU of small writes), and hashes find the bytes in cache. It spans
 * extents and the gaps between them; small tensors do not cost a read each. Where the sink lends
 * memory, large extents are read straight into it.
 *
 *     NONE ──▶ FILLING ──all bytes, or cut──▶ FULL ──if a mapping changes them──▶ FORMED, WRONG
 *      ▲         │  ▲                          │                                      │
 *      │         └──┘ a slow request is sent   └────────────▶ it is our turn ◀────────┘
 *      │              again for what is missing                     │ written
 *      └──── the range goes on at window_end, or has ended ◀────────┘
 *
 *     sl_slot_open_window()   FILLING        sl_slot_fill_window(), sl_slot_cut_window()  FULL
 *     form_buffer()           FORMED         reread_from()                                WRONG
 *     sl_slot_close_window()  NONE
 *
 * A window of a slow source is cut (keep.c): what is there is all of it. Bytes that came wrong end
 * it before them when they are transformed: the rest is written, and the range is asked for again
 * from the begin of what is checked together.
 *
 * SL_SLOT_FULL is answered while another thread has the turn to write to the file: the window stays
 * as it is, and the slot tries again.
 */
#include "log.h"
#include "metrics.h"
#include "reread.h"
#include "slot_parts.h"

enum {
    DIRECT_BYTES_MIN = 32 * 1024, /* smaller extents share a window and are copied */
    LENT_BYTES = 1024 * 1024,     /* of a window in the sink's memory that nobody looks into */
};

/* The same for what changes on its way; a cut must be between elements. */
static uint64_t align_formed(const struct sl_slot *slot, const struct sl_extent *extent,
                             const struct sl_mapping *mapping, uint64_t end)
{
    uint64_t floor = SL_MAX(slot->at, extent->begin);
    uint64_t ragged =
        sl_mapping_place(mapping, end) % SL_PAGE_BYTES / mapping->out_item * mapping->in_item;
    if (ragged < end - floor)
        end -= ragged;
    uint64_t item = SL_MAX(mapping->in_item, SL_MAX(mapping->swap_bytes, 1u));
    return end - (end - mapping->begin) % item;
}

/* Cut a window short so that the next one begins at an aligned offset of the file. */
static uint64_t align_cut(const struct sl_slot *slot, uint64_t end)
{
    const struct sl_extent *extent = sl_slot_extent_around(slot, end);
    if (!extent)
        return end;
    const struct sl_mapping *mapping = sl_extent_mapping(slot->reader->plan, extent);
    if (mapping)
        return align_formed(slot, extent, mapping, end);
    uint64_t offset = extent->file_offset + (end - extent->begin);
    uint64_t floor = SL_MAX(slot->at, extent->begin);
    if (end - offset % slot->reader->concurrency.buffer_bytes > floor &&
        offset % slot->reader->concurrency.buffer_bytes < end - floor)
        return end - offset % slot->reader->concurrency.buffer_bytes;
    return offset % SL_PAGE_BYTES < end - floor ? end - offset % SL_PAGE_BYTES : end;
}

/* Cut it short where more would be made of it than the second buffer holds. */
static uint64_t fit_expanded(const struct sl_slot *slot, uint64_t end)
{
    uint64_t room = slot->reader->concurrency.buffer_bytes;
    const struct sl_extent *extent = slot->extent;
    for (; extent < slot->extents_end && extent->begin < end; extent++) {
        const struct sl_mapping *mapping = sl_extent_mapping(slot->reader->plan, extent);
        if (!mapping || mapping->out_item <= mapping->in_item)
            continue;
        uint64_t begin = SL_MAX(extent->begin, slot->at), stop = SL_MIN(extent->end, end);
        uint64_t most = room / mapping->out_item * mapping->in_item;
        if (stop - begin > most)
            return begin + most;
        room -= (stop - begin) / mapping->in_item * mapping->out_item;
    }
    return end;
}

/* Only rows count. They are half of the buffer: what lies between them comes into the rest. */
static int open_sparse_window(struct sl_slot *slot, const struct sl_mapping *sparse)
{
    uint64_t room = slot->reader->concurrency.buffer_bytes / 2, left;
    if (sparse->out_item > sparse->in_item)
        room = room / sparse->out_item * sparse->in_item;
    uint64_t begin = sl_runs_before(&sparse->fetched, slot->at - sparse->begin);
    uint64_t end = sl_runs_before(&sparse->fetched, slot->range.end - sparse->begin);
    slot->window_bytes = (size_t)SL_MIN(end - begin, room);
    slot->window_end =
        sparse->begin + sl_runs_at(&sparse->fetched, begin + slot->window_bytes - 1, &left) + 1;
    return 0;
}

/* Windows that are hashed are small, so that their bytes are still in cache. Others are larger: the
 * system acknowledges less often. */
static uint64_t lent_bytes(const struct sl_reader *reader)
{
    bool looks = reader->plan->check_count || reader->journal || reader->deferred;
    uint64_t most = reader->concurrency.buffer_bytes;
    return looks ? most : SL_MAX(most, (uint64_t)LENT_BYTES);
}

/* In the sink's own memory, if it has any to lend: the bytes are copied no more. */
static int open_lent_window(struct sl_slot *slot, struct sl_err *err)
{
    const struct sl_extent *extent = slot->extent;
    uint64_t end = SL_MIN(slot->range.end, slot->at + lent_bytes(slot->reader));
    end = SL_MIN(end, extent->end);
    uint64_t bytes = end - slot->at;
    if (bytes < DIRECT_BYTES_MIN && end != slot->range.end)
        return 0;
    if (sl_sink_lend(slot->reader->sink, extent->file,
                     extent->file_offset + (slot->at - extent->begin), bytes, &slot->place,
                     err) < 0)
        return -1;
    slot->window_end = end;
    slot->window_bytes = (size_t)bytes;
    return 0;
}

/* A long window opens only when the journal knows most of what was written: a kill costs no more
 * than with short ones. */
static uint64_t window_room(const struct sl_slot *slot)
{
    uint64_t untold = slot->writer.end - slot->writer.begin;
    uint64_t least = slot->reader->concurrency.buffer_bytes;
    uint64_t room = SL_STRETCH_BYTES - SL_MIN(untold, (uint64_t)SL_STRETCH_BYTES) + least;
    return SL_MIN((uint64_t)slot->window_most, room);
}

static int choose_span(struct sl_slot *slot, struct sl_err *err)
{
    struct sl_reader *reader = slot->reader;
    uint64_t end = SL_MIN(slot->range.end, slot->at + window_room(slot));
    const struct sl_extent *extent = slot->extent;
    if (sl_slot_sparse(slot))
        return open_sparse_window(slot, sl_slot_sparse(slot));
    bool inside = extent < slot->extents_end && extent->begin <= slot->at && !extent->target;
    if (inside && open_lent_window(slot, err) < 0)
        return -1;
    if (slot->place.memory)
        return 0;
    if (reader->grows)
        end = fit_expanded(slot, end);
    slot->window_end = end < slot->range.end ? align_cut(slot, end) : end;
    slot->window_bytes = (size_t)(slot->window_end - slot->at);
    return 0;
}

int sl_slot_open_window(struct sl_slot *slot, struct sl_err *err)
{
    slot->filled = 0;
    slot->cut = false;
    slot->opened_ns = slot->looked_ns = sl_now_ns();
    while (slot->extent < slot->extents_end && slot->extent->end <= slot->at)
        slot->extent++;
    if (choose_span(slot, err) < 0)
        return -1;
    sl_slot_set_window(slot, SL_WINDOW_FILLING);
    return 0;
}

/* Neighbours in the source that are neighbours in the file, too, are one write. */
static bool joins(const struct sl_extent *a, const struct sl_extent *b)
{
    return a->end == b->begin && a->file == b->file && !a->target && !b->target &&
           a->file_offset + (a->end - a->begin) == b->file_offset;
}

static uint8_t *buffered(const struct sl_slot *slot, const struct sl_extent *extent, uint64_t place)
{
    const struct sl_mapping *sparse = sl_extent_sparse(slot->reader->plan, extent);
    return slot->buffer + (sparse ? sl_mapping_fetched(sparse, slot->at, place) : place - slot->at);
}

/* What came from this place on does not open, or is not what its hash says: what comes before it is
 * landed, and the rest is read again. As long as nothing has opened the key may be to blame. */
static int reread_from(struct sl_slot *slot, uint64_t place, struct sl_err *err)
{
    struct sl_reader *reader = slot->reader;
    if (err->kind != SL_E_INTEGRITY || sl_slot_sparse(slot))
        return -1;
    if (++slot->wrongs > (sl_counter_get(&reader->decrypted) ? SL_REREAD_TRIES_MAX : 1u))
        return sl_wrap(err, "fetched %u times", slot->wrongs);
    /* With a wrong key every range comes here once: the last one says it better. */
    bool key = strcmp(err->code, "E_DECRYPT") == 0 && !sl_counter_get(&reader->decrypted);
    sl_log(key ? SL_LOG_DEBUG : SL_LOG_WARN, "checksum mismatch, fetching that range again: %s",
           err->message);
    sl_metric_add(SL_M_REFETCHED_RANGES, 1);
    sl_progress_add_refetched(reader->config->progress);
    memset(err, 0, sizeof(*err));
    uint64_t begin = place > slot->at ? place : sl_slot_unfinished(slot);
    slot->wrong_begin = slot->wrongs > 1 ? SL_MIN(slot->wrong_begin, begin) : begin;
    slot->wrong_end =
        slot->wrongs > 1 ? SL_MAX(slot->wrong_end, slot->window_end) : slot->window_end;
    sl_source_doubt(sl_slot_source(slot), slot->wrong_begin, slot->wrong_end);
    slot->window_end = place;
    sl_slot_set_window(slot, SL_WINDOW_WRONG);
    return 0;
}

/* From the begin of the unit, on a new connection. */
static int start_again(struct sl_slot *slot, struct sl_err *err)
{
    slot->at = slot->window_end = sl_slot_unfinished(slot);
    slot->extent = slot->first_extent;
    slot->fetch_end = slot->range.end;
    sl_transform_drop(&slot->transform);
    sl_fetch_free(sl_steal(&slot->fetch));
    slot->fetch = sl_fetch_new_apart(slot->store, err);
    slot->fresh = true;
    sl_slot_asks(slot, sl_now_ns());
    return slot->fetch ? sl_slot_fetch(slot, slot->at, slot->fetch_end, err) : -1;
}

/* What changes on its way, before it is anyone's turn to write. */
static int form_buffer(struct sl_slot *slot, struct sl_err *err)
{
    if (slot->window != SL_WINDOW_FULL || slot->place.memory || !slot->reader->forms)
        return 0;
    sl_transform_turn(&slot->transform);
    const struct sl_extent *extent = slot->extent;
    for (; extent < slot->extents_end && extent->begin < slot->window_end; extent++) {
        uint64_t begin = SL_MAX(extent->begin, slot->at);
        if (extent->target &&
            sl_transform_add(&slot->transform, extent, begin, SL_MIN(extent->end, slot->window_end),
                             buffered(slot, extent, begin), err) < 0)
            return reread_from(slot, begin, err);
    }
    sl_slot_set_window(slot, SL_WINDOW_FORMED);
    return 0;
}

static int land_buffer(struct sl_slot *slot, struct sl_err *err)
{
    const struct sl_extent *extent = slot->extent;
    while (extent < slot->extents_end && extent->begin < slot->window_end) {
        uint64_t begin = SL_MAX(extent->begin, slot->at);
        const struct sl_extent *first = extent++;
        if (first->target) {
            if (sl_transform_land(&slot->transform, &slot->writer, first, begin,
                                  SL_MIN(first->end, slot->window_end),
                                  buffered(slot, first, begin), err) < 0)
                return -1;
            continue;
        }
        while (extent < slot->extents_end && extent->begin < slot->window_end &&
               joins(extent - 1, extent))
            extent++;
        uint64_t end = SL_MIN(extent[-1].end, slot->window_end);
        if (end > begin &&
            sl_writer_write(&slot->writer, first, begin, slot->buffer + (begin - slot->at),
                            (size_t)(end - begin), err) < 0)
            return -1;
    }
    return 0;
}

static int land_memory(struct sl_slot *slot, struct sl_err *err)
{
    struct sl_place place = slot->place;
    slot->place.memory = NULL;
    return sl_writer_commit(&slot->writer, slot->extent, &place, err);
}

/* One writer a file, as far as the file of the window's first extent goes. */
enum sl_slot_state sl_slot_close_window(struct sl_slot *slot, bool insist, struct sl_err *err)
{
    struct sl_reader *reader = slot->reader;
    int failed;
    if (form_buffer(slot, err) < 0)
        return SL_SLOT_FAILED;
    if (slot->window_end == slot->at) { /* all of it came wrong */
        failed = 0;
    } else if (slot->place.memory || slot->extent == slot->extents_end ||
               reader->concurrency.threads == 1) {
        failed = slot->place.memory ? land_memory(slot, err) : land_buffer(slot, err);
    } else {
        pthread_mutex_t *turn = &reader->turns[slot->extent->file % SL_WRITE_TURNS];
        if (insist)
            pthread_mutex_lock(turn);
        else if (pthread_mutex_trylock(turn) != 0)
            return SL_SLOT_FULL;
        failed = land_buffer(slot, err);
        pthread_mutex_unlock(turn);
    }
    bool wrong = slot->window == SL_WINDOW_WRONG;
    slot->at = slot->window_end;
    sl_slot_set_window(slot, SL_WINDOW_NONE);
    if (!failed && wrong)
        failed = start_again(slot, err);
    return failed ? SL_SLOT_FAILED : SL_SLOT_RUN;
}

/* Whether bytes of the window change on their way. */
static bool changes(const struct sl_slot *slot)
{
    const struct sl_extent *extent = slot->extent;
    for (; extent < slot->extents_end && extent->begin < slot->window_end; extent++)
        if (extent->target && extent->end > slot->at)
            return true;
    return false;
}

bool sl_slot_may_cut(const struct sl_slot *slot)
{
    return slot->window == SL_WINDOW_FILLING && slot->reader->journal && !slot->place.memory &&
           !changes(slot);
}

bool sl_slot_cut_window(struct sl_slot *slot, size_t least)
{
    if (slot->filled < least || !slot->filled || !sl_slot_may_cut(slot))
        return false;
    slot->window_end = slot->at + slot->filled;
    slot->window_bytes = slot->filled;
    sl_slot_set_window(slot, SL_WINDOW_FULL);
    return true;
}

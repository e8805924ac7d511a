/*
 * A window is filled completely, then landed in one go, so that a file gets whole pages at aligned
 * offsets in few calls (half the CPU of small writes), and hashes find the bytes in cache. It spans
 * extents and the gaps between them; small tensors do not cost a read each. Where the sink lends
 * memory, large extents are read straight into it.
 */
#include "again.h"
#include "lane_parts.h"
#include "log.h"
#include "metrics.h"

enum {
    DIRECT_BYTES_MIN = 32 * 1024, /* smaller extents share a window and are copied */
};

/* The same for what changes on its way; a cut must be between elements. */
static uint64_t align_formed(const struct sl_reader_lane *lane, const struct sl_extent *extent,
                             const struct sl_mapping *mapping, uint64_t end)
{
    uint64_t floor = SL_MAX(lane->at, extent->begin);
    uint64_t ragged =
        sl_mapping_place(mapping, end) % SL_PAGE_BYTES / mapping->out_item * mapping->in_item;
    if (ragged < end - floor)
        end -= ragged;
    uint64_t item = SL_MAX(mapping->in_item, SL_MAX(mapping->swap_bytes, 1u));
    return end - (end - mapping->begin) % item;
}

/* Cut a window short so that the next one begins at an aligned offset of the file. */
static uint64_t align_cut(const struct sl_reader_lane *lane, uint64_t end)
{
    const struct sl_extent *extent = sl_lane_extent_around(lane, end);
    if (!extent)
        return end;
    const struct sl_mapping *mapping = sl_extent_mapping(lane->reader->plan, extent);
    if (mapping)
        return align_formed(lane, extent, mapping, end);
    uint64_t offset = extent->file_offset + (end - extent->begin);
    uint64_t floor = SL_MAX(lane->at, extent->begin);
    if (end - offset % lane->reader->concurrency.buffer_bytes > floor &&
        offset % lane->reader->concurrency.buffer_bytes < end - floor)
        return end - offset % lane->reader->concurrency.buffer_bytes;
    return offset % SL_PAGE_BYTES < end - floor ? end - offset % SL_PAGE_BYTES : end;
}

/* Cut it short where more would be made of it than the second buffer holds. */
static uint64_t fit_grown(const struct sl_reader_lane *lane, uint64_t end)
{
    uint64_t room = lane->reader->concurrency.buffer_bytes;
    const struct sl_extent *extent = lane->extent;
    for (; extent < lane->extents_end && extent->begin < end; extent++) {
        const struct sl_mapping *mapping = sl_extent_mapping(lane->reader->plan, extent);
        if (!mapping || mapping->out_item <= mapping->in_item)
            continue;
        uint64_t begin = SL_MAX(extent->begin, lane->at), stop = SL_MIN(extent->end, end);
        uint64_t most = room / mapping->out_item * mapping->in_item;
        if (stop - begin > most)
            return begin + most;
        room -= (stop - begin) / mapping->in_item * mapping->out_item;
    }
    return end;
}

/* Only teeth count. */
static int open_comb_window(struct sl_reader_lane *lane, const struct sl_mapping *comb)
{
    uint64_t room = lane->reader->concurrency.buffer_bytes, left;
    if (comb->out_item > comb->in_item)
        room = room / comb->out_item * comb->in_item;
    uint64_t begin = sl_runs_before(&comb->fetched, lane->at - comb->begin);
    uint64_t end = sl_runs_before(&comb->fetched, lane->range.end - comb->begin);
    lane->window_bytes = (size_t)SL_MIN(end - begin, room);
    lane->window_end =
        comb->begin + sl_runs_at(&comb->fetched, begin + lane->window_bytes - 1, &left) + 1;
    return 0;
}

int sl_lane_open_window(struct sl_reader_lane *lane, struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    uint64_t end = SL_MIN(lane->range.end, lane->at + reader->concurrency.buffer_bytes);
    lane->filled = 0;
    while (lane->extent < lane->extents_end && lane->extent->end <= lane->at)
        lane->extent++;
    const struct sl_extent *extent = lane->extent;
    if (sl_lane_comb(lane))
        return open_comb_window(lane, sl_lane_comb(lane));
    bool inside = extent < lane->extents_end && extent->begin <= lane->at && !extent->target;
    if (reader->sink->ops->lends_memory && inside) {
        uint64_t direct = SL_MIN(end, extent->end) - lane->at;
        if (direct >= DIRECT_BYTES_MIN || lane->at + direct == lane->range.end) {
            lane->window_end = lane->at + direct;
            lane->window_bytes = (size_t)direct;
            return sl_sink_reserve(reader->sink, extent->file,
                                   extent->file_offset + (lane->at - extent->begin), direct,
                                   &lane->place, err);
        }
    }
    if (reader->grows)
        end = fit_grown(lane, end);
    lane->window_end = end < lane->range.end ? align_cut(lane, end) : end;
    lane->window_bytes = (size_t)(lane->window_end - lane->at);
    return 0;
}

/* Neighbours in the source that are neighbours in the file, too, are one write. */
static bool joins(const struct sl_extent *a, const struct sl_extent *b)
{
    return a->end == b->begin && a->file == b->file && !a->target && !b->target &&
           a->file_offset + (a->end - a->begin) == b->file_offset;
}

static uint8_t *buffered(const struct sl_reader_lane *lane, const struct sl_extent *extent,
                         uint64_t place)
{
    const struct sl_mapping *comb = sl_extent_comb(lane->reader->plan, extent);
    return lane->buffer + (comb ? sl_mapping_fetched(comb, lane->at, place) : place - lane->at);
}

/* What came from this place on does not open, or is not what its hash says: what comes before it is
 * landed, and the rest is read again. As long as nothing has opened the key may be to blame. */
static int doubt(struct sl_reader_lane *lane, uint64_t place, struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    if (err->kind != SL_E_INTEGRITY || sl_lane_comb(lane))
        return -1;
    if (++lane->wrongs > (sl_counter_get(&reader->opened) ? SL_AGAIN_TRIES_MAX : 1u))
        return sl_wrap(err, "fetched %u times", lane->wrongs);
    sl_log(SL_LOG_WARN, "bytes came wrong: fetching them again: %s", err->message);
    sl_metric_add(SL_M_REFETCHED_RANGES, 1);
    sl_progress_add_refetched(reader->config->progress);
    memset(err, 0, sizeof(*err));
    lane->again = lane->formed = true;
    lane->window_end = place;
    return 0;
}

/* From the begin of the unit, on a new connection. */
static int start_again(struct sl_reader_lane *lane, struct sl_err *err)
{
    struct sl_source *source = lane->reader->plan->sources[lane->range.source].source;
    lane->again = false;
    lane->at = lane->window_end = sl_lane_unfinished(lane);
    lane->extent = lane->first_extent;
    lane->fetch_end = lane->range.end;
    sl_forming_drop(&lane->forming);
    sl_fetch_free(sl_steal(&lane->fetch));
    lane->fetch = sl_fetch_new_apart(lane->store, err);
    lane->fresh = true;
    sl_lane_asks(lane, sl_now_ns());
    return lane->fetch ? sl_fetch_start(lane->fetch, source, lane->at, lane->fetch_end, err) : -1;
}

/* What changes on its way, before it is anyone's turn to write. */
static int form_buffer(struct sl_reader_lane *lane, struct sl_err *err)
{
    if (lane->formed || lane->place.memory || !lane->reader->forms)
        return 0;
    sl_forming_turn(&lane->forming);
    const struct sl_extent *extent = lane->extent;
    for (; extent < lane->extents_end && extent->begin < lane->window_end; extent++) {
        uint64_t begin = SL_MAX(extent->begin, lane->at);
        if (extent->target &&
            sl_forming_add(&lane->forming, extent, begin, SL_MIN(extent->end, lane->window_end),
                           buffered(lane, extent, begin), err) < 0)
            return doubt(lane, begin, err);
    }
    lane->formed = true;
    return 0;
}

static int land_buffer(struct sl_reader_lane *lane, struct sl_err *err)
{
    const struct sl_extent *extent = lane->extent;
    while (extent < lane->extents_end && extent->begin < lane->window_end) {
        uint64_t begin = SL_MAX(extent->begin, lane->at);
        const struct sl_extent *first = extent++;
        if (first->target) {
            if (sl_forming_land(&lane->forming, &lane->landing, first, begin,
                                SL_MIN(first->end, lane->window_end), buffered(lane, first, begin),
                                err) < 0)
                return -1;
            continue;
        }
        while (extent < lane->extents_end && extent->begin < lane->window_end &&
               joins(extent - 1, extent))
            extent++;
        uint64_t end = SL_MIN(extent[-1].end, lane->window_end);
        if (end > begin &&
            sl_landing_write(&lane->landing, first, begin, lane->buffer + (begin - lane->at),
                             (size_t)(end - begin), err) < 0)
            return -1;
    }
    return 0;
}

static int land_memory(struct sl_reader_lane *lane, struct sl_err *err)
{
    struct sl_place place = lane->place;
    lane->place.memory = NULL;
    return sl_landing_commit(&lane->landing, lane->extent, &place, err);
}

/* One writer a file, as far as the file of the window's first extent goes. */
enum sl_lane_state sl_lane_close_window(struct sl_reader_lane *lane, bool insist,
                                        struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    int failed;
    if (form_buffer(lane, err) < 0)
        return SL_LANE_FAILED;
    if (lane->window_end == lane->at) { /* all of it came wrong */
        failed = 0;
    } else if (lane->place.memory || lane->extent == lane->extents_end ||
               reader->concurrency.threads == 1) {
        failed = lane->place.memory ? land_memory(lane, err) : land_buffer(lane, err);
    } else {
        pthread_mutex_t *turn = &reader->turns[lane->extent->file % SL_WRITE_TURNS];
        if (insist)
            pthread_mutex_lock(turn);
        else if (pthread_mutex_trylock(turn) != 0)
            return SL_LANE_FULL;
        failed = land_buffer(lane, err);
        pthread_mutex_unlock(turn);
    }
    lane->at = lane->window_end;
    lane->formed = false;
    if (!failed && lane->again)
        failed = start_again(lane, err);
    return failed ? SL_LANE_FAILED : SL_LANE_RUN;
}

/*
 * One connection. Its range is read in windows: a window is filled completely, then landed in one
 * go, so that a file gets whole pages at aligned offsets in few calls (half the CPU of small
 * writes), and hashes find the bytes in cache. A window spans extents and the gaps between them;
 * small tensors do not cost a read each. Where the sink lends memory, large extents are read
 * straight into it.
 */
#include "reader_parts.h"

enum {
    PAGE_BYTES = 4096,
    DIRECT_BYTES_MIN = 32 * 1024,  /* smaller extents share a window and are copied */
    SPLIT_BYTES_MIN = 1024 * 1024, /* a smaller part is not worth another request */
};
/* Nor is one that its own connection brings soon. */
#define SPLIT_NS (250 * SL_NS_PER_MS)

struct sl_reader_lane {
    struct sl_reader *reader;
    struct sl_store *store; /* whose connection it is */
    struct sl_fetch *fetch;
    uint8_t *buffer;
    bool busy;             /* with range */
    struct sl_range range; /* its end may come nearer: sl_reader_lane_split() */
    uint64_t fetch_end, started_ns;
    const struct sl_extent *extent, *extents_end; /* the first that ends after `at` */
    uint64_t at, window_end;                      /* source positions; equal: no window is open */
    size_t filled;
    struct sl_place place; /* memory not NULL: this window is read there */
    struct sl_landing landing;
};

struct sl_reader_lane *sl_reader_lane_new(struct sl_reader *reader, struct sl_err *err)
{
    struct sl_reader_lane *lane = sl_alloc(sizeof(*lane), err);
    if (!lane)
        return NULL;
    lane->reader = reader;
    lane->landing.reader = reader;
    lane->buffer = sl_alloc_aligned(PAGE_BYTES, reader->buffer_bytes, err);
    if (lane->buffer)
        return lane;
    free(lane);
    return NULL;
}

void sl_reader_lane_free(struct sl_reader_lane *lane)
{
    if (!lane)
        return;
    struct sl_err err = SL_ERR_INIT;
    if (lane->place.memory)
        sl_sink_abandon(lane->reader->sink, &lane->place);
    if (sl_landing_flush(&lane->landing, &err) < 0)
        sl_reader_fail(lane->reader, &err);
    sl_fetch_free(lane->fetch);
    free(lane->buffer);
    free(lane);
}

int sl_reader_lane_start(struct sl_reader_lane *lane, const struct sl_range *range,
                         struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    struct sl_source *source = reader->plan->sources[range->source].source;
    if (lane->store != sl_source_store(source)) {
        sl_fetch_free(sl_steal(&lane->fetch));
        lane->store = sl_source_store(source);
    }
    if (!lane->fetch && !(lane->fetch = sl_fetch_new(lane->store, err)))
        return -1;
    lane->busy = true;
    lane->range = *range;
    lane->fetch_end = range->end;
    lane->started_ns = sl_now_ns();
    lane->extent = reader->work.extents + range->extent_first;
    lane->extents_end = lane->extent + range->extent_count;
    lane->at = lane->window_end = range->begin;
    return sl_fetch_start(lane->fetch, source, range->begin, range->end, err);
}

uint64_t sl_reader_lane_left(const struct sl_reader_lane *lane)
{
    return lane->busy ? lane->range.end - lane->window_end : 0;
}

bool sl_reader_lane_may_split(const struct sl_reader_lane *lane)
{
    return sl_reader_lane_left(lane) >= 2 * SPLIT_BYTES_MIN;
}

bool sl_reader_lane_split(struct sl_reader_lane *lane, struct sl_range *rest)
{
    uint64_t ns = sl_now_ns() - lane->started_ns;
    uint64_t come = lane->at - lane->range.begin, left = sl_reader_lane_left(lane);
    bool soon = ns < SPLIT_NS || (double)left * (double)ns < (double)come * (double)SPLIT_NS;
    if (!sl_reader_lane_may_split(lane) || soon)
        return false;
    *rest = lane->range;
    rest->begin = lane->window_end + left / 2 / PAGE_BYTES * PAGE_BYTES;
    lane->range.end = rest->begin;
    return true;
}

/* ---- windows -------------------------------------------------------------------------------- */

/* Cut a window short so that the next one begins at an aligned offset of the file. */
static uint64_t align_cut(const struct sl_reader_lane *lane, uint64_t end)
{
    const struct sl_extent *extent = lane->extent;
    while (extent < lane->extents_end && extent->end <= end)
        extent++;
    if (extent == lane->extents_end || extent->begin >= end)
        return end;
    uint64_t offset = extent->file_offset + (end - extent->begin);
    uint64_t floor = SL_MAX(lane->at, extent->begin);
    if (end - offset % lane->reader->buffer_bytes > floor &&
        offset % lane->reader->buffer_bytes < end - floor)
        return end - offset % lane->reader->buffer_bytes;
    return offset % PAGE_BYTES < end - floor ? end - offset % PAGE_BYTES : end;
}

static int open_window(struct sl_reader_lane *lane, struct sl_err *err)
{
    uint64_t end = SL_MIN(lane->range.end, lane->at + lane->reader->buffer_bytes);
    lane->filled = 0;
    while (lane->extent < lane->extents_end && lane->extent->end <= lane->at)
        lane->extent++;
    const struct sl_extent *extent = lane->extent;
    bool inside = extent < lane->extents_end && extent->begin <= lane->at;
    if (lane->reader->sink->ops->lends_memory && inside) {
        uint64_t direct = SL_MIN(end, extent->end) - lane->at;
        if (direct >= DIRECT_BYTES_MIN || lane->at + direct == lane->range.end) {
            lane->window_end = lane->at + direct;
            return sl_sink_reserve(lane->reader->sink, extent->file,
                                   extent->file_offset + (lane->at - extent->begin), direct,
                                   &lane->place, err);
        }
    }
    lane->window_end = end < lane->range.end ? align_cut(lane, end) : end;
    return 0;
}

/* Neighbours in the source that are neighbours in the file, too, are one write. */
static bool joins(const struct sl_extent *a, const struct sl_extent *b)
{
    return a->end == b->begin && a->file == b->file &&
           a->file_offset + (a->end - a->begin) == b->file_offset;
}

static int land_buffer(struct sl_reader_lane *lane, struct sl_err *err)
{
    const struct sl_extent *extent = lane->extent;
    while (extent < lane->extents_end && extent->begin < lane->window_end) {
        uint64_t begin = SL_MAX(extent->begin, lane->at);
        const struct sl_extent *first = extent++;
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
static enum sl_lane_state close_window(struct sl_reader_lane *lane, bool insist, struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    int failed;
    if (lane->place.memory || lane->extent == lane->extents_end || reader->threads == 1) {
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
    return failed ? SL_LANE_FAILED : SL_LANE_RUN;
}

/* ---- moves ---------------------------------------------------------------------------------- */

/* All bytes are there; the answer may have an end of its own. */
static enum sl_lane_state end_range(struct sl_reader_lane *lane, struct sl_err *err)
{
    uint8_t none[1];
    size_t got;
    lane->busy = false;
    if (lane->range.end < lane->fetch_end) { /* the rest is another lane's */
        sl_fetch_abort(lane->fetch);
        return SL_LANE_IDLE;
    }
    switch (sl_fetch_read(lane->fetch, none, sizeof(none), &got, err)) {
    case SL_FETCH_WAIT:
        lane->busy = true;
        return SL_LANE_WAIT;
    case SL_FETCH_END:
        return SL_LANE_IDLE;
    case SL_FETCH_DATA:
        sl_fail(err, SL_E_INTERNAL, "a range brought more bytes than were asked for");
        break;
    case SL_FETCH_FAILED:
        break;
    }
    return SL_LANE_FAILED;
}

static enum sl_lane_state fill_window(struct sl_reader_lane *lane, struct sl_err *err)
{
    uint8_t *data = lane->place.memory ? lane->place.memory : lane->buffer;
    size_t bytes = (size_t)(lane->window_end - lane->at), got = 0;
    switch (sl_fetch_read(lane->fetch, data + lane->filled, bytes - lane->filled, &got, err)) {
    case SL_FETCH_WAIT:
        return SL_LANE_WAIT;
    case SL_FETCH_DATA:
        lane->filled += got;
        return SL_LANE_RUN;
    case SL_FETCH_END:
        sl_fail(err, SL_E_INTERNAL, "a range ended before its last byte");
        break;
    case SL_FETCH_FAILED:
        break;
    }
    return SL_LANE_FAILED;
}

enum sl_lane_state sl_reader_lane_step(struct sl_reader_lane *lane, bool insist, struct sl_err *err)
{
    if (!lane->busy)
        return SL_LANE_IDLE;
    if (lane->at == lane->range.end)
        return end_range(lane, err);
    if (lane->at == lane->window_end && open_window(lane, err) < 0)
        return SL_LANE_FAILED;
    if (lane->filled < lane->window_end - lane->at) {
        enum sl_lane_state state = fill_window(lane, err);
        if (state != SL_LANE_RUN || lane->filled < lane->window_end - lane->at)
            return state;
    }
    return close_window(lane, insist, err);
}

int sl_reader_lane_poll(struct sl_reader_lane *lane, struct pollfd fds[SL_FETCH_POLL_MAX],
                        uint64_t *deadline_ns)
{
    return sl_fetch_poll(lane->fetch, fds, deadline_ns);
}

unsigned sl_reader_lane_take_throttled(struct sl_reader_lane *lane)
{
    return lane->fetch ? sl_fetch_take_throttled(lane->fetch) : 0;
}

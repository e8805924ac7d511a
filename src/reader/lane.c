/*
 * One connection. Its range is read in windows: a window is filled completely, then landed in one
 * go, so that a file gets whole pages at aligned offsets in few calls (half the CPU of small
 * writes), and hashes find the bytes in cache. A window spans extents and the gaps between them;
 * small tensors do not cost a read each. Where the sink lends memory, large extents are read
 * straight into it.
 *
 * A lane gives away from the end of its range, which so comes nearer, or all of it but what has
 * landed: an open window is thrown away then, which is all that is ever read twice.
 */
#include <inttypes.h>

#include "log.h"
#include "metrics.h"
#include "reader_parts.h"
#include "source.h"

enum {
    PAGE_BYTES = 4096,
    DIRECT_BYTES_MIN = 32 * 1024,  /* smaller extents share a window and are copied */
    SPLIT_BYTES_MIN = 1024 * 1024, /* a smaller part is not worth another request */
    HEDGES_MAX = 2,
};
/* Nor is one that its own connection brings soon. */
#define SPLIT_NS (250 * SL_NS_PER_MS)
/* No request is slow sooner, or within so many times what its siblings take. */
#define SLOW_NS SL_NS_PER_S
enum { SLOW_TIMES = 3, SLOW_PART = 4 /* a rate below this part of theirs is slow */ };

struct sl_reader_lane {
    struct sl_reader *reader;
    struct sl_store *store; /* whose connection it is */
    struct sl_fetch *fetch;
    uint8_t *buffer;
    bool busy;             /* with range */
    struct sl_range range; /* its end may come nearer: sl_reader_lane_split() */
    unsigned hedges;
    uint64_t fetch_end, started_ns;
    uint64_t got, moved_ns;     /* bytes of the range so far; when the last came */
    uint64_t mark_got, mark_ns; /* where its rate is measured from */
    unsigned lags;              /* how often in a row it was low */
    bool backs_off;             /* the fetch waits to try again */
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

static void start_clock(struct sl_reader_lane *lane, uint64_t now_ns)
{
    lane->moved_ns = lane->mark_ns = now_ns;
    lane->mark_got = lane->got;
    lane->lags = 0;
}

int sl_reader_lane_start(struct sl_reader_lane *lane, const struct sl_job *job, struct sl_err *err)
{
    const struct sl_range *range = &job->range;
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
    lane->hedges = job->hedges;
    lane->started_ns = sl_now_ns();
    lane->got = 0;
    lane->backs_off = false;
    start_clock(lane, lane->started_ns);
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
    uint64_t left = sl_reader_lane_left(lane);
    if (left < 2 * SPLIT_BYTES_MIN)
        return false;
    uint64_t ns = sl_now_ns() - lane->started_ns, come = lane->at - lane->range.begin;
    return ns >= SPLIT_NS && (double)left * (double)ns >= (double)come * (double)SPLIT_NS;
}

bool sl_reader_lane_split(struct sl_reader_lane *lane)
{
    struct sl_job rest = {lane->range, lane->hedges};
    rest.range.begin = lane->window_end + sl_reader_lane_left(lane) / 2 / PAGE_BYTES * PAGE_BYTES;
    if (!sl_reader_give(lane->reader, &rest))
        return false;
    lane->range.end = rest.range.begin;
    return true;
}

/* ---- slow requests -------------------------------------------------------------------------- */

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
        start_clock(lane, now_ns);
    uint64_t quiet_ns = quiet ? now_ns - lane->moved_ns : 0, window_ns = now_ns - lane->mark_ns;
    if (SL_MAX(quiet_ns, window_ns) < SLOW_NS / 2)
        return lags_pace(lane);
    uint64_t bytes = lane->range.end - lane->range.begin;
    uint64_t expected_ns = sl_reader_expect(lane->reader, bytes);
    if (!expected_ns)
        return SL_PACE_FINE;
    uint64_t slow_ns = SL_MAX(SLOW_NS, SLOW_TIMES * expected_ns);
    if (window_ns >= slow_ns) {
        double come = (double)(lane->got - lane->mark_got) / (double)window_ns;
        bool low = come * SLOW_PART < (double)bytes / (double)expected_ns;
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
    rest.range.begin = lane->at;
    if (lane->hedges == HEDGES_MAX || !sl_reader_give_back(reader, &rest, pace == SL_PACE_STUCK))
        return false;
    sl_metric_add(SL_M_SOURCE_HEDGES, 1);
    sl_log(SL_LOG_DEBUG,
           "fetching '%s' from byte %" PRIu64 " again: its request brought %" PRIu64
           " bytes in %.1f s, others are much faster",
           sl_source_uri(reader->plan->sources[lane->range.source].source), lane->at, lane->got,
           (double)(sl_now_ns() - lane->started_ns) / (double)SL_NS_PER_S);
    if (lane->place.memory)
        sl_sink_abandon(reader->sink, &lane->place);
    lane->place.memory = NULL;
    sl_fetch_free(sl_steal(&lane->fetch));
    lane->busy = false;
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

static enum sl_lane_state leave_range(struct sl_reader_lane *lane)
{
    lane->busy = false;
    sl_reader_ended(lane->reader, lane->range.end - lane->range.begin,
                    sl_now_ns() - lane->started_ns);
    return SL_LANE_IDLE;
}

/* All bytes are there; the answer may have an end of its own. */
static enum sl_lane_state end_range(struct sl_reader_lane *lane, struct sl_err *err)
{
    uint8_t none[1];
    size_t got;
    if (lane->range.end < lane->fetch_end) { /* the rest is another lane's */
        sl_fetch_abort(lane->fetch);
        return leave_range(lane);
    }
    switch (sl_fetch_read(lane->fetch, none, sizeof(none), &got, err)) {
    case SL_FETCH_WAIT:
        return SL_LANE_WAIT;
    case SL_FETCH_END:
        return leave_range(lane);
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
        lane->got += got;
        lane->moved_ns = sl_now_ns();
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
    int count = sl_fetch_poll(lane->fetch, fds, deadline_ns);
    lane->backs_off = count == 0;
    return count;
}

unsigned sl_reader_lane_take_throttled(struct sl_reader_lane *lane)
{
    return lane->fetch ? sl_fetch_take_throttled(lane->fetch) : 0;
}

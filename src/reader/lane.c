/*
 * One connection. Its range is read in windows: a window is filled completely, then landed in one
 * go, so that a file gets whole pages at aligned offsets in few calls (half the CPU of small
 * writes), and hashes find the bytes in cache. A window spans extents and the gaps between them;
 * small tensors do not cost a read each. Where the sink lends memory, large extents are read
 * straight into it.
 *
 * A lane gives away from the end of its range, which so comes nearer, or all of it but what has
 * landed: an open window is thrown away then, which is all that is ever read twice. What changes on
 * its way (forming.c) is parted only where its mapping allows.
 *
 * Of a comb a window holds only teeth, one behind another, and each is a request of its own on the
 * same connection.
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
    REQUEST_BYTES = 64 * 1024,     /* that a request costs as much as */
    HEDGES_MAX = 2,
    AGAIN_MAX = 3, /* that a range is fetched because bytes came wrong */
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
    bool busy;               /* with range */
    struct sl_range range;   /* its end may come nearer: sl_reader_lane_split() */
    unsigned hedges, wrongs; /* wrongs: how often its bytes did not open */
    uint64_t fetch_end, started_ns;
    size_t tooth_left;          /* of a comb: bytes of this request that have not come */
    uint64_t got, moved_ns;     /* bytes of the range so far; when the last came */
    uint64_t mark_got, mark_ns; /* where its rate is measured from */
    unsigned lags;              /* how often in a row it was low */
    bool backs_off;             /* the fetch waits to try again */
    const struct sl_extent *first_extent, *extents_end; /* of the range */
    const struct sl_extent *extent;                     /* the first that ends after `at` */
    uint64_t at, window_end;     /* source positions; equal: no window is open */
    size_t window_bytes, filled; /* of it in the buffer: all; those that came */
    struct sl_place place;       /* memory not NULL: this window is read there */
    bool again;                  /* from its end on, bytes came wrong */
    bool formed;                 /* this window is decrypted, cut, cast, and waits to be written */
    struct sl_landing landing;
    struct sl_forming forming;
};

struct sl_reader_lane *sl_reader_lane_new(struct sl_reader *reader, struct sl_err *err)
{
    struct sl_reader_lane *lane = sl_alloc_aligned(64, sizeof(*lane), err);
    if (!lane)
        return NULL;
    memset(lane, 0, sizeof(*lane));
    lane->reader = reader;
    lane->landing.reader = reader;
    lane->buffer = sl_alloc_aligned(PAGE_BYTES, reader->buffer_bytes, err);
    if (lane->buffer && sl_forming_init(&lane->forming, reader, err) == 0)
        return lane;
    free(lane->buffer);
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
    sl_forming_release(&lane->forming);
    sl_fetch_free(lane->fetch);
    free(lane->buffer);
    free(lane);
}

/* Of a range that is a comb, else NULL. */
static const struct sl_mapping *comb_of(const struct sl_reader_lane *lane)
{
    return lane->extents_end > lane->first_extent
               ? sl_extent_comb(lane->reader->plan, lane->first_extent)
               : NULL;
}

/* What [begin, end) of its range costs, in bytes; of a comb every tooth is a request. */
static uint64_t weight(const struct sl_reader_lane *lane, uint64_t begin, uint64_t end)
{
    const struct sl_mapping *comb = comb_of(lane);
    if (!comb)
        return end - begin;
    uint64_t bytes = sl_mapping_fetched(comb, begin, end);
    return bytes + bytes / comb->fetched.bytes * REQUEST_BYTES;
}

static void start_clock(struct sl_reader_lane *lane, uint64_t now_ns)
{
    lane->moved_ns = lane->mark_ns = now_ns;
    lane->mark_got = lane->got;
    lane->lags = 0;
}

/* Fetch what is left of the tooth at this place, or the next one. */
static int start_tooth(struct sl_reader_lane *lane, uint64_t place, struct sl_err *err)
{
    const struct sl_mapping *comb = comb_of(lane);
    uint64_t left, taken = sl_runs_before(&comb->fetched, place - comb->begin);
    uint64_t begin = comb->begin + sl_runs_at(&comb->fetched, taken, &left);
    lane->fetch_end = begin + left;
    lane->tooth_left = (size_t)left;
    return sl_fetch_start(lane->fetch, lane->reader->plan->sources[lane->range.source].source,
                          begin, begin + left, err);
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
    lane->wrongs = 0;
    lane->started_ns = sl_now_ns();
    lane->got = 0;
    lane->backs_off = false;
    start_clock(lane, lane->started_ns);
    lane->first_extent = lane->extent = reader->work.extents + range->extent_first;
    lane->extents_end = lane->extent + range->extent_count;
    lane->at = lane->window_end = range->begin;
    sl_forming_drop(&lane->forming);
    if (comb_of(lane))
        return start_tooth(lane, range->begin, err);
    return sl_fetch_start(lane->fetch, source, range->begin, range->end, err);
}

uint64_t sl_reader_lane_left(const struct sl_reader_lane *lane)
{
    return lane->busy ? weight(lane, lane->window_end, lane->range.end) : 0;
}

bool sl_reader_lane_may_split(const struct sl_reader_lane *lane)
{
    uint64_t left = sl_reader_lane_left(lane);
    if (left < 2 * SPLIT_BYTES_MIN)
        return false;
    uint64_t ns = sl_now_ns() - lane->started_ns, come = weight(lane, lane->range.begin, lane->at);
    return ns >= SPLIT_NS && (double)left * (double)ns >= (double)come * (double)SPLIT_NS;
}

/* The extent of the range that this place is within, NULL for a gap or a boundary. */
static const struct sl_extent *extent_around(const struct sl_reader_lane *lane, uint64_t place)
{
    const struct sl_extent *extent = lane->extent;
    while (extent < lane->extents_end && extent->end <= place)
        extent++;
    return extent < lane->extents_end && extent->begin < place ? extent : NULL;
}

/* Where to part what is left: at a page, or the next place where a unit ends. */
static uint64_t part_at(const struct sl_reader_lane *lane)
{
    uint64_t left, half = (lane->range.end - lane->window_end) / 2 / PAGE_BYTES * PAGE_BYTES;
    uint64_t place = lane->window_end + half;
    const struct sl_mapping *comb = comb_of(lane);
    if (comb) {
        uint64_t taken = sl_runs_before(&comb->fetched, place - comb->begin);
        taken -= taken ? 1 : 0; /* the last byte before the middle: a range ends with a tooth */
        place = comb->begin + sl_runs_at(&comb->fetched, taken, &left);
        return place + left;
    }
    const struct sl_extent *extent = extent_around(lane, place);
    const struct sl_mapping *mapping =
        extent ? sl_extent_mapping(lane->reader->plan, extent) : NULL;
    return mapping ? SL_MIN(sl_mapping_ceil(mapping, place), extent->end) : place;
}

bool sl_reader_lane_split(struct sl_reader_lane *lane)
{
    struct sl_job rest = {lane->range, lane->hedges};
    rest.range.begin = part_at(lane);
    if (rest.range.begin >= lane->range.end || !sl_reader_give(lane->reader, &rest))
        return false;
    lane->range.end = rest.range.begin;
    return true;
}

/* From where on another lane must read: what changes on its way begins with its unit. */
static uint64_t unfinished(const struct sl_reader_lane *lane)
{
    const struct sl_extent *extent = extent_around(lane, lane->at);
    const struct sl_mapping *mapping =
        extent ? sl_extent_mapping(lane->reader->plan, extent) : NULL;
    if (!mapping || sl_extent_comb(lane->reader->plan, extent))
        return lane->at;
    return SL_MAX(sl_mapping_floor(mapping, lane->at), extent->begin);
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
    uint64_t bytes = weight(lane, lane->range.begin, lane->range.end);
    uint64_t expected_ns = sl_reader_expect(lane->reader, bytes);
    if (!expected_ns)
        return SL_PACE_FINE;
    uint64_t slow_ns = SL_MAX(SLOW_NS, SLOW_TIMES * expected_ns);
    if (window_ns >= slow_ns) {
        double come = (double)(lane->got - lane->mark_got) / (double)window_ns;
        bool low = !comb_of(lane) && come * SLOW_PART < (double)bytes / (double)expected_ns;
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
    rest.range.begin = unfinished(lane);
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

/* ---- windows -------------------------------------------------------------------------------- */

/* The same for what changes on its way; a cut must be between elements. */
static uint64_t align_formed(const struct sl_reader_lane *lane, const struct sl_extent *extent,
                             const struct sl_mapping *mapping, uint64_t end)
{
    uint64_t floor = SL_MAX(lane->at, extent->begin);
    uint64_t ragged =
        sl_mapping_place(mapping, end) % PAGE_BYTES / mapping->out_item * mapping->in_item;
    if (ragged < end - floor)
        end -= ragged;
    uint64_t item = SL_MAX(mapping->in_item, SL_MAX(mapping->swap_bytes, 1u));
    return end - (end - mapping->begin) % item;
}

/* Cut a window short so that the next one begins at an aligned offset of the file. */
static uint64_t align_cut(const struct sl_reader_lane *lane, uint64_t end)
{
    const struct sl_extent *extent = extent_around(lane, end);
    if (!extent)
        return end;
    const struct sl_mapping *mapping = sl_extent_mapping(lane->reader->plan, extent);
    if (mapping)
        return align_formed(lane, extent, mapping, end);
    uint64_t offset = extent->file_offset + (end - extent->begin);
    uint64_t floor = SL_MAX(lane->at, extent->begin);
    if (end - offset % lane->reader->buffer_bytes > floor &&
        offset % lane->reader->buffer_bytes < end - floor)
        return end - offset % lane->reader->buffer_bytes;
    return offset % PAGE_BYTES < end - floor ? end - offset % PAGE_BYTES : end;
}

/* Cut it short where more would be made of it than the second buffer holds. */
static uint64_t fit_grown(const struct sl_reader_lane *lane, uint64_t end)
{
    uint64_t room = lane->reader->buffer_bytes;
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
    uint64_t room = lane->reader->buffer_bytes, left;
    if (comb->out_item > comb->in_item)
        room = room / comb->out_item * comb->in_item;
    uint64_t begin = sl_runs_before(&comb->fetched, lane->at - comb->begin);
    uint64_t end = sl_runs_before(&comb->fetched, lane->range.end - comb->begin);
    lane->window_bytes = (size_t)SL_MIN(end - begin, room);
    lane->window_end =
        comb->begin + sl_runs_at(&comb->fetched, begin + lane->window_bytes - 1, &left) + 1;
    return 0;
}

static int open_window(struct sl_reader_lane *lane, struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    uint64_t end = SL_MIN(lane->range.end, lane->at + reader->buffer_bytes);
    lane->filled = 0;
    while (lane->extent < lane->extents_end && lane->extent->end <= lane->at)
        lane->extent++;
    const struct sl_extent *extent = lane->extent;
    if (comb_of(lane))
        return open_comb_window(lane, comb_of(lane));
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
    if (err->kind != SL_E_INTEGRITY || comb_of(lane))
        return -1;
    if (++lane->wrongs > (sl_counter_get(&reader->opened) ? AGAIN_MAX : 1u))
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
    lane->at = lane->window_end = unfinished(lane);
    lane->extent = lane->first_extent;
    lane->fetch_end = lane->range.end;
    sl_forming_drop(&lane->forming);
    sl_fetch_free(sl_steal(&lane->fetch));
    lane->fetch = sl_fetch_new_apart(lane->store, err);
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
static enum sl_lane_state close_window(struct sl_reader_lane *lane, bool insist, struct sl_err *err)
{
    struct sl_reader *reader = lane->reader;
    int failed;
    if (form_buffer(lane, err) < 0)
        return SL_LANE_FAILED;
    if (lane->window_end == lane->at) { /* all of it came wrong */
        failed = 0;
    } else if (lane->place.memory || lane->extent == lane->extents_end || reader->threads == 1) {
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

/* ---- moves ---------------------------------------------------------------------------------- */

static enum sl_lane_state leave_range(struct sl_reader_lane *lane)
{
    lane->busy = false;
    sl_reader_ended(lane->reader, weight(lane, lane->range.begin, lane->range.end),
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

/* The request for a tooth must end before the next can begin. */
static enum sl_lane_state next_tooth(struct sl_reader_lane *lane, struct sl_err *err)
{
    uint8_t none[1];
    size_t got;
    switch (sl_fetch_read(lane->fetch, none, sizeof(none), &got, err)) {
    case SL_FETCH_WAIT:
        return SL_LANE_WAIT;
    case SL_FETCH_END:
        return start_tooth(lane, lane->fetch_end, err) < 0 ? SL_LANE_FAILED : SL_LANE_RUN;
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
    size_t bytes = lane->window_bytes - lane->filled, got = 0;
    if (comb_of(lane)) {
        if (!lane->tooth_left)
            return next_tooth(lane, err);
        bytes = SL_MIN(bytes, lane->tooth_left);
    }
    switch (sl_fetch_read(lane->fetch, data + lane->filled, bytes, &got, err)) {
    case SL_FETCH_WAIT:
        return SL_LANE_WAIT;
    case SL_FETCH_DATA:
        lane->tooth_left -= SL_MIN(got, lane->tooth_left);
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
    if (lane->filled < lane->window_bytes) {
        enum sl_lane_state state = fill_window(lane, err);
        if (state != SL_LANE_RUN || lane->filled < lane->window_bytes)
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

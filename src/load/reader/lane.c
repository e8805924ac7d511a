/*
 * One connection. Its range is read in windows (window.c), each filled completely, then landed.
 *
 * A lane gives away from the end of its range (split.c), which so comes nearer, and asks for the
 * rest of it again where its request is slow (slow.c), from the first byte that has not come. What
 * comes twice is only what an answer brought beyond the new end, or on a connection given up, and
 * that is counted. What changes on its way (forming.c) is parted only where its mapping allows.
 *
 * Of a comb a window holds only teeth, one behind another, and each is a request of its own on the
 * same connection.
 */
#include <sys/ioctl.h>

#include "lane_parts.h"
#include "metrics.h"

enum { REQUEST_BYTES = 64 * 1024 /* that a request costs as much as */ };

struct sl_reader_lane *sl_reader_lane_new(struct sl_reader *reader, struct sl_err *err)
{
    struct sl_reader_lane *lane = sl_alloc_aligned(64, sizeof(*lane), err);
    if (!lane)
        return NULL;
    memset(lane, 0, sizeof(*lane));
    lane->reader = reader;
    lane->landing.reader = reader;
    lane->buffer = sl_alloc_aligned(SL_PAGE_BYTES, reader->concurrency.buffer_bytes, err);
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

const struct sl_mapping *sl_lane_comb(const struct sl_reader_lane *lane)
{
    return lane->extents_end > lane->first_extent
               ? sl_extent_comb(lane->reader->plan, lane->first_extent)
               : NULL;
}

uint64_t sl_lane_weight(const struct sl_reader_lane *lane, uint64_t begin, uint64_t end)
{
    const struct sl_mapping *comb = sl_lane_comb(lane);
    if (!comb)
        return end - begin;
    uint64_t bytes = sl_mapping_fetched(comb, begin, end);
    return bytes + bytes / comb->fetched.bytes * REQUEST_BYTES;
}

void sl_lane_start_clock(struct sl_reader_lane *lane, uint64_t now_ns)
{
    lane->moved_ns = lane->mark_ns = now_ns;
    lane->mark_got = lane->got;
    lane->lags = 0;
}

void sl_lane_asks(struct sl_reader_lane *lane, uint64_t now_ns)
{
    lane->asked_ns = now_ns;
    lane->begun = lane->doubted = false;
}

uint64_t sl_lane_awaits(const struct sl_reader_lane *lane)
{
    if (sl_lane_comb(lane))
        return lane->fetch_end - lane->tooth_left;
    return lane->at == lane->window_end ? lane->at : lane->at + lane->filled;
}

uint64_t sl_lane_unread(const struct sl_reader_lane *lane)
{
    struct pollfd fds[SL_IO_POLL_MAX];
    uint64_t deadline_ns, bytes = 0;
    int count = sl_fetch_poll(lane->fetch, fds, &deadline_ns), unread;
    for (int i = 0; i < count; i++)
        if (ioctl(fds[i].fd, FIONREAD, &unread) == 0 && unread > 0)
            bytes += (uint64_t)unread;
    return bytes;
}

void sl_lane_waste(struct sl_reader_lane *lane)
{
    uint64_t wasted = sl_lane_unread(lane);
    if (!wasted)
        return;
    sl_metric_add(SL_M_SOURCE_WASTED_BYTES, (int64_t)wasted);
    sl_progress_add_wasted(lane->reader->config->progress, wasted);
}

/* Fetch what is left of the tooth at this place, or the next one. */
static int start_tooth(struct sl_reader_lane *lane, uint64_t place, struct sl_err *err)
{
    const struct sl_mapping *comb = sl_lane_comb(lane);
    uint64_t left, taken = sl_runs_before(&comb->fetched, place - comb->begin);
    uint64_t begin = comb->begin + sl_runs_at(&comb->fetched, taken, &left);
    lane->fetch_end = begin + left;
    lane->tooth_left = (size_t)left;
    sl_lane_asks(lane, sl_now_ns());
    return sl_fetch_start(lane->fetch, lane->reader->plan->sources[lane->range.source].source,
                          begin, begin + left, err);
}

int sl_reader_lane_start(struct sl_reader_lane *lane, const struct sl_reader_job *job,
                         struct sl_err *err)
{
    const struct sl_range *range = &job->range;
    struct sl_reader *reader = lane->reader;
    struct sl_source *source = reader->plan->sources[range->source].source;
    if (lane->store != sl_source_store(source)) {
        sl_fetch_free(sl_steal(&lane->fetch));
        lane->store = sl_source_store(source);
    }
    if (!lane->fetch) {
        lane->fresh = true;
        lane->fetch = sl_fetch_new(lane->store, err);
    }
    if (!lane->fetch)
        return -1;
    lane->busy = true;
    lane->range = *range;
    lane->fetch_end = range->end;
    lane->hedges = lane->wrongs = 0;
    lane->started_ns = sl_now_ns();
    lane->got = lane->longest_gap_ns = 0;
    lane->backs_off = false;
    sl_lane_start_clock(lane, lane->started_ns);
    sl_lane_asks(lane, lane->started_ns);
    lane->first_extent = lane->extent = reader->work.extents + range->extent_first;
    lane->extents_end = lane->extent + range->extent_count;
    lane->at = lane->window_end = range->begin;
    sl_forming_drop(&lane->forming);
    if (sl_lane_comb(lane))
        return start_tooth(lane, range->begin, err);
    return sl_fetch_start(lane->fetch, source, range->begin, range->end, err);
}

const struct sl_extent *sl_lane_extent_around(const struct sl_reader_lane *lane, uint64_t place)
{
    const struct sl_extent *extent = lane->extent;
    while (extent < lane->extents_end && extent->end <= place)
        extent++;
    return extent < lane->extents_end && extent->begin < place ? extent : NULL;
}

uint64_t sl_lane_unfinished(const struct sl_reader_lane *lane)
{
    const struct sl_extent *extent = sl_lane_extent_around(lane, lane->at);
    const struct sl_mapping *mapping =
        extent ? sl_extent_mapping(lane->reader->plan, extent) : NULL;
    if (!mapping || sl_extent_comb(lane->reader->plan, extent))
        return lane->at;
    return SL_MAX(sl_mapping_floor(mapping, lane->at), extent->begin);
}

/* ---- moves ---------------------------------------------------------------------------------- */

/* The journal learns what landed before something else is asked for: a kill costs no more than the
 * ranges that are being read. */
static enum sl_lane_state leave_range(struct sl_reader_lane *lane, struct sl_err *err)
{
    lane->busy = false;
    int failed = sl_landing_flush(&lane->landing, err);
    sl_reader_ended(lane->reader, sl_lane_weight(lane, lane->range.begin, lane->range.end),
                    sl_now_ns() - lane->started_ns, lane->longest_gap_ns);
    return failed ? SL_LANE_FAILED : SL_LANE_IDLE;
}

/* All bytes are there; the answer may have an end of its own. */
static enum sl_lane_state end_range(struct sl_reader_lane *lane, struct sl_err *err)
{
    uint8_t none[1];
    size_t got;
    if (lane->range.end < lane->fetch_end) { /* the rest is another lane's */
        sl_lane_waste(lane);
        sl_fetch_abort(lane->fetch);
        lane->fresh = true;
        return leave_range(lane, err);
    }
    switch (sl_fetch_read(lane->fetch, none, sizeof(none), &got, err)) {
    case SL_IO_WAIT:
        return SL_LANE_WAIT;
    case SL_IO_END:
        return leave_range(lane, err);
    case SL_IO_DATA:
        sl_fail(err, SL_E_INTERNAL, "a range brought more bytes than were asked for");
        break;
    case SL_IO_FAILED:
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
    case SL_IO_WAIT:
        return SL_LANE_WAIT;
    case SL_IO_END:
        return start_tooth(lane, lane->fetch_end, err) < 0 ? SL_LANE_FAILED : SL_LANE_RUN;
    case SL_IO_DATA:
        sl_fail(err, SL_E_INTERNAL, "a range brought more bytes than were asked for");
        break;
    case SL_IO_FAILED:
        break;
    }
    return SL_LANE_FAILED;
}

/* Bytes came: how long were they waited for? */
static void note_wait(struct sl_reader_lane *lane, uint64_t now_ns)
{
    if (!lane->begun)
        sl_reader_began(lane->reader, now_ns - lane->asked_ns, lane->fresh);
    else
        lane->longest_gap_ns = SL_MAX(lane->longest_gap_ns, now_ns - lane->moved_ns);
    lane->begun = true;
    lane->fresh = false;
    lane->moved_ns = now_ns;
}

static enum sl_lane_state fill_window(struct sl_reader_lane *lane, struct sl_err *err)
{
    uint8_t *data = lane->place.memory ? lane->place.memory : lane->buffer;
    size_t bytes = lane->window_bytes - lane->filled, got = 0;
    if (sl_lane_comb(lane)) {
        if (!lane->tooth_left)
            return next_tooth(lane, err);
        bytes = SL_MIN(bytes, lane->tooth_left);
    }
    switch (sl_fetch_read(lane->fetch, data + lane->filled, bytes, &got, err)) {
    case SL_IO_WAIT:
        return SL_LANE_WAIT;
    case SL_IO_DATA:
        lane->tooth_left -= SL_MIN(got, lane->tooth_left);
        lane->filled += got;
        lane->got += got;
        note_wait(lane, sl_now_ns());
        return SL_LANE_RUN;
    case SL_IO_END:
        sl_fail(err, SL_E_INTERNAL, "a range ended before its last byte");
        break;
    case SL_IO_FAILED:
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
    if (lane->at == lane->window_end && sl_lane_open_window(lane, err) < 0)
        return SL_LANE_FAILED;
    if (lane->filled < lane->window_bytes) {
        enum sl_lane_state state = fill_window(lane, err);
        if (state != SL_LANE_RUN || lane->filled < lane->window_bytes)
            return state;
    }
    return sl_lane_close_window(lane, insist, err);
}

void sl_reader_lane_rest(struct sl_reader_lane *lane)
{
    if (lane->fetch)
        sl_fetch_rest(lane->fetch);
    lane->fresh = true;
}

int sl_reader_lane_poll(struct sl_reader_lane *lane, struct pollfd fds[SL_IO_POLL_MAX],
                        uint64_t *deadline_ns)
{
    int count = sl_fetch_poll(lane->fetch, fds, deadline_ns);
    lane->backs_off = count == 0;
    if (lane->backs_off) { /* its next request is another one */
        lane->begun = false;
        lane->fresh = true;
    }
    return count;
}

unsigned sl_reader_lane_take_throttled(struct sl_reader_lane *lane)
{
    return lane->fetch ? sl_fetch_take_throttled(lane->fetch) : 0;
}

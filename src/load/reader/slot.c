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

/* What holds before each move. */
static void check(const struct sl_slot *slot)
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
static void check(const struct sl_slot *slot)
{
    (void)slot;
}
#endif

static void set_request(struct sl_slot *slot, enum sl_slot_request to)
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
    set_request(slot, SL_REQUEST_ASKED);
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

/* Fetch what is left of the row at this place, or the next one, with as many behind it as are
 * worth it. */
static int start_row(struct sl_slot *slot, uint64_t place, struct sl_err *err)
{
    const struct sl_mapping *sparse = sl_slot_sparse(slot);
    const struct sl_runs *rows = &sparse->fetched;
    uint64_t left, at = sl_runs_before(rows, place - sparse->begin);
    uint64_t end = sl_runs_before(rows, slot->range.end - sparse->begin);
    uint64_t span, group = sl_runs_group(rows, sl_reader_worth(slot->reader, rows->bytes, &span));
    if (group > rows->bytes)
        end = SL_MIN(end, at + sl_runs_within(rows, span));
    uint64_t last = SL_MIN(end, (at / group + 1) * group) - 1;
    slot->row_at = sparse->begin + sl_runs_at(rows, at, &left);
    slot->fetch_end = sparse->begin + sl_runs_at(rows, last, &left) + 1;
    sl_slot_asks(slot, sl_now_ns());
    return sl_slot_fetch(slot, slot->row_at, slot->fetch_end, err);
}

int sl_slot_start(struct sl_slot *slot, const struct sl_reader_job *job, struct sl_err *err)
{
    const struct sl_range *range = &job->range;
    struct sl_reader *reader = slot->reader;
    struct sl_source *source = reader->plan->sources[range->source].source;
    if (slot->store != sl_source_store(source)) {
        sl_fetch_free(sl_steal(&slot->fetch));
        slot->store = sl_source_store(source);
    }
    if (!slot->fetch) {
        slot->fresh = true;
        slot->fetch = sl_fetch_new(slot->store, err);
    }
    if (!slot->fetch)
        return -1;
    slot->range = *range;
    slot->fetch_end = range->end;
    slot->hedges = slot->wrongs = 0;
    slot->started_ns = sl_now_ns();
    slot->got = slot->longest_gap_ns = 0;
    sl_slot_start_clock(slot, slot->started_ns);
    sl_slot_asks(slot, slot->started_ns);
    slot->first_extent = slot->extent = reader->work.extents + range->extent_first;
    slot->extents_end = slot->extent + range->extent_count;
    slot->at = slot->window_end = range->begin;
    sl_transform_drop(&slot->transform);
    if (sl_slot_sparse(slot))
        return start_row(slot, range->begin, err);
    return sl_slot_fetch(slot, range->begin, range->end, err);
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

/* ---- moves ---------------------------------------------------------------------------------- */

/* The journal learns what landed before something else is asked for: a kill costs no more than the
 * ranges that are being read. */
static enum sl_slot_state leave_range(struct sl_slot *slot, struct sl_err *err)
{
    set_request(slot, SL_REQUEST_NONE);
    if (slot->wrongs) /* and all has opened now */
        sl_source_settle(sl_slot_source(slot), slot->wrong_begin, slot->wrong_end, true);
    int failed = sl_writer_flush(&slot->writer, err);
    sl_reader_ended(slot->reader, sl_slot_weight(slot, slot->range.begin, slot->range.end),
                    sl_now_ns() - slot->started_ns, slot->longest_gap_ns);
    return failed ? SL_SLOT_FAILED : SL_SLOT_IDLE;
}

/* All bytes are there; the answer may have an end of its own. */
static enum sl_slot_state end_range(struct sl_slot *slot, struct sl_err *err)
{
    uint8_t none[1];
    size_t got;
    if (slot->range.end < slot->fetch_end) { /* the rest is another slot's */
        sl_slot_waste(slot);
        sl_fetch_abort(slot->fetch);
        slot->fresh = true;
        return leave_range(slot, err);
    }
    switch (sl_fetch_read(slot->fetch, none, sizeof(none), &got, err)) {
    case SL_IO_WAIT:
        return SL_SLOT_WAIT;
    case SL_IO_END:
        return leave_range(slot, err);
    case SL_IO_DATA:
        sl_fail(err, SL_E_INTERNAL, "a range brought more bytes than were asked for");
        break;
    case SL_IO_FAILED:
        break;
    }
    return SL_SLOT_FAILED;
}

/* The request for a row must end before the next can begin. */
static enum sl_slot_state next_row(struct sl_slot *slot, struct sl_err *err)
{
    uint8_t none[1];
    size_t got;
    switch (sl_fetch_read(slot->fetch, none, sizeof(none), &got, err)) {
    case SL_IO_WAIT:
        return SL_SLOT_WAIT;
    case SL_IO_END:
        return start_row(slot, slot->fetch_end, err) < 0 ? SL_SLOT_FAILED : SL_SLOT_RUN;
    case SL_IO_DATA:
        sl_fail(err, SL_E_INTERNAL, "a range brought more bytes than were asked for");
        break;
    case SL_IO_FAILED:
        break;
    }
    return SL_SLOT_FAILED;
}

/* Bytes came: how long were they waited for? */
static void note_wait(struct sl_slot *slot, uint64_t now_ns)
{
    if (slot->request == SL_REQUEST_ASKED)
        sl_reader_began(slot->reader, now_ns - slot->asked_ns, slot->fresh);
    else if (slot->request == SL_REQUEST_BEGUN)
        slot->longest_gap_ns = SL_MAX(slot->longest_gap_ns, now_ns - slot->moved_ns);
    /* else it asked again since it was last looked at: when is not known */
    set_request(slot, SL_REQUEST_BEGUN);
    slot->fresh = false;
    slot->moved_ns = now_ns;
}

/* How much may be read of a sparse's request at a time: no further than the window goes. */
static size_t row_bytes(const struct sl_slot *slot)
{
    size_t room = slot->reader->concurrency.buffer_bytes - slot->filled;
    return (size_t)SL_MIN(SL_MIN(slot->fetch_end, slot->window_end) - slot->row_at, (uint64_t)room);
}

/* Bytes came behind those of the window: which of them are rows' stay. Returns how many. */
static size_t keep_rows(struct sl_slot *slot, size_t got)
{
    const struct sl_mapping *sparse = sl_slot_sparse(slot);
    uint64_t begin = slot->row_at - sparse->begin;
    uint8_t *data = slot->buffer + slot->filled;
    size_t kept = sl_runs_gather(&sparse->fetched, begin, begin + got, data, data);
    slot->row_at += got;
    sl_counter_add(&slot->reader->dropped, got - kept);
    return kept;
}

enum sl_slot_state sl_slot_fill_window(struct sl_slot *slot, struct sl_err *err)
{
    uint8_t *data = slot->place.memory ? slot->place.memory : slot->buffer;
    size_t bytes = slot->window_bytes - slot->filled, got = 0;
    if (sl_slot_sparse(slot)) {
        if (slot->row_at == slot->fetch_end)
            return next_row(slot, err);
        bytes = row_bytes(slot);
    }
    switch (sl_fetch_read(slot->fetch, data + slot->filled, bytes, &got, err)) {
    case SL_IO_WAIT:
        return SL_SLOT_WAIT;
    case SL_IO_DATA:
        slot->got += got;
        slot->filled += sl_slot_sparse(slot) ? keep_rows(slot, got) : got;
        note_wait(slot, sl_now_ns());
        if (slot->filled == slot->window_bytes)
            sl_slot_set_window(slot, SL_WINDOW_FULL);
        return SL_SLOT_RUN;
    case SL_IO_END:
        sl_fail(err, SL_E_INTERNAL, "a range ended before its last byte");
        break;
    case SL_IO_FAILED:
        break;
    }
    return SL_SLOT_FAILED;
}

/* The window is full: choose the next one. Bytes that change on their way keep short ones, which
 * stay in the cache. */
static void choose_length(struct sl_slot *slot)
{
    const struct sl_reader *reader = slot->reader;
    if (slot->place.memory || reader->forms || slot->window_bytes < slot->window_most ||
        reader->plan->fixed.on)
        return;
    size_t next = sl_concurrency_window(&reader->concurrency, slot->window_most,
                                        sl_now_ns() - slot->opened_ns);
    slot->window_most = SL_MIN(next, slot->buffer_bytes);
}

enum sl_slot_state sl_slot_step(struct sl_slot *slot, bool insist, struct sl_err *err)
{
    check(slot);
    if (slot->request == SL_REQUEST_NONE)
        return SL_SLOT_IDLE;
    if (slot->at == slot->range.end)
        return end_range(slot, err);
    if (slot->window == SL_WINDOW_NONE && sl_slot_open_window(slot, err) < 0)
        return SL_SLOT_FAILED;
    if (slot->window == SL_WINDOW_FILLING) {
        enum sl_slot_state state = sl_slot_fill_window(slot, err);
        if (state != SL_SLOT_FAILED && slot->cut)
            sl_slot_cut_window(slot, SL_KEEP_BYTES_MIN);
        slot->cut = false;
        if (slot->window == SL_WINDOW_FILLING)
            return state;
        choose_length(slot);
    }
    return sl_slot_close_window(slot, insist, err);
}

void sl_slot_rest(struct sl_slot *slot)
{
    if (slot->fetch)
        sl_fetch_rest(slot->fetch);
    slot->fresh = true;
}

int sl_slot_poll(struct sl_slot *slot, struct pollfd fds[SL_IO_POLL_MAX], uint64_t *deadline_ns)
{
    int count = sl_fetch_poll(slot->fetch, fds, deadline_ns);
    if (slot->request == SL_REQUEST_BACKS_OFF && count) { /* nobody was silent while it waited */
        sl_slot_start_clock(slot, sl_now_ns());
        sl_slot_asks(slot, slot->moved_ns);
    }
    if (!count) { /* its next request is another one */
        set_request(slot, SL_REQUEST_BACKS_OFF);
        slot->fresh = true;
    }
    return count;
}

unsigned sl_slot_take_throttled(struct sl_slot *slot)
{
    return slot->fetch ? sl_fetch_take_throttled(slot->fetch) : 0;
}

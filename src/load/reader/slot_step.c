/*
 * How a slot goes on: its range begins, its windows are filled and closed one after another, and
 * its range ends. The states are drawn in slot.c.
 */

#include "slot_parts.h"

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

/* The journal learns what landed before something else is asked for: a kill costs no more than the
 * ranges that are being read. */
static enum sl_slot_state leave_range(struct sl_slot *slot, struct sl_err *err)
{
    sl_slot_set_request(slot, SL_REQUEST_NONE);
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
    sl_slot_set_request(slot, SL_REQUEST_BEGUN);
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
    sl_slot_check(slot);
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
        sl_slot_set_request(slot, SL_REQUEST_BACKS_OFF);
        slot->fresh = true;
    }
    return count;
}

unsigned sl_slot_take_throttled(struct sl_slot *slot)
{
    return slot->fetch ? sl_fetch_take_throttled(slot->fetch) : 0;
}

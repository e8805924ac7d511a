/*
 * A tensor header precedes each tensor's data, so a large model has hundreds of small ranges far
 * apart, and a small one thousands close together. Ranges with small gaps become one run; runs are
 * fetched by up to 32 connections that one poll loop drives, so no threads are needed and the
 * latency of a store is paid once for as many runs. Connecting costs work, so beyond eight each is
 * to bring eight runs or more; two where the store is far away, since they connect side by side and
 * each round trip less counts. What a run reads in gaps is dropped. A run in the head that opening
 * the object has brought costs nothing.
 */
#include "gather.h"

#include <string.h>

#include "fetch.h"
#include "index.h"

enum { PIECE_BYTES = 64 * 1024, STREAM_PIECE_BYTES = 512 * 1024, WAIT_MS_MAX = 1000 };
enum { HOLD_RUN_BYTES = 8 << 20 }; /* of an object that is fetched whole */
enum { CONNECTIONS_FEW = 8, RUNS_EACH = 8, RUNS_EACH_FAR = 2 };

/* Consecutive items [first, last) fetched by one request. */
struct run {
    struct sl_fetch *fetch;
    size_t item, last;
    uint64_t at, end; /* next byte to come */
    uint8_t *piece;
    bool busy;
};

struct gather {
    struct sl_source *source;
    struct sl_gather_item *items;
    size_t count, next; /* items without a run */
    size_t width;       /* connections that are used */
    bool apart;         /* a request for each item */
    struct run runs[SL_GATHER_CONNECTIONS_MAX];
};

static int by_begin(const void *a, const void *b)
{
    const struct sl_gather_item *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void release(struct gather *gather)
{
    for (size_t i = 0; i < SL_COUNT(gather->runs); i++) {
        sl_fetch_free(gather->runs[i].fetch);
        free(gather->runs[i].piece);
    }
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Sleep until one of the fetches can go on; -1 if canceled. */
static int wait_for(struct sl_source *source, struct sl_fetch *const *fetches, size_t count,
                    struct sl_err *err)
{
    struct sl_cancel *cancel = sl_store_cancel(sl_source_store(source));
    struct pollfd fds[SL_GATHER_CONNECTIONS_MAX * SL_IO_POLL_MAX + 1];
    fds[0] = (struct pollfd){sl_cancel_fd(cancel), POLLIN, 0};
    nfds_t used = 1;
    uint64_t now = sl_now_ns(), first = now + WAIT_MS_MAX * SL_NS_PER_MS;
    for (size_t i = 0; i < count; i++) {
        uint64_t deadline = UINT64_MAX;
        used += (nfds_t)sl_fetch_poll(fetches[i], fds + used, &deadline);
        first = SL_MIN(first, deadline);
    }
    int wait_ms = first > now ? (int)((first - now + SL_NS_PER_MS - 1) / SL_NS_PER_MS) : 0;
    poll(fds, used, wait_ms);
    return sl_cancel_check(cancel, err);
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* The items from next on that one request fetches. */
static void cut_run(struct gather *gather, struct run *run)
{
    run->item = gather->next;
    run->at = gather->items[gather->next].begin;
    run->end = gather->items[gather->next].end;
    while (++gather->next < gather->count && !gather->apart &&
           gather->items[gather->next].begin - run->end <= SL_GATHER_GAP_BYTES)
        run->end = SL_MAX(run->end, gather->items[gather->next].end);
    run->last = gather->next;
}

static size_t choose_width(const struct gather *gather)
{
    const struct sl_gather_item *items = gather->items;
    size_t runs = 1;
    for (size_t i = gather->next + 1; i < gather->count; i++)
        runs += gather->apart || items[i].begin > items[i - 1].end + SL_GATHER_GAP_BYTES;
    struct sl_store *store = sl_source_store(gather->source);
    bool is_far = sl_store_preconnected(store) > 0;
    size_t width = runs / (is_far ? RUNS_EACH_FAR : RUNS_EACH);
    width = SL_MIN(SL_MAX(width, (size_t)CONNECTIONS_FEW), (size_t)SL_GATHER_CONNECTIONS_MAX);
    return sl_store_openings(store, width);
}

static int start_run(struct gather *gather, struct run *run, struct sl_err *err)
{
    cut_run(gather, run);
    if (!run->fetch)
        run->fetch = sl_fetch_new(sl_source_store(gather->source), err);
    if (!run->piece)
        run->piece = sl_alloc(PIECE_BYTES, err);
    if (!run->fetch || !run->piece)
        return -1;
    sl_fetch_hedge(run->fetch);
    run->busy = true;
    return sl_fetch_start(run->fetch, gather->source, run->at, run->end, err);
}

/* Hand bytes [run->at, run->at + bytes) to the items that want them. */
static void scatter(struct gather *gather, struct run *run, size_t bytes)
{
    uint64_t begin = run->at, end = run->at + bytes;
    while (run->item < run->last && gather->items[run->item].begin < end) {
        struct sl_gather_item *item = &gather->items[run->item];
        uint64_t from = SL_MAX(begin, item->begin), to = SL_MIN(end, item->end);
        if (from < to)
            memcpy(item->data + (from - item->begin), run->piece + (from - begin), to - from);
        if (item->end > end)
            break;
        run->item++;
    }
    run->at = end;
}

/* Take all that has come. 1: the run is complete, 0: it waits. */
static int advance(struct gather *gather, struct run *run, struct sl_err *err)
{
    for (;;) {
        size_t got = 0;
        switch (sl_fetch_read(run->fetch, run->piece, PIECE_BYTES, &got, err)) {
        case SL_IO_DATA:
            scatter(gather, run, got);
            if (sl_cancel_check(sl_store_cancel(sl_source_store(gather->source)), err) < 0)
                return -1;
            break;
        case SL_IO_END:
            run->busy = false;
            return 1;
        case SL_IO_WAIT:
            return 0;
        default:
            return -1;
        }
    }
}

/* One round over all connections. 1: there is more to do. */
static int turn(struct gather *gather, struct sl_err *err)
{
    struct sl_fetch *waiting[SL_GATHER_CONNECTIONS_MAX];
    size_t waiting_count = 0, done = 0;
    for (size_t i = 0; i < gather->width; i++) {
        struct run *run = &gather->runs[i];
        if (!run->busy && gather->next == gather->count)
            continue;
        if (!run->busy && start_run(gather, run, err) < 0)
            return -1;
        int complete = advance(gather, run, err);
        if (complete < 0)
            return -1;
        done += (size_t)complete;
        if (!complete)
            waiting[waiting_count++] = run->fetch;
    }
    if (waiting_count > 0 && done == 0 && wait_for(gather->source, waiting, waiting_count, err) < 0)
        return -1;
    return waiting_count > 0 || gather->next < gather->count;
}

static int gather_all(struct sl_source *source, struct sl_gather_item *items, size_t count,
                      bool apart, struct sl_err *err)
{
    if (count > 1)
        qsort(items, count, sizeof(*items), by_begin);
    size_t first = 0;
    for (; first < count && items[first].end <= sl_source_held(source); first++)
        if (items[first].end > items[first].begin &&
            sl_source_read(source, items[first].begin, items[first].data,
                           items[first].end - items[first].begin, err) < 0)
            return -1;
    struct gather gather = {
        .source = source, .items = items, .count = count, .next = first, .apart = apart};
    gather.width = choose_width(&gather);
    int more = first < count;
    while (more > 0)
        more = turn(&gather, err);
    release(&gather);
    return more;
}

/* Out of ranges that were found right, which it keeps a while. */
static int gather_verified(struct sl_source *source, struct sl_gather_item *items, size_t count,
                           struct sl_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (sl_source_read(source, items[i].begin, items[i].data,
                           (size_t)(items[i].end - items[i].begin), err) < 0)
            return -1;
    return 0;
}

int sl_gather(struct sl_source *source, struct sl_gather_item *items, size_t count,
              struct sl_err *err)
{
    if (sl_source_verifier(source))
        return gather_verified(source, items, count, err);
    if (gather_all(source, items, count, false, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        if (items[i].end > sl_source_held(source) &&
            sl_source_note(source, items[i].begin, items[i].data,
                           (size_t)(items[i].end - items[i].begin), err) < 0)
            return -1;
    return 0;
}

/* ---- all of an object ------------------------------------------------------------------------ */

int sl_gather_hold(struct sl_source *source, size_t runs, struct sl_err *err)
{
    uint64_t held = sl_source_held(source), bytes = sl_source_bytes(source);
    size_t count = (bytes - held + HOLD_RUN_BYTES - 1) / HOLD_RUN_BYTES;
    if (count >= runs || !sl_source_may_hold(source))
        return 0;
    sl_autofree uint8_t *data = sl_alloc(bytes, err);
    sl_autofree struct sl_gather_item *items = sl_alloc_array(count, sizeof(*items), err);
    if (!data || !items || (held && sl_source_read(source, 0, data, held, err) < 0))
        return -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = held + i * HOLD_RUN_BYTES;
        items[i] =
            (struct sl_gather_item){begin, SL_MIN(begin + HOLD_RUN_BYTES, bytes), data + begin};
    }
    if (gather_all(source, items, count, true, err) < 0)
        return -1;
    sl_source_hold(source, sl_steal(&data));
    return 0;
}

/* ---- one long range -------------------------------------------------------------------------- */

typedef int piece_taker(void *arg, const uint8_t *data, size_t bytes, struct sl_err *err);

static int stream_fetch(struct sl_source *source, struct sl_fetch *fetch, uint8_t *piece,
                        piece_taker *each, void *arg, struct sl_err *err)
{
    for (;;) {
        size_t got = 0;
        switch (sl_fetch_read(fetch, piece, STREAM_PIECE_BYTES, &got, err)) {
        case SL_IO_DATA: /* a fast one never waits */
            if (each(arg, piece, got, err) < 0 ||
                sl_cancel_check(sl_store_cancel(sl_source_store(source)), err) < 0)
                return -1;
            break;
        case SL_IO_WAIT:
            if (wait_for(source, &fetch, 1, err) < 0)
                return -1;
            break;
        case SL_IO_END:
            return 0;
        default:
            return -1;
        }
    }
}

int sl_gather_stream(struct sl_source *source, uint64_t begin, uint64_t end, piece_taker *each,
                     void *arg, struct sl_err *err)
{
    if (begin >= end)
        return 0;
    sl_autofree uint8_t *piece = sl_alloc(STREAM_PIECE_BYTES, err);
    if (!piece)
        return -1;
    uint64_t held = SL_MIN(SL_MIN(end, sl_source_held(source)), (uint64_t)SL_INDEX_HEAD_BYTES);
    if (begin < held) {
        if (sl_source_read(source, begin, piece, held - begin, err) < 0 ||
            each(arg, piece, held - begin, err) < 0)
            return -1;
        begin = held;
    }
    if (begin == end)
        return 0;
    SL_AUTO(sl_fetch) fetch = sl_fetch_new(sl_source_store(source), err);
    if (!fetch || sl_fetch_start(fetch, source, begin, end, err) < 0)
        return -1;
    return stream_fetch(source, fetch, piece, each, arg, err);
}

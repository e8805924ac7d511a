/* A window over the answer in hand: what has come and is not taken lies in it, and moves to its
 * front when there is no room behind. That of a kept entry is as long as the entry. */
#include "xet_feed.h"

#include <string.h>

enum { WINDOW_BYTES = 256 * 1024 };

struct window {
    uint8_t *data;
    size_t at, used, room;
};

struct sl_xet_feed {
    struct sl_xet *xet;
    struct sl_channel *channel;
    struct sl_source source; /* what the channel reads */
    struct sl_xorb xorb;
    const struct sl_xet_plan *plan;
    struct window stream;
    struct window *kept; /* one an entry */
    uint32_t *uses;      /* still to come, of each */
    size_t kept_bytes;
    struct window *open; /* NULL: none */
    uint32_t entry;
    bool asking; /* an answer is under way */
};

static const struct sl_transport *const http = &sl_http_transport;

struct sl_xet_feed *sl_xet_feed_new(struct sl_xet *xet, struct sl_err *err)
{
    struct sl_xet_feed *feed = sl_alloc(sizeof(*feed), err);
    if (!feed)
        return NULL;
    feed->xet = xet;
    feed->stream =
        (struct window){.data = sl_alloc_aligned(64, WINDOW_BYTES, err), .room = WINDOW_BYTES};
    feed->channel = feed->stream.data ? http->channel_new(sl_xet_xorbs(xet), err) : NULL;
    if (feed->channel)
        return feed;
    sl_xet_feed_free(feed);
    return NULL;
}

void sl_xet_feed_free(struct sl_xet_feed *feed)
{
    if (!feed)
        return;
    sl_xet_feed_reset(feed);
    http->channel_free(feed->channel);
    free(feed->stream.data);
    free(feed);
}

struct sl_channel *sl_xet_feed_channel(struct sl_xet_feed *feed)
{
    return feed->channel;
}

static void stop_asking(struct sl_xet_feed *feed)
{
    if (feed->asking)
        http->channel_abort(feed->channel);
    feed->asking = false;
}

void sl_xet_feed_reset(struct sl_xet_feed *feed)
{
    stop_asking(feed);
    feed->open = NULL;
    for (uint32_t i = 0; feed->kept && i < feed->plan->entry_count; i++)
        free(feed->kept[i].data);
    free(sl_steal(&feed->kept));
    free(sl_steal(&feed->uses));
    feed->kept_bytes = 0;
    feed->plan = NULL;
}

int sl_xet_feed_begin(struct sl_xet_feed *feed, const struct sl_xet_plan *plan, char *uri,
                      struct sl_err *err)
{
    sl_xet_feed_reset(feed);
    feed->plan = plan;
    feed->source.store = sl_xet_xorbs(feed->xet);
    feed->source.uri = uri;
    feed->source.impl = &feed->xorb;
    feed->kept = sl_alloc_array(plan->entry_count, sizeof(*feed->kept), err);
    feed->uses = sl_alloc_array(plan->entry_count, sizeof(*feed->uses), err);
    if (!feed->kept || !feed->uses)
        return -1;
    for (uint32_t i = 0; i < plan->entry_count; i++)
        feed->uses[i] = plan->entries[i].uses;
    return 0;
}

static int ask(struct sl_xet_feed *feed, unsigned hedge, struct sl_err *err)
{
    const struct sl_xet_entry *entry = &feed->plan->entries[feed->entry];
    feed->xorb = (struct sl_xorb){entry->url, entry->begin, entry->end};
    feed->source.version = (struct sl_version){.etag = ""};
    const struct sl_try try = {entry->begin, entry->end, .first = true, .hedge = hedge};
    if (http->channel_start(feed->channel, &feed->source, &try, err) < 0)
        return -1;
    feed->asking = true;
    return 0;
}

int sl_xet_feed_open(struct sl_xet_feed *feed, uint32_t number, unsigned hedge, struct sl_err *err)
{
    const struct sl_xet_entry *entry = &feed->plan->entries[number];
    struct window *kept = &feed->kept[number];
    size_t bytes = (size_t)(entry->end - entry->begin);
    feed->entry = number;
    feed->open = &feed->stream;
    feed->stream.at = feed->stream.used = 0;
    if (!kept->data && feed->uses[number] > 1 && feed->kept_bytes + bytes <= SL_XET_KEPT_MAX) {
        *kept = (struct window){.data = sl_alloc_aligned(64, bytes, err), .room = bytes};
        if (!kept->data)
            return -1;
        feed->kept_bytes += bytes;
    }
    feed->uses[number]--;
    if (kept->data) {
        kept->at = 0;
        feed->open = kept;
    }
    return feed->open->used ? 0 : ask(feed, hedge, err);
}

/* One step of the answer into the window. END: it is over. */
static enum sl_io_state receive(struct sl_xet_feed *feed, struct sl_err *err)
{
    struct window *window = feed->open;
    uint8_t beyond;
    size_t room = window->room - window->used, got = 0;
    if (!feed->asking)
        return SL_IO_END;
    enum sl_io_state state = http->channel_read(
        feed->channel, room ? window->data + window->used : &beyond, room ? room : 1, &got, err);
    window->used += got;
    feed->asking = state == SL_IO_WAIT || state == SL_IO_DATA;
    return state;
}

/* A kept entry comes whole before it is used: its next term begins at its first byte again. */
static enum sl_io_state fill_kept(struct sl_xet_feed *feed, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    while (state == SL_IO_DATA)
        state = receive(feed, err);
    return state == SL_IO_END ? SL_IO_DATA : state;
}

static void make_room(struct window *window, size_t bytes)
{
    if (window->room - window->at >= bytes)
        return;
    memmove(window->data, window->data + window->at, window->used - window->at);
    window->used -= window->at;
    window->at = 0;
}

enum sl_io_state sl_xet_feed_peek(struct sl_xet_feed *feed, size_t bytes, const uint8_t **data,
                                  struct sl_err *err)
{
    struct window *window = feed->open;
    enum sl_io_state state = SL_IO_DATA;
    if (window != &feed->stream)
        state = fill_kept(feed, err);
    else
        make_room(window, bytes);
    while (state == SL_IO_DATA && window->used - window->at < bytes)
        state = receive(feed, err);
    *data = window->data + window->at;
    return state;
}

void sl_xet_feed_take(struct sl_xet_feed *feed, size_t bytes)
{
    struct window *window = feed->open;
    window->at += bytes;
    if (window == &feed->stream && window->at == window->used)
        window->at = window->used = 0; /* what comes next, where the cache has it */
}

void sl_xet_feed_close(struct sl_xet_feed *feed)
{
    struct window *kept = &feed->kept[feed->entry];
    stop_asking(feed);
    feed->open = NULL;
    if (feed->uses[feed->entry] || !kept->data)
        return;
    feed->kept_bytes -= kept->room;
    free(kept->data);
    *kept = (struct window){.data = NULL};
}

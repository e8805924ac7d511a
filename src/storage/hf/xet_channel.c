/*
 * Each range goes one of two ways: to the hub and wherever its links lead, or through Xet. Which
 * one is decided when it starts; what fails there is tried again by the fetch, from the first byte
 * that is missing, and may then go the other way. The hub's answer to the very first request of a
 * file may say that it is on Xet: then that is where this request goes on.
 * So retry, back-off and hedges know nothing of Xet.
 *
 * Xet is asked about each range by itself: its links cover exactly what was asked for and cannot
 * be parted, so a plan of the whole file would have entries fetched again by each range that cuts
 * them.
 */
#include "xet_channel.h"

#include <string.h>

#include "hf_store.h"
#include "xet.h"
#include "xet_range.h"

struct sl_channel {
    struct sl_hf *hf;
    struct sl_channel *http;
    struct sl_xet_range *range; /* NULL: none yet */
    struct sl_source *source;
    struct sl_try try;
    enum { IDLE, BY_LINK, BY_XET, EMPTY } way;
};

static const struct sl_transport *const http = &sl_http_transport;

static void channel_free(struct sl_channel *channel)
{
    if (!channel)
        return;
    sl_xet_range_free(channel->range);
    http->channel_free(channel->http);
    free(channel);
}

static struct sl_channel *channel_new(struct sl_store *store, struct sl_err *err)
{
    struct sl_channel *channel = sl_alloc(sizeof(*channel), err);
    if (!channel)
        return NULL;
    channel->hf = store->impl;
    channel->http = http->channel_new(store, err);
    if (!channel->http)
        free(sl_steal(&channel));
    return channel;
}

/* ---- which way ------------------------------------------------------------------------------- */

static int start_xet(struct sl_channel *channel, struct sl_xet_file *file, struct sl_err *err)
{
    struct sl_try try = channel->try;
    uint64_t bytes = sl_xet_file_bytes(file);
    try.end = SL_MIN(try.end, bytes);
    channel->way = try.begin < try.end ? BY_XET : EMPTY;
    if (try.first)
        channel->source->bytes = bytes;
    if (channel->way == EMPTY)
        return 0;
    if (!channel->range)
        channel->range = sl_xet_range_new(channel->hf->xet, err);
    if (channel->range &&
        sl_xet_range_start(channel->range, file, channel->source->uri, &try, err) == 0)
        return 0;
    sl_xet_note_failure(channel->hf->xet, err);
    channel->way = IDLE;
    return -1;
}

static struct sl_xet_file *file_of(const struct sl_channel *channel)
{
    const struct sl_source *source = channel->source;
    struct sl_xet_file *file = channel->hf->xet ? sl_xet_find(channel->hf->xet, source->version.pin,
                                                              source->name, channel->try.again)
                                                : NULL;
    bool same = file && (channel->try.first || sl_xet_file_bytes(file) == source->bytes);
    return same ? file : NULL;
}

static int channel_start(struct sl_channel *channel, struct sl_source *source,
                         const struct sl_try *try, struct sl_err *err)
{
    struct sl_err local = SL_ERR_INIT;
    channel->source = source;
    channel->try = *try;
    struct sl_xet_file *file = file_of(channel);
    if (file)
        return start_xet(channel, file, err ? err : &local);
    channel->way = BY_LINK;
    if (channel->hf->xet)
        sl_xet_read_elsewhere(channel->hf->xet, source->version.pin, source->name);
    return http->channel_start(channel->http, source, try, err);
}

/* The hub's first answer ended in "it is on Xet". */
static enum sl_io_state turn(struct sl_channel *channel, struct sl_err *err)
{
    struct sl_xet_file *file = file_of(channel);
    channel->way = IDLE;
    if (!file) {
        err->retryable = true; /* Xet has been given up meanwhile */
        return SL_IO_FAILED;
    }
    *err = (struct sl_err)SL_ERR_INIT;
    return start_xet(channel, file, err) < 0 ? SL_IO_FAILED : SL_IO_DATA;
}

/* ---- reading --------------------------------------------------------------------------------- */

static enum sl_io_state read_xet(struct sl_channel *channel, void *data, size_t bytes, size_t *got,
                                 struct sl_err *err)
{
    enum sl_io_state state = sl_xet_range_read(channel->range, data, bytes, got, err);
    if (state == SL_IO_FAILED)
        sl_xet_note_failure(channel->hf->xet, err);
    if (state == SL_IO_END)
        sl_xet_note_success(channel->hf->xet);
    if (state == SL_IO_FAILED || state == SL_IO_END)
        channel->way = IDLE;
    return state;
}

static enum sl_io_state channel_read(struct sl_channel *channel, void *data, size_t bytes,
                                     size_t *got, struct sl_err *err)
{
    struct sl_err local = SL_ERR_INIT;
    enum sl_io_state state = SL_IO_DATA;
    err = err ? err : &local;
    *got = 0;
    if (channel->way == BY_LINK) {
        state = http->channel_read(channel->http, data, bytes, got, err);
        if (state != SL_IO_FAILED || strcmp(err->code, SL_HF_ON_XET) != 0)
            return state;
        state = turn(channel, err);
    }
    if (state == SL_IO_FAILED)
        return state;
    return channel->way == BY_XET ? read_xet(channel, data, bytes, got, err) : SL_IO_END;
}

static int channel_poll(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                        uint64_t *deadline_ns)
{
    return channel->way == BY_XET ? sl_xet_range_poll(channel->range, fds, deadline_ns)
                                  : http->channel_poll(channel->http, fds, deadline_ns);
}

static void channel_abort(struct sl_channel *channel)
{
    if (channel->way == BY_XET)
        sl_xet_range_abort(channel->range);
    else
        http->channel_abort(channel->http);
    channel->way = IDLE;
}

static struct sl_answered channel_answered(const struct sl_channel *channel)
{
    return channel->way == BY_XET ? sl_xet_range_answered(channel->range)
                                  : http->channel_answered(channel->http);
}

static int channel_connect(struct sl_channel *channel, const struct sl_exchange *like,
                           struct sl_err *err)
{
    return http->channel_connect(channel->http, like, err);
}

static bool channel_leads_to(const struct sl_channel *channel, const struct sl_host *host)
{
    return http->channel_leads_to(channel->http, host) ||
           (channel->range && sl_xet_range_leads_to(channel->range, host));
}

static struct sl_exchange *channel_exchange(struct sl_channel *channel)
{
    return http->channel_exchange(channel->http);
}

const struct sl_transport sl_hf_transport = {
    SL_CHANNEL_FUNCTIONS,
    .channel_exchange = channel_exchange,
};

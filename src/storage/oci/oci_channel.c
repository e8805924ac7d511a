/*
 * Each range goes one of two ways: as it stands, where its blob is not packed and the server knows
 * ranges, or through a stream that is read in order. That a server knows none is learned from its
 * first answer, and the same range then goes on as a stream.
 *
 * And it is asked of the endpoint that the fetch names, a mirror or the registry. A mirror's
 * refusal that a new token mends stays here, as the registry's does in the fetch.
 *
 * Requests are of a source of the channel's own (`via`), which stands for the one that is read, or
 * for the whole blob that it is a piece of.
 */
#include "oci_channel.h"

#include <stdio.h>
#include <string.h>

#include "metrics.h"
#include "oci_stream.h"

struct sl_channel {
    struct sl_oci *oci;
    struct sl_channel *http;
    struct sl_oci_stream *stream; /* NULL: none was needed yet */
    unsigned stream_from;         /* the endpoint that its bytes are of */
    struct sl_source *source, via;
    struct sl_oci_piece piece;
    struct sl_oci_place place; /* via.impl */
    struct sl_try try;         /* what is still to come */
    bool recovered;            /* something was done about a mirror's refusal */
    enum { IDLE, BY_RANGE, IN_ORDER } way;
};

static const struct sl_transport *const http = &sl_http_transport;

static void channel_free(struct sl_channel *channel)
{
    if (!channel)
        return;
    http->channel_free(channel->http);
    sl_oci_stream_free(channel->stream);
    free(channel);
}

static struct sl_channel *channel_new(struct sl_store *store, struct sl_err *err)
{
    struct sl_channel *channel = sl_alloc(sizeof(*channel), err);
    if (!channel)
        return NULL;
    channel->oci = store->impl;
    channel->http = http->channel_new(store, err);
    if (!channel->http)
        free(sl_steal(&channel));
    return channel;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static int prepare(struct sl_source *via, struct sl_range_request *request, struct sl_err *err)
{
    const struct sl_oci_place *place = via->impl;
    if (sl_http_prepare(&place->at->http, place->object, request, err) < 0)
        return -1;
    request->secret = sl_oci_auth_login(place->at->auth)->from != NULL; /* links are, too, then */
    if (sl_oci_endpoint_let_in(place->at, request, err) < 0)
        return sl_wrap(err, "cannot read '%.300s'", via->uri);
    return 0;
}

static int redirect(struct sl_source *via, const struct sl_exchange *exchange, const char *from,
                    const char *to, struct sl_err *err)
{
    const struct sl_oci_place *place = via->impl;
    return sl_http_redirect(&place->at->http, place->object, from, to, sl_exchange_status(exchange),
                            err);
}

static int refuse(struct sl_source *via, const struct sl_exchange *exchange, const char *body,
                  size_t body_bytes, struct sl_err *err)
{
    const struct sl_oci_place *place = via->impl;
    const struct sl_cloud_reply reply = {.status = sl_exchange_status(exchange),
                                         .retry_after = sl_exchange_header(exchange, "Retry-After"),
                                         .code = sl_exchange_header(exchange, "WWW-Authenticate"),
                                         .body = body,
                                         .body_bytes = body_bytes};
    char what[400];
    snprintf(what, sizeof(what), "cannot read '%.380s'", via->uri);
    return sl_oci_refuse(via->store->impl, place->at, &reply, what, err);
}

const struct sl_http_hooks sl_oci_hooks = {
    .prepare = prepare, .refuse = refuse, .redirect = redirect};

static bool is_at_mirror(const struct sl_channel *channel)
{
    return channel->try.place < channel->oci->places.count;
}

/* ---- which way ------------------------------------------------------------------------------- */

static int start_in_order(struct sl_channel *channel, struct sl_err *err)
{
    struct sl_source *via = &channel->via;
    const struct sl_oci_piece *piece = &channel->piece;
    uint64_t of = channel->try.first ? 0 : piece->of ? piece->of : channel->source->bytes;
    if (channel->stream_from != channel->try.place) /* nobody's bytes are taken for another's */
        sl_oci_stream_free(sl_steal(&channel->stream));
    if (!channel->stream && !(channel->stream = sl_oci_stream_new(err)))
        return -1;
    channel->stream_from = channel->try.place;
    via->piece_at = via->piece_of = 0;
    via->bytes = of;
    const struct sl_oci_stretch stretch = {
        .piece = piece,
        .layer = piece->packing != SL_PACKING_NONE ? sl_oci_find_layer(channel->oci, piece->digest)
                                                   : NULL,
        .begin = piece->at + channel->try.begin,
        .end = piece->at + channel->try.end,
        .of = of,
        .whole = sl_oci_knows_no_ranges(channel->oci),
        .hedge = channel->try.hedge,
        .http = channel->http,
        .blob = via};
    channel->way = IN_ORDER;
    return sl_oci_stream_start(channel->stream, &stretch, err);
}

/* What the channel's own source is: the other one, or the blob that it is a piece of. */
static int stand_in(struct sl_channel *channel, struct sl_err *err)
{
    struct sl_source *source = channel->source, *via = &channel->via;
    const struct sl_oci_place *own = source->impl;
    via->store = source->store;
    via->uri = source->uri;
    via->bytes = source->bytes;
    via->version = source->version;
    via->piece_at = source->piece_at;
    via->piece_of = source->piece_of;
    via->blob = source->blob;
    via->impl = &channel->place;
    channel->place = *own;
    return is_at_mirror(channel) ? sl_oci_place_find(&channel->oci->mirrors[channel->try.place],
                                                     channel->piece.digest, &channel->place, err)
                                 : 0;
}

/* What is missing of the range, from the endpoint in hand. */
static int ask(struct sl_channel *channel, struct sl_err *err)
{
    if (stand_in(channel, err) < 0)
        return -1;
    if (channel->piece.packing != SL_PACKING_NONE || sl_oci_knows_no_ranges(channel->oci))
        return start_in_order(channel, err);
    if (channel->stream) /* what it has in hand is in the way */
        sl_oci_stream_abort(channel->stream);
    channel->way = BY_RANGE;
    return http->channel_start(channel->http, &channel->via, &channel->try, err);
}

/* A mirror refused: is something done about it, and it is asked once more? */
static bool ask_again(struct sl_channel *channel, struct sl_err *err)
{
    if (!is_at_mirror(channel) || channel->recovered || !err->http_status)
        return false;
    channel->recovered = true;
    if (!sl_oci_endpoint_recover(channel->place.at, channel->place.object, err, NULL))
        return false;
    sl_metric_add(SL_M_SOURCE_ERRORS, 1);
    sl_metric_add(SL_M_SOURCE_REQUESTS, 1);
    sl_counter_add(&channel->source->requests, 1);
    *err = (struct sl_err)SL_ERR_INIT;
    return ask(channel, err) == 0;
}

static int channel_start(struct sl_channel *channel, struct sl_source *source,
                         const struct sl_try *try, struct sl_err *err)
{
    struct sl_err local = SL_ERR_INIT;
    err = err ? err : &local;
    channel->source = source;
    channel->try = *try;
    channel->recovered = false;
    if (!source->impl || !sl_oci_pin_parse(source->version.pin, &channel->piece))
        return sl_fail(err, SL_E_INTERNAL, "'%s' has no digest", source->uri);
    return ask(channel, err) == 0 || ask_again(channel, err) ? 0 : -1;
}

static const char *channel_via(const struct sl_channel *channel)
{
    return channel->way == IN_ORDER ? NULL : http->channel_via(channel->http);
}

/* The registry's answer to a range was all of the blob. */
static bool has_no_ranges(const struct sl_channel *channel, const struct sl_err *why)
{
    return !is_at_mirror(channel) && !channel_via(channel) && why->http_status == 200 &&
           strcmp(why->code, "range") == 0;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* What the first answer told is of the source that is read. */
static void learn(struct sl_channel *channel)
{
    if (!channel->try.first)
        return;
    channel->source->bytes = channel->via.bytes;
    channel->try.first = false;
}

static enum sl_io_state read_by_range(struct sl_channel *channel, void *data, size_t bytes,
                                      size_t *got, struct sl_err *err)
{
    enum sl_io_state state = http->channel_read(channel->http, data, bytes, got, err);
    if (state != SL_IO_FAILED || !has_no_ranges(channel, err))
        return state;
    sl_oci_note_no_ranges(channel->oci);
    *err = (struct sl_err)SL_ERR_INIT;
    return start_in_order(channel, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

static enum sl_io_state channel_read(struct sl_channel *channel, void *data, size_t bytes,
                                     size_t *got, struct sl_err *err)
{
    struct sl_err local = SL_ERR_INIT;
    enum sl_io_state state = SL_IO_END;
    err = err ? err : &local;
    *got = 0;
    if (channel->way == BY_RANGE)
        state = read_by_range(channel, data, bytes, got, err);
    else if (channel->way == IN_ORDER)
        state = sl_oci_stream_read(channel->stream, data, bytes, got, err);
    if (state == SL_IO_DATA || state == SL_IO_END)
        learn(channel);
    channel->try.begin += *got;
    if (state == SL_IO_FAILED && ask_again(channel, err))
        return SL_IO_WAIT;
    if (state == SL_IO_FAILED || state == SL_IO_END)
        channel->way = IDLE;
    return state;
}

static int channel_poll(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                        uint64_t *deadline_ns)
{
    return channel->way == IN_ORDER ? sl_oci_stream_poll(channel->stream, fds, deadline_ns)
                                    : http->channel_poll(channel->http, fds, deadline_ns);
}

static void channel_abort(struct sl_channel *channel)
{
    if (channel->stream)
        sl_oci_stream_abort(channel->stream);
    http->channel_abort(channel->http);
    channel->way = IDLE;
}

static struct sl_answered channel_answered(const struct sl_channel *channel)
{
    return http->channel_answered(channel->http);
}

static int channel_connect(struct sl_channel *channel, const struct sl_exchange *like,
                           struct sl_err *err)
{
    return http->channel_connect(channel->http, like, err);
}

static bool channel_leads_to(const struct sl_channel *channel, const struct sl_host *host)
{
    return http->channel_leads_to(channel->http, host);
}

/* For a request of another kind: a stream in mid-answer gives way. */
static struct sl_exchange *channel_exchange(struct sl_channel *channel)
{
    if (channel->stream)
        sl_oci_stream_abort(channel->stream);
    return http->channel_exchange(channel->http);
}

const struct sl_transport sl_oci_transport = {
    SL_CHANNEL_FUNCTIONS,
    .channel_via = channel_via,
    .channel_exchange = channel_exchange,
};

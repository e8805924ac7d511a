/*
 * Two positions count: how far the blob has been unpacked, which survives a broken connection, and
 * the answer in hand, which does not. A request reaches from the first packed byte that is missing
 * to the first point behind the range; without ranges it is for the whole blob, and what came
 * before is dropped.
 */
#include "oci_stream.h"

#include <string.h>

enum {
    INPUT_BYTES = 128 * 1024,
    PASSED_BYTES = 128 * 1024,
    PASSED_AT_ONCE = 16, /* such pieces, before others have their turn */
};

struct sl_oci_stream {
    struct sl_oci_stretch now;
    char digest[SL_OCI_DIGEST_BYTES]; /* of what `packed` is in; "": nothing */
    struct sl_packed_stream *packed;
    enum sl_packing packing;
    bool flowing;  /* an answer is in hand */
    bool busy;     /* there is more to pass over */
    bool ended;    /* all packed bytes have come */
    uint64_t drop; /* bytes of the answer, before those that are missing */
    size_t used, have;
    uint8_t input[INPUT_BYTES], passed[PASSED_BYTES];
};

static const struct sl_transport *const http = &sl_http_transport;

struct sl_oci_stream *sl_oci_stream_new(struct sl_err *err)
{
    return sl_alloc(sizeof(struct sl_oci_stream), err);
}

void sl_oci_stream_free(struct sl_oci_stream *stream)
{
    if (!stream)
        return;
    sl_packed_stream_free(stream->packed);
    free(stream);
}

void sl_oci_stream_abort(struct sl_oci_stream *stream)
{
    if (stream->flowing)
        http->channel_abort(stream->now.http);
    stream->flowing = stream->busy = stream->ended = false;
    stream->used = stream->have = 0;
}

/* ---- where to begin -------------------------------------------------------------------------- */

/* The last point before a place; NULL: the beginning. */
static const struct sl_packed_point *point_before(const struct sl_oci_layer *layer, uint64_t out)
{
    const struct sl_packed_point *best = NULL;
    for (size_t i = 0; layer && i < layer->point_count && layer->points[i].out <= out; i++)
        best = &layer->points[i];
    return best;
}

static uint64_t request_end(const struct sl_oci_stretch *now)
{
    if (now->whole)
        return now->of ? now->of : SL_OBJECT_BYTES_MAX;
    for (size_t i = 0; now->layer && i < now->layer->point_count; i++)
        if (now->layer->points[i].out >= now->end)
            return now->layer->points[i].in;
    return now->of;
}

static int open_packed(struct sl_oci_stream *stream, enum sl_packing packing, struct sl_err *err)
{
    if (stream->packed && stream->packing == packing)
        return 0;
    sl_packed_stream_free(sl_steal(&stream->packed));
    stream->packed = sl_packed_stream_new(packing, err);
    stream->packing = packing;
    return stream->packed ? 0 : -1;
}

/* It goes on where it is, unless that is beyond the place, or a point is nearer. */
static bool goes_on(const struct sl_oci_stream *stream, const struct sl_oci_stretch *to,
                    const struct sl_packed_point *point)
{
    if (strcmp(stream->digest, to->piece->digest) != 0 || stream->packing != to->piece->packing ||
        !stream->packed)
        return false;
    uint64_t at = sl_packed_stream_out(stream->packed);
    return at <= to->begin && (!point || point->out <= at);
}

int sl_oci_stream_start(struct sl_oci_stream *stream, const struct sl_oci_stretch *to,
                        struct sl_err *err)
{
    const struct sl_packed_point *point = point_before(to->layer, to->begin);
    bool on = goes_on(stream, to, point);
    if (!on || stream->now.whole != to->whole)
        sl_oci_stream_abort(stream);
    stream->now = *to;
    if (on)
        return 0;
    *stream->digest = 0;
    if (open_packed(stream, to->piece->packing, err) < 0 ||
        sl_packed_stream_seek(stream->packed, point, err) < 0)
        return -1;
    memcpy(stream->digest, to->piece->digest, sizeof(stream->digest));
    return 0;
}

/* ---- packed bytes ---------------------------------------------------------------------------- */

static int request_more(struct sl_oci_stream *stream, struct sl_err *err)
{
    const struct sl_oci_stretch *now = &stream->now;
    uint64_t in = sl_packed_stream_in(stream->packed), end = request_end(now);
    if (now->of && in >= now->of) {
        stream->ended = true;
        return 0;
    }
    if (end <= in)
        end = now->of;
    stream->drop = now->whole ? in : 0;
    const struct sl_try try = {now->whole ? 0 : in, end, .first = !now->of, .hedge = now->hedge};
    if (http->channel_start(now->http, now->blob, &try, err) < 0)
        return -1;
    stream->flowing = true;
    return 0;
}

/* The answer, as far as it is here. */
static enum sl_io_state take_answer(struct sl_oci_stream *stream, struct sl_err *err)
{
    struct sl_oci_stretch *now = &stream->now;
    stream->used = stream->have = 0;
    enum sl_io_state state =
        http->channel_read(now->http, stream->input, INPUT_BYTES, &stream->have, err);
    stream->flowing = state == SL_IO_WAIT || state == SL_IO_DATA;
    if (!now->of && (state == SL_IO_DATA || state == SL_IO_END)) {
        now->of = now->blob->bytes;
        now->end = SL_MIN(now->end, now->of);
        stream->ended = now->of == 0;
    }
    stream->used = (size_t)SL_MIN(stream->drop, (uint64_t)stream->have);
    stream->drop -= stream->used;
    return state == SL_IO_END ? SL_IO_DATA : state;
}

/* DATA: there is input, or it has ended. */
static enum sl_io_state feed(struct sl_oci_stream *stream, struct sl_err *err)
{
    while (stream->used == stream->have && !stream->ended) {
        if (!stream->flowing && request_more(stream, err) < 0)
            return SL_IO_FAILED;
        enum sl_io_state state = stream->flowing ? take_answer(stream, err) : SL_IO_DATA;
        if (state != SL_IO_DATA)
            return state;
    }
    return SL_IO_DATA;
}

/* ---- unpacked bytes -------------------------------------------------------------------------- */

/* The layer was whole when its files were looked for: so what comes now is not what came then. */
static enum sl_io_state damaged(struct sl_oci_stream *stream, struct sl_err *err)
{
    sl_oci_stream_abort(stream);
    *stream->digest = 0;
    sl_wrap(err, "'%s' is not what it was when its layer was checked", stream->now.blob->uri);
    if (err && err->kind == SL_E_FORMAT) {
        err->kind = SL_E_NET;
        err->retryable = true;
    }
    return SL_IO_FAILED;
}

/* One step of unpacking into the caller's memory, or past what nobody wants. WAIT: it needs more
 * packed bytes. */
static enum sl_io_state step(struct sl_oci_stream *stream, void *data, size_t bytes, size_t *got,
                             struct sl_err *err)
{
    uint64_t at = sl_packed_stream_out(stream->packed);
    bool passing = at < stream->now.begin;
    uint64_t room = passing ? SL_MIN((uint64_t)PASSED_BYTES, stream->now.begin - at)
                            : SL_MIN((uint64_t)bytes, stream->now.end - at);
    size_t taken, came;
    if (sl_packed_stream_run(stream->packed, stream->input + stream->used,
                             stream->have - stream->used, &taken, passing ? stream->passed : data,
                             (size_t)room, &came, err) < 0)
        return damaged(stream, err);
    stream->used += taken;
    *got = passing ? 0 : came;
    return taken || came ? SL_IO_DATA : SL_IO_WAIT;
}

static enum sl_io_state end_early(struct sl_oci_stream *stream, struct sl_err *err)
{
    sl_fail(err, SL_E_FORMAT, "it ends before byte %llu of what it unpacks to",
            (unsigned long long)stream->now.end);
    return damaged(stream, err);
}

enum sl_io_state sl_oci_stream_read(struct sl_oci_stream *stream, void *data, size_t bytes,
                                    size_t *got, struct sl_err *err)
{
    *got = 0;
    stream->busy = false;
    for (unsigned steps = 0; steps < PASSED_AT_ONCE; steps++) {
        if (stream->now.of && sl_packed_stream_out(stream->packed) >= stream->now.end)
            return SL_IO_END;
        enum sl_io_state state = step(stream, data, bytes, got, err);
        if (state == SL_IO_FAILED || *got)
            return state;
        if (state == SL_IO_DATA)
            continue;
        if (stream->ended)
            return stream->now.of ? end_early(stream, err) : SL_IO_END;
        state = feed(stream, err);
        if (state != SL_IO_DATA)
            return state;
    }
    stream->busy = true;
    return SL_IO_WAIT;
}

int sl_oci_stream_poll(struct sl_oci_stream *stream, struct pollfd fds[SL_IO_POLL_MAX],
                       uint64_t *deadline_ns)
{
    if (stream->flowing && !stream->busy)
        return http->channel_poll(stream->now.http, fds, deadline_ns);
    *deadline_ns = 0;
    return 0;
}

/*
 * Terms follow one another in the file, and so do the chunks of each. A chunk that is wanted whole
 * and fits is decoded where the caller wants it; one that a border cuts, beside, and what is wanted
 * of it is copied.
 *
 *     IDLE ──▶ ASKING ──▶ BETWEEN ──▶ IN_TERM ──▶ ENDING ──▶ BETWEEN, the next term, or IDLE
 *
 *     ask()        ASKING       take_plan(), end_term()  BETWEEN
 *     open_term()  IN_TERM      take_chunk()             ENDING
 *
 * A failure and an abort are IDLE.
 */
#include "xet_range.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "xet_ask.h"
#include "xet_chunk.h"
#include "xet_feed.h"

enum phase { IDLE, ASKING, BETWEEN, IN_TERM, ENDING };

struct sl_xet_range {
    struct sl_xet *xet;
    struct sl_xet_ask *ask;
    struct sl_xet_feed *feed;
    struct sl_xet_decoder *decoder;
    struct sl_xet_file *file;
    char *uri;
    char what[400];
    unsigned hedge;
    bool vouched;
    uint64_t at, end; /* of the file: still to deliver */
    enum phase phase;
    bool asked_again; /* since its last byte: a signed URL had expired */
    struct sl_xet_plan plan;
    uint32_t term;  /* the next, or the one in hand */
    uint32_t chunk; /* of the xorb, the next */
    uint64_t place; /* of that chunk in the file */
    uint64_t left;  /* of the term's bytes */
    uint8_t *beside;
    size_t beside_at, beside_end; /* what is wanted of it */
};

static const struct sl_transport *const http = &sl_http_transport;

static void set_phase(struct sl_xet_range *range, enum phase to)
{
#ifndef NDEBUG
#define TO(phase) (1u << (phase))
    static const unsigned steps[] = {
        [IDLE] = TO(IDLE) | TO(ASKING),     [ASKING] = TO(IDLE) | TO(BETWEEN),
        [BETWEEN] = TO(IDLE) | TO(IN_TERM), [IN_TERM] = TO(IDLE) | TO(ENDING),
        [ENDING] = TO(IDLE) | TO(BETWEEN),
    };
#undef TO
    assert(steps[range->phase] & 1u << to);
#endif
    range->phase = to;
}

struct sl_xet_range *sl_xet_range_new(struct sl_xet *xet, struct sl_err *err)
{
    struct sl_xet_range *range = sl_alloc(sizeof(*range), err);
    if (!range)
        return NULL;
    range->xet = xet;
    range->ask = sl_xet_ask_new(xet, err);
    range->feed = range->ask ? sl_xet_feed_new(xet, err) : NULL;
    range->decoder = range->feed ? sl_xet_decoder_new(err) : NULL;
    range->beside = range->decoder ? sl_alloc_aligned(64, SL_XET_RAW_MAX, err) : NULL;
    if (range->beside)
        return range;
    sl_xet_range_free(range);
    return NULL;
}

void sl_xet_range_free(struct sl_xet_range *range)
{
    if (!range)
        return;
    sl_xet_feed_free(range->feed);
    sl_xet_ask_free(range->ask);
    sl_xet_decoder_free(range->decoder);
    sl_xet_plan_release(&range->plan);
    free(range->beside);
    free(range);
}

void sl_xet_range_abort(struct sl_xet_range *range)
{
    if (range->phase == ASKING)
        sl_xet_ask_abort(range->ask);
    sl_xet_feed_reset(range->feed);
    sl_xet_plan_release(&range->plan);
    set_phase(range, IDLE);
}

bool sl_xet_range_leads_to(struct sl_xet_range *range, const struct sl_host *host)
{
    return sl_exchange_leads_to(sl_xet_ask_exchange(range->ask), host) ||
           http->channel_leads_to(sl_xet_feed_channel(range->feed), host);
}

struct sl_answered sl_xet_range_answered(struct sl_xet_range *range)
{
    struct sl_answered answered = http->channel_answered(sl_xet_feed_channel(range->feed));
    answered.twice |= sl_exchange_answered(sl_xet_ask_exchange(range->ask)).twice;
    return answered;
}

int sl_xet_range_poll(struct sl_xet_range *range, struct pollfd fds[SL_IO_POLL_MAX],
                      uint64_t *deadline_ns)
{
    if (range->phase == ASKING)
        return sl_exchange_poll(sl_xet_ask_exchange(range->ask), fds, deadline_ns);
    return http->channel_poll(sl_xet_feed_channel(range->feed), fds, deadline_ns);
}

static int ask(struct sl_xet_range *range, struct sl_err *err)
{
    range->beside_at = range->beside_end = 0;
    if (sl_xet_ask_start(range->ask, range->file, range->at, range->end, range->hedge, range->what,
                         err) < 0)
        return -1;
    set_phase(range, ASKING);
    return 0;
}

int sl_xet_range_start(struct sl_xet_range *range, struct sl_xet_file *file, char *uri,
                       const struct sl_try *try, struct sl_err *err)
{
    range->file = file;
    range->uri = uri;
    range->at = try->begin;
    range->end = try->end;
    range->hedge = try->hedge;
    range->vouched = try->vouch != SL_VOUCH_NONE;
    range->asked_again = false;
    snprintf(range->what, sizeof(range->what),
             "cannot read bytes %" PRIu64 "-%" PRIu64 " of '%.300s'", try->begin, try->end - 1,
             uri);
    return ask(range, err);
}

static int broken(const struct sl_xet_range *range, struct sl_err *err, const char *why)
{
    sl_fail_code(err, SL_E_FORMAT, "xet", "%s: %s", range->what, why);
    if (err)
        err->retryable = true; /* it may have been broken on its way */
    return -1;
}

/* ---- from term to term ----------------------------------------------------------------------- */

static int take_plan(struct sl_xet_range *range, struct sl_err *err)
{
    range->term = 0;
    range->place = range->at - range->plan.skip;
    set_phase(range, BETWEEN);
    if (range->plan.skip > range->at)
        return broken(range, err, "Xet begins before the file does");
    return sl_xet_feed_begin(range->feed, &range->plan, range->uri, err);
}

static int open_term(struct sl_xet_range *range, struct sl_err *err)
{
    if (range->term == range->plan.term_count)
        return broken(range, err, "what Xet gives ends early");
    const struct sl_xet_term *term = &range->plan.terms[range->term];
    range->chunk = range->plan.entries[term->entry].first_chunk;
    range->left = term->bytes;
    set_phase(range, IN_TERM);
    return sl_xet_feed_open(range->feed, term->entry, range->hedge, err);
}

/* The last wanted chunk of a term was taken. A xorb's bytes must end with its last chunk. */
static enum sl_io_state end_term(struct sl_xet_range *range, struct sl_err *err)
{
    const struct sl_xet_term *term = &range->plan.terms[range->term];
    const uint8_t *data;
    enum sl_io_state state = SL_IO_END;
    if (range->chunk == range->plan.entries[term->entry].end_chunk)
        state = sl_xet_feed_peek(range->feed, 1, &data, err);
    if (state == SL_IO_DATA)
        return broken(range, err, "there are bytes behind the last chunk of a xorb"), SL_IO_FAILED;
    if (state != SL_IO_END)
        return state;
    sl_xet_feed_close(range->feed);
    range->term++;
    set_phase(range, BETWEEN);
    return SL_IO_DATA;
}

/* ---- from chunk to chunk --------------------------------------------------------------------- */

/* DATA: a chunk lies at *data. */
static enum sl_io_state next_chunk(struct sl_xet_range *range, struct sl_xet_chunk *chunk,
                                   const uint8_t **data, struct sl_err *err)
{
    enum sl_io_state state = sl_xet_feed_peek(range->feed, SL_XET_HEAD_BYTES, data, err);
    if (state == SL_IO_DATA && sl_xet_chunk_head(*data, chunk, err) < 0) {
        err->retryable = true;
        sl_wrap(err, "%s", range->what);
        return SL_IO_FAILED;
    }
    if (state == SL_IO_DATA)
        state = sl_xet_feed_peek(range->feed, SL_XET_HEAD_BYTES + chunk->packed_bytes, data, err);
    if (state == SL_IO_END)
        return broken(range, err, "a xorb ends early"), SL_IO_FAILED;
    *data += SL_XET_HEAD_BYTES;
    return state;
}

/* Decode it, to `data` if all of it is wanted and fits there: *got of it then. */
static int decode(struct sl_xet_range *range, const struct sl_xet_chunk *chunk,
                  const uint8_t *packed, uint8_t *data, size_t room, size_t *got,
                  struct sl_err *err)
{
    uint64_t end = range->place + chunk->raw_bytes;
    bool there = range->place == range->at && end <= range->end && chunk->raw_bytes <= room;
    uint8_t *raw = there ? data : range->beside;
    if (sl_xet_decode(range->decoder, chunk, packed, raw, err) < 0) {
        err->retryable = true;
        return sl_wrap(err, "%s", range->what);
    }
    if (sl_xet_file_add(range->file, range->place, raw, chunk->raw_bytes, range->vouched, err) < 0)
        return sl_wrap(err, "%s", range->what);
    if (there) {
        *got = chunk->raw_bytes;
        range->at = end;
        return 0;
    }
    range->beside_at = (size_t)(range->at - range->place);
    range->beside_end = (size_t)(SL_MIN(end, range->end) - range->place);
    return 0;
}

/* One chunk of the term. */
static enum sl_io_state take_chunk(struct sl_xet_range *range, uint8_t *data, size_t room,
                                   size_t *got, struct sl_err *err)
{
    const struct sl_xet_term *term = &range->plan.terms[range->term];
    struct sl_xet_chunk chunk;
    const uint8_t *packed;
    enum sl_io_state state = next_chunk(range, &chunk, &packed, err);
    if (state != SL_IO_DATA)
        return state;
    bool of_term = range->chunk >= term->first_chunk;
    if (of_term) {
        if (chunk.raw_bytes > range->left ||
            chunk.raw_bytes > sl_xet_file_bytes(range->file) - range->place)
            return broken(range, err, "a term is longer than it says"), SL_IO_FAILED;
        if (range->place + chunk.raw_bytes > range->at &&
            decode(range, &chunk, packed, data, room, got, err) < 0)
            return SL_IO_FAILED;
        range->place += chunk.raw_bytes;
        range->left -= chunk.raw_bytes;
    }
    sl_xet_feed_take(range->feed, SL_XET_HEAD_BYTES + chunk.packed_bytes);
    range->chunk++;
    if (range->chunk == term->end_chunk && range->left)
        return broken(range, err, "a term is shorter than it says"), SL_IO_FAILED;
    if (range->chunk == term->end_chunk || range->place >= range->end)
        set_phase(range, ENDING);
    return SL_IO_DATA;
}

static size_t copy_beside(struct sl_xet_range *range, uint8_t *data, size_t room)
{
    size_t bytes = SL_MIN(room, range->beside_end - range->beside_at);
    memcpy(data, range->beside + range->beside_at, bytes);
    range->beside_at += bytes;
    range->at += bytes;
    return bytes;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* DATA: go on. *got: bytes that were decoded to `data`. */
static enum sl_io_state step(struct sl_xet_range *range, uint8_t *data, size_t room, size_t *got,
                             struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    *got = 0;
    switch (range->phase) {
    case IDLE:
        return SL_IO_END;
    case ASKING:
        state = sl_xet_ask_step(range->ask, &range->plan, err);
        if (state == SL_IO_DATA && take_plan(range, err) < 0)
            state = SL_IO_FAILED;
        return state;
    case BETWEEN:
        if (range->at == range->end) {
            sl_xet_range_abort(range);
            return SL_IO_END;
        }
        return open_term(range, err) < 0 ? SL_IO_FAILED : SL_IO_DATA;
    case IN_TERM:
        if (range->beside_at < range->beside_end) {
            *got = copy_beside(range, data, room);
            return SL_IO_DATA;
        }
        return take_chunk(range, data, room, got, err);
    case ENDING:
        if (range->beside_at < range->beside_end) {
            *got = copy_beside(range, data, room);
            return SL_IO_DATA;
        }
        return end_term(range, err);
    }
    return SL_IO_END;
}

/* Signed URLs end: new ones are asked for, once until bytes come again. */
static bool ask_again(struct sl_xet_range *range, const struct sl_err *why)
{
    int status = why->http_status;
    bool expired = status == 401 || status == 403 || status == 404 || status == 410;
    if (range->phase == ASKING || !expired || range->asked_again)
        return false;
    sl_xet_range_abort(range);
    range->asked_again = true;
    return ask(range, NULL) == 0;
}

enum sl_io_state sl_xet_range_read(struct sl_xet_range *range, void *data, size_t bytes,
                                   size_t *got, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    *got = 0;
    while (state == SL_IO_DATA && *got < bytes) {
        size_t more;
        state = step(range, (uint8_t *)data + *got, bytes - *got, &more, err);
        *got += more;
        if (more)
            range->asked_again = false;
        if (state == SL_IO_FAILED && ask_again(range, err)) {
            *err = (struct sl_err)SL_ERR_INIT;
            state = SL_IO_DATA;
        }
    }
    if (state == SL_IO_FAILED) {
        sl_xet_range_abort(range);
        *got = 0;
    }
    return state != SL_IO_FAILED && *got ? SL_IO_DATA : state;
}

/*
 * One range at a time over one channel of the transport, with retry.
 *
 * A failed try becomes a deadline in the future (IN_BACKOFF), so a thread that drives several
 * fetches never sleeps for one of them; when it has passed, the channel starts again at the first
 * byte that has not been delivered. Channels of fetches that end between ranges go back to the
 * store with their connection, and the next fetch takes one from there. A range that the source
 * keeps since its opening needs none.
 *
 * A try goes from place to place before it fails: only the origin's failures are waited out.
 *
 *     IDLE, DONE ──▶ ACTIVE ──▶ DONE, the range; ACTIVE again for the next block of it
 *                     │  ▲
 *                     ▼  │
 *                    IN_BACKOFF                       FROM_MEMORY ──▶ DONE
 *
 *     ask()  ACTIVE     turn_away(), fail_try()  IN_BACKOFF     end_try(), read_memory()  DONE
 *
 * What gives up, and an abort, is IDLE. Only the thread that has the fetch moves it.
 */
#include "fetch.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "log.h"
#include "metrics.h"
#include "places.h"
#include "progress.h"
#include "store_kind.h"
#include "thread_cancel.h"

enum {
    ATTEMPTS_DEFAULT = 8,
    MISDIRECTED = 421, /* RFC 9110 section 15.5.20 */
};

enum phase { IDLE, ACTIVE, FROM_MEMORY, IN_BACKOFF, DONE };

struct sl_fetch {
    struct sl_store *store;
    struct sl_channel *channel;
    struct sl_source *source;
    enum phase phase;
    uint64_t at, end;        /* still to come */
    uint64_t part_end;       /* of it, what is asked for now: a block, if it goes by a cache */
    uint64_t try_begin;      /* where this try began */
    uint64_t try_started_ns; /* when */
    uint64_t wake_ns;        /* IN_BACKOFF */
    struct sl_retry retry;
    unsigned throttled;
    bool hedged, apart;
    bool again; /* apart, and its first range, which came wrong before */
    enum sl_vouch vouch;
    struct sl_places_way way;
    bool gave;                      /* the place in hand has sent bytes of this try */
    struct sl_caches_ask ask;       /* for the block in hand */
    char via[SL_THROUGH_VIA_BYTES]; /* of this try; "": the origin */
    uint64_t counted;               /* up to there it is counted whose the bytes are */
    uint64_t block;                 /* in hand */
    bool mended;                    /* a refusal of it that came by a cache */
};

static void set_phase(struct sl_fetch *fetch, enum phase to)
{
#ifndef NDEBUG
#define TO(phase) (1u << (phase))
    static const unsigned steps[] = {
        [IDLE] = TO(IDLE) | TO(ACTIVE) | TO(FROM_MEMORY) | TO(IN_BACKOFF),
        [ACTIVE] = TO(IDLE) | TO(IN_BACKOFF) | TO(DONE),
        [FROM_MEMORY] = TO(IDLE) | TO(DONE),
        [IN_BACKOFF] = TO(IDLE) | TO(ACTIVE) | TO(IN_BACKOFF),
        [DONE] = TO(IDLE) | TO(ACTIVE) | TO(FROM_MEMORY) | TO(IN_BACKOFF),
    };
#undef TO
    assert(steps[fetch->phase] & 1u << to);
#endif
    fetch->phase = to;
}

static struct sl_channel *take_idle_channel(struct sl_store *store)
{
    SL_LOCKED(&store->locked.mutex);
    return store->locked.channel_count ? store->locked.channels[--store->locked.channel_count]
                                       : NULL;
}

/* via NULL: to the origin. */
static struct sl_channel *take_leading_via(struct sl_store *store, const char *via)
{
    SL_LOCKED(&store->locked.mutex);
    for (unsigned i = 0; i < store->locked.channel_count; i++) {
        struct sl_channel *channel = store->locked.channels[i];
        const char *has = store->transport->channel_via(channel);
        if (strcmp(has ? has : "", via ? via : "") == 0) {
            store->locked.channels[i] = store->locked.channels[--store->locked.channel_count];
            return channel;
        }
    }
    return NULL;
}

static bool keep_idle_channel(struct sl_store *store, struct sl_channel *channel)
{
    SL_LOCKED(&store->locked.mutex);
    if (store->locked.channel_count == SL_IDLE_CHANNELS_MAX)
        return false;
    store->locked.channels[store->locked.channel_count++] = channel;
    return true;
}

struct sl_channel *sl_store_take_channel(struct sl_store *store, struct sl_err *err)
{
    struct sl_channel *channel = take_idle_channel(store);
    return channel ? channel : store->transport->channel_new(store, err);
}

void sl_store_give_channel(struct sl_store *store, struct sl_channel *channel)
{
    if (channel && !keep_idle_channel(store, channel))
        store->transport->channel_free(channel);
}

/* ---- who supplied what ----------------------------------------------------------------------- */

static enum sl_supplier_failure failure_of(const struct sl_err *why)
{
    if (why->kind == SL_E_CANCELED)
        return SL_SUPPLIER_FAILURE_COUNT;
    if (strcmp(why->code, "stall") == 0)
        return SL_SUPPLIER_SILENT;
    if (strcmp(why->code, "changed") == 0)
        return SL_SUPPLIER_VERSION;
    if (why->http_status >= 500 || why->http_status == 429)
        return SL_SUPPLIER_BUSY;
    if (why->http_status >= 400)
        return SL_SUPPLIER_REFUSED;
    return why->kind == SL_E_NET && why->retryable ? SL_SUPPLIER_BROKEN : SL_SUPPLIER_OTHER;
}

/* What came of the try in hand, and so of the place that it went to. */
static void count_supplied(struct sl_fetch *fetch, enum sl_supplier_failure failure, bool whole)
{
    const struct sl_places *places = fetch->store->places;
    struct sl_supplied supplied = {.bytes = fetch->at - fetch->counted,
                                   .ranges = whole,
                                   .failure = failure,
                                   .began_ns = fetch->try_started_ns};
    if (*fetch->via) {
        supplied.kind = SL_SUPPLIER_CACHE;
        supplied.name = fetch->via;
    } else if (places && fetch->way.at < places->count) {
        supplied.kind = SL_SUPPLIER_MIRROR;
        supplied.name = sl_places_name(places, fetch->way.at);
    }
    fetch->counted = fetch->at;
    sl_progress_add_supplied(fetch->store->config.progress, &supplied);
}

/* ---- fetches --------------------------------------------------------------------------------- */

static struct sl_fetch *make(struct sl_store *store, bool apart, struct sl_err *err)
{
    struct sl_fetch *fetch = sl_alloc(sizeof(*fetch), err);
    if (!fetch)
        return NULL;
    fetch->store = store;
    fetch->apart = fetch->again = apart;
    fetch->channel =
        apart ? store->transport->channel_new(store, err) : sl_store_take_channel(store, err);
    if (!fetch->channel) {
        free(fetch);
        return NULL;
    }
    if (apart)
        store->transport->channel_abort(fetch->channel); /* it takes none of other stores' */
    return fetch;
}

struct sl_fetch *sl_fetch_new(struct sl_store *store, struct sl_err *err)
{
    return make(store, false, err);
}

struct sl_fetch *sl_fetch_new_apart(struct sl_store *store, struct sl_err *err)
{
    return make(store, true, err);
}

/* The block in hand is not asked of caches any more. */
static void drop_block(struct sl_fetch *fetch)
{
    if (fetch->ask.in_hand)
        sl_through_drop(fetch->store->through, &fetch->ask);
}

void sl_fetch_free(struct sl_fetch *fetch)
{
    if (!fetch)
        return;
    drop_block(fetch);
    if (fetch->phase == ACTIVE) {
        count_supplied(fetch, SL_SUPPLIER_FAILURE_COUNT, false);
        fetch->store->transport->channel_free(fetch->channel);
    } else {
        sl_store_give_channel(fetch->store, fetch->channel);
    }
    free(fetch);
}

void sl_fetch_rest(struct sl_fetch *fetch)
{
    if (fetch->phase == ACTIVE || fetch->phase == IN_BACKOFF || !fetch->channel)
        return;
    sl_store_give_channel(fetch->store, sl_steal(&fetch->channel));
}

void sl_fetch_hedge(struct sl_fetch *fetch)
{
    fetch->hedged = true;
}

void sl_fetch_vouch(struct sl_fetch *fetch, enum sl_vouch vouch)
{
    fetch->vouch = vouch;
}

/* ---- through caches -------------------------------------------------------------------------- */

int sl_fetch_cache(const struct sl_fetch *fetch)
{
    return fetch->ask.asked == SL_ASKED_CACHE ? fetch->ask.cache : SL_THROUGH_ORIGIN;
}

static bool is_at_origin(const struct sl_fetch *fetch)
{
    return !fetch->store->places || fetch->way.at == fetch->store->places->count;
}

/* Does its request go by a cache? What it carries may not be for one. */
static bool is_led(const struct sl_fetch *fetch)
{
    return fetch->ask.asked == SL_ASKED_CACHE &&
           fetch->store->transport->channel_via(fetch->channel);
}

/* What is missing of the block is asked of another then. */
static void turn_away(struct sl_fetch *fetch, uint64_t until_ns)
{
    set_phase(fetch, IN_BACKOFF);
    fetch->wake_ns = until_ns;
}

static const struct {
    const char *name, *text;
} pasts[] = {
#define SL_PAST(id, name, text) {name, text},
#include "past_caches.def"
#undef SL_PAST
};

const char *sl_past_name(enum sl_past past)
{
    return past < SL_PAST_COUNT ? pasts[past].name : "";
}

const char *sl_past_text(enum sl_past past)
{
    return past < SL_PAST_COUNT ? pasts[past].text : "";
}

/* By caches comes what has a name for good, and is checked. */
static enum sl_past past_of(const struct sl_source *source, enum sl_vouch vouch)
{
    const struct sl_store *store = source->store;
    if (!store->through || !store->transport->channel_via)
        return SL_PAST_TRANSPORT;
    if (!source->opened || source->in_order)
        return SL_PAST_IN_ORDER;
    if (source->past_caches)
        return SL_PAST_PACKED;
    if (!sl_version_is_known(&source->version))
        return SL_PAST_UNVERSIONED;
    return SL_MAX(source->vouch, vouch) == SL_VOUCH_NONE ? SL_PAST_UNCHECKED : SL_PAST_COUNT;
}

static uint64_t key_of(const struct sl_source *source)
{
    const struct sl_version *version = &source->version;
    if (source->blob)
        return sl_caches_hash(source->blob);
    uint64_t key = sl_caches_hash(source->uri);
    const char *const words[] = {version->etag, version->version_id, version->pin,
                                 version->last_modified};
    for (size_t i = 0; i < SL_COUNT(words); i++)
        key = sl_caches_rank(key, sl_caches_hash(words[i]), i);
    return key;
}

/* A block is one cache's. */
static uint64_t block_end(const struct sl_source *source, uint64_t at, uint64_t end)
{
    uint64_t bytes = sl_through_block_bytes(source->store->through);
    uint64_t block = (source->piece_at + at) / bytes;
    return SL_MIN(end, (block + 1) * bytes - source->piece_at);
}

bool sl_source_in_block(const struct sl_source *source, uint64_t begin, uint64_t end)
{
    return source->store->through && block_end(source, begin, end) == end;
}

static struct sl_caches_map *map_of(struct sl_source *source)
{
    struct sl_store *store = source->store;
    SL_LOCKED(&store->locked.mutex);
    if (!source->caches)
        source->caches = sl_through_map_new(store->through, key_of(source),
                                            source->piece_of ? source->piece_of : source->bytes);
    return source->caches;
}

int sl_source_owner(struct sl_source *source, uint64_t at)
{
    struct sl_through *through = source->store->through;
    struct sl_caches_map *map = through ? map_of(source) : NULL;
    uint64_t block = map ? (source->piece_at + at) / sl_through_block_bytes(through) : 0;
    return map ? sl_through_owner(through, map, block) : SL_THROUGH_ORIGIN;
}

uint64_t sl_fetch_route(struct sl_source *source, enum sl_vouch vouch, uint64_t at, uint64_t end,
                        int *cache, enum sl_past *past)
{
    *cache = SL_THROUGH_ORIGIN;
    *past = past_of(source, vouch);
    if (*past != SL_PAST_COUNT)
        return end;
    *cache = sl_source_owner(source, at);
    if (*cache == SL_THROUGH_ORIGIN)
        *past = SL_PAST_NO_CACHE;
    return block_end(source, at, end);
}

void sl_source_doubt(struct sl_source *source, uint64_t begin, uint64_t end)
{
    struct sl_through *through = source->store->through;
    if (through)
        sl_through_doubt(through, map_of(source), source->piece_at + begin, source->piece_at + end);
}

void sl_source_agreed(struct sl_source *source, uint64_t begin, uint64_t end)
{
    struct sl_through *through = source->store->through;
    if (through)
        sl_through_agreed(through, map_of(source), source->piece_at + begin,
                          source->piece_at + end);
}

void sl_source_settle(struct sl_source *source, uint64_t begin, uint64_t end, bool wrong)
{
    struct sl_through *through = source->store->through;
    if (through)
        sl_through_settle(through, map_of(source), source->piece_at + begin, source->piece_at + end,
                          wrong, source->uri);
}

/* A connection that leads there, if one is idle. */
static void turn_channel(struct sl_fetch *fetch)
{
    struct sl_store *store = fetch->store;
    const char *via = *fetch->via ? fetch->via : NULL;
    const char *has = store->transport->channel_via(fetch->channel);
    if (strcmp(has ? has : "", via ? via : "") == 0)
        return;
    struct sl_channel *channel = take_leading_via(store, via);
    if (!channel)
        channel = store->transport->channel_new(store, NULL);
    if (!channel)
        return; /* the one in hand leaves its connection */
    sl_store_give_channel(store, fetch->channel);
    fetch->channel = channel;
}

/* Which cache, and how much of it. Bytes that were wrong come from the origin, and places before it
 * are asked themselves. */
static void choose_cache(struct sl_fetch *fetch)
{
    struct sl_source *source = fetch->source;
    struct sl_through *through = fetch->store->through;
    fetch->part_end = fetch->end;
    *fetch->via = 0;
    if (fetch->ask.asked == SL_ASKED_CACHE || fetch->ask.asked == SL_ASKED_ORIGIN)
        drop_block(fetch); /* a try of it failed, and begins anew */
    if (!fetch->apart && is_at_origin(fetch)) {
        enum sl_past past = past_of(source, fetch->vouch);
        if (past == SL_PAST_PACKED)
            sl_through_past(through, source->uri, source->past_caches);
        if (past == SL_PAST_COUNT) {
            fetch->block = (source->piece_at + fetch->at) / sl_through_block_bytes(through);
            fetch->part_end = block_end(source, fetch->at, fetch->end);
            bool proves = fetch->vouch == SL_VOUCH_BLOCKS;
            sl_through_choose(through, map_of(source), fetch->block, proves, &fetch->ask,
                              fetch->via);
        }
    }
    if (through && fetch->store->transport->channel_via && fetch->ask.asked != SL_ASKED_WAITS)
        turn_channel(fetch);
}

/* A link that has expired, or credentials, are what was refused, and not the cache's fault: once
 * for each block. */
static bool mend(struct sl_fetch *fetch, const struct sl_err *why)
{
    const struct sl_store_kind *kind = fetch->store->kind;
    if (fetch->mended || why->http_status < 400 || why->http_status == MISDIRECTED ||
        why->retryable || !kind->recover)
        return false;
    fetch->mended = true;
    return kind->recover(fetch->source, why, NULL);
}

/* The cache did not do: the next is asked for what is missing, at once. False: it was none. */
static bool leave_cache(struct sl_fetch *fetch, const struct sl_err *why)
{
    if (!is_led(fetch) || why->kind == SL_E_CANCELED)
        return false;
    if (!mend(fetch, why) &&
        !(why->http_status == MISDIRECTED &&
          sl_through_lacks(fetch->store->through, &fetch->ask, map_of(fetch->source))))
        sl_through_failed(fetch->store->through, &fetch->ask, why);
    turn_away(fetch, 0);
    return true;
}

/* Its cache is silent, or much slower than others: what is missing is asked of the next. */
static bool leave_slow(struct sl_fetch *fetch)
{
    if (!is_led(fetch) || fetch->at == fetch->part_end)
        return false;
    enum sl_caches_verdict verdict = sl_through_judge(fetch->store->through, &fetch->ask);
    if (verdict == SL_CACHES_FINE)
        return false;
    if (verdict == SL_CACHES_SILENT) {
        sl_metric_add(SL_M_SOURCE_ERRORS, 1);
        sl_metric_add(SL_M_SOURCE_STALLS, 1);
    }
    count_supplied(fetch, verdict == SL_CACHES_SILENT ? SL_SUPPLIER_SILENT : SL_SUPPLIER_LATE,
                   false);
    fetch->store->transport->channel_abort(fetch->channel);
    turn_away(fetch, 0);
    return true;
}

/* The cache gave all, and says nothing more. */
static bool awaits_end_alone(const struct sl_fetch *fetch)
{
    return is_led(fetch) && fetch->at == fetch->part_end &&
           sl_now_ns() >= sl_through_judge_ns(fetch->store->through, &fetch->ask);
}

/* An answer came: by a cache? */
static void note_way(struct sl_fetch *fetch)
{
    if (fetch->ask.asked != SL_ASKED_CACHE || is_led(fetch))
        return;
    drop_block(fetch);
    *fetch->via = 0;
}

/* ---- tries ----------------------------------------------------------------------------------- */

struct sl_retry sl_store_retry(const struct sl_source_config *config)
{
    return (struct sl_retry){.limit = config->attempts ? config->attempts : ATTEMPTS_DEFAULT,
                             .unreachable_ns = config->unreachable_seconds * SL_NS_PER_S,
                             .unresolved_ns = config->unresolved_seconds * SL_NS_PER_S};
}

static int take_channel(struct sl_fetch *fetch, struct sl_err *err)
{
    if (!fetch->channel)
        fetch->channel = sl_store_take_channel(fetch->store, err);
    return fetch->channel ? 0 : -1;
}

/* What waiting does not help may be recovered, and so may a place that moved away. */
static bool try_repair(struct sl_fetch *fetch, struct sl_err *err)
{
    const struct sl_store_kind *kind = fetch->store->kind;
    bool unreached = sl_retry_unreached(err);
    if (!sl_retry_may_recover(&fetch->retry, err) || !kind->recover ||
        (err->retryable && !unreached))
        return false;
    struct sl_err recovering = SL_ERR_INIT;
    bool recovered = kind->recover(fetch->source, err, &recovering);
    if (recovered) {
        sl_retry_note_recovered(&fetch->retry, err);
    } else if (recovering.kind != SL_OK) {
        *err = recovering;
        err->retryable = false;
    }
    return recovered;
}

/* A try ended in *err: back off and go on (0), or give up the range (-1). */
static int fail_try(struct sl_fetch *fetch, struct sl_err *err)
{
    struct sl_source *source = fetch->source;
    uint64_t wait_ms = 0;

    sl_metric_add(SL_M_SOURCE_ERRORS, 1);
    if (strcmp(err->code, "stall") == 0)
        sl_metric_add(SL_M_SOURCE_STALLS, 1);
    if (leave_cache(fetch, err)) {
        *err = (struct sl_err)SL_ERR_INIT;
        return 0;
    }
    if (err->http_status == 429 || err->http_status == 503)
        fetch->throttled++;

    bool again = try_repair(fetch, err) ||
                 sl_retry_again(&fetch->retry, err, fetch->at - fetch->try_begin, &wait_ms);
    if (!again) {
        set_phase(fetch, IDLE);
        drop_block(fetch);
        if (sl_cancel_check(fetch->store->config.cancel, err) < 0)
            return -1; /* and so was what would have recovered it */
        if (err->retryable && sl_retry_tries(&fetch->retry) > 1)
            sl_wrap(err, "gave up after %u tries", sl_retry_tries(&fetch->retry));
        return -1;
    }
    sl_metric_add(SL_M_SOURCE_RETRIES, 1);
    sl_progress_note_retry(fetch->store->config.progress, sl_retry_tries(&fetch->retry) + 1,
                           sl_retry_most(&fetch->retry), err, sl_retry_logged(err));
    sl_log(SL_LOG_DEBUG, "trying '%s' again from byte %" PRIu64 " in %" PRIu64 " ms: %s",
           source->uri, fetch->at, wait_ms, err->message);
    memset(err, 0, sizeof(*err));
    set_phase(fetch, IN_BACKOFF);
    fetch->wake_ns = sl_now_ns() + wait_ms * SL_NS_PER_MS;
    return 0;
}

/* The place in hand failed so: is there another one, which is in hand now? */
static bool move_on(struct sl_fetch *fetch, struct sl_err *err)
{
    struct sl_places *places = fetch->store->places;
    if (!places || is_led(fetch) ||
        sl_cancel_check(sl_thread_cancel(fetch->store->config.cancel), err) < 0 ||
        !sl_places_move(places, fetch->source, &fetch->way, err))
        return false;
    sl_log(SL_LOG_DEBUG, "asking '%.100s' for the rest of '%.200s': %s",
           sl_places_name(places, fetch->way.at), fetch->source->uri, err->message);
    sl_metric_add(SL_M_SOURCE_ERRORS, 1);
    *err = (struct sl_err)SL_ERR_INIT;
    return true;
}

/* The place in hand, and what comes behind it. */
static int ask(struct sl_fetch *fetch, struct sl_err *err)
{
    struct sl_source *source = fetch->source;
    choose_cache(fetch);
    if (fetch->ask.asked == SL_ASKED_WAITS) {
        turn_away(fetch, fetch->ask.again_ns);
        return 0;
    }
    struct sl_try try = {.end = fetch->part_end,
                         .via = *fetch->via ? fetch->via : NULL,
                         .first = !source->opened,
                         .again = fetch->again,
                         .vouch = SL_MAX(source->vouch, fetch->vouch),
                         .hedge = fetch->hedged ? sl_retry_hedge(&fetch->retry) : 0};
    do {
        sl_counter_add(&source->requests, 1);
        sl_metric_add(SL_M_SOURCE_REQUESTS, 1);
        fetch->gave = false;
        try.begin = fetch->at;
        try.place = fetch->way.at;
        if (fetch->store->transport->channel_start(fetch->channel, source, &try, err) == 0) {
            set_phase(fetch, ACTIVE);
            return 0;
        }
        count_supplied(fetch, failure_of(err), false);
    } while (move_on(fetch, err));
    return fail_try(fetch, err);
}

static int start_try(struct sl_fetch *fetch, struct sl_err *err)
{
    struct sl_source *source = fetch->source;
    bool vouched = SL_MAX(source->vouch, fetch->vouch) == SL_VOUCH_WHOLE;
    fetch->try_begin = fetch->counted = fetch->at;
    fetch->try_started_ns = sl_now_ns();
    if (fetch->store->places)
        sl_places_begin(fetch->store->places, source, vouched, &fetch->way);
    return ask(fetch, err);
}

int sl_fetch_start(struct sl_fetch *fetch, struct sl_source *source, uint64_t begin, uint64_t end,
                   struct sl_err *err)
{
    if (fetch->phase == ACTIVE || fetch->phase == FROM_MEMORY || fetch->phase == IN_BACKOFF ||
        source->store != fetch->store || begin >= end || (source->opened && end > source->bytes))
        return sl_fail(err, SL_E_INTERNAL, "bad fetch of bytes %" PRIu64 " to %" PRIu64 " of '%s'",
                       begin, end, source->uri);
    uint64_t random = fetch->retry.random;
    fetch->retry = sl_store_retry(&fetch->store->config);
    fetch->retry.random = random;
    fetch->again = fetch->again && !fetch->source;
    drop_block(fetch);
    fetch->mended = false;
    fetch->source = source;
    fetch->at = begin;
    fetch->end = end;
    struct sl_err problem = SL_ERR_INIT;
    if (end <= source->head_bytes && !fetch->apart) {
        set_phase(fetch, FROM_MEMORY);
        return 0;
    }
    if (take_channel(fetch, err) < 0)
        return -1;
    if (start_try(fetch, &problem) < 0) {
        if (err)
            *err = problem;
        return -1;
    }
    return 0;
}

/* The nearest that it was. */
static void note_first_byte(struct sl_store *store, uint64_t ns)
{
    SL_LOCKED(&store->locked.mutex);
    if (!store->locked.first_byte_ns || ns < store->locked.first_byte_ns)
        store->locked.first_byte_ns = SL_MAX(ns, UINT64_C(1));
}

/* The first bytes of a try. How far the server is tells the answer alone: what comes before it, a
 * handshake above all, takes a time of its own, and ranges on open connections do without. One that
 * was sent twice tells nothing. */
static void note_first(struct sl_fetch *fetch)
{
    const struct sl_transport *transport = fetch->store->transport;
    uint64_t ns = sl_now_ns() - fetch->try_started_ns;
    struct sl_answered answered = {.ns = 0};
    if (transport->channel_answered)
        answered = transport->channel_answered(fetch->channel);
    sl_metric_observe(SL_M_FIRST_BYTE_SECONDS, (double)ns / 1e9);
    if (answered.twice)
        sl_counter_add(&fetch->source->requests, 1);
    else
        note_first_byte(fetch->store, answered.ns ? answered.ns : ns);
}

static void note_placed(struct sl_fetch *fetch, size_t bytes)
{
    if (!fetch->gave)
        sl_places_gave(fetch->store->places, fetch->way.at);
    fetch->gave = true;
    sl_metric_add(SL_M_SOURCE_MIRROR_BYTES, (int64_t)bytes);
    sl_progress_add_mirrored(fetch->store->config.progress, bytes);
}

static void note_cached(struct sl_fetch *fetch, size_t bytes)
{
    sl_through_came(fetch->store->through, &fetch->ask, map_of(fetch->source), fetch->block, bytes);
    sl_metric_add(SL_M_SOURCE_CACHE_BYTES, (int64_t)bytes);
    sl_progress_add_cached(fetch->store->config.progress, bytes);
}

static void count_bytes(struct sl_fetch *fetch, size_t bytes)
{
    if (fetch->at == fetch->try_begin)
        note_first(fetch);
    fetch->at += bytes;
    if (!is_at_origin(fetch))
        note_placed(fetch, bytes);
    sl_counter_add(&fetch->source->received, bytes);
    if (is_led(fetch))
        note_cached(fetch, bytes);
    sl_metric_add(SL_M_SOURCE_BYTES, (int64_t)bytes);
    sl_progress_add_fetched(fetch->store->config.progress, bytes);
}

/* Every byte of the range came, and only the answer's end did not: the last chunk, the close. There
 * is nothing left to ask for, and so it is where a cache or a mirror says more than it was asked.
 */
static bool complete_anyway(const struct sl_fetch *fetch, const struct sl_err *why)
{
    bool may_pass = why->retryable || is_led(fetch) || !is_at_origin(fetch);
    return may_pass && why->kind != SL_E_CANCELED && fetch->source->opened &&
           fetch->at == fetch->part_end;
}

/* A cache that says more than that is not asked again soon. */
static void note_odd_end(struct sl_fetch *fetch, const struct sl_err *why)
{
    if (why->retryable || !is_led(fetch))
        return;
    count_supplied(fetch, failure_of(why), false);
    sl_through_failed(fetch->store->through, &fetch->ask, why);
}

/* The first answer told how long the object is: the range that was asked for may be longer. */
static void learn_length(struct sl_fetch *fetch)
{
    if (fetch->source->opened)
        return;
    fetch->source->opened = true;
    fetch->part_end = fetch->end = SL_MIN(fetch->end, fetch->source->bytes);
}

static enum sl_io_state read_memory(struct sl_fetch *fetch, void *data, size_t bytes, size_t *got)
{
    *got = SL_MIN(bytes, fetch->end - fetch->at);
    memcpy(data, fetch->source->head + fetch->at, *got);
    fetch->at += *got;
    if (*got)
        return SL_IO_DATA;
    set_phase(fetch, DONE);
    return SL_IO_END;
}

/* A try has ended with all that it asked for: END, or WAIT if a block is next. */
static enum sl_io_state end_try(struct sl_fetch *fetch, struct sl_err *err)
{
    sl_metric_observe(SL_M_REQUEST_SECONDS, (double)(sl_now_ns() - fetch->try_started_ns) / 1e9);
    set_phase(fetch, DONE);
    if (!is_at_origin(fetch))
        sl_places_did_well(fetch->store->places, fetch->way.at);
    if (fetch->at != fetch->part_end) {
        sl_fail(err, SL_E_INTERNAL, "range of '%s' ended at byte %" PRIu64 " instead of %" PRIu64,
                fetch->source->uri, fetch->at, fetch->part_end);
        return SL_IO_FAILED;
    }
    count_supplied(fetch, SL_SUPPLIER_FAILURE_COUNT, true);
    if (fetch->ask.in_hand)
        sl_through_done(fetch->store->through, &fetch->ask,
                        fetch->part_end - fetch->try_begin ==
                            sl_through_block_bytes(fetch->store->through));
    if (fetch->at == fetch->end)
        return SL_IO_END;
    fetch->mended = false;
    return start_try(fetch, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

static enum sl_io_state read_try(struct sl_fetch *fetch, void *data, size_t bytes, size_t *got,
                                 struct sl_err *err)
{
    enum sl_io_state state =
        fetch->store->transport->channel_read(fetch->channel, data, bytes, got, err);
    if (state != SL_IO_WAIT && state != SL_IO_FAILED)
        note_way(fetch);
    if (state == SL_IO_WAIT && awaits_end_alone(fetch)) {
        fetch->store->transport->channel_abort(fetch->channel);
        return end_try(fetch, err);
    }
    if (state == SL_IO_DATA || state == SL_IO_END)
        learn_length(fetch);
    if (state == SL_IO_DATA)
        count_bytes(fetch, *got);
    if ((state == SL_IO_DATA || state == SL_IO_WAIT) && leave_slow(fetch))
        return state;
    bool odd = state == SL_IO_FAILED && complete_anyway(fetch, err);
    if (odd)
        note_odd_end(fetch, err);
    if (state == SL_IO_END || odd)
        return end_try(fetch, err);
    if (state != SL_IO_FAILED)
        return state;
    set_phase(fetch, IDLE);
    count_supplied(fetch, failure_of(err), false);
    int done = move_on(fetch, err) ? ask(fetch, err) : fail_try(fetch, err);
    return done < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

enum sl_io_state sl_fetch_read(struct sl_fetch *fetch, void *data, size_t bytes, size_t *got,
                               struct sl_err *err)
{
    *got = 0;
    struct sl_err problem = SL_ERR_INIT;
    enum sl_io_state state = SL_IO_WAIT;
    if (fetch->phase == IN_BACKOFF && sl_now_ns() >= fetch->wake_ns &&
        start_try(fetch, &problem) < 0)
        state = SL_IO_FAILED;
    else if (fetch->phase == IN_BACKOFF)
        return SL_IO_WAIT;
    else if (fetch->phase == FROM_MEMORY)
        return read_memory(fetch, data, bytes, got);
    else if (fetch->phase != ACTIVE)
        return SL_IO_END;
    else
        state = read_try(fetch, data, bytes, got, &problem);
    if (state == SL_IO_FAILED && err)
        *err = problem;
    return state;
}

int sl_fetch_poll(struct sl_fetch *fetch, struct pollfd fds[SL_IO_POLL_MAX], uint64_t *deadline_ns)
{
    if (fetch->phase == ACTIVE) {
        int count = fetch->store->transport->channel_poll(fetch->channel, fds, deadline_ns);
        if (is_led(fetch))
            *deadline_ns =
                SL_MIN(*deadline_ns, sl_through_judge_ns(fetch->store->through, &fetch->ask));
        return count;
    }
    *deadline_ns = fetch->phase == IN_BACKOFF ? fetch->wake_ns : 0;
    return 0;
}

int sl_fetch_wait(struct sl_fetch *fetch, bool waits, struct sl_err *err)
{
    struct pollfd fds[SL_IO_POLL_MAX + 1];
    struct sl_cancel *cancel = fetch->store->config.cancel;
    uint64_t deadline_ns = 0, now = sl_now_ns();
    int count = waits ? sl_fetch_poll(fetch, fds, &deadline_ns) : 0;
    fds[count] = (struct pollfd){sl_cancel_fd(cancel), POLLIN, 0};
    int timeout_ms = -1;
    if (deadline_ns <= now)
        timeout_ms = 0;
    else if (deadline_ns != UINT64_MAX)
        timeout_ms = (int)SL_MIN((deadline_ns - now) / SL_NS_PER_MS + 1, 60000);
    if (timeout_ms != 0)
        poll(fds, (nfds_t)count + 1, timeout_ms);
    return sl_cancel_check(cancel, err);
}

void sl_fetch_abort(struct sl_fetch *fetch)
{
    if (fetch->phase == ACTIVE) {
        count_supplied(fetch, SL_SUPPLIER_FAILURE_COUNT, false);
        fetch->store->transport->channel_abort(fetch->channel);
    }
    set_phase(fetch, IDLE);
    drop_block(fetch);
}

unsigned sl_fetch_take_throttled(struct sl_fetch *fetch)
{
    unsigned count = fetch->throttled;
    fetch->throttled = 0;
    return count;
}

/*
 * A fetch brings one range of one source after another, without blocking, on a connection of its
 * own.
 *
 * It owns retry: connection errors, stalls, short bodies and the statuses of retry.h are tried
 * again with back-off and full jitter, Retry-After obeyed up to a limit, from the first
 * missing byte, so a caller sees each byte of the range once and in order. What cannot pass (404,
 * 403, 412, a broken range contract) comes out as -1.
 *
 * A fetch belongs to one thread. FAILED is what the last try failed with: SL_E_NET, SL_E_AUTH,
 * SL_E_NOT_FOUND, SL_E_INTEGRITY (code "changed"). Connections stay open between ranges, also of
 * different sources of one store.
 */
#ifndef SL_FETCH_H
#define SL_FETCH_H

#include <poll.h>
#include <stdint.h>

#include "io.h"
#include "source.h"

struct sl_fetch;
/** No connection yet; the store outlives it. SL_E_NO_SPACE. */
struct sl_fetch *sl_fetch_new(struct sl_store *store, struct sl_err *err);
/** As sl_fetch_new(), for bytes that came wrong: on a connection that nobody has used before, and
 * its first range in another way where the store knows one (by links where Xet brought them). */
struct sl_fetch *sl_fetch_new_apart(struct sl_store *store, struct sl_err *err);
/**
 * Bytes [begin, end) came, and do not match their hash: the caches that gave any of their blocks
 * are asked for nothing more until that is settled. Any thread.
 */
void sl_source_doubt(struct sl_source *source, uint64_t begin, uint64_t end);
/** They do match, and all lie in a block: so is told of all that comes with SL_VOUCH_BLOCKS. Any
 * thread. */
void sl_source_agreed(struct sl_source *source, uint64_t begin, uint64_t end);
/**
 * Settle what was doubted.
 *
 * @begin, end  as of sl_source_doubt().
 * @wrong       what came apart does match, and the caches are left for good, with a warning; else
 *              it is not their fault.
 *
 * Any thread.
 */
void sl_source_settle(struct sl_source *source, uint64_t begin, uint64_t end, bool wrong);
/**
 * Its requests have no siblings that would tell how long an answer takes, and somebody waits for
 * them: one that is not answered in time is sent once more on another connection, and what answers
 * first is taken (exchange.c). Before the first range.
 */
void sl_fetch_hedge(struct sl_fetch *fetch);
/**
 * What whoever fetches does with wrong bytes: nothing; or finds them by hashes of all ranges of the
 * object, and asks for those again; or hashes the whole object by a digest and drops all of it
 * where that differs. In the last case bytes may come from others than the store itself, such as
 * mirrors. For ranges that start from now on; NONE at first.
 */
enum sl_vouch {
    SL_VOUCH_NONE,
    SL_VOUCH_SAMPLES, /* nothing but samples, beside the origin: what nobody checks comes by caches
                         all the same, since the user says so */
    SL_VOUCH_SUM,     /* a checksum of the whole object, which finds accidents and no attacker */
    SL_VOUCH_RANGES,
    SL_VOUCH_BLOCKS, /* none of the ranges leaves a block of the caches, and what agrees is told */
    SL_VOUCH_WHOLE
};
void sl_fetch_vouch(struct sl_fetch *fetch, enum sl_vouch vouch);

enum sl_past {
#define SL_PAST(id, name, text) SL_PAST_##id,
#include "past_caches.def"
#undef SL_PAST
    SL_PAST_COUNT, /* they do come by caches */
};
/** The key, and words for people. Constants. */
const char *sl_past_name(enum sl_past past);
const char *sl_past_text(enum sl_past past);
/**
 * Where the bytes of an opened source are asked for first from `at` on, up to its return value, at
 * most to `end`.
 *
 * @vouch  as of a fetch.
 * @cache  out: the number of the cache, or SL_THROUGH_ORIGIN.
 * @past   out: why it is the origin; SL_PAST_COUNT: it is not. Any thread.
 */
uint64_t sl_fetch_route(struct sl_source *source, enum sl_vouch vouch, uint64_t at, uint64_t end,
                        int *cache, enum sl_past *past);
/** Do these bytes lie in one block of caches? */
bool sl_source_in_block(const struct sl_source *source, uint64_t begin, uint64_t end);
/** The cache that it waits for; SL_THROUGH_ORIGIN: none. */
int sl_fetch_cache(const struct sl_fetch *fetch);
/** Closes the connection, in mid-answer too. */
void sl_fetch_free(struct sl_fetch *fetch);
SL_AUTO_DEFINE(sl_fetch)

/**
 * Begin to fetch a range; the previous one must have ended. Does not block.
 *
 * @source      borrowed until the range has ended.
 * @begin, end  begin < end, and end is at most the source's length.
 * @return      0, or -1 with errors of the store.
 */
int sl_fetch_start(struct sl_fetch *fetch, struct sl_source *source, uint64_t begin, uint64_t end,
                   struct sl_err *err);

/**
 * Take what has come.
 *
 * @data    out: room for `bytes` (at least 1). Large buffers save system calls: up to `bytes` are
 *          read before it returns, as long as they are there.
 * @got     out: how many came.
 * @return  the state of the range. Never blocks (file sources read from page cache or disk).
 */
enum sl_io_state sl_fetch_read(struct sl_fetch *fetch, void *data, size_t bytes, size_t *got,
                               struct sl_err *err);

/**
 * What a fetch that answered WAIT waits for: descriptors (their count is returned, at most
 * SL_IO_POLL_MAX) and *deadline_ns (sl_now_ns() scale, UINT64_MAX for none). After poll() call
 * sl_fetch_read() again, whatever came.
 */
int sl_fetch_poll(struct sl_fetch *fetch, struct pollfd fds[SL_IO_POLL_MAX], uint64_t *deadline_ns);

/** Where its thread may block: until it may go on, or at once without `waits`. -1: the store is
 * canceled, SL_E_CANCELED. */
int sl_fetch_wait(struct sl_fetch *fetch, bool waits, struct sl_err *err);

/** Between ranges, for a while: its connection may serve another fetch, or be closed where another
 * load wants the place. The next start takes one again. */
void sl_fetch_rest(struct sl_fetch *fetch);
/** Give up the range in progress; the next start may use a new connection. */
void sl_fetch_abort(struct sl_fetch *fetch);

/**
 * Told by servers that are too busy (429, 503) since the last call; the reader then uses fewer
 * connections.
 */
unsigned sl_fetch_take_throttled(struct sl_fetch *fetch);

#endif

/*
 * Caches between this machine and an origin: ordinary HTTP caches that know ranges, such as nginx
 * with its slice module. They carry bytes and are believed nothing: which version an object has and
 * who may read it says the origin, and each byte is checked as if it came from there.
 *
 * An object is cut into blocks of one length. Of each block the caches have an order (rendezvous
 * hashing: the highest of the hashes of block and cache comes first), the same on every machine, so
 * that one cache fetches a block once for all of them. The first that has room owns it: no cache
 * owns more than a 64th more than its share. The owner is asked at first, the highest of the
 * others where that failed, was silent or late, then the origin, but for no more than a part of the
 * blocks at a time. A cache that failed has a rest, longer each time, and one block after it; one
 * that gave a wrong byte is asked for nothing from then on, and left for good when it is known that
 * the origin has the right one.
 *
 * Names that stand for several addresses, as that of a headless Service, are as many caches; they
 * are looked up anew while a store is open. Any thread; none blocks but for a lock.
 */
#ifndef SL_THROUGH_H
#define SL_THROUGH_H

#include <stdbool.h>
#include <stdint.h>

#include "caches.h"
#include "err.h"
#include "mem.h"

enum {
    SL_THROUGH_VIA_BYTES = 288,
    SL_THROUGH_ORIGIN = SL_CACHES_NONE, /* in the place of a cache */
};

/** What is read that nothing checks: no hash of it, or of its object, is known. */
enum sl_unverified { SL_UNVERIFIED_REFUSE, SL_UNVERIFIED_WARN, SL_UNVERIFIED_DIRECT };

/** Borrowed as long as the store is open. */
struct sl_through_options {
    const char *const *urls; /* http or https, without a path */
    unsigned count;          /* 0: none */
    uint64_t block_bytes;    /* 0: 8 MiB */
    enum sl_unverified unverified;
    bool waits; /* for caches that are slow; those that are silent are left all the same */
    double
        origin_share; /* of blocks in hand may be asked of the origin because caches failed; 0: 1 */
};

struct sl_progress;
struct sl_through;
/** SL_E_USAGE: a URL that is none; SL_E_NO_SPACE. */
struct sl_through *sl_through_new(const struct sl_through_options *options, struct sl_err *err);
/** NULL is fine. */
void sl_through_free(struct sl_through *through);
SL_AUTO_DEFINE(sl_through)

/** Whoever is left is told to it; borrowed as long as there is anybody to be left. Once, before
 * other threads have the through. */
void sl_through_report(struct sl_through *through, struct sl_progress *progress);

uint64_t sl_through_block_bytes(const struct sl_through *through);

/** sl_caches_map_new() for an object of so many bytes. Whoever reads by way of it may free through
 * first. */
struct sl_caches_map *sl_through_map_new(const struct sl_through *through, uint64_t key,
                                         uint64_t object_bytes);
/* As those of caches.h, by this store's caches and now; failures and slowness are logged. Whoever
 * chose drops or is done before the store is closed. */
/**
 * As sl_caches_choose(), and where that is.
 *
 * @map     of the object; NULL: there was no memory.
 * @block   its number in the object.
 * @proves  it will be told which of its bytes are right.
 * @ask     says whom.
 * @via     out: of sl_request; "": the origin, or nobody yet.
 */
void sl_through_choose(struct sl_through *through, struct sl_caches_map *map, uint64_t block,
                       bool proves, struct sl_caches_ask *ask, char via[SL_THROUGH_VIA_BYTES]);
void sl_through_done(struct sl_through *through, struct sl_caches_ask *ask, bool whole);
void sl_through_drop(struct sl_through *through, struct sl_caches_ask *ask);
void sl_through_failed(struct sl_through *through, struct sl_caches_ask *ask,
                       const struct sl_err *why);
enum sl_caches_verdict sl_through_judge(struct sl_through *through, struct sl_caches_ask *ask);
uint64_t sl_through_judge_ns(struct sl_through *through, const struct sl_caches_ask *ask);
/** Whoever is asked first, and how many there are or were. */
int sl_through_owner(struct sl_through *through, struct sl_caches_map *map, uint64_t block);
size_t sl_through_count(struct sl_through *through);
/**
 * Tell that bytes of a block came from the cache that is asked.
 *
 * @ask    which asks a cache.
 * @map    of the object; NULL: there was no memory.
 * @block  its number in the object.
 * @bytes  that came since the last time.
 */
void sl_through_came(struct sl_through *through, const struct sl_caches_ask *ask,
                     struct sl_caches_map *map, uint64_t block, uint64_t bytes);
/**
 * Tell that bytes are right: so is who gave their block.
 *
 * @map         of the object; NULL: there was no memory.
 * @begin, end  the bytes [begin, end) of the object, all of one block.
 */
void sl_through_agreed(struct sl_through *through, const struct sl_caches_map *map, uint64_t begin,
                       uint64_t end);
/** This goes to the origin, for this reason. A warning, once. */
void sl_through_past(struct sl_through *through, const char *object, const char *why);
/** sl_caches_lacks(). */
bool sl_through_lacks(struct sl_through *through, struct sl_caches_ask *ask,
                      struct sl_caches_map *map);
/**
 * Doubt whoever gave any block of bytes that do not match their hash.
 *
 * @map         of the object; may be NULL.
 * @begin, end  bytes [begin, end) of the object.
 */
void sl_through_doubt(struct sl_through *through, struct sl_caches_map *map, uint64_t begin,
                      uint64_t end);
/**
 * Leave whoever was doubted, or believe it again.
 *
 * @map         of the object; may be NULL.
 * @begin, end  bytes [begin, end) of the object, as of sl_through_doubt().
 * @wrong       the origin has others: those that gave these are left, with a warning.
 * @object      its URI, for the warning.
 */
void sl_through_settle(struct sl_through *through, struct sl_caches_map *map, uint64_t begin,
                       uint64_t end, bool wrong, const char *object);
/** Bytes of caches are wrong, and nobody knows whose: all that gave any are left. False: none did
 * since the last time. */
bool sl_through_blame(struct sl_through *through, const struct sl_err *why);

/** What is known of a cache by now. */
struct sl_through_state {
    const char *via;
    uint64_t bytes, failures, wrong;
    bool left; /* it is asked no more */
    bool gone; /* its name has it no more, or addresses in its place */
};
/** Look all names up now, for whoever cannot wait until it is done. Blocks. */
void sl_through_look_up(struct sl_through *through);
/** Up to `limit` of them; returns how many there are. The text is borrowed. */
unsigned sl_through_states(struct sl_through *through, struct sl_through_state *states,
                           unsigned limit);

#endif

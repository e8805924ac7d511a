/*
 * Which cache is asked for a block, and what becomes of one that does not do. Pure: no sockets, no
 * lock, no log, and the clock is the caller's, so that through.c and a simulation of many machines
 * decide by the very same functions. How the caches are chosen is told in through.h.
 *
 * Times are ns on one scale, which begins anywhere. One thread at a time, or a lock around them.
 */
#ifndef SL_CACHES_H
#define SL_CACHES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum {
    SL_CACHES_TURNS = 2,  /* are asked for a block before the origin is */
    SL_CACHES_NONE = -1,  /* in the place of a cache's number */
    SL_CACHES_MAX = 4096, /* as many addresses as a name has in an answer of 64 KiB */
    SL_CACHES_SILENCE_MS = 2000,
};

/*
 *          gone() ┌──▶ GONE ──┐ there()
 *     IN_USE ─────┘◀──────────┘
 *        └─────left()───▶ LEFT ◀── left() from GONE
 */
enum sl_cache_state {
    SL_CACHE_IN_USE,
    SL_CACHE_GONE, /* it is not there any more, and owns nothing */
    SL_CACHE_LEFT, /* it gave what is wrong: for good */
};

struct sl_cache {
    uint64_t hash; /* of what it is known by on all machines */
    enum sl_cache_state state;
    uint64_t rests_until_ns;
    unsigned failed;  /* times in a row */
    uint64_t came_ns; /* when bytes came last from there; 0: none did */
};

/** All zero at first, but for what init() sets. release() it. */
struct sl_caches {
    struct sl_cache *of;
    size_t count, capacity;
    uint64_t epoch;    /* counts changes of who is there, from 1 on */
    uint64_t usual_ns; /* of a block; 0: none has come */
    unsigned late_credit;
};
void sl_caches_init(struct sl_caches *caches);
void sl_caches_release(struct sl_caches *caches);
/** One more, in use; its number is the count before. SL_E_NO_SPACE, SL_E_USAGE: too many. */
int sl_caches_add(struct sl_caches *caches, uint64_t hash, struct sl_err *err);
/** Is it there? Whoever gave what is wrong stays left. */
void sl_caches_set_there(struct sl_caches *caches, int cache, bool there);

/** What is known of one object: which cache owns which block. NULL: no memory, and then the blocks
 * are less even. free() it. */
struct sl_caches_map {
    uint64_t key;
    size_t count;
    uint64_t epoch; /* of the owners; 0: there are none yet */
    struct {
        uint16_t owner, giver; /* a cache's number and 1, or 0 */
    } blocks[];
};
struct sl_caches_map *sl_caches_map_new(uint64_t key, uint64_t blocks);
/** Caches that were asked for a block, and did not do. */
struct sl_caches_tried {
    int of[SL_CACHES_TURNS];
    unsigned count; /* at most as many: then it is the origin's turn */
};
/** The cache to ask for a block now; SL_CACHES_NONE: the origin. */
int sl_caches_choose(struct sl_caches *caches, struct sl_caches_map *map, uint64_t block,
                     const struct sl_caches_tried *tried, uint64_t now_ns);

/** Bytes came from there. */
void sl_caches_came(struct sl_caches *caches, int cache, uint64_t now_ns);
/** A block came whole in so much time. */
void sl_caches_took(struct sl_caches *caches, uint64_t ns);
/** It did not answer, or not as it should. */
void sl_caches_failed(struct sl_caches *caches, int cache, uint64_t now_ns);
/** It gave what is wrong. True: it was in use until now. */
bool sl_caches_leave(struct sl_caches *caches, int cache);
/** When it counts as gone: nothing has come by then of a block that was asked for at that time. */
uint64_t sl_caches_silent_ns(const struct sl_caches *caches, int cache, uint64_t asked_ns);
/** When that block is late: several times what they take; UINT64_MAX: nobody knows yet. */
uint64_t sl_caches_late_ns(const struct sl_caches *caches, uint64_t asked_ns);
/** It is. May it be asked of another? The cache has a rest, too. False: too many were; it is the
 * link that is slow. */
bool sl_caches_late(struct sl_caches *caches, int cache, uint64_t now_ns);

/** The rank of a cache for a block; the highest comes first. */
uint64_t sl_caches_rank(uint64_t cache, uint64_t key, uint64_t block);
/** The hash of a text, for keys and caches. */
uint64_t sl_caches_hash(const char *text);

#endif

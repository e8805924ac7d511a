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
 *     IN_USE ──failed, silent, late──▶ RESTS ──a block came whole, in time──▶ IN_USE
 *        └───────┬─────────────────────┘ ▲ │ each time that its rest is over
 *        │       ▼                       └─┘ one block is asked of it
 *        │     GONE ──is there again──▶ IN_USE
 *        └──doubt(), also where it rests──▶ DOUBTED ──believe()──▶ IN_USE
 *                                               from all four, for good: LEFT
 *
 * What does not match its hash is wrong, by the cache or at the origin. A cache that is DOUBTED
 * goes on with what was asked of it before. So that this is little, one that has proved nothing
 * is on trial where hashes of ranges can tell: it is asked for one block, and for more when that
 * was right, or when half a second has passed. A liar costs a block; one that begins to lie later
 * costs the block that each connection reads of it when the first hash is known.
 */
enum sl_cache_state {
    SL_CACHE_IN_USE,
    SL_CACHE_RESTS,
    SL_CACHE_DOUBTED, /* it is asked for nothing until that is settled */
    SL_CACHE_GONE,    /* it is not there any more, and owns nothing */
    SL_CACHE_LEFT,    /* it gave what is wrong */
};

struct sl_cache {
    uint64_t hash; /* of what it is known by on all machines */
    enum sl_cache_state state;
    uint64_t rests_since_ns, rests_until_ns;
    unsigned failed;  /* times in a row */
    uint64_t came_ns; /* when bytes came last from there; 0: none did */
    bool proved;      /* a block of it was right */
    struct {
        uint64_t asked_ns;    /* when; 0: it is on no trial */
        uint64_t came, right; /* bytes */
        bool ended;           /* no more will come */
    } trial;
};

/** release() it. */
struct sl_caches {
    struct sl_cache *of;
    size_t count, capacity;
    uint64_t epoch;    /* counts changes of who is there, from 1 on */
    uint64_t usual_ns; /* of a block; 0: none has come */
    double
        origin_share; /* of the blocks in hand may be asked of the origin because caches failed */
    unsigned in_hand, at_origin;
    uint64_t origin_ns; /* when a block was asked of the origin last, or had come from there */
    unsigned late_credit;
    bool waits; /* for blocks that are late: whom a load asks depends on no time but silence */
};
void sl_caches_init(struct sl_caches *caches, double origin_share);
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
    uint64_t epoch;   /* of the owners; 0: there are none yet */
    uint64_t lacking; /* caches without the object, a bit each of the first 64 */
    struct {
        uint16_t owner, givers[SL_CACHES_TURNS]; /* a cache's number and 1, or 0 */
    } blocks[];
};
struct sl_caches_map *sl_caches_map_new(uint64_t key, uint64_t blocks);
/** Whoever is asked first for a block, by all machines; SL_CACHES_NONE: nobody is there. */
int sl_caches_owner(const struct sl_caches *caches, struct sl_caches_map *map, uint64_t block);
/**
 * The order in which one machine reads blocks: in rounds, each of which asks every cache for as
 * many; so all machines are at about the same blocks, which caches fetch in order, and no cache is
 * busier than others. Within a round, at random.
 *
 * @owners  of `count` blocks, less than `caches`, or SL_CACHES_NONE.
 * @order   out: numbers of blocks. SL_E_NO_SPACE.
 */
int sl_caches_order(const int *owners, size_t count, size_t caches, uint64_t seed, uint32_t *order,
                    struct sl_err *err);

/** A block, or what is missing of it, in the hand of a load. All zero at first. */
struct sl_caches_ask {
    /*
     *     NOBODY ──choose()──▶ CACHE ──failed(), judge()──▶ NOBODY    with the cache as tried
     *        │ └─────────────▶ ORIGIN ──drop()──▶ NOBODY
     *        └───────────────▶ WAITS: enough are at the origin, or the cache is on trial. choose()
     *                          again, soon. Where nothing moves at the origin for 10 s, one more
     *                          is asked: those that hold its places may be of a reader who does
     *                          something else meanwhile
     */
    enum sl_caches_asked {
        SL_ASKED_NOBODY,
        SL_ASKED_CACHE,
        SL_ASKED_ORIGIN,
        SL_ASKED_WAITS,
    } asked;
    bool in_hand;               /* it counts */
    bool proves;                /* its bytes are told right or wrong: only then it is a trial */
    int cache;                  /* where CACHE is asked */
    uint64_t asked_ns;          /* when */
    uint64_t again_ns;          /* WAITS: when to choose() again */
    uint64_t spared_ns;         /* when it was late, and stayed; 0: it was not */
    int tried[SL_CACHES_TURNS]; /* did not do */
    unsigned tries;
};
/**
 * Choose whom to ask now.
 *
 * @map     of the object; NULL: there was no memory.
 * @block   its number in the object.
 * @proves  it will be told which of its bytes are right.
 * @ask     says whom; it counts from then on until it is done() or dropped.
 * @now_ns  as all times here.
 */
void sl_caches_choose(struct sl_caches *caches, struct sl_caches_map *map, uint64_t block,
                      bool proves, struct sl_caches_ask *ask, uint64_t now_ns);
/**
 * Tell that bytes came from the cache that is asked.
 *
 * @ask    which asks a cache.
 * @bytes  that came since the last time.
 */
void sl_caches_came(struct sl_caches *caches, const struct sl_caches_ask *ask, uint64_t bytes,
                    uint64_t now_ns);
/** So many bytes of a cache are right. */
void sl_caches_agreed(struct sl_caches *caches, int cache, uint64_t bytes);
/**
 * Tell that a block came to its end.
 *
 * @ask     is dropped by this.
 * @whole   all of the block came in this try.
 * @now_ns  as all times here.
 */
void sl_caches_done(struct sl_caches *caches, struct sl_caches_ask *ask, bool whole,
                    uint64_t now_ns);
/** Nobody wants it any more, or it is asked for in another way. */
void sl_caches_drop(struct sl_caches *caches, struct sl_caches_ask *ask);
/** The cache did not answer, or not as it should: choose() another. */
void sl_caches_failed(struct sl_caches *caches, struct sl_caches_ask *ask, uint64_t now_ns);
/** The cache that is asked has not this object, and would say so for each block: it is not asked
 * for it again, and does not rest. choose() another. False: it is one of too many to be remembered.
 */
bool sl_caches_lacks(struct sl_caches *caches, struct sl_caches_ask *ask,
                     struct sl_caches_map *map);
/** Does the cache that is asked take too long? Then choose() another. */
enum sl_caches_verdict { SL_CACHES_FINE, SL_CACHES_SILENT, SL_CACHES_LATE };
enum sl_caches_verdict sl_caches_judge(struct sl_caches *caches, struct sl_caches_ask *ask,
                                       uint64_t now_ns);
/** When to judge again, unless bytes come; UINT64_MAX: never. */
uint64_t sl_caches_judge_ns(const struct sl_caches *caches, const struct sl_caches_ask *ask);
/** What it gave does not match its hash. */
void sl_caches_doubt(struct sl_caches *caches, int cache);
/** So does what the origin gives. */
void sl_caches_believe(struct sl_caches *caches, int cache);
/** The origin gives what matches. True: it was not left before. */
bool sl_caches_leave(struct sl_caches *caches, int cache);

/** The rank of a cache for a block; the highest comes first. */
uint64_t sl_caches_rank(uint64_t cache, uint64_t key, uint64_t block);
/** The hash of a text, for keys and caches. */
uint64_t sl_caches_hash(const char *text);

#endif

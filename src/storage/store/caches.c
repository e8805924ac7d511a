/*
 * Rendezvous hashing with a bound, rests that double, and lateness by what blocks take.
 *
 * Whoever is there owns blocks, also while it rests or was left: other machines do not know of
 * that, and all must agree on who fetches a block.
 */
#include "caches.h"

#include <assert.h>
#include <string.h>

#include "mem.h"
#include "thread.h"

#define PATIENCE_NS (5 * SL_NS_PER_S / 4) /* at least; caches look after a lock every 500 ms */

enum {
    REST_MS = 1000,          /* of one that failed; twice as long each time */
    SLOW_REST_MS = 8 * 1000, /* of one that is slow, which does not pass as soon */
    REST_MS_MAX = 30 * 1000,
    SLACK_PART = 64, /* so much more than its share may one own, rounded up */
    LATE_TIMES = 4,
    LATE_PART = 8, /* of the blocks may be late, and a few at first */
    LATE_FIRST = 8,
    SLOW_PART = 4,   /* of the caches may rest, and one becomes another that is slow */
    ROUND_PART = 8,  /* of the blocks are a round */
    ROUND_MAX = 128, /* blocks, unless there are more caches */
    LACKING_MAX = 64,
    ORIGIN_WAIT_MS = 50,
    TRIAL_MS = 500,       /* about when a cache looks after a lock again */
    TRIAL_WAIT_MS = 1,    /* at least, at most as long as for the origin */
    TRIAL_WAIT_PART = 8,  /* of how long it goes on already */
    STILL_MS = 10 * 1000, /* nothing moves at the origin: whoever waits goes there, too */
};

/* The finalizer of MurmurHash3 (Austin Appleby, public domain): all bits of the input reach all of
 * the output. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

uint64_t sl_caches_rank(uint64_t cache, uint64_t key, uint64_t block)
{
    return mix(cache ^ mix(key ^ mix(block + 1)));
}

/* FNV-1a. */
uint64_t sl_caches_hash(const char *text)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return mix(hash);
}

/* ---- who is there ---------------------------------------------------------------------------- */

static void set_state(struct sl_cache *cache, enum sl_cache_state to)
{
    assert(cache->state != SL_CACHE_LEFT);
    assert(to != SL_CACHE_RESTS || cache->state != SL_CACHE_GONE);
    cache->state = to;
}

void sl_caches_init(struct sl_caches *caches, double origin_share)
{
    *caches =
        (struct sl_caches){.origin_share = origin_share, .late_credit = LATE_FIRST * LATE_PART};
}

void sl_caches_release(struct sl_caches *caches)
{
    free(caches->of);
}

int sl_caches_add(struct sl_caches *caches, uint64_t hash, struct sl_err *err)
{
    if (caches->count == SL_CACHES_MAX)
        return sl_fail(err, SL_E_USAGE, "source.through: more than %d caches", SL_CACHES_MAX);
    if (sl_grow(&caches->of, &caches->capacity, caches->count + 1, sizeof(*caches->of), err) < 0)
        return -1;
    caches->of[caches->count++] = (struct sl_cache){.hash = hash};
    caches->epoch++;
    return 0;
}

void sl_caches_set_there(struct sl_caches *caches, int number, bool there)
{
    struct sl_cache *cache = &caches->of[number];
    if (cache->state == SL_CACHE_LEFT || there == (cache->state != SL_CACHE_GONE))
        return;
    set_state(cache, there ? SL_CACHE_IN_USE : SL_CACHE_GONE);
    cache->failed = 0;
    caches->epoch++;
}

/* ---- choosing -------------------------------------------------------------------------------- */

struct sl_caches_map *sl_caches_map_new(uint64_t key, uint64_t blocks)
{
    struct sl_caches_map *map = sl_alloc(sizeof(*map) + blocks * sizeof(*map->blocks), NULL);
    if (!map)
        return NULL;
    map->key = key;
    map->count = blocks;
    return map;
}

static void set_asked(struct sl_caches_ask *ask, enum sl_caches_asked to)
{
    assert(ask->asked == SL_ASKED_NOBODY || ask->asked == SL_ASKED_WAITS || to == SL_ASKED_NOBODY);
    ask->asked = to;
}

static bool may_ask(const struct sl_cache *cache, uint64_t now_ns)
{
    return cache->state == SL_CACHE_IN_USE ||
           (cache->state == SL_CACHE_RESTS && cache->rests_until_ns <= now_ns);
}

static bool was_tried(const struct sl_caches_ask *ask, int cache)
{
    for (unsigned i = 0; i < ask->tries; i++)
        if (ask->tried[i] == cache)
            return true;
    return false;
}

static bool lacks(const struct sl_caches_map *map, size_t cache)
{
    return map && cache < LACKING_MAX && map->lacking >> cache & 1;
}

/* The highest that may be asked. */
static int find_highest(const struct sl_caches *caches, const struct sl_caches_map *map,
                        uint64_t block, const struct sl_caches_ask *ask, uint64_t now_ns)
{
    uint64_t highest = 0;
    int found = SL_CACHES_NONE;
    for (size_t i = 0; i < caches->count; i++) {
        uint64_t rank = sl_caches_rank(caches->of[i].hash, map ? map->key : 0, block) | 1;
        if (rank <= highest || was_tried(ask, (int)i) || lacks(map, i) ||
            !may_ask(&caches->of[i], now_ns))
            continue;
        highest = rank;
        found = (int)i;
    }
    return found;
}

static void find_owners(const struct sl_caches *caches, struct sl_caches_map *map)
{
    size_t there = 0;
    sl_autofree size_t *owned = sl_alloc_array(caches->count, sizeof(*owned), NULL);
    map->epoch = caches->epoch;
    for (size_t i = 0; i < caches->count; i++)
        there += caches->of[i].state != SL_CACHE_GONE;
    size_t most = there ? (map->count + map->count / SLACK_PART + there - 1) / there : 0;
    for (size_t block = 0; owned && block < map->count; block++) {
        uint64_t highest = 0;
        size_t owner = 0;
        for (size_t i = 0; i < caches->count; i++) {
            uint64_t rank = sl_caches_rank(caches->of[i].hash, map->key, block) | 1;
            if (rank <= highest || caches->of[i].state == SL_CACHE_GONE || owned[i] >= most)
                continue;
            highest = rank;
            owner = i;
        }
        map->blocks[block].owner = (uint16_t)(highest ? owner + 1 : 0);
        owned[owner]++;
    }
}

int sl_caches_owner(const struct sl_caches *caches, struct sl_caches_map *map, uint64_t block)
{
    if (map->epoch != caches->epoch)
        find_owners(caches, map);
    return block < map->count ? map->blocks[block].owner - 1 : SL_CACHES_NONE;
}

static int find(struct sl_caches *caches, struct sl_caches_map *map, uint64_t block,
                const struct sl_caches_ask *ask, uint64_t now_ns)
{
    if (ask->tries == SL_CACHES_TURNS)
        return SL_CACHES_NONE;
    int owner = map ? sl_caches_owner(caches, map, block) : SL_CACHES_NONE;
    if (owner != SL_CACHES_NONE && !was_tried(ask, owner) && !lacks(map, (size_t)owner) &&
        may_ask(&caches->of[owner], now_ns))
        return owner;
    return find_highest(caches, map, block, ask, now_ns);
}

/* May one more be asked of the origin? Where nobody else has it there is nothing to wait for. */
static bool has_room_at_origin(const struct sl_caches *caches, const struct sl_caches_map *map,
                               uint64_t now_ns)
{
    if (!caches->at_origin || caches->at_origin < caches->origin_share * caches->in_hand ||
        now_ns >= caches->origin_ns + STILL_MS * SL_NS_PER_MS)
        return true;
    for (size_t i = 0; i < caches->count; i++)
        if (caches->of[i].state != SL_CACHE_GONE && !lacks(map, i))
            return false;
    return map && map->lacking;
}

static void ask_cache(struct sl_caches_ask *ask, struct sl_cache *cache, uint64_t now_ns)
{
    set_asked(ask, SL_ASKED_CACHE);
    if (cache->state == SL_CACHE_RESTS) /* the next, if nothing comes of this one */
        cache->rests_until_ns = now_ns + SL_CACHES_SILENCE_MS * SL_NS_PER_MS;
    if (!ask->proves)
        return;
    memset(&cache->trial, 0, sizeof(cache->trial));
    cache->trial.asked_ns = cache->proved ? 0 : now_ns;
}

/* Blocks that it was asked for may wait for whoever waits for it now: so not for ever. */
static bool is_on_trial(const struct sl_cache *cache, uint64_t now_ns)
{
    return !cache->proved && cache->trial.asked_ns &&
           now_ns < cache->trial.asked_ns + TRIAL_MS * SL_NS_PER_MS;
}

static uint64_t trial_wait_ns(const struct sl_cache *cache, uint64_t now_ns)
{
    uint64_t ns = (now_ns - cache->trial.asked_ns) / TRIAL_WAIT_PART;
    return SL_MIN(SL_MAX(ns, TRIAL_WAIT_MS * SL_NS_PER_MS), ORIGIN_WAIT_MS * SL_NS_PER_MS);
}

void sl_caches_choose(struct sl_caches *caches, struct sl_caches_map *map, uint64_t block,
                      bool proves, struct sl_caches_ask *ask, uint64_t now_ns)
{
    if (ask->asked == SL_ASKED_WAITS) /* whoever failed may have come back */
        ask->tries = 0;
    if (!ask->in_hand)
        caches->in_hand++;
    ask->in_hand = true;
    ask->proves = proves;
    ask->spared_ns = 0;
    ask->asked_ns = now_ns;
    ask->cache = find(caches, map, block, ask, now_ns);
    struct sl_cache *cache = ask->cache != SL_CACHES_NONE ? &caches->of[ask->cache] : NULL;
    if (cache && proves && is_on_trial(cache, now_ns)) {
        set_asked(ask, SL_ASKED_WAITS);
        ask->again_ns = now_ns + trial_wait_ns(cache, now_ns);
    } else if (cache) {
        ask_cache(ask, cache, now_ns);
    } else if (has_room_at_origin(caches, map, now_ns)) {
        set_asked(ask, SL_ASKED_ORIGIN);
        caches->at_origin++;
        caches->origin_ns = now_ns;
    } else {
        set_asked(ask, SL_ASKED_WAITS);
        ask->again_ns = now_ns + ORIGIN_WAIT_MS * SL_NS_PER_MS;
    }
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int sl_caches_order(const int *owners, size_t count, size_t caches, uint64_t seed, uint32_t *order,
                    struct sl_err *err)
{
    size_t each = SL_MIN(count / ROUND_PART, (size_t)ROUND_MAX) / SL_MAX(caches, (size_t)1);
    sl_autofree uint32_t *seen = sl_alloc_array(caches + 1, sizeof(*seen), err);
    sl_autofree struct key {
        uint64_t rank;
        uint32_t of;
    } *keys = sl_alloc_array(count + 1, sizeof(*keys), err);
    if (!seen || !keys)
        return -1;
    for (size_t i = 0; i < count; i++) {
        uint64_t round = seen[owners[i] + 1]++ / SL_MAX(each, (size_t)1);
        keys[i] = (struct key){round << 32 | next_random(&seed), (uint32_t)i};
    }
    qsort(keys, count, sizeof(*keys), by_key);
    for (size_t i = 0; i < count; i++)
        order[i] = keys[i].of;
    return 0;
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* When the cache counts as not there. */
static uint64_t silent_ns(const struct sl_caches *caches, const struct sl_caches_ask *ask)
{
    return SL_MAX(ask->asked_ns, caches->of[ask->cache].came_ns) +
           SL_CACHES_SILENCE_MS * SL_NS_PER_MS;
}

/* When the block is late; UINT64_MAX: never, or nobody knows yet what they take. */
static uint64_t late_ns(const struct sl_caches *caches, const struct sl_caches_ask *ask)
{
    uint64_t usual = caches->waits ? 0 : caches->usual_ns;
    return usual ? SL_MAX(ask->asked_ns, ask->spared_ns) +
                       SL_MAX(usual * LATE_TIMES, (uint64_t)PATIENCE_NS)
                 : UINT64_MAX;
}

/* What was asked of it before it rests fails for the same reason, and counts once. */
static void give_rest(struct sl_cache *cache, const struct sl_caches_ask *ask, uint64_t first_ms,
                      uint64_t now_ns)
{
    bool again = cache->state == SL_CACHE_RESTS && ask->asked_ns > cache->rests_since_ns;
    if (cache->state != SL_CACHE_IN_USE && !again)
        return;
    cache->rests_since_ns = now_ns;
    uint64_t ms = first_ms << SL_MIN(cache->failed, 5u);
    set_state(cache, SL_CACHE_RESTS);
    cache->failed++;
    cache->rests_until_ns = now_ns + SL_MIN(ms, (uint64_t)REST_MS_MAX) * SL_NS_PER_MS;
}

static void turn_away(struct sl_caches *caches, struct sl_caches_ask *ask)
{
    if (ask->tries < SL_CACHES_TURNS)
        ask->tried[ask->tries++] = ask->cache;
    if (ask->proves)
        caches->of[ask->cache].trial.asked_ns = 0;
    set_asked(ask, SL_ASKED_NOBODY);
}

static void end_trial(struct sl_cache *cache)
{
    cache->proved = cache->proved || (cache->trial.ended && cache->trial.right &&
                                      cache->trial.right >= cache->trial.came);
}

void sl_caches_came(struct sl_caches *caches, const struct sl_caches_ask *ask, uint64_t bytes,
                    uint64_t now_ns)
{
    struct sl_cache *cache = &caches->of[ask->cache];
    cache->came_ns = now_ns;
    cache->trial.came += ask->proves ? bytes : 0;
}

void sl_caches_agreed(struct sl_caches *caches, int number, uint64_t bytes)
{
    struct sl_cache *cache = &caches->of[number];
    cache->trial.right += bytes;
    end_trial(cache);
}

void sl_caches_drop(struct sl_caches *caches, struct sl_caches_ask *ask)
{
    if (ask->asked == SL_ASKED_CACHE && ask->proves && !caches->of[ask->cache].trial.ended)
        caches->of[ask->cache].trial.asked_ns = 0;
    caches->at_origin -= ask->asked == SL_ASKED_ORIGIN;
    caches->in_hand -= ask->in_hand;
    *ask = (struct sl_caches_ask){.asked = SL_ASKED_NOBODY};
}

/* About what two of three blocks take: a few that take very long do not change it. */
static void learn(struct sl_caches *caches, uint64_t ns)
{
    uint64_t usual = caches->usual_ns;
    if (!usual)
        caches->usual_ns = ns;
    else if (ns > usual)
        caches->usual_ns += SL_MIN(ns - usual, usual / 8 + 1);
    else
        caches->usual_ns -= SL_MIN(usual - ns, usual / 16);
}

void sl_caches_done(struct sl_caches *caches, struct sl_caches_ask *ask, bool whole,
                    uint64_t now_ns)
{
    if (ask->asked == SL_ASKED_CACHE) {
        struct sl_cache *cache = &caches->of[ask->cache];
        if (cache->state == SL_CACHE_RESTS && now_ns < late_ns(caches, ask))
            set_state(cache, SL_CACHE_IN_USE);
        if (cache->state == SL_CACHE_IN_USE)
            cache->failed = 0;
        if (ask->proves) {
            cache->trial.ended = true;
            end_trial(cache);
        }
        caches->late_credit++;
        if (whole)
            learn(caches, now_ns - ask->asked_ns);
    } else if (ask->asked == SL_ASKED_ORIGIN) {
        caches->origin_ns = now_ns;
    }
    sl_caches_drop(caches, ask);
}

void sl_caches_failed(struct sl_caches *caches, struct sl_caches_ask *ask, uint64_t now_ns)
{
    give_rest(&caches->of[ask->cache], ask, REST_MS, now_ns);
    turn_away(caches, ask);
}

bool sl_caches_lacks(struct sl_caches *caches, struct sl_caches_ask *ask, struct sl_caches_map *map)
{
    if (!map || ask->cache >= LACKING_MAX)
        return false;
    map->lacking |= UINT64_C(1) << ask->cache;
    turn_away(caches, ask);
    return true;
}

void sl_caches_doubt(struct sl_caches *caches, int number)
{
    struct sl_cache *cache = &caches->of[number];
    if (cache->state == SL_CACHE_IN_USE || cache->state == SL_CACHE_RESTS)
        set_state(cache, SL_CACHE_DOUBTED);
}

void sl_caches_believe(struct sl_caches *caches, int number)
{
    if (caches->of[number].state == SL_CACHE_DOUBTED)
        set_state(&caches->of[number], SL_CACHE_IN_USE);
}

bool sl_caches_leave(struct sl_caches *caches, int number)
{
    if (caches->of[number].state == SL_CACHE_LEFT)
        return false;
    set_state(&caches->of[number], SL_CACHE_LEFT);
    return true;
}

/* It is the cache that is slow: where many are, it is the link, and one alone has nobody to be
 * compared with. */
static bool may_rest_too(const struct sl_caches *caches)
{
    size_t there = 0, rest = 0;
    for (size_t i = 0; i < caches->count; i++) {
        there += caches->of[i].state != SL_CACHE_GONE;
        rest += caches->of[i].state == SL_CACHE_RESTS;
    }
    return there > 1 && rest < SL_MAX(there / SLOW_PART, (size_t)1);
}

/* A block is late: may it be asked of another? */
static bool may_move(struct sl_caches *caches, const struct sl_caches_ask *ask, uint64_t now_ns)
{
    struct sl_cache *cache = &caches->of[ask->cache];
    if (caches->late_credit < LATE_PART)
        return false;
    if (cache->state == SL_CACHE_IN_USE && may_rest_too(caches))
        give_rest(cache, ask, SLOW_REST_MS, now_ns);
    return cache->state != SL_CACHE_IN_USE || caches->count == 1;
}

enum sl_caches_verdict sl_caches_judge(struct sl_caches *caches, struct sl_caches_ask *ask,
                                       uint64_t now_ns)
{
    if (ask->asked != SL_ASKED_CACHE)
        return SL_CACHES_FINE;
    if (now_ns >= silent_ns(caches, ask)) {
        give_rest(&caches->of[ask->cache], ask, SLOW_REST_MS, now_ns);
        turn_away(caches, ask);
        return SL_CACHES_SILENT;
    }
    if (now_ns < late_ns(caches, ask))
        return SL_CACHES_FINE;
    if (!may_move(caches, ask, now_ns)) {
        ask->spared_ns = now_ns;
        return SL_CACHES_FINE;
    }
    caches->late_credit -= LATE_PART;
    turn_away(caches, ask);
    return SL_CACHES_LATE;
}

uint64_t sl_caches_judge_ns(const struct sl_caches *caches, const struct sl_caches_ask *ask)
{
    if (ask->asked != SL_ASKED_CACHE)
        return UINT64_MAX;
    return SL_MIN(silent_ns(caches, ask), late_ns(caches, ask));
}

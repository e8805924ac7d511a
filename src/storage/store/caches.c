/*
 * Rendezvous hashing with a bound, rests that double, and lateness by what blocks take.
 *
 * Whoever is there owns blocks, also while it rests or was left: other machines do not know of
 * that, and all must agree on who fetches a block.
 */
#include "caches.h"

#include <assert.h>

#include "mem.h"
#include "thread.h"

#define PATIENCE_NS (2 * SL_NS_PER_S) /* at least */

enum {
    REST_MS = 1000,
    REST_MS_MAX = 30 * 1000,
    SLACK_PART = 64, /* so much more than its share may one own, rounded up */
    LATE_TIMES = 4,
    LATE_PART = 8, /* of the blocks may be late, and a few at first */
    LATE_FIRST = 4,
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
    assert(cache->state != SL_CACHE_LEFT && cache->state != to &&
           (to != SL_CACHE_IN_USE || cache->state == SL_CACHE_GONE));
    cache->state = to;
}

void sl_caches_init(struct sl_caches *caches)
{
    *caches = (struct sl_caches){.late_credit = LATE_FIRST * LATE_PART};
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
    enum sl_cache_state to = there ? SL_CACHE_IN_USE : SL_CACHE_GONE;
    if (cache->state == to || cache->state == SL_CACHE_LEFT)
        return;
    set_state(cache, to);
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

static bool may_ask(const struct sl_cache *cache, uint64_t now_ns)
{
    return cache->state == SL_CACHE_IN_USE && cache->rests_until_ns <= now_ns;
}

static bool was_tried(const struct sl_caches_tried *tried, int cache)
{
    for (unsigned i = 0; i < tried->count; i++)
        if (tried->of[i] == cache)
            return true;
    return false;
}

/* The highest that may be asked. */
static int find_highest(const struct sl_caches *caches, uint64_t key, uint64_t block,
                        const struct sl_caches_tried *tried, uint64_t now_ns)
{
    uint64_t highest = 0;
    int found = SL_CACHES_NONE;
    for (size_t i = 0; i < caches->count; i++) {
        uint64_t rank = sl_caches_rank(caches->of[i].hash, key, block) | 1;
        if (rank <= highest || was_tried(tried, (int)i) || !may_ask(&caches->of[i], now_ns))
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

/* SL_CACHES_NONE: it is not there, or was asked. */
static int find_owner(struct sl_caches *caches, struct sl_caches_map *map, uint64_t block,
                      const struct sl_caches_tried *tried, uint64_t now_ns)
{
    if (map->epoch != caches->epoch)
        find_owners(caches, map);
    int owner = block < map->count ? map->blocks[block].owner - 1 : SL_CACHES_NONE;
    bool asked =
        owner != SL_CACHES_NONE && !was_tried(tried, owner) && may_ask(&caches->of[owner], now_ns);
    return asked ? owner : SL_CACHES_NONE;
}

int sl_caches_choose(struct sl_caches *caches, struct sl_caches_map *map, uint64_t block,
                     const struct sl_caches_tried *tried, uint64_t now_ns)
{
    int found = SL_CACHES_NONE;
    if (tried->count == SL_CACHES_TURNS)
        return found;
    if (map)
        found = find_owner(caches, map, block, tried, now_ns);
    if (found == SL_CACHES_NONE)
        found = find_highest(caches, map ? map->key : 0, block, tried, now_ns);
    return found;
}

/* ---- what came of it ------------------------------------------------------------------------- */

static void give_rest(struct sl_cache *cache, uint64_t now_ns)
{
    uint64_t ms = (uint64_t)REST_MS << SL_MIN(cache->failed, 5u);
    cache->failed++;
    cache->rests_until_ns = now_ns + SL_MIN(ms, (uint64_t)REST_MS_MAX) * SL_NS_PER_MS;
}

void sl_caches_came(struct sl_caches *caches, int cache, uint64_t now_ns)
{
    caches->of[cache].failed = 0;
    caches->of[cache].came_ns = now_ns;
}

void sl_caches_took(struct sl_caches *caches, uint64_t ns)
{
    uint64_t usual = caches->usual_ns;
    if (ns > usual) /* soon, when all of them become slower; slowly, when some are fast */
        usual += (ns - usual + 3) / 4;
    else
        usual -= (usual - ns) / 16;
    caches->usual_ns = usual;
    caches->late_credit++;
}

void sl_caches_failed(struct sl_caches *caches, int cache, uint64_t now_ns)
{
    give_rest(&caches->of[cache], now_ns);
}

bool sl_caches_leave(struct sl_caches *caches, int number)
{
    if (caches->of[number].state == SL_CACHE_LEFT)
        return false;
    set_state(&caches->of[number], SL_CACHE_LEFT);
    return true;
}

uint64_t sl_caches_silent_ns(const struct sl_caches *caches, int cache, uint64_t asked_ns)
{
    return SL_MAX(asked_ns, caches->of[cache].came_ns) + SL_CACHES_SILENCE_MS * SL_NS_PER_MS;
}

uint64_t sl_caches_late_ns(const struct sl_caches *caches, uint64_t asked_ns)
{
    uint64_t usual = caches->usual_ns;
    return usual ? asked_ns + SL_MAX(usual * LATE_TIMES, (uint64_t)PATIENCE_NS) : UINT64_MAX;
}

bool sl_caches_late(struct sl_caches *caches, int cache, uint64_t now_ns)
{
    if (caches->late_credit < LATE_PART)
        return false;
    caches->late_credit -= LATE_PART;
    give_rest(&caches->of[cache], now_ns);
    return true;
}

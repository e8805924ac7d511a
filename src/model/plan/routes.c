/*
 * A range is cut into blocks as a fetch cuts it. What the requests of a source carry is asked once
 * for all of its blocks: only whether a cache has TLS makes a difference.
 */
#include "routes.h"

#include <stdio.h>
#include <string.h>

#include "plan_parts.h"
#include "store_kind.h"

struct router {
    struct sl_routes *routes;
    struct sl_route **of; /* of each of `numbers` caches; NULL: it is gone */
    size_t numbers;
    struct sl_source *source;
    enum sl_vouch vouch;
    enum { UNKNOWN, MAY, MAY_NOT } sees[2]; /* what caches without TLS, and with it, see of it */
    uint64_t last_block;                    /* UINT64_MAX: none yet */
};

static bool may_see(struct router *router, const char *via)
{
    bool hidden = strncmp(via, "https:", 6) == 0;
    if (router->sees[hidden] == UNKNOWN)
        router->sees[hidden] =
            router->source->store->transport->may_see(router->source, via) ? MAY : MAY_NOT;
    return router->sees[hidden] == MAY;
}

static void route_part(struct router *router, uint64_t at, uint64_t end, int number,
                       enum sl_past past)
{
    struct sl_routes *routes = router->routes;
    struct sl_route *cache =
        past == SL_PAST_COUNT && (size_t)number < router->numbers ? router->of[number] : NULL;
    if (past == SL_PAST_COUNT && !cache)
        past = SL_PAST_NO_CACHE; /* its name was looked up anew meanwhile */
    else if (past == SL_PAST_COUNT && !may_see(router, cache->name))
        past = SL_PAST_HIDDEN;
    if (past != SL_PAST_COUNT) {
        routes->past[past] += end - at;
        return;
    }
    uint64_t block = (router->source->piece_at + at) / routes->block_bytes;
    cache->bytes += end - at;
    cache->blocks += block != router->last_block;
    routes->cached += end - at;
    router->last_block = block;
}

static void route_range(struct router *router, uint64_t begin, uint64_t end)
{
    while (begin < end) {
        int number;
        enum sl_past past;
        uint64_t until = sl_fetch_route(router->source, router->vouch, begin, end, &number, &past);
        route_part(router, begin, until, number, past);
        begin = until;
    }
}

/* All that are there, also those that own nothing. */
static int list_caches(struct sl_through *through, struct router *router, struct sl_err *err)
{
    struct sl_routes *routes = router->routes;
    sl_through_look_up(through);
    unsigned count = sl_through_states(through, NULL, 0);
    sl_autofree struct sl_through_state *states = sl_alloc_array(count + 1, sizeof(*states), err);
    routes->caches = sl_alloc_array(count + 1, sizeof(*routes->caches), err);
    routes->block_bytes = sl_through_block_bytes(through);
    router->of = sl_alloc_array(count + 1, sizeof(*router->of), err);
    if (!states || !routes->caches || !router->of)
        return -1;
    count = SL_MIN(count, sl_through_states(through, states, count));
    router->numbers = count;
    for (unsigned i = 0; i < count; i++) {
        if (states[i].gone)
            continue;
        router->of[i] = &routes->caches[routes->count++];
        snprintf(router->of[i]->name, SL_THROUGH_VIA_BYTES, "%s", states[i].via);
    }
    return 0;
}

int sl_plan_routes(const struct sl_plan *plan, struct sl_routes *routes, struct sl_err *err)
{
    struct sl_through *through = sl_store_through(plan->own->store);
    *routes = (struct sl_routes){.block_bytes = 1};
    if (!plan->own->spec->source.through.caches.count)
        return 0;
    struct router router = {.routes = routes};
    sl_autofree enum sl_vouch *vouches = sl_plan_vouches(plan, err);
    int listed = vouches && through ? list_caches(through, &router, err) : 0;
    sl_autofree struct sl_route **of = router.of;
    if (!vouches || listed < 0)
        return -1;
    for (size_t i = 0; i < plan->range_count; i++) {
        const struct sl_range *range = &plan->ranges[i];
        struct sl_source *source = plan->sources[range->source].source;
        if (source != router.source)
            router = (struct router){.routes = routes,
                                     .of = of,
                                     .numbers = router.numbers,
                                     .source = source,
                                     .vouch = vouches[range->source],
                                     .last_block = UINT64_MAX};
        if (range->end > sl_source_held(source))
            route_range(&router, range->begin, range->end);
    }
    return 0;
}

void sl_routes_release(struct sl_routes *routes)
{
    free(routes->caches);
    *routes = (struct sl_routes){0};
}

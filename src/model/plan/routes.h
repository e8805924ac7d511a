/*
 * Where a load asks for the bytes of a plan first: which cache (source.through) for how much, and
 * what does not come by caches, and why. By the functions that a load decides by. Any thread.
 */
#ifndef SL_ROUTES_H
#define SL_ROUTES_H

#include "plan.h"
#include "through.h"

struct sl_route {
    char name[SL_THROUGH_VIA_BYTES];
    uint64_t bytes, blocks;
};
struct sl_routes {
    struct sl_route *caches; /* all that there are now, in the order of the spec */
    size_t count;
    uint64_t block_bytes;
    uint64_t cached;              /* by all caches */
    uint64_t past[SL_PAST_COUNT]; /* by none of them */
};
/** Looks the names of caches up, and asks for tokens where the store wants some: blocks. What has
 * come with the plan is left out; rows of slices count as the spans that they lie in. Zeros for a
 * spec without caches. SL_E_NO_SPACE. */
int sl_plan_routes(const struct sl_plan *plan, struct sl_routes *routes, struct sl_err *err);
void sl_routes_release(struct sl_routes *routes);

#endif

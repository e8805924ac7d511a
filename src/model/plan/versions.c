/*
 * Which objects of a plan have a version. One that the store gives none of has one all the same
 * where every byte that is read of it lies below a hash that the user gave, in the spec, in a
 * signature or in a sidecar: then the hash says which bytes they are, and what was kept of an
 * earlier load is checked against it like what comes.
 *
 * A plan with an object that has neither is like no other plan: a random number in its identity
 * keeps its bytes from being taken for those of another load, wherever identities are compared.
 */
#include <inttypes.h>
#include <sys/random.h>

#include "log.h"
#include "lower_bound.h"
#include "mapping.h"
#include "plan_parts.h"

/* Bytes [begin, end) of a source. */
struct stretch {
    uint32_t source;
    uint64_t begin, end;
};

static int by_place(const void *a, const void *b)
{
    const struct stretch *x = a, *y = b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* What hashes of the user cover, sorted, neighbours joined. Samples are what the source has now. */
static struct stretch *find_pinned(const struct sl_plan *plan, size_t *count, struct sl_err *err)
{
    struct stretch *pinned = sl_alloc_array(plan->check_count + 1, sizeof(*pinned), err);
    size_t found = 0;
    *count = 0;
    for (size_t i = 0; pinned && i < plan->check_count; i++)
        if (plan->checks[i].given && !plan->checks[i].sample)
            pinned[found++] = (struct stretch){plan->checks[i].source, plan->checks[i].begin,
                                               plan->checks[i].end};
    if (found)
        qsort(pinned, found, sizeof(*pinned), by_place);
    for (size_t i = 0; i < found; i++) {
        struct stretch *last = *count ? &pinned[*count - 1] : NULL;
        if (last && last->source == pinned[i].source && pinned[i].begin <= last->end)
            last->end = SL_MAX(last->end, pinned[i].end);
        else
            pinned[(*count)++] = pinned[i];
    }
    return pinned;
}

static bool is_covered(const struct stretch *pinned, size_t count, const struct stretch *wanted)
{
    size_t behind = SL_LOWER_BOUND(i, count, by_place(&pinned[i], wanted) <= 0);
    const struct stretch *last = behind ? &pinned[behind - 1] : NULL; /* to begin before it */
    return last && last->source == wanted->source && last->end >= wanted->end;
}

/* Every object that the tensor is put together of. */
static void mark_composed(const struct sl_mapping *mapping, bool *unpinned)
{
    const struct sl_tensor *from = mapping->target->from;
    uint32_t first = mapping->source - from->source;
    unpinned[mapping->source] = true;
    for (size_t i = 0; i < from->chunk_count; i++)
        unpinned[first + from->chunks[i].tensor.source] = true;
}

/* unpinned[i]: of source i bytes are read that no hash of the user covers. */
static int find_unpinned(const struct sl_plan *plan, bool *unpinned, struct sl_err *err)
{
    size_t count;
    sl_autofree struct stretch *pinned = find_pinned(plan, &count, err);
    sl_autofree bool *read = pinned ? sl_alloc_array(plan->source_count + 1, 1, err) : NULL;
    if (!read)
        return -1;
    for (size_t i = 0; i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[i];
        const struct stretch wanted = {extent->source, extent->begin, extent->end};
        read[extent->source] = true;
        unpinned[extent->source] |= !is_covered(pinned, count, &wanted);
    }
    /* No extents: only the head is read, or whoever wanted the targets reads below the sidecar. */
    for (uint32_t i = 0; i < plan->source_count; i++)
        unpinned[i] |=
            !read[i] && sl_source_bytes(plan->sources[i].source) > 0 && !sl_plan_sidecar(plan, i);
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++)
        if (sl_mapping_composed(&plan->mappings[i]))
            mark_composed(&plan->mappings[i], unpinned);
    return 0;
}

int sl_plan_judge_versions(struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree bool *unpinned = sl_alloc_array(plan->source_count + 1, sizeof(*unpinned), err);
    if (!unpinned || find_unpinned(plan, unpinned, err) < 0)
        return -1;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        struct sl_plan_source *source = &plan->sources[i];
        bool known = sl_version_is_known(sl_source_version(source->source));
        source->pinned = !unpinned[i];
        source->version = known         ? SL_PLAN_VERSION_STORE
                          : unpinned[i] ? SL_PLAN_VERSION_NONE
                                        : SL_PLAN_VERSION_HASH;
        plan->unversioned += source->version == SL_PLAN_VERSION_NONE;
        plan->doubtful |= !known;
    }
    if (plan->unversioned && getrandom(plan->own->nonce, sizeof(plan->own->nonce), 0) !=
                                 (ssize_t)sizeof(plan->own->nonce))
        return sl_fail(err, SL_E_INTERNAL, "no random numbers");
    return 0;
}

void sl_plan_warn_of_versions(const struct sl_plan *plan, const char *so)
{
    const struct sl_plan_source *first = NULL;
    for (size_t i = plan->source_count; i-- > 0;)
        if (plan->sources[i].version == SL_PLAN_VERSION_NONE)
            first = &plan->sources[i];
    if (!first)
        return;
    const struct sl_version *version = sl_source_version(first->source);
    const char *why = version->etag[0]            ? "has a weak ETag"
                      : version->last_modified[0] ? "was modified only just now"
                                                  : "comes with neither ETag nor Last-Modified";
    sl_log(SL_LOG_WARN,
           "%zu of %zu %s no version ('%s' %s): a change in mid-load may go unnoticed, "
           "%s; give verify.sha256, or sidecars (`sluice sign`) and verify.sidecar: require",
           plan->unversioned, plan->source_count,
           plan->source_count == 1 ? "object has" : "objects have", first->name, why, so);
}

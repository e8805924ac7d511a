/*
 * Such targets have no extents, so no check of a range sees their bytes land. Their objects get a
 * verified reader each, which all threads that compose share. Together they keep as much as one of
 * a conversion, but two ranges each: pieces of neighbouring tensors lie in one range. Where that is
 * more than KEPT_BYTES_MAX, or half of what the load may take, there are none. A part of a plan
 * shares its sources with others that read them, and gets none. A single read has a clone and a
 * reader of its own.
 */
#include "composed_reads.h"

#include "plan_parts.h"
#include "verified_reader.h"

#define KEPT_BYTES_MAX (UINT64_C(512) * 1024 * 1024)

static bool is_guarded(const struct sl_plan *plan, uint32_t source)
{
    const struct sl_sidecar *sidecar = sl_plan_sidecar(plan, source);
    return sidecar && sidecar->range_bytes <= SL_VERIFIED_READER_RANGE_BYTES_MAX;
}

/* The sources that it is made of, one after another, from *at = 0 on; false: no more. */
static bool next_source(const struct sl_mapping *mapping, size_t *at, uint32_t *source)
{
    const struct sl_tensor *from = mapping->target->from;
    size_t number = (*at)++;
    if (!from->chunks) {
        *source = mapping->source;
        return number == 0;
    }
    if (number >= from->chunk_count)
        return false;
    *source = mapping->source - from->source + from->chunks[number].tensor.source;
    return true;
}

/* Marks the sources that composed targets need and that may be guarded; how many. */
static size_t find_guarded(const struct sl_plan *plan, bool *guarded)
{
    size_t count = 0;
    uint32_t source;
    for (size_t t = 0; t < plan->target_count; t++) {
        const struct sl_mapping *mapping = &plan->mappings[t];
        if (!sl_mapping_composed(mapping))
            continue;
        for (size_t at = 0; next_source(mapping, &at, &source);) {
            count += !guarded[source] && is_guarded(plan, source);
            guarded[source] = is_guarded(plan, source);
        }
    }
    return count;
}

/* Two ranges of each. */
static uint64_t kept_bytes(const struct sl_plan *plan, const bool *guarded)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < plan->source_count; i++)
        bytes += guarded[i] ? 2 * plan->own->sidecars[i]->range_bytes : 0;
    return bytes;
}

int sl_plan_decide_composed(struct sl_plan *plan, struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (own->borrowed || !own->sidecars || own->guarded)
        return 0;
    own->guarded = sl_alloc_array(plan->source_count, sizeof(*own->guarded), err);
    if (!own->guarded)
        return -1;
    own->guard_count = find_guarded(plan, own->guarded);
    uint64_t memory = own->spec->readers.memory_bytes;
    uint64_t most =
        memory && memory != SL_AUTO_VALUE ? SL_MIN(memory / 2, KEPT_BYTES_MAX) : KEPT_BYTES_MAX;
    if (kept_bytes(plan, own->guarded) > most)
        own->guard_count = 0;
    return 0;
}

bool sl_plan_proves_composed(const struct sl_plan *plan, const struct sl_mapping *mapping)
{
    uint32_t source;
    if (!plan->own->guard_count || !sl_mapping_composed(mapping))
        return false;
    for (size_t at = 0; next_source(mapping, &at, &source);)
        if (!is_guarded(plan, source))
            return false;
    return true;
}

static struct sl_verified_reader *new_guard(const struct sl_plan *plan, uint32_t number,
                                            struct sl_source *source, uint64_t memory_bytes,
                                            struct sl_progress *progress, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    bool strong = own->authentic[number] || own->spec->verify.hashes == SL_HASHES_ALL;
    return sl_verified_reader_new(source, own->sidecars[number], strong, memory_bytes, progress,
                                  err);
}

int sl_plan_guard_composed(const struct sl_plan *plan, struct sl_progress *progress,
                           struct sl_err *err)
{
    struct sl_plan_own *own = plan->own;
    if (!plan->mappings || !own->guard_count || own->guards)
        return 0;
    own->guards = sl_alloc_array(plan->source_count, sizeof(*own->guards), err);
    if (!own->guards)
        return -1;
    uint64_t each_bytes = SL_VERIFIED_READER_BYTES_MAX / own->guard_count;
    for (uint32_t i = 0; i < plan->source_count; i++)
        if (own->guarded[i] && !(own->guards[i] = new_guard(plan, i, plan->sources[i].source,
                                                            each_bytes, progress, err)))
            return -1;
    return 0;
}

int sl_plan_read_proved(const struct sl_plan *plan, uint32_t number, uint64_t begin, void *to,
                        size_t bytes, struct sl_err *err)
{
    struct sl_source *source = plan->sources[number].source;
    SL_AUTO(sl_verified_reader) guard = NULL; /* freed after the clone that it guards */
    SL_AUTO(sl_source) clone = NULL;
    if (!is_guarded(plan, number))
        return sl_source_read(source, begin, to, bytes, err);
    if (sl_source_known(sl_source_store(source), sl_source_name(source), sl_source_bytes(source),
                        sl_source_version(source), &clone, err) < 0)
        return -1;
    guard = new_guard(plan, number, clone, 0, NULL, err);
    return guard ? sl_source_read(clone, begin, to, bytes, err) : -1;
}

void sl_plan_free_guards(struct sl_plan *plan)
{
    for (size_t i = 0; plan->own->guards && i < plan->source_count; i++)
        sl_verified_reader_free(plan->own->guards[i]);
    free(plan->own->guards);
    free(plan->own->guarded);
}

/*
 * Ranges of sidecars where only tensors are read. A range is checked like one of a whole object if
 * all of its bytes are read and lie in one file as they lie in the object: then it is hashed as it
 * lands, read back after a break and fetched again alone without anybody knowing of tensors. Of the
 * first ranges the object's head may be a part, which the index was made of and which lands
 * nowhere: its bytes are still held, so they are hashed in front of the others. What they hold
 * cannot be fetched again alone, since the index is made of it: a range that is held whole, as all
 * of an object may be, and of which a part lands nowhere is checked at once, too, so that the load
 * begins again.
 *
 * Where a signature has the ranges, or the spec insists on sidecars, nothing that they cannot check
 * is taken: neither bytes of tensors nor what tells where they lie.
 *
 * What is put together is proved as it is read (composed_reads.c). What is cast, cut, decrypted or
 * written in another order, and what shares its range with bytes that are not read, is not checked
 * by the sidecar.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "composed_reads.h"
#include "hash.h"
#include "lower_bound.h"
#include "mapping.h"
#include "plan_parts.h"
#include "sidecar.h"
#include "verify.h"

/* Bytes that land as they came, one after the other. */
struct run {
    uint64_t begin, end, file_offset;
    uint32_t file;
};
struct coverage {
    struct sl_plan *plan;
    struct sl_check check; /* what all of them have in common */
    const struct sl_sidecar *sidecar;
    struct run *runs;
    size_t run_count;
    uint64_t covered; /* bytes of extents */
    /* Where all must be covered: bytes that tell where tensors lie end here; and some of them,
     * which the index is made of, cannot be checked. */
    uint64_t index_end;
    bool index_unchecked;
};

static int by_begin(const void *a, const void *b)
{
    const struct sl_extent *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The extents of a source, sorted; NULL: no memory. */
static struct sl_extent *extents_of(const struct sl_plan *plan, uint32_t source, size_t *count,
                                    struct sl_err *err)
{
    struct sl_extent *found = sl_alloc_array(plan->extent_count + 1, sizeof(*found), err);
    *count = 0;
    for (size_t i = 0; found && i < plan->extent_count; i++)
        if (plan->extents[i].source == source)
            found[(*count)++] = plan->extents[i];
    if (found)
        qsort(found, *count, sizeof(*found), by_begin);
    return found;
}

static void add_run(struct coverage *coverage, const struct sl_extent *extent)
{
    struct run *last = coverage->run_count ? &coverage->runs[coverage->run_count - 1] : NULL;
    if (last && last->end == extent->begin && last->file == extent->file &&
        last->file_offset + (last->end - last->begin) == extent->file_offset) {
        last->end = extent->end;
        return;
    }
    coverage->runs[coverage->run_count++] =
        (struct run){extent->begin, extent->end, extent->file_offset, extent->file};
}

/* Bytes that several tensors share come more than once: a check would see them so often. */
static int find_runs(struct coverage *coverage, struct sl_err *err)
{
    size_t count;
    sl_autofree struct sl_extent *extents =
        extents_of(coverage->plan, coverage->check.source, &count, err);
    coverage->runs = extents ? sl_alloc_array(count + 1, sizeof(*coverage->runs), err) : NULL;
    if (!coverage->runs)
        return -1;
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        const struct sl_extent *extent = &extents[i];
        bool shared = extent->begin < end || (i + 1 < count && extents[i + 1].begin < extent->end);
        end = SL_MAX(end, extent->end);
        if (!extent->target && !shared)
            add_run(coverage, extent);
    }
    return 0;
}

/* Bytes [begin, end) of the object's head, owned by the index. */
static const uint8_t *head_bytes(const struct coverage *coverage, uint64_t begin, uint64_t end,
                                 struct sl_err *err)
{
    const struct sl_plan_source *from = &coverage->plan->sources[coverage->check.source];
    size_t bytes = (size_t)(end - begin);
    uint8_t *copy = sl_index_alloc(from->index, bytes, err);
    return copy && sl_source_read(from->source, begin, copy, bytes, err) == 0 ? copy : NULL;
}

/* A range that is held, all of it. */
static int check_held(const struct coverage *coverage, const struct sl_check *check,
                      struct sl_err *err)
{
    struct sl_source *source = coverage->plan->sources[check->source].source;
    uint8_t digest[SL_HASH_BYTES_MAX] = {0};
    size_t bytes = (size_t)(check->end - check->begin);
    sl_autofree uint8_t *data = sl_alloc(bytes, err);
    if (!data || sl_source_read(source, check->begin, data, bytes, err) < 0 ||
        sl_digest_of(check->kind, NULL, 0, data, bytes, digest, err) < 0)
        return -1;
    return sl_verify_agrees(check, digest) ? 0 : sl_verify_mismatch(check, digest, err);
}

/* The run that brings the range, all of it but what is held of its beginning; else NULL. */
static const struct run *run_of(const struct coverage *coverage, uint64_t begin, uint64_t end,
                                uint64_t held)
{
    size_t first = SL_LOWER_BOUND(i, coverage->run_count, coverage->runs[i].end < end);
    const struct run *run = &coverage->runs[first];
    bool whole = first < coverage->run_count && run->begin < end;
    return whole && (run->begin <= begin || run->begin <= held) ? run : NULL;
}

static int cover_range(struct coverage *coverage, size_t number, struct sl_err *err)
{
    const struct sl_plan_source *from = &coverage->plan->sources[coverage->check.source];
    uint64_t held = from->index ? sl_source_held(from->source) : 0;
    struct sl_check check = coverage->check;
    check.begin = number * coverage->sidecar->range_bytes;
    check.end = sl_sidecar_range_end(coverage->sidecar, number);
    sl_sidecar_expect(&coverage->sidecar->ranges[number], &check);
    const struct run *run = run_of(coverage, check.begin, check.end, held);
    bool in_parts = !run || run->begin > check.begin;
    if (in_parts && check.end <= held && check_held(coverage, &check, err) < 0)
        return -1;
    if (!run && check.end > held && check.begin < coverage->index_end)
        coverage->index_unchecked = true;
    if (!run)
        return 0;
    if (in_parts) {
        check.prefix_bytes = (size_t)(run->begin - check.begin);
        check.prefix = head_bytes(coverage, check.begin, run->begin, err);
        if (!check.prefix)
            return -1;
        check.begin = run->begin;
    }
    check.file = run->file;
    check.file_offset = run->file_offset + (check.begin - run->begin);
    coverage->covered += check.end - check.begin;
    return sl_plan_add_check(coverage->plan, &check, err);
}

/* All that is read of the source, but for what is proved as it is read. */
static uint64_t bytes_read(const struct sl_plan *plan, uint32_t source)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->extent_count; i++)
        if (plan->extents[i].source == source)
            bytes += sl_extent_bytes(plan, &plan->extents[i]);
    for (size_t t = 0; plan->mappings && t < plan->target_count; t++)
        if (plan->mappings[t].source == source &&
            !sl_plan_proves_composed(plan, &plan->mappings[t]))
            bytes += sl_mapping_composed(&plan->mappings[t]);
    return bytes;
}

static bool needs_all(const struct coverage *coverage)
{
    return coverage->sidecar->of_signature ||
           coverage->plan->own->spec->verify.sidecar == SL_SIDECAR_REQUIRE;
}

static int must_cover(const struct coverage *coverage, struct sl_err *err)
{
    const struct sl_plan *plan = coverage->plan;
    uint32_t source = coverage->check.source;
    uint64_t bytes = bytes_read(plan, source);
    bool is_signed = coverage->sidecar->of_signature;
    if (!needs_all(coverage))
        return 0;
    if (coverage->index_unchecked)
        return sl_fail_code(err, SL_E_INTEGRITY, is_signed ? "E_SIGNATURE" : "E_SIDECAR",
                            "the %s of '%s' cannot check all that says where its tensors lie, "
                            "which is more than what is read of it at once: use 'layout: verbatim'",
                            is_signed ? "signature" : "sidecar", plan->sources[source].name);
    if (bytes <= coverage->covered)
        return 0;
    if (is_signed)
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "the signature of '%s' cannot check %" PRIu64 " of %" PRIu64
                            " bytes that are changed, or read without the rest of their range: "
                            "use 'layout: verbatim', or sluice_pull() in a program",
                            plan->sources[source].name, bytes - coverage->covered, bytes);
    return sl_fail_code(
        err, SL_E_INTEGRITY, "E_SIDECAR",
        "the sidecar of '%s' cannot check %" PRIu64 " of %" PRIu64
        " bytes that the load changes or reads without the rest of their range, and verify.sidecar "
        "is 'require': use 'layout: verbatim', or 'auto' and `sluice verify`",
        plan->sources[source].name, bytes - coverage->covered, bytes);
}

/* These have it all in front, and their first bytes, which say what they are, are checked, too. */
static bool index_in_front(struct sl_source *source)
{
    uint8_t head[9];
    struct sl_err why = SL_ERR_INIT;
    return sl_source_held(source) >= sizeof(head) &&
           sl_source_read(source, 0, head, sizeof(head), &why) == 0 &&
           (memcmp(head, "GGUF", 4) == 0 || head[8] == '{');
}

/* Up to where bytes of this source say which tensor is what; 0: nothing is made of them. */
static uint64_t find_index_end(const struct sl_plan *plan, uint32_t number)
{
    const struct sl_plan_source *from = &plan->sources[number];
    uint64_t end = sl_source_bytes(from->source);
    uint32_t first = number;
    if (!from->index)
        return 0;
    if (!index_in_front(from->source))
        return end;
    while (first && plan->sources[first - 1].index == from->index)
        first--;
    for (size_t i = 0; i < from->index->tensor_count; i++) {
        const struct sl_tensor *tensor = &from->index->tensors[i];
        if (first + tensor->source == number && tensor->begin < tensor->end)
            end = SL_MIN(end, tensor->begin);
    }
    return end;
}

int sl_plan_cover(struct sl_plan *plan, const struct sl_sidecar *sidecar,
                  const struct sl_check *check, uint64_t *covered, struct sl_err *err)
{
    struct coverage coverage = {.plan = plan, .check = *check, .sidecar = sidecar};
    if (needs_all(&coverage))
        coverage.index_end = find_index_end(plan, check->source);
    int done = find_runs(&coverage, err);
    for (size_t i = 0; done == 0 && i < sidecar->range_count; i++)
        done = cover_range(&coverage, i, err);
    free(coverage.runs);
    *covered = coverage.covered;
    return done < 0 ? -1 : must_cover(&coverage, err);
}

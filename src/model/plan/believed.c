/*
 * What may come through caches: they are believed nothing, so it is what checks cover to the last
 * byte. A sum of what they cover would not do, since tensors may share their bytes.
 *
 * Where the user lets the rest come through them too, samples are taken: some of its bytes are
 * asked of the source itself while the plan is made, and what lands is compared with them. That
 * finds a cache that gives another object or another version, or that damages much; not one that
 * changes a byte here and there.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>

#include "hash.h"
#include "log.h"
#include "lower_bound.h"
#include "mapping.h"
#include "plan_parts.h"

enum { SAMPLES = 8, SAMPLE_BYTES = 64 * 1024 };

/* ---- what is covered ------------------------------------------------------------------------- */

struct stretch {
    uint64_t begin, end;
};

/* Of a source: what checks cover of it, and what they cover of what lands, which is some of it. */
struct covered {
    struct stretch *stretches;
    const struct sl_check **placed;
    size_t stretch_count, placed_count;
};

static int by_begin(const void *a, const void *b)
{
    const struct stretch *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sorted, none of which touches another; returns their number. A placed check is of one of several
 * copies of its bytes. */
static size_t find_stretches(const struct sl_plan *plan, uint32_t source, struct stretch *stretches)
{
    size_t count = 0, kept = 0;
    for (size_t i = 0; i < plan->check_count; i++) {
        const struct sl_check *check = &plan->checks[i];
        if (check->source == source && !check->computed && !check->placed)
            stretches[count++] = (struct stretch){check->begin, check->end};
    }
    qsort(stretches, count, sizeof(*stretches), by_begin);
    for (size_t i = 0; i < count; i++)
        if (kept && stretches[i].begin <= stretches[kept - 1].end)
            stretches[kept - 1].end = SL_MAX(stretches[kept - 1].end, stretches[i].end);
        else
            stretches[kept++] = stretches[i];
    return kept;
}

static int by_place(const void *a, const void *b)
{
    const struct sl_check *x = *(const struct sl_check *const *)a,
                          *y = *(const struct sl_check *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->file_offset < y->file_offset ? -1 : x->file_offset > y->file_offset;
}

/* If such a hash does not agree a load begins anew; who reads a part of an opened model cannot. */
static size_t find_placed(const struct sl_plan *plan, uint32_t source,
                          const struct sl_check **placed)
{
    size_t count = 0;
    for (size_t i = 0; i < plan->check_count && !plan->own->borrowed; i++) {
        const struct sl_check *check = &plan->checks[i];
        if (check->source == source && !check->computed && check->placed)
            placed[count++] = check;
    }
    qsort(placed, count, sizeof(*placed), by_place);
    return count;
}

static bool ends_before(const struct sl_check *check, uint32_t file, uint64_t end)
{
    return check->file < file ||
           (check->file == file && check->file_offset + (check->end - check->begin) < end);
}

static bool is_placed(const struct covered *covered, const struct sl_extent *extent)
{
    uint64_t end = extent->file_offset + (extent->end - extent->begin);
    size_t i = SL_LOWER_BOUND(k, covered->placed_count,
                              ends_before(covered->placed[k], extent->file, end));
    const struct sl_check *check = i < covered->placed_count ? covered->placed[i] : NULL;
    return check && check->file == extent->file && check->file_offset <= extent->file_offset &&
           extent->begin - check->begin == extent->file_offset - check->file_offset;
}

static bool has_own_hash(const struct sl_plan *plan, const struct sl_extent *extent,
                         const struct sl_mapping *mapping)
{
    for (uint32_t i = 0; i < mapping->check_count && !plan->own->borrowed; i++) {
        const struct sl_check *check = &plan->checks[mapping->check_first + i];
        if (!check->computed && check->begin <= extent->begin && extent->end <= check->end)
            return true;
    }
    return false;
}

/* Of encrypted data each piece has a MAC, which is checked where they are decrypted. */
static bool is_covered(const struct sl_plan *plan, const struct sl_extent *extent,
                       const struct covered *covered)
{
    const struct sl_mapping *mapping = extent->target ? sl_extent_mapping(plan, extent) : NULL;
    if (mapping && (mapping->piece_bytes || has_own_hash(plan, extent, mapping)))
        return true;
    if (!mapping && is_placed(covered, extent))
        return true;
    size_t i = SL_LOWER_BOUND(k, covered->stretch_count, covered->stretches[k].end < extent->end);
    return i < covered->stretch_count && covered->stretches[i].begin <= extent->begin;
}

/* *bytes: how many are not. */
static int count_uncovered(const struct sl_plan *plan, uint32_t source, uint64_t *bytes,
                           struct sl_err *err)
{
    sl_autofree struct stretch *stretches =
        sl_alloc_array(plan->check_count + 1, sizeof(*stretches), err);
    sl_autofree const struct sl_check **placed =
        sl_alloc_array(plan->check_count + 1, sizeof(*placed), err);
    if (!stretches || !placed)
        return -1;
    const struct covered covered = {stretches, placed, find_stretches(plan, source, stretches),
                                    find_placed(plan, source, placed)};
    *bytes = 0;
    for (size_t i = 0; i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[i];
        if (extent->source == source && !is_covered(plan, extent, &covered))
            *bytes = sl_add_capped(*bytes, extent->end - extent->begin);
    }
    return 0;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* The extent that holds byte `at` of all that lands as it is, and where in it that is. */
static const struct sl_extent *find_extent(const struct sl_plan *plan, uint32_t source,
                                           uint64_t *at)
{
    for (size_t i = 0; i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[i];
        if (extent->source != source || extent->target)
            continue;
        if (*at < extent->end - extent->begin)
            return extent;
        *at -= extent->end - extent->begin;
    }
    return NULL;
}

static uint64_t plain_bytes(const struct sl_plan *plan, uint32_t source)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < plan->extent_count; i++)
        if (plan->extents[i].source == source && !plan->extents[i].target)
            bytes += plan->extents[i].end - plan->extents[i].begin;
    return bytes;
}

static int add_sample(struct sl_plan *plan, uint32_t source, uint64_t at, const char *what,
                      struct sl_err *err)
{
    const struct sl_extent *extent = find_extent(plan, source, &at);
    uint8_t data[SAMPLE_BYTES];
    if (!extent)
        return 0;
    uint64_t begin = extent->begin + at, end = SL_MIN(extent->end, begin + SAMPLE_BYTES);
    struct sl_check check = {.kind = SL_HASH_SHA256,
                             .given = true,
                             .range = true,
                             .sample = true,
                             .source = source,
                             .begin = begin,
                             .end = end,
                             .file = extent->file,
                             .file_offset = extent->file_offset + at,
                             .what = what};
    if (sl_source_read_past(plan->sources[source].source, begin, data, end - begin, err) < 0)
        return sl_wrap(err, "cannot compare what comes through caches");
    SL_AUTO(sl_sha256) sha = sl_sha256_new(err);
    if (!sha)
        return -1;
    sl_sha256_update(sha, data, end - begin);
    sl_sha256_finish(sha, check.expected);
    return sl_plan_add_check(plan, &check, err);
}

/* Its ends, and places that nobody can guess. */
static int add_samples(struct sl_plan *plan, uint32_t source, struct sl_err *err)
{
    uint64_t bytes = plain_bytes(plan, source), random[SAMPLES];
    const char *what;
    if (sl_plan_object_text(plan, plan->sources[source].name, &what, err) < 0)
        return -1;
    if (getrandom(random, sizeof(random), 0) != sizeof(random))
        return sl_fail(err, SL_E_INTERNAL, "the system gives no random bytes");
    random[0] = 0;
    random[1] = bytes > SAMPLE_BYTES ? bytes - SAMPLE_BYTES : 0;
    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t at = i > 1 && bytes ? random[i] % bytes : random[i];
        if (add_sample(plan, source, at, what, err) < 0)
            return -1;
    }
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int judge(struct sl_plan *plan, uint32_t source, struct sl_err *err)
{
    int unverified = plan->own->spec->source.through.unverified;
    struct sl_plan_source *from = &plan->sources[source];
    uint64_t bytes;
    if (count_uncovered(plan, source, &bytes, err) < 0)
        return -1;
    from->checked = bytes == 0;
    if (from->checked || unverified == SL_UNVERIFIED_DIRECT ||
        sl_source_is_past_caches(from->source))
        return 0;
    const char *advice = sl_store_advice(plan->own->store).hash_advice;
    if (unverified == SL_UNVERIFIED_REFUSE)
        return sl_fail(err, SL_E_USAGE,
                       "source.through: %" PRIu64
                       " bytes of '%s' have no hash to check what caches give: %s, give its "
                       "SHA-256 in verify.sha256, or set source.through.unverified to warn or "
                       "direct",
                       bytes, from->name, advice ? advice : "make a sidecar (`sluice sign`)");
    from->sampled = true;
    sl_log(SL_LOG_WARN,
           "%" PRIu64 " bytes of '%s' come through caches and have no hash: samples of them are "
           "compared with the source",
           bytes, from->name);
    return add_samples(plan, source, err);
}

int sl_plan_judge_through(struct sl_plan *plan, struct sl_err *err)
{
    uint32_t count = sl_store_through(plan->own->store) ? (uint32_t)plan->source_count : 0;
    for (uint32_t i = 0; i < count; i++)
        if (judge(plan, i, err) < 0)
            return -1;
    return 0;
}

/* ---- what a plan does with wrong bytes --------------------------------------------------------
 */

/* Caches carry what a checksum covers, and what the user lets them. */
static enum sl_vouch weaker_vouch(const struct sl_plan_source *source)
{
    if (source->checked)
        return SL_VOUCH_SUM;
    return source->sampled ? SL_VOUCH_SAMPLES : SL_VOUCH_NONE;
}

/* Is it hashed as it comes, and wholly in one answer of one cache? */
static bool proves_block(const struct sl_plan *plan, const struct sl_check *check)
{
    return check->crc_on == SL_ON_HOST && check->end - check->begin <= plan->range_bytes &&
           sl_source_in_block(plan->sources[check->source].source, check->begin, check->end);
}

enum sl_vouch *sl_plan_vouches(const struct sl_plan *plan, struct sl_err *err)
{
    enum sl_vouch *vouches = sl_alloc_array(plan->source_count + 1, sizeof(*vouches), err);
    sl_autofree struct {
        uint64_t hashed;
        bool beyond; /* blocks */
    } *ranges = sl_alloc_array(plan->source_count + 1, sizeof(*ranges), err);
    if (!vouches || !ranges) {
        free(vouches);
        return NULL;
    }
    for (size_t i = 0; i < plan->check_count; i++) {
        const struct sl_check *check = &plan->checks[i];
        enum sl_vouch *vouch = &vouches[check->source];
        uint64_t bytes = sl_source_bytes(plan->sources[check->source].source);
        bool plain = !check->signer && !check->placed && !check->ordered && !check->computed;
        if (plain && check->range) {
            ranges[check->source].hashed += check->end - check->begin;
            ranges[check->source].beyond |= !proves_block(plan, check);
        }
        bool strong = check->kind == SL_HASH_SHA256 || check->kind == SL_HASH_BLAKE2B;
        if (plain && strong && check->begin == 0 && check->end == bytes)
            *vouch = SL_VOUCH_WHOLE;
        else if (*vouch == SL_VOUCH_NONE && ranges[check->source].hashed == bytes)
            *vouch = SL_VOUCH_RANGES;
    }
    for (size_t i = 0; i < plan->source_count; i++) {
        if (vouches[i] == SL_VOUCH_NONE)
            vouches[i] = weaker_vouch(&plan->sources[i]);
        else if (vouches[i] == SL_VOUCH_RANGES && !ranges[i].beyond)
            vouches[i] = SL_VOUCH_BLOCKS;
    }
    return vouches;
}

/*
 * A load that begins reads the plan's ranges as they are. A load that resumes has them cut anew:
 * what the journal keeps lies in files, so the plan's extents are looked up by file and offset, and
 * every extent loses what is there already. What remains of a range is one request where the holes
 * are small, several where they are worth it.
 *
 * Of an extent whose bytes change on their way whole units are kept, and each whole or not at all:
 * the next load must begin where one begins. Rows of a sparse extent are kept only all together. It
 * is in the journal only once its MACs have agreed; but a hash over bytes that were cast since
 * cannot be computed again, so these are read again.
 */
#include "lower_bound.h"
#include "reader_parts.h"
#include "sidecar.h"

/* A smaller hole costs less than another request. No whole range of a sidecar is one. */
enum { HOLE_BYTES_MAX = SL_SIDECAR_RANGE_BYTES_MIN };

/* Kept bytes [begin, end) of a source, within one extent. */
struct kept {
    uint32_t extent;
    uint64_t begin, end;
};
struct keeper {
    const struct sl_plan *plan;
    struct sl_verify *verify;
    struct sl_deferred *deferred;
    struct sl_work *work;
    bool composes;
    uint32_t *by_file; /* extents sorted by file and offset */
    struct kept *kept;
    size_t kept_count, kept_capacity;
    uint64_t bytes;
};

static int by_file(const void *a, const void *b, void *arg)
{
    const struct sl_extent *extents = arg;
    const struct sl_extent *x = &extents[*(const uint32_t *)a], *y = &extents[*(const uint32_t *)b];
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->file_offset < y->file_offset ? -1 : x->file_offset > y->file_offset;
}

static int by_extent(const void *a, const void *b)
{
    const struct kept *x = a, *y = b;
    if (x->extent != y->extent)
        return x->extent < y->extent ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static bool ends_by(const struct sl_plan *plan, const struct sl_extent *extent, uint32_t file,
                    uint64_t offset)
{
    return extent->file != file
               ? extent->file < file
               : extent->file_offset + sl_extent_file_bytes(plan, extent) <= offset;
}

/* The first in by_file that ends after this offset of the file. */
static size_t first_after(const struct keeper *keeper, uint32_t file, uint64_t offset)
{
    const struct sl_plan *plan = keeper->plan;
    return SL_LOWER_BOUND(i, plan->extent_count,
                          ends_by(plan, &plan->extents[keeper->by_file[i]], file, offset));
}

/* Whether a hash that is still wanted was over bytes that are gone. */
static bool is_beyond_checking(const struct sl_plan *plan, const struct sl_extent *extent)
{
    const struct sl_mapping *mapping = sl_extent_mapping(plan, extent);
    return mapping->check_count &&
           (mapping->swap_bytes || mapping->target->from->dtype != mapping->target->out.dtype);
}

/* Places of an extent where its units begin, and its end. */
static uint64_t unit_place(const struct sl_extent *extent, const struct sl_mapping *mapping,
                           uint64_t number)
{
    uint64_t first = sl_mapping_ceil(mapping, extent->begin + 1);
    if (!number)
        return extent->begin;
    uint64_t left = extent->end > first ? extent->end - first : 0;
    return number - 1 > left / mapping->unit
               ? extent->end
               : SL_MIN(first + (number - 1) * mapping->unit, extent->end);
}

/* What of the source became bytes of the file that all lie in [begin, end). */
static struct kept whole_units(const struct keeper *keeper, uint32_t number, uint64_t begin,
                               uint64_t end)
{
    const struct sl_extent *extent = &keeper->plan->extents[number];
    const struct sl_mapping *mapping = sl_extent_mapping(keeper->plan, extent);
    struct kept all = {number, extent->begin, extent->end};
    if (sl_mapping_place(mapping, extent->begin) >= begin &&
        sl_mapping_place(mapping, extent->end) <= end)
        return all;
    if (sl_extent_sparse(keeper->plan, extent))
        return (struct kept){number, 0, 0};
    size_t places = (size_t)((extent->end - extent->begin) / mapping->unit) + 3;
    size_t from = SL_LOWER_BOUND(i, places,
                                 sl_mapping_place(mapping, unit_place(extent, mapping, i)) < begin);
    size_t behind =
        SL_LOWER_BOUND(i, places, sl_mapping_place(mapping, unit_place(extent, mapping, i)) <= end);
    all.begin = unit_place(extent, mapping, from);
    all.end = behind ? unit_place(extent, mapping, behind - 1) : extent->begin;
    return all;
}

/* From the journal: these bytes of the file were made of an extent. */
static int keep_formed(struct keeper *keeper, uint32_t number, uint64_t begin, uint64_t end,
                       struct sl_err *err)
{
    const struct sl_extent *extent = &keeper->plan->extents[number];
    const struct sl_mapping *mapping = sl_extent_mapping(keeper->plan, extent);
    struct kept kept = whole_units(keeper, number, begin, end);
    if (kept.begin >= kept.end || is_beyond_checking(keeper->plan, extent))
        return 0;
    uint64_t offset = sl_mapping_place(mapping, kept.begin);
    uint64_t bytes = sl_mapping_place(mapping, kept.end) - offset;
    if (!bytes)
        return 0;
    if (sl_grow(&keeper->kept, &keeper->kept_capacity, keeper->kept_count + 1,
                sizeof(*keeper->kept), err) < 0)
        return -1;
    keeper->kept[keeper->kept_count++] = kept;
    keeper->bytes += sl_extent_bytes(
        keeper->plan,
        &(struct sl_extent){.begin = kept.begin, .end = kept.end, .target = extent->target});
    if (sl_deferred_feed_landed(keeper->deferred, extent->file, offset, bytes, err) < 0)
        return -1;
    if (!mapping->check_count)
        return 0;
    struct sl_verify_bytes fed = {.source = extent->source,
                                  .begin = kept.begin,
                                  .bytes = bytes,
                                  .placed = true,
                                  .file = mapping->file,
                                  .file_offset =
                                      mapping->file_offset + (kept.begin - mapping->begin)};
    return sl_verify_take(keeper->verify, &fed, err);
}

/* crc32c: of all of them, or NULL. */
static int keep_part(struct keeper *keeper, uint32_t number, uint64_t begin, uint64_t end,
                     const uint32_t *crc32c, struct sl_err *err)
{
    const struct sl_extent *extent = &keeper->plan->extents[number];
    if (sl_grow(&keeper->kept, &keeper->kept_capacity, keeper->kept_count + 1,
                sizeof(*keeper->kept), err) < 0)
        return -1;
    struct kept *kept = &keeper->kept[keeper->kept_count++];
    kept->extent = number;
    kept->begin = extent->begin + (begin - extent->file_offset);
    kept->end = extent->begin + (end - extent->file_offset);
    keeper->bytes += end - begin;
    if (sl_deferred_feed_landed(keeper->deferred, extent->file, begin, end - begin, err) < 0)
        return -1;
    struct sl_verify_bytes fed = {.source = extent->source,
                                  .begin = kept->begin,
                                  .bytes = end - begin,
                                  .crc32c = crc32c,
                                  .placed = true,
                                  .file = extent->file,
                                  .file_offset = begin};
    return sl_verify_take(keeper->verify, &fed, err);
}

static int keep_stretch(struct sl_work *work, uint32_t file, uint64_t begin, uint64_t end,
                        struct sl_err *err)
{
    if (sl_grow(&work->kept, &work->kept_capacity, work->kept_count + 1, sizeof(*work->kept), err) <
        0)
        return -1;
    work->kept[work->kept_count++] = (struct sl_stretch){file, begin, end};
    return 0;
}

/* They are merged and in order, so one that holds all of it is the last to begin before it. */
bool sl_work_keeps(const struct sl_work *work, uint32_t file, uint64_t begin, uint64_t end)
{
    size_t behind = SL_LOWER_BOUND(
        i, work->kept_count,
        work->kept[i].file < file || (work->kept[i].file == file && work->kept[i].begin <= begin));
    const struct sl_stretch *last = behind ? &work->kept[behind - 1] : NULL;
    return last && last->file == file && last->end >= end;
}

/* From the journal: bytes [begin, end) of a file are right. */
static int keep(uint32_t file, uint64_t begin, uint64_t end, const uint32_t *crc32c, void *arg,
                struct sl_err *err)
{
    struct keeper *keeper = arg;
    const struct sl_plan *plan = keeper->plan;
    if (keeper->composes && keep_stretch(keeper->work, file, begin, end, err) < 0)
        return -1;
    for (size_t i = first_after(keeper, file, begin); i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[keeper->by_file[i]];
        if (extent->file != file || extent->file_offset >= end)
            break;
        uint64_t extent_end = extent->file_offset + sl_extent_file_bytes(plan, extent);
        if (extent->target) {
            if (keep_formed(keeper, keeper->by_file[i], begin, end, err) < 0)
                return -1;
        } else {
            bool all = extent->file_offset <= begin && end <= extent_end;
            if (keep_part(keeper, keeper->by_file[i], SL_MAX(begin, extent->file_offset),
                          SL_MIN(end, extent_end), all ? crc32c : NULL, err) < 0)
                return -1;
        }
    }
    return 0;
}

/* Nothing is read of a file that is there already. */
static int keep_inherited(struct keeper *keeper, const struct sl_sink *sink, struct sl_err *err)
{
    const struct sl_plan *plan = keeper->plan;
    for (uint32_t i = 0; i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[i];
        if (!sl_is_inherited(sink, extent->file))
            continue;
        if (sl_grow(&keeper->kept, &keeper->kept_capacity, keeper->kept_count + 1,
                    sizeof(*keeper->kept), err) < 0)
            return -1;
        keeper->kept[keeper->kept_count++] = (struct kept){i, extent->begin, extent->end};
        keeper->work->inherited_bytes += sl_extent_bytes(plan, extent);
    }
    return 0;
}

/* ---- what is missing ------------------------------------------------------------------------ */

struct cutter {
    const struct sl_plan *plan;
    const struct kept *kept, *kept_end;
    struct sl_extent *extents;
    struct sl_range *ranges;
    size_t extent_count, extent_capacity, range_count, range_capacity;
};

static int add_missing(struct cutter *cutter, const struct sl_extent *extent, uint64_t begin,
                       uint64_t end, bool fresh_range, struct sl_err *err)
{
    if (begin == end)
        return 0;
    const struct sl_mapping *mapping = sl_extent_mapping(cutter->plan, extent);
    struct sl_range *last = cutter->range_count ? &cutter->ranges[cutter->range_count - 1] : NULL;
    if (sl_grow(&cutter->extents, &cutter->extent_capacity, cutter->extent_count + 1,
                sizeof(*cutter->extents), err) < 0)
        return -1;
    cutter->extents[cutter->extent_count++] = (struct sl_extent){
        begin,
        end,
        extent->source,
        extent->file,
        mapping ? sl_mapping_place(mapping, begin) : extent->file_offset + (begin - extent->begin),
        extent->target};
    if (!fresh_range && begin - last->end < HOLE_BYTES_MAX) {
        last->end = end;
        last->extent_count++;
        return 0;
    }
    if (sl_grow(&cutter->ranges, &cutter->range_capacity, cutter->range_count + 1,
                sizeof(*cutter->ranges), err) < 0)
        return -1;
    cutter->ranges[cutter->range_count++] =
        (struct sl_range){begin, end, extent->source, (uint32_t)cutter->extent_count - 1, 1};
    return 0;
}

/* The kept parts of one extent, in order. */
static const struct kept *kept_of(const struct cutter *cutter, uint32_t extent)
{
    size_t count = (size_t)(cutter->kept_end - cutter->kept);
    return cutter->kept + SL_LOWER_BOUND(i, count, cutter->kept[i].extent < extent);
}

static int cut_range(struct cutter *cutter, const struct sl_range *range, struct sl_err *err)
{
    size_t ranges_before = cutter->range_count;
    for (uint32_t i = 0; i < range->extent_count; i++) {
        uint32_t number = range->extent_first + i;
        const struct sl_extent *extent = &cutter->plan->extents[number];
        uint64_t at = extent->begin;
        for (const struct kept *kept = kept_of(cutter, number);; kept++) {
            bool more = kept < cutter->kept_end && kept->extent == number;
            uint64_t end = more ? SL_MAX(kept->begin, at) : extent->end;
            bool fresh = cutter->range_count == ranges_before;
            if (add_missing(cutter, extent, at, end, fresh, err) < 0)
                return -1;
            if (!more)
                break;
            at = SL_MAX(kept->end, at);
        }
    }
    return 0;
}

static int cut_all(struct sl_work *work, const struct keeper *keeper, struct sl_err *err)
{
    const struct sl_plan *plan = keeper->plan;
    struct cutter cutter = {
        .plan = plan, .kept = keeper->kept, .kept_end = keeper->kept + keeper->kept_count};
    int failed = 0;
    for (size_t i = 0; !failed && i < plan->range_count; i++)
        failed = cut_range(&cutter, &plan->ranges[i], err);
    work->ranges = work->own_ranges = cutter.ranges;
    work->extents = work->own_extents = cutter.extents;
    work->range_count = cutter.range_count;
    work->resumed_bytes = keeper->bytes;
    return failed;
}

static int resume(struct sl_work *work, struct keeper *keeper, struct sl_sink *sink,
                  struct sl_journal *journal, struct sl_err *err)
{
    const struct sl_plan *plan = keeper->plan;
    keeper->by_file = sl_alloc_array(plan->extent_count, sizeof(*keeper->by_file), err);
    if (!keeper->by_file)
        return -1;
    for (size_t i = 0; i < plan->extent_count; i++)
        keeper->by_file[i] = (uint32_t)i;
    qsort_r(keeper->by_file, plan->extent_count, sizeof(*keeper->by_file), by_file, plan->extents);
    if (keep_inherited(keeper, sink, err) < 0 ||
        sl_journal_replay(journal, sink, keep, keeper, err) < 0)
        return -1;
    if (!keeper->kept_count)
        return 0;
    qsort(keeper->kept, keeper->kept_count, sizeof(*keeper->kept), by_extent);
    return cut_all(work, keeper, err);
}

int sl_work_make(struct sl_work *work, const struct sl_plan *plan, struct sl_sink *sink,
                 struct sl_journal *journal, struct sl_verify *verify, struct sl_deferred *deferred,
                 struct sl_err *err)
{
    *work = (struct sl_work){
        .ranges = plan->ranges, .range_count = plan->range_count, .extents = plan->extents};
    if (!journal)
        return 0;
    struct keeper keeper = {.plan = plan,
                            .verify = verify,
                            .deferred = deferred,
                            .work = work,
                            .composes = sl_reader_composes(plan)};
    int failed = resume(work, &keeper, sink, journal, err);
    free(keeper.by_file);
    free(keeper.kept);
    return failed;
}

/* Ranges of one file. */
static int order_by_owner(struct sl_work *work, const struct sl_plan *plan, size_t begin,
                          size_t end, uint64_t seed, struct sl_err *err)
{
    size_t count = end - begin;
    struct sl_range *ranges = work->own_ranges + begin;
    sl_autofree int *owners = sl_alloc_array(count, sizeof(*owners), err);
    sl_autofree uint32_t *order = sl_alloc_array(count, sizeof(*order), err);
    sl_autofree struct sl_range *ordered = sl_alloc_array(count, sizeof(*ordered), err);
    if (!owners || !order || !ordered)
        return -1;
    for (size_t i = 0; i < count; i++)
        owners[i] = sl_source_owner(plan->sources[ranges[i].source].source, ranges[i].begin);
    size_t caches = sl_through_count(sl_store_through(sl_source_store(plan->sources[0].source)));
    if (sl_caches_order(owners, count, caches, seed, order, err) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        ordered[i] = ranges[order[i]];
    memcpy(ranges, ordered, count * sizeof(*ranges));
    return 0;
}

int sl_work_scatter(struct sl_work *work, const struct sl_plan *plan, uint64_t seed,
                    struct sl_err *err)
{
    if (!work->own_ranges) {
        work->own_ranges = sl_alloc_array(work->range_count + 1, sizeof(*work->own_ranges), err);
        if (!work->own_ranges)
            return -1;
        memcpy(work->own_ranges, work->ranges, work->range_count * sizeof(*work->own_ranges));
        work->ranges = work->own_ranges;
    }
    for (size_t begin = 0, end; begin < work->range_count; begin = end) {
        uint32_t file = work->extents[work->ranges[begin].extent_first].file;
        for (end = begin; end < work->range_count; end++)
            if (work->extents[work->ranges[end].extent_first].file != file)
                break;
        if (order_by_owner(work, plan, begin, end, seed + begin, err) < 0)
            return -1;
    }
    return 0;
}

void sl_work_release(struct sl_work *work)
{
    free(work->own_ranges);
    free(work->own_extents);
    free(work->kept);
}

/*
 * From extents to ranges. Extents of one source are sorted by offset and walked once: a gap of up
 * to 64 KiB is fetched and thrown away, since a request costs more than that; a long extent is cut
 * at the chosen size, where the file's offset is a multiple of a page, so that no two readers write
 * into one page. A rest shorter than an eighth goes with its neighbour.
 *
 * What changes on its way is cut only where its mapping lets it be parted. Beside slices a gap is
 * fetched if it is shorter than a request is worth (weighing.c), or if a fiftieth of the range is
 * gaps. A sparse's ranges are its own, counted by what its rows cost.
 */
#include <inttypes.h>

#include "descriptors.h"
#include "log.h"
#include "mapping.h"
#include "plan_parts.h"

enum {
    GAP_BYTES_MAX = 64 * 1024,
    PAGE_BYTES = 4096,
    SMALL_OBJECT_BYTES =
        1024 * 1024,             /* fetched first: engines read config.json long before weights */
    RANGES_BETWEEN_LOOKS = 4096, /* at whether the load is canceled */
    RANGES_MAX = 256 * 1024,     /* about 80 bytes each: larger models have larger ranges */
};
static const uint64_t MIB = 1024 * 1024;

static int by_place(const void *a, const void *b)
{
    const struct sl_extent *x = a, *y = b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return 0;
}

/* With so large ones there are not many more than RANGES_MAX of them and of the extents uncut,
 * whatever sizes are claimed. A row of a sparse costs as if it was longer by a gap, see
 * cut_sparse().
 */
static uint64_t least_range_bytes(const struct sl_plan *plan)
{
    uint64_t total = 0;
    for (size_t i = 0; i < plan->extent_count; i++) {
        const struct sl_extent *extent = &plan->extents[i];
        uint64_t bytes = sl_extent_bytes(plan, extent), gaps = 0;
        if (sl_extent_sparse(plan, extent) &&
            __builtin_mul_overflow(bytes / sl_extent_mapping(plan, extent)->fetched.bytes,
                                   (uint64_t)GAP_BYTES_MAX, &gaps))
            gaps = UINT64_MAX;
        total = sl_add_capped(total, sl_add_capped(bytes, gaps));
    }
    return total / RANGES_MAX;
}

/*
 * 8 MiB suit an object of 0.5 to 4 GiB (facts of S3 and of caches in front of it: below 1 MB a
 * request is mostly latency); smaller totals give every connection something, larger ones need
 * fewer requests.
 */
static uint64_t choose_range_bytes(const struct sl_plan *plan, uint64_t total)
{
    uint64_t wanted = plan->own->spec->readers.range_bytes, least = least_range_bytes(plan);
    const struct sl_through *through = sl_store_through(plan->own->store);
    if (through && (wanted == SL_AUTO_VALUE || wanted == 0)) { /* a range is one cache's */
        uint64_t block = sl_through_block_bytes(through);
        wanted = (least / block + 1) * block;
    } else if (wanted == SL_AUTO_VALUE || wanted == 0) {
        wanted = SL_MIN(SL_MAX(total / 64, MIB), 8 * MIB);
        if (total / 512 > wanted)
            wanted = total / 512;
        const struct sl_store_advice advice = sl_store_advice(plan->own->store);
        wanted = SL_MIN(wanted * SL_MAX(advice.range_factor, 1U), 64 * MIB);
        wanted = SL_MAX(wanted, advice.range_bytes_min);
    } else if (wanted < least) {
        sl_log(SL_LOG_WARN,
               "readers.rangeBytes is %" PRIu64 " for this load, and not %" PRIu64
               ": a model has at most %d ranges",
               least, wanted, RANGES_MAX);
    }
    wanted = SL_MAX(wanted, least);
    return SL_MAX((wanted + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES, (uint64_t)PAGE_BYTES);
}

/* Have all of them come already? */
static bool is_held(const struct sl_plan *plan)
{
    for (size_t i = 0; i < plan->range_count; i++)
        if (plan->ranges[i].end > sl_source_held(plan->sources[plan->ranges[i].source].source))
            return false;
    return plan->range_count > 0;
}

static void choose_connections(struct sl_plan *plan)
{
    struct sl_plan_facts facts = {
        .given = plan->own->spec->readers.connections,
        .local = sl_store_traits(plan->own->store)->local || is_held(plan),
        .caches = sl_store_through(plan->own->store) != NULL,
        .in_order = sl_store_advice(plan->own->store).in_order,
        .ranges = plan->range_count,
        .fetch_bytes = sl_plan_expected_bytes(plan),
        .descriptors = sl_descriptors_for_connections(),
        .requests = plan->range_count - plan->rows.whole.requests + plan->rows.wanted.requests,
        .rows = plan->rows.rows > 0,
        .fixed = plan->fixed.on};
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++)
        facts.composed += plan->mappings[i].composed;
    plan->connections = sl_concurrency_of_plan(&facts);
}

struct cutter {
    struct sl_plan *plan;
    struct sl_extent *pieces;
    size_t count, capacity;
    bool open;       /* the last range may still grow */
    bool sliced;     /* some target is a slice */
    uint64_t wasted; /* gaps of the last range */
};

static int open_range(struct cutter *cutter, const struct sl_extent *extent, struct sl_err *err)
{
    struct sl_plan *plan = cutter->plan;
    if (plan->range_count % RANGES_BETWEEN_LOOKS == 0 &&
        sl_cancel_check(sl_store_cancel(plan->own->store), err) < 0)
        return -1;
    if (sl_grow(&plan->ranges, &plan->own->range_capacity, plan->range_count + 1,
                sizeof(*plan->ranges), err) < 0)
        return -1;
    plan->ranges[plan->range_count++] =
        (struct sl_range){extent->begin, extent->begin, extent->source, (uint32_t)cutter->count, 0};
    cutter->open = true;
    cutter->wasted = 0;
    return 0;
}

/* The first bytes of *rest, up to `end`, go with the last range. */
static int add_piece(struct cutter *cutter, struct sl_extent *rest, uint64_t end,
                     struct sl_err *err)
{
    if (cutter->count >= UINT32_MAX)
        return sl_fail(err, SL_E_FORMAT, "too many extents");
    if (sl_grow(&cutter->pieces, &cutter->capacity, cutter->count + 1, sizeof(*cutter->pieces),
                err) < 0)
        return -1;
    struct sl_extent *piece = &cutter->pieces[cutter->count++];
    *piece = *rest;
    piece->end = end;
    struct sl_range *range = &cutter->plan->ranges[cutter->plan->range_count - 1];
    cutter->wasted += rest->begin - range->end;
    range->end = end;
    range->extent_count++;
    rest->file_offset += sl_extent_file_bytes(cutter->plan, piece);
    rest->begin = end;
    return 0;
}

static bool is_gap_fetched(const struct cutter *cutter, const struct sl_range *range,
                           const struct sl_extent *extent)
{
    uint64_t gap = extent->begin - range->end;
    if (!cutter->sliced)
        return gap <= GAP_BYTES_MAX;
    if (gap <= sl_request_worth(&cutter->plan->weigh.facts, extent->end - extent->begin))
        return true;
    uint64_t bytes = range->end - range->begin + extent->end - extent->begin;
    return gap <= GAP_BYTES_MAX && (cutter->wasted + gap) * SL_PLAN_GAP_PART <= bytes;
}

/* Bytes of the extent that still fit into the last range; 0 if it needs a new one. */
static uint64_t room_for(const struct cutter *cutter, const struct sl_extent *extent)
{
    if (!cutter->open)
        return 0;
    const struct sl_range *range = &cutter->plan->ranges[cutter->plan->range_count - 1];
    uint64_t limit = cutter->plan->range_bytes;
    if (range->source != extent->source || extent->begin < range->end ||
        extent->begin - range->begin >= limit || !is_gap_fetched(cutter, range, extent))
        return 0;
    return limit - (extent->begin - range->begin);
}

/* Where to cut, `take` bytes on or a little before: at a page of the file. */
static uint64_t cut_at_page(const struct sl_extent *rest, uint64_t take)
{
    uint64_t ragged = (rest->file_offset + take) % PAGE_BYTES;
    return rest->begin + take - (ragged < take ? ragged : 0);
}

/* The same where it may be parted; beyond if there is no such place before. */
static uint64_t cut_at_unit(const struct sl_mapping *mapping, const struct sl_extent *rest,
                            uint64_t take)
{
    uint64_t end = rest->begin + take;
    uint64_t ragged =
        sl_mapping_place(mapping, end) % PAGE_BYTES / mapping->out_item * mapping->in_item;
    if (mapping->unit < PAGE_BYTES && ragged < take)
        end -= ragged;
    end = sl_mapping_floor(mapping, end);
    return end > rest->begin ? end : SL_MIN(sl_mapping_ceil(mapping, rest->begin + 1), rest->end);
}

static int cut_extent(struct cutter *cutter, struct sl_extent rest, struct sl_err *err)
{
    const struct sl_mapping *mapping = sl_extent_mapping(cutter->plan, &rest);
    uint64_t limit = cutter->plan->range_bytes;
    while (rest.begin < rest.end) {
        uint64_t room = room_for(cutter, &rest);
        bool fresh = room == 0;
        if (fresh && open_range(cutter, &rest, err) < 0)
            return -1;
        uint64_t take = fresh ? limit : room, end = rest.end;
        if (rest.end - rest.begin > take + limit / 8)
            end = mapping ? cut_at_unit(mapping, &rest, take) : cut_at_page(&rest, take);
        bool tiny = end < rest.end && !mapping && end == rest.begin + take &&
                    (rest.file_offset + take) % PAGE_BYTES;
        bool far = end > rest.begin + take + limit / 8;
        if (!fresh && (tiny || far)) {
            cutter->open = false; /* less than a page, or than a unit, would fit */
            continue;
        }
        if (add_piece(cutter, &rest, end, err) < 0)
            return -1;
    }
    return 0;
}

/* What a row costs, in bytes: one that is asked for, or fetched with the gap behind it. */
static uint64_t row_cost(const struct sl_runs *rows)
{
    uint64_t asked = rows->bytes + GAP_BYTES_MAX;
    return rows->level_count ? SL_MIN(asked, rows->levels[rows->level_count - 1].stride) : asked;
}

/* So many rows a range that it costs what a range of bytes costs. */
static int cut_sparse(struct cutter *cutter, struct sl_extent rest, struct sl_err *err)
{
    const struct sl_mapping *mapping = sl_extent_mapping(cutter->plan, &rest);
    const struct sl_runs *rows = &mapping->fetched;
    uint64_t count = SL_MAX(cutter->plan->range_bytes / row_cost(rows), 1u), left;
    for (uint64_t taken = 0; taken < rows->total;) {
        taken += SL_MIN(count * rows->bytes, rows->total - taken);
        uint64_t end = mapping->begin + sl_runs_at(rows, taken - 1, &left) + left;
        if (open_range(cutter, &rest, err) < 0 || add_piece(cutter, &rest, end, err) < 0)
            return -1;
        if (taken < rows->total)
            rest.begin = mapping->begin + sl_runs_at(rows, taken, &left);
    }
    cutter->open = false;
    return 0;
}

static uint64_t range_bytes(const struct sl_plan *plan, const struct sl_range *range)
{
    const struct sl_extent *first = &plan->extents[range->extent_first];
    return sl_extent_sparse(plan, first) ? sl_extent_bytes(plan, first) : range->end - range->begin;
}

/* A plan's order of fetching must be the same every time, so equal ranks fall back on place. */
static int by_turn(const void *a, const void *b, void *arg)
{
    const struct sl_range *x = a, *y = b;
    const struct sl_plan *plan = arg;
    bool x_small = sl_source_bytes(plan->sources[x->source].source) <= SMALL_OBJECT_BYTES;
    bool y_small = sl_source_bytes(plan->sources[y->source].source) <= SMALL_OBJECT_BYTES;
    if (x_small != y_small)
        return x_small ? -1 : 1;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

int sl_plan_cut(struct sl_plan *plan, struct sl_err *err)
{
    uint64_t total = 0, objects = 0;
    sl_plan_weigh(plan);
    for (size_t i = 0; i < plan->extent_count; i++)
        total = sl_add_capped(total, sl_extent_bytes(plan, &plan->extents[i]));
    plan->range_bytes = choose_range_bytes(plan, total);
    if (plan->extent_count)
        qsort(plan->extents, plan->extent_count, sizeof(*plan->extents), by_place);

    struct cutter cutter = {.plan = plan};
    for (size_t i = 0; i < plan->target_count; i++)
        cutter.sliced = cutter.sliced || plan->targets[i].slice;
    int done = 0;
    for (size_t i = 0; done == 0 && i < plan->extent_count; i++)
        done = sl_extent_sparse(plan, &plan->extents[i])
                   ? cut_sparse(&cutter, plan->extents[i], err)
                   : cut_extent(&cutter, plan->extents[i], err);
    free(plan->extents);
    plan->extents = cutter.pieces;
    plan->extent_count = cutter.count;
    if (done < 0)
        return -1;
    if (plan->range_count)
        qsort_r(plan->ranges, plan->range_count, sizeof(*plan->ranges), by_turn, plan);

    for (size_t i = 0; i < plan->range_count; i++)
        plan->fetch_bytes = sl_add_capped(plan->fetch_bytes, range_bytes(plan, &plan->ranges[i]));
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++)
        plan->fetch_bytes =
            sl_add_capped(plan->fetch_bytes, sl_mapping_composed(&plan->mappings[i]));
    for (size_t i = 0; i < plan->source_count; i++)
        objects = sl_add_capped(objects, sl_source_bytes(plan->sources[i].source));
    plan->skipped_bytes =
        sl_add_capped(plan->own->left_out_bytes, objects - SL_MIN(objects, plan->fetch_bytes));
    sl_plan_count_rows(plan);
    choose_connections(plan);
    return 0;
}

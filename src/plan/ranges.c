/*
 * From extents to ranges. Extents of one source are sorted by offset and walked once: a gap of up
 * to 64 KiB is fetched and thrown away, since a request costs more than that; a long extent is cut
 * at the chosen size, where the file's offset is a multiple of a page, so that no two readers write
 * into one page. A rest shorter than an eighth goes with its neighbour.
 */
#include "plan_parts.h"

enum {
    GAP_BYTES_MAX = 64 * 1024,
    PAGE_BYTES = 4096,
    SMALL_OBJECT_BYTES =
        1024 * 1024, /* fetched first: engines read config.json long before weights */
    CONNECTIONS_AUTO = 4,
    CONNECTIONS_AUTO_LOCAL = 2,
    CONNECTIONS_MAX = 64,
    CONNECTIONS_MAX_LOCAL = 8,
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

/*
 * 8 MiB suit an object of 0.5 to 4 GiB (facts of S3 and of caches in front of it: below 1 MB a
 * request is mostly latency); smaller totals give every connection something, larger ones need
 * fewer requests.
 */
static uint64_t choose_range_bytes(const struct sl_plan *plan, uint64_t total)
{
    uint64_t wanted = plan->own->spec->readers.range_bytes;
    if (wanted == SL_AUTO_VALUE || wanted == 0) {
        wanted = SL_MIN(SL_MAX(total / 64, MIB), 8 * MIB);
        if (total / 512 > wanted)
            wanted = SL_MIN(total / 512, 64 * MIB);
    }
    return SL_MAX((wanted + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES, (uint64_t)PAGE_BYTES);
}

static void choose_connections(struct sl_plan *plan)
{
    uint64_t wanted = plan->own->spec->readers.connections;
    bool local = strcmp(sl_store_kind(plan->own->store), "file") == 0;
    if (wanted == SL_AUTO_VALUE || wanted == 0) {
        plan->connections = local ? CONNECTIONS_AUTO_LOCAL : CONNECTIONS_AUTO;
        plan->connections_max = local ? CONNECTIONS_MAX_LOCAL : CONNECTIONS_MAX;
    } else {
        plan->connections = plan->connections_max = (unsigned)wanted;
    }
    unsigned useful = (unsigned)SL_MAX(SL_MIN(plan->range_count, (size_t)4096), (size_t)1);
    plan->connections_max = SL_MIN(plan->connections_max, useful);
    plan->connections = SL_MIN(plan->connections, plan->connections_max);
}

struct cutter {
    struct sl_plan *plan;
    struct sl_extent *pieces;
    size_t count, capacity;
    bool open; /* the last range may still grow */
};

static int open_range(struct cutter *cutter, const struct sl_extent *extent, struct sl_err *err)
{
    struct sl_plan *plan = cutter->plan;
    if (sl_grow(&plan->ranges, &plan->own->range_capacity, plan->range_count + 1,
                sizeof(*plan->ranges), err) < 0)
        return -1;
    plan->ranges[plan->range_count++] =
        (struct sl_range){extent->begin, extent->begin, extent->source, (uint32_t)cutter->count, 0};
    cutter->open = true;
    return 0;
}

static int add_piece(struct cutter *cutter, const struct sl_extent *piece, struct sl_err *err)
{
    if (cutter->count >= UINT32_MAX)
        return sl_fail(err, SL_E_FORMAT, "too many extents");
    if (sl_grow(&cutter->pieces, &cutter->capacity, cutter->count + 1, sizeof(*cutter->pieces),
                err) < 0)
        return -1;
    cutter->pieces[cutter->count++] = *piece;
    struct sl_range *range = &cutter->plan->ranges[cutter->plan->range_count - 1];
    range->end = piece->end;
    range->extent_count++;
    return 0;
}

/* Bytes of the extent that still fit into the last range; 0 if it needs a new one. */
static uint64_t room_for(const struct cutter *cutter, const struct sl_extent *extent)
{
    if (!cutter->open)
        return 0;
    const struct sl_range *range = &cutter->plan->ranges[cutter->plan->range_count - 1];
    uint64_t limit = cutter->plan->range_bytes;
    if (range->source != extent->source || extent->begin < range->end ||
        extent->begin - range->end > GAP_BYTES_MAX || extent->begin - range->begin >= limit)
        return 0;
    return limit - (extent->begin - range->begin);
}

static int cut_extent(struct cutter *cutter, struct sl_extent rest, struct sl_err *err)
{
    uint64_t limit = cutter->plan->range_bytes;
    while (rest.begin < rest.end) {
        uint64_t room = room_for(cutter, &rest), bytes = rest.end - rest.begin;
        if (room == 0 && open_range(cutter, &rest, err) < 0)
            return -1;
        bool fresh = room == 0;
        uint64_t take = fresh ? limit : room;
        if (bytes <= take + limit / 8) {
            take = bytes;
        } else {
            uint64_t ragged = (rest.file_offset + take) % PAGE_BYTES;
            if (ragged >= take && !fresh) {
                cutter->open = false; /* less than a page would fit: begin a new range */
                continue;
            }
            take -= ragged < take ? ragged : 0;
        }
        struct sl_extent piece = rest;
        piece.end = rest.begin + take;
        if (add_piece(cutter, &piece, err) < 0)
            return -1;
        rest.begin += take;
        rest.file_offset += take;
    }
    return 0;
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
    for (size_t i = 0; i < plan->extent_count; i++)
        total += plan->extents[i].end - plan->extents[i].begin;
    plan->range_bytes = choose_range_bytes(plan, total);
    if (plan->extent_count)
        qsort(plan->extents, plan->extent_count, sizeof(*plan->extents), by_place);

    struct cutter cutter = {.plan = plan};
    int done = 0;
    for (size_t i = 0; done == 0 && i < plan->extent_count; i++)
        done = cut_extent(&cutter, plan->extents[i], err);
    free(plan->extents);
    plan->extents = cutter.pieces;
    plan->extent_count = cutter.count;
    if (done < 0)
        return -1;
    if (plan->range_count)
        qsort_r(plan->ranges, plan->range_count, sizeof(*plan->ranges), by_turn, plan);

    for (size_t i = 0; i < plan->range_count; i++)
        plan->fetch_bytes += plan->ranges[i].end - plan->ranges[i].begin;
    for (size_t i = 0; i < plan->source_count; i++)
        objects += sl_source_bytes(plan->sources[i].source);
    plan->skipped_bytes = plan->own->left_out_bytes + objects - SL_MIN(objects, plan->fetch_bytes);
    choose_connections(plan);
    return 0;
}

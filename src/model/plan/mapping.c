/*
 * A slice of a row-major tensor is a set of equally long runs: the inner dimensions that are taken
 * whole, and the range in front of them, lie together; the dimensions before those count the runs,
 * like an odometer. Taken bytes are counted through the levels by division, both ways, so a slice
 * of a million runs needs no list of them.
 */
#include "mapping.h"

#include <inttypes.h>
#include <string.h>

#include "cast.h"
#include "mem.h"

/* ---- runs ------------------------------------------------------------------------------------ */

uint64_t sl_runs_before(const struct sl_runs *runs, uint64_t at)
{
    uint64_t taken = 0;
    for (unsigned i = 0; i < runs->level_count; i++) {
        const struct sl_run_level *level = &runs->levels[i];
        uint64_t step = at / level->stride;
        if (step < level->begin)
            return taken;
        if (step - level->begin >= level->count)
            return taken + level->count * level->each;
        taken += (step - level->begin) * level->each;
        at %= level->stride;
    }
    return taken + (at <= runs->first ? 0 : SL_MIN(at - runs->first, runs->bytes));
}

uint64_t sl_runs_at(const struct sl_runs *runs, uint64_t taken, uint64_t *left)
{
    uint64_t at = runs->first;
    for (unsigned i = 0; i < runs->level_count; i++) {
        const struct sl_run_level *level = &runs->levels[i];
        at += (level->begin + taken / level->each) * level->stride;
        taken %= level->each;
    }
    *left = runs->bytes - taken;
    return at + taken;
}

uint64_t sl_runs_group(const struct sl_runs *runs, uint64_t gap)
{
    uint64_t group = runs->bytes, span = runs->bytes;
    for (unsigned i = runs->level_count; i-- > 0;) {
        const struct sl_run_level *level = &runs->levels[i];
        if (level->count > 1 && level->stride - span > gap)
            break;
        group = level->each * level->count;
        span += (level->count - 1) * level->stride;
    }
    return group;
}

uint64_t sl_runs_within(const struct sl_runs *runs, uint64_t stored)
{
    if (!runs->level_count)
        return runs->bytes;
    uint64_t count = stored / runs->levels[runs->level_count - 1].stride;
    return SL_MIN(SL_MAX(count, 1u), runs->total / runs->bytes) * runs->bytes;
}

size_t sl_runs_gather(const struct sl_runs *runs, uint64_t begin, uint64_t end, const uint8_t *from,
                      uint8_t *to)
{
    uint64_t taken = sl_runs_before(runs, begin), stop = sl_runs_before(runs, end), left;
    size_t done = 0;
    while (taken < stop) {
        const uint8_t *run = from + (sl_runs_at(runs, taken, &left) - begin);
        size_t bytes = (size_t)SL_MIN(left, stop - taken);
        if (to + done != run)
            memmove(to + done, run, bytes);
        done += bytes;
        taken += bytes;
    }
    return done;
}

/* A dimension of a slice, in bits: quantised types lie in blocks along the last. */
struct dimension {
    uint64_t stride_bits, size, begin, count; /* in blocks */
};

/* False if the slice begins or ends within a block. */
static bool list_dimensions(const struct sl_tensor *tensor, const struct sl_slice *slice,
                            struct dimension *dimensions)
{
    const struct sl_dtype_row *row = sl_dtype_row(tensor->dtype);
    uint64_t stride = row->bits;
    for (unsigned i = tensor->rank; i-- > 0;) {
        uint64_t block = i + 1 == tensor->rank ? row->block : 1;
        if (slice->begin[i] % block || slice->end[i] % block)
            return false;
        dimensions[i] = (struct dimension){.stride_bits = stride,
                                           .size = tensor->shape[i] / block,
                                           .begin = slice->begin[i] / block,
                                           .count = (slice->end[i] - slice->begin[i]) / block};
        stride *= dimensions[i].size;
    }
    return true;
}

/* Dimensions that are taken whole join the one before them; the rest are as many as are left. */
static unsigned join_dimensions(struct dimension *dimensions, unsigned rank)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < rank; i++) {
        struct dimension *last = kept ? &dimensions[kept - 1] : NULL, *next = &dimensions[i];
        if (last && next->count == next->size) {
            *last = (struct dimension){.stride_bits = next->stride_bits,
                                       .size = last->size * next->size,
                                       .begin = last->begin * next->size,
                                       .count = last->count * next->size};
        } else {
            dimensions[kept++] = *next;
        }
    }
    return kept;
}

/* 1: done; 0: a run is not a whole number of bytes. */
static int make_runs(struct sl_mapping *mapping, struct dimension *dimensions, unsigned count,
                     struct sl_err *err)
{
    struct sl_runs *runs = &mapping->selected;
    const struct dimension *last = &dimensions[count - 1];
    if (last->begin * last->stride_bits % 8 || last->count * last->stride_bits % 8)
        return 0;
    runs->first = last->begin * last->stride_bits / 8;
    runs->bytes = runs->total = last->count * last->stride_bits / 8;
    runs->level_count = count - 1;
    struct sl_run_level *levels =
        sl_index_alloc(mapping->target->index, count * sizeof(*levels), err);
    if (!levels)
        return -1;
    for (unsigned i = count - 1; i-- > 0;) {
        const struct dimension *dimension = &dimensions[i];
        if (dimension->stride_bits % 8)
            return 0;
        levels[i] = (struct sl_run_level){.stride = dimension->stride_bits / 8,
                                          .begin = dimension->begin,
                                          .count = dimension->count,
                                          .each = runs->total};
        runs->total *= dimension->count;
    }
    runs->levels = levels;
    return 1;
}

static int cut_slice(struct sl_mapping *mapping, struct sl_err *err)
{
    const struct sl_tensor *tensor = mapping->target->from;
    struct dimension dimensions[SL_SLICE_RANK_MAX];
    mapping->selected = (struct sl_runs){.bytes = tensor->bytes, .total = tensor->bytes};
    if (!mapping->target->slice || tensor->rank == 0 || tensor->rank > SL_SLICE_RANK_MAX)
        return 0;
    int done = list_dimensions(tensor, mapping->target->slice, dimensions);
    if (done)
        done = make_runs(mapping, dimensions, join_dimensions(dimensions, tensor->rank), err);
    mapping->composed = done == 0;
    return done < 0 ? -1 : 0;
}

/* ---- a tensor -------------------------------------------------------------------------------- */

static unsigned item_bytes(enum sl_dtype dtype)
{
    return sl_dtype_row(dtype)->bits / 8;
}

static void find_unit(struct sl_mapping *mapping)
{
    const struct sl_tensor *from = mapping->target->from;
    uint64_t item = SL_MAX(mapping->in_item, SL_MAX(mapping->swap_bytes, 1u));
    mapping->unit = item;
    if (!from->encrypted || mapping->composed)
        return;
    bool whole = from->crypt->mac_count <= 1;
    mapping->piece_bytes = whole ? from->bytes : from->crypt->piece_bytes;
    mapping->unit = mapping->piece_bytes;
    mapping->composed = mapping->unit % item != 0;
}

int sl_mapping_init(struct sl_mapping *mapping, const struct sl_target *target, uint32_t file,
                    uint64_t file_offset, struct sl_err *err)
{
    const struct sl_tensor *from = target->from;
    *mapping = (struct sl_mapping){
        .target = target,
        .begin = from->begin,
        .end = from->end,
        .source = target->source,
        .file = file,
        .file_offset = file_offset,
        .in_item = 1,
        .out_item = 1,
        .swap_bytes = from->swap_bytes > 1 ? from->swap_bytes : 0,
        .composed = from->strides || from->chunks,
    };
    if (from->dtype != target->out.dtype) {
        mapping->in_item = item_bytes(from->dtype);
        mapping->out_item = item_bytes(target->out.dtype);
        if (!sl_cast_offered(from->dtype, target->out.dtype))
            return sl_fail(err, SL_E_INTERNAL, "tensor '%s' cannot be cast to %s", from->name,
                           target->out.dtype_name);
    }
    bool sparse = mapping->composed;
    if (cut_slice(mapping, err) < 0)
        return -1;
    mapping->composed = mapping->composed || sparse;
    find_unit(mapping);
    mapping->changes = from->encrypted || from->dtype != target->out.dtype || mapping->swap_bytes;
    bool fits = mapping->selected.total / mapping->in_item * mapping->out_item == target->out.bytes;
    if (!mapping->composed && !from->meta && !fits)
        return sl_fail(err, SL_E_INTERNAL, "tensor '%s' is written with a wrong length: %" PRIu64,
                       target->out.name, target->out.bytes);
    return 0;
}

uint64_t sl_mapping_place(const struct sl_mapping *mapping, uint64_t place)
{
    uint64_t taken = sl_runs_before(&mapping->selected, place - mapping->begin);
    return mapping->file_offset + taken / mapping->in_item * mapping->out_item;
}

uint64_t sl_mapping_floor(const struct sl_mapping *mapping, uint64_t place)
{
    return place >= mapping->end ? mapping->end : place - (place - mapping->begin) % mapping->unit;
}

uint64_t sl_mapping_ceil(const struct sl_mapping *mapping, uint64_t place)
{
    uint64_t over = (place - mapping->begin) % mapping->unit;
    if (!over || place >= mapping->end)
        return SL_MIN(place, mapping->end);
    return mapping->end - place <= mapping->unit - over ? mapping->end
                                                        : place + (mapping->unit - over);
}

uint64_t sl_mapping_fetched(const struct sl_mapping *mapping, uint64_t begin, uint64_t end)
{
    return sl_runs_before(&mapping->fetched, end - mapping->begin) -
           sl_runs_before(&mapping->fetched, begin - mapping->begin);
}

uint64_t sl_mapping_composed(const struct sl_mapping *mapping)
{
    const struct sl_target *target = mapping->target;
    if (!mapping->composed || target->from->meta)
        return 0;
    return target->out.bytes / mapping->out_item * mapping->in_item;
}

uint64_t sl_extent_bytes(const struct sl_plan *plan, const struct sl_extent *extent)
{
    const struct sl_mapping *sparse = sl_extent_sparse(plan, extent);
    return sparse ? sl_mapping_fetched(sparse, extent->begin, extent->end)
                  : extent->end - extent->begin;
}

uint64_t sl_extent_file_bytes(const struct sl_plan *plan, const struct sl_extent *extent)
{
    const struct sl_mapping *mapping = sl_extent_mapping(plan, extent);
    if (!mapping)
        return extent->end - extent->begin;
    return sl_mapping_place(mapping, extent->end) - sl_mapping_place(mapping, extent->begin);
}

struct sl_plan_changes sl_plan_changes(const struct sl_plan *plan)
{
    struct sl_plan_changes changes = {0};
    for (size_t i = 0; i < plan->target_count; i++) {
        const struct sl_target *target = &plan->targets[i];
        changes.decrypted += target->from->encrypted && target->from->begin < target->from->end;
        changes.cast += target->from->dtype != target->out.dtype;
        changes.sliced += target->slice != NULL;
    }
    return changes;
}

bool sl_mapping_keeps_pieces(const struct sl_mapping *mapping)
{
    const struct sl_target *target = mapping->target;
    return mapping->piece_bytes && !mapping->check_count && !mapping->composed &&
           !mapping->swap_bytes && !mapping->fetched.total && !target->slice &&
           target->from->dtype == target->out.dtype && mapping->in_item == mapping->out_item &&
           mapping->selected.total == mapping->end - mapping->begin;
}

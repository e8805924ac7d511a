/*
 * From a selected tensor and its place in a file to extents.
 *
 * What lands as it is becomes plain extents, one a run. Encrypted tensors can only be checked piece
 * by piece, so a slice of one takes every piece that it touches. Slices whose runs are short become
 * a sparse: one extent for many runs, of which only the rows are fetched, each with a request of
 * its own; a list of them would outgrow the model's index. Gaps that cost less than a request's own
 * bytes, or a fiftieth of what lies around them, are fetched with their neighbours.
 */
#include <inttypes.h>

#include "mapping.h"
#include "plan_parts.h"

enum {
    TOOTH_BYTES_MAX = 64 * 1024, /* longer runs are extents of their own */
    ROWS_MAX = 512 * 1024,       /* of them, 32 GiB or more, beside one extent a tensor */
};

static int add_extent(struct sl_plan *plan, const struct sl_mapping *mapping, uint64_t begin,
                      uint64_t end, bool plain, struct sl_err *err)
{
    if (begin >= end)
        return 0;
    if (sl_grow(&plan->extents, &plan->own->extent_capacity, plan->extent_count + 1,
                sizeof(*plan->extents), err) < 0)
        return -1;
    plan->extents[plan->extent_count++] = (struct sl_extent){
        begin,
        end,
        mapping->source,
        mapping->file,
        sl_mapping_place(mapping, begin),
        plain ? 0 : (uint32_t)(mapping - plan->mappings) + 1,
    };
    return 0;
}

/* Consecutive pieces that hold taken bytes are one extent. */
static int add_pieces(struct sl_plan *plan, const struct sl_mapping *mapping, struct sl_err *err)
{
    uint64_t stored = mapping->end - mapping->begin, begin = 0, end = 0;
    for (uint64_t at = 0; at < stored;) {
        uint64_t next = stored - at > mapping->piece_bytes ? at + mapping->piece_bytes : stored;
        if (sl_runs_before(&mapping->selected, next) > sl_runs_before(&mapping->selected, at)) {
            if (end != at) {
                if (add_extent(plan, mapping, mapping->begin + begin, mapping->begin + end, false,
                               err) < 0)
                    return -1;
                begin = at;
            }
            end = next;
        }
        at = next;
    }
    return add_extent(plan, mapping, mapping->begin + begin, mapping->begin + end, false, err);
}

/* The runs as they are fetched: inner levels whose gaps are small are taken whole. */
static struct sl_runs choose_rows(const struct sl_runs *taken)
{
    struct sl_runs rows = *taken;
    while (rows.level_count) {
        const struct sl_run_level *level = &rows.levels[rows.level_count - 1];
        uint64_t gap = level->stride - rows.bytes;
        if (level->count > 1 && gap > SL_PLAN_GAP_BYTES_MIN && gap > rows.bytes / SL_PLAN_GAP_PART)
            break;
        rows.first += level->begin * level->stride;
        rows.bytes += (level->count - 1) * level->stride;
        rows.level_count--;
    }
    rows.total = rows.bytes;
    for (unsigned i = 0; i < rows.level_count; i++)
        rows.total *= rows.levels[i].count;
    return rows;
}

/* How many bytes of the rows one step of a level has. */
static int copy_levels(struct sl_runs *rows, struct sl_index *index, struct sl_err *err)
{
    if (!rows->level_count)
        return 0;
    struct sl_run_level *levels = sl_index_alloc(index, rows->level_count * sizeof(*levels), err);
    if (!levels)
        return -1;
    uint64_t each = rows->bytes;
    for (unsigned i = rows->level_count; i-- > 0;) {
        levels[i] = rows->levels[i];
        levels[i].each = each;
        each *= levels[i].count;
    }
    rows->levels = levels;
    return 0;
}

static int add_rows(struct sl_plan *plan, const struct sl_mapping *mapping,
                    const struct sl_runs *rows, struct sl_err *err)
{
    bool plain = !mapping->changes && rows->bytes == mapping->selected.bytes;
    if (rows->total / rows->bytes + plan->extent_count > ROWS_MAX + plan->target_count)
        return sl_fail_code(err, SL_E_FORMAT, "size",
                            "slices of the model would lie in more than %d places of its objects, "
                            "that of tensor '%s' in %" PRIu64 ": take more of its last dimensions",
                            ROWS_MAX, mapping->target->from->name, rows->total / rows->bytes);
    for (uint64_t taken = 0; taken < rows->total; taken += rows->bytes) {
        uint64_t left, begin = mapping->begin + sl_runs_at(rows, taken, &left);
        if (add_extent(plan, mapping, begin, begin + left, plain, err) < 0)
            return -1;
    }
    return 0;
}

static int add_runs(struct sl_plan *plan, struct sl_mapping *mapping, struct sl_err *err)
{
    uint64_t left;
    struct sl_runs rows = choose_rows(&mapping->selected);
    if (copy_levels(&rows, mapping->target->index, err) < 0)
        return -1;
    if (rows.total == rows.bytes || rows.bytes >= TOOTH_BYTES_MAX)
        return add_rows(plan, mapping, &rows, err);
    mapping->fetched = rows;
    uint64_t first = mapping->begin + sl_runs_at(&rows, 0, &left);
    uint64_t last = mapping->begin + sl_runs_at(&rows, rows.total - 1, &left);
    return add_extent(plan, mapping, first, last + left, false, err);
}

int sl_plan_place(struct sl_plan *plan, const struct sl_target *target, uint32_t file,
                  uint64_t file_offset, struct sl_err *err)
{
    struct sl_mapping *mapping = &plan->mappings[target - plan->targets];
    if (sl_mapping_init(mapping, target, file, file_offset, err) < 0)
        return -1;
    if (target->from->meta || target->out.bytes == 0 || mapping->composed)
        return 0;
    return mapping->piece_bytes ? add_pieces(plan, mapping, err) : add_runs(plan, mapping, err);
}

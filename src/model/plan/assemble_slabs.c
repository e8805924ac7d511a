/*
 * Layout slabs, for the pool: tensors one after another in files that become shareable memory. Each
 * begins at a multiple of what any GPU copy wants, and none crosses the end of its file: whoever
 * maps a slab has all of each of its tensors in one piece. A tensor larger than a slab has one of
 * its own.
 */
#include <inttypes.h>
#include <string.h>

#include "names.h"
#include "plan_parts.h"

enum {
    ALIGN_BYTES = 256,
    HEAD_BYTES = 4096, /* of an index, its name and key; at most */
    ROW_BYTES = 64,    /* of a tensor, a slab or a pair in it; at most */
};

static uint64_t align(uint64_t offset)
{
    return (offset + ALIGN_BYTES - 1) & ~(uint64_t)(ALIGN_BYTES - 1);
}

/* Place tensors [0, count); with `layout` NULL they are only counted. Returns the files. */
static size_t place_all(const struct sl_tensor *const *tensors, size_t count, uint64_t slab_bytes,
                        struct sl_layout *layout)
{
    size_t files = 0;
    uint64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t offset = align(used), bytes = tensors[i]->bytes;
        if (files == 0 ||
            (used && bytes && (offset >= slab_bytes || bytes > slab_bytes - offset))) {
            files++;
            offset = 0;
        }
        used = bytes ? offset + bytes : used;
        if (!layout)
            continue;
        layout->places[i] = (struct sl_layout_place){
            .tensor = tensors[i], .file = (uint32_t)(files - 1), .offset = offset, .bytes = bytes};
        layout->files[files - 1].bytes = used;
    }
    return files;
}

static int check_tensor(const struct sl_tensor *tensor, struct sl_err *err)
{
    if (tensor->rank > SL_SLABS_RANK_MAX)
        return sl_fail(err, SL_E_FORMAT,
                       "tensor '%.*s' has %u dimensions, the pool's index holds %d: leave it out "
                       "with tensors.exclude",
                       SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->rank,
                       SL_SLABS_RANK_MAX);
    if (tensor->bytes > INT64_MAX / 2)
        return sl_fail(err, SL_E_FORMAT,
                       "tensor '%.*s' is too large for any memory: leave it out with "
                       "tensors.exclude",
                       SL_NAME_ARGS(tensor->name, tensor->name_bytes));
    return 0;
}

/* The widths of the index's fields: ranks, sums, and 32-bit places of texts in all of it. */
static int check_limits(const struct sl_plan *plan, const struct sl_tensor *const *tensors,
                        struct sl_err *err)
{
    uint64_t bytes = 0, index = HEAD_BYTES + plan->metadata_count * ROW_BYTES;
    for (size_t i = 0; i < plan->target_count; i++) {
        if (check_tensor(tensors[i], err) < 0)
            return -1;
        bytes += tensors[i]->bytes;
        index += ROW_BYTES + tensors[i]->rank * sizeof(uint64_t) + tensors[i]->name_bytes + 1;
        if (bytes > INT64_MAX / 2)
            return sl_fail(err, SL_E_FORMAT,
                           "up to tensor '%.*s' the model is too large for any memory: choose with "
                           "tensors.include",
                           SL_NAME_ARGS(tensors[i]->name, tensors[i]->name_bytes));
    }
    for (size_t i = 0; i < plan->metadata_count; i++)
        index += strlen(plan->metadata[i].key) + strlen(plan->metadata[i].value) + 2;
    if (index <= SL_SLABS_INDEX_BYTES_MAX)
        return 0;
    return sl_fail(err, SL_E_FORMAT,
                   "names, shapes and metadata of %zu tensors take %" PRIu64
                   " bytes of the pool's index, which has at most %d: choose with tensors.include",
                   plan->target_count, index, SL_SLABS_INDEX_BYTES_MAX);
}

int sl_plan_lay_slabs(struct sl_plan *plan, const struct sl_tensor *const *tensors,
                      struct sl_err *err)
{
    size_t count = plan->target_count;
    uint64_t slab_bytes = plan->own->output.part_bytes;
    if (check_limits(plan, tensors, err) < 0)
        return -1;
    SL_AUTO(sl_layout) layout = sl_alloc(sizeof(*layout), err);
    if (!layout)
        return -1;
    size_t files = place_all(tensors, count, slab_bytes, NULL);
    if (files > SL_SLABS_FILES_MAX)
        return sl_fail(err, SL_E_FORMAT,
                       "the model takes %zu slabs of the pool, which has %d for each: give it "
                       "larger ones",
                       files, SL_SLABS_FILES_MAX);
    layout->places = sl_alloc_array(count, sizeof(*layout->places), err);
    layout->files = sl_alloc_array(files, sizeof(*layout->files), err);
    if (!layout->places || !layout->files)
        return -1;
    layout->file_count = files;
    layout->place_count = count;
    place_all(tensors, count, slab_bytes, layout);
    for (size_t i = 0; i < files; i++) /* no object may be called so */
        if (!(layout->files[i].name = sl_asprintf(err, ".sluice/slab-%zu", i)))
            return -1;
    plan->own->layout = sl_steal(&layout);
    return 0;
}

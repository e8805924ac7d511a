/*
 * Layout slabs, for the pool: tensors one after another in files that become shareable memory. Each
 * begins at a multiple of what any GPU copy wants, and none crosses the end of its file: whoever
 * maps a slab has all of each of its tensors in one piece. A tensor larger than a slab has one of
 * its own.
 */
#include "plan_parts.h"

enum { ALIGN_BYTES = 256 };

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

int sl_plan_lay_slabs(struct sl_plan *plan, const struct sl_tensor *const *tensors,
                      struct sl_err *err)
{
    size_t count = plan->target_count;
    uint64_t slab_bytes = plan->own->spec->sink.tmpfs.shard_bytes;
    for (size_t i = 0; i < count; i++)
        if (tensors[i]->bytes > INT64_MAX / 2)
            return sl_fail(err, SL_E_FORMAT, "tensor '%s' is too large for any memory",
                           tensors[i]->name);
    SL_AUTO(sl_layout) layout = sl_alloc(sizeof(*layout), err);
    if (!layout)
        return -1;
    size_t files = place_all(tensors, count, slab_bytes, NULL);
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

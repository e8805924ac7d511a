/*
 * Some of what a plan has opened, as a plan of its own: for reads that come one after another, or
 * side by side, long after the objects were opened. Whatever is wanted is a file of its own; what
 * stored bytes become, which hashes there are and how ranges are cut is decided as for a load.
 *
 * Sources, store, keys and sidecars stay the opened plan's. What is planned needs memory that lives
 * with it, so every index is a view (sl_index_view()), and nothing is added to the opened plan.
 */
#include <inttypes.h>

#include "dtype.h"
#include "mapping.h"
#include "names.h"
#include "plan_parts.h"
#include "tensor_reader.h"

static int view_sources(struct sl_plan *plan, const struct sl_plan *opened, struct sl_err *err)
{
    plan->sources = sl_alloc_array(opened->source_count, sizeof(*plan->sources), err);
    if (!plan->sources)
        return -1;
    for (size_t i = 0; i < opened->source_count; i++) {
        struct sl_index *index = opened->sources[i].index;
        bool again = i && index == opened->sources[i - 1].index;
        plan->sources[i] = opened->sources[i];
        plan->sources[i].index = NULL;
        plan->source_count = i + 1;
        if (index && !again && !(plan->sources[i].index = sl_index_view(index, err)))
            return -1;
        if (again)
            plan->sources[i].index = plan->sources[i - 1].index;
    }
    return 0;
}

/* ---- slices ---------------------------------------------------------------------------------- */

static int check_slice(const struct sl_tensor *out, const struct sl_slice *slice,
                       struct sl_err *err)
{
    if (out->rank > SL_SLICE_RANK_MAX)
        return sl_fail(err, SL_E_USAGE, "tensor '%.*s' has %u dimensions, at most %d can be sliced",
                       SL_NAME_ARGS(out->name, out->name_bytes), out->rank, SL_SLICE_RANK_MAX);
    for (unsigned d = 0; d < out->rank; d++)
        if (slice->begin[d] > slice->end[d] || slice->end[d] > out->shape[d])
            return sl_fail(err, SL_E_USAGE,
                           "elements %" PRIu64 " to %" PRIu64 " leave dimension %u of tensor "
                           "'%.*s', which has size %" PRIu64,
                           slice->begin[d], slice->end[d], d,
                           SL_NAME_ARGS(out->name, out->name_bytes), out->shape[d]);
    return 0;
}

/* The slice of the stored tensor: the target may be one of its own. */
static struct sl_slice *stored_slice(const struct sl_target *target, const struct sl_slice *slice,
                                     struct sl_err *err)
{
    struct sl_slice *stored = sl_index_alloc(target->index, sizeof(*stored), err);
    if (!stored)
        return NULL;
    for (unsigned d = 0; d < target->out.rank; d++) {
        uint64_t first = target->slice ? target->slice->begin[d] : 0;
        stored->begin[d] = first + slice->begin[d];
        stored->end[d] = first + slice->end[d];
    }
    return stored;
}

static int cut(struct sl_target *target, const struct sl_slice *slice, struct sl_err *err)
{
    struct sl_tensor *out = &target->out;
    const struct sl_tensor *from = target->from;
    if (check_slice(out, slice, err) < 0)
        return -1;
    uint64_t *shape = sl_index_alloc(target->index, (out->rank + 1) * sizeof(*shape), err);
    struct sl_slice *stored = shape ? stored_slice(target, slice, err) : NULL;
    if (!stored || sl_slice_check(from, stored, err) < 0)
        return -1;
    out->bytes = sl_slice_bytes(from, stored, shape);
    if (from->dtype != out->dtype)
        out->bytes = out->bytes / (sl_dtype_row(from->dtype)->bits / 8) *
                     (sl_dtype_row(out->dtype)->bits / 8);
    out->shape = shape;
    target->slice = stored;
    return 0;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int add_file(struct sl_plan *plan, const char *name, uint64_t bytes, struct sl_err *err)
{
    char *copy = sl_strdup(name, err);
    if (!copy)
        return -1;
    plan->files[plan->file_count++] = (struct sl_plan_file){copy, bytes};
    return sl_plan_add_bytes(&plan->sink_bytes, bytes, plan, err);
}

static int place_target(struct sl_plan *plan, const struct sl_plan *opened,
                        const struct sl_plan_wanted *wanted, struct sl_err *err)
{
    struct sl_target *target = &plan->targets[plan->target_count++];
    *target = *wanted->target;
    target->index = plan->sources[target->source].index;
    if (sl_plan_refuse_unreadable(target->from, opened->sources[target->source].name, err) < 0 ||
        (wanted->slice && cut(target, wanted->slice, err) < 0) ||
        add_file(plan, target->out.name, target->out.bytes, err) < 0)
        return -1;
    return sl_plan_place(plan, target, (uint32_t)(plan->file_count - 1), 0, err);
}

static int place_bytes(struct sl_plan *plan, const struct sl_plan_wanted *wanted,
                       struct sl_err *err)
{
    const struct sl_plan_source *source = &plan->sources[wanted->source];
    if (wanted->begin > wanted->end || wanted->end > sl_source_bytes(source->source))
        return sl_fail(err, SL_E_USAGE,
                       "bytes %" PRIu64 " to %" PRIu64 " leave '%s', which has %" PRIu64,
                       wanted->begin, wanted->end, source->name, sl_source_bytes(source->source));
    if (add_file(plan, source->name, wanted->end - wanted->begin, err) < 0)
        return -1;
    if (wanted->begin == wanted->end)
        return 0;
    if (sl_grow(&plan->extents, &plan->own->extent_capacity, plan->extent_count + 1,
                sizeof(*plan->extents), err) < 0)
        return -1;
    plan->extents[plan->extent_count++] = (struct sl_extent){
        wanted->begin, wanted->end, wanted->source, (uint32_t)(plan->file_count - 1), 0, 0};
    return 0;
}

static int place_all(struct sl_plan *plan, const struct sl_plan *opened,
                     const struct sl_plan_wanted *wanted, size_t count, struct sl_err *err)
{
    plan->targets = sl_alloc_array(count, sizeof(*plan->targets), err);
    plan->mappings = sl_alloc_array(count, sizeof(*plan->mappings), err);
    plan->files = sl_alloc_array(count, sizeof(*plan->files), err);
    if (!plan->targets || !plan->mappings || !plan->files)
        return -1;
    for (size_t i = 0; i < count; i++)
        if ((wanted[i].target ? place_target(plan, opened, &wanted[i], err)
                              : place_bytes(plan, &wanted[i], err)) < 0)
            return -1;
    return 0;
}

int sl_plan_make_part(const struct sl_plan *opened, const struct sl_plan_wanted *wanted,
                      size_t count, pthread_mutex_t *lock, struct sl_plan **out, struct sl_err *err)
{
    const struct sl_plan_own *from = opened->own;
    const struct sl_plan_output output = {SL_LAYOUT_SLABS};
    SL_AUTO(sl_plan) plan = sl_plan_new(from->spec, &output, true, err);
    if (!plan)
        return -1;
    struct sl_plan_own *own = plan->own;
    own->borrowed = true;
    own->single = from->single;
    own->store = from->store;
    own->keys = from->keys;
    own->sidecars = from->sidecars;
    own->authentic = from->authentic;
    own->sidecars_of = from->sidecars_of;
    own->signature = from->signature;
    if (view_sources(plan, opened, err) < 0 || place_all(plan, opened, wanted, count, err) < 0)
        return -1;
    SL_LOCKED(lock); /* heads of objects are read where a sidecar covers them */
    if (sl_plan_check(plan, err) < 0 || sl_plan_cut(plan, err) < 0)
        return -1;
    *out = sl_steal(&plan);
    return 0;
}

/*
 * Models in several files that say so themselves (split GGUF). Whoever names the first part means
 * the model: the others come with it, as the shards of an index do. Below a prefix every part that
 * takes part must have its whole set beside it. Another part, named alone, is loaded alone.
 */
#include <inttypes.h>

#include "plan_parts.h"

int sl_plan_add_parts(struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    const struct sl_index *index = own->single ? own->candidates[0].index : NULL;
    if (!index || index->part.number > 0)
        return 0;
    for (uint32_t i = 1; i < index->part.count; i++) {
        sl_autofree char *name = sl_format_part_name(index, i, err);
        if (!name || sl_plan_add_candidate(plan, &(struct sl_entry){.name = name}, true, err) < 0)
            return -1;
    }
    return 0;
}

/* Of whole files some parts of a set may be left out on purpose. -1: no memory. */
static int is_wanted_whole(const struct sl_plan_own *own, const struct sl_index *index,
                           struct sl_err *err)
{
    for (uint32_t i = 0; !own->picks && i < index->part.count; i++) {
        struct sl_err why = SL_ERR_INIT;
        sl_autofree char *name = sl_format_part_name(index, i, &why);
        if (!name && why.kind == SL_E_NO_SPACE) {
            *err = why;
            return -1;
        }
        if (name && sl_plan_leaves_out(own, name))
            return 0;
    }
    return 1;
}

int sl_plan_check_sets(const struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_plan_own *own = plan->own;
    if (own->single && own->candidate_count == 1)
        return 0;
    sl_autofree const struct sl_index **indexes =
        sl_alloc_array(own->candidate_count, sizeof(*indexes), err);
    if (!indexes)
        return -1;
    size_t count = 0;
    for (size_t i = 0; i < own->candidate_count; i++)
        if (own->candidates[i].index) {
            int whole = own->single ? 1 : is_wanted_whole(own, own->candidates[i].index, err);
            if (whole < 0)
                return -1;
            if (whole)
                indexes[count++] = own->candidates[i].index;
        }
    return sl_format_check_sets(indexes, count, err);
}

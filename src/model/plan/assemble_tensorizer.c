/*
 * `layout: tensorizer`: one .tensors file. Its front (file header, metadata) and the headers of
 * tensors without data are known now and become literals, like the terminator; all other headers
 * hold hashes of data that are still to come and are written late.
 */
#include "plan_parts.h"

enum { TERMINATOR_BYTES = 8 };

int sl_plan_lay_tensorizer(struct sl_plan *plan, const struct sl_tensor *const *tensors,
                           struct sl_err *err)
{
    const struct sl_tensorizer_options options = {.align = plan->own->output.align_bytes};
    return sl_tensorizer_layout(tensors, plan->target_count, &options, &plan->own->layout, err);
}

static int add_literal(struct sl_plan *plan, uint32_t file, uint64_t offset, const uint8_t *data,
                       uint64_t bytes, struct sl_err *err)
{
    if (sl_grow(&plan->literals, &plan->own->literal_capacity, plan->literal_count + 1,
                sizeof(*plan->literals), err) < 0)
        return -1;
    plan->literals[plan->literal_count++] = (struct sl_literal){file, offset, data, bytes};
    return 0;
}

int sl_plan_add_deferred_headers(struct sl_plan *plan, struct sl_err *err)
{
    static const uint8_t terminator[TERMINATOR_BYTES];
    const struct sl_layout *layout = plan->own->layout;
    plan->deferred_headers =
        sl_alloc_array(layout->place_count, sizeof(*plan->deferred_headers), err);
    if (!plan->deferred_headers)
        return -1;
    for (size_t i = 0; i < layout->place_count; i++) {
        const struct sl_layout_place *place = &layout->places[i];
        const struct sl_layout_header *header = place->header;
        if (place->bytes > 0 && !place->tensor->meta)
            plan->deferred_headers[plan->deferred_header_count++] =
                (struct sl_deferred_header){place->file, header, place->bytes};
        else if (add_literal(plan, place->file, header->offset, header->data, header->bytes, err) <
                 0)
            return -1;
    }
    uint64_t end = layout->files[0].bytes - TERMINATOR_BYTES;
    return add_literal(plan, 0, end, terminator, TERMINATOR_BYTES, err);
}

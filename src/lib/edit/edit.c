/* Which formats are changed, and what their plans share. */
#include "edit.h"

#include <string.h>

typedef int plan_fn(struct sl_edit *edit, struct sl_err *err);
static const struct {
    const char *name;
    plan_fn *plan;
} formats[] = {
    {"safetensors", sl_edit_safetensors},
    {"tensorizer", sl_edit_tensorizer},
    {"pytorch", sl_edit_pytorch},
};

int sl_edit_add(struct sl_edit *edit, const uint8_t *data, uint64_t from, uint64_t bytes,
                struct sl_err *err)
{
    struct sl_file_piece *last = edit->piece_count ? &edit->pieces[edit->piece_count - 1] : NULL;
    if (!bytes)
        return 0;
    if (!data && last && !last->data && last->from + last->bytes == from) {
        last->bytes += bytes;
        return 0;
    }
    if (sl_grow(&edit->pieces, &edit->piece_capacity, edit->piece_count + 1, sizeof(*edit->pieces),
                err) < 0)
        return -1;
    edit->pieces[edit->piece_count++] = (struct sl_file_piece){bytes, data, from};
    return 0;
}

const uint8_t *sl_edit_data(struct sl_edit *edit, const struct sl_edit_item *item,
                            struct sl_err *err)
{
    static const uint8_t nothing;
    if (!item->tensor->bytes)
        return &nothing;
    return item->tensor->meta ? sl_index_alloc(edit->index, item->tensor->bytes, err) : item->data;
}

int sl_edit_plan(struct sl_edit *edit, struct sl_err *err)
{
    const struct sl_index *index = edit->index;
    plan_fn *plan = NULL;
    for (size_t i = 0; i < SL_COUNT(formats); i++)
        if (strcmp(index->format, formats[i].name) == 0)
            plan = formats[i].plan;
    if (!plan)
        return sl_fail(err, SL_E_USAGE,
                       "%s files are not changed in place: write a new one with sluice_create()",
                       index->format);
    if (index->source_count != 1)
        return sl_fail(err, SL_E_USAGE,
                       "an index of several files is not changed: name the file that the tensor is "
                       "in");
    if (index->encrypted)
        return sl_fail(err, SL_E_USAGE,
                       "an encrypted file is not changed in place: write a new one with "
                       "sluice_create()");
    return plan(edit, err);
}

void sl_edit_release(struct sl_edit *edit)
{
    free(edit->pieces);
    *edit = (struct sl_edit){0};
}

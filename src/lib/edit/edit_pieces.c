/* What the plans of all formats are made of. */
#include <string.h>

#include "edit.h"

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

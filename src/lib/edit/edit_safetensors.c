/*
 * A safetensors file with other tensors. Data follow each other without holes, so those that stay
 * do so in place only if whatever stands before them keeps its length: the head, too. A head that
 * must grow is given room for as much again, in blanks, which the format allows; the next tensors
 * then find their place in it.
 */
#include <string.h>

#include "edit.h"
#include "layout.h"

enum { LENGTH_BYTES = 8, ROOM_MIN = 4096, ROOM_STEP = 4096 };

static int read_head_bytes(const struct sl_index *index, uint64_t *bytes, struct sl_err *err)
{
    uint8_t length[LENGTH_BYTES];
    if (sl_source_read(index->sources[0], 0, length, sizeof(length), err) < 0)
        return -1;
    *bytes = LENGTH_BYTES + sl_get_le64(length);
    return 0;
}

/* A head of so many bytes; 0: as many as it needs, and room. NULL without an error: it needs more.
 */
static struct sl_buf *compose(struct sl_edit *edit, const struct sl_tensor *const *tensors,
                              uint64_t head_bytes, struct sl_buf *head, struct sl_err *err)
{
    const struct sl_index *index = edit->index;
    if (sl_safetensors_head(tensors, edit->count, index->metadata, index->metadata_count, head,
                            err) < 0)
        return NULL;
    if (head_bytes && head->used > head_bytes)
        return NULL;
    uint64_t used = head->used,
             room = (used + used / 2 + ROOM_MIN) / ROOM_STEP * ROOM_STEP + ROOM_STEP,
             bytes =
                 head_bytes ? head_bytes : SL_MIN(room, (uint64_t)SL_SAFETENSORS_JSON_BYTES_MAX);
    bytes = SL_MAX(bytes, used);
    char *text = sl_index_alloc(edit->index, bytes, err);
    if (!text)
        return NULL;
    memset(text, ' ', bytes);
    memcpy(text, head->data, used);
    sl_put_le64((uint8_t *)text, bytes - LENGTH_BYTES);
    return sl_edit_add(edit, (const uint8_t *)text, 0, bytes, err) < 0 ? NULL : head;
}

static int add_data(struct sl_edit *edit, struct sl_err *err)
{
    for (size_t i = 0; i < edit->count; i++) {
        const struct sl_edit_item *item = &edit->items[i];
        const struct sl_tensor *old = item->old;
        const uint8_t *data = item->tensor ? sl_edit_data(edit, item, err) : NULL;
        if (item->tensor && !data)
            return -1;
        if (sl_edit_add(edit, data, data ? 0 : old->begin,
                        data ? item->tensor->bytes : old->end - old->begin, err) < 0)
            return -1;
    }
    return 0;
}

int sl_edit_safetensors(struct sl_edit *edit, struct sl_err *err)
{
    uint64_t head_bytes;
    sl_autobuf head = SL_BUF_INIT(SL_SAFETENSORS_JSON_BYTES_MAX), longer = head;
    sl_autofree const struct sl_tensor **tensors =
        sl_alloc_array(edit->count + 1, sizeof(*tensors), err);
    if (!tensors || read_head_bytes(edit->index, &head_bytes, err) < 0)
        return -1;
    for (size_t i = 0; i < edit->count; i++)
        tensors[i] = edit->items[i].tensor ? edit->items[i].tensor : edit->items[i].old;
    struct sl_err why = SL_ERR_INIT;
    if (!compose(edit, tensors, head_bytes, &head, &why) &&
        (why.kind || !compose(edit, tensors, 0, &longer, &why))) {
        *err = why;
        return -1;
    }
    edit->seal = 0;
    return add_data(edit, err);
}

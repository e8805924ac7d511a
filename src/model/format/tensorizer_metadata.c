/*
 * The metadata block. Real writers reserve 256 KiB and use a fraction of it, so entries are parsed
 * from what opening the file has brought, and more is read, twice as much each time, only while the
 * entries asked for have not all been seen. An entry that needs more than the whole block is
 * E_METADATA.
 */
#include <string.h>

#include "buf.h"
#include "tensorizer.h"

/* The front of the block that has been read. */
struct block {
    struct sl_source *source;
    uint8_t *data;
    size_t held, bytes;
};

/* Double what is held. */
static int read_more(struct block *block, struct sl_err *err)
{
    size_t wanted = block->held ? 2 * block->held : SL_INDEX_HEAD_BYTES - SL_TZR_METADATA_AT;
    wanted = SL_MIN(wanted, block->bytes);
    uint8_t *grown = sl_alloc(wanted, err);
    if (!grown)
        return -1;
    if (block->held)
        memcpy(grown, block->data, block->held);
    free(block->data);
    block->data = grown;
    if (sl_source_read(block->source, SL_TZR_METADATA_AT + block->held, grown + block->held,
                       wanted - block->held, err) < 0)
        return -1;
    block->held = wanted;
    return 0;
}

/* Fields of one entry, pointing into the block. 0: it needs more bytes; 1: complete; -1: a bad tag.
 */
static int take_entry(struct sl_cursor *cursor, bool tagged, struct sl_tzr_entry *entry)
{
    const uint8_t *field;
    memset(entry, 0, sizeof(*entry));
    if (tagged) {
        if (!(field = sl_take(cursor, 4)))
            return 0;
        uint32_t tag = sl_get_le32(field);
        if (tag != 1 && tag != 5)
            return -1;
        entry->wide = tag == 5;
    }
    if (!(field = sl_take(cursor, 2)))
        return 0;
    entry->name_bytes = sl_get_le16(field);
    if (!(entry->name = (const char *)sl_take(cursor, entry->name_bytes)) ||
        !(field = sl_take(cursor, 2)))
        return 0;
    entry->type = field[0];
    entry->dtype_bytes = field[1];
    if (!(entry->dtype = (const char *)sl_take(cursor, entry->dtype_bytes)) ||
        !(field = sl_take(cursor, 1)))
        return 0;
    entry->rank = field[0];
    if (!(entry->shape = sl_take(cursor, (entry->wide ? 8u : 4u) * entry->rank)) ||
        !(field = sl_take(cursor, 24)))
        return 0;
    entry->header_offset = sl_get_le64(field);
    entry->data_offset = sl_get_le64(field + 8);
    entry->data_length = sl_get_le64(field + 16);
    return 1;
}

/* Name, dtype and shape into memory that stays. */
static int keep_entry(struct sl_index *index, struct sl_tzr_entry *entry, struct sl_err *err)
{
    size_t shape_bytes = (entry->wide ? 8u : 4u) * entry->rank;
    char *kept =
        sl_index_alloc(index, entry->name_bytes + 1u + entry->dtype_bytes + shape_bytes, err);
    if (!kept)
        return -1;
    memcpy(kept, entry->name, entry->name_bytes);
    entry->name = kept;
    kept += entry->name_bytes + 1u;
    memcpy(kept, entry->dtype, entry->dtype_bytes);
    entry->dtype = kept;
    kept += entry->dtype_bytes;
    if (shape_bytes)
        memcpy(kept, entry->shape, shape_bytes);
    entry->shape = (const uint8_t *)kept;
    return 0;
}

/* Checks 9 to 11 on entry `number`; *at moves behind it. */
static int next_entry(struct sl_index *index, struct block *block, const struct sl_tzr_file *file,
                      size_t number, size_t *at, struct sl_tzr_entry *entry, struct sl_err *err)
{
    for (;;) {
        struct sl_cursor cursor = {block->data, block->held, *at};
        int complete = block->data ? take_entry(&cursor, file->tagged, entry) : 0;
        if (complete < 0)
            return sl_fail_code(err, SL_E_FORMAT, "E_METADATA",
                                "metadata entry %zu has an unknown tag", number);
        if (complete) {
            *at = cursor.at;
            break;
        }
        if (block->held == block->bytes)
            return sl_fail_code(err, SL_E_FORMAT, "E_METADATA",
                                "metadata entry %zu of %" PRIu64 " runs over the block of %" PRIu64
                                " bytes",
                                number, file->tensor_count, file->metadata_bytes);
        if (read_more(block, err) < 0)
            return -1;
    }
    if (keep_entry(index, entry, err) < 0 || sl_tzr_path(index, entry, err) < 0)
        return -1;
    if (entry->type > SL_TZR_TYPE_STATE_DICT)
        return sl_fail_code(err, SL_E_FORMAT, "E_TYPE", "tensor '%.*s' has the unknown type %u",
                            SL_TZR_NAME(entry), entry->type);
    return 0;
}

int sl_tzr_metadata(struct sl_index *index, const struct sl_tzr_file *file,
                    struct sl_tzr_entry **out, size_t *count, struct sl_err *err)
{
    sl_autofree struct sl_tzr_entry *entries = NULL;
    struct block block = {.source = index->sources[0], .bytes = file->metadata_bytes};
    size_t capacity = 0, at = 0;
    int result = 0;
    for (size_t i = 0; i < file->tensor_count && result == 0; i++) {
        result = sl_grow(&entries, &capacity, i + 1, sizeof(*entries), err);
        if (result == 0)
            result = next_entry(index, &block, file, i, &at, &entries[i], err);
    }
    free(block.data);
    *count = file->tensor_count;
    if (result == 0)
        *out = sl_steal(&entries);
    return result;
}

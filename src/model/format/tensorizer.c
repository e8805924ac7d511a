/*
 * .tensors files of CoreWeave's tensorizer, data versions 1 to 5. The checks run in the order of
 * the specification's section 13, whose numbers stand in the comments: file header and metadata
 * block here, names in tensorizer_names.c, tensor headers in tensorizer_headers.c.
 *
 * Real writers reserve 256 KiB for metadata and use a fraction of it, so entries are parsed from
 * what opening the file has brought, and more is read, twice as much each time, only while the
 * entries asked for have not all been seen. An entry that needs more than the whole block is
 * E_METADATA.
 *
 * The metadata block says all that people ask of a file; headers stand before each tensor, and a
 * large file has as many places to read as it has large tensors. So whoever only lists it gets an
 * outline, and whoever will read all of it may have it fetched at once.
 *
 * Encrypted files are indexed without a key: names, shapes and places are readable, and their
 * tensors are listed as refused with E_KEY_REQUIRED.
 */
#include "tensorizer.h"

#include <string.h>

#include "buf.h"
#include "format.h"
#include "gather.h"

/* ---- the metadata block ---------------------------------------------------------------------- */

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

/* ---- the file header ------------------------------------------------------------------------- */

enum { OUTLINE_RUNS_MAX = 16 }; /* requests for headers that are worth what they check */

static const uint8_t magic[5] = {'|', 'T', 'Z', 'R', '|'};

static bool probe(const struct sl_format_head *head)
{
    return head->bytes >= sizeof(magic) && memcmp(head->data, magic, sizeof(magic)) == 0;
}

static int truncated(uint64_t object_bytes, const char *where, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "E_TRUNCATED",
                        "the file ends at byte %" PRIu64 ", inside %s: it is cut off", object_bytes,
                        where);
}

/* Checks 1 to 4 on what there is of the file header. */
static int check_start(const uint8_t *head, size_t bytes, struct sl_tzr_file *file,
                       struct sl_err *err)
{
    if (bytes < 5)
        return truncated(bytes, "the magic", err);
    if (memcmp(head, magic, sizeof(magic)) != 0)
        return sl_fail_code(err, SL_E_FORMAT, "E_MAGIC", "the file does not begin with |TZR|");
    if (bytes < 9)
        return truncated(bytes, "the version", err);
    file->version = sl_get_le32(head + 5);
    if (file->version < 1 || file->version > 5)
        return sl_fail_code(err, SL_E_FORMAT, "E_VERSION",
                            "data version %" PRIu32
                            ", known are 1 to 5: a newer sluice may read it",
                            file->version);
    if (bytes < 41)
        return truncated(bytes, "the feature flags", err);
    bool high = head[9] > 3;
    for (int i = 10; i < 41; i++)
        high = high || head[i];
    if (high || (head[9] & 2 && file->version < 5))
        return sl_fail_code(err, SL_E_FORMAT, "E_FLAGS",
                            "feature flags that data version %" PRIu32 " does not have",
                            file->version);
    file->encrypted = file->version == 3 || (file->version >= 4 && head[9] & 1);
    file->tagged = head[9] & 2;
    return 0;
}

int sl_tzr_file_header(struct sl_source *source, struct sl_tzr_file *file, struct sl_err *err)
{
    uint8_t head[SL_TZR_METADATA_AT] = {0};
    file->object_bytes = sl_source_bytes(source);
    size_t bytes = SL_MIN(file->object_bytes, sizeof(head));
    if (bytes > 0 && sl_source_read(source, 0, head, bytes, err) < 0)
        return -1;
    if (check_start(head, bytes, file, err) < 0)
        return -1;
    if (bytes < sizeof(head))
        return truncated(bytes, "the file header", err);
    file->tensor_count = sl_get_le64(head + 57);
    file->metadata_bytes = sl_get_le64(head + 65);
    if (file->tensor_count == 0 || file->metadata_bytes == 0)
        return sl_fail_code(err, SL_E_FORMAT, "E_EMPTY",
                            "the file has no tensors: its writer may have died");
    if (file->metadata_bytes > file->object_bytes - SL_TZR_METADATA_AT)
        return truncated(file->object_bytes, "the metadata block", err);
    unsigned entry_min = file->tagged ? 33 : 29;
    if (file->tensor_count > file->metadata_bytes / entry_min ||
        file->metadata_bytes > SL_TZR_METADATA_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_METADATA",
                            "%" PRIu64 " tensors in a metadata block of %" PRIu64
                            " bytes (limit %d)",
                            file->tensor_count, file->metadata_bytes, SL_TZR_METADATA_BYTES_MAX);
    return 0;
}

static int read_index(struct sl_index *index, bool outline, struct sl_err *err)
{
    struct sl_tzr_file file = {0};
    if (sl_tzr_file_header(index->sources[0], &file, err) < 0)
        return -1;
    index->format_version = file.version;
    index->encrypted = file.encrypted;
    sl_autofree struct sl_tzr_entry *entries = NULL;
    size_t count = 0;
    if (sl_tzr_metadata(index, &file, &entries, &count, err) < 0 ||
        sl_tzr_check_paths(entries, count, err) < 0)
        return -1;
    size_t runs = sl_tzr_header_runs(entries, count);
    index->outline = outline && runs > OUTLINE_RUNS_MAX;
    if (!index->outline && sl_gather_hold(index->sources[0], runs, err) < 0)
        return -1;
    return index->outline ? sl_tzr_outline(index, &file, entries, count, err)
                          : sl_tzr_headers(index, &file, entries, count, err);
}

static int index_or_outline(bool outline, struct sl_source *source, struct sl_index **out,
                            struct sl_err *err)
{
    SL_AUTO(sl_index) index = sl_format_begin(sl_tensorizer_format.name, source, err);
    if (!index)
        return -1;
    if (read_index(index, outline, err) < 0)
        return sl_wrap(err, "cannot read '%s' as tensorizer", sl_source_uri(index->sources[0]));
    *out = sl_steal(&index);
    return 0;
}

static int tensorizer_index(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return index_or_outline(false, source, out, err);
}

static int tensorizer_outline(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    return index_or_outline(true, source, out, err);
}

const struct sl_format sl_tensorizer_format = {
    .name = "tensorizer",
    .suffixes = {".tensors"},
    .encrypts = true,
    .unread = {"E_VERSION", "E_DTYPE"},
    .probe = probe,
    .index = tensorizer_index,
    .outline = tensorizer_outline,
};

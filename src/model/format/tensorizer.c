/*
 * .tensors files of CoreWeave's tensorizer, data versions 1 to 5. The checks run in the order of
 * the specification's section 13, whose numbers stand in the comments: file header here, metadata
 * block in tensorizer_metadata.c and tensorizer_path.c, tensor headers in tensorizer_header.c and
 * tensorizer_crypt.c.
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
    .edit = sl_tzr_edit,
};

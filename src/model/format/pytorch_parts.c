/*
 * A verbatim load copies a checkpoint as it is, whatever is in its pickle. The archive has a CRC32
 * of each entry, and those are checked like the hashes of tensors: so here every entry is a part
 * with a hash. Where torch put it is computed from the directory; the pickle is not read. What
 * does not follow the rules for reading tensors is plain data to whoever wants the file.
 */
#include <inttypes.h>
#include <string.h>

#include "format.h"
#include "log.h"
#include "pytorch.h"
#include "zip.h"

const struct sl_index_hash *
sl_pytorch_entry_hash(struct sl_index *index, const struct sl_zip_entry *entry, struct sl_err *err)
{
    if (!sl_zip_has_crc(entry))
        return NULL;
    struct sl_index_hash *hash = sl_index_alloc(index, sizeof(*hash), err);
    for (unsigned i = 0; hash && i < 4; i++)
        hash->expected[i] = entry->crc >> (24 - 8 * i) & 0xff;
    return hash;
}

static int add_part(struct sl_index *index, const struct sl_zip_entry *entry, struct sl_err *err)
{
    struct sl_tensor *tensor = sl_index_add_tensor(index, err);
    uint64_t *shape = sl_index_alloc(index, sizeof(*shape), err);
    char *name = sl_index_alloc(index, entry->name_bytes + 1, err);
    if (!tensor || !shape || !name)
        return -1;
    memcpy(name, entry->name, entry->name_bytes);
    if (sl_index_plain_name(index, tensor, name, entry->name_bytes, err) < 0)
        return -1;
    *shape = entry->bytes;
    tensor->dtype = SL_DTYPE_U8;
    tensor->dtype_name = sl_dtype_row(SL_DTYPE_U8)->name;
    tensor->rank = 1;
    tensor->shape = shape;
    tensor->bytes = entry->bytes;
    tensor->begin = entry->begin;
    tensor->end = entry->begin + entry->bytes;
    tensor->part = true;
    if (!sl_zip_has_crc(entry))
        return 0;
    tensor->hashes = sl_pytorch_entry_hash(index, entry, err);
    tensor->hash_count = 1;
    return tensor->hashes ? 0 : -1;
}

static int read_parts(struct sl_zip *zip, struct sl_index *index, struct sl_err *err)
{
    if (sl_zip_open(zip, index->sources[0], err) < 0)
        return -1;
    bool any = false;
    for (size_t i = 0; i < zip->count; i++) {
        zip->entries[i].wanted = zip->entries[i].bytes > 0;
        any = any || sl_zip_has_crc(&zip->entries[i]);
    }
    if (!any)
        return 0;
    if (sl_zip_locate(zip, true, err) < 0)
        return -1;
    for (size_t i = 0; i < zip->count; i++)
        if (zip->entries[i].wanted && add_part(index, &zip->entries[i], err) < 0)
            return -1;
    return 0;
}

/* The old stream has no end record: only its pickles say how long it is. */
static int read_stream(struct sl_index *index, struct sl_err *err)
{
    struct sl_pytorch torch = {
        .index = index, .quick = true, .object_bytes = sl_source_bytes(index->sources[0])};
    int result = sl_pytorch_legacy(&torch, err);
    sl_pytorch_release(&torch);
    index->tensor_count = 0;
    return result;
}

/* Rules are for who wants tensors; that the end is missing is bad for everybody. */
static bool is_cut(const struct sl_err *why)
{
    return strcmp(why->code, "zip.no-eocd") == 0 || strcmp(why->code, "lg.truncated") == 0;
}

static int read_whole(struct sl_index *index, struct sl_err *err)
{
    struct sl_source *source = index->sources[0];
    uint8_t first = 0;
    if (sl_source_bytes(source) && sl_source_read(source, 0, &first, 1, err) < 0)
        return -1;
    if (first == 0x80)
        return read_stream(index, err);
    if (first != 'P')
        return 0;
    if (sl_source_bytes(source) < SL_ZIP_END_BYTES)
        return sl_fail_code(err, SL_E_FORMAT, "zip.no-eocd",
                            "the archive has %" PRIu64
                            " bytes: the file is cut off, store it again",
                            sl_source_bytes(source));
    struct sl_zip zip = {0};
    int done = read_parts(&zip, index, err);
    sl_zip_release(&zip);
    return done;
}

int sl_pytorch_parts(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_index) index = sl_format_begin(SL_PYTORCH, source, err);
    *out = NULL;
    if (!index)
        return -1;
    if (read_whole(index, &why) < 0) {
        const char *uri = sl_source_uri(index->sources[0]);
        if (why.kind != SL_E_FORMAT || is_cut(&why)) {
            *err = why;
            return sl_wrap(err, "cannot read '%s' as a PyTorch checkpoint", uri);
        }
        index->tensor_count = 0;
        sl_log(SL_LOG_DEBUG, "no checksums of '%s' are used: %s", uri, why.message);
    }
    *out = sl_steal(&index);
    return 0;
}

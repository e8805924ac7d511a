/*
 * A verbatim load copies a checkpoint as it is, whatever is in its pickle. The archive has a CRC32
 * of each entry, and those are checked like the hashes of tensors: so here every entry is a part
 * with a hash. Where torch put it is computed from the directory; the pickle is not read. What
 * does not follow the rules for reading tensors is plain data to whoever wants the file.
 */
#include <string.h>

#include "format.h"
#include "log.h"
#include "names.h"
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

int sl_pytorch_parts(struct sl_source *source, struct sl_index **out, struct sl_err *err)
{
    static const char magic[4] = {'P', 'K', 3, 4};
    char first[sizeof(magic)];
    struct sl_zip zip = {0};
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_index) index = sl_format_begin(sl_pytorch_format.name, source, err);
    *out = NULL;
    if (!index)
        return -1;
    bool large = sl_source_bytes(index->sources[0]) >= sizeof(magic);
    if (large && sl_source_read(index->sources[0], 0, first, sizeof(first), err) < 0)
        return -1;
    if (!large || memcmp(first, magic, sizeof(magic)) != 0) {
        *out = sl_steal(&index);
        return 0;
    }
    int done = read_parts(&zip, index, &why);
    sl_zip_release(&zip);
    if (done < 0 && why.kind != SL_E_FORMAT) {
        *err = why;
        return sl_wrap(err, "cannot read the directory of '%s'", sl_source_uri(index->sources[0]));
    }
    if (done < 0) {
        index->tensor_count = 0;
        sl_log(SL_LOG_DEBUG, "no checksums of '%s' are used: %s", sl_source_uri(index->sources[0]),
               why.message);
    }
    *out = sl_steal(&index);
    return 0;
}

/*
 * One tensor header: checks 15 to 22. It repeats what the metadata say, byte for byte, then come
 * hashes, in encrypted files the crypt block, slack, and the length of the data.
 *
 * A tensor's hashes run over its header, hash values zeroed and crypt block left out, and its
 * plaintext. The prepared header is kept as the prefix that the hashes of the tensor share.
 */
#include <string.h>

#include "buf.h"
#include "tensorizer.h"

enum { HASH_CRC32 = 0, HASH_SHA256 = 1 };

struct header {
    struct sl_index *index;
    const struct sl_tzr_entry *entry;
    struct sl_cursor in; /* up to data_length */
    uint8_t *prefix;     /* the header as it is hashed */
    struct sl_index_hash *hashes;
    unsigned hash_count;
    struct sl_tzr_crypt crypt;
    size_t crypt_at, crypt_bytes; /* the block, its length field included */
};

static int header_fail(const struct header *header, const char *code, const char *why,
                       struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, code, "tensor '%.*s': %s", SL_TZR_NAME(header->entry),
                        why);
}

/* Check 15. */
static int check_length(const struct header *header, const uint8_t *data, size_t bytes,
                        struct sl_err *err)
{
    uint64_t length = sl_get_le64(data);
    if (length < SL_TZR_HEADER_BYTES_MIN)
        return header_fail(header, "E_HEADER", "its header is too short to be one", err);
    if (length != header->entry->data_offset - header->entry->header_offset)
        return header_fail(header, "E_OFFSET",
                           "its header does not end where the metadata say that its data begin",
                           err);
    if (length != bytes)
        return header_fail(
            header, "E_HEADER",
            "its header is larger than 4 MiB (encrypted: and a thousandth of its data)", err);
    return 0;
}

/* Check 16. */
static int check_fields(struct header *header, struct sl_err *err)
{
    const struct sl_tzr_entry *entry = header->entry;
    size_t shape_bytes = (entry->wide ? 8u : 4u) * entry->rank;
    const uint8_t *fixed = sl_take(&header->in, 13); /* length 8, module 2, type 1, name_length 2 */
    const uint8_t *name = fixed ? sl_take(&header->in, sl_get_le16(fixed + 11)) : NULL;
    const uint8_t *dtype_bytes = name ? sl_take(&header->in, 1) : NULL;
    const uint8_t *dtype = dtype_bytes ? sl_take(&header->in, *dtype_bytes) : NULL;
    const uint8_t *rank = dtype ? sl_take(&header->in, 1) : NULL;
    const uint8_t *shape = rank ? sl_take(&header->in, (entry->wide ? 8u : 4u) * *rank) : NULL;
    if (!shape)
        return header_fail(header, "E_HEADER", "the fields of its header run over its end", err);
    if (fixed[10] != entry->type || sl_get_le16(fixed + 11) != entry->name_bytes ||
        memcmp(name, entry->name, entry->name_bytes) != 0)
        return header_fail(header, "E_MISMATCH",
                           "its header has another name or type than the metadata", err);
    if (*dtype_bytes != entry->dtype_bytes ||
        memcmp(dtype, entry->dtype, entry->dtype_bytes) != 0 || *rank != entry->rank ||
        memcmp(shape, entry->shape, shape_bytes) != 0)
        return header_fail(header, "E_MISMATCH",
                           "its header has another dtype or shape than the metadata", err);
    return 0;
}

/* One hash of the block; its value is zeroed in the prefix. */
static int take_hash(struct header *header, struct sl_cursor *block, struct sl_index_hash *hash)
{
    const uint8_t *kind = sl_take(block, 2);
    size_t bytes = kind ? kind[1] : 0;
    const uint8_t *value = kind ? sl_take(block, bytes) : NULL;
    if (!value || kind[0] > HASH_SHA256 || bytes != (kind[0] == HASH_CRC32 ? 4 : 32))
        return -1;
    hash->sha256 = kind[0] == HASH_SHA256;
    for (size_t i = 0; i < bytes; i++) /* CRC32: little-endian in the file */
        hash->expected[i] = value[hash->sha256 ? i : bytes - 1 - i];
    memset(header->prefix + (value - header->in.data), 0, bytes);
    return 0;
}

/* Check 17. */
static int check_hashes(struct header *header, struct sl_err *err)
{
    static const char why[] = "its hash block is malformed";
    const uint8_t *length = sl_take(&header->in, 2);
    size_t begin = header->in.at;
    if (!length || sl_get_le16(length) < 1 || !sl_take(&header->in, sl_get_le16(length)))
        return header_fail(header, "E_HASHBLOCK", why, err);
    struct sl_cursor block = {header->in.data, header->in.at, begin};
    header->hash_count = *sl_take(&block, 1);
    header->hashes =
        sl_index_alloc(header->index, header->hash_count * sizeof(*header->hashes), err);
    if (!header->hashes)
        return -1;
    for (unsigned i = 0; i < header->hash_count; i++)
        if (take_hash(header, &block, &header->hashes[i]) < 0)
            return header_fail(header, "E_HASHBLOCK", why, err);
    return block.at == block.bytes ? 0 : header_fail(header, "E_HASHBLOCK", why, err);
}

/* Checks 18 to 20. `bytes` is the whole header. */
static int check_rest(struct header *header, const struct sl_tzr_file *file, const uint8_t *data,
                      size_t bytes, struct sl_err *err)
{
    if (file->encrypted) {
        header->crypt_at = header->in.at;
        if (sl_tzr_crypt_block(data + header->in.at, bytes - header->in.at, &header->crypt,
                               &header->crypt_bytes, err) < 0)
            return sl_wrap(err, "tensor '%.*s'", SL_TZR_NAME(header->entry));
        header->in.at += header->crypt_bytes;
    }
    if (header->in.at > bytes - 8)
        return header_fail(header, "E_HEADER", "no room for the length of the data in its header",
                           err);
    for (size_t i = header->in.at; i < bytes - 8; i++)
        if (data[i])
            return header_fail(
                header, "E_HEADER",
                "unknown bytes in its header (an encrypted file whose flag was cleared?)", err);
    if (sl_get_le64(data + bytes - 8) != header->entry->data_length)
        return header_fail(header, "E_MISMATCH",
                           "header and metadata disagree about the length of its data", err);
    return 0;
}

/* Check 21: dtype, shape, size. */
static int fill_type(struct header *header, struct sl_tensor *tensor, struct sl_err *err)
{
    const struct sl_tzr_entry *entry = header->entry;
    tensor->dtype = sl_dtype_by_numpy(entry->dtype, entry->dtype_bytes);
    if (tensor->dtype == SL_DTYPE_NONE)
        return sl_fail_code(err, SL_E_FORMAT, "E_DTYPE", "tensor '%.*s': unknown dtype '%.*s'",
                            SL_TZR_NAME(entry), entry->dtype_bytes, entry->dtype);
    tensor->dtype_name = sl_dtype_row(tensor->dtype)->name;
    uint64_t *shape = sl_index_alloc(header->index, entry->rank * sizeof(*shape), err);
    if (!shape)
        return -1;
    tensor->rank = entry->rank;
    tensor->shape = shape;
    uint64_t elements = 1;
    bool overflow = false, empty = false;
    for (unsigned i = 0; i < entry->rank; i++) {
        shape[i] =
            entry->wide ? sl_get_le64(entry->shape + 8 * i) : sl_get_le32(entry->shape + 4 * i);
        empty = empty || shape[i] == 0;
        overflow = __builtin_mul_overflow(elements, shape[i], &elements) || overflow;
    }
    overflow =
        __builtin_mul_overflow(elements, sl_dtype_row(tensor->dtype)->bits / 8, &tensor->bytes) ||
        overflow;
    if (empty)
        tensor->bytes = 0;
    else if (overflow || tensor->bytes > INT64_MAX)
        return header_fail(header, "E_LENGTH", "its shape needs 2^63 bytes or more", err);
    if (entry->data_length != tensor->bytes && entry->data_length != 0)
        return sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                            "tensor '%.*s': %" PRIu64 " bytes of data, its shape needs %" PRIu64,
                            SL_TZR_NAME(entry), entry->data_length, tensor->bytes);
    tensor->meta = entry->data_length == 0 && tensor->bytes > 0;
    tensor->role = entry->type == 0   ? SL_ROLE_PARAMETER
                   : entry->type == 1 ? SL_ROLE_BUFFER
                                      : SL_ROLE_ENTRY;
    return 0;
}

/* Where its bytes lie. Without a key they are refused. */
static void fill_place(const struct sl_tzr_entry *entry, const struct sl_tzr_file *file,
                       struct sl_tensor *tensor)
{
    tensor->begin = entry->data_offset;
    tensor->end = tensor->begin + entry->data_length;
    if (!file->encrypted)
        return;
    tensor->refused = SL_E_AUTH;
    tensor->refused_code = "E_KEY_REQUIRED";
    tensor->refused_why = "the file is encrypted and no key was given";
}

/* Check 22, as far as it needs no key. */
static int fill_data(struct header *header, struct sl_tzr_file *file, struct sl_tensor *tensor,
                     struct sl_err *err)
{
    uint64_t length = header->entry->data_length;
    fill_place(header->entry, file, tensor);
    if (!file->encrypted || length == 0)
        return 0;
    const char *misfit = sl_tzr_crypt_misfit(&header->crypt, length);
    if (misfit)
        return header_fail(header, "E_CRYPTINFO", misfit, err);
    tensor->encrypted = true;
    tensor->crypt = sl_tzr_crypt_keep(header->index, file, &header->crypt, length, err);
    return tensor->crypt ? 0 : -1;
}

/* "a.b.0" of the path, for people and filters. */
static int fill_name(struct header *header, struct sl_tensor *tensor, struct sl_err *err)
{
    const struct sl_tzr_entry *entry = header->entry;
    sl_autobuf text = SL_BUF_INIT(16 * 65536);
    tensor->path = entry->path;
    tensor->path_count = entry->path_count;
    if (entry->path_count == 1 && entry->path->text) {
        tensor->name = entry->path->text;
        tensor->name_bytes = entry->path->text_bytes;
        return 0;
    }
    for (unsigned i = 0; i < entry->path_count; i++) {
        const struct sl_path_part *part = &entry->path[i];
        if (i > 0 && sl_buf_append(&text, ".", 1, err) < 0)
            return -1;
        if ((part->text ? sl_buf_append(&text, part->text, part->text_bytes, err)
                        : sl_buf_printf(&text, err, "%" PRIu64, part->number)) < 0)
            return -1;
    }
    char *name = sl_index_alloc(header->index, text.used + 1, err);
    if (!name)
        return -1;
    if (text.used)
        memcpy(name, text.data, text.used);
    tensor->name = name;
    tensor->name_bytes = text.used;
    return 0;
}

/* The hashes with what they begin with: the header without its crypt block. */
static void fill_hashes(const struct header *header, size_t bytes, struct sl_tensor *tensor)
{
    size_t behind = header->crypt_at + header->crypt_bytes;
    if (header->crypt_bytes)
        memmove(header->prefix + header->crypt_at, header->prefix + behind, bytes - behind);
    for (unsigned i = 0; i < header->hash_count; i++) {
        header->hashes[i].prefix = header->prefix;
        header->hashes[i].prefix_bytes = bytes - header->crypt_bytes;
    }
    tensor->hashes = header->hashes;
    tensor->hash_count = header->hash_count;
}

int sl_tzr_header(struct sl_index *index, struct sl_tzr_file *file,
                  const struct sl_tzr_entry *entry, const uint8_t *data, size_t bytes,
                  struct sl_err *err)
{
    struct header header = {.index = index, .entry = entry, .in = {data, bytes, 0}};
    if (check_length(&header, data, bytes, err) < 0)
        return -1;
    header.prefix = sl_index_alloc(index, bytes, err);
    if (!header.prefix)
        return -1;
    memcpy(header.prefix, data, bytes);
    struct sl_tensor tensor = {0};
    if (check_fields(&header, err) < 0 || check_hashes(&header, err) < 0 ||
        check_rest(&header, file, data, bytes, err) < 0 || fill_type(&header, &tensor, err) < 0 ||
        fill_data(&header, file, &tensor, err) < 0 || fill_name(&header, &tensor, err) < 0)
        return -1;
    tensor.module_index = sl_get_le16(data + 8);
    fill_hashes(&header, bytes, &tensor);
    struct sl_tensor *added = sl_index_add_tensor(index, err);
    if (!added)
        return -1;
    *added = tensor;
    return 0;
}

int sl_tzr_outline_tensor(struct sl_index *index, const struct sl_tzr_file *file,
                          const struct sl_tzr_entry *entry, struct sl_err *err)
{
    struct header header = {.index = index, .entry = entry};
    struct sl_tensor tensor = {0};
    if (fill_type(&header, &tensor, err) < 0 || fill_name(&header, &tensor, err) < 0)
        return -1;
    fill_place(entry, file, &tensor);
    struct sl_tensor *added = sl_index_add_tensor(index, err);
    if (!added)
        return -1;
    *added = tensor;
    return 0;
}

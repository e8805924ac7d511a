/*
 * The tensor headers. Where each lies follows from the metadata (check 15 demands that it fills the
 * space in front of its data), so all are fetched with few requests instead of walking from one to
 * the next. Tensors are taken in windows of a few MiB of headers, in the order of the metadata, so
 * that memory is bounded and the first broken tensor is the one that is named. A header that could
 * not belong to its tensor is not read beyond its length field. Their lengths are claims of the
 * file, which may be holes: they are added up before the first is read.
 *
 * A header (checks 15 to 22) repeats what the metadata say, byte for byte, then come hashes, in
 * encrypted files the crypt block, slack, and the length of the data. A tensor's hashes run over
 * its header, hash values zeroed and crypt block left out, and its plaintext. The prepared header
 * is kept as the prefix that the hashes of the tensor share.
 *
 * The crypt block (section 11.1) is a list of chunks whose lengths must nest exactly. Nothing is
 * decrypted here; check 18 refuses what no writer makes before anybody trusts a count of MACs. A
 * tensor with one MAC is one piece whatever piece size is stored (section 11.2), and so is one of
 * the sequential type. Files of the real writer repeat one key derivation in every header; it is
 * kept once.
 */
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "gather.h"
#include "layout.h"
#include "tensorizer.h"

/* ---- the crypt block ------------------------------------------------------------------------- */

/* What a crypt block says; pointers into the block. */
struct crypt {
    unsigned ciphers, derivations;
    uint64_t piece_bytes, mac_count;
    const uint8_t *nonce, *macs;
    struct sl_kdf kdf; /* if derivations > 0 */
};

enum {
    CHUNK_DERIVATION = 1,
    CHUNK_PARALLEL = 2,
    CHUNK_SEQUENTIAL = 3,
    PIECE_BYTES_MIN = 1024,
    PIECE_BYTES_STEP = 64,
};

/* Method, opslimit, memlimit, alg, salt; what follows is ignored (the specification allows it). A
 * salt of another length is kept as far as it fits: nothing will be derived from it. */
static const char *take_derivation(struct sl_cursor *chunk, struct sl_kdf *kdf)
{
    const uint8_t *fixed = sl_take(chunk, 2 + 8 + 8 + 4 + 2);
    const uint8_t *salt = fixed ? sl_take(chunk, sl_get_le16(fixed + 22)) : NULL;
    if (!salt)
        return "its key derivation is cut off";
    memset(kdf, 0, sizeof(*kdf));
    kdf->opslimit = sl_get_le64(fixed + 2);
    kdf->memlimit = sl_get_le64(fixed + 10);
    kdf->alg = (int32_t)sl_get_le32(fixed + 18);
    kdf->salt_bytes = sl_get_le16(fixed + 22);
    memcpy(kdf->salt, salt, SL_MIN(kdf->salt_bytes, SL_SALT_BYTES));
    return sl_get_le16(fixed) == 1 ? NULL : "its key is derived by an unknown method";
}

static const char *take_parallel(struct sl_cursor *chunk, struct crypt *crypt)
{
    const uint8_t *fixed = sl_take(chunk, 8 + SL_NONCE_BYTES + 8);
    if (!fixed)
        return "its cipher block is cut off";
    crypt->piece_bytes = sl_get_le64(fixed);
    crypt->nonce = fixed + 8;
    crypt->mac_count = sl_get_le64(fixed + 8 + SL_NONCE_BYTES);
    crypt->macs = fixed + 8 + SL_NONCE_BYTES + 8;
    if (crypt->piece_bytes < PIECE_BYTES_MIN || crypt->piece_bytes % PIECE_BYTES_STEP ||
        crypt->piece_bytes > INT64_MAX)
        return "its cipher pieces have an impossible size";
    size_t rest = chunk->bytes - chunk->at;
    if (rest % SL_MAC_BYTES || crypt->mac_count != rest / SL_MAC_BYTES)
        return "the number of MACs does not fill its cipher block";
    chunk->at = chunk->bytes;
    return NULL;
}

static const char *take_sequential(struct sl_cursor *chunk, struct crypt *crypt)
{
    crypt->nonce = sl_take(chunk, SL_NONCE_BYTES);
    crypt->macs = crypt->nonce ? sl_take(chunk, SL_MAC_BYTES) : NULL;
    crypt->mac_count = 1;
    return crypt->macs && chunk->at == chunk->bytes ? NULL : "its cipher block has a wrong length";
}

static const char *take_chunk(struct sl_cursor *list, struct crypt *crypt)
{
    const uint8_t *length = sl_take(list, 8);
    uint64_t bytes = length ? sl_get_le64(length) : 0;
    const uint8_t *data = length && bytes <= list->bytes ? sl_take(list, bytes) : NULL;
    if (!data || bytes < 2)
        return "a part of its crypt block runs over the end";
    struct sl_cursor chunk = {data, bytes, 2};
    switch (sl_get_le16(data)) {
    case CHUNK_DERIVATION:
        crypt->derivations++;
        return take_derivation(&chunk, &crypt->kdf);
    case CHUNK_PARALLEL:
        crypt->ciphers++;
        return take_parallel(&chunk, crypt);
    case CHUNK_SEQUENTIAL:
        crypt->ciphers++;
        return take_sequential(&chunk, crypt);
    default:
        return "its crypt block has a part of unknown type";
    }
}

static const char *take_block(const uint8_t *data, size_t bytes, struct crypt *crypt, size_t *used)
{
    struct sl_cursor in = {data, bytes, 0};
    const uint8_t *length = sl_take(&in, 8);
    uint64_t block_bytes = length ? sl_get_le64(length) : 0;
    if (!length || block_bytes < 2 || block_bytes > bytes - in.at)
        return "its crypt block runs over its header";
    struct sl_cursor list = {data + in.at, block_bytes, 0};
    *used = in.at + block_bytes;
    for (unsigned count = sl_get_le16(sl_take(&list, 2)); count > 0; count--) {
        const char *why = take_chunk(&list, crypt);
        if (why)
            return why;
    }
    return list.at == list.bytes ? NULL : "its crypt block is longer than its parts";
}

/* Check 18: the crypt block at data (its u64 length first), `bytes` to the end of the header;
 * *used of them. */
static int crypt_block(const uint8_t *data, size_t bytes, struct crypt *crypt, size_t *used,
                       struct sl_err *err)
{
    memset(crypt, 0, sizeof(*crypt));
    const char *why = take_block(data, bytes, crypt, used);
    return why ? sl_fail_code(err, SL_E_FORMAT, "E_CRYPTINFO", "%s", why) : 0;
}

/* Check 22 as far as it needs no key: does it fit that many bytes of data, at least 1? What is
 * wrong, or NULL. */
static const char *crypt_misfit(const struct crypt *crypt, uint64_t data_bytes)
{
    if (crypt->ciphers != 1 || crypt->derivations > 1)
        return "data in an encrypted file without exactly one cipher";
    bool fits =
        crypt->mac_count == 1 ||
        (crypt->mac_count > 1 && crypt->mac_count == (data_bytes - 1) / crypt->piece_bytes + 1);
    return fits ? NULL : "the number of MACs does not fit its data";
}

/* The derivation, shared with the tensor before if it is the same. */
static int keep_kdf(struct sl_index *index, struct sl_tzr_file *file, const struct sl_kdf *kdf,
                    struct sl_err *err)
{
    if (file->kdf && memcmp(file->kdf, kdf, sizeof(*kdf)) == 0)
        return 0;
    struct sl_kdf *kept = sl_index_alloc(index, sizeof(*kept), err);
    if (!kept)
        return -1;
    *kept = *kdf;
    file->kdf = kept;
    return 0;
}

/* Copy it to the index: how such a tensor is decrypted. */
static const struct sl_crypt *crypt_keep(struct sl_index *index, struct sl_tzr_file *file,
                                         const struct crypt *crypt, uint64_t data_bytes,
                                         struct sl_err *err)
{
    size_t macs_bytes = crypt->mac_count * SL_MAC_BYTES;
    struct sl_crypt *kept = sl_index_alloc(index, sizeof(*kept), err);
    uint8_t *nonce = kept ? sl_index_alloc(index, SL_NONCE_BYTES + macs_bytes, err) : NULL;
    if (!nonce || (crypt->derivations > 0 && keep_kdf(index, file, &crypt->kdf, err) < 0))
        return NULL;
    memcpy(nonce, crypt->nonce, SL_NONCE_BYTES);
    memcpy(nonce + SL_NONCE_BYTES, crypt->macs, macs_bytes);
    *kept = (struct sl_crypt){
        .piece_bytes = crypt->mac_count == 1 ? data_bytes : crypt->piece_bytes,
        .mac_count = crypt->mac_count,
        .nonce = nonce,
        .macs = nonce + SL_NONCE_BYTES,
        .kdf = crypt->derivations > 0 ? file->kdf : NULL,
    };
    return kept;
}

/* ---- one header ------------------------------------------------------------------------------ */

enum { HASH_CRC32 = 0, HASH_SHA256 = 1 };

struct header {
    struct sl_index *index;
    const struct sl_tzr_entry *entry;
    struct sl_cursor in; /* up to data_length */
    uint8_t *prefix;     /* the header as it is hashed */
    struct sl_index_hash *hashes;
    unsigned hash_count;
    struct crypt crypt;
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
        if (crypt_block(data + header->in.at, bytes - header->in.at, &header->crypt,
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
    const char *misfit = crypt_misfit(&header->crypt, length);
    if (misfit)
        return header_fail(header, "E_CRYPTINFO", misfit, err);
    tensor->encrypted = true;
    tensor->crypt = crypt_keep(header->index, file, &header->crypt, length, err);
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

/* Checks 15 to 22 on one header of `bytes` bytes, as far as they could be read; adds the tensor.
 */
static int take_header(struct sl_index *index, struct sl_tzr_file *file,
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

/* The tensor that an entry says, as far as it does: check 21. */
static int outline_tensor(struct sl_index *index, const struct sl_tzr_file *file,
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

/* ---- all of them ----------------------------------------------------------------------------- */

enum {
    WINDOW_BYTES = 8 * 1024 * 1024,
    WINDOW_TENSORS = 65536,
    LENGTH_FIELD_BYTES = 8,
};

struct window {
    struct sl_index *index;
    struct sl_tzr_file *file;
    const struct sl_tzr_entry *entries;
    size_t first, last;
    size_t *bytes; /* of each header, as far as it is read */
    struct sl_gather_item *items;
    uint8_t *data;
};

/* Checks 13 and 14: is the place of the tensor possible? */
static int check_place(const struct sl_tzr_file *file, const struct sl_tzr_entry *entry,
                       struct sl_err *err)
{
    uint64_t size = file->object_bytes, end;
    if (entry->header_offset < SL_TZR_METADATA_AT + file->metadata_bytes ||
        entry->header_offset > size || entry->data_offset < entry->header_offset ||
        entry->data_length > INT64_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_OFFSET",
                            "tensor '%.*s' cannot lie at %" PRIu64 " (header) and %" PRIu64
                            " (data)",
                            SL_TZR_NAME(entry), entry->header_offset, entry->data_offset);
    if (entry->data_offset > size ||
        __builtin_add_overflow(entry->data_offset, entry->data_length, &end) || end > size)
        return entry->data_length <= size
                   ? sl_fail_code(err, SL_E_FORMAT, "E_TRUNCATED",
                                  "tensor '%.*s' ends at byte %" PRIu64 ", the file at %" PRIu64
                                  ": it is cut off",
                                  SL_TZR_NAME(entry), entry->data_offset + entry->data_length, size)
                   : sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                                  "tensor '%.*s' has %" PRIu64
                                  " bytes of data in a file of %" PRIu64,
                                  SL_TZR_NAME(entry), entry->data_length, size);
    if (size - entry->header_offset < LENGTH_FIELD_BYTES)
        return sl_fail_code(err, SL_E_FORMAT, "E_TRUNCATED",
                            "the file ends inside the header of tensor '%.*s'", SL_TZR_NAME(entry));
    return 0;
}

/* How much of a header is read. */
static size_t wanted_bytes(const struct sl_tzr_file *file, const struct sl_tzr_entry *entry)
{
    uint64_t bytes = entry->data_offset - entry->header_offset;
    if (bytes > SL_TZR_HEADER_BYTES_MAX + (file->encrypted ? entry->data_length / 1000 : 0))
        return LENGTH_FIELD_BYTES;
    return SL_MAX(bytes, (uint64_t)LENGTH_FIELD_BYTES);
}

/* Take as many tensors as fit, up to one whose place is impossible. */
static size_t size_window(struct window *window, size_t limit)
{
    size_t total = 0;
    for (window->last = window->first; window->last < limit; window->last++) {
        size_t bytes = wanted_bytes(window->file, &window->entries[window->last]);
        bool full = total + bytes > WINDOW_BYTES || window->last - window->first == WINDOW_TENSORS;
        if (window->last > window->first && full)
            break;
        total += bytes;
    }
    return total;
}

static int fetch_window(struct window *window, size_t total, struct sl_err *err)
{
    size_t count = window->last - window->first;
    window->bytes = sl_alloc_array(count, sizeof(*window->bytes), err);
    window->items = sl_alloc_array(count, sizeof(*window->items), err);
    window->data = sl_alloc(total, err);
    if (!window->bytes || !window->items || !window->data)
        return -1;
    uint8_t *data = window->data;
    for (size_t i = 0; i < count; i++) {
        const struct sl_tzr_entry *entry = &window->entries[window->first + i];
        window->bytes[i] = wanted_bytes(window->file, entry);
        window->items[i] = (struct sl_gather_item){entry->header_offset,
                                                   entry->header_offset + window->bytes[i], data};
        data += window->bytes[i];
    }
    return sl_gather(window->index->sources[0], window->items, count, err);
}

static int check_window(const struct window *window, struct sl_err *err)
{
    const uint8_t *data = window->data;
    for (size_t i = 0; i < window->last - window->first; i++) {
        if (take_header(window->index, window->file, &window->entries[window->first + i], data,
                        window->bytes[i], err) < 0)
            return -1;
        data += window->bytes[i];
    }
    return 0;
}

static int do_window(struct window *window, size_t limit, struct sl_err *err)
{
    size_t total = size_window(window, limit);
    int result = fetch_window(window, total, err);
    if (result == 0)
        result = check_window(window, err);
    free(window->bytes);
    free(window->items);
    free(window->data);
    window->bytes = NULL;
    window->items = NULL;
    window->data = NULL;
    window->first = window->last;
    return result;
}

/* ---- overlaps -------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct sl_tzr_entry *x = *(const struct sl_tzr_entry *const *)a;
    const struct sl_tzr_entry *y = *(const struct sl_tzr_entry *const *)b;
    return (x->header_offset > y->header_offset) - (x->header_offset < y->header_offset);
}

/* Section 9.5: no tensor lies in another one. */
static int check_overlaps(const struct sl_tzr_entry *entries, size_t count, struct sl_err *err)
{
    sl_autofree const struct sl_tzr_entry **sorted = sl_alloc_array(count, sizeof(*sorted), err);
    if (!sorted)
        return -1;
    for (size_t i = 0; i < count; i++)
        sorted[i] = &entries[i];
    qsort(sorted, count, sizeof(*sorted), by_place);
    for (size_t i = 1; i < count; i++)
        if (sorted[i]->header_offset < sorted[i - 1]->data_offset + sorted[i - 1]->data_length)
            return sl_fail_code(err, SL_E_FORMAT, "E_OFFSET",
                                "tensor '%.*s' lies inside another one", SL_TZR_NAME(sorted[i]));
    return 0;
}

/* ---- without headers ------------------------------------------------------------------------- */

size_t sl_tzr_header_runs(const struct sl_tzr_entry *entries, size_t count)
{
    size_t runs = 0;
    uint64_t end = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = entries[i].header_offset;
        runs += i == 0 || begin < end || begin - end > SL_GATHER_GAP_BYTES;
        end = entries[i].data_offset;
    }
    return runs;
}

int sl_tzr_outline(struct sl_index *index, struct sl_tzr_file *file,
                   const struct sl_tzr_entry *entries, size_t count, struct sl_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (check_place(file, &entries[i], err) < 0 ||
            outline_tensor(index, file, &entries[i], err) < 0)
            return -1;
    return check_overlaps(entries, count, err);
}

/* What all of them together would keep. */
static int check_total(const struct sl_tzr_file *file, const struct sl_tzr_entry *entries,
                       size_t count, struct sl_err *err)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total = sl_add_capped(total, wanted_bytes(file, &entries[i]));
    if (total <= SL_TENSORIZER_HEADERS_BYTES_MAX)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "E_HEADER",
                        "its %zu tensor headers have %" PRIu64
                        " bytes together, limit %d: write it with less alignment",
                        count, total, SL_TENSORIZER_HEADERS_BYTES_MAX);
}

/* ---- all of it ------------------------------------------------------------------------------- */

int sl_tzr_headers(struct sl_index *index, struct sl_tzr_file *file,
                   const struct sl_tzr_entry *entries, size_t count, struct sl_err *err)
{
    struct sl_err place_error = SL_ERR_INIT;
    size_t possible = 0; /* tensors before the first impossible one: their errors come first */
    while (possible < count && check_place(file, &entries[possible], &place_error) == 0)
        possible++;
    if (check_total(file, entries, possible, err) < 0)
        return -1;
    struct window window = {.index = index, .file = file, .entries = entries};
    while (window.first < possible)
        if (do_window(&window, possible, err) < 0)
            return -1;
    if (possible < count) {
        if (err)
            *err = place_error;
        return -1;
    }
    return check_overlaps(entries, count, err);
}

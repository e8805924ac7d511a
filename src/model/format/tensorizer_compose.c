/*
 * The bytes that the layout of a .tensors file decides: tensor headers (section 8, with the crypt
 * block of section 11.1), the file header and the metadata block (sections 3 and 5). Sizes are
 * counted before memory is taken; whatever is written then must fill it exactly.
 *
 * What a tensor's hashes begin with is its header with zeros for the hash values and without the
 * crypt block. It is kept apart from the header, which others complete while hashes still run.
 */
#include "tensorizer_compose.h"

#include <assert.h>
#include <string.h>

#include "arena.h"
#include "hash.h"

enum {
    HASH_CRC32 = 0,
    HASH_SHA256 = 1,
    CRC32_BYTES = 4,
    SHA256_BYTES = 32,
    CHUNK_DERIVATION = 1,
    CHUNK_PARALLEL = 2,
    DERIVATION_BYTES = 42, /* with the salt */
    CHUNK_BYTES = 42,      /* of a parallel chunk, without MACs */
    METHOD_PWHASH = 1,
    ITEM_BYTES_MAX = 16, /* a meta tensor without dimensions is one zero */
    TAG_SHORT = 1,
    TAG_LONG = 5,
    HEADER_BYTES_MAX = 64 * 1024 * 1024, /* and a thousandth of the data, section 14 */
};

/* ---- little-endian numbers one after another ---------------------------------------------------
 */

struct pen {
    uint8_t *data;
    size_t at, bytes;
};

static void put(struct pen *pen, const void *data, size_t bytes)
{
    assert(pen->bytes - pen->at >= bytes);
    if (bytes)
        memcpy(pen->data + pen->at, data, bytes);
    pen->at += bytes;
}

static void put_number(struct pen *pen, uint64_t value, size_t bytes)
{
    uint8_t text[8];
    sl_put_le64(text, value);
    put(pen, text, bytes);
}

static size_t put_zeros(struct pen *pen, size_t bytes) /* the memory is zeroed */
{
    assert(pen->bytes - pen->at >= bytes);
    pen->at += bytes;
    return pen->at - bytes;
}

static void put_name(struct pen *pen, const struct sl_tzr_entry *entry)
{
    put_number(pen, entry->name_bytes, 2);
    put(pen, entry->name, entry->name_bytes);
}

static size_t shape_bytes(const struct sl_tzr_entry *entry)
{
    return (entry->wide ? 8u : 4u) * entry->rank;
}

static void put_type(struct pen *pen, const struct sl_tzr_entry *entry,
                     const struct sl_tensor *tensor)
{
    put_number(pen, entry->dtype_bytes, 1);
    put(pen, entry->dtype, entry->dtype_bytes);
    put_number(pen, entry->rank, 1);
    for (unsigned i = 0; i < entry->rank; i++)
        put_number(pen, tensor->shape[i], entry->wide ? 8 : 4);
}

/* ---- one tensor header -------------------------------------------------------------------------
 */

/* The sizes of a header's parts. */
struct parts {
    bool encrypted;     /* encrypted data follow */
    size_t hash_bytes;  /* of the block, without its length */
    size_t crypt_bytes; /* of the block, with its length; 0: plain file */
    uint64_t mac_count;
    size_t bytes; /* of the whole header */
};

static int measure(const struct sl_tzr_draft *draft, const struct sl_tensor *tensor,
                   const struct sl_tzr_entry *entry, struct parts *parts, struct sl_err *err)
{
    const struct sl_tensorizer_options *options = &draft->options;
    uint64_t length = entry->data_length, crypt = 0;
    memset(parts, 0, sizeof(*parts));
    parts->encrypted = options->encrypt && length > 0;
    parts->hash_bytes = 1 + 2 + SHA256_BYTES + (parts->encrypted ? 0 : 2 + CRC32_BYTES);
    if (options->encrypt)
        crypt = 8 + 2;
    if (parts->encrypted) {
        parts->mac_count = (length - 1) / options->piece_bytes + 1;
        crypt += 8 + CHUNK_BYTES + (options->kdf ? 8 + DERIVATION_BYTES : 0);
        crypt += parts->mac_count * SL_MAC_BYTES;
    }
    uint64_t bytes = 8 + 2 + 1 + 2 + entry->name_bytes + 1u + entry->dtype_bytes + 1 +
                     shape_bytes(entry) + 2 + parts->hash_bytes + crypt + 8;
    if (options->align) {
        uint64_t end = entry->header_offset + bytes;
        bytes += -end & (options->align - 1);
    }
    if (bytes > HEADER_BYTES_MAX + length / 1000)
        return sl_fail_code(err, SL_E_FORMAT, "E_HEADER",
                            "cannot write tensor '%.*s': %" PRIu64 " pieces of %" PRIu64
                            " bytes need a header of %" PRIu64 " bytes: make the pieces larger",
                            SL_NAME_ARGS(tensor->name, tensor->name_bytes), parts->mac_count,
                            options->piece_bytes, bytes);
    parts->crypt_bytes = crypt;
    parts->bytes = bytes;
    return 0;
}

static void put_hashes(struct pen *pen, const struct parts *parts, struct sl_layout_header *header)
{
    put_number(pen, parts->hash_bytes, 2);
    put_number(pen, parts->encrypted ? 1 : 2, 1);
    if (!parts->encrypted) {
        put_number(pen, HASH_CRC32, 1);
        put_number(pen, CRC32_BYTES, 1);
        header->crc32_at = put_zeros(pen, CRC32_BYTES);
    }
    put_number(pen, HASH_SHA256, 1);
    put_number(pen, SHA256_BYTES, 1);
    header->sha256_at = put_zeros(pen, SHA256_BYTES);
}

static void put_derivation(struct pen *pen, const struct sl_kdf *kdf)
{
    put_number(pen, DERIVATION_BYTES, 8);
    put_number(pen, CHUNK_DERIVATION, 2);
    put_number(pen, METHOD_PWHASH, 2);
    put_number(pen, kdf->opslimit, 8);
    put_number(pen, kdf->memlimit, 8);
    put_number(pen, (uint32_t)kdf->alg, 4);
    put_number(pen, kdf->salt_bytes, 2);
    put(pen, kdf->salt, SL_SALT_BYTES);
}

static void put_crypt(struct pen *pen, const struct parts *parts,
                      const struct sl_tensorizer_options *options, struct sl_layout_header *header)
{
    put_number(pen, parts->crypt_bytes - 8, 8);
    put_number(pen, !parts->encrypted ? 0 : options->kdf ? 2 : 1, 2);
    if (!parts->encrypted)
        return;
    if (options->kdf)
        put_derivation(pen, options->kdf);
    header->mac_count = parts->mac_count;
    header->piece_bytes = options->piece_bytes;
    put_number(pen, CHUNK_BYTES + parts->mac_count * SL_MAC_BYTES, 8);
    put_number(pen, CHUNK_PARALLEL, 2);
    put_number(pen, options->piece_bytes, 8);
    header->nonce_at = put_zeros(pen, SL_NONCE_BYTES);
    put_number(pen, parts->mac_count, 8);
    header->macs_at = put_zeros(pen, parts->mac_count * SL_MAC_BYTES);
}

/* Hashes of a tensor whose data are known to be so many zeros, mostly none. */
static int hash_zeros(struct sl_layout_header *header, uint64_t bytes, struct sl_err *err)
{
    static const uint8_t zeros[ITEM_BYTES_MAX];
    uint8_t digest[SHA256_BYTES];
    assert(bytes <= sizeof(zeros));
    SL_AUTO(sl_sha256) sha256 = sl_sha256_new(err);
    if (!sha256)
        return -1;
    uint32_t crc = sl_crc32(0, header->prefix, header->prefix_bytes);
    sl_sha256_update(sha256, header->prefix, header->prefix_bytes);
    sl_sha256_update(sha256, zeros, bytes);
    sl_sha256_finish(sha256, digest);
    sl_layout_header_hashes(header, sl_crc32(crc, zeros, bytes), digest);
    return 0;
}

struct sl_layout_header *sl_tzr_compose_header(const struct sl_tzr_draft *draft,
                                               const struct sl_tensor *tensor,
                                               struct sl_tzr_entry *entry, struct sl_err *err)
{
    struct parts parts;
    if (measure(draft, tensor, entry, &parts, err) < 0)
        return NULL;
    size_t prefix_bytes = parts.bytes - parts.crypt_bytes;
    struct sl_layout_header *header = sl_arena_alloc(draft->layout->arena, sizeof(*header), err);
    uint8_t *data = sl_arena_alloc(draft->layout->arena, parts.bytes + prefix_bytes, err);
    if (!header || !data)
        return NULL;
    struct pen pen = {data, 0, parts.bytes};
    put_number(&pen, parts.bytes, 8);
    put_number(&pen, tensor->module_index, 2);
    put_number(&pen, entry->type, 1);
    put_name(&pen, entry);
    put_type(&pen, entry, tensor);
    put_hashes(&pen, &parts, header);
    size_t crypt_at = pen.at;
    if (parts.crypt_bytes)
        put_crypt(&pen, &parts, &draft->options, header);
    put_zeros(&pen, parts.bytes - 8 - pen.at); /* slack */
    put_number(&pen, entry->data_length, 8);

    uint8_t *prefix = data + parts.bytes;
    memcpy(prefix, data, crypt_at);
    memcpy(prefix + crypt_at, data + crypt_at + parts.crypt_bytes, prefix_bytes - crypt_at);
    header->offset = entry->header_offset;
    header->data = data;
    header->bytes = parts.bytes;
    header->prefix = prefix;
    header->prefix_bytes = prefix_bytes;
    entry->data_offset = header->offset + header->bytes;
    bool known = entry->data_length == 0 || tensor->meta;
    return known && hash_zeros(header, entry->data_length, err) < 0 ? NULL : header;
}

/* ---- the front of the file ---------------------------------------------------------------------
 */

size_t sl_tzr_entry_bytes(const struct sl_tzr_entry *entry, bool tagged)
{
    return 29u + entry->name_bytes + entry->dtype_bytes + shape_bytes(entry) + (tagged ? 4 : 0);
}

static uint64_t feature_flags(const struct sl_tzr_draft *draft)
{
    return (draft->version >= 4 && draft->options.encrypt ? 1 : 0) | (draft->tagged ? 2 : 0);
}

static void put_entry(struct pen *pen, const struct sl_tzr_draft *draft, size_t number)
{
    const struct sl_tzr_entry *entry = &draft->entries[number];
    if (draft->tagged)
        put_number(pen, entry->wide ? TAG_LONG : TAG_SHORT, 4);
    put_name(pen, entry);
    put_number(pen, entry->type, 1);
    put_type(pen, entry, draft->layout->places[number].tensor);
    put_number(pen, entry->header_offset, 8);
    put_number(pen, entry->data_offset, 8);
    put_number(pen, entry->data_length, 8);
}

int sl_tzr_compose_start(const struct sl_tzr_draft *draft, struct sl_buf *head, struct sl_err *err)
{
    size_t bytes = SL_TZR_METADATA_AT + draft->metadata_bytes;
    sl_autofree uint8_t *data = sl_alloc(bytes, err);
    if (!data)
        return -1;
    struct pen pen = {data, 0, bytes};
    put(&pen, "|TZR|", 5);
    put_number(&pen, draft->version, 4);
    put_number(&pen, feature_flags(draft), 8);
    put_zeros(&pen, 24);
    put_number(&pen, draft->tensor_bytes, 8);
    put_zeros(&pen, 8);
    put_number(&pen, draft->layout->place_count, 8);
    put_number(&pen, draft->metadata_bytes, 8);
    for (size_t i = 0; i < draft->layout->place_count; i++)
        put_entry(&pen, draft, i);
    *head = (struct sl_buf)SL_BUF_INIT(bytes);
    return sl_buf_append(head, data, bytes, err);
}

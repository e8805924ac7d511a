/*
 * A new .tensors file. All lengths follow from names, dtypes and shapes, so that every tensor has
 * its place before a byte is read: first the version and the metadata block, whose size moves all
 * else, then the headers one after another. What the reference writer makes of the same tensors
 * comes out bit for bit; only `align` and more metadata than 256 KiB leave its ways, and every
 * release reads both.
 *
 * Sizes are counted before memory is taken; whatever is written then must fill it exactly. What a
 * tensor's hashes begin with is its header with zeros for the hash values and without the crypt
 * block. It is kept apart from the header, which others complete while hashes still run.
 */
#include <assert.h>
#include <string.h>

#include "arena.h"
#include "hash.h"
#include "layout.h"
#include "tensorizer_compose.h"

/* ---- the bytes of headers and metadata ------------------------------------------------------- */

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

static size_t entry_bytes(const struct sl_tzr_entry *entry, bool tagged)
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

/* ---- the layout ------------------------------------------------------------------------------ */

enum {
    METADATA_BYTES = 256 * 1024, /* what the reference writer always reserves */
    METADATA_STEP = 4096,
    RANK_MAX = 64,
    PIECE_BYTES_MIN = 1024,
    PIECE_BYTES_STEP = 64,
    TERMINATOR_BYTES = 8,
};

void sl_layout_header_hashes(struct sl_layout_header *header, uint32_t crc32,
                             const uint8_t sha256[32])
{
    for (int i = 0; header->crc32_at && i < 4; i++)
        header->data[header->crc32_at + i] = (uint8_t)(crc32 >> (8 * i));
    if (header->sha256_at)
        memcpy(header->data + header->sha256_at, sha256, 32);
}

/* ---- what can be written --------------------------------------------------------------------- */

static int check_options(const struct sl_tensorizer_options *options, struct sl_err *err)
{
    if (options->piece_bytes &&
        (options->piece_bytes < PIECE_BYTES_MIN || options->piece_bytes % PIECE_BYTES_STEP ||
         options->piece_bytes > INT64_MAX))
        return sl_fail(err, SL_E_USAGE,
                       "pieces of %" PRIu64 " bytes: encrypted .tensors files have pieces of a "
                       "multiple of %d bytes, at least %d",
                       options->piece_bytes, PIECE_BYTES_STEP, PIECE_BYTES_MIN);
    if ((options->align & (options->align - 1)) || options->align > SL_TENSORIZER_ALIGN_MAX)
        return sl_fail(err, SL_E_USAGE,
                       "cannot align data to %" PRIu64 " bytes: give a power of two up to %d",
                       options->align, SL_TENSORIZER_ALIGN_MAX);
    if (options->kdf && options->kdf->salt_bytes != SL_SALT_BYTES)
        return sl_fail_code(err, SL_E_FORMAT, "E_KDF", "a salt of %u bytes, it must have %d",
                            options->kdf->salt_bytes, SL_SALT_BYTES);
    return 0;
}

static int check_tensor(const struct sl_tensor *tensor, struct sl_err *err)
{
    const char *why = NULL, *code = NULL;
    if (tensor->refused)
        return sl_fail_code(err, (enum sl_err_kind)tensor->refused, tensor->refused_code,
                            "tensor '%.*s': %s", SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                            tensor->refused_why);
    if (!sl_dtype_row(tensor->dtype)->numpy[0]) {
        why = ".tensors files have no such dtype: leave it out, or keep the file as it is";
        code = "E_DTYPE";
    } else if (tensor->rank > RANK_MAX) {
        why = "more than 64 dimensions";
        code = "E_METADATA";
    } else if (tensor->bytes > INT64_MAX) {
        why = "2^63 bytes or more";
        code = "E_LENGTH";
    }
    return why ? sl_fail_code(err, SL_E_FORMAT, code,
                              "cannot write tensor '%.*s' of dtype %s as tensorizer: %s",
                              SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->dtype_name,
                              why)
               : 0;
}

/* ---- the file as a whole --------------------------------------------------------------------- */

/* "<f4", or "<V2" NUL "torch.bfloat16". */
static void fill_dtype(struct sl_tzr_entry *entry, const struct sl_dtype_row *row, char *text)
{
    static const char torch[] = "torch.";
    size_t used = strlen(row->numpy), name_bytes = strlen(row->torch);
    memcpy(text, row->numpy, used);
    if (strchr(row->numpy, 'V')) {
        text[used++] = '\0';
        memcpy(text + used, torch, sizeof(torch) - 1);
        used += sizeof(torch) - 1;
        memcpy(text + used, row->torch, name_bytes);
        used += name_bytes;
    }
    entry->dtype = text;
    entry->dtype_bytes = (uint8_t)used;
}

int sl_tzr_fill_entry(struct sl_tzr_draft *draft, const struct sl_tensor *tensor,
                      struct sl_tzr_entry *entry, struct sl_err *err)
{
    if (check_tensor(tensor, err) < 0 ||
        sl_tzr_store_name(draft->layout->arena, tensor, entry, err) < 0)
        return -1;
    char *dtype = sl_arena_alloc(draft->layout->arena, SL_TZR_DTYPE_BYTES_MAX, err);
    if (!dtype)
        return -1;
    fill_dtype(entry, sl_dtype_row(tensor->dtype), dtype);
    bool plain = entry->path_count == 1 && entry->path->text;
    entry->type = !plain                              ? SL_TZR_TYPE_STATE_DICT
                  : tensor->role == SL_ROLE_PARAMETER ? 0
                  : tensor->role == SL_ROLE_BUFFER    ? 1
                                                      : SL_TZR_TYPE_STATE_DICT;
    entry->rank = (uint8_t)tensor->rank;
    for (unsigned i = 0; i < tensor->rank; i++)
        entry->wide = entry->wide || tensor->shape[i] > UINT32_MAX;
    entry->data_length = tensor->meta && tensor->rank > 0 ? 0 : tensor->bytes;
    return 0;
}

/* Section 4. */
void sl_tzr_choose_version(struct sl_tzr_draft *draft)
{
    draft->version = SL_MAX(draft->version, draft->options.encrypt ? 3u : 1u);
    for (size_t i = 0; i < draft->layout->place_count; i++) {
        const struct sl_tzr_entry *entry = &draft->entries[i];
        const struct sl_tensor *tensor = draft->layout->places[i].tensor;
        bool meta = entry->data_length == 0 && tensor->bytes > 0;
        bool opaque = memchr(entry->dtype, 0, entry->dtype_bytes) != NULL;
        uint32_t needed = entry->wide ? 5 : meta ? 4 : opaque ? 2 : 1;
        draft->version = SL_MAX(draft->version, needed);
    }
    draft->tagged = draft->version == 5;
}

int sl_tzr_size_metadata(struct sl_tzr_draft *draft, struct sl_err *err)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < draft->layout->place_count; i++)
        bytes += entry_bytes(&draft->entries[i], draft->tagged);
    if (bytes <= draft->metadata_bytes)
        return 0;
    bytes = (SL_MAX(bytes, METADATA_BYTES) + METADATA_STEP - 1) / METADATA_STEP * METADATA_STEP;
    if (bytes > SL_TZR_METADATA_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "E_METADATA",
                            "%zu tensors need %" PRIu64 " bytes of metadata in one .tensors file, "
                            "at most %d",
                            draft->layout->place_count, bytes, SL_TZR_METADATA_BYTES_MAX);
    draft->metadata_bytes = bytes;
    return 0;
}

/* A reader adds them up likewise, and would refuse the file. */
static int too_many_headers(struct sl_err *err)
{
    return sl_fail_code(err, SL_E_FORMAT, "E_HEADER",
                        "the tensor headers are longer than %d bytes together: choose a smaller "
                        "--align, or fewer tensors with --include",
                        SL_TENSORIZER_HEADERS_BYTES_MAX);
}

/* Headers and places in order; the file's length. */
static int place_tensors(struct sl_tzr_draft *draft, struct sl_err *err)
{
    struct sl_layout *layout = draft->layout;
    uint64_t at = SL_TZR_METADATA_AT + draft->metadata_bytes, headers = 0;
    for (size_t i = 0; i < layout->place_count; i++) {
        struct sl_layout_place *place = &layout->places[i];
        struct sl_tzr_entry *entry = &draft->entries[i];
        entry->header_offset = at;
        if (!(place->header = sl_tzr_compose_header(draft, place->tensor, entry, err)))
            return -1;
        headers = sl_add_capped(headers, place->header->bytes);
        if (headers > SL_TENSORIZER_HEADERS_BYTES_MAX)
            return too_many_headers(err);
        place->offset = entry->data_offset;
        place->bytes = entry->data_length;
        if (__builtin_add_overflow(place->offset, place->bytes, &at) || at > INT64_MAX)
            return sl_fail_code(err, SL_E_FORMAT, "E_LENGTH",
                                "the tensors need 2^63 bytes or more in one .tensors file");
        draft->tensor_bytes += place->bytes;
    }
    layout->files[0].bytes = at + TERMINATOR_BYTES;
    return 0;
}

static int lay_out(struct sl_tzr_draft *draft, struct sl_err *err)
{
    struct sl_layout *layout = draft->layout;
    for (size_t i = 0; i < layout->place_count; i++)
        if (sl_tzr_fill_entry(draft, layout->places[i].tensor, &draft->entries[i], err) < 0)
            return -1;
    if (sl_tzr_check_paths(draft->entries, layout->place_count, err) < 0)
        return sl_wrap(err, "cannot write a .tensors file");
    sl_tzr_choose_version(draft);
    if (sl_tzr_size_metadata(draft, err) < 0 || place_tensors(draft, err) < 0)
        return -1;
    return sl_tzr_compose_start(draft, &layout->files[0].head, err);
}

static struct sl_layout *new_layout(const struct sl_tensor *const *tensors, size_t count,
                                    const char *name, struct sl_err *err)
{
    SL_AUTO(sl_layout) layout = sl_alloc(sizeof(*layout), err);
    if (!layout || !(layout->files = sl_alloc_array(1, sizeof(*layout->files), err)))
        return NULL;
    layout->file_count = 1;
    if (!(layout->places = sl_alloc_array(count, sizeof(*layout->places), err)) ||
        !(layout->arena = sl_arena_new(err)) ||
        !(layout->files[0].name = sl_strdup(name ? name : "model.tensors", err)))
        return NULL;
    layout->place_count = count;
    for (size_t i = 0; i < count; i++)
        layout->places[i].tensor = tensors[i];
    return sl_steal(&layout);
}

int sl_tensorizer_layout(const struct sl_tensor *const *tensors, size_t count,
                         const struct sl_tensorizer_options *options, struct sl_layout **out,
                         struct sl_err *err)
{
    struct sl_tzr_draft draft = {0};
    if (options)
        draft.options = *options;
    if (check_options(&draft.options, err) < 0)
        return -1;
    if (draft.options.piece_bytes == 0)
        draft.options.piece_bytes = SL_PIECE_BYTES;
    if (count == 0)
        return sl_fail_code(err, SL_E_FORMAT, "E_EMPTY",
                            "there are no tensors to write, and a .tensors file needs one");
    SL_AUTO(sl_layout) layout = new_layout(tensors, count, draft.options.name, err);
    sl_autofree struct sl_tzr_entry *entries = sl_alloc_array(count, sizeof(*entries), err);
    if (!layout || !entries)
        return -1;
    draft.layout = layout;
    draft.entries = entries;
    if (lay_out(&draft, err) < 0)
        return -1;
    *out = sl_steal(&layout);
    return 0;
}

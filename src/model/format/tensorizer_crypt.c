/*
 * The crypt block (section 11.1): a list of chunks whose lengths must nest exactly. Nothing is
 * decrypted here; check 18 refuses what no writer makes before anybody trusts a count of MACs.
 *
 * A tensor with one MAC is one piece whatever piece size is stored (section 11.2), and so is one of
 * the sequential type. Files of the real writer repeat one key derivation in every header; it is
 * kept once.
 */
#include <string.h>

#include "buf.h"
#include "tensorizer.h"

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

static const char *take_parallel(struct sl_cursor *chunk, struct sl_tzr_crypt *crypt)
{
    const uint8_t *fixed = sl_take(chunk, 8 + SL_NONCE_BYTES + 8);
    if (!fixed)
        return "its cipher block is cut off";
    crypt->parallel = true;
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

static const char *take_sequential(struct sl_cursor *chunk, struct sl_tzr_crypt *crypt)
{
    crypt->nonce = sl_take(chunk, SL_NONCE_BYTES);
    crypt->macs = crypt->nonce ? sl_take(chunk, SL_MAC_BYTES) : NULL;
    crypt->mac_count = 1;
    return crypt->macs && chunk->at == chunk->bytes ? NULL : "its cipher block has a wrong length";
}

static const char *take_chunk(struct sl_cursor *list, struct sl_tzr_crypt *crypt)
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

static const char *take_block(const uint8_t *data, size_t bytes, struct sl_tzr_crypt *crypt,
                              size_t *used)
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

int sl_tzr_crypt_block(const uint8_t *data, size_t bytes, struct sl_tzr_crypt *crypt, size_t *used,
                       struct sl_err *err)
{
    memset(crypt, 0, sizeof(*crypt));
    const char *why = take_block(data, bytes, crypt, used);
    return why ? sl_fail_code(err, SL_E_FORMAT, "E_CRYPTINFO", "%s", why) : 0;
}

const char *sl_tzr_crypt_misfit(const struct sl_tzr_crypt *crypt, uint64_t data_bytes)
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

const struct sl_crypt *sl_tzr_crypt_keep(struct sl_index *index, struct sl_tzr_file *file,
                                         const struct sl_tzr_crypt *crypt, uint64_t data_bytes,
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

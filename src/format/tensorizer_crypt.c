/*
 * The crypt block (section 11.1): a list of chunks whose lengths must nest exactly. Nothing is
 * decrypted here; check 18 refuses what no writer makes before anybody trusts a count of MACs.
 */
#include <string.h>

#include "buf.h"
#include "tensorizer.h"

enum {
    CHUNK_DERIVATION = 1,
    CHUNK_PARALLEL = 2,
    CHUNK_SEQUENTIAL = 3,
    NONCE_BYTES = 24,
    MAC_BYTES = 16,
    PIECE_BYTES_MIN = 1024,
    PIECE_BYTES_STEP = 64,
};

/* Method, opslimit, memlimit, alg, salt; what follows is ignored (the specification allows it). */
static const char *take_derivation(struct sl_cursor *chunk)
{
    const uint8_t *fixed = sl_take(chunk, 2 + 8 + 8 + 4 + 2);
    if (!fixed || !sl_take(chunk, sl_get_le16(fixed + 22)))
        return "its key derivation is cut off";
    return sl_get_le16(fixed) == 1 ? NULL : "its key is derived by an unknown method";
}

static const char *take_parallel(struct sl_cursor *chunk, struct sl_tzr_crypt *crypt)
{
    const uint8_t *fixed = sl_take(chunk, 8 + NONCE_BYTES + 8);
    if (!fixed)
        return "its cipher block is cut off";
    crypt->parallel = true;
    crypt->piece_bytes = sl_get_le64(fixed);
    crypt->macs = sl_get_le64(fixed + 8 + NONCE_BYTES);
    if (crypt->piece_bytes < PIECE_BYTES_MIN || crypt->piece_bytes % PIECE_BYTES_STEP ||
        crypt->piece_bytes > INT64_MAX)
        return "its cipher pieces have an impossible size";
    size_t rest = chunk->bytes - chunk->at;
    if (rest % MAC_BYTES || crypt->macs != rest / MAC_BYTES)
        return "the number of MACs does not fill its cipher block";
    chunk->at = chunk->bytes;
    return NULL;
}

static const char *take_sequential(struct sl_cursor *chunk)
{
    if (!sl_take(chunk, NONCE_BYTES + MAC_BYTES) || chunk->at != chunk->bytes)
        return "its cipher block has a wrong length";
    return NULL;
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
        return take_derivation(&chunk);
    case CHUNK_PARALLEL:
        crypt->ciphers++;
        return take_parallel(&chunk, crypt);
    case CHUNK_SEQUENTIAL:
        crypt->ciphers++;
        return take_sequential(&chunk);
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

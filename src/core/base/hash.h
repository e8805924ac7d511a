/*
 * Hashes of bytes on their way: CRC32 and CRC32C (ISA-L, combinable across ranges), SHA-256,
 * SHA-1, MD5 and BLAKE2b of 64 bytes (OpenSSL). Any thread, a hash in the making by one at a time.
 */
#ifndef SL_HASH_H
#define SL_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "hash_kind.h"
#include "mem.h"

/** "crc32", "crc32c", "sha256", "blake2b512", "crc64nvme", "sha1", "md5": constants. */
const char *sl_hash_name(enum sl_hash_kind kind);
/** 4, 8, 16, 20, 32 or 64. CRC digests are big-endian bytes, so that their hex reads as the number.
 */
size_t sl_hash_bytes(enum sl_hash_kind kind);

/** Needs its bytes in order; else those of pieces combine. */
bool sl_hash_is_ordered(enum sl_hash_kind kind);
/** Does the crypto library have it? One in FIPS mode has no MD5. Ask before the first of a kind
 * that may be missing. */
bool sl_hash_is_available(enum sl_hash_kind kind);

/** Continue a CRC: begin with 0. crc32: IEEE 802.3 as zlib's crc32(). crc32c: Castagnoli. */
uint32_t sl_crc32(uint32_t crc, const void *data, size_t bytes);
uint32_t sl_crc32c(uint32_t crc, const void *data, size_t bytes);
/** CRC(A then B) from CRC(A), CRC(B) and the length of B. */
uint32_t sl_crc32_combine(uint32_t a, uint32_t b, uint64_t b_bytes);
uint32_t sl_crc32c_combine(uint32_t a, uint32_t b, uint64_t b_bytes);

/**
 * Continue a CRC of any kind, in the low bits.
 *
 * @crc     of what came before; 0 at first.
 * @data    the next `bytes` bytes.
 * @return  the CRC of all of it.
 */
uint64_t sl_crc_of(enum sl_hash_kind kind, uint64_t crc, const void *data, size_t bytes);
/**
 * Join the CRCs of two pieces.
 *
 * @a, b     of the first piece and of the one behind it.
 * @b_bytes  length of the second piece.
 * @return   the CRC of both, one behind the other.
 */
uint64_t sl_crc_join(enum sl_hash_kind kind, uint64_t a, uint64_t b, uint64_t b_bytes);
/** Its digest. */
void sl_crc_digest(enum sl_hash_kind kind, uint64_t crc, uint8_t digest[SL_HASH_BYTES_MAX]);

struct sl_sha256;
/** NULL: SL_E_NO_SPACE. Free it, also after the finish, which ends it; NULL is fine. */
struct sl_sha256 *sl_sha256_new(struct sl_err *err);
void sl_sha256_free(struct sl_sha256 *sha);
SL_AUTO_DEFINE(sl_sha256)
void sl_sha256_update(struct sl_sha256 *sha, const void *data, size_t bytes);
void sl_sha256_finish(struct sl_sha256 *sha, uint8_t digest[32]);

/** Any ordered hash, in the same way. */
struct sl_hasher;
struct sl_hasher *sl_hasher_new(enum sl_hash_kind kind, struct sl_err *err);
void sl_hasher_free(struct sl_hasher *hasher);
SL_AUTO_DEFINE(sl_hasher)
void sl_hasher_update(struct sl_hasher *hasher, const void *data, size_t bytes);
void sl_hasher_finish(struct sl_hasher *hasher, uint8_t digest[SL_HASH_BYTES_MAX]);

/* ---- any kind, of bytes that come in order --------------------------------------------------- */

/** A CRC is a number, the others have a state of the library's. One thread at a time. */
struct sl_digest {
    enum sl_hash_kind kind;
    uint64_t crc;             /* of a CRC */
    struct sl_hasher *hasher; /* of the others, until it is finished */
};

/**
 * Begin a digest of any kind.
 *
 * @sum     out: release it with sl_digest_release(), also after a failure.
 * @prefix  what is hashed first; may be empty.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_digest_begin(struct sl_digest *sum, enum sl_hash_kind kind, const void *prefix,
                    size_t prefix_bytes, struct sl_err *err);
void sl_digest_update(struct sl_digest *sum, const void *data, size_t bytes);
/** The digest of sl_hash_bytes(kind) bytes; only sl_digest_release() may follow. */
void sl_digest_finish(struct sl_digest *sum, uint8_t digest[SL_HASH_BYTES_MAX]);
/** A zeroed or finished one is fine. */
void sl_digest_release(struct sl_digest *sum);
#define sl_autodigest __attribute__((cleanup(sl_digest_release))) struct sl_digest

/**
 * Compute a digest at once.
 *
 * @prefix  what is hashed before the data; may be empty.
 * @digest  out: as many bytes as the kind has.
 * @return  0, or -1 with SL_E_NO_SPACE.
 */
int sl_digest_of(enum sl_hash_kind kind, const void *prefix, size_t prefix_bytes, const void *data,
                 size_t bytes, uint8_t digest[SL_HASH_BYTES_MAX], struct sl_err *err);

#endif

/*
 * How hashes work here: the loops over bytes belong to libraries that know the processor (ISA-L,
 * OpenSSL). Where it multiplies many bytes at once without carries, CRCs are folded first
 * (crc_fold), which is faster. Ours are the conventions, too, and the combination of CRCs.
 *
 * A CRC of bytes is a polynomial over GF(2) modulo P. The CRC of A followed by B is crc(A) * x^(8
 * |B|) + crc(B), because appending |B| bytes shifts A's polynomial up. So ranges that land in any
 * order are hashed where they land and joined later, at the price of a few dozen 32-bit
 * multiplications. Numbers are "reflected": bit 31 stands for x^0.
 */
#include "hash.h"

#include <assert.h>
#include <isa-l/crc.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "crc64.h"
#include "crc_ways.h"

enum { PIECE_BYTES_MAX = 1 << 30 };            /* crc32_iscsi counts in int */
enum { BYTE_BITS = 3, BITS = 64 + BYTE_BITS }; /* lengths are 64 bits of bytes */
#define X_TO_0            (1u << 31)
#define CRC32_POLYNOMIAL  0xedb88320u
#define CRC32C_POLYNOMIAL 0x82f63b78u

const char *sl_hash_name(enum sl_hash_kind kind)
{
    static const char *const names[] = {"crc32",     "crc32c", "sha256", "blake2b512",
                                        "crc64nvme", "sha1",   "md5"};
    return names[kind];
}

size_t sl_hash_bytes(enum sl_hash_kind kind)
{
    static const uint8_t bytes[] = {4, 4, 32, 64, 8, 20, 16};
    return bytes[kind];
}

bool sl_hash_is_ordered(enum sl_hash_kind kind)
{
    return kind == SL_HASH_SHA256 || kind == SL_HASH_BLAKE2B || kind == SL_HASH_SHA1 ||
           kind == SL_HASH_MD5;
}

/* a * b mod P. */
static uint32_t multiply(uint32_t polynomial, uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ polynomial : b >> 1;
    }
    return product;
}

/* What is known of a polynomial: it is the same for all time, and made once. */
struct polynomial {
    uint32_t value;
    uint32_t squares[BITS]; /* x^(2^i) */
    struct sl_crc_factors factors;
};

static struct {
    pthread_once_t once;
    struct polynomial crc32, crc32c;
} of = {.once = PTHREAD_ONCE_INIT,
        .crc32 = {.value = CRC32_POLYNOMIAL},
        .crc32c = {.value = CRC32C_POLYNOMIAL}};

/* number * x^(count * 2^from) mod P. */
static uint32_t raised(const struct polynomial *polynomial, uint32_t number, uint64_t count,
                       unsigned from)
{
    for (; count; from++, count >>= 1)
        if (count & 1)
            number = multiply(polynomial->value, number, polynomial->squares[from]);
    return number;
}

static uint64_t power_crc32(uint64_t bits)
{
    return (uint64_t)raised(&of.crc32, X_TO_0, bits, 0) << 32;
}

static uint64_t power_crc32c(uint64_t bits)
{
    return (uint64_t)raised(&of.crc32c, X_TO_0, bits, 0) << 32;
}

static void fill(struct polynomial *polynomial, uint64_t (*power)(uint64_t bits))
{
    uint32_t square = X_TO_0 >> 1;
    for (unsigned i = 0; i < BITS; i++) {
        polynomial->squares[i] = square;
        square = multiply(polynomial->value, square, square);
    }
    sl_crc_factors_init(&polynomial->factors, power);
}

static void prepare(void)
{
    fill(&of.crc32, power_crc32);
    fill(&of.crc32c, power_crc32c);
}

/* Without the inversions, like the next one. */
static uint32_t crc32_raw(uint32_t crc, const uint8_t *data, size_t bytes)
{
    return bytes ? ~crc32_gzip_refl(~crc, data, bytes) : crc;
}

static uint32_t crc32c_raw(uint32_t crc, const uint8_t *data, size_t bytes)
{
    unsigned char *at = (unsigned char *)(uintptr_t)data; /* ISA-L forgot a const */
    while (bytes > 0) {
        size_t piece = SL_MIN(bytes, (size_t)PIECE_BYTES_MAX);
        crc = crc32_iscsi(at, (int)piece, crc);
        at += piece;
        bytes -= piece;
    }
    return crc;
}

uint32_t sl_crc32_by(enum sl_crc_way way, uint32_t crc, const void *data, size_t bytes)
{
    uint8_t rest[SL_CRC_REST_BYTES];
    pthread_once(&of.once, prepare);
    crc = ~crc;
    size_t folded = sl_crc_fold(way, &of.crc32.factors, crc, data, bytes, rest);
    if (folded)
        crc = crc32_raw(0, rest, sizeof(rest));
    return bytes > folded ? ~crc32_raw(crc, (const uint8_t *)data + folded, bytes - folded) : ~crc;
}

uint32_t sl_crc32c_by(enum sl_crc_way way, uint32_t crc, const void *data, size_t bytes)
{
    uint8_t rest[SL_CRC_REST_BYTES];
    pthread_once(&of.once, prepare);
    crc = ~crc;
    size_t folded = sl_crc_fold(way, &of.crc32c.factors, crc, data, bytes, rest);
    if (folded)
        crc = crc32c_raw(0, rest, sizeof(rest));
    return bytes > folded ? ~crc32c_raw(crc, (const uint8_t *)data + folded, bytes - folded) : ~crc;
}

/* Folding, from the width on where it is faster than ISA-L. CRC32C has its own instruction. */
static enum sl_crc_way way_from(enum sl_crc_way least)
{
    return sl_crc_has(least) ? sl_crc_best_way() : SL_CRC_PLAIN;
}

uint32_t sl_crc32(uint32_t crc, const void *data, size_t bytes)
{
    return sl_crc32_by(way_from(SL_CRC_FOLD_32), crc, data, bytes);
}

uint32_t sl_crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return sl_crc32c_by(way_from(SL_CRC_FOLD_64), crc, data, bytes);
}

uint32_t sl_crc32_combine(uint32_t a, uint32_t b, uint64_t b_bytes)
{
    pthread_once(&of.once, prepare);
    return raised(&of.crc32, a, b_bytes, BYTE_BITS) ^ b;
}

uint32_t sl_crc32c_combine(uint32_t a, uint32_t b, uint64_t b_bytes)
{
    pthread_once(&of.once, prepare);
    return raised(&of.crc32c, a, b_bytes, BYTE_BITS) ^ b;
}

uint64_t sl_crc_of(enum sl_hash_kind kind, uint64_t crc, const void *data, size_t bytes)
{
    if (kind == SL_HASH_CRC64NVME)
        return sl_crc64nvme(crc, data, bytes);
    return kind == SL_HASH_CRC32 ? sl_crc32((uint32_t)crc, data, bytes)
                                 : sl_crc32c((uint32_t)crc, data, bytes);
}

uint64_t sl_crc_join(enum sl_hash_kind kind, uint64_t a, uint64_t b, uint64_t b_bytes)
{
    if (kind == SL_HASH_CRC64NVME)
        return sl_crc64nvme_combine(a, b, b_bytes);
    return kind == SL_HASH_CRC32 ? sl_crc32_combine((uint32_t)a, (uint32_t)b, b_bytes)
                                 : sl_crc32c_combine((uint32_t)a, (uint32_t)b, b_bytes);
}

void sl_crc_digest(enum sl_hash_kind kind, uint64_t crc, uint8_t digest[SL_HASH_BYTES_MAX])
{
    size_t bytes = sl_hash_bytes(kind);
    memset(digest, 0, SL_HASH_BYTES_MAX);
    for (size_t i = 0; i < bytes; i++)
        digest[i] = (uint8_t)(crc >> (8 * (bytes - 1 - i)));
}

struct sl_hasher {
    EVP_MD_CTX *context;
};

struct sl_hasher *sl_hasher_new(enum sl_hash_kind kind, struct sl_err *err)
{
    SL_AUTO(sl_hasher) hasher = sl_alloc(sizeof(*hasher), err);
    if (!hasher)
        return NULL;
    const EVP_MD *method = kind == SL_HASH_BLAKE2B ? EVP_blake2b512()
                           : kind == SL_HASH_SHA1  ? EVP_sha1()
                           : kind == SL_HASH_MD5   ? EVP_md5()
                                                   : EVP_sha256();
    hasher->context = EVP_MD_CTX_new();
    if (!hasher->context || !EVP_DigestInit_ex(hasher->context, method, NULL)) {
        sl_fail(err, SL_E_NO_SPACE, "cannot begin a %s: out of memory", sl_hash_name(kind));
        return NULL;
    }
    return sl_steal(&hasher);
}

void sl_hasher_free(struct sl_hasher *hasher)
{
    if (!hasher)
        return;
    EVP_MD_CTX_free(hasher->context);
    free(hasher);
}

bool sl_hash_is_available(enum sl_hash_kind kind)
{
    if (!sl_hash_is_ordered(kind))
        return true;
    SL_AUTO(sl_hasher) hasher = sl_hasher_new(kind, NULL);
    return hasher != NULL;
}

/* Neither call can fail on an initialised context; a digest that is not one must never be compared
 * with anything. */
void sl_hasher_update(struct sl_hasher *hasher, const void *data, size_t bytes)
{
    if (!EVP_DigestUpdate(hasher->context, data, bytes))
        abort();
}

void sl_hasher_finish(struct sl_hasher *hasher, uint8_t digest[SL_HASH_BYTES_MAX])
{
    if (!EVP_DigestFinal_ex(hasher->context, digest, NULL))
        abort();
}

/* SHA-256 alone, whose digest has its own size. */
struct sl_sha256 {
    struct sl_hasher *hasher;
};

struct sl_sha256 *sl_sha256_new(struct sl_err *err)
{
    SL_AUTO(sl_sha256) sha = sl_alloc(sizeof(*sha), err);
    if (!sha)
        return NULL;
    sha->hasher = sl_hasher_new(SL_HASH_SHA256, err);
    return sha->hasher ? sl_steal(&sha) : NULL;
}

void sl_sha256_free(struct sl_sha256 *sha)
{
    if (!sha)
        return;
    sl_hasher_free(sha->hasher);
    free(sha);
}

void sl_sha256_update(struct sl_sha256 *sha, const void *data, size_t bytes)
{
    sl_hasher_update(sha->hasher, data, bytes);
}

void sl_sha256_finish(struct sl_sha256 *sha, uint8_t digest[32])
{
    if (!EVP_DigestFinal_ex(sha->hasher->context, digest, NULL))
        abort();
}

/* ---- any kind: this alone asks which kinds are CRCs ------------------------------------------ */

int sl_digest_begin(struct sl_digest *sum, enum sl_hash_kind kind, const void *prefix,
                    size_t prefix_bytes, struct sl_err *err)
{
    *sum = (struct sl_digest){.kind = kind};
    if (sl_hash_is_ordered(kind) && !(sum->hasher = sl_hasher_new(kind, err)))
        return -1;
    sl_digest_update(sum, prefix, prefix_bytes);
    return 0;
}

void sl_digest_update(struct sl_digest *sum, const void *data, size_t bytes)
{
    if (bytes == 0)
        return;
    if (!sl_hash_is_ordered(sum->kind)) {
        sum->crc = sl_crc_of(sum->kind, sum->crc, data, bytes);
        return;
    }
    assert(sum->hasher);
    sl_hasher_update(sum->hasher, data, bytes);
}

void sl_digest_finish(struct sl_digest *sum, uint8_t digest[SL_HASH_BYTES_MAX])
{
    if (!sl_hash_is_ordered(sum->kind)) {
        sl_crc_digest(sum->kind, sum->crc, digest);
        return;
    }
    assert(sum->hasher);
    sl_hasher_finish(sum->hasher, digest);
    sl_digest_release(sum);
}

void sl_digest_release(struct sl_digest *sum)
{
    sl_hasher_free(sl_steal(&sum->hasher));
}

int sl_digest_of(enum sl_hash_kind kind, const void *prefix, size_t prefix_bytes, const void *data,
                 size_t bytes, uint8_t digest[SL_HASH_BYTES_MAX], struct sl_err *err)
{
    sl_autodigest sum = {0};
    if (sl_digest_begin(&sum, kind, prefix, prefix_bytes, err) < 0)
        return -1;
    sl_digest_update(&sum, data, bytes);
    sl_digest_finish(&sum, digest);
    return 0;
}

/* Hashes: the published check values, and CRCs of parts joined. */
#include "hash.h"

#include <check.h>
#include <string.h>
#include <zlib.h>

#include "alloc_fail.h"
#include "buf.h"
#include "claims.h"

static uint8_t bytes[10000];

static void fill_bytes(void)
{
    uint32_t state = 12345;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(state >> 24);
    }
}

SL_TEST(check_values_are_the_published_ones)
{
    ck_assert_uint_eq(sl_crc32(0, "123456789", 9), 0xcbf43926u);
    ck_assert_uint_eq(sl_crc32c(0, "123456789", 9), 0xe3069283u);
    SL_AUTO(sl_sha256) sha = sl_sha256_new(NULL);
    uint8_t digest[32];
    char hex[65];
    sl_sha256_update(sha, "a", 1);
    sl_sha256_update(sha, "bc", 2);
    sl_sha256_finish(sha, digest);
    sl_hex(digest, 32, hex);
    ck_assert_str_eq(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

SL_TEST(crcs_continue_over_any_cut)
{
    for (size_t cut = 0; cut <= 300; cut++) {
        ck_assert_uint_eq(sl_crc32(sl_crc32(0, bytes, cut), bytes + cut, 300 - cut),
                          crc32(0, bytes, 300));
        ck_assert_uint_eq(sl_crc32c(sl_crc32c(0, bytes, cut), bytes + cut, 300 - cut),
                          sl_crc32c(0, bytes, 300));
    }
    ck_assert_uint_eq(sl_crc32(7, NULL, 0), 7);
    ck_assert_uint_eq(sl_crc32c(7, NULL, 0), 7);
}

SL_TEST(crcs_of_parts_join)
{
    for (size_t cut = 0; cut <= sizeof(bytes); cut += 1 + cut / 7) {
        size_t rest = sizeof(bytes) - cut;
        uint32_t a = sl_crc32(0, bytes, cut), b = sl_crc32(0, bytes + cut, rest);
        ck_assert_uint_eq(sl_crc32_combine(a, b, rest), sl_crc32(0, bytes, sizeof(bytes)));
        a = sl_crc32c(0, bytes, cut), b = sl_crc32c(0, bytes + cut, rest);
        ck_assert_uint_eq(sl_crc32c_combine(a, b, rest), sl_crc32c(0, bytes, sizeof(bytes)));
    }
}

SL_TEST(joining_agrees_with_zlib_for_huge_lengths)
{
    uint64_t lengths[] = {0, 1, UINT64_C(1) << 31, (UINT64_C(1) << 40) + 17, UINT64_C(1) << 61};
    for (unsigned i = 0; i < SL_COUNT(lengths); i++)
        ck_assert_uint_eq(sl_crc32_combine(0x12345678, 0x9abcdef0, lengths[i]),
                          (uint32_t)crc32_combine64(0x12345678, 0x9abcdef0, (z_off64_t)lengths[i]));
}

SL_TEST(names_and_sizes)
{
    ck_assert_str_eq(sl_hash_name(SL_HASH_CRC32), "crc32");
    ck_assert_str_eq(sl_hash_name(SL_HASH_CRC32C), "crc32c");
    ck_assert_str_eq(sl_hash_name(SL_HASH_SHA256), "sha256");
    ck_assert_uint_eq(sl_hash_bytes(SL_HASH_CRC32), 4);
    ck_assert_str_eq(sl_hash_name(SL_HASH_BLAKE2B), "blake2b512");
    ck_assert_uint_eq(sl_hash_bytes(SL_HASH_SHA256), 32);
    ck_assert_uint_eq(sl_hash_bytes(SL_HASH_BLAKE2B), 64);
    ck_assert(sl_hash_is_ordered(SL_HASH_BLAKE2B) && !sl_hash_is_ordered(SL_HASH_CRC32C));
    ck_assert_str_eq(sl_hash_name(SL_HASH_MD5), "md5");
    ck_assert_uint_eq(sl_hash_bytes(SL_HASH_MD5), 16);
    ck_assert(sl_hash_is_ordered(SL_HASH_MD5) && sl_hash_is_available(SL_HASH_CRC64NVME));
}

/* RFC 7693, appendix A; FIPS 180-4's example. */
SL_TEST(ordered_hashes_are_the_published_ones)
{
    static const char *const wanted[] = {
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "ba80a53f981c4d0d6a2797b69f12f6e94c212f14685ac4b74b12bb6fdbffa2d1"
        "7d87c5392aab792dc252d5de4533cc9518d38aa8dbf1925ab92386edd4009923"};
    for (unsigned i = 0; i < 2; i++) {
        enum sl_hash_kind kind = i ? SL_HASH_BLAKE2B : SL_HASH_SHA256;
        uint8_t digest[SL_HASH_BYTES_MAX];
        char hex[2 * SL_HASH_BYTES_MAX + 1];
        struct sl_hasher *hasher = sl_hasher_new(kind, NULL);
        sl_hasher_update(hasher, "a", 1);
        sl_hasher_update(hasher, "bc", 2);
        sl_hasher_finish(hasher, digest);
        sl_hasher_free(hasher);
        sl_hex(digest, sl_hash_bytes(kind), hex);
        ck_assert_str_eq(hex, wanted[i]);
    }
}

SL_TEST(without_memory_there_is_no_sha256)
{
    struct sl_err err = SL_ERR_INIT;
    sl_alloc_fail_at(1);
    ck_assert_ptr_null(sl_sha256_new(&err));
    sl_alloc_fail_at(0);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    sl_sha256_free(NULL);
}

/* ---- digests of any kind --------------------------------------------------------------------- */

static const enum sl_hash_kind kinds[] = {SL_HASH_CRC32,   SL_HASH_CRC32C,    SL_HASH_SHA256,
                                          SL_HASH_BLAKE2B, SL_HASH_CRC64NVME, SL_HASH_SHA1,
                                          SL_HASH_MD5};

/* "123456789": the CRCs' published check values; the others by `printf 123456789 | openssl dgst`.
 */
SL_TEST(digests_of_every_kind_are_the_published_ones)
{
    static const char *const wanted[] = {
        "cbf43926",
        "e3069283",
        "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
        "f5ab8bafa6f2f72b431188ac38ae2de7bb618fb3d38b6cbf639defcdd5e10a86"
        "b22fccff571da37e42b23b80b657ee4d936478f582280a87d6dbb1da73f5c47d",
        "ae8b14860a799888",
        "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
        "25f9e794323b453885f5181f1b624d0b"};
    for (unsigned i = 0; i < SL_COUNT(kinds); i++) {
        uint8_t digest[SL_HASH_BYTES_MAX];
        char hex[2 * SL_HASH_BYTES_MAX + 1];
        ck_assert_int_eq(sl_digest_of(kinds[i], "1234", 4, "56789", 5, digest, NULL), 0);
        sl_hex(digest, sl_hash_bytes(kinds[i]), hex);
        ck_assert_str_eq(hex, wanted[i]);
    }
}

SL_TEST(a_digest_is_the_same_over_any_cut)
{
    for (unsigned i = 0; i < SL_COUNT(kinds); i++) {
        uint8_t whole[SL_HASH_BYTES_MAX] = {0}, cut[SL_HASH_BYTES_MAX] = {0};
        ck_assert_int_eq(sl_digest_of(kinds[i], NULL, 0, bytes, 3000, whole, NULL), 0);
        for (size_t at = 0; at <= 3000; at += 1 + at / 3) {
            sl_autodigest sum;
            ck_assert_int_eq(sl_digest_begin(&sum, kinds[i], bytes, at / 2, NULL), 0);
            sl_digest_update(&sum, bytes + at / 2, at - at / 2);
            sl_digest_update(&sum, NULL, 0);
            sl_digest_update(&sum, bytes + at, 3000 - at);
            sl_digest_finish(&sum, cut);
            ck_assert_mem_eq(whole, cut, sl_hash_bytes(kinds[i]));
        }
    }
}

SL_TEST(nothing_has_a_digest_too)
{
    static const char *const wanted[] = {
        "00000000",
        "00000000",
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "786a02f742015903c6c6fd852552d272912f4740e15847618a86e217f71f5419"
        "d25e1031afee585313896444934eb04b903a685b1448b755d56f701afe9be2ce",
        "0000000000000000",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "d41d8cd98f00b204e9800998ecf8427e"};
    for (unsigned i = 0; i < SL_COUNT(kinds); i++) {
        uint8_t digest[SL_HASH_BYTES_MAX];
        char hex[2 * SL_HASH_BYTES_MAX + 1];
        ck_assert_int_eq(sl_digest_of(kinds[i], NULL, 0, NULL, 0, digest, NULL), 0);
        sl_hex(digest, sl_hash_bytes(kinds[i]), hex);
        ck_assert_str_eq(hex, wanted[i]);
    }
}

SL_TEST(without_memory_an_ordered_digest_does_not_begin)
{
    for (unsigned i = 0; i < SL_COUNT(kinds); i++) {
        struct sl_err err = SL_ERR_INIT;
        uint8_t digest[SL_HASH_BYTES_MAX];
        bool ordered = sl_hash_is_ordered(kinds[i]);
        sl_alloc_fail_at(1);
        int done = sl_digest_of(kinds[i], "a", 1, "b", 1, digest, &err);
        sl_alloc_fail_at(0);
        ck_assert_int_eq(done, ordered ? -1 : 0);
        ck_assert_int_eq(err.kind, ordered ? SL_E_NO_SPACE : 0);
        sl_autodigest left = {0}; /* as a caller leaves it that never came to begin */
        sl_digest_release(&left);
    }
}

static bool prepare(void)
{
    fill_bytes();
    return true;
}

SL_CASE(.prepare = prepare)

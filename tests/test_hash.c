/* Hashes: the published check values, and CRCs of parts joined. */
#include "hash.h"

#include <check.h>
#include <string.h>
#include <zlib.h>

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

static bool prepare(void)
{
    fill_bytes();
    return true;
}

SL_CASE(.prepare = prepare)

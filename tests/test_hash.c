/* Hashes: the published check values, and CRCs of parts joined. */
#include "hash.h"

#include <check.h>
#include <string.h>
#include <zlib.h>

#include "buf.h"

static uint8_t bytes[10000];

static void fill_bytes(void)
{
    uint32_t state = 12345;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(state >> 24);
    }
}

START_TEST(check_values_are_the_published_ones)
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
END_TEST

START_TEST(crcs_continue_over_any_cut)
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
END_TEST

START_TEST(crcs_of_parts_join)
{
    for (size_t cut = 0; cut <= sizeof(bytes); cut += 1 + cut / 7) {
        size_t rest = sizeof(bytes) - cut;
        uint32_t a = sl_crc32(0, bytes, cut), b = sl_crc32(0, bytes + cut, rest);
        ck_assert_uint_eq(sl_crc32_combine(a, b, rest), sl_crc32(0, bytes, sizeof(bytes)));
        a = sl_crc32c(0, bytes, cut), b = sl_crc32c(0, bytes + cut, rest);
        ck_assert_uint_eq(sl_crc32c_combine(a, b, rest), sl_crc32c(0, bytes, sizeof(bytes)));
    }
}
END_TEST

START_TEST(joining_agrees_with_zlib_for_huge_lengths)
{
    uint64_t lengths[] = {0, 1, UINT64_C(1) << 31, (UINT64_C(1) << 40) + 17, UINT64_C(1) << 61};
    for (unsigned i = 0; i < SL_COUNT(lengths); i++)
        ck_assert_uint_eq(sl_crc32_combine(0x12345678, 0x9abcdef0, lengths[i]),
                          (uint32_t)crc32_combine64(0x12345678, 0x9abcdef0, (z_off64_t)lengths[i]));
}
END_TEST

START_TEST(names_and_sizes)
{
    ck_assert_str_eq(sl_hash_name(SL_HASH_CRC32), "crc32");
    ck_assert_str_eq(sl_hash_name(SL_HASH_CRC32C), "crc32c");
    ck_assert_str_eq(sl_hash_name(SL_HASH_SHA256), "sha256");
    ck_assert_uint_eq(sl_hash_bytes(SL_HASH_CRC32), 4);
    ck_assert_uint_eq(sl_hash_bytes(SL_HASH_SHA256), 32);
}
END_TEST

START_TEST(without_memory_there_is_no_sha256)
{
    struct sl_err err = SL_ERR_INIT;
    sl_alloc_fail_at(1);
    ck_assert_ptr_null(sl_sha256_new(&err));
    sl_alloc_fail_at(0);
    ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
    sl_sha256_free(NULL);
}
END_TEST

int main(void)
{
    fill_bytes();
    Suite *suite = suite_create("hash");
    TCase *tcase = tcase_create("hash");
    tcase_add_test(tcase, check_values_are_the_published_ones);
    tcase_add_test(tcase, crcs_continue_over_any_cut);
    tcase_add_test(tcase, crcs_of_parts_join);
    tcase_add_test(tcase, joining_agrees_with_zlib_for_huge_lengths);
    tcase_add_test(tcase, names_and_sizes);
    tcase_add_test(tcase, without_memory_there_is_no_sha256);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failures = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failures ? 1 : 0;
}

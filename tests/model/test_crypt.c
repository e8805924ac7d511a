/*
 * Ciphertext and MACs against libsodium's secretbox, for sizes around blocks and steps, updates of
 * any size, nonces that wrap around.
 */
#include "crypt.h"

#include <check.h>
#include <openssl/crypto.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "mem.h"
#include "seed.h"

enum { MIB = 1024 * 1024 };

static const size_t sizes[] = {0,     1,      31,          32,      33,         63,    64,
                               65,    95,     96,          97,      127,        128,   1023,
                               1024,  1025,   4096,        65503,   65535,      65536, 65537,
                               65568, 300001, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1};

/* A message and what secretbox makes of it. */
struct sealed {
    uint8_t key[SL_KEY_BYTES], nonce[SL_NONCE_BYTES], mac[SL_MAC_BYTES];
    size_t bytes;
    uint8_t *plain, *cipher, *out;
};

static void seal(struct sealed *sealed, size_t bytes)
{
    ck_assert_int_eq(sl_crypt_init(NULL), 0);
    sealed->bytes = bytes;
    sealed->plain = malloc(bytes + 1); /* of their exact sizes, for the address sanitizer */
    sealed->cipher = malloc(bytes + !bytes);
    sealed->out = malloc(bytes + !bytes);
    sl_test_fill(sealed->key, sizeof(sealed->key));
    sl_test_fill(sealed->nonce, sizeof(sealed->nonce));
    sl_test_fill(sealed->plain, bytes);
    crypto_secretbox_detached(sealed->cipher, sealed->mac, sealed->plain, bytes, sealed->nonce,
                              sealed->key);
}

static void unseal(struct sealed *sealed)
{
    free(sealed->plain);
    free(sealed->cipher);
    free(sealed->out);
}

/* Open in updates of 1 to step_max bytes, in random sizes; in place if out holds the ciphertext. */
static bool open_in_steps(const struct sealed *sealed, const uint8_t *cipher, size_t step_max)
{
    struct sl_opening opening;
    sl_opening_begin(&opening, sealed->key, sealed->nonce, 0);
    for (size_t at = 0; at < sealed->bytes;) {
        size_t step = 1 + sl_test_pick(step_max);
        step = SL_MIN(step, sealed->bytes - at);
        sl_opening_update(&opening, cipher + at, sealed->out + at, step);
        at += step;
    }
    return sl_opening_end(&opening, sealed->mac);
}

SL_TEST(what_secretbox_sealed_is_opened_in_updates_of_any_size)
{
    static const size_t steps[] = {1, 3, 64, 100, 1000, 70000, 4 * MIB};
    for (unsigned i = 0; i < SL_COUNT(sizes); i++) {
        struct sealed sealed;
        seal(&sealed, sizes[i]);
        for (unsigned j = 0; j < SL_COUNT(steps); j++) {
            if (sizes[i] / steps[j] > 100000)
                continue;
            ck_assert_msg(open_in_steps(&sealed, sealed.cipher, steps[j]), "%zu bytes", sizes[i]);
            ck_assert_int_eq(memcmp(sealed.out, sealed.plain, sealed.bytes), 0);
            memcpy(sealed.out, sealed.cipher, sealed.bytes);
            ck_assert(open_in_steps(&sealed, sealed.out, steps[j]));
            ck_assert_int_eq(memcmp(sealed.out, sealed.plain, sealed.bytes), 0);
        }
        unseal(&sealed);
    }
}

SL_TEST(updates_of_any_alignment_are_opened)
{
    enum { BYTES = 5000 };
    struct sealed sealed;
    seal(&sealed, BYTES);
    for (size_t first = 0; first <= 200; first++) {
        struct sl_opening opening;
        sl_opening_begin(&opening, sealed.key, sealed.nonce, 0);
        sl_opening_update(&opening, sealed.cipher, sealed.out, first);
        sl_opening_update(&opening, sealed.cipher + first, sealed.out + first, BYTES - first);
        ck_assert(sl_opening_end(&opening, sealed.mac));
        ck_assert_int_eq(memcmp(sealed.out, sealed.plain, BYTES), 0);
    }
    unseal(&sealed);
}

SL_TEST(sealing_gives_the_bytes_of_secretbox)
{
    for (unsigned i = 0; i < SL_COUNT(sizes); i++) {
        struct sealed sealed;
        uint8_t mac[SL_MAC_BYTES];
        seal(&sealed, sizes[i]);
        sl_crypt_seal(sealed.key, sealed.nonce, 0, sealed.plain, sealed.out, sealed.bytes, mac);
        ck_assert_int_eq(memcmp(sealed.out, sealed.cipher, sealed.bytes), 0);
        ck_assert_int_eq(memcmp(mac, sealed.mac, sizeof(mac)), 0);
        sl_crypt_seal(sealed.key, sealed.nonce, 0, sealed.plain, sealed.plain, sealed.bytes, mac);
        ck_assert_int_eq(memcmp(sealed.plain, sealed.cipher, sealed.bytes), 0);
        ck_assert_int_eq(memcmp(mac, sealed.mac, sizeof(mac)), 0);
        unseal(&sealed);
    }
}

SL_TEST(any_changed_bit_is_noticed)
{
    struct sealed sealed;
    seal(&sealed, 200);
    for (size_t bit = 0; bit < 8 * (sealed.bytes + SL_MAC_BYTES + SL_KEY_BYTES + SL_NONCE_BYTES);
         bit++) {
        size_t at = bit / 8;
        uint8_t *byte = at < 200   ? sealed.cipher + at
                        : at < 216 ? sealed.mac + (at - 200)
                        : at < 248 ? sealed.key + (at - 216)
                                   : sealed.nonce + (at - 248);
        *byte ^= (uint8_t)(1 << bit % 8);
        ck_assert_msg(!open_in_steps(&sealed, sealed.cipher, 300), "bit %zu", bit);
        *byte ^= (uint8_t)(1 << bit % 8);
    }
    ck_assert(open_in_steps(&sealed, sealed.cipher, 300));
    unseal(&sealed);
}

SL_TEST(a_piece_cut_off_or_too_long_is_noticed)
{
    struct sealed sealed;
    seal(&sealed, 1000);
    sealed.bytes = 999;
    ck_assert(!open_in_steps(&sealed, sealed.cipher, 300));
    sealed.bytes = 0;
    ck_assert(!open_in_steps(&sealed, sealed.cipher, 300));
    unseal(&sealed);
}

SL_TEST(any_range_of_a_piece_is_decrypted)
{
    struct sealed sealed;
    seal(&sealed, 70000);
    for (unsigned i = 0; i < 3000; i++) {
        size_t begin = i < 300 ? i : sl_test_pick(70000), bytes = sl_test_pick(70001 - begin);
        if (i % 2)
            bytes = SL_MIN(bytes, i % 130);
        sl_crypt_xor(sealed.key, sealed.nonce, 0, begin, sealed.cipher + begin, sealed.out, bytes);
        ck_assert_int_eq(memcmp(sealed.out, sealed.plain + begin, bytes), 0);
    }
    unseal(&sealed);
}

/* Piece `number` of data whose first nonce is nonce_0, against secretbox with `expected`. */
static void check_nonce(const uint8_t *nonce_0, uint64_t number, const uint8_t *expected)
{
    uint8_t key[SL_KEY_BYTES] = {7}, plain[100] = {1}, cipher[100], out[100], mac[SL_MAC_BYTES];
    crypto_secretbox_detached(cipher, mac, plain, sizeof(plain), expected, key);
    struct sl_opening opening;
    sl_opening_begin(&opening, key, nonce_0, number);
    sl_opening_update(&opening, cipher, out, sizeof(out));
    ck_assert(sl_opening_end(&opening, mac));
    ck_assert_int_eq(memcmp(out, plain, sizeof(plain)), 0);
}

SL_TEST(nonces_count_up_as_one_little_endian_number_and_wrap)
{
    uint8_t zero[SL_NONCE_BYTES] = {0}, nonce[SL_NONCE_BYTES], expected[SL_NONCE_BYTES];
    ck_assert_int_eq(sl_crypt_init(NULL), 0);
    memset(nonce, 0xff, sizeof(nonce));
    check_nonce(nonce, 1, zero);
    memset(expected, 0, sizeof(expected));
    expected[0] = 4;
    check_nonce(nonce, 5, expected);
    sl_test_fill(nonce, sizeof(nonce));
    memset(nonce, 0xff, 10);
    memcpy(expected, nonce, sizeof(expected));
    for (uint64_t number = 0; number < 600; number++) {
        check_nonce(nonce, number, expected);
        sodium_increment(expected, sizeof(expected));
    }
    memset(expected, 0, sizeof(expected));
    expected[7] = 0x80;
    check_nonce(zero, UINT64_C(1) << 63, expected);
}

SL_TEST(the_mac_alone_needs_no_room_for_plaintext)
{
    struct sealed sealed;
    seal(&sealed, 100000);
    struct sl_opening opening;
    sl_opening_begin(&opening, sealed.key, sealed.nonce, 0);
    sl_opening_update(&opening, sealed.cipher, NULL, sealed.bytes);
    ck_assert(sl_opening_end(&opening, sealed.mac));
    unseal(&sealed);
}

SL_TEST(a_piece_that_is_given_up_leaves_nothing)
{
    static const struct sl_opening nothing;
    struct sl_opening opening = {0};
    uint8_t key[SL_KEY_BYTES] = {1}, nonce[SL_NONCE_BYTES] = {2}, data[100] = {3};
    ck_assert_int_eq(sl_crypt_init(NULL), 0);
    sl_opening_release(&opening);
    sl_opening_begin(&opening, key, nonce, 3);
    sl_opening_update(&opening, data, data, sizeof(data));
    sl_opening_release(&opening);
    ck_assert_int_eq(memcmp(&opening, &nothing, sizeof(opening)), 0);
    sl_opening_release(&opening);
}

/* ---- without memory for OpenSSL -------------------------------------------------------------- */

static bool openssl_starves;

static void *starve_malloc(size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    return openssl_starves ? NULL : malloc(bytes);
}

static void *starve_realloc(void *memory, size_t bytes, const char *file, int line)
{
    (void)file, (void)line;
    return openssl_starves ? NULL : realloc(memory, bytes);
}

static void starve_free(void *memory, const char *file, int line)
{
    (void)file, (void)line;
    free(memory);
}

SL_TEST(libsodium_makes_the_mac_where_openssl_cannot)
{
    struct sealed sealed;
    uint8_t mac[SL_MAC_BYTES];
    seal(&sealed, 70001);
    openssl_starves = true;
    ck_assert(open_in_steps(&sealed, sealed.cipher, 4000));
    sl_crypt_seal(sealed.key, sealed.nonce, 0, sealed.plain, sealed.out, sealed.bytes, mac);
    sealed.mac[0] ^= 1;
    bool opens = open_in_steps(&sealed, sealed.cipher, 4000);
    openssl_starves = false;
    sealed.mac[0] ^= 1;
    ck_assert(!opens);
    ck_assert_int_eq(memcmp(mac, sealed.mac, sizeof(mac)), 0);
    unseal(&sealed);
}

static bool prepare(void)
{
    CRYPTO_set_mem_functions(starve_malloc, starve_realloc, starve_free);
    return true;
}

SL_CASE(.prepare = prepare)

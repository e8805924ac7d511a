/* The stream against libsodium's, for all sizes around batches and counters around 2^32. */
#include "salsa20.h"

#include <check.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "seed.h"

enum { BYTES_MAX = 5 * 1024 + 200 };

static uint8_t key[32], nonce[8];

static void set_up(void)
{
    ck_assert_int_ge(sodium_init(), 0);
    sl_salsa20_init();
    sl_test_fill(key, sizeof(key));
    sl_test_fill(nonce, sizeof(nonce));
}

static void check_stream(uint64_t block, size_t bytes)
{
    uint8_t *in = malloc(bytes + 1), *out = malloc(bytes + 1), *expected = malloc(bytes + 1);
    sl_test_fill(in, bytes + 1);
    out[bytes] = 0x5a;
    crypto_stream_salsa20_xor_ic(expected, in, bytes, nonce, block, key);
    sl_salsa20_xor(key, nonce, block, in, out, bytes);
    ck_assert_msg(memcmp(out, expected, bytes) == 0, "%zu bytes", bytes);
    ck_assert_int_eq(out[bytes], 0x5a);
    sl_salsa20_xor(key, nonce, block, in, in, bytes); /* in place */
    ck_assert_msg(memcmp(in, expected, bytes) == 0, "%zu bytes in place", bytes);
    free(in);
    free(out);
    free(expected);
}

SL_TEST(every_size_gives_the_stream_of_libsodium)
{
    for (size_t bytes = 0; bytes <= BYTES_MAX; bytes += bytes % 1024 > 70 ? 37 : 1)
        check_stream(bytes, bytes);
}

SL_TEST(the_counter_has_64_bits)
{
    for (unsigned i = 0; i < 40; i++) {
        check_stream(UINT32_MAX - i, 3000);
        check_stream((UINT64_C(7) << 32) - i, 3000);
        check_stream(UINT64_MAX / 64 - i, 1024);
    }
}

SL_CASE(.setup = set_up)

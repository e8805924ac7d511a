/*
 * libsodium's Salsa20 uses AVX2 at best, eight blocks at a time. With AVX-512 sixteen blocks fit
 * into half the registers, a word of each block in a channel, and rotating is one instruction. The
 * last step turns sixteen vectors of words into sixteen blocks.
 *
 * What is computed here follows Bernstein's specification (https://cr.yp.to/snuffle/spec.pdf) and
 * is used only if it agrees with libsodium on a few blocks at start; everything else, the bytes
 * behind the last sixteen blocks included, is libsodium's.
 */
#include "salsa20.h"

#include <sodium.h>
#include <stdbool.h>
#include <string.h>

enum { BLOCK_BYTES = 64, LANES = 16, BATCH_BYTES = LANES * BLOCK_BYTES };

static bool use_wide;

#if defined(__x86_64__)
#include <immintrin.h>

#define WIDE __attribute__((target("avx512f")))
#if defined(__clang__)
#define UNROLL /* it does */
#else
#define UNROLL _Pragma("GCC unroll 16") /* so that words stay in registers */
#endif

WIDE static inline __attribute__((always_inline)) void quarter(__m512i *a, __m512i *b, __m512i *c,
                                                               __m512i *d)
{
    *b = _mm512_xor_si512(*b, _mm512_rol_epi32(_mm512_add_epi32(*a, *d), 7));
    *c = _mm512_xor_si512(*c, _mm512_rol_epi32(_mm512_add_epi32(*b, *a), 9));
    *d = _mm512_xor_si512(*d, _mm512_rol_epi32(_mm512_add_epi32(*c, *b), 13));
    *a = _mm512_xor_si512(*a, _mm512_rol_epi32(_mm512_add_epi32(*d, *c), 18));
}

WIDE static inline __attribute__((always_inline)) void rounds(__m512i x[16])
{
    for (int i = 0; i < 10; i++) {
        quarter(&x[0], &x[4], &x[8], &x[12]);
        quarter(&x[5], &x[9], &x[13], &x[1]);
        quarter(&x[10], &x[14], &x[2], &x[6]);
        quarter(&x[15], &x[3], &x[7], &x[11]);
        quarter(&x[0], &x[1], &x[2], &x[3]);
        quarter(&x[5], &x[6], &x[7], &x[4]);
        quarter(&x[10], &x[11], &x[8], &x[9]);
        quarter(&x[15], &x[12], &x[13], &x[14]);
    }
}

/* Lane j of x[i] becomes word i of y[j]: a matrix transposed in pairs, fours, then quarters. */
WIDE static inline __attribute__((always_inline)) void transpose(__m512i x[16])
{
    __m512i t[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) { /* x[4 k + i] holds words 4 k to 4 k + 3 of blocks i, i + 4, … */
        __m512i a = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88),
                b = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd),
                c = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88),
                d = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
        t[i] = _mm512_shuffle_i32x4(a, c, 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(b, d, 0x88);
        t[8 + i] = _mm512_shuffle_i32x4(a, c, 0xdd);
        t[12 + i] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    memcpy(x, t, sizeof(t));
}

/* The words of sixteen blocks before the rounds. */
WIDE static inline __attribute__((always_inline)) void fill(const uint32_t state[16],
                                                            uint64_t block, __m512i x[16])
{
    uint32_t low[LANES], high[LANES];
    UNROLL
    for (int i = 0; i < 16; i++)
        x[i] = _mm512_set1_epi32((int)state[i]);
    for (unsigned i = 0; i < LANES; i++) {
        low[i] = (uint32_t)(block + i);
        high[i] = (uint32_t)((block + i) >> 32);
    }
    x[8] = _mm512_loadu_si512(low);
    x[9] = _mm512_loadu_si512(high);
}

/* Whole batches of sixteen blocks. */
WIDE static void xor_wide(const uint32_t state[16], uint64_t block, const uint8_t *in, uint8_t *out,
                          size_t batches)
{
    for (; batches > 0; batches--, block += LANES, in += BATCH_BYTES, out += BATCH_BYTES) {
        __m512i start[16], x[16];
        fill(state, block, start);
        memcpy(x, start, sizeof(x));
        rounds(x);
        UNROLL
        for (int i = 0; i < 16; i++)
            x[i] = _mm512_add_epi32(x[i], start[i]);
        transpose(x);
        UNROLL
        for (int i = 0; i < LANES; i++)
            _mm512_storeu_si512(out + i * BLOCK_BYTES,
                                _mm512_xor_si512(x[i], _mm512_loadu_si512(in + i * BLOCK_BYTES)));
    }
}

static bool has_wide(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f");
}

#else

static void xor_wide(const uint32_t state[16], uint64_t block, const uint8_t *in, uint8_t *out,
                     size_t batches)
{
    (void)state, (void)block, (void)in, (void)out, (void)batches;
}

static bool has_wide(void)
{
    return false;
}

#endif

/* Words of "expand 32-byte k", key, nonce; the counter's stay 0. */
static void make_state(const uint8_t key[32], const uint8_t nonce[8], uint32_t state[16])
{
    uint8_t bytes[64] = {0};
    static const char constant[] = "expand 32-byte k";
    for (int i = 0; i < 4; i++)
        memcpy(bytes + 20 * i, constant + 4 * i, 4);
    memcpy(bytes + 4, key, 16);
    memcpy(bytes + 24, nonce, 8);
    memcpy(bytes + 44, key + 16, 16);
    memcpy(state, bytes, sizeof(bytes)); /* used on little-endian processors only */
    sodium_memzero(bytes, sizeof(bytes));
}

void sl_salsa20_init(void)
{
    enum { BYTES = 2 * BATCH_BYTES };
    uint8_t key[32], nonce[8], ours[BYTES] = {0}, theirs[BYTES] = {0};
    uint32_t state[16];
    const uint64_t block = UINT32_MAX - 5; /* the counter carries into its upper half */
    use_wide = has_wide();
    if (!use_wide)
        return;
    randombytes_buf(key, sizeof(key));
    randombytes_buf(nonce, sizeof(nonce));
    make_state(key, nonce, state);
    xor_wide(state, block, ours, ours, 2);
    crypto_stream_salsa20_xor_ic(theirs, theirs, BYTES, nonce, block, key);
    use_wide = memcmp(ours, theirs, BYTES) == 0;
}

void sl_salsa20_xor(const uint8_t key[32], const uint8_t nonce[8], uint64_t block,
                    const uint8_t *in, uint8_t *out, size_t bytes)
{
    size_t batches = use_wide ? bytes / BATCH_BYTES : 0, done = batches * BATCH_BYTES;
    if (batches > 0) {
        uint32_t state[16];
        make_state(key, nonce, state);
        xor_wide(state, block, in, out, batches);
        sodium_memzero(state, sizeof(state));
    }
    if (done < bytes)
        crypto_stream_salsa20_xor_ic(out + done, in + done, bytes - done, nonce,
                                     block + batches * LANES, key);
}

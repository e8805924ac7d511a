/*
 * Three ways to the same number. Everywhere: eight tables, eight bytes a step. Where the processor
 * multiplies without carries: four channels of 16 bytes are folded over the next 64 bytes at a
 * time, and the 16 bytes that remain in the end go through the tables. Where it does so for 64
 * bytes at once: 16 such channels, in four registers, over 256 bytes at a time, which then become
 * four channels.
 *
 * Numbers are "reflected": bit 63 stands for x^0. So a product of two of them, read as a reflected
 * number of 128 bits, is once too often multiplied by x; the constants make up for it: what lies D
 * bits before its new place is multiplied by x^(D+63) (the half that comes first) and x^(D-1).
 *
 * V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
 * Intel, 2009.
 */
#include "crc64.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define NARROW __attribute__((target("pclmul,sse2")))
#define WIDE   __attribute__((target("avx512f,vpclmulqdq")))
#endif

#include "crc64_ways.h"

enum { FOLD_BYTES_MIN = 128, WIDE_BYTES_MIN = 512, CHANNELS = 4 };
static const uint64_t POLYNOMIAL = 0x9a6c9329ac4bc9b5u;
static const uint64_t ONE = UINT64_C(1) << 63; /* x^0 */

static struct {
    pthread_once_t once;
    uint64_t tables[8][256];
    enum sl_crc64_way best;
    uint64_t wide[2], far[2], near[2]; /* 256, 64, 16 bytes on: of the first and second half */
} crc64 = {.once = PTHREAD_ONCE_INIT};

/* a * b mod P. */
static uint64_t multiply(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (uint64_t bit = ONE; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x^bits mod P, by squaring. */
static uint64_t power(uint64_t bits)
{
    uint64_t result = ONE, square = ONE >> 1;
    for (; bits; bits >>= 1) {
        if (bits & 1)
            result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

static void prepare(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint64_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        crc64.tables[0][i] = crc;
    }
    for (unsigned k = 1; k < 8; k++)
        for (unsigned i = 0; i < 256; i++) {
            uint64_t crc = crc64.tables[k - 1][i];
            crc64.tables[k][i] = crc >> 8 ^ crc64.tables[0][crc & 255];
        }
    crc64.wide[0] = power(2048 + 63), crc64.wide[1] = power(2048 - 1);
    crc64.far[0] = power(512 + 63), crc64.far[1] = power(512 - 1);
    crc64.near[0] = power(128 + 63), crc64.near[1] = power(128 - 1);
#if defined(__x86_64__)
    __builtin_cpu_init(); /* it counts registers of 64 bytes only where the system keeps them */
    if (__builtin_cpu_supports("pclmul"))
        crc64.best = SL_CRC64_FOLD_16;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
        crc64.best = SL_CRC64_FOLD_64;
#endif
}

/* Without the inversions. */
static uint64_t by_tables(uint64_t crc, const uint8_t *at, size_t bytes)
{
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc ^= word;
        uint64_t next = 0;
        for (unsigned k = 0; k < 8; k++)
            next ^= crc64.tables[7 - k][crc >> (8 * k) & 255];
        crc = next;
    }
    for (; bytes; at++, bytes--)
        crc = crc >> 8 ^ crc64.tables[0][(crc ^ *at) & 255];
    return crc;
}

#if defined(__x86_64__)
struct bytes {
    const uint8_t *at;
    size_t left;
};

NARROW static inline __m128i factors(const uint64_t by[2])
{
    return _mm_set_epi64x((long long)by[1], (long long)by[0]);
}

NARROW static inline __m128i take(struct bytes *bytes)
{
    __m128i next = _mm_loadu_si128((const __m128i *)(const void *)bytes->at);
    bytes->at += sizeof(next);
    bytes->left -= sizeof(next);
    return next;
}

NARROW static inline __m128i fold(__m128i channel, __m128i by, __m128i next)
{
    __m128i first = _mm_clmulepi64_si128(channel, by, 0x00);
    __m128i second = _mm_clmulepi64_si128(channel, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

/* Fewer than 16 bytes are left. */
NARROW static uint64_t join(__m128i channels[CHANNELS], struct bytes *bytes)
{
    __m128i near = factors(crc64.near), all = channels[0];
    for (unsigned i = 1; i < CHANNELS; i++)
        all = fold(all, near, channels[i]);
    while (bytes->left >= sizeof(all))
        all = fold(all, near, take(bytes));
    uint8_t rest[sizeof(all)];
    _mm_storeu_si128((__m128i *)(void *)rest, all);
    return by_tables(0, rest, sizeof(rest));
}

/* At least 64 bytes. */
NARROW static uint64_t fold_16(uint64_t crc, struct bytes *bytes)
{
    __m128i far = factors(crc64.far), channels[CHANNELS];
    for (unsigned i = 0; i < CHANNELS; i++)
        channels[i] = take(bytes);
    channels[0] = _mm_xor_si128(channels[0], _mm_set_epi64x(0, (long long)crc));
    while (bytes->left >= sizeof(channels))
        for (unsigned i = 0; i < CHANNELS; i++)
            channels[i] = fold(channels[i], far, take(bytes));
    return join(channels, bytes);
}

WIDE static inline __m512i take_wide(struct bytes *bytes)
{
    __m512i next = _mm512_loadu_si512(bytes->at);
    bytes->at += sizeof(next);
    bytes->left -= sizeof(next);
    return next;
}

WIDE static inline __m512i fold_wide(__m512i channels, __m512i by, __m512i next)
{
    enum { XOR_OF_THREE = 0x96 };
    __m512i first = _mm512_clmulepi64_epi128(channels, by, 0x00);
    __m512i second = _mm512_clmulepi64_epi128(channels, by, 0x11);
    return _mm512_ternarylogic_epi64(first, second, next, XOR_OF_THREE);
}

/* At least 256 bytes. */
WIDE static uint64_t fold_64(uint64_t crc, struct bytes *bytes)
{
    __m512i by = _mm512_broadcast_i32x4(factors(crc64.wide));
    __m512i a = take_wide(bytes), b = take_wide(bytes), c = take_wide(bytes), d = take_wide(bytes);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_set_epi64x(0, (long long)crc)));
    while (bytes->left >= 4 * sizeof(a)) {
        a = fold_wide(a, by, take_wide(bytes));
        b = fold_wide(b, by, take_wide(bytes));
        c = fold_wide(c, by, take_wide(bytes));
        d = fold_wide(d, by, take_wide(bytes));
    }
    by = _mm512_broadcast_i32x4(factors(crc64.far));
    d = fold_wide(fold_wide(fold_wide(a, by, b), by, c), by, d);
    while (bytes->left >= sizeof(d))
        d = fold_wide(d, by, take_wide(bytes));
    __m128i channels[CHANNELS];
    _mm512_storeu_si512(channels, d);
    return join(channels, bytes);
}
#endif

bool sl_crc64_has(enum sl_crc64_way way)
{
    pthread_once(&crc64.once, prepare);
    return way <= crc64.best;
}

uint64_t sl_crc64nvme_by(enum sl_crc64_way way, uint64_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    pthread_once(&crc64.once, prepare);
    crc = ~crc;
#if defined(__x86_64__)
    struct bytes all = {at, bytes};
    if (way >= SL_CRC64_FOLD_64 && bytes >= WIDE_BYTES_MIN)
        crc = fold_64(crc, &all);
    else if (way >= SL_CRC64_FOLD_16 && bytes >= FOLD_BYTES_MIN)
        crc = fold_16(crc, &all);
    at = all.at, bytes = all.left;
#else
    (void)way;
#endif
    return ~by_tables(crc, at, bytes);
}

uint64_t sl_crc64nvme(uint64_t crc, const void *data, size_t bytes)
{
    enum sl_crc64_way way = SL_CRC64_FOLD_64;
    while (!sl_crc64_has(way))
        way--;
    return sl_crc64nvme_by(way, crc, data, bytes);
}

uint64_t sl_crc64nvme_combine(uint64_t a, uint64_t b, uint64_t b_bytes)
{
    return multiply(power(b_bytes * 8), a) ^ b;
}

/*
 * Two ways to the same number. Everywhere: eight tables, eight bytes a step. Where the processor
 * multiplies without carries: four channels of 16 bytes are folded over the next 64 bytes at a
 * time, and the 16 bytes that remain in the end go through the tables.
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
#endif

enum { FOLD_BYTES_MIN = 128 };
static const uint64_t POLYNOMIAL = 0x9a6c9329ac4bc9b5u;
static const uint64_t ONE = UINT64_C(1) << 63; /* x^0 */

static struct {
    pthread_once_t once;
    uint64_t tables[8][256];
    bool folds;
    uint64_t far[2], near[2]; /* 64 and 16 bytes on: of the first and the second half */
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
    crc64.far[0] = power(512 + 63), crc64.far[1] = power(512 - 1);
    crc64.near[0] = power(128 + 63), crc64.near[1] = power(128 - 1);
#if defined(__x86_64__)
    __builtin_cpu_init();
    crc64.folds = __builtin_cpu_supports("pclmul");
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
__attribute__((target("pclmul,sse2"))) static inline __m128i fold(__m128i channel, __m128i by,
                                                                  __m128i next)
{
    __m128i first = _mm_clmulepi64_si128(channel, by, 0x00);
    __m128i second = _mm_clmulepi64_si128(channel, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

/* At least 64 bytes; what is left of them is less than 16. */
__attribute__((target("pclmul,sse2"))) static uint64_t by_folding(uint64_t crc, const uint8_t **at,
                                                                  size_t *bytes)
{
    const __m128i *from = (const __m128i *)(const void *)*at;
    __m128i far = _mm_set_epi64x((long long)crc64.far[1], (long long)crc64.far[0]);
    __m128i near = _mm_set_epi64x((long long)crc64.near[1], (long long)crc64.near[0]);
    __m128i channels[4];
    size_t left = *bytes / 16;
    for (unsigned i = 0; i < 4; i++)
        channels[i] = _mm_loadu_si128(from++);
    channels[0] = _mm_xor_si128(channels[0], _mm_set_epi64x(0, (long long)crc));
    for (left -= 4; left >= 4; left -= 4)
        for (unsigned i = 0; i < 4; i++)
            channels[i] = fold(channels[i], far, _mm_loadu_si128(from++));
    for (unsigned i = 0; i < 3; i++)
        channels[i + 1] = fold(channels[i], near, channels[i + 1]);
    for (; left; left--)
        channels[3] = fold(channels[3], near, _mm_loadu_si128(from++));
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)(void *)rest, channels[3]);
    *at = (const uint8_t *)from;
    *bytes %= 16;
    return by_tables(0, rest, sizeof(rest));
}
#endif

uint64_t sl_crc64nvme(uint64_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    pthread_once(&crc64.once, prepare);
    crc = ~crc;
#if defined(__x86_64__)
    if (crc64.folds && bytes >= FOLD_BYTES_MIN)
        crc = by_folding(crc, &at, &bytes);
#endif
    return ~by_tables(crc, at, bytes);
}

uint64_t sl_crc64nvme_combine(uint64_t a, uint64_t b, uint64_t b_bytes)
{
    return multiply(power(b_bytes * 8), a) ^ b;
}

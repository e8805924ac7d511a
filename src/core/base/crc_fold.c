/*
 * Channels of 16 bytes are folded over the bytes a fixed distance on: four over 64 bytes at a
 * time, or sixteen, in eight registers of 32 bytes or four of 64, over 256. What remains is folded
 * channel by channel into one. How many there are is decided by how long an instruction takes, not
 * by its width: fewer would wait for each other.
 *
 * Numbers are "reflected": bit 63 stands for x^0. So a product of two of them, read as a reflected
 * number of 128 bits, is once too often multiplied by x; the constants make up for it: what lies D
 * bits before its new place is multiplied by x^(D+63) (the half that comes first) and x^(D-1).
 *
 * V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction",
 * Intel, 2009.
 */
#include "crc_fold.h"

#include <pthread.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define NARROW __attribute__((target("pclmul,sse2")))
#define MIDDLE __attribute__((target("avx2,vpclmulqdq")))
#define WIDE   __attribute__((target("avx512f,vpclmulqdq")))
#endif

enum { CHANNELS = 4, MIDDLE_REGISTERS = 8 };

static struct {
    pthread_once_t once;
    enum sl_crc_way way;
} best = {.once = PTHREAD_ONCE_INIT};

static void find_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init(); /* it counts wide registers only where the system keeps them */
    bool wide = __builtin_cpu_supports("vpclmulqdq");
    if (wide && __builtin_cpu_supports("avx512f"))
        best.way = SL_CRC_FOLD_64;
    else if (wide && __builtin_cpu_supports("avx2"))
        best.way = SL_CRC_FOLD_32;
    else if (__builtin_cpu_supports("pclmul"))
        best.way = SL_CRC_FOLD_16;
#endif
}

enum sl_crc_way sl_crc_best_way(void)
{
    pthread_once(&best.once, find_best);
    return best.way;
}

bool sl_crc_has(enum sl_crc_way way)
{
    return way <= sl_crc_best_way();
}

static void set_factors(uint64_t factors[2], unsigned bytes, uint64_t (*power)(uint64_t bits))
{
    factors[0] = power(8u * bytes + 63), factors[1] = power(8u * bytes - 1);
}

void sl_crc_factors_init(struct sl_crc_factors *factors, uint64_t (*power)(uint64_t bits))
{
    set_factors(factors->wide, 256, power);
    set_factors(factors->far, 64, power);
    set_factors(factors->half, 32, power);
    set_factors(factors->near, 16, power);
}

#if defined(__x86_64__)
struct bytes {
    const uint8_t *at;
    size_t left;
};

NARROW static inline __m128i both(const uint64_t by[2])
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

/* Neighbouring channels become one, which takes what is left in steps of 16 bytes. */
NARROW static void join(const __m128i *channels, unsigned count, const struct sl_crc_factors *by,
                        struct bytes *bytes, uint8_t rest[SL_CRC_REST_BYTES])
{
    __m128i near = both(by->near), all = channels[0];
    for (unsigned i = 1; i < count; i++)
        all = fold(all, near, channels[i]);
    while (bytes->left >= sizeof(all))
        all = fold(all, near, take(bytes));
    _mm_storeu_si128((__m128i *)(void *)rest, all);
}

NARROW static void fold_16(const struct sl_crc_factors *by, uint64_t crc, struct bytes *bytes,
                           uint8_t rest[SL_CRC_REST_BYTES])
{
    __m128i far = both(by->far), channels[CHANNELS];
    for (unsigned i = 0; i < CHANNELS; i++)
        channels[i] = take(bytes);
    channels[0] = _mm_xor_si128(channels[0], _mm_set_epi64x(0, (long long)crc));
    while (bytes->left >= sizeof(channels))
        for (unsigned i = 0; i < CHANNELS; i++)
            channels[i] = fold(channels[i], far, take(bytes));
    join(channels, CHANNELS, by, bytes, rest);
}

MIDDLE static inline __m256i take_middle(struct bytes *bytes)
{
    __m256i next = _mm256_loadu_si256((const __m256i *)(const void *)bytes->at);
    bytes->at += sizeof(next);
    bytes->left -= sizeof(next);
    return next;
}

MIDDLE static inline __m256i fold_middle(__m256i channels, __m256i by, __m256i next)
{
    __m256i first = _mm256_clmulepi64_epi128(channels, by, 0x00);
    __m256i second = _mm256_clmulepi64_epi128(channels, by, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(first, second), next);
}

MIDDLE static void fold_32(const struct sl_crc_factors *by, uint64_t crc, struct bytes *bytes,
                           uint8_t rest[SL_CRC_REST_BYTES])
{
    __m256i wide = _mm256_broadcastsi128_si256(both(by->wide)), all[MIDDLE_REGISTERS];
    for (unsigned i = 0; i < MIDDLE_REGISTERS; i++)
        all[i] = take_middle(bytes);
    all[0] = _mm256_xor_si256(all[0], _mm256_zextsi128_si256(_mm_set_epi64x(0, (long long)crc)));
    while (bytes->left >= sizeof(all))
        for (unsigned i = 0; i < MIDDLE_REGISTERS; i++)
            all[i] = fold_middle(all[i], wide, take_middle(bytes));
    __m256i half = _mm256_broadcastsi128_si256(both(by->half)), last = all[0];
    for (unsigned i = 1; i < MIDDLE_REGISTERS; i++)
        last = fold_middle(last, half, all[i]);
    while (bytes->left >= sizeof(last))
        last = fold_middle(last, half, take_middle(bytes));
    __m128i channels[2];
    _mm256_storeu_si256((__m256i *)(void *)channels, last);
    join(channels, 2, by, bytes, rest);
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

WIDE static void fold_64(const struct sl_crc_factors *factors, uint64_t crc, struct bytes *bytes,
                         uint8_t rest[SL_CRC_REST_BYTES])
{
    __m512i by = _mm512_broadcast_i32x4(both(factors->wide));
    __m512i a = take_wide(bytes), b = take_wide(bytes), c = take_wide(bytes), d = take_wide(bytes);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_set_epi64x(0, (long long)crc)));
    while (bytes->left >= 4 * sizeof(a)) {
        a = fold_wide(a, by, take_wide(bytes));
        b = fold_wide(b, by, take_wide(bytes));
        c = fold_wide(c, by, take_wide(bytes));
        d = fold_wide(d, by, take_wide(bytes));
    }
    by = _mm512_broadcast_i32x4(both(factors->far));
    d = fold_wide(fold_wide(fold_wide(a, by, b), by, c), by, d);
    while (bytes->left >= sizeof(d))
        d = fold_wide(d, by, take_wide(bytes));
    __m128i channels[CHANNELS];
    _mm512_storeu_si512(channels, d);
    join(channels, CHANNELS, factors, bytes, rest);
}
#endif

size_t sl_crc_fold(enum sl_crc_way way, const struct sl_crc_factors *factors, uint64_t crc,
                   const void *data, size_t bytes, uint8_t rest[SL_CRC_REST_BYTES])
{
    if (way == SL_CRC_PLAIN || bytes < SL_CRC_FOLD_BYTES_MIN)
        return 0;
#if defined(__x86_64__)
    static void (*const folds[])(const struct sl_crc_factors *, uint64_t, struct bytes *,
                                 uint8_t[SL_CRC_REST_BYTES]) = {
        [SL_CRC_FOLD_16] = fold_16, [SL_CRC_FOLD_32] = fold_32, [SL_CRC_FOLD_64] = fold_64};
    struct bytes all = {data, bytes};
    folds[way](factors, crc, &all, rest);
    return bytes - all.left;
#else
    (void)factors, (void)crc, (void)data, (void)rest;
    return 0;
#endif
}

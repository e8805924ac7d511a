/*
 * All pairs go through F32: every type but F64 is contained in it, so one half of a cast widens a
 * block of elements exactly and the other half rounds it, once. F64 first becomes an F32 "rounded
 * to odd": what is cut off is kept as a lowest bit of 1, and the 13 bits or more that F32 has
 * beyond F16, BF16 and F8 make sure that rounding this to nearest gives what rounding the F64 would
 * have given. F64 to F32 rounds to nearest at once.
 *
 * A block is a fixed number of elements in local arrays, without branches in the loops, so that
 * compilers vectorise them; the same loops are compiled for AVX2 too and chosen at run time. They
 * compute with integers. Floating-point addition serves in two places, for subnormal elements of
 * F16 and F8: there its own rounding is exactly the one wanted, and operands and results that
 * matter are normal F32, so it does not care whether the thread flushes subnormals to zero.
 */
#include "cast.h"

#include <string.h>

#include "mem.h"

enum { BLOCK = 256 };
#define INLINE static inline __attribute__((always_inline))

static const uint32_t F32_INFINITE = 0x7f800000u, F32_NAN = 0x7fc00000u, F32_MAX = 0x7f7fffffu;
static const uint64_t F64_INFINITE = UINT64_C(0x7ff) << 52;

/* A type of 8 or 16 bits with its own range of exponents. Codes are without sign. */
struct form {
    unsigned mantissa, bias, bits;
    uint32_t max, infinite, nan; /* largest finite value; infinite is 0 if there is none */
    bool fnuz;                   /* no negative zero: its code is the only NaN */
};
static const struct form FORM_F16 = {10, 15, 16, 0x7bff, 0x7c00, 0x7e00, false};
static const struct form FORM_F8_E4M3 = {3, 7, 8, 0x7e, 0, 0x7f, false};
static const struct form FORM_F8_E5M2 = {2, 15, 8, 0x7b, 0x7c, 0x7e, false};
static const struct form FORM_F8_E4M3FNUZ = {3, 8, 8, 0x7f, 0, 0x80, true};
static const struct form FORM_F8_E5M2FNUZ = {2, 16, 8, 0x7f, 0, 0x80, true};

/* ---- one element ---------------------------------------------------------------------------- */

INLINE float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

INLINE uint32_t as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Both are computed, so that no compiler sees a branch here. */
INLINE uint32_t choose(bool yes, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)yes;
    return (a & mask) | (b & ~mask);
}

INLINE uint64_t choose_64(bool yes, uint64_t a, uint64_t b)
{
    uint64_t mask = UINT64_C(0) - (uint64_t)yes;
    return (a & mask) | (b & ~mask);
}

INLINE uint32_t widen_form(uint32_t code, struct form form)
{
    unsigned shift = 23 - form.mantissa;
    uint32_t sign = code >> (form.bits - 1) << 31;
    uint32_t magnitude = code & ((1u << (form.bits - 1)) - 1);
    uint32_t normal = (magnitude << shift) + ((127 - form.bias) << 23);
    uint32_t base = (128 - form.bias) << 23; /* the smallest normal value */
    uint32_t subnormal = as_bits(as_float(base + (magnitude << shift)) - as_float(base));
    uint32_t value = choose(magnitude >> form.mantissa, normal, subnormal);
    if (form.fnuz)
        return choose(code == form.nan, F32_NAN, sign | value);
    value = choose(magnitude > form.max, F32_NAN, value);
    if (form.infinite)
        value = choose(magnitude == form.infinite, F32_INFINITE, value);
    return sign | value;
}

INLINE uint32_t round_form(uint32_t value, struct form form, bool saturate)
{
    unsigned shift = 23 - form.mantissa;
    uint32_t sign = value >> 31 << (form.bits - 1);
    uint32_t magnitude = value & 0x7fffffffu;
    uint32_t odd = magnitude >> shift & 1;
    uint32_t normal =
        (magnitude - ((127 - form.bias) << 23) + ((1u << (shift - 1)) - 1) + odd) >> shift;
    /* Added to this, a value is rounded at the last place of the subnormal ones. */
    uint32_t base = (128 - form.bias + shift) << 23;
    uint32_t subnormal = as_bits(as_float(magnitude) + as_float(base)) - base;
    uint32_t code = choose(magnitude < (128 - form.bias) << 23, subnormal, normal);
    uint32_t beyond = saturate ? form.max : form.infinite ? form.infinite : form.nan;
    code = choose(code > form.max, beyond, code);
    if (form.infinite)
        code = choose(magnitude == F32_INFINITE, form.infinite, code);
    code = choose(magnitude > F32_INFINITE, form.nan, code);
    if (form.fnuz)
        sign = choose(code == 0, 0, sign); /* the code of NaN has the sign's bit */
    return sign | code;
}

INLINE uint32_t widen_bf16(uint32_t code)
{
    uint32_t value = code << 16;
    bool nan = (value & 0x7fffffffu) > F32_INFINITE;
    return choose(nan, (value & 0x80000000u) | F32_NAN, value);
}

INLINE uint32_t round_bf16(uint32_t value, bool saturate)
{
    uint32_t magnitude = value & 0x7fffffffu;
    uint32_t code = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
    if (saturate)
        code -= code == 0x7f80 && magnitude != F32_INFINITE;
    code = choose(magnitude > F32_INFINITE, 0x7fc0, code);
    return value >> 31 << 15 | code;
}

INLINE uint64_t widen_f32(uint32_t value)
{
    uint64_t sign = (uint64_t)(value >> 31) << 63, magnitude = value & 0x7fffffffu, bits;
    double subnormal = (double)(int32_t)magnitude * 0x1p-149;
    memcpy(&bits, &subnormal, sizeof(bits));
    uint64_t normal = (magnitude << 29) + (UINT64_C(0x380) << 52);
    uint64_t wide = choose_64(magnitude >> 23, normal, bits);
    wide = choose_64(magnitude == F32_INFINITE, F64_INFINITE, wide);
    wide = choose_64(magnitude > F32_INFINITE, F64_INFINITE | UINT64_C(1) << 51, wide);
    return sign | wide;
}

/* Of a finite F64: its first bits as those of an F32, and what they leave, as a part of `unit`. */
struct cut {
    uint64_t kept, rest, unit;
};
INLINE struct cut cut_f64(uint64_t magnitude)
{
    uint64_t exponent = magnitude >> 52, smallest = 1023 - 126;
    bool normal = exponent >= smallest;
    uint64_t fraction = magnitude & ((UINT64_C(1) << 52) - 1);
    uint64_t all =
        choose_64(normal, magnitude - ((smallest - 1) << 52), fraction | UINT64_C(1) << 52);
    uint64_t shift = choose_64(normal, 29, 29 + smallest - exponent);
    shift = choose_64(shift > 60, 60, shift);
    uint64_t unit = UINT64_C(1) << shift;
    return (struct cut){all >> shift, all & (unit - 1), unit};
}

enum rounding { TO_ODD, TO_NEAREST, TO_NEAREST_FINITE };

INLINE uint32_t round_f64(uint64_t value, enum rounding rounding)
{
    uint32_t sign = (uint32_t)(value >> 63) << 31;
    uint64_t magnitude = value & INT64_MAX;
    struct cut cut = cut_f64(magnitude);
    uint64_t up = 2 * cut.rest + (cut.kept & 1) > cut.unit, odd = cut.rest != 0;
    uint64_t code = rounding == TO_ODD ? cut.kept | odd : cut.kept + up;
    uint32_t beyond = rounding == TO_NEAREST ? F32_INFINITE : F32_MAX;
    code = choose_64(code >= F32_INFINITE, beyond, code);
    code = choose_64(magnitude == F64_INFINITE, F32_INFINITE, code);
    code = choose_64(magnitude > F64_INFINITE, F32_NAN, code);
    return sign | (uint32_t)code;
}

/* ---- one block ------------------------------------------------------------------------------ */

#define FOR_BLOCK for (unsigned i = 0; i < BLOCK; i++)

INLINE void widen_8(const void *in, struct form form, uint32_t *out)
{
    uint8_t raw[BLOCK];
    memcpy(raw, in, sizeof(raw));
    FOR_BLOCK out[i] = widen_form(raw[i], form);
}

INLINE void widen_block(enum sl_dtype from, const void *in, enum rounding rounding, uint32_t *out)
{
    uint16_t raw[BLOCK];
    uint64_t wide[BLOCK];
    switch (from) {
    case SL_DTYPE_F64:
        memcpy(wide, in, sizeof(wide));
        FOR_BLOCK out[i] = round_f64(wide[i], rounding);
        return;
    case SL_DTYPE_F16:
        memcpy(raw, in, sizeof(raw));
        FOR_BLOCK out[i] = widen_form(raw[i], FORM_F16);
        return;
    case SL_DTYPE_BF16:
        memcpy(raw, in, sizeof(raw));
        FOR_BLOCK out[i] = widen_bf16(raw[i]);
        return;
    case SL_DTYPE_F8_E4M3:
        widen_8(in, FORM_F8_E4M3, out);
        return;
    case SL_DTYPE_F8_E5M2:
        widen_8(in, FORM_F8_E5M2, out);
        return;
    case SL_DTYPE_F8_E4M3FNUZ:
        widen_8(in, FORM_F8_E4M3FNUZ, out);
        return;
    case SL_DTYPE_F8_E5M2FNUZ:
        widen_8(in, FORM_F8_E5M2FNUZ, out);
        return;
    default:
        memcpy(out, in, BLOCK * sizeof(*out));
    }
}

INLINE void round_8(const uint32_t *in, struct form form, bool saturate, void *out)
{
    uint8_t raw[BLOCK];
    FOR_BLOCK raw[i] = (uint8_t)round_form(in[i], form, saturate);
    memcpy(out, raw, sizeof(raw));
}

INLINE void round_block(const uint32_t *in, enum sl_dtype to, bool saturate, void *out)
{
    uint16_t raw[BLOCK];
    uint64_t wide[BLOCK];
    switch (to) {
    case SL_DTYPE_F64:
        FOR_BLOCK wide[i] = widen_f32(in[i]);
        memcpy(out, wide, sizeof(wide));
        return;
    case SL_DTYPE_F16:
        FOR_BLOCK raw[i] = (uint16_t)round_form(in[i], FORM_F16, saturate);
        memcpy(out, raw, sizeof(raw));
        return;
    case SL_DTYPE_BF16:
        FOR_BLOCK raw[i] = (uint16_t)round_bf16(in[i], saturate);
        memcpy(out, raw, sizeof(raw));
        return;
    case SL_DTYPE_F8_E4M3:
        round_8(in, FORM_F8_E4M3, saturate, out);
        return;
    case SL_DTYPE_F8_E5M2:
        round_8(in, FORM_F8_E5M2, saturate, out);
        return;
    case SL_DTYPE_F8_E4M3FNUZ:
        round_8(in, FORM_F8_E4M3FNUZ, saturate, out);
        return;
    case SL_DTYPE_F8_E5M2FNUZ:
        round_8(in, FORM_F8_E5M2FNUZ, saturate, out);
        return;
    default:
        memcpy(out, in, BLOCK * sizeof(*in));
    }
}

/* ---- many blocks ---------------------------------------------------------------------------- */

struct job {
    enum sl_dtype from, to;
    bool saturate;
    size_t in_bytes, out_bytes; /* of an element */
};

INLINE void cast_block(const struct job *job, const void *in, void *out)
{
    uint32_t values[BLOCK];
    enum rounding rounding = job->to != SL_DTYPE_F32 ? TO_ODD
                             : job->saturate         ? TO_NEAREST_FINITE
                                                     : TO_NEAREST;
    widen_block(job->from, in, rounding, values);
    if (job->saturate)
        round_block(values, job->to, true, out);
    else
        round_block(values, job->to, false, out);
}

/* The last elements pass through blocks of their own. */
INLINE void cast_all(const struct job *job, const uint8_t *in, uint8_t *out, size_t count)
{
    uint8_t last_in[BLOCK * 8] = {0}, last_out[BLOCK * 8];
    for (; count >= BLOCK; count -= BLOCK) {
        cast_block(job, in, out);
        in += BLOCK * job->in_bytes;
        out += BLOCK * job->out_bytes;
    }
    if (count == 0)
        return;
    memcpy(last_in, in, count * job->in_bytes);
    cast_block(job, last_in, last_out);
    memcpy(out, last_out, count * job->out_bytes);
}

static void cast_plain(const struct job *job, const void *in, void *out, size_t count)
{
    cast_all(job, in, out, count);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void cast_avx2(const struct job *job, const void *in,
                                                      void *out, size_t count)
{
    cast_all(job, in, out, count);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
static void cast_avx2(const struct job *job, const void *in, void *out, size_t count)
{
    cast_all(job, in, out, count);
}

static bool has_avx2(void)
{
    return false;
}
#endif

/* ---- public --------------------------------------------------------------------------------- */

static bool is_offered(enum sl_dtype dtype)
{
    switch (dtype) {
    case SL_DTYPE_F64:
    case SL_DTYPE_F32:
    case SL_DTYPE_F16:
    case SL_DTYPE_BF16:
    case SL_DTYPE_F8_E4M3:
    case SL_DTYPE_F8_E5M2:
    case SL_DTYPE_F8_E4M3FNUZ:
    case SL_DTYPE_F8_E5M2FNUZ:
        return true;
    default:
        return false;
    }
}

bool sl_cast_offered(enum sl_dtype from, enum sl_dtype to)
{
    return is_offered(from) && is_offered(to);
}

void sl_cast_with(bool plain, enum sl_dtype from, enum sl_dtype to, enum sl_cast_overflow overflow,
                  const void *in, void *out, size_t count)
{
    struct job job = {
        .from = from,
        .to = to,
        .saturate = overflow == SL_CAST_SATURATE,
        .in_bytes = sl_dtype_row(from)->bits / 8,
        .out_bytes = sl_dtype_row(to)->bits / 8,
    };
    if (from == to)
        memmove(out, in, count * job.in_bytes);
    else if (!plain && has_avx2())
        cast_avx2(&job, in, out, count);
    else
        cast_plain(&job, in, out, count);
}

void sl_cast(enum sl_dtype from, enum sl_dtype to, enum sl_cast_overflow overflow, const void *in,
             void *out, size_t count)
{
    sl_cast_with(false, from, to, overflow, in, out, count);
}

/* ---- byte order ----------------------------------------------------------------------------- */

static void swap_2(uint8_t *data, size_t count)
{
    uint16_t items[BLOCK] = {0};
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t bytes = sizeof(*items) * SL_MIN((size_t)BLOCK, count - done);
        memcpy(items, data + done * sizeof(*items), bytes);
        FOR_BLOCK items[i] = __builtin_bswap16(items[i]);
        memcpy(data + done * sizeof(*items), items, bytes);
    }
}

static void swap_4(uint8_t *data, size_t count)
{
    uint32_t items[BLOCK] = {0};
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t bytes = sizeof(*items) * SL_MIN((size_t)BLOCK, count - done);
        memcpy(items, data + done * sizeof(*items), bytes);
        FOR_BLOCK items[i] = __builtin_bswap32(items[i]);
        memcpy(data + done * sizeof(*items), items, bytes);
    }
}

static void swap_8(uint8_t *data, size_t count)
{
    uint64_t items[BLOCK] = {0};
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t bytes = sizeof(*items) * SL_MIN((size_t)BLOCK, count - done);
        memcpy(items, data + done * sizeof(*items), bytes);
        FOR_BLOCK items[i] = __builtin_bswap64(items[i]);
        memcpy(data + done * sizeof(*items), items, bytes);
    }
}

void sl_swap_bytes(void *data, size_t item_bytes, size_t count)
{
    if (item_bytes == 2)
        swap_2(data, count);
    else if (item_bytes == 4)
        swap_4(data, count);
    else if (item_bytes == 8)
        swap_8(data, count);
}

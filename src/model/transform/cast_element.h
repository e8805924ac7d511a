/*
 * How one element becomes one of another floating type, for cast.c and for the kernel of GPUs:
 * both include this, so that they cannot differ. What is meant by it stands in cast.h.
 *
 * All pairs go through F32. Everything is computed with integers and without branches, but for two
 * places, subnormal elements of F16 and F8, where the rounding of a floating-point addition is
 * exactly the one wanted; its operands and results that matter are normal F32. Pure functions.
 */
#ifndef SL_CAST_ELEMENT_H
#define SL_CAST_ELEMENT_H

#include "device.h"

static const uint32_t SL_F32_INFINITE = 0x7f800000u, SL_F32_NAN = 0x7fc00000u,
                      SL_F32_MAX = 0x7f7fffffu;
static const uint64_t SL_F64_INFINITE = UINT64_C(0x7ff) << 52;

/** A type of 8 or 16 bits with its own range of exponents. Codes are without sign. */
struct sl_form {
    unsigned mantissa, bias, bits;
    uint32_t max, infinite, nan; /* largest finite value; infinite is 0 if there is none */
    bool fnuz;                   /* no negative zero: its code is the only NaN */
};

/* Functions, since a compiler for GPUs takes no constant that is a struct. */
#define SL_FORM(name, mantissa, bias, bits, max, infinite, nan, fnuz)                              \
    SL_INLINE struct sl_form sl_form_##name(void)                                                  \
    {                                                                                              \
        struct sl_form form = {mantissa, bias, bits, max, infinite, nan, fnuz};                    \
        return form;                                                                               \
    }
SL_FORM(f16, 10, 15, 16, 0x7bff, 0x7c00, 0x7e00, false)
SL_FORM(f8_e4m3, 3, 7, 8, 0x7e, 0, 0x7f, false)
SL_FORM(f8_e5m2, 2, 15, 8, 0x7b, 0x7c, 0x7e, false)
SL_FORM(f8_e4m3fnuz, 3, 8, 8, 0x7f, 0, 0x80, true)
SL_FORM(f8_e5m2fnuz, 2, 16, 8, 0x7f, 0, 0x80, true)
#undef SL_FORM

/* Both are computed, so that no compiler sees a branch here. */
SL_INLINE uint32_t sl_choose(bool yes, uint32_t a, uint32_t b)
{
    uint32_t mask = 0u - (uint32_t)yes;
    return (a & mask) | (b & ~mask);
}

SL_INLINE uint64_t sl_choose_64(bool yes, uint64_t a, uint64_t b)
{
    uint64_t mask = UINT64_C(0) - (uint64_t)yes;
    return (a & mask) | (b & ~mask);
}

SL_INLINE uint32_t sl_widen_form(uint32_t code, struct sl_form form)
{
    unsigned shift = 23 - form.mantissa;
    uint32_t sign = code >> (form.bits - 1) << 31;
    uint32_t magnitude = code & ((1u << (form.bits - 1)) - 1);
    uint32_t normal = (magnitude << shift) + ((127 - form.bias) << 23);
    uint32_t base = (128 - form.bias) << 23; /* the smallest normal value */
    uint32_t subnormal = sl_bits_of(sl_float_of(base + (magnitude << shift)) - sl_float_of(base));
    uint32_t value = sl_choose(magnitude >> form.mantissa, normal, subnormal);
    if (form.fnuz)
        return sl_choose(code == form.nan, SL_F32_NAN, sign | value);
    value = sl_choose(magnitude > form.max, SL_F32_NAN, value);
    if (form.infinite)
        value = sl_choose(magnitude == form.infinite, SL_F32_INFINITE, value);
    return sign | value;
}

SL_INLINE uint32_t sl_round_form(uint32_t value, struct sl_form form, bool saturate)
{
    unsigned shift = 23 - form.mantissa;
    uint32_t sign = value >> 31 << (form.bits - 1);
    uint32_t magnitude = value & 0x7fffffffu;
    uint32_t odd = magnitude >> shift & 1;
    uint32_t normal =
        (magnitude - ((127 - form.bias) << 23) + ((1u << (shift - 1)) - 1) + odd) >> shift;
    /* Added to this, a value is rounded at the last place of the subnormal ones. */
    uint32_t base = (128 - form.bias + shift) << 23;
    uint32_t subnormal = sl_bits_of(sl_float_of(magnitude) + sl_float_of(base)) - base;
    uint32_t code = sl_choose(magnitude < (128 - form.bias) << 23, subnormal, normal);
    uint32_t beyond = saturate ? form.max : form.infinite ? form.infinite : form.nan;
    code = sl_choose(code > form.max, beyond, code);
    if (form.infinite)
        code = sl_choose(magnitude == SL_F32_INFINITE, form.infinite, code);
    code = sl_choose(magnitude > SL_F32_INFINITE, form.nan, code);
    if (form.fnuz)
        sign = sl_choose(code == 0, 0, sign); /* the code of NaN has the sign's bit */
    return sign | code;
}

SL_INLINE uint32_t sl_widen_bf16(uint32_t code)
{
    uint32_t value = code << 16;
    bool nan = (value & 0x7fffffffu) > SL_F32_INFINITE;
    return sl_choose(nan, (value & 0x80000000u) | SL_F32_NAN, value);
}

SL_INLINE uint32_t sl_round_bf16(uint32_t value, bool saturate)
{
    uint32_t magnitude = value & 0x7fffffffu;
    uint32_t code = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
    if (saturate)
        code -= code == 0x7f80 && magnitude != SL_F32_INFINITE;
    code = sl_choose(magnitude > SL_F32_INFINITE, 0x7fc0, code);
    return value >> 31 << 15 | code;
}

SL_INLINE uint64_t sl_widen_f32(uint32_t value)
{
    uint64_t sign = (uint64_t)(value >> 31) << 63, magnitude = value & 0x7fffffffu;
    uint64_t subnormal = sl_bits_of_double((double)(int32_t)magnitude * 0x1p-149);
    uint64_t normal = (magnitude << 29) + (UINT64_C(0x380) << 52);
    uint64_t wide = sl_choose_64(magnitude >> 23, normal, subnormal);
    wide = sl_choose_64(magnitude == SL_F32_INFINITE, SL_F64_INFINITE, wide);
    wide = sl_choose_64(magnitude > SL_F32_INFINITE, SL_F64_INFINITE | UINT64_C(1) << 51, wide);
    return sign | wide;
}

/** Of a finite F64: its first bits as those of an F32, and what they leave, as a part of `unit`. */
struct sl_cut {
    uint64_t kept, rest, unit;
};
SL_INLINE struct sl_cut sl_cut_f64(uint64_t magnitude)
{
    uint64_t exponent = magnitude >> 52, smallest = 1023 - 126;
    bool normal = exponent >= smallest;
    uint64_t fraction = magnitude & ((UINT64_C(1) << 52) - 1);
    uint64_t all =
        sl_choose_64(normal, magnitude - ((smallest - 1) << 52), fraction | UINT64_C(1) << 52);
    uint64_t shift = sl_choose_64(normal, 29, 29 + smallest - exponent);
    shift = sl_choose_64(shift > 60, 60, shift);
    uint64_t unit = UINT64_C(1) << shift;
    struct sl_cut cut = {all >> shift, all & (unit - 1), unit};
    return cut;
}

/** How an F64 becomes an F32: "to odd" keeps what is cut off as a lowest bit of 1, so that rounding
 * the result again gives what rounding the F64 at once would have given. */
enum sl_rounding { SL_TO_ODD, SL_TO_NEAREST, SL_TO_NEAREST_FINITE };

SL_INLINE uint32_t sl_round_f64(uint64_t value, enum sl_rounding rounding)
{
    uint32_t sign = (uint32_t)(value >> 63) << 31;
    uint64_t magnitude = value & INT64_MAX;
    struct sl_cut cut = sl_cut_f64(magnitude);
    uint64_t up = 2 * cut.rest + (cut.kept & 1) > cut.unit, odd = cut.rest != 0;
    uint64_t code = rounding == SL_TO_ODD ? cut.kept | odd : cut.kept + up;
    uint32_t beyond = rounding == SL_TO_NEAREST ? SL_F32_INFINITE : SL_F32_MAX;
    code = sl_choose_64(code >= SL_F32_INFINITE, beyond, code);
    code = sl_choose_64(magnitude == SL_F64_INFINITE, SL_F32_INFINITE, code);
    code = sl_choose_64(magnitude > SL_F64_INFINITE, SL_F32_NAN, code);
    return sign | (uint32_t)code;
}

#endif

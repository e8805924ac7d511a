/*
 * Casts: a thread takes eight elements at a time, so that each touches whole words of memory, and
 * widens them to F32, then rounds them, as cast.c does with its blocks; what happens to one element
 * is the same code. Which types they are is asked once for eight elements, and all threads give
 * the same answer. The last elements go one by one. Ranges are what the launcher has checked.
 */
#ifndef SL_KERNEL_CAST_H
#define SL_KERNEL_CAST_H

#include "cast_element.h"
#include "kernel_base.h"

enum { SL_CAST_GROUP = 8 };

SL_INLINE uint32_t sl_kernel_type_bytes(uint32_t type)
{
    return type == SL_K_F64 ? 8 : type == SL_K_F32 ? 4 : type <= SL_K_BF16 ? 2 : 1;
}

/* Element i of words that hold elements of one, two, eight bytes. */
SL_INLINE uint32_t sl_element_1(const uint32_t *words, uint32_t i)
{
    return words[i / 4] >> (8 * (i % 4)) & 0xff;
}

SL_INLINE uint32_t sl_element_2(const uint32_t *words, uint32_t i)
{
    return words[i / 2] >> (16 * (i % 2)) & 0xffff;
}

SL_INLINE uint64_t sl_element_8(const uint32_t *words, uint32_t i)
{
    return words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
}

#define SL_EACH                                                                                    \
    SL_UNROLL                                                                                      \
    for (uint32_t i = 0; i < SL_CAST_GROUP; i++)

SL_INLINE void sl_widen_8(const uint8_t *in, struct sl_form form, uint32_t *values)
{
    uint32_t words[SL_CAST_GROUP / 4];
    sl_get_words(in, words, SL_CAST_GROUP / 4);
    SL_EACH values[i] = sl_widen_form(sl_element_1(words, i), form);
}

SL_INLINE void sl_widen_group(uint32_t from, const uint8_t *in, enum sl_rounding rounding,
                              uint32_t *values)
{
    uint32_t half[SL_CAST_GROUP / 2], wide[SL_CAST_GROUP * 2];
    switch (from) {
    case SL_K_F64:
        sl_get_words(in, wide, SL_CAST_GROUP * 2);
        SL_EACH values[i] = sl_round_f64(sl_element_8(wide, i), rounding);
        return;
    case SL_K_F16:
        sl_get_words(in, half, SL_CAST_GROUP / 2);
        SL_EACH values[i] = sl_widen_form(sl_element_2(half, i), sl_form_f16());
        return;
    case SL_K_BF16:
        sl_get_words(in, half, SL_CAST_GROUP / 2);
        SL_EACH values[i] = sl_widen_bf16(sl_element_2(half, i));
        return;
    case SL_K_F8_E4M3:
        sl_widen_8(in, sl_form_f8_e4m3(), values);
        return;
    case SL_K_F8_E5M2:
        sl_widen_8(in, sl_form_f8_e5m2(), values);
        return;
    case SL_K_F8_E4M3FNUZ:
        sl_widen_8(in, sl_form_f8_e4m3fnuz(), values);
        return;
    case SL_K_F8_E5M2FNUZ:
        sl_widen_8(in, sl_form_f8_e5m2fnuz(), values);
        return;
    default:
        sl_get_words(in, values, SL_CAST_GROUP);
    }
}

SL_INLINE void sl_round_8(const uint32_t *values, struct sl_form form, bool saturate, uint8_t *out)
{
    uint32_t words[SL_CAST_GROUP / 4];
    SL_UNROLL
    for (uint32_t i = 0; i < SL_CAST_GROUP / 4; i++)
        words[i] = 0;
    SL_EACH words[i / 4] |= sl_round_form(values[i], form, saturate) << (8 * (i % 4));
    sl_put_words(out, words, SL_CAST_GROUP / 4);
}

SL_INLINE void sl_round_group(const uint32_t *values, uint32_t to, bool saturate, uint8_t *out)
{
    uint32_t half[SL_CAST_GROUP / 2], wide[SL_CAST_GROUP * 2];
    SL_UNROLL
    for (uint32_t i = 0; i < SL_CAST_GROUP / 2; i++)
        half[i] = 0;
    switch (to) {
    case SL_K_F64:
        SL_EACH
        {
            uint64_t value = sl_widen_f32(values[i]);
            wide[2 * i] = (uint32_t)value;
            wide[2 * i + 1] = (uint32_t)(value >> 32);
        }
        sl_put_words(out, wide, SL_CAST_GROUP * 2);
        return;
    case SL_K_F16:
        SL_EACH half[i / 2] |= sl_round_form(values[i], sl_form_f16(), saturate) << (16 * (i % 2));
        sl_put_words(out, half, SL_CAST_GROUP / 2);
        return;
    case SL_K_BF16:
        SL_EACH half[i / 2] |= sl_round_bf16(values[i], saturate) << (16 * (i % 2));
        sl_put_words(out, half, SL_CAST_GROUP / 2);
        return;
    case SL_K_F8_E4M3:
        sl_round_8(values, sl_form_f8_e4m3(), saturate, out);
        return;
    case SL_K_F8_E5M2:
        sl_round_8(values, sl_form_f8_e5m2(), saturate, out);
        return;
    case SL_K_F8_E4M3FNUZ:
        sl_round_8(values, sl_form_f8_e4m3fnuz(), saturate, out);
        return;
    case SL_K_F8_E5M2FNUZ:
        sl_round_8(values, sl_form_f8_e5m2fnuz(), saturate, out);
        return;
    default:
        sl_put_words(out, values, SL_CAST_GROUP);
    }
}

SL_INLINE uint32_t sl_widen_one(uint32_t from, uint64_t code, enum sl_rounding rounding)
{
    switch (from) {
    case SL_K_F64:
        return sl_round_f64(code, rounding);
    case SL_K_F16:
        return sl_widen_form((uint32_t)code, sl_form_f16());
    case SL_K_BF16:
        return sl_widen_bf16((uint32_t)code);
    case SL_K_F8_E4M3:
        return sl_widen_form((uint32_t)code, sl_form_f8_e4m3());
    case SL_K_F8_E5M2:
        return sl_widen_form((uint32_t)code, sl_form_f8_e5m2());
    case SL_K_F8_E4M3FNUZ:
        return sl_widen_form((uint32_t)code, sl_form_f8_e4m3fnuz());
    case SL_K_F8_E5M2FNUZ:
        return sl_widen_form((uint32_t)code, sl_form_f8_e5m2fnuz());
    default:
        return (uint32_t)code;
    }
}

SL_INLINE uint64_t sl_round_one(uint32_t value, uint32_t to, bool saturate)
{
    switch (to) {
    case SL_K_F64:
        return sl_widen_f32(value);
    case SL_K_F16:
        return sl_round_form(value, sl_form_f16(), saturate);
    case SL_K_BF16:
        return sl_round_bf16(value, saturate);
    case SL_K_F8_E4M3:
        return sl_round_form(value, sl_form_f8_e4m3(), saturate);
    case SL_K_F8_E5M2:
        return sl_round_form(value, sl_form_f8_e5m2(), saturate);
    case SL_K_F8_E4M3FNUZ:
        return sl_round_form(value, sl_form_f8_e4m3fnuz(), saturate);
    case SL_K_F8_E5M2FNUZ:
        return sl_round_form(value, sl_form_f8_e5m2fnuz(), saturate);
    default:
        return value;
    }
}

SL_INLINE void sl_cast_phase(const struct sl_cast_args *args, struct sl_no_shared *shared,
                             const struct sl_where *where, int phase)
{
    (void)shared, (void)phase;
    uint32_t in_bytes = sl_kernel_type_bytes(args->from);
    uint32_t out_bytes = sl_kernel_type_bytes(args->to);
    bool saturate = args->saturate != 0;
    enum sl_rounding rounding = args->to != SL_K_F32 ? SL_TO_ODD
                                : saturate           ? SL_TO_NEAREST_FINITE
                                                     : SL_TO_NEAREST;
    const uint8_t *in = sl_device_bytes(args->in);
    uint8_t *out = sl_device_bytes(args->out);
    uint64_t me = where->block * where->threads + where->thread;
    uint64_t all = where->blocks * where->threads, groups = args->count / SL_CAST_GROUP;
    uint32_t values[SL_CAST_GROUP];
    for (uint64_t group = me; group < groups; group += all) {
        uint64_t first = group * SL_CAST_GROUP;
        sl_widen_group(args->from, in + first * in_bytes, rounding, values);
        sl_round_group(values, args->to, saturate, out + first * out_bytes);
    }
    uint64_t last = groups * SL_CAST_GROUP + me;
    if (last < args->count) {
        uint32_t value =
            sl_widen_one(args->from, sl_get_number(in + last * in_bytes, in_bytes), rounding);
        sl_put_number(out + last * out_bytes, sl_round_one(value, args->to, saturate), out_bytes);
    }
}

#undef SL_EACH

#endif

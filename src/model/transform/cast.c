/*
 * All pairs go through F32: every type but F64 is contained in it, so one half of a cast widens a
 * block of elements exactly and the other half rounds it, once. F64 first becomes an F32 "rounded
 * to odd": what is cut off is kept as a lowest bit of 1, and the 13 bits or more that F32 has
 * beyond F16, BF16 and F8 make sure that rounding this to nearest gives what rounding the F64 would
 * have given. F64 to F32 rounds to nearest at once.
 *
 * A block is a fixed number of elements in local arrays, without branches in the loops, so that
 * compilers vectorise them; the same loops are compiled for AVX2 too and chosen at run time. What
 * happens to one element stands in cast_element.h, which GPUs have, too; it does not care whether
 * the thread flushes subnormals to zero.
 */
#include "cast.h"

#include <string.h>

#include "cast_element.h"
#include "mem.h"

enum { BLOCK = 256 };

/* ---- one block ------------------------------------------------------------------------------ */

#define FOR_BLOCK for (unsigned i = 0; i < BLOCK; i++)

SL_INLINE void widen_8(const void *in, struct sl_form form, uint32_t *out)
{
    uint8_t raw[BLOCK];
    memcpy(raw, in, sizeof(raw));
    FOR_BLOCK out[i] = sl_widen_form(raw[i], form);
}

SL_INLINE void widen_block(enum sl_dtype from, const void *in, enum sl_rounding rounding,
                           uint32_t *out)
{
    uint16_t raw[BLOCK];
    uint64_t wide[BLOCK];
    switch (from) {
    case SL_DTYPE_F64:
        memcpy(wide, in, sizeof(wide));
        FOR_BLOCK out[i] = sl_round_f64(wide[i], rounding);
        return;
    case SL_DTYPE_F16:
        memcpy(raw, in, sizeof(raw));
        FOR_BLOCK out[i] = sl_widen_form(raw[i], sl_form_f16());
        return;
    case SL_DTYPE_BF16:
        memcpy(raw, in, sizeof(raw));
        FOR_BLOCK out[i] = sl_widen_bf16(raw[i]);
        return;
    case SL_DTYPE_F8_E4M3:
        widen_8(in, sl_form_f8_e4m3(), out);
        return;
    case SL_DTYPE_F8_E5M2:
        widen_8(in, sl_form_f8_e5m2(), out);
        return;
    case SL_DTYPE_F8_E4M3FNUZ:
        widen_8(in, sl_form_f8_e4m3fnuz(), out);
        return;
    case SL_DTYPE_F8_E5M2FNUZ:
        widen_8(in, sl_form_f8_e5m2fnuz(), out);
        return;
    default:
        memcpy(out, in, BLOCK * sizeof(*out));
    }
}

SL_INLINE void round_8(const uint32_t *in, struct sl_form form, bool saturate, void *out)
{
    uint8_t raw[BLOCK];
    FOR_BLOCK raw[i] = (uint8_t)sl_round_form(in[i], form, saturate);
    memcpy(out, raw, sizeof(raw));
}

SL_INLINE void round_block(const uint32_t *in, enum sl_dtype to, bool saturate, void *out)
{
    uint16_t raw[BLOCK];
    uint64_t wide[BLOCK];
    switch (to) {
    case SL_DTYPE_F64:
        FOR_BLOCK wide[i] = sl_widen_f32(in[i]);
        memcpy(out, wide, sizeof(wide));
        return;
    case SL_DTYPE_F16:
        FOR_BLOCK raw[i] = (uint16_t)sl_round_form(in[i], sl_form_f16(), saturate);
        memcpy(out, raw, sizeof(raw));
        return;
    case SL_DTYPE_BF16:
        FOR_BLOCK raw[i] = (uint16_t)sl_round_bf16(in[i], saturate);
        memcpy(out, raw, sizeof(raw));
        return;
    case SL_DTYPE_F8_E4M3:
        round_8(in, sl_form_f8_e4m3(), saturate, out);
        return;
    case SL_DTYPE_F8_E5M2:
        round_8(in, sl_form_f8_e5m2(), saturate, out);
        return;
    case SL_DTYPE_F8_E4M3FNUZ:
        round_8(in, sl_form_f8_e4m3fnuz(), saturate, out);
        return;
    case SL_DTYPE_F8_E5M2FNUZ:
        round_8(in, sl_form_f8_e5m2fnuz(), saturate, out);
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

SL_INLINE void cast_block(const struct job *job, const void *in, void *out)
{
    uint32_t values[BLOCK];
    enum sl_rounding rounding = job->to != SL_DTYPE_F32 ? SL_TO_ODD
                                : job->saturate         ? SL_TO_NEAREST_FINITE
                                                        : SL_TO_NEAREST;
    widen_block(job->from, in, rounding, values);
    if (job->saturate)
        round_block(values, job->to, true, out);
    else
        round_block(values, job->to, false, out);
}

/* The last elements pass through blocks of their own. */
SL_INLINE void cast_all(const struct job *job, const uint8_t *in, uint8_t *out, size_t count)
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

/*
 * Casts against a slow reference of another kind: values as long doubles, and the nearest code
 * found by searching among all codes of the type. Then against tables that ml_dtypes and numpy
 * made (data/cast/make_golden.py).
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cast.h"
#include "claims.h"
#include "mem.h"

static const enum sl_dtype types[] = {SL_DTYPE_F64,         SL_DTYPE_F32,        SL_DTYPE_F16,
                                      SL_DTYPE_BF16,        SL_DTYPE_F8_E4M3,    SL_DTYPE_F8_E5M2,
                                      SL_DTYPE_F8_E4M3FNUZ, SL_DTYPE_F8_E5M2FNUZ};
enum { F64, F32, FIRST_SMALL, TYPES = SL_COUNT(types) };

static unsigned bytes_of(unsigned type)
{
    return sl_dtype_row(types[type])->bits / 8;
}

/* ---- the reference -------------------------------------------------------------------------- */

struct kind {
    int exponent_bits, mantissa_bits, bias;
    bool has_infinity, fnuz;
    uint32_t max;        /* code of the largest finite value */
    long double *values; /* of the codes without sign, as if there were no infinities and NaN */
};
static struct kind kinds[TYPES] = {
    {11, 52, 1023, true, false, 0, NULL}, {8, 23, 127, true, false, 0, NULL},
    {5, 10, 15, true, false, 0, NULL},    {8, 7, 127, true, false, 0, NULL},
    {4, 3, 7, false, false, 0, NULL},     {5, 2, 15, true, false, 0, NULL},
    {4, 3, 8, false, true, 0, NULL},      {5, 2, 16, false, true, 0, NULL},
};

static void make_tables(void)
{
    for (unsigned t = FIRST_SMALL; t < TYPES; t++) {
        struct kind *kind = &kinds[t];
        unsigned codes = 1u << (kind->exponent_bits + kind->mantissa_bits);
        if (kind->values)
            return;
        kind->values = malloc((codes + 1) * sizeof(*kind->values));
        for (unsigned code = 0; code <= codes; code++) {
            int exponent = (int)(code >> kind->mantissa_bits);
            long double fraction = code & ((1u << kind->mantissa_bits) - 1);
            if (exponent)
                fraction += 1u << kind->mantissa_bits;
            kind->values[code] =
                ldexpl(fraction, (exponent ? exponent : 1) - kind->bias - kind->mantissa_bits);
        }
        kind->max = kind->fnuz           ? codes - 1
                    : kind->has_infinity ? ((1u << kind->exponent_bits) - 1) << kind->mantissa_bits
                                         : codes - 1;
        kind->max -= kind->fnuz ? 0 : 1;
    }
}

static uint64_t get(unsigned type, const uint8_t *data, size_t i)
{
    uint64_t code = 0;
    memcpy(&code, data + i * bytes_of(type), bytes_of(type));
    return code;
}

static void put(unsigned type, uint8_t *data, size_t i, uint64_t code)
{
    memcpy(data + i * bytes_of(type), &code, bytes_of(type));
}

static long double decode(unsigned type, uint64_t code)
{
    float single;
    double wide;
    uint32_t low = (uint32_t)code;
    const struct kind *kind = &kinds[type];
    memcpy(&single, &low, 4);
    memcpy(&wide, &code, 8);
    if (type == F32)
        return single;
    if (type == F64)
        return wide;
    unsigned sign = 1u << (kind->exponent_bits + kind->mantissa_bits);
    uint32_t magnitude = (uint32_t)code & (sign - 1);
    long double value = magnitude <= kind->max                             ? kind->values[magnitude]
                        : kind->has_infinity && magnitude == kind->max + 1 ? (long double)INFINITY
                                                                           : (long double)NAN;
    if (kind->fnuz && code == sign)
        return NAN;
    return code & sign ? -value : value;
}

/* The code whose value is nearest, the even one of two. */
static uint32_t nearest(const struct kind *kind, long double magnitude)
{
    uint32_t low = 0, high = kind->max + 1; /* value of low <= magnitude */
    if (magnitude >= kind->values[high])
        return high;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (kind->values[middle] <= magnitude)
            low = middle;
        else
            high = middle;
    }
    long double down = magnitude - kind->values[low], up = kind->values[high] - magnitude;
    return down < up || (down == up && low % 2 == 0) ? low : high;
}

static uint64_t encode(unsigned type, long double value, bool saturate)
{
    const struct kind *kind = &kinds[type];
    bool negative = signbit(value);
    uint64_t sign = negative ? UINT64_C(1) << (kind->exponent_bits + kind->mantissa_bits) : 0;
    if (type == F64 || type == F32) {
        float single = (float)value;
        double wide = (double)value;
        uint64_t code = 0;
        if (saturate && isfinite(value) && !isfinite(single))
            single = negative ? -0x1.fffffep127f : 0x1.fffffep127f;
        if (type == F32)
            memcpy(&code, &single, 4);
        else
            memcpy(&code, &wide, 8);
        return code;
    }
    if (isinf(value) && kind->has_infinity)
        return sign | (kind->max + 1);
    uint32_t code = isinf(value) ? kind->max + 1 : nearest(kind, fabsl(value));
    if (code > kind->max) {
        if (!saturate && kind->fnuz)
            return UINT64_C(1) << (kind->exponent_bits + kind->mantissa_bits);
        code = saturate ? kind->max : kind->max + 1; /* infinite, or the NaN of F8_E4M3 */
    }
    return kind->fnuz && code == 0 ? 0 : sign | code;
}

/* ---- comparing ------------------------------------------------------------------------------ */

enum { ROOM = 65536 };
static uint8_t in[ROOM * 8], out[ROOM * 8];

static bool is_quiet_nan(unsigned type, uint64_t code)
{
    const struct kind *kind = &kinds[type];
    if (!isnan(decode(type, code)))
        return false;
    return !kind->has_infinity || code >> (kind->mantissa_bits - 1) & 1;
}

/* Cast the `count` elements at `in`, every way, and judge each. */
static void judge(unsigned from, unsigned to, size_t count)
{
    for (unsigned way = 0; way < 4 && from != to; way++) {
        bool saturate = way & 1, plain = way & 2;
        sl_cast_with(plain, types[from], types[to], saturate ? SL_CAST_SATURATE : SL_CAST_IEEE, in,
                     out, count);
        for (size_t i = 0; i < count; i++) {
            uint64_t code = get(from, in, i), got = get(to, out, i);
            long double value = decode(from, code);
            bool good = isnan(value) ? is_quiet_nan(to, got) : got == encode(to, value, saturate);
            if (!good) /* a claim that holds costs a write to a pipe */
                ck_abort_msg("%s %#lx (%La) to %s, way %u: got %#lx, expected %#lx",
                             sl_dtype_row(types[from])->name, (unsigned long)code, value,
                             sl_dtype_row(types[to])->name, way, (unsigned long)got,
                             (unsigned long)encode(to, value, saturate));
        }
    }
}

SL_TEST(every_element_of_8_and_16_bits_becomes_every_type)
{
    for (unsigned from = FIRST_SMALL; from < TYPES; from++) {
        size_t count = (size_t)1 << (8 * bytes_of(from));
        for (size_t i = 0; i < count; i++)
            put(from, in, i, i);
        for (unsigned to = 0; to < TYPES; to++)
            judge(from, to, count);
    }
}

SL_TEST(every_element_of_8_and_16_bits_comes_back)
{
    static uint8_t back[ROOM * 2];
    for (unsigned type = FIRST_SMALL; type < TYPES; type++) {
        size_t count = (size_t)1 << (8 * bytes_of(type));
        for (size_t i = 0; i < count; i++)
            put(type, in, i, i);
        for (unsigned wide = F64; wide <= F32; wide++) {
            sl_cast(types[type], types[wide], SL_CAST_IEEE, in, out, count);
            sl_cast(types[wide], types[type], SL_CAST_IEEE, out, back, count);
            for (size_t i = 0; i < count; i++)
                if (get(type, back, i) != i && !isnan(decode(type, i)))
                    ck_abort_msg("%s %#zx", sl_dtype_row(types[type])->name, i);
        }
    }
}

/* Values on both sides of a border between two codes, and on it. */
static size_t put_border(unsigned wide, size_t at, long double border)
{
    uint64_t code = encode(wide, border, false);
    for (int step = -1; step <= 1; step++) {
        uint64_t near = code + (code ? (uint64_t)step : 0);
        put(wide, in, at++, near);
        put(wide, in, at++, near | UINT64_C(1) << (8 * bytes_of(wide) - 1));
    }
    return at;
}

static void judge_borders(unsigned wide, unsigned to)
{
    const struct kind *kind = &kinds[to];
    size_t count = 0;
    for (uint32_t code = 0; code <= kind->max + 1; code++) {
        long double low = kind->values[code];
        count = put_border(wide, count, low);
        if (code <= kind->max)
            count = put_border(wide, count, (low + kind->values[code + 1]) / 2);
        if (count + 12 > ROOM || code == kind->max + 1) {
            judge(wide, to, count);
            count = 0;
        }
    }
}

SL_TEST(values_around_every_border_are_rounded_to_nearest_even)
{
    for (unsigned wide = F64; wide <= F32; wide++)
        for (unsigned to = FIRST_SMALL; to < TYPES; to++)
            judge_borders(wide, to);
}

static uint64_t noise(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

SL_TEST(f64_becomes_f32_with_one_rounding)
{
    for (unsigned round = 0; round < 8; round++) {
        size_t count = 0;
        while (count + 12 < ROOM) {
            uint32_t code = (uint32_t)noise() & 0x7fffffff;
            if (round == 0)
                code &= 0xffffff; /* subnormal and small ones */
            if (round == 1)
                code = 0x7f7fffff - code % 64;
            code = SL_MIN(code, 0x7f7ffffeu);
            long double low = decode(F32, code), high = decode(F32, code + 1);
            count = put_border(F64, count, low);
            count = put_border(F64, count, (low + high) / 2);
        }
        put(F64, in, 0, 0x47efffffefffffffu); /* the last that is not infinite */
        put(F64, in, 1, 0x47effffff0000000u);
        put(F64, in, 2, 0x7fefffffffffffffu);
        put(F64, in, 3, 1);
        judge(F64, F32, count);
    }
}

SL_TEST(numbers_by_chance_are_cast_right)
{
    for (unsigned wide = F64; wide <= F32; wide++) {
        for (size_t i = 0; i < ROOM; i++)
            put(wide, in, i, noise());
        static const uint64_t special[] = {0, 1, 0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff};
        for (size_t i = 0; i < SL_COUNT(special) * 2; i++) {
            uint64_t code = special[i / 2];
            code = wide == F32 ? code : (code >> 23) << 52 | (code & 0x7fffff) << 29;
            put(wide, in, i, code | (uint64_t)(i % 2) << (8 * bytes_of(wide) - 1));
        }
        for (unsigned to = 0; to < TYPES; to++)
            judge(wide, to, ROOM);
    }
}

SL_TEST(any_count_and_alignment_is_good_and_nothing_else_is_touched)
{
    static uint8_t from[1200 * 8 + 1], to[1200 * 8 + 1], whole[1200 * 8];
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)noise();
    for (unsigned a = 0; a < TYPES; a++)
        for (unsigned b = 0; b < TYPES; b++)
            for (size_t count = 0; count < 1100; count += count < 3 ? 1 : 251) {
                sl_cast(types[a], types[b], SL_CAST_IEEE, memcpy(in, from + 1, 9600), whole, count);
                memset(to, 0xa5, sizeof(to));
                sl_cast(types[a], types[b], SL_CAST_IEEE, from + 1, to + 1, count);
                ck_assert(memcmp(to + 1, whole, count * bytes_of(b)) == 0);
                ck_assert_uint_eq(to[0], 0xa5);
                ck_assert_uint_eq(to[1 + count * bytes_of(b)], 0xa5);
            }
}

SL_TEST(a_cast_to_no_larger_elements_may_happen_in_place)
{
    static uint8_t place[1000 * 8];
    for (unsigned a = 0; a < TYPES; a++)
        for (unsigned b = 0; b < TYPES; b++) {
            if (bytes_of(b) > bytes_of(a))
                continue;
            for (size_t i = 0; i < sizeof(place); i++)
                place[i] = (uint8_t)noise();
            sl_cast(types[a], types[b], SL_CAST_IEEE, place, out, 1000);
            sl_cast(types[a], types[b], SL_CAST_IEEE, place, place, 1000);
            ck_assert(memcmp(place, out, 1000 * bytes_of(b)) == 0);
        }
}

SL_TEST(only_floating_types_are_offered)
{
    for (int from = 0; from < SL_DTYPE_COUNT; from++)
        for (int to = 0; to < SL_DTYPE_COUNT; to++) {
            bool known[2] = {false, false};
            for (unsigned t = 0; t < TYPES; t++) {
                known[0] |= (int)types[t] == from;
                known[1] |= (int)types[t] == to;
            }
            ck_assert_int_eq(sl_cast_offered((enum sl_dtype)from, (enum sl_dtype)to),
                             known[0] && known[1]);
        }
}

/* Lines of the table: the type and code of a value, and its codes in the types that follow. */
SL_TEST(ml_dtypes_and_numpy_agree)
{
    FILE *file = fopen(SL_TEST_DATA "/cast/golden.txt", "r");
    char name[32];
    unsigned long code, want[6];
    unsigned lines = 0;
    ck_assert_ptr_nonnull(file);
    while (fscanf(file, "%31s %lx %lx %lx %lx %lx %lx %lx", name, &code, &want[0], &want[1],
                  &want[2], &want[3], &want[4], &want[5]) == 8) {
        unsigned from = strcmp(name, "F64") == 0 ? F64 : F32;
        lines++;
        for (unsigned to = FIRST_SMALL; to < TYPES; to++) {
            put(from, in, 0, code);
            sl_cast(types[from], types[to], SL_CAST_IEEE, in, out, 1);
            uint64_t got = get(to, out, 0), wanted = want[to - FIRST_SMALL];
            bool nan = isnan(decode(to, wanted));
            ck_assert_msg(nan ? isnan(decode(to, got)) : got == wanted,
                          "%s %#lx to %s: got %#lx, expected %#lx", name, code,
                          sl_dtype_row(types[to])->name, (unsigned long)got, (unsigned long)wanted);
        }
    }
    fclose(file);
    ck_assert_uint_gt(lines, 400);
}

SL_TEST(bytes_are_swapped_within_items)
{
    static uint8_t data[4097], turned[4096];
    for (unsigned item = 1; item <= 8; item *= 2) {
        for (size_t i = 0; i < sizeof(turned); i++) {
            data[i + 1] = (uint8_t)(i * 7 + i / 256);
            turned[i - i % item + (item - 1 - i % item)] = data[i + 1];
        }
        sl_swap_bytes(data + 1, item, 1001 / item);
        size_t bytes = 1001 / item * item;
        ck_assert(memcmp(data + 1, turned, bytes) == 0);
        ck_assert_uint_eq(data[bytes + 1], (uint8_t)(bytes * 7 + bytes / 256));
    }
}

SL_CASE(.setup = make_tables)

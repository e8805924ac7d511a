/*
 * From one element type to another: floating to floating, rounded to nearest even; and from big to
 * little endian. Bytes in memory to bytes in memory; knows nothing of tensors.
 *
 * Types: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, each to each. What does
 * not fit: F16, BF16, F32, F64 and F8_E5M2 become infinite as IEEE 754 says; F8_E4M3 and the FNUZ
 * types have no infinity: values beyond their largest finite one after rounding become NaN with
 * SL_CAST_IEEE (as torch does) and the largest finite value of that sign with SL_CAST_SATURATE.
 * SATURATE clamps finite values of every type. NaN stays NaN (quiet); the payload is not kept.
 */
#ifndef SL_CAST_H
#define SL_CAST_H

#include <stdbool.h>
#include <stddef.h>

#include "dtype.h"

enum sl_cast_overflow { SL_CAST_IEEE, SL_CAST_SATURATE };

bool sl_cast_offered(enum sl_dtype from, enum sl_dtype to);
/**
 * Convert `count` elements, little-endian, any alignment. in and out may be the same memory if the
 * new elements are not larger; else they must not overlap. Only for pairs that are offered. Any
 * thread.
 */
void sl_cast(enum sl_dtype from, enum sl_dtype to, enum sl_cast_overflow overflow, const void *in,
             void *out, size_t count);
/** Reverse the bytes of each item of 2, 4, 8 bytes (1: nothing); in place. Complex: their halves.
 */
void sl_swap_bytes(void *data, size_t item_bytes, size_t count);

#endif

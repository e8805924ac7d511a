/*
 * From one element type to another: floating to floating, rounded to nearest even; and from big to
 * little endian. Bytes in memory to bytes in memory; knows nothing of tensors. Any thread.
 *
 * Formats: IEEE 754; F8_E4M3 and F8_E5M2 are those of the Open Compute Project's 8-bit floating
 * point specification, FNUZ types those of https://arxiv.org/abs/2206.02915.
 *
 * Types: F64, F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, each to each, with one
 * rounding. What does not fit: with SL_CAST_IEEE, F64, F32, F16, BF16 and F8_E5M2 become infinite;
 * the other types have no infinity, and values beyond their largest finite one after rounding
 * become NaN (as with torch). With SL_CAST_SATURATE they become the largest finite value of their
 * sign. Infinities stay infinite where the type has one, and are treated as such values where it
 * has none. NaN stays NaN, quiet and with its sign where the type has several; the payload is not
 * kept. FNUZ types have one zero: -0 becomes 0. A type to itself is a copy of its bytes.
 */
#ifndef SL_CAST_H
#define SL_CAST_H

#include <stdbool.h>
#include <stddef.h>

#include "dtype.h"

enum sl_cast_overflow { SL_CAST_IEEE, SL_CAST_SATURATE };

/** Is the pair one of those above? Any thread. */
bool sl_cast_offered(enum sl_dtype from, enum sl_dtype to);
/**
 * Convert elements, little-endian, of any alignment. Any thread.
 *
 * @from, to  a pair that is offered.
 * @overflow  what becomes of values that do not fit.
 * @in, out   the same memory if the new elements are not larger; else they must not overlap.
 * @count     of elements.
 */
void sl_cast(enum sl_dtype from, enum sl_dtype to, enum sl_cast_overflow overflow, const void *in,
             void *out, size_t count);
/**
 * For tests: as sl_cast(), with the same results.
 *
 * @plain               use what every processor can do alone.
 * @from, to, overflow  as of sl_cast().
 * @in, out, count      the same.
 */
void sl_cast_with(bool plain, enum sl_dtype from, enum sl_dtype to, enum sl_cast_overflow overflow,
                  const void *in, void *out, size_t count);
/** Reverse the bytes of each item of 2, 4, 8 bytes (others: nothing); in place, any alignment.
 * Complex: their halves.
 */
void sl_swap_bytes(void *data, size_t item_bytes, size_t count);

#endif

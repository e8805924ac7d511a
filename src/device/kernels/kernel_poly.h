/*
 * Numbers modulo 2^130 - 5 for Poly1305 (https://cr.yp.to/mac/poly1305-20050329.pdf), as five limbs
 * of 26 bits and a little: the products of limbs and their sums fit into 64 bits as long as limbs
 * of the left side stay below 2^28 and those of the right below 2^27. Pure functions; a number is
 * five words, the lowest limb first.
 */
#ifndef SL_KERNEL_POLY_H
#define SL_KERNEL_POLY_H

#include "kernel_base.h"

enum { SL_POLY_MASK = (1 << 26) - 1 };

SL_INLINE void sl_poly_set(uint32_t *a, const uint32_t *from)
{
    SL_UNROLL
    for (int i = 0; i < SL_BOX_LIMBS; i++)
        a[i] = from[i];
}

SL_INLINE void sl_poly_zero(uint32_t *a)
{
    SL_UNROLL
    for (int i = 0; i < SL_BOX_LIMBS; i++)
        a[i] = 0;
}

SL_INLINE void sl_poly_add(uint32_t *a, const uint32_t *b)
{
    SL_UNROLL
    for (int i = 0; i < SL_BOX_LIMBS; i++)
        a[i] += b[i];
}

SL_INLINE void sl_poly_carry(const uint64_t *sums, uint32_t *a)
{
    uint64_t carry = 0;
    SL_UNROLL
    for (int i = 0; i < SL_BOX_LIMBS; i++) {
        uint64_t sum = sums[i] + carry;
        a[i] = (uint32_t)sum & SL_POLY_MASK;
        carry = sum >> 26;
    }
    uint64_t low = a[0] + carry * 5;
    a[0] = (uint32_t)low & SL_POLY_MASK;
    a[1] += (uint32_t)(low >> 26);
}

/** a becomes a * b. */
SL_INLINE void sl_poly_multiply(uint32_t *a, const uint32_t *b)
{
    uint64_t sums[SL_BOX_LIMBS];
    SL_UNROLL
    for (int i = 0; i < SL_BOX_LIMBS; i++) {
        uint64_t sum = 0;
        SL_UNROLL
        for (int k = 0; k < SL_BOX_LIMBS; k++) /* limb i + 5 is 5 times limb i */
            sum += (uint64_t)a[k] * (k <= i ? b[i - k] : 5 * b[i + 5 - k]);
        sums[i] = sum;
    }
    sl_poly_carry(sums, a);
}

/** A block of sixteen bytes, with the bit behind it. */
SL_INLINE void sl_poly_block(const uint32_t *words, uint32_t bit, uint32_t *m)
{
    m[0] = words[0] & SL_POLY_MASK;
    m[1] = (words[0] >> 26 | words[1] << 6) & SL_POLY_MASK;
    m[2] = (words[1] >> 20 | words[2] << 12) & SL_POLY_MASK;
    m[3] = (words[2] >> 14 | words[3] << 18) & SL_POLY_MASK;
    m[4] = words[3] >> 8 | bit << 24;
}

/** The 128 bits of a MAC: a, wholly reduced, plus the pad. */
SL_INLINE void sl_poly_mac(const uint32_t *from, const uint32_t *pad, uint32_t *mac)
{
    uint32_t a[SL_BOX_LIMBS], less[SL_BOX_LIMBS];
    uint64_t sums[SL_BOX_LIMBS];
    sl_poly_set(a, from);
    for (int round = 0; round < 2; round++) { /* now each limb has 26 bits */
        for (int i = 0; i < SL_BOX_LIMBS; i++)
            sums[i] = a[i];
        sl_poly_carry(sums, a);
    }
    uint32_t carry = 5; /* less: a + 5 - 2^130, if that is not below 0 */
    for (int i = 0; i < SL_BOX_LIMBS; i++) {
        less[i] = a[i] + carry;
        carry = less[i] >> 26;
        less[i] &= SL_POLY_MASK;
    }
    uint32_t take = 0u - carry;
    for (int i = 0; i < SL_BOX_LIMBS; i++)
        a[i] = (less[i] & take) | (a[i] & ~take);
    uint32_t words[4] = {a[0] | a[1] << 26, a[1] >> 6 | a[2] << 20, a[2] >> 12 | a[3] << 14,
                         a[3] >> 18 | a[4] << 8};
    uint64_t sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (uint64_t)words[i] + pad[i];
        mac[i] = (uint32_t)sum;
        sum >>= 32;
    }
}

#endif

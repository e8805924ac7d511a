/* Salsa20's core, for a thread: https://cr.yp.to/snuffle/spec.pdf; HSalsa20 is of XSalsa20
 * (https://cr.yp.to/snuffle/xsalsa-20110204.pdf). Pure functions over little-endian words. */
#ifndef SL_KERNEL_SALSA_H
#define SL_KERNEL_SALSA_H

#include "kernel_base.h"

SL_INLINE uint32_t sl_rotated(uint32_t word, uint32_t bits)
{
    return word << bits | word >> (32 - bits);
}

SL_INLINE void sl_salsa_quarter(uint32_t *a, uint32_t *b, uint32_t *c, uint32_t *d)
{
    *b ^= sl_rotated(*a + *d, 7);
    *c ^= sl_rotated(*b + *a, 9);
    *d ^= sl_rotated(*c + *b, 13);
    *a ^= sl_rotated(*d + *c, 18);
}

SL_INLINE void sl_salsa_rounds(uint32_t *x)
{
    for (int i = 0; i < 10; i++) {
        sl_salsa_quarter(&x[0], &x[4], &x[8], &x[12]);
        sl_salsa_quarter(&x[5], &x[9], &x[13], &x[1]);
        sl_salsa_quarter(&x[10], &x[14], &x[2], &x[6]);
        sl_salsa_quarter(&x[15], &x[3], &x[7], &x[11]);
        sl_salsa_quarter(&x[0], &x[1], &x[2], &x[3]);
        sl_salsa_quarter(&x[5], &x[6], &x[7], &x[4]);
        sl_salsa_quarter(&x[10], &x[11], &x[8], &x[9]);
        sl_salsa_quarter(&x[15], &x[12], &x[13], &x[14]);
    }
}

/* "expand 32-byte k", the key, and four words: nonce and counter, or the input of HSalsa20. */
SL_INLINE void sl_salsa_start(uint32_t *x, const uint32_t *key, uint32_t n0, uint32_t n1,
                              uint32_t n2, uint32_t n3)
{
    x[0] = 0x61707865, x[5] = 0x3320646e, x[10] = 0x79622d32, x[15] = 0x6b206574;
    SL_UNROLL
    for (int i = 0; i < 4; i++) {
        x[1 + i] = key[i];
        x[11 + i] = key[4 + i];
    }
    x[6] = n0, x[7] = n1, x[8] = n2, x[9] = n3;
}

/** Block `counter` of the stream, 16 words. */
SL_INLINE void sl_salsa_block(const uint32_t *key, const uint32_t *nonce, uint64_t counter,
                              uint32_t *x)
{
    uint32_t start[16];
    sl_salsa_start(start, key, nonce[0], nonce[1], (uint32_t)counter, (uint32_t)(counter >> 32));
    SL_UNROLL
    for (int i = 0; i < 16; i++)
        x[i] = start[i];
    sl_salsa_rounds(x);
    SL_UNROLL
    for (int i = 0; i < 16; i++)
        x[i] += start[i];
}

/** The key of a Salsa20 stream from that of XSalsa20 and the first four words of its nonce. */
SL_INLINE void sl_hsalsa(const uint32_t *key, const uint32_t *nonce, uint32_t *subkey)
{
    uint32_t x[16];
    sl_salsa_start(x, key, nonce[0], nonce[1], nonce[2], nonce[3]);
    sl_salsa_rounds(x);
    subkey[0] = x[0], subkey[1] = x[5], subkey[2] = x[10], subkey[3] = x[15];
    subkey[4] = x[6], subkey[5] = x[7], subkey[6] = x[8], subkey[7] = x[9];
}

#endif

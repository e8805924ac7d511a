/* The Salsa20 stream, as fast as this processor allows; for crypt.c. */
#ifndef SL_SALSA20_H
#define SL_SALSA20_H

#include <stddef.h>
#include <stdint.h>

/** Find out once what the processor can do; before the first sl_salsa20_xor(). */
void sl_salsa20_init(void);
/**
 * XOR with the stream of a key and nonce.
 *
 * @block  number of the stream's 64-byte block that the first bytes meet.
 * @in     `bytes` bytes: any number.
 * @out    out: as many; `in` itself, or not overlapping it.
 */
void sl_salsa20_xor(const uint8_t key[32], const uint8_t nonce[8], uint64_t block,
                    const uint8_t *in, uint8_t *out, size_t bytes);

#endif

/* BLAKE3 with a key, of bytes that lie in memory whole: what Xet hashes chunks and nodes by.
 * https://github.com/BLAKE3-team/BLAKE3-specs. Any thread. */
#ifndef SL_XET_BLAKE3_H
#define SL_XET_BLAKE3_H

#include <stddef.h>
#include <stdint.h>

enum { SL_BLAKE3_BYTES = 32, SL_BLAKE3_INPUT_MAX = 128 * 1024 };

/**
 * Hash what lies in memory whole.
 *
 * @key          any 32 bytes.
 * @data, bytes  at most SL_BLAKE3_INPUT_MAX.
 * @hash         out.
 */
void sl_blake3_keyed(const uint8_t key[SL_BLAKE3_BYTES], const void *data, size_t bytes,
                     uint8_t hash[SL_BLAKE3_BYTES]);

#endif

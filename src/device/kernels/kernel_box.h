/*
 * XSalsa20-Poly1305 (secretbox, https://nacl.cr.yp.to/secretbox.html) of many pieces at once, in
 * place, in three kernels.
 *
 * box_keys, one thread a piece: the piece's nonce, its Salsa20 key, the key of Poly1305 and powers
 * of r. box_open, one block of threads a segment: the stream's first 32 bytes are the key of
 * Poly1305, so a unit, 64 bytes of the stream, begins 32 bytes into data; a thread reads a unit,
 * adds its four blocks to its part of the MAC and writes the plaintext. Horner's rule works in rows
 * as in kernel_crc.h: a thread multiplies by r^(blocks of a row) from unit to unit, then threads
 * are joined in pairs. Units missing in a row are missing in front. What is less than a unit, at
 * the end of a piece, follows alone. box_check, one thread a piece: segments are joined, the MAC is
 * compared without branches, the verdict written, and what was derived from the key is wiped.
 *
 * Plaintext stands there before its MAC was compared: it is nobody's before the verdict is good.
 */
#ifndef SL_KERNEL_BOX_H
#define SL_KERNEL_BOX_H

#include "kernel_poly.h"
#include "kernel_salsa.h"

enum { SL_BOX_ROW_POWER = 10 /* r^(2^10): a row of 256 units */, SL_BOX_BLOCK = 16 };

struct sl_box_shared {
    struct sl_box_key key;
    uint32_t column[SL_BOX_THREADS][SL_BOX_LIMBS];
};

/** Where a piece lies, and how many units and segments it has. */
struct sl_box_piece {
    uint8_t *data;
    uint64_t bytes, units, segments; /* whole units */
};

SL_INLINE struct sl_box_piece sl_box_piece_of(const struct sl_box_args *args, uint64_t number)
{
    struct sl_box_piece piece;
    uint64_t begin = number * args->piece_bytes, left = args->bytes - begin;
    piece.data = sl_device_bytes(args->data) + begin;
    piece.bytes = left < args->piece_bytes ? left : args->piece_bytes;
    piece.units = piece.bytes / SL_BOX_UNIT + (piece.bytes % SL_BOX_UNIT >= SL_BOX_UNIT / 2);
    piece.segments = (piece.units + SL_BOX_SEGMENT_UNITS - 1) / SL_BOX_SEGMENT_UNITS;
    if (piece.segments == 0)
        piece.segments = 1;
    return piece;
}

SL_INLINE struct sl_box_key *sl_box_key_of(const struct sl_box_args *args, uint64_t number)
{
    return (struct sl_box_key *)(void *)sl_device_bytes(args->keys) + number;
}

SL_INLINE struct sl_box_sum *sl_box_sums_of(const struct sl_box_args *args, uint64_t number)
{
    return (struct sl_box_sum *)(void *)sl_device_bytes(args->sums) + number * args->segments;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The first piece's nonce plus its number, modulo 2^192. */
SL_INLINE void sl_box_nonce(const struct sl_box_args *args, uint64_t number, uint32_t *nonce)
{
    uint64_t sum = 0;
    SL_UNROLL
    for (int i = 0; i < 6; i++) {
        sum += (uint64_t)args->nonce[i] + (i == 0   ? (uint32_t)number
                                           : i == 1 ? (uint32_t)(number >> 32)
                                                    : 0);
        nonce[i] = (uint32_t)sum;
        sum >>= 32;
    }
}

SL_INLINE void sl_box_powers(const uint32_t *stream, struct sl_box_key *key)
{
    const uint32_t clamp[4] = {0x0fffffff, 0x0ffffffc, 0x0ffffffc, 0x0ffffffc};
    uint32_t r[SL_BOX_LIMBS], words[4];
    SL_UNROLL
    for (int i = 0; i < 4; i++) {
        words[i] = stream[i] & clamp[i];
        key->pad[i] = stream[4 + i];
    }
    sl_poly_block(words, 0, r);
    for (int k = 0; k < SL_BOX_POWERS; k++) {
        uint32_t square[SL_BOX_LIMBS];
        sl_poly_set(key->power[k], r);
        sl_poly_set(square, r);
        sl_poly_multiply(r, square);
    }
}

SL_INLINE void sl_box_keys_phase(const struct sl_box_args *args, struct sl_no_shared *shared,
                                 const struct sl_where *where, int phase)
{
    (void)shared, (void)phase;
    uint64_t number = where->block * where->threads + where->thread;
    if (number >= args->pieces)
        return;
    struct sl_box_key *key = sl_box_key_of(args, number);
    uint32_t nonce[6], subkey[8], stream[16];
    sl_box_nonce(args, number, nonce);
    sl_hsalsa(args->key, nonce, subkey);
    sl_salsa_block(subkey, nonce + 4, 0, stream);
    SL_UNROLL
    for (int i = 0; i < 8; i++)
        key->subkey[i] = subkey[i];
    key->nonce[0] = nonce[4], key->nonce[1] = nonce[5];
    sl_box_powers(stream, key);
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Blocks [from, 4) of a unit: to the MAC, and decrypted. `at` is where block 0 would lie. */
SL_INLINE void sl_box_unit(const struct sl_box_key *key, uint8_t *at, uint64_t number, int from,
                           uint32_t *sum)
{
    uint32_t stream[16], words[4], m[SL_BOX_LIMBS];
    sl_salsa_block(key->subkey, key->nonce, number, stream);
    SL_UNROLL
    for (int block = 0; block < 4; block++) {
        if (block < from)
            continue;
        sl_get_words(at + SL_BOX_BLOCK * block, words, 4);
        sl_poly_multiply(sum, key->power[0]);
        sl_poly_block(words, 1, m);
        sl_poly_add(sum, m);
        SL_UNROLL
        for (int i = 0; i < 4; i++)
            words[i] ^= stream[4 * block + i];
        sl_put_words(at + SL_BOX_BLOCK * block, words, 4);
    }
}

/* Every 256th unit: from one to the next lies a row of 1024 blocks. */
SL_INLINE void sl_box_column(const struct sl_box_piece *piece, uint64_t segment,
                             struct sl_box_shared *shared, uint32_t thread)
{
    uint64_t first = segment * SL_BOX_SEGMENT_UNITS, left = piece->units - first;
    uint32_t units = left < SL_BOX_SEGMENT_UNITS ? (uint32_t)left : SL_BOX_SEGMENT_UNITS;
    uint32_t rows = (units + SL_BOX_THREADS - 1) / SL_BOX_THREADS;
    uint32_t missing = rows * SL_BOX_THREADS - units;
    uint32_t sum[SL_BOX_LIMBS], unit_sum[SL_BOX_LIMBS];
    sl_poly_zero(sum);
    for (uint32_t row = thread < missing ? 1 : 0; row < rows; row++) {
        uint64_t unit = first + row * SL_BOX_THREADS + thread - missing;
        uint8_t *at = piece->data + unit * SL_BOX_UNIT - SL_BOX_UNIT / 2;
        sl_poly_zero(unit_sum);
        sl_box_unit(&shared->key, at, unit, unit == 0 ? 2 : 0, unit_sum);
        sl_poly_multiply(sum, shared->key.power[SL_BOX_ROW_POWER]);
        sl_poly_add(sum, unit_sum);
    }
    SL_UNROLL
    for (int i = 0; i < SL_BOX_LIMBS; i++)
        shared->column[thread][i] = sum[i];
}

SL_INLINE void sl_box_fold(struct sl_box_shared *shared, uint32_t thread, uint32_t level)
{
    if (thread >= (uint32_t)SL_BOX_THREADS >> (level + 1))
        return;
    uint32_t left = thread << (level + 1), right = left + (1u << level), sum[SL_BOX_LIMBS];
    sl_poly_set(sum, shared->column[left]);
    sl_poly_multiply(sum, shared->key.power[level + 2]);
    sl_poly_add(sum, shared->column[right]);
    sl_poly_set(shared->column[left], sum);
}

/* The last bytes of a piece, less than a unit: byte by byte, since nothing may be touched behind
 * them. */
SL_INLINE void sl_box_rest(const struct sl_box_key *key, const struct sl_box_piece *piece,
                           uint32_t *sum)
{
    uint64_t begin = piece->units ? piece->units * SL_BOX_UNIT - SL_BOX_UNIT / 2 : 0;
    uint32_t stream[16], m[SL_BOX_LIMBS], at = piece->units ? 0 : SL_BOX_UNIT / 2;
    if (begin == piece->bytes)
        return;
    sl_salsa_block(key->subkey, key->nonce, piece->units, stream);
    uint8_t *data = piece->data + begin;
    uint32_t left = (uint32_t)(piece->bytes - begin);
    SL_UNROLL
    for (uint32_t block = 0; block < 4; block++) {
        if (SL_BOX_BLOCK * block < at || left == 0)
            continue;
        uint32_t bytes = left < SL_BOX_BLOCK ? left : SL_BOX_BLOCK, words[4];
        SL_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            words[i] = 0;
            SL_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                uint32_t number = 4 * i + k;
                if (number < bytes) {
                    words[i] |= (uint32_t)data[number] << (8 * k);
                    data[number] ^= (uint8_t)(stream[4 * block + i] >> (8 * k));
                } else if (number == bytes) {
                    words[i] |= 1u << (8 * k);
                }
            }
        }
        sl_poly_multiply(sum, key->power[0]);
        sl_poly_block(words, bytes == SL_BOX_BLOCK, m);
        sl_poly_add(sum, m);
        data += bytes;
        left -= bytes;
    }
}

/* Threads copy the piece's key to where all of them see it. */
SL_INLINE void sl_box_copy_key(const struct sl_box_key *from, struct sl_box_key *to,
                               uint32_t thread)
{
    const uint32_t *words = (const uint32_t *)(const void *)from;
    if (thread < sizeof(*from) / 4)
        ((uint32_t *)(void *)to)[thread] = words[thread];
}

SL_INLINE void sl_box_open_phase(const struct sl_box_args *args, struct sl_box_shared *shared,
                                 const struct sl_where *where, int phase)
{
    uint64_t job = args->first_block + where->block, number = job / args->segments;
    uint64_t segment = job % args->segments;
    struct sl_box_piece piece = sl_box_piece_of(args, number);
    if (segment >= piece.segments)
        return;
    if (phase == 0) {
        sl_box_copy_key(sl_box_key_of(args, number), &shared->key, where->thread);
    } else if (phase == 1) {
        sl_box_column(&piece, segment, shared, where->thread);
    } else if (phase < 10) {
        sl_box_fold(shared, where->thread, (uint32_t)phase - 2);
    } else if (where->thread == 0) {
        uint32_t sum[SL_BOX_LIMBS];
        sl_poly_set(sum, shared->column[0]);
        if (segment + 1 == piece.segments)
            sl_box_rest(&shared->key, &piece, sum);
        sl_poly_set(sl_box_sums_of(args, number)[segment].limb, sum);
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

/* Blocks of Poly1305 in the last segment of a piece. */
SL_INLINE uint32_t sl_box_last_blocks(const struct sl_box_piece *piece)
{
    uint64_t before = (piece->segments - 1) * SL_BOX_SEGMENT_UNITS;
    uint64_t begin = before ? before * SL_BOX_UNIT - SL_BOX_UNIT / 2 : 0;
    return (uint32_t)((piece->bytes - begin + SL_BOX_BLOCK - 1) / SL_BOX_BLOCK);
}

SL_INLINE void sl_box_mac(const struct sl_box_args *args, uint64_t number,
                          const struct sl_box_piece *piece, uint32_t *mac)
{
    const struct sl_box_key *key = sl_box_key_of(args, number);
    struct sl_box_sum *sums = sl_box_sums_of(args, number);
    uint32_t sum[SL_BOX_LIMBS];
    sl_poly_zero(sum);
    for (uint64_t segment = 0; segment < piece->segments; segment++) {
        uint32_t blocks =
            segment + 1 < piece->segments ? 4 * SL_BOX_SEGMENT_UNITS : sl_box_last_blocks(piece);
        for (int k = 0; k < SL_BOX_POWERS; k++)
            if (segment > 0 && blocks >> k & 1)
                sl_poly_multiply(sum, key->power[k]);
        sl_poly_add(sum, sums[segment].limb);
        sl_poly_zero(sums[segment].limb); /* with the data it would tell r */
    }
    sl_poly_multiply(sum, key->power[0]);
    sl_poly_mac(sum, key->pad, mac);
}

SL_INLINE void sl_box_check_phase(const struct sl_box_args *args, struct sl_no_shared *shared,
                                  const struct sl_where *where, int phase)
{
    (void)shared, (void)phase;
    uint64_t number = where->block * where->threads + where->thread;
    if (number >= args->pieces)
        return;
    struct sl_box_piece piece = sl_box_piece_of(args, number);
    const uint8_t *wanted = sl_device_bytes(args->macs) + number * 16;
    uint32_t mac[4], wrong = 0;
    sl_box_mac(args, number, &piece, mac);
    SL_UNROLL
    for (int i = 0; i < 4; i++)
        wrong |= mac[i] ^ sl_get_word(wanted + 4 * i);
    uint32_t *key = (uint32_t *)(void *)sl_box_key_of(args, number);
    for (uint32_t i = 0; i < sizeof(struct sl_box_key) / 4; i++)
        key[i] = 0;
    ((uint32_t *)(void *)sl_device_bytes(args->verdicts))[number] =
        wrong == 0 ? SL_BOX_GOOD : SL_BOX_BAD;
}

#endif

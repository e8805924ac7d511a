/*
 * CRC32 and its relatives (hash.h says which). Bits are reflected: bit 31 of a word stands for x^0.
 *
 * A block of threads takes a chunk as rows of one word a thread, so that neighbours read
 * neighbouring words. Each thread follows its own column: from row to row what it has is multiplied
 * by x^(bits of a row), which four tables do as those of slicing-by-4 do. The tables are made by
 * the threads themselves and are shared. Then columns are joined in pairs, pairs of pairs, and so
 * on: what lies in front is multiplied by a power of x. Rows that are missing are missing in front,
 * where zeros change nothing; the last bytes of a chunk that are no word follow one by one.
 */
#ifndef SL_KERNEL_CRC_H
#define SL_KERNEL_CRC_H

#include "kernel_base.h"

struct sl_crc_shared {
    uint32_t table[4][256];
    uint32_t column[SL_CRC_THREADS];
};

/** a * b modulo the polynomial. */
SL_INLINE uint32_t sl_crc_multiply(uint32_t a, uint32_t b, uint32_t polynomial)
{
    uint32_t product = 0;
    for (int i = 0; i < 32; i++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = b >> 1 ^ (polynomial & (0u - (b & 1)));
    }
    return product;
}

/** base^exponent modulo the polynomial. */
SL_INLINE uint32_t sl_crc_power(uint32_t base, uint64_t exponent, uint32_t polynomial)
{
    uint32_t result = 1u << 31;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1)
            result = sl_crc_multiply(result, base, polynomial);
        base = sl_crc_multiply(base, base, polynomial);
    }
    return result;
}

/* Columns that lie 2^level apart become one; begins with level 0. */
SL_INLINE void sl_crc_fold(struct sl_crc_shared *shared, uint32_t thread, uint32_t level,
                           uint32_t power, uint32_t polynomial)
{
    if (thread >= (uint32_t)SL_CRC_THREADS >> (level + 1))
        return;
    uint32_t left = thread << (level + 1), right = left + (1u << level);
    shared->column[left] =
        sl_crc_multiply(shared->column[left], power, polynomial) ^ shared->column[right];
}

SL_INLINE void sl_crc_column(const struct sl_crc_args *args, struct sl_crc_shared *shared,
                             const struct sl_where *where)
{
    uint64_t begin = where->block * args->chunk_bytes;
    uint64_t bytes =
        args->bytes - begin < args->chunk_bytes ? args->bytes - begin : args->chunk_bytes;
    const uint8_t *in = sl_device_bytes(args->in) + begin;
    uint64_t words = bytes / 4, rows = (words + SL_CRC_THREADS - 1) / SL_CRC_THREADS;
    uint64_t missing = rows * SL_CRC_THREADS - words;
    uint32_t crc = 0;
    for (uint64_t row = where->thread < missing ? 1 : 0; row < rows; row++) {
        uint64_t word = row * SL_CRC_THREADS + where->thread - missing;
        crc = shared->table[0][crc & 255] ^ shared->table[1][crc >> 8 & 255] ^
              shared->table[2][crc >> 16 & 255] ^ shared->table[3][crc >> 24] ^
              sl_get_word(in + 4 * word);
    }
    shared->column[where->thread] = crc;
}

/* The columns are one: the CRC of the chunk. */
SL_INLINE void sl_crc_end(const struct sl_crc_args *args, const struct sl_crc_shared *shared,
                          const struct sl_where *where)
{
    uint64_t begin = where->block * args->chunk_bytes, left = args->bytes - begin;
    uint64_t bytes = left < args->chunk_bytes ? left : args->chunk_bytes;
    uint32_t crc = sl_crc_multiply(shared->column[0], args->level[0], args->polynomial);
    for (uint64_t at = bytes / 4 * 4; at < bytes; at++) {
        crc ^= sl_device_bytes(args->in)[begin + at];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (args->polynomial & (0u - (crc & 1)));
    }
    crc ^= left <= args->chunk_bytes ? args->begun_last : args->begun_full;
    ((uint32_t *)(void *)sl_device_bytes(args->out))[where->block] = ~crc;
}

SL_INLINE void sl_crc_phase(const struct sl_crc_args *args, struct sl_crc_shared *shared,
                            const struct sl_where *where, int phase)
{
    if (phase == 0) {
        for (uint32_t k = 0; k < 4; k++)
            shared->table[k][where->thread] =
                sl_crc_multiply(where->thread << (8 * k), args->row, args->polynomial);
    } else if (phase == 1) {
        sl_crc_column(args, shared, where);
    } else if (phase < 2 + SL_CRC_LEVELS) {
        sl_crc_fold(shared, where->thread, (uint32_t)phase - 2, args->level[phase - 2],
                    args->polynomial);
    } else if (where->thread == 0) {
        sl_crc_end(args, shared, where);
    }
}

/* A thread joins neighbouring CRCs; those that are missing are missing in front, as zeros. */
SL_INLINE void sl_crc_join_column(const struct sl_crc_join_args *args, struct sl_crc_shared *shared,
                                  uint32_t thread)
{
    const uint32_t *crcs = (const uint32_t *)(const void *)sl_device_bytes(args->crcs);
    uint64_t full = args->count - 1, each = (full + SL_CRC_THREADS - 1) / SL_CRC_THREADS;
    uint64_t missing = each * SL_CRC_THREADS - full, at = each * thread, end = at + each;
    uint32_t crc = 0;
    for (at = at < missing ? missing : at; at < end; at++)
        crc = sl_crc_multiply(crc, args->full, args->polynomial) ^ crcs[at - missing];
    shared->column[thread] = crc;
}

SL_INLINE void sl_crc_join_phase(const struct sl_crc_join_args *args, struct sl_crc_shared *shared,
                                 const struct sl_where *where, int phase)
{
    if (phase == 0) {
        sl_crc_join_column(args, shared, where->thread);
    } else if (phase < 1 + SL_CRC_LEVELS) {
        sl_crc_fold(shared, where->thread, (uint32_t)phase - 1, args->level[phase - 1],
                    args->polynomial);
    } else if (where->thread == 0) {
        const uint32_t *crcs = (const uint32_t *)(const void *)sl_device_bytes(args->crcs);
        uint32_t crc = sl_crc_multiply(shared->column[0], args->last, args->polynomial);
        *(uint32_t *)(void *)sl_device_bytes(args->out) = crc ^ crcs[args->count - 1];
    }
}

#endif

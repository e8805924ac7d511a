/*
 * What CRCs share: folding bytes by carry-less multiplication, for any reflected polynomial of up
 * to 64 bits. Pure functions; any thread.
 */
#ifndef SL_CRC_FOLD_H
#define SL_CRC_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sl_crc_way {
    SL_CRC_PLAIN,   /* without such instructions: nothing is folded */
    SL_CRC_FOLD_16, /* 16 bytes an instruction */
    SL_CRC_FOLD_32, /* 32 bytes */
    SL_CRC_FOLD_64, /* 64 bytes */
};
enum { SL_CRC_REST_BYTES = 16, SL_CRC_FOLD_BYTES_MIN = 512 };

/** Powers of x modulo the polynomial, as numbers of 64 bits in which bit 63 stands for x^0. */
struct sl_crc_factors {
    uint64_t wide[2], far[2], half[2], near[2]; /* 256, 64, 32, 16 bytes on */
};

/** Compute the factors of one polynomial; power(bits) is x^bits modulo it. */
void sl_crc_factors_init(struct sl_crc_factors *factors, uint64_t (*power)(uint64_t bits));

/** The best way of this processor and system. */
enum sl_crc_way sl_crc_best_way(void);
/** Whether they have it. */
bool sl_crc_has(enum sl_crc_way way);

/**
 * Fold data into 16 bytes whose CRC, begun with 0, is that of what was folded.
 *
 * @crc     the register before the first byte, without inversions.
 * @rest    out: those 16 bytes, unless nothing was folded.
 * @return  the bytes that were folded, a multiple of 16: fewer than 16 are left. 0 for fewer than
 *          SL_CRC_FOLD_BYTES_MIN bytes, and by SL_CRC_PLAIN.
 */
size_t sl_crc_fold(enum sl_crc_way way, const struct sl_crc_factors *factors, uint64_t crc,
                   const void *data, size_t bytes, uint8_t rest[SL_CRC_REST_BYTES]);

#endif

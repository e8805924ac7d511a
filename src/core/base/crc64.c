/*
 * Eight tables, eight bytes a step; where the processor multiplies without carries (crc_fold), all
 * but the last bytes are folded into sixteen, which go through the tables like what is left.
 *
 * Numbers are "reflected": bit 63 stands for x^0.
 */
#include "crc64.h"

#include <pthread.h>
#include <string.h>

#include "crc_ways.h"

static const uint64_t POLYNOMIAL = 0x9a6c9329ac4bc9b5u;
static const uint64_t ONE = UINT64_C(1) << 63; /* x^0 */

enum { BYTE_BITS = 3, BITS = 64 + BYTE_BITS }; /* lengths are 64 bits of bytes */

static struct {
    pthread_once_t once;
    uint64_t tables[8][256];
    uint64_t squares[BITS]; /* x^(2^i) */
    struct sl_crc_factors factors;
} crc64 = {.once = PTHREAD_ONCE_INIT};

/* a * b mod P. */
static uint64_t multiply(uint64_t a, uint64_t b)
{
    uint64_t product = 0;
    for (uint64_t bit = ONE; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* number * x^(count * 2^from) mod P. */
static uint64_t raised(uint64_t number, uint64_t count, unsigned from)
{
    for (; count; from++, count >>= 1)
        if (count & 1)
            number = multiply(number, crc64.squares[from]);
    return number;
}

static uint64_t power(uint64_t bits)
{
    return raised(ONE, bits, 0);
}

static void prepare(void)
{
    for (unsigned i = 0; i < 256; i++) {
        uint64_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        crc64.tables[0][i] = crc;
    }
    for (unsigned k = 1; k < 8; k++)
        for (unsigned i = 0; i < 256; i++) {
            uint64_t crc = crc64.tables[k - 1][i];
            crc64.tables[k][i] = crc >> 8 ^ crc64.tables[0][crc & 255];
        }
    uint64_t square = ONE >> 1;
    for (unsigned i = 0; i < BITS; i++, square = multiply(square, square))
        crc64.squares[i] = square;
    sl_crc_factors_init(&crc64.factors, power);
}

/* Without the inversions. */
static uint64_t by_tables(uint64_t crc, const uint8_t *at, size_t bytes)
{
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        crc ^= word;
        uint64_t next = 0;
        for (unsigned k = 0; k < 8; k++)
            next ^= crc64.tables[7 - k][crc >> (8 * k) & 255];
        crc = next;
    }
    for (; bytes; at++, bytes--)
        crc = crc >> 8 ^ crc64.tables[0][(crc ^ *at) & 255];
    return crc;
}

uint64_t sl_crc64nvme_by(enum sl_crc_way way, uint64_t crc, const void *data, size_t bytes)
{
    uint8_t rest[SL_CRC_REST_BYTES];
    pthread_once(&crc64.once, prepare);
    crc = ~crc;
    size_t folded = sl_crc_fold(way, &crc64.factors, crc, data, bytes, rest);
    if (folded)
        crc = by_tables(0, rest, sizeof(rest));
    return ~by_tables(crc, (const uint8_t *)data + folded, bytes - folded);
}

uint64_t sl_crc64nvme(uint64_t crc, const void *data, size_t bytes)
{
    return sl_crc64nvme_by(sl_crc_best_way(), crc, data, bytes);
}

uint64_t sl_crc64nvme_combine(uint64_t a, uint64_t b, uint64_t b_bytes)
{
    pthread_once(&crc64.once, prepare);
    return raised(a, b_bytes, BYTE_BITS) ^ b;
}

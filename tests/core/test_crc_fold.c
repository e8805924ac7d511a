/* CRC32 and CRC32C: each way of folding beside the definition, for every length and alignment. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "crc_ways.h"
#include "hash.h"

enum { BYTES = 5000, LENGTHS = 1300 };
static uint8_t data[BYTES + 64];

static uint32_t bit_by_bit(uint32_t polynomial, uint32_t crc, const uint8_t *at, size_t bytes)
{
    crc = ~crc;
    for (; bytes; at++, bytes--) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
    }
    return ~crc;
}

static void fill_data(void)
{
    uint32_t state = 777;
    for (size_t i = 0; i < sizeof(data); i++) {
        state = state * 1664525u + 1013904223u;
        data[i] = (uint8_t)(state >> 24);
    }
}

static void check(enum sl_crc_way way, uint32_t begun, const uint8_t *at, size_t bytes)
{
    ck_assert_uint_eq(sl_crc32_by(way, begun, at, bytes),
                      bit_by_bit(0xedb88320u, begun, at, bytes));
    ck_assert_uint_eq(sl_crc32c_by(way, begun, at, bytes),
                      bit_by_bit(0x82f63b78u, begun, at, bytes));
}

SL_TEST(every_way_gives_the_number_of_the_definition_for_every_length)
{
    fill_data();
    for (enum sl_crc_way way = SL_CRC_PLAIN; way <= SL_CRC_FOLD_64; way++) {
        for (size_t bytes = 0; sl_crc_has(way) && bytes <= LENGTHS; bytes++)
            check(way, (uint32_t)bytes * 2654435761u, data + bytes % 67, bytes);
        if (sl_crc_has(way))
            check(way, 0, data, BYTES);
    }
}

SL_TEST(every_alignment_gives_the_same_number)
{
    fill_data();
    for (enum sl_crc_way way = SL_CRC_PLAIN; way <= SL_CRC_FOLD_64; way++)
        for (size_t shift = 0; sl_crc_has(way) && shift < 64; shift++)
            check(way, 0, data + shift, LENGTHS);
}

SL_TEST(what_one_way_began_another_continues)
{
    fill_data();
    for (size_t cut = 0; cut <= LENGTHS; cut += 13)
        for (enum sl_crc_way way = SL_CRC_PLAIN; way <= SL_CRC_FOLD_64 && sl_crc_has(way); way++) {
            uint32_t begun = sl_crc32c_by(way, 0, data, cut);
            ck_assert_uint_eq(sl_crc32c(begun, data + cut, LENGTHS - cut),
                              bit_by_bit(0x82f63b78u, 0, data, LENGTHS));
            begun = sl_crc32_by(way, 0, data, cut);
            ck_assert_uint_eq(sl_crc32(begun, data + cut, LENGTHS - cut),
                              bit_by_bit(0xedb88320u, 0, data, LENGTHS));
        }
}

/* An allocation of exactly these: the address sanitizer sees one more. */
SL_TEST(no_way_reads_beyond_its_bytes)
{
    fill_data();
    for (size_t bytes = 0; bytes <= LENGTHS; bytes++) {
        uint8_t *copy = malloc(bytes ? bytes : 1);
        ck_assert_ptr_nonnull(copy);
        memcpy(copy, data, bytes);
        for (enum sl_crc_way way = SL_CRC_PLAIN; way <= SL_CRC_FOLD_64 && sl_crc_has(way); way++)
            check(way, 0, copy, bytes);
        free(copy);
    }
}

SL_TEST(little_is_not_folded)
{
    uint8_t rest[SL_CRC_REST_BYTES] = {1};
    struct sl_crc_factors factors = {0};
    fill_data();
    ck_assert_uint_eq(sl_crc_fold(SL_CRC_PLAIN, &factors, 0, data, BYTES, rest), 0);
    ck_assert_uint_eq(
        sl_crc_fold(sl_crc_best_way(), &factors, 0, data, SL_CRC_FOLD_BYTES_MIN - 1, rest), 0);
    ck_assert_uint_eq(rest[0], 1);
}

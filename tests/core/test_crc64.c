/* CRC-64/NVME: the published values, each way there is, the combination. */
#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "crc64.h"
#include "crc_ways.h"

enum { BYTES = 5000, LENGTHS = 1100 };
static uint8_t data[BYTES + 64];

static uint64_t bit_by_bit(const uint8_t *at, size_t bytes)
{
    uint64_t crc = UINT64_MAX;
    for (; bytes; at++, bytes--) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x9a6c9329ac4bc9b5u : crc >> 1;
    }
    return ~crc;
}

SL_TEST(the_published_values_come_out)
{
    ck_assert_uint_eq(sl_crc64nvme(0, "123456789", 9), 0xae8b14860a799888u);
    ck_assert_uint_eq(sl_crc64nvme(0, "", 0), 0);
    ck_assert_uint_eq(sl_crc64nvme(0, "Hello, World!\n", 14), 0x4a85d76f1ebb2a91u);
}

static void fill_data(void)
{
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 31 + i / 7);
}

/* Of the definition's, for every length up to and beyond what a step of the widest way takes. */
static void check_every_length(enum sl_crc_way way)
{
    for (size_t bytes = 0; bytes <= LENGTHS; bytes++) {
        const uint8_t *at = data + bytes % 67;
        ck_assert_uint_eq(sl_crc64nvme_by(way, 0, at, bytes), bit_by_bit(at, bytes));
    }
    ck_assert_uint_eq(sl_crc64nvme_by(way, 0, data, BYTES), bit_by_bit(data, BYTES));
}

SL_TEST(every_way_gives_the_number_of_the_definition_for_every_length)
{
    fill_data();
    for (enum sl_crc_way way = SL_CRC_PLAIN; way <= SL_CRC_FOLD_64; way++)
        if (sl_crc_has(way))
            check_every_length(way);
}

SL_TEST(every_alignment_gives_the_same_number)
{
    fill_data();
    for (enum sl_crc_way way = SL_CRC_PLAIN; way <= SL_CRC_FOLD_64; way++)
        for (size_t shift = 0; sl_crc_has(way) && shift < 64; shift++)
            ck_assert_uint_eq(sl_crc64nvme_by(way, 0, data + shift, LENGTHS),
                              bit_by_bit(data + shift, LENGTHS));
}

/* An allocation of exactly these: the address sanitizer sees one more. */
SL_TEST(no_way_reads_beyond_its_bytes)
{
    fill_data();
    for (size_t bytes = 0; bytes <= LENGTHS; bytes++) {
        uint8_t *copy = malloc(bytes ? bytes : 1);
        ck_assert_ptr_nonnull(copy);
        for (size_t i = 0; i < bytes; i++)
            copy[i] = data[i];
        ck_assert_uint_eq(sl_crc64nvme(0, copy, bytes), bit_by_bit(copy, bytes));
        free(copy);
    }
}

SL_TEST(parts_continue_and_combine)
{
    fill_data();
    uint64_t whole = bit_by_bit(data, BYTES);
    for (size_t cut = 0; cut <= BYTES; cut += 97) {
        uint64_t a = sl_crc64nvme(0, data, cut), b = sl_crc64nvme(0, data + cut, BYTES - cut);
        ck_assert_uint_eq(sl_crc64nvme(a, data + cut, BYTES - cut), whole);
        ck_assert_uint_eq(sl_crc64nvme_combine(a, b, BYTES - cut), whole);
    }
}

/* What one way began another may continue, and at any byte. */
SL_TEST(two_calls_give_what_one_gives)
{
    fill_data();
    uint64_t whole = bit_by_bit(data, LENGTHS);
    for (size_t cut = 0; cut <= LENGTHS; cut++)
        ck_assert_uint_eq(sl_crc64nvme(sl_crc64nvme(0, data, cut), data + cut, LENGTHS - cut),
                          whole);
}

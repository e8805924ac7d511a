/* CRC-64/NVME: the published values, the two ways, the combination. */
#include <check.h>
#include <stdlib.h>

#include "claims.h"
#include "crc64.h"

enum { BYTES = 5000 };
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

SL_TEST(every_length_and_alignment_gives_the_same_number)
{
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 31 + i / 7);
    for (size_t bytes = 0; bytes < 700; bytes++)
        ck_assert_uint_eq(sl_crc64nvme(0, data + bytes % 17, bytes),
                          bit_by_bit(data + bytes % 17, bytes));
    ck_assert_uint_eq(sl_crc64nvme(0, data, BYTES), bit_by_bit(data, BYTES));
}

SL_TEST(parts_continue_and_combine)
{
    uint64_t whole = bit_by_bit(data, BYTES);
    for (size_t cut = 0; cut <= BYTES; cut += 97) {
        uint64_t a = sl_crc64nvme(0, data, cut), b = sl_crc64nvme(0, data + cut, BYTES - cut);
        ck_assert_uint_eq(sl_crc64nvme(a, data + cut, BYTES - cut), whole);
        ck_assert_uint_eq(sl_crc64nvme_combine(a, b, BYTES - cut), whole);
    }
}

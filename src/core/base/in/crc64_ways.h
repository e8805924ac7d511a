/* The ways in which sl_crc64nvme() computes, for tests that try each of them. */
#ifndef SL_CRC64_WAYS_H
#define SL_CRC64_WAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sl_crc64_way {
    SL_CRC64_TABLES,
    SL_CRC64_FOLD_16, /* 16 bytes an instruction */
    SL_CRC64_FOLD_64, /* 64 bytes */
};
/** Whether processor and system have it. */
bool sl_crc64_has(enum sl_crc64_way way);
/** sl_crc64nvme() by this way, or a lesser one for what is too short for it. */
uint64_t sl_crc64nvme_by(enum sl_crc64_way way, uint64_t crc, const void *data, size_t bytes);

#endif

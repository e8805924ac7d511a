/* CRCs by each way of computing them, for tests that try each. */
#ifndef SL_CRC_WAYS_H
#define SL_CRC_WAYS_H

#include "crc_fold.h"

/**
 * Compute as sl_crc64nvme() does, by one way.
 *
 * @way          the processor must have it.
 * @crc          of what came before; 0: nothing did.
 * @data, bytes  what follows.
 * @return       the CRC of both.
 */
uint64_t sl_crc64nvme_by(enum sl_crc_way way, uint64_t crc, const void *data, size_t bytes);
/** As sl_crc64nvme_by(), of sl_crc32(). */
uint32_t sl_crc32_by(enum sl_crc_way way, uint32_t crc, const void *data, size_t bytes);
/** As sl_crc64nvme_by(), of sl_crc32c(). */
uint32_t sl_crc32c_by(enum sl_crc_way way, uint32_t crc, const void *data, size_t bytes);

#endif

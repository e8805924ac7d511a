/*
 * CRC-64/NVME, which S3 keeps of whole objects: polynomial AD93D23594C93659, reflected, all ones in
 * and out. https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
 */
#ifndef SL_CRC64_H
#define SL_CRC64_H

#include <stddef.h>
#include <stdint.h>

/** Continue a CRC: begin with 0. Any thread, like the next one. */
uint64_t sl_crc64nvme(uint64_t crc, const void *data, size_t bytes);
/** CRC(A then B) from CRC(A), CRC(B) and the length of B. */
uint64_t sl_crc64nvme_combine(uint64_t a, uint64_t b, uint64_t b_bytes);

#endif

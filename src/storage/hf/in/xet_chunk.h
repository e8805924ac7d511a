/*
 * Chunks as xorbs hold them: a header of eight bytes, and the data as it is, as an LZ4 frame, or as
 * one of byte groups. https://huggingface.co/docs/xet (xorb format).
 *
 * A decoder is one thread's. What does not follow the format is SL_E_FORMAT, code "xet".
 */
#ifndef SL_XET_CHUNK_H
#define SL_XET_CHUNK_H

#include <stddef.h>
#include <stdint.h>

#include "mem.h"

enum {
    SL_XET_HEAD_BYTES = 8,
    SL_XET_RAW_MAX = 128 * 1024,
    SL_XET_PACKED_MAX = SL_XET_RAW_MAX + 4096, /* a frame of what cannot be compressed */
};

struct sl_xet_chunk {
    uint32_t packed_bytes, raw_bytes; /* without the header */
    unsigned scheme;
};
/** The header in SL_XET_HEAD_BYTES of data. */
int sl_xet_chunk_head(const uint8_t *data, struct sl_xet_chunk *chunk, struct sl_err *err);

struct sl_xet_decoder;
/** SL_E_NO_SPACE. */
struct sl_xet_decoder *sl_xet_decoder_new(struct sl_err *err);
void sl_xet_decoder_free(struct sl_xet_decoder *decoder);
SL_AUTO_DEFINE(sl_xet_decoder)
/**
 * Unpack a chunk.
 *
 * @chunk   its header, by sl_xet_chunk_head().
 * @data    chunk->packed_bytes of it.
 * @raw     out: room for chunk->raw_bytes; anything after a failure.
 * @return  0, or -1 with SL_E_FORMAT: these bytes do not unpack to exactly as many.
 */
int sl_xet_decode(struct sl_xet_decoder *decoder, const struct sl_xet_chunk *chunk,
                  const uint8_t *data, uint8_t *raw, struct sl_err *err);

#endif

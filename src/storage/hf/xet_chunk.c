/* liblz4 reads frames; where the bytes of a chunk were grouped by their place in words of four, it
 * writes them beside, and they are put in their order from there. */
#include "xet_chunk.h"

#include <lz4frame.h>
#include <string.h>

enum { NONE, LZ4, GROUPED_LZ4, GROUPS = 4, STEP = 16 };

struct sl_xet_decoder {
    LZ4F_dctx *frames;
    uint8_t grouped[SL_XET_RAW_MAX];
};

static int broken(struct sl_err *err, const char *why)
{
    return sl_fail_code(err, SL_E_FORMAT, "xet", "a chunk %s", why);
}

static uint32_t get_le24(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16;
}

int sl_xet_chunk_head(const uint8_t *data, struct sl_xet_chunk *chunk, struct sl_err *err)
{
    *chunk = (struct sl_xet_chunk){get_le24(data + 1), get_le24(data + 5), data[4]};
    if (data[0] != 0)
        return broken(err, "has a version that is not known");
    if (chunk->scheme > GROUPED_LZ4)
        return broken(err, "is compressed in a way that is not known");
    if (!chunk->raw_bytes || chunk->raw_bytes > SL_XET_RAW_MAX)
        return broken(err, "is empty, or has more than 128 KiB");
    if (!chunk->packed_bytes || chunk->packed_bytes > SL_XET_PACKED_MAX ||
        (chunk->scheme == NONE && chunk->packed_bytes != chunk->raw_bytes))
        return broken(err, "has another length than its header says");
    return 0;
}

struct sl_xet_decoder *sl_xet_decoder_new(struct sl_err *err)
{
    struct sl_xet_decoder *decoder = sl_alloc(sizeof(*decoder), err);
    if (!decoder || !LZ4F_isError(LZ4F_createDecompressionContext(&decoder->frames, LZ4F_VERSION)))
        return decoder;
    free(decoder);
    sl_fail(err, SL_E_NO_SPACE, "out of memory");
    return NULL;
}

void sl_xet_decoder_free(struct sl_xet_decoder *decoder)
{
    if (!decoder)
        return;
    LZ4F_freeDecompressionContext(decoder->frames);
    free(decoder);
}

/* One frame, and nothing behind it. */
static int unpack(struct sl_xet_decoder *decoder, const struct sl_xet_chunk *chunk,
                  const uint8_t *data, uint8_t *raw, struct sl_err *err)
{
    const LZ4F_decompressOptions_t options = {.stableDst = 1};
    size_t taken = 0, made = 0, wanted = 1;
    LZ4F_resetDecompressionContext(decoder->frames);
    while (wanted && !LZ4F_isError(wanted)) {
        size_t in = chunk->packed_bytes - taken, out = chunk->raw_bytes - made;
        wanted = LZ4F_decompress(decoder->frames, raw + made, &out, data + taken, &in, &options);
        taken += in;
        made += out;
        if (!in && !out)
            break;
    }
    if (wanted || taken != chunk->packed_bytes || made != chunk->raw_bytes)
        return broken(err, "is not a whole LZ4 frame of its length");
    return 0;
}

typedef uint8_t octets __attribute__((vector_size(STEP)));
#define LOW(x, y)                                                                                  \
    __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(x, y)                                                                                 \
    __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#define LOW2(x, y)                                                                                 \
    __builtin_shufflevector(x, y, 0, 1, 16, 17, 2, 3, 18, 19, 4, 5, 20, 21, 6, 7, 22, 23)
#define HIGH2(x, y)                                                                                \
    __builtin_shufflevector(x, y, 8, 9, 24, 25, 10, 11, 26, 27, 12, 13, 28, 29, 14, 15, 30, 31)

static void interleave(const uint8_t *const from[GROUPS], size_t at, uint8_t *raw)
{
    octets in[GROUPS], out[GROUPS];
    for (unsigned g = 0; g < GROUPS; g++)
        memcpy(&in[g], from[g] + at, STEP);
    octets first = LOW(in[0], in[1]), second = HIGH(in[0], in[1]);
    octets third = LOW(in[2], in[3]), fourth = HIGH(in[2], in[3]);
    out[0] = LOW2(first, third);
    out[1] = HIGH2(first, third);
    out[2] = LOW2(second, fourth);
    out[3] = HIGH2(second, fourth);
    memcpy(raw + GROUPS * at, out, sizeof(out));
}

/* The bytes of places 0, 4, 8, … come first, then those of 1, 5, 9, …; the first groups have those
 * that are left over. */
static void ungroup(const uint8_t *grouped, size_t bytes, uint8_t *raw)
{
    const uint8_t *from[GROUPS];
    size_t words = bytes / GROUPS, at = 0;
    for (unsigned g = 0; g < GROUPS; g++) {
        from[g] = grouped;
        grouped += words + (g < bytes % GROUPS);
    }
    for (; at + STEP <= words; at += STEP)
        interleave(from, at, raw);
    for (size_t i = at * GROUPS; i < bytes; i++)
        raw[i] = from[i % GROUPS][i / GROUPS];
}

int sl_xet_decode(struct sl_xet_decoder *decoder, const struct sl_xet_chunk *chunk,
                  const uint8_t *data, uint8_t *raw, struct sl_err *err)
{
    if (chunk->scheme == NONE) {
        memcpy(raw, data, chunk->raw_bytes);
        return 0;
    }
    bool grouped = chunk->scheme == GROUPED_LZ4;
    if (unpack(decoder, chunk, data, grouped ? decoder->grouped : raw, err) < 0)
        return -1;
    if (grouped)
        ungroup(decoder->grouped, chunk->raw_bytes, raw);
    return 0;
}

/*
 * Frames as Xet writes them are decoded block by block: liblz4's own reader of frames writes a
 * block that is shorter than the frame's blocks may be into a buffer, and copies it, and here
 * nearly every block is. Other frames are left to it. Where the bytes of a chunk were grouped by
 * their place in words of four, they are written beside, and put in their order from there.
 */
#include "xet_chunk.h"

#include <lz4.h>
#include <lz4frame.h>
#include <string.h>

#include "buf.h"

enum { NONE, LZ4, GROUPED_LZ4, GROUPS = 4, STEP = 16, WIDE = 32, BLOCK_HEAD_BYTES = 4 };
#define STORED UINT32_C(0x80000000) /* of a block's head: it is not compressed */

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

/* Blocks that need nothing but themselves, and the end mark; no sums. */
static bool is_plain(const LZ4F_frameInfo_t *info)
{
    return info->frameType == LZ4F_frame && info->blockMode == LZ4F_blockIndependent &&
           info->blockChecksumFlag == LZ4F_noBlockChecksum &&
           info->contentChecksumFlag == LZ4F_noContentChecksum && !info->contentSize &&
           !info->dictID;
}

/* The bytes that a block makes: at least one, at most `room`. 0: it is broken. */
static size_t unpack_block(const uint8_t *block, size_t bytes, bool stored, uint8_t *raw,
                           size_t room)
{
    if (!stored) {
        int made = LZ4_decompress_safe((const char *)block, (char *)raw, (int)bytes, (int)room);
        return made > 0 ? (size_t)made : 0;
    }
    if (bytes > room)
        return 0;
    memcpy(raw, block, bytes);
    return bytes;
}

static bool unpack_blocks(const uint8_t *data, size_t bytes, uint8_t *raw, size_t raw_bytes)
{
    while (bytes >= BLOCK_HEAD_BYTES) {
        uint32_t head = sl_get_le32(data), block = head & ~STORED;
        data += BLOCK_HEAD_BYTES;
        bytes -= BLOCK_HEAD_BYTES;
        if (!head)
            return !bytes && !raw_bytes; /* the end mark */
        if (block > bytes)
            return false;
        size_t made = unpack_block(data, block, head & STORED, raw, raw_bytes);
        if (!made)
            return false;
        data += block;
        bytes -= block;
        raw += made;
        raw_bytes -= made;
    }
    return false;
}

static bool unpack_frame(LZ4F_dctx *frames, const struct sl_xet_chunk *chunk, const uint8_t *data,
                         size_t taken, uint8_t *raw)
{
    const LZ4F_decompressOptions_t options = {.stableDst = 1};
    size_t made = 0, wanted = 1;
    while (wanted && !LZ4F_isError(wanted)) {
        size_t in = chunk->packed_bytes - taken, out = chunk->raw_bytes - made;
        wanted = LZ4F_decompress(frames, raw + made, &out, data + taken, &in, &options);
        taken += in;
        made += out;
        if (!in && !out)
            break;
    }
    return !wanted && taken == chunk->packed_bytes && made == chunk->raw_bytes;
}

/* One frame, and nothing behind it. */
static int unpack(struct sl_xet_decoder *decoder, const struct sl_xet_chunk *chunk,
                  const uint8_t *data, uint8_t *raw, struct sl_err *err)
{
    LZ4F_frameInfo_t info;
    size_t taken = chunk->packed_bytes;
    LZ4F_resetDecompressionContext(decoder->frames);
    bool whole = !LZ4F_isError(LZ4F_getFrameInfo(decoder->frames, &info, data, &taken)) &&
                 (is_plain(&info) ? unpack_blocks(data + taken, chunk->packed_bytes - taken, raw,
                                                  chunk->raw_bytes)
                                  : unpack_frame(decoder->frames, chunk, data, taken, raw));
    return whole ? 0 : broken(err, "is not a whole LZ4 frame of its length");
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

#ifdef __x86_64__
/* The same of twice as many, within each half of a vector as the processor does it; then first
 * halves, second halves. A third of the time. */
typedef uint8_t wide __attribute__((vector_size(WIDE)));
#define WIDE_LOW(x, y)                                                                             \
    __builtin_shufflevector(x, y, 0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 16, 48,  \
                            17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55)
#define WIDE_HIGH(x, y)                                                                            \
    __builtin_shufflevector(x, y, 8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47,    \
                            24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63)
#define WIDE_LOW2(x, y)                                                                            \
    __builtin_shufflevector(x, y, 0, 1, 32, 33, 2, 3, 34, 35, 4, 5, 36, 37, 6, 7, 38, 39, 16, 17,  \
                            48, 49, 18, 19, 50, 51, 20, 21, 52, 53, 22, 23, 54, 55)
#define WIDE_HIGH2(x, y)                                                                           \
    __builtin_shufflevector(x, y, 8, 9, 40, 41, 10, 11, 42, 43, 12, 13, 44, 45, 14, 15, 46, 47,    \
                            24, 25, 56, 57, 26, 27, 58, 59, 28, 29, 60, 61, 30, 31, 62, 63)
#define FIRSTS(x, y)                                                                               \
    __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 32, 33,    \
                            34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47)
#define SECONDS(x, y)                                                                              \
    __builtin_shufflevector(x, y, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,  \
                            48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63)

/* How many words it has made. */
__attribute__((target("avx2"))) static size_t interleave_avx2(const uint8_t *const from[GROUPS],
                                                              size_t words, uint8_t *raw)
{
    size_t at = 0;
    for (; at + WIDE <= words; at += WIDE) {
        wide a, b, c, d, out[GROUPS];
        memcpy(&a, from[0] + at, WIDE);
        memcpy(&b, from[1] + at, WIDE);
        memcpy(&c, from[2] + at, WIDE);
        memcpy(&d, from[3] + at, WIDE);
        wide low = WIDE_LOW(a, b), high = WIDE_HIGH(a, b);
        wide low2 = WIDE_LOW(c, d), high2 = WIDE_HIGH(c, d);
        wide first = WIDE_LOW2(low, low2), second = WIDE_HIGH2(low, low2);
        wide third = WIDE_LOW2(high, high2), fourth = WIDE_HIGH2(high, high2);
        out[0] = FIRSTS(first, second);
        out[1] = FIRSTS(third, fourth);
        out[2] = SECONDS(first, second);
        out[3] = SECONDS(third, fourth);
        memcpy(raw + GROUPS * at, out, sizeof(out));
    }
    return at;
}

static size_t interleave_most(const uint8_t *const from[GROUPS], size_t words, uint8_t *raw)
{
    return __builtin_cpu_supports("avx2") ? interleave_avx2(from, words, raw) : 0;
}
#else
static size_t interleave_most(const uint8_t *const from[GROUPS], size_t words, uint8_t *raw)
{
    (void)from;
    (void)words;
    (void)raw;
    return 0;
}
#endif

/* The bytes of places 0, 4, 8, … come first, then those of 1, 5, 9, …; the first groups have those
 * that are left over. */
static void ungroup(const uint8_t *grouped, size_t bytes, uint8_t *raw)
{
    const uint8_t *from[GROUPS];
    size_t words = bytes / GROUPS;
    for (unsigned g = 0; g < GROUPS; g++) {
        from[g] = grouped;
        grouped += words + (g < bytes % GROUPS);
    }
    size_t at = interleave_most(from, words, raw);
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

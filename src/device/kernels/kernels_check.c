/*
 * CRCs and decryption. The powers of x that a CRC needs are computed here, by the kernel's own
 * functions on the host. Chunks are as many as the device can work on at a time, and as large as
 * then fits: joining them costs less the fewer they are.
 */
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "crypt.h"
#include "kernel_crc.h"
#include "kernels_launch.h"

enum {
    CRC_CHUNK_MIN = 64 * 1024,
    CRC_CHUNK_MAX = 1024 * 1024,
    CRC_BLOCKS_PER_MULTIPROCESSOR = 8, /* what shared memory and threads allow at a time */
    LAUNCH_BLOCKS_MAX = INT_MAX,
};
_Static_assert((int)SL_KERNEL_BOX_GOOD == (int)SL_BOX_GOOD &&
                   (int)SL_KERNEL_BOX_BAD == (int)SL_BOX_BAD,
               "verdicts");

static const uint32_t POLYNOMIAL_CRC32 = 0xedb88320u, POLYNOMIAL_CRC32C = 0x82f63b78u;

/* ---- CRC ------------------------------------------------------------------------------------- */

static uint64_t chunk_bytes(const struct sl_kernels *kernels, uint64_t bytes)
{
    uint64_t blocks = (uint64_t)kernels->multiprocessors * CRC_BLOCKS_PER_MULTIPROCESSOR;
    uint64_t each = bytes / blocks / CRC_CHUNK_MIN * CRC_CHUNK_MIN;
    return SL_MIN(SL_MAX(each, (uint64_t)CRC_CHUNK_MIN), (uint64_t)CRC_CHUNK_MAX);
}

static uint64_t chunk_count(const struct sl_kernels *kernels, uint64_t bytes)
{
    uint64_t each = chunk_bytes(kernels, bytes);
    return bytes / each + (bytes % each != 0);
}

uint64_t sl_kernels_crc_scratch(const struct sl_kernels *kernels, uint64_t bytes)
{
    return SL_MAX(chunk_count(kernels, bytes), UINT64_C(1)) * sizeof(uint32_t);
}

/* x^(8 * bytes): x is the bit below that of 1. */
static uint32_t shift_of(uint64_t bytes, uint32_t polynomial)
{
    return sl_crc_power(sl_crc_power(1u << 30, 8, polynomial), bytes, polynomial);
}

static void prepare_crc(struct sl_crc_args *args, uint64_t last_bytes)
{
    const uint32_t polynomial = args->polynomial;
    args->row = shift_of(4 * SL_CRC_THREADS, polynomial);
    for (unsigned k = 0; k < SL_CRC_LEVELS; k++)
        args->level[k] = shift_of(UINT64_C(4) << k, polynomial);
    args->begun_full =
        sl_crc_multiply(UINT32_MAX, shift_of(args->chunk_bytes, polynomial), polynomial);
    args->begun_last = sl_crc_multiply(UINT32_MAX, shift_of(last_bytes, polynomial), polynomial);
}

static void prepare_join(struct sl_crc_join_args *args, uint64_t each_bytes, uint64_t last_bytes)
{
    const uint32_t polynomial = args->polynomial;
    uint64_t each = (args->count - 1 + SL_CRC_THREADS - 1) / SL_CRC_THREADS;
    args->full = shift_of(each_bytes, polynomial);
    args->last = shift_of(last_bytes, polynomial);
    for (unsigned k = 0; k < SL_CRC_LEVELS; k++)
        args->level[k] = sl_crc_power(args->full, each << k, polynomial);
}

int sl_kernels_crc(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                   enum sl_hash_kind kind, uint64_t in, uint64_t bytes, uint64_t scratch,
                   uint64_t out, struct sl_err *err)
{
    uint64_t end;
    if ((kind != SL_HASH_CRC32 && kind != SL_HASH_CRC32C) || (scratch | out) % 4 ||
        __builtin_add_overflow(in, bytes, &end))
        return sl_fail(err, SL_E_INTERNAL, "checksum of %" PRIu64 " bytes on a GPU", bytes);
    if (bytes == 0)
        return sl_kernel_zero(kernels, stream, out, sizeof(uint32_t), err);
    uint64_t count = chunk_count(kernels, bytes), each = chunk_bytes(kernels, bytes);
    uint64_t last = bytes - (count - 1) * each;
    if (count > LAUNCH_BLOCKS_MAX)
        return sl_fail(err, SL_E_INTERNAL, "checksum of %" PRIu64 " bytes on a GPU", bytes);
    struct sl_crc_args args = {.in = in, .bytes = bytes, .chunk_bytes = each, .out = scratch};
    args.polynomial = kind == SL_HASH_CRC32 ? POLYNOMIAL_CRC32 : POLYNOMIAL_CRC32C;
    prepare_crc(&args, last);
    struct sl_crc_join_args join = {.crcs = scratch, .count = count, .out = out};
    join.polynomial = args.polynomial;
    prepare_join(&join, each, last);
    if (sl_kernel_launch(kernels, stream, SL_KERNEL_crc, count, &args, err) < 0)
        return -1;
    return sl_kernel_launch(kernels, stream, SL_KERNEL_crc_join, 1, &join, err);
}

/* ---- XSalsa20-Poly1305 ----------------------------------------------------------------------- */

/* Segments of a piece of so many bytes, as the kernel counts them. */
static uint64_t segments_of(uint64_t bytes)
{
    uint64_t units = bytes / SL_BOX_UNIT + (bytes % SL_BOX_UNIT >= SL_BOX_UNIT / 2);
    uint64_t segments = units / SL_BOX_SEGMENT_UNITS + (units % SL_BOX_SEGMENT_UNITS != 0);
    return SL_MAX(segments, UINT64_C(1));
}

uint64_t sl_kernels_box_scratch(uint64_t bytes, uint64_t piece_bytes, uint64_t piece_count)
{
    uint64_t each = segments_of(SL_MIN(piece_bytes, bytes)) * sizeof(struct sl_box_sum), all;
    each += sizeof(struct sl_box_key);
    return __builtin_mul_overflow(each, piece_count, &all) ? UINT64_MAX : all;
}

static int check_pieces(const struct sl_kernel_box *box, struct sl_err *err)
{
    uint64_t pieces = 1, end;
    if (box->piece_bytes == 0)
        return sl_fail(err, SL_E_INTERNAL, "decryption in pieces of no bytes");
    if (box->bytes > 0)
        pieces = box->bytes / box->piece_bytes + (box->bytes % box->piece_bytes != 0);
    uint64_t scratch = sl_kernels_box_scratch(box->bytes, box->piece_bytes, pieces);
    if (pieces != box->piece_count || scratch == UINT64_MAX || (box->scratch | box->verdicts) % 4 ||
        __builtin_add_overflow(box->data, box->bytes, &end) || pieces / 64 >= LAUNCH_BLOCKS_MAX)
        return sl_fail(err, SL_E_INTERNAL,
                       "decryption of %" PRIu64 " bytes in %" PRIu64 " pieces of %" PRIu64
                       " on a GPU",
                       box->bytes, box->piece_count, box->piece_bytes);
    if (sl_kernel_overlap(box->data, box->bytes, box->scratch, scratch))
        return sl_fail(err, SL_E_INTERNAL, "decryption into its own scratch memory");
    return 0;
}

static int open_all(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                    struct sl_box_args *args, struct sl_err *err)
{
    unsigned threads = sl_kernel_threads(SL_KERNEL_box_keys);
    uint64_t each = (args->pieces + threads - 1) / threads;
    uint64_t blocks = args->pieces * args->segments;
    if (sl_kernel_launch(kernels, stream, SL_KERNEL_box_keys, each, args, err) < 0)
        return -1;
    for (; args->first_block < blocks; args->first_block += LAUNCH_BLOCKS_MAX)
        if (sl_kernel_launch(kernels, stream, SL_KERNEL_box_open,
                             SL_MIN(blocks - args->first_block, (uint64_t)LAUNCH_BLOCKS_MAX), args,
                             err) < 0)
            return -1;
    return sl_kernel_launch(kernels, stream, SL_KERNEL_box_check, each, args, err);
}

/* The first piece that is here has the tensor's nonce plus its number, modulo 2^192. */
static void set_nonce(struct sl_box_args *args, const uint8_t *nonce, uint64_t first)
{
    uint64_t sum = 0;
    memcpy(args->nonce, nonce, sizeof(args->nonce));
    for (unsigned i = 0; i < SL_COUNT(args->nonce); i++) {
        sum += args->nonce[i];
        sum += i == 0 ? (uint32_t)first : i == 1 ? (uint32_t)(first >> 32) : 0;
        args->nonce[i] = (uint32_t)sum;
        sum >>= 32;
    }
}

int sl_kernels_open(struct sl_kernels *kernels, struct sl_cuda_stream *stream,
                    const struct sl_kernel_box *box, struct sl_err *err)
{
    if (check_pieces(box, err) < 0)
        return -1;
    uint64_t piece_bytes = SL_MIN(box->piece_bytes, SL_MAX(box->bytes, UINT64_C(1)));
    struct sl_box_args args = {.data = box->data,
                               .bytes = box->bytes,
                               .piece_bytes = piece_bytes,
                               .pieces = box->piece_count,
                               .segments = segments_of(SL_MIN(piece_bytes, box->bytes)),
                               .macs = box->macs,
                               .keys = box->scratch,
                               .verdicts = box->verdicts};
    args.sums = box->scratch + box->piece_count * sizeof(struct sl_box_key);
    memcpy(args.key, box->key, sizeof(args.key));
    set_nonce(&args, box->nonce, box->first);
    int done =
        sl_kernel_zero(kernels, stream, box->verdicts, box->piece_count * sizeof(uint32_t), err);
    if (done == 0 && (done = open_all(kernels, stream, &args, err)) < 0)
        sl_kernel_zero(kernels, stream, box->scratch,
                       sl_kernels_box_scratch(box->bytes, piece_bytes, box->piece_count), NULL);
    sl_crypt_wipe(&args, sizeof(args));
    return done;
}

/*
 * Kernels that check and decrypt: CRCs against zlib and the host's, secretbox against libsodium,
 * for sizes around everything that has a size. They run as the fake driver's, from the device's own
 * source, with memory that ends where nothing is mapped.
 */
#include <check.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "claims.h"
#include "crypt.h"
#include "kernel_case.h"

static const struct fake_cuda_control *fake;

enum { MIB = 1024 * 1024, PIECE = SL_PIECE_BYTES };

/* ---- CRC ------------------------------------------------------------------------------------- */

/* Scratch is random first, and what lies around results stays as it was. */
static uint32_t crc_on_device(struct gpu_case *gpu, enum sl_hash_kind kind, const uint8_t *in,
                              uint64_t bytes)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t need = sl_kernels_crc_scratch(gpu->kernels, bytes);
    uint8_t *scratch = gpu_tail(gpu, 1, need), *out = scratch - 64;
    gpu_random(out - 16, need + 80);
    uint8_t before[16], behind[60];
    memcpy(before, out - 16, 16), memcpy(behind, out + 4, 60);
    ck_assert_msg(sl_kernels_crc(gpu->kernels, gpu->stream, kind, gpu_address(in), bytes,
                                 gpu_address(scratch), gpu_address(out), &err) == 0,
                  "%s", err.message);
    gpu_wait(gpu);
    ck_assert_mem_eq(before, out - 16, 16);
    ck_assert_mem_eq(behind, out + 4, 60);
    uint32_t crc;
    memcpy(&crc, out, sizeof(crc));
    return crc;
}

static void check_crc(struct gpu_case *gpu, uint64_t bytes, uint64_t shift)
{
    const uint8_t *in = gpu_tail(gpu, 0, bytes + shift);
    ck_assert_uint_eq(crc_on_device(gpu, SL_HASH_CRC32, in, bytes),
                      (uint32_t)crc32_z(0, in, bytes));
    ck_assert_uint_eq(crc_on_device(gpu, SL_HASH_CRC32, in, bytes), sl_crc32(0, in, bytes));
    ck_assert_uint_eq(crc_on_device(gpu, SL_HASH_CRC32C, in, bytes), sl_crc32c(0, in, bytes));
}

SL_TEST(crcs_of_any_size_and_alignment_are_zlibs)
{
    static const uint64_t sizes[] = {1023,    1024,         1025,          4095,          65535,
                                     65536,   65537,        2 * 65536 - 1, 2 * 65536 + 3, 700001,
                                     5 * MIB, 5 * MIB + 17, 16 * 65536,    9 * MIB + 1};
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, 10 * MIB), gpu_memory(&gpu, MIB);
    gpu_random(gpu_tail(&gpu, 0, 10 * MIB), 10 * MIB);
    for (uint64_t bytes = 0; bytes < 300; bytes++)
        check_crc(&gpu, bytes, bytes % 5);
    for (unsigned i = 0; i < SL_COUNT(sizes); i++)
        check_crc(&gpu, sizes[i], i % 4);
    gpu_close(&gpu);
    check_no_cuda_left(fake);
}

SL_TEST(crcs_of_zeros_and_ones_are_zlibs)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, 2 * MIB), gpu_memory(&gpu, MIB);
    for (int value = 0; value <= 255; value += 255) {
        memset(gpu_tail(&gpu, 0, 2 * MIB), value, 2 * MIB);
        check_crc(&gpu, 3, 0), check_crc(&gpu, 65536 * 3, 0), check_crc(&gpu, 2 * MIB - 5, 1);
    }
    gpu_close(&gpu);
}

SL_TEST(checksums_that_a_gpu_cannot_have_are_refused)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    uint64_t at = gpu_address(gpu_memory(&gpu, MIB));
    const struct {
        enum sl_hash_kind kind;
        uint64_t in, bytes, scratch, out;
    } wrong[] = {
        {SL_HASH_SHA256, at, 1, at + 4096, at + 8192},
        {SL_HASH_CRC32, at, 1, at + 4097, at + 8192},
        {SL_HASH_CRC32, at, 1, at + 4096, at + 8194},
        {SL_HASH_CRC32, at, UINT64_MAX, at + 4096, at + 8192},
        {SL_HASH_CRC32, 0, UINT64_MAX, at + 4096, at + 8192},
    };
    for (unsigned i = 0; i < SL_COUNT(wrong); i++) {
        struct sl_err err = SL_ERR_INIT;
        ck_assert_int_eq(sl_kernels_crc(gpu.kernels, gpu.stream, wrong[i].kind, wrong[i].in,
                                        wrong[i].bytes, wrong[i].scratch, wrong[i].out, &err),
                         -1);
        ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    }
    gpu_close(&gpu);
}

/* ---- secretbox ------------------------------------------------------------------------------- */

/* Pieces as a writer seals them, on the device and beside it. Memory 0: data, 1: the rest. */
struct sealed {
    uint8_t key[SL_KEY_BYTES], nonce[SL_NONCE_BYTES];
    uint64_t bytes, piece_bytes, pieces, first;
    uint8_t *plain;                            /* of the host */
    uint8_t *data, *macs, *verdicts, *scratch; /* of the device */
};

static uint64_t piece_end(const struct sealed *sealed, uint64_t piece)
{
    uint64_t begin = piece * sealed->piece_bytes;
    return begin + SL_MIN(sealed->piece_bytes, sealed->bytes - begin);
}

static void seal(struct gpu_case *gpu, struct sealed *sealed, uint64_t bytes, uint64_t piece_bytes,
                 uint64_t shift)
{
    sealed->bytes = bytes;
    sealed->piece_bytes = piece_bytes;
    sealed->pieces = bytes ? bytes / piece_bytes + (bytes % piece_bytes != 0) : 1;
    sealed->plain = malloc(bytes + 1);
    gpu_random(sealed->key, sizeof(sealed->key));
    gpu_random(sealed->plain, bytes);
    sealed->data = gpu_tail(gpu, 0, bytes + shift);
    uint64_t scratch = sl_kernels_box_scratch(bytes, piece_bytes, sealed->pieces);
    sealed->scratch = gpu_tail(gpu, 1, scratch);
    sealed->verdicts = sealed->scratch - 4 * sealed->pieces;
    sealed->macs = sealed->verdicts - 16 * sealed->pieces - 1; /* any alignment */
    gpu_random(sealed->scratch, scratch);
    memset(sealed->verdicts, 0xff, 4 * sealed->pieces);
    uint8_t nonce[SL_NONCE_BYTES];
    memcpy(nonce, sealed->nonce, sizeof(nonce));
    for (uint64_t i = 0; i < sealed->first; i++)
        sodium_increment(nonce, sizeof(nonce));
    for (uint64_t i = 0; i < sealed->pieces; i++) {
        uint64_t at = i * piece_bytes;
        crypto_secretbox_detached(sealed->data + at, sealed->macs + 16 * i, sealed->plain + at,
                                  piece_end(sealed, i) - at, nonce, sealed->key);
        sodium_increment(nonce, sizeof(nonce));
    }
}

static int start_opening(struct gpu_case *gpu, const struct sealed *sealed, struct sl_err *err)
{
    struct sl_kernel_box box = {.key = sealed->key,
                                .nonce = sealed->nonce,
                                .first = sealed->first,
                                .data = gpu_address(sealed->data),
                                .bytes = sealed->bytes,
                                .piece_bytes = sealed->piece_bytes,
                                .piece_count = sealed->pieces,
                                .macs = gpu_address(sealed->macs),
                                .verdicts = gpu_address(sealed->verdicts),
                                .scratch = gpu_address(sealed->scratch)};
    return sl_kernels_open(gpu->kernels, gpu->stream, &box, err);
}

/* The number of the first bad piece; that behind the last: all are good. */
static uint64_t first_bad(const struct sealed *sealed)
{
    const uint32_t *verdicts = (const uint32_t *)(const void *)sealed->verdicts;
    uint64_t first = 0;
    while (first < sealed->pieces && verdicts[first] == SL_KERNEL_BOX_GOOD)
        first++;
    return first;
}

/* The same, when it has been opened. */
static uint64_t open_sealed(struct gpu_case *gpu, const struct sealed *sealed)
{
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(start_opening(gpu, sealed, &err) == 0, "%s", err.message);
    gpu_wait(gpu);
    uint64_t scratch = sl_kernels_box_scratch(sealed->bytes, sealed->piece_bytes, sealed->pieces);
    uint64_t secrets = scratch; /* of the last piece some sums may never have been used */
    if (sealed->pieces == 1)
        ck_assert(sodium_is_zero(sealed->scratch, secrets));
    return first_bad(sealed);
}

static void check_opening(struct gpu_case *gpu, uint64_t bytes, uint64_t piece_bytes,
                          uint64_t shift)
{
    struct sealed sealed = {.first = gpu_pick(3)};
    gpu_random(sealed.nonce, sizeof(sealed.nonce));
    seal(gpu, &sealed, bytes, piece_bytes, shift);
    uint8_t around[48];
    gpu_random(sealed.data - 48, 48);
    memcpy(around, sealed.data - 48, 48);
    ck_assert_msg(open_sealed(gpu, &sealed) == sealed.pieces,
                  "%llu bytes in pieces of %llu: a good MAC is refused", (unsigned long long)bytes,
                  (unsigned long long)piece_bytes);
    ck_assert_int_eq(memcmp(sealed.data, sealed.plain, bytes), 0);
    ck_assert_mem_eq(around, sealed.data - 48, 48);
    free(sealed.plain);
}

SL_TEST(what_secretbox_sealed_is_opened)
{
    static const uint64_t sizes[] = {
        1000,       1024,       32735,     32736, 32737,     32767,         32768,
        32799,      32800,      32801,     65503, 65504,     65505,         65535,
        65536,      65567,      65568,     65569, 131040,    131041,        300001,
        PIECE - 33, PIECE - 32, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 32};
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, 6 * MIB), gpu_memory(&gpu, MIB);
    for (uint64_t bytes = 0; bytes <= 300; bytes++)
        check_opening(&gpu, bytes, PIECE, bytes % 7);
    for (unsigned i = 0; i < SL_COUNT(sizes); i++)
        check_opening(&gpu, sizes[i], UINT64_MAX, i % 5);
    gpu_close(&gpu);
    check_no_cuda_left(fake);
}

SL_TEST(pieces_of_any_size_are_opened_together)
{
    static const uint64_t pieces[] = {1, 16, 31, 32, 33, 64, 1024, 65536, 100000, PIECE};
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, 6 * MIB), gpu_memory(&gpu, MIB);
    for (unsigned i = 0; i < SL_COUNT(pieces); i++) {
        uint64_t most = SL_MIN(pieces[i] * 70, UINT64_C(5) * MIB);
        check_opening(&gpu, most, pieces[i], 0);
        check_opening(&gpu, most - gpu_pick(pieces[i]), pieces[i], i);
    }
    gpu_close(&gpu);
}

SL_TEST(nonces_wrap_around)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    for (unsigned full = 0; full <= SL_NONCE_BYTES; full++) {
        struct sealed sealed = {.first = 1};
        gpu_random(sealed.nonce, sizeof(sealed.nonce));
        memset(sealed.nonce, 0xff, full);
        sealed.nonce[0] = 0xfd; /* the pieces after the third carry */
        seal(&gpu, &sealed, 6 * 1000, 1000, 0);
        ck_assert_uint_eq(open_sealed(&gpu, &sealed), 6);
        ck_assert_mem_eq(sealed.data, sealed.plain, sealed.bytes);
        free(sealed.plain);
    }
    gpu_close(&gpu);
}

/* What is wrong spoils its own piece, and no other. */
SL_TEST(a_wrong_bit_anywhere_is_found)
{
    enum { PIECES = 3, BYTES = PIECES * 70000 - 11 };
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    for (unsigned i = 0; i < 200; i++) {
        struct sealed sealed = {.first = 0};
        gpu_random(sealed.nonce, sizeof(sealed.nonce));
        seal(&gpu, &sealed, BYTES, 70000, 0);
        bool in_mac = i % 4 == 0;
        uint64_t at = in_mac ? gpu_pick(16 * PIECES) : i < 8 ? BYTES - 1 - i : gpu_pick(BYTES);
        uint64_t bad = in_mac ? at / 16 : at / 70000;
        uint8_t *byte = in_mac ? sealed.macs + at : sealed.data + at;
        *byte ^= (uint8_t)(1u << gpu_pick(8));
        ck_assert_uint_eq(open_sealed(&gpu, &sealed), bad);
        const uint32_t *verdicts = (const uint32_t *)(const void *)sealed.verdicts;
        for (unsigned piece = 0; piece < PIECES; piece++)
            ck_assert_uint_eq(verdicts[piece],
                              piece == bad ? SL_KERNEL_BOX_BAD : SL_KERNEL_BOX_GOOD);
        free(sealed.plain);
    }
    gpu_close(&gpu);
}

SL_TEST(a_wrong_key_or_number_makes_every_piece_bad)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    for (int wrong = 0; wrong < 3; wrong++) {
        struct sealed sealed = {.first = 5};
        gpu_random(sealed.nonce, sizeof(sealed.nonce));
        seal(&gpu, &sealed, 100000, 20000, 0);
        if (wrong == 0)
            sealed.key[31] ^= 1;
        else if (wrong == 1)
            sealed.nonce[23] ^= 0x80;
        else
            sealed.first++;
        ck_assert_uint_eq(open_sealed(&gpu, &sealed), 0);
        const uint32_t *verdicts = (const uint32_t *)(const void *)sealed.verdicts;
        for (unsigned piece = 0; piece < sealed.pieces; piece++)
            ck_assert_uint_eq(verdicts[piece], SL_KERNEL_BOX_BAD);
        free(sealed.plain);
    }
    gpu_close(&gpu);
}

/* Poly1305 where carries and the last reduction matter: sums at and around 2^130 - 5. */
SL_TEST(messages_that_are_hard_to_reduce_are_opened)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    for (unsigned i = 0; i < 400; i++) {
        struct sealed sealed = {.first = 0};
        gpu_random(sealed.nonce, sizeof(sealed.nonce));
        seal(&gpu, &sealed, 16 * (1 + gpu_pick(40)), PIECE, 0);
        memset(sealed.data, i % 2 ? 0xff : 0, sealed.bytes); /* ciphertext that is chosen */
        uint8_t stream[32 + 16 * 40], mac[16];
        crypto_stream_xsalsa20(stream, sizeof(stream), sealed.nonce, sealed.key);
        crypto_onetimeauth(mac, sealed.data, sealed.bytes, stream);
        memcpy(sealed.macs, mac, sizeof(mac));
        ck_assert_uint_eq(open_sealed(&gpu, &sealed), 1);
        free(sealed.plain);
    }
    gpu_close(&gpu);
}

SL_TEST(impossible_pieces_are_refused)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    struct sealed good = {.first = 0};
    seal(&gpu, &good, 1000, 100, 0);
    for (int i = 0; i < 7; i++) {
        struct sl_err err = SL_ERR_INIT;
        struct sealed wrong = good;
        if (i == 0)
            wrong.piece_bytes = 0;
        else if (i == 1)
            wrong.pieces = 9;
        else if (i == 2)
            wrong.pieces = UINT64_MAX;
        else if (i == 3)
            wrong.bytes = UINT64_MAX, wrong.piece_bytes = UINT64_MAX, wrong.pieces = 1;
        else if (i == 4)
            wrong.bytes = UINT64_MAX - 1, wrong.piece_bytes = 1, wrong.pieces = UINT64_MAX - 1;
        else if (i == 5)
            wrong.scratch = wrong.data + 8;
        else
            wrong.verdicts++;
        ck_assert_msg(start_opening(&gpu, &wrong, &err) == -1, "row %d", i);
        ck_assert_int_eq(err.kind, SL_E_INTERNAL);
    }
    ck_assert_uint_eq(sl_kernels_box_scratch(UINT64_MAX, 1, UINT64_MAX), UINT64_MAX);
    free(good.plain);
    gpu_close(&gpu);
}

/* Whichever launch fails: no verdict is good, and no key is left. */
SL_TEST(a_launch_that_fails_leaves_no_good_verdict_and_no_key)
{
    struct gpu_case gpu;
    gpu_open(&gpu);
    gpu_memory(&gpu, MIB), gpu_memory(&gpu, MIB);
    for (unsigned nth = 1; nth <= 3; nth++) {
        struct sl_err err = SL_ERR_INIT;
        struct sealed sealed = {.first = 0};
        seal(&gpu, &sealed, 1000, 100, 0);
        fake->fail_call("cuLaunchKernel", nth, SL_CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(start_opening(&gpu, &sealed, &err), -1);
        ck_assert_int_eq(err.kind, SL_E_GPU);
        fake->reset();
        gpu_wait(&gpu);
        ck_assert_uint_eq(first_bad(&sealed), 0);
        ck_assert(sodium_is_zero(sealed.verdicts, 4 * sealed.pieces));
        ck_assert(sodium_is_zero(sealed.scratch, sl_kernels_box_scratch(1000, 100, 10)));
        free(sealed.plain);
    }
    gpu_close(&gpu);
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    if (sl_crypt_init(NULL) < 0)
        abort();
    return true;
}

SL_CASE(.prepare = prepare)

/*
 * Kernels on the device against the host's own functions, bit for bit, for sizes around everything
 * that has a size; then how fast they are. Data go both ways through one pinned buffer.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crypt.h"
#include "gpu_check.h"
#include "kernels.h"

static const uint64_t MIB = 1 << 20;
enum { SLACK = 64 /* bytes before and behind, for alignments and for what must not change */ };

struct trial {
    struct sl_kernels *kernels;
    struct gpu_area a, b, c; /* in, out, small things */
    uint8_t *host, *wanted;  /* pinned; not */
    uint64_t room;           /* bytes of each that trials use */
    uint64_t pieces;         /* of what is timed */
    const uint8_t *key, *nonce;
};

static void to_device(const struct gpu_check *check, uint64_t to, const void *from, uint64_t bytes)
{
    if (bytes)
        gpu_must(check, check->cuda->copy_to_device(to, from, bytes, check->stream), "copy");
    gpu_must(check, check->cuda->stream_synchronize(check->stream), "wait");
}

static void to_host(const struct gpu_check *check, void *to, uint64_t from, uint64_t bytes)
{
    if (bytes)
        gpu_must(check, check->cuda->copy_to_host(to, from, bytes, check->stream), "copy");
    gpu_must(check, check->cuda->stream_synchronize(check->stream), "wait");
}

static void must(int result, const struct sl_err *err)
{
    if (result == 0)
        return;
    fprintf(stderr, "gpu_check: %s\n", err->message);
    exit(9);
}

static uint64_t pick(uint64_t below)
{
    uint64_t number;
    gpu_fill_random(&number, sizeof(number));
    return number % below;
}

static const uint64_t sizes[] = {0,     1,     2,     3,     7,     8,      9,      15,     16,
                                 17,    31,    32,    33,    63,    64,     65,     95,     96,
                                 97,    255,   1000,  1023,  2047,  2048,   2049,   4095,   65503,
                                 65504, 65535, 65536, 65537, 65568, 131041, 300001, 1048577};

/* ---- casts ----------------------------------------------------------------------------------- */

static const enum sl_dtype types[] = {SL_DTYPE_F64,         SL_DTYPE_F32,        SL_DTYPE_F16,
                                      SL_DTYPE_BF16,        SL_DTYPE_F8_E4M3,    SL_DTYPE_F8_E5M2,
                                      SL_DTYPE_F8_E4M3FNUZ, SL_DTYPE_F8_E5M2FNUZ};

static bool cast_equals(const struct gpu_check *check, struct trial *trial, enum sl_dtype from,
                        enum sl_dtype to, uint64_t count, enum sl_cast_overflow overflow)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t in_bytes = count * sl_dtype_row(from)->bits / 8;
    uint64_t out_bytes = count * sl_dtype_row(to)->bits / 8, shift = pick(3) ? 0 : pick(16);
    gpu_fill_random(trial->host, in_bytes);
    to_device(check, trial->a.address + shift, trial->host, in_bytes);
    sl_cast(from, to, overflow, trial->host, trial->wanted, count);
    must(sl_kernels_cast(trial->kernels, check->stream, from, to, overflow,
                         trial->a.address + shift, trial->b.address + shift, count, &err),
         &err);
    to_host(check, trial->host, trial->b.address + shift, out_bytes);
    return memcmp(trial->host, trial->wanted, out_bytes) == 0;
}

static void check_casts(const struct gpu_check *check, struct trial *trial)
{
    static const uint64_t counts[] = {0, 1, 7, 8, 9, 2047, 65536, 100003};
    unsigned done = 0, good = 0;
    for (unsigned f = 0; f < SL_COUNT(types); f++)
        for (unsigned t = 0; t < SL_COUNT(types); t++)
            for (unsigned i = 0; i < SL_COUNT(counts); i++, done++)
                good += cast_equals(check, trial, types[f], types[t], counts[i],
                                    i % 2 ? SL_CAST_IEEE : SL_CAST_SATURATE);
    gpu_row("kernels", "casts that equal the host's, bit for bit", good, "trials", "all",
            good == done ? GPU_OK : GPU_FAIL);
}

/* ---- gathers --------------------------------------------------------------------------------- */

/* A view of three dimensions in any order, cut anywhere. */
static bool gather_equals(const struct gpu_check *check, struct trial *trial)
{
    static const unsigned items[] = {1, 2, 4, 8, 16};
    struct sl_err err = SL_ERR_INIT;
    unsigned item = items[pick(SL_COUNT(items))];
    uint64_t shape[3] = {1 + pick(40), 1 + pick(70), 1 + pick(90)}, widths[3], strides[3];
    uint64_t stored = shape[0] * shape[1] * shape[2] * item, first = 0, count = 1;
    uint64_t place[3] = {shape[1] * shape[2] * item, shape[2] * item, item};
    for (unsigned i = 0, turn = (unsigned)pick(3); i < 3; i++) {
        unsigned from = (i + turn) % 3;
        uint64_t begin = pick(2) ? 0 : pick(shape[from]);
        widths[i] = pick(2) ? shape[from] - begin : 1 + pick(shape[from] - begin);
        strides[i] = place[from];
        first += begin * place[from];
        count *= widths[i];
    }
    gpu_fill_random(trial->host, stored);
    to_device(check, trial->a.address, trial->host, stored);
    for (uint64_t n = 0; n < count; n++) {
        uint64_t at = first + n / widths[2] / widths[1] * strides[0] +
                      n / widths[2] % widths[1] * strides[1] + n % widths[2] * strides[2];
        memcpy(trial->wanted + n * item, trial->host + at, item);
    }
    struct sl_gather_box box = {.in = trial->a.address, .in_bytes = stored, .first = first};
    box.item_bytes = item, box.rank = 3, box.widths = widths, box.strides = strides;
    box.count = count, box.out = trial->b.address, box.out_bytes = count * item;
    must(sl_kernels_gather(trial->kernels, check->stream, &box, &err), &err);
    to_host(check, trial->host, trial->b.address, count * item);
    return memcmp(trial->host, trial->wanted, count * item) == 0;
}

static void check_gathers(const struct gpu_check *check, struct trial *trial)
{
    unsigned good = 0, all = check->quick ? 20 : 300;
    for (unsigned i = 0; i < all; i++)
        good += gather_equals(check, trial);
    gpu_row("kernels", "gathers that equal picking item by item", good, "trials", "all",
            good == all ? GPU_OK : GPU_FAIL);
}

/* ---- CRC and secretbox ----------------------------------------------------------------------- */

static void check_crcs(const struct gpu_check *check, struct trial *trial)
{
    unsigned good = 0;
    for (unsigned i = 0; i < SL_COUNT(sizes); i++) {
        struct sl_err err = SL_ERR_INIT;
        uint64_t shift = i % 4;
        uint32_t crc;
        gpu_fill_random(trial->host, sizes[i]);
        to_device(check, trial->a.address + shift, trial->host, sizes[i]);
        must(sl_kernels_crc(trial->kernels, check->stream, SL_HASH_CRC32, trial->a.address + shift,
                            sizes[i], trial->b.address, trial->c.address, &err),
             &err);
        uint32_t wanted = sl_crc32(0, trial->host, sizes[i]);
        to_host(check, trial->host, trial->c.address, sizeof(crc));
        memcpy(&crc, trial->host, sizeof(crc));
        good += crc == wanted;
    }
    gpu_row("kernels", "CRC32s that equal the host's", good, "trials", "all",
            good == SL_COUNT(sizes) ? GPU_OK : GPU_FAIL);
}

static struct sl_kernel_box box_of(const struct trial *trial, uint64_t bytes, uint64_t piece_bytes)
{
    struct sl_kernel_box box = {.key = trial->key, .nonce = trial->nonce, .bytes = bytes};
    box.data = trial->a.address;
    box.piece_bytes = piece_bytes;
    box.piece_count = bytes ? bytes / piece_bytes + (bytes % piece_bytes != 0) : 1;
    box.macs = trial->c.address;
    box.verdicts = box.macs + (box.piece_count * SL_MAC_BYTES + 255) / 256 * 256;
    box.scratch = trial->b.address;
    return box;
}

static uint64_t first_bad(const uint32_t *verdicts, uint64_t count)
{
    uint64_t at = 0;
    while (at < count && verdicts[at] == SL_KERNEL_BOX_GOOD)
        at++;
    return at;
}

/* Sealed on the host, opened on the device; with a wrong bit it must not be good. */
static bool box_equals(const struct gpu_check *check, struct trial *trial, uint64_t bytes,
                       uint64_t piece_bytes, bool spoil)
{
    enum { PIECES_MAX = 4096 };
    static uint8_t macs[PIECES_MAX * SL_MAC_BYTES];
    static uint32_t verdicts[PIECES_MAX];
    struct sl_err err = SL_ERR_INIT;
    struct sl_kernel_box box = box_of(trial, bytes, piece_bytes);
    gpu_fill_random(trial->wanted, bytes);
    for (uint64_t i = 0; i < box.piece_count; i++) {
        uint64_t at = i * piece_bytes, length = SL_MIN(piece_bytes, bytes - at);
        sl_crypt_seal(trial->key, trial->nonce, i, trial->wanted + at, trial->host + at, length,
                      macs + i * SL_MAC_BYTES);
    }
    uint64_t bad = box.piece_count;
    if (spoil && bytes > 0) {
        uint64_t at = pick(bytes);
        trial->host[at] ^= 1;
        bad = at / piece_bytes;
    }
    to_device(check, box.data, trial->host, bytes);
    to_device(check, box.macs, macs, box.piece_count * SL_MAC_BYTES);
    must(sl_kernels_open(trial->kernels, check->stream, &box, &err), &err);
    to_host(check, verdicts, box.verdicts, box.piece_count * sizeof(*verdicts));
    to_host(check, trial->host, box.data, bytes);
    if (first_bad(verdicts, box.piece_count) != bad)
        return false;
    return bad < box.piece_count || memcmp(trial->host, trial->wanted, bytes) == 0;
}

static void check_boxes(const struct gpu_check *check, struct trial *trial)
{
    unsigned good = 0, done = 0;
    for (unsigned i = 0; i < SL_COUNT(sizes); i++, done += 3) {
        good += box_equals(check, trial, sizes[i], SL_PIECE_BYTES, false);
        good += box_equals(check, trial, sizes[i], 1 + sizes[i] / 3, false);
        good += box_equals(check, trial, sizes[i], 1 + sizes[i] / 2, true);
    }
    for (unsigned i = 0; i < 2; i++, done++)
        good += box_equals(check, trial, 2 * (uint64_t)SL_PIECE_BYTES + i * 31, SL_PIECE_BYTES, i);
    gpu_row("kernels", "secretboxes opened, and spoilt ones refused, as by libsodium", good,
            "trials", "all", good == done ? GPU_OK : GPU_FAIL);
}

/* ---- rates ----------------------------------------------------------------------------------- */

static void time_narrow(const struct gpu_check *check, void *arg)
{
    struct trial *trial = arg;
    struct sl_err err = SL_ERR_INIT;
    must(sl_kernels_cast(trial->kernels, check->stream, SL_DTYPE_F32, SL_DTYPE_BF16, SL_CAST_IEEE,
                         trial->a.address, trial->b.address, trial->a.bytes / 4, &err),
         &err);
}

static void time_widen(const struct gpu_check *check, void *arg)
{
    struct trial *trial = arg;
    struct sl_err err = SL_ERR_INIT;
    must(sl_kernels_cast(trial->kernels, check->stream, SL_DTYPE_BF16, SL_DTYPE_F32, SL_CAST_IEEE,
                         trial->a.address, trial->b.address, trial->b.bytes / 4, &err),
         &err);
}

static void time_f8(const struct gpu_check *check, void *arg)
{
    struct trial *trial = arg;
    struct sl_err err = SL_ERR_INIT;
    must(sl_kernels_cast(trial->kernels, check->stream, SL_DTYPE_BF16, SL_DTYPE_F8_E4M3,
                         SL_CAST_SATURATE, trial->a.address, trial->b.address, trial->a.bytes / 2,
                         &err),
         &err);
}

static void gather_square(const struct gpu_check *check, struct trial *trial, bool transposed)
{
    struct sl_err err = SL_ERR_INIT;
    uint64_t columns = 8192, rows = trial->a.bytes / 2 / columns;
    uint64_t widths[] = {transposed ? columns : rows, transposed ? rows : columns / 2};
    uint64_t strides[] = {transposed ? 2 : columns * 2, transposed ? columns * 2 : 2};
    struct sl_gather_box box = {.in = trial->a.address, .in_bytes = trial->a.bytes};
    box.item_bytes = 2, box.rank = 2, box.widths = widths, box.strides = strides;
    box.count = widths[0] * widths[1], box.out = trial->b.address, box.out_bytes = trial->b.bytes;
    must(sl_kernels_gather(trial->kernels, check->stream, &box, &err), &err);
}

static void time_slice(const struct gpu_check *check, void *arg)
{
    gather_square(check, arg, false);
}

static void time_transpose(const struct gpu_check *check, void *arg)
{
    gather_square(check, arg, true);
}

static void time_crc(const struct gpu_check *check, void *arg)
{
    struct trial *trial = arg;
    struct sl_err err = SL_ERR_INIT;
    must(sl_kernels_crc(trial->kernels, check->stream, SL_HASH_CRC32, trial->a.address,
                        trial->a.bytes, trial->b.address, trial->c.address, &err),
         &err);
}

/* The MACs are wrong: what it costs does not depend on that. */
static void time_open(const struct gpu_check *check, void *arg)
{
    struct trial *trial = arg;
    struct sl_err err = SL_ERR_INIT;
    struct sl_kernel_box box = box_of(trial, trial->pieces * SL_PIECE_BYTES, SL_PIECE_BYTES);
    must(sl_kernels_open(trial->kernels, check->stream, &box, &err), &err);
}

/* What the host does alone: how many cores would it take to keep up with the link? */
static void host_rate(const struct gpu_check *check, struct trial *trial)
{
    struct sl_opening opening;
    unsigned rounds = check->quick ? 1 : 200;
    double begin = gpu_now();
    for (unsigned i = 0; i < rounds; i++) {
        sl_opening_begin(&opening, trial->key, trial->nonce, i);
        sl_opening_update(&opening, trial->host, trial->wanted, SL_PIECE_BYTES);
        sl_opening_release(&opening);
    }
    double rate = (double)rounds * SL_PIECE_BYTES / (gpu_now() - begin) / 1e9;
    gpu_row("kernels", "decrypt and check on one core of the host", rate, "GB/s", "", GPU_MEASURED);
    if (check->peak > 0)
        gpu_row("kernels", "cores that decrypt as fast as the link copies", check->peak / rate, "",
                "", GPU_MEASURED);
}

static void rates(const struct gpu_check *check, struct trial *trial)
{
    static const struct {
        const char *what;
        void (*work)(const struct gpu_check *check, void *arg);
        double moved; /* bytes read and written for each byte of the area */
    } rows[] = {
        {"cast F32 to BF16, read and written", time_narrow, 1.5},
        {"cast BF16 to F32, read and written", time_widen, 1.5},
        {"cast BF16 to F8_E4M3, read and written", time_f8, 1.5},
        {"half of each row, read and written", time_slice, 1},
        {"transpose of 16-bit elements, read and written", time_transpose, 2},
        {"CRC32, read", time_crc, 1},
    };
    unsigned rounds = check->quick ? 1 : 9;
    for (unsigned i = 0; i < SL_COUNT(rows); i++)
        gpu_row("kernels", rows[i].what,
                rows[i].moved * (double)trial->a.bytes /
                    gpu_seconds(check, rounds, rows[i].work, trial) / 1e9,
                "GB/s", "", GPU_MEASURED);
    static const uint64_t pieces[] = {1, 2, 8, 32, 128, 512};
    for (unsigned i = 0; i < SL_COUNT(pieces); i++) {
        char what[80];
        trial->pieces = pieces[i];
        if (pieces[i] * SL_PIECE_BYTES > trial->a.bytes)
            continue;
        double rate = (double)(pieces[i] * SL_PIECE_BYTES) /
                      gpu_seconds(check, rounds, time_open, trial) / 1e9;
        snprintf(what, sizeof(what), "decrypt and check %" PRIu64 " pieces of 2 MiB", pieces[i]);
        bool last = pieces[i] == 512;
        gpu_row("kernels", what, rate, "GB/s", last ? "> 200" : "",
                !last        ? GPU_MEASURED
                : rate > 200 ? GPU_OK
                             : GPU_FAIL);
    }
}

void gpu_check_kernels(struct gpu_check *check)
{
    static const uint8_t key[SL_KEY_BYTES] = {1, 2, 3}, nonce[SL_NONCE_BYTES] = {0xff, 0xff, 4};
    struct trial trial = {.key = key, .nonce = nonce, .room = 9 * MIB};
    struct sl_err err = SL_ERR_INIT;
    void *pinned;
    uint64_t bytes = gpu_size(check, 1024 * MIB, 10 * MIB);
    trial.kernels = sl_kernels_load(check->cuda, &check->device, &err);
    if (!trial.kernels || sl_crypt_init(&err) < 0) {
        gpu_row("kernels", err.message, 0, "", "kernels", GPU_SKIP);
        return;
    }
    trial.wanted = malloc(trial.room);
    gpu_must(check, check->cuda->host_alloc(&pinned, trial.room, SL_CUDA_HOST_PORTABLE),
             "pin host memory");
    trial.host = pinned;
    if (!trial.wanted || gpu_area_make(check, bytes, &trial.a) < 0 ||
        gpu_area_make(check, bytes, &trial.b) < 0 || gpu_area_make(check, 4 * MIB, &trial.c) < 0)
        gpu_must(check, SL_CUDA_OUT_OF_MEMORY, "take memory for the kernels");
    check_casts(check, &trial);
    check_gathers(check, &trial);
    check_crcs(check, &trial);
    check_boxes(check, &trial);
    rates(check, &trial);
    host_rate(check, &trial);
    gpu_area_free(check, &trial.a);
    gpu_area_free(check, &trial.b);
    gpu_area_free(check, &trial.c);
    check->cuda->host_free(pinned);
    free(trial.wanted);
    sl_kernels_free(trial.kernels);
}

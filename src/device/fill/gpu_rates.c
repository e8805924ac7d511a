/*
 * The host: one core does the work on a buffer that stays in its cache, for two milliseconds; times
 * the processors that this process may use, as if readers had nothing else to do. The GPU: kernels
 * on as much as one staging buffer brings, and for decryption on a few pieces as tensorizer writes
 * them, between two events; the best of a few rounds, since clocks rise with work. And a copy of as
 * much from pinned memory.
 *
 * A load is as fast as the slower of the work and the way to the GPU. What is cast on the host goes
 * that way as what it becomes, and what the GPU casts as it came: so a cast to a smaller type may
 * be the host's though its kernels are slower, and one to a larger type the GPU's.
 *
 * The log says what was found when it was, and with each load that asks. Numbers are kept with the
 * GPU: they change neither with models nor with time.
 */
#include "gpu_rates.h"

#include <stdio.h>
#include <string.h>

#include "cast.h"
#include "crypt.h"
#include "gpu_kernels.h"
#include "gpu_task.h"
#include "hash.h"
#include "log.h"

enum {
    HOST_BYTES = 256 * 1024,
    GPU_BYTES = 4 * 1024 * 1024,
    PIECE_BYTES = 2 * 1024 * 1024,
    PIECES = 8,       /* what waits when decryption is what holds the load up */
    LINK = SL_STAGES, /* a copy to the GPU, beside the stages */
    WORKS,
    ROUNDS = 3, /* the first also loads code */
    VERDICTS_AT = PIECES * PIECE_BYTES,
    MACS_AT = VERDICTS_AT + 256,
    SCRATCH_AT = MACS_AT + 256,
};
#define HOST_NS (2 * SL_NS_PER_MS)

/* Bytes a second; kept with the GPU. */
struct rates {
    double host[SL_STAGES], gpu[WORKS];
};

_Static_assert(PIECES *SL_MAC_BYTES <= 256, "MACs of all pieces");

/* ---- the host -------------------------------------------------------------------------------- */

static const uint8_t no_key[SL_KEY_BYTES], no_nonce[SL_NONCE_BYTES]; /* any will do */

static void decrypt_once(uint8_t *data)
{
    struct sl_opening opening;
    uint8_t mac[SL_MAC_BYTES];
    sl_opening_begin(&opening, no_key, no_nonce, 0);
    sl_opening_update(&opening, data, data, HOST_BYTES);
    sl_opening_mac(&opening, mac);
}

static void cast_once(uint8_t *data)
{
    sl_cast(SL_DTYPE_F32, SL_DTYPE_BF16, SL_CAST_IEEE, data, data, HOST_BYTES / 4);
}

static void crc_once(uint8_t *data)
{
    uint32_t crc = sl_crc32(0, data, HOST_BYTES);
    memcpy(data, &crc, sizeof(crc)); /* it must be computed */
}

/* Bytes a second of all processors. */
static double measure_host(void (*work)(uint8_t *data), uint8_t *data)
{
    uint64_t begin = sl_now_ns(), best = UINT64_MAX;
    for (uint64_t now = begin; now - begin < HOST_NS;) {
        uint64_t from = now;
        work(data);
        now = sl_now_ns();
        best = SL_MIN(best, SL_MAX(now - from, UINT64_C(1)));
    }
    return (double)HOST_BYTES * SL_NS_PER_S / (double)best * sl_cpu_count();
}

/* ---- the GPU; its thread --------------------------------------------------------------------- */

struct trial {
    struct sl_gpu_memory memory;
    struct sl_kernels *kernels;
    struct sl_cuda_stream *stream;
    struct sl_cuda_event *begin, *end;
    void *pinned;
    bool acquired;
    double rate[WORKS];
};

static int start_copy(struct sl_gpu *gpu, const struct trial *trial, struct sl_err *err)
{
    return sl_gpu_check(gpu,
                        sl_gpu_driver(gpu)->copy_to_device(trial->memory.address, trial->pinned,
                                                           GPU_BYTES, trial->stream),
                        err, "copy %d bytes", (int)GPU_BYTES);
}

static int start_work(struct sl_gpu *gpu, struct trial *trial, unsigned work, struct sl_err *err)
{
    uint64_t at = trial->memory.address;
    const struct sl_kernel_box box = {.key = no_key,
                                      .nonce = no_nonce,
                                      .data = at,
                                      .bytes = PIECES * PIECE_BYTES,
                                      .piece_bytes = PIECE_BYTES,
                                      .piece_count = PIECES,
                                      .macs = at + MACS_AT,
                                      .verdicts = at + VERDICTS_AT,
                                      .scratch = at + SCRATCH_AT};
    if (work == LINK)
        return start_copy(gpu, trial, err);
    if (work == SL_STAGE_DECRYPT)
        return sl_kernels_open(trial->kernels, trial->stream, &box, err);
    if (work == SL_STAGE_CRC)
        return sl_kernels_crc(trial->kernels, trial->stream, SL_HASH_CRC32, at, GPU_BYTES,
                              at + GPU_BYTES, at + VERDICTS_AT, err);
    return sl_kernels_cast(trial->kernels, trial->stream, SL_DTYPE_F32, SL_DTYPE_BF16, SL_CAST_IEEE,
                           at, at + GPU_BYTES, GPU_BYTES / 4, err);
}

static int measure_round(struct sl_gpu *gpu, struct trial *trial, unsigned work, struct sl_err *err)
{
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    float ms = 0;
    if (sl_gpu_check(gpu, cuda->event_record(trial->begin, trial->stream), err, "record an event") <
            0 ||
        start_work(gpu, trial, work, err) < 0 ||
        sl_gpu_check(gpu, cuda->event_record(trial->end, trial->stream), err, "record an event") <
            0 ||
        sl_gpu_check(gpu, cuda->event_synchronize(trial->end), err, "wait for kernels") < 0 ||
        sl_gpu_check(gpu, cuda->event_elapsed(&ms, trial->begin, trial->end), err,
                     "measure kernels") < 0)
        return -1;
    double bytes = work == SL_STAGE_DECRYPT ? PIECES * PIECE_BYTES : GPU_BYTES;
    if (ms > 0)
        trial->rate[work] = SL_MAX(trial->rate[work], bytes / ((double)ms / 1000));
    return 0;
}

static int trial_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct trial *trial = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    trial->acquired = true;
    trial->kernels = sl_gpu_kernels(gpu, err);
    if (!trial->kernels ||
        sl_gpu_check(gpu, cuda->stream_create(&trial->stream, SL_CUDA_STREAM_NON_BLOCKING), err,
                     "make a stream") < 0 ||
        sl_gpu_check(gpu, cuda->event_create(&trial->begin, 0), err, "make an event") < 0 ||
        sl_gpu_check(gpu, cuda->event_create(&trial->end, 0), err, "make an event") < 0 ||
        sl_gpu_check(gpu, cuda->host_alloc(&trial->pinned, GPU_BYTES, SL_CUDA_HOST_PORTABLE), err,
                     "pin %d bytes of host memory", (int)GPU_BYTES) < 0 ||
        sl_gpu_check(gpu, cuda->set_bytes(trial->memory.address, 0, SCRATCH_AT, trial->stream), err,
                     "zero memory") < 0)
        return -1;
    for (unsigned i = 0; i < WORKS * ROUNDS; i++)
        if (measure_round(gpu, trial, i % WORKS, err) < 0)
            return -1;
    return 0;
}

static int end_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct trial *trial = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    (void)err;
    if (trial->stream) {
        cuda->stream_synchronize(trial->stream);
        cuda->stream_destroy(trial->stream);
    }
    if (trial->begin)
        cuda->event_destroy(trial->begin);
    if (trial->end)
        cuda->event_destroy(trial->end);
    if (trial->pinned)
        cuda->host_free(trial->pinned);
    if (trial->acquired)
        sl_gpu_release(gpu);
    return 0;
}

static int measure_gpu(struct sl_gpu *gpu, struct rates *rates, struct sl_err *err)
{
    struct trial trial = {.memory = SL_GPU_MEMORY_INIT};
    uint64_t bytes = SCRATCH_AT + sl_kernels_box_scratch(PIECES * PIECE_BYTES, PIECE_BYTES, PIECES);
    if (sl_gpu_memory_make(gpu, sl_gpu_round(gpu, bytes), &trial.memory, err) < 0)
        return -1;
    int failed = sl_gpu_call(gpu, trial_task, &trial, false, err);
    sl_gpu_call(gpu, end_task, &trial, true, NULL);
    sl_gpu_memory_release(gpu, &trial.memory);
    memcpy(rates->gpu, trial.rate, sizeof(trial.rate));
    return failed;
}

/* ---- what was found -------------------------------------------------------------------------- */

static const char *const names[SL_STAGES] = {[SL_STAGE_DECRYPT] = "decrypting",
                                             [SL_STAGE_CAST] = "casting",
                                             [SL_STAGE_CRC] = "computing CRCs"};

/* Bytes a second, as they come, with the way to the GPU. */
struct speeds {
    double gpu, host;
};

static struct speeds speeds_of(const struct rates *rates, enum sl_stage stage, double share)
{
    return (struct speeds){.gpu = SL_MIN(rates->gpu[LINK], rates->gpu[stage]),
                           .host = SL_MIN(rates->gpu[LINK] / share, rates->host[stage])};
}

/* Where both fill the link the faster one has more to spare. */
static bool is_gpus(const struct rates *rates, enum sl_stage stage, double share)
{
    const struct speeds speeds = speeds_of(rates, stage, share);
    return speeds.gpu > speeds.host ||
           (speeds.gpu >= speeds.host && rates->gpu[stage] > rates->host[stage]);
}

static void report(const struct sl_gpu *gpu, const struct rates *rates)
{
    char text[400], host[32], device[32];
    int used = 0;
    for (int i = 0; i < SL_STAGES; i++)
        used += snprintf(text + used, sizeof(text) - (size_t)used, " %s %s/s, %s/s;", names[i],
                         sl_human_bytes((uint64_t)rates->gpu[i], device),
                         sl_human_bytes((uint64_t)rates->host[i], host));
    sl_log(SL_LOG_INFO, "measured of cuda:%d, of all processors:%s copying to it %s/s",
           sl_gpu_device(gpu)->ordinal, text, sl_human_bytes((uint64_t)rates->gpu[LINK], device));
}

/* Two loads that ask at once measure both, and the first is kept. NULL: it cannot be. */
static const struct rates *measure(struct sl_gpu *gpu, struct sl_err *err)
{
    static void (*const works[SL_STAGES])(uint8_t * data) = {
        [SL_STAGE_DECRYPT] = decrypt_once, [SL_STAGE_CAST] = cast_once, [SL_STAGE_CRC] = crc_once};
    sl_autofree uint8_t *data = sl_alloc_aligned(4096, HOST_BYTES, err);
    sl_autofree struct rates *rates = data ? sl_alloc(sizeof(*rates), err) : NULL;
    if (!rates || sl_crypt_init(err) < 0)
        return NULL;
    for (int i = 0; i < SL_STAGES; i++) {
        memset(data, 0, HOST_BYTES);
        rates->host[i] = measure_host(works[i], data);
    }
    if (measure_gpu(gpu, rates, err) < 0)
        return NULL;
    report(gpu, rates);
    return sl_gpu_keep(gpu, sl_steal(&rates));
}

const char *sl_gpu_stage_name(enum sl_stage stage)
{
    return names[stage];
}

int sl_gpu_rates_choose(struct sl_gpu *gpu, enum sl_stage stage, double share,
                        enum sl_pool_decrypt setting, struct sl_gpu_choice *choice,
                        struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    const struct rates *rates = NULL;
    char host[32], device[32];
    choice->on_gpu = setting == SL_DECRYPT_GPU;
    snprintf(choice->why, sizeof(choice->why), "the spec says so");
    if (setting == SL_DECRYPT_HOST)
        return 0;
    if (setting == SL_DECRYPT_GPU)
        return sl_kernels_check(sl_gpu_device(gpu), err);
    if (sl_kernels_check(sl_gpu_device(gpu), &why) == 0 && !(rates = sl_gpu_keep(gpu, NULL)))
        rates = measure(gpu, &why);
    if (!rates) {
        snprintf(choice->why, sizeof(choice->why), "%.200s", why.message);
        return 0;
    }
    const struct speeds speeds = speeds_of(rates, stage, share);
    choice->on_gpu = is_gpus(rates, stage, share);
    snprintf(choice->why, sizeof(choice->why),
             "auto, measured: the GPU %s/s, all processors %s/s, with the way to the GPU",
             sl_human_bytes((uint64_t)speeds.gpu, device),
             sl_human_bytes((uint64_t)speeds.host, host));
    return 0;
}

/*
 * Pieces are opened in runs of a bounded number. What a run takes (MACs in, verdicts out, what the
 * kernels need in between) lies in a small part of the device's memory and of pinned memory; there
 * are a few of these, each with a stream, so that runs of single pieces overlap. A run ends when
 * its event has come, which is asked for between other work: no copy waits for kernels. What finds
 * no place waits in a list.
 */
#include "gpu_opener.h"

#include <string.h>

#include "crypt.h"
#include "gpu_kernels.h"
#include "gpu_task.h"

enum {
    PLACES = 8,
    RUN_PIECES = 32,
    VERDICTS_AT = 0,
    MACS_AT = RUN_PIECES * sizeof(uint32_t),
    SCRATCH_AT = MACS_AT + RUN_PIECES * SL_MAC_BYTES,
    PLACE_ALIGN = 256,
    POLL_NS = 50 * 1000,
};

struct job {
    struct sl_opener_pieces pieces;
    uint64_t begun; /* bytes of them that are in runs */
    unsigned runs;  /* that have not ended */
    struct job *next;
};
struct place {
    struct sl_cuda_stream *stream;
    struct sl_cuda_event *event;
    uint64_t work;   /* of the device */
    uint8_t *pinned; /* MACS_AT and VERDICTS_AT, as on the device */
    struct job *job; /* of the run that is here */
    uint64_t first, count;
};
struct sl_gpu_opener {
    struct sl_gpu_chore chore; /* first */
    struct sl_gpu *gpu;
    struct sl_kernels *kernels;
    struct sl_gpu_memory work;
    uint64_t work_bytes; /* of a place */
    void *pinned;
    const struct sl_opener_events *events;
    bool acquired, looked_after, failed;
    struct place places[PLACES];
    unsigned oldest, used; /* runs under way, one place after another */
    struct job *jobs;      /* that are not wholly reported */
};

/* ---- opening; the GPU's thread --------------------------------------------------------------- */

static int report(const struct sl_gpu_opener *opener, const struct place *place, struct sl_err *err)
{
    const uint32_t *found = (const uint32_t *)(const void *)(place->pinned + VERDICTS_AT);
    for (uint64_t done = 0; done < place->count;) {
        uint64_t end = done + 1;
        bool good = found[done] == SL_KERNEL_BOX_GOOD;
        while (end < place->count && (found[end] == SL_KERNEL_BOX_GOOD) == good)
            end++;
        if (opener->events->report(opener->events->arg, &place->job->pieces, place->first + done,
                                   end - done, good, err) < 0)
            return -1;
        done = end;
    }
    return 0;
}

static int enqueue(const struct sl_gpu_opener *opener, const struct place *place,
                   const struct sl_kernel_box *box, struct sl_err *err)
{
    struct sl_gpu *gpu = opener->gpu;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    if (sl_gpu_check(gpu,
                     cuda->copy_to_device(place->work, place->pinned, SCRATCH_AT, place->stream),
                     err, "copy MACs") < 0 ||
        sl_kernels_open(opener->kernels, place->stream, box, err) < 0 ||
        sl_gpu_check(gpu,
                     cuda->copy_to_host(place->pinned, box->verdicts,
                                        place->count * sizeof(uint32_t), place->stream),
                     err, "copy verdicts") < 0)
        return -1;
    return sl_gpu_check(gpu, cuda->event_record(place->event, place->stream), err,
                        "record an event");
}

/* At most RUN_PIECES. */
static int begin_run(struct sl_gpu_opener *opener, struct place *place, struct job *job,
                     struct sl_err *err)
{
    const struct sl_opener_pieces *pieces = &job->pieces;
    const struct sl_crypt *crypt = pieces->tensor->crypt;
    uint64_t piece = crypt->piece_bytes;
    uint64_t bytes = SL_MIN(pieces->bytes - job->begun, RUN_PIECES * piece);
    place->job = job;
    place->first = pieces->first + job->begun / piece;
    place->count = bytes / piece + (bytes % piece != 0);
    const struct sl_kernel_box box = {.key = pieces->tensor->key,
                                      .nonce = crypt->nonce,
                                      .first = place->first,
                                      .data = pieces->address + job->begun,
                                      .bytes = bytes,
                                      .piece_bytes = piece,
                                      .piece_count = place->count,
                                      .macs = place->work + MACS_AT,
                                      .verdicts = place->work + VERDICTS_AT,
                                      .scratch = place->work + SCRATCH_AT};
    memcpy(place->pinned + MACS_AT, crypt->macs + place->first * SL_MAC_BYTES,
           place->count * SL_MAC_BYTES);
    memset(place->pinned + VERDICTS_AT, 0, place->count * sizeof(uint32_t));
    job->begun += bytes;
    job->runs++;
    return enqueue(opener, place, &box, err);
}

static struct job *next_to_begin(const struct sl_gpu_opener *opener)
{
    struct job *job = opener->jobs;
    while (job && job->begun == job->pieces.bytes)
        job = job->next;
    return job;
}

static int begin_runs(struct sl_gpu_opener *opener, struct sl_err *err)
{
    struct job *job;
    while (opener->used < PLACES && (job = next_to_begin(opener)))
        if (begin_run(opener, &opener->places[(opener->oldest + opener->used++) % PLACES], job,
                      err) < 0)
            return -1;
    return 0;
}

static void end_job(struct sl_gpu_opener *opener, struct job *job)
{
    struct job **at = &opener->jobs;
    if (--job->runs || job->begun < job->pieces.bytes)
        return;
    while (*at != job)
        at = &(*at)->next;
    *at = job->next;
    free(job);
    opener->events->opened(opener->events->arg);
}

/* 1: runs are still under way. */
static int end_runs(struct sl_gpu_opener *opener, struct sl_err *err)
{
    while (opener->used) {
        struct place *place = &opener->places[opener->oldest];
        int result = sl_gpu_driver(opener->gpu)->event_query(place->event);
        if (result == SL_CUDA_NOT_READY)
            return 1;
        if (sl_gpu_check(opener->gpu, result, err, "decrypt") < 0 || report(opener, place, err) < 0)
            return -1;
        opener->oldest = (opener->oldest + 1) % PLACES;
        opener->used--;
        end_job(opener, place->job);
    }
    return 0;
}

static uint64_t take_turn(struct sl_gpu_chore *chore)
{
    struct sl_gpu_opener *opener = (struct sl_gpu_opener *)chore;
    struct sl_err err = SL_ERR_INIT;
    if (opener->failed)
        return SL_GPU_IDLE;
    if (end_runs(opener, &err) < 0 || begin_runs(opener, &err) < 0) {
        opener->failed = true;
        opener->events->failed(opener->events->arg, &err);
        return SL_GPU_IDLE;
    }
    return opener->used ? (uint64_t)POLL_NS : SL_GPU_IDLE;
}

int sl_gpu_opener_open(struct sl_gpu_opener *opener, const struct sl_opener_pieces *pieces,
                       struct sl_err *err)
{
    if (!opener->looked_after || opener->failed)
        return 0; /* its end, of which everybody knows */
    struct job **at = &opener->jobs, *job = sl_alloc(sizeof(*job), err);
    if (!job)
        return -1;
    job->pieces = *pieces;
    while (*at)
        at = &(*at)->next;
    *at = job;
    sl_gpu_poke(opener->gpu);
    if (begin_runs(opener, err) == 0)
        return 0;
    opener->failed = true; /* a run is half enqueued: its event says nothing */
    return -1;
}

void sl_gpu_opener_bind(struct sl_gpu_opener *opener, const struct sl_opener_events *events)
{
    opener->events = events;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_place(struct sl_gpu_opener *opener, unsigned number, struct sl_err *err)
{
    struct sl_gpu *gpu = opener->gpu;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    struct place *place = &opener->places[number];
    place->work = opener->work.address + number * opener->work_bytes;
    place->pinned = (uint8_t *)opener->pinned + number * SCRATCH_AT;
    if (sl_gpu_check(gpu, cuda->stream_create(&place->stream, SL_CUDA_STREAM_NON_BLOCKING), err,
                     "make a stream") < 0)
        return -1;
    return sl_gpu_check(gpu, cuda->event_create(&place->event, SL_CUDA_EVENT_DISABLE_TIMING), err,
                        "make an event");
}

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_opener *opener = arg;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    opener->acquired = true;
    opener->kernels = sl_gpu_kernels(gpu, err);
    if (!opener->kernels ||
        sl_gpu_check(gpu,
                     sl_gpu_driver(gpu)->host_alloc(&opener->pinned, (size_t)PLACES * SCRATCH_AT,
                                                    SL_CUDA_HOST_PORTABLE),
                     err, "pin %d bytes of host memory", PLACES * SCRATCH_AT) < 0)
        return -1;
    for (unsigned i = 0; i < PLACES; i++)
        if (make_place(opener, i, err) < 0)
            return -1;
    opener->chore.turn = take_turn;
    sl_gpu_add_chore(gpu, &opener->chore);
    opener->looked_after = true;
    return 0;
}

static int stop_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_opener *opener = arg;
    (void)err;
    sl_gpu_remove_chore(gpu, &opener->chore);
    opener->looked_after = false;
    for (unsigned i = 0; i < PLACES; i++)
        if (opener->places[i].stream)
            sl_gpu_driver(gpu)->stream_synchronize(opener->places[i].stream);
    while (opener->jobs) {
        struct job *job = opener->jobs;
        opener->jobs = job->next;
        free(job);
    }
    return 0;
}

void sl_gpu_opener_stop(struct sl_gpu_opener *opener)
{
    sl_gpu_call(opener->gpu, stop_task, opener, true, NULL);
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_opener *opener = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    stop_task(gpu, arg, err);
    for (unsigned i = 0; i < PLACES; i++) {
        if (opener->places[i].stream)
            cuda->stream_destroy(opener->places[i].stream);
        if (opener->places[i].event)
            cuda->event_destroy(opener->places[i].event);
    }
    if (opener->pinned)
        cuda->host_free(opener->pinned);
    if (opener->acquired)
        sl_gpu_release(gpu);
    return 0;
}

struct sl_gpu_opener *sl_gpu_opener_new(struct sl_gpu *gpu, uint64_t piece_bytes,
                                        struct sl_err *err)
{
    if (sl_kernels_check(sl_gpu_device(gpu), err) < 0)
        return NULL;
    SL_AUTO(sl_gpu_opener) opener = sl_alloc(sizeof(*opener), err);
    if (!opener)
        return NULL;
    opener->gpu = gpu;
    opener->work = (struct sl_gpu_memory)SL_GPU_MEMORY_INIT;
    uint64_t bytes =
        SCRATCH_AT + sl_kernels_box_scratch(RUN_PIECES * piece_bytes, piece_bytes, RUN_PIECES);
    opener->work_bytes = (bytes + PLACE_ALIGN - 1) / PLACE_ALIGN * PLACE_ALIGN;
    if (sl_gpu_memory_make(gpu, sl_gpu_round(gpu, PLACES * opener->work_bytes), &opener->work,
                           err) < 0 ||
        sl_gpu_call(gpu, make_task, opener, false, err) < 0)
        return NULL;
    return sl_steal(&opener);
}

void sl_gpu_opener_free(struct sl_gpu_opener *opener)
{
    if (!opener)
        return;
    sl_gpu_call(opener->gpu, free_task, opener, true, NULL);
    sl_gpu_memory_release(opener->gpu, &opener->work);
    free(opener);
}

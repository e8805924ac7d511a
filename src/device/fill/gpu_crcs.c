/*
 * Checks are sorted by where they lie, and none overlaps another, as the plan leaves them. A check
 * is computed in one piece when its last byte has come, from memory of the device, which is faster
 * than the bus by far.
 *
 * They are computed in batches: a few, each with a stream and a small part of the device's memory
 * and of pinned memory. Whatever is complete goes into the next that is free, so single checks
 * begin at once, and many become one batch when all are under way. A batch ends when its event has
 * come, which is asked for between other work: no copy waits for kernels.
 */
#include "gpu_crcs.h"

#include "gpu_kernels.h"
#include "gpu_task.h"
#include "lower_bound.h"
#include "metrics.h"

enum {
    BATCHES = 4,
    BATCH = 64, /* checks */
    RESULTS_AT = 0,
    SCRATCH_AT = BATCH * sizeof(uint32_t),
    WORK_ALIGN = 256,
    POLL_NS = 50 * 1000,
};

struct crc {
    const struct sl_check *check;
    uint64_t left;    /* bytes that are not on the device */
    struct crc *next; /* complete, and in no batch yet */
};
struct batch {
    struct sl_cuda_stream *stream;
    struct sl_cuda_event *event;
    uint64_t work;     /* of the device: results, then scratch */
    uint32_t *results; /* pinned */
    const struct sl_check *checks[BATCH];
    unsigned count;
};
struct sl_gpu_crcs {
    struct sl_gpu_chore chore; /* first */
    struct sl_gpu *gpu;
    struct sl_gpu_ring *ring;
    unsigned queue; /* of the ring */
    const uint64_t *addresses;
    struct sl_kernels *kernels;
    struct sl_gpu_memory work;
    void *pinned;
    struct crc *crcs; /* sorted by file and offset; set but for what is the GPU's thread's */
    size_t count;
    /* The GPU's thread's: */
    bool acquired, looked_after, failed;
    struct crc *first, **last; /* complete */
    struct batch batches[BATCHES];
    unsigned oldest, used; /* batches under way, one after another */
    pthread_mutex_t lock;
    struct {
        const struct sl_stage_results *results; /* NULL: nobody is told */
    } locked;
};

/* ---- which ----------------------------------------------------------------------------------- */

static uint64_t end_of(const struct sl_check *check)
{
    return check->file_offset + (check->end - check->begin);
}

static int by_place(const void *a, const void *b)
{
    const struct sl_check *x = ((const struct crc *)a)->check, *y = ((const struct crc *)b)->check;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->file_offset < y->file_offset ? -1 : x->file_offset > y->file_offset;
}

static int find_all(struct sl_gpu_crcs *crcs, const struct sl_plan *plan, struct sl_err *err)
{
    crcs->crcs = sl_alloc_array(plan->check_count, sizeof(*crcs->crcs), err);
    if (!crcs->crcs)
        return -1;
    for (size_t i = 0; i < plan->check_count; i++) {
        const struct sl_check *check = &plan->checks[i];
        if (check->crc_on == SL_ON_DEVICE)
            crcs->crcs[crcs->count++] = (struct crc){check, check->end - check->begin, NULL};
    }
    if (crcs->count)
        qsort(crcs->crcs, crcs->count, sizeof(*crcs->crcs), by_place);
    return 0;
}

static bool ends_by(const struct sl_check *check, uint32_t file, uint64_t offset)
{
    return check->file != file ? check->file < file : end_of(check) <= offset;
}

/* The first that ends after this place. */
static size_t first_after(const struct sl_gpu_crcs *crcs, uint32_t file, uint64_t offset)
{
    return SL_LOWER_BOUND(i, crcs->count, ends_by(crcs->crcs[i].check, file, offset));
}

/* ---- computing; the GPU's thread ------------------------------------------------------------- */

static void report(struct sl_gpu_crcs *crcs, const struct sl_check *check, uint32_t crc)
{
    sl_metric_add(SL_M_GPU_CRC_BYTES, (int64_t)(check->end - check->begin));
    SL_LOCKED(&crcs->lock);
    const struct sl_stage_results *results = crcs->locked.results;
    if (results)
        results->crc(results->arg, check, crc);
}

static int enqueue_crc(const struct sl_gpu_crcs *crcs, struct batch *batch,
                       const struct sl_check *check, struct sl_err *err)
{
    uint64_t at = crcs->addresses[check->file] + check->file_offset;
    uint64_t out = batch->work + RESULTS_AT + batch->count * sizeof(uint32_t);
    batch->checks[batch->count++] = check;
    return sl_kernels_crc(crcs->kernels, batch->stream, check->kind, at, check->end - check->begin,
                          batch->work + SCRATCH_AT, out, err);
}

/* Something is complete. */
static int begin_batch(struct sl_gpu_crcs *crcs, struct batch *batch, struct sl_err *err)
{
    struct sl_gpu *gpu = crcs->gpu;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    batch->count = 0;
    while (crcs->first && batch->count < BATCH) {
        const struct crc *crc = crcs->first;
        if (!(crcs->first = crc->next))
            crcs->last = &crcs->first;
        if (enqueue_crc(crcs, batch, crc->check, err) < 0)
            return -1;
    }
    if (sl_gpu_check(gpu,
                     cuda->copy_to_host(batch->results, batch->work + RESULTS_AT,
                                        batch->count * sizeof(uint32_t), batch->stream),
                     err, "copy CRCs") < 0)
        return -1;
    return sl_gpu_check(gpu, cuda->event_record(batch->event, batch->stream), err,
                        "record an event");
}

static int begin_batches(struct sl_gpu_crcs *crcs, struct sl_err *err)
{
    while (crcs->first && crcs->used < BATCHES)
        if (begin_batch(crcs, &crcs->batches[(crcs->oldest + crcs->used++) % BATCHES], err) < 0)
            return -1;
    return 0;
}

/* 1: batches are still under way. */
static int end_batches(struct sl_gpu_crcs *crcs, struct sl_err *err)
{
    while (crcs->used) {
        const struct batch *batch = &crcs->batches[crcs->oldest];
        int result = sl_gpu_driver(crcs->gpu)->event_query(batch->event);
        if (result == SL_CUDA_NOT_READY)
            return 1;
        if (sl_gpu_check(crcs->gpu, result, err, "compute CRCs") < 0)
            return -1;
        for (unsigned i = 0; i < batch->count; i++) {
            report(crcs, batch->checks[i], batch->results[i]);
            sl_gpu_ring_end_work(crcs->ring, crcs->queue);
        }
        crcs->oldest = (crcs->oldest + 1) % BATCHES;
        crcs->used--;
    }
    return 0;
}

static uint64_t take_turn(struct sl_gpu_chore *chore)
{
    struct sl_gpu_crcs *crcs = (struct sl_gpu_crcs *)chore;
    struct sl_err err = SL_ERR_INIT;
    if (crcs->failed)
        return SL_GPU_IDLE;
    if (end_batches(crcs, &err) < 0 || begin_batches(crcs, &err) < 0) {
        crcs->failed = true;
        sl_gpu_ring_fail(crcs->ring, &err);
        return SL_GPU_IDLE;
    }
    return crcs->used ? (uint64_t)POLL_NS : SL_GPU_IDLE;
}

static void note_complete(struct sl_gpu_crcs *crcs, struct crc *crc)
{
    *crcs->last = crc;
    crcs->last = &crc->next;
    sl_gpu_ring_begin_work(crcs->ring, crcs->queue);
    sl_gpu_poke(crcs->gpu);
}

int sl_gpu_crcs_landed(struct sl_gpu_crcs *crcs, uint32_t file, uint64_t offset, uint64_t bytes,
                       struct sl_err *err)
{
    uint64_t end = offset + bytes;
    if (!crcs->looked_after || crcs->failed)
        return 0; /* its end, of which everybody knows */
    for (size_t i = first_after(crcs, file, offset); i < crcs->count; i++) {
        struct crc *crc = &crcs->crcs[i];
        const struct sl_check *check = crc->check;
        if (check->file != file || check->file_offset >= end)
            break;
        crc->left -= SL_MIN(end_of(check), end) - SL_MAX(check->file_offset, offset);
        if (!crc->left)
            note_complete(crcs, crc);
    }
    if (begin_batches(crcs, err) == 0)
        return 0;
    crcs->failed = true; /* a batch is half enqueued: its event says nothing */
    return -1;
}

void sl_gpu_crcs_join(struct sl_gpu_crcs *crcs, struct sl_gpu_ring *ring, unsigned queue)
{
    crcs->ring = ring;
    crcs->queue = queue;
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_batch(struct sl_gpu_crcs *crcs, struct batch *batch, struct sl_err *err)
{
    const struct sl_cuda *cuda = sl_gpu_driver(crcs->gpu);
    if (sl_gpu_check(crcs->gpu, cuda->stream_create(&batch->stream, SL_CUDA_STREAM_NON_BLOCKING),
                     err, "make a stream") < 0)
        return -1;
    return sl_gpu_check(crcs->gpu, cuda->event_create(&batch->event, SL_CUDA_EVENT_DISABLE_TIMING),
                        err, "make an event");
}

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_crcs *crcs = arg;
    enum { PINNED = BATCHES * SCRATCH_AT };
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    crcs->acquired = true;
    crcs->kernels = sl_gpu_kernels(gpu, err);
    if (!crcs->kernels ||
        sl_gpu_check(gpu,
                     sl_gpu_driver(gpu)->host_alloc(&crcs->pinned, PINNED, SL_CUDA_HOST_PORTABLE),
                     err, "pin %d bytes of host memory", (int)PINNED) < 0)
        return -1;
    for (unsigned i = 0; i < BATCHES; i++)
        if (make_batch(crcs, &crcs->batches[i], err) < 0)
            return -1;
    crcs->chore.turn = take_turn;
    sl_gpu_add_chore(gpu, &crcs->chore);
    crcs->looked_after = true;
    return 0;
}

static int stop_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_crcs *crcs = arg;
    (void)err;
    sl_gpu_remove_chore(gpu, &crcs->chore);
    crcs->looked_after = false;
    for (unsigned i = 0; i < BATCHES; i++)
        if (crcs->batches[i].stream)
            sl_gpu_driver(gpu)->stream_synchronize(crcs->batches[i].stream);
    return 0;
}

void sl_gpu_crcs_stop(struct sl_gpu_crcs *crcs)
{
    sl_gpu_call(crcs->gpu, stop_task, crcs, true, NULL);
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_crcs *crcs = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    stop_task(gpu, arg, err);
    for (unsigned i = 0; i < BATCHES; i++) {
        if (crcs->batches[i].stream)
            cuda->stream_destroy(crcs->batches[i].stream);
        if (crcs->batches[i].event)
            cuda->event_destroy(crcs->batches[i].event);
    }
    if (crcs->pinned)
        cuda->host_free(crcs->pinned);
    if (crcs->acquired)
        sl_gpu_release(gpu);
    return 0;
}

/* What the kernels want for the largest, for each batch. */
static int make_work(struct sl_gpu_crcs *crcs, struct sl_err *err)
{
    uint64_t most = 0;
    for (size_t i = 0; i < crcs->count; i++) {
        const struct sl_check *check = crcs->crcs[i].check;
        most = SL_MAX(most, sl_kernels_crc_scratch(crcs->kernels, check->end - check->begin));
    }
    uint64_t each = (SCRATCH_AT + most + WORK_ALIGN - 1) / WORK_ALIGN * WORK_ALIGN;
    if (sl_gpu_memory_make(crcs->gpu, sl_gpu_round(crcs->gpu, BATCHES * each), &crcs->work, err) <
        0)
        return -1;
    for (unsigned i = 0; i < BATCHES; i++) {
        crcs->batches[i].work = crcs->work.address + i * each;
        crcs->batches[i].results = (uint32_t *)crcs->pinned + (size_t)i * BATCH;
    }
    return 0;
}

struct sl_gpu_crcs *sl_gpu_crcs_new(struct sl_gpu *gpu, const struct sl_plan *plan,
                                    const uint64_t *addresses, struct sl_err *err)
{
    SL_AUTO(sl_gpu_crcs) crcs = sl_alloc(sizeof(*crcs), err);
    if (!crcs)
        return NULL;
    pthread_mutex_init(&crcs->lock, NULL);
    crcs->gpu = gpu;
    crcs->addresses = addresses;
    crcs->last = &crcs->first;
    crcs->work = (struct sl_gpu_memory)SL_GPU_MEMORY_INIT;
    if (find_all(crcs, plan, err) < 0 || sl_gpu_call(gpu, make_task, crcs, false, err) < 0 ||
        make_work(crcs, err) < 0)
        return NULL;
    return sl_steal(&crcs);
}

void sl_gpu_crcs_free(struct sl_gpu_crcs *crcs)
{
    if (!crcs)
        return;
    sl_gpu_call(crcs->gpu, free_task, crcs, true, NULL);
    sl_gpu_memory_release(crcs->gpu, &crcs->work);
    pthread_mutex_destroy(&crcs->lock);
    free(crcs->crcs);
    free(crcs);
}

void sl_gpu_crcs_bind(struct sl_gpu_crcs *crcs, const struct sl_stage_results *results)
{
    SL_LOCKED(&crcs->lock);
    crcs->locked.results = results;
}

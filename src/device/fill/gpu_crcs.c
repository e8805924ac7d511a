/*
 * Checks are sorted by where they lie, and none overlaps another, as the plan leaves them. A check
 * is computed in one piece when its last byte has come, from memory of the device, which is faster
 * than the bus by far; all that become complete by one note are computed in turn, with one wait at
 * the end of a batch.
 */
#include "gpu_crcs.h"

#include <string.h>

#include "gpu_kernels.h"
#include "gpu_task.h"
#include "hash.h"
#include "lower_bound.h"
#include "metrics.h"

enum { BATCH = 64, RESULTS_AT = 0, SCRATCH_AT = BATCH * sizeof(uint32_t) };

struct crc {
    const struct sl_check *check;
    uint64_t left; /* bytes that are not on the device */
};
struct sl_gpu_crcs {
    struct sl_gpu *gpu;
    const uint64_t *addresses;
    struct sl_kernels *kernels;
    struct sl_cuda_stream *stream;
    struct sl_gpu_memory work;
    uint32_t *pinned; /* results */
    bool acquired;
    struct crc *crcs; /* sorted by file and offset; `left` is the GPU's thread's */
    size_t count;
    const struct sl_check *batch[BATCH];
    unsigned batched;
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
            crcs->crcs[crcs->count++] = (struct crc){check, check->end - check->begin};
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

static int flush(struct sl_gpu_crcs *crcs, struct sl_err *err)
{
    struct sl_gpu *gpu = crcs->gpu;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    unsigned count = crcs->batched;
    crcs->batched = 0;
    if (count == 0)
        return 0;
    if (sl_gpu_check(gpu,
                     cuda->copy_to_host(crcs->pinned, crcs->work.address + RESULTS_AT,
                                        count * sizeof(uint32_t), crcs->stream),
                     err, "copy CRCs") < 0 ||
        sl_gpu_check(gpu, cuda->stream_synchronize(crcs->stream), err, "compute CRCs") < 0)
        return -1;
    for (unsigned i = 0; i < count; i++)
        report(crcs, crcs->batch[i], crcs->pinned[i]);
    return 0;
}

static int compute(struct sl_gpu_crcs *crcs, const struct sl_check *check, struct sl_err *err)
{
    uint64_t at = crcs->addresses[check->file] + check->file_offset;
    uint64_t out = crcs->work.address + RESULTS_AT + crcs->batched * sizeof(uint32_t);
    if (sl_kernels_crc(crcs->kernels, crcs->stream, check->kind, at, check->end - check->begin,
                       crcs->work.address + SCRATCH_AT, out, err) < 0)
        return -1;
    crcs->batch[crcs->batched++] = check;
    return crcs->batched == BATCH ? flush(crcs, err) : 0;
}

int sl_gpu_crcs_landed(struct sl_gpu_crcs *crcs, uint32_t file, uint64_t offset, uint64_t bytes,
                       struct sl_err *err)
{
    uint64_t end = offset + bytes;
    for (size_t i = first_after(crcs, file, offset); i < crcs->count; i++) {
        struct crc *crc = &crcs->crcs[i];
        const struct sl_check *check = crc->check;
        if (check->file != file || check->file_offset >= end)
            break;
        crc->left -= SL_MIN(end_of(check), end) - SL_MAX(check->file_offset, offset);
        if (!crc->left && compute(crcs, check, err) < 0)
            return -1;
    }
    return flush(crcs, err);
}

/* ---- life ------------------------------------------------------------------------------------ */

static int make_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_crcs *crcs = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    void *pinned = NULL;
    if (sl_gpu_acquire(gpu, err) < 0)
        return -1;
    crcs->acquired = true;
    crcs->kernels = sl_gpu_kernels(gpu, err);
    if (!crcs->kernels ||
        sl_gpu_check(gpu, cuda->stream_create(&crcs->stream, SL_CUDA_STREAM_NON_BLOCKING), err,
                     "make a stream") < 0 ||
        sl_gpu_check(gpu, cuda->host_alloc(&pinned, SCRATCH_AT, SL_CUDA_HOST_PORTABLE), err,
                     "pin %d bytes of host memory", (int)SCRATCH_AT) < 0)
        return -1;
    crcs->pinned = pinned;
    return 0;
}

static int free_task(struct sl_gpu *gpu, void *arg, struct sl_err *err)
{
    struct sl_gpu_crcs *crcs = arg;
    const struct sl_cuda *cuda = sl_gpu_driver(gpu);
    (void)err;
    if (crcs->stream) {
        cuda->stream_synchronize(crcs->stream);
        cuda->stream_destroy(crcs->stream);
    }
    if (crcs->pinned)
        cuda->host_free(crcs->pinned);
    if (crcs->acquired)
        sl_gpu_release(gpu);
    return 0;
}

/* What the kernels want for the largest. */
static int make_work(struct sl_gpu_crcs *crcs, struct sl_err *err)
{
    uint64_t most = 0;
    for (size_t i = 0; i < crcs->count; i++) {
        const struct sl_check *check = crcs->crcs[i].check;
        most = SL_MAX(most, sl_kernels_crc_scratch(crcs->kernels, check->end - check->begin));
    }
    return sl_gpu_memory_make(crcs->gpu, sl_gpu_round(crcs->gpu, SCRATCH_AT + most), &crcs->work,
                              err);
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

/*
 * A plan's files on their way into memory of a GPU, or of several, with the stages that are done
 * there: the device behind a reader (stage_device.h).
 *
 * Who loads makes memory for the files, says what is wanted (sl_gpu_fill_stages()), makes the fill
 * and runs a reader with its device and a sink that puts bytes into its ring. A model on several
 * GPUs is read once: each buffer of the ring is copied to all of them, and what is decrypted is
 * decrypted on each. Each tells on its own what is true of its memory.
 *
 * Errors are those of gpu.h, and SL_E_INTEGRITY for pieces that stay wrong. One thread makes,
 * finishes and frees a fill; the reader's threads use its device and its ring.
 */
#ifndef SL_GPU_FILL_H
#define SL_GPU_FILL_H

#include "gpu_ring.h"
#include "plan.h"
#include "progress.h"
#include "stage_device.h"

enum { SL_GPU_FILL_TARGETS_MAX = SL_GPU_RING_QUEUES_MAX };

/** One GPU, and what goes there. What it points to is borrowed until the fill is freed. */
struct sl_gpu_fill_target {
    struct sl_gpu *gpu;
    /** Where a file of the plan lies in this GPU's memory, which must stay; NULL: not there. Any
     * thread. */
    const struct sl_gpu_memory *(*memory)(void *arg, uint32_t file);
    void *arg;
    /** The reader's events, as soon as they are true of this GPU's memory. The GPU's thread, so
     * they must be quick. */
    struct sl_stage_events events;
};
struct sl_gpu_fill_config {
    const struct sl_gpu_fill_target *targets; /* only read by sl_gpu_fill_new() */
    size_t target_count;                      /* 1..SL_GPU_FILL_TARGETS_MAX */
    struct sl_cancel *cancel;                 /* borrowed; may be NULL */
    struct sl_progress *progress;             /* the same */
    /** This many bytes of the files come of values cast on their way, not through the sink. The
     * reader's threads. */
    void (*count_cast)(void *arg, uint64_t bytes);
    void *arg;
};

/**
 * Decide what these GPUs do of the plan's work (sl_plan_stages()), and log it with the reason.
 *
 * @plan            its stages are set here.
 * @targets, count  the GPUs, 1 to SL_GPU_FILL_TARGETS_MAX; borrowed for the call.
 * @settings        where the spec wants each stage. For auto it is where a pinned load has it; else
 *                  on the GPU if it has kernels, but for casts to smaller types.
 * @return          0, or -1 with SL_E_GPU (a GPU is wanted that has no kernels) or SL_E_NO_SPACE.
 *
 * Casts and CRCs are of one GPU: what goes to several is made on the host, once. Blocks while
 * kernels are loaded. Any thread but a GPU's.
 */
int sl_gpu_fill_stages(struct sl_plan *plan, const struct sl_gpu_fill_target *targets, size_t count,
                       const struct sl_spec_pool *settings, struct sl_err *err);

struct sl_gpu_fill;
/** The plan (borrowed) has its stages. Any thread but a GPU's; blocks. SL_E_GPU, SL_E_NO_SPACE. */
struct sl_gpu_fill *sl_gpu_fill_new(const struct sl_plan *plan,
                                    const struct sl_gpu_fill_config *config, struct sl_err *err);
/** Ends what is under way, and waits for it. After the run. NULL is fine. */
void sl_gpu_fill_free(struct sl_gpu_fill *fill);
SL_AUTO_DEFINE(sl_gpu_fill)
/** For the reader's config, as long as the fill lives. */
const struct sl_stage_device *sl_gpu_fill_device(const struct sl_gpu_fill *fill);
/** Through which the sink fills the files that lie on the GPUs; the fill's. */
struct sl_gpu_ring *sl_gpu_fill_ring(const struct sl_gpu_fill *fill);
/** The run has ended: wait until everything is on every GPU and right. Blocks.
 * SL_E_CANCELED too. */
int sl_gpu_fill_finish(struct sl_gpu_fill *fill, struct sl_err *err);

#endif

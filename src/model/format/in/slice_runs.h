/* A slice of a row-major tensor as runs of bytes; for the files of this folder. */
#ifndef SL_SLICE_RUNS_H
#define SL_SLICE_RUNS_H

#include "index.h"

/**
 * A slice is a set of equally long runs: the innermost dimensions that are taken whole, and the
 * range in front of them, lie together; all dimensions before those count the runs off like an
 * odometer. Numbers are bits of the tensor's data, since elements may be parts of bytes.
 */
struct sl_slice_runs {
    const struct sl_tensor *tensor;
    const struct sl_slice *slice;
    unsigned outer; /* dimensions that count runs */
    bool cuts_block;
    uint64_t run_bits, count, next;
    uint64_t stride_bits[SL_SLICE_RANK_MAX];
    uint64_t first_bits;            /* of the innermost range */
    uint64_t at[SL_SLICE_RANK_MAX]; /* the odometer */
};
/** Tensor and slice are borrowed. The first run is next. */
void sl_slice_runs_plan(struct sl_slice_runs *runs, const struct sl_tensor *tensor,
                        const struct sl_slice *slice);
/** Do all runs begin and end at whole bytes (st.misaligned) and blocks of quantised types
 * (gg.block)? Then run_bits / 8 is what a run has. */
int sl_slice_runs_check(const struct sl_slice_runs *runs, struct sl_err *err);
/** Where the next run begins, in bytes of the tensor's data. */
uint64_t sl_slice_runs_begin(const struct sl_slice_runs *runs);
/** Go on to the next run, or to run `number`. */
void sl_slice_runs_step(struct sl_slice_runs *runs);
void sl_slice_runs_seek(struct sl_slice_runs *runs, uint64_t number);

#endif

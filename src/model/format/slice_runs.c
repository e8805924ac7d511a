/*
 * Slices as runs: see slice_runs.h.
 */
#include "slice_runs.h"

#include <string.h>

#include "names.h"
#include "tensor_reader.h"

static uint64_t width(const struct sl_slice *slice, unsigned dimension)
{
    return slice->end[dimension] - slice->begin[dimension];
}

/* Elements of a dimension that cannot be parted: quantised types lie in blocks along the last. */
static uint64_t unit(const struct sl_tensor *tensor, unsigned dimension)
{
    return dimension + 1 == tensor->rank ? sl_dtype_row(tensor->dtype)->block : 1;
}

void sl_slice_runs_plan(struct sl_slice_runs *runs, const struct sl_tensor *tensor,
                        const struct sl_slice *slice)
{
    memset(runs, 0, sizeof(*runs));
    runs->tensor = tensor;
    runs->slice = slice;
    uint64_t stride = sl_dtype_row(tensor->dtype)->bits;
    for (unsigned i = tensor->rank; i-- > 0;) {
        runs->stride_bits[i] = stride;
        stride *= tensor->shape[i] / unit(tensor, i);
    }
    unsigned cut = tensor->rank; /* dimensions from cut on are whole */
    while (cut > 0 && width(slice, cut - 1) == tensor->shape[cut - 1])
        cut--;
    runs->outer = cut > 0 ? cut - 1 : 0;
    runs->run_bits = stride;
    if (cut > 0) {
        uint64_t block = unit(tensor, cut - 1);
        runs->run_bits = width(slice, cut - 1) / block * runs->stride_bits[cut - 1];
        runs->first_bits = slice->begin[cut - 1] / block * runs->stride_bits[cut - 1];
        runs->cuts_block = slice->begin[cut - 1] % block || slice->end[cut - 1] % block;
    }
    runs->count = runs->run_bits ? 1 : 0;
    for (unsigned i = 0; i < runs->outer; i++) {
        runs->count *= width(slice, i);
        runs->at[i] = slice->begin[i];
    }
}

static uint64_t run_begin_bits(const struct sl_slice_runs *runs)
{
    uint64_t bits = runs->first_bits;
    for (unsigned i = 0; i < runs->outer; i++)
        bits += runs->at[i] * runs->stride_bits[i];
    return bits;
}

void sl_slice_runs_step(struct sl_slice_runs *runs)
{
    runs->next++;
    for (unsigned i = runs->outer; i-- > 0;) {
        if (++runs->at[i] < runs->slice->end[i])
            return;
        runs->at[i] = runs->slice->begin[i];
    }
}

static int misaligned(const struct sl_tensor *tensor, struct sl_err *err)
{
    return sl_fail_code(
        err, SL_E_FORMAT, "st.misaligned",
        "tensor '%.*s': the slice does not begin and end at whole bytes, as %s would need",
        SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->dtype_name);
}

/* Every run begins and ends at a byte if the first does and all strides of the odometer are whole
 * bytes. */
int sl_slice_runs_check(const struct sl_slice_runs *runs, struct sl_err *err)
{
    if (runs->cuts_block)
        return sl_fail_code(
            err, SL_E_FORMAT, "gg.block",
            "tensor '%.*s': the slice cuts through a block of %s: begin and end at multiples of %u",
            SL_NAME_ARGS(runs->tensor->name, runs->tensor->name_bytes), runs->tensor->dtype_name,
            sl_dtype_row(runs->tensor->dtype)->block);
    bool whole = runs->run_bits % 8 == 0 && run_begin_bits(runs) % 8 == 0;
    for (unsigned i = 0; i < runs->outer; i++)
        whole = whole && (runs->stride_bits[i] % 8 == 0 || width(runs->slice, i) == 1);
    return whole || runs->count == 0 ? 0 : misaligned(runs->tensor, err);
}

uint64_t sl_slice_runs_begin(const struct sl_slice_runs *runs)
{
    return run_begin_bits(runs) / 8;
}

void sl_slice_runs_seek(struct sl_slice_runs *runs, uint64_t number)
{
    runs->next = number;
    for (unsigned i = runs->outer; i-- > 0;) {
        uint64_t many = width(runs->slice, i);
        runs->at[i] = runs->slice->begin[i] + number % many;
        number /= many;
    }
}

int sl_slice_check(const struct sl_tensor *tensor, const struct sl_slice *slice, struct sl_err *err)
{
    struct sl_slice_runs runs;
    sl_slice_runs_plan(&runs, tensor, slice);
    return sl_slice_runs_check(&runs, err);
}

uint64_t sl_slice_bytes(const struct sl_tensor *tensor, const struct sl_slice *slice,
                        uint64_t *shape)
{
    struct sl_slice_runs runs;
    sl_slice_runs_plan(&runs, tensor, slice);
    for (unsigned i = 0; i < tensor->rank && shape; i++)
        shape[i] = width(slice, i);
    return runs.run_bits / 8 * runs.count;
}

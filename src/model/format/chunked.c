/*
 * Training jobs save a tensor as boxes, one a rank: rows, columns, or both. Bytes of such a tensor
 * are asked for in its row-major order: they are cut into boxes of elements that follow each other,
 * and each box is met with every chunk. What they have in common is row by row in the chunk, in
 * runs in the box.
 *
 * That chunks cover a tensor exactly is shown by their sizes, whose sum is the tensor's, and by
 * comparing those that may meet: along the dimension that is cut most often, each with those that
 * begin before it ends.
 */
#include "chunked.h"

#include <inttypes.h>
#include <string.h>

#include "names.h"

static uint64_t width(const struct sl_slice *slice, unsigned dimension)
{
    return slice->end[dimension] - slice->begin[dimension];
}

/* ---- reading --------------------------------------------------------------------------------- */

uint64_t sl_chunked_box(const struct sl_tensor *tensor, const struct sl_slice *slice,
                        uint64_t element, uint64_t most, struct sl_slice *box)
{
    uint64_t inner = 1, count = 1; /* elements of one step of dimension d; of the box */
    bool cut = false;              /* some dimension before d is taken in part */
    for (unsigned d = 0; d < tensor->rank; d++) {
        box->begin[d] = slice ? slice->begin[d] : 0;
        box->end[d] = slice ? slice->end[d] : tensor->shape[d];
        inner *= width(box, d);
    }
    for (unsigned d = 0; d < tensor->rank && !cut; d++) {
        uint64_t steps = width(box, d), row;
        inner /= steps;
        row = element / inner % steps;
        cut = inner <= most && element % inner == 0;
        uint64_t rows = cut ? SL_MIN(most / inner, steps - row) : 1;
        box->begin[d] += row;
        box->end[d] = box->begin[d] + rows;
        count = rows * inner;
    }
    return tensor->rank ? count : 1;
}

bool sl_chunked_part(const struct sl_tensor_chunk *chunk, const struct sl_slice *box,
                     struct sl_chunked_part *part)
{
    bool together = true;
    part->elements = part->run = 1;
    part->first = 0;
    uint64_t stride = 1;
    for (unsigned d = chunk->tensor.rank; d-- > 0;) {
        uint64_t begin = SL_MAX(box->begin[d], chunk->at[d]);
        uint64_t end = SL_MIN(box->end[d], chunk->at[d] + chunk->tensor.shape[d]);
        if (begin >= end)
            return false;
        part->slice.begin[d] = begin - chunk->at[d];
        part->slice.end[d] = end - chunk->at[d];
        part->elements *= end - begin;
        part->run *= together ? end - begin : 1;
        together = together && end - begin == width(box, d);
        part->first += (begin - box->begin[d]) * stride;
        stride *= width(box, d);
    }
    return true;
}

void sl_chunked_scatter(const struct sl_tensor_chunk *chunk, const struct sl_slice *box,
                        const struct sl_chunked_part *part, size_t item, const uint8_t *from,
                        uint8_t *to)
{
    uint64_t at[SL_SLICE_RANK_MAX] = {0}, strides[SL_SLICE_RANK_MAX], stride = 1, inner = 1;
    unsigned rank = chunk->tensor.rank, outer = rank; /* dimensions that count runs */
    for (unsigned d = rank; d-- > 0; stride *= width(box, d)) {
        strides[d] = stride;
        if (inner < part->run) {
            inner *= width(&part->slice, d);
            outer = d;
        }
    }
    uint64_t place = part->first;
    for (uint64_t done = 0; done < part->elements; done += part->run) {
        memcpy(to + place * item, from + done * item, part->run * item);
        for (unsigned d = outer; d-- > 0;) {
            place += strides[d];
            if (++at[d] < width(&part->slice, d))
                break;
            place -= at[d] * strides[d];
            at[d] = 0;
        }
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

#define NAME(tensor) SL_NAME_ARGS((tensor)->name, (tensor)->name_bytes)

static int by_begin(const void *a, const void *b, void *dimension)
{
    uint64_t x = ((const struct sl_tensor_chunk *)a)->at[*(unsigned *)dimension];
    uint64_t y = ((const struct sl_tensor_chunk *)b)->at[*(unsigned *)dimension];
    return (x > y) - (x < y);
}

/* The elements of one; 0: it leaves the tensor. */
static uint64_t size_within(const struct sl_tensor *tensor, const struct sl_tensor_chunk *chunk)
{
    uint64_t elements = 1;
    for (unsigned d = 0; d < tensor->rank; d++) {
        uint64_t most = tensor->shape[d];
        if (chunk->at[d] > most || chunk->tensor.shape[d] > most - chunk->at[d])
            return 0;
        elements *= chunk->tensor.shape[d];
    }
    return elements;
}

/* Sort by the dimension in which most of them begin elsewhere than the one before. */
static unsigned sort_chunks(const struct sl_tensor *tensor, struct sl_tensor_chunk *chunks,
                            size_t count)
{
    unsigned best = 0;
    size_t most = 0;
    for (unsigned d = 0; d < tensor->rank; d++) {
        size_t begins = 1;
        qsort_r(chunks, count, sizeof(*chunks), by_begin, &d);
        for (size_t i = 1; i < count; i++)
            begins += chunks[i].at[d] != chunks[i - 1].at[d];
        if (begins > most) {
            best = d;
            most = begins;
        }
    }
    qsort_r(chunks, count, sizeof(*chunks), by_begin, &best);
    return best;
}

static bool meet(const struct sl_tensor_chunk *a, const struct sl_tensor_chunk *b)
{
    for (unsigned d = 0; d < a->tensor.rank; d++)
        if (a->at[d] >= b->at[d] + b->tensor.shape[d] || b->at[d] >= a->at[d] + a->tensor.shape[d])
            return false;
    return true;
}

static int compare_all(const struct sl_tensor *tensor, const struct sl_tensor_chunk *chunks,
                       size_t count, unsigned along, uint64_t *work, struct sl_err *err)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t end = chunks[i].at[along] + chunks[i].tensor.shape[along];
        for (size_t k = i + 1; k < count && chunks[k].at[along] < end; k++) {
            if (meet(&chunks[i], &chunks[k]))
                return sl_fail_code(err, SL_E_FORMAT, "chunk.overlap",
                                    "tensor '%.*s': two of its %zu chunks hold the same elements",
                                    NAME(tensor), count);
            if (*work == 0)
                return sl_fail_code(err, SL_E_FORMAT, "chunk.limit",
                                    "tensor '%.*s': its %zu chunks lie so that comparing them "
                                    "would take too long: save it with fewer",
                                    NAME(tensor), count);
            --*work;
        }
    }
    return 0;
}

int sl_chunked_check(const struct sl_tensor *tensor, struct sl_tensor_chunk *chunks, size_t count,
                     uint64_t *work, struct sl_err *err)
{
    uint64_t wanted = tensor->bytes / (sl_dtype_row(tensor->dtype)->bits / 8), have = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t elements = size_within(tensor, &chunks[i]);
        if (!elements)
            return sl_fail_code(err, SL_E_FORMAT, "chunk.bounds",
                                "tensor '%.*s': a chunk reaches beyond its shape", NAME(tensor));
        have = have + elements < have ? UINT64_MAX : have + elements;
    }
    unsigned along = count > 1 && tensor->rank ? sort_chunks(tensor, chunks, count) : 0;
    if (tensor->rank == 0 ? count > 1 : compare_all(tensor, chunks, count, along, work, err) < 0)
        return tensor->rank
                   ? -1
                   : sl_fail_code(err, SL_E_FORMAT, "chunk.overlap",
                                  "tensor '%.*s': one number in %zu chunks", NAME(tensor), count);
    if (have != wanted)
        return sl_fail_code(err, SL_E_FORMAT, "chunk.gap",
                            "tensor '%.*s': its %zu chunks hold %" PRIu64 " of %" PRIu64
                            " elements: the checkpoint is not whole",
                            NAME(tensor), count, have, wanted);
    return 0;
}

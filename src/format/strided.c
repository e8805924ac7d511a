/*
 * The span of a slice, from its first element to its last, is fetched at once and its elements are
 * picked out in row-major order: a transposed matrix would need a request per element otherwise. A
 * span above the limit is cut along its outermost dimension, as long as that makes it smaller.
 */
#include "strided.h"

#include <inttypes.h>
#include <string.h>

#include "gather.h"
#include "names.h"

enum { OUT_BYTES = 64 * 1024 };

bool sl_is_strided(const struct sl_tensor *tensor)
{
    return tensor->strides || tensor->swap_bytes > 1;
}

/* A box of elements, and where it lies. */
struct box {
    struct sl_index *index;
    const struct sl_tensor *tensor;
    unsigned rank, item, swap;
    uint64_t width[SL_SLICE_RANK_MAX], stride[SL_SLICE_RANK_MAX];
    uint64_t first; /* element */
};

struct output {
    struct sl_sha256 *sha;
    uint8_t *data;
    size_t used;
};

static void flush(struct output *output)
{
    sl_sha256_update(output->sha, output->data, output->used);
    output->used = 0;
}

static void put_element(struct output *output, const struct box *box, const uint8_t *from)
{
    if (output->used + box->item > OUT_BYTES)
        flush(output);
    uint8_t *to = output->data + output->used;
    output->used += box->item;
    if (box->swap < 2) {
        memcpy(to, from, box->item);
        return;
    }
    for (unsigned part = 0; part < box->item; part += box->swap)
        for (unsigned i = 0; i < box->swap; i++)
            to[part + i] = from[part + box->swap - 1 - i];
}

/* Elements that the box reaches over, its first and last included. */
static uint64_t span(const struct box *box)
{
    uint64_t last = 0;
    for (unsigned i = 0; i < box->rank; i++)
        last += (box->width[i] - 1) * box->stride[i];
    return last + 1;
}

static void put_box(const struct box *box, const uint8_t *data, struct output *output)
{
    uint64_t at[SL_SLICE_RANK_MAX] = {0}, element = 0;
    for (;;) {
        put_element(output, box, data + element * box->item);
        unsigned i = box->rank;
        while (i > 0) {
            i--;
            element += box->stride[i];
            if (++at[i] < box->width[i])
                break;
            element -= box->width[i] * box->stride[i];
            at[i] = 0;
            if (i == 0)
                return;
        }
        if (box->rank == 0)
            return;
    }
}

static int fetch_box(const struct box *box, struct output *output, struct sl_err *err)
{
    uint64_t bytes = span(box) * box->item, begin = box->tensor->begin + box->first * box->item;
    sl_autofree uint8_t *data = sl_alloc(bytes, err);
    struct sl_gather_item item = {begin, begin + bytes, data};
    if (!data || sl_gather(box->index->sources[box->tensor->source], &item, 1, err) < 0)
        return -1;
    put_box(box, data, output);
    return 0;
}

/* The box's outermost dimension that has more than one element; rank if there is none. */
static unsigned outermost(const struct box *box)
{
    unsigned i = 0;
    while (i < box->rank && box->width[i] == 1)
        i++;
    return i;
}

static int put_boxes(const struct box *box, struct output *output, struct sl_err *err)
{
    if (span(box) <= SL_STRIDED_SPAN_BYTES_MAX / box->item)
        return fetch_box(box, output, err);
    unsigned cut = outermost(box);
    struct box row = *box;
    row.width[cut] = 1;
    if (span(&row) > span(box) / 2)
        return sl_fail_code(err, SL_E_FORMAT, "pt.limit",
                            "tensor '%.*s' is a transposed view that spans more than %d bytes: "
                            "save it with .contiguous()",
                            SL_NAME_ARGS(box->tensor->name, box->tensor->name_bytes),
                            SL_STRIDED_SPAN_BYTES_MAX);
    uint64_t most = SL_STRIDED_SPAN_BYTES_MAX / box->item, one = span(&row);
    uint64_t rows = one < most && box->stride[cut] ? (most - one) / box->stride[cut] + 1 : 1;
    for (uint64_t done = 0; done < box->width[cut]; done += row.width[cut]) {
        row.width[cut] = SL_MIN(rows, box->width[cut] - done);
        row.first = box->first + done * box->stride[cut];
        if (put_boxes(&row, output, err) < 0)
            return -1;
    }
    return 0;
}

int sl_strided_hash(struct sl_index *index, const struct sl_tensor *tensor,
                    const struct sl_slice *slice, struct sl_sha256 *sha, struct sl_err *err)
{
    struct box box = {.index = index,
                      .tensor = tensor,
                      .rank = tensor->rank,
                      .item = sl_dtype_row(tensor->dtype)->bits / 8,
                      .swap = tensor->swap_bytes};
    uint64_t stride = 1;
    for (unsigned i = tensor->rank; i-- > 0;) {
        uint64_t begin = slice ? slice->begin[i] : 0,
                 end = slice ? slice->end[i] : tensor->shape[i];
        box.stride[i] = tensor->strides ? tensor->strides[i] : stride;
        box.width[i] = end - begin;
        if (tensor->shape[i] == 1)
            box.stride[i] = 0; /* any number may stand there */
        stride *= tensor->shape[i];
        if (box.width[i] == 0)
            return 0;
        box.first += begin * box.stride[i];
    }
    sl_autofree uint8_t *data = sl_alloc(OUT_BYTES, err);
    struct output output = {.sha = sha, .data = data};
    if (!data || put_boxes(&box, &output, err) < 0)
        return -1;
    flush(&output);
    return 0;
}

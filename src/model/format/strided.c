/*
 * A view is read block by block: a block is a box of elements that follow each other in the
 * plaintext. In storage a box is a lattice; its dimensions sorted by stride, the inner ones whose
 * gaps are small make a chunk, which is fetched whole, and the outer ones count the chunks. A
 * transposed matrix gives many small chunks far apart, and the more rows a block has, the fewer
 * bytes are fetched for nothing: so blocks begin as large as what is asked for and double until
 * they are worth their requests or fill their memory.
 */
#include "strided.h"

#include <assert.h>
#include <string.h>

#include "cast.h"
#include "gather.h"

enum {
    BLOCK_BYTES = 48 * 1024 * 1024,
    BATCH_BYTES = 8 * 1024 * 1024, /* of chunks in flight, and the largest chunk */
    BATCH_CHUNKS = 16384,
    TARGET_BYTES_MIN = 64 * 1024,
    REQUEST_BYTES = 64 * 1024, /* what a request costs, in bytes */
    HASH_BYTES = 4 * 1024 * 1024,
    ALIGNMENT = 64,
    WASTE_MAX = 2, /* bytes fetched and requests made may cost so many times the plaintext */
};

struct dimension {
    uint64_t width, stride, place; /* stride: in storage; place: in the box; elements */
};

/* A box of elements that follow each other in the plaintext. */
struct box {
    unsigned rank;
    struct dimension dimensions[SL_SLICE_RANK_MAX];
    uint64_t begin, end; /* in the plaintext */
    uint64_t first;      /* in storage */
};

struct buffer {
    void *memory;
    uint64_t capacity;
};

struct sl_strided {
    struct sl_source *source;
    const struct sl_tensor *tensor;
    unsigned item;
    struct box whole;
    struct buffer block; /* elements [block_begin, block_end) of the plaintext */
    uint64_t block_begin, block_end;
    struct buffer data, items, landings; /* of a batch; kept, since a heap that gives and takes such
                                            pieces grows */
};

bool sl_is_strided(const struct sl_tensor *tensor)
{
    return tensor->strides || tensor->swap_bytes > 1;
}

/* A dimension that steps on where the next one ends is one with it. */
static void add_dimension(struct box *box, uint64_t width, uint64_t stride)
{
    struct dimension *last = box->rank ? &box->dimensions[box->rank - 1] : NULL;
    if (width == 1)
        return;
    if (last && last->stride == width * stride) {
        last->width *= width;
        last->stride = stride;
        return;
    }
    box->dimensions[box->rank++] = (struct dimension){.width = width, .stride = stride};
}

struct sl_strided *sl_strided_new(struct sl_source *source, const struct sl_tensor *tensor,
                                  const struct sl_slice *slice, struct sl_err *err)
{
    struct sl_strided *strided = sl_alloc(sizeof(*strided), err);
    if (!strided)
        return NULL;
    assert(tensor->rank <= SL_SLICE_RANK_MAX);
    strided->source = source;
    strided->tensor = tensor;
    strided->item = sl_dtype_row(tensor->dtype)->bits / 8;
    uint64_t strides[SL_SLICE_RANK_MAX], stride = 1;
    for (unsigned i = tensor->rank; i-- > 0; stride *= tensor->shape[i])
        strides[i] = tensor->strides ? tensor->strides[i] : stride;
    struct box *whole = &strided->whole;
    whole->end = 1;
    for (unsigned i = 0; i < tensor->rank; i++) {
        uint64_t begin = slice ? slice->begin[i] : 0;
        uint64_t width = (slice ? slice->end[i] : tensor->shape[i]) - begin;
        whole->end *= width;
        if (begin > 0) /* a dimension of one element may have any stride */
            whole->first += begin * strides[i];
        add_dimension(whole, width, strides[i]);
    }
    return strided;
}

void sl_strided_free(struct sl_strided *strided)
{
    if (!strided)
        return;
    free(strided->block.memory);
    free(strided->data.memory);
    free(strided->items.memory);
    free(strided->landings.memory);
    free(strided);
}

uint64_t sl_strided_bytes(const struct sl_strided *strided)
{
    return strided->whole.end * strided->item;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

/* How a box is fetched: dimensions sorted by stride, the largest first; those before `inner` count
 * chunks, the last of them in steps. */
struct chunks {
    unsigned rank, inner;
    struct dimension dimensions[SL_SLICE_RANK_MAX];
    uint64_t step; /* so many of dimension inner - 1 are in one chunk */
    uint64_t span; /* elements that the inner dimensions reach over */
    uint64_t count;
};

static void sort_dimensions(struct chunks *chunks, const struct box *box)
{
    chunks->rank = box->rank;
    for (unsigned i = 0; i < box->rank; i++) {
        unsigned k = i;
        for (; k > 0 && chunks->dimensions[k - 1].stride < box->dimensions[i].stride; k--)
            chunks->dimensions[k] = chunks->dimensions[k - 1];
        chunks->dimensions[k] = box->dimensions[i];
    }
}

static void plan_chunks(struct chunks *chunks, const struct box *box, unsigned item)
{
    uint64_t span_max = BATCH_BYTES / item, gap_max = SL_GATHER_GAP_BYTES / item;
    sort_dimensions(chunks, box);
    chunks->step = chunks->span = chunks->count = 1;
    for (chunks->inner = chunks->rank; chunks->inner > 0; chunks->inner--) {
        const struct dimension *next = &chunks->dimensions[chunks->inner - 1];
        if (next->stride > chunks->span && next->stride - chunks->span > gap_max)
            break;
        uint64_t more = (next->width - 1) * next->stride;
        if (chunks->span + more > span_max) {
            chunks->step = (span_max - chunks->span) / next->stride + 1;
            break;
        }
        chunks->span += more;
    }
    for (unsigned i = 0; i < chunks->inner; i++) {
        uint64_t step = i + 1 == chunks->inner ? chunks->step : 1;
        chunks->count *= (chunks->dimensions[i].width + step - 1) / step;
    }
}

/* Elements that the chunk with so many steps of its outermost dimension reaches over. */
static uint64_t chunk_span(const struct chunks *chunks, uint64_t steps)
{
    return chunks->inner ? chunks->span + (steps - 1) * chunks->dimensions[chunks->inner - 1].stride
                         : chunks->span;
}

/* Is a box worth what it costs to fetch? */
static bool is_worth(const struct chunks *chunks, const struct box *box, unsigned item)
{
    unsigned __int128 cost = chunk_span(chunks, chunks->step) * item + REQUEST_BYTES;
    return cost * chunks->count <= (unsigned __int128)(box->end - box->begin) * item * WASTE_MAX;
}

/* ---- copying --------------------------------------------------------------------------------- */

#define COPY_ITEMS(type)                                                                           \
    for (uint64_t i = 0; i < count; i++)                                                           \
    memcpy(to + i * place * sizeof(type), from + i * stride * sizeof(type), sizeof(type))

/* Elements of one dimension. */
static void copy_row(uint8_t *to, uint64_t place, const uint8_t *from, uint64_t stride,
                     uint64_t count, unsigned item)
{
    if (place == 1 && stride == 1)
        memcpy(to, from, count * item);
    else if (item == 1)
        COPY_ITEMS(uint8_t);
    else if (item == 2)
        COPY_ITEMS(uint16_t);
    else if (item == 4)
        COPY_ITEMS(uint32_t);
    else if (item == 8)
        COPY_ITEMS(uint64_t);
    else
        for (uint64_t i = 0; i < count; i++)
            memcpy(to + i * place * item, from + i * stride * item, item);
}

/* The elements of a chunk to their places. */
static void copy_chunk(const struct chunks *chunks, uint64_t steps, const uint8_t *from,
                       uint8_t *to, unsigned item)
{
    unsigned first = chunks->inner ? chunks->inner - 1 : 0, last = chunks->rank - 1;
    if (chunks->rank == 0) {
        memcpy(to, from, item);
        return;
    }
    uint64_t at[SL_SLICE_RANK_MAX] = {0}, stored = 0, placed = 0;
    const struct dimension *row = &chunks->dimensions[last];
    uint64_t row_width = last == first && chunks->inner ? steps : row->width;
    for (;;) {
        copy_row(to + placed * item, row->place, from + stored * item, row->stride, row_width,
                 item);
        unsigned i = last;
        for (; i > first; i--) {
            const struct dimension *next = &chunks->dimensions[i - 1];
            uint64_t width = i - 1 == first && chunks->inner ? steps : next->width;
            stored += next->stride;
            placed += next->place;
            if (++at[i - 1] < width)
                break;
            stored -= width * next->stride;
            placed -= width * next->place;
            at[i - 1] = 0;
        }
        if (i == first)
            return;
    }
}

/* ---- fetching -------------------------------------------------------------------------------- */

/* Chunks that are fetched together. */
struct batch {
    struct sl_strided *strided;
    const struct chunks *chunks;
    struct sl_gather_item *items;
    struct piece_place {
        uint64_t place, steps;
    } * landings;
    uint8_t *data;
    size_t count, count_max, used, used_max;
};

static int flush(struct batch *batch, struct sl_err *err)
{
    struct sl_strided *strided = batch->strided;
    if (batch->count == 0)
        return 0;
    if (sl_gather(strided->source, batch->items, batch->count, err) < 0)
        return -1;
    for (size_t i = 0; i < batch->count; i++)
        copy_chunk(batch->chunks, batch->landings[i].steps, batch->items[i].data,
                   (uint8_t *)strided->block.memory + batch->landings[i].place * strided->item,
                   strided->item);
    batch->count = batch->used = 0;
    return 0;
}

/* Chunks come in the order of their beginnings; those that overlap are fetched one by one. */
static int add_chunk(struct batch *batch, uint64_t first, uint64_t place, uint64_t steps,
                     struct sl_err *err)
{
    const struct sl_strided *strided = batch->strided;
    uint64_t begin = strided->tensor->begin + first * strided->item;
    size_t bytes = chunk_span(batch->chunks, steps) * strided->item;
    bool full = batch->count == batch->count_max || batch->used + bytes > batch->used_max;
    if ((full || (batch->count && begin < batch->items[batch->count - 1].end)) &&
        flush(batch, err) < 0)
        return -1;
    batch->items[batch->count] =
        (struct sl_gather_item){begin, begin + bytes, batch->data + batch->used};
    batch->landings[batch->count++] = (struct piece_place){place, steps};
    batch->used += bytes;
    return 0;
}

static int add_chunks(struct batch *batch, uint64_t first, struct sl_err *err)
{
    const struct chunks *chunks = batch->chunks;
    uint64_t at[SL_SLICE_RANK_MAX] = {0};
    for (;;) {
        uint64_t stored = first, place = 0, steps = 1;
        for (unsigned i = 0; i < chunks->inner; i++) {
            stored += at[i] * chunks->dimensions[i].stride;
            place += at[i] * chunks->dimensions[i].place;
            steps = SL_MIN(chunks->step, chunks->dimensions[i].width - at[i]);
        }
        if (add_chunk(batch, stored, place, steps, err) < 0)
            return -1;
        unsigned i = chunks->inner;
        for (; i > 0; i--) {
            at[i - 1] += i == chunks->inner ? chunks->step : 1;
            if (at[i - 1] < chunks->dimensions[i - 1].width)
                break;
            at[i - 1] = 0;
        }
        if (i == 0)
            return flush(batch, err);
    }
}

/* At least so many bytes; what was there is lost. */
static int grow(struct buffer *buffer, uint64_t bytes, struct sl_err *err)
{
    if (buffer->capacity >= bytes)
        return 0;
    free(buffer->memory);
    buffer->capacity = 0;
    buffer->memory = sl_alloc_aligned(ALIGNMENT, bytes, err);
    if (!buffer->memory)
        return -1;
    buffer->capacity = bytes;
    return 0;
}

static int fetch_chunks(struct sl_strided *strided, const struct chunks *chunks, uint64_t first,
                        struct sl_err *err)
{
    uint64_t chunk_bytes = chunk_span(chunks, chunks->step) * strided->item;
    uint64_t count = SL_MIN(SL_MIN(chunks->count, (uint64_t)BATCH_CHUNKS),
                            SL_MAX(BATCH_BYTES / chunk_bytes, UINT64_C(1)));
    if (grow(&strided->items, count * sizeof(struct sl_gather_item), err) < 0 ||
        grow(&strided->landings, count * sizeof(struct piece_place), err) < 0 ||
        grow(&strided->data, count * chunk_bytes, err) < 0)
        return -1;
    struct batch batch = {.strided = strided,
                          .chunks = chunks,
                          .items = strided->items.memory,
                          .landings = strided->landings.memory,
                          .data = strided->data.memory,
                          .count_max = count,
                          .used_max = count * chunk_bytes};
    return add_chunks(&batch, first, err);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* The box that begins with element `begin`, of at most `target` elements. */
static void choose_box(const struct box *whole, uint64_t begin, uint64_t target, struct box *box)
{
    uint64_t inner = whole->end; /* elements of one step of dimension d */
    unsigned d = 0;
    *box = (struct box){.begin = begin, .end = begin + 1, .first = whole->first};
    for (; d < whole->rank; d++) {
        const struct dimension *dimension = &whole->dimensions[d];
        inner /= dimension->width;
        uint64_t row = begin / inner % dimension->width;
        box->first += row * dimension->stride;
        if (inner > target || begin % inner != 0)
            continue;
        uint64_t rows = SL_MIN(target / inner, dimension->width - row);
        box->dimensions[box->rank++] = (struct dimension){rows, dimension->stride, inner};
        box->end = begin + rows * inner;
        break;
    }
    while (++d < whole->rank) {
        const struct dimension *dimension = &whole->dimensions[d];
        inner /= dimension->width;
        box->dimensions[box->rank++] =
            (struct dimension){dimension->width, dimension->stride, inner};
    }
}

static unsigned swapped_items(const struct sl_strided *strided)
{
    return strided->tensor->swap_bytes > 1 ? strided->item / strided->tensor->swap_bytes : 0;
}

/* Fetch a block that begins with this element, `wanted` elements or more if that is cheaper. */
static int fetch_block(struct sl_strided *strided, uint64_t begin, uint64_t wanted,
                       struct sl_err *err)
{
    const struct box *whole = &strided->whole;
    uint64_t most = SL_MIN(BLOCK_BYTES / strided->item, whole->end - begin);
    uint64_t target = SL_MIN(SL_MAX(wanted, TARGET_BYTES_MIN / strided->item), most);
    struct box box;
    struct chunks chunks;
    for (;; target = SL_MIN(target * 2, most)) {
        choose_box(whole, begin, target, &box);
        plan_chunks(&chunks, &box, strided->item);
        if (target == most || is_worth(&chunks, &box, strided->item))
            break;
    }
    strided->block_begin = strided->block_end = 0;
    uint64_t elements = box.end - box.begin;
    if (grow(&strided->block, elements * strided->item, err) < 0 ||
        fetch_chunks(strided, &chunks, box.first, err) < 0)
        return -1;
    if (strided->tensor->swap_bytes > 1)
        sl_swap_bytes(strided->block.memory, strided->tensor->swap_bytes,
                      elements * swapped_items(strided));
    strided->block_begin = box.begin;
    strided->block_end = box.end;
    return 0;
}

int sl_strided_read(struct sl_strided *strided, uint64_t begin, uint64_t end, void *out,
                    struct sl_err *err)
{
    uint8_t *to = out;
    unsigned item = strided->item;
    assert(begin <= end && end <= sl_strided_bytes(strided));
    while (begin < end) {
        uint64_t element = begin / item;
        bool held = element >= strided->block_begin && element < strided->block_end;
        if (!held && fetch_block(strided, element, (end + item - 1) / item - element, err) < 0)
            return -1;
        uint64_t bytes = SL_MIN(end, strided->block_end * item) - begin;
        memcpy(to, (uint8_t *)strided->block.memory + (begin - strided->block_begin * item), bytes);
        to += bytes;
        begin += bytes;
    }
    return 0;
}

int sl_strided_hash(struct sl_index *index, const struct sl_tensor *tensor,
                    const struct sl_slice *slice, struct sl_sha256 *sha, struct sl_err *err)
{
    SL_AUTO(sl_strided)
    strided = sl_strided_new(index->sources[tensor->source], tensor, slice, err);
    if (!strided)
        return -1;
    uint64_t bytes = sl_strided_bytes(strided), piece = SL_MIN(bytes, (uint64_t)HASH_BYTES);
    sl_autofree uint8_t *data = sl_alloc(piece, err);
    if (!data)
        return -1;
    for (uint64_t at = 0; at < bytes; at += piece) {
        uint64_t end = SL_MIN(at + piece, bytes);
        if (sl_strided_read(strided, at, end, data, err) < 0)
            return -1;
        sl_sha256_update(sha, data, end - at);
    }
    return 0;
}

/*
 * Bytes of a tensor, or of a slice of it, as the plaintext that they stand for. One of five ways,
 * by what is stored: nothing (zeros of meta tensors), the bytes themselves, ciphertext
 * (piece_reader.c), elements in another order (strided.c); or chunks, each of which is a tensor
 * that is stored in one of these ways (chunked.c). A slice is taken run by run; runs of plain bytes
 * that lie near each other share a request.
 */
#include "tensor_reader.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "chunk_check.h"
#include "chunked.h"
#include "gather.h"
#include "hash.h"
#include "names.h"
#include "piece_reader.h"
#include "slice_runs.h"
#include "strided.h"

enum {
    ITEMS_MAX = 16384, /* runs fetched at once */
    BOX_BYTES_MAX = 8 * 1024 * 1024,
    HASH_BYTES = 4 * 1024 * 1024,
    ITEM_BYTES_MAX = 16,
};

struct sl_tensor_reader {
    struct sl_index *index;
    bool own;                   /* its sources are the index's */
    struct sl_source **sources; /* clones, made when they are needed */
    struct sl_piece_reader pieces;
    struct { /* what was read last in another order than its own */
        struct sl_strided *strided;
        const struct sl_tensor *tensor;
        bool sliced;
        struct sl_slice slice;
    } last;
    struct sl_chunk_check *check; /* NULL: none */
    uint8_t *box;                 /* of a chunk whose elements are apart in what is asked for */
    size_t box_bytes;
};

static struct sl_tensor_reader *reader_new(struct sl_index *index, bool own, struct sl_err *err)
{
    SL_AUTO(sl_tensor_reader) reader = sl_alloc(sizeof(*reader), err);
    if (!reader)
        return NULL;
    reader->index = index;
    reader->own = own;
    if (!own)
        reader->sources = sl_alloc_array(index->source_count, sizeof(*reader->sources), err);
    return own || reader->sources ? sl_steal(&reader) : NULL;
}

struct sl_tensor_reader *sl_tensor_reader_new(struct sl_index *index, struct sl_err *err)
{
    return reader_new(index, false, err);
}

struct sl_tensor_reader *sl_tensor_reader_own(struct sl_index *index, struct sl_err *err)
{
    return reader_new(index, true, err);
}

void sl_tensor_reader_free(struct sl_tensor_reader *reader)
{
    if (!reader)
        return;
    sl_strided_free(reader->last.strided);
    for (size_t i = 0; reader->sources && i < reader->index->source_count; i++)
        sl_source_free(reader->sources[i]);
    free(reader->sources);
    sl_piece_reader_release(&reader->pieces);
    free(reader->box);
    free(reader);
}

static struct sl_source *source_of(struct sl_tensor_reader *reader, uint32_t number,
                                   struct sl_err *err)
{
    if (reader->own)
        return reader->index->sources[number];
    if (!reader->sources[number])
        reader->sources[number] = sl_index_clone_source(reader->index, number, err);
    return reader->sources[number];
}

/* ---- whole tensors --------------------------------------------------------------------------- */

/* A range of the tensor's data that lies together. */
static int read_range(struct sl_tensor_reader *reader, struct sl_source *source,
                      const struct sl_tensor *tensor, uint64_t begin, uint64_t end, uint8_t *out,
                      struct sl_err *err)
{
    if (tensor->encrypted)
        return sl_piece_reader_read(&reader->pieces, reader->index, source, tensor, begin, end, out,
                                    err);
    return sl_source_read(source, tensor->begin + begin, out, end - begin, err);
}

static bool same_slice(const struct sl_slice *a, const struct sl_slice *b, unsigned rank)
{
    return memcmp(a->begin, b->begin, rank * sizeof(*a->begin)) == 0 &&
           memcmp(a->end, b->end, rank * sizeof(*a->end)) == 0;
}

static int read_strided(struct sl_tensor_reader *reader, struct sl_source *source,
                        const struct sl_tensor *tensor, const struct sl_slice *slice,
                        uint64_t begin, uint64_t end, uint8_t *out, struct sl_err *err)
{
    bool same = reader->last.strided && reader->last.tensor == tensor &&
                reader->last.sliced == (slice != NULL) &&
                (!slice || same_slice(&reader->last.slice, slice, tensor->rank));
    if (!same) {
        sl_strided_free(reader->last.strided);
        reader->last.strided = sl_strided_new(source, tensor, slice, err);
        reader->last.tensor = tensor;
        reader->last.sliced = slice != NULL;
        if (slice)
            reader->last.slice = *slice;
    }
    return reader->last.strided ? sl_strided_read(reader->last.strided, begin, end, out, err) : -1;
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* What is left of a slice's range: it begins `skip` bytes into the next run. */
struct part {
    struct sl_slice_runs runs;
    uint64_t run_bytes, skip, left;
    uint8_t *out;
};

static void part_begin(struct part *part, uint64_t begin, uint64_t end, uint8_t *out)
{
    part->run_bytes = part->runs.run_bits / 8;
    part->left = end - begin;
    part->out = out;
    if (part->left == 0)
        return;
    sl_slice_runs_seek(&part->runs, begin / part->run_bytes);
    part->skip = begin % part->run_bytes;
}

/* The next bytes that lie together: where in the tensor's data, how many. */
static uint64_t part_next(struct part *part, uint64_t *bytes)
{
    uint64_t begin = sl_slice_runs_begin(&part->runs) + part->skip;
    *bytes = SL_MIN(part->run_bytes - part->skip, part->left);
    part->skip = 0;
    part->left -= *bytes;
    part->out += *bytes;
    sl_slice_runs_step(&part->runs);
    return begin;
}

static int gather_part(struct sl_source *source, struct part *part, struct sl_err *err)
{
    const struct sl_tensor *tensor = part->runs.tensor;
    uint64_t runs = SL_MIN((part->skip + part->left - 1) / part->run_bytes + 1, ITEMS_MAX);
    sl_autofree struct sl_gather_item *items = sl_alloc_array(runs, sizeof(*items), err);
    if (!items)
        return -1;
    while (part->left > 0) {
        size_t count = 0;
        for (; part->left > 0 && count < runs; count++) {
            uint64_t bytes;
            uint8_t *out = part->out;
            uint64_t begin = tensor->begin + part_next(part, &bytes);
            items[count] = (struct sl_gather_item){begin, begin + bytes, out};
        }
        if (sl_gather(source, items, count, err) < 0)
            return -1;
    }
    return 0;
}

static int read_slice(struct sl_tensor_reader *reader, struct sl_source *source, struct part *part,
                      struct sl_err *err)
{
    const struct sl_tensor *tensor = part->runs.tensor;
    if (part->left == 0)
        return 0;
    bool together = part->left <= part->run_bytes - part->skip;
    if (!tensor->encrypted && !together && !sl_source_verifier(source)) /* gathers pass it by */
        return gather_part(source, part, err);
    while (part->left > 0) {
        uint64_t bytes;
        uint8_t *out = part->out;
        uint64_t begin = part_next(part, &bytes);
        if (read_range(reader, source, tensor, begin, begin + bytes, out, err) < 0)
            return -1;
    }
    return 0;
}

static int read_part(struct sl_tensor_reader *reader, const struct sl_tensor *tensor,
                     const struct sl_slice *slice, uint64_t begin, uint64_t end, uint8_t *out,
                     struct sl_err *err)
{
    struct part part;
    sl_slice_runs_plan(&part.runs, tensor, slice);
    if (sl_slice_runs_check(&part.runs, err) < 0)
        return -1;
    struct sl_source *source = source_of(reader, tensor->source, err);
    if (!source)
        return -1;
    part_begin(&part, begin, end, out);
    int result = read_slice(reader, source, &part, err);
    if (result < 0 && tensor->encrypted)
        sl_crypt_wipe(out, end - begin);
    return result;
}

/* ---- chunks ---------------------------------------------------------------------------------- */

void sl_tensor_reader_check(struct sl_tensor_reader *reader, struct sl_chunk_check *check)
{
    reader->check = check;
}

/* Where the part begins in the chunk, of which it is elements that follow each other: of a whole
 * tensor all boxes are such. */
static uint64_t part_begin_in(const struct sl_tensor *tensor, const struct sl_chunked_part *part)
{
    uint64_t begin = 0;
    for (unsigned d = 0; d < tensor->rank; d++)
        begin = begin * tensor->shape[d] + part->slice.begin[d];
    return begin;
}

/* What the chunk has of a box. */
static int read_chunk(struct sl_tensor_reader *reader, const struct sl_tensor_chunk *chunk,
                      const struct sl_slice *box, size_t item, uint8_t *out, bool checked,
                      struct sl_err *err)
{
    struct sl_chunked_part part;
    if (!sl_chunked_part(chunk, box, &part))
        return 0;
    size_t bytes = part.elements * item;
    bool together = part.run == part.elements;
    if (!together && sl_grow(&reader->box, &reader->box_bytes, bytes, 1, err) < 0)
        return -1;
    uint8_t *to = together ? out + part.first * item : reader->box;
    if (sl_tensor_read(reader, &chunk->tensor, &part.slice, 0, bytes, to, err) < 0)
        return -1;
    if (checked &&
        sl_chunk_check_add(reader->check, chunk, part_begin_in(&chunk->tensor, &part) * item, to,
                           bytes, err) < 0)
        return -1;
    if (!together)
        sl_chunked_scatter(chunk, box, &part, item, to, out);
    return 0;
}

static int read_box(struct sl_tensor_reader *reader, const struct sl_tensor *tensor,
                    const struct sl_slice *box, size_t item, uint8_t *out, bool checked,
                    struct sl_err *err)
{
    for (size_t i = 0; i < tensor->chunk_count; i++)
        if (read_chunk(reader, &tensor->chunks[i], box, item, out, checked, err) < 0)
            return -1;
    return 0;
}

static int read_chunks(struct sl_tensor_reader *reader, const struct sl_tensor *tensor,
                       const struct sl_slice *slice, uint64_t begin, uint64_t end, uint8_t *out,
                       struct sl_err *err)
{
    size_t item = sl_dtype_row(tensor->dtype)->bits / 8;
    struct sl_slice box;
    while (begin < end) {
        uint8_t one[ITEM_BYTES_MAX];
        uint64_t skip = begin % item, most = SL_MIN(end - begin, (uint64_t)BOX_BYTES_MAX) / item;
        bool whole = !skip && most; /* else a part of one element */
        uint64_t count = sl_chunked_box(tensor, slice, begin / item, whole ? most : 1, &box);
        uint64_t bytes = whole ? count * item : SL_MIN(item - skip, end - begin);
        bool checked = reader->check && whole && !slice;
        if (read_box(reader, tensor, &box, item, whole ? out : one, checked, err) < 0)
            return -1;
        if (!whole)
            memcpy(out, one + skip, bytes);
        out += bytes;
        begin += bytes;
    }
    return 0;
}

/* ---- any tensor ------------------------------------------------------------------------------ */

int sl_tensor_read(struct sl_tensor_reader *reader, const struct sl_tensor *tensor,
                   const struct sl_slice *slice, uint64_t begin, uint64_t end, void *out,
                   struct sl_err *err)
{
    assert(begin <= end && end <= (slice ? sl_slice_bytes(tensor, slice, NULL) : tensor->bytes));
    if (tensor->refused)
        return sl_fail_code(err, (enum sl_err_kind)tensor->refused, tensor->refused_code,
                            "tensor '%.*s': %s", SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                            tensor->refused_why);
    if (tensor->meta) {
        memset(out, 0, end - begin);
        return 0;
    }
    if (tensor->chunks)
        return read_chunks(reader, tensor, slice, begin, end, out, err);
    struct sl_source *source = source_of(reader, tensor->source, err);
    if (!source)
        return -1;
    if (sl_is_strided(tensor))
        return read_strided(reader, source, tensor, slice, begin, end, out, err);
    if (slice)
        return read_part(reader, tensor, slice, begin, end, out, err);
    return read_range(reader, source, tensor, begin, end, out, err);
}

int sl_tensor_hash(struct sl_index *index, const struct sl_tensor *tensor,
                   const struct sl_slice *slice, struct sl_sha256 *sha, struct sl_err *err)
{
    uint64_t bytes = slice ? sl_slice_bytes(tensor, slice, NULL) : tensor->bytes;
    SL_AUTO(sl_tensor_reader) reader = sl_tensor_reader_own(index, err);
    sl_autofree uint8_t *data = sl_alloc(SL_MIN(bytes, (uint64_t)HASH_BYTES), err);
    if (!reader || !data)
        return -1;
    for (uint64_t at = 0; at < bytes;) {
        uint64_t end = SL_MIN(bytes, at + HASH_BYTES);
        if (sl_tensor_read(reader, tensor, slice, at, end, data, err) < 0)
            return -1;
        sl_sha256_update(sha, data, end - at);
        at = end;
    }
    return 0;
}

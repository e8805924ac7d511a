/*
 * The tensor directory. Each entry is judged as it is read, by its own numbers: name, dimensions,
 * type, blocks, size, all in checked arithmetic. Names and places follow when all are there,
 * because only then the data's begin is known: tensors lie in the order of the directory, each at
 * the padded end of the one before, as ggml demands.
 */
#include <inttypes.h>
#include <string.h>

#include "buf.h"
#include "gguf.h"
#include "names.h"

enum { NAME_BYTES_MAX = 63, RANK_MAX = 4 };

/* ggml's numbers. Those that are missing were removed or are not known yet. */
static const struct {
    uint32_t number;
    enum sl_dtype dtype;
} types[] = {
    {0, SL_DTYPE_F32},  {1, SL_DTYPE_F16},  {24, SL_DTYPE_I8},  {25, SL_DTYPE_I16},
    {26, SL_DTYPE_I32}, {27, SL_DTYPE_I64}, {28, SL_DTYPE_F64}, {30, SL_DTYPE_BF16},
#define SL_DTYPE(id, bits, safetensors, numpy, torch)
#define SL_DTYPE_BLOCK(id, elements, bytes, ggml) {ggml, SL_DTYPE_##id},
#include "dtypes.def"
#undef SL_DTYPE
#undef SL_DTYPE_BLOCK
};

/* ---- one entry ------------------------------------------------------------------------------- */

static int take_name(struct sl_index *index, struct sl_gguf_walk *walk, struct sl_tensor *tensor,
                     struct sl_err *err)
{
    static const char what[] = "the name of a tensor";
    uint64_t bytes;
    if (sl_gguf_take_length(walk, what, &bytes, err) < 0)
        return -1;
    if (bytes > NAME_BYTES_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.name",
                            "tensor %zu has a name of %" PRIu64 " bytes, limit %d",
                            index->tensor_count, bytes, NAME_BYTES_MAX);
    const uint8_t *data = sl_gguf_take(walk, bytes, what, err);
    char *name = data ? sl_index_alloc(index, bytes + 1, err) : NULL;
    if (!name)
        return -1;
    memcpy(name, data, bytes);
    if (!sl_is_utf8(name, bytes) || strlen(name) != bytes)
        return sl_fail_code(err, SL_E_FORMAT, "gg.name",
                            "the name of tensor %zu is not UTF-8 without NUL", index->tensor_count);
    return sl_index_plain_name(index, tensor, name, bytes, err);
}

/* The file's first dimension is the fastest, ours the slowest. */
static int take_shape(struct sl_index *index, struct sl_gguf_walk *walk, struct sl_tensor *tensor,
                      struct sl_err *err)
{
    static const char what[] = "the shape of a tensor";
    uint32_t rank;
    if (sl_gguf_take_u32(walk, what, &rank, err) < 0)
        return -1;
    if (rank > RANK_MAX)
        return sl_fail_code(err, SL_E_FORMAT, "gg.dims",
                            "tensor '%s' has %" PRIu32 " dimensions, limit %d", tensor->name, rank,
                            RANK_MAX);
    uint64_t *shape = sl_index_alloc(index, RANK_MAX * sizeof(*shape), err);
    if (!shape)
        return -1;
    for (unsigned i = rank; i-- > 0;) {
        if (sl_gguf_take_u64(walk, what, &shape[i], err) < 0)
            return -1;
        if (shape[i] > INT64_MAX)
            return sl_fail_code(err, SL_E_FORMAT, "gg.dims",
                                "tensor '%s' has a dimension of %" PRIu64, tensor->name, shape[i]);
    }
    tensor->shape = shape;
    tensor->rank = rank;
    return 0;
}

/* Of a file that is wanted as it is: where the next tensor begins says how long it is. */
static int note_type(struct sl_index *index, struct sl_tensor *tensor, uint32_t number,
                     struct sl_err *err)
{
    tensor->dtype_name = "unknown";
    if (index->unread)
        return 0;
    sl_autofree char *why =
        sl_asprintf(err, "tensor '%s' has type %" PRIu32 ", which this version does not know",
                    tensor->name, number);
    if (!why || sl_index_keep(index, why, err) < 0)
        return -1;
    index->unread = sl_steal(&why);
    return 0;
}

static int take_type(struct sl_index *index, struct sl_gguf_walk *walk, struct sl_tensor *tensor,
                     struct sl_err *err)
{
    uint32_t number;
    if (sl_gguf_take_u32(walk, "the type of a tensor", &number, err) < 0)
        return -1;
    for (unsigned i = 0; i < SL_COUNT(types); i++)
        if (types[i].number == number)
            tensor->dtype = types[i].dtype;
    if (!tensor->dtype && index->files)
        return note_type(index, tensor, number, err);
    if (!tensor->dtype)
        return sl_fail_code(err, SL_E_FORMAT, "gg.type",
                            "tensor '%s' has type %" PRIu32
                            ", which ggml has removed or a newer sluice may read",
                            tensor->name, number);
    tensor->dtype_name = sl_dtype_row(tensor->dtype)->name;
    return 0;
}

static int set_size(struct sl_tensor *tensor, struct sl_err *err)
{
    const struct sl_dtype_row *row = sl_dtype_row(tensor->dtype);
    uint64_t row_elements = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    if (row_elements % row->block)
        return sl_fail_code(err, SL_E_FORMAT, "gg.block",
                            "tensor '%s': rows of %" PRIu64
                            " elements are not a whole number of blocks of %u, as %s has",
                            tensor->name, row_elements, row->block, row->name);
    int64_t elements = 1, bytes;
    bool overflow = false, empty = false;
    for (unsigned i = 0; i < tensor->rank; i++) { /* of empty tensors all other dimensions */
        empty = empty || tensor->shape[i] == 0;
        overflow =
            overflow || __builtin_mul_overflow(elements, SL_MAX(tensor->shape[i], 1), &elements);
    }
    overflow =
        overflow || __builtin_mul_overflow(elements / row->block + (elements % row->block != 0),
                                           row->bits / 8, &bytes);
    if (overflow)
        return sl_fail_code(err, SL_E_FORMAT, "gg.dims",
                            "tensor '%s': its shape has more than 2^63 elements or bytes",
                            tensor->name);
    tensor->bytes = empty ? 0 : (uint64_t)bytes;
    return 0;
}

/* begin is relative to the data until all is read. */
static int take_entry(struct sl_index *index, struct sl_gguf_walk *walk, struct sl_err *err)
{
    struct sl_tensor *tensor = sl_index_add_tensor(index, err);
    if (!tensor || take_name(index, walk, tensor, err) < 0 ||
        take_shape(index, walk, tensor, err) < 0 || take_type(index, walk, tensor, err) < 0 ||
        (tensor->dtype && set_size(tensor, err) < 0))
        return -1;
    return sl_gguf_take_u64(walk, "the offset of a tensor", &tensor->begin, err);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static int check_names(const struct sl_index *index, struct sl_err *err)
{
    sl_autofree uint32_t *sorted = sl_names_sort(index->tensors, index->tensor_count, err);
    if (!sorted)
        return -1;
    size_t twice = sl_names_duplicate(index->tensors, sorted, index->tensor_count);
    if (twice == SIZE_MAX)
        return 0;
    return sl_fail_code(err, SL_E_FORMAT, "gg.duplicate-tensor", "two tensors are named '%s'",
                        index->tensors[twice].name);
}

static bool round_up(uint64_t value, uint32_t alignment, uint64_t *rounded)
{
    if (__builtin_add_overflow(value, alignment - 1, rounded))
        return false;
    *rounded &= ~(uint64_t)(alignment - 1);
    return true;
}

/* Is the tensor where the ones before it end? Its place in the object follows from that. */
static int place(struct sl_tensor *tensor, uint64_t *next, uint64_t data_begin,
                 uint64_t object_bytes, uint32_t alignment, struct sl_err *err)
{
    if (tensor->begin != *next)
        return sl_fail_code(err, SL_E_FORMAT, "gg.offset",
                            "tensor '%s' begins at %" PRIu64 " by the header"
                            ", but the one before it ends at %" PRIu64 " with alignment %" PRIu32,
                            tensor->name, tensor->begin, *next, alignment);
    uint64_t begin, end;
    bool inside = !__builtin_add_overflow(data_begin, tensor->begin, &begin) &&
                  !__builtin_add_overflow(begin, tensor->bytes, &end) &&
                  round_up(tensor->begin + tensor->bytes, alignment, next);
    if (!inside || (tensor->bytes > 0 && end > object_bytes))
        return sl_fail_code(err, SL_E_FORMAT, "gg.bounds",
                            "tensor '%s' of %" PRIu64 " bytes at %" PRIu64
                            " goes beyond the file's end at %" PRIu64 ": it is cut off",
                            tensor->name, tensor->bytes, tensor->begin, object_bytes);
    tensor->begin =
        SL_MIN(begin, object_bytes); /* the padding before an empty one may be missing */
    tensor->end = SL_MIN(end, object_bytes);
    return 0;
}

/* Tensors of unknown types fill what lies up to the next one, and there must be something. */
static int size_unknown(struct sl_index *index, uint64_t data_begin, uint64_t object_bytes,
                        struct sl_err *err)
{
    uint64_t end = SL_MAX(object_bytes, data_begin) - data_begin;
    for (size_t i = index->tensor_count; i-- > 0;) {
        struct sl_tensor *tensor = &index->tensors[i];
        bool empty = false;
        for (unsigned d = 0; d < tensor->rank; d++)
            empty = empty || tensor->shape[d] == 0;
        if (!tensor->dtype && !empty && tensor->begin >= end)
            return sl_fail_code(err, SL_E_FORMAT, "gg.bounds",
                                "tensor '%s' begins at %" PRIu64 " of %" PRIu64
                                " bytes of data: the file is cut off, store it again",
                                tensor->name, tensor->begin, end);
        if (!tensor->dtype && !empty)
            tensor->bytes = end - tensor->begin;
        end = tensor->begin;
    }
    return 0;
}

int sl_gguf_tensors(struct sl_index *index, struct sl_gguf_walk *walk, uint64_t count,
                    uint32_t alignment, struct sl_err *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (take_entry(index, walk, err) < 0)
            return -1;
    if (check_names(index, err) < 0)
        return -1;
    uint64_t data_begin, next = 0;
    round_up(walk->at, alignment, &data_begin); /* at is below the header's limit */
    if (index->unread && size_unknown(index, data_begin, walk->object_bytes, err) < 0)
        return -1;
    for (size_t i = 0; i < index->tensor_count; i++)
        if (place(&index->tensors[i], &next, data_begin, walk->object_bytes, alignment, err) < 0)
            return -1;
    return 0;
}

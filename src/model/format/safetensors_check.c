/*
 * What a safetensors header says, checked in the library's order (formats, section 4, steps 6 to
 * 10): tensors sorted by (begin, end) must follow each other without hole or overlap, each must be
 * as large as its shape says, and the last must end where the object ends. Offsets stay relative
 * until all of that is known, so nothing overflows.
 */
#include <inttypes.h>

#include "names.h"
#include "safetensors.h"

static int by_offset(const void *a, const void *b)
{
    const struct sl_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return sl_bytes_compare(x->name, x->name_bytes, y->name, y->name_bytes);
}

/* Steps 7 to 9; sets tensor->bytes. */
static int check_size(struct sl_tensor *tensor, struct sl_err *err)
{
    uint64_t elements = 1, bits;
    bool overflow = false;
    if (!tensor->dtype) { /* nobody knows how long its elements are */
        tensor->bytes = tensor->end - tensor->begin;
        return 0;
    }
    for (unsigned i = 0; i < tensor->rank && !overflow; i++)
        overflow = __builtin_mul_overflow(elements, tensor->shape[i], &elements);
    overflow =
        overflow || __builtin_mul_overflow(elements, sl_dtype_row(tensor->dtype)->bits, &bits);
    if (overflow)
        return sl_fail_code(err, SL_E_FORMAT, "st.overflow",
                            "tensor '%.*s': its shape has more than 2^64 bits",
                            SL_NAME_ARGS(tensor->name, tensor->name_bytes));
    if (bits % 8)
        return sl_fail_code(
            err, SL_E_FORMAT, "st.misaligned",
            "tensor '%.*s': %" PRIu64 " elements of %s are not a whole number of bytes",
            SL_NAME_ARGS(tensor->name, tensor->name_bytes), elements, tensor->dtype_name);
    tensor->bytes = bits / 8;
    if (tensor->end - tensor->begin != tensor->bytes)
        return sl_fail_code(err, SL_E_FORMAT, "st.size",
                            "tensor '%.*s': data_offsets span %" PRIu64
                            " bytes, its shape needs %" PRIu64,
                            SL_NAME_ARGS(tensor->name, tensor->name_bytes),
                            tensor->end - tensor->begin, tensor->bytes);
    return 0;
}

static int check_tensor(struct sl_tensor *tensor, uint64_t expected_begin, struct sl_err *err)
{
    if (tensor->begin != expected_begin || tensor->end < tensor->begin)
        return sl_fail_code(err, SL_E_FORMAT, "st.offset",
                            "tensor '%.*s': data_offsets %" PRIu64 " to %" PRIu64
                            " where the data so far end at %" PRIu64,
                            SL_NAME_ARGS(tensor->name, tensor->name_bytes), tensor->begin,
                            tensor->end, expected_begin);
    return check_size(tensor, err);
}

int sl_safetensors_check(struct sl_index *index, uint64_t data_begin, uint64_t object_bytes,
                         struct sl_err *err)
{
    if (index->tensor_count > 1)
        qsort(index->tensors, index->tensor_count, sizeof(*index->tensors), by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < index->tensor_count; i++) {
        if (check_tensor(&index->tensors[i], end, err) < 0)
            return -1;
        end = index->tensors[i].end;
    }
    if (end != object_bytes - data_begin)
        return sl_fail_code(
            err, SL_E_FORMAT, "st.incomplete",
            "the header describes %" PRIu64 " bytes of data, the file holds %" PRIu64 ": %s", end,
            object_bytes - data_begin,
            end > object_bytes - data_begin ? "the upload was cut off, store it again"
                                            : "something was appended to it");
    for (size_t i = 0; i < index->tensor_count; i++) {
        index->tensors[i].begin += data_begin;
        index->tensors[i].end += data_begin;
    }
    return 0;
}

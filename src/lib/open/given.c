/* What a caller says of a tensor must agree with itself before anything is written of it. */
#include "given.h"

#include <inttypes.h>
#include <string.h>

char *sl_given_text(struct sl_index *index, const char *text, uint64_t bytes, struct sl_err *err)
{
    char *copy = sl_index_alloc(index, bytes + 1, err);
    if (copy && bytes)
        memcpy(copy, text, bytes);
    return copy;
}

int sl_given_name(struct sl_index *index, const struct sluice_tensor *given,
                  struct sl_tensor *tensor, struct sl_err *err)
{
    uint64_t bytes = given->name_bytes ? given->name_bytes : strlen(given->name);
    const char *name = sl_given_text(index, given->name, bytes, err);
    return name ? sl_index_plain_name(index, tensor, name, bytes, err) : -1;
}

static int check_shape(const struct sluice_tensor *given, enum sl_dtype dtype, struct sl_err *err)
{
    const struct sl_dtype_row *row = sl_dtype_row(dtype);
    uint64_t elements = 1, bits;
    bool fits = dtype != SL_DTYPE_NONE && (given->rank == 0 || given->shape);
    for (uint32_t d = 0; d < given->rank && fits; d++)
        fits = !__builtin_mul_overflow(elements, given->shape[d], &elements);
    fits = fits && elements % row->block == 0 &&
           !__builtin_mul_overflow(elements / row->block, row->bits, &bits) && bits % 8 == 0 &&
           bits / 8 == given->bytes;
    if (fits)
        return 0;
    return sl_fail(err, SL_E_USAGE,
                   "%" PRIu64 " bytes are not what type '%.32s' and the shape take", given->bytes,
                   given->dtype ? given->dtype : "");
}

static int keep_shape(struct sl_index *index, const struct sluice_tensor *given,
                      struct sl_tensor *tensor, struct sl_err *err)
{
    uint64_t *shape = sl_index_alloc(index, (given->rank + 1) * sizeof(*shape), err);
    if (!shape)
        return -1;
    if (given->rank)
        memcpy(shape, given->shape, given->rank * sizeof(*shape));
    tensor->shape = shape;
    tensor->rank = given->rank;
    return 0;
}

int sl_given_take(struct sl_index *index, const struct sluice_tensor *given,
                  struct sl_tensor *tensor, struct sl_err *err)
{
    enum sl_dtype dtype = given->dtype
                              ? sl_dtype_by_name(given->dtype, (unsigned)strlen(given->dtype))
                              : SL_DTYPE_NONE;
    if (given->strides)
        return sl_fail(err, SL_E_USAGE, "tensors are written row by row, without strides");
    if (given->role > SLUICE_ROLE_BUFFER || given->module > UINT16_MAX)
        return sl_fail(err, SL_E_USAGE, "role %u of module %u does not exist", given->role,
                       given->module);
    if (check_shape(given, dtype, err) < 0 || keep_shape(index, given, tensor, err) < 0)
        return -1;
    tensor->dtype = dtype;
    tensor->dtype_name = sl_dtype_row(dtype)->name;
    tensor->bytes = given->bytes;
    tensor->role = (enum sl_tensor_role)given->role;
    tensor->module_index = (uint16_t)given->module;
    tensor->meta = given->bytes && !given->data;
    return 0;
}

int sl_given_pairs(struct sl_index *index, const char *format, struct sl_tensor *tensor,
                   struct sl_err *err)
{
    uint64_t last = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    bool packs = strcmp(format, "tensorizer") == 0 && tensor->dtype == SL_DTYPE_F4 && last % 2 == 0,
         parts = strcmp(format, "safetensors") == 0 && tensor->dtype == SL_DTYPE_F4_E2M1FN_X2 &&
                 last <= UINT64_MAX / 2;
    if (!tensor->rank || (!packs && !parts))
        return 0;
    uint64_t *shape = sl_index_alloc(index, tensor->rank * sizeof(*shape), err);
    if (!shape)
        return -1;
    memcpy(shape, tensor->shape, tensor->rank * sizeof(*shape));
    shape[tensor->rank - 1] = packs ? last / 2 : last * 2;
    tensor->shape = shape;
    tensor->dtype = packs ? SL_DTYPE_F4_E2M1FN_X2 : SL_DTYPE_F4;
    tensor->dtype_name = sl_dtype_row(tensor->dtype)->name;
    return 0;
}

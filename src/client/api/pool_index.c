/*
 * The check of an index. Sizes are compared by subtraction, never by a sum that could wrap; the
 * counts are judged against the bytes that are there before anything is looped over.
 */
#include "pool_index.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

__attribute__((format(printf, 2, 3))) static int refuse(char why[SL_POOL_WHY_BYTES],
                                                        const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(why, SL_POOL_WHY_BYTES, format, list);
    va_end(list);
    return -1;
}

/* Do `count` rows of `row` bytes lie at `at`? */
static bool lies(uint64_t bytes, uint64_t at, uint64_t count, uint64_t row)
{
    return at % 8 == 0 && at >= sizeof(struct sl_wire_index) && at <= bytes &&
           count <= (bytes - at) / row;
}

/* A text and the NUL behind it. */
static bool text_lies(const struct sl_pool_index *index, uint32_t at, uint32_t bytes)
{
    uint64_t room = index->head->text_bytes;
    return at < room && bytes < room - at && index->texts[(uint64_t)at + bytes] == 0;
}

static int check_head(struct sl_pool_index *index, size_t bytes, char why[SL_POOL_WHY_BYTES])
{
    const struct sl_wire_index *head = index->head;
    if (head->magic != SL_WIRE_INDEX_MAGIC)
        return refuse(why, "it is not an index");
    if (head->version != SL_WIRE_INDEX_VERSION || head->header_bytes < sizeof(*head) ||
        head->tensor_row_bytes < sizeof(struct sl_wire_index_tensor) ||
        head->tensor_row_bytes % 8 || head->tensor_row_bytes > 4096)
        return refuse(why, "its version is %u, not %d", head->version, SL_WIRE_INDEX_VERSION);
    if (head->index_bytes != bytes || head->header_bytes > bytes)
        return refuse(why, "it says that it has %llu bytes, and has %zu",
                      (unsigned long long)head->index_bytes, bytes);
    if (head->slab_count > SL_WIRE_SLABS_MAX)
        return refuse(why, "it has %u slabs, more than %d", head->slab_count, SL_WIRE_SLABS_MAX);
    if (!lies(bytes, head->slabs_at, head->slab_count, sizeof(*index->slabs)) ||
        !lies(bytes, head->tensors_at, head->tensor_count, head->tensor_row_bytes) ||
        !lies(bytes, head->metas_at, head->meta_count, sizeof(*index->metas)) ||
        !lies(bytes, head->numbers_at, head->number_count, sizeof(*index->numbers)) ||
        !lies(bytes, head->texts_at, head->text_bytes, 1))
        return refuse(why, "a part of it lies outside");
    return 0;
}

static int check_texts(const struct sl_pool_index *index, char why[SL_POOL_WHY_BYTES])
{
    const struct sl_wire_index *head = index->head;
    if (!text_lies(index, head->name_at, head->name_bytes) ||
        head->name_bytes > SL_WIRE_MODEL_BYTES ||
        !text_lies(index, head->key_at, head->key_bytes) || head->key_bytes > SL_WIRE_KEY_BYTES)
        return refuse(why, "its name or its key lies outside");
    for (uint32_t i = 0; i < head->meta_count; i++)
        if (!text_lies(index, index->metas[i].key_at, index->metas[i].key_bytes) ||
            !text_lies(index, index->metas[i].value_at, index->metas[i].value_bytes))
            return refuse(why, "pair %u of its metadata lies outside", i);
    return 0;
}

/* Elements that the tensor spans, from its first to its last; false if they cannot be counted. */
static bool span_of(const uint64_t *shape, const uint64_t *strides, uint32_t rank, uint64_t *span)
{
    uint64_t product = 1, reach = 1;
    for (uint32_t i = 0; i < rank; i++)
        if (shape[i] == 0) {
            *span = 0;
            return true;
        }
    for (uint32_t i = 0; i < rank; i++) {
        uint64_t step;
        if (__builtin_mul_overflow(product, shape[i], &product))
            return false;
        if (strides && (__builtin_mul_overflow(shape[i] - 1, strides[i], &step) ||
                        __builtin_add_overflow(reach, step, &reach)))
            return false;
    }
    *span = strides ? reach : product;
    return true;
}

/* Does what the shape says fit what is there? */
static bool fits(const struct sl_pool_index *index, const struct sl_wire_index_tensor *tensor)
{
    uint64_t span, need;
    const uint64_t *strides = sl_pool_index_strides(index, tensor);
    if (!span_of(sl_pool_index_shape(index, tensor), strides, tensor->rank, &span))
        return false;
    if (tensor->block_elements == 0 || tensor->block_bytes == 0)
        return tensor->block_elements == tensor->block_bytes && !strides &&
               span / 8 <= tensor->bytes;
    if (span % tensor->block_elements || (strides && tensor->block_elements > 1) ||
        __builtin_mul_overflow(span / tensor->block_elements, (uint64_t)tensor->block_bytes, &need))
        return false;
    return strides ? need <= tensor->bytes : need == tensor->bytes;
}

static int check_tensor(const struct sl_pool_index *index, uint32_t number,
                        char why[SL_POOL_WHY_BYTES])
{
    const struct sl_wire_index *head = index->head;
    const struct sl_wire_index_tensor *tensor = sl_pool_index_tensor(index, number);
    uint64_t numbers = (uint64_t)tensor->rank * (tensor->flags & SL_WIRE_STRIDED ? 2 : 1);
    if (!text_lies(index, tensor->name_at, tensor->name_bytes) ||
        !text_lies(index, tensor->dtype_at, tensor->dtype_bytes))
        return refuse(why, "a text of tensor %u lies outside", number);
    if (tensor->kind != SL_WIRE_TENSOR && tensor->kind != SL_WIRE_FILE)
        return refuse(why, "tensor %u is of the unknown kind %u", number, tensor->kind);
    if (tensor->rank > SL_WIRE_RANK_MAX || tensor->numbers_at > head->number_count ||
        numbers > head->number_count - tensor->numbers_at)
        return refuse(why, "the shape of tensor %u lies outside", number);
    if (tensor->offset % SL_WIRE_ALIGN)
        return refuse(why, "tensor %u does not begin at a multiple of %d", number, SL_WIRE_ALIGN);
    if (tensor->bytes && tensor->slab >= head->slab_count)
        return refuse(why, "tensor %u is in slab %u of %u", number, tensor->slab, head->slab_count);
    uint64_t room = tensor->bytes ? index->slabs[tensor->slab].bytes : UINT64_MAX;
    if (tensor->offset > room || tensor->bytes > room - tensor->offset)
        return refuse(why, "tensor %u reaches beyond its slab", number);
    if (!fits(index, tensor))
        return refuse(why, "tensor %u has other bytes than its shape and type say", number);
    return 0;
}

int sl_pool_index_check(const void *data, size_t bytes, struct sl_pool_index *index,
                        char why[SL_POOL_WHY_BYTES])
{
    *index = (struct sl_pool_index){.data = data, .head = data};
    if (bytes < sizeof(*index->head) || bytes > SL_WIRE_INDEX_BYTES_MAX)
        return refuse(why, "it has %zu bytes", bytes);
    if (check_head(index, bytes, why) < 0)
        return -1;
    index->slabs = (const void *)(index->data + index->head->slabs_at);
    index->metas = (const void *)(index->data + index->head->metas_at);
    index->numbers = (const void *)(index->data + index->head->numbers_at);
    index->texts = (const char *)(index->data + index->head->texts_at);
    if (check_texts(index, why) < 0)
        return -1;
    for (uint32_t i = 0; i < index->head->slab_count; i++) {
        uint64_t slab = index->slabs[i].bytes;
        if (slab == 0 || slab > INT64_MAX)
            return refuse(why, "slab %u has no size", i);
        if (slab > INT64_MAX - index->slab_bytes)
            return refuse(why, "its slabs have more bytes together than can be counted");
        index->slab_bytes += slab;
    }
    for (uint32_t i = 0; i < index->head->tensor_count; i++)
        if (check_tensor(index, i, why) < 0)
            return -1;
    return 0;
}

const struct sl_wire_index_tensor *sl_pool_index_tensor(const struct sl_pool_index *index,
                                                        uint32_t number)
{
    const struct sl_wire_index *head = index->head;
    return (const void *)(index->data + head->tensors_at +
                          (uint64_t)number * head->tensor_row_bytes);
}

const uint64_t *sl_pool_index_shape(const struct sl_pool_index *index,
                                    const struct sl_wire_index_tensor *tensor)
{
    return index->numbers + tensor->numbers_at;
}

const uint64_t *sl_pool_index_strides(const struct sl_pool_index *index,
                                      const struct sl_wire_index_tensor *tensor)
{
    return tensor->flags & SL_WIRE_STRIDED ? index->numbers + tensor->numbers_at + tensor->rank
                                           : NULL;
}

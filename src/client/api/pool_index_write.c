/*
 * One pass counts, one pass writes: header, slabs, tensors, metadata, numbers, texts. Each text has
 * a NUL behind it, so that a client may use it as a string; types that are the same are written
 * once when they follow one another.
 */
#include "pool_index_write.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* DLPack's codes: 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool; from 1.1 on those of
 * short floats (dlpack.h, enum DLDataTypeCode). */
static const struct sl_pool_dtype dtypes[] = {
    {"BOOL", 6, 8, 1},          {"U8", 1, 8, 1},           {"I8", 0, 8, 1},
    {"U16", 1, 16, 1},          {"I16", 0, 16, 1},         {"U32", 1, 32, 1},
    {"I32", 0, 32, 1},          {"U64", 1, 64, 1},         {"I64", 0, 64, 1},
    {"F16", 2, 16, 1},          {"BF16", 4, 16, 1},        {"F32", 2, 32, 1},
    {"F64", 2, 64, 1},          {"C32", 5, 32, 1},         {"C64", 5, 64, 1},
    {"C128", 5, 128, 1},        {"F8_E4M3", 10, 8, 1},     {"F8_E5M2", 12, 8, 1},
    {"F8_E8M0", 14, 8, 1},      {"F8_E4M3FNUZ", 11, 8, 1}, {"F8_E5M2FNUZ", 13, 8, 1},
    {"F6_E2M3", 15, 6, 1},      {"F6_E3M2", 16, 6, 1},     {"F4", 17, 4, 1},
    {"F4_E2M1FN_X2", 17, 4, 2},
};

const struct sl_pool_dtype *sl_pool_dtype_find(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    return NULL;
}

/* ---- counting -------------------------------------------------------------------------------- */

static uint64_t pad(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

static bool same_dtype(const struct sl_pool_contents *contents, uint32_t number)
{
    return number && strcmp(contents->items[number].dtype, contents->items[number - 1].dtype) == 0;
}

/* The header without its texts' places. */
static void measure(const struct sl_pool_contents *contents, struct sl_wire_index *head)
{
    uint64_t texts = strlen(contents->name) + 1 + strlen(contents->key) + 1, numbers = 0;
    for (uint32_t i = 0; i < contents->item_count; i++) {
        const struct sl_pool_item *item = &contents->items[i];
        texts += (uint64_t)item->name_bytes + 1;
        texts += same_dtype(contents, i) ? 0 : strlen(item->dtype) + 1;
        numbers += (uint64_t)item->rank * (item->strides ? 2 : 1);
        head->data_bytes += item->bytes;
    }
    for (uint32_t i = 0; i < contents->meta_count; i++)
        texts += strlen(contents->metas[i].key) + 1 + strlen(contents->metas[i].value) + 1;
    head->magic = SL_WIRE_INDEX_MAGIC;
    head->version = SL_WIRE_INDEX_VERSION;
    head->header_bytes = sizeof(*head);
    head->tensor_row_bytes = sizeof(struct sl_wire_index_tensor);
    head->slab_count = contents->slab_count;
    head->tensor_count = contents->item_count;
    head->meta_count = contents->meta_count;
    head->number_count = numbers;
    head->text_bytes = texts;
    head->slabs_at = sizeof(*head);
    head->tensors_at =
        head->slabs_at + (uint64_t)head->slab_count * sizeof(struct sl_wire_index_slab);
    head->metas_at = head->tensors_at + (uint64_t)head->tensor_count * head->tensor_row_bytes;
    head->numbers_at =
        head->metas_at + (uint64_t)head->meta_count * sizeof(struct sl_wire_index_meta);
    head->texts_at = head->numbers_at + numbers * sizeof(uint64_t);
    head->index_bytes = pad(head->texts_at + texts);
    memcpy(head->identity, contents->identity, sizeof(head->identity));
}

size_t sl_pool_index_size(const struct sl_pool_contents *contents)
{
    struct sl_wire_index head = {0};
    measure(contents, &head);
    return head.index_bytes > SL_WIRE_INDEX_BYTES_MAX ? 0 : (size_t)head.index_bytes;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct texts {
    char *begin;
    uint32_t used;
};

/* Returns where it lies. */
static uint32_t put_text(struct texts *texts, const char *text, uint32_t bytes)
{
    uint32_t at = texts->used;
    assert(bytes < SL_WIRE_INDEX_BYTES_MAX && at < SL_WIRE_INDEX_BYTES_MAX);
    memcpy(texts->begin + at, text, bytes);
    texts->begin[at + bytes] = 0;
    texts->used += bytes + 1;
    return at;
}

static void put_item(const struct sl_pool_item *item, struct sl_wire_index_tensor *row)
{
    const struct sl_pool_dtype *dtype = sl_pool_dtype_find(item->dtype);
    row->name_bytes = item->name_bytes;
    row->dtype_bytes = (uint32_t)strlen(item->dtype);
    row->kind = item->kind;
    row->flags = item->strides ? SL_WIRE_STRIDED : 0;
    if (item->kind == SL_WIRE_FILE)
        dtype = sl_pool_dtype_find("U8");
    if (dtype) {
        row->dlpack_code = dtype->dlpack_code;
        row->dlpack_bits = dtype->dlpack_bits;
        row->dlpack_lanes = dtype->dlpack_lanes;
    }
    assert(item->rank <= SL_WIRE_RANK_MAX); /* plans and deposits refuse more */
    row->rank = (uint16_t)item->rank;
    row->slab = item->slab;
    row->block_elements = item->block_elements;
    row->block_bytes = item->block_bytes;
    row->offset = item->offset;
    row->bytes = item->bytes;
}

static void put_items(const struct sl_pool_contents *contents, struct sl_wire_index_tensor *rows,
                      uint64_t *numbers, struct texts *texts)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < contents->item_count; i++) {
        const struct sl_pool_item *item = &contents->items[i];
        put_item(item, &rows[i]);
        rows[i].name_at = put_text(texts, item->name, item->name_bytes);
        rows[i].dtype_at = same_dtype(contents, i)
                               ? rows[i - 1].dtype_at
                               : put_text(texts, item->dtype, rows[i].dtype_bytes);
        rows[i].numbers_at = used;
        for (uint32_t d = 0; d < item->rank; d++)
            numbers[used++] = item->shape[d];
        for (uint32_t d = 0; item->strides && d < item->rank; d++)
            numbers[used++] = item->strides[d];
    }
}

void sl_pool_index_write(const struct sl_pool_contents *contents, void *index)
{
    uint8_t *base = index;
    struct sl_wire_index head = {0};
    measure(contents, &head);
    memset(base, 0, (size_t)head.index_bytes);
    struct texts texts = {.begin = (char *)base + head.texts_at};
    head.name_bytes = (uint32_t)strlen(contents->name);
    head.key_bytes = (uint32_t)strlen(contents->key);
    head.name_at = put_text(&texts, contents->name, head.name_bytes);
    head.key_at = put_text(&texts, contents->key, head.key_bytes);
    memcpy(base, &head, sizeof(head));
    if (contents->slab_count)
        memcpy(base + head.slabs_at, contents->slabs,
               contents->slab_count * sizeof(*contents->slabs));
    put_items(contents, (void *)(base + head.tensors_at), (void *)(base + head.numbers_at), &texts);
    struct sl_wire_index_meta *metas = (void *)(base + head.metas_at);
    for (uint32_t i = 0; i < contents->meta_count; i++) {
        const struct sl_pool_pair *pair = &contents->metas[i];
        metas[i].key_bytes = (uint32_t)strlen(pair->key);
        metas[i].value_bytes = (uint32_t)strlen(pair->value);
        metas[i].key_at = put_text(&texts, pair->key, metas[i].key_bytes);
        metas[i].value_at = put_text(&texts, pair->value, metas[i].value_bytes);
    }
}

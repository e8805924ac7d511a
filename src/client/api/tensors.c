/* What a model holds: numbers, names, places. Names are sorted when the first is looked for. */
#include <stdlib.h>
#include <string.h>

#include "api_memory.h"
#include "api_parts.h"
#include "pool_words.h"

static int32_t ordinal_of(const struct sluice_model *model, bool on_device)
{
    return on_device ? model->device.info.ordinal : -1;
}
static bool has_device_slab(const struct sluice_model *model)
{
    for (size_t i = 0; i < model->slab_count; i++)
        if (model->slabs[i].on_device)
            return true;
    return false;
}

void sluice_model_info(const struct sluice_model *model, struct sluice_model_info *info)
{
    const struct sl_wire_index *head = model->index.head;
    struct sluice_model_info own = {
        .name = sl_pool_index_text(&model->index, head->name_at),
        .key = sl_pool_index_text(&model->index, head->key_at),
        .tensor_count = head->tensor_count,
        .ready_count = sl_word_get(&model->page->ready_count),
        .slab_count = model->slab_count,
        .state = (int32_t)sl_word_get(&model->page->state),
        .device = ordinal_of(model, has_device_slab(model)),
        .meta_count = head->meta_count,
        .unpinned = *model->unpinned ? model->unpinned : NULL,
    };
    memcpy(own.identity, model->identity, sizeof(own.identity));
    for (size_t i = 0; i < model->slab_count; i++)
        own.bytes += model->slabs[i].bytes;
    sl_api_give(info, info->size, &own, sizeof(own));
}

int sluice_meta_at(const struct sluice_model *model, uint64_t number, struct sluice_meta *meta,
                   struct sluice_error *error)
{
    const struct sl_pool_index *index = &model->index;
    if (sl_api_check_size(meta->size, error) < 0)
        return -1;
    if (number >= index->head->meta_count)
        return sl_api_fail(error, SLUICE_USAGE, "there is no metadata %llu",
                           (unsigned long long)number);
    const struct sl_wire_index_meta *row = &index->metas[number];
    struct sluice_meta own = {
        .key = sl_pool_index_text(index, row->key_at),
        .value = sl_pool_index_text(index, row->value_at),
        .key_bytes = row->key_bytes,
        .value_bytes = row->value_bytes,
    };
    sl_api_give(meta, meta->size, &own, sizeof(own));
    return 0;
}

/* One without bytes is where the others are. */
static bool is_on_device(const struct sluice_model *model, const struct sl_wire_index_tensor *row)
{
    return row->bytes ? model->slabs[row->slab].on_device
                      : row->kind == SL_WIRE_TENSOR && has_device_slab(model);
}

static void describe(const struct sluice_model *model, uint32_t number,
                     struct sluice_tensor *tensor)
{
    const struct sl_wire_index_tensor *row = sl_pool_index_tensor(&model->index, number);
    struct sluice_tensor own = {
        .number = number,
        .name = sl_pool_index_text(&model->index, row->name_at),
        .name_bytes = row->name_bytes,
        .dtype = sl_pool_index_text(&model->index, row->dtype_at),
        .shape = sl_pool_index_shape(&model->index, row),
        .strides = sl_pool_index_strides(&model->index, row),
        .rank = row->rank,
        .kind = row->kind,
        .dlpack_code = row->dlpack_code,
        .dlpack_bits = row->dlpack_bits,
        .dlpack_lanes = row->dlpack_lanes,
        .block_elements = row->block_elements,
        .block_bytes = row->block_bytes,
        .slab = row->slab,
        .offset = row->offset,
        .bytes = row->bytes,
        .device = ordinal_of(model, is_on_device(model, row)),
    };
    if (row->bytes)
        own.data = (const char *)model->slabs[row->slab].map + row->offset;
    sl_api_give(tensor, tensor->size, &own, sizeof(own));
}

int sluice_tensor_at(const struct sluice_model *model, uint64_t number,
                     struct sluice_tensor *tensor, struct sluice_error *error)
{
    if (sl_api_check_size(tensor->size, error) < 0)
        return -1;
    if (number >= model->index.head->tensor_count)
        return sl_api_fail(error, SLUICE_USAGE, "there is no tensor %llu, only %u",
                           (unsigned long long)number, model->index.head->tensor_count);
    describe(model, (uint32_t)number, tensor);
    return 0;
}

static const char *name_of(const struct sl_pool_index *index, uint32_t number)
{
    return sl_pool_index_text(index, sl_pool_index_tensor(index, number)->name_at);
}

static int by_name(const void *a, const void *b, void *arg)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int order = strcmp(name_of(arg, x), name_of(arg, y));
    return order ? order : x < y ? -1 : x > y;
}

/* The order by name; NULL without memory. */
static const uint32_t *sort(struct sluice_model *model)
{
    uint32_t count = model->index.head->tensor_count;
    pthread_mutex_lock(&model->lock);
    if (!model->by_name && (model->by_name = sl_api_alloc(count * sizeof(uint32_t) + 1))) {
        for (uint32_t i = 0; i < count; i++)
            model->by_name[i] = i;
        qsort_r(model->by_name, count, sizeof(uint32_t), by_name, &model->index);
    }
    pthread_mutex_unlock(&model->lock);
    return model->by_name;
}

int sluice_find(struct sluice_model *model, const char *name, struct sluice_tensor *tensor,
                struct sluice_error *error)
{
    if (sl_api_check_size(tensor->size, error) < 0)
        return -1;
    const uint32_t *order = sort(model);
    uint32_t low = 0, high = model->index.head->tensor_count;
    if (!order)
        return sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (strcmp(name_of(&model->index, order[middle]), name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == model->index.head->tensor_count ||
        strcmp(name_of(&model->index, order[low]), name) != 0)
        return sl_api_fail(error, SLUICE_NOT_FOUND, "the model has no tensor '%s'", name);
    describe(model, order[low], tensor);
    return 0;
}

int sluice_slab(const struct sluice_model *model, uint64_t number, const void **data,
                uint64_t *bytes, int *fd, struct sluice_error *error)
{
    if (number >= model->slab_count)
        return sl_api_fail(error, SLUICE_USAGE, "there is no slab %llu, only %zu",
                           (unsigned long long)number, model->slab_count);
    *data = model->slabs[number].map;
    *bytes = model->slabs[number].bytes;
    *fd = model->slabs[number].fd;
    return 0;
}

int sluice_lease_fd(const struct sluice_model *model)
{
    return model->link.fd;
}

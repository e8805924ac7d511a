/* From a plan to a model in the pool: slabs of the right sizes, an index of what will lie where, a
 * page on which nothing is ready. */
#include <stdio.h>
#include <string.h>

#include "fill.h"
#include "pool_index_write.h"
#include "pool_parts.h"

_Static_assert((int)SL_SLABS_RANK_MAX == (int)SL_WIRE_RANK_MAX &&
                   (int)SL_SLABS_INDEX_BYTES_MAX == (int)SL_WIRE_INDEX_BYTES_MAX &&
                   (int)SL_SLABS_FILES_MAX == (int)SL_WIRE_SLABS_MAX,
               "plans refuse what the index cannot hold");

size_t sl_pool_first_data_file(const struct sl_plan *plan)
{
    size_t data = 0;
    for (size_t i = 0; i < plan->source_count; i++)
        data += plan->sources[i].index == NULL;
    return plan->file_count - data;
}

/* Data files are for processors: of a copy on a GPU, too, they lie on the host, and all copies have
 * the same. */
static int make_data_slab(const struct sl_pool_copy *copy, uint64_t bytes, struct sl_slab *slab,
                          struct sl_err *err)
{
    const struct sl_slab_place host = {.kind = SL_SLAB_MEMFD, .directory_fd = -1};
    struct sl_pool_copy *first = copy->model->copies[0];
    return copy == first ? sl_slab_make(&host, bytes, slab, err)
                         : sl_slab_share(&first->slabs[copy->slab_count], slab, err);
}

static int make_slabs(struct sl_pool_copy *copy, const struct sl_plan *plan,
                      const struct sl_slab_place *place, struct sl_err *err)
{
    copy->slab_of_file = sl_alloc_array(plan->file_count, sizeof(*copy->slab_of_file), err);
    copy->slabs = sl_alloc_array(plan->file_count, sizeof(*copy->slabs), err);
    if (!copy->slab_of_file || !copy->slabs)
        return -1;
    size_t first_data = sl_pool_first_data_file(plan);
    snprintf(copy->memory, sizeof(copy->memory), "%s", place->why);
    for (size_t i = 0; i < plan->file_count; i++) {
        copy->slab_of_file[i] = UINT32_MAX;
        if (!plan->files[i].bytes)
            continue;
        if (copy->slab_count == SL_POOL_SLABS_MAX)
            return sl_fail(err, SL_E_NO_SPACE,
                           "the model takes more than %d slabs: give the pool larger ones",
                           SL_POOL_SLABS_MAX);
        struct sl_slab *slab = &copy->slabs[copy->slab_count];
        uint64_t bytes = plan->files[i].bytes;
        if (place->kind == SL_SLAB_GPU && i >= first_data
                ? make_data_slab(copy, bytes, slab, err) < 0
                : sl_slab_make(place, bytes, slab, err) < 0)
            return -1;
        copy->bytes += slab->bytes;
        copy->slab_of_file[i] = (uint32_t)copy->slab_count++;
    }
    return 0;
}

static uint32_t slab_of(const struct sl_pool_copy *copy, uint32_t file)
{
    uint32_t slab = copy->slab_of_file[file];
    return slab == UINT32_MAX ? 0 : slab;
}

static void put_tensor(const struct sl_pool_copy *copy, const struct sl_plan_tensor *from,
                       struct sl_pool_item *item)
{
    const struct sl_tensor *tensor = from->tensor;
    const struct sl_dtype_row *row = sl_dtype_row(tensor->dtype);
    *item = (struct sl_pool_item){.name = tensor->name,
                                  .name_bytes = (uint32_t)tensor->name_bytes,
                                  .dtype = tensor->dtype_name,
                                  .kind = SL_WIRE_TENSOR,
                                  .rank = tensor->rank,
                                  .shape = tensor->shape,
                                  .slab = slab_of(copy, from->file),
                                  .offset = tensor->bytes ? from->file_offset : 0,
                                  .bytes = tensor->bytes};
    if (row->block && row->bits % 8 == 0) {
        item->block_elements = row->block;
        item->block_bytes = row->bits / 8;
    }
}

/* Data files after the tensors; plan->files[i].bytes is also their shape. */
static void put_items(const struct sl_pool_copy *copy, const struct sl_plan *plan,
                      struct sl_pool_item *items)
{
    for (size_t i = 0; i < plan->tensor_count; i++)
        put_tensor(copy, &plan->tensors[i], &items[i]);
    struct sl_pool_item *item = items + plan->tensor_count;
    for (size_t i = sl_pool_first_data_file(plan); i < plan->file_count; i++)
        *item++ = (struct sl_pool_item){.name = plan->files[i].name,
                                        .name_bytes = (uint32_t)strlen(plan->files[i].name),
                                        .dtype = "",
                                        .kind = SL_WIRE_FILE,
                                        .rank = 1,
                                        .shape = &plan->files[i].bytes,
                                        .block_elements = 1,
                                        .block_bytes = 1,
                                        .slab = slab_of(copy, (uint32_t)i),
                                        .bytes = plan->files[i].bytes};
}

static void put_slab(const struct sl_slab *from, struct sl_wire_index_slab *slab)
{
    *slab = (struct sl_wire_index_slab){.bytes = from->bytes, .kind = from->kind};
    if (from->gpu)
        memcpy(slab->device, sl_gpu_device(from->gpu)->uuid, sizeof(slab->device));
}

/* Everything that the index is made of; items, slabs and pairs have room. */
static int write_index(struct sl_pool_copy *copy, const struct sl_plan *plan,
                       struct sl_pool_item *items, struct sl_wire_index_slab *slabs,
                       struct sl_pool_pair *pairs, struct sl_err *err)
{
    struct sl_pool_contents contents = {.name = copy->model->name,
                                        .key = copy->model->key,
                                        .slabs = slabs,
                                        .slab_count = (uint32_t)copy->slab_count,
                                        .items = items,
                                        .item_count = (uint32_t)copy->tensor_count,
                                        .metas = pairs,
                                        .meta_count = (uint32_t)plan->metadata_count};
    put_items(copy, plan, items);
    for (size_t i = 0; i < copy->slab_count; i++)
        put_slab(&copy->slabs[i], &slabs[i]);
    for (size_t i = 0; i < plan->metadata_count; i++)
        pairs[i] = (struct sl_pool_pair){plan->metadata[i].key, plan->metadata[i].value};
    memcpy(contents.identity, copy->model->identity, sizeof(contents.identity));
    size_t bytes = sl_pool_index_size(&contents);
    if (!bytes)
        return sl_fail(err, SL_E_NO_SPACE, "the index of the model would be larger than %d bytes",
                       SL_WIRE_INDEX_BYTES_MAX);
    sl_autofree void *index = sl_alloc_aligned(64, bytes, err);
    if (!index)
        return -1;
    sl_pool_index_write(&contents, index);
    return sl_pool_copy_set_index(copy, index, bytes, err);
}

static int make_index(struct sl_pool_copy *copy, const struct sl_plan *plan, struct sl_err *err)
{
    sl_autofree struct sl_pool_item *items =
        sl_alloc_array(copy->tensor_count, sizeof(*items), err);
    sl_autofree struct sl_wire_index_slab *slabs =
        sl_alloc_array(copy->slab_count, sizeof(*slabs), err);
    sl_autofree struct sl_pool_pair *pairs =
        sl_alloc_array(plan->metadata_count, sizeof(*pairs), err);
    if (!items || !slabs || !pairs)
        return -1;
    return write_index(copy, plan, items, slabs, pairs, err);
}

static int plan_copy(struct sl_pool_model *model, const struct sl_plan *plan,
                     const struct sl_slab_place *place, struct sl_err *err)
{
    struct sl_pool_copy *copy = sl_pool_copy_new(model, place->gpu, err);
    if (!copy)
        return -1;
    copy->tensor_count = plan->tensor_count + plan->file_count - sl_pool_first_data_file(plan);
    if (copy->tensor_count > UINT32_MAX / 2)
        return sl_fail(err, SL_E_NO_SPACE, "the model has too many tensors for the pool");
    if (make_slabs(copy, plan, place, err) < 0 || make_index(copy, plan, err) < 0)
        return -1;
    return sl_pool_copy_make_page(copy, SL_WORD_LOADING, SL_POOL_LOADING, err);
}

struct sl_pool_model *sl_pool_model_plan(const char *name, const struct sl_plan *plan,
                                         const struct sl_slab_place *places, size_t count,
                                         struct sl_err *err)
{
    SL_AUTO(sl_pool_model) model = sl_pool_model_new(name, "", err);
    if (!model)
        return NULL;
    memcpy(model->identity, plan->identity, sizeof(model->identity));
    for (size_t i = 0; i < count; i++)
        if (plan_copy(model, plan, &places[i], err) < 0)
            return NULL;
    return sl_steal(&model);
}

/*
 * A private page that somebody has written to is a copy: what the daemon puts into the page later
 * is not in it. Tensors share pages at their ends, so one may be written only when all that lies on
 * its pages is there. Which that is takes the tensors in the order of their places, made when first
 * asked.
 */
#include <stdlib.h>
#include <unistd.h>

#include "api_memory.h"
#include "api_parts.h"

struct sl_api_place {
    uint32_t slab, number;
    uint64_t offset, end;
    uint64_t farthest; /* end of any so far in its slab: tensors may lie on each other */
};

static int compare_places(const void *left, const void *right)
{
    const struct sl_api_place *a = left, *b = right;
    if (a->slab != b->slab)
        return a->slab < b->slab ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static size_t collect(const struct sluice_model *model, struct sl_api_place *places)
{
    size_t count = 0;
    for (uint32_t i = 0; i < model->index.head->tensor_count; i++) {
        const struct sl_wire_index_tensor *row = sl_pool_index_tensor(&model->index, i);
        if (row->bytes)
            places[count++] = (struct sl_api_place){.slab = row->slab,
                                                    .number = i,
                                                    .offset = row->offset,
                                                    .end = row->offset + row->bytes};
    }
    qsort(places, count, sizeof(*places), compare_places);
    for (size_t i = 0; i < count; i++) {
        bool follows = i && places[i - 1].slab == places[i].slab;
        uint64_t before = follows ? places[i - 1].farthest : 0;
        places[i].farthest = places[i].end > before ? places[i].end : before;
    }
    return count;
}

static int prepare(struct sluice_model *model, struct sluice_error *error)
{
    int done = 0;
    pthread_mutex_lock(&model->lock);
    if (!model->places) {
        model->places =
            sl_api_alloc((model->index.head->tensor_count + 1) * sizeof(*model->places));
        if (model->places)
            model->place_count = collect(model, model->places);
        else
            done = sl_api_fail(error, SLUICE_NO_SPACE, "out of memory");
    }
    pthread_mutex_unlock(&model->lock);
    return done;
}

/* The first place of a slab that begins at or after an offset. */
static size_t find_place(const struct sluice_model *model, const struct sl_api_place *key)
{
    size_t low = 0, high = model->place_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_places(&model->places[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int sl_api_each_neighbour(struct sluice_model *model, uint32_t number,
                          int (*each)(void *arg, uint32_t number), void *arg,
                          struct sluice_error *error)
{
    const struct sl_wire_index_tensor *row = sl_pool_index_tensor(&model->index, number);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!row->bytes)
        return 0;
    if (prepare(model, error) < 0)
        return -1;
    struct sl_api_place own = {.slab = row->slab, .offset = row->offset & ~(page - 1)};
    uint64_t end = (row->offset + row->bytes + page - 1) & ~(page - 1);
    size_t first = find_place(model, &own);
    while (first && model->places[first - 1].slab == own.slab &&
           model->places[first - 1].farthest > own.offset)
        first--;
    for (size_t i = first; i < model->place_count; i++) {
        const struct sl_api_place *place = &model->places[i];
        if (place->slab != own.slab || place->offset >= end)
            break;
        if (place->end > own.offset && each(arg, place->number) < 0)
            return -1;
    }
    return 0;
}

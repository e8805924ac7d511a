/* Copies of one load have its name, its version and the second in which it was made in common. */
#include "rejoin.h"

#include <string.h>

static int64_t made_seconds(const struct sl_pool_model *model)
{
    struct sl_pool_view view;
    sl_pool_model_view(model, &view);
    return view.made_seconds;
}

static bool is_on(const struct sl_pool_model *model, unsigned ordinal)
{
    const struct sl_cuda_device *device = sl_pool_copy_device(sl_pool_model_copy(model, 0));
    return sl_placement_count(sl_pool_model_placement(model)) > 1 && device &&
           device->ordinal == (int)ordinal;
}

static bool are_of_one(const struct sl_pool_model *a, const struct sl_pool_model *b)
{
    return strcmp(sl_pool_model_name(a), sl_pool_model_name(b)) == 0 &&
           memcmp(sl_pool_model_identity(a), sl_pool_model_identity(b), 32) == 0 &&
           made_seconds(a) == made_seconds(b);
}

static struct sl_pool_model **find_copy(struct sl_pool_model **models, size_t count,
                                        const struct sl_pool_model *first, unsigned ordinal)
{
    for (size_t i = 0; i < count; i++)
        if (models[i] && is_on(models[i], ordinal) && are_of_one(first, models[i]))
            return &models[i];
    return NULL;
}

void sl_rejoin(struct sl_pool_model **models, size_t count, unsigned gpu_count)
{
    for (size_t i = 0; i < count; i++) {
        if (!models[i] || !is_on(models[i], 0))
            continue;
        for (unsigned ordinal = 1; ordinal < gpu_count; ordinal++) {
            struct sl_pool_model **copy = find_copy(models, count, models[i], ordinal);
            if (!copy || sl_pool_model_join(models[i], *copy, NULL) < 0)
                break;
            *copy = NULL;
        }
    }
}

bool sl_rejoin_is_whole(struct sl_pool_model *model, unsigned gpu_count)
{
    bool is_of_all = sl_placement_count(sl_pool_model_placement(model)) > 1;
    return !is_of_all || (is_on(model, 0) && sl_pool_model_copies(model) == gpu_count);
}

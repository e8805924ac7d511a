/*
 * A model on several GPUs is read once. The readers fill the ring of the first GPU, and each of its
 * buffers is copied to all of them; what is decrypted or checked on a GPU is so on each. A copy has
 * a readiness of its own, told by its own GPU's copies: so a tensor can be used on one GPU while it
 * is still on its way to another.
 */
#include "kernels.h"
#include "log.h"
#include "pool_parts.h"

struct follower {
    struct sl_readiness *readiness;
    struct sl_gpu_fill *fill;
};
struct sl_gpu_followers {
    const struct sl_reader_watch *first;
    struct sl_reader_watch watch;
    struct follower items[SL_GPU_RING_LANES_MAX - 1];
    size_t count;
};

static void on_landed(void *arg, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const struct sl_gpu_followers *followers = arg;
    followers->first->landed(followers->first->arg, file, offset, bytes);
    for (size_t i = 0; i < followers->count; i++) {
        const struct sl_reader_watch *watch = sl_gpu_fill_watch(followers->items[i].fill);
        watch->landed(watch->arg, file, offset, bytes);
    }
}

static void on_agreed(void *arg, const struct sl_check *check)
{
    const struct sl_gpu_followers *followers = arg;
    followers->first->agreed(followers->first->arg, check);
    for (size_t i = 0; i < followers->count; i++) {
        const struct sl_reader_watch *watch = sl_gpu_fill_watch(followers->items[i].fill);
        watch->agreed(watch->arg, check);
    }
}

static int add(struct sl_gpu_followers *followers, const struct sl_gpu_fill *first,
               struct sl_pool_copy *copy, const struct sl_plan *plan, struct sl_err *err)
{
    struct follower *follower = &followers->items[followers->count++];
    follower->readiness = sl_readiness_new(plan, copy, err);
    if (!follower->readiness)
        return -1;
    const struct sl_reader_watch *told = sl_readiness_watch(follower->readiness);
    follower->fill = sl_gpu_fill_follow(first, copy->gpu, copy, plan, told, err);
    return follower->fill ? 0 : -1;
}

enum sl_pool_decrypt sl_gpu_followers_decrypt(const struct sl_pool_model *model,
                                              enum sl_pool_decrypt decrypt)
{
    struct sl_err why = SL_ERR_INIT;
    for (size_t i = 1; decrypt == SL_DECRYPT_AUTO && i < model->copy_count; i++) {
        const struct sl_cuda_device *device = sl_gpu_device(model->copies[i]->gpu);
        if (sl_kernels_check(device, &why) == 0)
            continue;
        sl_log(SL_LOG_INFO, "decrypting on the host, for all GPUs, since of cuda:%d: %s",
               device->ordinal, why.message);
        return SL_DECRYPT_HOST;
    }
    return decrypt;
}

struct sl_gpu_followers *sl_gpu_followers_new(const struct sl_gpu_fill *first,
                                              const struct sl_pool_model *model,
                                              const struct sl_plan *plan, struct sl_err *err)
{
    SL_AUTO(sl_gpu_followers) followers = sl_alloc(sizeof(*followers), err);
    if (!followers)
        return NULL;
    followers->first = sl_gpu_fill_watch(first);
    followers->watch =
        (struct sl_reader_watch){.landed = on_landed, .agreed = on_agreed, .arg = followers};
    for (size_t i = 1; i < model->copy_count; i++)
        if (add(followers, first, model->copies[i], plan, err) < 0)
            return NULL;
    return sl_steal(&followers);
}

void sl_gpu_followers_free(struct sl_gpu_followers *followers)
{
    if (!followers)
        return;
    for (size_t i = 0; i < followers->count; i++) {
        sl_gpu_fill_free(followers->items[i].fill);
        sl_readiness_free(followers->items[i].readiness);
    }
    free(followers);
}

const struct sl_reader_watch *sl_gpu_followers_watch(const struct sl_gpu_followers *followers)
{
    return &followers->watch;
}

int sl_gpu_followers_finish(struct sl_gpu_followers *followers, struct sl_err *err)
{
    for (size_t i = 0; i < followers->count; i++)
        if (sl_gpu_fill_finish(followers->items[i].fill, err) < 0)
            return -1;
    return 0;
}

size_t sl_gpu_followers_left(const struct sl_gpu_followers *followers)
{
    size_t left = 0;
    for (size_t i = 0; i < followers->count; i++)
        left += sl_readiness_left(followers->items[i].readiness);
    return left;
}

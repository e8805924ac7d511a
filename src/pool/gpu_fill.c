/*
 * What the reader tells of bytes and checks is true of the staging ring, not yet of the device: it
 * goes through the ring as notes, and reaches who counts tensors when the copies before it are
 * done.
 */
#include "pool_parts.h"

struct sl_gpu_fill {
    const struct sl_reader_watch *told; /* borrowed */
    struct sl_reader_watch watch;
    uint64_t *addresses; /* one a file; 0: on the host, or no bytes */
    struct sl_gpu_ring *ring;
};

static void tell_landed(void *arg, const struct sl_gpu_note *note)
{
    const struct sl_reader_watch *told = arg;
    told->landed(told->arg, note->file, note->offset, note->bytes);
}

static void tell_agreed(void *arg, const struct sl_gpu_note *note)
{
    const struct sl_reader_watch *told = arg;
    told->agreed(told->arg, note->subject);
}

static void on_landed(void *arg, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const struct sl_gpu_fill *fill = arg;
    const struct sl_gpu_note note = {.tell = tell_landed,
                                     .arg = (void *)(uintptr_t)fill->told,
                                     .file = file,
                                     .offset = offset,
                                     .bytes = bytes};
    sl_gpu_ring_note(fill->ring, &note);
}

static void on_agreed(void *arg, const struct sl_check *check)
{
    const struct sl_gpu_fill *fill = arg;
    const struct sl_gpu_note note = {
        .tell = tell_agreed, .arg = (void *)(uintptr_t)fill->told, .subject = check};
    sl_gpu_ring_note(fill->ring, &note);
}

struct sl_gpu_fill *sl_gpu_fill_new(struct sl_gpu *gpu, const struct sl_pool_model *model,
                                    size_t file_count, const struct sl_reader_watch *watch,
                                    struct sl_cancel *cancel, struct sl_err *err)
{
    SL_AUTO(sl_gpu_fill) fill = sl_alloc(sizeof(*fill), err);
    if (!fill)
        return NULL;
    fill->told = watch;
    fill->watch = (struct sl_reader_watch){.landed = on_landed, .agreed = on_agreed, .arg = fill};
    fill->addresses = sl_alloc_array(file_count, sizeof(*fill->addresses), err);
    sl_autofree uint64_t *bytes = sl_alloc_array(file_count, sizeof(*bytes), err);
    if (!fill->addresses || !bytes)
        return NULL;
    for (size_t i = 0; i < file_count; i++) {
        if (model->slab_of_file[i] == UINT32_MAX)
            continue;
        const struct sl_slab *slab = &model->slabs[model->slab_of_file[i]];
        fill->addresses[i] = slab->memory.address;
        bytes[i] = slab->bytes;
    }
    const struct sl_gpu_ring_config config = {
        .addresses = fill->addresses, .bytes = bytes, .file_count = file_count, .cancel = cancel};
    fill->ring = sl_gpu_ring_new(gpu, &config, err);
    return fill->ring ? sl_steal(&fill) : NULL;
}

void sl_gpu_fill_free(struct sl_gpu_fill *fill)
{
    if (!fill)
        return;
    sl_gpu_ring_free(fill->ring);
    free(fill->addresses);
    free(fill);
}

struct sl_gpu_ring *sl_gpu_fill_ring(const struct sl_gpu_fill *fill)
{
    return fill->ring;
}

const struct sl_reader_watch *sl_gpu_fill_watch(const struct sl_gpu_fill *fill)
{
    return &fill->watch;
}

/*
 * Slabs as a sink: each file of the plan is a slab of its own. On the host it is written like a
 * file as long as nobody has it, and through the slab's mapping from then on (slab.c). On a GPU
 * its staging ring lends pinned memory, into which bytes are received; where it has none to spare,
 * and for what changes on its way, they are copied into it from readers' own small buffers, and
 * hold a place no longer than that takes; so a ring of any size serves any number of readers.
 */
#include <errno.h>

#include "exact_io.h"
#include "pool_parts.h"
#include "sink.h"

struct slab_sink {
    struct sl_sink base;
    struct sl_pool_copy *copy;
    struct sl_gpu_ring *ring; /* borrowed; NULL: all on the host */
};

static const struct sl_slab *slab_of(const struct sl_sink *sink, uint32_t file)
{
    const struct sl_pool_copy *copy = ((const struct slab_sink *)sink)->copy;
    return &copy->slabs[copy->slab_of_file[file]];
}

static int slab_reserve(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                        struct sl_place *place, struct sl_err *err)
{
    const struct sl_slab *slab = slab_of(sink, file);
    if (slab->kind != SL_SLAB_GPU) {
        uint8_t *map = sl_pool_copy_map(((struct slab_sink *)sink)->copy, slab);
        place->fd = slab->fd;
        place->memory = map ? map + offset : NULL;
        return map ? sl_slab_find_room(slab, offset, bytes, err) : 0;
    }
    return sl_gpu_ring_reserve(((struct slab_sink *)sink)->ring, file, offset, bytes,
                               &place->memory, err);
}

static int slab_lend(struct sl_sink *sink, uint32_t file, uint64_t offset, uint64_t bytes,
                     struct sl_place *place, struct sl_err *err)
{
    if (slab_of(sink, file)->kind != SL_SLAB_GPU)
        return 0;
    return sl_gpu_ring_lend(((struct slab_sink *)sink)->ring, file, offset, bytes, &place->memory,
                            err);
}

static int slab_commit(struct sl_sink *sink, const struct sl_place *place, struct sl_err *err)
{
    struct slab_sink *slabs = (struct slab_sink *)sink;
    (void)err;
    if (place->memory && place->fd < 0)
        sl_gpu_ring_commit(slabs->ring, place->memory);
    sl_pool_model_landed(slabs->copy->model, place->bytes);
    return 0;
}

static void slab_abandon(struct sl_sink *sink, const struct sl_place *place)
{
    if (place->memory && place->fd < 0) /* what is in it is of no use, and the load fails */
        sl_gpu_ring_commit(((struct slab_sink *)sink)->ring, place->memory);
}

static int slab_read(struct sl_sink *sink, uint32_t file, uint64_t offset, void *data, size_t bytes,
                     struct sl_err *err)
{
    int fd = slab_of(sink, file)->fd;
    if (slab_of(sink, file)->kind == SL_SLAB_GPU)
        return sl_gpu_ring_read(((struct slab_sink *)sink)->ring, file, offset, data, bytes, err);
    if (sl_read_at(fd, data, bytes, offset) < 0)
        return sl_fail_errno(err, SL_E_INTERNAL, errno, "cannot read a slab");
    return 0;
}

static void slab_close(struct sl_sink *sink)
{
    free(sink);
}

static const struct sl_sink_ops slab_ops = {
    .name = "slabs",
    .reserve = slab_reserve,
    .lend = slab_lend,
    .commit = slab_commit,
    .abandon = slab_abandon,
    .read = slab_read,
    .close = slab_close,
};

struct sl_sink *sl_slab_sink_open(struct sl_pool_copy *copy, const struct sl_sink_file *files,
                                  size_t count, struct sl_gpu_ring *ring, struct sl_err *err)
{
    struct slab_sink *sink = sl_alloc(sizeof(*sink), err);
    if (!sink)
        return NULL;
    sink->base = (struct sl_sink){.ops = &slab_ops, .files = files, .file_count = count};
    sink->copy = copy;
    sink->ring = ring;
    return &sink->base;
}

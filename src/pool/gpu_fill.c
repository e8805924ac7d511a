/*
 * What the reader tells of bytes and checks is true of the staging ring, not yet of the device: it
 * goes through the ring as notes, and reaches who counts tensors when the copies before it are
 * done.
 *
 * Where the device decrypts, a note of whole pieces has them opened before it is told. They are
 * found by their place: sealed tensors, sorted by file and offset, as the plan has them.
 */
#include "gpu_opener.h"
#include "log.h"
#include "mapping.h"
#include "pool_parts.h"

struct sl_gpu_fill {
    const struct sl_reader_watch *told; /* borrowed */
    struct sl_reader_watch watch;
    uint64_t *addresses; /* one a file; 0: on the host, or no bytes */
    struct sl_gpu_ring *ring;
    unsigned lane;                    /* of the ring; above 0 the ring is another's */
    struct sl_gpu_opener *opener;     /* NULL: nothing is opened here */
    const struct sl_mapping **sealed; /* opened here, by file and offset */
    size_t sealed_count;
    uint64_t sealed_bytes; /* of their largest piece */
};

/* ---- what is opened here --------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct sl_mapping *x = *(const struct sl_mapping *const *)a;
    const struct sl_mapping *y = *(const struct sl_mapping *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->file_offset < y->file_offset ? -1 : x->file_offset > y->file_offset;
}

static int find_sealed(struct sl_gpu_fill *fill, const struct sl_plan *plan, struct sl_err *err)
{
    fill->sealed = sl_alloc_array(plan->target_count, sizeof(*fill->sealed), err);
    if (!fill->sealed)
        return -1;
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++) {
        const struct sl_mapping *mapping = &plan->mappings[i];
        if (!sl_mapping_keeps_pieces(mapping) || mapping->piece_bytes > SL_OPENER_PIECE_BYTES_MAX)
            continue;
        fill->sealed[fill->sealed_count++] = mapping;
        fill->sealed_bytes = SL_MAX(fill->sealed_bytes, mapping->piece_bytes);
    }
    if (fill->sealed_count)
        qsort(fill->sealed, fill->sealed_count, sizeof(*fill->sealed), by_place);
    return 0;
}

static int open_opener(struct sl_gpu_fill *fill, struct sl_gpu *gpu, const struct sl_plan *plan,
                       enum sl_pool_decrypt decrypt, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    if (decrypt == SL_DECRYPT_HOST)
        return 0;
    if (find_sealed(fill, plan, err) < 0)
        return -1;
    if (!fill->sealed_count)
        return 0;
    fill->opener = sl_gpu_opener_new(gpu, fill->sealed_bytes, &why);
    if (fill->opener)
        return 0;
    fill->sealed_count = 0;
    fill->sealed_bytes = 0;
    if (decrypt == SL_DECRYPT_AUTO && why.kind == SL_E_GPU) {
        sl_log(SL_LOG_INFO, "decrypting on the host: %s", why.message);
        return 0;
    }
    if (err)
        *err = why;
    return -1;
}

/* The first that ends after this place; NULL: none of this file does. */
static const struct sl_mapping *next_sealed(const struct sl_gpu_fill *fill, uint32_t file,
                                            uint64_t offset)
{
    size_t low = 0, high = fill->sealed_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct sl_mapping *mapping = fill->sealed[middle];
        bool before = mapping->file != file
                          ? mapping->file < file
                          : mapping->file_offset + (mapping->end - mapping->begin) <= offset;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < fill->sealed_count && fill->sealed[low]->file == file;
    return found ? fill->sealed[low] : NULL;
}

/* ---- notes; the GPU's thread ------------------------------------------------------------------
 */

static int open_part(struct sl_gpu_fill *fill, const struct sl_mapping *mapping, uint64_t begin,
                     uint64_t end, struct sl_err *err)
{
    uint64_t at = begin - mapping->file_offset;
    return sl_gpu_opener_open(fill->opener, mapping->target->from, at / mapping->piece_bytes,
                              fill->addresses[mapping->file] + begin, end - begin, err);
}

static int open_all(struct sl_gpu_fill *fill, const struct sl_gpu_note *note, struct sl_err *err)
{
    uint64_t at = note->offset, end = note->offset + note->bytes;
    const struct sl_mapping *mapping;
    while (at < end && (mapping = next_sealed(fill, note->file, at)) &&
           mapping->file_offset < end) {
        uint64_t stop = mapping->file_offset + (mapping->end - mapping->begin);
        uint64_t begin = SL_MAX(at, mapping->file_offset);
        if (open_part(fill, mapping, begin, SL_MIN(stop, end), err) < 0)
            return -1;
        at = stop;
    }
    return 0;
}

static void tell_landed(void *arg, const struct sl_gpu_note *note)
{
    struct sl_gpu_fill *fill = arg;
    struct sl_err err = SL_ERR_INIT;
    if (open_all(fill, note, &err) < 0)
        sl_gpu_ring_fail(fill->ring, &err);
    else
        fill->told->landed(fill->told->arg, note->file, note->offset, note->bytes);
}

static void tell_agreed(void *arg, const struct sl_gpu_note *note)
{
    const struct sl_gpu_fill *fill = arg;
    fill->told->agreed(fill->told->arg, note->subject);
}

/* ---- the reader's threads ---------------------------------------------------------------------
 */

static void on_landed(void *arg, uint32_t file, uint64_t offset, uint64_t bytes)
{
    struct sl_gpu_fill *fill = arg;
    const struct sl_gpu_note note = {.tell = tell_landed,
                                     .arg = fill,
                                     .file = file,
                                     .offset = offset,
                                     .bytes = bytes,
                                     .lane = fill->lane};
    sl_gpu_ring_note(fill->ring, &note);
}

static void on_agreed(void *arg, const struct sl_check *check)
{
    struct sl_gpu_fill *fill = arg;
    const struct sl_gpu_note note = {
        .tell = tell_agreed, .arg = fill, .subject = check, .lane = fill->lane};
    sl_gpu_ring_note(fill->ring, &note);
}

/* ---- life -------------------------------------------------------------------------------------
 */

static int open_ring(struct sl_gpu_fill *fill, struct sl_gpu *gpu,
                     const struct sl_pool_model *model, size_t file_count, struct sl_cancel *cancel,
                     struct sl_gpu_ring *with, struct sl_err *err)
{
    fill->addresses = sl_alloc_array(file_count, sizeof(*fill->addresses), err);
    sl_autofree uint64_t *bytes = sl_alloc_array(file_count, sizeof(*bytes), err);
    if (!fill->addresses || !bytes)
        return -1;
    for (size_t i = 0; i < file_count; i++) {
        if (model->slab_of_file[i] == UINT32_MAX)
            continue;
        const struct sl_slab *slab = &model->slabs[model->slab_of_file[i]];
        fill->addresses[i] = slab->memory.address;
        bytes[i] = slab->bytes;
    }
    if (with) {
        int lane = sl_gpu_ring_add(with, gpu, fill->addresses, bytes, err);
        fill->lane = lane < 0 ? 0 : (unsigned)lane;
        fill->ring = lane < 0 ? NULL : with;
        return lane < 0 ? -1 : 0;
    }
    const struct sl_gpu_ring_config config = {
        .addresses = fill->addresses, .bytes = bytes, .file_count = file_count, .cancel = cancel};
    fill->ring = sl_gpu_ring_new(gpu, &config, err);
    return fill->ring ? 0 : -1;
}

static struct sl_gpu_fill *make(struct sl_gpu *gpu, const struct sl_pool_model *model,
                                const struct sl_plan *plan, enum sl_pool_decrypt decrypt,
                                const struct sl_reader_watch *watch, struct sl_cancel *cancel,
                                struct sl_gpu_ring *with, struct sl_err *err)
{
    SL_AUTO(sl_gpu_fill) fill = sl_alloc(sizeof(*fill), err);
    if (!fill)
        return NULL;
    fill->told = watch;
    fill->watch = (struct sl_reader_watch){.landed = on_landed, .agreed = on_agreed, .arg = fill};
    if (open_opener(fill, gpu, plan, decrypt, err) < 0 ||
        open_ring(fill, gpu, model, plan->file_count, cancel, with, err) < 0)
        return NULL;
    return sl_steal(&fill);
}

struct sl_gpu_fill *sl_gpu_fill_new(struct sl_gpu *gpu, const struct sl_pool_model *model,
                                    const struct sl_plan *plan, enum sl_pool_decrypt decrypt,
                                    const struct sl_reader_watch *watch, struct sl_cancel *cancel,
                                    struct sl_err *err)
{
    return make(gpu, model, plan, decrypt, watch, cancel, NULL, err);
}

struct sl_gpu_fill *sl_gpu_fill_follow(const struct sl_gpu_fill *first, struct sl_gpu *gpu,
                                       const struct sl_pool_model *model,
                                       const struct sl_plan *plan,
                                       const struct sl_reader_watch *watch, struct sl_err *err)
{
    enum sl_pool_decrypt decrypt = first->sealed_count ? SL_DECRYPT_GPU : SL_DECRYPT_HOST;
    return make(gpu, model, plan, decrypt, watch, NULL, first->ring, err);
}

void sl_gpu_fill_free(struct sl_gpu_fill *fill)
{
    if (!fill)
        return;
    if (fill->lane) /* no note comes after either */
        sl_gpu_ring_leave(fill->ring, fill->lane);
    else
        sl_gpu_ring_free(fill->ring);
    sl_gpu_opener_free(fill->opener);
    free(fill->sealed);
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

uint64_t sl_gpu_fill_sealed_bytes(const struct sl_gpu_fill *fill)
{
    return fill->sealed_bytes;
}

/*
 * What the reader tells of bytes and checks is true of the staging ring, not yet of the device: it
 * goes through the ring as notes, and reaches who counts tensors when the copies before it are
 * done.
 *
 * Where the device decrypts, a note of whole pieces has them opened before it is told. They are
 * found by their place: sealed tensors, sorted by file and offset, as the plan has them. Pieces
 * that do not open are fetched again (gpu_mend.h) and told when they did.
 */
#include <inttypes.h>

#include "gpu_caster.h"
#include "gpu_crcs.h"
#include "gpu_mend.h"
#include "gpu_opener.h"
#include "gpu_rates.h"
#include "lower_bound.h"
#include "mapping.h"
#include "metrics.h"
#include "pool_parts.h"

struct sl_gpu_fill {
    const struct sl_reader_watch *told; /* borrowed */
    struct sl_reader_watch watch;
    uint64_t *addresses; /* one a file; 0: on the host, or no bytes */
    struct sl_gpu_ring *ring;
    unsigned lane;                         /* of the ring; above 0 the ring is another's */
    const struct sl_reader_config *config; /* borrowed; of the run */
    struct sl_gpu_opener *opener;          /* NULL: nothing is opened here */
    struct sl_gpu_mend *mend;              /* the same */
    struct sl_gpu_caster *caster;          /* NULL: nothing is cast here */
    struct sl_gpu_crcs *crcs;              /* NULL: no CRC is computed here */
    const struct sl_mapping **sealed;      /* opened here, by file and offset */
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

/* As long as the GPU is to decrypt, and can. */
static int open_opener(struct sl_gpu_fill *fill, struct sl_gpu *gpu, const struct sl_plan *plan,
                       enum sl_pool_decrypt wish, struct sl_err *err)
{
    bool on_gpu = false;
    if (find_sealed(fill, plan, err) < 0)
        return -1;
    if (fill->sealed_count && sl_gpu_rates_choose(gpu, SL_GPU_DECRYPT, wish, &on_gpu, err) < 0)
        return -1;
    if (!on_gpu) {
        fill->sealed_count = 0;
        fill->sealed_bytes = 0;
        return 0;
    }
    fill->opener = sl_gpu_opener_new(gpu, fill->sealed_bytes, err);
    return fill->opener ? 0 : -1;
}

static int open_caster(struct sl_gpu_fill *fill, struct sl_gpu *gpu, struct sl_pool_model *model,
                       const struct sl_plan *plan, enum sl_pool_decrypt wish, struct sl_err *err)
{
    bool on_gpu = false;
    if (sl_gpu_caster_wanted(plan) && sl_gpu_rates_choose(gpu, SL_GPU_CAST, wish, &on_gpu, err) < 0)
        return -1;
    if (!on_gpu)
        return 0;
    fill->caster = sl_gpu_caster_new(gpu, plan, model, err);
    return fill->caster ? 0 : -1;
}

/* Addresses are known. */
static int open_crcs(struct sl_gpu_fill *fill, struct sl_gpu *gpu, const struct sl_plan *plan,
                     enum sl_pool_decrypt wish, struct sl_err *err)
{
    bool on_gpu = false;
    if (sl_gpu_crcs_wanted(plan) && sl_gpu_rates_choose(gpu, SL_GPU_CRC, wish, &on_gpu, err) < 0)
        return -1;
    if (!on_gpu)
        return 0;
    fill->crcs = sl_gpu_crcs_new(gpu, plan, fill->addresses, err);
    return fill->crcs ? 0 : -1;
}

static bool ends_by(const struct sl_mapping *mapping, uint32_t file, uint64_t offset)
{
    return mapping->file != file ? mapping->file < file
                                 : mapping->file_offset + (mapping->end - mapping->begin) <= offset;
}

/* The first that ends after this place; NULL: none of this file does. */
static const struct sl_mapping *next_sealed(const struct sl_gpu_fill *fill, uint32_t file,
                                            uint64_t offset)
{
    size_t at = SL_LOWER_BOUND(i, fill->sealed_count, ends_by(fill->sealed[i], file, offset));
    bool found = at < fill->sealed_count && fill->sealed[at]->file == file;
    return found ? fill->sealed[at] : NULL;
}

/* ---- notes; the GPU's thread ------------------------------------------------------------------
 */

static void tell(struct sl_gpu_fill *fill, uint32_t file, uint64_t begin, uint64_t end)
{
    if (begin < end)
        fill->told->landed(fill->told->arg, file, begin, end - begin);
}

/* Pieces of a sealed tensor that are being opened. */
struct opened {
    struct sl_gpu_fill *fill;
    const struct sl_mapping *mapping;
    bool mended; /* they were bad before */
};

static int take_bad(const struct opened *opened, uint64_t first, uint64_t count, struct sl_err *err)
{
    const struct sl_mapping *mapping = opened->mapping;
    if (opened->mended)
        return sl_fail(err, SL_E_GPU,
                       "piece %" PRIu64 " of tensor '%s' opens on the host, but not on the GPU: "
                       "look for its errors (nvidia-smi -q), or set sink.pool.decrypt to host",
                       first + 1, mapping->target->from->name);
    sl_metric_add(SL_M_VERIFY_FAILURES, (int64_t)count);
    for (uint64_t i = 0; i < count; i++)
        if (sl_gpu_mend_add(opened->fill->mend, mapping, first + i, err) < 0)
            return -1;
    return 0;
}

static int take_verdicts(void *arg, uint64_t first, uint64_t count, bool good, struct sl_err *err)
{
    const struct opened *opened = arg;
    const struct sl_mapping *mapping = opened->mapping;
    if (!good)
        return take_bad(opened, first, count, err);
    uint64_t begin = first * mapping->piece_bytes, whole = mapping->end - mapping->begin;
    uint64_t end = SL_MIN(begin + count * mapping->piece_bytes, whole);
    sl_gpu_mend_opened(opened->fill->mend, count);
    sl_metric_add(SL_M_GPU_OPENED_BYTES, (int64_t)(end - begin));
    tell(opened->fill, mapping->file, mapping->file_offset + begin, mapping->file_offset + end);
    return 0;
}

static int open_part(struct sl_gpu_fill *fill, const struct sl_mapping *mapping, uint64_t begin,
                     uint64_t end, bool mended, struct sl_err *err)
{
    struct opened opened = {fill, mapping, mended};
    const struct sl_opener_verdicts verdicts = {take_verdicts, &opened};
    uint64_t at = begin - mapping->file_offset;
    return sl_gpu_opener_open(fill->opener, mapping->target->from, at / mapping->piece_bytes,
                              fill->addresses[mapping->file] + begin, end - begin, &verdicts, err);
}

/* What is not sealed. */
static int take_plain(struct sl_gpu_fill *fill, uint32_t file, uint64_t begin, uint64_t end,
                      struct sl_err *err)
{
    if (begin < end && fill->crcs &&
        sl_gpu_crcs_landed(fill->crcs, file, begin, end - begin, err) < 0)
        return -1;
    tell(fill, file, begin, end);
    return 0;
}

static int open_all(struct sl_gpu_fill *fill, const struct sl_gpu_note *note, struct sl_err *err)
{
    uint64_t at = note->offset, end = note->offset + note->bytes;
    const struct sl_mapping *mapping;
    while (at < end && (mapping = next_sealed(fill, note->file, at)) &&
           mapping->file_offset < end) {
        uint64_t begin = SL_MAX(at, mapping->file_offset);
        uint64_t stop = SL_MIN(mapping->file_offset + (mapping->end - mapping->begin), end);
        if (take_plain(fill, note->file, at, begin, err) < 0 ||
            open_part(fill, mapping, begin, stop, false, err) < 0)
            return -1;
        at = stop;
    }
    return take_plain(fill, note->file, at, end, err);
}

static void tell_landed(void *arg, const struct sl_gpu_note *note)
{
    struct sl_gpu_fill *fill = arg;
    struct sl_err err = SL_ERR_INIT;
    if (open_all(fill, note, &err) < 0)
        sl_gpu_ring_fail(fill->ring, &err);
}

static void tell_mended(void *arg, const struct sl_gpu_note *note)
{
    struct sl_gpu_fill *fill = arg;
    const struct sl_gpu_bad *bad = note->subject;
    struct sl_err err = SL_ERR_INIT;
    if (open_part(fill, bad->mapping, note->offset, note->offset + note->bytes, true, &err) < 0)
        sl_gpu_ring_fail(fill->ring, &err);
    else
        sl_gpu_mend_done(fill->mend);
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

static int find_addresses(struct sl_gpu_fill *fill, const struct sl_pool_model *model,
                          size_t file_count, struct sl_err *err)
{
    fill->addresses = sl_alloc_array(file_count, sizeof(*fill->addresses), err);
    if (!fill->addresses)
        return -1;
    for (size_t i = 0; i < file_count; i++)
        if (model->slab_of_file[i] != UINT32_MAX)
            fill->addresses[i] = model->slabs[model->slab_of_file[i]].memory.address;
    return 0;
}

static int open_ring(struct sl_gpu_fill *fill, struct sl_gpu *gpu,
                     const struct sl_pool_model *model, size_t file_count, struct sl_gpu_ring *with,
                     struct sl_err *err)
{
    sl_autofree uint64_t *bytes = sl_alloc_array(file_count, sizeof(*bytes), err);
    if (!bytes)
        return -1;
    for (size_t i = 0; i < file_count; i++)
        if (model->slab_of_file[i] != UINT32_MAX)
            bytes[i] = model->slabs[model->slab_of_file[i]].bytes;
    if (with) {
        int lane = sl_gpu_ring_add(with, gpu, fill->addresses, bytes, err);
        fill->lane = lane < 0 ? 0 : (unsigned)lane;
        fill->ring = lane < 0 ? NULL : with;
        return lane < 0 ? -1 : 0;
    }
    const struct sl_gpu_ring_config config = {
        .addresses = fill->addresses,
        .bytes = bytes,
        .file_count = file_count,
        .cancel = fill->config->cancel,
        .scratch = fill->caster ? sl_gpu_caster_scratch(fill->caster) : 0};
    fill->ring = sl_gpu_ring_new(gpu, &config, err);
    if (fill->ring && fill->caster)
        sl_gpu_caster_bind(fill->caster, fill->ring);
    if (fill->ring && fill->crcs)
        sl_gpu_crcs_bind(fill->crcs, fill->ring);
    return fill->ring ? 0 : -1;
}

static int open_mend(struct sl_gpu_fill *fill, const struct sl_plan *plan, struct sl_err *err)
{
    const struct sl_gpu_mend_config config = {.plan = plan,
                                              .ring = fill->ring,
                                              .lane = fill->lane,
                                              .cancel = fill->config->cancel,
                                              .progress = fill->config->progress,
                                              .tell = tell_mended,
                                              .arg = fill};
    if (!fill->opener)
        return 0;
    fill->mend = sl_gpu_mend_new(&config, err);
    return fill->mend ? 0 : -1;
}

/* Casts and CRCs are of one GPU; what goes to several is made on the host, once. */
static int open_work(struct sl_gpu_fill *fill, struct sl_gpu *gpu, struct sl_pool_model *model,
                     const struct sl_plan *plan, const struct sl_spec_pool *wishes,
                     struct sl_err *err)
{
    if (model->twin_count || model->is_twin)
        return 0;
    if (open_caster(fill, gpu, model, plan, (enum sl_pool_decrypt)wishes->cast, err) < 0)
        return -1;
    return open_crcs(fill, gpu, plan, (enum sl_pool_decrypt)wishes->crc, err);
}

/* with: NULL, or the ring of another. */
static struct sl_gpu_fill *make(struct sl_gpu *gpu, struct sl_pool_model *model,
                                const struct sl_plan *plan, const struct sl_spec_pool *wishes,
                                const struct sl_reader_config *config,
                                const struct sl_reader_watch *told, struct sl_gpu_ring *with,
                                struct sl_err *err)
{
    SL_AUTO(sl_gpu_fill) fill = sl_alloc(sizeof(*fill), err);
    if (!fill)
        return NULL;
    fill->config = config;
    fill->told = told;
    fill->watch = (struct sl_reader_watch){.landed = on_landed, .agreed = on_agreed, .arg = fill};
    if (open_opener(fill, gpu, plan, (enum sl_pool_decrypt)wishes->decrypt, err) < 0 ||
        find_addresses(fill, model, plan->file_count, err) < 0 ||
        open_work(fill, gpu, model, plan, wishes, err) < 0 ||
        open_ring(fill, gpu, model, plan->file_count, with, err) < 0 ||
        open_mend(fill, plan, err) < 0)
        return NULL;
    return sl_steal(&fill);
}

struct sl_gpu_fill *sl_gpu_fill_new(struct sl_gpu *gpu, struct sl_pool_model *model,
                                    const struct sl_plan *plan, const struct sl_spec_pool *wishes,
                                    const struct sl_reader_config *config, struct sl_err *err)
{
    return make(gpu, model, plan, wishes, config, config->watch, NULL, err);
}

struct sl_gpu_fill *sl_gpu_fill_follow(const struct sl_gpu_fill *first, struct sl_gpu *gpu,
                                       struct sl_pool_model *model, const struct sl_plan *plan,
                                       const struct sl_reader_watch *told, struct sl_err *err)
{
    const struct sl_spec_pool wishes = {.decrypt =
                                            first->opener ? SL_DECRYPT_GPU : SL_DECRYPT_HOST};
    return make(gpu, model, plan, &wishes, first->config, told, first->ring, err);
}

void sl_gpu_fill_free(struct sl_gpu_fill *fill)
{
    if (!fill)
        return;
    if (fill->mend)
        sl_gpu_mend_stop(fill->mend);
    if (fill->lane) /* no note comes after either */
        sl_gpu_ring_leave(fill->ring, fill->lane);
    else
        sl_gpu_ring_free(fill->ring);
    sl_gpu_mend_free(fill->mend);
    sl_gpu_opener_free(fill->opener);
    sl_gpu_caster_free(fill->caster);
    sl_gpu_crcs_free(fill->crcs);
    free(fill->sealed);
    free(fill->addresses);
    free(fill);
}

int sl_gpu_fill_finish(struct sl_gpu_fill *fill, struct sl_err *err)
{
    if (sl_gpu_ring_finish(fill->ring, err) < 0)
        return -1;
    return fill->mend ? sl_gpu_mend_wait(fill->mend, err) : 0;
}

struct sl_gpu_ring *sl_gpu_fill_ring(const struct sl_gpu_fill *fill)
{
    return fill->ring;
}

void sl_gpu_fill_config(const struct sl_gpu_fill *fill, struct sl_reader_config *config)
{
    config->watch = &fill->watch;
    config->sealed_bytes = fill->sealed_bytes;
    config->caster = fill->caster ? sl_gpu_caster_ops(fill->caster) : NULL;
    config->crcs = fill->crcs ? sl_gpu_crcs_ops(fill->crcs) : NULL;
}

void sl_gpu_fill_counts(const struct sl_gpu_fill *fill, uint64_t *decrypted, uint64_t *cast)
{
    *decrypted = fill->sealed_count;
    *cast = fill->caster ? sl_gpu_caster_count(fill->caster) : 0;
}

const struct sl_reader_watch *sl_gpu_fill_watch(const struct sl_gpu_fill *fill)
{
    return &fill->watch;
}

/*
 * What the reader tells of bytes and checks is true of the staging ring, not yet of the device: it
 * goes through the ring as notes, and reaches who counts tensors when the copies before it are
 * done.
 *
 * Where the device decrypts, a note of whole pieces has them opened before it is told. They are
 * found by their place: sealed tensors, sorted by file and offset, as the plan has them. Pieces
 * that do not open are fetched again (gpu_repair.h) and told when they did.
 */
#include "gpu_target.h"

#include <inttypes.h>

#include "mapping.h"
#include "metrics.h"

/* ---- what is opened here --------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct sl_mapping *x = *(const struct sl_mapping *const *)a;
    const struct sl_mapping *y = *(const struct sl_mapping *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->file_offset < y->file_offset ? -1 : x->file_offset > y->file_offset;
}

int sl_gpu_sealed_find(const struct sl_plan *plan, struct sl_gpu_sealed *sealed, struct sl_err *err)
{
    sealed->mappings = sl_alloc_array(plan->target_count, sizeof(*sealed->mappings), err);
    if (!sealed->mappings)
        return -1;
    for (size_t i = 0; plan->mappings && i < plan->target_count; i++) {
        const struct sl_mapping *mapping = &plan->mappings[i];
        if (mapping->decrypt_on != SL_ON_DEVICE)
            continue;
        sealed->mappings[sealed->count++] = mapping;
        sealed->piece_bytes = SL_MAX(sealed->piece_bytes, mapping->piece_bytes);
    }
    if (sealed->count)
        qsort(sealed->mappings, sealed->count, sizeof(*sealed->mappings), by_place);
    return 0;
}

void sl_gpu_sealed_release(struct sl_gpu_sealed *sealed)
{
    free(sl_steal(&sealed->mappings));
}

/* The first that ends after this place; NULL: none of this file does. */
static const struct sl_mapping *next_sealed(const struct sl_gpu_sealed *sealed, uint32_t file,
                                            uint64_t offset)
{
    size_t low = 0, high = sealed->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct sl_mapping *mapping = sealed->mappings[middle];
        bool before = mapping->file != file
                          ? mapping->file < file
                          : mapping->file_offset + (mapping->end - mapping->begin) <= offset;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < sealed->count && sealed->mappings[low]->file == file;
    return found ? sealed->mappings[low] : NULL;
}

/* ---- notes; the GPU's thread ----------------------------------------------------------------- */

static void report(struct sl_gpu_target *target, uint32_t file, uint64_t begin, uint64_t end)
{
    if (begin < end)
        target->is.events.landed(target->is.events.arg, file, begin, end - begin);
}

static int take_bad(struct sl_gpu_target *target, const struct sl_mapping *mapping, bool repaired,
                    uint64_t first, uint64_t count, struct sl_err *err)
{
    if (repaired)
        return sl_fail(err, SL_E_GPU,
                       "piece %" PRIu64 " of tensor '%s' opens on the host, but not on the GPU: "
                       "look for its errors (nvidia-smi -q), or set sink.pool.decrypt to host",
                       first + 1, mapping->target->from->name);
    sl_metric_add(SL_M_VERIFY_FAILURES, (int64_t)count);
    for (uint64_t i = 0; i < count; i++)
        if (sl_gpu_repair_add(target->repair, mapping, first + i, err) < 0)
            return -1;
    return 0;
}

static int on_verdicts(void *arg, const struct sl_opener_pieces *of, uint64_t first, uint64_t count,
                       bool good, struct sl_err *err)
{
    struct sl_gpu_target *target = arg;
    const struct sl_mapping *mapping = of->subject;
    if (!good)
        return take_bad(target, mapping, of->flag, first, count, err);
    uint64_t begin = first * mapping->piece_bytes, whole = mapping->end - mapping->begin;
    uint64_t end = SL_MIN(begin + count * mapping->piece_bytes, whole);
    sl_gpu_repair_decrypted(target->repair, count);
    sl_metric_add(SL_M_GPU_OPENED_BYTES, (int64_t)(end - begin));
    report(target, mapping->file, mapping->file_offset + begin, mapping->file_offset + end);
    if (of->flag) /* it is one piece, which was bad before */
        sl_gpu_repair_done(target->repair);
    return 0;
}

static void on_opened(void *arg)
{
    const struct sl_gpu_target *target = arg;
    sl_gpu_ring_end_work(target->ring, target->queue);
}

static void on_failed(void *arg, const struct sl_err *why)
{
    sl_gpu_ring_fail(((const struct sl_gpu_target *)arg)->ring, why);
}

static int open_part(struct sl_gpu_target *target, const struct sl_mapping *mapping, uint64_t begin,
                     uint64_t end, bool repaired, struct sl_err *err)
{
    uint64_t at = begin - mapping->file_offset;
    const struct sl_opener_pieces pieces = {.tensor = mapping->target->from,
                                            .first = at / mapping->piece_bytes,
                                            .address = target->addresses[mapping->file] + begin,
                                            .bytes = end - begin,
                                            .subject = mapping,
                                            .flag = repaired};
    if (begin == end)
        return 0; /* a tensor without bytes */
    sl_gpu_ring_begin_work(target->ring, target->queue);
    return sl_gpu_opener_open(target->opener, &pieces, err);
}

/* What is not sealed. */
static int take_plain(struct sl_gpu_target *target, uint32_t file, uint64_t begin, uint64_t end,
                      struct sl_err *err)
{
    if (begin < end && target->crcs &&
        sl_gpu_crcs_landed(target->crcs, file, begin, end - begin, err) < 0)
        return -1;
    report(target, file, begin, end);
    return 0;
}

static int open_all(struct sl_gpu_target *target, const struct sl_gpu_note *note,
                    struct sl_err *err)
{
    uint64_t at = note->offset, end = note->offset + note->bytes;
    const struct sl_mapping *mapping;
    while (at < end && (mapping = next_sealed(target->sealed, note->file, at)) &&
           mapping->file_offset < end) {
        uint64_t begin = SL_MAX(at, mapping->file_offset);
        uint64_t stop = SL_MIN(mapping->file_offset + (mapping->end - mapping->begin), end);
        if (take_plain(target, note->file, at, begin, err) < 0 ||
            open_part(target, mapping, begin, stop, false, err) < 0)
            return -1;
        at = stop;
    }
    return take_plain(target, note->file, at, end, err);
}

static void report_landed(void *arg, const struct sl_gpu_note *note)
{
    struct sl_gpu_target *target = arg;
    struct sl_err err = SL_ERR_INIT;
    if (open_all(target, note, &err) < 0)
        sl_gpu_ring_fail(target->ring, &err);
}

static void report_repaired(void *arg, const struct sl_gpu_note *note)
{
    struct sl_gpu_target *target = arg;
    const struct sl_gpu_bad *bad = note->subject;
    struct sl_err err = SL_ERR_INIT;
    if (open_part(target, bad->mapping, note->offset, note->offset + note->bytes, true, &err) < 0)
        sl_gpu_ring_fail(target->ring, &err);
}

static void report_agreed(void *arg, const struct sl_gpu_note *note)
{
    const struct sl_gpu_target *target = arg;
    target->is.events.agreed(target->is.events.arg, note->subject);
}

/* ---- the reader's threads -------------------------------------------------------------------- */

void sl_gpu_target_landed(struct sl_gpu_target *target, uint32_t file, uint64_t offset,
                          uint64_t bytes)
{
    const struct sl_gpu_note note = {.deliver = report_landed,
                                     .arg = target,
                                     .file = file,
                                     .offset = offset,
                                     .bytes = bytes,
                                     .queue = target->queue};
    sl_gpu_ring_note(target->ring, &note);
}

void sl_gpu_target_agreed(struct sl_gpu_target *target, const struct sl_check *check)
{
    const struct sl_gpu_note note = {
        .deliver = report_agreed, .arg = target, .subject = check, .queue = target->queue};
    sl_gpu_ring_note(target->ring, &note);
}

/* ---- life ------------------------------------------------------------------------------------ */

int sl_gpu_target_init(struct sl_gpu_target *target, const struct sl_gpu_fill_target *is,
                       const struct sl_plan *plan, const struct sl_gpu_sealed *sealed,
                       struct sl_err *err)
{
    target->is = *is;
    target->sealed = sealed;
    target->addresses = sl_alloc_array(plan->file_count, sizeof(*target->addresses), err);
    target->bytes = sl_alloc_array(plan->file_count, sizeof(*target->bytes), err);
    if (!target->addresses || !target->bytes)
        return -1;
    for (uint32_t i = 0; i < plan->file_count; i++) {
        const struct sl_gpu_memory *memory = is->memory(is->arg, i);
        target->addresses[i] = memory ? memory->address : 0;
        target->bytes[i] = memory ? memory->bytes : 0;
    }
    if (sealed->count)
        target->opener = sl_gpu_opener_new(is->gpu, sealed->piece_bytes, err);
    return sealed->count && !target->opener ? -1 : 0;
}

int sl_gpu_target_join(struct sl_gpu_target *target, struct sl_gpu_ring *ring, unsigned queue,
                       const struct sl_plan *plan, const struct sl_gpu_fill_config *config,
                       struct sl_err *err)
{
    const struct sl_gpu_repair_config repair = {.plan = plan,
                                                .ring = ring,
                                                .queue = queue,
                                                .cancel = config->cancel,
                                                .progress = config->progress,
                                                .deliver = report_repaired,
                                                .arg = target};
    target->ring = ring;
    target->queue = queue;
    target->events = (struct sl_opener_events){on_verdicts, on_opened, on_failed, target};
    if (target->crcs)
        sl_gpu_crcs_join(target->crcs, ring, queue);
    if (target->opener)
        sl_gpu_opener_bind(target->opener, &target->events);
    if (target->opener)
        target->repair = sl_gpu_repair_new(&repair, err);
    return target->opener && !target->repair ? -1 : 0;
}

void sl_gpu_target_stop(struct sl_gpu_target *target)
{
    if (target->repair)
        sl_gpu_repair_stop(target->repair);
    if (target->crcs)
        sl_gpu_crcs_stop(target->crcs);
    if (target->opener)
        sl_gpu_opener_stop(target->opener);
}

void sl_gpu_target_release(struct sl_gpu_target *target)
{
    sl_gpu_repair_free(target->repair);
    sl_gpu_opener_free(target->opener);
    free(target->addresses);
    free(target->bytes);
}

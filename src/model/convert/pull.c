/*
 * What a thread reads: any part of any tensor through the tensor reader, cast where it must be.
 * Small tensors that lie together in one object and are written together cost one request, not one
 * each.
 */
#include <string.h>

#include "cast.h"
#include "job.h"
#include "names.h"

enum { GAP_BYTES = 64 * 1024 }; /* read for nothing, beyond as much as is useful */

static struct sl_tensor_reader *reader_of(struct sl_worker *worker, struct sl_index *index,
                                          struct sl_err *err)
{
    for (size_t i = 0; i < worker->reader_count; i++)
        if (worker->readers[i].index == index)
            return worker->readers[i].reader;
    if (sl_grow(&worker->readers, &worker->reader_capacity, worker->reader_count + 1,
                sizeof(*worker->readers), err) < 0)
        return NULL;
    struct sl_tensor_reader *reader = sl_tensor_reader_new(index, err);
    if (!reader)
        return NULL;
    worker->readers[worker->reader_count].index = index;
    worker->readers[worker->reader_count++].reader = reader;
    return reader;
}

static int read_cast(struct sl_worker *worker, const struct sl_item *item, uint8_t *out,
                     struct sl_tally *tally, struct sl_err *err)
{
    const struct sl_target *target = item->target;
    struct sl_tensor_reader *reader = reader_of(worker, target->index, err);
    size_t raw_size = sl_dtype_row(target->from->dtype)->bits / 8,
           size = sl_dtype_row(target->out.dtype)->bits / 8;
    uint64_t at = tally->begin / size, end = tally->end / size;
    if (reader)
        sl_tensor_reader_check(reader, item->chunk_check);
    while (reader && at < end) {
        uint64_t count = SL_MIN(end - at, worker->job->block_bytes / raw_size);
        if (sl_tensor_read(reader, target->from, target->slice, at * raw_size,
                           (at + count) * raw_size, worker->other, err) < 0)
            return -1;
        if (sl_item_needs_raw_crc(item))
            tally->raw_crc = sl_crc32(tally->raw_crc, worker->other, count * raw_size);
        sl_item_hash_raw((struct sl_item *)(uintptr_t)item, worker->other, count * raw_size);
        sl_cast(target->from->dtype, target->out.dtype, (enum sl_cast_overflow)target->overflow,
                worker->other, out, count);
        out += count * size;
        at += count;
    }
    tally->raw_end = at * raw_size;
    return reader ? 0 : -1;
}

/* ---- many small tensors by one request ------------------------------------------------------- */

static struct sl_source *clone_of(struct sl_worker *worker, const struct sl_index *index,
                                  uint32_t number, struct sl_err *err)
{
    for (size_t i = 0; i < worker->clone_count; i++)
        if (worker->clones[i].index == index && worker->clones[i].number == number)
            return worker->clones[i].source;
    if (sl_grow(&worker->clones, &worker->clone_capacity, worker->clone_count + 1,
                sizeof(*worker->clones), err) < 0)
        return NULL;
    struct sl_source *source = sl_index_clone_source(index, number, err);
    if (!source)
        return NULL;
    worker->clones[worker->clone_count].index = index;
    worker->clones[worker->clone_count].number = number;
    worker->clones[worker->clone_count++].source = source;
    return source;
}

/* Stored as it is written. */
static bool is_verbatim(const struct sl_item *item)
{
    const struct sl_tensor *from = item->target->from;
    return !item->target->slice && !from->strides && !from->swap_bytes && !from->encrypted &&
           !from->meta && !from->refused && from->dtype == item->target->out.dtype &&
           from->end - from->begin == from->bytes;
}

static bool is_ahead(const struct sl_worker *worker, const struct sl_tensor *from)
{
    return worker->ahead.end && from->source == worker->ahead.source &&
           from->begin >= worker->ahead.begin && from->end <= worker->ahead.end;
}

/* The range that holds all of a batch; false if they are not of one object or far apart. */
static bool find_range(const struct sl_worker *worker, const struct sl_block *block,
                       uint64_t *begin, uint64_t *end)
{
    const struct sl_target *first = block->first->target;
    uint64_t useful = 0;
    *begin = UINT64_MAX;
    *end = 0;
    for (size_t i = 0; i < block->count; i++) {
        const struct sl_tensor *from = block->first[i].target->from;
        if (!is_verbatim(&block->first[i]) || block->first[i].target->index != first->index ||
            from->source != first->from->source)
            return false;
        if (from->begin == from->end)
            continue;
        *begin = SL_MIN(*begin, from->begin);
        *end = SL_MAX(*end, from->end);
        useful += from->end - from->begin;
    }
    return useful && *end - *begin <= worker->job->block_bytes &&
           *end - *begin - useful <= useful + GAP_BYTES;
}

int sl_worker_read_ahead(struct sl_worker *worker, const struct sl_block *block, struct sl_err *err)
{
    const struct sl_target *first = block->first->target;
    uint64_t begin, end;
    worker->ahead.end = 0;
    if (block->count < 2 || !find_range(worker, block, &begin, &end))
        return 0;
    struct sl_source *source = clone_of(worker, first->index, first->from->source, err);
    if (!source || sl_source_read(source, begin, worker->other, end - begin, err) < 0)
        return -1;
    worker->ahead.begin = begin;
    worker->ahead.end = end;
    worker->ahead.source = first->from->source;
    return 0;
}

/* ---- any bytes ------------------------------------------------------------------------------- */

int sl_worker_read(struct sl_worker *worker, const struct sl_item *item, uint8_t *out,
                   struct sl_tally *tally, struct sl_err *err)
{
    const struct sl_target *target = item->target;
    int done = 0;
    if (tally->begin == tally->end)
        return 0;
    tally->raw_end = tally->end;
    if (target->from->meta) {
        memset(out, 0, tally->end - tally->begin);
        tally->raw_end = item->raw_bytes;
    } else if (target->from->dtype != target->out.dtype) {
        done = read_cast(worker, item, out, tally, err);
    } else if (is_ahead(worker, target->from)) {
        memcpy(out, worker->other + (target->from->begin - worker->ahead.begin), tally->end);
    } else {
        struct sl_tensor_reader *reader = reader_of(worker, target->index, err);
        if (reader)
            sl_tensor_reader_check(reader, item->chunk_check);
        done = reader ? sl_tensor_read(reader, target->from, target->slice, tally->begin,
                                       tally->end, out, err)
                      : -1;
    }
    if (done < 0)
        return strstr(err->message, "tensor '")
                   ? -1
                   : sl_wrap(err, "tensor '%.*s'",
                             SL_NAME_ARGS(target->from->name, target->from->name_bytes));
    if (sl_item_needs_crc(item))
        tally->crc = sl_crc32(0, out, tally->end - tally->begin);
    return 0;
}

void sl_worker_release_readers(struct sl_worker *worker)
{
    for (size_t i = 0; i < worker->reader_count; i++)
        sl_tensor_reader_free(worker->readers[i].reader);
    for (size_t i = 0; i < worker->clone_count; i++)
        sl_source_free(worker->clones[i].source);
    free(worker->readers);
    free(worker->clones);
}

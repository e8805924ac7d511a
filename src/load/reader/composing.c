/*
 * Tensors that no range of bytes gives: views whose elements do not lie row by row, slices that cut
 * within a byte. They are pulled through the format's own reader, block by block, cast and written
 * here. Every thread of a load takes such blocks until none is left, and reads ranges then.
 */

#include "cast.h"
#include "reader_parts.h"
#include "tensor_reader.h"

enum { BLOCK_BYTES = SL_PIECE_BYTES, CHUNK_BYTES = 256 * 1024 };

/* What one thread needs. */
struct composer {
    struct sl_reader *reader;
    unsigned thread;
    struct sl_block_cursor own; /* of a load that is pinned */
    struct sl_tensor_reader *from;
    const struct sl_index *index; /* that `from` reads */
    uint8_t *block, *chunk;
    struct sl_writer writer;
};

static bool next_block(const struct sl_plan *plan, struct sl_block_cursor *cursor,
                       const struct sl_mapping **mapping, uint64_t *begin)
{
    for (; cursor->target < plan->target_count; cursor->target++) {
        *mapping = &plan->mappings[cursor->target];
        *begin = cursor->bytes;
        cursor->bytes += BLOCK_BYTES;
        cursor->count++;
        if (*begin < sl_mapping_composed(*mapping))
            return true;
        cursor->bytes = 0;
        cursor->count--;
    }
    return false;
}

/* The next block: bytes from *begin on of the plaintext of *mapping. Where the load is pinned each
 * thread has blocks of its own. */
static bool take_block(struct composer *composer, const struct sl_mapping **mapping,
                       uint64_t *begin)
{
    struct sl_reader *reader = composer->reader;
    SL_LOCKED(&reader->lock);
    if (reader->locked.err.kind)
        return false;
    if (!reader->plan->fixed.on)
        return next_block(reader->plan, &reader->locked.composed, mapping, begin);
    while (next_block(reader->plan, &composer->own, mapping, begin))
        if ((composer->own.count - 1) % reader->concurrency.threads == composer->thread)
            return true;
    return false;
}

static int aim(struct composer *composer, struct sl_index *index, struct sl_err *err)
{
    if (composer->index == index)
        return 0;
    sl_tensor_reader_free(sl_steal(&composer->from));
    composer->from = sl_tensor_reader_new(index, err);
    composer->index = composer->from ? index : NULL;
    return composer->from ? 0 : -1;
}

static int land_chunk(struct composer *composer, const struct sl_mapping *mapping, uint64_t offset,
                      const uint8_t *data, uint64_t bytes, uint64_t fetched, struct sl_err *err)
{
    struct sl_reader *reader = composer->reader;
    uint32_t crc = sl_crc32c(0, data, (size_t)bytes);
    if (sl_writer_put(reader, mapping->file, offset, data, bytes, err) < 0 ||
        sl_writer_note(&composer->writer, mapping->file, offset, offset + bytes, crc, fetched,
                       err) < 0)
        return -1;
    sl_writer_report(reader, mapping->file, offset, bytes);
    return sl_deferred_feed(reader->deferred, mapping->file, offset, data, (size_t)bytes, err);
}

/* Plaintext bytes [begin, end) lie in the block: what is written of them, chunk by chunk. */
static int land_block(struct composer *composer, const struct sl_mapping *mapping, uint64_t begin,
                      uint64_t end, struct sl_err *err)
{
    const struct sl_target *target = mapping->target;
    bool casts = target->from->dtype != target->out.dtype;
    uint64_t step = CHUNK_BYTES / SL_MAX(mapping->in_item, mapping->out_item) * mapping->in_item;
    for (uint64_t at = begin; at < end; at += step) {
        uint64_t bytes = SL_MIN(step, end - at), count = bytes / mapping->in_item;
        const uint8_t *data = composer->block + (at - begin);
        if (casts) {
            sl_cast(target->from->dtype, target->out.dtype, (enum sl_cast_overflow)target->overflow,
                    data, composer->chunk, (size_t)count);
            data = composer->chunk;
        }
        uint64_t offset = mapping->file_offset + at / mapping->in_item * mapping->out_item;
        if (land_chunk(composer, mapping, offset, data, count * mapping->out_item, bytes, err) < 0)
            return -1;
    }
    return 0;
}

static int compose_block(struct composer *composer, const struct sl_mapping *mapping,
                         uint64_t begin, struct sl_err *err)
{
    struct sl_reader *reader = composer->reader;
    const struct sl_target *target = mapping->target;
    uint64_t end = SL_MIN(begin + BLOCK_BYTES, sl_mapping_composed(mapping));
    uint64_t first = mapping->file_offset + begin / mapping->in_item * mapping->out_item;
    uint64_t bytes = (end - begin) / mapping->in_item * mapping->out_item;
    if (sl_is_inherited(reader->sink, mapping->file)) {
        sl_reader_count_inherited(reader, end - begin);
        return 0;
    }
    if (sl_work_keeps(&reader->work, mapping->file, first, first + bytes)) {
        sl_counter_add(&reader->resumed, end - begin);
        sl_progress_add_resumed(reader->config->progress, end - begin);
        return sl_deferred_feed_landed(reader->deferred, mapping->file, first, bytes, err);
    }
    if (sl_cancel_check(reader->config->cancel, err) < 0 || aim(composer, target->index, err) < 0 ||
        sl_tensor_read(composer->from, target->from, target->slice, begin, end, composer->block,
                       err) < 0)
        return -1;
    return land_block(composer, mapping, begin, end, err);
}

static int compose_all(struct composer *composer, struct sl_err *err)
{
    const struct sl_mapping *mapping;
    uint64_t begin;
    composer->writer.reader = composer->reader;
    while (take_block(composer, &mapping, &begin)) {
        if (!composer->block && !(composer->block = sl_alloc_aligned(64, BLOCK_BYTES, err)))
            return -1;
        if (!composer->chunk && !(composer->chunk = sl_alloc_aligned(64, CHUNK_BYTES, err)))
            return -1;
        if (compose_block(composer, mapping, begin, err) < 0)
            return -1;
    }
    return sl_writer_flush(&composer->writer, err);
}

void sl_reader_compose(struct sl_reader *reader, unsigned thread)
{
    struct composer composer = {.reader = reader, .thread = thread};
    struct sl_err err = SL_ERR_INIT;
    if (compose_all(&composer, &err) < 0)
        sl_reader_fail(reader, &err);
    sl_tensor_reader_free(composer.from);
    free(composer.block);
    free(composer.chunk);
}

/*
 * Bytes that have come are written, committed, hashed while they are hot, and noted for the
 * journal, in this order: what the journal knows is always written. Memory that a sink lent is read
 * before it is committed, since it is somebody else's then; no sink that is resumed lends any. A
 * stretch of neighbouring writes becomes one record, told when it has grown to STRETCH_BYTES, when
 * it is SL_UNTOLD_NS old (keep.c) and when its range ends: what a kill costs is at most that much
 * of each slot and the window that it reads, and no more than what came in that time. A record is
 * one small write, a thousandth of the work that its stretch was.
 */
#include <errno.h>
#include <string.h>

#include "exact_io.h"
#include "hash.h"
#include "metrics.h"
#include "reader_parts.h"

enum { LITERAL_CHUNK_BYTES = 1024 * 1024 };

/* 0, or the number of what went wrong. */
static int write_file(const struct sl_place *place, const uint8_t *data)
{
    return sl_write_at(place->fd, data, (size_t)place->bytes, place->offset) < 0 ? errno : 0;
}

/* Into the sink's memory (a copy: the bytes came in one read with their neighbours) or its file. A
 * file that was sealed meanwhile (EPERM) has memory instead from then on. */
int sl_writer_put(struct sl_reader *reader, uint32_t file, uint64_t offset, const uint8_t *data,
                  uint64_t bytes, struct sl_err *err)
{
    struct sl_place place;
    int number = 0;
    for (bool was_sealed = false;; was_sealed = true) {
        if (sl_sink_reserve(reader->sink, file, offset, bytes, &place, err) < 0)
            return -1;
        if (place.memory)
            memcpy(place.memory, data, (size_t)bytes);
        else
            number = write_file(&place, data);
        if (place.memory || !number)
            return sl_sink_commit(reader->sink, &place, err);
        sl_sink_abandon(reader->sink, &place);
        if (number != EPERM || was_sealed)
            return sl_fail_errno(err, SL_E_NO_SPACE, number,
                                 "cannot write '%s': give the destination more space or memory",
                                 reader->plan->files[file].name);
    }
}

int sl_writer_flush(struct sl_writer *writer, struct sl_err *err)
{
    if (writer->begin == writer->end)
        return 0;
    uint64_t begin = writer->begin;
    writer->begin = writer->end;
    return sl_journal_add(writer->reader->journal, writer->file, begin, writer->end, writer->crc,
                          err);
}

int sl_writer_flush_old(struct sl_writer *writer, uint64_t now_ns, struct sl_err *err)
{
    bool old = writer->begin < writer->end && now_ns - writer->began_ns >= SL_UNTOLD_NS;
    return old ? sl_writer_flush(writer, err) : 0;
}

static int flush_long(struct sl_writer *writer, struct sl_err *err)
{
    return writer->end - writer->begin < SL_STRETCH_BYTES ? 0 : sl_writer_flush(writer, err);
}

/* The slot's stretch, or a new one, is to take the next bytes at this place. */
static int open_stretch(struct sl_writer *writer, uint32_t file, uint64_t offset,
                        struct sl_err *err)
{
    if (writer->begin < writer->end && writer->file == file && writer->end == offset)
        return 0;
    if (sl_writer_flush(writer, err) < 0)
        return -1;
    writer->file = file;
    writer->begin = writer->end = offset;
    writer->began_ns = sl_now_ns();
    writer->crc = 0;
    return 0;
}

void sl_writer_report(struct sl_reader *reader, uint32_t file, uint64_t offset, uint64_t bytes)
{
    const struct sl_stage_device *device = reader->config->device;
    if (device && bytes)
        device->events.landed(device->events.arg, file, offset, bytes);
}

static void count(struct sl_reader *reader, uint64_t bytes)
{
    sl_counter_add(&reader->landed, bytes);
    sl_progress_add_bytes(reader->config->progress, bytes);
}

int sl_writer_note(struct sl_writer *writer, uint32_t file, uint64_t begin, uint64_t end,
                   uint32_t crc, uint64_t fetched, struct sl_err *err)
{
    count(writer->reader, fetched);
    if (!writer->reader->journal || begin == end)
        return 0;
    if (open_stretch(writer, file, begin, err) < 0)
        return -1;
    writer->crc = writer->begin == begin ? crc : sl_crc32c_combine(writer->crc, crc, end - begin);
    writer->end = end;
    return flush_long(writer, err);
}

static struct sl_verify_bytes landed_bytes(const struct sl_extent *extent, uint64_t begin,
                                           uint64_t offset, const uint8_t *data, size_t bytes)
{
    return (struct sl_verify_bytes){.source = extent->source,
                                    .begin = begin,
                                    .bytes = bytes,
                                    .data = data,
                                    .placed = true,
                                    .file = extent->file,
                                    .file_offset = offset};
}

/* What a check needs, too, is computed once. */
static int note_and_check(struct sl_writer *writer, const struct sl_extent *extent, uint64_t begin,
                          uint64_t offset, const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct sl_reader *reader = writer->reader;
    uint32_t crc = sl_crc32c(0, data, bytes);
    if (open_stretch(writer, extent->file, offset, err) < 0)
        return -1;
    writer->crc = writer->begin == offset ? crc : sl_crc32c_combine(writer->crc, crc, bytes);
    writer->end = offset + bytes;
    if (flush_long(writer, err) < 0)
        return -1;
    if (sl_deferred_feed(reader->deferred, extent->file, offset, data, bytes, err) < 0)
        return -1;
    struct sl_verify_bytes fed = landed_bytes(extent, begin, offset, data, bytes);
    fed.crc32c = &crc;
    return sl_verify_take(reader->verify, &fed, err);
}

/* What checks and the journal want of the bytes. */
static int examine(struct sl_writer *writer, const struct sl_extent *extent, uint64_t begin,
                   const uint8_t *data, size_t bytes, struct sl_err *err)
{
    struct sl_reader *reader = writer->reader;
    uint64_t offset = extent->file_offset + (begin - extent->begin);
    if (reader->journal)
        return note_and_check(writer, extent, begin, offset, data, bytes, err);
    if (sl_deferred_feed(reader->deferred, extent->file, offset, data, bytes, err) < 0)
        return -1;
    struct sl_verify_bytes fed = landed_bytes(extent, begin, offset, data, bytes);
    return sl_verify_take(reader->verify, &fed, err);
}

/* The bytes are in the sink. */
static void landed(struct sl_writer *writer, const struct sl_extent *extent, uint64_t begin,
                   size_t bytes)
{
    count(writer->reader, bytes);
    sl_writer_report(writer->reader, extent->file, extent->file_offset + (begin - extent->begin),
                     bytes);
}

int sl_writer_write(struct sl_writer *writer, const struct sl_extent *extent, uint64_t begin,
                    const uint8_t *data, size_t bytes, struct sl_err *err)
{
    uint64_t offset = extent->file_offset + (begin - extent->begin);
    if (sl_writer_put(writer->reader, extent->file, offset, data, bytes, err) < 0)
        return -1;
    landed(writer, extent, begin, bytes);
    return examine(writer, extent, begin, data, bytes, err);
}

int sl_writer_commit(struct sl_writer *writer, const struct sl_extent *extent,
                     const struct sl_place *place, struct sl_err *err)
{
    uint64_t begin = extent->begin + (place->offset - extent->file_offset);
    if (examine(writer, extent, begin, place->memory, (size_t)place->bytes, err) < 0) {
        sl_sink_abandon(writer->reader->sink, place);
        return -1;
    }
    if (sl_sink_commit(writer->reader->sink, place, err) < 0)
        return -1;
    landed(writer, extent, begin, (size_t)place->bytes);
    return 0;
}

int sl_writer_literal(struct sl_reader *reader, const struct sl_literal *literal,
                      struct sl_err *err)
{
    for (uint64_t done = 0; done < literal->bytes;) {
        uint64_t bytes = SL_MIN(literal->bytes - done, (uint64_t)LITERAL_CHUNK_BYTES);
        if (sl_writer_put(reader, literal->file, literal->file_offset + done, literal->data + done,
                          bytes, err) < 0)
            return -1;
        sl_progress_add_bytes(reader->config->progress, bytes);
        done += bytes;
    }
    return 0;
}

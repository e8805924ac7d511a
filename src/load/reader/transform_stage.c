/*
 * From stored bytes to what is written, while they are hot in a slot's window: decrypt, hash, drop
 * what a slice does not take, put the bytes of elements in order, cast. All of it happens in the
 * window itself, since nothing but a cast to a larger type makes bytes more; only that has a second
 * buffer. Writing comes after, so that no other thread waits at a file for a cipher.
 *
 * Plaintext is written before the MAC of its piece is known, into files that nobody sees yet. What
 * is told of it (to journal, hashes, progress) waits for the MAC: a piece that is given up halfway
 * is written again by who takes it over, and counts once.
 */
#include <inttypes.h>
#include <string.h>

#include "cast.h"
#include "metrics.h"
#include "reader_parts.h"
#include "reread.h"

int sl_transform_init(struct sl_transform *transform, struct sl_reader *reader, struct sl_err *err)
{
    transform->reader = reader;
    if (!reader->grows)
        return 0;
    transform->expanded = sl_alloc_aligned(4096, reader->concurrency.buffer_bytes, err);
    return transform->expanded ? 0 : -1;
}

/* What is open of the stored bytes. */
static void close_unit(struct sl_transform *transform)
{
    if (transform->piece_end)
        sl_opening_release(&transform->opening);
    transform->piece_end = 0;
    sl_sha256_free(sl_steal(&transform->sha));
    transform->mapping = NULL;
}

void sl_transform_drop(struct sl_transform *transform)
{
    close_unit(transform);
    transform->pending.open = false;
    transform->used = transform->put = 0;
}

void sl_transform_release(struct sl_transform *transform)
{
    sl_transform_drop(transform);
    free(transform->expanded);
}

void sl_transform_turn(struct sl_transform *transform)
{
    transform->used = transform->put = 0;
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static int fail_to_open(struct sl_transform *transform, uint64_t number, struct sl_err *err)
{
    sl_metric_add(SL_M_VERIFY_FAILURES, 1);
    return sl_reread_blame(transform->mapping->target, number,
                           sl_counter_get(&transform->reader->decrypted) > 0, err);
}

static void begin_piece(struct sl_transform *transform, uint64_t at)
{
    const struct sl_mapping *mapping = transform->mapping;
    const struct sl_tensor *tensor = mapping->target->from;
    uint64_t left = mapping->end - at;
    transform->piece_begin = at;
    transform->piece_end = left > mapping->piece_bytes ? at + mapping->piece_bytes : mapping->end;
    sl_opening_begin(&transform->opening, tensor->key, tensor->crypt->nonce,
                     (at - mapping->begin) / mapping->piece_bytes);
}

static int end_piece(struct sl_transform *transform, struct sl_err *err)
{
    const struct sl_mapping *mapping = transform->mapping;
    const struct sl_crypt *crypt = mapping->target->from->crypt;
    uint64_t number = (transform->piece_begin - mapping->begin) / mapping->piece_bytes;
    transform->piece_end = 0;
    if (!sl_opening_end(&transform->opening, crypt->macs + number * SL_MAC_BYTES))
        return fail_to_open(transform, number, err);
    sl_counter_add(&transform->reader->decrypted, 1);
    return 0;
}

/* Bytes that nobody takes need no plaintext. */
static int decrypt(struct sl_transform *transform, uint64_t begin, uint64_t end, uint8_t *data,
                   struct sl_err *err)
{
    const struct sl_mapping *mapping = transform->mapping;
    for (uint64_t at = begin; at < end;) {
        if (!transform->piece_end)
            begin_piece(transform, at);
        uint64_t next = SL_MIN(end, transform->piece_end);
        uint8_t *bytes = data + (at - begin);
        bool taken = sl_runs_before(&mapping->selected, next - mapping->begin) >
                     sl_runs_before(&mapping->selected, at - mapping->begin);
        sl_opening_update(&transform->opening, bytes, taken ? bytes : NULL, (size_t)(next - at));
        at = next;
        if (at < transform->piece_end)
            break;
        if (end_piece(transform, err) < 0)
            return -1;
        transform->sure = at;
    }
    return 0;
}

/* It lands as it came; the device opens whole pieces. */
static void pass_sealed(struct sl_transform *transform, uint64_t end)
{
    const struct sl_mapping *mapping = transform->mapping;
    uint64_t ragged = end == mapping->end ? 0 : (end - mapping->begin) % mapping->piece_bytes;
    transform->sure = SL_MAX(transform->sure, end - SL_MIN(ragged, end - mapping->begin));
}

static bool casts(const struct sl_mapping *mapping)
{
    return mapping->target->from->dtype != mapping->target->out.dtype;
}

/* ---- hashes over the stored plaintext -------------------------------------------------------- */

static int begin_hashes(struct sl_transform *transform, struct sl_err *err)
{
    const struct sl_mapping *mapping = transform->mapping;
    const struct sl_check *checks = transform->reader->plan->checks + mapping->check_first;
    for (uint32_t i = 0; i < mapping->check_count; i++) {
        if (checks[i].kind == SL_HASH_CRC32) {
            transform->crc = sl_crc32(0, checks[i].prefix, checks[i].prefix_bytes);
            continue;
        }
        transform->sha = sl_sha256_new(err);
        if (!transform->sha)
            return -1;
        sl_sha256_update(transform->sha, checks[i].prefix, checks[i].prefix_bytes);
    }
    return 0;
}

static int compare_hashes(struct sl_transform *transform, struct sl_err *err)
{
    const struct sl_mapping *mapping = transform->mapping;
    const struct sl_check *checks = transform->reader->plan->checks + mapping->check_first;
    uint8_t digests[2][SL_HASH_BYTES_MAX] = {{0}};
    sl_crc_digest(SL_HASH_CRC32, transform->crc, digests[0]);
    if (transform->sha)
        sl_sha256_finish(transform->sha, digests[1]);
    for (uint32_t i = 0; i < mapping->check_count; i++) {
        const uint8_t *digest = digests[checks[i].kind == SL_HASH_SHA256];
        if (memcmp(digest, checks[i].expected, sl_hash_bytes(checks[i].kind)) == 0)
            continue;
        sl_metric_add(SL_M_VERIFY_FAILURES, 1);
        return sl_verify_mismatch(&checks[i], digest, err);
    }
    sl_progress_add_verified(transform->reader->config->progress, mapping->end - mapping->begin);
    sl_metric_add(SL_M_VERIFIED_BYTES, (int64_t)(mapping->end - mapping->begin));
    return 0;
}

/* Its own checks alone: other tensors may be made of the same bytes. data NULL: read back. */
static int feed_checks(const struct sl_transform *transform, const struct sl_mapping *mapping,
                       uint64_t begin, const uint8_t *data, uint64_t bytes, struct sl_err *err)
{
    struct sl_verify_bytes fed = {.source = mapping->source,
                                  .begin = begin,
                                  .bytes = bytes,
                                  .data = data,
                                  .placed = true,
                                  .file = mapping->file,
                                  .file_offset = mapping->file_offset + (begin - mapping->begin)};
    return bytes ? sl_verify_take(transform->reader->verify, &fed, err) : 0;
}

static int hash(struct sl_transform *transform, uint64_t begin, uint64_t end, const uint8_t *data,
                struct sl_err *err)
{
    const struct sl_mapping *mapping = transform->mapping;
    size_t bytes = (size_t)(end - begin);
    if (!mapping->check_count)
        return 0;
    if (mapping->ordered) {
        transform->crc = sl_crc32(transform->crc, data, bytes);
        if (transform->sha)
            sl_sha256_update(transform->sha, data, bytes);
        return end == mapping->end ? compare_hashes(transform, err) : 0;
    }
    if (mapping->piece_bytes)
        return 0; /* once it is sure */
    return feed_checks(transform, mapping, begin, data, bytes, err);
}

/* ---- cut and cast ---------------------------------------------------------------------------- */

/* What is taken of a sparse range, of which only the rows lie there, one after another. */
static size_t gather_rows(const struct sl_mapping *mapping, uint64_t begin, uint64_t end,
                          uint8_t *data)
{
    const struct sl_runs *rows = &mapping->fetched;
    uint64_t at = sl_runs_before(rows, begin), stop = sl_runs_before(rows, end), left;
    if (rows->bytes == mapping->selected.bytes)
        return (size_t)(stop - at);
    const uint8_t *from = data;
    uint8_t *to = data;
    while (at < stop) {
        uint64_t row = sl_runs_at(rows, at, &left), bytes = SL_MIN(left, stop - at);
        to += sl_runs_gather(&mapping->selected, row, row + bytes, from, to);
        from += bytes;
        at += bytes;
    }
    return (size_t)(to - data);
}

static void shape(struct sl_transform *transform, uint64_t begin, uint64_t end, uint8_t *data)
{
    const struct sl_mapping *mapping = transform->mapping;
    const struct sl_target *target = mapping->target;
    size_t bytes = (size_t)(end - begin);
    begin -= mapping->begin;
    end -= mapping->begin;
    if (mapping->fetched.total)
        bytes = gather_rows(mapping, begin, end, data);
    else if (mapping->selected.total < mapping->end - mapping->begin)
        bytes = sl_runs_gather(&mapping->selected, begin, end, data, data);
    if (mapping->swap_bytes)
        sl_swap_bytes(data, mapping->swap_bytes, bytes / mapping->swap_bytes);
    if (!casts(mapping) || mapping->cast_on == SL_ON_DEVICE)
        return;
    size_t count = bytes / mapping->in_item;
    uint8_t *out = data;
    if (mapping->out_item > mapping->in_item) {
        out = transform->expanded + transform->used;
        transform->used += count * mapping->out_item;
    }
    sl_cast(target->from->dtype, target->out.dtype, (enum sl_cast_overflow)target->overflow, data,
            out, count);
}

/* ---- windows --------------------------------------------------------------------------------- */

static int begin_unit(struct sl_transform *transform, const struct sl_mapping *mapping,
                      uint64_t place, struct sl_err *err)
{
    close_unit(transform);
    transform->mapping = mapping;
    transform->at = transform->sure = place;
    if (mapping->unit && sl_mapping_floor(mapping, place) != place)
        return sl_fail(err, SL_E_INTERNAL, "tensor '%s' was parted within a unit, at %" PRIu64,
                       mapping->target->from->name, place);
    return mapping->ordered ? begin_hashes(transform, err) : 0;
}

int sl_transform_add(struct sl_transform *transform, const struct sl_extent *extent, uint64_t begin,
                     uint64_t end, uint8_t *data, struct sl_err *err)
{
    const struct sl_mapping *mapping = sl_extent_mapping(transform->reader->plan, extent);
    bool goes_on = transform->mapping == mapping && transform->at == begin && begin > extent->begin;
    if (!goes_on && begin_unit(transform, mapping, begin, err) < 0)
        return -1;
    if (mapping->decrypt_on == SL_ON_DEVICE) {
        pass_sealed(transform, end);
    } else if (mapping->piece_bytes) {
        if (decrypt(transform, begin, end, data, err) < 0)
            return -1;
    } else if (!mapping->ordered) {
        transform->sure = end;
    }
    if (hash(transform, begin, end, data, err) < 0)
        return -1;
    if (mapping->ordered)
        transform->sure = end == mapping->end ? end : mapping->begin;
    transform->at = end;
    shape(transform, begin, end, data);
    return 0;
}

/* Written bytes are sure: whoever computes hashes sees them while they are hot, if they are. */
static int feed(struct sl_transform *transform, const struct sl_mapping *mapping, uint64_t bytes,
                const uint8_t *data, struct sl_err *err)
{
    struct sl_reader *reader = transform->reader;
    uint64_t place = transform->pending.place, begin = transform->pending.begin;
    bool verified = mapping->check_count && mapping->piece_bytes && !mapping->ordered;
    int failed = data ? sl_deferred_feed(reader->deferred, mapping->file, begin, data, bytes, err)
                      : sl_deferred_feed_landed(reader->deferred, mapping->file, begin, bytes, err);
    if (failed || !verified)
        return failed;
    return feed_checks(transform, mapping, place, data, bytes, err);
}

/* What is pending and the bytes after it, up to offset `end`, have become sure. data: NULL if what
 * is written is made on the device. */
static int settle(struct sl_transform *transform, struct sl_writer *writer,
                  const struct sl_mapping *mapping, uint64_t end, const uint8_t *data,
                  struct sl_err *err)
{
    uint64_t begin = transform->pending.begin;
    bool hot = begin == transform->pending.end;
    uint32_t crc =
        data ? sl_crc32c(transform->pending.crc, data, (size_t)(end - transform->pending.end))
             : 0; /* there is no journal */
    transform->pending.open = false;
    if (mapping->piece_bytes && !mapping->check_count) { /* by its MACs */
        sl_progress_add_verified(transform->reader->config->progress, transform->pending.fetched);
        sl_metric_add(SL_M_VERIFIED_BYTES, (int64_t)transform->pending.fetched);
    }
    if (sl_writer_note(writer, mapping->file, begin, end, crc, transform->pending.fetched, err) < 0)
        return -1;
    sl_writer_report(transform->reader, mapping->file, begin, end - begin);
    return begin == end ? 0 : feed(transform, mapping, end - begin, hot ? data : NULL, err);
}

/* Bytes [begin, end) of the extent, the first of them written at `offset`, wait with others. */
static void wait_with(struct sl_transform *transform, const struct sl_extent *extent,
                      uint64_t begin, uint64_t end, uint64_t offset)
{
    struct sl_extent part = *extent;
    if (!transform->pending.open) {
        transform->pending.open = true;
        transform->pending.place = begin;
        transform->pending.begin = transform->pending.end = offset;
        transform->pending.fetched = 0;
        transform->pending.crc = 0;
    }
    part.begin = begin;
    part.end = end;
    transform->pending.fetched += sl_extent_bytes(transform->reader->plan, &part);
}

/* bytes: that it takes in the file. */
static int put_formed(struct sl_transform *transform, const struct sl_mapping *mapping,
                      uint64_t offset, uint64_t bytes, const uint8_t *data, struct sl_err *err)
{
    const struct sl_stage_device *device = transform->reader->config->device;
    if (mapping->cast_on == SL_ON_HOST)
        return sl_writer_put(transform->reader, mapping->file, offset, data, bytes, err);
    return device->cast(device->arg, mapping, offset, data,
                        bytes / mapping->out_item * mapping->in_item, err);
}

int sl_transform_land(struct sl_transform *transform, struct sl_writer *writer,
                      const struct sl_extent *extent, uint64_t begin, uint64_t end,
                      const uint8_t *data, struct sl_err *err)
{
    const struct sl_mapping *mapping = sl_extent_mapping(transform->reader->plan, extent);
    uint64_t offset = sl_mapping_place(mapping, begin), stop = sl_mapping_place(mapping, end);
    bool made_there = mapping->cast_on == SL_ON_DEVICE;
    if (mapping->out_item > mapping->in_item && !made_there) {
        data = transform->expanded + transform->put;
        transform->put += stop - offset;
    }
    if (stop > offset && put_formed(transform, mapping, offset, stop - offset, data, err) < 0)
        return -1;
    if (made_there)
        data = NULL;
    /* An extent ends where a unit does, and only a window's last can be open. */
    uint64_t sure = end == extent->end ? end : SL_MAX(transform->sure, begin);
    uint64_t settled = sl_mapping_place(mapping, sure);
    if (sure > begin) {
        wait_with(transform, extent, begin, sure, offset);
        if (settle(transform, writer, mapping, settled, data, err) < 0)
            return -1;
    }
    if (sure == end)
        return 0;
    wait_with(transform, extent, sure, end, settled);
    if (data)
        transform->pending.crc =
            sl_crc32c(transform->pending.crc, data + (settled - offset), (size_t)(stop - settled));
    transform->pending.end = stop;
    return 0;
}

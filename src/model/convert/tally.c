/*
 * The hashes of one tensor while its blocks come in any order. A CRC32 is linear: the CRC of a
 * block is moved to its place (combined with the CRC of nothing, as many bytes as follow it) and
 * added, in whatever order blocks end. SHA-256 needs the bytes in order: blocks take turns.
 *
 * Two streams are told apart: the bytes that are written, for the new header, and, where a cast
 * lies between, those that are read, for the hashes that came with the tensor.
 */
#include <string.h>

#include "job.h"
#include "names.h"

static bool is_cast(const struct sl_item *item)
{
    return item->target->from->dtype != item->target->out.dtype;
}

/* Bytes that hashes of the source cover. */
static uint64_t stored_bytes(const struct sl_item *item)
{
    return item->target->from->meta ? 0 : item->raw_bytes;
}

static bool header_wants_sha(const struct sl_item *item)
{
    return item->header && item->header->sha256_at && item->data_bytes;
}

static bool source_wants_sha(const struct sl_item *item)
{
    return item->sha_check && stored_bytes(item);
}

bool sl_item_in_turns(const struct sl_item *item)
{
    return header_wants_sha(item) || source_wants_sha(item);
}

/* ---- which hashes of the source are checked -------------------------------------------------- */

static void find_hashes(struct sl_item *item)
{
    const struct sl_tensor *from = item->target->from;
    for (unsigned i = 0; i < from->hash_count; i++) {
        const struct sl_index_hash *hash = &from->hashes[i];
        if (hash->sha256)
            item->sha_check = hash;
        else
            item->crc_check = hash;
    }
}

/* Hashes are over the bytes as they are stored: a part of them, or another order, cannot be checked
 * on the way. */
static bool is_checkable(const struct sl_item *item)
{
    const struct sl_tensor *from = item->target->from;
    return !item->target->slice && !from->strides && !from->chunks && !from->swap_bytes;
}

int sl_item_choose_checks(struct sl_item *item, const struct sl_spec *spec, struct sl_err *err)
{
    const struct sl_tensor *from = item->target->from;
    int mode = spec->verify.hashes;
    item->crc_check = item->sha_check = NULL;
    if (mode == SL_HASHES_OFF)
        return 0;
    if (is_checkable(item))
        find_hashes(item);
    size_t possible = item->target->slice ? 0 : sl_chunk_check_possible(from);
    if (possible && !(item->chunk_check = sl_chunk_check_new(from, err)))
        return -1;
    bool all_chunks = from->chunks && possible == from->chunk_count;
    if (mode == SL_HASHES_REQUIRE && stored_bytes(item) && !from->encrypted && !item->crc_check &&
        !item->sha_check && !all_chunks)
        return sl_fail(err, SL_E_INTEGRITY, "tensor '%.*s' %s: 'verify.hashes: auto' converts it",
                       SL_NAME_ARGS(from->name, from->name_bytes),
                       from->hash_count ? "is read in part or in another order, so that its hashes "
                                          "cannot be checked"
                                        : "has no hash");
    if (mode == SL_HASHES_ALL)
        return 0;
    if (from->encrypted && stored_bytes(item)) /* each piece has its MAC */
        item->crc_check = item->sha_check = NULL;
    if (item->crc_check)
        item->sha_check = NULL;
    return 0;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static int begin_sha(struct sl_sha256 **sha, const uint8_t *prefix, size_t bytes,
                     struct sl_err *err)
{
    *sha = sl_sha256_new(err);
    if (!*sha)
        return -1;
    sl_sha256_update(*sha, prefix, bytes);
    return 0;
}

int sl_item_begin(struct sl_item *item, struct sl_err *err)
{
    if (header_wants_sha(item) &&
        begin_sha(&item->sha, item->header->prefix, item->header->prefix_bytes, err) < 0)
        return -1;
    if (source_wants_sha(item) &&
        begin_sha(&item->raw_sha, item->sha_check->prefix, item->sha_check->prefix_bytes, err) < 0)
        return -1;
    return 0;
}

void sl_item_release(struct sl_item *item)
{
    sl_sha256_free(item->sha);
    sl_sha256_free(item->raw_sha);
    item->sha = item->raw_sha = NULL;
}

int sl_item_await_turn(struct sl_job *job, struct sl_item *item, uint64_t begin, struct sl_err *err)
{
    SL_LOCKED(&job->lock);
    while (!job->locked.failed && item->locked.hashed != begin)
        pthread_cond_wait(&job->moved, &job->lock);
    if (job->locked.failed) {
        *err = job->locked.err;
        return -1;
    }
    return 0;
}

void sl_item_hash_raw(struct sl_item *item, const uint8_t *data, size_t bytes)
{
    if (item->raw_sha)
        sl_sha256_update(item->raw_sha, data, bytes);
}

void sl_item_hash(struct sl_job *job, struct sl_item *item, const uint8_t *data, size_t bytes)
{
    if (item->sha)
        sl_sha256_update(item->sha, data, bytes);
    if (!is_cast(item))
        sl_item_hash_raw(item, data, bytes);
    SL_LOCKED(&job->lock);
    item->locked.hashed += bytes;
    pthread_cond_broadcast(&job->moved);
}

/* ---- blocks and the whole -------------------------------------------------------------------- */

bool sl_item_needs_crc(const struct sl_item *item)
{
    return (item->header && item->header->crc32_at) || (item->crc_check && !is_cast(item));
}

bool sl_item_needs_raw_crc(const struct sl_item *item)
{
    return item->crc_check && is_cast(item);
}

bool sl_item_count(struct sl_job *job, struct sl_item *item, const struct sl_tally *tally)
{
    uint32_t crc = sl_crc32_combine(tally->crc, 0, item->data_bytes - tally->end);
    uint32_t raw_crc = sl_crc32_combine(tally->raw_crc, 0, item->raw_bytes - tally->raw_end);
    SL_LOCKED(&job->lock);
    item->locked.crc ^= crc;
    item->locked.raw_crc ^= raw_crc;
    item->locked.done += tally->end - tally->begin;
    return item->locked.done == item->data_bytes;
}

static int compare_hash(const struct sl_item *item, const struct sl_index_hash *hash,
                        const uint8_t *actual, struct sl_err *err)
{
    const struct sl_tensor *from = item->target->from;
    size_t bytes = hash->sha256 ? 32 : 4;
    char expected_hex[65], actual_hex[65];
    if (memcmp(hash->expected, actual, bytes) == 0)
        return 0;
    sl_hex(hash->expected, bytes, expected_hex);
    sl_hex(actual, bytes, actual_hex);
    return sl_fail_code(
        err, SL_E_INTEGRITY, hash->sha256 ? "E_HASH_SHA256" : "E_HASH_CRC32",
        "tensor '%.*s': its %s is %s, the file says %s: the bytes are damaged; store the "
        "file again",
        SL_NAME_ARGS(from->name, from->name_bytes), hash->sha256 ? "SHA-256" : "CRC32", actual_hex,
        expected_hex);
}

static int check_crc(const struct sl_item *item, struct sl_err *err)
{
    const struct sl_index_hash *hash = item->crc_check;
    uint32_t crc = sl_crc32(0, hash->prefix, hash->prefix_bytes);
    uint8_t digest[SL_HASH_BYTES_MAX];
    if (stored_bytes(item))
        crc = sl_crc32_combine(crc, is_cast(item) ? item->locked.raw_crc : item->locked.crc,
                               item->raw_bytes);
    sl_crc_digest(SL_HASH_CRC32, crc, digest);
    return compare_hash(item, hash, digest, err);
}

static int check_sha(struct sl_item *item, struct sl_err *err)
{
    const struct sl_index_hash *hash = item->sha_check;
    uint8_t digest[32];
    if (!item->raw_sha && begin_sha(&item->raw_sha, hash->prefix, hash->prefix_bytes, err) < 0)
        return -1;
    sl_sha256_finish(item->raw_sha, digest);
    return compare_hash(item, hash, digest, err);
}

/* Read again, the bytes must be what the header says: it is written already. */
static int fail_changed(const struct sl_item *item, struct sl_err *err)
{
    const struct sl_tensor *from = item->target->from;
    return sl_fail_code(err, SL_E_INTEGRITY, "changed",
                        "tensor '%.*s' was not the same when it was read a second time: the "
                        "source changed during the conversion",
                        SL_NAME_ARGS(from->name, from->name_bytes));
}

static int fill_header(struct sl_job *job, struct sl_item *item, struct sl_err *err)
{
    const struct sl_layout_header *header = item->header;
    bool known = !item->data_bytes || item->target->out.meta; /* the layout filled them in */
    if (known || !(header->crc32_at || header->sha256_at))
        return 0;
    uint8_t digest[32] = {0}, crc_bytes[4];
    uint32_t crc = sl_crc32(0, header->prefix, header->prefix_bytes);
    crc = sl_crc32_combine(crc, item->locked.crc, item->data_bytes);
    if (item->sha)
        sl_sha256_finish(item->sha, digest);
    for (int i = 0; i < 4; i++)
        crc_bytes[i] = (uint8_t)(crc >> (8 * i));
    uint8_t *crc_place = header->data + header->crc32_at,
            *sha_place = header->data + header->sha256_at;
    if (job->pass == SL_PASS_ORDER) {
        bool same = (!header->crc32_at || memcmp(crc_place, crc_bytes, 4) == 0) &&
                    (!header->sha256_at || memcmp(sha_place, digest, 32) == 0);
        return same ? 0 : fail_changed(item, err);
    }
    if (header->crc32_at)
        memcpy(crc_place, crc_bytes, 4);
    if (header->sha256_at)
        memcpy(sha_place, digest, 32);
    return 0;
}

/* Every block was counted: no other thread has the tensor. */
int sl_item_complete(struct sl_job *job, struct sl_item *item, struct sl_err *err)
{
    bool first_reading = job->pass != SL_PASS_ORDER || !item->header;
    if (first_reading && ((item->crc_check && check_crc(item, err) < 0) ||
                          (item->sha_check && check_sha(item, err) < 0)))
        return -1;
    if (item->header && fill_header(job, item, err) < 0)
        return -1;
    sl_item_release(item);
    uint64_t checked = item->crc_check || item->sha_check ? stored_bytes(item) : 0;
    size_t chunks = item->chunk_check ? sl_chunk_check_take(item->chunk_check, &checked) : 0;
    if (item->chunk_check && chunks < sl_chunk_check_possible(item->target->from))
        return sl_fail(err, SL_E_INTERNAL, "a chunk of tensor '%s' was not checked",
                       item->target->from->name);
    if (first_reading)
        sl_progress_add_verified(job->config->progress, checked);
    SL_LOCKED(&job->lock);
    if (first_reading) {
        job->locked.checks += (item->crc_check != NULL) + (item->sha_check != NULL) + chunks;
        job->locked.bytes_read += stored_bytes(item);
    }
    pthread_cond_broadcast(&job->moved);
    return 0;
}

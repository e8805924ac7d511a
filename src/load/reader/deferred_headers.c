/*
 * Headers that hold the hashes of what follows them. Each tensor's CRC32 and SHA-256 are computed
 * like the hashes of a check, while its bytes are hot or from behind, but by their place in the
 * file: whatever was cut, cast or decrypted on the way, what is hashed is what was written. The
 * second of the two to be done completes the header and writes it. Nothing of this is in the
 * journal: a resumed load hashes again what it keeps.
 */
#include <string.h>

#include "hash.h"
#include "reader_parts.h"

enum { HASHES = 2, CRC32 = 0, SHA256 = 1, CHUNK_BYTES = 256 * 1024 };

/* What is known of one header; guarded by the lock. */
struct digests {
    uint8_t value[HASHES][SL_HASH_BYTES_MAX];
    unsigned known;
};

struct sl_deferred {
    struct sl_reader *reader;
    struct sl_check *checks; /* two a head, in their order */
    struct sl_verify *verify;
    pthread_mutex_t lock;
    struct {
        struct digests *digests;
    } locked;
};

static int write_head(struct sl_deferred *deferred, const struct sl_deferred_header *head,
                      const struct digests *digests, struct sl_err *err)
{
    struct sl_layout_header own = *head->header;
    sl_autofree uint8_t *data = sl_alloc(own.bytes, err);
    if (!data)
        return -1;
    memcpy(data, own.data, own.bytes);
    own.data = data;
    const uint8_t *crc = digests->value[CRC32];
    sl_layout_header_hashes(
        &own, (uint32_t)crc[0] << 24 | (uint32_t)crc[1] << 16 | (uint32_t)crc[2] << 8 | crc[3],
        digests->value[SHA256]);
    struct sl_literal literal = {head->file, own.offset, data, own.bytes};
    return sl_writer_literal(deferred->reader, &literal, err);
}

static int on_digest(void *arg, const struct sl_check *check, const uint8_t *digest,
                     struct sl_err *err)
{
    struct sl_deferred *deferred = arg;
    size_t number = (size_t)(check - deferred->checks);
    struct digests *digests = &deferred->locked.digests[number / HASHES], both;
    {
        SL_LOCKED(&deferred->lock);
        memcpy(digests->value[number % HASHES], digest, sl_hash_bytes(check->kind));
        if (++digests->known < HASHES)
            return 0;
        both = *digests;
    }
    return write_head(deferred, &deferred->reader->plan->deferred_headers[number / HASHES], &both,
                      err);
}

static int read_back(void *arg, uint32_t file, uint64_t offset, void *data, size_t bytes,
                     struct sl_err *err)
{
    struct sl_reader *reader = ((struct sl_deferred *)arg)->reader;
    if (sl_cancel_check(reader->config->cancel, err) < 0)
        return -1;
    return sl_sink_read(reader->sink, file, offset, data, bytes, err);
}

static bool is_passed(void *arg, const struct sl_check *check)
{
    return sl_is_inherited(((struct sl_deferred *)arg)->reader->sink, check->file);
}

static void fill_checks(struct sl_deferred *deferred, const struct sl_plan *plan)
{
    for (size_t i = 0; i < plan->deferred_header_count * HASHES; i++) {
        const struct sl_deferred_header *head = &plan->deferred_headers[i / HASHES];
        uint64_t begin = head->header->offset + head->header->bytes;
        deferred->checks[i] = (struct sl_check){
            .kind = i % HASHES == CRC32 ? SL_HASH_CRC32 : SL_HASH_SHA256,
            .source = head->file,
            .begin = begin,
            .end = begin + head->bytes,
            .file = head->file,
            .file_offset = begin,
            .prefix = head->header->prefix,
            .prefix_bytes = head->header->prefix_bytes,
            .what = "a tensor's header",
            .computed = true,
        };
    }
}

int sl_deferred_new(struct sl_deferred **out, struct sl_reader *reader, struct sl_err *err)
{
    const struct sl_plan *plan = reader->plan;
    if (!plan->deferred_header_count)
        return 0;
    SL_AUTO(sl_deferred) deferred = sl_alloc(sizeof(*deferred), err);
    if (!deferred)
        return -1;
    pthread_mutex_init(&deferred->lock, NULL);
    deferred->reader = reader;
    deferred->checks =
        sl_alloc_array(plan->deferred_header_count, HASHES * sizeof(*deferred->checks), err);
    deferred->locked.digests =
        sl_alloc_array(plan->deferred_header_count, sizeof(struct digests), err);
    if (!deferred->checks || !deferred->locked.digests)
        return -1;
    fill_checks(deferred, plan);
    struct sl_verify_config config = {
        .read = read_back, .passes = is_passed, .computed = on_digest, .arg = deferred};
    deferred->verify =
        sl_verify_new(deferred->checks, plan->deferred_header_count * HASHES, &config, err);
    if (!deferred->verify)
        return -1;
    *out = sl_steal(&deferred);
    return 0;
}

void sl_deferred_free(struct sl_deferred *deferred)
{
    if (!deferred)
        return;
    sl_verify_free(deferred->verify);
    free(deferred->checks);
    free(deferred->locked.digests);
    pthread_mutex_destroy(&deferred->lock);
    free(deferred);
}

int sl_deferred_feed(struct sl_deferred *deferred, uint32_t file, uint64_t offset, const void *data,
                     size_t bytes, struct sl_err *err)
{
    return deferred ? sl_verify_feed(deferred->verify, file, offset, data, bytes, err) : 0;
}

int sl_deferred_feed_landed(struct sl_deferred *deferred, uint32_t file, uint64_t offset,
                            uint64_t bytes, struct sl_err *err)
{
    return deferred ? sl_verify_feed_landed(deferred->verify, file, offset, bytes, err) : 0;
}

static int redo(struct sl_deferred *deferred, const struct sl_deferred_header *head,
                struct sl_err *err)
{
    struct digests digests = {.known = HASHES};
    sl_autodigest crc = {0}, sha = {0};
    const uint8_t *prefix = head->header->prefix;
    size_t prefix_bytes = head->header->prefix_bytes;
    sl_autofree uint8_t *chunk = sl_alloc_aligned(4096, CHUNK_BYTES, err);
    if (!chunk || sl_digest_begin(&crc, SL_HASH_CRC32, prefix, prefix_bytes, err) < 0 ||
        sl_digest_begin(&sha, SL_HASH_SHA256, prefix, prefix_bytes, err) < 0)
        return -1;
    uint64_t at = head->header->offset + head->header->bytes, end = at + head->bytes;
    while (at < end) {
        size_t bytes = (size_t)SL_MIN(end - at, (uint64_t)CHUNK_BYTES);
        if (read_back(deferred, head->file, at, chunk, bytes, err) < 0)
            return -1;
        sl_digest_update(&crc, chunk, bytes);
        sl_digest_update(&sha, chunk, bytes);
        at += bytes;
    }
    sl_digest_finish(&crc, digests.value[CRC32]);
    sl_digest_finish(&sha, digests.value[SHA256]);
    return write_head(deferred, head, &digests, err);
}

int sl_deferred_redo(struct sl_deferred *deferred, uint32_t file, uint64_t begin, uint64_t end,
                     struct sl_err *err)
{
    const struct sl_plan *plan = deferred ? deferred->reader->plan : NULL;
    for (size_t i = 0; deferred && i < plan->deferred_header_count; i++) {
        const struct sl_deferred_header *head = &plan->deferred_headers[i];
        uint64_t first = head->header->offset + head->header->bytes;
        if (head->file == file && first < end && first + head->bytes > begin &&
            redo(deferred, head, err) < 0)
            return -1;
    }
    return 0;
}

int sl_deferred_finish(struct sl_deferred *deferred, struct sl_err *err)
{
    return deferred ? sl_verify_finish(deferred->verify, deferred->reader->config->cancel, err) : 0;
}

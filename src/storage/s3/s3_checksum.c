/*
 * Checksums that an S3 store keeps of whole objects, from a HEAD with x-amz-checksum-mode. Answers
 * to ranges are not asked: some stores send the whole object's value with a range, others that of a
 * part, and neither says so. A composite one is a hash of hashes of parts and is of no use for
 * bytes that come in other ranges.
 * https://docs.aws.amazon.com/AmazonS3/latest/userguide/checking-object-integrity.html
 */
#include <openssl/evp.h>
#include <string.h>

#include "hash.h"
#include "s3_store.h"

enum { ANSWER_BYTES_MAX = 64 * 1024, VALUE_BYTES_MAX = 64 };

static const struct {
    const char *header;
    enum sl_hash_kind kind;
} headers[SL_CHECKSUMS_MAX] = {
    {"x-amz-checksum-crc32c", SL_HASH_CRC32C},
    {"x-amz-checksum-crc32", SL_HASH_CRC32},
    {"x-amz-checksum-crc64nvme", SL_HASH_CRC64NVME},
    {"x-amz-checksum-sha256", SL_HASH_SHA256},
};

/* Base64 of exactly as many bytes as the hash has. */
static bool decode(const char *text, enum sl_hash_kind kind, uint8_t value[SL_HASH_BYTES_MAX])
{
    uint8_t data[VALUE_BYTES_MAX * 3 / 4 + 3];
    size_t bytes = strlen(text), wanted = sl_hash_bytes(kind);
    if (bytes != (wanted + 2) / 3 * 4 ||
        EVP_DecodeBlock(data, (const unsigned char *)text, (int)bytes) < (int)wanted)
        return false;
    memcpy(value, data, wanted);
    return true;
}

/* Whole, unless the store says otherwise; where it says nothing, a multipart upload's may be
 * composite. */
static bool is_whole(const struct sl_answer *answer, const char *etag)
{
    char type[32];
    if (sl_answer_header(answer, "x-amz-checksum-type", type, sizeof(type)))
        return strcmp(type, "FULL_OBJECT") == 0;
    return !strchr(etag, '-');
}

static void take(const struct sl_answer *answer, bool whole, struct sl_checksums *sums)
{
    for (unsigned i = 0; i < SL_CHECKSUMS_MAX; i++) {
        char text[VALUE_BYTES_MAX + 1];
        struct sl_checksum *sum = &sums->items[sums->count];
        if (!sl_answer_header(answer, headers[i].header, text, sizeof(text)))
            continue;
        sums->composite = sums->composite || !whole || strchr(text, '-');
        sum->kind = headers[i].kind;
        if (whole && decode(text, sum->kind, sum->value))
            sums->count++;
    }
}

int sl_s3_head(struct sl_s3 *s3, const char *key, const struct sl_sigv4_header *more,
               struct sl_answer *answer, struct sl_err *err)
{
    sl_autofree char *query = NULL;
    if (sl_s3_version_query(s3, key, &query, err) < 0)
        return -1;
    const struct sl_s3_call call = {.what = "cannot ask for an object's headers",
                                    .verb = SL_S3_READ,
                                    .method = "HEAD",
                                    .key = key,
                                    .query = query,
                                    .more = more,
                                    .more_count = more != NULL,
                                    .answer_limit = ANSWER_BYTES_MAX,
                                    .attempts = 2};
    struct sl_channel *channel = sl_store_take_channel(s3->store, err);
    if (!channel)
        return -1;
    int asked = sl_s3_call(s3, sl_http_channel_exchange(channel), &call, answer, NULL, err);
    sl_store_give_channel(s3->store, channel);
    return asked;
}

int sl_s3_checksums(struct sl_s3 *s3, const char *key, const struct sl_source *source,
                    struct sl_checksums *sums, struct sl_err *err)
{
    static const struct sl_sigv4_header mode = {"x-amz-checksum-mode", "ENABLED"};
    struct sl_answer answer = {0};
    char etag[SL_VERSION_TEXT_MAX] = "";
    if (sl_s3_head(s3, key, &mode, &answer, err) < 0)
        return sl_wrap(err, "cannot ask for checksums");
    sl_answer_header(&answer, "ETag", etag, sizeof(etag));
    if (strcmp(etag, source->version.etag) == 0) /* else the load finds out by itself */
        take(&answer, is_whole(&answer, etag), sums);
    sl_answer_release(&answer);
    return 0;
}

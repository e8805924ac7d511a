/* What makes an object of ours visible, whole or in parts, and the proof that it is ours. */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "crc64.h"
#include "hash.h"
#include "upload_s3.h"

void sl_s3_crc_text(uint64_t crc, char text[32])
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_crc_digest(SL_HASH_CRC64NVME, crc, digest);
    EVP_EncodeBlock((unsigned char *)text, digest, 8);
}

int sl_s3_md5_text(const void *data, size_t bytes, char text[32], struct sl_err *err)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    if (!EVP_Digest(data, bytes, digest, NULL, EVP_md5(), NULL))
        return sl_fail(err, SL_E_INTERNAL, "the crypto library has no MD5");
    EVP_EncodeBlock((unsigned char *)text, digest, 16);
    return 0;
}

int sl_s3_prove(const struct sl_s3_upload *s3u, const void *data, size_t bytes,
                struct sl_s3_proof *proof, struct sl_err *err)
{
    *proof = (struct sl_s3_proof){0};
    if (s3u->checksums) {
        proof->crc = sl_crc64nvme(0, data, bytes);
        sl_s3_crc_text(proof->crc, proof->text);
        proof->header = (struct sl_sigv4_header){"x-amz-checksum-crc64nvme", proof->text};
        proof->count = 1;
    }
    if (!s3u->tls)
        return sl_sigv4_payload(data, bytes, proof->payload, err);
    memcpy(proof->payload, "UNSIGNED-PAYLOAD", 17);
    if (s3u->checksums)
        return 0;
    proof->header = (struct sl_sigv4_header){"content-md5", proof->text};
    proof->count = 1;
    return sl_s3_md5_text(data, bytes, proof->text, err);
}

static int fail_exists(const struct sl_s3_upload *s3u, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_USAGE, "exists",
                        "'%.380s' exists: name another destination, or replace it with --replace",
                        s3u->upload->uri);
}

/* HEAD. Answers without a body do not say why they refuse: *unclear. */
static int look(struct sl_s3_upload *s3u, struct sl_exchange *exchange, bool *there, bool *unclear,
                struct sl_answer *answer, struct sl_err *err)
{
    const struct sl_sigv4_header mode = {"x-amz-checksum-mode", "ENABLED"};
    const struct sl_s3_call call = {.what = s3u->what,
                                    .verb = SL_S3_WRITE,
                                    .method = "HEAD",
                                    .key = s3u->key,
                                    .query = "",
                                    .more = &mode,
                                    .more_count = 1,
                                    .answer_limit = SL_S3_ANSWER_BYTES_MAX};
    struct sl_err why = SL_ERR_INIT;
    *there = *unclear = false;
    if (sl_s3_call(s3u->s3, exchange, &call, answer, NULL, &why) == 0) {
        *there = true;
        return 0;
    }
    /* 403: there may be one that we may not read; then the condition of the last request decides */
    if (why.http_status == 404 || why.http_status == 403)
        return 0;
    *unclear = why.http_status != 0;
    if (*unclear)
        return 0;
    if (err)
        *err = why;
    return -1;
}

/* The same by GET of a byte: its refusals can be recovered. */
static int look_closer(struct sl_s3_upload *s3u, struct sl_exchange *exchange, bool *there,
                       struct sl_err *err)
{
    const struct sl_sigv4_header range = {"range", "bytes=0-0"};
    const struct sl_s3_call call = {.what = s3u->what,
                                    .verb = SL_S3_WRITE,
                                    .method = "GET",
                                    .key = s3u->key,
                                    .query = "",
                                    .more = &range,
                                    .more_count = 1,
                                    .answer_limit = SL_S3_ANSWER_BYTES_MAX};
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    int result = sl_s3_call(s3u->s3, exchange, &call, &answer, NULL, &why);
    sl_answer_release(&answer);
    *there = result == 0 || why.http_status == 416;
    if (*there || (why.http_status == 404 && strcmp(why.code, "NoSuchBucket") != 0) ||
        (why.http_status == 403 && strcmp(why.code, "AccessDenied") == 0))
        return 0;
    if (err)
        *err = why;
    return -1;
}

int sl_s3_refuse_existing(struct sl_s3_upload *s3u, struct sl_exchange *exchange,
                          struct sl_err *err)
{
    bool there, unclear;
    struct sl_answer answer = {0};
    int result = look(s3u, exchange, &there, &unclear, &answer, err);
    sl_answer_release(&answer);
    if (result == 0 && unclear)
        result = look_closer(s3u, exchange, &there, err);
    if (result < 0)
        return -1;
    return there ? fail_exists(s3u, err) : 0;
}

/* Is the object in the store the one that we sent? Without proof it is not. */
static bool is_ours(struct sl_s3_upload *s3u, struct sl_exchange *exchange,
                    const struct sl_s3_expected *expected)
{
    bool there, unclear;
    char length[32] = "", text[SL_S3_ETAG_BYTES], bytes[32];
    struct sl_answer answer = {0};
    struct sl_err ignored = SL_ERR_INIT;
    bool ours = look(s3u, exchange, &there, &unclear, &answer, &ignored) == 0 && there;
    snprintf(bytes, sizeof(bytes), "%" PRIu64, s3u->upload->bytes);
    if (ours)
        ours = sl_answer_header(&answer, "Content-Length", length, sizeof(length)) &&
               strcmp(length, bytes) == 0;
    if (ours && *expected->crc &&
        sl_answer_header(&answer, "x-amz-checksum-crc64nvme", text, sizeof(text)))
        ours = strcmp(text, expected->crc) == 0;
    else if (ours)
        ours = *expected->etag && sl_answer_header(&answer, "ETag", text, sizeof(text)) &&
               strcmp(text, expected->etag) == 0;
    sl_answer_release(&answer);
    return ours;
}

int sl_s3_reveal(struct sl_s3_upload *s3u, struct sl_exchange *exchange, struct sl_s3_call *call,
                 const struct sl_s3_expected *expected, struct sl_err *err)
{
    struct sl_sigv4_header more[SL_S3_MORE_MAX];
    const struct sl_sigv4_header *own = call->more;
    size_t own_count = call->more_count;
    unsigned tried = 0;
    if (own_count)
        memcpy(more, own, own_count * sizeof(more[0]));
    more[own_count] = (struct sl_sigv4_header){"if-none-match", "*"};
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        struct sl_answer answer = {0};
        call->more = more;
        call->more_count = own_count + s3u->conditional;
        int result = sl_s3_call(s3u->s3, exchange, call, &answer, &tried, &why);
        sl_answer_release(&answer);
        if (result == 0)
            return 0;
        bool gone = tried > 1 && (why.http_status == 412 || why.http_status == 404);
        bool lost = why.kind != SL_E_CANCELED && why.http_status < 300; /* or no answer */
        if ((gone || lost) && is_ours(s3u, exchange, expected))
            return 0;
        if (why.http_status == 412 && s3u->conditional)
            return fail_exists(s3u, err);
        if (why.http_status == 501 && s3u->conditional) {
            if (sl_s3_refuse_existing(s3u, exchange, err) < 0)
                return -1;
            s3u->conditional = false;
            continue;
        }
        if (err)
            *err = why;
        return -1;
    }
}

/*
 * Multipart uploads: begun at once, so that refused credentials are known before the first byte is
 * fetched; parts sent by the threads of upload_parts.c, each tried again alone; completed at the
 * end, or aborted.
 *
 * Completing may take the store minutes, in which it sends white space, and end in an error with
 * status 200. Aborting has its own connection and little time, since it happens while a process
 * ends. What a killed process leaves is invisible but paid for, until a lifecycle rule of the
 * bucket removes it.
 *
 * https://docs.aws.amazon.com/AmazonS3/latest/API/API_CompleteMultipartUpload.html
 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "crc64.h"
#include "log.h"
#include "upload_s3.h"
#include "xml.h"

enum {
    ID_BYTES_MAX = 2048,
    COMPLETE_SECONDS = 600,
    ABORT_SECONDS = 5,
    ABORT_CONNECT_SECONDS = 3,
    ABORT_ATTEMPTS = 2,
    PARTS_XML_BYTES_MAX = SL_PARTS_MAX * 512,
};

/* ---- beginning ------------------------------------------------------------------------------ */

static int on_created(const char *path, const char *value, void *arg, struct sl_err *err)
{
    char **id = arg;
    if (strcmp(path, "InitiateMultipartUploadResult/UploadId") != 0)
        return 0;
    if (!*value || strlen(value) > ID_BYTES_MAX || *id)
        return sl_fail(err, SL_E_NET, "the store's name for the upload is empty, long or double");
    *id = sl_url_encode(value, false, err);
    return *id ? 0 : -1;
}

/* The store knows the checksum if it says so; one that ignores what it does not know is silent. */
static int create(struct sl_s3_upload *s3u, struct sl_exchange *exchange, struct sl_err *err)
{
    static const struct sl_sigv4_header checksum[] = {{"x-amz-checksum-algorithm", "CRC64NVME"},
                                                      {"x-amz-checksum-type", "FULL_OBJECT"}};
    const struct sl_s3_call call = {.what = s3u->what,
                                    .verb = SL_S3_WRITE,
                                    .method = "POST",
                                    .key = s3u->key,
                                    .query = "uploads=",
                                    .more = checksum,
                                    .more_count = s3u->checksums ? SL_COUNT(checksum) : 0,
                                    .answer_limit = SL_S3_ANSWER_BYTES_MAX};
    struct sl_answer answer = {0};
    char algorithm[32];
    sl_exchange_linger(exchange, ABORT_SECONDS); /* without its name it cannot be aborted */
    int called = sl_s3_call(s3u->s3, exchange, &call, &answer, NULL, err);
    sl_exchange_linger(exchange, 0);
    if (called < 0)
        return -1;
    s3u->checksums = s3u->checksums &&
                     sl_answer_header(&answer, checksum[0].name, algorithm, sizeof(algorithm)) &&
                     strcmp(algorithm, checksum[0].value) == 0;
    int result = sl_xml_parse(sl_buf_string(&answer.body), answer.body.used, s3u->what, on_created,
                              &s3u->id, err);
    sl_answer_release(&answer);
    if (result == 0 && !s3u->id)
        return sl_fail(err, SL_E_NET, "%s: the store began no upload", s3u->what);
    return result;
}

static void *channel_begin(void *arg, struct sl_cancel *stop, struct sl_err *err)
{
    const struct sl_s3_upload *s3u = arg;
    const struct sl_source_config *config = &s3u->store->config;
    const struct sl_connect connect = {.tls = config->tls,
                                       .cancel = config->cancel,
                                       .stall_seconds = config->stall_seconds,
                                       .stop = stop};
    return sl_exchange_new(&connect, err);
}

static void channel_end(void *arg, void *channel)
{
    (void)arg;
    sl_exchange_free(channel);
}

static int send_part(void *arg, void *channel, uint64_t number, const void *data, size_t bytes,
                     struct sl_err *err);

int sl_s3_multi_open(struct sl_s3_upload *s3u, struct sl_exchange *exchange, struct sl_err *err)
{
    const struct sl_upload *upload = s3u->upload;
    struct sl_err why = SL_ERR_INIT;
    s3u->part_count = (upload->bytes - 1) / s3u->part_bytes + 1;
    s3u->done = sl_alloc_array(s3u->part_count, sizeof(s3u->done[0]), err);
    const struct sl_parts_config config = {.bytes = upload->bytes,
                                           .part_bytes = s3u->part_bytes,
                                           .memory_bytes = upload->config.memory_bytes,
                                           .connections = upload->config.connections,
                                           .cancel = upload->source.cancel,
                                           .arg = s3u,
                                           .begin = channel_begin,
                                           .send = send_part,
                                           .end = channel_end};
    s3u->parts = s3u->done ? sl_parts_new(&config, err) : NULL;
    if (!s3u->parts)
        return -1;
    int result = create(s3u, exchange, &why);
    if (result < 0 && !s3u->id && (why.http_status == 400 || why.http_status == 501)) {
        sl_log(SL_LOG_DEBUG, "'%s': without a checksum, since: %s", upload->uri, why.message);
        s3u->checksums = false;
        return create(s3u, exchange, err);
    }
    if (result < 0 && err)
        *err = why;
    return result;
}

/* ---- parts ---------------------------------------------------------------------------------- */

static int send_part(void *arg, void *channel, uint64_t number, const void *data, size_t bytes,
                     struct sl_err *err)
{
    struct sl_s3_upload *s3u = arg;
    struct sl_s3_part *part = &s3u->done[number];
    struct sl_s3_proof proof;
    struct sl_answer answer = {0};
    char what[SL_S3_WHAT_BYTES + 64];
    snprintf(what, sizeof(what), "%s, part %" PRIu64 " of %" PRIu64, s3u->what, number + 1,
             s3u->part_count);
    sl_autofree char *query =
        sl_asprintf(err, "partNumber=%" PRIu64 "&uploadId=%s", number + 1, s3u->id);
    if (!query || sl_s3_prove(s3u, data, bytes, &proof, err) < 0)
        return -1;
    const struct sl_s3_call call = {.what = what,
                                    .verb = SL_S3_WRITE,
                                    .method = "PUT",
                                    .key = s3u->key,
                                    .query = query,
                                    .payload = proof.payload,
                                    .more = &proof.header,
                                    .more_count = proof.count,
                                    .body = data,
                                    .body_bytes = bytes,
                                    .answer_limit = SL_S3_ANSWER_BYTES_MAX};
    if (sl_s3_call(s3u->s3, channel, &call, &answer, NULL, err) < 0)
        return -1;
    bool named = sl_answer_header(&answer, "ETag", part->etag, sizeof(part->etag)) && *part->etag &&
                 strlen(part->etag) < sizeof(part->etag) - 1;
    sl_answer_release(&answer);
    part->crc = proof.crc;
    return named ? 0 : sl_fail(err, SL_E_NET, "%s: the store's answer has no ETag", what);
}

/* ---- completing ----------------------------------------------------------------------------- */

static int add_escaped(struct sl_buf *out, const char *text, struct sl_err *err)
{
    for (; *text; text++) {
        int result = *text == '&'   ? sl_buf_text(out, "&amp;", err)
                     : *text == '<' ? sl_buf_text(out, "&lt;", err)
                     : *text == '>' ? sl_buf_text(out, "&gt;", err)
                                    : sl_buf_append(out, text, 1, err);
        if (result < 0)
            return -1;
    }
    return 0;
}

static int list_parts(const struct sl_s3_upload *s3u, struct sl_buf *out, struct sl_err *err)
{
    char crc[32];
    if (sl_buf_text(out,
                    "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">",
                    err) < 0)
        return -1;
    for (uint64_t i = 0; i < s3u->part_count; i++) {
        if (sl_buf_text(out, "<Part>", err) < 0)
            return -1;
        sl_s3_crc_text(s3u->done[i].crc, crc);
        if (s3u->checksums &&
            sl_buf_printf(out, err, "<ChecksumCRC64NVME>%s</ChecksumCRC64NVME>", crc) < 0)
            return -1;
        if (sl_buf_text(out, "<ETag>", err) < 0 || add_escaped(out, s3u->done[i].etag, err) < 0 ||
            sl_buf_printf(out, err, "</ETag><PartNumber>%" PRIu64 "</PartNumber></Part>", i + 1) <
                0)
            return -1;
    }
    return sl_buf_text(out, "</CompleteMultipartUpload>", err);
}

static uint64_t crc_of_all(const struct sl_s3_upload *s3u)
{
    uint64_t crc = 0;
    for (uint64_t i = 0; i < s3u->part_count; i++) {
        uint64_t left = s3u->upload->bytes - i * s3u->part_bytes;
        crc = sl_crc64nvme_combine(crc, s3u->done[i].crc, SL_MIN(left, s3u->part_bytes));
    }
    return crc;
}

/* Where the ETags of parts are their MD5s, that of the object is the MD5 of these, and their
 * number. */
static void expect_etag(const struct sl_s3_upload *s3u, char *text, size_t bytes)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    char hex[33] = "";
    *text = 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = context && EVP_DigestInit_ex(context, EVP_md5(), NULL);
    for (uint64_t i = 0; good && i < s3u->part_count; i++) {
        const char *etag = s3u->done[i].etag;
        good = strlen(etag) == 34;
        if (good)
            memcpy(hex, etag + 1, 32);
        good = good && sl_unhex(hex, digest, 16) == 0 && EVP_DigestUpdate(context, digest, 16);
    }
    if (good && EVP_DigestFinal_ex(context, digest, NULL)) {
        sl_hex(digest, 16, hex);
        snprintf(text, bytes, "\"%s-%" PRIu64 "\"", hex, s3u->part_count);
    }
    EVP_MD_CTX_free(context);
}

static int complete(struct sl_s3_upload *s3u, struct sl_exchange *exchange, struct sl_err *err)
{
    sl_autobuf body = SL_BUF_INIT(PARTS_XML_BYTES_MAX);
    sl_autofree char *query = sl_asprintf(err, "uploadId=%s", s3u->id);
    char payload[65], bytes[32];
    struct sl_s3_expected expected = {0};
    if (!query || list_parts(s3u, &body, err) < 0 ||
        sl_sigv4_payload(body.data, body.used, payload, err) < 0)
        return -1;
    snprintf(bytes, sizeof(bytes), "%" PRIu64, s3u->upload->bytes);
    expect_etag(s3u, expected.etag, sizeof(expected.etag));
    if (s3u->checksums)
        sl_s3_crc_text(crc_of_all(s3u), expected.crc);
    const struct sl_sigv4_header checksum[] = {{"x-amz-checksum-crc64nvme", expected.crc},
                                               {"x-amz-checksum-type", "FULL_OBJECT"},
                                               {"x-amz-mp-object-size", bytes}};
    struct sl_s3_call call = {.what = s3u->what,
                              .verb = SL_S3_WRITE,
                              .method = "POST",
                              .key = s3u->key,
                              .query = query,
                              .payload = payload,
                              .more = checksum,
                              .more_count = s3u->checksums ? SL_COUNT(checksum) : 0,
                              .body = body.data,
                              .body_bytes = body.used,
                              .answer_limit = SL_S3_ANSWER_BYTES_MAX,
                              .root = "CompleteMultipartUploadResult"};
    return sl_s3_reveal(s3u, exchange, &call, &expected, err);
}

int sl_s3_multi_finish(struct sl_s3_upload *s3u, struct sl_err *err)
{
    if (sl_parts_finish(s3u->parts, err) < 0)
        return -1;
    const struct sl_source_config *config = &s3u->store->config;
    const struct sl_connect connect = {.tls = config->tls,
                                       .cancel = config->cancel,
                                       .stall_seconds =
                                           SL_MAX(config->stall_seconds, COMPLETE_SECONDS)};
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, err);
    return exchange ? complete(s3u, exchange, err) : -1;
}

/* ---- giving up ------------------------------------------------------------------------------ */

static void abort_upload(struct sl_s3_upload *s3u)
{
    const struct sl_connect connect = {.tls = s3u->store->config.tls,
                                       .stall_seconds = ABORT_SECONDS,
                                       .connect_seconds = ABORT_CONNECT_SECONDS};
    struct sl_err err = SL_ERR_INIT;
    struct sl_answer answer = {0};
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, &err);
    sl_autofree char *query = exchange ? sl_asprintf(&err, "uploadId=%s", s3u->id) : NULL;
    const struct sl_s3_call call = {.what = "the unfinished upload",
                                    .verb = SL_S3_WRITE,
                                    .method = "DELETE",
                                    .key = s3u->key,
                                    .query = query,
                                    .answer_limit = SL_S3_ANSWER_BYTES_MAX,
                                    .attempts = ABORT_ATTEMPTS};
    if (!query || sl_s3_call(s3u->s3, exchange, &call, &answer, NULL, &err) < 0) {
        if (strcmp(err.code, "NoSuchUpload") != 0)
            sl_log(SL_LOG_WARN,
                   "parts of '%s' remain in the store, unseen but paid for, until a lifecycle rule "
                   "of the bucket aborts unfinished uploads: %s",
                   s3u->upload->uri, err.message);
        return;
    }
    sl_answer_release(&answer);
}

void sl_s3_multi_close(struct sl_s3_upload *s3u)
{
    sl_parts_free(s3u->parts);
    if (s3u->id && !s3u->upload->finished)
        abort_upload(s3u);
    free(s3u->id);
    free(s3u->done);
}

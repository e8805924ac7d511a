/*
 * A new object of S3 and compatible stores.
 *
 * Objects of one part are kept and sent by one PUT at the end; larger ones go out as parts while
 * they are made (upload_s3_multi.c). Nothing is visible before the last request either way.
 *
 * An object that is there is looked for at the beginning, and the last request is conditional
 * (If-None-Match: *), which stores that know it decide atomically. A store may answer a request
 * that it has carried out with nothing but a broken connection, and the repetition with "exists" or
 * "no such upload": then the object itself says, by length and checksum or ETag, whether it is
 * ours.
 *
 * Checksums: CRC-64/NVME of the whole object, which the store keeps and every reader can compare;
 * stores that do not know it get a SHA-256 in the signature (plain HTTP) or an MD5 (within TLS),
 * which is checked and forgotten.
 */
#include "upload_s3.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "crc64.h"
#include "hash.h"
#include "log.h"

/* https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html */
static const uint64_t PART_BYTES_MAX = UINT64_C(5) << 30;

/* ---- proofs --------------------------------------------------------------------------------- */

void sl_s3_crc_text(uint64_t crc, char text[32])
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_crc_digest(SL_HASH_CRC64NVME, crc, digest);
    EVP_EncodeBlock((unsigned char *)text, digest, 8);
}

static int md5_text(const void *data, size_t bytes, char text[32], struct sl_err *err)
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
    return md5_text(data, bytes, proof->text, err);
}

/* ---- what is there -------------------------------------------------------------------------- */

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

static int refuse_existing(struct sl_s3_upload *s3u, struct sl_exchange *exchange,
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

/* ---- making it visible ---------------------------------------------------------------------- */

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
            if (refuse_existing(s3u, exchange, err) < 0)
                return -1;
            s3u->conditional = false;
            continue;
        }
        if (err)
            *err = why;
        return -1;
    }
}

static struct sl_exchange *new_exchange(const struct sl_s3_upload *s3u, struct sl_err *err)
{
    const struct sl_source_config *config = &s3u->store->config;
    const struct sl_connect connect = {
        .tls = config->tls, .cancel = config->cancel, .stall_seconds = config->stall_seconds};
    return sl_exchange_new(&connect, err);
}

static int put_with(struct sl_s3_upload *s3u, struct sl_exchange *exchange, struct sl_err *err)
{
    struct sl_s3_proof proof;
    struct sl_s3_expected expected = {0};
    char md5[32];
    uint8_t digest[18];
    uint64_t bytes = s3u->upload->bytes;
    if (sl_s3_prove(s3u, s3u->whole, bytes, &proof, err) < 0 ||
        md5_text(s3u->whole, bytes, md5, err) < 0)
        return -1;
    if (s3u->checksums)
        memcpy(expected.crc, proof.text, sizeof(proof.text));
    EVP_DecodeBlock(digest, (const unsigned char *)md5, 24);
    char hex[33];
    sl_hex(digest, 16, hex);
    snprintf(expected.etag, sizeof(expected.etag), "\"%s\"", hex);
    struct sl_s3_call call = {.what = s3u->what,
                              .verb = SL_S3_WRITE,
                              .method = "PUT",
                              .key = s3u->key,
                              .query = "",
                              .payload = proof.payload,
                              .more = &proof.header,
                              .more_count = proof.count,
                              .body = s3u->whole,
                              .body_bytes = bytes,
                              .answer_limit = SL_S3_ANSWER_BYTES_MAX};
    return sl_s3_reveal(s3u, exchange, &call, &expected, err);
}

static int put_whole(struct sl_s3_upload *s3u, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_exchange) exchange = new_exchange(s3u, err);
    if (!exchange)
        return -1;
    if (put_with(s3u, exchange, &why) == 0)
        return 0;
    if (s3u->checksums && (why.http_status == 400 || why.http_status == 501)) {
        s3u->checksums = false;
        sl_log(SL_LOG_DEBUG, "'%s': without a checksum, since: %s", s3u->upload->uri, why.message);
        return put_with(s3u, exchange, err);
    }
    if (err)
        *err = why;
    return -1;
}

/* ---- the upload ----------------------------------------------------------------------------- */

static int open_store(struct sl_s3_upload *s3u, const char *uri, struct sl_err *err)
{
    sl_autofree char *name = NULL;
    struct sl_upload *upload = s3u->upload;
    if (sl_store_open_kind(&sl_s3_store, uri, upload->config.source, &s3u->store, &name, err) < 0)
        return -1;
    s3u->s3 = s3u->store->impl;
    if (!*name || s3u->s3->version)
        return sl_fail(err, SL_E_USAGE,
                       "'%.300s' names no object to write: expected s3://BUCKET/KEY", uri);
    s3u->key = sl_asprintf(err, "%s%s", s3u->s3->prefix, name);
    upload->uri = s3u->key ? sl_asprintf(err, "%s%s", sl_store_uri(s3u->store), name) : NULL;
    if (!upload->uri)
        return -1;
    snprintf(s3u->what, sizeof(s3u->what), "cannot write '%.380s'", upload->uri);
    /* A store of our own: no other thread has it yet. */
    s3u->tls = strncmp(s3u->s3->locked.endpoint.origin, "https:", 6) == 0;
    return 0;
}

static int s3_open(struct sl_upload *upload, const char *uri, struct sl_err *err)
{
    struct sl_s3_upload *s3u = upload->impl = sl_alloc(sizeof(*s3u), err);
    if (!s3u)
        return -1;
    s3u->upload = upload;
    s3u->checksums = true;
    s3u->conditional = !upload->config.replace;
    if (open_store(s3u, uri, err) < 0)
        return -1;
    s3u->part_bytes = upload->config.part_bytes;
    if (upload->bytes / SL_PARTS_MAX >= s3u->part_bytes)
        s3u->part_bytes = sl_parts_size(upload->bytes, upload->config.memory_bytes);
    if (s3u->part_bytes > PART_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "%s: %" PRIu64 " bytes are more than S3 takes", s3u->what,
                       upload->bytes);
    SL_AUTO(sl_exchange) exchange = new_exchange(s3u, err);
    if (!exchange || (s3u->conditional && refuse_existing(s3u, exchange, err) < 0))
        return -1;
    if (upload->bytes > s3u->part_bytes)
        return sl_s3_multi_open(s3u, exchange, err);
    s3u->whole = sl_alloc(upload->bytes, err);
    return s3u->whole ? 0 : -1;
}

static int s3_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                    struct sl_err *err)
{
    struct sl_s3_upload *s3u = upload->impl;
    if (s3u->parts)
        return sl_parts_write(s3u->parts, offset, data, bytes, err);
    memcpy(s3u->whole + offset, data, bytes);
    return 0;
}

static int s3_admit(struct sl_upload *upload, struct sl_err *err)
{
    struct sl_s3_upload *s3u = upload->impl;
    return s3u->parts ? sl_parts_admit(s3u->parts, err) : 0;
}

static int s3_finish(struct sl_upload *upload, struct sl_err *err)
{
    struct sl_s3_upload *s3u = upload->impl;
    return s3u->parts ? sl_s3_multi_finish(s3u, err) : put_whole(s3u, err);
}

static void s3_close(struct sl_upload *upload)
{
    struct sl_s3_upload *s3u = upload->impl;
    if (!s3u)
        return;
    sl_s3_multi_close(s3u);
    free(s3u->whole);
    free(s3u->key);
    sl_store_free(s3u->store);
    free(s3u);
}

/* ---- removing -------------------------------------------------------------------------------- */

static int remove_key(struct sl_store *store, const char *name, struct sl_err *err)
{
    struct sl_s3 *s3 = store->impl;
    char what[SL_S3_WHAT_BYTES];
    const struct sl_connect connect = {.tls = store->config.tls,
                                       .cancel = store->config.cancel,
                                       .stall_seconds = store->config.stall_seconds};
    struct sl_answer answer = {0};
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, err);
    sl_autofree char *key = exchange ? sl_asprintf(err, "%s%s", s3->prefix, name) : NULL;
    if (!key)
        return -1;
    snprintf(what, sizeof(what), "cannot remove '%.280s%.90s'", sl_store_uri(store), name);
    const struct sl_s3_call call = {.what = what,
                                    .verb = SL_S3_WRITE,
                                    .method = "DELETE",
                                    .key = key,
                                    .query = "",
                                    .answer_limit = SL_S3_ANSWER_BYTES_MAX};
    struct sl_err why = SL_ERR_INIT;
    int done = sl_s3_call(s3, exchange, &call, &answer, NULL, &why);
    sl_answer_release(&answer);
    if (done == 0 || strcmp(why.code, "NoSuchKey") == 0)
        return 0;
    *err = why;
    return -1;
}

static int s3_remove(const char *uri, const struct sl_source_config *config, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    if (sl_store_open_kind(&sl_s3_store, uri, config, &store, &name, err) < 0)
        return -1;
    return *name ? remove_key(store, name, err)
                 : sl_fail(err, SL_E_USAGE, "'%.300s' names no object", uri);
}

const struct sl_upload_ops sl_upload_s3_ops = {
    .open = s3_open,
    .write = s3_write,
    .admit = s3_admit,
    .finish = s3_finish,
    .close = s3_close,
    .remove = s3_remove,
};

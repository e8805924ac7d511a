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

#include "log.h"

/* https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html */
static const uint64_t PART_BYTES_MAX = UINT64_C(5) << 30;

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
        sl_s3_md5_text(s3u->whole, bytes, md5, err) < 0)
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
    if (sl_store_open_kind(upload->kind, uri, upload->config.source, &s3u->store, &name, err) < 0)
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
    if (!exchange || (s3u->conditional && sl_s3_refuse_existing(s3u, exchange, err) < 0))
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

static int s3_remove(const struct sl_store_kind *kind, const char *uri,
                     const struct sl_source_config *config, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *name = NULL;
    if (sl_store_open_kind(kind, uri, config, &store, &name, err) < 0)
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

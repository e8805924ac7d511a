/*
 * The store answers from the range server's handler, under its lock. A connection is reset by
 * leaving the request to the server's script, which has one line: reset.
 */
#include "fake_s3.h"

#include <check.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "crc64.h"

static const char upload_id[] = "up/load+1";
static const char upload_query[] = "uploadId=up%2Fload%2B1";

static void set_body(struct sl_server_reply *reply, const char *text)
{
    reply->body = strdup(text);
    reply->body_bytes = strlen(text);
}

static bool refuse(struct sl_server_reply *reply, int status, const char *code)
{
    char text[400];
    reply->status = status;
    snprintf(text, sizeof(text),
             "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>so it is</Message></Error>",
             code);
    set_body(reply, text);
    return true;
}

static void etag_of(const void *data, size_t bytes, char text[64])
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    char hex[33];
    EVP_Digest(data, bytes, digest, NULL, EVP_md5(), NULL);
    sl_hex(digest, 16, hex);
    snprintf(text, 64, "\"%s\"", hex);
}

static void crc_of(const void *data, size_t bytes, char text[32])
{
    uint64_t crc = sl_crc64nvme(0, data, bytes);
    uint8_t big[8];
    for (int i = 0; i < 8; i++)
        big[i] = (uint8_t)(crc >> (56 - 8 * i));
    EVP_EncodeBlock((unsigned char *)text, big, 8);
}

/* ---- objects -------------------------------------------------------------------------------- */

const char *sl_fake_s3_object(struct sl_fake_s3 *fake, const char *key, size_t *bytes)
{
    for (unsigned i = 0; i < fake->object_count; i++)
        if (strcmp(fake->objects[i].key, key) == 0) {
            *bytes = fake->objects[i].bytes;
            return fake->objects[i].data;
        }
    return NULL;
}

static void store(struct sl_fake_s3 *fake, const char *key, char *data, size_t bytes)
{
    unsigned i = 0;
    while (i < fake->object_count && strcmp(fake->objects[i].key, key) != 0)
        i++;
    ck_assert_uint_lt(i, SL_FAKE_OBJECTS_MAX);
    fake->object_count = i == fake->object_count ? i + 1 : fake->object_count;
    free(fake->objects[i].data);
    snprintf(fake->objects[i].key, sizeof(fake->objects[i].key), "%s", key);
    fake->objects[i].data = data;
    fake->objects[i].bytes = bytes;
}

void sl_fake_s3_put(struct sl_fake_s3 *fake, const char *key, const void *data, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    memcpy(copy, data, bytes);
    store(fake, key, copy, bytes);
}

static void drop_parts(struct sl_fake_s3 *fake)
{
    for (unsigned i = 0; i < SL_FAKE_PARTS_MAX; i++) {
        free(fake->parts[i].data);
        fake->parts[i].data = NULL;
        fake->parts[i].bytes = 0;
    }
}

/* ---- checks --------------------------------------------------------------------------------- */

/* What the request says of its body is true. */
static bool check_body(const struct sl_server_request *request)
{
    char text[128], expected[128];
    uint8_t digest[EVP_MAX_MD_SIZE];
    ck_assert(sl_server_header(request, "x-amz-content-sha256", text, sizeof(text)));
    if (strcmp(text, "UNSIGNED-PAYLOAD") != 0) {
        EVP_Digest(request->body, request->body_bytes, digest, NULL, EVP_sha256(), NULL);
        sl_hex(digest, 32, expected);
        ck_assert_str_eq(text, expected);
    }
    if (strcmp(request->method, "PUT") != 0)
        return true;
    if (sl_server_header(request, "x-amz-checksum-crc64nvme", text, sizeof(text))) {
        crc_of(request->body, request->body_bytes, expected);
        ck_assert_str_eq(text, expected);
    }
    if (sl_server_header(request, "content-md5", text, sizeof(text))) {
        EVP_Digest(request->body, request->body_bytes, digest, NULL, EVP_md5(), NULL);
        EVP_EncodeBlock((unsigned char *)expected, digest, 16);
        ck_assert_str_eq(text, expected);
    }
    return true;
}

static bool is_denied(struct sl_fake_s3 *fake, const struct sl_server_request *request,
                      const char *key, struct sl_server_reply *reply)
{
    char text[128];
    size_t bytes;
    bool condition = sl_server_header(request, "if-none-match", text, sizeof(text));
    if (condition && fake->refuses_conditions)
        return refuse(reply, 501, "NotImplemented");
    if (condition && sl_fake_s3_object(fake, key, &bytes))
        return refuse(reply, 412, "PreconditionFailed");
    bool checksum = sl_server_header(request, "x-amz-checksum-algorithm", text, sizeof(text)) ||
                    sl_server_header(request, "x-amz-checksum-crc64nvme", text, sizeof(text));
    return checksum && fake->refuses_checksums && refuse(reply, 501, "NotImplemented");
}

/* ---- requests ------------------------------------------------------------------------------- */

static bool show(struct sl_fake_s3 *fake, const char *key, struct sl_server_reply *reply)
{
    size_t bytes;
    char etag[64], crc[32];
    const char *data = sl_fake_s3_object(fake, key, &bytes);
    if (!data)
        return refuse(reply, 404, "NoSuchKey");
    etag_of(data, bytes, etag);
    crc_of(data, bytes, crc);
    if (fake->ignores_checksums)
        snprintf(reply->headers, sizeof(reply->headers), "ETag: %s\r\n", etag);
    else
        snprintf(reply->headers, sizeof(reply->headers),
                 "ETag: \"none-1\"\r\nx-amz-checksum-crc64nvme: %s\r\n", crc);
    reply->body = malloc(bytes + 1);
    memcpy(reply->body, data, bytes);
    reply->body_bytes = bytes;
    return true;
}

static bool put_object(struct sl_fake_s3 *fake, const struct sl_server_request *request,
                       const char *key, struct sl_server_reply *reply)
{
    char etag[64];
    fake->puts++;
    check_body(request);
    if (is_denied(fake, request, key, reply))
        return true;
    sl_fake_s3_put(fake, key, request->body, request->body_bytes);
    etag_of(request->body, request->body_bytes, etag);
    snprintf(reply->headers, sizeof(reply->headers), "ETag: %s\r\n", etag);
    return true;
}

static bool create(struct sl_fake_s3 *fake, const struct sl_server_request *request,
                   struct sl_server_reply *reply)
{
    char text[400], algorithm[64];
    fake->creates++;
    bool asked = sl_server_header(request, "x-amz-checksum-algorithm", algorithm, 64);
    if (asked && fake->refuses_checksums)
        return refuse(reply, 501, "NotImplemented");
    fake->open_uploads++;
    if (asked && !fake->ignores_checksums)
        snprintf(reply->headers, sizeof(reply->headers), "x-amz-checksum-algorithm: %s\r\n",
                 algorithm);
    snprintf(text, sizeof(text),
             "<InitiateMultipartUploadResult><UploadId>%s</UploadId>"
             "</InitiateMultipartUploadResult>",
             upload_id);
    set_body(reply, text);
    if (fake->cancels)
        sl_cancel_raise(fake->cancels, SIGTERM);
    return true;
}

static bool put_part(struct sl_fake_s3 *fake, const struct sl_server_request *request,
                     unsigned number, struct sl_server_reply *reply)
{
    char etag[64], text[64];
    ck_assert_uint_ge(number, 1);
    ck_assert_uint_lt(number, SL_FAKE_PARTS_MAX);
    fake->part_puts++;
    check_body(request);
    bool plain = fake->ignores_checksums || fake->refuses_checksums;
    ck_assert_int_eq(sl_server_header(request, "x-amz-checksum-crc64nvme", text, 64), !plain);
    if (!fake->open_uploads)
        return refuse(reply, 404, "NoSuchUpload");
    free(fake->parts[number].data);
    fake->parts[number].data = malloc(request->body_bytes);
    fake->parts[number].bytes = request->body_bytes;
    memcpy(fake->parts[number].data, request->body, request->body_bytes);
    etag_of(request->body, request->body_bytes, etag);
    snprintf(reply->headers, sizeof(reply->headers), "ETag: %s\r\n", etag);
    return true;
}

/* The parts as they are named, in their order, become the object. */
static bool complete(struct sl_fake_s3 *fake, const struct sl_server_request *request,
                     const char *key, struct sl_server_reply *reply)
{
    char etag[64], crc[32], text[64];
    size_t bytes = 0;
    fake->completes++;
    check_body(request);
    if (is_denied(fake, request, key, reply))
        return true;
    if (!fake->open_uploads)
        return refuse(reply, 404, "NoSuchUpload");
    char *data = malloc(1);
    const char *at = request->body;
    unsigned number = 0;
    while ((at = strstr(at, "<Part>"))) {
        const struct sl_fake_s3 *have = fake;
        const char *tag = strstr(at, "<ETag>"), *place = strstr(at, "<PartNumber>");
        ck_assert_uint_eq(strtoul(place + 12, NULL, 10), ++number);
        etag_of(have->parts[number].data, have->parts[number].bytes, etag);
        ck_assert_int_eq(strncmp(tag + 6, etag, strlen(etag)), 0);
        data = realloc(data, bytes + have->parts[number].bytes);
        memcpy(data + bytes, have->parts[number].data, have->parts[number].bytes);
        bytes += have->parts[number].bytes;
        at++;
    }
    if (sl_server_header(request, "x-amz-checksum-crc64nvme", text, sizeof(text))) {
        crc_of(data, bytes, crc);
        ck_assert_str_eq(text, crc);
    }
    store(fake, key, data, bytes);
    drop_parts(fake);
    fake->open_uploads--;
    set_body(reply, "<?xml version=\"1.0\"?><CompleteMultipartUploadResult><Key>k</Key>"
                    "</CompleteMultipartUploadResult>");
    return true;
}

static bool carry_out(struct sl_fake_s3 *fake, const struct sl_server_request *request,
                      struct sl_server_reply *reply)
{
    char key[256];
    const char *query = strchr(request->target, '?'), *method = request->method;
    const char *part = query ? strstr(query, "partNumber=") : NULL;
    snprintf(key, sizeof(key), "%.*s", (int)strcspn(request->target, "?"), request->target);
    if (query && !strstr(query, "uploads="))
        ck_assert_ptr_nonnull(strstr(query, upload_query));
    if (strcmp(method, "HEAD") == 0 || strcmp(method, "GET") == 0)
        return show(fake, key, reply);
    if (strcmp(method, "PUT") == 0)
        return part ? put_part(fake, request, (unsigned)strtoul(part + 11, NULL, 10), reply)
                    : put_object(fake, request, key, reply);
    if (strcmp(method, "POST") == 0)
        return strstr(query, "uploads=") ? create(fake, request, reply)
                                         : complete(fake, request, key, reply);
    ck_assert_str_eq(method, "DELETE");
    fake->aborts++;
    if (!fake->open_uploads)
        return refuse(reply, 404, "NoSuchUpload");
    fake->open_uploads--;
    drop_parts(fake);
    reply->status = 204;
    return true;
}

static bool misbehave(const struct sl_fake_fault *fault, struct sl_server_reply *reply)
{
    free(reply->body);
    *reply = (struct sl_server_reply){.status = fault->status};
    if (!fault->status)
        return false;
    if (fault->code)
        refuse(reply, fault->status, fault->code);
    snprintf(reply->headers, sizeof(reply->headers), "%s", fault->headers ? fault->headers : "");
    if (fault->space) {
        char text[600];
        snprintf(text, sizeof(text), " \r\n  %s", reply->body ? reply->body : "");
        free(reply->body);
        set_body(reply, text);
        reply->status = 200;
    }
    return true;
}

static bool handle(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    struct sl_fake_s3 *fake = arg;
    for (unsigned i = 0; i < SL_FAKE_FAULTS_MAX; i++) {
        struct sl_fake_fault *fault = &fake->faults[i];
        if (!fault->times || strcmp(fault->method, request->method) != 0 ||
            !strstr(request->target, fault->part))
            continue;
        fault->times--;
        if (fault->after)
            carry_out(fake, request, reply);
        return misbehave(fault, reply);
    }
    return carry_out(fake, request, reply);
}

void sl_fake_s3_start(struct sl_fake_s3 *fake, bool tls)
{
    fake->server = tls ? sl_server_start_tls() : sl_server_start();
    SL_SCRIPT(fake->server, {.fault = SL_FAULT_RESET, .after = -1});
    sl_server_handle(fake->server, handle, fake);
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(fake->server, ""), 1);
}

void sl_fake_s3_reset(struct sl_fake_s3 *fake)
{
    sl_server_handle(fake->server, NULL, NULL); /* meanwhile requests are reset */
    drop_parts(fake);
    fake->object_count = fake->open_uploads = 0;
    sl_server_handle(fake->server, handle, fake);
}

void sl_fake_s3_stop(struct sl_fake_s3 *fake)
{
    sl_server_stop(fake->server);
    drop_parts(fake);
    for (unsigned i = 0; i < fake->object_count; i++)
        free(fake->objects[i].data);
}

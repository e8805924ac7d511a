/* Shared by the tests that read from the range server. */
#include "range_blob.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "mem.h"
#include "stores.h"

bool sl_server_header(const struct sl_server_request *request, const char *name, char *text,
                      size_t bytes)
{
    size_t name_bytes = strlen(name);
    for (const char *line = request->headers; *line;
         line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncasecmp(line, name, name_bytes) != 0 || line[name_bytes] != ':')
            continue;
        const char *value = line + name_bytes + 1;
        value += strspn(value, " ");
        snprintf(text, bytes, "%.*s", (int)strcspn(value, "\n"), value);
        return true;
    }
    return false;
}

bool sl_server_range(const struct sl_server_request *request, uint64_t total, uint64_t *begin,
                     uint64_t *end)
{
    char text[128];
    if (!sl_server_header(request, "Range", text, sizeof(text)) ||
        sscanf(text, "bytes=%" SCNu64 "-%" SCNu64, begin, end) != 2)
        return false;
    *end = SL_MIN(*end + 1, total);
    return true;
}

void sl_server_reply_range(struct sl_server_reply *reply, const void *object, uint64_t begin,
                           uint64_t end, uint64_t total, const char *etag)
{
    reply->status = 206;
    reply->body_bytes = (size_t)(end - begin);
    reply->body = malloc(reply->body_bytes);
    memcpy(reply->body, (const uint8_t *)object + begin, reply->body_bytes);
    snprintf(reply->headers, sizeof(reply->headers),
             "%s%s%sContent-Range: bytes %" PRIu64 "-%" PRIu64 "/%" PRIu64 "\r\n",
             etag ? "ETag: " : "", etag ? etag : "", etag ? "\r\n" : "", begin, end - 1, total);
}

const uint8_t *sl_blob(void)
{
    static uint8_t blob[SL_BLOB_BYTES];
    if (!blob[1]) {
        uint32_t state = 12345;
        for (size_t i = 0; i < sizeof(blob); i++) {
            state = state * 1664525u + 1013904223u;
            blob[i] = (uint8_t)(state >> 24);
        }
        blob[1] = 1;
    }
    return blob;
}

void sl_test_environment(void)
{
    static const char *const names[] = {"http_proxy",
                                        "https_proxy",
                                        "HTTPS_PROXY",
                                        "all_proxy",
                                        "ALL_PROXY",
                                        "no_proxy",
                                        "NO_PROXY",
                                        "AWS_CA_BUNDLE",
                                        "SSL_CERT_FILE",
                                        "CURL_CA_BUNDLE",
                                        "NETRC",
                                        "HF_ENDPOINT",
                                        "HF_HOME",
                                        "HF_HUB_DISABLE_IMPLICIT_TOKEN",
                                        "HF_HUB_OFFLINE",
                                        "HF_OIDC_RESOURCE",
                                        "HF_TOKEN",
                                        "HF_TOKEN_PATH",
                                        "HUGGING_FACE_HUB_TOKEN",
                                        "MODELSCOPE_API_TOKEN",
                                        "MODELSCOPE_DOMAIN",
                                        "MODELSCOPE_ENDPOINT",
                                        "MODELSCOPE_PREFER_AI_SITE",
                                        "TRANSFORMERS_OFFLINE",
                                        "XDG_CACHE_HOME"};
    for (size_t i = 0; i < SL_COUNT(names); i++)
        unsetenv(names[i]);
    setenv("HOME", "/nonexistent", 1);
}

static int read_rest(struct sl_source *source, size_t piece_bytes, struct sl_err *err)
{
    uint64_t bytes = sl_source_bytes(source);
    sl_autofree uint8_t *piece = malloc(piece_bytes);
    for (uint64_t at = 0; at < bytes; at += piece_bytes) {
        size_t length = (size_t)SL_MIN(piece_bytes, bytes - at);
        memset(piece, 0xee, length);
        if (sl_source_read(source, at, piece, length, err) < 0)
            return -1;
        ck_assert_mem_eq(piece, sl_blob() + at, length);
    }
    return 0;
}

int sl_read_blob(const char *url, const struct sl_source_config *config, size_t head_bytes,
                 size_t piece_bytes, struct sl_err *err)
{
    SL_AUTO(sl_store) store = NULL;
    SL_AUTO(sl_source) source = NULL;
    sl_autofree char *key = NULL;
    if (sl_store_open(url, config, &store, &key, err) < 0 ||
        sl_source_open(store, key, head_bytes, &source, err) < 0)
        return -1;
    ck_assert_uint_eq(sl_source_bytes(source), SL_BLOB_BYTES);
    return read_rest(source, piece_bytes, err);
}

/*
 * The canonical request is put together as text, hashed, and signed with a key derived from the
 * secret by four HMACs. S3 differs from other services: the path is encoded once and never
 * normalised, so what the caller sends is what is signed, byte by byte.
 *
 * Our own, because libcurl's signs again for each request and decides itself what to sign, while
 * one signature can serve all ranges of an object.
 */
#include "sigv4.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "buf.h"

enum { CANONICAL_BYTES_MAX = 256 * 1024, SECRET_BYTES_MAX = 1024 };

const char sl_sigv4_empty[65] = "e3b0c44298fc1c149afbf4c8996fb924"
                                "27ae41e4649b934ca495991b7852b855";

const char *sl_sigv4_date(int64_t seconds, char text[SL_SIGV4_DATE])
{
    time_t when = (time_t)seconds;
    struct tm tm;
    if (!gmtime_r(&when, &tm) || tm.tm_year > 9999 - 1900 ||
        strftime(text, SL_SIGV4_DATE, "%Y%m%dT%H%M%SZ", &tm) == 0)
        memcpy(text, "19700101T000000Z", SL_SIGV4_DATE);
    return text;
}

static int sha256(const void *data, size_t bytes, uint8_t digest[32], struct sl_err *err)
{
    if (EVP_Digest(data, bytes, digest, NULL, EVP_sha256(), NULL) != 1)
        return sl_fail(err, SL_E_INTERNAL, "cannot compute a SHA-256: the crypto library refuses");
    return 0;
}

static int hmac(const void *key, size_t key_bytes, const char *text, uint8_t digest[32],
                struct sl_err *err)
{
    unsigned bytes = 32;
    if (!HMAC(EVP_sha256(), key, (int)key_bytes, (const unsigned char *)text, strlen(text), digest,
              &bytes))
        return sl_fail(err, SL_E_INTERNAL, "cannot compute an HMAC: the crypto library refuses");
    return 0;
}

int sl_sigv4_payload(const void *body, size_t bytes, char text[65], struct sl_err *err)
{
    uint8_t digest[32];
    if (sha256(body, bytes, digest, err) < 0)
        return -1;
    sl_hex(digest, sizeof(digest), text);
    return 0;
}

/* ---- query ---------------------------------------------------------------------------------- */

/* name and value of one parameter, both as they are sent */
struct parameter {
    const char *name, *value;
    size_t name_bytes, value_bytes;
};

static int compare_spans(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, SL_MIN(a_bytes, b_bytes));
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int compare_parameters(const void *left, const void *right)
{
    const struct parameter *a = left, *b = right;
    int order = compare_spans(a->name, a->name_bytes, b->name, b->name_bytes);
    return order ? order : compare_spans(a->value, a->value_bytes, b->value, b->value_bytes);
}

static int append_query(struct sl_buf *out, const char *query, struct sl_err *err)
{
    struct parameter parameters[SL_SIGV4_QUERY_MAX];
    size_t count = 0;
    while (*query) {
        if (count == SL_SIGV4_QUERY_MAX)
            return sl_fail(err, SL_E_USAGE, "cannot sign a query of more than %d parameters",
                           SL_SIGV4_QUERY_MAX);
        size_t bytes = strcspn(query, "&"), name_bytes = strcspn(query, "=&");
        bool has_value = name_bytes < bytes;
        parameters[count++] = (struct parameter){
            .name = query,
            .value = query + name_bytes + has_value,
            .name_bytes = name_bytes,
            .value_bytes = has_value ? bytes - name_bytes - 1 : 0,
        };
        query += bytes + (query[bytes] == '&');
    }
    qsort(parameters, count, sizeof(parameters[0]), compare_parameters);
    for (size_t i = 0; i < count; i++) {
        const struct parameter *p = &parameters[i];
        if ((i && sl_buf_text(out, "&", err) < 0) ||
            sl_buf_append(out, p->name, p->name_bytes, err) < 0 || sl_buf_text(out, "=", err) < 0 ||
            sl_buf_append(out, p->value, p->value_bytes, err) < 0)
            return -1;
    }
    return sl_buf_text(out, "\n", err);
}

/* ---- headers -------------------------------------------------------------------------------- */

static int compare_headers(const void *left, const void *right)
{
    const struct sl_sigv4_header *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

/* Blanks at the ends go, runs of them become one. */
static int append_value(struct sl_buf *out, const char *value, struct sl_err *err)
{
    while (*value == ' ' || *value == '\t')
        value++;
    while (*value) {
        size_t word = strcspn(value, " \t");
        if (sl_buf_append(out, value, word, err) < 0)
            return -1;
        value += word;
        value += strspn(value, " \t");
        if (*value && sl_buf_text(out, " ", err) < 0)
            return -1;
    }
    return 0;
}

static int append_names(struct sl_buf *out, const struct sl_sigv4_header *const *sorted,
                        size_t count, struct sl_err *err)
{
    for (size_t i = 0; i < count; i++)
        if (sl_buf_printf(out, err, "%s%s", i ? ";" : "", sorted[i]->name) < 0)
            return -1;
    return 0;
}

static int sort_headers(const struct sl_sigv4_request *request,
                        const struct sl_sigv4_header *sorted[SL_SIGV4_HEADERS_MAX],
                        struct sl_err *err)
{
    if (request->header_count > SL_SIGV4_HEADERS_MAX)
        return sl_fail(err, SL_E_USAGE, "cannot sign more than %d headers", SL_SIGV4_HEADERS_MAX);
    for (size_t i = 0; i < request->header_count; i++)
        sorted[i] = &request->headers[i];
    qsort(sorted, request->header_count, sizeof(sorted[0]), compare_headers);
    return 0;
}

char *sl_sigv4_canonical(const struct sl_sigv4_request *request, struct sl_err *err)
{
    const struct sl_sigv4_header *sorted[SL_SIGV4_HEADERS_MAX];
    sl_autobuf out = SL_BUF_INIT(CANONICAL_BYTES_MAX);
    if (sort_headers(request, sorted, err) < 0 ||
        sl_buf_printf(&out, err, "%s\n%s\n", request->method, request->path) < 0 ||
        append_query(&out, request->query, err) < 0)
        return NULL;
    for (size_t i = 0; i < request->header_count; i++)
        if (sl_buf_printf(&out, err, "%s:", sorted[i]->name) < 0 ||
            append_value(&out, sorted[i]->value, err) < 0 || sl_buf_text(&out, "\n", err) < 0)
            return NULL;
    if (sl_buf_text(&out, "\n", err) < 0 ||
        append_names(&out, sorted, request->header_count, err) < 0 ||
        sl_buf_printf(&out, err, "\n%s", request->payload) < 0)
        return NULL;
    return sl_buf_steal(&out, err);
}

/* ---- signing -------------------------------------------------------------------------------- */

static int derive_key(const struct sl_sigv4_request *request, const char *secret_key,
                      uint8_t key[32], struct sl_err *err)
{
    char first[SECRET_BYTES_MAX + 5], day[9];
    if (strlen(secret_key) > SECRET_BYTES_MAX)
        return sl_fail(err, SL_E_AUTH, "the secret key is longer than %d bytes", SECRET_BYTES_MAX);
    int bytes = snprintf(first, sizeof(first), "AWS4%s", secret_key);
    snprintf(day, sizeof(day), "%.8s", request->date);
    uint8_t step[32];
    int result = 0;
    if (hmac(first, (size_t)bytes, day, step, err) < 0 ||
        hmac(step, 32, request->region, step, err) < 0 ||
        hmac(step, 32, request->service, step, err) < 0 ||
        hmac(step, 32, "aws4_request", key, err) < 0)
        result = -1;
    OPENSSL_cleanse(first, sizeof(first));
    OPENSSL_cleanse(step, sizeof(step));
    return result;
}

/* The key of `scope`, from the cache if that was made for the same scope and secret. */
static int signing_key(const struct sl_sigv4_request *request, const char *scope,
                       const char *secret_key, struct sl_sigv4_key *cache, struct sl_err *err)
{
    uint8_t check[32];
    if (sha256(secret_key, strlen(secret_key), check, err) < 0)
        return -1;
    if (strcmp(cache->scope, scope) == 0 && CRYPTO_memcmp(cache->check, check, 32) == 0)
        return 0;
    cache->scope[0] = 0;
    if (derive_key(request, secret_key, cache->key, err) < 0)
        return -1;
    memcpy(cache->check, check, sizeof(check));
    snprintf(cache->scope, sizeof(cache->scope), "%s", scope);
    return 0;
}

char *sl_sigv4_sign_cached(const struct sl_sigv4_request *request, const char *access_key,
                           const char *secret_key, struct sl_sigv4_key *cache, struct sl_err *err)
{
    struct sl_sigv4_key local = {0};
    if (!cache)
        cache = &local;
    char scope[sizeof(cache->scope)], hash[65], signature[65];
    int scope_bytes = snprintf(scope, sizeof(scope), "%.8s/%s/%s", request->date, request->region,
                               request->service);
    if (scope_bytes >= (int)sizeof(scope)) {
        sl_fail(err, SL_E_USAGE, "region '%.40s…' is too long to sign for", request->region);
        return NULL;
    }
    sl_autofree char *canonical = sl_sigv4_canonical(request, err);
    if (!canonical || sl_sigv4_payload(canonical, strlen(canonical), hash, err) < 0 ||
        signing_key(request, scope, secret_key, cache, err) < 0)
        return NULL;
    sl_autobuf text = SL_BUF_INIT(4096);
    uint8_t digest[32];
    int failed = sl_buf_printf(&text, err, "AWS4-HMAC-SHA256\n%s\n%s/aws4_request\n%s",
                               request->date, scope, hash) < 0 ||
                 hmac(cache->key, 32, sl_buf_string(&text), digest, err) < 0;
    OPENSSL_cleanse(&local, sizeof(local));
    if (failed)
        return NULL;
    sl_hex(digest, sizeof(digest), signature);

    const struct sl_sigv4_header *sorted[SL_SIGV4_HEADERS_MAX];
    sl_autobuf out = SL_BUF_INIT(4096);
    if (sort_headers(request, sorted, err) < 0 ||
        sl_buf_printf(&out, err, "AWS4-HMAC-SHA256 Credential=%s/%s/aws4_request, SignedHeaders=",
                      access_key, scope) < 0 ||
        append_names(&out, sorted, request->header_count, err) < 0 ||
        sl_buf_printf(&out, err, ", Signature=%s", signature) < 0)
        return NULL;
    return sl_buf_steal(&out, err);
}

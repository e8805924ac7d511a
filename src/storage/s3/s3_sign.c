/*
 * From a key to a URL and the headers that let it in.
 *
 * Range and If-Match are left unsigned, so one signature serves all ranges of an object. It is used
 * for 5 minutes, not for the 15 that S3 grants: that leaves 10 for a clock that is wrong, and a new
 * one costs some microseconds.
 */
#include <assert.h>
#include <openssl/crypto.h>
#include <string.h>

#include "s3_store.h"

void sl_s3_signed_release(struct sl_s3_signed *request)
{
    free(request->url);
    for (unsigned i = 0; i < request->header_count; i++) {
        OPENSSL_cleanse(request->headers[i], strlen(request->headers[i]));
        free(request->headers[i]);
    }
    *request = (struct sl_s3_signed){0};
}

bool sl_s3_signed_current(struct sl_s3 *s3, const struct sl_s3_signed *request)
{
    if (!request->keys || sl_now_ns() - request->made_ns > SL_S3_SIGNATURE_SECONDS * SL_NS_PER_S)
        return false;
    {
        SL_LOCKED(&s3->locked.mutex);
        if (s3->locked.place != request->place)
            return false;
    }
    return sl_creds_current(s3->creds, request->keys);
}

static int add_header(struct sl_s3_signed *request, char *header)
{
    if (!header)
        return -1;
    request->headers[request->header_count++] = header;
    return 0;
}

struct unsigned_call {
    const char *method, *key, *query, *payload;
    const struct sl_sigv4_header *more;
    size_t more_count;
};

/* The headers that a signature adds. Called with the store's mutex held: it guards the key. */
static int add_signature(struct sl_s3 *s3, const struct sl_key *key,
                         const struct unsigned_call *unsigned_call, const char *path,
                         struct sl_s3_signed *request, struct sl_err *err)
{
    char date[SL_SIGV4_DATE];
    sl_sigv4_date(sl_wall_seconds() + s3->locked.clock_offset, date);
    struct sl_sigv4_header headers[SL_S3_HEADERS_MAX] = {
        {"host", s3->locked.endpoint.authority},
        {"x-amz-content-sha256", unsigned_call->payload},
        {"x-amz-date", date},
    };
    size_t count = 3;
    if (key->session_token)
        headers[count++] = (struct sl_sigv4_header){"x-amz-security-token", key->session_token};
    for (size_t i = 0; i < unsigned_call->more_count; i++)
        headers[count++] = unsigned_call->more[i];
    const struct sl_sigv4_request canonical = {
        .method = unsigned_call->method,
        .path = path,
        .query = unsigned_call->query,
        .headers = headers,
        .header_count = count,
        .payload = unsigned_call->payload,
        .date = date,
        .region = s3->locked.region,
        .service = "s3",
    };
    sl_autofree char *authorization =
        sl_sigv4_sign_cached(&canonical, key->access_key, key->secret_key, &s3->locked.key, err);
    if (!authorization ||
        add_header(request, sl_asprintf(err, "Authorization: %s", authorization)) < 0 ||
        add_header(request, sl_asprintf(err, "x-amz-content-sha256: %s", unsigned_call->payload)) <
            0 ||
        add_header(request, sl_asprintf(err, "x-amz-date: %s", date)) < 0)
        return -1;
    if (!key->session_token)
        return 0;
    return add_header(request, sl_asprintf(err, "x-amz-security-token: %s", key->session_token));
}

static int build(struct sl_s3 *s3, const struct sl_key *key,
                 const struct unsigned_call *unsigned_call, struct sl_s3_signed *request,
                 struct sl_err *err)
{
    SL_LOCKED(&s3->locked.mutex);
    const struct sl_s3_endpoint *endpoint = &s3->locked.endpoint;
    sl_autofree char *encoded =
        sl_url_encode(unsigned_call->key ? unsigned_call->key : "", true, err);
    if (!encoded)
        return -1;
    bool slash = unsigned_call->key || endpoint->virtual_host || endpoint->whole;
    sl_autofree char *path = sl_asprintf(err, "%s%s%s", endpoint->base, slash ? "/" : "", encoded);
    request->url = path ? sl_asprintf(err, "%s%s%s%s", endpoint->origin, path,
                                      *unsigned_call->query ? "?" : "", unsigned_call->query)
                        : NULL;
    if (!request->url)
        return -1;
    request->place = s3->locked.place;
    for (size_t i = 0; i < unsigned_call->more_count; i++)
        if (add_header(request, sl_asprintf(err, "%s: %s", unsigned_call->more[i].name,
                                            unsigned_call->more[i].value)) < 0)
            return -1;
    return key->access_key ? add_signature(s3, key, unsigned_call, path, request, err) : 0;
}

int sl_s3_sign_more(struct sl_s3 *s3, const char *method, const char *key, const char *query,
                    const char *payload, const struct sl_sigv4_header *more, size_t more_count,
                    struct sl_s3_signed *request, struct sl_err *err)
{
    sl_autokey keys = {0};
    struct sl_s3_signed anew = {0};
    const struct sl_s3_options *options = sl_source_options(&s3->store->config, &sl_s3_table);
    struct sl_sigv4_header all[SL_S3_MORE_MAX + 1];
    assert(more_count <= SL_S3_MORE_MAX);
    for (size_t i = 0; i < more_count; i++)
        all[i] = more[i];
    if (options && options->request_payer == SL_S3_REQUESTER_PAYS)
        all[more_count++] = (struct sl_sigv4_header){"x-amz-request-payer", "requester"};
    const struct unsigned_call unsigned_call = {method, key, query, payload, all, more_count};
    if (sl_creds_get(s3->creds, &keys, err) < 0)
        return sl_wrap(err, "no credentials for bucket '%.63s'", s3->bucket);
    if (build(s3, &keys, &unsigned_call, &anew, err) < 0) {
        sl_s3_signed_release(&anew);
        return -1;
    }
    anew.made_ns = sl_now_ns();
    anew.keys = keys.generation;
    sl_s3_signed_release(request);
    *request = anew;
    return 0;
}

int sl_s3_sign(struct sl_s3 *s3, const char *method, const char *key, const char *query,
               struct sl_s3_signed *request, struct sl_err *err)
{
    return sl_s3_sign_more(s3, method, key, query, sl_sigv4_empty, NULL, 0, request, err);
}

/*
 * One request to a store whose answer is small: pages of listings, and all that uploads are made
 * of. Signed anew for each try, since credentials, region and clock may have been recovered
 * between.
 */
#include <string.h>

#include "http_call.h"
#include "s3_store.h"
#include "xml.h"

/* The body without the white space that a store may send while it works. */
static const char *body_of(const struct sl_answer *answer, size_t *bytes)
{
    const char *body = sl_buf_string(&answer->body);
    size_t blank = strspn(body, " \t\r\n");
    *bytes = answer->body.used - blank;
    return body + blank;
}

static int refuse(struct sl_s3 *s3, const struct sl_s3_call *call, const struct sl_answer *answer,
                  struct sl_err *err)
{
    char retry_after[64], date[64], region[SL_S3_REGION_MAX], request_id[128];
#define HEADER(name, text) (sl_answer_header(answer, name, text, sizeof(text)) ? (text) : NULL)
    struct sl_s3_reply reply = {
        .status = answer->status,
        .retry_after = HEADER("Retry-After", retry_after),
        .date = HEADER("Date", date),
        .bucket_region = HEADER("x-amz-bucket-region", region),
        .request_id = HEADER("x-amz-request-id", request_id),
    };
#undef HEADER
    reply.body = body_of(answer, &reply.body_bytes);
    return sl_s3_refused(s3, call->what, call->verb, &reply, err);
}

struct root {
    const char *wanted;
    bool found;
};

static int on_root(const char *path, const char *value, void *arg, struct sl_err *err)
{
    struct root *root = arg;
    (void)value, (void)err;
    root->found |= strcmp(path, root->wanted) == 0;
    return 0;
}

static bool is_success(const struct sl_s3_call *call, const struct sl_answer *answer)
{
    struct root root = {call->root, false};
    size_t bytes;
    if (answer->status < 200 || answer->status > 299)
        return false;
    if (!call->root)
        return true;
    const char *body = body_of(answer, &bytes);
    return sl_xml_parse(body, bytes, "answer", on_root, &root, NULL) == 0 && root.found;
}

/* ---- what http_call.h asks ------------------------------------------------------------------ */

struct asking {
    struct sl_s3 *s3;
    const struct sl_s3_call *call;
    unsigned keys; /* generation of those that the last try was signed with */
};

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct asking *asking = arg;
    const struct sl_s3_call *call = asking->call;
    struct sl_s3_signed made = {0};
    int result = sl_s3_sign_more(asking->s3, call->method, call->key, call->query,
                                 call->payload ? call->payload : sl_sigv4_empty, call->more,
                                 call->more_count, &made, err);
    for (unsigned i = 0; result == 0 && i < made.header_count; i++)
        result = sl_range_add_header(request, err, "%s", made.headers[i]);
    request->url = sl_steal(&made.url);
    asking->keys = made.keys;
    sl_s3_signed_release(&made);
    return result;
}

static bool is_good(void *arg, const struct sl_answer *answer)
{
    const struct asking *asking = arg;
    return is_success(asking->call, answer);
}

static int refuse_call(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    const struct asking *asking = arg;
    return refuse(asking->s3, asking->call, answer, err);
}

static bool recover(void *arg, const struct sl_err *why)
{
    const struct asking *asking = arg;
    return sl_s3_recover(asking->s3, asking->keys, why);
}

int sl_s3_call(struct sl_s3 *s3, struct sl_exchange *exchange, const struct sl_s3_call *call,
               struct sl_answer *answer, unsigned *tried, struct sl_err *err)
{
    struct asking asking = {.s3 = s3, .call = call};
    const struct sl_http_call http = {.what = call->what,
                                      .method = call->method,
                                      .body = call->body,
                                      .body_bytes = call->body_bytes,
                                      .answer_limit = call->answer_limit,
                                      .attempts = call->attempts,
                                      .arg = &asking,
                                      .prepare = prepare,
                                      .is_success = is_good,
                                      .refuse = refuse_call,
                                      .recover = recover};
    return sl_http_call(&s3->store->config, exchange, &http, answer, tried, err);
}

int sl_s3_version_query(const struct sl_s3 *s3, const char *key, char **query, struct sl_err *err)
{
    size_t prefix = strlen(s3->prefix);
    bool is_named = s3->version && strncmp(key, s3->prefix, prefix) == 0 &&
                    strcmp(key + prefix, s3->named) == 0;
    sl_autofree char *version = is_named ? sl_url_encode(s3->version, false, err) : NULL;
    if (is_named && !version)
        return -1;
    *query = version ? sl_asprintf(err, "versionId=%s", version) : sl_strdup("", err);
    return *query ? 0 : -1;
}

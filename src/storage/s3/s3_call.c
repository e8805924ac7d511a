/*
 * One request to a store whose answer is small: pages of listings, and all that uploads are made
 * of. Signed anew for each try, since credentials, region and clock may have been recovered
 * between.
 */
#include <string.h>

#include "progress.h"
#include "retry.h"
#include "s3_store.h"
#include "xml.h"

enum { ATTEMPTS_DEFAULT = 8, HURRIES_MAX = 3 };

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

/* One try; hedge: as of a request; *keys says what it was signed with. */
static int try_once(struct sl_s3 *s3, struct sl_exchange *exchange, const struct sl_s3_call *call,
                    unsigned hedge, struct sl_answer *answer, unsigned *keys, struct sl_err *err)
{
    struct sl_s3_signed made = {0};
    if (sl_s3_sign_more(s3, call->method, call->key, call->query,
                        call->payload ? call->payload : sl_sigv4_empty, call->more,
                        call->more_count, &made, err) < 0)
        return sl_wrap(err, "%s", call->what);
    const char *headers[SL_S3_HEADERS_MAX + 1] = {0};
    memcpy(headers, made.headers, made.header_count * sizeof(headers[0]));
    *keys = made.keys;
    const struct sl_request request = {.method = call->method,
                                       .url = made.url,
                                       .headers = headers,
                                       .body = call->body,
                                       .body_bytes = call->body_bytes,
                                       .lent = call->body_bytes > 0,
                                       .hedge = hedge};
    int result = sl_exchange_simple(exchange, &request, call->answer_limit, answer, err);
    sl_s3_signed_release(&made);
    if (result < 0)
        return sl_wrap(err, "%s", call->what);
    if (is_success(call, answer))
        return 0;
    refuse(s3, call, answer, err);
    sl_answer_release(answer);
    return -1;
}

int sl_s3_call(struct sl_s3 *s3, struct sl_exchange *exchange, const struct sl_s3_call *call,
               struct sl_answer *answer, unsigned *tried, struct sl_err *err)
{
    const struct sl_source_config *config = &s3->store->config;
    unsigned limit = call->attempts ? call->attempts : config->attempts, tries = 0;
    struct sl_retry retry = {.limit = limit ? limit : ATTEMPTS_DEFAULT};
    if (!call->attempts)
        retry.unreachable_ns = config->unreachable_seconds * SL_NS_PER_S;
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        uint64_t wait_ms = 0;
        unsigned keys = 0;
        unsigned failed = sl_retry_tries(&retry);
        bool last = failed + 1 >= retry.limit || failed >= HURRIES_MAX;
        int result = try_once(s3, exchange, call, last ? 0 : 1u << failed, answer, &keys, &why);
        tries++;
        if (tried)
            *tried = tries;
        if (result == 0)
            return 0;
        bool again = false;
        if (why.retryable) {
            again = sl_retry_again(&retry, &why, 0, &wait_ms);
        } else if (why.http_status && !retry.recovered) {
            retry.recovered = true;
            again = sl_s3_recover(s3, keys, &why);
        }
        if (!again) {
            sl_cancel_check(config->cancel, &why); /* so was what would have recovered it */
            if (err)
                *err = why;
            return -1;
        }
        sl_progress_note_retry(config->progress, sl_retry_tries(&retry) + 1, sl_retry_most(&retry),
                               &why);
        if (sl_exchange_pause(exchange, (unsigned)wait_ms, err) < 0)
            return -1;
    }
}

/*
 * One request to a store whose answer is small: pages of listings, and all that uploads are made
 * of. Signed anew for each try, since credentials, region and clock may have been mended between.
 */
#include <string.h>

#include "progress.h"
#include "retry.h"
#include "s3_store.h"

enum { ATTEMPTS_DEFAULT = 8 };

static int refuse(struct sl_s3 *s3, const struct sl_s3_call *call, const struct sl_answer *answer,
                  struct sl_err *err)
{
    char retry_after[64], date[64], region[SL_S3_REGION_MAX], request_id[128];
    const struct sl_s3_reply reply = {
        .status = answer->status,
        .retry_after = sl_answer_header(answer, "Retry-After", retry_after, sizeof(retry_after))
                           ? retry_after
                           : NULL,
        .date = sl_answer_header(answer, "Date", date, sizeof(date)) ? date : NULL,
        .bucket_region =
            sl_answer_header(answer, "x-amz-bucket-region", region, sizeof(region)) ? region : NULL,
        .request_id = sl_answer_header(answer, "x-amz-request-id", request_id, sizeof(request_id))
                          ? request_id
                          : NULL,
        .body = sl_buf_string(&answer->body),
        .body_bytes = answer->body.used,
    };
    return sl_s3_refused(s3, call->what, call->verb, &reply, err);
}

static bool is_success(const struct sl_s3_call *call, const struct sl_answer *answer)
{
    struct sl_s3_fault fault = {0};
    if (answer->status < 200 || answer->status > 299)
        return false;
    if (call->late_errors)
        sl_s3_fault_parse(sl_buf_string(&answer->body), answer->body.used, &fault);
    return !*fault.code;
}

/* One try; *keys says what it was signed with. */
static int try_once(struct sl_s3 *s3, struct sl_exchange *exchange, const struct sl_s3_call *call,
                    struct sl_answer *answer, unsigned *keys, struct sl_err *err)
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
                                       .lent = call->body_bytes > 0};
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
    for (;;) {
        struct sl_err why = SL_ERR_INIT;
        uint64_t wait_ms = 0;
        unsigned keys = 0;
        int result = try_once(s3, exchange, call, answer, &keys, &why);
        tries++;
        if (tried)
            *tried = tries;
        if (result == 0)
            return 0;
        bool again = false;
        if (why.retryable) {
            again = sl_retry_again(&retry, &why, 0, &wait_ms);
        } else if (why.http_status && !retry.mended) {
            retry.mended = true;
            again = sl_s3_mend(s3, keys, &why);
        }
        if (!again) {
            if (err)
                *err = why;
            return -1;
        }
        sl_progress_add_retry(config->progress);
        if (sl_exchange_pause(exchange, (unsigned)wait_ms, err) < 0)
            return -1;
    }
}

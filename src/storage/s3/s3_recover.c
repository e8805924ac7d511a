/*
 * Refusals that can be recovered: a bucket in another region, credentials that have expired, a
 * clock that is off.
 *
 * The refusal itself says what is needed (region, date), is noted when its error is made, and used
 * when the fetch asks whether one more try is worth it. A redirect's Location is never followed: it
 * may point to any host, and the region is all that is needed to find the right one.
 */
#include <string.h>

#include "exchange.h"
#include "log.h"
#include "s3_store.h"

enum { CLOCK_SLACK_SECONDS = 60 };

static void note(struct sl_s3 *s3, const struct sl_s3_reply *reply, const struct sl_s3_fault *fault)
{
    const char *region = reply->bucket_region ? reply->bucket_region : fault->region;
    int64_t date;
    SL_LOCKED(&s3->locked.mutex);
    if (sl_s3_region_valid(region))
        memcpy(s3->locked.stated_region, region, strlen(region) + 1);
    if (reply->date && sl_s3_parse_date(reply->date, &date) == 0) {
        s3->locked.stated_clock = true;
        s3->locked.stated_offset = date - sl_wall_seconds();
    }
}

/* "…/B/B": of an endpoint that has the bucket in its path, which comes once more behind it. */
static bool ends_twice(const char *base)
{
    const char *last = strrchr(base, '/');
    size_t bytes = last ? strlen(last) : 0;
    return bytes > 1 && (size_t)(last - base) >= bytes && strncmp(last - bytes, last, bytes) == 0;
}

int sl_s3_refused(struct sl_s3 *s3, const char *what, enum sl_s3_verb verb,
                  const struct sl_s3_reply *reply, struct sl_err *err)
{
    struct sl_s3_fault fault;
    char region[SL_S3_REGION_MAX];
    const struct sl_s3_options *options = sl_source_options(&s3->store->config, &sl_s3_table);
    bool anonymous = options && options->anonymous, named_twice;
    {
        SL_LOCKED(&s3->locked.mutex);
        memcpy(region, s3->locked.region, sizeof(region));
        named_twice = ends_twice(s3->locked.endpoint.base);
    }
    const struct sl_s3_subject subject = {
        .what = what,
        .bucket = s3->bucket,
        .region = region,
        .origin = sl_creds_origin(s3->creds),
        .anonymous = anonymous,
        .none_found = !anonymous && sl_creds_none_found(s3->creds),
        .named_twice = named_twice,
        .verb = verb,
    };
    sl_s3_refuse(&subject, reply, &fault, err);
    note(s3, reply, &fault);
    return -1;
}

/* ---- region --------------------------------------------------------------------------------- */

/* HEAD of the bucket: whatever the status, the answer names the region. */
static bool ask_region(struct sl_s3 *s3, char region[SL_S3_REGION_MAX])
{
    struct sl_err err = SL_ERR_INIT;
    const struct sl_connect connect = sl_store_connect(s3->store);
    struct sl_s3_signed request = {0};
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, &err);
    if (!exchange || sl_s3_sign(s3, "HEAD", NULL, "", &request, &err) < 0)
        return false;
    const char *headers[SL_S3_HEADERS_MAX + 1] = {0};
    memcpy(headers, request.headers, request.header_count * sizeof(headers[0]));
    const struct sl_request head = {.method = "HEAD", .url = request.url, .headers = headers};
    struct sl_answer answer = {0};
    bool found = sl_exchange_simple(exchange, &head, 64 * 1024, &answer, &err) == 0 &&
                 sl_answer_header(&answer, "x-amz-bucket-region", region, SL_S3_REGION_MAX) &&
                 sl_s3_region_valid(region);
    sl_answer_release(&answer);
    sl_s3_signed_release(&request);
    return found;
}

static bool move_to(struct sl_s3 *s3, const char *region)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_s3_endpoint endpoint = {0};
    if (sl_s3_endpoint_find(&endpoint, sl_source_options(&s3->store->config, &sl_s3_table),
                            s3->creds, s3->bucket, region, &err) < 0)
        return false;
    SL_LOCKED(&s3->locked.mutex);
    if (s3->locked.moved) {
        sl_s3_endpoint_release(&endpoint);
        return strcmp(s3->locked.region, region) == 0;
    }
    sl_log(SL_LOG_INFO,
           "bucket '%s' is in region '%s', not '%s': set source.s3.region to save a request",
           s3->bucket, region, s3->locked.region);
    sl_s3_endpoint_release(&s3->locked.endpoint);
    s3->locked.endpoint = endpoint;
    memcpy(s3->locked.region, region, strlen(region) + 1);
    s3->locked.moved = true;
    s3->locked.place++;
    return true;
}

static bool repair_region(struct sl_s3 *s3)
{
    char stated[SL_S3_REGION_MAX], current[SL_S3_REGION_MAX];
    bool moved;
    {
        SL_LOCKED(&s3->locked.mutex);
        memcpy(stated, s3->locked.stated_region, sizeof(stated));
        memcpy(current, s3->locked.region, sizeof(current));
        moved = s3->locked.moved;
    }
    if (!*stated && (moved || !ask_region(s3, stated)))
        return moved;
    if (strcmp(stated, current) == 0)
        return moved; /* another thread was here first */
    return !moved && move_to(s3, stated);
}

/* ---- clock and keys ------------------------------------------------------------------------- */

static bool repair_clock(struct sl_s3 *s3)
{
    SL_LOCKED(&s3->locked.mutex);
    int64_t change = s3->locked.stated_offset - s3->locked.clock_offset;
    if (!s3->locked.stated_clock)
        return false;
    if (change < CLOCK_SLACK_SECONDS && change > -CLOCK_SLACK_SECONDS)
        return s3->locked.clock_offset != 0;
    int64_t offset = s3->locked.stated_offset;
    sl_log(SL_LOG_WARN, "this machine's clock is %lld seconds %s that of the store: set it",
           (long long)(offset < 0 ? -offset : offset), offset < 0 ? "ahead of" : "behind");
    s3->locked.clock_offset = offset;
    s3->locked.place++;
    return true;
}

static bool is_one_of(const char *code, const char *const *codes)
{
    for (; *codes; codes++)
        if (strcmp(code, *codes) == 0)
            return true;
    return false;
}

bool sl_s3_recover(struct sl_s3 *s3, unsigned keys, const struct sl_err *why)
{
    static const char *const regions[] = {"PermanentRedirect", "TemporaryRedirect",
                                          "AuthorizationHeaderMalformed",
                                          "IllegalLocationConstraintExcept" /* cut */, NULL};
    static const char *const expired[] = {"ExpiredToken",       "TokenRefreshRequired",
                                          "InvalidToken",       "ExpiredTokenException",
                                          "InvalidAccessKeyId", NULL};
    static const char *const clock[] = {"RequestTimeTooSkewed", "RequestExpired", "ExpiredRequest",
                                        NULL};
    if (is_one_of(why->code, regions) || (why->http_status >= 300 && why->http_status < 400))
        return repair_region(s3);
    if (is_one_of(why->code, expired))
        return sl_creds_renew(s3->creds, keys);
    return is_one_of(why->code, clock) && repair_clock(s3);
}

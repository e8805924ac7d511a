/*
 * One row per code of the store: the kind of failure, whether it may pass, and what the reader of
 * the message should do. A code that is not listed is judged by its status alone.
 */
#include "s3_error.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "exchange.h"
#include "retry.h"
#include "xml.h"

enum { ERROR_BYTES_MAX = 64 * 1024 };

struct rule {
    const char *code;
    enum sl_err_kind kind;
    bool retry;
    const char *advice;
    bool keys; /* which keys it is about is said, too */
};
#define UNKNOWN_KEY                                                                                \
    "the store does not know this access key: check that it is of this store, and was not deleted"
/* https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html */
static const struct rule rules[] = {
    {"NoSuchKey", SL_E_NOT_FOUND, false, "check the key: it is case-sensitive"},
    {"NoSuchBucket", SL_E_NOT_FOUND, false, "check the bucket's name and the endpoint"},
    {"NoSuchVersion", SL_E_NOT_FOUND, false, "check the version, or it was deleted meanwhile"},
    {"AccessDenied", SL_E_AUTH, false, NULL},
    {"AllAccessDisabled", SL_E_AUTH, false, "the bucket is closed"},
    {"AccountProblem", SL_E_AUTH, false, "the account has a problem: ask the store's operator"},
    {"InvalidAccessKeyId", SL_E_AUTH, false, UNKNOWN_KEY, .keys = true},
    {"XAdminUserNotFound", SL_E_AUTH, false, UNKNOWN_KEY, .keys = true},
    {"SignatureDoesNotMatch", SL_E_AUTH, false,
     "the secret key does not fit the access key: set both again, as the store gave them out",
     .keys = true},
    {"ExpiredToken", SL_E_AUTH, false, "the session token has expired: get new credentials",
     .keys = true},
    {"TokenRefreshRequired", SL_E_AUTH, false, "get new credentials", .keys = true},
    {"InvalidToken", SL_E_AUTH, false,
     "the session token is not one of this store: get new credentials", .keys = true},
    {"RequestTimeTooSkewed", SL_E_AUTH, false, "set this machine's clock"},
    {"RequestExpired", SL_E_AUTH, false, "set this machine's clock"},
    {"ExpiredRequest", SL_E_AUTH, false, "set this machine's clock"}, /* of R2 */
    {"PreconditionFailed", SL_E_INTEGRITY, false, "the object changed"},
    {"InvalidRange", SL_E_INTEGRITY, false, "the object is shorter than it was"},
    {"InvalidObjectState", SL_E_AUTH, false,
     "the object is archived: restore it to a readable storage class first"},
    {"RequestTimeout", SL_E_NET, true, ""},
    {"SlowDown", SL_E_NET, true, ""},
    {"ServiceUnavailable", SL_E_NET, true, ""},
    {"InternalError", SL_E_NET, true, ""},
    {"Throttling", SL_E_NET, true, ""},
    {"ThrottlingException", SL_E_NET, true, ""},
    {"RequestLimitExceeded", SL_E_NET, true, ""},
    {"OperationAborted", SL_E_NET, true, ""},
    {"PermanentRedirect", SL_E_USAGE, false, NULL},
    {"TemporaryRedirect", SL_E_USAGE, false, NULL},
    {"AuthorizationHeaderMalformed", SL_E_AUTH, false, NULL},
    {"IllegalLocationConstraintException", SL_E_USAGE, false, NULL},
    {"BadDigest", SL_E_NET, true, "the bytes were damaged on their way"},
    {"XAmzContentSHA256Mismatch", SL_E_NET, true, "the bytes were damaged on their way"},
    {"XAmzContentChecksumMismatch", SL_E_NET, true, "the bytes were damaged on their way"},
    {"ConditionalRequestConflict", SL_E_NET, true,
     "another client is writing this object: try again when it has ended"},
    {"NoSuchUpload", SL_E_NOT_FOUND, false,
     "the unfinished upload is gone: someone or a lifecycle rule aborted it; begin again"},
    {"QuotaExceeded", SL_E_NO_SPACE, false, "the quota is used up: ask the store's operator"},
    {"XMinioStorageFull", SL_E_NO_SPACE, false, "the store is full: ask its operator"},
    {"EntityTooLarge", SL_E_NO_SPACE, false, "the store takes no object or part of this size"},
    {"InvalidBucketName", SL_E_USAGE, false, "check the bucket's name"},
    {"KeyTooLongError", SL_E_USAGE, false, "a key has at most 1024 bytes"},
};

static int on_fault(const char *path, const char *value, void *arg, struct sl_err *err)
{
    (void)err;
    struct sl_s3_fault *fault = arg;
    const struct {
        const char *path;
        char *text;
        size_t bytes;
    } rows[] = {
        {"Error/Code", fault->code, sizeof(fault->code)},
        {"Error/Message", fault->message, sizeof(fault->message)},
        {"Error/Region", fault->region, sizeof(fault->region)},
        {"Error/RequestId", fault->request_id, sizeof(fault->request_id)},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (strcmp(path, rows[i].path) == 0)
            snprintf(rows[i].text, rows[i].bytes, "%s", value);
    return 0;
}

/* A code is a word; whatever else stands there is no code. */
static void sanitized_code(char *code)
{
    for (char *c = code; *c; c++)
        if (!((*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') ||
              *c == '.' || *c == '_' || *c == '-')) {
            *code = 0;
            return;
        }
}

void sl_s3_fault_parse(const char *body, size_t bytes, struct sl_s3_fault *fault)
{
    *fault = (struct sl_s3_fault){0};
    if (bytes && bytes <= ERROR_BYTES_MAX)
        sl_xml_parse(body, bytes, "error answer", on_fault, fault, NULL);
    sanitized_code(fault->code);
}

int sl_s3_parse_date(const char *text, int64_t *seconds)
{
    struct tm tm = {0};
    const char *rest = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (!rest || *rest)
        return -1;
    *seconds = (int64_t)timegm(&tm);
    return 0;
}

static const struct rule *find_rule(const struct sl_s3_fault *fault)
{
    static const struct rule kms = {"KMS", SL_E_AUTH, false,
                                    "the object is encrypted by KMS and these credentials have no "
                                    "right to its key"};
    static const struct rule customers_key = {
        "InvalidRequest", SL_E_USAGE, false,
        "it is encrypted with a key that its owner sends with each request (SSE-C), which sluice "
        "does not: store it again without, or let .tensors files be encrypted by sluice"};
    if (strncmp(fault->code, "KMS.", 4) == 0)
        return &kms;
    if (strcmp(fault->code, customers_key.code) == 0 &&
        strcasestr(fault->message, "server side encryption"))
        return &customers_key;
    for (size_t i = 0; i < SL_COUNT(rules); i++)
        if (strcmp(fault->code, rules[i].code) == 0)
            return &rules[i];
    return NULL;
}

/* What AccessDenied and wrong regions mean depends on who asked. */
static void advise(const struct sl_s3_subject *subject, const struct sl_s3_fault *fault, char *text,
                   size_t bytes)
{
    bool elsewhere = *fault->region && strcmp(fault->region, subject->region) != 0;
    if (strcmp(fault->code, "AccessDenied") != 0 && *fault->code)
        snprintf(text, bytes,
                 "bucket '%.63s' is not at this endpoint in region '%s'%s%s: set "
                 "source.s3.region or source.s3.endpoint",
                 subject->bucket, subject->region, elsewhere ? " but in " : "",
                 elsewhere ? fault->region : "");
    else if (subject->none_found)
        snprintf(
            text, bytes,
            "no credentials were found, so the request was not signed: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, a profile or a role, or check that the bucket is public");
    else if (subject->anonymous)
        snprintf(text, bytes,
                 "the request was not signed as source.s3.anonymous asks: is the object public?");
    else if (subject->verb == SL_S3_LIST)
        snprintf(text, bytes,
                 "the credentials (%s) may not list it: grant s3:ListBucket, or set "
                 "source.s3.requestPayer if the requester pays",
                 subject->origin);
    else if (subject->verb == SL_S3_WRITE)
        snprintf(text, bytes,
                 "the credentials (%s) may not write it: grant s3:PutObject and "
                 "s3:AbortMultipartUpload, or choose another bucket",
                 subject->origin);
    else
        snprintf(text, bytes,
                 "the credentials (%s) may not read it, or it does not exist and they may not list "
                 "the bucket: check the key, s3:GetObject and s3:ListBucket, and "
                 "source.s3.requestPayer if the requester pays",
                 subject->origin);
}

/* Not to another region, as Amazon does, but with nothing said. */
static bool is_sent_on(const struct sl_s3_reply *reply, const struct sl_s3_fault *fault)
{
    return reply->status >= 300 && reply->status < 400 && reply->sent_to && !*fault->code &&
           !reply->bucket_region;
}

static int by_status(const struct sl_s3_subject *subject, const struct sl_s3_reply *reply,
                     const struct sl_s3_fault *fault, const char *detail, struct sl_err *err)
{
    if (reply->status == 403 || (reply->status >= 300 && reply->status < 400)) {
        char advice[400];
        struct sl_s3_fault as = *fault;
        snprintf(as.code, sizeof(as.code), "%s",
                 reply->status == 403 ? "AccessDenied" : "Redirect");
        advise(subject, &as, advice, sizeof(advice));
        if (is_sent_on(reply, fault))
            snprintf(advice, sizeof(advice),
                     "it sends its readers on to '%.200s': if that is a node of the same store, as "
                     "of AIStore, name its host in source.s3.followRedirects",
                     reply->sent_to);
        sl_fail_code(err, reply->status == 403 ? SL_E_AUTH : SL_E_USAGE, fault->code,
                     "%s: %d %s: %s", subject->what, reply->status, detail, advice);
        err->http_status = reply->status;
        return -1;
    }
    sl_http_fail(err, reply->status, reply->retry_after, subject->what, detail);
    snprintf(err->code, sizeof(err->code), "%.31s", fault->code);
    return -1;
}

static int refuse(const struct sl_s3_subject *subject, const struct sl_s3_reply *reply,
                  struct sl_s3_fault *fault, struct sl_err *err)
{
    sl_s3_fault_parse(reply->body, reply->body_bytes, fault);
    const char *request_id = *fault->request_id ? fault->request_id : reply->request_id;
    char detail[512], advice[400] = "";
    snprintf(detail, sizeof(detail), "%s%s%.160s%s", fault->code, *fault->message ? " (" : "",
             fault->message, *fault->message ? ")" : "");
    if (request_id && *request_id) {
        size_t used = strlen(detail);
        snprintf(detail + used, sizeof(detail) - used, "%srequest %.64s", used ? ", " : "",
                 request_id);
    }
    const struct rule *rule = find_rule(fault);
    if (!rule)
        return by_status(subject, reply, fault, detail, err);
    if (rule->keys)
        snprintf(advice, sizeof(advice), "%s (credentials: %.200s)", rule->advice, subject->origin);
    else if (rule->advice)
        snprintf(advice, sizeof(advice), "%s", rule->advice);
    else
        advise(subject, fault, advice, sizeof(advice));
    char code[32];
    snprintf(code, sizeof(code), "%.31s", rule->kind == SL_E_INTEGRITY ? "changed" : fault->code);
    sl_fail_code(err, rule->kind, code, "%s: %d %s%s%s", subject->what, reply->status, detail,
                 *advice ? ": " : "", advice);
    err->http_status = reply->status;
    err->retryable = rule->retry;
    if (rule->retry && reply->retry_after)
        err->retry_after_ms = sl_retry_after_ms(reply->retry_after, (int64_t)time(NULL));
    return -1;
}

int sl_s3_refuse(const struct sl_s3_subject *subject, const struct sl_s3_reply *reply,
                 struct sl_s3_fault *fault, struct sl_err *err)
{
    refuse(subject, reply, fault, err);
    size_t used = strlen(err->message);
    if (err->kind == SL_E_NOT_FOUND && subject->named_twice)
        snprintf(err->message + used, sizeof(err->message) - used,
                 "; the endpoint ends in '/%.63s', as the bucket is called: take that out of it",
                 subject->bucket);
    return -1;
}

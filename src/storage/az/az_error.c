/*
 * What Azure says when it refuses: one row per code with what to do. A code that is not listed is
 * judged by its status alone.
 *
 * https://learn.microsoft.com/rest/api/storageservices/blob-service-error-codes
 */
#include <stdio.h>
#include <string.h>

#include "az_store.h"
#include "xml.h"

enum { ERROR_BYTES_MAX = 64 * 1024 };

static const struct rule {
    const char *code;
    enum sl_err_kind kind;
    bool retry;
    const char *advice; /* NULL: depends on the credentials */
} rules[] = {
    {"BlobNotFound", SL_E_NOT_FOUND, false, "check the name: it is case-sensitive"},
    {"ContainerNotFound", SL_E_NOT_FOUND, false, "check the container and the account"},
    {"ResourceNotFound", SL_E_NOT_FOUND, false,
     "check the name; a container that is not public says so, too"},
    {"AuthenticationFailed", SL_E_AUTH, false, NULL},
    {"InvalidAuthenticationInfo", SL_E_AUTH, false, NULL},
    {"NoAuthenticationInformation", SL_E_AUTH, false, NULL},
    {"AuthorizationFailure", SL_E_AUTH, false, NULL},
    {"AuthorizationPermissionMismatch", SL_E_AUTH, false, NULL},
    {"AuthorizationServiceMismatch", SL_E_AUTH, false, NULL},
    {"AuthorizationResourceTypeMismatch", SL_E_AUTH, false, NULL},
    {"InsufficientAccountPermissions", SL_E_AUTH, false, NULL},
    {"PublicAccessNotPermitted", SL_E_AUTH, false, NULL},
    {"AuthorizationSourceIPMismatch", SL_E_AUTH, false,
     "the SAS is for other addresses than this machine's"},
    {"AuthorizationProtocolMismatch", SL_E_AUTH, false, "the SAS is for https alone"},
    {"KeyBasedAuthenticationNotPermitted", SL_E_AUTH, false,
     "the account takes no keys, nor a SAS made from one: use managed or workload identity"},
    {"AccountIsDisabled", SL_E_AUTH, false, "the account is disabled"},
    {"BlobArchived", SL_E_AUTH, false,
     "the blob is archived: rehydrate it to an online tier first"},
    {"BlobBeingRehydrated", SL_E_AUTH, false, "the blob is being rehydrated: wait for it"},
    {"ConditionNotMet", SL_E_INTEGRITY, false, "the blob changed"},
    {"InvalidRange", SL_E_INTEGRITY, false, "the blob is shorter than it was"},
    {"ServerBusy", SL_E_NET, true, ""},
    {"OperationTimedOut", SL_E_NET, true, ""},
    {"InternalError", SL_E_NET, true, ""},
    {"Md5Mismatch", SL_E_NET, true, "the bytes were damaged on their way"},
    {"BlobAlreadyExists", SL_E_USAGE, false,
     "name another destination, or replace it with --replace"},
    {"LeaseIdMissing", SL_E_USAGE, false,
     "another client holds a lease on the blob: wait until it ends, or break the lease"},
};

struct fault {
    char code[64], message[256];
    char end[64]; /* of the time frame that a SAS is good for, as the store tells it */
};

static int on_fault(const char *path, const char *value, void *arg, struct sl_err *err)
{
    (void)err;
    struct fault *fault = arg;
    const char *end = strstr(value, "Expiry [");
    if (strcmp(path, "Error/AuthenticationErrorDetail") == 0 && end)
        snprintf(fault->end, sizeof(fault->end), "%.*s", (int)strcspn(end + 8, "]"), end + 8);
    if (strcmp(path, "Error/Code") == 0)
        snprintf(fault->code, sizeof(fault->code), "%s", value);
    else if (strcmp(path, "Error/Message") == 0) /* then come request id and time */
        snprintf(fault->message, sizeof(fault->message), "%.*s", (int)strcspn(value, "\r\n"),
                 value);
    return 0;
}

static void parse(const struct sl_cloud_reply *reply, struct fault *fault)
{
    const char *body = reply->body;
    size_t bytes = reply->body_bytes;
    if (bytes >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0) /* a byte order mark */
        body += 3, bytes -= 3;
    if (bytes && bytes <= ERROR_BYTES_MAX && *body == '<')
        sl_xml_parse(body, bytes, "error answer", on_fault, fault, NULL);
    if (reply->code)
        snprintf(fault->code, sizeof(fault->code), "%.63s", reply->code);
    for (const char *c = fault->code; *c; c++)
        if (!((*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9'))) {
            fault->code[0] = 0;
            return;
        }
}

/* A key or a SAS that is none of this account's: rights do not matter yet. */
static bool is_unknown(const struct sl_az_place *place, const char *code)
{
    return (place->key || place->sas || place->uri_sas) &&
           strcmp(code, "AuthenticationFailed") == 0;
}

static void advise(struct sl_az *az, enum sl_az_verb verb, const char *code, char *text,
                   size_t bytes)
{
    static const char *const rights[] = {
        [SL_AZ_READ] = "read it, or it does not exist: a SAS needs sp=r, an identity the role "
                       "'Storage Blob Data Reader'",
        [SL_AZ_LIST] = "list it: a SAS needs sp=l for the container, an identity the role 'Storage "
                       "Blob Data Reader'",
        [SL_AZ_WRITE] = "write it: a SAS needs sp=rcw, an identity the role 'Storage Blob Data "
                        "Contributor'",
    };
    enum sl_az_bare bare = sl_az_creds_bare(az->creds);
    if (bare == SL_AZ_NONE_FOUND)
        snprintf(text, bytes,
                 "no credentials were found, so the request had none: set "
                 "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_KEY, "
                 "use an identity, or check that the container is public");
    else if (bare == SL_AZ_ANONYMOUS)
        snprintf(text, bytes,
                 "the request had no credentials, because source.az.anonymous is set: is the "
                 "container public?");
    else if (is_unknown(&az->place, code))
        snprintf(text, bytes,
                 "%.200s is not accepted: it is of another account, was replaced, or has expired: "
                 "take a new one",
                 sl_az_creds_origin(az->creds));
    else
        snprintf(text, bytes, "%.200s is not accepted, has expired, or may not %s",
                 sl_az_creds_origin(az->creds), rights[verb]);
}

static const struct rule *find_rule(const char *code)
{
    for (size_t i = 0; i < SL_COUNT(rules); i++)
        if (strcmp(code, rules[i].code) == 0)
            return &rules[i];
    return NULL;
}

int sl_az_refused(struct sl_az *az, const char *what, enum sl_az_verb verb,
                  const struct sl_cloud_reply *reply, struct sl_err *err)
{
    struct fault fault = {.code = ""};
    char detail[400], advice[500];
    parse(reply, &fault);
    const struct rule *rule = find_rule(fault.code);
    snprintf(detail, sizeof(detail), "%s%s%.200s%s", fault.code, *fault.message ? " (" : "",
             fault.message, *fault.message ? ")" : "");
    bool auth = reply->status == 401 || reply->status == 403;
    sl_http_fail(err, reply->status, reply->retry_after, what, detail);
    if (!err || (!rule && !auth))
        return -1;
    uint32_t later = err->retry_after_ms;
    const char *next = rule ? rule->advice : NULL;
    if (*fault.end)
        snprintf(advice, sizeof(advice),
                 "%.200s is good until %.60s only: if that has passed get a new one, else set this "
                 "machine's clock",
                 sl_az_creds_origin(az->creds), fault.end);
    else
        advise(az, verb, fault.code, advice, sizeof(advice));
    next = next ? next : advice;
    sl_fail_code(err, rule ? rule->kind : SL_E_AUTH,
                 rule && rule->kind == SL_E_INTEGRITY ? "changed" : fault.code, "%s: %d %.250s%s%s",
                 what, reply->status, detail, *next ? ": " : "", next);
    err->http_status = reply->status;
    err->retryable = rule && rule->retry;
    err->retry_after_ms = later;
    return -1;
}

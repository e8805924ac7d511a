/*
 * What Google says when it refuses, in XML or JSON, and what to do about it.
 *
 * https://cloud.google.com/storage/docs/xml-api/reference-status
 * https://cloud.google.com/storage/docs/json_api/v1/status-codes
 */
#include <stdio.h>
#include <string.h>

#include "gs_store.h"
#include "json.h"
#include "xml.h"

enum { ERROR_BYTES_MAX = 64 * 1024 };

struct fault {
    char code[64], message[256];
};

static int on_fault(const char *path, const char *value, void *arg, struct sl_err *err)
{
    (void)err;
    struct fault *fault = arg;
    if (strcmp(path, "Error/Code") == 0)
        snprintf(fault->code, sizeof(fault->code), "%s", value);
    else if (strcmp(path, "Error/Message") == 0)
        snprintf(fault->message, sizeof(fault->message), "%s", value);
    return 0;
}

/* {"error": {"message", "errors": [{"reason"}]}} */
static void take_json(const json_t *json, struct fault *fault)
{
    const json_t *error = json_object_get(json, "error");
    const char *message = sl_json_get_string(error, "message");
    const char *reason =
        sl_json_get_string(json_array_get(json_object_get(error, "errors"), 0), "reason");
    snprintf(fault->code, sizeof(fault->code), "%s", reason ? reason : "");
    snprintf(fault->message, sizeof(fault->message), "%s", message ? message : "");
}

static void parse(const struct sl_cloud_reply *reply, struct fault *fault)
{
    const char *body = reply->body + strspn(reply->body, " \t\r\n");
    size_t bytes = reply->body_bytes - (size_t)(body - reply->body);
    if (!bytes || bytes > ERROR_BYTES_MAX)
        return;
    if (*body == '{') {
        json_t *json = sl_json_parse(body, bytes, "error answer", NULL);
        if (json)
            take_json(json, fault);
        json_decref(json);
    } else if (*body == '<') {
        sl_xml_parse(body, bytes, "error answer", on_fault, fault, NULL);
    }
    for (const char *c = fault->code; *c; c++)
        if (!((*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z'))) {
            fault->code[0] = 0;
            return;
        }
}

/* The XML API has a code for it, the JSON API one that it has for whatever is missing. */
static bool requester_pays(const struct fault *fault, int status)
{
    return strcmp(fault->code, "UserProjectMissing") == 0 ||
           ((status == 403 || (status == 400 && strcmp(fault->code, "required") == 0)) &&
            (strcasestr(fault->message, "requester pays") ||
             strcasestr(fault->message, "requester-pays")));
}

static void advise(struct sl_gs *gs, enum sl_gs_verb verb, const struct fault *fault, int status,
                   char *text, size_t bytes)
{
    static const char *const rights[] = {
        [SL_GS_READ] = "may not read it, or it does not exist: grant storage.objects.get "
                       "(roles/storage.objectViewer), and check the name",
        [SL_GS_LIST] = "may not list it: grant storage.objects.list (roles/storage.objectViewer)",
        [SL_GS_WRITE] = "may not write it: grant storage.objects.create, and "
                        "storage.objects.delete to replace objects (roles/storage.objectUser)",
    };
    enum sl_gs_bare bare = sl_gs_creds_bare(gs->creds);
    if (requester_pays(fault, status))
        snprintf(text, bytes,
                 "the requester pays for this bucket: set source.gs.userProject to the project "
                 "that pays");
    else if (bare == SL_GS_NONE_FOUND)
        snprintf(text, bytes,
                 "no credentials were found, so the request had no token: set "
                 "GOOGLE_APPLICATION_CREDENTIALS or source.gs.credentialsFile, or check that the "
                 "bucket is public");
    else if (bare == SL_GS_ANONYMOUS)
        snprintf(
            text, bytes,
            "the request had no token, because source.gs.anonymous is set: is the object public?");
    else if (status == 401)
        snprintf(text, bytes, "the token of %.300s is not accepted: check that source",
                 sl_gs_creds_origin(gs->creds));
    else
        snprintf(text, bytes, "%.300s %s", sl_gs_creds_origin(gs->creds), rights[verb]);
}

int sl_gs_refused(struct sl_gs *gs, const char *what, enum sl_gs_verb verb,
                  const struct sl_cloud_reply *reply, struct sl_err *err)
{
    struct fault fault = {.code = ""};
    char detail[400], advice[500];
    parse(reply, &fault);
    bool bill = requester_pays(&fault, reply->status);
    snprintf(detail, sizeof(detail), "%s%s%.200s%s", fault.code, *fault.message ? " (" : "",
             fault.message, *fault.message ? ")" : "");
    if (reply->status == 401 || reply->status == 403 || bill) {
        advise(gs, verb, &fault, reply->status, advice, sizeof(advice));
        sl_fail_code(err, SL_E_AUTH, fault.code, "%s: %d %.250s: %s", what, reply->status, detail,
                     advice);
        if (err)
            err->http_status = reply->status;
        return -1;
    }
    sl_http_fail(err, reply->status, reply->retry_after, what, detail);
    if (err)
        snprintf(err->code, sizeof(err->code), "%.31s",
                 reply->status == 412 ? "changed" : fault.code);
    return -1;
}

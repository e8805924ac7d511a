/*
 * A credentials file of Google has a type, which says how a token is had: a service account signs
 * one itself, an authorised user and an external account ask for one. Programs that a file names
 * (credential_source.executable) are not started.
 *
 * https://google.aip.dev/auth/4110 and following; https://cloud.google.com/iam/docs/
 * workload-identity-federation
 */
#include "gs_creds.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "imds.h"
#include "json.h"
#include "log.h"
#include "thread.h"
#include "url.h"

enum {
    FILE_BYTES_MAX = 256 * 1024,
    MARGIN_SECONDS = 225, /* google-auth's */
    EARLY_SECONDS = 300,  /* a token begins so long ago: clocks differ */
    JWT_SECONDS = 3600,
    METADATA_SECONDS = 3,
    HEADERS_MAX = 5,
};
#define SCOPE "https://www.googleapis.com/auth/"
static const char google_tokens[] = "https://oauth2.googleapis.com/token";

enum kind { ANONYMOUS, SERVICE_ACCOUNT, AUTHORIZED_USER, EXTERNAL_ACCOUNT, METADATA };

struct sl_gs_creds {
    const struct sl_source_config *config;
    enum kind kind;
    json_t *file; /* of the first three; one thread at a time asks */
    char *origin;
    bool writes, asked_for; /* ANONYMOUS: by the spec */
    struct sl_tokens *tokens;
    struct sl_counter none; /* metadata: nobody is there */
};

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static const char *member(const struct sl_gs_creds *creds, const char *name)
{
    return sl_json_get_string(creds->file, name);
}

static const char *scope_of(const struct sl_gs_creds *creds)
{
    return creds->writes ? SCOPE "devstorage.read_write" : SCOPE "devstorage.read_only";
}

/* ---- files ----------------------------------------------------------------------------------- */

static int need(const struct sl_gs_creds *creds, const char *const *names, struct sl_err *err)
{
    for (; *names; names++)
        if (!member(creds, *names))
            return sl_fail(err, SL_E_USAGE, "%s has no text '%s': download the file again",
                           creds->origin, *names);
    return 0;
}

static int check_external(const struct sl_gs_creds *creds, struct sl_err *err)
{
    const json_t *source = json_object_get(creds->file, "credential_source");
    if (sl_json_get_string(source, "file") || sl_json_get_string(source, "url"))
        return sl_json_get_string(source, "environment_id")
                   ? sl_fail(err, SL_E_AUTH,
                             "%s takes its subject token from AWS, which sluice does not support: "
                             "use a credential_source of a file or a URL",
                             creds->origin)
                   : 0;
    return sl_fail(err, SL_E_AUTH,
                   "%s takes its subject token from a program or a certificate, which sluice does "
                   "not support: use a credential_source of a file or a URL",
                   creds->origin);
}

static int judge_type(struct sl_gs_creds *creds, struct sl_err *err)
{
    static const char *const of_service[] = {"client_email", "private_key", "private_key_id", NULL};
    static const char *const of_user[] = {"client_id", "client_secret", "refresh_token", NULL};
    static const char *const of_external[] = {"audience", "subject_token_type", "token_url", NULL};
    const char *type = member(creds, "type");
    if (type && strcmp(type, "service_account") == 0) {
        creds->kind = SERVICE_ACCOUNT;
        return need(creds, of_service, err);
    }
    if (type && strcmp(type, "authorized_user") == 0) {
        creds->kind = AUTHORIZED_USER;
        return need(creds, of_user, err);
    }
    if (type && strcmp(type, "external_account") == 0) {
        creds->kind = EXTERNAL_ACCOUNT;
        return need(creds, of_external, err) < 0 ? -1 : check_external(creds, err);
    }
    return sl_fail(
        err, SL_E_AUTH,
        "%s is of unknown type '%.40s': use a service_account, authorized_user or external_account",
        creds->origin, type ? type : "");
}

static int take_text(struct sl_gs_creds *creds, const char *text, size_t bytes, struct sl_err *err)
{
    struct sl_err why = SL_ERR_INIT;
    creds->file = sl_json_parse(text, bytes, "credentials", &why);
    if (!creds->file || !json_is_object(creds->file))
        return sl_fail(err, SL_E_USAGE, "%s is not a credentials file of Google (JSON)",
                       creds->origin);
    return judge_type(creds, err);
}

static int take_file(struct sl_gs_creds *creds, const char *path, const char *said_by,
                     struct sl_err *err)
{
    sl_autosecretbuf text = SL_BUF_INIT(FILE_BYTES_MAX);
    creds->origin = sl_asprintf(err, "'%s' (%s)", path, said_by);
    if (!creds->origin)
        return -1;
    if (sl_buf_read_file(&text, path, err) < 0)
        return sl_wrap(err, "%s", said_by);
    return take_text(creds, sl_buf_string(&text), text.used, err);
}

/* gcloud's own: $CLOUDSDK_CONFIG or ~/.config/gcloud. NULL: there is none. */
static char *gcloud_file(void)
{
    const char *folder = env("CLOUDSDK_CONFIG"), *home = env("HOME");
    sl_autofree char *path = NULL;
    if (folder)
        path = sl_asprintf(NULL, "%s/application_default_credentials.json", folder);
    else if (home)
        path = sl_asprintf(NULL, "%s/.config/gcloud/application_default_credentials.json", home);
    return path && access(path, R_OK) == 0 ? sl_steal(&path) : NULL;
}

/* 1: nothing of that kind is there. */
static int choose_file(struct sl_gs_creds *creds, const struct sl_gs_options *options,
                       struct sl_err *err)
{
    if (options && options->credentials_file && *options->credentials_file)
        return take_file(creds, options->credentials_file, "source.gs.credentialsFile", err);
    if (env("GOOGLE_APPLICATION_CREDENTIALS"))
        return take_file(creds, env("GOOGLE_APPLICATION_CREDENTIALS"),
                         "GOOGLE_APPLICATION_CREDENTIALS", err);
    const char *text = env("GOOGLE_SERVICE_ACCOUNT_KEY");
    if (text) {
        creds->origin = sl_strdup("GOOGLE_SERVICE_ACCOUNT_KEY", err);
        return creds->origin ? take_text(creds, text, strlen(text), err) : -1;
    }
    sl_autofree char *path = gcloud_file();
    return path ? take_file(creds, path, "gcloud's application default credentials", err) : 1;
}

static int choose(struct sl_gs_creds *creds, bool bare, struct sl_err *err)
{
    const struct sl_gs_options *options = sl_source_options(creds->config, &sl_gs_table);
    if (options && options->anonymous) {
        creds->asked_for = true;
        creds->origin = sl_strdup("none, as source.gs.anonymous asks", err);
        return creds->origin ? 0 : -1;
    }
    int result = choose_file(creds, options, err);
    if (result < 0)
        return -1;
    if (result == 0 && bare)
        return sl_fail(err, SL_E_AUTH,
                       "no token is sent over plain http to another machine: use an https "
                       "endpoint, or source.gs.anonymous");
    if (result == 0)
        return 0;
    const char *no_check = env("NO_GCE_CHECK");
    bool skipped = bare || (no_check && strcasecmp(no_check, "true") == 0);
    creds->kind = skipped ? ANONYMOUS : METADATA;
    creds->origin = sl_strdup(skipped ? "none were found" : "the metadata server", err);
    return creds->origin ? 0 : -1;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int ask_service_account(struct sl_gs_creds *creds, char **text, int64_t *expires,
                               struct sl_err *err)
{
    int64_t from = sl_wall_seconds() - EARLY_SECONDS;
    *text = sl_gs_jwt(member(creds, "client_email"), member(creds, "private_key_id"),
                      member(creds, "private_key"), scope_of(creds), from, err);
    *expires = from + JWT_SECONDS;
    return *text ? 0 : sl_wrap(err, "%s", creds->origin);
}

/* "&name=value", encoded. */
static int add_field(struct sl_buf *form, const char *name, const char *value, struct sl_err *err)
{
    sl_autosecret char *encoded = sl_url_encode(value, false, err);
    return encoded ? sl_buf_printf(form, err, "%s%s=%s", form->used ? "&" : "", name, encoded) : -1;
}

static int post(struct sl_gs_creds *creds, const char *url, const struct sl_buf *form,
                const char *advice, char **text, int64_t *expires, struct sl_err *err)
{
    char what[400];
    snprintf(what, sizeof(what), "cannot get a token from '%.200s' for %.150s", url, creds->origin);
    const struct sl_token_request request = {
        .what = what, .url = url, .form = sl_buf_string(form), .cancel = creds->config->cancel};
    sl_autosecretanswer answer = {0};
    if (sl_token_url_check(url, creds->origin, err) < 0 ||
        sl_token_request(&request, &answer, err) < 0)
        return -1;
    return answer.status == 200 ? sl_token_take(&request, &answer, text, expires, err)
                                : sl_token_refused(&request, &answer, advice, err);
}

static int ask_user(struct sl_gs_creds *creds, char **text, int64_t *expires, struct sl_err *err)
{
    sl_autosecretbuf form = SL_BUF_INIT(SL_TOKEN_BYTES_MAX);
    const char *url = member(creds, "token_uri");
    if (add_field(&form, "grant_type", "refresh_token", err) < 0 ||
        add_field(&form, "client_id", member(creds, "client_id"), err) < 0 ||
        add_field(&form, "client_secret", member(creds, "client_secret"), err) < 0 ||
        add_field(&form, "refresh_token", member(creds, "refresh_token"), err) < 0)
        return -1;
    return post(creds, url ? url : google_tokens, &form,
                "log in again with 'gcloud auth application-default login'", text, expires, err);
}

/* The text, or the field of its JSON. */
static char *subject_of(const struct sl_gs_creds *creds, const char *text, struct sl_err *err)
{
    const json_t *source = json_object_get(creds->file, "credential_source");
    const json_t *format = json_object_get(source, "format");
    const char *type = sl_json_get_string(format, "type");
    const char *field = sl_json_get_string(format, "subject_token_field_name");
    if (!type || strcmp(type, "json") != 0)
        return sl_token_check(text, "the subject token", err) < 0 ? NULL : sl_strdup(text, err);
    json_t *json = sl_json_parse(text, strlen(text), "the subject token", NULL);
    const char *value = json && field ? sl_json_get_string(json, field) : NULL;
    char *subject = NULL;
    if (!value)
        sl_fail(err, SL_E_AUTH, "the subject token's JSON has no text '%.60s'", field ? field : "");
    else if (sl_token_check(value, "the subject token", err) == 0)
        subject = sl_strdup(value, err);
    json_decref(json);
    return subject;
}

static char *subject_from_file(const struct sl_gs_creds *creds, const char *path,
                               struct sl_err *err)
{
    sl_autosecretbuf text = SL_BUF_INIT(FILE_BYTES_MAX);
    if (sl_buf_read_file(&text, path, err) < 0) {
        if (err)
            err->kind = SL_E_AUTH;
        return NULL;
    }
    sl_buf_trim(&text);
    return subject_of(creds, sl_buf_string(&text), err);
}

/* "Name: value" of credential_source.headers; 0 or -1. */
static int add_headers(const json_t *source, char *lines[HEADERS_MAX + 1], struct sl_err *err)
{
    const char *name;
    json_t *value;
    unsigned count = 0;
    json_object_foreach(json_object_get(source, "headers"), name, value)
    {
        const char *text = json_string_value(value);
        if (!text || count == HEADERS_MAX || strpbrk(name, "\r\n: ") || strpbrk(text, "\r\n"))
            return sl_fail(err, SL_E_USAGE, "credential_source.headers: at most %d plain texts",
                           HEADERS_MAX);
        lines[count] = sl_asprintf(err, "%s: %s", name, text);
        if (!lines[count++])
            return -1;
    }
    return 0;
}

static char *subject_from_url(const struct sl_gs_creds *creds, const char *url, struct sl_err *err)
{
    char what[300], *lines[HEADERS_MAX + 1] = {0}, *subject = NULL;
    const json_t *source = json_object_get(creds->file, "credential_source");
    sl_autourl parsed = {0};
    snprintf(what, sizeof(what), "cannot get a subject token from '%.*s'",
             (int)SL_MIN(strcspn(url, "?#"), 200), url);
    if (sl_url_parse(url, &parsed, err) < 0)
        return NULL;
    bool metadata = sl_imds_host(parsed.host);
    const struct sl_token_request request = {.what = what,
                                             .url = url,
                                             .headers = (const char *const *)lines,
                                             .direct = metadata,
                                             .cancel = creds->config->cancel};
    sl_autosecretanswer answer = {0};
    if ((metadata || sl_token_url_check(url, creds->origin, err) == 0) &&
        add_headers(source, lines, err) == 0 && sl_token_request(&request, &answer, err) == 0) {
        if (answer.status == 200)
            subject = subject_of(creds, sl_buf_string(&answer.body), err);
        else
            sl_token_refused(&request, &answer, "check credential_source", err);
    }
    for (unsigned i = 0; i < HEADERS_MAX; i++)
        sl_secret_free(lines[i]);
    return subject;
}

/* 2014-10-02T15:01:23Z, with fractions of a second: seconds since 1970; -1. */
static int64_t parse_time(const char *text)
{
    struct tm tm = {0};
    const char *rest = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (rest && *rest == '.')
        rest += 1 + strspn(rest + 1, "0123456789");
    return rest && strcmp(rest, "Z") == 0 ? (int64_t)timegm(&tm) : -1;
}

/* A token of the account that the exchanged one may act as. */
static int impersonate(struct sl_gs_creds *creds, const char *url, const char *token, char **text,
                       int64_t *expires, struct sl_err *err)
{
    char what[300];
    snprintf(what, sizeof(what), "cannot act as the service account of '%.200s'", url);
    sl_autofree char *body =
        sl_asprintf(err, "{\"scope\": [\"%s\"], \"lifetime\": \"3600s\"}", scope_of(creds));
    sl_autosecret char *bearer = sl_asprintf(err, "Authorization: Bearer %s", token);
    const char *const headers[] = {bearer, NULL};
    const struct sl_token_request request = {.what = what,
                                             .url = url,
                                             .headers = headers,
                                             .form = body,
                                             .form_type = "application/json",
                                             .cancel = creds->config->cancel};
    sl_autosecretanswer answer = {0};
    if (!body || !bearer || sl_token_url_check(url, creds->origin, err) < 0 ||
        sl_token_request(&request, &answer, err) < 0)
        return -1;
    if (answer.status != 200)
        return sl_token_refused(&request, &answer,
                                "grant roles/iam.workloadIdentityUser on that account", err);
    json_t *json = sl_json_parse(sl_buf_string(&answer.body), answer.body.used, "answer", NULL);
    const char *given = json ? sl_json_get_string(json, "accessToken") : NULL;
    *expires = json ? parse_time(sl_json_get_string(json, "expireTime")) : -1;
    if (!given || *expires < 0)
        sl_fail(err, SL_E_AUTH, "%s: the answer has no token, or does not say when it expires",
                what);
    else if (sl_token_check(given, "the token of the answer", err) == 0)
        *text = sl_strdup(given, err);
    json_decref(json);
    return *text ? 0 : -1;
}

static int ask_external(struct sl_gs_creds *creds, char **text, int64_t *expires,
                        struct sl_err *err)
{
    const json_t *source = json_object_get(creds->file, "credential_source");
    const char *path = sl_json_get_string(source, "file"), *acts = NULL;
    sl_autosecret char *subject =
        path ? subject_from_file(creds, path, err)
             : subject_from_url(creds, sl_json_get_string(source, "url"), err);
    sl_autosecretbuf form = SL_BUF_INIT(SL_TOKEN_BYTES_MAX);
    if (!subject)
        return sl_wrap(err, "%s", creds->origin);
    acts = member(creds, "service_account_impersonation_url");
    if (add_field(&form, "grant_type", "urn:ietf:params:oauth:grant-type:token-exchange", err) <
            0 ||
        add_field(&form, "audience", member(creds, "audience"), err) < 0 ||
        add_field(&form, "scope", acts ? SCOPE "cloud-platform" : scope_of(creds), err) < 0 ||
        add_field(&form, "requested_token_type", "urn:ietf:params:oauth:token-type:access_token",
                  err) < 0 ||
        add_field(&form, "subject_token", subject, err) < 0 ||
        add_field(&form, "subject_token_type", member(creds, "subject_token_type"), err) < 0)
        return -1;
    static const char advice[] = "check the workload identity pool and its provider";
    if (!acts)
        return post(creds, member(creds, "token_url"), &form, advice, text, expires, err);
    sl_autosecret char *exchanged = NULL;
    if (post(creds, member(creds, "token_url"), &form, advice, &exchanged, expires, err) < 0)
        return -1;
    return impersonate(creds, acts, exchanged, text, expires, err);
}

static unsigned metadata_seconds(void)
{
    const char *text = env("GCE_METADATA_TIMEOUT");
    unsigned seconds = text ? (unsigned)strtoul(text, NULL, 10) : 0;
    return seconds && seconds <= 60 ? seconds : METADATA_SECONDS;
}

/* https://cloud.google.com/compute/docs/metadata: nobody there, or no Google, is not a failure. */
static int ask_metadata(struct sl_gs_creds *creds, char **text, int64_t *expires,
                        struct sl_err *err)
{
    static const char *const headers[] = {"Metadata-Flavor: Google", NULL};
    const char *host = env("GCE_METADATA_HOST"), *address = env("GCE_METADATA_IP");
    char what[300], flavor[16] = "";
    host = host ? host : env("GCE_METADATA_ROOT");
    host = host ? host : address ? address : "169.254.169.254";
    sl_autofree char *url = sl_asprintf(
        err, "http://%s/computeMetadata/v1/instance/service-accounts/default/token", host);
    if (!url)
        return -1;
    snprintf(what, sizeof(what), "cannot get a token from the metadata server '%.200s'", host);
    const struct sl_token_request request = {.what = what,
                                             .url = url,
                                             .headers = headers,
                                             .direct = true,
                                             .seconds = metadata_seconds(),
                                             .cancel = creds->config->cancel};
    struct sl_err why = SL_ERR_INIT;
    sl_autosecretanswer answer = {0};
    if (sl_token_request(&request, &answer, &why) < 0) {
        if (why.kind == SL_E_CANCELED) {
            *err = why;
            return -1;
        }
        sl_counter_add(&creds->none, 1);
        sl_log(SL_LOG_DEBUG, "no Google credentials: %s", why.message);
        return 0;
    }
    bool google = sl_answer_header(&answer, "Metadata-Flavor", flavor, sizeof(flavor)) &&
                  strcmp(flavor, "Google") == 0;
    if (!google || answer.status == 404) { /* another cloud's, or a machine without an account */
        sl_counter_add(&creds->none, 1);
        return 0;
    }
    return answer.status == 200
               ? sl_token_take(&request, &answer, text, expires, err)
               : sl_token_refused(&request, &answer,
                                  "check the service account of the machine, or the binding of the "
                                  "Kubernetes service account (workload identity)",
                                  err);
}

static int ask(void *arg, char **text, int64_t *expires, struct sl_err *err)
{
    struct sl_gs_creds *creds = arg;
    switch (creds->kind) {
    case SERVICE_ACCOUNT:
        return ask_service_account(creds, text, expires, err);
    case AUTHORIZED_USER:
        return ask_user(creds, text, expires, err);
    case EXTERNAL_ACCOUNT:
        return ask_external(creds, text, expires, err);
    case METADATA:
        return ask_metadata(creds, text, expires, err);
    default:
        return 0;
    }
}

/* ---- the credentials ------------------------------------------------------------------------- */

struct sl_gs_creds *sl_gs_creds_new(const struct sl_source_config *config, bool bare,
                                    struct sl_err *err)
{
    SL_AUTO(sl_gs_creds) creds = sl_alloc(sizeof(*creds), err);
    if (!creds)
        return NULL;
    creds->config = config;
    creds->tokens = sl_tokens_new(ask, creds, MARGIN_SECONDS, err);
    if (!creds->tokens || choose(creds, bare, err) < 0)
        return NULL;
    sl_log(SL_LOG_DEBUG, "Google credentials: %s", creds->origin);
    return sl_steal(&creds);
}

void sl_gs_creds_free(struct sl_gs_creds *creds)
{
    if (!creds)
        return;
    sl_tokens_free(creds->tokens);
    json_decref(creds->file);
    free(creds->origin);
    free(creds);
}

void sl_gs_creds_for_writing(struct sl_gs_creds *creds)
{
    creds->writes = true;
}

int sl_gs_creds_get(struct sl_gs_creds *creds, char **token, unsigned *generation,
                    struct sl_err *err)
{
    return sl_tokens_get(creds->tokens, token, generation, err);
}

bool sl_gs_creds_renew(struct sl_gs_creds *creds, unsigned generation)
{
    return sl_tokens_renew(creds->tokens, generation);
}

const char *sl_gs_creds_origin(const struct sl_gs_creds *creds)
{
    return creds->origin;
}

enum sl_gs_bare sl_gs_creds_bare(struct sl_gs_creds *creds)
{
    if (creds->kind == ANONYMOUS)
        return creds->asked_for ? SL_GS_ANONYMOUS : SL_GS_NONE_FOUND;
    return sl_counter_get(&creds->none) ? SL_GS_NONE_FOUND : SL_GS_LET_IN;
}

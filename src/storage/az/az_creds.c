/*
 * Which of Azure's credentials are used, and how a token of Entra is had. Log-ins of command lines,
 * Arc and Service Fabric are not done: sluice starts no programs.
 *
 * https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow
 * https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/
 * how-to-use-vm-token
 */
#include "az_creds.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "log.h"
#include "thread.h"
#include "url.h"

enum {
    MARGIN_SECONDS = 300,
    SAS_SECONDS = 3600,
    EARLY_SECONDS = 300, /* clocks differ */
    IDENTITY_SECONDS = 2,
    IDENTITY_TRIES = 2,
};
static const char resource[] = "https%3A%2F%2Fstorage.azure.com%2F";

enum kind { ANONYMOUS, SAS, KEY, SECRET, WORKLOAD, MANAGED };

struct sl_az_creds {
    const struct sl_az_place *place;
    const struct sl_source_config *config;
    enum kind kind;
    char *origin;
    bool writes, asked_for;
    struct sl_tokens *tokens;
    struct sl_counter none; /* managed identity: nobody is there */
};

static const char *env(const char *name, const char *alias)
{
    const char *value = getenv(name);
    if ((!value || !*value) && alias)
        value = getenv(alias);
    return value && *value ? value : NULL;
}

static const char *tenant(void)
{
    return env("AZURE_TENANT_ID", "AZ_TENANT_ID");
}

static const char *client(void)
{
    return env("AZURE_CLIENT_ID", "AZ_CLIENT_ID");
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* AZURE_TOKEN_CREDENTIALS: "dev" and "prod" are groups, other words name one. */
static bool allowed(const char *name)
{
    const char *wanted = env("AZURE_TOKEN_CREDENTIALS", NULL);
    return !wanted || strcasecmp(wanted, "prod") == 0 || strcasecmp(wanted, name) == 0;
}

static int chosen(struct sl_az_creds *creds, enum kind kind, const char *origin, struct sl_err *err)
{
    creds->kind = kind;
    creds->origin = sl_strdup(origin, err);
    return creds->origin ? 0 : -1;
}

/* Secrets go by https, and within this machine. */
static int check_way(const struct sl_az_creds *creds, struct sl_err *err)
{
    if (creds->kind == ANONYMOUS || creds->place->tls || creds->place->near)
        return 0;
    return sl_fail(err, SL_E_AUTH,
                   "no credentials are sent over plain http to another machine: use an https "
                   "endpoint, or source.az.anonymous");
}

static int choose_entra(struct sl_az_creds *creds, struct sl_err *err)
{
    if (env("AZURE_CLIENT_CERTIFICATE_PATH", NULL) && allowed("EnvironmentCredential"))
        return sl_fail(err, SL_E_AUTH,
                       "AZURE_CLIENT_CERTIFICATE_PATH: sluice does not sign in with certificates: "
                       "use a client secret, workload identity or managed identity");
    if (tenant() && client() && env("AZURE_CLIENT_SECRET", "AZ_CLIENT_SECRET") &&
        allowed("EnvironmentCredential"))
        return chosen(creds, SECRET, "the service principal of AZURE_CLIENT_ID", err);
    if (tenant() && client() && env("AZURE_FEDERATED_TOKEN_FILE", NULL) &&
        allowed("WorkloadIdentityCredential"))
        return chosen(creds, WORKLOAD, "workload identity (AZURE_FEDERATED_TOKEN_FILE)", err);
    bool bare = !creds->place->tls && !creds->place->near;
    if (!bare && allowed("ManagedIdentityCredential"))
        return chosen(creds, MANAGED, "managed identity", err);
    return chosen(creds, ANONYMOUS, "none were found", err);
}

static int choose(struct sl_az_creds *creds, struct sl_err *err)
{
    const struct sl_az_options *options = sl_source_options(creds->config, &sl_az_table);
    const struct sl_az_place *place = creds->place;
    if (place->uri_sas)
        return chosen(creds, SAS, "the SAS of the URI", err);
    if (options && options->anonymous) {
        creds->asked_for = true;
        return chosen(creds, ANONYMOUS, "none, as source.az.anonymous asks", err);
    }
    if (place->sas || place->key) {
        creds->kind = place->sas ? SAS : KEY;
        creds->origin =
            sl_asprintf(err, "the %s of %s", place->sas ? "SAS" : "account key", place->from);
        return creds->origin ? 0 : -1;
    }
    return choose_entra(creds, err);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int take_sas(const struct sl_az_creds *creds, char **text, struct sl_err *err)
{
    sl_autosecret char *given = sl_az_place_secret(creds->place, creds->config, err);
    const char *sas = given ? given + (*given == '?') : NULL;
    if (!sas || sl_token_check(sas, creds->origin, err) < 0)
        return -1;
    *text = sl_strdup(sas, err);
    return *text ? 0 : -1;
}

static const char *write_time(int64_t seconds, char text[32])
{
    time_t when = (time_t)seconds;
    struct tm tm;
    strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&when, &tm));
    return text;
}

static int sign_sas(const struct sl_az_creds *creds, char **text, int64_t *expires,
                    struct sl_err *err)
{
    char begins[32], end[32];
    int64_t now = sl_wall_seconds();
    const struct sl_az_sas sas = {.account = creds->place->account,
                                  .container = creds->place->container,
                                  .rights = creds->writes ? "rcwl" : "rl",
                                  .begins = write_time(now - EARLY_SECONDS, begins),
                                  .end = write_time(now + SAS_SECONDS, end),
                                  .tls = creds->place->tls};
    sl_autosecret char *key = sl_az_place_secret(creds->place, creds->config, err);
    *text = key ? sl_az_sas_sign(&sas, key, err) : NULL;
    *expires = now + SAS_SECONDS;
    return *text ? 0 : sl_wrap(err, "%s", creds->origin);
}

static int add_field(struct sl_buf *form, const char *name, const char *value, struct sl_err *err)
{
    sl_autosecret char *encoded = sl_url_encode(value, false, err);
    return encoded ? sl_buf_printf(form, err, "%s%s=%s", form->used ? "&" : "", name, encoded) : -1;
}

static int write_form(const struct sl_az_creds *creds, struct sl_buf *form, struct sl_err *err)
{
    if (add_field(form, "client_id", client(), err) < 0 ||
        add_field(form, "grant_type", "client_credentials", err) < 0 ||
        add_field(form, "scope", "https://storage.azure.com/.default", err) < 0)
        return -1;
    if (creds->kind == SECRET)
        return add_field(form, "client_secret", env("AZURE_CLIENT_SECRET", "AZ_CLIENT_SECRET"),
                         err);
    sl_autosecret char *assertion =
        sl_token_from_file(env("AZURE_FEDERATED_TOKEN_FILE", NULL), err);
    if (!assertion)
        return sl_wrap(err, "AZURE_FEDERATED_TOKEN_FILE");
    if (add_field(form, "client_assertion_type",
                  "urn:ietf:params:oauth:client-assertion-type:jwt-bearer", err) < 0)
        return -1;
    return add_field(form, "client_assertion", assertion, err);
}

static int ask_entra(const struct sl_az_creds *creds, char **text, int64_t *expires,
                     struct sl_err *err)
{
    char what[400];
    const char *authority = env("AZURE_AUTHORITY_HOST", NULL);
    sl_autosecretbuf form = SL_BUF_INIT(SL_TOKEN_BYTES_MAX);
    sl_autofree char *id = sl_url_encode(tenant(), false, err);
    authority = authority ? authority : "https://login.microsoftonline.com";
    size_t bytes = strlen(authority);
    while (bytes && authority[bytes - 1] == '/')
        bytes--;
    sl_autofree char *url =
        id ? sl_asprintf(err, "%s%.*s/%s/oauth2/v2.0/token",
                         strstr(authority, "://") ? "" : "https://", (int)bytes, authority, id)
           : NULL;
    if (!url || sl_token_url_check(url, "AZURE_AUTHORITY_HOST", err) < 0 ||
        write_form(creds, &form, err) < 0)
        return -1;
    snprintf(what, sizeof(what), "cannot get a token from '%.200s' for %s", url, creds->origin);
    const struct sl_token_request request = {
        .what = what, .url = url, .form = sl_buf_string(&form), .cancel = creds->config->cancel};
    sl_autosecretanswer answer = {0};
    if (sl_token_request(&request, &answer, err) < 0)
        return -1;
    return answer.status == 200
               ? sl_token_take(&request, &answer, text, expires, err)
               : sl_token_refused(&request, &answer,
                                  "check AZURE_TENANT_ID, AZURE_CLIENT_ID and the federated "
                                  "credential or secret",
                                  err);
}

/* With IDENTITY_ENDPOINT (App Service, Container Apps) that one, else the machine's. */
static char *identity_url(const char **header, char *text, size_t bytes, struct sl_err *err)
{
    const char *endpoint = env("IDENTITY_ENDPOINT", NULL), *secret = env("IDENTITY_HEADER", NULL);
    const char *host = env("AZURE_POD_IDENTITY_AUTHORITY_HOST", NULL);
    sl_autofree char *id = client() ? sl_url_encode(client(), false, err) : NULL;
    if (endpoint && secret) {
        if (strpbrk(secret, "\r\n") ||
            snprintf(text, bytes, "X-IDENTITY-HEADER: %s", secret) >= (int)bytes) {
            sl_fail(err, SL_E_AUTH,
                    "IDENTITY_HEADER contains a character that no header may carry");
            return NULL;
        }
        *header = text;
        return sl_asprintf(err, "%s?api-version=2019-08-01&resource=%s%s%s", endpoint, resource,
                           id ? "&client_id=" : "", id ? id : "");
    }
    *header = "Metadata: true";
    host = host ? host : "http://169.254.169.254";
    size_t used = strlen(host);
    return sl_asprintf(err,
                       "%.*s/metadata/identity/oauth2/token?api-version=2018-02-01&resource=%s%s%s",
                       (int)(used - (used && host[used - 1] == '/')), host, resource,
                       id ? "&client_id=" : "", id ? id : "");
}

/* Nobody there, or a machine without an identity, is not a failure. */
static int ask_identity(struct sl_az_creds *creds, char **text, int64_t *expires,
                        struct sl_err *err)
{
    char secret[1024];
    const char *headers[2] = {NULL, NULL};
    sl_autofree char *url = identity_url(&headers[0], secret, sizeof(secret), err);
    if (!url)
        return -1;
    const struct sl_token_request request = {.what = "cannot get a token of the managed identity",
                                             .url = url,
                                             .headers = headers,
                                             .direct = true,
                                             .seconds = IDENTITY_SECONDS,
                                             .tries = IDENTITY_TRIES,
                                             .cancel = creds->config->cancel};
    struct sl_err why = SL_ERR_INIT;
    sl_autosecretanswer answer = {0};
    if (sl_token_request(&request, &answer, &why) < 0) {
        if (why.kind == SL_E_CANCELED) {
            *err = why;
            return -1;
        }
        sl_counter_add(&creds->none, 1);
        sl_log(SL_LOG_DEBUG, "no managed identity: %s", why.message);
        return 0;
    }
    if (answer.status >= 400 && answer.status < 500 && answer.status != 429) {
        sl_counter_add(&creds->none, 1); /* 400: no identity; else: another cloud's */
        return 0;
    }
    return answer.status == 200
               ? sl_token_take(&request, &answer, text, expires, err)
               : sl_token_refused(&request, &answer, "check the managed identity", err);
}

static int ask(void *arg, char **text, int64_t *expires, struct sl_err *err)
{
    struct sl_az_creds *creds = arg;
    switch (creds->kind) {
    case SAS:
        return take_sas(creds, text, err);
    case KEY:
        return sign_sas(creds, text, expires, err);
    case SECRET:
    case WORKLOAD:
        return ask_entra(creds, text, expires, err);
    case MANAGED:
        return ask_identity(creds, text, expires, err);
    default:
        return 0;
    }
}

/* ---- the credentials ------------------------------------------------------------------------- */

struct sl_az_creds *sl_az_creds_new(const struct sl_az_place *place,
                                    const struct sl_source_config *config, struct sl_err *err)
{
    SL_AUTO(sl_az_creds) creds = sl_alloc(sizeof(*creds), err);
    if (!creds)
        return NULL;
    creds->place = place;
    creds->config = config;
    creds->tokens = sl_tokens_new(ask, creds, MARGIN_SECONDS, err);
    if (!creds->tokens || choose(creds, err) < 0 || check_way(creds, err) < 0)
        return NULL;
    sl_log(SL_LOG_DEBUG, "Azure credentials: %s", creds->origin);
    return sl_steal(&creds);
}

void sl_az_creds_free(struct sl_az_creds *creds)
{
    if (!creds)
        return;
    sl_tokens_free(creds->tokens);
    free(creds->origin);
    free(creds);
}

void sl_az_creds_for_writing(struct sl_az_creds *creds)
{
    creds->writes = true;
}

int sl_az_creds_get(struct sl_az_creds *creds, char **text, bool *is_query, unsigned *generation,
                    struct sl_err *err)
{
    *is_query = creds->kind == SAS || creds->kind == KEY;
    return sl_tokens_get(creds->tokens, text, generation, err);
}

bool sl_az_creds_renew(struct sl_az_creds *creds, unsigned generation)
{
    return sl_tokens_renew(creds->tokens, generation);
}

const char *sl_az_creds_origin(const struct sl_az_creds *creds)
{
    return creds->origin;
}

enum sl_az_bare sl_az_creds_bare(struct sl_az_creds *creds)
{
    if (creds->kind == ANONYMOUS)
        return creds->asked_for ? SL_AZ_ANONYMOUS : SL_AZ_NONE_FOUND;
    return sl_counter_get(&creds->none) ? SL_AZ_NONE_FOUND : SL_AZ_LET_IN;
}

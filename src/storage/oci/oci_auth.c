/*
 * Tokens of a registry. Its first refusal says who gives them out; they are kept and replaced by
 * cloud/tokens. A password goes to the registry's token service only over https or within this
 * machine, and an identity token likewise.
 */
#include "oci_auth.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "imds.h"
#include "json.h"
#include "log.h"
#include "oci_options.h"
#include "store_kind.h"
#include "thread.h"
#include "url.h"

enum {
    MARGIN_SECONDS = 20,          /* tokens are good for a minute at some registries */
    TOKEN_SECONDS_DEFAULT = 60,   /* where the service does not say */
    TOKEN_SECONDS_MAX = 24 * 3600 /* nobody needs to believe in more */
};

struct sl_oci_auth {
    const struct sl_source_config *config;
    const char *host, *repo;
    bool bare, tls, helpers; /* helpers: programs that keep logins may be asked */
    struct sl_oci_login login;
    struct sl_tokens *tokens; /* whole values of the Authorization header */
    struct {
        pthread_mutex_t mutex;
        struct sl_oci_challenge challenge;
        bool challenged;
    } locked;
};

/* ---- the token service ----------------------------------------------------------------------- */

static int check_realm(const struct sl_oci_auth *auth, const struct sl_oci_login *login,
                       const char *realm, struct sl_err *err)
{
    static const char whose[] = "the registry's token service";
    sl_autourl url = {0};
    if (sl_url_parse(realm, &url, err) < 0)
        return sl_wrap(err, "%s", whose);
    if (auth->tls && !url.tls)
        return sl_fail(err, SL_E_AUTH,
                       "the registry leads from https to plain http for a token, to '%.100s': it "
                       "is not asked",
                       url.host);
    if (login->password || login->identity)
        return sl_token_url_check(realm, whose, err);
    if (sl_imds_host(url.host))
        return sl_fail(
            err, SL_E_AUTH,
            "the registry names %s '%.100s', a cloud's metadata address: it is not asked", whose,
            url.host);
    return 0;
}

/* "service=…&scope=…" */
static char *make_query(const struct sl_oci_auth *auth, const struct sl_oci_challenge *challenge,
                        struct sl_err *err)
{
    sl_autofree char *usual = sl_asprintf(err, "repository:%s:pull", auth->repo);
    if (!usual)
        return NULL;
    const char *asked = challenge->scope ? challenge->scope : usual;
    sl_autofree char *service =
        sl_url_encode(challenge->service ? challenge->service : "", false, err);
    sl_autofree char *scope = service ? sl_url_encode(asked, false, err) : NULL;
    return scope ? sl_asprintf(err, "service=%s&scope=%s", service, scope) : NULL;
}

/* token or access_token, and expires_in: the service may give both names. */
static int take_token(const struct sl_token_request *request, const struct sl_answer *answer,
                      char **text, int64_t *expires, struct sl_err *err)
{
    json_t *document =
        sl_json_parse(sl_buf_string(&answer->body), answer->body.used, request->what, err);
    if (!document)
        return -1;
    const char *token = sl_json_get_string(document, "token");
    token = token && *token ? token : sl_json_get_string(document, "access_token");
    uint64_t seconds = sl_json_get_uint(document, "expires_in", TOKEN_SECONDS_DEFAULT);
    int result = token ? sl_token_check(token, "the token of the registry's token service", err)
                       : sl_fail(err, SL_E_AUTH, "%s: the answer holds no token", request->what);
    if (result == 0) {
        *text = sl_asprintf(err, "Bearer %s", token);
        *expires = sl_wall_seconds() + (int64_t)SL_MIN(seconds, (uint64_t)TOKEN_SECONDS_MAX);
        result = *text ? 0 : -1;
    }
    json_decref(document);
    return result;
}

/* By a program, and no file has it itself. */
static bool is_kept(const struct sl_oci_login *login)
{
    return login->helper && !login->user && !login->identity;
}

static void advise(const struct sl_oci_auth *auth, const struct sl_oci_login *login,
                   char advice[300])
{
    const char *from = auth->login.from ? auth->login.from : "";
    if (is_kept(&auth->login))
        snprintf(advice, 300, "%.120s leaves the login to docker-credential-%.60s: %s", from,
                 auth->login.helper,
                 login->user || login->identity ? "log in again with it"
                                                : "see source.oci.credentialHelpers");
    else
        snprintf(advice, 300, "%s%.200s",
                 *from ? "log in again; the login is from "
                       : "give a login by source.oci.dockerConfig",
                 from);
}

static int ask_service(const struct sl_oci_auth *auth, const struct sl_oci_login *login,
                       const struct sl_token_request *request, char **text, int64_t *expires,
                       struct sl_err *err)
{
    sl_autosecretanswer answer = {0};
    if (sl_token_request(request, &answer, err) < 0)
        return -1;
    if (answer.status >= 200 && answer.status < 300)
        return take_token(request, &answer, text, expires, err);
    char advice[300];
    advise(auth, login, advice);
    return sl_token_refused(request, &answer, advice, err);
}

static int ask_with_identity(const struct sl_oci_auth *auth, const struct sl_oci_login *login,
                             const char *realm, const char *query, struct sl_token_request *request,
                             char **text, int64_t *expires, struct sl_err *err)
{
    sl_autosecret char *identity = sl_url_encode(login->identity, false, err);
    sl_autosecret char *form =
        identity ? sl_asprintf(err, "grant_type=refresh_token&client_id=sluice&%s&refresh_token=%s",
                               query, identity)
                 : NULL;
    if (!form)
        return -1;
    request->url = realm;
    request->form = form;
    return ask_service(auth, login, request, text, expires, err);
}

static int ask_with_login(const struct sl_oci_auth *auth, const struct sl_oci_login *login,
                          const char *realm, const char *query, struct sl_token_request *request,
                          char **text, int64_t *expires, struct sl_err *err)
{
    sl_autofree char *url =
        sl_asprintf(err, "%s%c%s", realm, strchr(realm, '?') ? '&' : '?', query);
    sl_autosecret char *basic = NULL, *header = NULL;
    if (!url)
        return -1;
    if (login->password) {
        basic = sl_http_basic(login->user, login->password, err);
        header = basic ? sl_asprintf(err, "Authorization: %s", basic) : NULL;
        if (!header)
            return -1;
    }
    const char *const headers[] = {header, NULL};
    request->url = url;
    request->headers = headers;
    return ask_service(auth, login, request, text, expires, err);
}

static int ask_bearer(const struct sl_oci_auth *auth, const struct sl_oci_login *login,
                      const struct sl_oci_challenge *challenge, char **text, int64_t *expires,
                      struct sl_err *err)
{
    struct sl_token_request request = {.what = "cannot get a token from the registry's service",
                                       .tls = auth->config->tls,
                                       .cancel = auth->config->cancel};
    sl_autofree char *query = make_query(auth, challenge, err);
    if (!query || check_realm(auth, login, challenge->realm, err) < 0)
        return -1;
    if (login->identity)
        return ask_with_identity(auth, login, challenge->realm, query, &request, text, expires,
                                 err);
    return ask_with_login(auth, login, challenge->realm, query, &request, text, expires, err);
}

static int make_basic(const struct sl_oci_login *login, char **text, struct sl_err *err)
{
    if (!login->password)
        return sl_fail(err, SL_E_AUTH,
                       "the registry wants a user and a password: give a login by "
                       "source.oci.dockerConfig%s%s%s",
                       login->helper ? " (the one there is kept by docker-credential-" : "",
                       login->helper ? login->helper : "",
                       login->helper ? ", see source.oci.credentialHelpers)" : "");
    *text = sl_http_basic(login->user, login->password, err);
    return *text ? 0 : -1;
}

static int copy_challenge(struct sl_oci_auth *auth, struct sl_oci_challenge *copy,
                          struct sl_err *err)
{
    SL_LOCKED(&auth->locked.mutex);
    const struct sl_oci_challenge *from = &auth->locked.challenge;
    copy->basic = from->basic;
    if ((from->realm && !(copy->realm = sl_strdup(from->realm, err))) ||
        (from->service && !(copy->service = sl_strdup(from->service, err))) ||
        (from->scope && !(copy->scope = sl_strdup(from->scope, err))))
        return -1;
    return 0;
}

/* Logins end, too: whoever logs in again has written the file anew. What cannot be read, or has
 * none any more, leaves the one that there was. */
static bool find_anew(const struct sl_oci_auth *auth, struct sl_oci_login *login)
{
    const struct sl_oci_options *options = sl_source_options(auth->config, &sl_oci_table);
    const char *file = options ? options->docker_config : NULL;
    if (!auth->login.from || sl_oci_login_find(file, auth->host, auth->repo, login, NULL) < 0)
        return false;
    return login->user || login->identity || login->helper;
}

/* sl_tokens_ask */
static int ask(void *arg, char **text, int64_t *expires, struct sl_err *err)
{
    struct sl_oci_auth *auth = arg;
    struct sl_oci_challenge challenge = {0};
    struct sl_oci_login anew = {0}, kept = {0};
    const struct sl_oci_login *login = find_anew(auth, &anew) ? &anew : &auth->login;
    int result = copy_challenge(auth, &challenge, err);
    if (result == 0 && auth->helpers && is_kept(login)) { /* anew: what it gives may end, too */
        result = sl_oci_helper_ask(login->helper, auth->host, auth->config->cancel, &kept, err);
        login = &kept;
    }
    if (result == 0 && challenge.basic)
        result = make_basic(login, text, err);
    else if (result == 0)
        result = ask_bearer(auth, login, &challenge, text, expires, err);
    sl_oci_login_release(&anew);
    sl_oci_login_release(&kept);
    sl_oci_challenge_release(&challenge);
    return result;
}

/* ---- for requests ---------------------------------------------------------------------------- */

struct sl_oci_auth *sl_oci_auth_new(const struct sl_source_config *config, const char *host,
                                    const char *repo, bool bare, bool tls,
                                    struct sl_oci_login *login, struct sl_err *err)
{
    const struct sl_oci_options *options = sl_source_options(config, &sl_oci_table);
    struct sl_oci_auth *auth = sl_alloc(sizeof(*auth), err);
    if (!auth)
        return NULL;
    auth->config = config;
    auth->host = host;
    auth->repo = repo;
    auth->helpers = options && options->credential_helpers;
    auth->bare = bare;
    auth->tls = tls;
    pthread_mutex_init(&auth->locked.mutex, NULL);
    auth->tokens = sl_tokens_new(ask, auth, MARGIN_SECONDS, err);
    if (!auth->tokens) {
        sl_oci_auth_free(auth);
        return NULL;
    }
    auth->login = *login;
    *login = (struct sl_oci_login){0};
    return auth;
}

void sl_oci_auth_free(struct sl_oci_auth *auth)
{
    if (!auth)
        return;
    sl_tokens_free(auth->tokens);
    sl_oci_login_release(&auth->login);
    sl_oci_challenge_release(&auth->locked.challenge);
    pthread_mutex_destroy(&auth->locked.mutex);
    free(auth);
}

const struct sl_oci_login *sl_oci_auth_login(const struct sl_oci_auth *auth)
{
    return &auth->login;
}

static bool is_challenged(struct sl_oci_auth *auth)
{
    SL_LOCKED(&auth->locked.mutex);
    return auth->locked.challenged;
}

int sl_oci_let_in(struct sl_oci_auth *auth, struct sl_range_request *request, unsigned *token,
                  struct sl_err *err)
{
    sl_autosecret char *text = NULL;
    *token = 0;
    if (!is_challenged(auth))
        return 0;
    if (sl_tokens_get(auth->tokens, &text, token, err) < 0)
        return -1;
    return text ? sl_range_add_header(request, err, "Authorization: %s", text) : 0;
}

void sl_oci_note_challenge(struct sl_oci_auth *auth, const char *header)
{
    struct sl_oci_challenge challenge;
    struct sl_err why = SL_ERR_INIT;
    if (!header || auth->bare)
        return;
    if (sl_oci_challenge_parse(header, &challenge, &why) < 0) {
        sl_log(SL_LOG_DEBUG, "%s", why.message);
        return;
    }
    SL_LOCKED(&auth->locked.mutex);
    if (auth->locked.challenged) {
        sl_oci_challenge_release(&challenge); /* the first one is of this repository already */
        return;
    }
    auth->locked.challenge = challenge;
    auth->locked.challenged = true;
}

bool sl_oci_renew(struct sl_oci_auth *auth, unsigned token)
{
    if (!is_challenged(auth))
        return false;
    return !token || sl_tokens_renew(auth->tokens, token);
}

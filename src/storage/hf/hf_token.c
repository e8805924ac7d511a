/* Where the token comes from, in the order of the hub's client, and where it may go. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "hf_store.h"
#include "log.h"

bool sl_hf_variable_is_true(const char *name)
{
    static const char *const words[] = {"1", "on", "yes", "true"};
    const char *value = getenv(name);
    for (size_t i = 0; value && i < SL_COUNT(words); i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

char *sl_hf_variable_text(const char *name, struct sl_err *err)
{
    const char *value = getenv(name);
    value = value ? value + strspn(value, " \t\r\n") : "";
    size_t bytes = strlen(value);
    while (bytes && strchr(" \t\r\n", value[bytes - 1]))
        bytes--;
    return bytes ? sl_strndup(value, bytes, err) : NULL;
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* "~/…" is below the home, as the client has it. */
static char *expand(const char *path, const char *more, struct sl_err *err)
{
    const char *home = variable("HOME");
    if (strncmp(path, "~/", 2) == 0 && home)
        return sl_asprintf(err, "%s%s%s", home, path + 1, more);
    return sl_asprintf(err, "%s%s", path, more);
}

/* The file of `hf auth login`, which need not be there. */
static char *usual_file(struct sl_err *err)
{
    const char *path = variable("HF_TOKEN_PATH"), *home = variable("HF_HOME"),
               *cache = variable("XDG_CACHE_HOME");
    if (path)
        return expand(path, "", err);
    if (home)
        return expand(home, "/token", err);
    if (cache)
        return expand(cache, "/huggingface/token", err);
    return expand("~/.cache/huggingface/token", "", err);
}

/* Public models are loaded all the same. */
static void warn_unreadable(const char *path)
{
    struct sl_err why = SL_ERR_INIT;
    sl_fail_errno(&why, SL_E_AUTH, errno, "HF_TOKEN_PATH names '%s', which cannot be read", path);
    sl_log(SL_LOG_WARN, "%s; no token is sent", why.message);
}

/* One that was found, not given: a machine without a token is as usual as one with it. */
static int find_implicit(struct sl_hf *hf, struct sl_err *err)
{
    static const char *const literals[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    if (sl_hf_variable_is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return 0;
    if (variable("HF_OIDC_RESOURCE"))
        return sl_fail(
            err, SL_E_USAGE,
            "HF_OIDC_RESOURCE is set, and sluice does not exchange tokens of a CI: unset "
            "it and give a token by source.hf.tokenFile or HF_TOKEN");
    for (size_t i = 0; i < SL_COUNT(literals) && !hf->token; i++) {
        struct sl_err why = SL_ERR_INIT;
        hf->token = sl_hf_variable_text(literals[i], &why);
        hf->token_from = hf->token ? literals[i] : NULL;
        if (why.kind) {
            if (err)
                *err = why;
            return -1;
        }
    }
    if (hf->token)
        return 0;
    hf->token_file = usual_file(err);
    if (!hf->token_file)
        return -1;
    if (access(hf->token_file, R_OK) != 0) {
        if (variable("HF_TOKEN_PATH"))
            warn_unreadable(hf->token_file);
        free(sl_steal(&hf->token_file));
    } else
        hf->token_from = variable("HF_TOKEN_PATH") ? "HF_TOKEN_PATH" : "the token file of HF_HOME";
    return 0;
}

int sl_hf_may_send(const struct sl_http_base *base, const char *from, bool given,
                   struct sl_err *err)
{
    if (base->url.tls || sl_url_host_is_near(base->url.host))
        return 1;
    sl_autofree char *hub = sl_url_format(&base->url, false, err);
    if (!hub)
        return -1;
    if (given)
        return sl_fail(err, SL_E_AUTH,
                       "%s: '%.100s' is plain http, which shows the token to everyone on the "
                       "network path: use https, or leave the token out",
                       from, hub);
    sl_log(SL_LOG_WARN, "the token from %s is not sent to '%s', which is plain http: use https",
           from, hub);
    return 0;
}

void sl_hf_forget_token(struct sl_hf *hf)
{
    if (hf->token)
        explicit_bzero(hf->token, strlen(hf->token));
    free(sl_steal(&hf->token));
    free(sl_steal(&hf->token_file));
    hf->token_from = NULL;
}

int sl_hf_find_token(struct sl_hf *hf, const struct sl_hf_options *options, struct sl_err *err)
{
    if (options && options->token_file && options->token_file[0]) {
        hf->token_file = sl_strdup(options->token_file, err);
        hf->token_from = "source.hf.tokenFile";
        if (!hf->token_file)
            return -1;
    } else if (find_implicit(hf, err) < 0) {
        return -1;
    }
    bool given = options && options->token_file && options->token_file[0];
    int sent = hf->token_from ? sl_hf_may_send(&hf->http, hf->token_from, given, err) : 1;
    if (sent < 0)
        return -1;
    if (!sent) {
        hf->withheld = hf->token_from;
        sl_hf_forget_token(hf);
    }
    hf->http.bearer_token = hf->token;
    hf->http.bearer_token_file = hf->token_file;
    hf->http.bearer_from = hf->token_from;
    if (hf->token_from)
        sl_log(SL_LOG_DEBUG, "the token for %s is from %s", hf->endpoint, hf->token_from);
    return 0;
}
